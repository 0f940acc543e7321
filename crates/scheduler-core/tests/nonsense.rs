//! Objects that somebody has edited by hand, or that another API server let in: they cost nobody but themselves a node.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use base::rng::Rng;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use scheduler_core::cluster::Cluster;
use scheduler_core::cycle::{Cycle, Found, Sampling};
use scheduler_core::node::Node;
use scheduler_core::objects::{
    Attachment, Budget, Capacity, Claim, CsiDriver, CsiNode, StorageClass, Volume,
};
use scheduler_core::pod::Pod;
use scheduler_core::preemption::post_filter;
use scheduler_core::profile::Profile;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Worlds in a normal run; `LONGSHORE_SEEDS` plays more.
const SEEDS: u64 = 600;

fn values() -> Vec<Value> {
    let many: Vec<Value> =
        (0..200).map(|_| json!({"key": "zone", "operator": "In", "values": ["a"], "weight": 100})).collect();
    vec![
        json!(-1),
        json!(0),
        json!(i32::MAX),
        json!(i32::MIN),
        json!(i64::MAX),
        json!(i64::MIN),
        json!(""),
        json!("-1"),
        json!("9223372036854775807"),
        json!("-9223372036854775808"),
        json!("99999999999999999999999E"),
        json!("1e999"),
        json!("0.000000001n"),
        json!("9999-12-31T23:59:59Z"),
        json!("0001-01-01T00:00:00Z"),
        json!("NoExecute"),
        json!("Gt"),
        json!("DoesNotExist"),
        json!("\u{1f4a5}\u{0}"),
        json!("x".repeat(5000)),
        json!("300.1.1.1"),
        json!(true),
        json!([]),
        json!({}),
        json!({"": ""}),
        json!({"cpu": "9223372036854775807", "memory": "9223372036854775807", "pods": "-1", "example.com/gpu": "9E"}),
        Value::Array(many),
    ]
}

fn node(name: &str) -> Value {
    let has = json!({"cpu": "4", "memory": "8Gi", "pods": "10", "example.com/gpu": "2", "ephemeral-storage": "10Gi", "hugepages-2Mi": "4Mi"});
    json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1", "labels": {"zone": "a", "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": "a", "number": "5"}},
        "spec": {"taints": [{"key": "t", "value": "v", "effect": "PreferNoSchedule"}], "unschedulable": false, "podCIDR": "10.1.0.0/24"},
        "status": {"allocatable": has, "capacity": has, "images": [{"names": ["i:1"], "sizeBytes": 50_000_000}], "declaredFeatures": ["a"],
            "volumesAttached": [{"name": "v", "devicePath": "d"}], "conditions": [{"type": "Ready", "status": "True"}]}})
}

fn pod(name: &str, node: Option<&str>) -> Value {
    let term = json!({"labelSelector": {"matchLabels": {"app": "a"}, "matchExpressions": [{"key": "app", "operator": "In", "values": ["a"]}]},
        "topologyKey": "zone", "namespaceSelector": {}, "matchLabelKeys": ["app"]});
    let weighted = json!([{"weight": 100, "podAffinityTerm": term}]);
    let terms = json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "number", "operator": "Gt", "values": ["3"]}],
        "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["x"]}]}]});
    json!({"metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1", "labels": {"app": "a"}, "creationTimestamp": "2020-01-01T00:00:00Z",
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "a", "uid": "a", "controller": true}]},
        "spec": {"nodeName": node, "priority": 5, "preemptionPolicy": "PreemptLowerPriority", "schedulerName": "default-scheduler",
            "containers": [{"name": "c", "image": "i:1", "ports": [{"hostPort": 80, "containerPort": 80, "protocol": "TCP", "hostIP": "0.0.0.0"}],
                "resources": {"requests": {"cpu": "100m", "memory": "1Gi", "example.com/gpu": "1"}, "limits": {"cpu": "1"}}}],
            "initContainers": [{"name": "i", "image": "i:1", "restartPolicy": "Always", "resources": {"requests": {"cpu": "50m"}}}],
            "overhead": {"cpu": "10m"}, "resources": {"requests": {"cpu": "500m"}}, "schedulingGates": [],
            "nodeSelector": {"zone": "a"}, "tolerations": [{"key": "t", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 5}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms,
                    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 50, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}}]},
                "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": weighted},
                "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": weighted}},
            "topologySpreadConstraints": [{"maxSkew": 3, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "minDomains": 1,
                "labelSelector": {"matchLabels": {"app": "a"}}, "matchLabelKeys": ["app"]},
                {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"app": "a"}}}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "e", "emptyDir": {}}]},
        "status": {"nominatedNodeName": "", "startTime": "2020-01-01T00:00:00Z", "conditions": []}})
}

fn storage() -> Vec<(&'static str, Value)> {
    let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}});
    vec![
        (
            "claim",
            json!({"metadata": {"name": "data", "namespace": "default", "uid": "data", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"volumeName": "v", "storageClassName": "c", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}, "status": {"phase": "Bound"}}),
        ),
        (
            "volume",
            json!({"metadata": {"name": "v", "uid": "v", "labels": {"topology.kubernetes.io/zone": "a"}},
            "spec": {"capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "c", "nodeAffinity": affinity,
                "claimRef": {"namespace": "default", "name": "data", "uid": "data"}, "csi": {"driver": "d", "volumeHandle": "h"}}, "status": {"phase": "Bound"}}),
        ),
        (
            "class",
            json!({"metadata": {"name": "c"}, "provisioner": "d", "volumeBindingMode": "WaitForFirstConsumer",
            "allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]}),
        ),
        (
            "csi_node",
            json!({"metadata": {"name": "n0"}, "spec": {"drivers": [{"name": "d", "nodeID": "n", "allocatable": {"count": 3}}]}}),
        ),
        ("driver", json!({"metadata": {"name": "d"}, "spec": {"storageCapacity": true}})),
        (
            "capacity",
            json!({"metadata": {"name": "k", "namespace": "default"}, "storageClassName": "c", "capacity": "5Gi", "maximumVolumeSize": "5Gi", "nodeTopology": {"matchLabels": {"zone": "a"}}}),
        ),
        (
            "attachment",
            json!({"metadata": {"name": "at"}, "spec": {"attacher": "d", "nodeName": "n0", "source": {"persistentVolumeName": "v"}}, "status": {"attached": true}}),
        ),
        (
            "budget",
            json!({"metadata": {"name": "b", "namespace": "default"}, "spec": {"selector": {"matchLabels": {"app": "a"}}, "maxUnavailable": 1},
            "status": {"disruptionsAllowed": 1, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1, "disruptedPods": {"p": "2020-01-01T00:00:00Z"}}}),
        ),
    ]
}

fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    let below: Vec<(String, &Value)> = match value {
        Value::Object(fields) => {
            fields.iter().map(|(key, value)| (key.replace('~', "~0").replace('/', "~1"), value)).collect()
        }
        Value::Array(items) => {
            items.iter().enumerate().map(|(index, value)| (index.to_string(), value)).collect()
        }
        _ => return,
    };
    for (key, value) in below {
        // Who it is stays as it was: a store knows objects by these.
        if at == "/metadata" && matches!(key.as_str(), "name" | "namespace" | "uid") {
            continue;
        }
        let place = format!("{at}/{key}");
        found.push(place.clone());
        pointers(value, &place, found);
    }
}

/// One to three fields say something else, now and then. What does not decode any more is as it was.
fn spoiled<T: DeserializeOwned>(whole: &Value, rng: &mut Rng, told: &mut String) -> T {
    let mut value = whole.clone();
    let mut what = String::new();
    if rng.chance(0.5) {
        let values = values();
        for _ in 0..=rng.below(3) {
            let mut all = Vec::new();
            pointers(&value, "", &mut all);
            let place = &all[usize::try_from(rng.below(all.len() as u64)).unwrap()];
            let odd = &values[usize::try_from(rng.below(values.len() as u64)).unwrap()];
            let mut tried = value.clone();
            *tried.pointer_mut(place).unwrap() = odd.clone();
            if serde_json::from_value::<T>(tried.clone()).is_ok() {
                let short: String = odd.to_string().chars().take(60).collect();
                what.push_str(&format!("\n  {place} = {short}"));
                value = tried;
            }
        }
    }
    told.push_str(&what);
    serde_json::from_value(value).unwrap()
}

fn fill(cluster: &mut Cluster, rng: &mut Rng, told: &mut String) {
    for i in 0..3 {
        cluster.set_node(Node::read(&spoiled(&node(&format!("n{i}")), rng, told)));
    }
    for (kind, whole) in storage() {
        let storage = &mut cluster.storage;
        match kind {
            "claim" => {
                let one = Claim::read(&spoiled(&whole, rng, told));
                storage.claims.insert(one.key.clone(), Arc::new(one));
            }
            "volume" => {
                let one = Volume::read(&spoiled(&whole, rng, told));
                storage.volumes.insert(one.name.clone(), Arc::new(one));
            }
            "class" => {
                let one = StorageClass::read(&spoiled(&whole, rng, told));
                storage.classes.insert(one.name.clone(), Arc::new(one));
            }
            "csi_node" => {
                let one = CsiNode::read(&spoiled(&whole, rng, told));
                storage.csi_nodes.insert(one.name.clone(), Arc::new(one));
            }
            "driver" => {
                let one = CsiDriver::read(&spoiled(&whole, rng, told));
                storage.drivers.insert(one.name.clone(), Arc::new(one));
            }
            "capacity" => {
                let one = Capacity::read(&spoiled(&whole, rng, told));
                storage.capacities.insert(one.key.clone(), Arc::new(one));
            }
            "attachment" => {
                let one = Attachment::read(&spoiled(&whole, rng, told));
                storage.attachments.insert(one.name.clone(), Arc::new(one));
            }
            _ => {
                let one = Budget::read(&spoiled::<PodDisruptionBudget>(&whole, rng, told));
                cluster.budgets.insert(one.key.clone(), one);
            }
        }
    }
    for i in 0..4 {
        let on = format!("n{}", i % 3);
        cluster.set_pod(Pod::read(&spoiled(&pod(&format!("old{i}"), Some(&on)), rng, told)));
    }
}

fn play(seed: u64, told: &mut String) {
    let mut rng = Rng::new(seed);
    let profile = Arc::new(Profile::default());
    let (mut cluster, mut sampling) = (Cluster::default(), Sampling::default());
    cluster.namespaces.insert("default".into(), Default::default());
    fill(&mut cluster, &mut rng, told);
    for i in 0..4 {
        let pod = Arc::new(Pod::read(&spoiled(&pod(&format!("new{i}"), None), &mut rng, told)));
        let (cycle, found) = Cycle::find(&profile, &mut cluster, &pod, &mut sampling);
        let Found::Nodes { feasible, diagnosis, .. } = found else { continue };
        if feasible.is_empty() {
            let _ = (post_filter(&cycle, &cluster, &diagnosis, &mut rng), diagnosis.message());
            continue;
        }
        let scores = cycle.score(&cluster, &feasible).unwrap();
        assert_eq!(scores.len(), feasible.len());
        if let Some(choice) = cycle.choose(&cluster, &feasible, &HashMap::new(), &mut rng).unwrap() {
            let name = cluster.info(choice.node).name().to_owned();
            cluster.assume(pod.on(&name));
        }
    }
    // What was counted is counted back: nobody leaves anything behind.
    // One whose metadata was spoiled has no UID.
    for uid in ["old0", "old1", "old2", "old3", "new0", "new1", "new2", "new3", ""] {
        cluster.remove_pod(&uid.into());
    }
    for info in cluster.infos() {
        assert!(info.pods.is_empty() && info.classes.is_empty(), "{} keeps Pods", info.name());
        assert_eq!((info.requested.milli_cpu, info.requested.memory), (0, 0), "{}", info.name());
    }
}

#[test]
fn the_scheduler_falls_over_nothing_that_somebody_wrote_by_hand() {
    let seeds = std::env::var("LONGSHORE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(SEEDS);
    for seed in 0..seeds {
        let mut told = String::new();
        let ended = catch_unwind(AssertUnwindSafe(|| play(seed, &mut told)));
        assert!(ended.is_ok(), "seed {seed}:{told}");
    }
}
