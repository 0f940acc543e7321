//! Priority: the number behind a PriorityClass name.

use apiserver_core::admission::Review;
use std::sync::Arc;

use serde_json::{Value, json};

use super::Chain;
use crate::objects::{Stored, places};
use apiserver_core::api_status::ApiStatus;
use apiserver_core::doc;

/// The two classes every cluster has.
#[must_use]
pub fn system_classes() -> Vec<Value> {
    let class = |name: &str, value: i64, description: &str| {
        json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
            "value": value, "description": description, "preemptionPolicy": "PreemptLowerPriority"})
    };
    vec![
        class(
            "system-cluster-critical",
            2_000_000_000,
            "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
        ),
        class(
            "system-node-critical",
            2_000_001_000,
            "Used for system critical pods that must not be moved from their current node.",
        ),
    ]
}

pub(super) async fn mutate(chain: &Chain, review: &Review<'_>, pod: &mut Value) -> Result<(), ApiStatus> {
    if !review.is_on("", "pods") {
        return Ok(());
    }
    if let Some(old) = review.old {
        for field in ["priority", "preemptionPolicy"] {
            if pod["spec"].get(field).is_none_or(Value::is_null) && !old["spec"][field].is_null() {
                pod["spec"][field] = old["spec"][field].clone();
            }
        }
        return Ok(());
    }
    let name = doc::text(pod, "spec.priorityClassName").to_owned();
    let class = if name.is_empty() {
        default_class(chain).await?
    } else {
        let found = chain.objects.find(places::PRIORITY_CLASSES, "", &name).await?.map(|s| s.object);
        let built_in = || system_classes().into_iter().find(|c| c["metadata"]["name"] == *name).map(Arc::new);
        let found = found.or_else(built_in);
        let why = format!("no PriorityClass with name {name} was found");
        Some(found.ok_or_else(|| review.forbid(pod, &why))?)
    };
    let (priority, policy) = match &class {
        Some(class) => {
            doc::set(pod, "spec.priorityClassName", doc::text(class, "metadata.name"));
            (doc::int(class, "value"), doc::text(class, "preemptionPolicy").to_owned())
        }
        None => (0, "PreemptLowerPriority".to_owned()),
    };
    if let Some(said) = pod["spec"]["priority"].as_i64().filter(|said| *said != priority) {
        let why = format!(
            "the integer value of priority ({said}) must not be provided in pod spec; priority admission controller \
             computed {priority} from the given PriorityClass name"
        );
        return Err(review.forbid(pod, &why));
    }
    doc::set(pod, "spec.priority", priority);
    if policy.is_empty() {
        return Ok(());
    }
    if let Some(said) = pod["spec"]["preemptionPolicy"].as_str().filter(|said| *said != policy) {
        let why = format!(
            "the string value of PreemptionPolicy ({said}) must not be provided in pod spec; priority admission \
             controller computed {policy} from the given PriorityClass name"
        );
        return Err(review.forbid(pod, &why));
    }
    doc::set(pod, "spec.preemptionPolicy", policy);
    Ok(())
}

pub(super) async fn validate(chain: &Chain, review: &Review<'_>, class: &Value) -> Result<(), ApiStatus> {
    if !review.is_on("scheduling.k8s.io", "priorityclasses") || !doc::is_true(class, "globalDefault") {
        return Ok(());
    }
    match default_class(chain).await? {
        Some(other) if other["metadata"]["name"] != class["metadata"]["name"] => {
            let name = doc::text(&other, "metadata.name");
            let why =
                format!("PriorityClass {name} is already marked as default. Only one default can exist");
            Err(review.forbid(class, &why))
        }
        _ => Ok(()),
    }
}

/// Should there be two by some accident, the lower one counts.
async fn default_class(chain: &Chain) -> Result<Option<Arc<Value>>, ApiStatus> {
    let all = chain.objects.list(places::PRIORITY_CLASSES, "").await?;
    let defaults =
        all.into_iter().map(|Stored { object, .. }| object).filter(|c| doc::is_true(c, "globalDefault"));
    Ok(defaults.min_by_key(|c| doc::int(c, "value")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::testing::{Ask, Bench};
    use super::*;

    #[tokio::test]
    async fn the_class_decides_the_number() {
        let class = |name: &str, value: i64, default: bool| {
            (
                places::PRIORITY_CLASSES,
                json!({"metadata": {"name": name}, "value": value, "globalDefault": default,
                "preemptionPolicy": "Never"}),
            )
        };
        let bench = Bench::with(&[class("usual", 5, true), class("high", 100, false)]).await;
        let cases = [
            (json!({}), Ok(("usual", 5))),
            (json!({"priorityClassName": "high"}), Ok(("high", 100))),
            (json!({"priorityClassName": "high", "priority": 100}), Ok(("high", 100))),
            (
                json!({"priorityClassName": "system-node-critical"}),
                Ok(("system-node-critical", 2_000_001_000)),
            ),
            (json!({"priorityClassName": "lost"}), Err("no PriorityClass with name lost was found")),
            (json!({"priority": 7}), Err("the integer value of priority (7) must not be provided")),
            (
                json!({"preemptionPolicy": "PreemptLowerPriority"}),
                Err("the string value of PreemptionPolicy"),
            ),
        ];
        for (spec, expected) in cases {
            let mut pod = json!({"metadata": {"name": "p"}, "spec": spec});
            let outcome = mutate(&bench.chain, &Ask::create("", "pods", "web").review(), &mut pod).await;
            match expected {
                Ok((name, value)) => {
                    outcome.unwrap();
                    assert_eq!(
                        (&pod["spec"]["priorityClassName"], &pod["spec"]["priority"]),
                        (&json!(name), &json!(value))
                    );
                }
                Err(why) => assert!(outcome.unwrap_err().message.contains(why), "{why}"),
            }
        }
    }
}
