//! Who goes, with which words, as the facts have it.

#![allow(clippy::unwrap_used)]

mod scenarios;

use base::time::{Mono, Wall};

use super::*;
use crate::node::capacity::Threshold;
use crate::stats::{ContainerStats, MemoryStats, Usage, VolumeStats};
use crate::testing::pod_yaml;

const ONE_DISK: Layout = Layout { image_disk: false, split: false };
const TWO_DISKS: Layout = Layout { image_disk: true, split: false };
const SPLIT: Layout = Layout { image_disk: true, split: true };

fn named(name: &str, spec: &str) -> Pod {
    let mut pod = pod_yaml(spec);
    pod.metadata.name = Some(name.to_owned());
    pod.metadata.uid = Some(name.to_owned());
    pod
}

/// A Pod with one container `c` that asks for so much memory and disk.
fn asking(name: &str, priority: i32, memory: &str, disk: &str) -> Pod {
    named(
        name,
        &format!(
            "{{priority: {priority}, containers: [{{name: c, resources: {{requests: {{memory: {memory}, \
             ephemeral-storage: {disk}}}}}}}], volumes: [{{name: v, emptyDir: {{}}}}]}}"
        ),
    )
}

fn usage(bytes: u64) -> Usage {
    Usage { bytes, inodes: bytes / 10 }
}

fn stats(memory: u64, layer: u64, logs: u64, volume: u64) -> PodStats {
    let working_set = Some(memory);
    let memory = Some(MemoryStats { working_set, ..MemoryStats::default() });
    let container = ContainerStats {
        name: "c".into(),
        memory,
        rootfs: Some((Wall::default(), usage(layer))),
        logs: Some(usage(logs)),
        ..ContainerStats::default()
    };
    let volume = VolumeStats { used: usage(volume), ..VolumeStats::default() };
    PodStats {
        containers: vec![container],
        memory,
        ephemeral: Some(usage(layer) + usage(logs) + volume.used),
        volumes: BTreeMap::from([("v".to_owned(), volume)]),
        ..PodStats::default()
    }
}

fn met(signal: Signal, seconds: u64) -> Met {
    let threshold = Threshold::Amount("100Mi".parse().unwrap());
    Met { signal, threshold, grace: std::time::Duration::from_secs(seconds) }
}

fn readings(signal: Signal, available: i64) -> Readings {
    Readings::from([(signal, Reading { available, capacity: 1 << 40, at: Mono::default() })])
}

fn chosen(signal: Signal, grace: u64, layout: Layout, pods: &[(Pod, Option<PodStats>)]) -> Option<Eviction> {
    let candidates: Vec<Candidate<'_>> =
        pods.iter().map(|(pod, stats)| Candidate { pod, stats: stats.as_ref() }).collect();
    victim(&Input {
        met: &[met(signal, grace)],
        readings: &readings(signal, 42 << 20),
        layout,
        most_grace: 20,
        candidates: &candidates,
    })
}

fn who(signal: Signal, layout: Layout, pods: &[(Pod, Option<PodStats>)]) -> Option<String> {
    chosen(signal, 0, layout, pods).map(|e| e.uid.to_string())
}

#[test]
fn who_uses_more_memory_than_asked_for_goes_before_who_matters_less() {
    let (modest, greedy) = (asking("modest", 0, "1Gi", "0"), asking("greedy", 1000, "1Mi", "0"));
    let low = asking("low", -5, "1Mi", "0");
    let of = |bytes| Some(stats(bytes, 0, 0, 0));
    let table = [
        (vec![(modest.clone(), of(900 << 20)), (greedy.clone(), of(2 << 20))], "greedy"),
        (vec![(greedy.clone(), of(90 << 20)), (low.clone(), of(2 << 20))], "low"),
        (vec![(greedy.clone(), of(2 << 20)), (asking("more", 1000, "1Mi", "0"), of(3 << 20))], "more"),
        (vec![(greedy.clone(), of(2 << 20)), (modest.clone(), None)], "modest"),
    ];
    for (pods, want) in table {
        for signal in [Signal::MemoryAvailable, Signal::AllocatableMemoryAvailable] {
            assert_eq!(who(signal, ONE_DISK, &pods).as_deref(), Some(want));
        }
    }
}

#[test]
fn of_a_disk_only_what_is_on_it_counts() {
    let pods = [
        (asking("layers", 0, "0", "0"), Some(stats(0, 900, 0, 0))),
        (asking("logs", 0, "0", "0"), Some(stats(0, 0, 500, 0))),
        (asking("volumes", 0, "0", "0"), Some(stats(0, 0, 0, 400))),
    ];
    let table = [
        (Signal::NodefsAvailable, ONE_DISK, "layers"),
        (Signal::ImagefsAvailable, ONE_DISK, "layers"),
        (Signal::NodefsAvailable, TWO_DISKS, "logs"),
        (Signal::NodefsInodesFree, TWO_DISKS, "logs"),
        (Signal::ImagefsAvailable, TWO_DISKS, "layers"),
        (Signal::ContainerfsInodesFree, TWO_DISKS, "layers"),
        (Signal::NodefsAvailable, SPLIT, "layers"),
        (Signal::ContainerfsAvailable, SPLIT, "layers"),
    ];
    for (signal, layout, want) in table {
        assert_eq!(who(signal, layout, &pods).as_deref(), Some(want), "{signal:?} {layout:?}");
    }
    // A request that covers it protects.
    let covered = asking("layers", 0, "0", "1Ki");
    let pods = [(covered, pods[0].1.clone()), pods[1].clone(), pods[2].clone()];
    assert_eq!(who(Signal::NodefsAvailable, ONE_DISK, &pods).as_deref(), Some("logs"));
}

#[test]
fn process_ids_are_taken_from_who_matters_least_and_then_from_who_has_most() {
    let of = |name: &str, priority, processes| {
        (
            asking(name, priority, "0", "0"),
            Some(PodStats { processes: Some(processes), ..PodStats::default() }),
        )
    };
    let pods = [of("many", 10, 5000), of("few", 0, 3), of("some", 0, 7)];
    assert_eq!(who(Signal::PidAvailable, ONE_DISK, &pods).as_deref(), Some("some"));
}

#[test]
fn static_mirror_and_critical_pods_stay() {
    let annotated = |key: &str, value: &str| {
        let mut pod = asking("p", 0, "0", "0");
        pod.metadata.annotations = Some(BTreeMap::from([(key.to_owned(), value.to_owned())]));
        pod
    };
    let table = [
        (annotated("kubernetes.io/config.source", "file"), true),
        (annotated("kubernetes.io/config.source", "http"), true),
        (annotated("kubernetes.io/config.source", "api"), false),
        (annotated("kubernetes.io/config.source", "local"), false),
        (annotated("kubernetes.io/config.mirror", "x"), true),
        (asking("p", 2_000_000_000, "0", "0"), true),
        (asking("p", 1_999_999_999, "0", "0"), false),
    ];
    for (pod, stays) in table {
        let over = Some(stats(9 << 30, 9 << 30, 0, 0));
        assert_eq!(
            who(Signal::MemoryAvailable, ONE_DISK, &[(pod.clone(), over)]).is_none(),
            stays,
            "{pod:?}"
        );
    }
}

#[test]
fn the_message_names_the_threshold_and_who_is_to_blame() {
    let mut pod = asking("web", 0, "10Mi", "0");
    pod.spec.as_mut().unwrap().termination_grace_period_seconds = Some(7);
    let pods = [(pod, Some(stats(30 << 20, 0, 0, 0)))];
    let eviction = chosen(Signal::MemoryAvailable, 0, ONE_DISK, &pods).unwrap();
    assert_eq!(
        eviction.message,
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 42Mi. \
         Container c was using 30Mi, request is 10Mi, has larger consumption of memory. "
    );
    let annotation = |key: &str| eviction.annotations.get(key).map(String::as_str);
    assert_eq!(annotation("offending_containers"), Some("c"));
    assert_eq!(annotation("offending_containers_usage"), Some("30Mi"));
    assert_eq!(annotation("starved_resource"), Some("memory"));
    assert_eq!((eviction.grace, eviction.disrupts, eviction.signal), (1, true, "memory.available"));
    let soft = chosen(Signal::MemoryAvailable, 5, ONE_DISK, &pods).unwrap();
    assert_eq!(soft.grace, 7, "the smaller of the Pod's own and the most that is given");
    let disk = chosen(
        Signal::NodefsAvailable,
        0,
        ONE_DISK,
        &[(asking("web", 0, "0", "0"), Some(stats(0, 3 << 10, 1 << 10, 0)))],
    );
    assert_eq!(
        disk.unwrap().message,
        "The node was low on resource: ephemeral-storage. Threshold quantity: 100Mi, available: 42Mi. \
         Container c was using 4Ki, request is 0, has larger consumption of ephemeral-storage. "
    );
    let blind = chosen(Signal::PidAvailable, 0, ONE_DISK, &[(asking("web", 0, "0", "0"), None)]).unwrap();
    assert_eq!(
        blind.message,
        "The node was low on resource: pids. Threshold quantity: 100Mi, available: 44040192. "
    );
}

#[test]
fn a_pod_with_a_request_of_its_own_is_named_too() {
    let spec = "{resources: {requests: {memory: 1Mi}}, containers: [{name: c}]}";
    let pods = [(named("web", spec), Some(stats(2 << 20, 0, 0, 0)))];
    let eviction = chosen(Signal::MemoryAvailable, 0, ONE_DISK, &pods).unwrap();
    assert!(
        eviction
            .message
            .contains("Pod web was using 2Mi, request is 1Mi, has larger consumption of memory. "),
        "{}",
        eviction.message
    );
    assert_eq!(eviction.annotations["offending_pod_usage"], "2Mi");
}

#[test]
fn what_nobody_uses_goes_before_any_pod() {
    use Reclaim::{DeadContainers, UnusedImages};
    let both: &[Reclaim] = &[DeadContainers, UnusedImages];
    let table: [(Signal, Layout, &[Reclaim]); 9] = [
        (Signal::NodefsAvailable, ONE_DISK, both),
        (Signal::ImagefsInodesFree, ONE_DISK, both),
        (Signal::NodefsAvailable, TWO_DISKS, &[]),
        (Signal::ImagefsAvailable, TWO_DISKS, both),
        (Signal::ContainerfsAvailable, TWO_DISKS, both),
        (Signal::NodefsInodesFree, SPLIT, &[DeadContainers]),
        (Signal::ContainerfsAvailable, SPLIT, &[DeadContainers]),
        (Signal::ImagefsAvailable, SPLIT, &[UnusedImages]),
        (Signal::MemoryAvailable, ONE_DISK, &[]),
    ];
    for (signal, layout, want) in table {
        assert_eq!(layout.reclaims(signal), want, "{signal:?} {layout:?}");
    }
}

fn over(spec: &str, stats: &PodStats, layout: Layout) -> Option<Eviction> {
    let pod = named("p", spec);
    assert!(limits::has_any(&pod), "{spec}");
    limits::exceeded(&[Candidate { pod: &pod, stats: Some(stats) }], layout).pop()
}

#[test]
fn a_limit_on_disk_is_enforced_whatever_the_node_has_left() {
    let volume = "{volumes: [{name: v, emptyDir: {sizeLimit: 1Ki}}], containers: [{name: c}]}";
    let limited = "{containers: [{name: c, resources: {limits: {ephemeral-storage: 2k}}}]}";
    let two = "{containers: [{name: c, resources: {limits: {ephemeral-storage: 2k}}}, \
               {name: d, resources: {limits: {ephemeral-storage: 1Ki}}}]}";
    let table = [
        (
            volume,
            stats(0, 0, 0, 1025),
            ONE_DISK,
            Some("Usage of EmptyDir volume \"v\" exceeds the limit \"1Ki\". "),
        ),
        (volume, stats(0, 0, 0, 1024), ONE_DISK, None),
        (
            limited,
            stats(0, 1000, 1000, 1),
            ONE_DISK,
            Some("Pod ephemeral local storage usage exceeds the total limit of containers 2k. "),
        ),
        (limited, stats(0, 1000, 1000, 0), ONE_DISK, None),
        (
            two,
            stats(0, 1500, 501, 0),
            ONE_DISK,
            Some("Container c exceeded its local ephemeral storage limit \"2k\". "),
        ),
        (two, stats(0, 1500, 501, 0), TWO_DISKS, None),
        (
            two,
            stats(0, 1000, 0, 3000),
            ONE_DISK,
            Some("Pod ephemeral local storage usage exceeds the total limit of containers 3024. "),
        ),
    ];
    for (spec, stats, layout, want) in table {
        let eviction = over(spec, &stats, layout);
        assert_eq!(eviction.as_ref().map(|e| e.message.as_str()), want, "{spec}");
        assert!(eviction.is_none_or(|e| !e.disrupts && e.grace == 1 && e.annotations.is_empty()));
    }
}

#[test]
fn init_containers_count_by_their_peak_and_sidecars_with_the_rest() {
    let spec = "{initContainers: [{name: s, restartPolicy: Always, resources: {limits: {ephemeral-storage: 1Ki}}}, \
                {name: i, resources: {limits: {ephemeral-storage: 8Ki}}}], \
                containers: [{name: c, resources: {limits: {ephemeral-storage: 2Ki}}}]}";
    assert!(
        over(spec, &stats(0, 9 << 10, 0, 0), ONE_DISK)
            .is_some_and(|e| e.signal == "ephemeralcontainerfs.limit")
    );
    let used = PodStats { containers: Vec::new(), ..stats(0, 9 << 10, 0, 1) };
    let message = over(spec, &used, ONE_DISK).map(|e| e.message);
    assert!(message.is_some_and(|m| m.ends_with("total limit of containers 9Ki. ")));
}

#[test]
fn who_has_no_limit_needs_no_measuring() {
    for spec in [
        "{containers: [{name: c}]}",
        "{volumes: [{name: v, emptyDir: {sizeLimit: '0'}}], containers: [{name: c}]}",
    ] {
        assert!(!limits::has_any(&named("p", spec)), "{spec}");
    }
    let pod = named("p", "{containers: [{name: c}]}");
    let stats = stats(0, 1 << 40, 1 << 40, 1 << 40);
    assert!(limits::exceeded(&[Candidate { pod: &pod, stats: Some(&stats) }], ONE_DISK).is_empty());
}
