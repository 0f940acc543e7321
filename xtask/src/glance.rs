//! What a person wants to know about a Pod at a glance.

use std::fmt::Write as _;

use fixture::{Agent, Doing, Node, Result};
use serde_json::Value;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Glance {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) phase: String,
    pub(crate) ready: bool,
    pub(crate) ip: String,
    pub(crate) restarts: u64,
    /// Why containers wait, if some do.
    pub(crate) waiting: Vec<String>,
}

/// The Pods as the agent's read-only server tells them, in order of their names.
pub(crate) fn pods(node: &Node, agent: &Agent) -> Result<Vec<Glance>> {
    let body = agent.get(node, "/pods")?;
    let list: Value = serde_json::from_slice(&body).doing(|| "reading the list of Pods".into())?;
    let mut pods: Vec<Glance> =
        list["items"].as_array().into_iter().flatten().map(Glance::from_pod).collect();
    pods.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(pods)
}

// === impl Glance ===

impl Glance {
    fn from_pod(pod: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let status = &pod["status"];
        let containers = ["initContainerStatuses", "containerStatuses"];
        let containers: Vec<&Value> =
            containers.iter().flat_map(|kind| status[kind].as_array().into_iter().flatten()).collect();
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let waiting = containers.iter().filter(|c| c["state"]["waiting"].is_object());
        Glance {
            name: text(&pod["metadata"]["name"]),
            namespace: text(&pod["metadata"]["namespace"]),
            phase: text(&status["phase"]),
            ready: conditions.clone().any(|c| c["type"] == "Ready" && c["status"] == "True"),
            ip: text(&status["podIP"]),
            restarts: containers.iter().filter_map(|c| c["restartCount"].as_u64()).sum(),
            waiting: waiting
                .map(|c| format!("{}: {}", text(&c["name"]), text(&c["state"]["waiting"]["reason"])))
                .collect(),
        }
    }

    /// One line, without the name.
    pub(crate) fn words(&self) -> String {
        let mut words = match (self.phase.as_str(), self.ready) {
            ("", _) => "not seen by the runtime yet".to_owned(),
            (phase, true) => format!("{phase}, Ready"),
            (phase, false) => phase.to_owned(),
        };
        if !self.waiting.is_empty() {
            let _ = write!(words, " ({})", self.waiting.join(", "));
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_read_at_a_glance() {
        let pod = json!({
            "metadata": { "name": "web-demo" },
            "status": {
                "phase": "Pending", "podIP": "10.0.0.2",
                "conditions": [{ "type": "Ready", "status": "False" }, { "type": "Initialized", "status": "True" }],
                "initContainerStatuses": [{ "name": "a", "restartCount": 2, "state": { "terminated": {} } }],
                "containerStatuses": [{ "name": "b", "restartCount": 1, "state": { "waiting": { "reason": "Slow" } } }],
            }
        });
        let glance = Glance::from_pod(&pod);
        assert_eq!((glance.restarts, glance.ready), (3, false));
        assert_eq!(glance.words(), "Pending (b: Slow)");
        assert_eq!(Glance::from_pod(&json!({})).words(), "not seen by the runtime yet");
    }
}
