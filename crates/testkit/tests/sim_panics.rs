//! Helpers of the kubelet's loops that panic, under paused time: the Pod they worked for is not forgotten.
#![allow(clippy::unwrap_used)]

mod stories;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use client::{Client, Meter, Options};
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kubelet_core::pod::{Report, Reported, report};
use testkit::sim::pods::{container, pod};
use testkit::sim::{Agent, World, pass};

use stories::play;

/// Makes whoever sends a request of one method panic, for as long as it is armed.
#[derive(Clone, Default)]
struct Trap {
    armed: Arc<AtomicBool>,
    sprung: Arc<AtomicU32>,
}

// === impl Trap ===

impl Trap {
    fn client(&self, world: &World, method: &'static str) -> Client {
        let trap = self.clone();
        let meter = Meter::new(move |asked| {
            if asked.method == method && trap.armed.load(Ordering::Relaxed) {
                trap.sprung.fetch_add(1, Ordering::Relaxed);
                panic!("as a bug would");
            }
        });
        world.api.client().again(Options { meter: Some(meter), ..Options::default() })
    }

    /// Lets the time pass with the trap armed.
    async fn pass(&self, time: Duration) {
        self.armed.store(true, Ordering::Relaxed);
        pass(time).await;
        self.armed.store(false, Ordering::Relaxed);
    }

    fn was_sprung(&self) -> bool {
        self.sprung.load(Ordering::Relaxed) > 0
    }
}

fn spec() -> PodSpec {
    PodSpec {
        containers: vec![container("c0")],
        termination_grace_period_seconds: Some(5),
        ..Default::default()
    }
}

/// Pods of which the API server believes something else than the board says.
fn behind(world: &World, agent: &Agent) -> Vec<String> {
    let differs = |pod: &Pod| {
        let uid = pod.metadata.uid.clone().unwrap();
        let Some(entry) = agent.board.get(&uid) else { return true };
        let status = pod.status.clone().unwrap_or_default();
        let known = Reported { uid: &uid, status: &status, is_deleting: false, is_mirror: false };
        report(&known, &entry.status, entry.finished) != Report::Nothing
    };
    world.api.pods().iter().filter(|p| differs(p)).map(|p| p.metadata.name.clone().unwrap()).collect()
}

#[test]
fn a_pod_is_told_of_although_telling_of_it_panicked() {
    play(async {
        let (world, trap) = (World::new(1), Trap::default());
        ["p0", "p1"].iter().for_each(|name| world.api.create(&pod(name, 1, spec())));
        let agent = world.boot_in_cluster_by(trap.client(&world, "PATCH"));
        pass(Duration::from_secs(60)).await;
        assert_eq!(behind(&world, &agent), Vec::<String>::new());
        world.runtime.crash("p0", "c0", 1, "Error");
        trap.pass(Duration::from_secs(5)).await;
        assert!(trap.was_sprung(), "nobody told of p0");
        world.runtime.crash("p0", "c0", 2, "Error");
        world.runtime.crash("p1", "c0", 2, "Error");
        pass(Duration::from_secs(120)).await;
        assert_eq!(behind(&world, &agent), Vec::<String>::new());
    });
}

#[test]
fn a_pod_is_answered_although_the_question_for_the_nodes_labels_panicked() {
    play(async {
        let (world, trap) = (World::new(1), Trap::default());
        let agent = world.boot_in_cluster_by(trap.client(&world, "GET"));
        pass(Duration::from_secs(60)).await;
        let selector = BTreeMap::from([("somewhere".to_owned(), "else".to_owned())]);
        let choosy = pod("choosy", 1, PodSpec { node_selector: Some(selector), ..spec() });
        let uid = choosy.metadata.uid.clone().unwrap();
        world.api.create(&choosy);
        trap.pass(Duration::from_secs(5)).await;
        assert!(trap.was_sprung(), "nobody asked for the node");
        pass(Duration::from_secs(10)).await;
        assert_eq!(agent.phase(&uid), "Failed", "its labels were asked for, and it was refused for them");
    });
}
