//! What upstream's kube-scheduler v1.36.4 answered for random clusters, one Pod after the other, beside what we answer.
//!
//! `upstream.json` was recorded on our API server with upstream's scheduler: nodes with taints, images and odd sizes; Pods with
//! selectors, tolerations, host ports, affinities and spreads. A node that upstream chose must be among our best ones; a
//! refusal must be the same, word for word.
#![allow(clippy::unwrap_used)]

mod answers;

use std::sync::Arc;

use base::rng::Rng;
use scheduler_core::cluster::Cluster;
use scheduler_core::cycle::{Cycle, Found, Sampling};
use scheduler_core::node::Node;
use scheduler_core::pod::Pod;
use scheduler_core::preemption::{Preemption, post_filter};
use scheduler_core::profile::Profile;
use serde_json::{Value, json};

fn read_pod(object: &Value) -> Pod {
    let mut object = object.clone();
    object["metadata"]["uid"] = object["metadata"]["name"].clone();
    Pod::read(&serde_json::from_value(object).unwrap())
}

/// All nodes that are as good as the best, or the sentence.
fn answer(cluster: &mut Cluster, pod: &Pod) -> Result<Vec<String>, String> {
    let profile = Arc::new(Profile::default());
    let (cycle, found) = Cycle::find(&profile, cluster, &Arc::new(pod.clone()), &mut Sampling::default());
    let Found::Nodes { feasible, mut diagnosis, .. } = found else { panic!("{found:?}") };
    if feasible.is_empty() {
        if let Preemption::Nothing { message, .. } =
            post_filter(&cycle, cluster, &diagnosis, &mut Rng::new(1))
        {
            diagnosis.post_filter = message;
        }
        return Err(diagnosis.message());
    }
    let scores = cycle.score(cluster, &feasible).unwrap();
    let best = scores.iter().max().copied().unwrap();
    let is_best = feasible.iter().zip(&scores).filter(|(_, score)| **score == best || feasible.len() == 1);
    Ok(is_best.map(|(node, _)| cluster.info(*node).name().to_owned()).collect())
}

#[test]
fn upstreams_answers_are_ours() {
    let cases: Value = serde_json::from_str(include_str!("upstream.json")).unwrap();
    let (mut asked, mut wrong) = (0, Vec::new());
    for case in cases.as_array().unwrap() {
        let mut cluster = Cluster::default();
        cluster.namespaces.insert("default".into(), Default::default());
        for node in case["nodes"].as_array().unwrap() {
            cluster.set_node(Node::read(&serde_json::from_value(node.clone()).unwrap()));
        }
        for (object, told) in case["pods"].as_array().unwrap().iter().zip(case["answers"].as_array().unwrap())
        {
            asked += 1;
            let pod = read_pod(object);
            let ours = answer(&mut cluster, &pod);
            let is_same = match (&ours, told["node"].as_str(), told["message"].as_str()) {
                (Ok(best), Some(node), _) => best.iter().any(|n| n == node),
                (Err(message), None, Some(said)) => message == said,
                _ => false,
            };
            if !is_same {
                wrong.push(json!({"seed": case["seed"], "pod": object["metadata"]["name"], "upstream": told, "ours": format!("{ours:?}")}));
            }
            // Upstream's choice stands, so that the next question is the same one.
            if let Some(node) = told["node"].as_str() {
                cluster.set_pod(pod.on(node));
            }
        }
    }
    assert!(asked > 500, "{asked}");
    assert!(wrong.is_empty(), "{} of {asked}: {:#?}", wrong.len(), &wrong[..wrong.len().min(8)]);
}

/// Recorded by `crates/testkit/tests/scheduler_beside_upstream.rs`, or as it does: with volumes, and with the score of every node.
#[test]
fn upstreams_scores_are_ours() {
    let cases: Value = serde_json::from_str(include_str!("upstream_scores.json")).unwrap();
    let (mut asked, mut wrong) = (0, Vec::new());
    for case in cases.as_array().unwrap() {
        let (count, different) = answers::compare(case);
        asked += count;
        wrong.extend(different);
    }
    assert_eq!(asked, 240);
    assert!(wrong.is_empty(), "{} of {asked}: {:#?}", wrong.len(), &wrong[..wrong.len().min(8)]);
}
