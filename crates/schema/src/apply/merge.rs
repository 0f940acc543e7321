//! An applied configuration laid over the live object.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Map, Value};

use super::set::Element;
use super::walk::{Atom, atom, item_element};
use crate::types::{At, ListKind};

/// `live` with everything that `config` says.
pub(super) fn merge(live: &Value, config: &Value, at: At<'_>) -> Value {
    place(Some(live), Some(config), at).unwrap_or_else(|| Value::Object(Map::new()))
}

fn place(live: Option<&Value>, config: Option<&Value>, at: At<'_>) -> Option<Value> {
    let leaf = || config.or(live).cloned();
    match atom(at, config.or(live)) {
        Atom::Leaf => leaf(),
        Atom::Map(at) => {
            let (live, config) = (live.and_then(Value::as_object), config.and_then(Value::as_object));
            if live.is_none_or(Map::is_empty) && config.is_none_or(Map::is_empty) {
                return leaf();
            }
            Some(Value::Object(merge_map(live, config, at)))
        }
        Atom::List(item, kind) => {
            let (live, config) = (live.and_then(Value::as_array), config.and_then(Value::as_array));
            if live.is_none_or(Vec::is_empty) && config.is_none_or(Vec::is_empty) {
                return leaf();
            }
            let none = Vec::new();
            let merged = merge_list(live.unwrap_or(&none), config.unwrap_or(&none), item, kind);
            (!merged.is_empty()).then_some(Value::Array(merged))
        }
    }
}

fn merge_map(
    live: Option<&Map<String, Value>>,
    config: Option<&Map<String, Value>>,
    at: At<'_>,
) -> Map<String, Value> {
    let keys: BTreeSet<&String> = live.into_iter().chain(config).flat_map(Map::keys).collect();
    let entries = keys.into_iter().filter_map(|key| {
        let merged = place(live.and_then(|m| m.get(key)), config.and_then(|m| m.get(key)), at.child(key))?;
        Some((key.clone(), merged))
    });
    entries.collect()
}

/// Items of both lists. Those in the configuration stand in its order; the others keep their place among them as far
/// as both orders allow it.
fn merge_list(live: &[Value], config: &[Value], at: At<'_>, kind: &ListKind) -> Vec<Value> {
    let keyed = |list: &'_ [Value]| -> Vec<(Element, usize)> {
        let items = list.iter().enumerate();
        items.filter_map(|(i, item)| Some((item_element(item, at, kind).ok()?, i))).collect()
    };
    let (left, right) = (keyed(live), keyed(config));
    // A live item that cannot be told from another is not merged with.
    let mut in_live: BTreeMap<&Element, Option<&Value>> = BTreeMap::new();
    for (element, i) in &left {
        in_live.entry(element).and_modify(|item| *item = None).or_insert(Some(&live[*i]));
    }
    let in_config: BTreeMap<&Element, &Value> = right.iter().map(|(e, i)| (e, &config[*i])).collect();
    let both = |element: &Element| {
        place(in_live.get(element).copied().flatten(), in_config.get(element).copied(), at)
    };
    let mut shared: VecDeque<&Element> =
        right.iter().map(|(e, _)| e).filter(|e| in_live.contains_key(e)).collect();
    let mut merged = Vec::with_capacity(left.len().max(right.len()));
    let mut done: BTreeSet<&Element> = BTreeSet::new();
    let (mut l, mut r) = (0, 0);
    while l < left.len() || r < right.len() {
        if let (Some((mine, _)), Some((theirs, _))) = (left.get(l), right.get(r)) {
            if mine == theirs {
                done.insert(mine);
                merged.extend(both(mine));
                (l, r) = (l + 1, r + 1);
                shared.pop_front();
                continue;
            }
            // A shared item whose turn in the configuration's order has not come is passed over here.
            if in_config.contains_key(mine) && shared.front().is_some_and(|next| *next != mine) {
                l += 1;
                continue;
            }
        }
        if let Some((mine, i)) = left.get(l) {
            if !in_config.contains_key(mine) {
                merged.extend(place(Some(&live[*i]), None, at));
                l += 1;
                continue;
            }
            if done.contains(mine) {
                l += 1;
            }
        }
        if let Some((theirs, _)) = right.get(r) {
            done.insert(theirs);
            merged.extend(both(theirs));
            r += 1;
            if shared.front() == Some(&theirs) {
                shared.pop_front();
            }
        }
    }
    merged
}
