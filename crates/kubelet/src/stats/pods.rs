//! From what the runtime, the cgroups and the disk say to the figures of each Pod.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use api::pod::qos_class;
use base::ids::PodUid;
use base::time::{Now, Wall};
use cri::v1;
use kubelet_core::cgroup;
use kubelet_core::eviction::rank::is_ephemeral;
use kubelet_core::stats::{
    CgroupStats, ContainerStats, CpuStats, Interface, MemoryStats, PodStats, Rates, Sandbox, SwapStats,
    Usage, proc,
};

use super::disk_use::PodDisk;
use super::{Depth, PodCgroups, processes};
use crate::pods::status_board::Entry;

pub(super) struct Input {
    pub(super) entries: Vec<Entry>,
    pub(super) containers: Vec<v1::ContainerStats>,
    pub(super) disk: BTreeMap<PodUid, Arc<PodDisk>>,
    pub(super) cgroups: Option<PodCgroups>,
    pub(super) depth: Depth,
    pub(super) now: Now,
    pub(super) rates: Arc<Mutex<Rates>>,
}

/// Reads cgroups as it goes: off the loop.
pub(super) fn assemble(input: Input) -> Vec<PodStats> {
    let Input { entries, containers, disk, cgroups, depth, now, rates } = input;
    let mut by_pod: HashMap<String, Vec<v1::ContainerStats>> = HashMap::new();
    for stats in containers {
        let uid = stats.attributes.as_ref().and_then(|a| a.labels.get("io.kubernetes.pod.uid")).cloned();
        if let Some(uid) = uid {
            by_pod.entry(uid).or_default().push(stats);
        }
    }
    let mut of = |entry: Entry| {
        let meta = &entry.pod.metadata;
        let uid = meta.uid.clone().unwrap_or_default();
        let disk = disk.get(uid.as_str()).cloned();
        let found = by_pod.remove(&uid).unwrap_or_default();
        let containers = found.into_iter().filter_map(|s| container(&entry, s, disk.as_deref())).collect();
        let mut pod = PodStats {
            name: meta.name.clone().unwrap_or_default(),
            namespace: meta.namespace.clone().unwrap_or_default(),
            started: entry.status.start_time.as_ref().map(|t| t.0.as_second()),
            containers,
            uid,
            ..PodStats::default()
        };
        sum_up(&mut pod, now.wall);
        let disk = disk.filter(|_| depth > Depth::Brief);
        if let Some(disk) = &disk {
            add_disk(&mut pod, &entry, disk);
        }
        if let Some(cgroups) = cgroups.as_ref().filter(|_| depth > Depth::Brief) {
            let logs = disk.as_deref().map(|d| &d.logs);
            Reading { entry: &entry, cgroups, depth, now, logs }.add_to(&mut pod);
        }
        pod.containers.sort_by(|a, b| a.name.cmp(&b.name));
        pod
    };
    let mut pods: Vec<PodStats> = entries.into_iter().map(&mut of).collect();
    let mut rates = rates.lock().unwrap_or_else(PoisonError::into_inner);
    pods.iter_mut().for_each(|pod| add_rates(pod, &mut rates, now));
    pods
}

/// A running container of the Pod; what ended, or belongs to nobody, is left out.
fn container(entry: &Entry, stats: v1::ContainerStats, disk: Option<&PodDisk>) -> Option<ContainerStats> {
    let about = stats.attributes?;
    let name = about.labels.get("io.kubernetes.container.name")?.clone();
    let status = kubelet_core::log_choice::find(&entry.status, &name)?;
    let ours = status.container_id.as_deref().is_some_and(|id| id.ends_with(&about.id));
    let running = status.state.as_ref().and_then(|s| s.running.as_ref()).filter(|_| ours)?;
    let layer = stats.writable_layer.as_ref();
    Some(ContainerStats {
        image: status.image.clone(),
        started: running.started_at.as_ref().map(|t| t.0.as_second()),
        cpu: stats.cpu.as_ref().map(cpu),
        memory: stats.memory.as_ref().map(memory),
        swap: stats.swap.as_ref().map(|s| SwapStats {
            at: Wall(s.timestamp),
            available: value(s.swap_available_bytes.as_ref()),
            used: value(s.swap_usage_bytes.as_ref()),
        }),
        rootfs: layer.and_then(|l| {
            let bytes = value(l.used_bytes.as_ref())?;
            let inodes = value(l.inodes_used.as_ref()).unwrap_or(0);
            Some((Wall(l.timestamp), Usage { bytes, inodes }))
        }),
        logs: disk.and_then(|d| d.logs.get(&name).copied()),
        id: about.id,
        name,
        io: None,
        cgroup: None,
        processes: None,
    })
}

fn cpu(cpu: &v1::CpuUsage) -> CpuStats {
    CpuStats {
        at: Wall(cpu.timestamp),
        nanos: value(cpu.usage_core_nano_seconds.as_ref()),
        nano_cores: value(cpu.usage_nano_cores.as_ref()),
        stalls: None,
    }
}

fn memory(memory: &v1::MemoryUsage) -> MemoryStats {
    MemoryStats {
        at: Wall(memory.timestamp),
        // The runtime writes zero where there is no limit.
        available: value(memory.available_bytes.as_ref()).filter(|n| *n > 0),
        usage: value(memory.usage_bytes.as_ref()),
        working_set: value(memory.working_set_bytes.as_ref()),
        rss: value(memory.rss_bytes.as_ref()),
        faults: value(memory.page_faults.as_ref()),
        major_faults: value(memory.major_page_faults.as_ref()),
        stalls: None,
    }
}

fn value(value: Option<&v1::UInt64Value>) -> Option<u64> {
    value.map(|v| v.value)
}

/// A Pod is its containers, until its own cgroup says more.
fn sum_up(pod: &mut PodStats, at: Wall) {
    fn sum(of: impl Iterator<Item = Option<u64>>) -> Option<u64> {
        of.flatten().fold(None, |sum, n| Some(sum.unwrap_or(0u64).saturating_add(n)))
    }
    let cpus = || pod.containers.iter().filter_map(|c| c.cpu);
    let memories = || pod.containers.iter().filter_map(|c| c.memory);
    let swaps = || pod.containers.iter().filter_map(|c| c.swap);
    pod.cpu = cpus().next().map(|_| CpuStats {
        at,
        nanos: sum(cpus().map(|c| c.nanos)),
        nano_cores: sum(cpus().map(|c| c.nano_cores)),
        stalls: None,
    });
    pod.memory = memories().next().map(|_| MemoryStats {
        at,
        available: None,
        usage: sum(memories().map(|m| m.usage)),
        working_set: sum(memories().map(|m| m.working_set)),
        rss: sum(memories().map(|m| m.rss)),
        faults: sum(memories().map(|m| m.faults)),
        major_faults: sum(memories().map(|m| m.major_faults)),
        stalls: None,
    });
    pod.swap = swaps().next().map(|_| SwapStats {
        at,
        available: sum(swaps().map(|s| s.available)),
        used: sum(swaps().map(|s| s.used)),
    });
}

fn add_disk(pod: &mut PodStats, entry: &Entry, disk: &PodDisk) {
    pod.volumes = disk.volumes.clone();
    let spec = entry.pod.spec.as_ref();
    let ephemeral = spec.iter().flat_map(|s| s.volumes.iter().flatten()).filter(|v| is_ephemeral(v));
    let volumes: Usage = ephemeral.filter_map(|v| disk.volumes.get(&v.name)).map(|v| v.used).sum();
    let layers: Usage = pod.containers.iter().filter_map(|c| c.rootfs).map(|(_, usage)| usage).sum();
    // Logs of containers that ended are the Pod's all the same.
    let logs: Usage = disk.logs.values().copied().sum();
    pod.ephemeral = Some(volumes + layers + logs + disk.others);
}

/// The cgroups of a Pod, being read.
struct Reading<'a> {
    entry: &'a Entry,
    cgroups: &'a PodCgroups,
    depth: Depth,
    now: Now,
    logs: Option<&'a BTreeMap<String, Usage>>,
}

// === impl Reading ===

impl Reading<'_> {
    fn add_to(&self, pod: &mut PodStats) {
        let (cgroups, now) = (self.cgroups, self.now);
        let Ok(name) = cgroup::of_pod(&cgroups.all, qos_class(&self.entry.pod), &pod.uid) else { return };
        let path = cgroups.path(&name);
        let files = cgroups.hand.files(&path);
        let own = cgroups.read(&files);
        pod.processes = own.processes;
        if let Some(found) = &own.memory {
            pod.memory = Some(MemoryStats::of_cgroup(found, own.memory_stalls, now.wall));
            pod.swap = SwapStats::of_cgroup(found, now.wall).or(pod.swap);
        }
        if own.cpu_nanos.is_some() {
            pod.cpu = Some(CpuStats::of_cgroup(&own, now.wall));
        }
        pod.io = own.io_stalls;
        pod.cgroup = Some((format!("/{path}"), own));
        if self.depth >= Depth::Full {
            let mut member = None;
            let children = files.children();
            let count = children.iter().map(|child| self.add_child(pod, &path, child, &mut member)).sum();
            pod.process_count = Some(count);
            // A runtime whose sandboxes have no process of their own.
            if pod.sandbox.is_none() && !on_host_network(self.entry) {
                pod.network = member.and_then(network).map(|all| (self.now.wall, all));
            }
        }
    }

    /// The cgroups of containers carry their ids in their names; the one that is nobody's is the sandbox's. How many
    /// processes it has; `member` becomes a process of some container.
    fn add_child(&self, pod: &mut PodStats, path: &str, child: &str, member: &mut Option<i32>) -> u64 {
        let (cgroups, at) = (self.cgroups, self.now.wall);
        let below = format!("{path}/{child}");
        let Some(id) = container_id(child) else { return 0 };
        let files = cgroups.hand.files(&below);
        let pids = files.processes();
        let looks = self.depth == Depth::Descriptors;
        if !pod.containers.iter().any(|c| c.id == id) {
            // The runtime did not measure it.
            pod.containers.extend(unmeasured(self.entry, id, self.logs));
        }
        match pod.containers.iter_mut().find(|c| c.id == id) {
            Some(container) => {
                let own = cgroups.read(&files);
                enrich(container, &own, at);
                *member = member.or(pids.first().copied());
                container.cgroup = Some((format!("/{below}"), own));
                container.processes = looks.then(|| processes::of(&pids));
            }
            None if is_of_ended(self.entry, id) => {}
            None => {
                if pod.network.is_none() && !on_host_network(self.entry) {
                    pod.network = pids.first().and_then(|pid| network(*pid)).map(|all| (at, all));
                }
                let (cgroup, processes) = (cgroups.read(&files), looks.then(|| processes::of(&pids)));
                pod.sandbox =
                    Some(Sandbox { id: id.to_owned(), path: format!("/{below}"), cgroup, processes });
            }
        }
        pids.len() as u64
    }
}

/// A container that runs, as its status has it.
fn unmeasured(entry: &Entry, id: &str, logs: Option<&BTreeMap<String, Usage>>) -> Option<ContainerStats> {
    let status = &entry.status;
    let lists =
        [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    let mut all = lists.into_iter().flatten().flatten();
    let status = all.find(|s| s.container_id.as_deref().is_some_and(|known| known.ends_with(id)))?;
    let running = status.state.as_ref()?.running.as_ref()?;
    Some(ContainerStats {
        id: id.to_owned(),
        name: status.name.clone(),
        image: status.image.clone(),
        started: running.started_at.as_ref().map(|t| t.0.as_second()),
        logs: logs.and_then(|l| l.get(&status.name).copied()),
        ..ContainerStats::default()
    })
}

/// What the runtime did not tell, and what it never tells.
fn enrich(container: &mut ContainerStats, own: &CgroupStats, at: Wall) {
    let told = ContainerStats::of_cgroup(own, None, at);
    container.cpu = container.cpu.or(told.cpu);
    container.memory = container.memory.or(told.memory);
    container.swap = container.swap.or(told.swap);
    container.io = told.io;
    if let Some(cpu) = &mut container.cpu {
        cpu.stalls = own.cpu_stalls;
    }
    if let Some(memory) = &mut container.memory {
        memory.stalls = own.memory_stalls;
    }
}

/// `<64 hex digits>` or `cri-containerd-<64 hex digits>.scope`.
fn container_id(child: &str) -> Option<&str> {
    let word = child.strip_suffix(".scope").unwrap_or(child);
    let id = word.rsplit('-').next()?;
    (id.len() >= 32 && id.bytes().all(|b| b.is_ascii_hexdigit())).then_some(id)
}

fn is_of_ended(entry: &Entry, id: &str) -> bool {
    let status = &entry.status;
    let lists =
        [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    let mut ids = lists.into_iter().flatten().flatten().filter_map(|s| s.container_id.as_deref());
    ids.any(|known| known.ends_with(id))
}

fn on_host_network(entry: &Entry) -> bool {
    entry.pod.spec.as_ref().and_then(|s| s.host_network).unwrap_or(false)
}

/// As a process of the Pod sees it.
fn network(pid: i32) -> Option<Vec<Interface>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/net/dev")).ok()?;
    Some(proc::interfaces(&text))
}

/// What nobody told as a rate is told from two looks.
fn add_rates(pod: &mut PodStats, rates: &mut Rates, now: Now) {
    let mut rate = |cpu: &mut Option<CpuStats>, key: &str| {
        let Some(cpu) = cpu else { return };
        if let (None, Some(nanos)) = (cpu.nano_cores, cpu.nanos) {
            cpu.nano_cores = rates.of(key, nanos, now.mono);
        }
    };
    // A Pod's own cgroup counts more than its containers do: two counters, which must not be taken for one.
    let key = pod.cgroup.as_ref().map_or(pod.uid.as_str(), |(path, _)| path.as_str());
    rate(&mut pod.cpu, key);
    for container in &mut pod.containers {
        rate(&mut container.cpu, &container.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_containers_cgroup_is_known_by_its_name() {
        let id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        for name in [id.to_owned(), format!("cri-containerd-{id}.scope"), format!("crio-{id}.scope")] {
            assert_eq!(container_id(&name), Some(id), "{name}");
        }
        for name in ["init.scope", "system.slice", "0123", ""] {
            assert_eq!(container_id(name), None, "{name}");
        }
    }
}
