//! Strategic merge, as far as a Pod's status needs it.

use serde_json::{Map, Value};

/// Changes `target` as an API server would.
pub(super) fn strategic(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else { return };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(fields) = target.as_object_mut() else { return };
    for (field, change) in patch {
        match (field.as_str(), change) {
            (order, _) if order.starts_with("$setElementOrder/") => {}
            (_, Value::Null) => _ = fields.remove(field),
            ("conditions", Value::Array(items)) => {
                list(fields.entry(field).or_insert(Value::Null), "type", items)
            }
            ("podIPs" | "hostIPs", Value::Array(items)) => {
                list(fields.entry(field).or_insert(Value::Null), "ip", items);
            }
            (_, Value::Object(_)) => strategic(fields.entry(field).or_insert(Value::Null), change),
            _ => _ = fields.insert(field.clone(), change.clone()),
        }
    }
    for (field, order) in patch {
        if let (Some(field), Value::Array(order)) = (field.strip_prefix("$setElementOrder/"), order) {
            sort(fields.get_mut(field), order);
        }
    }
}

fn list(target: &mut Value, key: &str, items: &[Value]) {
    let mut all = target.as_array().cloned().unwrap_or_default();
    for item in items {
        let place = all.iter().position(|known| known[key] == item[key]);
        match (place, item["$patch"] == "delete") {
            (Some(at), true) => _ = all.remove(at),
            (None, true) => {}
            (Some(at), false) => strategic(&mut all[at], item),
            (None, false) => all.push(item.clone()),
        }
    }
    *target = Value::Array(all);
}

/// What the order names comes in its order; the rest keeps its place before it.
fn sort(list: Option<&mut Value>, order: &[Value]) {
    let Some(Value::Array(items)) = list else { return };
    let key = if order.iter().any(|o| o.get("type").is_some()) { "type" } else { "ip" };
    let rank = |item: &Value| order.iter().position(|o| o[key] == item[key]).map_or(0, |at| at + 1);
    items.sort_by_key(rank);
}
