#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::*;
use crate::testing;

const NOW: i64 = 1_767_225_600; // 2026-01-01

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// Facts about Pod `p`, with one ready node `n` that has room.
fn facts(spec: Value, status: Value) -> Facts {
    let mut spec = spec;
    spec["containers"] = json!([{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]);
    let meta = json!({"name": "p", "namespace": "default", "uid": "u",
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "p", "uid": "r", "controller": true}]});
    Facts {
        namespace: "default".into(),
        name: "p".into(),
        pod: Some(read(json!({"metadata": meta, "spec": spec, "status": status}))),
        namespace_phase: Some("Active".into()),
        node: Some(read(
            json!({"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
        )),
        cluster: testing::cluster([testing::node("n", json!({}))]),
        now: NOW * 1_000_000_000,
        ..Facts::default()
    }
}

fn bound(status: Value) -> Facts {
    facts(json!({"nodeName": "n"}), status)
}

fn event(kind: &str, name: &str, reason: &str, message: &str) -> core::Event {
    read(
        json!({"metadata": {}, "involvedObject": {"kind": kind, "name": name}, "reason": reason, "message": message,
        "lastTimestamp": "2026-01-01T00:00:00Z"}),
    )
}

fn waiting(reason: &str, message: &str, last: Value) -> Value {
    json!({"containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 4, "started": false,
        "state": {"waiting": {"reason": reason, "message": message}}, "lastState": last}]})
}

fn running(ready: bool, started: bool) -> Value {
    json!({"conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
        "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "containerID": "x://1", "ready": ready, "restartCount": 0,
        "started": started, "state": {"running": {}}}]})
}

/// The first thing that is wrong, and what to do about it.
fn first(mut facts: Facts) -> Option<(String, String)> {
    let findings = examine(&mut facts);
    assert!(!findings.is_empty());
    verdict(&findings).map(|f| (f.text.clone(), f.advice.clone()))
}

/// Each story with a piece of what is told first, and of the advice; nothing where nothing is wrong.
#[test]
fn the_first_thing_that_is_wrong_is_named_with_the_command_that_shows_it() {
    let tried = json!({"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available: x."}]});
    let with = |change: &dyn Fn(&mut Facts), mut facts: Facts| {
        change(&mut facts);
        facts
    };
    let last = |reason: &str, code: i32| json!({"terminated": {"exitCode": code, "reason": reason, "message": "bad flag\nmore"}});
    for (story, facts, text, advice) in [
        (
            "gates",
            facts(json!({"schedulingGates": [{"name": "a"}, {"name": "b"}]}), json!({})),
            "waits for its scheduling gates: a, b",
            ".spec.schedulingGates",
        ),
        (
            "nobody schedules",
            facts(json!({}), json!({})),
            "no scheduler has looked at Pod default/p yet",
            "kubectl get leases",
        ),
        ("it fits", facts(json!({}), tried.clone()), "", ""),
        (
            "selector",
            facts(json!({"nodeSelector": {"a": "b"}}), tried.clone()),
            "no node takes Pod default/p: 0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector",
            "NodeAffinity says no; compare `kubectl describe pod -n default p`",
        ),
        (
            "no nodes",
            with(&|f| f.cluster = Cluster::default(), facts(json!({}), tried.clone())),
            "there are no nodes",
            "kubectl get nodes",
        ),
        (
            "claim",
            facts(
                json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}),
                tried.clone(),
            ),
            "its claim \"data\" is not there",
            "kubectl describe pvc -n default data",
        ),
        (
            "node gone",
            with(&|f| f.node = None, bound(json!({}))),
            "its node \"n\" is not there",
            "kubectl delete pod",
        ),
        (
            "node unready",
            with(
                &|f| {
                    f.node = Some(read(
                        json!({"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}]}}),
                    ))
                },
                bound(json!({})),
            ),
            "its node \"n\" is not ready: Kubelet stopped posting node status.",
            "kubectl describe node n",
        ),
        ("silence", bound(json!({})), "the kubelet of \"n\" has said nothing", "is it running"),
        (
            "secret",
            with(&|f| f.missing = vec!["Secret \"s\"".into()], bound(json!({}))),
            "it needs Secret \"s\", which is not there",
            "kubectl describe pod -n default p",
        ),
        (
            "mount",
            with(
                &|f| f.events = vec![event("Pod", "p", "FailedMount", "MountVolume.SetUp failed")],
                bound(waiting("ContainerCreating", "", json!({}))),
            ),
            "its volumes are not mounted: MountVolume.SetUp failed",
            "kubectl describe pod",
        ),
        (
            "sandbox",
            with(
                &|f| f.events = vec![event("Pod", "p", "FailedCreatePodSandBox", "no network")],
                bound(waiting("ContainerCreating", "", json!({}))),
            ),
            "its sandbox is not made: no network",
            "crictl pods",
        ),
        (
            "image",
            bound(waiting("ImagePullBackOff", "Back-off pulling image \"i\"", json!({}))),
            "the image \"i\" of container \"c\" is not there, ImagePullBackOff: Back-off pulling image",
            "imagePullSecrets",
        ),
        (
            "config",
            bound(waiting("CreateContainerConfigError", "configmap \"x\" not found", json!({}))),
            "container \"c\" cannot be started, CreateContainerConfigError: configmap \"x\" not found",
            "kubectl describe pod",
        ),
        (
            "crash",
            bound(waiting("CrashLoopBackOff", "back-off", last("Error", 3))),
            "container \"c\" ends again and again (4 times): ended with exit code 3: bad flag",
            "kubectl logs -n default p -c c --previous",
        ),
        (
            "memory",
            bound(waiting("CrashLoopBackOff", "back-off", last("OOMKilled", 137))),
            "OOMKilled with exit code 137",
            "more memory than its limit",
        ),
        (
            "startup",
            bound(running(false, false)),
            "its startup probe has not passed",
            "kubectl logs -n default p -c c",
        ),
        (
            "readiness",
            with(
                &|f| f.events = vec![event("Pod", "p", "Unhealthy", "Readiness probe failed: 500")],
                bound(running(false, true)),
            ),
            "its readiness probe does not pass: Readiness probe failed: 500",
            "kubectl describe pod",
        ),
        ("ready", bound(running(true, true)), "", ""),
        (
            "failed",
            bound(
                json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}),
            ),
            "Pod default/p has failed: Evicted: The node was low",
            "kubectl describe pod",
        ),
        ("ended", bound(json!({"phase": "Succeeded"})), "", ""),
    ] {
        match (first(facts), text.is_empty()) {
            (None, true) => {}
            (Some((told, what)), false) => {
                assert!(told.contains(text) && what.contains(advice), "{story}: {told:?}, {what:?}");
            }
            (other, _) => panic!("{story}: {other:?}"),
        }
    }
}

#[test]
fn each_node_says_which_plugin_refuses_and_why() {
    let tried = json!({"conditions": [{"type": "PodScheduled", "status": "False", "message": "m"}]});
    let mut facts = facts(json!({}), tried);
    let taint = json!([{"key": "k", "effect": "NoSchedule"}]);
    facts.cluster = testing::cluster([
        testing::node_with(
            "small",
            json!({}),
            json!({}),
            json!({"allocatable": {"cpu": "500m", "pods": "9"}}),
        ),
        testing::node_with("tainted", json!({}), json!({"taints": taint}), json!({})),
    ]);
    let texts: Vec<String> = examine(&mut facts).into_iter().map(|f| f.text).collect();
    assert_eq!(
        texts,
        [
            "it belongs to ReplicaSet \"p\"",
            "node small refuses it, NodeResourcesFit: Insufficient cpu",
            "node tainted refuses it, TaintToleration: node(s) had untolerated taint(s)",
            "no node takes Pod default/p: 0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s). \
             no new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling",
            "the scheduler has said: m",
        ]
    );
}

#[test]
fn a_pod_that_was_never_made_leads_to_who_should_make_it_and_to_its_quota() {
    let mut facts = Facts {
        namespace: "default".into(),
        name: "web-6d9f-x2x4z".into(),
        namespace_phase: Some("Active".into()),
        ..Facts::default()
    };
    facts.events = vec![
        event(
            "ReplicaSet",
            "web-6d9f",
            "FailedCreate",
            "pods \"web-6d9f-x\" is forbidden: exceeded quota: small",
        ),
        event("ReplicaSet", "other", "FailedCreate", "something else"),
    ];
    facts.quotas = vec![read(
        json!({"metadata": {"name": "small"}, "status": {"hard": {"pods": "2", "cpu": "4"}, "used": {"pods": "2", "cpu": "3500m"}}}),
    )];
    let texts: Vec<String> = examine(&mut facts).into_iter().map(|f| f.text).collect();
    assert_eq!(
        texts,
        [
            "quota \"small\" is used up: pods 2 of 2",
            "there is no Pod default/web-6d9f-x2x4z: ReplicaSet \"web-6d9f\" cannot make it: pods \"web-6d9f-x\" is forbidden: exceeded quota: small",
        ]
    );
    facts.namespace_phase = None;
    assert_eq!(first(facts).unwrap().0, "there is no namespace \"default\"");
}

#[test]
fn what_holds_a_pod_that_is_to_go_is_named() {
    let gone = |seconds: i64, finalizers: &[&str], state: Value| {
        let mut facts = bound(
            json!({"containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state}]}),
        );
        let meta = &mut facts.pod.as_mut().unwrap().metadata;
        meta.deletion_timestamp = Some(read(json!("2026-01-01T00:00:00Z")));
        meta.finalizers = Some(finalizers.iter().map(ToString::to_string).collect());
        facts.now += seconds * 1_000_000_000;
        facts
    };
    let (runs, ended) = (json!({"running": {}}), json!({"terminated": {"exitCode": 0}}));
    for (facts, text) in [
        (gone(-20, &[], runs.clone()), ""),
        (
            gone(60, &[], runs.clone()),
            "its containers still run: c, though they should have been killed 60 s ago",
        ),
        (gone(60, &["a.b/c"], ended.clone()), "but its finalizers hold it: a.b/c"),
        (gone(60, &[], ended.clone()), "its kubelet has not let it go"),
        (Facts { node: None, ..gone(60, &[], runs) }, "its node \"n\" is gone"),
    ] {
        let told = first(facts).map(|(told, _)| told).unwrap_or_default();
        assert!(if text.is_empty() { told.is_empty() } else { told.contains(text) }, "{told:?}: {text:?}");
    }
}
