//! Pods whose objects are odd, or cannot be read at all, under paused time: nothing is stopped because of it, deletion
//! counts, and the others notice nothing.
#![allow(clippy::unwrap_used)]

mod stories;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use serde_json::{Value, json};
use testkit::sim::pods::{container, pod};
use testkit::sim::{Agent, World, pass};

use stories::play;

const PODS: usize = 4;

fn simple(n: usize) -> Arc<Pod> {
    let containers = vec![container("c0")];
    let name = format!("p{n}");
    pod(&name, 1, PodSpec { containers, termination_grace_period_seconds: Some(5), ..Default::default() })
}

async fn settled() -> (World, Agent) {
    let world = World::new(1);
    (0..PODS).for_each(|n| world.api.create(&simple(n)));
    let agent = world.boot_in_cluster();
    pass(Duration::from_secs(60)).await;
    all_run(&world);
    (world, agent)
}

fn all_run(world: &World) {
    for n in 0..PODS {
        let name = format!("p{n}");
        assert!(world.runtime.is_running(&name, "c0"), "{name} does not run");
        assert_eq!(world.runtime.journal().starts(&name, "c0"), 1, "{name} was started again");
    }
}

/// A kubelet that begins anew with what the server has now.
async fn restarted(world: &World, agent: Agent) -> Agent {
    drop(agent);
    let agent = world.boot_in_cluster();
    pass(Duration::from_secs(150)).await;
    agent
}

/// The server forgets its history, so that everything is listed again.
async fn listed_again(world: &World) {
    world.api.compact();
    world.api.cut();
    pass(Duration::from_secs(60)).await;
}

/// Deletes p0: it ends, its object goes, and the others stay.
async fn deleted(world: &World) {
    world.api.delete("p0", None);
    pass(Duration::from_secs(60)).await;
    assert!(!world.runtime.is_running("p0", "c0"), "a deleted Pod runs on");
    let names = |p: &Pod| p.metadata.name.clone().unwrap();
    let left: Vec<String> = world.api.pods().iter().map(names).collect();
    assert_eq!(left, ["p1", "p2", "p3"], "the object of a Pod that has ended stays");
    (1..PODS).for_each(|n| assert!(world.runtime.is_running(&format!("p{n}"), "c0"), "p{n} suffers"));
}

/// What upstream takes, wherever users can write it.
fn odd(object: &mut Value) {
    object["metadata"]["managedFields"] = json!([{"manager": "m", "time": "9999-12-31T23:59:59Z"}]);
    object["metadata"]["creationTimestamp"] = json!("9999-12-31T23:59:59Z");
    object["metadata"]["labels"] = json!(null);
    object["spec"]["tolerations"] = json!(null);
    object["status"]["startTime"] = json!("9999-12-31T23:59:59Z");
    object["status"]["conditions"] =
        json!([{"type": "a.io/b", "status": "True", "lastTransitionTime": null}]);
}

#[test]
fn a_time_that_no_calendar_has_costs_nothing() {
    play(async {
        let (world, agent) = settled().await;
        world.api.edit("p0", odd);
        pass(Duration::from_secs(5)).await;
        listed_again(&world).await;
        all_run(&world);
        let _agent = restarted(&world, agent).await;
        all_run(&world);
        deleted(&world).await;
    });
}

#[test]
fn a_pod_that_cannot_be_read_runs_on_and_its_deletion_counts() {
    for restarts in [false, true] {
        play(async move {
            let (world, mut agent) = settled().await;
            world.api.edit("p0", |object| object["spec"]["containers"] = json!("none"));
            pass(Duration::from_secs(5)).await;
            listed_again(&world).await;
            all_run(&world);
            if restarts {
                agent = restarted(&world, agent).await;
                all_run(&world);
            }
            deleted(&world).await;
            drop(agent);
        });
    }
}

#[test]
fn a_pod_that_can_be_read_again_is_as_it_was() {
    play(async {
        let (world, agent) = settled().await;
        world.api.edit("p0", |object| object["spec"]["containers"][0]["name"] = json!(7));
        let _agent = restarted(&world, agent).await;
        all_run(&world);
        world.api.edit("p0", |object| object["spec"]["containers"][0]["name"] = json!("c0"));
        pass(Duration::from_secs(60)).await;
        all_run(&world);
        deleted(&world).await;
    });
}

#[test]
fn a_list_of_one_pod_that_nobody_can_name_ends_nobody() {
    play(async {
        let (world, agent) = settled().await;
        world.api.edit("p0", |object| object["kind"] = json!("Riddle"));
        // The others go by force, unseen: for all the node knows, the riddle is any of them.
        world.api.set_weather(testkit::sim::Weather { partition: true, ..Default::default() });
        (1..PODS).for_each(|n| world.api.delete(&format!("p{n}"), Some(0)));
        world.api.compact();
        world.api.set_weather(testkit::sim::Weather::default());
        pass(Duration::from_secs(60)).await;
        all_run(&world);
        let _agent = restarted(&world, agent).await;
        all_run(&world);
        // Once it can be read, what is gone is gone.
        world.api.edit("p0", |object| object["kind"] = json!("Pod"));
        pass(Duration::from_secs(300)).await;
        assert!(world.runtime.is_running("p0", "c0"));
        (1..PODS).for_each(|n| assert!(!world.runtime.is_running(&format!("p{n}"), "c0"), "p{n} runs on"));
    });
}

#[test]
fn a_pod_of_no_node_or_another_is_not_run() {
    play(async {
        let (world, _agent) = settled().await;
        for (n, node) in [(PODS, json!("")), (PODS + 1, json!("another")), (PODS + 2, Value::Null)] {
            world.api.create(&simple(n));
            // In one breath, before the node hears of it.
            world.api.edit(&format!("p{n}"), |object| object["spec"]["nodeName"] = node);
            world.api.compact();
        }
        world.api.cut();
        pass(Duration::from_secs(120)).await;
        for n in PODS..PODS + 3 {
            assert_eq!(world.runtime.journal().starts(&format!("p{n}"), "c0"), 0, "p{n} is not ours");
        }
        all_run(&world);
    });
}
