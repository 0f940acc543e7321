use std::sync::Arc;

use super::history::limit;
use super::replicas::{Advice, Target, Usage, Used};
use super::spec::{Behavior, Policy, Rules, Select, Tolerances};
use super::*;
use crate::testing::{self, Draft, Ran, World, at, draft};

const NOW: u64 = 10_000;
const SCALE: &str = "/apis/apps/v1/namespaces/ns/deployments/web/scale";
const USAGE: &str = "/apis/metrics.k8s.io/v1beta1/namespaces/ns/pods?labelSelector=app%3Da";

fn hpa(metrics: Value) -> Draft {
    draft(HORIZONTAL_POD_AUTOSCALERS, "h").set(
        "/spec",
        json!({"minReplicas": 1, "maxReplicas": 10, "metrics": metrics,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}),
    )
}

fn cpu(percent: i32) -> Value {
    json!({"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": percent}}})
}

/// A Pod that requests a tenth of a CPU and is ready for long.
fn pod(name: &str) -> Draft {
    let containers = json!([{"name": "c", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}]);
    testing::pod(name)
        .label("app", "a")
        .set("/spec/containers", containers)
        .running()
        .set("/status/startTime", json!(timestamp(Wall::from_secs(1))))
        .ready(10)
}

/// A world in which so many Pods of a Deployment use so much CPU each.
fn world(hpa: Draft, pods: &[&str], used: &str) -> World {
    let mut world = World::new(pods.iter().map(|name| pod(name)).chain([hpa]));
    let resources = json!({"resources": [
        {"name": "deployments", "kind": "Deployment", "namespaced": true},
        {"name": "deployments/scale", "kind": "Scale", "namespaced": true}]});
    world.answers.insert("/apis/apps/v1".into(), resources);
    let sample = |name: &&str| {
        json!({"metadata": {"name": name}, "timestamp": timestamp(Wall::from_secs(9_990)),
        "window": "30s", "containers": [{"name": "c", "usage": {"cpu": used, "memory": "32Mi"}}]})
    };
    let samples: Vec<Value> = pods.iter().map(sample).collect();
    world.answers.insert(USAGE.into(), json!({"items": samples}));
    scale(&mut world, pods.len());
    world
}

fn scale(world: &mut World, replicas: usize) {
    let scale = json!({"metadata": {"name": "web"}, "spec": {"replicas": replicas},
        "status": {"replicas": replicas, "selector": "app=a"}});
    world.answers.insert(SCALE.into(), scale);
}

fn controller() -> Autoscalers {
    Autoscalers { tuning: Tuning::default(), known: BTreeMap::new() }
}

fn sync(world: &mut World) -> Ran {
    world.sync(&mut controller(), "h", at(NOW))
}

fn wanted(world: &World) -> i64 {
    world.answers[SCALE]["spec"]["replicas"].as_i64().unwrap_or(-1)
}

fn status(world: &World) -> Value {
    world.get(HORIZONTAL_POD_AUTOSCALERS, "h").value()["status"].take()
}

/// `AbleToScale True SucceededRescale`, …
fn conditions(world: &World) -> Vec<String> {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let status = status(world);
    let all = status["conditions"].as_array().cloned().unwrap_or_default();
    all.iter().map(|c| [&c["type"], &c["status"], &c["reason"]].map(word).join(" ")).collect()
}

#[test]
fn more_is_used_than_wanted_and_there_are_more() {
    let mut world = world(hpa(json!([cpu(50)])), &["a", "b"], "90m");
    let ran = sync(&mut world);
    assert_eq!(wanted(&world), 4);
    let events = &ran.said[ran.said.len() - 1..];
    assert_eq!(
        events,
        [
            "Normal SuccessfulRescale: New size: 4; reason: cpu resource utilization (percentage of request) above target"
        ]
    );
    let status = status(&world);
    assert_eq!((&status["currentReplicas"], &status["desiredReplicas"]), (&json!(2), &json!(4)));
    assert_eq!(status["lastScaleTime"], timestamp(Wall::from_secs(NOW as i64)));
    assert_eq!(
        status["currentMetrics"],
        json!([{"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 90, "averageValue": "90m"}}}])
    );
    assert_eq!(
        conditions(&world),
        [
            "AbleToScale True SucceededRescale",
            "ScalingActive True ValidMetricFound",
            "ScalingLimited False DesiredWithinRange"
        ]
    );
    assert_eq!((ran.failure, ran.wake), (None, Some(PERIOD)));
}

#[test]
fn it_goes_down_once_the_highest_advice_of_five_minutes_is_lower() {
    let mut world = world(hpa(json!([cpu(50)])), &["a", "b", "c", "d"], "10m");
    let mut controller = controller();
    world.sync(&mut controller, "h", at(NOW));
    assert_eq!((wanted(&world), conditions(&world)[0].as_str()), (4, "AbleToScale True ScaleDownStabilized"));
    assert!(world.sync(&mut controller, "h", at(NOW + 10)).said.is_empty(), "not before its time");
    world.sync(&mut controller, "h", at(NOW + 300));
    assert_eq!(wanted(&world), 4);
    let ran = world.sync(&mut controller, "h", at(NOW + 316));
    assert_eq!(wanted(&world), 1);
    assert!(
        ran.said
            .contains(&"Normal SuccessfulRescale: New size: 1; reason: All metrics below target".to_owned())
    );
}

#[test]
fn bounds_and_zero_need_no_metrics() {
    for (replicas, want, condition, said) in [
        (12, 10, "AbleToScale True SucceededRescale", "Current number of replicas above Spec.MaxReplicas"),
        (1, 2, "AbleToScale True SucceededRescale", "Current number of replicas below Spec.MinReplicas"),
        (0, 0, "ScalingActive False ScalingDisabled", ""),
    ] {
        let mut world = world(hpa(json!([cpu(50)])).set("/spec/minReplicas", json!(2)), &["a"], "50m");
        scale(&mut world, replicas);
        world.answers.remove(USAGE);
        let ran = sync(&mut world);
        assert_eq!(wanted(&world), want);
        assert!(conditions(&world).contains(&condition.to_owned()), "{:?}", conditions(&world));
        assert!(said.is_empty() || ran.said.iter().any(|line| line.ends_with(said)), "{:?}", ran.said);
    }
}

#[test]
fn what_is_missing_is_told_in_upstreams_words() {
    let unable =
        "Warning FailedComputeMetricsReplicas: invalid metrics (1 invalid out of 1), first error is: ";
    let api = "failed to get cpu utilization: unable to get metrics for resource cpu: unable to fetch metrics from resource \
               metrics API: the server could not find the requested resource (get pods.metrics.k8s.io)";
    let mut none = world(hpa(json!([cpu(50)])), &["a"], "50m");
    none.answers.remove(USAGE);
    let ran = sync(&mut none);
    let events: Vec<&String> = ran.said.iter().filter(|line| line.starts_with("Warning")).collect();
    assert_eq!(events[0], &format!("Warning FailedGetResourceMetric: {api}"));
    assert_eq!(events[1], &format!("{unable}failed to get cpu resource metric value: {api}"));
    assert!(conditions(&none).contains(&"ScalingActive False FailedGetResourceMetric".to_owned()));
    assert!(ran.failure.is_some());
    let bare = pod("a").set("/spec/containers", json!([{"name": "c"}]));
    let mut world = world(hpa(json!([cpu(50)])), &["a"], "50m");
    world.put(bare);
    let ran = sync(&mut world);
    let why = "failed to get cpu utilization: missing request for cpu in container c of Pod a";
    assert!(ran.said.contains(&format!("Warning FailedGetResourceMetric: {why}")), "{:?}", ran.said);
}

#[test]
fn a_target_that_cannot_be_scaled_is_told() {
    for (kind, said) in
        [("Nothing", "no matches for kind \"Nothing\" in version \"apps/v1\""), ("Deployment", "not found")]
    {
        let mut world =
            world(hpa(json!([cpu(50)])).set("/spec/scaleTargetRef/kind", json!(kind)), &["a"], "50m");
        world.answers.remove(SCALE);
        let ran = sync(&mut world);
        assert!(ran.said.contains(&format!("Warning FailedGetScale: {said}")), "{:?}", ran.said);
        assert_eq!(conditions(&world), ["AbleToScale False FailedGetScale"]);
    }
}

#[test]
fn two_autoscalers_must_not_have_the_same_pods() {
    let mut world = world(hpa(json!([cpu(50)])), &["a"], "50m");
    let mut controller = controller();
    let other = Known { selector: LabelSelector::parse("app").ok(), ..Known::default() };
    controller.known.insert(Key::new("ns", "other"), other);
    let ran = world.sync(&mut controller, "h", at(NOW));
    let said = "Warning AmbiguousSelector: pods by selector app=a are controlled by multiple HPAs: [{h ns} {other ns}]";
    assert!(ran.said.contains(&said.to_owned()), "{:?}", ran.said);
    assert!(conditions(&world).contains(&"ScalingActive False AmbiguousSelector".to_owned()));
}

#[test]
fn of_several_metrics_the_largest_counts_and_a_bad_one_forbids_less() {
    let memory = json!({"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "8Mi"}}});
    let broken = json!({"type": "External", "external": {"metric": {"name": "q"}, "target": {"type": "Value", "value": "1"}}});
    let mut both = world(hpa(json!([cpu(50), memory])), &["a", "b"], "90m");
    sync(&mut both);
    assert_eq!(wanted(&both), 4, "eight by memory, four at once");
    assert_eq!(status(&both)["currentMetrics"][1]["resource"]["current"]["averageValue"], "32Mi");
    let mut up = world(hpa(json!([broken, cpu(50)])), &["a", "b"], "90m");
    let ran = sync(&mut up);
    assert_eq!((wanted(&up), ran.failure.is_some()), (4, true));
    let mut down = world(hpa(json!([broken, cpu(50)])), &["a", "b"], "10m");
    sync(&mut down);
    assert_eq!(wanted(&down), 2);
    assert!(conditions(&down).contains(&"ScalingActive False FailedGetExternalMetric".to_owned()));
}

#[test]
fn metrics_of_objects_pods_and_the_world_are_asked_where_they_are() {
    let pods = json!({"type": "Pods", "pods": {"metric": {"name": "hits", "selector": {"matchLabels": {"v": "1"}}},
        "target": {"type": "AverageValue", "averageValue": "100"}}});
    let object = json!({"type": "Object", "object": {"metric": {"name": "load"}, "describedObject":
        {"apiVersion": "v1", "kind": "Service", "name": "svc"}, "target": {"type": "Value", "value": "10"}}});
    let external = json!({"type": "External", "external": {"metric": {"name": "queue"},
        "target": {"type": "AverageValue", "averageValue": "5"}}});
    let group = json!({"versions": [{"version": "v1beta1"}, {"version": "v1beta2"}]});
    let custom = "/apis/custom.metrics.k8s.io";
    for (metric, want, status_, path, answer) in [
        (
            pods,
            4,
            json!({"type": "Pods", "pods": {"metric": {"name": "hits", "selector": {"matchLabels": {"v": "1"}}}, "current": {"averageValue": "200"}}}),
            format!(
                "{custom}/v1beta2/namespaces/ns/pods/*/hits?labelSelector=app%3Da&metricLabelSelector=v%3D1"
            ),
            json!({"items": [{"describedObject": {"name": "a"}, "value": "150"}, {"describedObject": {"name": "b"}, "value": "250"}]}),
        ),
        (
            object,
            3,
            json!({"type": "Object", "object": {"metric": {"name": "load"}, "current": {"value": "15"}, "describedObject":
                {"apiVersion": "v1", "kind": "Service", "name": "svc"}}}),
            format!("{custom}/v1beta2/namespaces/ns/services/svc/load"),
            json!({"items": [{"value": "15"}]}),
        ),
        (
            external,
            4,
            json!({"type": "External", "external": {"metric": {"name": "queue"}, "current": {"averageValue": "8500m"}}}),
            "/apis/external.metrics.k8s.io/v1beta1/namespaces/ns/queue".to_owned(),
            json!({"items": [{"value": "10"}, {"value": "7"}]}),
        ),
    ] {
        let mut world = world(hpa(json!([metric])), &["a", "b"], "0");
        world.answers.insert(
            "/api/v1".into(),
            json!({"resources": [{"name": "services", "kind": "Service", "namespaced": true}]}),
        );
        world.answers.insert(custom.into(), group.clone());
        world.answers.insert(path.clone(), answer);
        let ran = sync(&mut world);
        assert_eq!(wanted(&world), want, "{path}: {:?}", ran.said);
        assert_eq!(status(&world)["currentMetrics"], json!([status_]), "{path}");
    }
}

#[test]
fn a_scale_that_changed_meanwhile_is_read_again() {
    let world = world(hpa(json!([cpu(50)])), &["a", "b"], "90m");
    let mut controller = controller();
    let pending = Pending {
        path: SCALE.into(),
        current: 2,
        desired: 4,
        reason: "x".into(),
        status: json!({}),
        failure: None,
    };
    let key = Key::new("ns", "h");
    controller.known.entry(key.clone()).or_default().pending = Some(pending.clone());
    let put = pending.put(json!({"metadata": {"resourceVersion": "1"}}));
    let plan = Plan::of(Step::in_turn([put.clone()]));
    let conflict = testing::refused(Why::Conflict, "changed");
    let again = world.settle(&mut controller, "h", at(NOW), &plan, &conflict);
    assert_eq!(testing::said(&again), [format!("get {SCALE}")]);
    let live = Outcome::Done(
        json!({"metadata": {"resourceVersion": "2"}, "spec": {"replicas": 3}}).to_string().into(),
    );
    let done =
        Done { acts: vec![(put, conflict), (Act::Get { path: SCALE.into() }, live)], last: 1, rounds: 2 };
    let put = controller.settle(&world.cache, &key, at(NOW), &done).steps[0].acts[0].body();
    assert_eq!((&put["metadata"]["resourceVersion"], &put["spec"]["replicas"]), (&json!("2"), &json!(4)));
    let refused = testing::refused(Why::Forbidden, "no");
    let failed = world.settle(&mut controller, "h", at(NOW), &plan, &refused);
    assert!(
        testing::said(&failed)
            .contains(&"Warning FailedRescale: New size: 4; reason: x; error: no".to_owned())
    );
}

/// Name, phase, seconds since it started, since when it is ready (or not), CPU in thousandths if it is known.
type Row<'a> = (&'a str, &'a str, i64, Result<i64, i64>, Option<i64>);

fn advice(pods: &[Row<'_>], current: i32, percent: i32) -> Result<i32, String> {
    let (mut usage, mut objects) = (Usage::new(), Vec::new());
    for (name, phase, started, ready, used) in pods {
        let time = |ago: i64| timestamp(Wall::from_secs(NOW as i64 - ago));
        let (word, since) = match ready {
            Ok(since) => ("True", since),
            Err(since) => ("False", since),
        };
        let conditions = json!([{"type": "Ready", "status": word, "lastTransitionTime": time(*since)}]);
        let pod = pod(name)
            .phase(phase)
            .set("/status/startTime", json!(time(*started)))
            .set("/status/conditions", conditions);
        objects.push(Arc::new(pod.object()));
        if let Some(value) = used {
            let at = Some(Wall::from_secs(NOW as i64 - 10));
            usage.insert((*name).to_owned(), Used { value: *value, at, window: Duration::from_secs(30) });
        }
    }
    let pods = Pods::of(&objects);
    let tuning = Tuning::default();
    let tolerances = Tolerances { up: 0.1, down: 0.1 };
    let asked = Asked { current, tolerances, tuning: &tuning, now: Wall::from_secs(NOW as i64) };
    let target = Target::Percent(percent, pods.requests("cpu", None)?);
    pods.advice(usage, &target, true, asked).map(|Advice { replicas, .. }| replicas)
}

#[test]
fn pods_that_are_new_or_unknown_speak_against_a_change() {
    let old = |name: &'static str, used| (name, "Running", 5000, Ok(4000), Some(used));
    let rows: [(&str, &[Row<'_>], i32, i32); 10] = [
        ("within tolerance", &[old("a", 54), old("b", 55)], 2, 2),
        ("up", &[old("a", 100), old("b", 100)], 2, 4),
        ("down", &[old("a", 10), old("b", 10), old("c", 10)], 3, 1),
        (
            "missing while up counts nothing",
            &[old("a", 100), old("b", 100), ("c", "Running", 5000, Ok(4000), None)],
            3,
            4,
        ),
        (
            "missing while down counts all",
            &[old("a", 10), old("b", 10), ("c", "Running", 5000, Ok(4000), None)],
            3,
            3,
        ),
        ("pending while up counts nothing", &[old("a", 100), ("b", "Pending", 5, Err(5), None)], 2, 2),
        ("one that is new does not count", &[old("a", 50), ("b", "Running", 60, Ok(30), Some(900))], 2, 2),
        (
            "one that was never ready does not count",
            &[old("a", 50), ("b", "Running", 400, Err(395), Some(900))],
            2,
            2,
        ),
        (
            "one that became unready later does",
            &[old("a", 100), ("b", "Running", 4000, Err(1000), Some(100))],
            2,
            4,
        ),
        ("failed ones are not there", &[old("a", 100), ("b", "Failed", 4000, Err(1000), Some(0))], 1, 2),
    ];
    for (row, pods, current, want) in rows {
        assert_eq!(advice(pods, current, 50), Ok(want), "{row}");
    }
    let unready = advice(&[("a", "Pending", 5, Err(5), Some(10))], 1, 50);
    assert_eq!(unready, Err("did not receive metrics for targeted pods (pods might be unready)".to_owned()));
}

fn policy(is_percent: bool, value: i32, seconds: u64) -> Policy {
    Policy { is_percent, value, period: Duration::from_secs(seconds) }
}

fn rules(select: Select, policies: &[Policy]) -> Rules {
    Rules { window: Duration::ZERO, select, policies: policies.to_vec() }
}

#[test]
fn policies_bound_how_fast_it_goes() {
    let both = [policy(false, 4, 60), policy(true, 10, 60)];
    let rows = [
        ("up by the largest", Select::Max, 10, 50, &[][..], 14, "ScaleUpLimit"),
        ("up by the smallest", Select::Min, 10, 50, &[], 11, "ScaleUpLimit"),
        ("not at all", Select::Disabled, 10, 50, &[], 10, "ScaleUpLimit"),
        ("what was added lately counts", Select::Max, 10, 50, &[(30, 3)], 11, "ScaleUpLimit"),
        ("and then no more", Select::Max, 14, 50, &[(30, 6)], 14, "ScaleUpLimit"),
        ("what is older does not", Select::Max, 10, 50, &[(61, 3)], 14, "ScaleUpLimit"),
        ("down by the largest", Select::Max, 50, 10, &[], 45, "ScaleDownLimit"),
        ("down by the smallest", Select::Min, 50, 10, &[], 46, "ScaleDownLimit"),
        ("not down at all", Select::Disabled, 50, 10, &[], 50, "ScaleDownLimit"),
        ("within", Select::Max, 10, 12, &[], 12, "DesiredWithinRange"),
    ];
    for (row, select, current, desired, ups, want, reason) in rows {
        let mut history = History::default();
        let behavior = Behavior { up: rules(select, &both), down: rules(select, &both) };
        for (ago, change) in ups {
            history.changed(0, *change, Some(&behavior), at(NOW - ago).mono);
        }
        let wanted = Wanted { current, desired, min: 1, max: 100 };
        let (number, said) = history.limit(wanted, &behavior, at(NOW).mono);
        assert_eq!((number, said.0), (want, reason), "{row}");
    }
}

#[test]
fn windows_take_the_lowest_up_and_the_highest_down() {
    let behavior = Behavior {
        up: Rules { window: Duration::from_secs(60), ..rules(Select::Max, &[]) },
        down: Rules { window: Duration::from_secs(120), ..rules(Select::Max, &[]) },
    };
    for (row, advice, current, desired, want, reason) in [
        ("nothing else was said", &[][..], 5, 9, 9, "ReadyForNewScale"),
        ("up to the lowest of a minute", &[(30, 7), (90, 2)], 5, 9, 7, "ScaleUpStabilized"),
        ("down to the highest of two", &[(30, 4), (90, 5), (130, 8)], 6, 2, 5, "ScaleDownStabilized"),
    ] {
        let mut history = History::default();
        for (ago, number) in advice.iter().rev() {
            let wanted = Wanted { current: *number, desired: *number, min: 1, max: 100 };
            history.stabilize_with(wanted, &behavior, at(NOW - ago).mono);
        }
        let wanted = Wanted { current, desired, min: 1, max: 100 };
        let (number, said) = history.stabilize_with(wanted, &behavior, at(NOW).mono);
        assert_eq!((number, said.0), (want, reason), "{row}");
    }
    let old_rules = |current, desired| limit(Wanted { current, desired, min: 2, max: 20 });
    assert_eq!(
        (old_rules(3, 15).0, old_rules(1, 15).0, old_rules(15, 25).0, old_rules(5, 1).0),
        (6, 4, 20, 2)
    );
}
