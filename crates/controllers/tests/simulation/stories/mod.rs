//! What is asked for, what may never be seen on the way, and how it has to end.

mod attached;
mod daemons;
mod jobs;
mod ordered;
mod rollout;

use base::rng::Rng;
use serde_json::{Value, json};

use crate::cluster::Story;
use crate::server::Store;
use controllers_core::resource::PODS;

/// The story of a seed, and what to call it.
pub(crate) fn of(seed: u64, rng: &mut Rng) -> (&'static str, Box<dyn Story>) {
    match seed % 5 {
        0 => ("rollout", Box::new(rollout::Rollout::new(rng))),
        1 => ("stateful set", Box::new(ordered::Ordered::new(rng))),
        2 => ("job", Box::new(jobs::Work::new(rng))),
        3 => ("daemon set", Box::new(daemons::Daemons::new(rng))),
        _ => ("attached volume", Box::new(attached::Attached::new(rng))),
    }
}

fn template(version: usize) -> Value {
    json!({"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": format!("v{version}")}]}})
}

fn is_deleting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

fn is_ready(pod: &Value) -> bool {
    pod["status"]["conditions"][0]["status"] == "True"
}

fn image(pod: &Value) -> &str {
    pod["spec"]["containers"][0]["image"].as_str().unwrap_or_default()
}

fn is_owned_by(object: &Value, owner: &Value) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array();
    owners.into_iter().flatten().any(|one| one["uid"] == owner["metadata"]["uid"])
}

/// Starts a Pod: bound, running and ready in one.
fn start(store: &mut Store, name: &str, node: &str) {
    let time = store.time();
    let node = node.to_owned();
    store.change(PODS, name, |pod| {
        pod["spec"]["nodeName"] = json!(node);
        pod["status"] = json!({"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": time}]});
    });
}

/// The containers of a Pod that is deleted have ended; it goes unless somebody holds it.
fn end_deleted(store: &mut Store, name: &str) {
    let pod = store.get(PODS, name);
    if !is_deleting(pod) || pod["metadata"]["deletionGracePeriodSeconds"] == 0 {
        return;
    }
    store.change(PODS, name, |pod| {
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(0);
        if pod["status"]["phase"] == "Running" {
            pod["status"]["phase"] = json!("Failed");
            pod["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
        }
    });
}

/// A few Pods at a time do what Pods do next.
fn some(store: &Store, rng: &mut Rng) -> Vec<String> {
    store.names(PODS).into_iter().filter(|_| rng.chance(0.5)).collect()
}

fn equal(what: &str, got: &Value, want: i64) -> Result<(), String> {
    match got.as_i64().unwrap_or(0) == want {
        true => Ok(()),
        false => Err(format!("{what} is {got}, not {want}")),
    }
}

fn is_observed(object: &Value) -> Result<(), String> {
    match object["status"]["observedGeneration"] == object["metadata"]["generation"] {
        true => Ok(()),
        false => Err("the generation is not observed".to_owned()),
    }
}
