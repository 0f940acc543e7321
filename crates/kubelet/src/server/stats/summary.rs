//! `/stats/summary`, the JSON that dashboards and autoscalers read.

use base::ids::PodUid;
use kubelet_core::stats::{ContainerStats, Disk, Interface, PodStats};
use serde_json::{Map, Value, json};

use super::{Look, Sources};
use crate::volumes::Figures;

/// Everything; with `brief`, processors and memory only.
pub(super) fn summary(sources: &Sources, look: &Look, brief: bool) -> Value {
    let show = |stats: &PodStats| {
        let mut shown = pod(look, stats, brief);
        let volumes = sources.volumes.of(&PodUid::from(stats.uid.as_str()));
        if !brief && !volumes.is_empty() {
            shown["volume"] = volumes.iter().map(|(name, figures)| volume(name, figures)).collect();
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
    let cpu = fields([
        ("time", Some(json!(now))),
        ("usageNanoCores", look.signals.nano_cores.map(|n| json!(n))),
        ("usageCoreNanoSeconds", machine.cpu_nanos.map(|n| json!(n))),
    ]);
    out.insert("cpu".into(), cpu);
    if let Some(memory) = &machine.memory {
        let faults = machine.faults;
        let shown = fields([
            ("time", Some(json!(now))),
            ("availableBytes", Some(json!(memory.available()))),
            ("usageBytes", Some(json!(memory.usage))),
            ("workingSetBytes", Some(json!(memory.working_set))),
            ("rssBytes", Some(json!(memory.rss))),
            ("pageFaults", faults.map(|f| json!(f.0))),
            ("majorPageFaults", faults.map(|f| json!(f.1))),
        ]);
        out.insert("memory".into(), shown);
        let swap = json!({
            "time": now, "swapUsageBytes": memory.swap_used,
            "swapAvailableBytes": memory.swap_total.saturating_sub(memory.swap_used),
        });
        out.insert("swap".into(), swap);
    }
    if brief {
        return out.into();
    }
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

fn network(look: &Look, now: &str) -> Value {
    let interface = |i: &Interface| {
        json!({
            "name": i.name, "rxBytes": i.received.bytes, "rxErrors": i.received.errors,
            "txBytes": i.sent.bytes, "txErrors": i.sent.errors,
        })
    };
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
    let image_disk = look.signals.disks.images.as_ref();
    let mut out = Map::new();
    out.insert("podRef".into(), json!({ "name": pod.name, "namespace": pod.namespace, "uid": pod.uid }));
    put(&mut out, "startTime", pod.started.map(stamp));
    let shown: Vec<Value> = pod.containers.iter().map(|c| container(c, image_disk, brief)).collect();
    out.insert("containers".into(), json!(shown));
    let now = stamp(look.now.secs());
    let (cpu, memory) = (pod.cpu.unwrap_or_default(), pod.memory.unwrap_or_default());
    let cpu = fields([
        ("time", Some(json!(now))),
        ("usageNanoCores", number(cpu.nano_cores)),
        ("usageCoreNanoSeconds", number(cpu.nanos)),
    ]);
    out.insert("cpu".into(), cpu);
    let memory = fields([
        ("time", Some(json!(now))),
        ("usageBytes", number(memory.usage)),
        ("workingSetBytes", number(memory.working_set)),
        ("rssBytes", number(memory.rss)),
        ("pageFaults", number(memory.faults)),
        ("majorPageFaults", number(memory.major_faults)),
    ]);
    out.insert("memory".into(), memory);
    let layers: Vec<u64> =
        pod.containers.iter().filter_map(|c| c.rootfs).map(|(_, used)| used.bytes).collect();
    if !brief && !layers.is_empty() {
        let mut storage = json!({ "time": now, "usedBytes": layers.iter().sum::<u64>() });
        if let Some(disk) = image_disk {
            storage["availableBytes"] = json!(disk.available);
            storage["capacityBytes"] = json!(disk.capacity);
        }
        out.insert("ephemeral-storage".into(), storage);
    }
    out.into()
}

fn container(stats: &ContainerStats, image_disk: Option<&Disk>, brief: bool) -> Value {
    let mut out = Map::new();
    out.insert("name".into(), json!(stats.name));
    put(&mut out, "startTime", stats.started.map(stamp));
    if let Some(cpu) = &stats.cpu {
        let shown = fields([
            ("time", Some(json!(stamp(cpu.at.secs())))),
            ("usageNanoCores", number(cpu.nano_cores)),
            ("usageCoreNanoSeconds", number(cpu.nanos)),
        ]);
        out.insert("cpu".into(), shown);
    }
    if let Some(memory) = &stats.memory {
        let shown = fields([
            ("time", Some(json!(stamp(memory.at.secs())))),
            ("availableBytes", number(memory.available)),
            ("usageBytes", number(memory.usage)),
            ("workingSetBytes", number(memory.working_set)),
            ("rssBytes", number(memory.rss)),
            ("pageFaults", number(memory.faults)),
            ("majorPageFaults", number(memory.major_faults)),
        ]);
        out.insert("memory".into(), shown);
    }
    if let Some(swap) = &stats.swap {
        let shown = fields([
            ("time", Some(json!(stamp(swap.at.secs())))),
            ("swapAvailableBytes", number(swap.available)),
            ("swapUsageBytes", number(swap.used)),
        ]);
        out.insert("swap".into(), shown);
    }
    if let (false, Some((at, used)), Some(disk)) = (brief, stats.rootfs, image_disk) {
        // A layer has at least its own directory: none were counted.
        let inodes = Some(used.inodes).filter(|n| *n > 0);
        out.insert("rootfs".into(), filesystem(disk, &stamp(at.secs()), Some(used.bytes), inodes));
    }
    out.into()
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

/// An object of what there is.
fn fields<const N: usize>(pairs: [(&str, Option<Value>); N]) -> Value {
    pairs
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect::<Map<_, _>>()
        .into()
}

fn put(out: &mut Map<String, Value>, name: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        out.insert(name.to_owned(), value.into());
    }
}

fn number(value: Option<u64>) -> Option<Value> {
    value.map(|n| json!(n))
}

fn stamp(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds).unwrap_or_default().to_string()
}
