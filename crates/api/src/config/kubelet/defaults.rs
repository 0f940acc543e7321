//! Defaults that depend on other fields, and the two baselines.

use serde_json::{Map, Value, json};

use super::fields::{self, FIELDS};
use crate::config::doc::{self, Default as D};
use crate::config::gates::Gates;

/// Hard eviction thresholds of a configuration file that names none.
pub const EVICTION_HARD: &[(&str, &str)] = &[
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
];

/// What upstream's flags default to, older and more open than the file's defaults.
const LEGACY: &[(&str, D)] = &[
    ("authentication.anonymous.enabled", D::Bool(true)),
    ("authentication.webhook.enabled", D::Bool(false)),
    ("authorization.mode", D::Text("AlwaysAllow")),
    ("readOnlyPort", D::Int(10255)),
];

/// Fills every unset field.
pub(super) fn fill(doc: &mut Map<String, Value>) {
    let gates = chosen_gates(doc);
    let unset = |doc: &Map<String, Value>, path: &str| {
        fields::find(path).is_some_and(|f| f.is_unset(doc::get(doc, path)))
    };
    if unset(doc, "nodeStatusReportFrequency") && !unset(doc, "nodeStatusUpdateFrequency") {
        let update = doc::get(doc, "nodeStatusUpdateFrequency").cloned();
        doc::set(doc, "nodeStatusReportFrequency", update.unwrap_or_default());
    }
    if unset(doc, "serializeImagePulls") {
        let parallel = doc::get(doc, "maxParallelImagePulls").and_then(Value::as_i64);
        doc::set(doc, "serializeImagePulls", json!(parallel.is_none_or(|n| n < 2)));
    }
    if doc::get(doc, "podPidsLimit").and_then(Value::as_i64).is_some_and(|n| n < 0) {
        doc::set(doc, "podPidsLimit", json!(-1));
    }
    let gated = [
        ("crashLoopBackOff.maxContainerRestartPeriod", "KubeletCrashLoopBackOffMax"),
        ("imagePullCredentialsVerificationPolicy", "KubeletEnsureSecretPulledImages"),
    ];
    let closed: Vec<&str> = gated
        .into_iter()
        .filter(|(path, gate)| !gates.enabled(gate) && unset(doc, path))
        .map(|(path, _)| path)
        .collect();
    doc::fill_defaults(FIELDS, doc);
    for path in closed {
        doc::set(doc, path, Value::Null);
    }
}

/// Fills the built-in hard thresholds; only a configuration file calls for them.
pub(super) fn fill_eviction_hard(doc: &mut Map<String, Value>) {
    let built_in = || EVICTION_HARD.iter().map(|(k, v)| ((*k).to_owned(), json!(v)));
    let merge = doc.get("mergeDefaultEvictionSettings") == Some(&Value::Bool(true));
    match doc.get_mut("evictionHard") {
        Some(Value::Object(own)) if merge => {
            for (signal, value) in built_in() {
                own.entry(signal).or_insert(value);
            }
        }
        Some(Value::Object(_)) => {}
        _ => {
            doc.insert("evictionHard".into(), Value::Object(built_in().collect()));
        }
    }
}

/// The baseline without a configuration file.
pub(super) fn legacy() -> Map<String, Value> {
    let mut doc = Map::new();
    fill(&mut doc);
    for (path, value) in LEGACY {
        doc::set(&mut doc, path, value.value().unwrap_or_default());
    }
    doc
}

/// The gates a document asks for; mistakes in them are reported by validation.
pub(super) fn chosen_gates(doc: &Map<String, Value>) -> Gates {
    let map = doc
        .get("featureGates")
        .and_then(Value::as_object)
        .map(|gates| {
            let on = |(k, v): (&String, &Value)| Some((k.clone(), v.as_bool()?));
            gates.iter().filter_map(on).collect()
        })
        .unwrap_or_default();
    Gates::choose(&map).0
}
