//! What upstream's scheduler answered, step by step, beside what we answer: the same nodes that fit with the same scores, or the
//! same sentence. Among nodes with equal scores either may choose.
//!
//! A case is `{"seed", "nodes", "steps": [{"storage"?, "pod", "answer"}]}`. An answer is `{"node", "scores"?}`, where scores are
//! there if more than one node fits, or `{"message"}`. `storage` is what has changed since the step before.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::rng::Rng;
use scheduler_core::cluster::Cluster;
use scheduler_core::cycle::{Cycle, Found, Sampling};
use scheduler_core::node::Node;
use scheduler_core::objects::{Claim, CsiNode, StorageClass, Volume};
use scheduler_core::pod::Pod;
use scheduler_core::preemption::{Preemption, post_filter};
use scheduler_core::profile::Profile;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// How many questions a case has, and those that were answered in another way.
pub(crate) fn compare(case: &Value) -> (usize, Vec<Value>) {
    let mut cluster = Cluster::default();
    cluster.namespaces.insert("default".into(), Default::default());
    for node in list(&case["nodes"]) {
        cluster.set_node(Node::read(&read(node)));
    }
    let (mut asked, mut wrong) = (0, Vec::new());
    for step in list(&case["steps"]) {
        take_storage(&mut cluster, &step["storage"]);
        let (pod, told) = (Pod::read(&read(&step["pod"])), &step["answer"]);
        let ours = answer(&mut cluster, &pod);
        asked += 1;
        if !is_same(&ours, told) {
            let name = &step["pod"]["metadata"]["name"];
            wrong.push(json!({"seed": case["seed"], "pod": name, "upstream": told, "ours": ours}));
        }
        // Upstream's choice stands, so that the next question is the same one.
        if let Some(node) = told["node"].as_str() {
            cluster.set_pod(pod.on(node));
        }
    }
    (asked, wrong)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn read<T: DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

fn take_storage(cluster: &mut Cluster, objects: &Value) {
    let storage = &mut cluster.storage;
    for object in list(&objects["classes"]) {
        let class = StorageClass::read(&read(object));
        storage.classes.insert(class.name.clone(), Arc::new(class));
    }
    for object in list(&objects["volumes"]) {
        storage.set_volume(Volume::read(&read(object)));
    }
    for object in list(&objects["claims"]) {
        storage.set_claim(Claim::read(&read(object)));
    }
    for object in list(&objects["csinodes"]) {
        let node = CsiNode::read(&read(object));
        storage.csi_nodes.insert(node.name.clone(), Arc::new(node));
    }
}

/// In the shape of upstream's: `best` are the nodes we would choose from.
fn answer(cluster: &mut Cluster, pod: &Pod) -> Value {
    let profile = Arc::new(Profile::default());
    let (cycle, found) = Cycle::find(&profile, cluster, &Arc::new(pod.clone()), &mut Sampling::default());
    let Found::Nodes { feasible, mut diagnosis, .. } = found else {
        return json!({"error": format!("{found:?}")});
    };
    if feasible.is_empty() {
        if let Preemption::Nothing { message, .. } =
            post_filter(&cycle, cluster, &diagnosis, &mut Rng::new(1))
        {
            diagnosis.post_filter = message;
        }
        return json!({"message": diagnosis.message()});
    }
    let name = |node: &usize| cluster.info(*node).name().to_owned();
    if let [node] = feasible.as_slice() {
        return json!({"best": [name(node)]});
    }
    let scores = cycle.score(cluster, &feasible).unwrap();
    let most = scores.iter().max().copied().unwrap();
    let all: BTreeMap<String, i64> = feasible.iter().map(name).zip(scores).collect();
    let best: Vec<&String> = all.iter().filter(|(_, score)| **score == most).map(|(name, _)| name).collect();
    json!({"best": best, "scores": all})
}

fn is_same(ours: &Value, told: &Value) -> bool {
    match told["node"].as_str() {
        Some(node) => list(&ours["best"]).any(|best| best == node) && ours["scores"] == told["scores"],
        None => ours["message"] == told["message"],
    }
}
