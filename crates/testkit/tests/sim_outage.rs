//! An API server that is away for hours, under paused time: nothing that runs suffers, and when it is back it hears
//! everything in one sweep, from a node that does not shout.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::time::Clock;
use http::Method;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kubelet_core::pod::{Report, Reported, report};
use testkit::sim::pods::{container, pod};
use testkit::sim::{Agent, Weather, World, pass};

const PODS: usize = 30;
const AWAY: Duration = Duration::from_secs(6 * 3600);

fn play<T>(story: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(story)
}

fn name(n: usize) -> String {
    format!("p{n}")
}

fn simple(n: usize) -> Arc<Pod> {
    let containers = vec![container("c0")];
    pod(&name(n), 1, PodSpec { containers, termination_grace_period_seconds: Some(5), ..Default::default() })
}

/// A world with its Pods made and told of.
async fn settled() -> (World, Agent) {
    let world = World::new(1);
    (0..PODS).for_each(|n| world.api.create(&simple(n)));
    let agent = world.boot_in_cluster();
    pass(Duration::from_secs(60)).await;
    assert_eq!(behind(&world, &agent), Vec::<String>::new());
    (world, agent)
}

/// Pods of which the API server believes something else than the board says.
fn behind(world: &World, agent: &Agent) -> Vec<String> {
    let differs = |pod: &Pod| {
        let uid = pod.metadata.uid.clone().unwrap();
        let Some(entry) = agent.board.get(&uid) else { return true };
        let status = pod.status.clone().unwrap();
        let known = Reported { uid: &uid, status: &status, is_deleting: false, is_mirror: false };
        report(&known, &entry.status, entry.finished) != Report::Nothing
    };
    world.api.pods().iter().filter(|p| differs(p)).map(|p| p.metadata.name.clone().unwrap()).collect()
}

fn part(world: &World, partition: bool) {
    world.api.set_weather(Weather { partition, ..Weather::default() });
}

#[test]
fn hours_without_an_api_server_are_caught_up_with_in_one_sweep() {
    play(async {
        let (world, agent) = settled().await;
        let before = world.api.record();
        part(&world, true);
        pass(AWAY / 2).await;
        for n in 0..PODS {
            assert!(world.runtime.is_running(&name(n), "c0"), "p{n} suffers");
            // What happens to them meanwhile is the kubelet's business alone.
            if n % 2 == 0 {
                world.runtime.crash(&name(n), "c0", 1, "Error");
            }
        }
        world.clock.jump(-3 * 3600);
        pass(AWAY / 2).await;
        let record = world.api.record();
        assert_eq!(record.requests.len(), before.requests.len(), "nobody gets through");
        let dials = record.dials.len() - before.dials.len();
        assert!(dials < 6 * 3600 / 4, "the door was knocked at {dials} times in six hours");
        assert_eq!(behind(&world, &agent).len(), PODS / 2);

        part(&world, false);
        let back = world.clock.now().mono.0;
        pass(Duration::from_secs(45)).await;
        assert_eq!(behind(&world, &agent), Vec::<String>::new());
        let mut patches: BTreeMap<String, usize> = BTreeMap::new();
        let fresh = world.api.record().requests.into_iter().filter(|(at, ..)| *at >= back);
        let mut seconds: BTreeMap<u64, usize> = BTreeMap::new();
        for (at, method, path) in fresh {
            *seconds.entry(at.as_secs()).or_default() += 1;
            if method == Method::PATCH && path.ends_with("/status") {
                *patches.entry(path).or_default() += 1;
            }
        }
        assert_eq!(patches.len(), PODS / 2, "{patches:?}");
        assert!(patches.values().all(|n| *n == 1), "one word for each: {patches:?}");
        assert!(seconds.values().all(|n| *n <= 100), "a herd: {seconds:?}");
        for n in 0..PODS {
            let starts = world.runtime.journal().starts(&name(n), "c0");
            assert_eq!(starts, if n % 2 == 0 { 2 } else { 1 }, "p{n}");
        }
    });
}

#[test]
fn what_was_deleted_meanwhile_ends_and_what_was_made_begins() {
    play(async {
        let (world, agent) = settled().await;
        part(&world, true);
        pass(Duration::from_secs(60)).await;
        world.api.delete("p0", None);
        world.api.delete("p1", Some(0));
        world.api.create(&simple(PODS));
        world.api.compact();
        pass(AWAY).await;
        assert!(world.runtime.is_running("p0", "c0") && world.runtime.is_running("p1", "c0"));
        part(&world, false);
        pass(Duration::from_secs(60)).await;
        let names: Vec<String> = world.api.pods().iter().map(|p| p.metadata.name.clone().unwrap()).collect();
        assert!(!names.contains(&"p0".to_owned()) && !names.contains(&"p1".to_owned()), "{names:?}");
        assert!(!world.runtime.is_running("p1", "c0"));
        assert!(world.runtime.is_running(&name(PODS), "c0"));
        assert_eq!(behind(&world, &agent), Vec::<String>::new());
    });
}

#[test]
fn a_node_that_starts_during_an_outage_leaves_what_runs_alone() {
    play(async {
        let (world, agent) = settled().await;
        part(&world, true);
        agent.crash();
        let agent = world.boot_in_cluster();
        pass(AWAY).await;
        for n in 0..PODS {
            assert!(world.runtime.is_running(&name(n), "c0"), "p{n} was ended although nobody said so");
        }
        part(&world, false);
        let requests = world.api.record().requests.len();
        pass(Duration::from_secs(60)).await;
        assert_eq!(behind(&world, &agent), Vec::<String>::new());
        let fresh = &world.api.record().requests[requests..];
        let writes =
            fresh.iter().filter(|(_, method, path)| method == Method::PATCH && path.ends_with("/status"));
        assert_eq!(writes.count(), 0, "everything is as it was told before");
        assert!((0..PODS).all(|n| world.runtime.journal().starts(&name(n), "c0") == 1));
    });
}
