use serde_json::json;

use super::*;
use crate::resource::{CSI_DRIVERS, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES};
use crate::testing::{Draft, NAMESPACE, World, at, draft, pod, refused, said};

const UNIQUE: &str = "kubernetes.io/csi/disk.example.com^h";

fn node(name: &str) -> Draft {
    draft(NODES, name)
        .annotation("volumes.kubernetes.io/controller-managed-attach-detach", "true")
        .set("/status/conditions", json!([{"type": "Ready", "status": "True"}]))
}

fn reports(node: Draft) -> Draft {
    node.set("/status/volumesAttached", json!([{"name": UNIQUE, "devicePath": ""}]))
}

fn uses(node: Draft) -> Draft {
    node.set("/status/volumesInUse", json!([UNIQUE]))
}

fn user(name: &str, node: &str) -> Draft {
    pod(name)
        .on(node)
        .running()
        .set("/spec/volumes", json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]))
}

fn claim() -> Draft {
    draft(PERSISTENT_VOLUME_CLAIMS, "c").set("/spec/volumeName", json!("v")).phase("Bound")
}

fn volume(mode: &str) -> Draft {
    draft(PERSISTENT_VOLUMES, "v")
        .set("/spec/csi", json!({"driver": "disk.example.com", "volumeHandle": "h"}))
        .set("/spec/claimRef", json!({"namespace": NAMESPACE, "name": "c", "uid": "u-c"}))
        .set("/spec/accessModes", json!([mode]))
}

fn name_on(node: &str) -> String {
    look::Volume { driver: "disk.example.com".into(), handle: "h".into() }.attachment(node)
}

fn attachment(node: &str) -> Draft {
    draft(VOLUME_ATTACHMENTS, &name_on(node)).set(
        "/spec",
        json!({"attacher": "disk.example.com", "nodeName": node, "source": {"persistentVolumeName": "v"}}),
    )
}

fn attached(node: &str) -> Draft {
    attachment(node).set("/status/attached", json!(true))
}

struct Story {
    world: World,
    controller: AttachDetach,
}

impl Story {
    fn new(objects: Vec<Draft>) -> Story {
        let all = [vec![claim(), volume("ReadWriteOnce")], objects].concat();
        let mut story = Story {
            world: World::new([]),
            controller: AttachDetach { is_forced: true, ..AttachDetach::default() },
        };
        all.into_iter().for_each(|draft| story.put(draft));
        story
    }

    fn put(&mut self, draft: Draft) {
        self.world.put(draft.clone());
        let change = Change { old: None, new: Some(Arc::new(draft.object())) };
        self.controller.observe(&change, at(0));
    }

    fn remove(&mut self, draft: &Draft) {
        let old = Arc::new(draft.object());
        self.world.cache.remove(&old);
        self.controller.observe(&Change { old: Some(old), new: None }, at(0));
    }

    /// What is done at this second: all writes, with the live Nodes as given.
    fn at(&mut self, seconds: u64, live: &[Draft]) -> Vec<String> {
        let mut plan = self.controller.reconcile(&self.world.cache, &Key::all(), at(seconds));
        let (mut lines, mut done) = (said(&plan), Done::default());
        while plan.has_acts() {
            done.last = done.acts.len();
            done.rounds += 1;
            for act in plan.acts() {
                let live = live.iter().map(Draft::object).find(|node| {
                    matches!(act, Act::Get { path } if *path == NODES.object_path("", &node.meta.name))
                });
                let outcome = match (act, live) {
                    (Act::Get { .. }, None) => refused(Why::NotFound, "gone"),
                    (_, Some(node)) => Outcome::Done(node.json().clone()),
                    _ => Outcome::Done(bytes::Bytes::new()),
                };
                done.acts.push((act.clone(), outcome));
            }
            plan = self.controller.settle(&self.world.cache, &Key::all(), at(seconds), &done);
            lines.extend(said(&plan));
        }
        lines.extend(plan.failure.map(|_| "failed".to_owned()));
        let (on_n, on_m) = (name_on("n"), name_on("m"));
        lines.iter().map(|line| line.replace(&on_n, "VA-n").replace(&on_m, "VA-m")).collect()
    }
}

const CREATE: &str = "create volumeattachments.storage.k8s.io in ";
const TELL_N: &str = "patch nodes/status n";
const ASK_N: &str = "get /api/v1/nodes/n";
const DELETE_N: &str = "delete volumeattachments.storage.k8s.io VA-n";
const SUCCESS: &str = "Normal SuccessfulAttachVolume: AttachVolume.Attach succeeded for volume \"v\" ";

#[test]
fn an_attachment_has_upstreams_name() {
    let volume = look::Volume { driver: "d".into(), handle: "h".into() };
    assert_eq!(volume.unique_name(), "kubernetes.io/csi/d^h");
    assert_eq!(
        volume.attachment("n"),
        format!("csi-{}", "9072ed11cc1acb5fa433a877ff339b6311d013f33bddd1d0092711a8ace5b16d")
    );
}

#[test]
fn a_volume_is_attached_then_the_node_is_told() {
    let mut story = Story::new(vec![node("n"), user("p", "n")]);
    let plan = story.controller.reconcile(&story.world.cache, &Key::all(), at(0));
    let body = plan.acts().next().map(Act::body).unwrap_or_default();
    assert_eq!(body["metadata"]["name"], name_on("n"));
    assert_eq!(
        body["spec"],
        json!({"attacher": "disk.example.com", "nodeName": "n", "source": {"persistentVolumeName": "v"}})
    );
    assert_eq!(story.at(0, &[]), [CREATE]);
    story.put(attachment("n"));
    assert!(story.at(1, &[]).is_empty(), "its driver is at it");
    story.put(attached("n"));
    let plan = story.controller.reconcile(&story.world.cache, &Key::all(), at(2));
    let told = plan.acts().next().map(Act::body).unwrap_or_default();
    assert_eq!(told["status"]["volumesAttached"], json!([{"name": UNIQUE, "devicePath": ""}]));
    assert_eq!(story.at(2, &[]), [TELL_N, SUCCESS]);
    story.put(uses(reports(node("n"))));
    assert!(story.at(3, &[]).is_empty());
}

#[test]
fn what_need_not_be_attached_is_not() {
    let free = draft(CSI_DRIVERS, "disk.example.com").set("/spec/attachRequired", json!(false));
    let unmanaged = node("n").set("/metadata/annotations", json!({}));
    let pending = claim().phase("Pending");
    let foreign = volume("ReadWriteOnce").set("/spec/claimRef/uid", json!("other"));
    let path = volume("ReadWriteOnce").set("/spec/csi", Value::Null);
    for (name, objects) in [
        ("no attacher", vec![node("n"), user("p", "n"), free]),
        ("the kubelet does it", vec![unmanaged, user("p", "n")]),
        ("not bound", vec![node("n"), user("p", "n"), pending]),
        ("of another claim", vec![node("n"), user("p", "n"), foreign]),
        ("a path", vec![node("n"), user("p", "n"), path]),
        ("no Node yet", vec![node("n"), user("p", "")]),
        ("ended", vec![node("n"), user("p", "n").phase("Failed")]),
        ("ending, and nothing runs", vec![node("n"), user("p", "n").deleting(true)]),
    ] {
        assert!(Story::new(objects).at(0, &[]).is_empty(), "{name}");
    }
    let running = json!([{"name": "c", "state": {"running": {}}}]);
    let ending = user("p", "n").deleting(true).set("/status/containerStatuses", running);
    assert_eq!(Story::new(vec![node("n"), ending]).at(0, &[]), [CREATE]);
}

#[test]
fn a_volume_is_detached_when_its_node_has_let_go_of_it() {
    let mut story = Story::new(vec![uses(reports(node("n"))), attached("n")]);
    assert!(story.at(0, &[]).is_empty(), "still in use");
    story.put(reports(node("n")));
    assert_eq!(story.at(1, &[node("n")]), [TELL_N, ASK_N, DELETE_N]);
    assert_eq!(story.at(1, &[uses(node("n"))]), [TELL_N, ASK_N, "failed"], "it was faster");
    assert_eq!(story.at(1, &[]), [TELL_N, ASK_N, DELETE_N], "a Node that is gone uses nothing");
    story.put(node("n"));
    assert_eq!(story.at(2, &[node("n")]), [ASK_N, DELETE_N], "a crash in between");
    story.put(attached("n").deleting(true));
    assert!(story.at(3, &[]).is_empty(), "its driver is at it");
    story.remove(&attached("n"));
    story.put(reports(node("n")));
    assert_eq!(story.at(4, &[]), [TELL_N], "what has no attachment is not attached");
}

#[test]
fn a_node_that_is_not_well_loses_its_volumes_after_six_minutes() {
    let sick = || {
        uses(reports(node("n"))).set("/status/conditions", json!([{"type": "Ready", "status": "Unknown"}]))
    };
    let mut story = Story::new(vec![sick(), attached("n")]);
    assert!(story.at(100, &[]).is_empty());
    let plan = story.controller.reconcile(&story.world.cache, &Key::all(), at(160));
    assert_eq!(plan.wake, Some(Duration::from_secs(300)));
    assert!(story.at(459, &[sick()]).is_empty());
    assert_eq!(story.at(460, &[sick()]), [TELL_N, DELETE_N]);
    story.controller.is_forced = false;
    assert!(story.at(999, &[sick()]).is_empty(), "--disable-force-detach-on-timeout");
    let taint = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]);
    story.put(sick().set("/spec/taints", taint));
    assert_eq!(story.at(999, &[sick()]), [TELL_N, DELETE_N]);
    let mut well = Story::new(vec![uses(reports(node("n"))), attached("n")]);
    assert!(well.at(0, &[]).is_empty() && well.at(9999, &[]).is_empty(), "one that is well keeps it");
}

#[test]
fn a_node_that_was_deleted_while_it_used_a_volume_is_waited_for() {
    let last = uses(reports(node("n")));
    let mut story = Story::new(vec![last.clone(), attached("n")]);
    story.remove(&last);
    assert!(story.at(0, &[]).is_empty());
    assert_eq!(story.at(360, &[]), [DELETE_N]);
    let mut story = Story::new(vec![attached("n")]);
    assert_eq!(story.at(0, &[]), [ASK_N, DELETE_N], "nobody knows of any use");
}

#[test]
fn a_volume_for_one_node_waits_until_the_other_has_let_go() {
    let both = || vec![node("m"), uses(reports(node("n"))), attached("n")];
    let waits = |why: &str| format!("Warning FailedAttachVolume: Waiting for detach for volume \"v\" {why}");
    let mut story = Story::new([both(), vec![user("q", "m")]].concat());
    let exclusive = "Volume is already exclusively attached to one node, waiting on detach before it can be attached to \
                     another node";
    assert_eq!(story.at(0, &[]), [waits(exclusive)]);
    assert!(story.at(1, &[]).is_empty(), "told once");
    story.remove(&attached("n"));
    story.put(node("n"));
    assert_eq!(story.at(2, &[]), [CREATE]);

    let mut story = Story::new([both(), vec![user("p", "n"), user("q", "m")]].concat());
    assert_eq!(story.at(0, &[]), [waits("Volume is already used by pod(s) p")]);
    let mut story = Story::new(vec![node("m"), node("n"), user("p", "n"), user("q", "m")]);
    assert_eq!(story.at(0, &[])[0], CREATE, "one of them first");
    let shared = [both(), vec![user("p", "n"), user("q", "m"), volume("ReadWriteMany")]].concat();
    assert_eq!(Story::new(shared).at(0, &[]), [CREATE], "this one may be on many");
}

#[test]
fn what_keeps_a_driver_is_told_once_for_each_try() {
    let failed = |why: &str| {
        format!("Warning FailedAttachVolume: AttachVolume.Attach failed for volume \"v\" : {why}")
    };
    let mut story = Story::new(vec![node("n"), user("p", "n"), attachment("n")]);
    assert!(story.at(0, &[]).is_empty());
    let late = "timed out waiting for external-attacher of disk.example.com CSI driver to attach volume h";
    assert_eq!(story.at(120, &[]), [failed(late)]);
    story.put(attachment("n").set("/status/attachError", json!({"message": "no such disk"})));
    assert_eq!(story.at(121, &[]), [failed("no such disk")]);
    assert!(story.at(122, &[]).is_empty());
    story.put(attachment("n").set("/status/attachError", json!({"message": "no such disk"})));
    assert_eq!(story.at(123, &[]), [failed("no such disk")]);
    story.put(attached("n").deleting(true));
    assert_eq!(story.at(124, &[]), [failed("volume attachment is being deleted")]);
}

#[test]
fn what_is_not_ours_stays() {
    let other = json!([{"name": "kubernetes.io/fc/x", "devicePath": "/dev/x"}]);
    let strange = draft(VOLUME_ATTACHMENTS, "mine").set("/spec", attachment("n").value["spec"].clone());
    let mut story =
        Story::new(vec![node("n").set("/status/volumesAttached", other.clone()), strange, user("p", "n")]);
    story.put(attached("n"));
    let plan = story.controller.reconcile(&story.world.cache, &Key::all(), at(0));
    let told = plan.acts().next().map(Act::body).unwrap_or_default();
    let want =
        json!([{"name": UNIQUE, "devicePath": ""}, {"name": "kubernetes.io/fc/x", "devicePath": "/dev/x"}]);
    assert_eq!(told["status"]["volumesAttached"], want);
    assert_eq!(plan.acts().count(), 1);
}

#[test]
fn heartbeats_wake_nobody() {
    let world = World::new([]);
    let wakes = |old: &Draft, new: &Draft| world.wakes(ATTACH_DETACH.watches, Some(old), Some(new)).len();
    assert_eq!(wakes(&node("n"), &node("n").label("a", "b")), 0);
    assert_eq!(wakes(&node("n"), &uses(node("n"))), 1);
    assert_eq!(wakes(&user("p", "n"), &user("p", "n").ready(5)), 0);
    assert_eq!(wakes(&user("p", "n"), &user("p", "n").phase("Failed")), 1);
    assert_eq!(wakes(&user("p", ""), &user("p", "n")), 1);
    assert_eq!(wakes(&pod("p"), &pod("p").on("n")), 0);
}
