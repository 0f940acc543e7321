//! The rows of `/metrics/cadvisor`: every cgroup that somebody may ask about, with its labels and all its figures.

use std::borrow::Cow;
use std::fmt::Write;

use base::metrics::escape_label;
use kubelet_core::stats::cgroup::CgroupMemory;
use kubelet_core::stats::{CgroupStats, ContainerStats, Disk, Interface, PodStats, Processes};

use super::Look;

/// One cgroup.
pub(super) struct Row<'a> {
    /// Written once for all the families.
    pub(super) labels: String,
    /// Milliseconds since the epoch.
    pub(super) at: i64,
    pub(super) started: Option<i64>,
    pub(super) stats: Cow<'a, CgroupStats>,
    pub(super) interfaces: &'a [Interface],
    pub(super) processes: Option<&'a Processes>,
    /// File systems, and how much of each is this one's.
    pub(super) disks: Vec<(Disk, u64)>,
    /// The machine as a whole.
    pub(super) is_root: bool,
}

/// Who a row is about; what does not apply is empty, for all rows of a family have the same labels.
#[derive(Default)]
struct About<'a> {
    container: &'a str,
    id: &'a str,
    image: &'a str,
    name: &'a str,
    namespace: &'a str,
    pod: &'a str,
}

/// All of them: the machine, the system's, and each Pod's own with its sandbox and containers.
pub(super) fn rows(look: &Look) -> Vec<Row<'_>> {
    let mut all = Vec::with_capacity(8 + look.pods.len() * 3);
    all.push(root(look));
    let plain = |stats, about, started, processes| Row {
        labels: labels(&about),
        at: millis(look),
        started,
        stats: Cow::Borrowed(stats),
        interfaces: &[],
        processes,
        disks: Vec::new(),
        is_root: false,
    };
    for named in &look.system.named {
        let about = About { id: &named.path, ..About::default() };
        all.push(plain(&named.stats, about, named.started, named.processes.as_ref()));
    }
    for pod in &look.pods {
        let of = About { namespace: &pod.namespace, pod: &pod.name, ..About::default() };
        if let Some((path, stats)) = &pod.cgroup {
            let mut row = plain(stats, About { id: path, ..of }, pod.started, None);
            if pod.sandbox.is_none() {
                row.interfaces = pod.network.as_ref().map_or(&[], |(_, all)| all);
            }
            all.push(row);
        }
        let of = About { namespace: &pod.namespace, pod: &pod.name, ..About::default() };
        if let Some(sandbox) = &pod.sandbox {
            let about = About { id: &sandbox.path, name: &sandbox.id, ..of };
            let mut row = plain(&sandbox.cgroup, about, pod.started, sandbox.processes.as_ref());
            row.interfaces = pod.network.as_ref().map_or(&[], |(_, all)| all);
            all.push(row);
        }
        all.extend(pod.containers.iter().map(|c| of_container(look, pod, c)));
    }
    all
}

fn root(look: &Look) -> Row<'_> {
    let disks = &look.signals.disks;
    let mut own: Vec<(Disk, u64)> = Vec::new();
    for disk in [disks.node, disks.images, disks.containers].into_iter().flatten() {
        if !own.iter().any(|(known, _)| known.device == disk.device) {
            own.push((disk, disk.used));
        }
    }
    Row {
        labels: labels(&About { id: "/", ..About::default() }),
        at: millis(look),
        started: look.signals.machine.booted,
        stats: Cow::Borrowed(&look.system.root),
        interfaces: &look.signals.machine.interfaces,
        processes: None,
        disks: own,
        is_root: true,
    }
}

fn of_container<'a>(look: &Look, pod: &'a PodStats, c: &'a ContainerStats) -> Row<'a> {
    let unknown = format!("/{}", c.id);
    let about = About {
        container: &c.name,
        id: c.cgroup.as_ref().map_or(&unknown, |(path, _)| path),
        image: &c.image,
        name: &c.id,
        namespace: &pod.namespace,
        pod: &pod.name,
    };
    let disk = look.signals.disks.containers.or(look.signals.disks.images);
    let layer = c.rootfs.map(|(_, used)| used.bytes);
    Row {
        labels: labels(&about),
        // What only the runtime measured is as old as it says.
        at: match (&c.cgroup, &c.cpu) {
            (None, Some(cpu)) => cpu.at.0 / 1_000_000,
            _ => millis(look),
        },
        started: c.started,
        stats: c
            .cgroup
            .as_ref()
            .map_or_else(|| Cow::Owned(from_runtime(c)), |(_, stats)| Cow::Borrowed(stats)),
        interfaces: &[],
        processes: c.processes.as_ref(),
        disks: disk.zip(layer).into_iter().collect(),
        is_root: false,
    }
}

/// A container without a cgroup that we could read.
fn from_runtime(c: &ContainerStats) -> CgroupStats {
    let memory = |m: &kubelet_core::stats::MemoryStats| CgroupMemory {
        usage: m.usage.unwrap_or_default(),
        working_set: m.working_set.unwrap_or_default(),
        rss: m.rss.unwrap_or_default(),
        swap: c.swap.and_then(|s| s.used),
        faults: m.faults.unwrap_or_default(),
        major_faults: m.major_faults.unwrap_or_default(),
        own_faults: (m.faults.unwrap_or_default(), m.major_faults.unwrap_or_default()),
        ..CgroupMemory::default()
    };
    CgroupStats {
        cpu_nanos: c.cpu.and_then(|cpu| cpu.nanos),
        memory: c.memory.as_ref().map(memory),
        ..CgroupStats::default()
    }
}

fn labels(of: &About<'_>) -> String {
    let mut out = String::with_capacity(256);
    let all = [
        ("container", of.container),
        ("id", of.id),
        ("image", of.image),
        ("name", of.name),
        ("namespace", of.namespace),
        ("pod", of.pod),
    ];
    for (i, (name, value)) in all.into_iter().enumerate() {
        let comma = if i > 0 { "," } else { "" };
        // A string takes everything.
        let _ = write!(out, "{comma}{name}=\"{}\"", escape_label(value));
    }
    out
}

fn millis(look: &Look) -> i64 {
    look.now.0 / 1_000_000
}
