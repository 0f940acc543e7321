use super::*;
use crate::testing::{self, Draft, World, at, refused, said};

const NOW: u64 = 1000;

fn template(image: &str) -> Value {
    json!({"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": image}]}})
}

/// `d`, with the template of image `v2`.
fn deployment(replicas: i32) -> Draft {
    testing::draft(DEPLOYMENTS, "d").set(
        "/spec",
        json!({"replicas": replicas, "selector": {"matchLabels": {"app": "a"}}, "template": template("v2"),
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
            "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600}),
    )
}

fn strategy(draft: Draft, surge: i32, unavailable: i32) -> Draft {
    draft.set("/spec/strategy/rollingUpdate", json!({"maxSurge": surge, "maxUnavailable": unavailable}))
}

/// A set of `d` whose size, and whose Pods that are available, are these. Sized for ten with three more.
fn set(name: &str, image: &str, revision: i64, size: i32, available: i32) -> Draft {
    testing::draft(REPLICA_SETS, name)
        .label("app", "a")
        .controller("Deployment", "d", "u-d")
        .created(revision)
        .annotation(REVISION, &revision.to_string())
        .annotation("deployment.kubernetes.io/desired-replicas", "10")
        .annotation("deployment.kubernetes.io/max-replicas", "13")
        .set(
            "/spec",
            json!({"replicas": size, "selector": {"matchLabels": {"app": "a"}}, "template": template(image)}),
        )
        .set(
            "/status",
            json!({"replicas": size, "readyReplicas": available, "availableReplicas": available,
            "observedGeneration": 1, "terminatingReplicas": 0}),
        )
}

fn plan(objects: impl IntoIterator<Item = Draft>) -> Plan {
    World::new(objects).reconcile(&mut Deployments::default(), "d", at(NOW))
}

/// `name=size` for each ReplicaSet that is resized, `new=size` for one that is made.
fn sizes(plan: &Plan) -> Vec<String> {
    plan.acts()
        .filter(|act| act.resource() == Some(REPLICA_SETS))
        .map(|act| match act {
            Act::Create { .. } => format!("new={}", act.body()["spec"]["replicas"]),
            Act::Update { target, .. } => format!("{}={}", target.name, act.body()["spec"]["replicas"]),
            other => other.name(),
        })
        .collect()
}

fn status(plan: &Plan) -> Value {
    let written = plan.acts().find(|act| act.resource() == Some(DEPLOYMENTS));
    written.map(|act| act.body()["status"].clone()).unwrap_or_default()
}

fn condition(plan: &Plan, kind: &str) -> [String; 3] {
    let status = status(plan);
    let found = conditions::find(&status, kind).cloned().unwrap_or_default();
    ["status", "reason", "message"].map(|key| found[key].as_str().unwrap_or_default().to_owned())
}

/// Ten replicas, three more, two fewer: what a rollout does from each state.
#[test]
fn a_rollout_goes_step_by_step() {
    let rows: [(&str, Vec<Draft>, &[&str]); 10] = [
        (
            "a status that is behind its set promises nothing",
            vec![
                set("oldest", "v0", 1, 8, 0).set("/status/availableReplicas", json!(10)),
                set("older", "v1", 2, 5, 0),
                set("new", "v2", 3, 0, 0),
            ],
            &["older=0"],
        ),
        ("nothing yet: all at once", vec![], &["new=10"]),
        ("a new template: as many as may be more", vec![set("old", "v1", 1, 10, 10)], &["new=3"]),
        (
            "the new ones are not available: two old ones may go",
            vec![set("old", "v1", 1, 10, 10), set("new", "v2", 2, 3, 0)],
            &["old=8"],
        ),
        ("room again", vec![set("old", "v1", 1, 8, 8), set("new", "v2", 2, 3, 0)], &["new=5"]),
        ("all is used: wait", vec![set("old", "v1", 1, 8, 8), set("new", "v2", 2, 5, 0)], &[]),
        ("five are available", vec![set("old", "v1", 1, 8, 8), set("new", "v2", 2, 5, 5)], &["old=3"]),
        (
            "what is not available goes first, of the oldest",
            vec![set("oldest", "v0", 1, 4, 1), set("older", "v1", 2, 5, 5), set("new", "v2", 3, 4, 4)],
            &["oldest=0", "older=4"],
        ),
        ("the new one is too large", vec![set("new", "v2", 2, 12, 12)], &["new=10"]),
        ("the last step", vec![set("old", "v1", 1, 3, 3), set("new", "v2", 2, 10, 10)], &["old=0"]),
    ];
    for (row, sets, want) in rows {
        let objects = sets.into_iter().chain([strategy(deployment(10), 3, 2)]);
        assert_eq!(sizes(&plan(objects)), want, "{row}");
    }
}

#[test]
fn the_new_set_is_made_as_upstream_makes_it() {
    let objects = [
        deployment(4).annotation("a", "1").annotation(REVISION, "7"),
        set("old", "v1", 7, 4, 4).annotation("deployment.kubernetes.io/desired-replicas", "4"),
    ];
    let plan = plan(objects);
    let made = plan.steps[0].acts[0].body();
    let hash = made["metadata"]["labels"]["pod-template-hash"].as_str().unwrap_or_default().to_owned();
    assert!(
        (5..=10).contains(&hash.len()) && hash.chars().all(|c| "bcdfghjklmnpqrstvwxz2456789".contains(c)),
        "{hash}"
    );
    assert_eq!(made["metadata"]["name"], format!("d-{hash}"));
    assert_eq!(made["spec"]["selector"]["matchLabels"], json!({"app": "a", "pod-template-hash": hash}));
    assert_eq!(
        made["spec"]["template"]["metadata"]["labels"],
        json!({"app": "a", "pod-template-hash": hash})
    );
    assert_eq!(
        made["metadata"]["annotations"],
        json!({"a": "1", REVISION: "8", "deployment.kubernetes.io/desired-replicas": "4",
            "deployment.kubernetes.io/max-replicas": "5"})
    );
    assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "u-d");
}

#[test]
fn another_number_in_the_middle_of_a_rollout_is_shared() {
    let rows: [(&str, Draft, Vec<Draft>, &[&str]); 6] = [
        (
            "8 and 5 of ten become 20 and 13 of thirty",
            strategy(deployment(30), 3, 2),
            vec![set("old", "v1", 1, 8, 8), set("new", "v2", 2, 5, 0)],
            &["old=20", "new=13"],
        ),
        ("only one is active: all to it", deployment(30), vec![set("old", "v1", 1, 10, 10)], &["old=30"]),
        (
            "none is active: all to the new one",
            deployment(5).set("/spec/paused", json!(true)),
            vec![set("old", "v1", 1, 0, 0), set("new", "v2", 2, 0, 0)],
            &["new=5"],
        ),
        (
            "to none: nothing is left anywhere",
            deployment(0),
            vec![set("old", "v1", 1, 8, 8), set("new", "v2", 2, 5, 5)],
            &["old=0", "new=0"],
        ),
        (
            "a paused one makes no new set",
            deployment(10).set("/spec/paused", json!(true)),
            vec![set("old", "v1", 1, 10, 10)],
            &[],
        ),
        (
            "down, in proportion",
            strategy(deployment(5), 0, 1),
            vec![set("old", "v1", 1, 8, 8), set("new", "v2", 2, 5, 5)],
            &["old=3", "new=2"],
        ),
    ];
    for (row, deployment, sets, want) in rows {
        assert_eq!(sizes(&plan(sets.into_iter().chain([deployment]))), want, "{row}");
    }
}

#[test]
fn recreate_waits_until_the_last_pod_is_gone() {
    let recreate = || deployment(2).set("/spec/strategy", json!({"type": "Recreate"}));
    let old =
        |size| set("old", "v1", 1, size, 0).annotation("deployment.kubernetes.io/desired-replicas", "2");
    let pod = || testing::pod("p").controller("ReplicaSet", "old", "u-old").running();
    assert_eq!(sizes(&plan([recreate(), old(2)])), ["old=0"]);
    assert!(
        sizes(&plan([recreate(), old(0), pod().deleting(true)])).is_empty(),
        "a terminating Pod still runs"
    );
    assert_eq!(sizes(&plan([recreate(), old(0), pod().phase("Succeeded")])), ["new=2"]);
    assert_eq!(sizes(&plan([recreate(), old(0)])), ["new=2"]);
    let world = World::new([recreate(), old(0)]);
    assert_eq!(world.wakes(watches::WATCHES, Some(&pod()), None), ["ns/d"]);
    assert!(World::new([deployment(2), old(0)]).wakes(watches::WATCHES, Some(&pod()), None).is_empty());
}

#[test]
fn going_back_raises_the_revision_and_remembers_the_old_one() {
    let back = plan([
        deployment(10),
        set("other", "v3", 3_546_343_826_724_305_832, 10, 10),
        set("new", "v2", 1, 0, 0),
    ]);
    let body = back.steps[0].acts[0].body();
    assert_eq!(
        body["metadata"]["annotations"][REVISION], "3546343826724305833",
        "revisions are 64 bits wide"
    );
    assert_eq!(body["metadata"]["annotations"]["deployment.kubernetes.io/revision-history"], "1");
    assert!(back.again && back.acts().count() == 1, "the rest waits until that is seen");
}

#[test]
fn the_revision_goes_to_the_deployment_through_its_status() {
    let plan = plan([deployment(10), set("new", "v2", 4, 10, 10)]);
    let written = plan.acts().last().map(Act::body).unwrap_or_default();
    assert_eq!(written["metadata"]["annotations"][REVISION], "4");
}

#[test]
fn the_status_sums_up_and_tells_progress_in_upstreams_words() {
    let under_way =
        plan([strategy(deployment(10), 3, 2), set("old", "v1", 1, 8, 8), set("new", "v2", 2, 5, 0)]);
    let shown = status(&under_way);
    let counts = ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas", "unavailableReplicas"];
    assert_eq!(counts.map(|key| shown[key].as_i64()), [Some(13), Some(5), Some(8), Some(8), Some(5)]);
    assert_eq!(
        condition(&under_way, "Available"),
        ["True", "MinimumReplicasAvailable", "Deployment has minimum availability."]
    );
    assert_eq!(
        condition(&under_way, "Progressing"),
        ["True", "ReplicaSetUpdated", "ReplicaSet \"new\" is progressing."]
    );
    let done = plan([deployment(10), set("new", "v2", 2, 10, 10)]);
    let want = ["True", "NewReplicaSetAvailable", "ReplicaSet \"new\" has successfully progressed."];
    assert_eq!(condition(&done, "Progressing"), want);
    let short = plan([deployment(10), set("new", "v2", 2, 10, 1)]);
    let want = ["False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability."];
    assert_eq!(condition(&short, "Available"), want);
}

/// Between two looks nothing happened.
fn stuck(updated: i64, reason: &str) -> Plan {
    let time = crate::terms::timestamp(base::time::Wall::from_secs(updated));
    let status = json!({"replicas": 10, "updatedReplicas": 10, "readyReplicas": 1, "availableReplicas": 1,
        "unavailableReplicas": 9, "observedGeneration": 1, "terminatingReplicas": 0, "conditions": [
            {"type": "Progressing", "status": "True", "reason": reason, "lastUpdateTime": time, "lastTransitionTime": time}]});
    plan([deployment(10).set("/status", status), set("new", "v2", 2, 10, 1)])
}

#[test]
fn a_lack_of_progress_is_told_when_its_time_has_come() {
    let waiting = stuck(500, "ReplicaSetUpdated");
    assert_eq!(
        waiting.wake,
        Some(std::time::Duration::from_secs(101)),
        "600 s after the last progress, and one more"
    );
    let late = stuck(399, "ReplicaSetUpdated");
    let want = ["False", "ProgressDeadlineExceeded", "ReplicaSet \"new\" has timed out progressing."];
    assert_eq!((condition(&late, "Progressing"), late.wake), (want.map(str::to_owned), None));
    let over = stuck(1, "NewReplicaSetAvailable");
    assert_eq!(
        condition(&over, "Progressing")[1],
        "NewReplicaSetAvailable",
        "what was complete never times out"
    );
}

#[test]
fn a_pause_is_noted_and_so_is_its_end() {
    let paused = plan([deployment(10).set("/spec/paused", json!(true)), set("new", "v2", 2, 10, 10)]);
    assert_eq!(condition(&paused, "Progressing"), ["Unknown", "DeploymentPaused", "Deployment is paused"]);
    let resumed = plan([deployment(10).set("/status", status(&paused)), set("new", "v2", 2, 10, 1)]);
    assert_eq!(condition(&resumed, "Progressing"), ["Unknown", "DeploymentResumed", "Deployment is resumed"]);
}

#[test]
fn old_sets_beyond_the_limit_go_when_all_is_done() {
    let complete = json!({"replicas": 10, "updatedReplicas": 10, "readyReplicas": 10, "availableReplicas": 10,
        "observedGeneration": 1});
    let objects = [
        deployment(10).set("/status", complete).set("/spec/revisionHistoryLimit", json!(1)),
        set("a", "v0", 1, 0, 0),
        set("b", "v1", 2, 0, 0),
        set("new", "v2", 3, 10, 10),
    ];
    assert_eq!(sizes(&plan(objects.clone())), ["delete replicasets.apps ns/a"]);
    let busy = objects.map(|draft| match &draft.value["metadata"]["name"] {
        name if name == "a" => draft.set("/status/replicas", json!(1)),
        _ => draft,
    });
    assert!(sizes(&plan(busy)).is_empty(), "one that still has Pods stays");
}

#[test]
fn a_set_that_cannot_be_made_is_told() {
    let world = World::new(deployment(1));
    let mut controller = Deployments::default();
    let made = world.reconcile(&mut controller, "d", at(NOW));
    let after = world.settle(&mut controller, "d", at(NOW), &made, &refused(Why::Forbidden, "no quota"));
    let name = made.steps[0].acts[0].body()["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let message = format!("Failed to create new replica set \"{name}\": no quota");
    assert_eq!(condition(&after, "Progressing"), ["False", "ReplicaSetCreateError", &message]);
    assert_eq!(said(&after)[1], format!("Warning ReplicaSetCreateError: {message}"));
    let world =
        World::new([deployment(1), set(&name, "stranger", 1, 0, 0).controller("Deployment", "x", "u-x")]);
    let after = world.settle(&mut controller, "d", at(NOW), &made, &refused(Why::AlreadyExists, "taken"));
    assert_eq!(status(&after)["collisionCount"], 1, "the name is another's: try the next");
}

#[test]
fn what_was_scaled_is_told_once_it_is_done() {
    let world =
        World::new([strategy(deployment(10), 3, 2), set("old", "v1", 1, 10, 10), set("new", "v2", 2, 3, 0)]);
    let mut controller = Deployments::default();
    let made = world.reconcile(&mut controller, "d", at(NOW));
    assert!(made.events.is_empty());
    let done = Outcome::Done(bytes::Bytes::new());
    let after = world.settle(&mut controller, "d", at(NOW), &made, &done);
    assert_eq!(said(&after), ["Normal ScalingReplicaSet: Scaled down replica set old from 10 to 8"]);
    assert!(said(&world.settle(&mut controller, "d", at(NOW), &made, &done)).is_empty(), "and once only");
}

#[test]
fn nonsense_is_told_on_the_object() {
    for (row, pointer, value) in [
        ("a word", "/spec/replicas", json!("three")),
        ("an unknown strategy", "/spec/strategy/type", json!("Magic")),
        ("no share", "/spec/strategy/rollingUpdate/maxSurge", json!("many")),
        ("no template", "/spec/template", json!(null)),
    ] {
        let plan = plan([deployment(3).set(pointer, value)]);
        assert_eq!((plan.acts().count(), plan.events.len()), (0, 1), "{row}");
    }
    assert_eq!(
        said(&plan([deployment(3).set("/spec/selector", json!({}))]))[1].split(':').next(),
        Some("Warning SelectingAll")
    );
}
