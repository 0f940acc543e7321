//! `pods/eviction`: a deletion that asks the disruption budgets first.

use std::sync::Arc;

use api::selector::LabelSelector;
use serde_json::{Value, json};

use super::Registry;
use apiserver_core::api_status::{ApiStatus, Cause};
use apiserver_core::call::Call;
use apiserver_core::deletion::check_preconditions;
use apiserver_core::kind::Kind;
use apiserver_core::kinds::pod;
use apiserver_core::meta;
use apiserver_core::options::DeleteOptions;
use apiserver_core::selection::{Selection, present};

/// How often a Pod may change while it is looked at.
const TRIES: usize = 16;

/// How many evictions a budget may wait to see confirmed.
const DISRUPTED_MAX: usize = 2000;
/// After so many seconds a budget has been counted.
const SOON: i32 = 10;

/// What the budgets say.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// No budget is touched.
    Free,
    /// One disruption of the budget is used up.
    Spend,
    /// The budget allows none: when that will change nobody can say.
    Refused(String),
    /// What it allows is being counted: soon.
    Later(String),
    /// The budget itself is not as it should be.
    Broken(&'static str),
}

impl Registry {
    /// Evicts the Pod the call names.
    pub async fn evict(&self, call: &Call, eviction: &Value) -> Result<(), ApiStatus> {
        let said = meta::name(eviction);
        if !said.is_empty() && said != call.name() {
            return Err(ApiStatus::bad_request(format!(
                "name in URL does not match name in Eviction object: {} != {said}",
                call.name()
            )));
        }
        let mut options = DeleteOptions::from_body(&eviction["deleteOptions"])?;
        options.dry_run |= call.options.dry_run;
        let kind = self.kind("", "v1", "pods")?;
        for _ in 0..TRIES {
            let pod = present(&kind, &self.get(&kind, call.namespace(), call.name()).await?);
            if !is_beyond_budgets(&pod) {
                return self.evict_budgeted(call, &pod, options).await;
            }
            let mut options = options.clone();
            let asked = options.version.is_some();
            // A Pod that may yet begin to count is deleted as it was seen, or looked at again.
            if !asked && !is_over(&pod) {
                options.version = Some(meta::text(&pod, "resourceVersion").to_owned());
            }
            match self.disrupt(call, &kind, options).await {
                Err(api_status) if api_status.is_conflict() && !asked => {}
                outcome => return outcome,
            }
        }
        Err(ApiStatus::modified(&kind, call.name()))
    }

    async fn evict_budgeted(
        &self,
        call: &Call,
        pod: &Value,
        options: DeleteOptions,
    ) -> Result<(), ApiStatus> {
        let kind = self.kind("", "v1", "pods")?;
        let mut asked = options.clone();
        // The Pod that was looked at, and no other of its name.
        asked.uid.get_or_insert_with(|| meta::uid(pod).to_owned());
        let unhealthy = self.ask_budgets(call, pod, options.dry_run).await?;
        if unhealthy.is_some() {
            // It costs no budget as long as it is not ready.
            asked.version.get_or_insert_with(|| meta::text(pod, "resourceVersion").to_owned());
        }
        match (self.disrupt(call, &kind, asked).await, unhealthy) {
            (Err(api_status), Some(budget)) if api_status.is_conflict() && options.version.is_none() => {
                Err(too_many(in_process(&budget), SOON))
            }
            (outcome, _) => outcome,
        }
    }

    /// Tells the Pod why it goes, then deletes it.
    async fn disrupt(
        &self,
        call: &Call,
        kind: &Arc<Kind>,
        mut options: DeleteOptions,
    ) -> Result<(), ApiStatus> {
        let mut deletion = Call { kind: kind.clone(), ..call.clone() };
        deletion.attributes.verb = "delete".into();
        if let Some(resource) = &mut deletion.attributes.resource {
            resource.subresource.clear();
        }
        if !options.dry_run {
            let now = meta::timestamp(self.now());
            let marked = self.rewrite(kind, call.namespace(), call.name(), |pod| {
                check_preconditions(&deletion, &options, pod)?;
                Ok(pod::set_condition(pod, disruption(), &now))
            });
            let marked = marked.await?.ok_or_else(|| ApiStatus::not_found(kind, call.name()))?;
            if options.version.is_some() {
                options.version = Some(meta::text(&marked, "resourceVersion").to_owned());
            }
        }
        self.delete(&mut deletion, &options).await.map(drop)
    }

    /// The name of the budget that is not touched because the Pod is not ready.
    async fn ask_budgets(
        &self,
        call: &Call,
        pod: &Value,
        dry_run: bool,
    ) -> Result<Option<String>, ApiStatus> {
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
            [] => return Ok(None),
            [budget] => budget,
            _ => {
                return Err(ApiStatus::internal(
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
                ));
            }
        };
        let (name, now) = (meta::name(budget).to_owned(), meta::timestamp(self.now()));
        let pod_name = call.name().to_owned();
        let mut free = false;
        self.rewrite(&kind, call.namespace(), &name, |budget| {
            let verdict = judge(pod, budget);
            free = verdict == Verdict::Free;
            match verdict {
                Verdict::Free => Ok(false),
                Verdict::Refused(why) => Err(too_many(why, 0)),
                Verdict::Later(why) => Err(too_many(why, SOON)),
                Verdict::Broken(why) => Err(ApiStatus::forbidden(&kind, &name, why)),
                Verdict::Spend if dry_run => Ok(false),
                Verdict::Spend => {
                    spend(budget, &pod_name, &now);
                    Ok(true)
                }
            }
        })
        .await?;
        Ok(free.then_some(name))
    }
}

/// A Pod that is over, is ending, or never began disturbs nothing.
fn is_beyond_budgets(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), None | Some("Pending" | "")) || is_over(pod)
}

/// It cannot become ready again.
fn is_over(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed")) || meta::is_deleting(pod)
}

/// Why a Pod that is evicted ends, in upstream's words: a Job may not count it as a failure.
fn disruption() -> Value {
    json!({
        "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
    })
}

fn in_process(budget: &str) -> String {
    format!("The disruption budget {budget} is still being processed by the server.")
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
        return Verdict::Later(in_process(name));
    }
    let unconfirmed = budget["status"]["disruptedPods"].as_object().map_or(0, |pods| pods.len());
    match status("disruptionsAllowed") {
        ..0 => Verdict::Broken("pdb disruptions allowed is negative"),
        _ if unconfirmed > DISRUPTED_MAX => {
            Verdict::Broken("DisruptedPods map too big - too many evictions not confirmed by PDB controller")
        }
        0 => Verdict::Refused(format!("The disruption budget {name} {}", why_not(budget))),
        _ => Verdict::Spend,
    }
}

/// Why a budget allows nothing, in upstream's words. What it counts is not believed while counting fails.
fn why_not(budget: &Value) -> String {
    let status = &budget["status"];
    let number = |field: &str| status[field].as_i64().unwrap_or_default();
    let (desired, current) = (number("desiredHealthy"), number("currentHealthy"));
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let refusal = conditions.find(|c| c["type"] == "DisruptionAllowed" && c["status"] == "False");
    let text = |field: &str| refusal.and_then(|c| c[field].as_str()).unwrap_or_default();
    let (reason, message) = (text("reason"), text("message"));
    if reason == "SyncFailed" && !message.is_empty() {
        return format!("does not allow evicting pods currently because it failed sync: {message}");
    }
    if current > desired && !message.is_empty() {
        return format!("does not allow evicting pods currently ({reason}): {message}");
    }
    if current > desired {
        return "does not allow evicting pods currently".to_owned();
    }
    format!("needs {desired} healthy pods and has {current} currently")
}

/// Uses up one disruption. With the last one the condition says at once that no more may go, as upstream's does.
fn spend(budget: &mut Value, pod: &str, now: &str) {
    let status = &mut budget["status"];
    let left = status["disruptionsAllowed"].as_i64().unwrap_or_default() - 1;
    status["disruptionsAllowed"] = left.into();
    status["disruptedPods"][pod] = now.into();
    if left > 0 {
        return;
    }
    let mut condition = json!({
        "type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods", "message": "",
        "observedGeneration": status["observedGeneration"], "lastTransitionTime": now,
    });
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    let Some(list) = status["conditions"].as_array_mut() else { return };
    match list.iter_mut().find(|known| known["type"] == "DisruptionAllowed") {
        Some(known) => {
            if known["status"] == "False" {
                condition["lastTransitionTime"] = known["lastTransitionTime"].take();
            }
            *known = condition;
        }
        None => list.push(condition),
    }
}

/// Clients that are told when to come again do so by themselves, up to ten times: only where waiting helps.
fn too_many(why: String, retry_after_seconds: i32) -> ApiStatus {
    let message = "Cannot evict pod as it would violate the pod's disruption budget.";
    let cause = Cause { reason: "DisruptionBudget".to_owned(), message: why, field: String::new() };
    ApiStatus::too_many_requests(message, retry_after_seconds).with_causes(vec![cause])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_disruption_flips_the_condition() {
        let allowed = json!([{"type": "Mine"}, {"type": "DisruptionAllowed", "status": "True", "reason": "SufficientPods",
            "message": "", "observedGeneration": 2, "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let mut budget =
            json!({"status": {"disruptionsAllowed": 2, "observedGeneration": 2, "conditions": allowed}});
        spend(&mut budget, "a", "2026-01-02T00:00:00Z");
        assert_eq!(budget["status"]["conditions"], allowed);
        spend(&mut budget, "b", "2026-01-03T00:00:00Z");
        let status = &budget["status"];
        assert_eq!(status["disruptionsAllowed"], 0);
        assert_eq!(
            status["disruptedPods"],
            json!({"a": "2026-01-02T00:00:00Z", "b": "2026-01-03T00:00:00Z"})
        );
        assert_eq!(status["conditions"][0], json!({"type": "Mine"}));
        assert_eq!(
            status["conditions"][1],
            json!({"type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods", "message": "",
                "observedGeneration": 2, "lastTransitionTime": "2026-01-03T00:00:00Z"})
        );
    }

    #[test]
    fn who_may_not_evict_hears_when_to_ask_again_only_if_that_helps() {
        let after = |seconds| too_many("why".to_owned(), seconds).details.map(|d| d.retry_after_seconds);
        assert_eq!((after(0), after(SOON)), (Some(0), Some(10)));
        let budget = |current: i64, reason: &str, message: &str| {
            let condition =
                json!({"type": "DisruptionAllowed", "status": "False", "reason": reason, "message": message});
            json!({"metadata": {"name": "b"}, "spec": {}, "status": {
                "currentHealthy": current, "desiredHealthy": 2, "conditions": [condition]}})
        };
        let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        for (budget, why) in [
            (budget(2, "InsufficientPods", ""), "needs 2 healthy pods and has 2 currently"),
            (budget(3, "InsufficientPods", ""), "does not allow evicting pods currently"),
            (budget(3, "Other", "why"), "does not allow evicting pods currently (Other): why"),
            (
                budget(2, "SyncFailed", "no"),
                "does not allow evicting pods currently because it failed sync: no",
            ),
        ] {
            let want = Verdict::Refused(format!("The disruption budget b {why}"));
            assert_eq!(judge(&ready, &budget), want);
        }
    }

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
        assert!(matches!(judge(&pod("True"), &budget(1, 3, 1)), Verdict::Later(_)));
        assert!(matches!(judge(&pod("True"), &budget(-1, 3, 2)), Verdict::Broken(_)));
        assert_eq!(judge(&pod("False"), &budget(0, 2, 2)), Verdict::Free);
        assert!(matches!(judge(&pod("False"), &budget(0, 1, 2)), Verdict::Refused(_)));
    }
}
