//! ComponentStatus: how the parts behind the server are. The only one there is here is the store, under the name that
//! clients look for it by.

use base::time::Wall;
use serde_json::{Value, json};

use crate::doc;
use crate::kind::{Column, Kind, Strategy, Verb};
use crate::table;
use store::Health;

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

/// The store, healthy or not.
#[must_use]
pub fn store(health: &Health) -> Value {
    let error = match health {
        Health::Good => "",
        Health::Full => "the disk is full",
        Health::Failing { .. } => "the store takes no writes",
        Health::Closed => "the store is closed",
    };
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
        assert_eq!(cells(&store(&Health::Good)), [json!(STORE), json!("Healthy"), json!("ok"), json!("")]);
        for ill in [Health::Full, Health::Closed, Health::Failing { cause: "EIO".into() }] {
            assert_eq!(cells(&store(&ill))[1], "Unhealthy");
        }
    }
}
