//! Strategic merge: lists merge by key where the type says so, and directives say the rest.
//!
//! `$patch: replace|delete|merge` in an object or a list's item, `$retainKeys`, `$deleteFromPrimitiveList/<field>` and
//! `$setElementOrder/<field>`.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::PatchError;
use crate::types::{At, Shape, Type};

const PATCH: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const DELETE: &str = "$deleteFromPrimitiveList";
const ORDER: &str = "$setElementOrder";

type Object = Map<String, Value>;

/// Merges `patch` into `target`, an object of the type at `at`. On failure `target` is unspecified and must be dropped.
pub fn apply_strategic(target: &mut Value, patch: Value, at: At<'_>) -> Result<(), PatchError> {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => merge_object(target, patch, at),
        _ => Err(PatchError::Malformed("invalid JSON document".into())),
    }
}

fn malformed(what: &str) -> PatchError {
    PatchError::Malformed(format!("invalid patch format of {what}"))
}

/// How a list field is merged.
struct ListRule<'a> {
    item: At<'a>,
    /// None replaces the list; empty merges by value.
    key: Option<&'a str>,
}

fn merge_object(target: &mut Object, mut patch: Object, at: At<'_>) -> Result<(), PatchError> {
    if let Some(directive) = patch.remove(PATCH) {
        return match directive.as_str() {
            Some("replace") => {
                *target = patch;
                Ok(())
            }
            Some("delete") => {
                target.clear();
                Ok(())
            }
            _ => Err(unknown_directive(&directive)),
        };
    }
    retain_keys(target, &mut patch)?;
    merge_ordered(target, &mut patch, at)?;
    for (key, value) in patch {
        if let Some(rest) = key.strip_prefix(DELETE) {
            let field = rest.strip_prefix('/').ok_or_else(|| malformed("primitive list"))?;
            let Value::Array(gone) = value else { return Err(malformed("primitive list")) };
            if let Some(Value::Array(list)) = target.get_mut(field) {
                let gone: HashSet<Value> = gone.into_iter().collect();
                list.retain(|item| !gone.contains(item));
            }
            continue;
        }
        merge_field(target, key, value, at)?;
    }
    Ok(())
}

fn merge_field(target: &mut Object, key: String, value: Value, at: At<'_>) -> Result<(), PatchError> {
    if value.is_null() {
        target.remove(&key);
        return Ok(());
    }
    match (target.get_mut(&key), value) {
        (Some(Value::Object(old)), Value::Object(new)) => {
            check_known(at, &key)?;
            merge_object(old, new, at.child(&key))
        }
        (Some(Value::Array(old)), Value::Array(new)) => {
            let rule = list_rule(at, &key)?;
            merge_list(old, new, &rule)
        }
        (_, mut new) => {
            discard_nulls(&mut new);
            match without_directives(new) {
                Some(new) => target.insert(key, new),
                None => target.remove(&key),
            };
            Ok(())
        }
    }
}

/// `$retainKeys`: everything the list does not name goes.
fn retain_keys(target: &mut Object, patch: &mut Object) -> Result<(), PatchError> {
    let Some(retained) = patch.remove(RETAIN) else { return Ok(()) };
    let Value::Array(retained) = retained else { return Err(malformed("retainKeys")) };
    let retained: HashSet<&str> = retained.iter().filter_map(Value::as_str).collect();
    let is_retained = |key: &str| retained.contains(key);
    let is_said = |(key, value): (&String, &Value)| {
        value.is_null() || key.starts_with(DELETE) || key.starts_with(ORDER) || is_retained(key)
    };
    if !patch.iter().all(is_said) {
        return Err(malformed("retainKeys"));
    }
    target.retain(|key, _| is_retained(key));
    Ok(())
}

/// The lists that come with `$setElementOrder`, merged and brought into that order.
fn merge_ordered(target: &mut Object, patch: &mut Object, at: At<'_>) -> Result<(), PatchError> {
    let directives: Vec<String> = patch.keys().filter(|k| k.starts_with(ORDER)).cloned().collect();
    for directive in directives {
        let Some(Value::Array(order)) = patch.remove(&directive) else {
            return Err(malformed("setElementOrder list"));
        };
        let field =
            directive[ORDER.len()..].strip_prefix('/').ok_or_else(|| malformed("setElementOrder list"))?;
        let rule = list_rule(at, field)?;
        let key = rule.key.unwrap_or_default();
        let new = match patch.remove(field) {
            Some(Value::Array(new)) => Some(new),
            // A null deletes the list; the loop over the patch will see to it.
            Some(other) => {
                patch.insert(field.to_owned(), other);
                continue;
            }
            None => None,
        };
        check_order(new.as_deref().unwrap_or_default(), &order, key)?;
        let old = match target.remove(field) {
            Some(Value::Array(old)) => Some(old),
            Some(_) => return Err(PatchError::Refused(format!("{field} is not a list"))),
            None => None,
        };
        let live = old.clone().unwrap_or_default();
        let merged = match (old, new) {
            (Some(old), None) => old,
            (None, Some(new)) => new.into_iter().filter_map(without_directives).collect(),
            (Some(mut old), Some(new)) => {
                merge_list(&mut old, new, &rule)?;
                old
            }
            (None, None) => continue,
        };
        target.insert(field.to_owned(), Value::Array(in_order(merged, &order, &live, key)));
    }
    Ok(())
}

/// The items a patch names stand in the same order as in `$setElementOrder`, which names them all.
fn check_order(patch: &[Value], order: &[Value], key: &str) -> Result<(), PatchError> {
    if order.is_empty() {
        return Ok(());
    }
    let mut named = order.iter();
    for item in patch.iter().filter(|item| item.get(PATCH).is_none()) {
        if !key.is_empty() {
            merge_key(item, key)?;
        }
        if !named.any(|named| is_same(item, named, key)) {
            return Err(PatchError::Refused(format!(
                "The order in patch list:\n{}\n doesn't match $setElementOrder list:\n{}\n",
                go_text(&Value::from(patch)),
                go_text(&Value::from(order))
            )));
        }
    }
    Ok(())
}

fn list_rule<'a>(at: At<'a>, name: &str) -> Result<ListRule<'a>, PatchError> {
    check_known(at, name)?;
    let child = at.child(name);
    let Some(known) = object_of(at) else { return Ok(ListRule { item: child.item(), key: None }) };
    let key = known.field(name).and_then(|f| f.merge.key.as_deref());
    Ok(ListRule { item: child.item(), key })
}

fn object_of(at: At<'_>) -> Option<&Type> {
    match at.shape {
        Shape::Object(id) => Some(at.types.get(*id)),
        _ => None,
    }
}

fn check_known(at: At<'_>, name: &str) -> Result<(), PatchError> {
    match object_of(at) {
        Some(known) if known.field(name).is_none() && !known.open => Err(PatchError::Refused(format!(
            "unable to find api field in struct {} for the json field {name:?}",
            known.short_name()
        ))),
        _ => Ok(()),
    }
}

fn merge_list(old: &mut Vec<Value>, new: Vec<Value>, rule: &ListRule<'_>) -> Result<(), PatchError> {
    let Some(key) = rule.key else {
        *old = new;
        return Ok(());
    };
    if old.iter().chain(&new).any(Value::is_array) {
        return Err(PatchError::Refused("lists of lists are not supported".into()));
    }
    let live = old.clone();
    if key.is_empty() {
        let mut places = positions(&live, key);
        for item in &new {
            if places.insert(item, places.len()).is_none() {
                old.push(item.clone());
            }
        }
        *old = in_order(std::mem::take(old), &new, &live, key);
        return Ok(());
    }
    let (replaces, new) = special_items(old, new, key)?;
    if replaces {
        *old = new;
        return Ok(());
    }
    let order = new.clone();
    let mut places: HashMap<Value, usize> =
        positions(old, key).into_iter().map(|(name, at)| (name.clone(), at)).collect();
    for item in new {
        let Value::Object(item) = item else {
            return Err(PatchError::Refused(format!("value for key {key} is not a map")));
        };
        let wanted = item.get(key).ok_or_else(|| no_merge_key(&item, key))?.clone();
        match places.get(&wanted).and_then(|at| old.get_mut(*at)) {
            Some(Value::Object(found)) => merge_object(found, item, rule.item)?,
            _ => {
                places.insert(wanted, old.len());
                old.push(Value::Object(item));
            }
        }
    }
    *old = in_order(std::mem::take(old), &order, &live, key);
    Ok(())
}

/// Where each item stands for the first time, by what names it: its key, or all of it. A list may be long: nobody searches
/// it once per item.
fn positions<'a>(list: &'a [Value], key: &str) -> HashMap<&'a Value, usize> {
    let mut places = HashMap::with_capacity(list.len());
    for (at, item) in list.iter().enumerate() {
        if let Some(name) = name_of(item, key) {
            places.entry(name).or_insert(at);
        }
    }
    places
}

fn name_of<'a>(item: &'a Value, key: &str) -> Option<&'a Value> {
    if key.is_empty() { Some(item) } else { item.get(key) }
}

/// Takes out the items that are directives; deletes what they delete; says whether the list is replaced.
fn special_items(old: &mut Vec<Value>, new: Vec<Value>, key: &str) -> Result<(bool, Vec<Value>), PatchError> {
    let mut replaces = false;
    let mut plain = Vec::with_capacity(new.len());
    let mut deleted = HashSet::new();
    for item in new {
        match item.get(PATCH).map(|d| (d.as_str(), d)) {
            None => plain.push(item),
            Some((Some("delete"), _)) => _ = deleted.insert(merge_key(&item, key)?.clone()),
            Some((Some("replace"), _)) => replaces = true,
            Some((Some("merge"), _)) => {
                return Err(PatchError::Refused("merging lists cannot yet be specified in the patch".into()));
            }
            Some((_, other)) => return Err(unknown_directive(other)),
        }
    }
    if !deleted.is_empty() {
        old.retain(|o| o.get(key).is_none_or(|name| !deleted.contains(name)));
    }
    Ok((replaces, plain))
}

fn merge_key<'a>(item: &'a Value, key: &str) -> Result<&'a Value, PatchError> {
    match item {
        Value::Object(map) => map.get(key).ok_or_else(|| no_merge_key(map, key)),
        _ => Err(PatchError::Refused(format!("value for key {key} is not a map"))),
    }
}

fn no_merge_key(map: &Object, key: &str) -> PatchError {
    let shown: String = go_text(&Value::Object(map.clone())).chars().take(256).collect();
    PatchError::Refused(format!("map: {shown} does not contain declared merge key: {key}"))
}

/// A value as upstream's messages print it: `map[image:x name:web]`.
fn go_text(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(list) => format!("[{}]", list.iter().map(go_text).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let entries: Vec<String> = map.iter().map(|(k, v)| format!("{k}:{}", go_text(v))).collect();
            format!("map[{}]", entries.join(" "))
        }
        scalar => scalar.to_string(),
    }
}

fn unknown_directive(directive: &Value) -> PatchError {
    PatchError::Malformed(format!("unknown patch type: {directive}"))
}

fn is_same(a: &Value, b: &Value, key: &str) -> bool {
    let name = name_of(a, key);
    name.is_some() && name == name_of(b, key)
}

/// Items named by `order` in that order; the others where they stood in the live list, before the first named item
/// that stood after them.
fn in_order(merged: Vec<Value>, order: &[Value], live: &[Value], key: &str) -> Vec<Value> {
    let (order, live) = (positions(order, key), positions(live, key));
    let position = |list: &HashMap<&Value, usize>, item: &Value| list.get(name_of(item, key)?).copied();
    let (mut named, others): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|item| position(&order, item).is_some());
    named.sort_by_key(|item| position(&order, item));
    let mut others = others;
    others.sort_by_key(|item| position(&live, item));
    let mut both = Vec::with_capacity(named.len() + others.len());
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    loop {
        let named_first = match (named.peek(), others.peek()) {
            (Some(left), Some(right)) => match (position(&live, left), position(&live, right)) {
                (Some(left), Some(right)) => left < right,
                _ => true,
            },
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => return both,
        };
        both.extend(if named_first { named.next() } else { others.next() });
    }
}

/// What is taken over whole must not carry directives along.
fn without_directives(value: Value) -> Option<Value> {
    Some(match value {
        Value::Object(map) if map.contains_key(PATCH) => return None,
        Value::Object(map) => map
            .into_iter()
            .filter(|(key, _)| !(key == RETAIN || key.starts_with(ORDER) || key.starts_with(DELETE)))
            .filter_map(|(key, value)| Some((key, without_directives(value)?)))
            .collect(),
        Value::Array(list) => list.into_iter().filter_map(without_directives).collect(),
        scalar => scalar,
    })
}

fn discard_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(discard_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(discard_nulls),
        _ => {}
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn patched(mut target: Value, patch: Value) -> Result<Value, String> {
        let at = At::kind("", "v1", "Pod").unwrap();
        apply_strategic(&mut target, patch, at).map(|()| target).map_err(|e| e.to_string())
    }

    /// A Pod with these containers.
    fn pod(containers: Value) -> Value {
        json!({"spec": {"containers": containers}})
    }

    #[test]
    fn maps_merge_and_nulls_delete() {
        let target = json!({"metadata": {"labels": {"a": "1", "b": "2"}, "name": "x"}});
        let patch = json!({"metadata": {"labels": {"a": null, "c": "3", "d": null}}});
        let want = json!({"metadata": {"labels": {"b": "2", "c": "3"}, "name": "x"}});
        assert_eq!(patched(target, patch), Ok(want));
    }

    #[test]
    fn keyed_lists_merge_by_key() {
        let old = json!([{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]);
        let cases = [
            (
                json!([{"name": "b", "image": "3"}]),
                json!([{"name": "a", "image": "1"}, {"name": "b", "image": "3"}]),
            ),
            (
                json!([{"name": "c"}]),
                json!([{"name": "c"}, {"name": "a", "image": "1"}, {"name": "b", "image": "2"}]),
            ),
            (json!([{"name": "a", "$patch": "delete"}]), json!([{"name": "b", "image": "2"}])),
            (json!([{"name": "z"}, {"$patch": "replace"}]), json!([{"name": "z"}])),
            (json!([{"name": "a", "$patch": "replace", "tty": true}]), json!([])),
            (json!([{"name": "b", "image": null}]), json!([{"name": "a", "image": "1"}, {"name": "b"}])),
        ];
        for (patch, want) in cases {
            assert_eq!(patched(pod(old.clone()), pod(patch.clone())), Ok(pod(want)), "{patch}");
        }
    }

    /// With a search per item this takes minutes, and nobody else is served meanwhile.
    #[test]
    fn long_lists_are_merged_in_a_moment() {
        let variables = |from: usize, value: &str| -> Vec<Value> {
            (from..from + 20_000).map(|n| json!({"name": format!("V{n}"), "value": value})).collect()
        };
        let containers = |env: Vec<Value>| pod(json!([{"name": "a", "env": env}]));
        let merged = patched(containers(variables(0, "old")), containers(variables(10_000, "new"))).unwrap();
        let env = merged["spec"]["containers"][0]["env"].as_array().unwrap();
        let new = env.iter().filter(|v| v["value"] == "new").count();
        assert_eq!((env.len(), new), (30_000, 20_000));
        let finalizers = |from: usize| json!({"metadata": {"finalizers": variables(from, "")}});
        let merged = patched(finalizers(0), finalizers(10_000)).unwrap();
        assert_eq!(merged["metadata"]["finalizers"].as_array().unwrap().len(), 30_000);
    }

    #[test]
    fn replaced_lists_replace() {
        let target = json!({"spec": {"tolerations": [{"key": "a"}, {"key": "b"}]}});
        let patch = json!({"spec": {"tolerations": [{"key": "c"}]}});
        assert_eq!(patched(target, patch.clone()), Ok(patch));
    }

    #[test]
    fn lists_of_scalars_merge_by_value() {
        let target = json!({"metadata": {"finalizers": ["a", "b"]}});
        let patch = json!({"metadata": {"finalizers": ["b", "c"]}});
        let want = json!({"metadata": {"finalizers": ["a", "b", "c"]}});
        assert_eq!(patched(target.clone(), patch), Ok(want));
        let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}});
        assert_eq!(patched(target, patch), Ok(json!({"metadata": {"finalizers": ["b"]}})));
    }

    #[test]
    fn order_is_set() {
        let old = json!([{"name": "a"}, {"name": "server"}, {"name": "b"}]);
        let patch = json!({"spec": {
            "$setElementOrder/containers": [{"name": "b"}, {"name": "new"}, {"name": "a"}],
            "containers": [{"name": "new", "image": "i"}]}});
        let want = json!([{"name": "server"}, {"name": "b"}, {"name": "new", "image": "i"}, {"name": "a"}]);
        assert_eq!(patched(pod(old), patch), Ok(pod(want)));
        let wrong = json!({"spec": {"$setElementOrder/containers": [{"name": "b"}],
            "containers": [{"name": "other"}]}});
        assert!(
            patched(pod(json!([{"name": "b"}])), wrong).unwrap_err().starts_with("The order in patch list:")
        );
    }

    #[test]
    fn only_retained_keys_stay() {
        let target = json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}});
        let patch = json!({"spec": {"volumes": [
            {"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]}});
        let want = json!({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}});
        assert_eq!(patched(target.clone(), patch), Ok(want));
        let wrong = json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name"], "hostPath": {}}]}});
        assert_eq!(patched(target, wrong), Err("invalid patch format of retainKeys".into()));
    }

    #[test]
    fn objects_are_replaced_or_emptied_on_demand() {
        let target = json!({"spec": {"nodeSelector": {"a": "1"}, "hostNetwork": true}});
        let replace = json!({"spec": {"nodeSelector": {"$patch": "replace", "b": "2"}}});
        let want = json!({"spec": {"nodeSelector": {"b": "2"}, "hostNetwork": true}});
        assert_eq!(patched(target.clone(), replace), Ok(want));
        let delete = json!({"spec": {"$patch": "delete"}});
        assert_eq!(patched(target.clone(), delete), Ok(json!({"spec": {}})));
        let unknown = json!({"spec": {"$patch": "spin"}});
        assert_eq!(patched(target, unknown), Err("unknown patch type: \"spin\"".into()));
    }

    #[test]
    fn what_is_new_carries_no_directives() {
        let patch = json!({"spec": {"$setElementOrder/containers": [{"name": "a"}],
            "containers": [{"name": "a", "$retainKeys": ["name"], "tty": null}, {"name": "b", "$patch": "delete"}]}});
        assert_eq!(patched(json!({}), patch), Ok(pod(json!([{"name": "a"}]))));
    }

    #[test]
    fn bad_patches_are_refused() {
        let keyless = pod(json!([{"image": "x"}]));
        let error = patched(pod(json!([{"name": "a"}])), keyless).unwrap_err();
        assert!(error.ends_with("does not contain declared merge key: name"), "{error}");
        let unknown = json!({"spec": {"foo": {"a": 1}}});
        let error = patched(json!({"spec": {"foo": {}}}), unknown).unwrap_err();
        assert_eq!(error, "unable to find api field in struct PodSpec for the json field \"foo\"");
    }

    fn containers() -> impl Strategy<Value = Value> {
        proptest::collection::btree_map("[a-e]", "[x-z]", 0..5)
            .prop_map(|m| m.into_iter().map(|(name, image)| json!({"name": name, "image": image})).collect())
            .prop_map(|list: Vec<Value>| Value::Array(list))
            .prop_perturb(|mut list, mut rng| {
                if let Value::Array(list) = &mut list {
                    for i in (1..list.len()).rev() {
                        list.swap(i, rng.random_range(0..=i));
                    }
                }
                list
            })
    }

    /// What a client sends to turn one list into the other.
    fn diff(from: &Value, to: &Value) -> Value {
        let named = |list: &Value, name: &Value| list.as_array().unwrap().iter().any(|c| c["name"] == *name);
        let mut items = to.as_array().unwrap().clone();
        for old in from.as_array().unwrap().iter().filter(|c| !named(to, &c["name"])) {
            items.push(json!({"name": old["name"], "$patch": "delete"}));
        }
        let order: Vec<Value> = to.as_array().unwrap().iter().map(|c| json!({"name": c["name"]})).collect();
        json!({"spec": {"containers": items, "$setElementOrder/containers": order}})
    }

    proptest! {
        #[test]
        fn diff_then_patch_is_the_other_list(from in containers(), to in containers()) {
            prop_assert_eq!(patched(pod(from.clone()), diff(&from, &to)), Ok(pod(to)));
        }

        #[test]
        fn twice_is_once(target in containers(), patch in containers()) {
            let once = patched(pod(target), pod(patch.clone())).unwrap();
            prop_assert_eq!(patched(once.clone(), pod(patch)), Ok(once));
        }

        #[test]
        fn any_patch_is_an_answer(target in crate::testing::json_value(), patch in crate::testing::json_value()) {
            let _ = patched(json!({"metadata": target}), json!({"metadata": patch}));
            let _ = patched(json!({"spec": {"containers": [target]}}), json!({"spec": {"containers": [patch]}}));
        }
    }
}
