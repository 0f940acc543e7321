//! What holds for every cluster and every order of Pods.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::Arc;

use base::rng::Rng;
use scheduler_core::cluster::Cluster;
use scheduler_core::cycle::{Cycle, Found, Sampling};
use scheduler_core::node::Node;
use scheduler_core::pod::Pod;
use scheduler_core::profile::Profile;
use serde_json::json;

fn node(i: u64, rng: &mut Rng) -> Node {
    let allocatable = json!({
        "cpu": (1 + rng.below(8)).to_string(), "memory": format!("{}Gi", 1 + rng.below(8)),
        "pods": (1 + rng.below(12)).to_string(), "example.com/gpu": rng.below(3).to_string(),
    });
    let object = json!({"metadata": {"name": format!("n{i}"), "labels": {"zone": rng.below(3).to_string()}}, "status": {"allocatable": allocatable}});
    Node::read(&serde_json::from_value(object).unwrap())
}

fn pod(i: u64, rng: &mut Rng) -> Pod {
    let mut requests =
        json!({"cpu": format!("{}m", rng.below(2000)), "memory": format!("{}Mi", rng.below(2048))});
    if rng.chance(0.2) {
        requests["example.com/gpu"] = json!("1");
    }
    let object = json!({
        "metadata": {"name": format!("p{i}"), "namespace": "default", "uid": format!("p{i}")},
        "spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]},
    });
    Pod::read(&serde_json::from_value(object).unwrap())
}

/// A node takes what it has and no more; a choice is among the best; what is forgotten leaves nothing behind.
#[test]
fn no_node_is_ever_given_more_than_it_has() {
    let profile = Arc::new(Profile::default());
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let (mut cluster, mut sampling) = (Cluster::default(), Sampling::default());
        for i in 0..1 + rng.below(9) {
            cluster.set_node(node(i, &mut rng));
        }
        let mut placed = Vec::new();
        for i in 0..80 {
            let pod = Arc::new(pod(i, &mut rng));
            let (cycle, found) = Cycle::find(&profile, &mut cluster, &pod, &mut sampling);
            let Found::Nodes { feasible, diagnosis, .. } = found else { panic!("{found:?}") };
            if feasible.is_empty() {
                assert_eq!(diagnosis.statuses.len(), cluster.node_count(), "every node says why not");
                if let Some(gone) = placed.pop() {
                    cluster.forget(&gone).unwrap();
                }
                continue;
            }
            let scores = cycle.score(&cluster, &feasible).unwrap();
            let choice = cycle.choose(&cluster, &feasible, &HashMap::new(), &mut rng).unwrap().unwrap();
            let at = feasible.iter().position(|n| *n == choice.node).unwrap();
            assert!(feasible.len() == 1 || scores[at] == *scores.iter().max().unwrap(), "seed {seed}");
            let name = cluster.info(choice.node).name().to_owned();
            cluster.assume(pod.on(&name));
            placed.push(pod.uid.clone());
            for info in cluster.infos() {
                let (has, taken) = (&info.node.as_ref().unwrap().allocatable, &info.requested);
                assert!(taken.milli_cpu <= has.milli_cpu && taken.memory <= has.memory, "seed {seed}");
                assert!(taken.scalar("example.com/gpu") <= has.scalar("example.com/gpu"), "seed {seed}");
                assert!(info.pods.len() as i64 <= info.node.as_ref().unwrap().allowed_pods, "seed {seed}");
            }
        }
        for uid in placed {
            cluster.forget(&uid).unwrap();
        }
        assert!(
            cluster
                .infos()
                .iter()
                .all(|i| i.pods.is_empty() && i.requested.milli_cpu == 0 && i.classes.is_empty())
        );
        assert!(cluster.classes.is_empty());
    }
}
