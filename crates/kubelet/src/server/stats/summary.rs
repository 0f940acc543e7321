//! `/stats/summary`, the JSON that dashboards and autoscalers read.

use std::path::Path;

use base::ids::PodUid;
use base::time::Wall;
use cri::v1;
use k8s_openapi::api::core::v1::Pod;
use kubelet_core::stats::Interface;
use serde_json::{Map, Value, json};

use super::machine::{Disk, disk};
use super::{Look, Measured, Sources, value};
use crate::pods::status_board::Entry;
use crate::volumes::Figures;

/// Everything; with `brief`, processors and memory only.
pub(super) fn summary(sources: &Sources, look: &Look, brief: bool) -> Value {
    let images = look.images.as_ref();
    let image_disk = images.and_then(|i| i.fs_id.as_ref()).and_then(|id| disk(Path::new(&id.mountpoint)));
    let pods: Vec<Value> = look
        .pods()
        .filter_map(|containers| {
            let uid = &containers.first()?.uid;
            let entry = sources.pods.get(uid)?;
            let mut shown = pod(look, &entry, containers, image_disk.as_ref(), brief);
            let volumes = sources.volumes.of(&PodUid::from(uid.as_str()));
            if !brief && !volumes.is_empty() {
                shown["volume"] = volumes.iter().map(|(name, figures)| volume(name, figures)).collect();
            }
            Some(shown)
        })
        .collect();
    json!({ "node": node(sources, look, image_disk.as_ref(), brief), "pods": pods })
}

fn node(sources: &Sources, look: &Look, image_disk: Option<&Disk>, brief: bool) -> Value {
    let machine = &look.machine;
    let now = stamp(look.now.secs());
    let mut out = Map::new();
    out.insert("nodeName".into(), json!(&*sources.node_name));
    put(&mut out, "startTime", machine.booted.map(stamp));
    let cpu = fields([
        ("time", Some(json!(now))),
        ("usageNanoCores", machine.nano_cores.map(|n| json!(n))),
        ("usageCoreNanoSeconds", machine.cpu_nanos.map(|n| json!(n))),
    ]);
    out.insert("cpu".into(), cpu);
    if let Some(memory) = &machine.memory {
        let faults = machine.faults;
        let shown = fields([
            ("time", Some(json!(now))),
            ("availableBytes", Some(json!(memory.total.saturating_sub(memory.working_set)))),
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
    put(&mut out, "fs", machine.fs.as_ref().map(|d| filesystem(d, &now, None)));
    if let (Some(images), Some(disk)) = (&look.images, image_disk) {
        let shown = filesystem(disk, &now, Some(images));
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
    let all = &look.machine.network;
    let default = look.machine.default_interface.as_deref();
    let default = all.iter().find(|i| default == Some(i.name.as_str())).map(interface);
    let mut out = default.and_then(|d| d.as_object().cloned()).unwrap_or_default();
    out.insert("time".into(), json!(now));
    // The default one has its name among the fields; without one it is empty, as upstream writes it.
    out.entry("name").or_insert_with(|| json!(""));
    out.insert("interfaces".into(), all.iter().map(interface).collect());
    out.into()
}

fn pod(look: &Look, entry: &Entry, containers: &[Measured], image_disk: Option<&Disk>, brief: bool) -> Value {
    let pod: &Pod = &entry.pod;
    let meta = &pod.metadata;
    let mut out = Map::new();
    out.insert("podRef".into(), json!({ "name": meta.name, "namespace": meta.namespace, "uid": meta.uid }));
    put(&mut out, "startTime", entry.status.start_time.as_ref().map(|t| stamp(t.0.as_second())));
    let shown: Vec<Value> = containers.iter().map(|c| container(c, image_disk, brief)).collect();
    out.insert("containers".into(), json!(shown));
    let now = stamp(look.now.secs());
    let sum = |of: fn(&Measured) -> Option<u64>| {
        let known: Vec<u64> = containers.iter().filter_map(of).collect();
        (!known.is_empty()).then(|| json!(known.iter().sum::<u64>()))
    };
    let cpu = fields([
        ("time", Some(json!(now))),
        ("usageNanoCores", sum(|c| value(c.cpu.as_ref()?.usage_nano_cores.as_ref()))),
        ("usageCoreNanoSeconds", sum(Measured::cpu_nanos)),
    ]);
    out.insert("cpu".into(), cpu);
    let memory = fields([
        ("time", Some(json!(now))),
        ("usageBytes", sum(|c| value(c.memory.as_ref()?.usage_bytes.as_ref()))),
        ("workingSetBytes", sum(Measured::working_set)),
        ("rssBytes", sum(|c| value(c.memory.as_ref()?.rss_bytes.as_ref()))),
        ("pageFaults", sum(|c| value(c.memory.as_ref()?.page_faults.as_ref()))),
        ("majorPageFaults", sum(|c| value(c.memory.as_ref()?.major_page_faults.as_ref()))),
    ]);
    out.insert("memory".into(), memory);
    if !brief {
        let used = sum(|c| value(c.layer.as_ref()?.used_bytes.as_ref()));
        let mut storage = used.map(|used| json!({ "time": now, "usedBytes": used }));
        if let (Some(storage), Some(disk)) = (&mut storage, image_disk) {
            storage["availableBytes"] = json!(disk.available);
            storage["capacityBytes"] = json!(disk.capacity);
        }
        put(&mut out, "ephemeral-storage", storage);
    }
    out.into()
}

fn container(measured: &Measured, image_disk: Option<&Disk>, brief: bool) -> Value {
    let mut out = Map::new();
    out.insert("name".into(), json!(measured.container));
    put(&mut out, "startTime", measured.started.map(stamp));
    if let Some(cpu) = &measured.cpu {
        let shown = fields([
            ("time", Some(json!(nanos(cpu.timestamp)))),
            ("usageNanoCores", number(cpu.usage_nano_cores.as_ref())),
            ("usageCoreNanoSeconds", number(cpu.usage_core_nano_seconds.as_ref())),
        ]);
        out.insert("cpu".into(), shown);
    }
    if let Some(memory) = &measured.memory {
        let shown = fields([
            ("time", Some(json!(nanos(memory.timestamp)))),
            ("availableBytes", number(memory.available_bytes.as_ref()).filter(|n| *n != json!(0))),
            ("usageBytes", number(memory.usage_bytes.as_ref())),
            ("workingSetBytes", number(memory.working_set_bytes.as_ref())),
            ("rssBytes", number(memory.rss_bytes.as_ref())),
            ("pageFaults", number(memory.page_faults.as_ref())),
            ("majorPageFaults", number(memory.major_page_faults.as_ref())),
        ]);
        out.insert("memory".into(), shown);
    }
    if let Some(swap) = &measured.swap {
        let shown = fields([
            ("time", Some(json!(nanos(swap.timestamp)))),
            ("swapAvailableBytes", number(swap.swap_available_bytes.as_ref())),
            ("swapUsageBytes", number(swap.swap_usage_bytes.as_ref())),
        ]);
        out.insert("swap".into(), shown);
    }
    if let (false, Some(layer), Some(disk)) = (brief, &measured.layer, image_disk) {
        out.insert("rootfs".into(), filesystem(disk, &nanos(layer.timestamp), Some(layer)));
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

/// A filesystem; with `used`, how much of it is somebody's.
fn filesystem(disk: &Disk, time: &str, used: Option<&v1::FilesystemUsage>) -> Value {
    let (bytes, inodes) = match used {
        None => (Some(disk.used), Some(disk.inodes.saturating_sub(disk.inodes_free))),
        Some(used) => (value(used.used_bytes.as_ref()), value(used.inodes_used.as_ref())),
    };
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

fn number(value: Option<&v1::UInt64Value>) -> Option<Value> {
    value.map(|v| json!(v.value))
}

fn stamp(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds).unwrap_or_default().to_string()
}

fn nanos(nanoseconds: i64) -> String {
    stamp(Wall(nanoseconds).secs())
}
