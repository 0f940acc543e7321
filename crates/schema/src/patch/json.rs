//! RFC 6902, with upstream's leniencies: negative indices count from the end, and replacing an absent key adds it.

use std::io;

use serde_json::{Map, Value};

use super::PatchError;
use crate::decode::MAX_DEPTH;
use crate::nesting;

/// Operations in one patch.
pub const MAX_OPERATIONS: usize = 10_000;
/// Bytes that `copy` operations may add: each may double the document.
const MAX_COPIED: usize = 3 << 20;

/// Applies every operation of `patch`, in order, or none: on failure `target` is unspecified and must be dropped.
pub fn apply_json(target: &mut Value, patch: &Value) -> Result<(), PatchError> {
    let Value::Array(operations) = patch else {
        return Err(PatchError::Malformed("a JSON patch is a list of operations".into()));
    };
    if operations.len() > MAX_OPERATIONS {
        let message = format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        );
        return Err(PatchError::TooLarge(message));
    }
    let mut copied = 0;
    for operation in operations {
        let Value::Object(operation) = operation else {
            return Err(PatchError::Malformed("a JSON patch operation is an object".into()));
        };
        perform(target, operation, &mut copied)?;
    }
    Ok(())
}

fn perform(target: &mut Value, operation: &Map<String, Value>, copied: &mut usize) -> Result<(), PatchError> {
    let text = |name: &str| operation.get(name).and_then(Value::as_str);
    let name = text("op").unwrap_or_default();
    let refused = |what: String| PatchError::Refused(what);
    let Some(path) = text("path") else {
        return Err(refused(format!("{name} operation failed to decode path: missing value")));
    };
    // A value that is not there is null, as upstream reads it.
    let value = || operation.get("value").cloned().unwrap_or(Value::Null);
    let from = || {
        text("from").ok_or_else(|| refused(format!("{name} operation failed to decode from: missing value")))
    };
    match name {
        "add" => add(target, path, value(), name),
        "remove" => remove(target, path, name).map(drop),
        "replace" => replace(target, path, value()),
        "test" => test(target, path, &value()),
        "move" => {
            let from = from()?;
            if path.strip_prefix(from).is_some_and(|rest| rest.starts_with('/')) {
                return Err(refused(format!(
                    "error in move for path: '{path}': a value cannot move into itself"
                )));
            }
            let value = remove(target, from, name)?;
            add(target, path, value, name)
        }
        "copy" => {
            let from = from()?;
            let value = look(target, from)
                .ok_or_else(|| {
                    refused(format!(
                        "copy operation does not apply: doc is missing from path: {from}: missing value"
                    ))
                })?
                .clone();
            *copied += size(&value);
            if *copied > MAX_COPIED {
                return Err(refused(format!(
                    "Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the limit {MAX_COPIED}"
                )));
            }
            add(target, path, value, name)
        }
        other => Err(refused(format!("Unexpected kind: {other}"))),
    }
}

/// A few operations that copy a value into itself would nest it deeper than any stack allows.
fn check_depth(path: &str, value: &Value) -> Result<(), PatchError> {
    let levels = path.matches('/').count();
    match MAX_DEPTH.checked_sub(levels) {
        Some(left) if !nesting::exceeds(value, left) => Ok(()),
        _ => Err(PatchError::Refused(format!("the patched document nests deeper than {MAX_DEPTH} levels"))),
    }
}

fn add(target: &mut Value, path: &str, value: Value, name: &str) -> Result<(), PatchError> {
    check_depth(path, &value)?;
    if path.is_empty() {
        *target = value;
        return Ok(());
    }
    let (parent, key) = parent(target, path).ok_or_else(|| missing(name, path))?;
    match parent {
        Value::Object(map) => {
            map.insert(key, value);
            Ok(())
        }
        Value::Array(list) if key == "-" => {
            list.push(value);
            Ok(())
        }
        Value::Array(list) => {
            let at = index(&key, list.len() + 1).ok_or_else(|| bad_index(name, path, &key))?;
            list.insert(at, value);
            Ok(())
        }
        _ => Err(missing(name, path)),
    }
}

fn remove(target: &mut Value, path: &str, name: &str) -> Result<Value, PatchError> {
    let (parent, key) = parent(target, path).ok_or_else(|| missing(name, path))?;
    match parent {
        Value::Object(map) => map.remove(&key).ok_or_else(|| {
            PatchError::Refused(format!(
                "error in {name} for path: '{path}': Unable to remove nonexistent key: {key}: missing value"
            ))
        }),
        Value::Array(list) => {
            let at = index(&key, list.len()).ok_or_else(|| bad_index(name, path, &key))?;
            Ok(list.remove(at))
        }
        _ => Err(missing(name, path)),
    }
}

fn replace(target: &mut Value, path: &str, value: Value) -> Result<(), PatchError> {
    check_depth(path, &value)?;
    if path.is_empty() {
        *target = value;
        return Ok(());
    }
    let absent = |what: &str| {
        PatchError::Refused(format!(
            "replace operation does not apply: doc is missing {what}: {path}: missing value"
        ))
    };
    let (parent, key) = parent(target, path).ok_or_else(|| absent("path"))?;
    match parent {
        Value::Object(map) => {
            map.insert(key, value);
        }
        Value::Array(list) => {
            let at = index(&key, list.len()).ok_or_else(|| absent("key"))?;
            list[at] = value;
        }
        _ => return Err(absent("path")),
    }
    Ok(())
}

fn test(target: &mut Value, path: &str, wanted: &Value) -> Result<(), PatchError> {
    let found = if path.is_empty() {
        Some(&*target)
    } else {
        let Some((parent, key)) = parent(target, path) else {
            let message = format!("test operation does not apply: is missing path: {path}: missing value");
            return Err(PatchError::Refused(message));
        };
        child(parent, &key)
    };
    // An absent key equals null.
    if found.unwrap_or(&Value::Null) == wanted {
        return Ok(());
    }
    Err(PatchError::Refused(format!("testing value {path} failed: test failed")))
}

fn missing(name: &str, path: &str) -> PatchError {
    PatchError::Refused(format!(
        "{name} operation does not apply: doc is missing path: \"{path}\": missing value"
    ))
}

fn bad_index(name: &str, path: &str, key: &str) -> PatchError {
    PatchError::Refused(format!(
        "error in {name} for path: '{path}': Unable to access invalid index: {key}: invalid index referenced"
    ))
}

/// The container that `path` ends in, and the last key.
fn parent<'a>(target: &'a mut Value, path: &str) -> Option<(&'a mut Value, String)> {
    let (front, last) = path.strip_prefix('/').map(|_| path.rsplit_once('/'))??;
    let mut place = target;
    for token in front.split('/').skip(1) {
        place = match place {
            Value::Object(map) => map.get_mut(&unescaped(token))?,
            Value::Array(list) => {
                let at = index(token, list.len())?;
                list.get_mut(at)?
            }
            _ => return None,
        };
    }
    Some((place, unescaped(last)))
}

fn look<'a>(target: &'a Value, path: &str) -> Option<&'a Value> {
    let mut place = target;
    if path.is_empty() {
        return Some(place);
    }
    for token in path.strip_prefix('/')?.split('/') {
        place = child(place, &unescaped(token))?;
    }
    Some(place)
}

fn child<'a>(place: &'a Value, key: &str) -> Option<&'a Value> {
    match place {
        Value::Object(map) => map.get(key),
        Value::Array(list) => list.get(index(key, list.len())?),
        _ => None,
    }
}

/// An index below `len`; a negative one counts from the end.
fn index(key: &str, len: usize) -> Option<usize> {
    let at = match key.strip_prefix('-') {
        Some(back) => len.checked_sub(back.parse::<usize>().ok()?)?,
        None => key.parse::<usize>().ok()?,
    };
    (at < len).then_some(at)
}

fn unescaped(token: &str) -> String {
    token.replace("~1", "/").replace("~0", "~")
}

/// Bytes of the value's text.
fn size(value: &Value) -> usize {
    struct Counter(usize);
    impl io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    let _ = serde_json::to_writer(&mut counter, value);
    counter.0
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::testing::json_value;

    #[test]
    fn operations() {
        let cases = [
            (json!({"a":1}), json!([{"op":"add","path":"/b","value":[1]}]), Ok(json!({"a":1,"b":[1]}))),
            (json!({"a":[1,3]}), json!([{"op":"add","path":"/a/1","value":2}]), Ok(json!({"a":[1,2,3]}))),
            (json!({"a":[1]}), json!([{"op":"add","path":"/a/-","value":2}]), Ok(json!({"a":[1,2]}))),
            (json!({"a":[1,2]}), json!([{"op":"remove","path":"/a/-1"}]), Ok(json!({"a":[1]}))),
            (json!({"a":{"b":1}}), json!([{"op":"remove","path":"/a/b"}]), Ok(json!({"a":{}}))),
            (json!({"a":1}), json!([{"op":"replace","path":"/a","value":2}]), Ok(json!({"a":2}))),
            (json!({}), json!([{"op":"replace","path":"/a","value":2}]), Ok(json!({"a":2}))),
            (json!({"a":1}), json!([{"op":"move","from":"/a","path":"/b"}]), Ok(json!({"b":1}))),
            (json!({"a":1}), json!([{"op":"copy","from":"/a","path":"/b"}]), Ok(json!({"a":1,"b":1}))),
            (json!({"a/b":{"~c":1}}), json!([{"op":"remove","path":"/a~1b/~0c"}]), Ok(json!({"a/b":{}}))),
            (json!({"a":1}), json!([{"op":"test","path":"/a","value":1}]), Ok(json!({"a":1}))),
            (json!({}), json!([{"op":"test","path":"/a","value":null}]), Ok(json!({}))),
            (
                json!({"a":1}),
                json!([{"op":"test","path":"/a","value":2}]),
                Err("testing value /a failed: test failed"),
            ),
            (
                json!({}),
                json!([{"op":"remove","path":"/a"}]),
                Err("error in remove for path: '/a': Unable to remove nonexistent key: a: missing value"),
            ),
            (
                json!({}),
                json!([{"op":"add","path":"/a/b","value":1}]),
                Err("add operation does not apply: doc is missing path: \"/a/b\": missing value"),
            ),
            (
                json!({"a":[]}),
                json!([{"op":"add","path":"/a/2","value":1}]),
                Err(
                    "error in add for path: '/a/2': Unable to access invalid index: 2: invalid index referenced",
                ),
            ),
            (json!({}), json!([{"op":"spin","path":""}]), Err("Unexpected kind: spin")),
            (json!({}), json!([{"op":"add"}]), Err("add operation failed to decode path: missing value")),
        ];
        for (mut target, patch, want) in cases {
            let outcome = apply_json(&mut target, &patch).map(|()| target).map_err(|e| e.to_string());
            assert_eq!(outcome, want.map_err(ToOwned::to_owned), "{patch}");
        }
    }

    #[test]
    fn no_copy_or_move_makes_a_document_too_deep() {
        let deep = |levels: usize| (0..levels).fold(json!({}), |below, _| json!({ "a": below }));
        let inside = "/m".to_owned() + &"/a".repeat(49);
        let mut operations = vec![json!({"op":"add","path":"/m","value":deep(49)})];
        operations.extend((1..10).map(|_| json!({"op":"copy","from":"/m","path":inside})));
        let mut target = json!({});
        let told = apply_json(&mut target, &Value::Array(operations)).unwrap_err().to_string();
        assert_eq!(told, "the patched document nests deeper than 100 levels");
        assert!(!nesting::exceeds(&target, MAX_DEPTH));
        let mut target = json!({ "a": deep(97), "b": {"c": {}} });
        for patch in [
            json!([{"op":"move","from":"/a","path":"/b/c/d"}]),
            json!([{"op":"replace","path":"/b/c","value":deep(99)}]),
            json!([{"op":"add","path":"","value":deep(100)}]),
        ] {
            assert!(apply_json(&mut target.clone(), &patch).is_err(), "{patch}");
        }
        apply_json(&mut target, &json!([{"op":"move","from":"/a","path":"/b/d"}])).unwrap();
    }

    #[test]
    fn bounds() {
        let double = json!({"op":"copy","from":"/a","path":"/a/-"});
        let bomb = Value::Array(vec![double; 40]);
        assert!(matches!(
            apply_json(&mut json!({"a":["x".repeat(100)]}), &bomb),
            Err(PatchError::Refused(_))
        ));
        let many = Value::Array(vec![json!({"op":"test","path":"","value":{}}); MAX_OPERATIONS + 1]);
        assert!(matches!(apply_json(&mut json!({}), &many), Err(PatchError::TooLarge(_))));
        for bad in [json!({}), json!([1]), json!("x")] {
            assert!(matches!(apply_json(&mut json!({}), &bad), Err(PatchError::Malformed(_))), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn added_then_removed_is_unchanged(target in json_value(), value in json_value(), key in "[a-d]{3}") {
            let target = json!({"root": target});
            let path = format!("/{key}");
            let patch = json!([{"op":"add","path":path,"value":value},{"op":"test","path":path,"value":value},
                {"op":"remove","path":path}]);
            let mut patched = target.clone();
            prop_assert_eq!(apply_json(&mut patched, &patch), Ok(()));
            prop_assert_eq!(patched, target);
        }

        #[test]
        fn any_path_is_an_answer(target in json_value(), path in "[/a-d0-2~\\-]{0,8}", from in "[/a-d0-2~\\-]{0,8}",
            op in "add|remove|replace|test|move|copy") {
            let mut target = target;
            let _ = apply_json(&mut target, &json!([{"op":op,"path":path,"from":from,"value":1}]));
        }
    }
}
