//! ConfigMap: data for Pods, which may be frozen.

use api::field::{FieldErrors, Path};
use base::time::Wall;
use serde_json::Value;

use crate::kind::{Column, Kind, Strategy};
use crate::{doc, table};

/// Bytes of all values together, as upstream limits them.
const MAX_SIZE: usize = 1 << 20;

const COLUMNS: &[Column] = &[Column::NAME, Column::text("Data", "Number of entries"), Column::AGE];

pub(super) fn kind() -> Kind {
    Kind::core("ConfigMap", "configmaps", ConfigMap).short(&["cm"])
}

#[derive(Debug)]
struct ConfigMap;

// === impl ConfigMap ===

impl Strategy for ConfigMap {
    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let mut size = 0;
        for field in ["data", "binaryData"] {
            let at = Path::new(field);
            let Some(entries) = object[field].as_object() else { continue };
            for (key, value) in entries {
                errors.each(&at.key(key), key, api::names::config_key(key));
                if field == "binaryData" && object["data"].get(key).is_some() {
                    errors.invalid(&at.key(key), key.as_str(), "duplicate of key present in data");
                }
                size += value.as_str().map_or(0, str::len);
            }
        }
        if size > MAX_SIZE {
            errors.too_long(&Path::new(""), MAX_SIZE);
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        self.validate(new, errors);
        frozen(errors, new, old, &["data", "binaryData"]);
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let count = |field: &str| object[field].as_object().map_or(0, serde_json::Map::len);
        let entries = count("data") + count("binaryData");
        vec![table::name(object), entries.into(), table::age(object, now).into()]
    }
}

/// What was declared immutable stays as it is, the declaration included.
pub(super) fn frozen(errors: &mut FieldErrors, new: &Value, old: &Value, fields: &[&str]) {
    if old["immutable"] != Value::Bool(true) {
        return;
    }
    let why = "field is immutable when `immutable` is set";
    if new["immutable"] != Value::Bool(true) {
        errors.forbidden(&Path::new("immutable"), why);
    }
    for field in fields.iter().filter(|f| !doc::same(&new[**f], &old[**f])) {
        errors.forbidden(&Path::new(field), why);
    }
}
