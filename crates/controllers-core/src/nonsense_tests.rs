//! Objects that somebody has edited by hand, of the right types and nothing else right: no controller falls over them, decides for ever,
//! or asks for more than its bursts allow.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use api::config::controllers::Tuning;
use base::rng::Rng;
use bytes::Bytes;
use serde_json::{Value, json};

use crate::cache::Change;
use crate::controller::{Controller, Key, Row, Wakes};
use crate::object::Object;
use crate::plan::{Act, Done, Outcome, Plan, Why};
use crate::resource::Resource;
use crate::table::{CONTROLLERS, resources};
use crate::testing::{Draft, World, at, draft, refused};

/// Worlds in a normal run; `LONGSHORE_SEEDS` plays more.
const SEEDS: u64 = 250;
/// What one plan may ask for: the largest burst is 500.
const ACTS: usize = 1000;
/// Rounds of one sync.
const ROUNDS: usize = 200;

const TEMPLATE: &str = r#"{"metadata": {"labels": {"app": "a"}},
    "spec": {"restartPolicy": "Always", "containers": [{"name": "c", "image": "i", "ports": [{"name": "http", "containerPort": 80}]}]}}"#;

/// Fields of every kind at once: each reads its own.
const SPEC: &str = r#"{"replicas": 2,  "serviceName": "a", "paused": false,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 1}},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0, "partition": 1}},
        "podManagementPolicy": "Parallel", "revisionHistoryLimit": 1, "minReadySeconds": 5, "progressDeadlineSeconds": 60,
        "ordinals": {"start": 3}, "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Delete"},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"resources": {"requests": {"storage": "1Gi"}}}}],
        "minAvailable": "50%", "maxUnavailable": null, "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "parallelism": 2, "completions": 3, "backoffLimit": 3, "backoffLimitPerIndex": 1, "maxFailedIndexes": 2,
        "completionMode": "Indexed", "activeDeadlineSeconds": 100, "ttlSecondsAfterFinished": 10, "suspend": false,
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}]},
        "successPolicy": {"rules": [{"succeededIndexes": "0-1", "succeededCount": 1}]},
        "schedule": "*/5 * * * *", "timeZone": "Etc/UTC", "concurrencyPolicy": "Forbid", "startingDeadlineSeconds": 10,
        "successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 1, "jobTemplate": {"spec": {}},
        "nodeName": "node", "tolerations": [{"key": "t", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}],
        "taints": [{"key": "t", "effect": "NoExecute", "timeAdded": "1970-01-01T00:00:05Z"}],
        "containers": [{"name": "c", "image": "i", "ports": [{"name": "http", "containerPort": 80}]}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "a"}}], "restartPolicy": "Always",
        "ports": [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}], "clusterIP": "10.96.0.9",
        "clusterIPs": ["10.96.0.9"], "ipFamilies": ["IPv4"], "type": "ClusterIP", "podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"],
        "claimRef": {"namespace": "ns", "name": "a", "uid": "u-a"}, "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}, "volumeName": "a", "leaseDurationSeconds": 40,
        "renewTime": "1970-01-01T00:00:10.000000Z", "holderIdentity": "node", "finalizers": ["kubernetes"]}"#;

const STATUS: &str = r#"{"replicas": 2, "readyReplicas": 1, "availableReplicas": 1, "updatedReplicas": 1, "observedGeneration": 1,
        "currentRevision": "r1", "updateRevision": "r2", "collisionCount": 0, "numberReady": 1, "desiredNumberScheduled": 1,
        "disruptionsAllowed": 1, "disruptedPods": {"pod": "1970-01-01T00:00:05Z"}, "expectedPods": 2, "currentHealthy": 1,
        "desiredHealthy": 1, "active": 1, "succeeded": 1, "failed": 0, "completedIndexes": "0-1",
        "startTime": "1970-01-01T00:00:05Z", "completionTime": "1970-01-01T00:00:06Z", "lastScheduleTime": "1970-01-01T00:00:05Z",
        "uncountedTerminatedPods": {"succeeded": ["u-pod"], "failed": []}, "phase": "Running", 
        "podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}], "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        "containerStatuses": [{"name": "c", "restartCount": 1, "state": {"terminated": {"exitCode": 1, "finishedAt": "1970-01-01T00:00:05Z"}}}],
        "loadBalancer": {"ingress": [{"ip": "10.0.0.9"}]}, "capacity": {"storage": "1Gi"}}"#;

fn values() -> Vec<Value> {
    vec![
        Value::Null,
        json!(-1),
        json!(0),
        json!(1),
        json!(i64::from(i32::MAX)),
        json!(i64::from(i32::MIN)),
        json!(i64::MAX),
        json!(u64::MAX),
        json!(1e300),
        json!(""),
        json!("0%"),
        json!("100%"),
        json!("2147483647%"),
        json!("99999999999999999999%"),
        json!("-5%"),
        json!("0-2147483646"),
        json!("3,1-2,,9-1"),
        json!("\u{1f4a5}\u{0}"),
        json!("9999-99-99T99:99:99Z"),
        json!("0001-01-01T00:00:00Z"),
        json!("9999-12-31T23:59:59Z"),
        json!("-1h"),
        json!("99999999999h"),
        json!("* * * * *"),
        json!("fd00::1"),
        json!("300.1.1.1/33"),
        json!("x".repeat(5000)),
        json!(true),
        json!([]),
        json!({}),
    ]
}

/// A plausible spec and status of each kind.
fn plausible(resource: Resource) -> (Value, Value) {
    let template: Value = serde_json::from_str(TEMPLATE).unwrap();
    let selector = json!({"matchLabels": {"app": "a"}, "matchExpressions": [{"key": "app", "operator": "In", "values": ["a"]}]});
    let conditions = json!([{"type": "Ready", "status": "True", "reason": "r", "lastTransitionTime": "1970-01-01T00:00:10Z",
        "lastHeartbeatTime": "1970-01-01T00:00:10Z"}, {"type": "Available", "status": "True"}]);
    let mut counts: Value = serde_json::from_str(STATUS).unwrap();
    counts["conditions"] = conditions;
    let mut spec: Value = serde_json::from_str(SPEC).unwrap();
    spec["selector"] = selector;
    spec["jobTemplate"]["spec"]["template"] = template.clone();
    spec["template"] = template;
    match resource.kind {
        // Their selectors are plain maps.
        "Service" | "ReplicationController" => {
            spec["selector"] = json!({"app": "a"});
            (spec, counts)
        }
        _ => (spec, counts),
    }
}

/// The objects of a world: two Pods of a set, and one of every other kind, all of which have to do with each other.
fn objects() -> Vec<Draft> {
    let mut all = Vec::new();
    for resource in resources() {
        let names: &[&str] = match resource.kind {
            "Pod" => &["pod", "a-0"],
            "Node" | "Lease" => &["node"],
            _ => &["a"],
        };
        for name in names {
            let (spec, status) = plausible(resource);
            let one = draft(resource, name).label("app", "a").label("kubernetes.io/service-name", "a");
            let one = one.annotation("deployment.kubernetes.io/revision", "1").created(1);
            let mut one = one.set("/spec", spec).set("/status", status);
            for (field, value) in [
                (
                    "endpoints",
                    json!([{"addresses": ["10.1.0.1"], "conditions": {"ready": true}, "targetRef": {"kind": "Pod", "name": "pod"}}]),
                ),
                ("addressType", json!("IPv4")),
                ("ports", json!([{"name": "http", "port": 80}])),
                ("subsets", json!([{"addresses": [{"ip": "10.1.0.1"}], "ports": [{"port": 80}]}])),
                ("revision", json!(1)),
                ("data", json!({"spec": {"template": {}}})),
                ("rules", json!([{"verbs": ["get"], "resources": ["pods"]}])),
                ("aggregationRule", json!({"clusterRoleSelectors": [{"matchLabels": {"app": "a"}}]})),
            ] {
                one = one.set(&format!("/{field}"), value);
            }
            if name == &"a-0" || resource.kind == "ControllerRevision" {
                one = one.controller("StatefulSet", "a", "u-a");
            } else if resource.kind == "Pod" || resource.kind == "ReplicaSet" {
                let kind = if resource.kind == "Pod" { "ReplicaSet" } else { "Deployment" };
                one = one.controller(kind, "a", "u-a");
            }
            all.push(one);
        }
    }
    all
}

fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    let escape = |key: &str| key.replace('~', "~0").replace('/', "~1");
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                // Who it is decides what is looked at; a store keeps these.
                if at == "/metadata" && matches!(key.as_str(), "name" | "namespace" | "resourceVersion") {
                    continue;
                }
                let place = format!("{at}/{}", escape(key));
                found.push(place.clone());
                pointers(value, &place, found);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                let place = format!("{at}/{index}");
                found.push(place.clone());
                pointers(value, &place, found);
            }
        }
        _ => {}
    }
}

fn pick<'a, T>(rng: &mut Rng, all: &'a [T]) -> &'a T {
    &all[usize::try_from(rng.below(all.len() as u64)).unwrap()]
}

/// Whether an API server could let it in: it decodes an object as its type. Some fields are a number or a text.
fn fits(place: &str, was: &Value, value: &Value) -> bool {
    let either = ["maxSurge", "maxUnavailable", "minAvailable", "targetPort"];
    let is_either = either.iter().any(|field| place.ends_with(field));
    let is_word = |value: &Value| value.is_string() || value.is_number();
    let is_item = place.rsplit('/').next().is_some_and(|last| last.parse::<usize>().is_ok());
    value.is_null() && !is_item
        || std::mem::discriminant(was) == std::mem::discriminant(value)
        || is_either && is_word(value)
}

/// One to three fields say something else.
fn spoiled(mut one: Draft, values: &[Value], rng: &mut Rng) -> (Draft, String) {
    let mut told = String::new();
    for _ in 0..=rng.below(3) {
        let mut all = Vec::new();
        pointers(&one.value, "", &mut all);
        all.retain(|place| place != "/metadata");
        let place = pick(rng, &all).clone();
        let was = one.value.pointer(&place).unwrap().clone();
        let fitting: Vec<&Value> = values.iter().filter(|value| fits(&place, &was, value)).collect();
        let value = match was.as_array().and_then(|items| items.first()) {
            // The same again and again.
            Some(item) if rng.chance(0.5) => Value::Array(vec![item.clone(); 300]),
            _ => (*pick(rng, &fitting)).clone(),
        };
        let short: String = value.to_string().chars().take(60).collect();
        told.push_str(&format!(" {place} = {short};"));
        *one.value.pointer_mut(&place).unwrap() = value;
    }
    (one, told)
}

fn outcome(act: &Act, rng: &mut Rng) -> Outcome {
    match rng.below(6) {
        0 => refused(Why::Conflict, "overtaken"),
        1 => refused(Why::NotFound, "gone"),
        2 => Outcome::Skipped,
        3 => Outcome::Done(Bytes::from_static(b"{}")),
        _ => match act {
            Act::Create { body, .. } | Act::Update { body, .. } => Outcome::Done(body.clone()),
            _ => Outcome::Done(Bytes::from_static(
                b"{\"metadata\": {\"name\": \"a\"}, \"spec\": 7, \"status\": []}",
            )),
        },
    }
}

/// One sync with all its rounds.
fn sync(controller: &mut dyn Controller, world: &World, key: &Key, second: u64, rng: &mut Rng, told: &str) {
    let now = at(second);
    let mut plan: Plan = controller.reconcile(&world.cache, key, now);
    let mut done = Done::default();
    for _ in 0..ROUNDS {
        let acts: Vec<Act> = plan.acts().cloned().collect();
        assert!(acts.len() <= ACTS, "{key}: {} acts at once:{told}", acts.len());
        if acts.is_empty() {
            return;
        }
        done.last = done.acts.len();
        done.rounds += 1;
        done.acts.extend(acts.into_iter().map(|act| {
            let outcome = outcome(&act, rng);
            (act, outcome)
        }));
        plan = controller.settle(&world.cache, key, now, &done);
    }
    panic!("{key}: a sync without end:{told}");
}

fn play(row: &Row, world: &World, changes: &[Change], rng: &mut Rng, told: &str) {
    let mut controller = (row.make)(&Tuning::default());
    let mut wakes = Wakes::default();
    for change in changes {
        controller.observe(change, at(20));
        let resource = change.object().unwrap().meta.resource;
        for watch in row.watches.iter().filter(|watch| watch.resource == resource) {
            (watch.keys)(change, &world.cache, &mut wakes);
        }
    }
    assert!(wakes.0.len() <= 1000, "{}: {} keys woken:{told}", row.name, wakes.0.len());
    let mut keys: Vec<Key> = wakes.0.into_iter().map(|(key, _)| key).collect();
    keys.extend(row.is_single.then(Key::all));
    keys.sort();
    keys.dedup();
    for key in &keys {
        for second in [20, 100_000, 4_000_000_000] {
            sync(&mut *controller, world, key, second, rng, told);
        }
    }
}

#[test]
fn no_controller_falls_over_what_somebody_wrote_by_hand() {
    let seeds = std::env::var("LONGSHORE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(SEEDS);
    let values = values();
    let whole: Vec<(Draft, Arc<Object>)> =
        objects().into_iter().map(|one| (one.clone(), Arc::new(one.object()))).collect();
    for seed in 0..seeds {
        let mut rng = Rng::new(seed);
        let (mut drafts, mut changes, mut told) = (Vec::new(), Vec::new(), format!(" seed {seed}:"));
        for (draft, old) in &whole {
            let (one, what) = match rng.below(3) {
                0 => spoiled(draft.clone(), &values, &mut rng),
                _ => (draft.clone(), String::new()),
            };
            // What nobody can name is no object.
            let Some(new) = one.try_object() else { continue };
            if !what.is_empty() {
                told.push_str(&format!("\n  {}{what}", old.meta.resource));
            }
            let new = Arc::new(new);
            changes.push(Change { old: None, new: Some(new.clone()) });
            changes.push(Change { old: Some(old.clone()), new: Some(new) });
            drafts.push(one);
        }
        let world = World::new(drafts);
        for row in CONTROLLERS {
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                play(row, &world, &changes, &mut rng, &told);
            }));
            assert!(ended.is_ok(), "{}:{told}", row.name);
        }
    }
}
