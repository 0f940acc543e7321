//! One look at the node, as the page reads it. Counters are told as they are: what grows how fast is the page's to find out.

use std::collections::HashMap;

use api::pod::qos_class;
use k8s_openapi::api::core::v1::ContainerStatus;
use kubelet_core::pod::tally::{Tally, Why, why};
use kubelet_core::stats::cgroup::Stalls;
use kubelet_core::stats::proc::Traffic;
use kubelet_core::stats::{CpuStats, Disk, MemoryStats, PodStats};
use serde::Serialize;

use super::Page;
use crate::events::{EventType, Told};
use crate::pods::status_board::Entry;
use crate::server::stats::Look;
use crate::stats::Depth;

/// Events on the page.
const EVENTS: usize = 100;
/// Bytes of anything that others wrote: the page is sent every two seconds.
const TEXT: usize = 1024;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Shown {
    /// Milliseconds since the epoch.
    time: i64,
    node: NodeShown,
    pods: Vec<PodShown>,
    events: Vec<EventShown>,
    /// The runtime did not say what containers use.
    blind: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeShown {
    name: String,
    version: String,
    os: String,
    booted: Option<i64>,
    processors: u64,
    cpu_nanos: Option<u64>,
    memory_total: Option<u64>,
    memory_used: Option<u64>,
    memory_cache: Option<u64>,
    swap_total: Option<u64>,
    swap_used: Option<u64>,
    received: Option<u64>,
    sent: Option<u64>,
    interface: Option<String>,
    processes: Option<u64>,
    processes_most: Option<u64>,
    disks: Vec<DiskShown>,
    /// The part of the last ten seconds in which somebody waited, in percent.
    stalled: [Option<f64>; 3],
    /// What the node is short of: MemoryPressure and the like.
    pressures: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
struct DiskShown {
    name: &'static str,
    capacity: u64,
    available: u64,
    inodes: u64,
    inodes_free: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PodShown {
    uid: String,
    namespace: String,
    name: String,
    phase: String,
    /// As kubectl has it.
    status: String,
    class: &'static str,
    ready: usize,
    total: usize,
    restarts: i32,
    /// Seconds since the epoch.
    since: Option<i64>,
    ip: Option<String>,
    why: Option<WhyShown>,
    #[serde(flatten)]
    figures: Figures,
    /// Until the Pod's limit.
    memory_available: Option<u64>,
    received: Option<u64>,
    sent: Option<u64>,
    disk: Option<u64>,
    processes: Option<u64>,
    containers: Vec<ContainerShown>,
}

#[derive(Debug, Serialize)]
struct WhyShown {
    container: String,
    reason: String,
    message: String,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Figures {
    cpu_nanos: Option<u64>,
    memory: Option<u64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ContainerShown {
    name: String,
    image: String,
    state: String,
    ready: bool,
    restarts: i32,
    #[serde(flatten)]
    figures: Figures,
}

#[derive(Debug, Serialize)]
struct EventShown {
    time: i64,
    warning: bool,
    reason: String,
    message: String,
    count: u32,
    kind: &'static str,
    namespace: String,
    name: String,
    uid: String,
}

// === impl Shown ===

impl Shown {
    pub(super) async fn of(page: &Page) -> Shown {
        let look = page.sources().look(Depth::Full).await;
        let told = page.recorder.recent();
        let measured: HashMap<&str, &PodStats> = look.pods.iter().map(|p| (p.uid.as_str(), p)).collect();
        let pods = page.views.pods.all();
        let pods = pods.iter().map(|entry| {
            let uid = entry.pod.metadata.uid.as_deref().unwrap_or_default();
            PodShown::of(entry, measured.get(uid).copied(), &told)
        });
        Shown {
            time: look.now.0 / 1_000_000,
            pods: pods.collect(),
            events: told.iter().take(EVENTS).map(EventShown::of).collect(),
            node: NodeShown::of(page, &look),
            blind: look.blind,
        }
    }

    pub(super) fn to_json(&self) -> Vec<u8> {
        // Strings and numbers only: there is nothing in it that JSON cannot say.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

// === impl NodeShown ===

impl NodeShown {
    fn of(page: &Page, look: &Look) -> NodeShown {
        let machine = &look.signals.machine;
        let memory = machine.memory.as_ref();
        let default = machine.default_interface.as_deref();
        let way = machine.interfaces.iter().find(|i| default == Some(i.name.as_str()));
        let disk = |name, disk: Option<Disk>| disk.map(|d| DiskShown::of(name, &d));
        let disks = &look.signals.disks;
        let images = disks.images.filter(|_| disks.has_image_disk());
        let containers = disks.containers.filter(|_| disks.is_split());
        let waited = |s: Option<Stalls>| s.map(|s| s.some.avg10);
        let short = *page.pressures.borrow();
        let pressures =
            [(short.memory, "MemoryPressure"), (short.disk, "DiskPressure"), (short.pids, "PIDPressure")];
        NodeShown {
            name: page.sources().node_name.to_string(),
            version: page.version.to_string(),
            os: cut(&look.identity.os_image),
            booted: machine.booted,
            processors: look.processors.logical,
            cpu_nanos: machine.cpu_nanos,
            memory_total: memory.map(|m| m.total),
            memory_used: memory.map(|m| m.working_set),
            memory_cache: memory.map(|m| m.cache),
            swap_total: memory.map(|m| m.swap_total),
            swap_used: memory.map(|m| m.swap_used),
            received: way.map(|i| i.received.bytes),
            sent: way.map(|i| i.sent.bytes),
            interface: way.map(|i| i.name.clone()),
            processes: machine.tasks.map(|t| t.running),
            processes_most: machine.tasks.map(|t| t.most),
            disks: [disk("nodefs", disks.node), disk("imagefs", images), disk("containerfs", containers)]
                .into_iter()
                .flatten()
                .collect(),
            stalled: [machine.stalled.cpu, machine.stalled.memory, machine.stalled.io].map(waited),
            pressures: pressures.into_iter().filter_map(|(holds, name)| holds.then_some(name)).collect(),
        }
    }
}

impl DiskShown {
    fn of(name: &'static str, disk: &Disk) -> DiskShown {
        DiskShown {
            name,
            capacity: disk.capacity,
            available: disk.available,
            inodes: disk.inodes,
            inodes_free: disk.inodes_free,
        }
    }
}

// === impl PodShown ===

impl PodShown {
    fn of(entry: &Entry, stats: Option<&PodStats>, told: &[Told]) -> PodShown {
        let (meta, status) = (&entry.pod.metadata, &entry.status);
        let tally = Tally::of(&entry.to_pod());
        let phase = status.phase.clone().unwrap_or_else(|| "Pending".to_owned());
        let is_over = matches!(phase.as_str(), "Succeeded" | "Failed");
        let is_leaving = entry.terminating.is_some() && !is_over;
        let born = meta.creation_timestamp.as_ref().or(status.start_time.as_ref());
        let (received, sent) = stats.map(network).unwrap_or_default();
        let uid = meta.uid.clone().unwrap_or_default();
        PodShown {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            status: if is_leaving { "Terminating".to_owned() } else { cut(&tally.reason) },
            class: qos_class(&entry.pod).as_str(),
            ready: tally.ready,
            total: tally.total,
            restarts: tally.restarts,
            since: born.map(|t| t.0.as_second()),
            ip: status.pod_ip.clone(),
            why: waits_for(entry, &phase, &uid, told),
            figures: Figures::of(stats.and_then(|s| s.cpu), stats.and_then(|s| s.memory)),
            memory_available: stats.and_then(|s| s.memory?.available),
            received,
            sent,
            disk: stats.and_then(|s| s.ephemeral).map(|u| u.bytes),
            processes: stats.and_then(|s| s.processes),
            containers: containers(entry, stats),
            phase,
            uid,
        }
    }
}

/// What the status says; of a Pod that has not started, else the last that went wrong with it.
fn waits_for(entry: &Entry, phase: &str, uid: &str, told: &[Told]) -> Option<WhyShown> {
    let from_event = || {
        let mut own = told.iter().filter(|t| t.uid == uid && t.event.kind == EventType::Warning);
        own.next().filter(|_| phase == "Pending").map(|t| Why {
            reason: t.event.reason.clone(),
            message: t.event.message.clone(),
            ..Why::default()
        })
    };
    let found = why(&entry.status).filter(|_| phase != "Succeeded").or_else(from_event)?;
    Some(WhyShown { container: found.container, reason: cut(&found.reason), message: cut(&found.message) })
}

/// Of all interfaces together.
fn network(stats: &PodStats) -> (Option<u64>, Option<u64>) {
    let Some((_, all)) = &stats.network else { return (None, None) };
    let sum = |of: fn(&Traffic) -> u64, way: fn(&kubelet_core::stats::Interface) -> &Traffic| {
        let outer = all.iter().filter(|i| i.name != "lo");
        outer.map(|i| of(way(i))).fold(0u64, u64::saturating_add)
    };
    (Some(sum(|t| t.bytes, |i| &i.received)), Some(sum(|t| t.bytes, |i| &i.sent)))
}

fn containers(entry: &Entry, stats: Option<&PodStats>) -> Vec<ContainerShown> {
    let status = &entry.status;
    let lists =
        [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    let shown = |s: &ContainerStatus| {
        let found = stats.and_then(|p| p.containers.iter().find(|c| c.name == s.name));
        ContainerShown {
            name: s.name.clone(),
            image: cut(&s.image),
            state: state(s),
            ready: s.ready,
            restarts: s.restart_count,
            figures: Figures::of(found.and_then(|c| c.cpu), found.and_then(|c| c.memory)),
        }
    };
    lists.into_iter().flatten().flatten().map(shown).collect()
}

fn state(status: &ContainerStatus) -> String {
    let Some(state) = &status.state else { return "Waiting".to_owned() };
    let reason = |reason: Option<&String>, or: &str| reason.map_or_else(|| or.to_owned(), |r| cut(r));
    match (&state.running, &state.terminated, &state.waiting) {
        (Some(_), _, _) => "Running".to_owned(),
        (_, Some(t), _) => reason(t.reason.as_ref(), "Terminated"),
        (_, _, waiting) => reason(waiting.as_ref().and_then(|w| w.reason.as_ref()), "Waiting"),
    }
}

// === impl Figures ===

impl Figures {
    fn of(cpu: Option<CpuStats>, memory: Option<MemoryStats>) -> Figures {
        Figures { cpu_nanos: cpu.and_then(|c| c.nanos), memory: memory.and_then(|m| m.working_set) }
    }
}

// === impl EventShown ===

impl EventShown {
    fn of(told: &Told) -> EventShown {
        EventShown {
            time: told.event.last.0 / 1_000_000,
            warning: told.event.kind == EventType::Warning,
            reason: cut(&told.event.reason),
            message: cut(&told.event.message),
            count: told.event.count,
            kind: told.kind,
            namespace: told.namespace.clone(),
            name: told.name.clone(),
            uid: told.uid.clone(),
        }
    }
}

/// What others wrote, as far as the page shows it.
fn cut(text: &str) -> String {
    match text.len() > TEXT {
        true => format!("{}…", &text[..text.floor_char_boundary(TEXT)]),
        false => text.to_owned(),
    }
}
