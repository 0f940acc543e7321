//! What a Pod's status says of its scheduling.

use std::time::Duration;

use client::{Client, ClientError, Request};
use jiff::Timestamp;
use scheduler_core::Name;
use scheduler_core::pod::Pod;
use serde_json::{Value, json};

const TRIES: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// Why a Pod has no node.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// What becomes of the nomination a Pod has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Nomination {
    Keep,
    Set(Name),
}

/// The patch that brings the status up to date; none where it is.
pub(crate) fn patch(
    pod: &Pod,
    verdict: Option<&Verdict>,
    nomination: &Nomination,
    now: Timestamp,
) -> Option<Value> {
    let mut status = json!({});
    if let Some(Verdict { reason, message }) = verdict {
        // Upstream keeps the field empty on a server that never filled it.
        let generation = Some(pod.generation).filter(|g| *g > 0);
        let is_known = pod.condition.as_ref().is_some_and(|c| {
            *c.status == *"False"
                && *c.reason == **reason
                && *c.message == **message
                && c.observed_generation == generation
        });
        if !is_known {
            let mut condition = json!({
                "type": "PodScheduled", "status": "False", "reason": reason, "message": message,
                "lastProbeTime": null,
            });
            if let Some(generation) = generation {
                condition["observedGeneration"] = json!(generation);
            }
            if pod.condition.as_ref().is_none_or(|c| *c.status != *"False") {
                condition["lastTransitionTime"] = json!(format!("{now:.0}"));
            }
            status["conditions"] = json!([condition]);
        }
    }
    if let Nomination::Set(node) = nomination
        && *node != pod.nominated
    {
        status["nominatedNodeName"] = if node.is_empty() { Value::Null } else { json!(&**node) };
    }
    let is_empty = status.as_object().is_none_or(serde_json::Map::is_empty);
    (!is_empty).then(|| json!({"metadata": {"uid": &*pod.uid}, "status": status}))
}

/// Sends it, and again where the server was only busy.
pub(crate) async fn send(client: &Client, pod: &Pod, patch: &Value) -> Result<(), ClientError> {
    let path = format!("/api/v1/namespaces/{}/pods/{}/status", pod.key.namespace, pod.key.name);
    let mut pause = FIRST_PAUSE;
    for left in (0..TRIES).rev() {
        let request = Request::strategic_patch(path.clone(), patch.to_string());
        match client.ask_bytes(request).await {
            Err(error) if left > 0 && is_passing(&error) => tokio::time::sleep(pause).await,
            other => return other.map(|_| ()),
        }
        pause *= 5;
    }
    Ok(())
}

fn is_passing(error: &ClientError) -> bool {
    error.code().is_none_or(|code| matches!(code, 409 | 500 | 503))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn pod(status: Value) -> Pod {
        let object = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u", "generation": 2}, "spec": {"containers": []}, "status": status});
        Pod::read(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn only_what_changed_is_written() {
        let verdict = Verdict { reason: "Unschedulable", message: "m".to_owned() };
        let now = Timestamp::UNIX_EPOCH;
        let new = patch(&pod(json!({})), Some(&verdict), &Nomination::Keep, now).unwrap();
        assert_eq!(
            new,
            json!({"metadata": {"uid": "u"}, "status": {"conditions": [{"type": "PodScheduled", "status": "False",
                "reason": "Unschedulable", "message": "m", "observedGeneration": 2, "lastProbeTime": null,
                "lastTransitionTime": "1970-01-01T00:00:00Z"}]}})
        );
        let told = json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "m", "observedGeneration": 2}]});
        assert_eq!(patch(&pod(told.clone()), Some(&verdict), &Nomination::Keep, now), None);
        let other = Verdict { message: "other".to_owned(), ..verdict.clone() };
        let again = patch(&pod(told.clone()), Some(&other), &Nomination::Keep, now).unwrap();
        assert_eq!(again["status"]["conditions"][0].get("lastTransitionTime"), None);
        let nominated = patch(&pod(told), Some(&verdict), &Nomination::Set("node".into()), now).unwrap();
        assert_eq!(nominated["status"], json!({"nominatedNodeName": "node"}));
        let cleared =
            patch(&pod(json!({"nominatedNodeName": "node"})), None, &Nomination::Set("".into()), now)
                .unwrap();
        assert_eq!(cleared["status"], json!({"nominatedNodeName": null}));
    }
}
