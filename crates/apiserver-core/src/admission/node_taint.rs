//! TaintNodesByCondition: a new node is not ready until somebody says it is.

use serde_json::{Value, json};

use super::{Operation, Review};
use crate::doc;

const NOT_READY: &str = "node.kubernetes.io/not-ready";

pub fn mutate(review: &Review<'_>, node: &mut Value) {
    if !review.is_on("", "nodes") || review.operation != Operation::Create {
        return;
    }
    let tainted =
        doc::list(node, "spec.taints").iter().any(|t| t["key"] == NOT_READY && t["effect"] == "NoSchedule");
    if tainted {
        return;
    }
    let taint = json!({"key": NOT_READY, "effect": "NoSchedule"});
    match doc::at_mut(node, "spec.taints").and_then(Value::as_array_mut) {
        Some(taints) => taints.push(taint),
        None => doc::set(node, "spec.taints", json!([taint])),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Ask;
    use super::*;

    #[test]
    fn a_new_node_is_tainted_once() {
        let ask = Ask::create("", "nodes", "");
        let mut node = json!({"metadata": {"name": "n"}});
        mutate(&ask.review(), &mut node);
        mutate(&ask.review(), &mut node);
        assert_eq!(node["spec"]["taints"], json!([{"key": NOT_READY, "effect": "NoSchedule"}]));
    }
}
