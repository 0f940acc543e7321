//! What the machinery itself reads and writes in `metadata`.

use base::time::Wall;
use serde_json::{Map, Value};

/// Characters of generated names: no vowels, so that no word comes out.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Characters that are added to `generateName`.
pub const SUFFIX: usize = 5;
/// What fits before the suffix in a label.
const LONGEST_BASE: usize = 63 - SUFFIX;

pub const FOREGROUND: &str = "foregroundDeletion";
pub const ORPHAN: &str = "orphan";

#[must_use]
pub fn text<'o>(object: &'o Value, field: &str) -> &'o str {
    object["metadata"][field].as_str().unwrap_or_default()
}

#[must_use]
pub fn name(object: &Value) -> &str {
    text(object, "name")
}

#[must_use]
pub fn namespace(object: &Value) -> &str {
    text(object, "namespace")
}

#[must_use]
pub fn uid(object: &Value) -> &str {
    text(object, "uid")
}

#[must_use]
pub fn is_deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

pub fn finalizers(object: &Value) -> impl Iterator<Item = &str> {
    object["metadata"]["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// Adds a finalizer, or takes it away.
pub fn set_finalizer(object: &mut Value, finalizer: &str, wanted: bool) {
    let mut all: Vec<Value> = finalizers(object).filter(|f| *f != finalizer).map(Value::from).collect();
    if wanted {
        all.push(finalizer.into());
    }
    set_or_remove(metadata_mut(object), "finalizers", (!all.is_empty()).then_some(Value::Array(all)));
}

/// `metadata`, made when it is not there. An object that is no object is replaced by one.
pub fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    let whole = as_map(object);
    as_map(whole.entry("metadata").or_insert_with(|| Value::Object(Map::new())))
}

fn as_map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("made an object above"),
    }
}

/// RFC 3339 in whole seconds, as `metav1.Time` is written.
#[must_use]
pub fn timestamp(at: Wall) -> String {
    jiff::Timestamp::from_second(at.secs()).unwrap_or_default().to_string()
}

/// A uid from sixteen random bytes.
#[must_use]
pub fn uid_from(mut b: [u8; 16]) -> String {
    b[6] = b[6] & 0x0f | 0x40;
    b[8] = b[8] & 0x3f | 0x80;
    let hex: String = b.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// A name made from `generateName` and random bytes.
#[must_use]
pub fn generated_name(base: &str, random: [u8; SUFFIX]) -> String {
    let cut = base.char_indices().nth(LONGEST_BASE).map_or(base, |(at, _)| &base[..at]);
    let suffix = random.iter().map(|b| char::from(ALPHABET[usize::from(*b) % ALPHABET.len()]));
    cut.chars().chain(suffix).collect()
}

/// What a new object gets from us, whatever it says itself.
pub fn stamp(object: &mut Value, uid: String, now: Wall, counts_generation: bool) {
    let metadata = metadata_mut(object);
    for field in
        ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "resourceVersion", "generation"]
    {
        metadata.remove(field);
    }
    metadata.insert("uid".to_owned(), uid.into());
    metadata.insert("creationTimestamp".to_owned(), timestamp(now).into());
    if counts_generation {
        metadata.insert("generation".to_owned(), 1.into());
    }
    drop_empty(metadata);
}

/// What a later write cannot change.
pub fn carry_over(new: &mut Value, old: &Value) {
    let metadata = metadata_mut(new);
    metadata.remove("selfLink");
    for field in [
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "generation",
        "resourceVersion",
        "uid",
    ] {
        let value = &old["metadata"][field];
        set_or_remove(metadata, field, (!value.is_null()).then(|| value.clone()));
    }
    drop_empty(metadata);
}

/// Empty maps and lists are not written at all, as Go's `omitempty` has it.
fn drop_empty(metadata: &mut Map<String, Value>) {
    metadata.retain(|name, value| match value {
        Value::Null => false,
        Value::Object(map) => !map.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::String(text) => !text.is_empty() || name == "name",
        _ => true,
    });
}

pub fn set_or_remove(map: &mut Map<String, Value>, field: &str, value: Option<Value>) {
    match value {
        Some(value) => drop(map.insert(field.to_owned(), value)),
        None => drop(map.remove(field)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_and_uids_are_made() {
        let name = generated_name("web-", [0, 9, 99, 200, 255]);
        assert!(name.starts_with("web-") && name.len() == 9, "{name}");
        assert_eq!(generated_name(&"x".repeat(300), [1; SUFFIX]).len(), 63);
        assert_eq!(uid_from([0xff; 16]), "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }

    #[test]
    fn what_the_server_owns_is_kept() {
        let old = json!({"metadata": {"name": "a", "uid": "u", "creationTimestamp": "t", "generation": 3}});
        let mut new = json!({"metadata": {"name": "a", "uid": "v", "deletionTimestamp": "x", "labels": {}, "finalizers": ["f"]}});
        carry_over(&mut new, &old);
        let kept = json!({"metadata": {
            "name": "a", "uid": "u", "creationTimestamp": "t", "generation": 3, "finalizers": ["f"],
        }});
        assert_eq!(new, kept);
    }

    #[test]
    fn finalizers_come_and_go() {
        let mut object = json!({"metadata": {"finalizers": ["a"]}});
        set_finalizer(&mut object, "b", true);
        set_finalizer(&mut object, "b", true);
        assert_eq!(finalizers(&object).collect::<Vec<_>>(), ["a", "b"]);
        set_finalizer(&mut object, "a", false);
        set_finalizer(&mut object, "b", false);
        assert_eq!(object, json!({"metadata": {}}));
        let mut odd = json!(7);
        set_finalizer(&mut odd, "a", true);
        assert_eq!(timestamp(Wall::from_secs(0)), "1970-01-01T00:00:00Z");
    }
}
