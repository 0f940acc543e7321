use std::time::Duration;

use api::config::controllers::Tuning;
use serde_json::{Value, json};

use super::*;
use crate::cache::Change;
use crate::controller::{Controller, Key};
use crate::plan::Plan;
use crate::resource::{LEASES, NODES};
use crate::testing::{Draft, World, at, draft, pod, said};

fn node(name: &str, ready: &str) -> Draft {
    let beat = json!([{"type": "Ready", "status": ready, "lastHeartbeatTime": "1970-01-01T00:00:01Z"}]);
    draft(NODES, name).set("/status/conditions", beat)
}

fn taints(objects: Vec<Draft>) -> Plan {
    let mut controller = (NODE_TAINTS.make)(&Tuning::default());
    controller.reconcile(&World::new(objects).cache, &Key::new("", "n"), at(1000))
}

fn keys(plan: &Plan) -> Vec<String> {
    let taints = plan.acts().map(|act| act.body()["spec"]["taints"].clone()).find(|taints| !taints.is_null());
    let text = |taint: &Value| {
        format!("{}:{}", taint["key"].as_str().unwrap_or(""), taint["effect"].as_str().unwrap_or(""))
    };
    taints.unwrap_or_default().as_array().into_iter().flatten().map(text).collect()
}

fn health() -> Box<dyn Controller> {
    (NODE_HEALTH.make)(&Tuning::default())
}

fn look(health: &mut dyn Controller, world: &World, seconds: u64) -> Plan {
    health.reconcile(&world.cache, &Key::all(), at(seconds))
}

#[test]
fn taints_follow_what_a_node_says() {
    let other = json!([{"key": "mine", "effect": "NoSchedule"}, {"key": NOT_READY, "effect": "NoSchedule"}]);
    let rows: [(&str, Draft, &[&str]); 6] = [
        ("ready", node("n", "True"), &[]),
        ("not ready", node("n", "False"), &["node.kubernetes.io/not-ready:NoSchedule"]),
        ("silent", node("n", "Unknown"), &["node.kubernetes.io/unreachable:NoSchedule"]),
        (
            "cordoned",
            node("n", "True").set("/spec/unschedulable", json!(true)),
            &["node.kubernetes.io/unschedulable:NoSchedule"],
        ),
        ("ready again", node("n", "True").set("/spec/taints", other.clone()), &["mine:NoSchedule"]),
        (
            "under pressure",
            draft(NODES, "n").set("/status/conditions", json!([{"type": "DiskPressure", "status": "True"}])),
            &["node.kubernetes.io/disk-pressure:NoSchedule"],
        ),
    ];
    for (row, node, want) in rows {
        assert_eq!(keys(&taints(vec![node])), want, "{row}");
    }
    assert!(!taints(vec![node("n", "True")]).has_acts(), "what is right is not written");
}

#[test]
fn old_labels_follow_the_new_ones() {
    let plan = taints(vec![node("n", "True").label("kubernetes.io/os", "linux")]);
    let labels = plan.acts().next().map(|act| act.body()["metadata"]["labels"].clone());
    assert_eq!(labels, Some(json!({"beta.kubernetes.io/os": "linux"})));
}

#[test]
fn pods_of_a_node_that_is_not_ready_are_told_once() {
    let world =
        World::new([node("n", "Unknown"), pod("a").on("n").running().ready(1), pod("b").on("n").running()]);
    let mut controller = (NODE_TAINTS.make)(&Tuning::default());
    let mut plan = || controller.reconcile(&world.cache, &Key::new("", "n"), at(1000));
    let first = said(&plan());
    assert_eq!(first, ["patch nodes n", "patch pods/status ns/a", "Warning NodeNotReady: Node is not ready"]);
    assert_eq!(said(&plan()), ["patch nodes n"], "a kubelet that thinks otherwise is not fought");
}

#[test]
fn a_node_that_falls_silent_is_unknown_after_the_grace() {
    let (mut health, world) = (health(), World::new([node("n", "True"), node("other", "True")]));
    let beat = |health: &mut dyn Controller, seconds: u64| {
        let lease = draft(LEASES, "other").set("/metadata/namespace", json!("kube-node-lease"));
        let lease = lease.set("/spec/renewTime", json!(format!("t{seconds}")));
        health.observe(&Change { old: None, new: Some(std::sync::Arc::new(lease.object())) }, at(seconds));
    };
    let first = look(&mut *health, &world, 100);
    assert_eq!(
        (said(&first).len(), first.wake),
        (2, Some(Duration::from_secs(5))),
        "both are registered, and looked at again"
    );
    beat(&mut *health, 145);
    assert_eq!(said(&look(&mut *health, &world, 150)), [""; 0]);
    let plan = look(&mut *health, &world, 151);
    assert_eq!(
        said(&plan),
        ["patch nodes/status n", "patch nodes n", "Normal NodeNotReady: Node n status is now: NodeNotReady"]
    );
    let conditions =
        plan.acts().next().map(|act| act.body()["status"]["conditions"].clone()).unwrap_or_default();
    assert_eq!(
        (conditions.as_array().map(Vec::len), &conditions[0]["reason"]),
        (Some(4), &json!("NodeStatusUnknown"))
    );
    assert_eq!(conditions[1]["reason"], "NodeStatusNeverUpdated");
    assert_eq!(keys(&plan), ["node.kubernetes.io/unreachable:NoExecute"]);
}

#[test]
fn nobody_is_evicted_where_no_node_is_ready() {
    let given_up =
        node("n", "Unknown").set("/spec/taints", json!([{"key": UNREACHABLE, "effect": "NoExecute"}]));
    let world = World::new([given_up, node("m", "Unknown")]);
    let mut health = health();
    let plan = look(&mut *health, &world, 10);
    assert_eq!(said(&plan)[0], "patch nodes n");
    assert_eq!(
        (keys(&plan).len(), plan.acts().count()),
        (0, 1),
        "the taint is taken off, and none is put on"
    );
}

#[test]
fn a_zone_loses_one_node_in_ten_seconds() {
    let world =
        World::new([node("a", "Unknown"), node("b", "Unknown"), node("c", "True"), node("d", "True")]);
    let mut health = health();
    let patched = |plan: &Plan| plan.acts().map(crate::plan::Act::name).collect::<Vec<_>>();
    assert_eq!(patched(&look(&mut *health, &world, 100)), ["patch nodes a"]);
    assert_eq!(patched(&look(&mut *health, &world, 105)), [""; 0]);
    assert_eq!(patched(&look(&mut *health, &world, 110)), ["patch nodes a"], "the cache did not change here");
}

#[test]
fn a_node_that_is_gone_is_told_of_once() {
    let (mut health, world) = (health(), World::new([node("n", "True")]));
    look(&mut *health, &world, 1);
    let empty = World::new([]);
    let gone = said(&look(&mut *health, &empty, 2));
    assert_eq!(gone, ["Normal RemovingNode: Node n event: Removing Node n from Controller"]);
    assert_eq!(said(&look(&mut *health, &empty, 3)), [""; 0]);
}
