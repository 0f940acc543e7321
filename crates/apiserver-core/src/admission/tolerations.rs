//! DefaultTolerationSeconds: a Pod stays five minutes on a node that is not ready or cannot be reached.

use serde_json::{Value, json};

use super::{Operation, Review};
use crate::doc;

const SECONDS: i64 = 300;

pub fn mutate(review: &Review<'_>, pod: &mut Value) {
    if !review.is_on("", "pods") || review.operation == Operation::Delete {
        return;
    }
    for taint in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerated = doc::list(pod, "spec.tolerations").iter().any(|t| {
            let is = |field: &str, wanted: &str| {
                matches!(doc::text(t, field), "") || doc::text(t, field) == wanted
            };
            is("key", taint) && is("effect", "NoExecute")
        });
        if tolerated {
            continue;
        }
        let toleration =
            json!({"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": SECONDS});
        match pod["spec"]["tolerations"].as_array_mut() {
            Some(list) => list.push(toleration),
            None => pod["spec"]["tolerations"] = json!([toleration]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Ask;
    use super::*;

    #[test]
    fn what_is_tolerated_already_is_left_alone() {
        let ask = Ask::create("", "pods", "web");
        for (given, added) in [
            (json!(null), 2),
            (json!([{"operator": "Exists"}]), 0),
            (
                json!([{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}]),
                1,
            ),
            (
                json!([{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoSchedule"}]),
                2,
            ),
        ] {
            let before = given.as_array().map_or(0, Vec::len);
            let mut pod = json!({"spec": {"tolerations": given}});
            mutate(&ask.review(), &mut pod);
            assert_eq!(doc::list(&pod, "spec.tolerations").len() - before, added, "{pod}");
        }
    }
}
