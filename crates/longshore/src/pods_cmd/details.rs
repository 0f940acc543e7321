//! One Pod at length.

use api::json::ToJson;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kubelet::server::local_api::EventLine;
use serde_json::{Value, json};

use super::row::since;
use super::table;

/// The row, then conditions, containers and what happened.
pub(super) fn wide(pod: &Pod, events: &[EventLine], now: Timestamp) -> String {
    let mut out = table::render(std::slice::from_ref(pod), true, now);
    let status = pod.status.clone().unwrap_or_default();
    if let Some(message) = status.message.as_deref().filter(|m| !m.is_empty()) {
        out.push_str(&format!("\nMessage: {message}\n"));
    }
    let conditions = status.conditions.unwrap_or_default();
    if !conditions.is_empty() {
        out.push_str("\nConditions:\n");
    }
    for c in conditions {
        let why = [c.reason, c.message].into_iter().flatten().filter(|t| !t.is_empty()).collect::<Vec<_>>();
        let line = format!("  {:<28}{:<8}{}", c.type_, c.status, why.join(": "));
        out.push_str(line.trim_end());
        out.push('\n');
    }
    let lists = [
        ("Init containers", status.init_container_statuses),
        ("Containers", status.container_statuses),
        ("Ephemeral containers", status.ephemeral_container_statuses),
    ];
    for (title, list) in lists {
        let list = list.unwrap_or_default();
        if !list.is_empty() {
            out.push_str(&format!("\n{title}:\n"));
        }
        list.iter().for_each(|c| container(&mut out, c, now));
    }
    out.push_str("\nEvents:\n");
    if events.is_empty() {
        out.push_str("  <none>\n");
    }
    events.iter().for_each(|e| out.push_str(&format!("  {}\n", event(e, now))));
    out
}

fn container(out: &mut String, c: &ContainerStatus, now: Timestamp) {
    out.push_str(&format!(
        "  {}  image {}, ready {}, restarts {}\n",
        c.name, c.image, c.ready, c.restart_count
    ));
    let states = [("", &c.state), ("last ", &c.last_state)];
    for (word, state) in states {
        if let Some(text) = state.as_ref().and_then(|s| told(s, now)) {
            out.push_str(&format!("    {word}{text}\n"));
        }
    }
}

fn told(state: &ContainerState, now: Timestamp) -> Option<String> {
    let ago = |at: &Option<Time>| at.as_ref().map(|t| format!(" {} ago", since(t, now))).unwrap_or_default();
    let because = |reason: &Option<String>, message: &Option<String>| {
        let parts: Vec<&str> =
            [reason, message].into_iter().flatten().map(|t| t.trim()).filter(|t| !t.is_empty()).collect();
        parts.join(": ")
    };
    if let Some(w) = &state.waiting {
        Some(format!("waiting: {}", because(&w.reason, &w.message)))
    } else if let Some(t) = &state.terminated {
        let why = because(&t.reason, &t.message);
        Some(format!("terminated with exit code {}{}: {why}", t.exit_code, ago(&t.finished_at)))
    } else {
        state.running.as_ref().map(|r| format!("running since{}", ago(&r.started_at)))
    }
}

fn event(e: &EventLine, now: Timestamp) -> String {
    let at = Timestamp::from_second(e.last_seconds).unwrap_or(now);
    let times = if e.count > 1 { format!(" (x{})", e.count) } else { String::new() };
    let age = format!("{}{times}", since(&Time(at), now));
    let message = e.message.replace('\n', " ");
    let place = if e.field_path.is_empty() { String::new() } else { format!("{}  ", e.field_path) };
    format!("{age:<12} {:<8} {:<22} {place}{message}", e.kind, e.reason)
}

/// The Pod; its events follow as comments, so that the text can still be applied.
pub(super) fn yaml(pod: &Pod, events: &[EventLine], now: Timestamp) -> String {
    let mut out = api::yaml::from_value_to_yaml(&pod.to_value());
    if !events.is_empty() {
        out.push_str("# events:\n");
    }
    events.iter().for_each(|e| out.push_str(&format!("#   {}\n", event(e, now))));
    out
}

pub(super) fn yaml_list(pods: &[Pod]) -> String {
    api::yaml::from_value_to_yaml(&list(pods))
}

pub(super) fn json(pod: &Pod) -> String {
    pretty(&pod.to_value())
}

pub(super) fn json_list(pods: &[Pod]) -> String {
    pretty(&list(pods))
}

fn list(pods: &[Pod]) -> Value {
    let items: Vec<Value> = pods.iter().map(ToJson::to_value).collect();
    json!({"apiVersion": "v1", "kind": "PodList", "items": items})
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}
