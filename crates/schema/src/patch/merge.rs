//! RFC 7386.

use serde_json::{Map, Value};

/// Merges `patch` into `target`: objects by key, null deletes, anything else replaces.
pub fn apply_merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            apply_merge(target.entry(key.as_str()).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::testing::json_value;

    #[test]
    fn the_table_of_the_rfc() {
        let cases = [
            (json!({"a":"b"}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"b"}), json!({"b":"c"}), json!({"a":"b","b":"c"})),
            (json!({"a":"b"}), json!({"a":null}), json!({})),
            (json!({"a":"b","b":"c"}), json!({"a":null}), json!({"b":"c"})),
            (json!({"a":["b"]}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"c"}), json!({"a":["b"]}), json!({"a":["b"]})),
            (json!({"a":{"b":"c"}}), json!({"a":{"b":"d","c":null}}), json!({"a":{"b":"d"}})),
            (json!({"a":[{"b":"c"}]}), json!({"a":[1]}), json!({"a":[1]})),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a":"b"}), json!(["c"]), json!(["c"])),
            (json!({"a":"foo"}), json!(null), json!(null)),
            (json!({"e":null}), json!({"a":1}), json!({"e":null,"a":1})),
            (json!([1, 2]), json!({"a":"b","c":null}), json!({"a":"b"})),
            (json!({}), json!({"a":{"bb":{"ccc":null}}}), json!({"a":{"bb":{}}})),
        ];
        for (mut target, patch, want) in cases {
            apply_merge(&mut target, &patch);
            assert_eq!(target, want, "{patch}");
        }
    }

    /// The patch that turns `from` into `to`, where `to` holds no null inside objects.
    fn diff(from: &Value, to: &Value) -> Value {
        let (Value::Object(from), Value::Object(to)) = (from, to) else { return to.clone() };
        let mut patch = Map::new();
        for key in from.keys().filter(|k| !to.contains_key(*k)) {
            patch.insert(key.clone(), Value::Null);
        }
        for (key, value) in to {
            match from.get(key) {
                Some(old) if old == value => {}
                // A key that was an object and is one again is merged; the emptied object must be said to be there.
                Some(old) => {
                    patch.insert(key.clone(), diff(old, value));
                }
                None => {
                    patch.insert(key.clone(), value.clone());
                }
            }
        }
        Value::Object(patch)
    }

    proptest! {
        #[test]
        fn diff_then_patch_is_the_other_document(from in json_value(), to in json_value()) {
            let mut patched = from.clone();
            apply_merge(&mut patched, &diff(&from, &to));
            prop_assert_eq!(patched, to);
        }

        #[test]
        fn twice_is_once(target in json_value(), patch in json_value()) {
            let mut once = target;
            apply_merge(&mut once, &patch);
            let mut twice = once.clone();
            apply_merge(&mut twice, &patch);
            prop_assert_eq!(once, twice);
        }
    }
}
