//! IPAddress: an address that is taken, and by whom.

use api::field::FieldErrors;
use api::names;
use base::time::Wall;
use serde_json::Value;

use super::check;
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, NameRule, Strategy};
use crate::table;

const COLUMNS: &[Column] = &[Column::NAME, Column::text("ParentRef", "Who has it")];

pub(super) fn kind() -> Kind {
    Kind::new("networking.k8s.io", "v1", "IPAddress", "ipaddresses", IpAddress)
        .cluster_scoped()
        .short(&["ip"])
}

#[derive(Debug)]
struct IpAddress;

// === impl IpAddress ===

impl Strategy for IpAddress {
    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let parent = Field::root(object).get("spec").get("parentRef");
        if !parent.is_set() {
            return errors.required(&parent.at, "");
        }
        let group = parent.get("group");
        if !group.is_empty() {
            check::spelled(errors, &group, names::dns_subdomain);
        }
        for (field, is_required) in [("resource", true), ("name", true), ("namespace", false)] {
            let field = parent.get(field);
            if !field.is_empty() {
                check::spelled(errors, &field, names::path_segment);
            } else if is_required {
                errors.required(&field.at, "");
            }
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        check::immutable(errors, new, old, "spec.parentRef");
    }

    fn name_rule(&self) -> NameRule {
        NameRule::IpAddress
    }

    fn updates_unconditionally(&self) -> bool {
        false
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, _now: Wall) -> Vec<Value> {
        vec![table::name(object), parent(doc::at(object, "spec.parentRef")).into()]
    }
}

/// `services/default/web`
fn parent(parent: &Value) -> String {
    if parent.is_null() {
        return "<none>".to_owned();
    }
    let mut text = doc::text(parent, "resource").to_lowercase();
    match doc::text(parent, "group") {
        "" => {}
        group => text = format!("{text}.{}", group.to_lowercase()),
    }
    for part in ["namespace", "name"] {
        match doc::text(parent, part) {
            "" if part == "namespace" => {}
            part => text = format!("{text}/{part}"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn cells() {
        let object = json!({"metadata": {"name": "10.0.0.1"}, "spec": {"parentRef": {"resource": "services", "namespace": "n", "name": "s"}}});
        assert_eq!(IpAddress.cells(&object, Wall::from_secs(0))[1], "services/n/s");
        assert_eq!(IpAddress.cells(&json!({}), Wall::from_secs(0))[1], "<none>");
    }
}
