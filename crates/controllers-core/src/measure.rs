//! What controllers count, under upstream's names: found in what they did and in what is there, so that no controller counts by
//! itself. Counts of queues and requests are the agent's.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::conditions;
use crate::key::Key;
use crate::object::{Object, wall};
use crate::plan::{Act, Done, Outcome};
use crate::resource::{
    ENDPOINT_SLICES, JOBS, NODES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS, Resource, SERVICES,
};
use crate::view::View;

/// A family of series.
#[derive(Debug, PartialEq)]
pub struct Family {
    pub name: &'static str,
    pub help: &'static str,
    /// In the order of the alphabet, as they are printed.
    pub labels: &'static [&'static str],
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Counter,
    Gauge,
    /// The first bound, the factor from one to the next, and how many there are.
    Histogram(f64, f64, usize),
}

/// One number for one series.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    pub family: &'static Family,
    pub labels: Vec<String>,
    pub value: f64,
}

/// A sync that came to its end.
#[derive(Clone, Copy, Debug)]
pub struct Sync<'a> {
    pub key: &'a Key,
    pub done: &'a Done,
    pub has_failed: bool,
    pub took: Duration,
}

macro_rules! families {
    ($($id:ident: $kind:expr, $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(static $id: Family = Family { name: $name, help: $help, labels: &[$($label),*], kind: $kind };)*
        #[cfg(test)]
        static ALL: &[&Family] = &[$(&$id),*];
    };
}

const SYNC_TIMES: Kind = Kind::Histogram(0.004, 2.0, 15);
const SHORT_TIMES: Kind = Kind::Histogram(0.001, 2.0, 15);

families! {
    JOB_SYNCS: Kind::Counter, "job_controller_job_syncs_total" ["action", "completion_mode", "result"]
        "The number of job syncs";
    JOB_SYNC_TIME: SYNC_TIMES, "job_controller_job_sync_duration_seconds" ["action", "completion_mode", "result"]
        "The time it took to sync a job";
    JOBS_FINISHED: Kind::Counter, "job_controller_jobs_finished_total" ["completion_mode", "reason", "result"]
        "The number of finished jobs";
    CRON_SKEW: Kind::Histogram(1.0, 2.0, 10), "cronjob_controller_job_creation_skew_duration_seconds" []
        "Time between when a cronjob is scheduled to be run, and when the corresponding job is created";
    HPA_RECONCILIATIONS: Kind::Counter, "horizontal_pod_autoscaler_controller_reconciliations_total" ["action", "error"]
        "Number of reconciliations of HPA controller.";
    HPA_TIME: SHORT_TIMES, "horizontal_pod_autoscaler_controller_reconciliation_duration_seconds" ["action", "error"]
        "The time(seconds) that the HPA controller takes to reconcile once.";
    SLICE_SYNCS: Kind::Counter, "endpoint_slice_controller_syncs" ["result"] "Number of EndpointSlice syncs";
    SLICE_CHANGES: Kind::Counter, "endpoint_slice_controller_changes" ["operation"]
        "Number of EndpointSlice changes";
    SLICES: Kind::Gauge, "endpoint_slice_controller_num_endpoint_slices" [] "Number of EndpointSlices";
    SLICE_ENDPOINTS: Kind::Gauge, "endpoint_slice_controller_endpoints_desired" [] "Number of endpoints desired";
    SERVICES_BY_TRAFFIC: Kind::Gauge, "endpoint_slice_controller_services_count_by_traffic_distribution"
        ["traffic_distribution"] "Number of Services using some specific trafficDistribution";
    PVS: Kind::Gauge, "pv_collector_total_pv_count" ["plugin_name", "volume_mode"]
        "Gauge measuring total number of persistent volumes";
    BOUND_PVS: Kind::Gauge, "pv_collector_bound_pv_count" ["storage_class"]
        "Gauge measuring number of persistent volume currently bound";
    UNBOUND_PVS: Kind::Gauge, "pv_collector_unbound_pv_count" ["storage_class"]
        "Gauge measuring number of persistent volume currently unbound";
    BOUND_PVCS: Kind::Gauge, "pv_collector_bound_pvc_count" ["namespace", "storage_class", "volume_attributes_class"]
        "Gauge measuring number of persistent volume claim currently bound";
    UNBOUND_PVCS: Kind::Gauge, "pv_collector_unbound_pvc_count"
        ["namespace", "storage_class", "volume_attributes_class"]
        "Gauge measuring number of persistent volume claim currently unbound";
    ZONE_SIZE: Kind::Gauge, "node_collector_zone_size" ["zone"]
        "Gauge measuring number of registered Nodes per zones.";
    ZONE_HEALTH: Kind::Gauge, "node_collector_zone_health" ["zone"]
        "Gauge measuring percentage of healthy nodes per zone.";
    ZONE_UNHEALTHY: Kind::Gauge, "node_collector_unhealthy_nodes_in_zone" ["zone"]
        "Gauge measuring number of not Ready Nodes per zones.";
    EVICTIONS: Kind::Counter, "node_collector_evictions_total" ["zone"]
        "Number of Node evictions that happened since current instance of NodeController started.";
    TAINT_DELETIONS: Kind::Counter, "taint_eviction_controller_pod_deletions_total" []
        "Total number of Pods deleted by TaintEvictionController since its start.";
    POD_GC: Kind::Counter, "pod_gc_collector_force_delete_pods_total" ["namespace", "reason"]
        "Number of pods that are being forcefully deleted since the Pod GC Controller started.";
    POD_GC_ERRORS: Kind::Counter, "pod_gc_collector_force_delete_pod_errors_total" ["namespace", "reason"]
        "Number of errors encountered when forcefully deleting the pods since the Pod GC Controller started.";
    EPHEMERAL: Kind::Counter, "ephemeral_volume_controller_create_total" []
        "Number of PersistentVolumeClaims creation requests";
    EPHEMERAL_FAILURES: Kind::Counter, "ephemeral_volume_controller_create_failures_total" []
        "Number of PersistentVolumeClaims creation requests that failed";
}

/// What an act will count when it has succeeded, as far as only what was there before can tell.
#[must_use]
pub fn foreseen(queue: &str, view: &dyn View, act: &Act) -> Option<Measure> {
    match (queue, act) {
        ("node_lifecycle_controller_health", Act::Patch { target, .. }) if target.resource == NODES => {
            let node = view.get(NODES, "", &target.name)?;
            let is_new = is_given_up(&act.body()) && !is_given_up(&node.value());
            is_new.then(|| count(&EVICTIONS, [zone(&node)]))
        }
        ("orphaned_pods_nodes", Act::Delete { target, .. }) if target.resource == PODS => {
            let pod = view.get(PODS, &target.namespace, &target.name)?;
            let reason = match () {
                () if !pod.is_deleting() && view.get(NODES, "", &pod.meta.node).is_some() => "terminated",
                () if pod.meta.node.is_empty() => "unscheduled",
                () if view.get(NODES, "", &pod.meta.node).is_none() => "orphaned",
                () => "out-of-service",
            };
            Some(count(&POD_GC, [target.namespace.clone(), reason.to_owned()]))
        }
        _ => None,
    }
}

/// What follows from what became of an act.
#[must_use]
pub fn counted(queue: &str, act: &Act, outcome: &Outcome) -> Vec<Measure> {
    let mut all = Vec::new();
    match (queue, act) {
        ("cronjob", Act::Create { resource, .. }) if *resource == JOBS => all.extend(skew(outcome)),
        ("job", Act::Update { target, .. }) if target.resource == JOBS => all.extend(finished(outcome)),
        ("endpoint_slice", act) if act.resource() == Some(ENDPOINT_SLICES) && outcome.is_done() => {
            all.extend(operation(act).map(|name| count(&SLICE_CHANGES, [name.to_owned()])));
        }
        ("noexec_taint_pod", Act::Delete { .. }) if outcome.is_done() => {
            all.push(count(&TAINT_DELETIONS, []));
        }
        ("ephemeral_volume", Act::Create { .. }) if !matches!(outcome, Outcome::Skipped) => {
            all.push(count(&EPHEMERAL, []));
            all.extend(outcome.error().map(|_| count(&EPHEMERAL_FAILURES, [])));
        }
        _ => {}
    }
    all
}

/// The same of one that came to nothing.
#[must_use]
pub fn failed(foreseen: Measure) -> Option<Measure> {
    (foreseen.family == &POD_GC).then_some(Measure { family: &POD_GC_ERRORS, ..foreseen })
}

/// What a whole sync counts.
#[must_use]
pub fn synced(queue: &str, view: &dyn View, sync: Sync<'_>) -> Vec<Measure> {
    let result = if sync.has_failed { "error" } else { "success" };
    let both = |total: &'static Family, time: &'static Family, labels: Vec<String>| {
        let took = sync.took.as_secs_f64();
        vec![
            Measure { family: total, labels: labels.clone(), value: 1.0 },
            Measure { family: time, labels, value: took },
        ]
    };
    match queue {
        "job" => {
            let Some(job) = view.get(JOBS, &sync.key.namespace, &sync.key.name) else { return Vec::new() };
            let on_pods = |act: &Act| act.resource() == Some(PODS);
            let mut acts = sync.done.acts.iter().map(|(act, _)| act).filter(|act| on_pods(act));
            let action = acts.find_map(|act| match act {
                Act::Create { .. } => Some("pods_created"),
                Act::Delete { .. } => Some("pods_deleted"),
                _ => None,
            });
            let job = job.value();
            let labels = [action.unwrap_or("tracking"), completion_mode(&job), result];
            both(&JOB_SYNCS, &JOB_SYNC_TIME, labels.map(str::to_owned).to_vec())
        }
        "horizontalpodautoscaler" => {
            let labels = [scaling(sync.done), hpa_error(sync)];
            both(&HPA_RECONCILIATIONS, &HPA_TIME, labels.map(str::to_owned).to_vec())
        }
        "endpoint_slice" => vec![count(&SLICE_SYNCS, [result.to_owned()])],
        _ => Vec::new(),
    }
}

/// What there is at this moment.
#[must_use]
pub fn there(view: &dyn View) -> Vec<Measure> {
    let mut all = Gauges::default();
    let has = |resource: Resource| view.is_complete(resource);
    if has(NODES) {
        nodes(view, &mut all);
    }
    if has(PERSISTENT_VOLUMES) && has(PERSISTENT_VOLUME_CLAIMS) {
        volumes(view, &mut all);
    }
    if has(ENDPOINT_SLICES) && has(SERVICES) {
        slices(view, &mut all);
    }
    all.0.into_iter().map(|((_, labels), (family, value))| Measure { family, labels, value }).collect()
}

/// Sums by family and labels.
#[derive(Default)]
struct Gauges(BTreeMap<(&'static str, Vec<String>), (&'static Family, f64)>);

impl Gauges {
    fn add(&mut self, family: &'static Family, labels: &[&str], value: f64) {
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        self.0.entry((family.name, labels)).or_insert((family, 0.0)).1 += value;
    }
}

fn nodes(view: &dyn View, all: &mut Gauges) {
    let mut zones: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for node in view.list(NODES, "") {
        let ready = conditions::find(&node.value()["status"], "Ready").cloned().unwrap_or_default();
        let (size, unhealthy) = zones.entry(zone(&node)).or_default();
        *size += 1.0;
        *unhealthy += f64::from(u8::from(ready["status"] != "True"));
    }
    for (zone, (size, unhealthy)) in &zones {
        all.add(&ZONE_SIZE, &[zone], *size);
        all.add(&ZONE_UNHEALTHY, &[zone], *unhealthy);
        all.add(&ZONE_HEALTH, &[zone], 100.0 * (size - unhealthy) / size);
    }
}

fn volumes(view: &dyn View, all: &mut Gauges) {
    for volume in view.list(PERSISTENT_VOLUMES, "") {
        let value = volume.value();
        let text = |key: &str| value["spec"][key].as_str().unwrap_or_default().to_owned();
        let is_bound = value["status"]["phase"] == "Bound";
        all.add(if is_bound { &BOUND_PVS } else { &UNBOUND_PVS }, &[&text("storageClassName")], 1.0);
        let mode = if value["spec"]["volumeMode"] == "Block" { "Block" } else { "Filesystem" };
        all.add(&PVS, &[&plugin(&value["spec"]), mode], 1.0);
    }
    for claim in view.list(PERSISTENT_VOLUME_CLAIMS, "") {
        let value = claim.value();
        let text = |key: &str| value["spec"][key].as_str().unwrap_or_default();
        let is_bound = value["status"]["phase"] == "Bound";
        let labels = [&*claim.meta.namespace, text("storageClassName"), text("volumeAttributesClassName")];
        all.add(if is_bound { &BOUND_PVCS } else { &UNBOUND_PVCS }, &labels, 1.0);
    }
}

fn slices(view: &dyn View, all: &mut Gauges) {
    const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
    all.add(&SLICES, &[], 0.0);
    all.add(&SLICE_ENDPOINTS, &[], 0.0);
    for slice in view.list(ENDPOINT_SLICES, "") {
        if slice.label(MANAGED_BY) == Some("endpointslice-controller.k8s.io") {
            let endpoints = slice.value()["endpoints"].as_array().map_or(0, Vec::len);
            all.add(&SLICES, &[], 1.0);
            all.add(&SLICE_ENDPOINTS, &[], endpoints as f64);
        }
    }
    for service in view.list(SERVICES, "") {
        if let Some(wish) = service.value()["spec"]["trafficDistribution"].as_str() {
            all.add(&SERVICES_BY_TRAFFIC, &[wish], 1.0);
        }
    }
}

/// The driver of a volume, or the source it was made for.
fn plugin(spec: &Value) -> String {
    if let Some(driver) = spec["csi"]["driver"].as_str() {
        return format!("kubernetes.io/csi:{driver}");
    }
    let sources = [
        ("hostPath", "kubernetes.io/host-path"),
        ("local", "kubernetes.io/local-volume"),
        ("nfs", "kubernetes.io/nfs"),
        ("iscsi", "kubernetes.io/iscsi"),
        ("fc", "kubernetes.io/fc"),
    ];
    let found = sources.iter().find(|(source, _)| spec[*source].is_object());
    found.map_or_else(|| "N/A".to_owned(), |(_, name)| (*name).to_owned())
}

fn count<const N: usize>(family: &'static Family, labels: [String; N]) -> Measure {
    Measure { family, labels: labels.into(), value: 1.0 }
}

/// As upstream writes it: the region, and the zone after a zero byte.
fn zone(node: &Object) -> String {
    let label = |key: &str| node.label(key).unwrap_or_default();
    match (label("topology.kubernetes.io/region"), label("topology.kubernetes.io/zone")) {
        ("", "") => String::new(),
        (region, zone) => format!("{region}:\0:{zone}"),
    }
}

fn is_given_up(node: &Value) -> bool {
    let mut taints = node["spec"]["taints"].as_array().into_iter().flatten();
    taints.any(|taint| {
        let key = taint["key"].as_str().unwrap_or_default();
        taint["effect"] == "NoExecute"
            && ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"].contains(&key)
    })
}

fn operation(act: &Act) -> Option<&'static str> {
    match act {
        Act::Create { .. } => Some("create"),
        Act::Update { .. } => Some("update"),
        Act::Delete { .. } => Some("delete"),
        _ => None,
    }
}

fn completion_mode(job: &Value) -> &str {
    job["spec"]["completionMode"].as_str().unwrap_or("NonIndexed")
}

/// From the time that a Job was due to the time it was made at.
fn skew(outcome: &Outcome) -> Option<Measure> {
    const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";
    let Outcome::Done(job) = outcome else { return None };
    let job: Value = serde_json::from_slice(job).ok()?;
    let metadata = &job["metadata"];
    let due = wall(metadata["annotations"][SCHEDULED].as_str()?)?;
    let made = wall(metadata["creationTimestamp"].as_str()?)?;
    let value = (made.0.saturating_sub(due.0)) as f64 / 1e9;
    Some(Measure { family: &CRON_SKEW, labels: Vec::new(), value })
}

/// A finished Job is not written again: its last status tells how it ended.
fn finished(outcome: &Outcome) -> Option<Measure> {
    let Outcome::Done(job) = outcome else { return None };
    let job: Value = serde_json::from_slice(job).ok()?;
    let ended = [("Complete", "succeeded"), ("Failed", "failed")].into_iter().find_map(|(kind, result)| {
        let condition = conditions::find(&job["status"], kind).filter(|found| found["status"] == "True")?;
        Some((condition["reason"].as_str().unwrap_or_default().to_owned(), result))
    });
    let (reason, result) = ended?;
    Some(count(&JOBS_FINISHED, [completion_mode(&job).to_owned(), reason, result.to_owned()]))
}

/// Whether a scale was written, and which way.
fn scaling(done: &Done) -> &'static str {
    let written = done.acts.iter().rev().find_map(|(act, outcome)| match act {
        Act::Put { path, .. } if outcome.is_done() => Some((path, act.body())),
        _ => None,
    });
    let Some((path, body)) = written else { return "none" };
    let Some(Outcome::Done(before)) = done.answer(path) else { return "none" };
    let before: Value = serde_json::from_slice(before).unwrap_or_default();
    match body["spec"]["replicas"].as_i64() > before["spec"]["replicas"].as_i64() {
        true => "scale_up",
        false => "scale_down",
    }
}

fn hpa_error(sync: Sync<'_>) -> &'static str {
    const OF_THE_SPEC: [&str; 3] = ["InvalidSelector", "AmbiguousSelector", "InvalidMetricSourceType"];
    if !sync.has_failed {
        return "none";
    }
    let told = sync.done.acts.iter().map(|(act, _)| act.body()).find_map(|body| {
        let active = conditions::find(&body["status"], "ScalingActive")?.clone();
        active["reason"].as_str().map(str::to_owned)
    });
    match told.is_some_and(|reason| OF_THE_SPEC.contains(&&*reason)) {
        true => "spec",
        false => "internal",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plan::{PatchKind, Why, WriteError};
    use crate::testing::{World, draft, pod};

    fn shown(all: &[Measure]) -> Vec<String> {
        all.iter().map(|m| format!("{} {} {}", m.family.name, m.labels.join(","), m.value)).collect()
    }

    fn done(value: Value) -> Outcome {
        Outcome::Done(value.to_string().into())
    }

    #[test]
    fn names_are_unique_and_labels_in_order() {
        for (n, family) in ALL.iter().enumerate() {
            assert!(ALL[..n].iter().all(|other| other.name != family.name), "{}", family.name);
            assert!(family.labels.is_sorted(), "{}", family.name);
        }
    }

    #[test]
    fn what_was_done_is_counted_once_it_is_done() {
        let job = draft(JOBS, "j").object();
        let written = Act::update_status(&job, json!({}));
        let ended = |kind: &str, reason: &str| {
            done(json!({"spec": {"completionMode": "Indexed"},
                "status": {"conditions": [{"type": kind, "status": "True", "reason": reason}]}}))
        };
        let slice = draft(ENDPOINT_SLICES, "s").object();
        let created = Act::create(JOBS, "ns", json!({}));
        let due = json!({"metadata": {"creationTimestamp": "1970-01-01T01:00:03Z",
            "annotations": {"batch.kubernetes.io/cronjob-scheduled-timestamp": "1970-01-01T01:00:00Z"}}});
        let refused = || Outcome::Failed(WriteError::new(Why::Other, "no"));
        for (queue, act, outcome, want) in [
            (
                "job",
                written.clone(),
                ended("Complete", "CompletionsReached"),
                "job_controller_jobs_finished_total Indexed,CompletionsReached,succeeded 1",
            ),
            (
                "job",
                written.clone(),
                ended("Failed", "DeadlineExceeded"),
                "job_controller_jobs_finished_total Indexed,DeadlineExceeded,failed 1",
            ),
            ("job", written.clone(), ended("Suspended", "JobSuspended"), ""),
            ("job", written, refused(), ""),
            (
                "cronjob",
                created.clone(),
                done(due),
                "cronjob_controller_job_creation_skew_duration_seconds  3",
            ),
            ("cronjob", created, refused(), ""),
            (
                "endpoint_slice",
                Act::delete(&slice),
                done(json!({})),
                "endpoint_slice_controller_changes delete 1",
            ),
            ("endpoint_slice", Act::delete(&slice), refused(), ""),
            (
                "noexec_taint_pod",
                Act::delete(&pod("p").object()),
                done(json!({})),
                "taint_eviction_controller_pod_deletions_total  1",
            ),
            (
                "ephemeral_volume",
                Act::create(PERSISTENT_VOLUME_CLAIMS, "ns", json!({})),
                done(json!({})),
                "ephemeral_volume_controller_create_total  1",
            ),
            ("replicaset", Act::delete(&pod("p").object()), done(json!({})), ""),
        ] {
            assert_eq!(shown(&counted(queue, &act, &outcome)).join(";"), want, "{queue} {}", act.name());
        }
    }

    #[test]
    fn a_node_is_given_up_once_and_pods_go_for_a_reason() {
        let zoned =
            |name: &str| draft(NODES, name).set("/metadata/labels/topology.kubernetes.io~1zone", json!("a"));
        let taint = json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]);
        let world = World::new([
            zoned("new"),
            zoned("old").set("/spec/taints", taint.clone()),
            pod("ended").on("new"),
            pod("lost").on("gone").deleting(true),
            pod("nowhere").deleting(true),
            pod("off").on("new").deleting(true),
        ]);
        let queue = "node_lifecycle_controller_health";
        for (name, want) in [("new", Some("node_collector_evictions_total :\0:a 1")), ("old", None)] {
            let patch = json!({"spec": {"taints": taint.clone()}});
            let act = Act::patch(&draft(NODES, name).object(), PatchKind::Merge, &patch);
            let seen = foreseen(queue, &world.cache, &act).map(|measure| shown(&[measure]).remove(0));
            assert_eq!(seen.as_deref(), want, "{name}");
        }
        for (name, reason) in [
            ("ended", "terminated"),
            ("lost", "orphaned"),
            ("nowhere", "unscheduled"),
            ("off", "out-of-service"),
        ] {
            let act = Act::delete(&world.get(PODS, name));
            let measure = foreseen("orphaned_pods_nodes", &world.cache, &act).expect("it is counted");
            assert_eq!(measure.labels, ["ns", reason]);
            let error = failed(measure).expect("and its failure too");
            assert_eq!(error.family.name, "pod_gc_collector_force_delete_pod_errors_total");
        }
    }

    #[test]
    fn a_sync_is_counted_with_its_action_and_its_end() {
        let world = World::new([draft(JOBS, "j")]);
        let key = Key::new("ns", "j");
        let say = |queue: &str, acts: Vec<(Act, Outcome)>, has_failed: bool| {
            let done = Done { acts, last: 0, rounds: 1 };
            let took = Duration::from_millis(250);
            shown(&synced(queue, &world.cache, Sync { key: &key, done: &done, has_failed, took })).join(";")
        };
        let create = (Act::create(PODS, "ns", json!({})), done(json!({})));
        assert_eq!(
            say("job", vec![create], false),
            "job_controller_job_syncs_total pods_created,NonIndexed,success 1;\
             job_controller_job_sync_duration_seconds pods_created,NonIndexed,success 0.25"
        );
        assert!(say("job", vec![], true).contains("tracking,NonIndexed,error"));
        let path = "/apis/apps/v1/namespaces/ns/deployments/d/scale".to_owned();
        let get = |replicas: i64| {
            let answer = json!({"spec": {"replicas": replicas}});
            (Act::Get { path: path.clone() }, done(answer))
        };
        let put = |replicas: i64| {
            let body = json!({"spec": {"replicas": replicas}}).to_string().into();
            (Act::Put { path: path.clone(), body }, done(json!({})))
        };
        let hpa = "horizontalpodautoscaler";
        assert!(say(hpa, vec![get(1), put(3)], false).contains("_total scale_up,none 1"));
        assert!(say(hpa, vec![get(3), put(1)], false).contains("_total scale_down,none 1"));
        assert!(say(hpa, vec![get(3)], true).contains("_total none,internal 1"));
        let told = json!({"conditions": [{"type": "ScalingActive", "status": "False", "reason": "AmbiguousSelector"}]});
        let write = (Act::update_status(&draft(JOBS, "j").object(), told), done(json!({})));
        assert!(say(hpa, vec![get(3), write], true).contains("_total none,spec 1"));
        assert_eq!(say("endpoint_slice", vec![], true), "endpoint_slice_controller_syncs error 1");
        assert_eq!(say("replicaset", vec![], true), "");
    }

    #[test]
    fn what_is_there_is_summed_up() {
        let ready = |name: &str, status: &str| {
            draft(NODES, name).set("/status/conditions", json!([{"type": "Ready", "status": status}]))
        };
        let volume = |name: &str, phase: &str| {
            let spec = json!({"storageClassName": "fast", "hostPath": {"path": "/x"}});
            draft(PERSISTENT_VOLUMES, name).set("/spec", spec).phase(phase)
        };
        let ours = json!({"endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"});
        let world = World::new([
            ready("a", "True"),
            ready("b", "False"),
            volume("v", "Bound"),
            volume("w", "Available"),
            draft(PERSISTENT_VOLUME_CLAIMS, "c").set("/spec/storageClassName", json!("fast")).phase("Bound"),
            draft(ENDPOINT_SLICES, "s").set("/metadata/labels", ours).set("/endpoints", json!([{}, {}])),
            draft(ENDPOINT_SLICES, "other").set("/endpoints", json!([{}])),
            draft(SERVICES, "x").set("/spec/trafficDistribution", json!("PreferClose")),
        ]);
        assert_eq!(
            shown(&there(&world.cache)),
            [
                "endpoint_slice_controller_endpoints_desired  2",
                "endpoint_slice_controller_num_endpoint_slices  1",
                "endpoint_slice_controller_services_count_by_traffic_distribution PreferClose 1",
                "node_collector_unhealthy_nodes_in_zone  1",
                "node_collector_zone_health  50",
                "node_collector_zone_size  2",
                "pv_collector_bound_pv_count fast 1",
                "pv_collector_bound_pvc_count ns,fast, 1",
                "pv_collector_total_pv_count kubernetes.io/host-path,Filesystem 2",
                "pv_collector_unbound_pv_count fast 1",
            ]
        );
    }
}
