//! `pods/eviction`: a deletion that asks the disruption budgets first.

use api::selector::LabelSelector;
use serde_json::Value;

use super::options::DeleteOptions;
use super::selection::{Selection, present};
use super::{Call, Registry, meta};
use crate::refusal::{Cause, Refusal};

/// What the budgets say.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// No budget is touched.
    Free,
    /// One disruption of the budget is used up.
    Spend,
    Refused(String),
}

impl Registry {
    /// Evicts the Pod the call names.
    pub async fn evict(&self, call: &Call, eviction: &Value) -> Result<(), Refusal> {
        let said = meta::name(eviction);
        if !said.is_empty() && said != call.name() {
            return Err(Refusal::bad_request(format!(
                "name in URL does not match name in Eviction object: {} != {said}",
                call.name()
            )));
        }
        let mut options = DeleteOptions::from_body(&eviction["deleteOptions"])?;
        options.dry_run |= call.options.dry_run;
        let kind = self.kind("", "v1", "pods")?;
        let pod = present(&kind, &self.get(&kind, call.namespace(), call.name()).await?);
        if !is_beyond_budgets(&pod) {
            // The Pod that was looked at, and no other of its name.
            options.uid.get_or_insert_with(|| meta::uid(&pod).to_owned());
            self.ask_budgets(call, &pod, options.dry_run).await?;
        }
        let mut deletion = Call { kind, ..call.clone() };
        deletion.attributes.verb = "delete".into();
        if let Some(resource) = &mut deletion.attributes.resource {
            resource.subresource.clear();
        }
        self.delete(&mut deletion, &options).await.map(drop)
    }

    async fn ask_budgets(&self, call: &Call, pod: &Value, dry_run: bool) -> Result<(), Refusal> {
        let kind = self.kind("policy", "v1", "poddisruptionbudgets")?;
        let mut selection = Selection::all(kind.clone());
        call.namespace().clone_into(&mut selection.namespace);
        let (documents, _) = self.list_all(selection).await?;
        let covers = |budget: &Value| {
            let selector = &budget["spec"]["selector"];
            selector.is_object() && LabelSelector::from_object(selector).matches_object(pod)
        };
        let budgets: Vec<Value> = documents.iter().map(|d| present(&kind, d)).filter(covers).collect();
        let budget = match &*budgets {
            [] => return Ok(()),
            [budget] => budget,
            _ => {
                return Err(Refusal::internal(
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
                ));
            }
        };
        let (name, now) = (meta::name(budget).to_owned(), meta::timestamp(self.now()));
        let pod_name = call.name().to_owned();
        self.rewrite(&kind, call.namespace(), &name, |budget| match judge(pod, budget) {
            Verdict::Free => Ok(false),
            Verdict::Refused(why) => Err(too_many(why)),
            Verdict::Spend if dry_run => Ok(false),
            Verdict::Spend => {
                let left = budget["status"]["disruptionsAllowed"].as_i64().unwrap_or_default() - 1;
                budget["status"]["disruptionsAllowed"] = left.into();
                budget["status"]["disruptedPods"][&pod_name] = now.as_str().into();
                Ok(true)
            }
        })
        .await
        .map(drop)
    }
}

/// A Pod that is over, is ending, or never began disturbs nothing.
fn is_beyond_budgets(pod: &Value) -> bool {
    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
    matches!(phase, "Succeeded" | "Failed" | "Pending" | "") || meta::is_deleting(pod)
}

fn judge(pod: &Value, budget: &Value) -> Verdict {
    let status = |field: &str| budget["status"][field].as_i64().unwrap_or_default();
    let name = meta::name(budget);
    let ready = pod["status"]["conditions"].as_array().into_iter().flatten();
    let ready = ready.into_iter().any(|c| c["type"] == "Ready" && c["status"] == "True");
    if !ready {
        let healthy = status("currentHealthy") >= status("desiredHealthy") && status("desiredHealthy") > 0;
        let always = budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow";
        if healthy || always {
            return Verdict::Free;
        }
    }
    if status("observedGeneration") < budget["metadata"]["generation"].as_i64().unwrap_or_default() {
        return Verdict::Refused(format!(
            "The disruption budget {name} is still being processed by the server."
        ));
    }
    if status("disruptionsAllowed") <= 0 {
        return Verdict::Refused(format!(
            "The disruption budget {name} needs {} healthy pods and has {} currently",
            status("desiredHealthy"),
            status("currentHealthy")
        ));
    }
    Verdict::Spend
}

fn too_many(why: String) -> Refusal {
    let message = "Cannot evict pod as it would violate the pod's disruption budget.";
    let cause = Cause { reason: "DisruptionBudget".to_owned(), message: why, field: String::new() };
    Refusal::too_many_requests(message, 10).with_causes(vec![cause])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn budgets_are_asked() {
        let pod = |ready: &str| json!({"status": {"conditions": [{"type": "Ready", "status": ready}]}});
        let budget = |allowed: i64, healthy: i64, observed: i64| {
            json!({
                "metadata": {"name": "b", "generation": 2}, "spec": {},
                "status": {"disruptionsAllowed": allowed, "currentHealthy": healthy, "desiredHealthy": 2, "observedGeneration": observed},
            })
        };
        assert_eq!(judge(&pod("True"), &budget(1, 3, 2)), Verdict::Spend);
        assert!(matches!(judge(&pod("True"), &budget(0, 2, 2)), Verdict::Refused(_)));
        assert!(matches!(judge(&pod("True"), &budget(1, 3, 1)), Verdict::Refused(_)));
        assert_eq!(judge(&pod("False"), &budget(0, 2, 2)), Verdict::Free);
        assert!(matches!(judge(&pod("False"), &budget(0, 1, 2)), Verdict::Refused(_)));
    }
}
