//! ConfigMap: data for Pods, which may be frozen.

use std::borrow::Cow;
use std::sync::Arc;

use api::field::{FieldErrors, Path};
use base::time::Wall;
use serde_json::Value;

use crate::kind::{Column, Kind, Scope, Strategy, Verb};
use crate::table;

/// Bytes of all values together, as upstream limits them.
const MAX_SIZE: usize = 1 << 20;

const COLUMNS: &[Column] = &[
    Column { name: "Data", kind: "string", format: "", priority: 0, description: "Number of entries" },
    Column { name: "Age", kind: "string", format: "", priority: 0, description: "Time since creation" },
];

pub(super) fn kind() -> Kind {
    Kind {
        group: Cow::Borrowed(""),
        version: Cow::Borrowed("v1"),
        kind: Cow::Borrowed("ConfigMap"),
        plural: Cow::Borrowed("configmaps"),
        singular: Cow::Borrowed("configmap"),
        short_names: Cow::Borrowed(&[Cow::Borrowed("cm")]),
        categories: Cow::Borrowed(&[]),
        scope: Scope::Namespaced,
        verbs: Verb::ALL,
        subresources: &[],
        storage: Cow::Borrowed("configmaps"),
        type_name: Some("io.k8s.api.core.v1.ConfigMap"),
        strategy: Arc::new(ConfigMap),
    }
}

#[derive(Debug)]
struct ConfigMap;

// === impl ConfigMap ===

impl Strategy for ConfigMap {
    fn counts_generation(&self) -> bool {
        false
    }

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
        if old["immutable"] != Value::Bool(true) {
            return;
        }
        let why = "field is immutable when `immutable` is set";
        if new["immutable"] != Value::Bool(true) {
            errors.forbidden(&Path::new("immutable"), why);
        }
        for field in ["data", "binaryData"] {
            if new[field] != old[field] {
                errors.forbidden(&Path::new(field), why);
            }
        }
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let count = |field: &str| object[field].as_object().map_or(0, serde_json::Map::len);
        vec![(count("data") + count("binaryData")).to_string().into(), table::age(object, now).into()]
    }
}
