use serde_json::json;

use super::*;
use crate::names;
use crate::plan::{Outcome, Why};
use crate::resource::{PERSISTENT_VOLUME_CLAIMS, PODS};
use crate::testing::{self, Draft, World, at, draft, refused, said};

const NOW: u64 = 1000;

/// A StatefulSet with the label and selector `app=a`, whose template says which version it is.
fn set(version: &str, replicas: i32) -> Draft {
    let template = json!({"metadata": {"labels": {"app": "a"}},
        "spec": {"containers": [{"name": "c", "image": version, "resources": {}}]}});
    let spec = json!({"replicas": replicas, "serviceName": "svc", "selector": {"matchLabels": {"app": "a"}},
        "template": template, "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}});
    draft(STATEFUL_SETS, "web").set("/spec", spec)
}

fn parallel(set: Draft) -> Draft {
    set.set("/spec/podManagementPolicy", json!("Parallel"))
}

fn with_claims(set: Draft) -> Draft {
    let claim = json!({"metadata": {"name": "data", "labels": {"tier": "x"}}, "spec": {"accessModes": ["ReadWriteOnce"]}});
    set.set("/spec/volumeClaimTemplates", json!([claim]))
}

/// The revision of a version's template is named after it.
fn revision(version: &str, number: i64) -> Draft {
    let owner = set(version, 1).object();
    let data = revision::data(&owner, &owner.value()["spec"]["template"]).unwrap_or_default();
    draft(CONTROLLER_REVISIONS, version)
        .label("app", "a")
        .owned_by(&set(version, 1))
        .set("/data", data)
        .set("/revision", json!(number))
}

fn pod(ordinal: i32, version: &str) -> Draft {
    let name = format!("web-{ordinal}");
    unready(ordinal, version).label("statefulset.kubernetes.io/pod-name", &name).ready(1)
}

fn unready(ordinal: i32, version: &str) -> Draft {
    let name = format!("web-{ordinal}");
    testing::pod(&name)
        .label("app", "a")
        .label(REVISION, version)
        .label("statefulset.kubernetes.io/pod-name", &name)
        .controller("StatefulSet", "web", "u-web")
        .running()
}

fn claim(ordinal: i32) -> Draft {
    draft(PERSISTENT_VOLUME_CLAIMS, &format!("data-web-{ordinal}"))
}

fn mounted(pod: Draft) -> Draft {
    let claim = format!("data-{}", pod.value["metadata"]["name"].as_str().unwrap_or_default());
    pod.set("/spec/volumes", json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]))
}

fn plan(objects: Vec<Draft>) -> Plan {
    World::new(objects).reconcile(&mut StatefulSets, "web", at(NOW))
}

/// `+web-0`, `-web-0`, `~web-0`; claims too.
fn acts(plan: &Plan) -> Vec<String> {
    let name = |act: &Act| act.body()["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    plan.acts()
        .filter_map(|act| match act {
            Act::Create { .. } => Some(format!("+{}", name(act))),
            Act::Delete { target, .. } => Some(format!("-{}", target.name)),
            Act::Update { target, .. } if target.subresource.is_empty() => Some(format!("~{}", target.name)),
            _ => None,
        })
        .collect()
}

fn status(plan: &Plan) -> Value {
    let written = plan.acts().find(|act| act.name().contains("/status"));
    written.map(|act| act.body()["status"].clone()).unwrap_or_default()
}

#[test]
fn a_template_gets_a_revision_with_upstreams_name() {
    let first = plan(vec![set("v1", 1).annotation("note", "x")]);
    let made = first.steps[0].acts[0].body();
    let hash = names::revision_hash(&revision::encode(&made["data"]), 0);
    assert_eq!(made["metadata"]["name"], format!("web-{hash}"));
    assert_eq!(made["metadata"]["labels"], json!({"app": "a", "controller.kubernetes.io/hash": hash}));
    assert_eq!((&made["revision"], &made["metadata"]["annotations"]["note"]), (&json!(1), &json!("x")));
    assert!(first.again);
    let back = plan(vec![set("v1", 1), revision("v1", 1), revision("v2", 2)]);
    assert_eq!(acts(&back), ["~v1"], "going back uses the old name");
    assert_eq!(back.steps[0].acts[0].body()["revision"], 3);
    let again = draft(CONTROLLER_REVISIONS, "v1")
        .label("app", "a")
        .set("/revision", json!(1))
        .set("/data", revision("v1", 1).value["data"].clone());
    assert_eq!(
        said(&plan(vec![set("v1", 1), again])),
        ["patch controllerrevisions.apps ns/v1"],
        "an orphan is adopted"
    );
}

#[test]
fn in_order_one_pod_waits_for_the_one_before() {
    let rows: [(&str, Draft, Vec<Draft>, &[&str]); 13] = [
        ("the first", set("v1", 3), vec![], &["+web-0"]),
        ("wait", set("v1", 3), vec![unready(0, "v1")], &[]),
        ("the next", set("v1", 3), vec![pod(0, "v1")], &["+web-1"]),
        (
            "not long enough",
            set("v1", 2).set("/spec/minReadySeconds", json!(10)),
            vec![pod(0, "v1").ready(995)],
            &[],
        ),
        ("a hole is filled first", set("v1", 3), vec![pod(1, "v1"), pod(2, "v1")], &["+web-0"]),
        ("one that failed goes first", set("v1", 3), vec![pod(0, "v1").phase("Failed")], &["-web-0"]),
        ("one that ended too", set("v1", 3), vec![pod(0, "v1").phase("Succeeded")], &["-web-0"]),
        (
            "and until it is gone nothing happens",
            set("v1", 3),
            vec![pod(0, "v1").phase("Failed").deleting(true)],
            &[],
        ),
        ("down, from the top", set("v1", 1), vec![pod(0, "v1"), pod(1, "v1"), pod(2, "v1")], &["-web-2"]),
        (
            "down, one at a time",
            set("v1", 1),
            vec![pod(0, "v1"), pod(1, "v1"), pod(2, "v1").deleting(true)],
            &[],
        ),
        (
            "an unready one below holds it",
            set("v1", 1),
            vec![pod(0, "v1"), unready(1, "v1"), unready(2, "v1")],
            &[],
        ),
        (
            "the first unready one may go",
            set("v1", 1),
            vec![pod(0, "v1"), pod(1, "v1"), unready(2, "v1")],
            &["-web-2"],
        ),
        ("not down while one is unready", set("v1", 1), vec![unready(0, "v1"), pod(1, "v1")], &[]),
    ];
    for (row, set, pods, want) in rows {
        let all = [set, revision("v1", 1)].into_iter().chain(pods).collect();
        assert_eq!(acts(&plan(all)), want, "{row}");
    }
}

#[test]
fn in_parallel_nobody_waits() {
    let rows: [(&str, Draft, Vec<Draft>, &[&str]); 5] = [
        ("all at once", parallel(set("v1", 3)), vec![], &["+web-0", "+web-1", "+web-2"]),
        ("and those that are missing", parallel(set("v1", 3)), vec![unready(1, "v1")], &["+web-0", "+web-2"]),
        (
            "down at once",
            parallel(set("v1", 1)),
            vec![unready(0, "v1"), pod(1, "v1"), unready(2, "v1")],
            &["-web-2", "-web-1"],
        ),
        (
            "a failed one goes and the others come",
            parallel(set("v1", 2)),
            vec![pod(0, "v1").phase("Failed")],
            &["+web-1", "-web-0"],
        ),
        (
            "one that is going holds nobody",
            parallel(set("v1", 1)),
            vec![pod(0, "v1").phase("Failed").deleting(true), pod(1, "v1")],
            &["-web-1"],
        ),
    ];
    for (row, set, pods, want) in rows {
        let all = [set, revision("v1", 1)].into_iter().chain(pods).collect();
        assert_eq!(acts(&plan(all)), want, "{row}");
    }
    let many = plan(vec![parallel(set("v1", i32::MAX)), revision("v1", 1)]);
    assert_eq!(many.acts().count(), BURST, "a number without sense asks for no more than that");
}

#[test]
fn ordinals_may_begin_anywhere() {
    let shifted = |replicas: i32| set("v1", replicas).set("/spec/ordinals", json!({"start": 5}));
    let start = |replicas: i32, pods: Vec<Draft>| {
        acts(&plan([shifted(replicas), revision("v1", 1)].into_iter().chain(pods).collect()))
    };
    assert_eq!(start(2, vec![]), ["+web-5"]);
    assert_eq!(start(2, vec![pod(5, "v1"), pod(6, "v1"), pod(0, "v1")]), ["-web-0"]);
    assert_eq!(start(1, vec![pod(5, "v1"), pod(6, "v1")]), ["-web-6"]);
}

#[test]
fn a_new_template_comes_from_the_top_down_to_the_partition() {
    let partition =
        |number: i32| set("v2", 3).set("/spec/updateStrategy/rollingUpdate/partition", json!(number));
    let most = |value: Value| set("v2", 3).set("/spec/updateStrategy/rollingUpdate/maxUnavailable", value);
    let old = |n| pod(n, "v1");
    let rows: [(&str, Draft, Vec<Draft>, &[&str]); 12] = [
        ("the last first", set("v2", 3), vec![old(0), old(1), old(2)], &["-web-2"]),
        ("then the next", set("v2", 3), vec![old(0), old(1), pod(2, "v2")], &["-web-1"]),
        (
            "when it is available",
            set("v2", 3).set("/spec/minReadySeconds", json!(10)),
            vec![old(0), old(1), pod(2, "v2").ready(995)],
            &[],
        ),
        ("even in parallel", parallel(set("v2", 3)), vec![old(0), old(1), unready(2, "v2")], &[]),
        (
            "in parallel those outside of the range go at the same time",
            parallel(set("v2", 3)),
            vec![old(0), old(1), old(2), old(3)],
            &["-web-3", "-web-2"],
        ),
        (
            "one that has ended goes once",
            parallel(set("v2", 3)),
            vec![old(0), old(1), old(2).phase("Failed")],
            &["-web-2"],
        ),
        ("not below the partition", partition(2), vec![old(0), old(1), pod(2, "v2")], &[]),
        (
            "an index, not an ordinal",
            partition(1).set("/spec/ordinals", json!({"start": 5})),
            vec![old(5), old(6), pod(7, "v2")],
            &["-web-6"],
        ),
        (
            "on delete",
            set("v2", 3).set("/spec/updateStrategy", json!({"type": "OnDelete"})),
            vec![old(0), old(1), old(2)],
            &[],
        ),
        ("two may be without", most(json!(2)), vec![old(0), old(1), old(2)], &["-web-2", "-web-1"]),
        ("a share, never none", most(json!("10%")), vec![old(0), old(1), old(2)], &["-web-2"]),
        (
            "one is without already",
            parallel(most(json!(2))),
            vec![old(0), old(1), unready(2, "v2")],
            &["-web-1"],
        ),
    ];
    for (row, set, pods, want) in rows {
        let all = [set, revision("v1", 1), revision("v2", 2)].into_iter().chain(pods).collect();
        assert_eq!(acts(&plan(all)), want, "{row}");
    }
}

#[test]
fn a_broken_pod_of_the_new_template_holds_the_way_back_in_order() {
    let back = |set: Draft, last: Option<Draft>| {
        let pods = [pod(0, "v1"), pod(1, "v1")].into_iter().chain(last);
        acts(&plan([set, revision("v2", 2), revision("v1", 3)].into_iter().chain(pods).collect()))
    };
    assert!(back(set("v1", 3), Some(unready(2, "v2"))).is_empty());
    assert_eq!(back(set("v1", 3), None), ["+web-2"], "somebody deleted it");
    assert_eq!(back(parallel(set("v1", 3)), Some(unready(2, "v2"))), ["-web-2"]);
}

#[test]
fn a_name_that_another_revision_has_is_passed_over() {
    let name = |set: Draft| plan(vec![set]).steps[0].acts[0].body()["metadata"]["name"].clone();
    let taken = name(set("v1", 1));
    let foreign =
        draft(CONTROLLER_REVISIONS, taken.as_str().unwrap_or_default()).set("/data", json!({"x": 1}));
    let world = World::new([set("v1", 1), foreign]);
    let made = world.reconcile(&mut StatefulSets, "web", at(NOW));
    let after = world.settle(&mut StatefulSets, "web", at(NOW), &made, &refused(Why::AlreadyExists, "taken"));
    assert_eq!(status(&after)["collisionCount"], 1);
    assert_ne!(name(set("v1", 1).set("/status/collisionCount", json!(1))), taken);
}

#[test]
fn a_pod_that_is_made_again_has_the_template_of_its_place() {
    let image = |set: Draft, pods: Vec<Draft>| {
        let set = set.set("/status", json!({"currentRevision": "v1", "currentReplicas": 2}));
        let plan = plan([set, revision("v1", 1), revision("v2", 2)].into_iter().chain(pods).collect());
        let made = plan.steps[0].acts[0].body();
        (made["spec"]["containers"][0]["image"].clone(), made["metadata"]["labels"][REVISION].clone())
    };
    let canary = || set("v2", 3).set("/spec/updateStrategy/rollingUpdate/partition", json!(2));
    assert_eq!(image(canary(), vec![pod(0, "v1"), pod(2, "v2")]), (json!("v1"), json!("v1")));
    assert_eq!(image(canary(), vec![pod(0, "v1"), pod(1, "v1")]), (json!("v2"), json!("v2")));
    let plain = set("v2", 3).set("/spec/updateStrategy", json!({"type": "RollingUpdate"}));
    assert_eq!(
        image(plain, vec![pod(0, "v1")]).0,
        "v1",
        "nothing said: the first so many are of the old one"
    );
}

#[test]
fn a_pod_knows_who_it_is() {
    let set = with_claims(set("v1", 1)).set(
        "/spec/template/spec/volumes",
        json!([{"name": "data", "emptyDir": {}}, {"name": "x", "emptyDir": {}}]),
    );
    let template = set.value["spec"]["template"].clone();
    let data = revision::data(&set.object(), &template).unwrap_or_default();
    let plan = plan(vec![set, revision("v1", 1).set("/data", data)]);
    assert_eq!(acts(&plan), ["+data-web-0", "+web-0"], "the claim first");
    let claim = plan.steps[0].acts[0].body();
    assert_eq!(
        claim["metadata"],
        json!({"name": "data-web-0", "namespace": "ns", "labels": {"tier": "x", "app": "a"}})
    );
    let made = plan.steps[1].acts[0].body();
    assert_eq!(
        made["metadata"]["labels"],
        json!({"app": "a", "statefulset.kubernetes.io/pod-name": "web-0", "apps.kubernetes.io/pod-index": "0", REVISION: "v1"})
    );
    assert_eq!((&made["spec"]["hostname"], &made["spec"]["subdomain"]), (&json!("web-0"), &json!("svc")));
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data-web-0"}}, {"name": "x", "emptyDir": {}}]);
    assert_eq!(made["spec"]["volumes"], volumes);
    let stripped = pod(0, "v1").label("statefulset.kubernetes.io/pod-name", "stolen");
    assert_eq!(
        acts(&super::tests::plan(vec![super::tests::set("v1", 1), revision("v1", 1), stripped])),
        ["~web-0"]
    );
}

#[test]
fn claims_have_the_owner_that_the_policy_gives_them() {
    let policy = |deleted: &str, scaled: &str| {
        with_claims(set("v1", 1)).set(
            "/spec/persistentVolumeClaimRetentionPolicy",
            json!({"whenDeleted": deleted, "whenScaled": scaled}),
        )
    };
    let owner = |set: Draft, ordinal: i32, claim: Draft| {
        let pods = [mounted(pod(0, "v1")), mounted(pod(ordinal, "v1"))];
        let plan = plan([set, revision("v1", 1), claim].into_iter().chain(pods).collect());
        let write = plan.acts().find(|act| act.name().contains("persistentvolumeclaims"));
        let owners = write.map(|act| act.body()["metadata"]["ownerReferences"].clone());
        owners.map(|owners| {
            owners
                .as_array()
                .into_iter()
                .flatten()
                .map(|one| one["uid"].as_str().unwrap_or_default().to_owned())
                .collect::<Vec<_>>()
                .join(",")
        })
    };
    let some = |text: &str| Some(text.to_owned());
    let owned = |uid: &str| {
        claim(0).set(
            "/metadata/ownerReferences",
            json!([{"kind": "StatefulSet", "name": "web", "uid": uid, "controller": true}]),
        )
    };
    assert_eq!(owner(policy("Retain", "Retain"), 0, claim(0)), None);
    assert_eq!(owner(policy("Retain", "Retain"), 0, owned("u-web")), some(""), "the policy changed");
    assert_eq!(owner(policy("Delete", "Retain"), 0, claim(0)), some("u-web"));
    assert_eq!(owner(policy("Delete", "Retain"), 0, owned("u-web")), None);
    assert_eq!(owner(policy("Retain", "Delete"), 0, claim(0)), None);
    assert_eq!(owner(policy("Retain", "Delete"), 1, claim(1)), some("u-web-1"), "condemned");
    assert_eq!(owner(policy("Delete", "Delete"), 0, claim(0)), some("u-web"));
    assert_eq!(owner(policy("Delete", "Delete"), 1, claim(1)), some("u-web-1"));
    assert_eq!(owner(policy("Delete", "Retain"), 0, owned("u-old")), None, "a former set's");
    let foreign = claim(0).set(
        "/metadata/ownerReferences",
        json!([{"kind": "X", "name": "x", "uid": "u-x", "controller": true}]),
    );
    assert_eq!(owner(policy("Delete", "Retain"), 0, foreign), None, "another's");
}

#[test]
fn a_pod_waits_for_a_claim_that_is_going() {
    let gone = plan(vec![with_claims(set("v1", 1)), revision("v1", 1), claim(0).deleting(true)]);
    assert_eq!((acts(&gone).len(), gone.failure.as_deref()), (0, Some("pvc data-web-0 is being deleted")));
    let stale = claim(0)
        .set("/metadata/ownerReferences", json!([{"kind": "Pod", "name": "web-0", "uid": "u-former"}]));
    let deletes = with_claims(set("v1", 1))
        .set("/spec/persistentVolumeClaimRetentionPolicy", json!({"whenScaled": "Delete"}));
    assert!(acts(&plan(vec![deletes, revision("v1", 1), stale])).is_empty(), "it goes with the former Pod");
    let world = World::new([with_claims(set("v1", 1))]);
    assert_eq!(world.wakes(watches::WATCHES, Some(&claim(0)), None), ["ns/web"], "and then the set is woken");
    assert!(world.wakes(watches::WATCHES, None, Some(&claim(0))).is_empty());
    let pending = mounted(unready(0, "v1").phase("Pending"));
    assert_eq!(acts(&plan(vec![with_claims(set("v1", 1)), revision("v1", 1), pending])), ["+data-web-0"]);
}

#[test]
fn the_status_counts_and_completes() {
    let shown = |objects: Vec<Draft>| status(&plan(objects));
    let set = |version| {
        set(version, 2).set("/status", json!({"currentRevision": "v1", "conditions": [{"type": "Mine"}]}))
    };
    let under_way =
        shown(vec![set("v2"), revision("v1", 1), revision("v2", 2), pod(0, "v1"), unready(1, "v2")]);
    assert_eq!(
        under_way,
        json!({"observedGeneration": 1, "replicas": 2, "readyReplicas": 1, "availableReplicas": 1, "currentReplicas": 1,
            "updatedReplicas": 1, "currentRevision": "v1", "updateRevision": "v2", "collisionCount": 0})
    );
    let done = shown(vec![set("v2"), revision("v1", 1), revision("v2", 2), pod(0, "v2"), pod(1, "v2")]);
    assert_eq!((&done["currentRevision"], &done["currentReplicas"]), (&json!("v2"), &json!(2)));
    let quiet = set("v2").set("/status", done).set("/status/conditions", json!([{"type": "Mine"}]));
    assert_eq!(
        plan(vec![quiet, revision("v1", 1), revision("v2", 2), pod(0, "v2"), pod(1, "v2")]),
        Plan::nothing()
    );
    let going = plan(vec![set("v1").deleting(true), revision("v1", 1)]);
    assert_eq!((acts(&going).len(), status(&going)["replicas"].as_i64()), (0, Some(0)));
}

#[test]
fn revisions_beyond_the_limit_go_unless_a_pod_is_of_them() {
    let set = set("v4", 1)
        .set("/spec/revisionHistoryLimit", json!(0))
        .set("/spec/updateStrategy", json!({"type": "OnDelete"}));
    let all =
        vec![set, revision("v1", 1), revision("v2", 2), revision("v3", 3), revision("v4", 4), pod(0, "v2")];
    assert_eq!(acts(&plan(all)), ["-v1", "-v3"]);
}

#[test]
fn what_was_done_is_told_in_upstreams_words() {
    let world = World::new([with_claims(set("v1", 1)), revision("v1", 1)]);
    let made = world.reconcile(&mut StatefulSets, "web", at(NOW));
    let after = world.settle(&mut StatefulSets, "web", at(NOW), &made, &Outcome::Done(bytes::Bytes::new()));
    assert_eq!(
        said(&after)[1..],
        [
            "Normal SuccessfulCreate: create Claim data-web-0 Pod web-0 in StatefulSet web success",
            "Normal SuccessfulCreate: create Pod web-0 in StatefulSet web successful"
        ]
    );
    let quota = world.settle(&mut StatefulSets, "web", at(NOW), &made, &refused(Why::Forbidden, "quota"));
    assert_eq!(
        said(&quota)[2],
        "Warning FailedCreate: create Pod web-0 in StatefulSet web failed error: quota"
    );
    let down = World::new([set("v1", 0), revision("v1", 1), pod(0, "v1")]);
    let made = down.reconcile(&mut StatefulSets, "web", at(NOW));
    let after = down.settle(&mut StatefulSets, "web", at(NOW), &made, &Outcome::Done(bytes::Bytes::new()));
    assert_eq!(said(&after)[1], "Normal SuccessfulDelete: delete Pod web-0 in StatefulSet web successful");
}

#[test]
fn only_pods_with_its_name_are_its_own() {
    let orphan = |name: &str| testing::pod(name).label("app", "a");
    let plan =
        plan(vec![set("v1", 1), orphan("web-3"), orphan("webby-1"), orphan("web-x"), orphan("web-1-2")]);
    assert_eq!(said(&plan), ["patch pods ns/web-3"]);
    assert_eq!(plan.steps[0].acts[0].resource(), Some(PODS));
}

#[test]
fn nonsense_is_told_on_the_object() {
    for (row, pointer, value) in [
        ("a word", "/spec/replicas", json!("three")),
        ("an unknown strategy", "/spec/updateStrategy/type", json!("Magic")),
        ("no share", "/spec/updateStrategy/rollingUpdate/maxUnavailable", json!("many")),
        ("no template", "/spec/template", json!(null)),
        ("everything", "/spec/selector", json!({})),
    ] {
        let plan = plan(vec![set("v1", 1).set(pointer, value)]);
        assert_eq!((plan.acts().count(), plan.events.len()), (0, 1), "{row}");
    }
}
