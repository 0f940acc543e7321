//! An API server that is away for hours, under paused time: nothing that runs suffers, and when it is back it hears
//! everything in one sweep, from a node that does not shout. And one that is broken in one place, or late: only that
//! place suffers.
#![allow(clippy::unwrap_used)]

mod stories;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::time::Clock;
use http::Method;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kubelet_core::pod::{Report, Reported, report};
use serde_json::{Value, json};
use testkit::fake_runtime::Behaviour;
use testkit::sim::pods::{container, pod};
use testkit::sim::{Agent, Weather, World, pass};

use stories::play;

const PODS: usize = 30;
const AWAY: Duration = Duration::from_secs(6 * 3600);

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
        assert!(dials < 6 * 3600 / 4, "the server was dialled {dials} times in six hours");
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

fn named(name: &str, version: u32, spec: PodSpec) -> Pod {
    (*pod(name, version, spec)).clone()
}

fn one_container() -> PodSpec {
    PodSpec {
        containers: vec![container("c0")],
        termination_grace_period_seconds: Some(5),
        ..Default::default()
    }
}

fn object(world: &World, name: &str) -> Pod {
    let mut all = world.api.pods().into_iter();
    all.rfind(|p| p.metadata.name.as_deref() == Some(name)).expect("the Pod is there")
}

fn phase(world: &World, name: &str) -> String {
    object(world, name).status.and_then(|s| s.phase).unwrap_or_default()
}

#[test]
fn a_pod_that_the_server_fails_at_silences_no_other() {
    play(async {
        let world = World::new(2);
        for name in ["a1", "a2", "a3", "z"] {
            world.api.create(&named(name, 1, one_container()));
        }
        world.api.refuse_writes("/pods/a", 500);
        let _agent = world.boot_in_cluster();
        pass(Duration::from_secs(10)).await;
        assert_eq!(phase(&world, "z"), "Running");
        pass(Duration::from_secs(110)).await;
        let requests = world.api.record().requests;
        let tries = requests.iter().filter(|(_, _, path)| path.contains("/pods/a1/")).count();
        assert!((4..20).contains(&tries), "{tries} tries in two minutes");
        world.api.refuse_writes("/pods/a", 0);
        pass(Duration::from_secs(40)).await;
        assert_eq!(phase(&world, "a1"), "Running");
    });
}

#[test]
fn an_event_that_is_refused_holds_up_no_other() {
    play(async {
        let world = World::new(3);
        let mut broken = named("a", 1, one_container());
        broken.metadata.namespace = Some("broken".into());
        world.api.create(&broken);
        world.api.create(&named("z", 1, one_container()));
        world.api.refuse_writes("/namespaces/broken/events", 500);
        let _agent = world.boot_in_cluster();
        pass(Duration::from_secs(15)).await;
        let events = world.api.record().events;
        let of_z = |e: &Value| e["reason"] == "Started" && e["involvedObject"]["name"] == "z";
        assert!(events.values().any(of_z), "{events:?}");
    });
}

#[test]
fn who_deletes_by_force_gets_the_next_pod_at_once() {
    play(async {
        let world = World::new(4);
        world.runtime.script("p", "c0", [Behaviour::ignores_term(), Behaviour::forever()]);
        // Both together are more than the node has, and both want the same port.
        let spec = || {
            let mut spec = one_container();
            spec.termination_grace_period_seconds = Some(600);
            let wants = json!({"requests": {"cpu": "3"}});
            spec.containers[0].resources = Some(serde_json::from_value(wants).unwrap());
            let port = json!([{"containerPort": 80, "hostPort": 80}]);
            spec.containers[0].ports = Some(serde_json::from_value(port).unwrap());
            spec
        };
        world.api.create(&named("p", 1, spec()));
        let agent = world.boot_in_cluster();
        pass(Duration::from_secs(10)).await;
        assert_eq!(phase(&world, "p"), "Running");
        // Its volume hangs: it will never be gone.
        world.disk.lock().stuck = true;
        world.api.delete("p", Some(0));
        world.api.create(&named("p", 2, spec()));
        pass(Duration::from_secs(10)).await;
        assert_eq!(agent.phase("p-2"), "Running");
        assert_eq!(phase(&world, "p"), "Running");
        world.disk.lock().stuck = false;
        pass(Duration::from_secs(900)).await;
        assert!(agent.board.get("p-1").is_none());
        assert!(world.disk.lock().directories.iter().all(|uid| uid.as_str() == "p-2"));
        assert_eq!(agent.phase("p-2"), "Running");
    });
}

#[test]
fn a_label_that_the_watch_does_not_know_yet_is_asked_for() {
    play(async {
        let world = World::new(5);
        let _agent = world.boot_in_cluster();
        pass(Duration::from_secs(5)).await;
        world.api.set_weather(Weather { node_lag: Duration::from_secs(60), ..Weather::default() });
        let selects = |value: &str| PodSpec {
            node_selector: Some([("disk".to_owned(), value.to_owned())].into()),
            ..one_container()
        };
        world.api.change_node(&json!({"metadata": {"labels": {"disk": "fast"}}}));
        world.api.create(&named("fits", 1, selects("fast")));
        world.api.create(&named("never", 1, selects("slow")));
        pass(Duration::from_secs(10)).await;
        assert_eq!(phase(&world, "fits"), "Running");
        let status = object(&world, "never").status.unwrap();
        assert_eq!(
            (status.phase.as_deref(), status.reason.as_deref()),
            (Some("Failed"), Some("NodeAffinity"))
        );
        // What the watch has to tell about then is old.
        pass(Duration::from_secs(120)).await;
        world.api.create(&named("too", 1, selects("fast")));
        pass(Duration::from_secs(10)).await;
        assert_eq!(phase(&world, "too"), "Running");
        let asked = world.api.record().requests;
        let asked = asked.iter().filter(|(_, _, path)| path.ends_with("/nodes/sim")).count();
        assert_eq!(asked, 2, "once for each Pod that the labels seemed to speak against");
    });
}

#[test]
fn the_hosts_addresses_are_those_of_its_object() {
    play(async {
        let world = World::new(6);
        world.api.create(&named("p", 1, one_container()));
        let on_host = PodSpec { host_network: Some(true), ..one_container() };
        let _agent = world.boot_in_cluster();
        pass(Duration::from_secs(10)).await;
        let status = || object(&world, "p").status.unwrap();
        assert_eq!(
            status().host_ip.as_deref(),
            Some("192.0.2.1"),
            "as the machine says, until there is more"
        );
        let addresses = json!([
            {"type": "ExternalIP", "address": "203.0.113.7"},
            {"type": "InternalIP", "address": "fd00::7"},
            {"type": "Hostname", "address": "sim"},
        ]);
        world.api.change_node(&json!({"status": {"addresses": addresses}}));
        world.api.create(&named("late", 1, on_host));
        pass(Duration::from_secs(120)).await;
        let ips: Vec<String> = status().host_ips.unwrap().into_iter().map(|ip| ip.ip).collect();
        assert_eq!(ips, ["fd00::7", "203.0.113.7"]);
        assert_eq!(object(&world, "late").status.unwrap().pod_ip.as_deref(), Some("fd00::7"));
    });
}

#[test]
fn a_server_that_swallows_everything_is_left_in_the_end() {
    play(async {
        let (world, agent) = settled().await;
        world.api.set_weather(Weather { black_hole: true, ..Weather::default() });
        world.api.create(&simple(PODS));
        pass(Duration::from_secs(300)).await;
        assert!((0..PODS).all(|n| world.runtime.is_running(&name(n), "c0")));
        // The way is free again, but whoever waits for an answer on the old one waits for ever.
        world.api.set_weather(Weather::default());
        pass(Duration::from_secs(700)).await;
        assert!(world.runtime.is_running(&name(PODS), "c0"));
        assert_eq!(behind(&world, &agent), Vec::<String>::new());
    });
}

#[test]
fn a_node_that_may_not_report_does_not_ask_on_and_on() {
    play(async {
        let world = World::new(8);
        world.api.refuse_writes("/nodes/sim/status", 429);
        let _agent = world.boot_as_node();
        pass(Duration::from_secs(120)).await;
        let about_node = || {
            let asked = world.api.record().requests.into_iter();
            asked.filter(|(_, _, path)| path.contains("/nodes/sim")).count()
        };
        let tries = about_node();
        assert!((5..80).contains(&tries), "{tries} requests in two minutes");
        world.api.refuse_writes("/nodes/sim/status", 0);
        pass(Duration::from_secs(15)).await;
        let before = about_node();
        assert!(before > tries, "and is heard when it may");
        pass(Duration::from_secs(120)).await;
        assert!(about_node() - before < 30, "a node that is well says little");
    });
}
