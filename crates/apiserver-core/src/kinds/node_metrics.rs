//! NodeMetrics and PodMetrics: what nodes and containers use at the moment. They are told, not kept.

use std::sync::OnceLock;

use base::quantity::Quantity;
use base::time::Wall;
use serde_json::{Value, json};

use crate::doc;
use crate::kind::{Column, Kind, Strategy, Verb};
use crate::table;

pub const GROUP: &str = "metrics.k8s.io";
pub const VERSION: &str = "v1beta1";
pub const API_VERSION: &str = "metrics.k8s.io/v1beta1";

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::text("cpu", "Processors in use"),
    Column::text("memory", "Memory in use"),
    Column::text("Window", "For how long it was looked"),
];

const VERBS: &[Verb] = &[Verb::Get, Verb::List];

pub(super) fn nodes() -> Kind {
    kind("NodeMetrics", "nodes").cluster_scoped()
}

pub(super) fn pods() -> Kind {
    kind("PodMetrics", "pods")
}

fn kind(name: &'static str, plural: &'static str) -> Kind {
    let mut kind = Kind::new(GROUP, VERSION, name, plural, NodeMetrics).verbs(VERBS).stored_as("");
    kind.singular = "".into();
    kind.type_name = Some(format!("io.k8s.metrics.pkg.apis.metrics.v1beta1.{name}").into());
    kind
}

#[derive(Debug)]
struct NodeMetrics;

// === impl NodeMetrics ===

impl Strategy for NodeMetrics {
    /// One schema for both: what a Pod has by container, a node has as a whole.
    fn openapi(&self) -> &Value {
        static SCHEMA: OnceLock<Value> = OnceLock::new();
        SCHEMA.get_or_init(|| {
            let quantities = json!({"type": "object", "additionalProperties": {
                "x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}],
            }});
            let container =
                json!({"type": "object", "properties": {"name": {"type": "string"}, "usage": quantities}});
            json!({
                "type": "object", "description": "What is in use at the moment.",
                "properties": {
                    "timestamp": {"type": "string", "format": "date-time"},
                    "window": {"type": "string"},
                    "usage": quantities,
                    "containers": {"type": "array", "items": container},
                },
            })
        })
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, _now: Wall) -> Vec<Value> {
        let sum = |resource: &str, zero: Quantity| {
            let containers = doc::list(object, "containers").iter().map(|c| &c["usage"][resource]);
            let all = containers.chain([&object["usage"][resource]]);
            let amounts = all.filter_map(|a| a.as_str()?.parse::<Quantity>().ok());
            amounts.fold(zero, Quantity::plus).to_string()
        };
        let (cpu, memory) = (sum("cpu", Quantity::ZERO), sum("memory", Quantity::from_bytes(0)));
        vec![table::name(object), cpu.into(), memory.into(), doc::text(object, "window").into()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_sum_of_a_pods_containers() {
        let container = |cpu: &str, memory: &str| json!({"usage": {"cpu": cpu, "memory": memory}});
        let pod = json!({
            "metadata": {"name": "p"}, "window": "15s",
            "containers": [container("1500000n", "3Mi"), container("500000n", "512Ki")],
        });
        let cells = |object: &Value| NodeMetrics.cells(object, Wall::from_secs(0));
        assert_eq!(cells(&pod), [json!("p"), json!("2m"), json!("3584Ki"), json!("15s")]);
        let node =
            json!({"metadata": {"name": "n"}, "usage": {"cpu": "7n", "memory": "1Gi"}, "window": "1s"});
        assert_eq!(cells(&node), [json!("n"), json!("7n"), json!("1Gi"), json!("1s")]);
        assert_eq!(cells(&json!({})).len(), COLUMNS.len());
        assert!(NodeMetrics.openapi()["properties"]["usage"].is_object());
    }
}
