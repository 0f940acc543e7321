//! RuntimeClass: the overhead and the placing a runtime brings to its Pods.

use apiserver_core::admission::{Operation, Review};
use std::sync::Arc;

use serde_json::{Value, json};

use super::Chain;
use crate::objects::places;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::doc;

pub(super) async fn mutate(chain: &Chain, review: &Review<'_>, pod: &mut Value) -> Result<(), ApiStatus> {
    let Some(class) = class_of(chain, review, pod).await? else { return Ok(()) };
    let overhead = &class["overhead"]["podFixed"];
    if overhead.is_object() {
        let said = &pod["spec"]["overhead"];
        if said.is_object() && said != overhead {
            let why = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
            return Err(review.forbid(pod, why));
        }
        pod["spec"]["overhead"] = overhead.clone();
    }
    for (key, value) in doc::entries(&class, "scheduling.nodeSelector") {
        let said = pod["spec"]["nodeSelector"][key].clone();
        if !said.is_null() && said != *value {
            let why = format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {}; pod.spec.nodeSelector[{key}] = {}",
                value.as_str().unwrap_or_default(),
                said.as_str().unwrap_or_default()
            );
            return Err(review.forbid(pod, &why));
        }
        pod["spec"]["nodeSelector"][key] = value.clone();
    }
    let new: Vec<Value> = doc::list(&class, "scheduling.tolerations")
        .iter()
        .filter(|t| !doc::list(pod, "spec.tolerations").contains(t))
        .cloned()
        .collect();
    if !new.is_empty() {
        match pod["spec"]["tolerations"].as_array_mut() {
            Some(list) => list.extend(new),
            None => pod["spec"]["tolerations"] = json!(new),
        }
    }
    Ok(())
}

pub(super) async fn validate(chain: &Chain, review: &Review<'_>, pod: &Value) -> Result<(), ApiStatus> {
    if !is_new_pod(review) {
        return Ok(());
    }
    let class = class_of(chain, review, pod).await?.unwrap_or_default();
    let (said, is) = (&pod["spec"]["overhead"], &class["overhead"]["podFixed"]);
    if said.is_object() && !is.is_object() {
        let why = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead";
        return Err(review.forbid(pod, why));
    }
    Ok(())
}

fn is_new_pod(review: &Review<'_>) -> bool {
    review.is_on("", "pods") && review.operation == Operation::Create
}

async fn class_of(chain: &Chain, review: &Review<'_>, pod: &Value) -> Result<Option<Arc<Value>>, ApiStatus> {
    let name = doc::text(pod, "spec.runtimeClassName");
    if !is_new_pod(review) || name.is_empty() {
        return Ok(None);
    }
    match chain.objects.find(places::RUNTIME_CLASSES, "", name).await? {
        Some(found) => Ok(Some(found.object)),
        None => Err(review.forbid(pod, &format!("pod rejected: RuntimeClass {name:?} not found"))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::testing::{Ask, Bench};
    use super::*;

    #[tokio::test]
    async fn the_class_adds_its_overhead_and_places() {
        let class = json!({"metadata": {"name": "vm"}, "handler": "vm", "overhead": {"podFixed": {"memory": "64Mi"}},
            "scheduling": {"nodeSelector": {"vm": "yes"}, "tolerations": [{"key": "vm", "operator": "Exists"}]}});
        let bench = Bench::with(&[(places::RUNTIME_CLASSES, class)]).await;
        let ask = Ask::create("", "pods", "web");
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {"runtimeClassName": "vm"}});
        mutate(&bench.chain, &ask.review(), &mut pod).await.unwrap();
        assert_eq!(pod["spec"]["overhead"], json!({"memory": "64Mi"}));
        assert_eq!(pod["spec"]["nodeSelector"], json!({"vm": "yes"}));
        assert_eq!(doc::list(&pod, "spec.tolerations").len(), 1);
        validate(&bench.chain, &ask.review(), &pod).await.unwrap();
        for spec in [
            json!({"runtimeClassName": "lost"}),
            json!({"runtimeClassName": "vm", "overhead": {"memory": "1Mi"}}),
            json!({"runtimeClassName": "vm", "nodeSelector": {"vm": "no"}}),
        ] {
            let mut pod = json!({"metadata": {"name": "p"}, "spec": spec});
            assert_eq!(mutate(&bench.chain, &ask.review(), &mut pod).await.unwrap_err().code, 403, "{spec}");
        }
        let bare = json!({"metadata": {"name": "p"}, "spec": {"overhead": {"memory": "1Mi"}}});
        assert_eq!(validate(&bench.chain, &ask.review(), &bare).await.unwrap_err().code, 403);
    }
}
