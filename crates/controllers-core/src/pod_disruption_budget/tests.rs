use serde_json::json;

use super::stale::{self, StaleDisruptions};
use super::*;
use crate::plan::{Outcome, Why};
use crate::resource::Resource;
use crate::testing::{self, Draft, World, at, draft, refused, replica_set, said};

const NOW: u64 = 1000;

fn budget(spec: Value) -> Draft {
    let mut spec = spec;
    spec["selector"] = json!({"matchLabels": {"app": "a"}});
    draft(POD_DISRUPTION_BUDGETS, "b").set("/spec", spec)
}

fn pod(name: &str) -> Draft {
    testing::pod(name).label("app", "a").running().ready(1)
}

fn of(owner: &Draft, name: &str) -> Draft {
    pod(name).owned_by(owner)
}

fn owner(resource: Resource, name: &str, replicas: i32) -> Draft {
    draft(resource, name).set("/spec/replicas", json!(replicas))
}

fn plan(objects: Vec<Draft>) -> Plan {
    World::new(objects).reconcile(&mut Budgets, "b", at(NOW))
}

fn written(plan: &Plan) -> Value {
    plan.acts()
        .find(|act| act.name().contains("/status"))
        .map(|act| act.body()["status"].clone())
        .unwrap_or_default()
}

/// Expected, desired, healthy, allowed.
fn counts(plan: &Plan) -> [i64; 4] {
    let status = written(plan);
    ["expectedPods", "desiredHealthy", "currentHealthy", "disruptionsAllowed"]
        .map(|what| status[what].as_i64().unwrap_or(-1))
}

#[test]
fn a_budget_counts_what_should_be_there_and_what_is() {
    let set = || replica_set("s", 4);
    let pods = || vec![set(), of(&set(), "p1"), of(&set(), "p2"), of(&set(), "p3"), of(&set(), "p4")];
    let rows: [(&str, Value, Vec<Draft>, [i64; 4]); 11] = [
        ("so many", json!({"minAvailable": 3}), pods(), [4, 3, 4, 1]),
        ("a share rounds up", json!({"minAvailable": "30%"}), pods(), [4, 2, 4, 2]),
        ("so many may go", json!({"maxUnavailable": 1}), pods(), [4, 3, 4, 1]),
        ("a share of them rounds up", json!({"maxUnavailable": "30%"}), pods(), [4, 2, 4, 2]),
        ("more than there are", json!({"maxUnavailable": 9}), pods(), [4, 0, 4, 4]),
        ("too few", json!({"minAvailable": 5}), pods(), [4, 5, 4, 0]),
        ("nobody", json!({"minAvailable": 0}), vec![], [0, 0, 0, 0]),
        (
            "bare Pods count where a number is given",
            json!({"minAvailable": 1}),
            vec![pod("x"), pod("y")],
            [2, 1, 2, 1],
        ),
        ("and nowhere else", json!({"maxUnavailable": 1}), vec![pod("x")], [0, 0, 1, 0]),
        (
            "one that is not ready, one that goes",
            json!({"minAvailable": 1}),
            vec![pod("x"), testing::pod("y").label("app", "a").running(), pod("z").deleting(true)],
            [3, 1, 1, 0],
        ),
        (
            "the set wants more than there are",
            json!({"maxUnavailable": 1}),
            vec![set(), of(&set(), "p1")],
            [4, 3, 1, 0],
        ),
    ];
    for (row, spec, objects, want) in rows {
        let plan = plan(objects.into_iter().chain([budget(spec)]).collect());
        assert_eq!(counts(&plan), want, "{row}");
    }
}

#[test]
fn every_controller_is_counted_once() {
    let deployment = owner(DEPLOYMENTS, "d", 5);
    let (old, new) =
        (replica_set("old", 1).owned_by(&deployment), replica_set("new", 3).owned_by(&deployment));
    let (set, rc) = (owner(STATEFUL_SETS, "db", 2), owner(REPLICATION_CONTROLLERS, "rc", 1));
    let pods = vec![
        of(&old, "a"),
        of(&new, "b"),
        of(&new, "c"),
        of(&set, "db-0"),
        of(&rc, "rc-x"),
        deployment,
        old,
        new,
        set,
        rc,
    ];
    let plan = plan(pods.into_iter().chain([budget(json!({"maxUnavailable": 1}))]).collect());
    assert_eq!(counts(&plan), [8, 7, 5, 0], "5 of the Deployment, 2 and 1");
}

#[test]
fn the_condition_says_whether_one_may_go() {
    let objects = |least: i32| vec![budget(json!({"minAvailable": least})), pod("x")];
    let condition = |plan: &Plan| written(plan)["conditions"][0].clone();
    assert_eq!(
        condition(&plan(objects(0))),
        json!({"type": "DisruptionAllowed", "status": "True", "reason": "SufficientPods", "message": "",
            "observedGeneration": 1, "lastTransitionTime": "1970-01-01T00:16:40Z"})
    );
    let none = plan(objects(1));
    assert_eq!(
        (&condition(&none)["status"], &condition(&none)["reason"]),
        (&json!("False"), &json!("InsufficientPods"))
    );
    let status = written(&none);
    let quiet = vec![budget(json!({"minAvailable": 1})).set("/status", status), pod("x")];
    assert_eq!(plan(quiet), Plan::nothing(), "what is said already is not written");
    let mine = json!([{"type": "Mine", "status": "True"}]);
    let kept = plan(vec![budget(json!({"minAvailable": 1})).set("/status/conditions", mine), pod("x")]);
    assert_eq!(written(&kept)["conditions"][0]["type"], "Mine", "others' conditions stay");
}

#[test]
fn an_eviction_that_was_granted_counts_until_its_pod_goes() {
    let with = |since: &str| {
        let granted = json!({"x": since, "gone": since, "going": since});
        let budget = budget(json!({"minAvailable": 1})).set("/status/disruptedPods", granted);
        plan(vec![budget, pod("x"), pod("y"), pod("going").deleting(true)])
    };
    let fresh = with("1970-01-01T00:16:00Z");
    assert_eq!(counts(&fresh), [3, 1, 1, 0]);
    assert_eq!(written(&fresh)["disruptedPods"], json!({"x": "1970-01-01T00:16:00Z"}));
    assert_eq!(fresh.wake, Some(Duration::from_secs(80)));
    let stale = with("1970-01-01T00:14:40Z");
    assert_eq!((counts(&stale), stale.wake), ([3, 1, 2, 1], None));
    assert!(written(&stale)["disruptedPods"].is_null());
    assert_eq!(
        said(&stale)[1],
        "Warning NotDeleted: Pod was expected by PDB ns/b to be deleted but it wasn't"
    );
}

/// A Pod of a kind that nobody here knows.
fn custom(name: &str) -> Draft {
    let reference = json!([{"apiVersion": "example.com/v1", "kind": "Fleet", "name": "f", "uid": "u-f", "controller": true}]);
    pod(name).set("/metadata/ownerReferences", reference)
}

fn answers(list: &[(&str, Outcome)]) -> Done {
    let act = |path: &str| Act::Get { path: path.into() };
    let acts = list.iter().map(|(path, outcome)| (act(path), outcome.clone())).collect();
    Done { acts, last: 0, rounds: 1 }
}

#[test]
fn an_unknown_kind_is_asked_for_its_scale() {
    const GROUP: &str = "/apis/example.com/v1";
    const SCALE: &str = "/apis/example.com/v1/namespaces/ns/fleets/f/scale";
    let world = World::new([budget(json!({"maxUnavailable": 1})), custom("x"), custom("y")]);
    let json = |value: Value| Outcome::Done(value.to_string().into());
    let fleets = json(json!({"resources": [{"name": "fleets/scale", "kind": "Scale", "namespaced": true},
        {"name": "fleets", "kind": "Fleet", "namespaced": true}]}));
    let bare = json(json!({"resources": [{"name": "fleets", "kind": "Fleet", "namespaced": true}]}));
    let scale = |uid: &str| json(json!({"metadata": {"uid": uid}, "spec": {"replicas": 3}}));
    let after = |list: &[(&str, Outcome)]| {
        let key = Key::new(testing::NAMESPACE, "b");
        Budgets.settle(&world.cache, &key, at(NOW), &answers(list))
    };
    assert_eq!(said(&world.reconcile(&mut Budgets, "b", at(NOW))), [format!("get {GROUP}")]);
    assert_eq!(said(&after(&[(GROUP, fleets.clone())])), [format!("get {SCALE}")]);
    assert_eq!(counts(&after(&[(GROUP, fleets.clone()), (SCALE, scale("u-f"))])), [3, 2, 2, 0]);
    let message = |plan: &Plan| {
        let status = written(plan);
        assert_eq!(
            (&status["disruptionsAllowed"], &status["conditions"][0]["reason"]),
            (&json!(0), &json!("SyncFailed"))
        );
        status["conditions"][0]["message"].as_str().unwrap_or_default().to_owned()
    };
    let none = after(&[(GROUP, bare)]);
    assert_eq!(message(&none), "fleets.example.com does not implement the scale subresource");
    assert_eq!(
        said(&none)[1],
        "Warning CalculateExpectedPodCountFailed: Failed to calculate the number of expected pods: \
         fleets.example.com does not implement the scale subresource"
    );
    let gone = refused(Why::NotFound, "gone");
    assert_eq!(
        message(&after(&[(GROUP, gone.clone())])),
        "no matches for kind \"Fleet\" in version \"example.com/v1\""
    );
    for last in [gone, scale("u-other")] {
        assert_eq!(
            message(&after(&[(GROUP, fleets.clone()), (SCALE, last)])),
            "found no controllers for pod \"x\""
        );
    }
    let odd = custom("x").set(
        "/metadata/ownerReferences",
        json!([{"apiVersion": "../v1", "kind": "Fleet", "name": "f", "uid": "u-f", "controller": true}]),
    );
    assert!(
        message(&plan(vec![budget(json!({"maxUnavailable": 1})), odd])).starts_with("no matches"),
        "no way out"
    );
}

#[test]
fn who_fails_allows_nothing_and_says_so_once() {
    let lost = replica_set("gone", 1);
    let failed = plan(vec![budget(json!({"maxUnavailable": 1})), of(&lost, "x")]);
    assert_eq!(written(&failed)["conditions"][0]["message"], "found no controllers for pod \"x\"");
    let again = budget(json!({"maxUnavailable": 1})).set("/status", written(&failed));
    assert_eq!(plan(vec![again, of(&lost, "x")]), Plan::nothing());
    let nonsense = plan(vec![budget(json!({"minAvailable": "many"}))]);
    assert_eq!(written(&nonsense)["conditions"][0]["reason"], "SyncFailed");
}

#[test]
fn users_are_told_of_what_does_not_add_up() {
    assert_eq!(
        said(&plan(vec![budget(json!({"minAvailable": 1}))]))[1],
        "Normal NoPods: No matching pods found"
    );
    let bare = plan(vec![budget(json!({"maxUnavailable": 1})), pod("x")]);
    assert!(
        said(&bare)[1].starts_with("Warning UnmanagedPods: Pods selected by this PodDisruptionBudget"),
        "{bare:?}"
    );
    let second =
        || draft(POD_DISRUPTION_BUDGETS, "c").set("/spec", json!({"minAvailable": 1, "selector": {}}));
    let world = World::new([budget(json!({"minAvailable": 1})), second(), pod("x")]);
    let told = "Warning MultiplePodDisruptionBudgets: Pod \"ns\"/\"x\" matches multiple PodDisruptionBudgets.  Chose \"b\" arbitrarily.";
    assert_eq!(said(&world.reconcile(&mut Budgets, "b", at(NOW)))[1], told);
    assert_eq!(said(&world.reconcile(&mut Budgets, "c", at(NOW))).len(), 1, "told once");
    assert_eq!(world.wakes(WATCHES, None, Some(&pod("x"))), ["ns/b", "ns/c"]);
    assert_eq!(
        world.wakes(WATCHES, Some(&pod("x")), Some(&testing::pod("x"))),
        ["ns/b", "ns/c"],
        "it was of both"
    );
    assert_eq!(world.wakes(WATCHES, None, Some(&testing::pod("x"))), ["ns/c"]);
}

#[test]
fn a_disruption_that_did_not_come_is_taken_back() {
    let target = |reason: &str, since: &str| {
        pod("x").set(
            "/status/conditions",
            json!([{"type": "Ready", "status": "True"}, {"type": "DisruptionTarget",
            "status": "True", "reason": reason, "message": "m", "lastTransitionTime": since}]),
        )
    };
    let after = |pod: Draft| World::new(pod).reconcile(&mut StaleDisruptions, "x", at(NOW));
    let (old, fresh) = ("1970-01-01T00:14:40Z", "1970-01-01T00:16:00Z");
    let taken = after(target("EvictionByEvictionAPI", old));
    assert_eq!(
        written(&taken)["conditions"],
        json!([{"type": "Ready", "status": "True"},
            {"type": "DisruptionTarget", "status": "False", "lastTransitionTime": "1970-01-01T00:16:40Z"}])
    );
    let waits = after(target("EvictionByEvictionAPI", fresh));
    assert_eq!((waits.has_acts(), waits.wake), (false, Some(Duration::from_secs(80))));
    for (row, pod) in [
        ("the kubelet's", target("TerminationByKubelet", old)),
        ("it goes", target("x", old).deleting(true)),
        ("it has ended", target("x", old).phase("Failed")),
        ("none", pod("x")),
    ] {
        assert_eq!(after(pod), Plan::nothing(), "{row}");
    }
    let world = World::new([]);
    assert!(world.wakes(stale::WATCHES, None, Some(&pod("x"))).is_empty());
    assert_eq!(world.wakes(stale::WATCHES, None, Some(&target("x", old))), ["ns/x"]);
}
