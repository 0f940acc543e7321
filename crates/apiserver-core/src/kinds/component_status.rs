//! ComponentStatus: how the parts behind the server are. The only one there is here is the store, under the name that
//! clients look for it by.

use base::time::Wall;
use serde_json::{Value, json};

use crate::doc;
use crate::kind::{Column, Kind, Strategy, Verb};
use crate::table;

/// What upstream calls its first store.
pub const STORE: &str = "etcd-0";
pub const DEPRECATED: &str = "v1 ComponentStatus is deprecated in v1.19+";

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::text("Status", "Status of the component conditions"),
    Column::text("Message", "Message of the component conditions"),
    Column::text("Error", "Error of the component conditions"),
];

pub(super) fn kind() -> Kind {
    Kind::core("ComponentStatus", "componentstatuses", ComponentStatus)
        .cluster_scoped()
        .short(&["cs"])
        .verbs(&[Verb::Get, Verb::List])
        .stored_as("")
}

/// The store; `error` says what is wrong with it, and is empty when nothing is.
#[must_use]
pub fn store(error: &str) -> Value {
    let condition = if error.is_empty() {
        json!({"type": "Healthy", "status": "True", "message": "ok"})
    } else {
        json!({"type": "Healthy", "status": "False", "error": error})
    };
    json!({
        "apiVersion": "v1", "kind": "ComponentStatus",
        "metadata": {"name": STORE, "creationTimestamp": null}, "conditions": [condition],
    })
}

#[derive(Debug)]
struct ComponentStatus;

// === impl ComponentStatus ===

impl Strategy for ComponentStatus {
    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, _now: Wall) -> Vec<Value> {
        let healthy = doc::list(object, "conditions").iter().find(|c| doc::text(c, "type") == "Healthy");
        let (status, message, error) = match healthy {
            Some(c) if doc::text(c, "status") == "True" => ("Healthy", doc::text(c, "message"), ""),
            Some(c) => ("Unhealthy", doc::text(c, "message"), doc::text(c, "error")),
            None => ("Unknown", "", ""),
        };
        vec![table::name(object), status.into(), message.into(), error.into()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells() {
        let cells = |object: &Value| ComponentStatus.cells(object, Wall::from_secs(0));
        assert_eq!(cells(&store("")), [json!(STORE), json!("Healthy"), json!("ok"), json!("")]);
        assert_eq!(cells(&store("the disk is full"))[1], "Unhealthy");
    }
}
