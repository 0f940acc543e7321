//! `/stats/summary`, the JSON that dashboards and autoscalers read.

use base::ids::PodUid;
use base::time::Wall;
use kubelet_core::stats::{
    ContainerStats, CpuStats, Disk, Interface, MemoryStats, PodStats, SwapStats, VolumeStats,
};
use serde_json::{Map, Value, json};

use super::figures::{self, fields, stamp};
use super::{Look, Sources};
use crate::stats::Named;
use crate::volumes::Figures;

/// Everything; with `brief`, processors and memory only.
pub(super) fn summary(sources: &Sources, look: &Look, brief: bool) -> Value {
    let show = |stats: &PodStats| {
        let mut shown = pod(look, stats, brief);
        let volumes = volumes(sources, stats);
        if !brief && !volumes.is_empty() {
            shown["volume"] = volumes.into();
        }
        shown
    };
    let pods: Vec<Value> = look.pods.iter().map(show).collect();
    json!({ "node": node(sources, look, brief), "pods": pods })
}

fn node(sources: &Sources, look: &Look, brief: bool) -> Value {
    let machine = &look.signals.machine;
    let now = stamp(look.now.secs());
    let mut out = Map::new();
    out.insert("nodeName".into(), json!(&*sources.node_name));
    put(&mut out, "startTime", machine.booted.map(stamp));
    out.insert("systemContainers".into(), look.system.named.iter().filter_map(|n| system(look, n)).collect());
    let cpu = CpuStats {
        at: look.now,
        nanos: machine.cpu_nanos,
        nano_cores: look.signals.nano_cores,
        stalls: machine.stalled.cpu,
    };
    out.insert("cpu".into(), figures::cpu(&cpu));
    if let Some(memory) = &machine.memory {
        let (faults, major_faults) = machine.faults.unzip();
        let shown = MemoryStats {
            at: look.now,
            available: Some(memory.available()),
            usage: Some(memory.usage),
            working_set: Some(memory.working_set),
            rss: Some(memory.rss),
            faults,
            major_faults,
            stalls: machine.stalled.memory,
        };
        out.insert("memory".into(), figures::memory(&shown));
        let swap = SwapStats {
            at: look.now,
            available: Some(memory.swap_total.saturating_sub(memory.swap_used)),
            used: Some(memory.swap_used),
        };
        out.insert("swap".into(), figures::swap(&swap));
    }
    if brief {
        return out.into();
    }
    put(&mut out, "io", machine.stalled.io.map(|s| figures::io(&s, look.now)));
    out.insert("network".into(), network(look, &now));
    let disks = &look.signals.disks;
    put(
        &mut out,
        "fs",
        disks.node.as_ref().map(|d| {
            let inodes = d.inodes.saturating_sub(d.inodes_free);
            filesystem(d, &now, Some(d.used), Some(inodes))
        }),
    );
    if let (Some(images), Some(disk)) = (&look.images, &disks.images) {
        let (bytes, inodes) = (images.used_bytes.as_ref(), images.inodes_used.as_ref());
        let shown = filesystem(disk, &now, bytes.map(|v| v.value), inodes.map(|v| v.value));
        out.insert("runtime".into(), json!({ "imageFs": shown, "containerFs": shown }));
    }
    let limit = machine.tasks.map(|t| json!({ "time": now, "maxpid": t.most, "curproc": t.running }));
    put(&mut out, "rlimit", limit);
    out.into()
}

/// A cgroup of the system, as if it were a container.
fn system(look: &Look, named: &Named) -> Option<Value> {
    let shown = ContainerStats {
        name: named.owner.name()?.to_owned(),
        started: named.started,
        ..ContainerStats::of_cgroup(&named.stats, named.nano_cores, look.now)
    };
    Some(container(&shown, look, true))
}

fn network(look: &Look, now: &str) -> Value {
    let all = &look.signals.machine.interfaces;
    let default = look.signals.machine.default_interface.as_deref();
    let default = all.iter().find(|i| default == Some(i.name.as_str())).map(interface);
    let mut out = default.and_then(|d| d.as_object().cloned()).unwrap_or_default();
    out.insert("time".into(), json!(now));
    // The default one has its name among the fields; without one it is empty, as upstream writes it.
    out.entry("name").or_insert_with(|| json!(""));
    out.insert("interfaces".into(), all.iter().map(interface).collect());
    out.into()
}

fn pod(look: &Look, pod: &PodStats, brief: bool) -> Value {
    let mut out = Map::new();
    out.insert("podRef".into(), json!({ "name": pod.name, "namespace": pod.namespace, "uid": pod.uid }));
    put(&mut out, "startTime", pod.started.map(stamp));
    let shown: Vec<Value> = pod.containers.iter().map(|c| container(c, look, brief)).collect();
    out.insert("containers".into(), json!(shown));
    let at = look.now;
    out.insert("cpu".into(), figures::cpu(&pod.cpu.unwrap_or(CpuStats { at, ..CpuStats::default() })));
    let memory = pod.memory.unwrap_or(MemoryStats { at, ..MemoryStats::default() });
    out.insert("memory".into(), figures::memory(&memory));
    put(&mut out, "swap", pod.swap.as_ref().map(figures::swap));
    if brief {
        return out.into();
    }
    put(&mut out, "io", pod.io.map(|s| figures::io(&s, at)));
    put(&mut out, "network", pod.network.as_ref().map(|(at, all)| pod_network(*at, all)));
    if let (Some(used), Some(disk)) = (pod.ephemeral, &look.signals.disks.node) {
        let storage = filesystem(disk, &stamp(at.secs()), Some(used.bytes), Some(used.inodes));
        out.insert("ephemeral-storage".into(), storage);
    }
    put(&mut out, "process_stats", pod.process_count.map(|n| json!({ "process_count": n })));
    out.into()
}

/// The first of the Pod's interfaces, by the name that every CNI plugin gives it, stands for the Pod.
fn pod_network(at: Wall, all: &[Interface]) -> Value {
    let shown: Vec<Value> = all.iter().map(interface).collect();
    let first = shown.iter().find(|i| i["name"] == "eth0").or(shown.first());
    let mut out = first.and_then(|i| i.as_object().cloned()).unwrap_or_default();
    out.insert("time".into(), json!(stamp(at.secs())));
    out.entry("name").or_insert_with(|| json!(""));
    out.insert("interfaces".into(), shown.into());
    out.into()
}

fn container(stats: &ContainerStats, look: &Look, brief: bool) -> Value {
    let mut out = Map::new();
    out.insert("name".into(), json!(stats.name));
    put(&mut out, "startTime", stats.started.map(stamp));
    put(&mut out, "cpu", stats.cpu.as_ref().map(figures::cpu));
    put(&mut out, "memory", stats.memory.as_ref().map(figures::memory));
    put(&mut out, "swap", stats.swap.as_ref().map(figures::swap));
    if brief {
        return out.into();
    }
    put(&mut out, "io", stats.io.map(|s| figures::io(&s, look.now)));
    let disks = &look.signals.disks;
    if let (Some((at, used)), Some(disk)) = (stats.rootfs, &disks.images) {
        // A layer has at least its own directory: none were counted.
        let inodes = Some(used.inodes).filter(|n| *n > 0);
        out.insert("rootfs".into(), filesystem(disk, &stamp(at.secs()), Some(used.bytes), inodes));
    }
    if let (Some(used), Some(disk)) = (stats.logs, &disks.node) {
        let shown = filesystem(disk, &stamp(look.now.secs()), Some(used.bytes), Some(used.inodes));
        out.insert("logs".into(), shown);
    }
    out.into()
}

/// What drivers told of their volumes, and what was counted on the node's own.
fn volumes(sources: &Sources, pod: &PodStats) -> Vec<Value> {
    let driven = sources.volumes.of(&PodUid::from(pod.uid.as_str()));
    let own = pod.volumes.iter().filter(|(name, _)| !driven.contains_key(*name));
    let own = own.map(|(name, v)| (name.clone(), own_volume(name, v)));
    let driven = driven.iter().map(|(name, figures)| (name.clone(), volume(name, figures)));
    let mut all: Vec<(String, Value)> = own.chain(driven).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all.into_iter().map(|(_, shown)| shown).collect()
}

fn own_volume(name: &str, stats: &VolumeStats) -> Value {
    let disk = stats.disk.unwrap_or_default();
    let mut shown =
        filesystem(&disk, &stamp(stats.at.secs()), Some(stats.used.bytes), Some(stats.used.inodes));
    shown["name"] = json!(name);
    shown
}

fn volume(name: &str, figures: &Figures) -> Value {
    let (bytes, inodes) = (figures.bytes, figures.inodes);
    let claim = figures.claim.as_ref();
    fields([
        ("time", Some(json!(stamp(figures.at.secs())))),
        ("availableBytes", bytes.map(|b| json!(b.free))),
        ("capacityBytes", bytes.map(|b| json!(b.total))),
        ("usedBytes", bytes.map(|b| json!(b.used))),
        ("inodesFree", inodes.map(|i| json!(i.free))),
        ("inodes", inodes.map(|i| json!(i.total))),
        ("inodesUsed", inodes.map(|i| json!(i.used))),
        ("name", Some(json!(name))),
        ("pvcRef", claim.map(|(namespace, name)| json!({ "name": name, "namespace": namespace }))),
    ])
}

/// A filesystem, and how much of it is in use, by all or by somebody.
fn filesystem(disk: &Disk, time: &str, bytes: Option<u64>, inodes: Option<u64>) -> Value {
    fields([
        ("time", Some(json!(time))),
        ("availableBytes", Some(json!(disk.available))),
        ("capacityBytes", Some(json!(disk.capacity))),
        ("usedBytes", bytes.map(|n| json!(n))),
        ("inodesFree", Some(json!(disk.inodes_free))),
        ("inodes", Some(json!(disk.inodes))),
        ("inodesUsed", inodes.map(|n| json!(n))),
    ])
}

fn interface(i: &Interface) -> Value {
    json!({
        "name": i.name, "rxBytes": i.received.bytes, "rxErrors": i.received.errors,
        "txBytes": i.sent.bytes, "txErrors": i.sent.errors,
    })
}

fn put(out: &mut Map<String, Value>, name: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        out.insert(name.to_owned(), value.into());
    }
}
