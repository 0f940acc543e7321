//! `pods/binding`: a scheduler says where a Pod runs.

use serde_json::{Value, json};

use super::{Call, Registry, meta};
use crate::refusal::Refusal;

impl Registry {
    /// Binds the Pod the call names, as the Binding says.
    pub async fn bind(&self, call: &Call, binding: &Value) -> Result<(), Refusal> {
        let kind = self.kind("", "v1", "pods")?;
        let target = &binding["target"];
        let node = target["name"].as_str().unwrap_or_default();
        if !matches!(target["kind"].as_str(), None | Some("" | "Node")) || node.is_empty() {
            let why = "target.kind must be \"Node\" or empty, and target.name must be given";
            return Err(Refusal::new(422, "Invalid", format!("Binding {:?} is invalid: {why}", call.name())));
        }
        let (name, now) = (call.name().to_owned(), meta::timestamp(self.now()));
        if call.options.dry_run {
            return self.get(&kind, call.namespace(), &name).await.map(drop);
        }
        let bound = self
            .rewrite(&kind, call.namespace(), &name, |pod| {
                let conflict = |why: String| Err(Refusal::conflict(&kind, &name, &why));
                let wanted = meta::uid(binding);
                if !wanted.is_empty() && wanted != meta::uid(pod) {
                    let present = meta::uid(pod);
                    return conflict(format!(
                        "Precondition failed: UID in precondition: {wanted}, UID in object meta: {present}"
                    ));
                }
                if meta::is_deleting(pod) {
                    return conflict(format!("pod {name} is being deleted, cannot be assigned to a host"));
                }
                let assigned = pod["spec"]["nodeName"].as_str().unwrap_or_default();
                if !assigned.is_empty() {
                    return conflict(format!("pod {name} is already assigned to node {assigned:?}"));
                }
                if pod["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
                    return conflict(format!("pod {name} has non-empty .spec.schedulingGates"));
                }
                pod["spec"]["nodeName"] = node.into();
                for field in ["annotations", "labels"] {
                    for (key, value) in binding["metadata"][field].as_object().into_iter().flatten() {
                        pod["metadata"][field][key] = value.clone();
                    }
                }
                mark_scheduled(pod, &now);
                Ok(true)
            })
            .await?;
        bound.map(drop).ok_or_else(|| Refusal::not_found(&kind, &name))
    }
}

fn mark_scheduled(pod: &mut Value, now: &str) {
    let condition =
        json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now});
    if !pod["status"].is_object() {
        pod["status"] = json!({});
    }
    let kept = pod["status"]["conditions"].as_array().into_iter().flatten();
    let mut conditions: Vec<Value> = kept.filter(|c| c["type"] != "PodScheduled").cloned().collect();
    conditions.push(condition);
    pod["status"]["conditions"] = conditions.into();
}
