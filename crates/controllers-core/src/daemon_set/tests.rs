use serde_json::json;

use super::*;
use crate::plan::{Outcome, Why};
use crate::resource::CONTROLLER_REVISIONS;
use crate::testing::{self, Draft, World, at, draft, refused, said};

const NOW: u64 = 1000;

/// A DaemonSet with the label and selector `app=a`, whose template says which version it is.
fn set(version: &str) -> Draft {
    let template = json!({"metadata": {"labels": {"app": "a"}},
        "spec": {"containers": [{"name": "c", "image": version, "resources": {}}]}});
    let spec = json!({"selector": {"matchLabels": {"app": "a"}}, "template": template,
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}});
    draft(DAEMON_SETS, "ds").set("/spec", spec)
}

fn strategy(set: Draft, surge: Value, unavailable: Value) -> Draft {
    set.set("/spec/updateStrategy/rollingUpdate", json!({"maxSurge": surge, "maxUnavailable": unavailable}))
}

/// The revision of a version's template: `v1` has the name and the hash `v1`.
fn revision(version: &str, number: i64) -> Draft {
    let owner = set(version).object();
    let data = revision::data(&owner, &owner.value()["spec"]["template"]).unwrap_or_default();
    draft(CONTROLLER_REVISIONS, version)
        .label("app", "a")
        .label(HASH, version)
        .owned_by(&set(version))
        .set("/data", data)
        .set("/revision", json!(number))
}

fn node(name: &str) -> Draft {
    draft(NODES, name).label("kubernetes.io/hostname", name)
}

fn pod(name: &str, node: &str, version: &str) -> Draft {
    testing::pod(name)
        .label("app", "a")
        .label(HASH, version)
        .controller("DaemonSet", "ds", "u-ds")
        .on(node)
        .running()
        .ready(1)
        .created(0)
}

fn world(objects: Vec<Draft>) -> World {
    World::new(objects)
}

fn plan(objects: Vec<Draft>) -> Plan {
    world(objects).reconcile(&mut DaemonSets::default(), "ds", at(NOW))
}

/// What the plan does to Pods: `+node`, `-pod`.
fn pods(plan: &Plan) -> Vec<String> {
    plan.acts()
        .filter_map(|act| match act {
            Act::Create { resource, .. } if *resource == PODS => {
                let made = act.body();
                let made = Object::new(
                    PODS,
                    json!({"metadata": {"name": "x"}, "spec": made["spec"]}).to_string().as_bytes(),
                )?;
                Some(format!("+{}", fit::node_of(&made)?))
            }
            Act::Delete { target, .. } if target.resource == PODS => Some(format!("-{}", target.name)),
            _ => None,
        })
        .collect()
}

fn status(plan: &Plan) -> Value {
    let written = plan.acts().find(|act| act.name().contains("/status"));
    written.map(|act| act.body()["status"].clone()).unwrap_or_default()
}

#[test]
fn a_template_gets_a_revision_before_it_gets_pods() {
    let first = plan(vec![set("v1").annotation("note", "x"), node("n")]);
    assert_eq!(said(&first), ["create controllerrevisions.apps in ns"]);
    assert!(first.again);
    let made = first.steps[0].acts[0].body();
    let hash = made["metadata"]["labels"][HASH].as_str().unwrap_or_default().to_owned();
    assert_eq!(made["metadata"]["name"], format!("ds-{hash}"));
    assert_eq!(
        (&made["revision"], &made["metadata"]["annotations"], &made["metadata"]["labels"]["app"]),
        (&json!(1), &json!({"note": "x"}), &json!("a"))
    );
    assert_eq!(made["data"]["spec"]["template"]["$patch"], "replace");
    let next = plan(vec![set("v2"), revision("v1", 1), node("n")]);
    assert_eq!(next.steps[0].acts[0].body()["revision"], 2);
    let back = plan(vec![set("v1"), revision("v1", 1), revision("v2", 2), node("n")]);
    assert_eq!(said(&back), ["update controllerrevisions.apps ns/v1"], "going back gives a new number");
    assert_eq!(back.steps[0].acts[0].body()["revision"], 3);
}

#[test]
fn one_pod_on_every_node_that_fits() {
    let one = || vec![set("v1"), revision("v1", 1)];
    let with = |objects: Vec<Draft>| plan(one().into_iter().chain(objects).collect());
    let rows: [(&str, Vec<Draft>, &[&str]); 9] = [
        ("two nodes", vec![node("n"), node("m")], &["+m", "+n"]),
        ("one is served", vec![node("n"), node("m"), pod("p", "m", "v1")], &["+n"]),
        ("its pod is going", vec![node("n"), pod("p", "n", "v1").deleting(true)], &[]),
        (
            "it is going and has ended",
            vec![node("n"), pod("p", "n", "v1").deleting(true).phase("Failed")],
            &["+n"],
        ),
        (
            "two: the older stays",
            vec![node("n"), pod("p", "n", "v1").created(5), pod("q", "n", "v1")],
            &["-p"],
        ),
        ("it failed", vec![node("n"), pod("p", "n", "v1").phase("Failed")], &["-p"]),
        ("it ended well", vec![node("n"), pod("p", "n", "v1").phase("Succeeded")], &["-p"]),
        ("made for a node that went", vec![pinned("p", "gone")], &["-p"]),
        ("made for this one", vec![node("n"), pinned("p", "n")], &[]),
    ];
    for (row, objects, want) in rows {
        assert_eq!(pods(&with(objects)), want, "{row}");
    }
    assert!(
        plan(vec![set("v1").deleting(true), node("n")]).acts().next().is_none(),
        "nothing for one that goes"
    );
}

/// A Pod that waits for the scheduler.
fn pinned(name: &str, node: &str) -> Draft {
    let mut spec = json!({});
    fit::pin(&mut spec, node);
    pod(name, node, "v1").set("/spec", spec).phase("Pending").set("/status/conditions", json!([]))
}

#[test]
fn a_node_fits_by_its_name_its_labels_and_its_taints() {
    let taint =
        |key: &str, effect: &str| node("n").set("/spec/taints", json!([{"key": key, "effect": effect}]));
    let affinity = |term: Value| {
        let required = json!({"nodeSelectorTerms": [term]});
        set("v1").set(
            "/spec/template/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution",
            required,
        )
    };
    let tolerant = |toleration: Value| set("v1").set("/spec/template/spec/tolerations", json!([toleration]));
    let host = |set: Draft| set.set("/spec/template/spec/hostNetwork", json!(true));
    let rows: [(&str, Draft, Draft, Place); 18] = [
        ("anything", set("v1"), node("n"), Place::Run),
        ("its name", set("v1").set("/spec/template/spec/nodeName", json!("n")), node("n"), Place::Run),
        ("another name", set("v1").set("/spec/template/spec/nodeName", json!("m")), node("n"), Place::No),
        (
            "its label",
            set("v1").set("/spec/template/spec/nodeSelector", json!({"a": "b"})),
            node("n").label("a", "b"),
            Place::Run,
        ),
        (
            "no label",
            set("v1").set("/spec/template/spec/nodeSelector", json!({"a": "b"})),
            node("n"),
            Place::No,
        ),
        (
            "a term",
            affinity(json!({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["3"]}]})),
            node("n").label("a", "4"),
            Place::Run,
        ),
        (
            "a field",
            affinity(
                json!({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n"]}]}),
            ),
            node("n"),
            Place::No,
        ),
        ("a term that asks for nothing", affinity(json!({})), node("n"), Place::No),
        (
            "cordoned",
            set("v1"),
            taint("node.kubernetes.io/unschedulable", "NoSchedule").set("/spec/unschedulable", json!(true)),
            Place::Run,
        ),
        ("under pressure", set("v1"), taint("node.kubernetes.io/memory-pressure", "NoSchedule"), Place::Run),
        ("silent", set("v1"), taint("node.kubernetes.io/unreachable", "NoExecute"), Place::Run),
        (
            "not ready yet: only those that say so start",
            set("v1"),
            taint("node.kubernetes.io/not-ready", "NoSchedule"),
            Place::Continue,
        ),
        (
            "no network",
            set("v1"),
            taint("node.kubernetes.io/network-unavailable", "NoSchedule"),
            Place::Continue,
        ),
        (
            "no network, none needed",
            host(set("v1")),
            taint("node.kubernetes.io/network-unavailable", "NoSchedule"),
            Place::Run,
        ),
        ("tainted", set("v1"), taint("k", "NoSchedule"), Place::Continue),
        ("softly", set("v1"), taint("k", "PreferNoSchedule"), Place::Run),
        ("driven out", set("v1"), taint("k", "NoExecute"), Place::No),
        (
            "tolerated",
            tolerant(json!({"key": "k", "operator": "Exists"})),
            taint("k", "NoExecute"),
            Place::Run,
        ),
    ];
    for (row, set, node, want) in rows {
        let fit = DaemonSet::read(Arc::new(set.object())).map(|set| set.fit.place(&node.object()));
        assert_eq!(fit, Ok(want), "{row}");
    }
    let drained =
        |effect: &str| plan(vec![set("v1"), revision("v1", 1), taint("k", effect), pod("p", "n", "v1")]);
    assert!(pods(&drained("NoSchedule")).is_empty(), "who is there stays");
    assert_eq!(pods(&drained("NoExecute")), ["-p"]);
    assert_eq!(status(&drained("NoSchedule"))["numberMisscheduled"], 1);
}

#[test]
fn a_pod_is_tied_to_its_node_and_tolerates_what_befalls_it() {
    let set = set("v1")
        .annotation(TEMPLATE_GENERATION, "4")
        .set("/spec/template/spec/affinity", json!({"podAffinity": {}, "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [],
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}]}}}))
        .set("/spec/template/spec/tolerations", json!([
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9}, {"key": "mine"}]));
    let template = set.value["spec"]["template"].clone();
    let object = set.object();
    let data = revision::data(&object, &template).unwrap_or_default();
    let made = plan(vec![set, revision("v1", 1).set("/data", data), node("n")]).steps[0].acts[0].body();
    assert_eq!(made["metadata"]["labels"], json!({"app": "a", HASH: "v1", POD_TEMPLATE_GENERATION: "4"}));
    let tolerations = made["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
    assert_eq!(tolerations.len(), 7);
    assert_eq!(
        tolerations[0],
        json!({"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"})
    );
    let node_affinity = &made["spec"]["affinity"]["nodeAffinity"];
    let pinned = json!({"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]});
    assert_eq!(node_affinity["requiredDuringSchedulingIgnoredDuringExecution"], pinned);
    assert!(node_affinity["preferredDuringSchedulingIgnoredDuringExecution"].is_array(), "the rest stays");
}

#[test]
fn a_rolling_update_takes_as_many_nodes_as_may_be_without() {
    let four = ["a", "b", "c", "d"];
    let start = |strategy: Draft, pods: Vec<Draft>| {
        let mut all = vec![strategy, revision("v1", 1), revision("v2", 2)];
        all.extend(four.map(node));
        all.extend(pods);
        super::tests::pods(&plan(all))
    };
    let old = |name: &str| pod(name, name, "v1");
    let new = |name: &str| pod(name, name, "v2");
    let unready = |draft: Draft| draft.set("/status/conditions", json!([]));
    let one = || set("v2");
    let rows: [(&str, Draft, Vec<Draft>, &[&str]); 8] = [
        ("the first", one(), four.map(old).to_vec(), &["-a"]),
        (
            "half, rounded up",
            strategy(set("v2"), json!(0), json!("40%")),
            four.map(old).to_vec(),
            &["-a", "-b"],
        ),
        ("wait for the new one", one(), vec![unready(new("a")), old("b"), old("c"), old("d")], &[]),
        ("go on", one(), vec![new("a"), old("b"), old("c"), old("d")], &["-b"]),
        (
            "what does not work goes at once",
            one(),
            vec![unready(old("a")), unready(old("b")), old("c"), old("d")],
            &["-a", "-b"],
        ),
        ("one that goes counts", one(), vec![old("a").deleting(true), old("b"), old("c"), old("d")], &[]),
        ("no numbers: one", strategy(set("v2"), json!(0), json!(0)), four.map(old).to_vec(), &["-a"]),
        (
            "on delete: never",
            set("v2").set("/spec/updateStrategy", json!({"type": "OnDelete"})),
            four.map(old).to_vec(),
            &[],
        ),
    ];
    for (row, set, pods, want) in rows {
        assert_eq!(start(set, pods), want, "{row}");
    }
    let by_generation = one().annotation(TEMPLATE_GENERATION, "2");
    let known = four.map(|name| old(name).label(POD_TEMPLATE_GENERATION, "2")).to_vec();
    assert!(start(by_generation, known).is_empty(), "a Pod of this generation is up to date");
}

#[test]
fn with_surge_the_new_pod_comes_first() {
    let start = |pods: Vec<Draft>| {
        let mut all = vec![strategy(set("v2"), json!(1), json!(0)), revision("v1", 1), revision("v2", 2)];
        all.extend(["a", "b", "c"].map(node));
        all.extend(pods);
        super::tests::pods(&plan(all))
    };
    let old = |name: &str| pod(&format!("{name}1"), name, "v1");
    let new = |name: &str| pod(&format!("{name}2"), name, "v2").created(9);
    let unready = |draft: Draft| draft.set("/status/conditions", json!([]));
    let rows: [(&str, Vec<Draft>, &[&str]); 6] = [
        ("beside the first", vec![old("a"), old("b"), old("c")], &["+a"]),
        ("wait", vec![old("a"), unready(new("a")), old("b"), old("c")], &[]),
        ("the old one goes", vec![old("a"), new("a"), old("b"), old("c")], &["-a1"]),
        (
            "one that does not work is replaced at once",
            vec![unready(old("a")), unready(old("b")), old("c")],
            &["+a", "+b", "+c"],
        ),
        (
            "an old one that fails beside a new one goes",
            vec![unready(old("a")), unready(new("a")), old("b"), old("c")],
            &["-a1"],
        ),
        ("the next", vec![new("a"), old("b"), old("c")], &["+b"]),
    ];
    for (row, pods, want) in rows {
        assert_eq!(start(pods), want, "{row}");
    }
}

#[test]
fn a_pod_that_fails_again_and_again_is_replaced_ever_later() {
    let mut controller = DaemonSets::default();
    let failed = || vec![set("v1"), revision("v1", 1), node("n"), pod("p", "n", "v1").phase("Failed")];
    let first = world(failed()).reconcile(&mut controller, "ds", at(NOW));
    assert_eq!(
        said(&first),
        [
            "delete pods ns/p",
            "Warning FailedDaemonPod: Found failed daemon pod ns/p on node n, will try to kill it"
        ],
        "the first at once"
    );
    let second = world(failed()).reconcile(&mut controller, "ds", at(NOW));
    assert_eq!((pods(&second).len(), second.wake), (0, Some(Duration::from_secs(1))));
    assert_eq!(pods(&world(failed()).reconcile(&mut controller, "ds", at(NOW + 1))), ["-p"]);
    assert_eq!(
        world(failed()).reconcile(&mut controller, "ds", at(NOW + 1)).wake,
        Some(Duration::from_secs(2))
    );
    let mut other = failed();
    other[0] = set("v1").set("/status/observedGeneration", json!(7));
    assert_eq!(
        pods(&world(other).reconcile(&mut controller, "ds", at(NOW + 1))),
        ["-p"],
        "a new generation begins anew"
    );
}

#[test]
fn the_status_counts_nodes() {
    let plan = plan(vec![
        set("v2")
            .set("/spec/minReadySeconds", json!(10))
            .set("/spec/updateStrategy", json!({"type": "OnDelete"}))
            .set("/status", json!({"numberReady": 77, "conditions": [{"type": "Mine", "status": "True"}]})),
        revision("v1", 1),
        revision("v2", 2),
        node("a"),
        node("b"),
        node("c"),
        node("d").set("/spec/taints", json!([{"key": "k", "effect": "NoSchedule"}])),
        pod("a", "a", "v2"),
        pod("b", "b", "v2").ready(995),
        pod("c", "c", "v1").set("/status/conditions", json!([])),
        pod("d", "d", "v1"),
    ]);
    assert_eq!(
        status(&plan),
        json!({"desiredNumberScheduled": 3, "currentNumberScheduled": 3, "numberMisscheduled": 1, "numberReady": 2,
            "updatedNumberScheduled": 2, "numberAvailable": 1, "numberUnavailable": 2, "observedGeneration": 1,
            "conditions": [{"type": "Mine", "status": "True"}]})
    );
    assert_eq!(plan.wake, Some(Duration::from_secs(5)), "when b becomes available");
    let quiet = json!({"desiredNumberScheduled": 1, "currentNumberScheduled": 1, "numberMisscheduled": 0, "numberReady": 1,
        "updatedNumberScheduled": 1, "numberAvailable": 1, "observedGeneration": 1});
    let quiet = vec![set("v1").set("/status", quiet), revision("v1", 1), node("a"), pod("a", "a", "v1")];
    assert_eq!(super::tests::plan(quiet), Plan::nothing());
}

#[test]
fn old_revisions_beyond_the_limit_go_unless_a_pod_is_of_them() {
    let limit = |number: i32| {
        set("v4")
            .set("/spec/revisionHistoryLimit", json!(number))
            .set("/spec/updateStrategy", json!({"type": "OnDelete"}))
    };
    let start = |set: Draft| {
        let old = [revision("v1", 1), revision("v2", 2), revision("v3", 3), revision("v4", 4)];
        let all = [set, node("n"), pod("p", "n", "v1")].into_iter().chain(old).collect();
        let plan = plan(all);
        plan.acts().map(Act::name).filter(|name| name.starts_with("delete")).collect::<Vec<_>>()
    };
    assert!(start(limit(3)).is_empty());
    assert_eq!(start(limit(2)), ["delete controllerrevisions.apps ns/v2"]);
    assert_eq!(start(limit(0)).len(), 2, "the one in use stays");
}

#[test]
fn of_two_revisions_of_one_template_the_higher_stays() {
    let twice = || {
        vec![
            set("v1"),
            revision("v1", 1),
            revision("v1", 2).set("/metadata/name", json!("w")).label(HASH, "w"),
            node("n"),
        ]
    };
    let mut with_pod = twice();
    with_pod.push(pod("p", "n", "v1"));
    let first = plan(with_pod);
    assert_eq!(said(&first), ["patch pods ns/p"]);
    assert_eq!(first.steps[0].acts[0].body()["metadata"]["labels"][HASH], "w");
    assert_eq!(said(&plan(twice())), ["delete controllerrevisions.apps ns/v1"]);
}

#[test]
fn a_name_that_is_taken_counts_as_a_collision() {
    let mut controller = DaemonSets::default();
    let first = World::new([set("v1"), node("n")]);
    let made = first.reconcile(&mut controller, "ds", at(NOW));
    let name = made.steps[0].acts[0].body()["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let taken = refused(Why::AlreadyExists, "taken");
    assert!(!first.settle(&mut controller, "ds", at(NOW), &made, &taken).has_acts(), "the cache is behind");
    let stranger = draft(CONTROLLER_REVISIONS, &name).set("/data", json!({}));
    let second = World::new([set("v1"), stranger, node("n")]);
    let after = second.settle(&mut controller, "ds", at(NOW), &made, &taken);
    assert_eq!(status(&after)["collisionCount"], 1);
    let next = World::new([set("v1").set("/status", status(&after)), node("n")]);
    let next = next.reconcile(&mut controller, "ds", at(NOW)).steps[0].acts[0].body();
    assert_ne!(next["metadata"]["name"], json!(name));
}

#[test]
fn what_was_done_is_told_and_counted() {
    let mut controller = DaemonSets::default();
    let world = World::new([set("v1"), revision("v1", 1), node("n")]);
    let made = world.reconcile(&mut controller, "ds", at(NOW));
    let done = Outcome::Done(pod("ds-x7k2p", "n", "v1").value.to_string().into());
    let after = world.settle(&mut controller, "ds", at(NOW), &made, &done);
    assert_eq!(
        said(&after),
        ["update daemonsets.apps/status ns/ds", "Normal SuccessfulCreate: Created pod: ds-x7k2p"]
    );
    let quota = world.settle(&mut controller, "ds", at(NOW), &made, &refused(Why::Forbidden, "quota"));
    assert_eq!(said(&quota)[1], "Warning FailedCreate: Error creating: quota");
}

#[test]
fn heartbeats_and_owned_revisions_wake_nobody() {
    let here = || set("v1").set("/spec/template/spec/nodeSelector", json!({"a": "b"}));
    let world = World::new([here()]);
    let wakes = |old: Option<&Draft>, new: Option<&Draft>| world.wakes(watches::WATCHES, old, new).concat();
    let plain = node("n");
    assert_eq!(wakes(None, Some(&plain)), "ns/ds");
    assert_eq!(wakes(Some(&plain), None), "ns/ds");
    assert_eq!(
        wakes(Some(&plain), Some(&plain.clone().set("/status/conditions", json!([])))),
        "",
        "a heartbeat"
    );
    assert_eq!(
        wakes(Some(&plain), Some(&plain.clone().label("x", "y"))),
        "",
        "a label that says nothing to it"
    );
    assert_eq!(wakes(Some(&plain), Some(&plain.clone().label("a", "b"))), "ns/ds");
    let taint = json!([{"key": "k", "effect": "NoSchedule"}]);
    let fits = plain.clone().label("a", "b");
    assert_eq!(wakes(Some(&fits), Some(&fits.clone().set("/spec/taints", taint))), "ns/ds");
    let owned = revision("v1", 1);
    assert_eq!(wakes(None, Some(&owned)), "", "it comes with an owner");
    assert_eq!(wakes(Some(&owned), Some(&owned.clone().label("x", "y"))), "ns/ds");
    assert_eq!(wakes(Some(&owned), None), "ns/ds");
    assert_eq!(
        wakes(None, Some(&owned.clone().set("/metadata/ownerReferences", json!([])))),
        "ns/ds",
        "an orphan"
    );
    assert_eq!(wakes(None, Some(&pod("p", "n", "v1"))), "ns/ds");
}

#[test]
fn nonsense_is_told_on_the_object() {
    for (row, pointer, value) in [
        ("a word", "/spec/minReadySeconds", json!("three")),
        ("an unknown strategy", "/spec/updateStrategy/type", json!("Magic")),
        ("no template", "/spec/template", json!(null)),
        ("a template that is none", "/spec/template/spec/containers", json!("many")),
        ("everything", "/spec/selector", json!({})),
    ] {
        let plan = plan(vec![set("v1").set(pointer, value), node("n")]);
        assert_eq!((plan.acts().count(), plan.events.len()), (0, 1), "{row}");
    }
}
