//! `metadata.managedFields`: who owns which fields, and since when.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

use super::set::Set;

/// Managers that wrote with plain updates are counted, and the oldest melt into one beyond this many.
const MAX_UPDATERS: usize = 10;
const ANCIENT: &str = "ancient-changes";

/// Who manages fields. The same name is another manager for another operation or subresource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    pub name: String,
    pub operation: How,
    /// Empty for appliers: they are one manager whatever version they speak.
    pub api_version: String,
    pub subresource: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    Apply,
    Update,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Managed {
    pub(super) entries: BTreeMap<Owner, Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) set: Set,
    pub(super) api_version: String,
    pub(super) time: Option<String>,
}

// === impl Owner ===

/// As messages about conflicts name it: `"kubectl" using apps/v1`.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.name)?;
        if !self.subresource.is_empty() {
            write!(f, " with subresource {:?}", self.subresource)?;
        }
        match self.operation {
            How::Update => write!(f, " using {}", self.api_version),
            How::Apply => Ok(()),
        }
    }
}

impl How {
    fn as_str(self) -> &'static str {
        match self {
            How::Apply => "Apply",
            How::Update => "Update",
        }
    }
}

// === impl Managed ===

impl Managed {
    /// Reads `metadata.managedFields` of an object; Err says what is wrong with it.
    pub(super) fn of(object: &Value) -> Result<Managed, String> {
        let mut managed = Managed::default();
        let entries = object["metadata"]["managedFields"].as_array().map(Vec::as_slice).unwrap_or_default();
        for (i, entry) in entries.iter().enumerate() {
            let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
            let operation = match &*text("operation") {
                "Apply" => How::Apply,
                "Update" => How::Update,
                _ => return Err("operation must be `Apply` or `Update`".into()),
            };
            let api_version = text("apiVersion");
            if api_version.is_empty() {
                return Err("apiVersion must not be empty".into());
            }
            match &*text("fieldsType") {
                "FieldsV1" => {}
                "" => return Err(format!("missing fieldsType in managed fields entry {i}")),
                other => return Err(format!("invalid fieldsType {other:?} in managed fields entry {i}")),
            }
            let set = match entry.get("fieldsV1") {
                Some(fields) if !fields.is_null() => Set::from_value(fields).map_err(|e| e.to_string())?,
                _ => Set::default(),
            };
            let manager = Owner {
                name: text("manager"),
                operation,
                api_version: if operation == How::Apply { String::new() } else { api_version.clone() },
                subresource: text("subresource"),
            };
            let time = entry["time"].as_str().map(ToOwned::to_owned);
            managed.entries.insert(manager, Entry { set, api_version, time });
        }
        Ok(managed)
    }

    /// Writes `metadata.managedFields`, appliers first, then by age.
    pub(super) fn write(&self, object: &mut Value) {
        let Value::Object(object) = object else { return };
        let Value::Object(metadata) = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()))
        else {
            return;
        };
        if self.entries.is_empty() {
            metadata.remove("managedFields");
            return;
        }
        let mut entries: Vec<(&Owner, &Entry)> = self.entries.iter().collect();
        entries.sort_by_key(|(manager, entry)| {
            (manager.operation, entry.time.clone(), &manager.name, &entry.api_version, &manager.subresource)
        });
        let entries: Vec<Value> =
            entries.into_iter().map(|(manager, entry)| written(manager, entry)).collect();
        metadata.insert("managedFields".into(), entries.into());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All fields anybody manages.
    pub(super) fn all(&self) -> Set {
        self.entries.values().fold(Set::default(), |all, entry| all.union(&entry.set))
    }

    pub(super) fn drop_empty(&mut self) {
        self.entries.retain(|_, entry| !entry.set.is_empty());
    }

    /// Melts the oldest updaters of one version into one.
    pub(super) fn cap(&mut self) {
        let mut updaters: Vec<(Option<String>, Owner)> = self
            .entries
            .iter()
            .filter(|(manager, _)| manager.operation == How::Update)
            .map(|(manager, entry)| (entry.time.clone(), manager.clone()))
            .collect();
        updaters.sort();
        let mut count = updaters.len();
        let mut first: BTreeMap<String, Owner> = BTreeMap::new();
        for (time, manager) in updaters {
            if count <= MAX_UPDATERS {
                return;
            }
            let version = manager.api_version.clone();
            let Some(first) = first.get(&version) else {
                first.insert(version, manager);
                continue;
            };
            let bucket = Owner {
                name: ANCIENT.into(),
                operation: How::Update,
                api_version: version,
                subresource: String::new(),
            };
            if !self.entries.contains_key(&bucket)
                && let Some(entry) = self.entries.remove(first)
            {
                self.entries.insert(bucket.clone(), entry);
            }
            if manager == bucket {
                continue;
            }
            if let Some(melted) = self.entries.remove(&manager)
                && let Some(entry) = self.entries.get_mut(&bucket)
            {
                entry.set = entry.set.union(&melted.set);
                entry.time = time;
            }
            count -= 1;
        }
    }
}

fn written(manager: &Owner, entry: &Entry) -> Value {
    written_with(manager, &entry.api_version, entry.time.as_deref(), entry.set.to_value())
}

/// One entry of managedFields.
pub(super) fn written_with(manager: &Owner, api_version: &str, time: Option<&str>, fields: Value) -> Value {
    let mut entry = Map::new();
    let mut put = |name: &str, value: Value| entry.insert(name.to_owned(), value);
    put("manager", manager.name.as_str().into());
    put("operation", manager.operation.as_str().into());
    put("apiVersion", api_version.into());
    put("fieldsType", "FieldsV1".into());
    put("fieldsV1", fields);
    if let Some(time) = time {
        put("time", time.into());
    }
    if !manager.subresource.is_empty() {
        put("subresource", manager.subresource.as_str().into());
    }
    Value::Object(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_updaters_melt_into_one() {
        let mut managed = Managed::default();
        for i in 0..13 {
            let manager = Owner {
                name: format!("m{i}"),
                operation: How::Update,
                api_version: "v1".into(),
                subresource: String::new(),
            };
            let set = Set::of(&[&["spec", &format!("f{i}")]]);
            let time = Some(format!("2024-01-01T00:00:{i:02}Z"));
            managed.entries.insert(manager, Entry { set, api_version: "v1".into(), time });
        }
        let all = managed.all();
        managed.cap();
        assert_eq!(managed.entries.len(), MAX_UPDATERS);
        assert_eq!(managed.all(), all);
        let ancient: Vec<_> = managed.entries.iter().filter(|(m, _)| m.name == ANCIENT).collect();
        assert_eq!(ancient.len(), 1);
        assert_eq!(ancient[0].1.set.paths().len(), 4);
        assert!(managed.entries.keys().any(|m| m.name == "m12"));
        assert!(!managed.entries.keys().any(|m| m.name == "m3"));
    }
}
