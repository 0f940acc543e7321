//! Documents for property tests.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde_json::Value;

/// A small document without nulls; keys collide often.
pub(crate) fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        (0..4_i64).prop_map(Value::from),
        "[a-c]{0,2}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            btree_map("[a-d~/]{1,2}", inner, 0..4).prop_map(|m| m.into_iter().collect::<Value>()),
        ]
    })
}
