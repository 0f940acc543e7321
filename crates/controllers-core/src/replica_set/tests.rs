use serde_json::json;

use super::*;
use crate::plan::{Outcome, Why};
use crate::testing::{self, Draft, World, at, refused, said};

const NOW: u64 = 1000;

fn own(name: &str) -> Draft {
    testing::pod(name).label("app", "a").controller("ReplicaSet", "rs", "u-rs").on("n").running().created(0)
}

fn sets() -> Sets {
    Sets { resource: REPLICA_SETS }
}

fn plan(objects: impl IntoIterator<Item = Draft>) -> Plan {
    World::new(objects).reconcile(&mut sets(), "rs", at(NOW))
}

/// The status that the plan writes.
fn status(plan: &Plan) -> Value {
    plan.acts().last().map(|act| act.body()["status"].clone()).unwrap_or_default()
}

#[test]
fn as_many_pods_as_are_asked_for() {
    let set = |replicas| testing::replica_set("rs", replicas);
    let rows: [(&str, Vec<Draft>, &[&str]); 8] = [
        ("none yet", vec![set(3)], &["3 x create pods in ns"]),
        ("one is missing", vec![set(2), own("a")], &["create pods in ns"]),
        (
            "one has failed: it is replaced and stays",
            vec![set(1), own("a").phase("Failed")],
            &["create pods in ns"],
        ),
        ("one is going", vec![set(1), own("a").deleting(true)], &["create pods in ns"]),
        ("one too many: the unready goes", vec![set(1), own("a").ready(1), own("b")], &["delete pods ns/b"]),
        ("being deleted", vec![set(3).deleting(true)], &["update replicasets.apps/status ns/rs"]),
        ("another's", vec![set(1), own("a").controller("ReplicaSet", "rs", "u-old")], &["create pods in ns"]),
        ("as it should be", vec![set(1), own("a")], &["update replicasets.apps/status ns/rs"]),
    ];
    for (row, objects, want) in rows {
        assert_eq!(said(&plan(objects)), want, "{row}");
    }
    let many = plan([set(2000)]);
    assert_eq!((many.acts().count(), many.steps[0].pace), (BURST, crate::plan::Pace::SlowStart));
}

#[test]
fn a_pod_has_of_the_template_what_a_template_has() {
    let template = json!({"metadata": {"labels": {"app": "a"}, "annotations": {"n": "1"}, "finalizers": ["f/g"], "name": "x"},
        "spec": {"containers": []}});
    let made = plan([testing::replica_set("rs", 1).set("/spec/template", template)]).steps[0].acts[0].body();
    assert_eq!(
        made,
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {
            "generateName": "rs-", "namespace": "ns", "labels": {"app": "a"}, "annotations": {"n": "1"}, "finalizers": ["f/g"],
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "u-rs",
                "controller": true, "blockOwnerDeletion": true}]},
            "spec": {"containers": []}})
    );
}

#[test]
fn the_status_counts_and_keeps_what_others_wrote() {
    let set = testing::replica_set("rs", 3)
        .set("/spec/minReadySeconds", json!(10))
        .set("/status", json!({"replicas": 77, "conditions": [{"type": "Mine", "status": "True"}]}));
    let plan = plan([
        set,
        own("a").ready(900),
        own("b").ready(995),
        own("c"),
        own("d").phase("Failed"),
        own("e").deleting(true),
    ]);
    assert_eq!(
        status(&plan),
        json!({"replicas": 3, "fullyLabeledReplicas": 3, "readyReplicas": 2, "availableReplicas": 1,
            "terminatingReplicas": 1, "observedGeneration": 1, "conditions": [{"type": "Mine", "status": "True"}]})
    );
    assert_eq!(plan.wake, Some(std::time::Duration::from_secs(5)), "when b becomes available");
}

#[test]
fn a_status_that_stays_is_not_written() {
    let status = json!({"replicas": 1, "fullyLabeledReplicas": 1, "readyReplicas": 1, "availableReplicas": 1,
        "terminatingReplicas": 0, "observedGeneration": 1});
    assert_eq!(
        plan([testing::replica_set("rs", 1).set("/status", status), own("a").ready(1)]),
        Plan::nothing()
    );
}

#[test]
fn a_refused_pod_is_a_condition_until_it_is_not() {
    let world = World::new(testing::replica_set("rs", 2));
    let plan = world.reconcile(&mut sets(), "rs", at(NOW));
    let quota = refused(Why::Forbidden, "pods \"rs-\" is forbidden: exceeded quota: q");
    let after = world.settle(&mut sets(), "rs", at(NOW), &plan, &quota);
    let conditions = json!([{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
        "message": "pods \"rs-\" is forbidden: exceeded quota: q", "lastTransitionTime": "1970-01-01T00:16:40Z"}]);
    assert_eq!(status(&after)["conditions"], conditions);
    assert_eq!(
        said(&after)[1],
        "2 x Warning FailedCreate: Error creating: pods \"rs-\" is forbidden: exceeded quota: q"
    );
    let scaled_down =
        testing::replica_set("rs", 0).set("/status", json!({"replicas": 0, "conditions": conditions}));
    assert_eq!(status(&super::tests::plan([scaled_down])).get("conditions"), None);
}

#[test]
fn an_ending_namespace_is_no_failure() {
    let world = World::new(testing::replica_set("rs", 1));
    let plan = world.reconcile(&mut sets(), "rs", at(NOW));
    let after =
        world.settle(&mut sets(), "rs", at(NOW), &plan, &refused(Why::NamespaceTerminating, "ending"));
    assert_eq!((status(&after).get("conditions"), after.events.len()), (None, 0));
}

#[test]
fn what_was_made_is_told() {
    let world = World::new(testing::replica_set("rs", 1));
    let plan = world.reconcile(&mut sets(), "rs", at(NOW));
    let made = Outcome::Done(own("rs-x7k2p").value.to_string().into());
    let after = world.settle(&mut sets(), "rs", at(NOW), &plan, &made);
    assert_eq!(said(&after)[1], "Normal SuccessfulCreate: Created pod: rs-x7k2p");
}

#[test]
fn an_orphan_is_adopted_before_anything_is_counted() {
    let plan = plan([
        testing::replica_set("rs", 1),
        testing::pod("a").label("app", "a"),
        testing::pod("b").label("app", "b"),
    ]);
    assert_eq!(said(&plan), ["patch pods ns/a"]);
    assert!(plan.again && plan.steps[0].guard.is_some());
}

#[test]
fn nonsense_is_told_on_the_object_and_nothing_is_done() {
    for (row, pointer, value) in [
        ("a word for a number", "/spec/replicas", json!("three")),
        ("a selector that takes everything", "/spec/selector", json!({})),
        ("no template", "/spec/template", json!(null)),
        ("no labels", "/spec/template/metadata", json!({})),
    ] {
        let plan =
            plan([testing::replica_set("rs", 3).set(pointer, value), testing::pod("a").label("x", "y")]);
        assert_eq!((plan.acts().count(), plan.events.len()), (0, 1), "{row}");
        assert!(plan.events[0].is_warning, "{row}");
    }
}

#[test]
fn a_replication_controller_works_alike() {
    let spec = json!({"replicas": 2, "selector": {"app": "a"}, "template": {"metadata": {"labels": {"app": "a"}}, "spec": {}}});
    let rc = testing::draft(REPLICATION_CONTROLLERS, "rc").set("/spec", spec);
    let own = testing::pod("a").label("app", "a").controller("ReplicationController", "rc", "u-rc");
    let mut both = Sets { resource: REPLICATION_CONTROLLERS };
    let world = World::new([rc.clone(), own.clone()]);
    assert_eq!(said(&world.reconcile(&mut both, "rc", at(NOW))), ["create pods in ns"]);
    let world = World::new([rc.set("/spec/replicas", json!(1)), own]);
    assert_eq!(status(&world.reconcile(&mut both, "rc", at(NOW))).get("terminatingReplicas"), None);
}

#[test]
fn pods_wake_their_set_and_orphans_those_that_may_adopt_them() {
    let world = World::new([testing::replica_set("rs", 1)]);
    let (orphan, stranger) = (testing::pod("a").label("app", "a"), testing::pod("a").label("app", "z"));
    let (mine, old) = (own("a"), own("a").controller("ReplicaSet", "rs", "u-old"));
    let wakes = |before: Option<&Draft>, after: Option<&Draft>| {
        world.wakes(watches::REPLICA_SET, before, after).concat()
    };
    assert_eq!(wakes(None, Some(&mine)), "ns/rs");
    assert_eq!(wakes(Some(&mine), None), "ns/rs");
    assert_eq!(wakes(Some(&mine), Some(&mine.clone().running())), "ns/rs");
    assert_eq!(wakes(Some(&mine), Some(&orphan)), "ns/rsns/rs", "whoever lost it, and whoever may have it");
    assert_eq!(wakes(None, Some(&orphan)), "ns/rs");
    assert_eq!(wakes(Some(&orphan), None), "", "nobody cares about orphans that go");
    assert_eq!(
        wakes(Some(&orphan), Some(&orphan.clone().running())),
        "",
        "nothing that matters to an adopter changed"
    );
    assert_eq!(wakes(None, Some(&stranger)), "");
    assert_eq!(wakes(None, Some(&old)), "", "another of that name");
}
