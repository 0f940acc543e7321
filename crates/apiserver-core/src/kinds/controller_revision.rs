//! ControllerRevision: a template as it once was.

use api::field::{FieldErrors, Path};
use base::time::Wall;
use serde_json::Value;

use super::check;
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, Strategy};
use crate::table;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::text("Controller", "Whose template it is"),
    Column::text("Revision", "Its place in the history"),
    Column::AGE,
];

pub(super) fn kind() -> Kind {
    Kind::new("apps", "v1", "ControllerRevision", "controllerrevisions", ControllerRevision)
}

#[derive(Debug)]
struct ControllerRevision;

// === impl ControllerRevision ===

impl Strategy for ControllerRevision {
    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        check::non_negative(errors, &Field::root(object).get("revision"));
        match &object["data"] {
            Value::Null => errors.required(&Path::new("data"), "data is mandatory"),
            Value::Object(_) => {}
            _ => errors.required(&Path::new("data"), "data must be a valid JSON object"),
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        check::non_negative(errors, &Field::root(new).get("revision"));
        check::immutable(errors, new, old, "data");
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let owner =
            doc::list(object, "metadata.ownerReferences").iter().find(|o| doc::is_true(o, "controller"));
        let controller = owner.map_or_else(|| "<none>".to_owned(), owner_name);
        let revision = doc::int(object, "revision");
        vec![table::name(object), controller.into(), revision.into(), table::age(object, now).into()]
    }
}

/// `statefulset.apps/db`
fn owner_name(owner: &Value) -> String {
    let kind = doc::text(owner, "kind").to_lowercase();
    let name = doc::text(owner, "name");
    match doc::text(owner, "apiVersion").split_once('/') {
        Some((group, _)) => format!("{kind}.{group}/{name}"),
        None => format!("{kind}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn cells_name_the_owner() {
        let object = json!({"metadata": {"name": "r", "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "controller": true}]}, "revision": 2});
        assert_eq!(
            json!(ControllerRevision.cells(&object, Wall::from_secs(0))),
            json!(["r", "statefulset.apps/db", 2, "<unknown>"])
        );
    }
}
