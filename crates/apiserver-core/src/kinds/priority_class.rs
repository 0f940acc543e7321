//! PriorityClass: which Pods go first.

use api::field::{FieldErrors, Path};
use base::time::Wall;
use serde_json::Value;

use super::check;
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, Strategy};
use crate::table;

/// Above this only the system's own classes are.
const HIGHEST_OF_USERS: i64 = 1_000_000_000;
/// The classes every cluster has, by name and value.
pub const SYSTEM: [(&str, i64); 2] = [
    ("system-node-critical", HIGHEST_OF_USERS * 2 + 1000),
    ("system-cluster-critical", HIGHEST_OF_USERS * 2),
];

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::number("Value", "The priority"),
    Column::boolean("Global-Default", "Whether Pods without a class are of this one"),
    Column::AGE,
    Column::text("PreemptionPolicy", "Whether its Pods push others out"),
];

pub(super) fn kind() -> Kind {
    Kind::new("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", PriorityClass)
        .cluster_scoped()
        .short(&["pc"])
}

#[derive(Debug)]
struct PriorityClass;

// === impl PriorityClass ===

impl Strategy for PriorityClass {
    fn set_defaults(&self, object: &mut Value) {
        doc::fill(object, "preemptionPolicy", "PreemptLowerPriority");
    }

    fn prepare_create(&self, object: &mut Value) {
        // Upstream numbers the first generation and never counts on.
        doc::set(object, "metadata.generation", 1);
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let (name, value) = (doc::text(object, "metadata.name"), doc::int(object, "value"));
        if name.starts_with("system-") {
            if let Err(why) = is_system_class(name, value, doc::is_true(object, "globalDefault")) {
                let message = format!(
                    "priority class names with 'system-' prefix are reserved for system use only. error: {why}"
                );
                errors.forbidden(&Path::new("metadata.name"), &message);
            }
        } else if value > HIGHEST_OF_USERS {
            let message = format!("maximum allowed value of a user defined priority is {HIGHEST_OF_USERS}");
            errors.forbidden(&Path::new("value"), &message);
        }
        let policy = Field::root(object).get("preemptionPolicy");
        check::one_of_if_set(errors, &policy, &["PreemptLowerPriority", "Never"]);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        if doc::int(new, "value") != doc::int(old, "value") {
            errors.forbidden(&Path::new("value"), "may not be changed in an update.");
        }
        check::immutable(errors, new, old, "preemptionPolicy");
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        vec![
            table::name(object),
            doc::int(object, "value").into(),
            doc::is_true(object, "globalDefault").into(),
            table::age(object, now).into(),
            doc::text(object, "preemptionPolicy").into(),
        ]
    }
}

fn is_system_class(name: &str, value: i64, is_default: bool) -> Result<(), String> {
    match SYSTEM.iter().find(|(known, _)| *known == name) {
        None => Err(format!("{name} is not a known system priority class")),
        Some((_, known)) if *known != value => Err(format!("value of {name} PriorityClass must be {known}")),
        Some(_) if is_default => Err(format!("globalDefault of {name} PriorityClass must be false")),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_highest_are_the_systems_own() {
        let complaints = |name: &str, value: i64| {
            let mut errors = FieldErrors::default();
            PriorityClass.validate(&json!({"metadata": {"name": name}, "value": value}), &mut errors);
            errors.to_string()
        };
        assert_eq!(complaints("high", HIGHEST_OF_USERS), "[]");
        assert_eq!(complaints("system-node-critical", 2_000_001_000), "[]");
        assert_eq!(
            complaints("high", HIGHEST_OF_USERS + 1),
            "value: Forbidden: maximum allowed value of a user defined priority is 1000000000"
        );
        assert!(complaints("system-x", 1).contains("system-x is not a known system priority class"));
    }
}
