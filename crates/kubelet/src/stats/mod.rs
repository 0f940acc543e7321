//! One sampler for everybody who wants figures: eviction, `/stats/summary`, the metrics and the node's conditions.
//!
//! It measures when it is asked, and no more than was asked for: [`Sampler::signals`] is a handful of small files every
//! ten seconds; what a Pod has on disk is walked only for those who have a limit, or when somebody looks.

mod disk_use;
mod pods;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use base::time::{Clock, Now};
use cri::v1;
use kubelet_core::cgroup::{Driver, Name};
use kubelet_core::stats::{CgroupStats, Disk, Disks, Machine, PodStats, Rates, cgroup, proc};
use sys::cgroup::{Hierarchies, Version};
use tokio::time::timeout;

use crate::host::facts::online_cpus;
use crate::host::identity::{MachineIdentity, read_identity};
use crate::metrics::Metrics;
use crate::pods::status_board::{Entry, StatusBoard};
use crate::ports::Runtime;
use disk_use::DiskUse;

/// A runtime that takes longer is asked again at the next look.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Rates of what nobody looked at for so long are forgotten.
const FORGET: Duration = Duration::from_secs(600);

/// What a sampler is made of.
#[derive(Clone)]
pub struct SamplerDeps {
    pub runtime: Arc<dyn Runtime>,
    pub board: Arc<StatusBoard>,
    pub clock: Arc<dyn Clock>,
    pub metrics: Arc<Metrics>,
    /// The kubelet's root directory, and that of logs.
    pub root: PathBuf,
    pub pod_logs: PathBuf,
    /// The cgroup of all Pods; none where each is the runtime's business.
    pub cgroups: Option<PodCgroups>,
}

/// Where the cgroups of Pods are.
#[derive(Clone, Debug)]
pub struct PodCgroups {
    pub hand: Hierarchies,
    pub all: Name,
    pub driver: Driver,
}

/// See the module.
pub struct Sampler {
    deps: SamplerDeps,
    disk_use: DiskUse,
    rates: Arc<Mutex<Rates>>,
    /// Where the runtime keeps images and containers, as far as it says so.
    places: Mutex<Places>,
    /// One look at the machine at a time: a disk that hangs holds one thread, not many.
    looking: tokio::sync::Mutex<()>,
    identity: Arc<OnceLock<MachineIdentity>>,
}

#[derive(Clone, Debug, Default)]
struct Places {
    images: Option<PathBuf>,
    containers: Option<PathBuf>,
}

/// What the node has left.
#[derive(Clone, Debug, Default)]
pub struct Signals {
    pub now: Now,
    pub machine: Machine,
    /// Of all processors together.
    pub nano_cores: Option<u64>,
    pub disks: Disks,
    /// All Pods together.
    pub pods: Option<CgroupStats>,
}

/// How much of Pods is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// Processors and memory.
    Brief,
    /// Disk, processes and the Pods' own cgroups as well.
    Whole,
    /// Containers' own cgroups and networks too.
    Full,
}

/// The runtime did not tell what containers use.
#[derive(Debug, thiserror::Error)]
#[error("the container runtime does not tell what containers use: {0}")]
pub struct Blind(String);

// === impl Sampler ===

impl Sampler {
    #[must_use]
    pub fn new(deps: SamplerDeps) -> Sampler {
        let disk_use = DiskUse::new(deps.root.clone(), deps.pod_logs.clone(), deps.metrics.clone());
        Sampler {
            deps,
            disk_use,
            rates: Arc::default(),
            places: Mutex::default(),
            looking: Default::default(),
            identity: Arc::default(),
        }
    }

    /// What the node has left; none if a disk hangs.
    pub async fn signals(&self) -> Option<Signals> {
        let _one = timeout(TIMEOUT, self.looking.lock()).await.ok()?;
        self.find_places().await;
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (root, cgroups) = (self.deps.root.clone(), self.deps.cgroups.clone());
        let read = tokio::task::spawn_blocking(move || {
            let disks = Disks {
                node: disk(&root),
                images: places.images.as_deref().and_then(disk),
                containers: places.containers.as_deref().and_then(disk),
            };
            (read_machine(), disks, cgroups.map(|c| c.of_all()))
        });
        let (machine, disks, pods) = timeout(TIMEOUT, read).await.ok()?.ok()?;
        let now = self.deps.clock.now();
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        rates.forget_before(now.mono - FORGET);
        let nano_cores = machine.cpu_nanos.and_then(|nanos| rates.of("/", nanos, now.mono));
        Some(Signals { now, machine, nano_cores, disks, pods })
    }

    /// What these Pods use. Figures of disks may be as old as `age`.
    pub async fn pods(&self, of: &[Entry], depth: Depth, age: Duration) -> Result<Vec<PodStats>, Blind> {
        let asked = timeout(TIMEOUT, self.deps.runtime.list_container_stats()).await;
        let containers = match asked {
            Ok(Ok(all)) => all,
            Ok(Err(error)) => return Err(Blind(error.to_string())),
            Err(_) => return Err(Blind("no answer in time".to_owned())),
        };
        if depth > Depth::Brief {
            self.disk_use.measure(of, age, self.deps.clock.now()).await;
        }
        let disk = self.disk_use.known();
        let input = pods::Input {
            entries: of.to_vec(),
            containers,
            disk,
            cgroups: self.deps.cgroups.clone(),
            depth,
            now: self.deps.clock.now(),
            rates: self.rates.clone(),
        };
        let assembled = tokio::task::spawn_blocking(move || pods::assemble(input)).await;
        assembled.map_err(|e| Blind(e.to_string()))
    }

    /// Which machine this is, and how many processors of it are on.
    pub async fn machine(&self) -> (MachineIdentity, u64) {
        let identity = self.identity.clone();
        let read = move || {
            let cores = online_cpus().map_or(1, i64::unsigned_abs);
            (identity.get_or_init(read_identity).clone(), cores)
        };
        tokio::task::spawn_blocking(read).await.unwrap_or_default()
    }

    /// How full the file system of images is, as the runtime counts.
    pub async fn image_fs(&self) -> Option<v1::ImageFsInfoResponse> {
        timeout(TIMEOUT, self.deps.runtime.image_fs_info()).await.ok()?.ok()
    }

    /// Where the cgroups of Pods are.
    #[must_use]
    pub fn cgroups(&self) -> Option<&PodCgroups> {
        self.deps.cgroups.as_ref()
    }

    #[must_use]
    pub fn now(&self) -> Now {
        self.deps.clock.now()
    }

    #[must_use]
    pub fn board(&self) -> &StatusBoard {
        &self.deps.board
    }

    async fn find_places(&self) {
        if self.places.lock().unwrap_or_else(PoisonError::into_inner).images.is_some() {
            return;
        }
        let Some(answer) = self.image_fs().await else { return };
        let place = |all: &[v1::FilesystemUsage]| {
            let found = all.first().and_then(|f| f.fs_id.as_ref());
            found.map(|id| PathBuf::from(&id.mountpoint)).filter(|p| p.is_absolute())
        };
        *self.places.lock().unwrap_or_else(PoisonError::into_inner) = Places {
            images: place(&answer.image_filesystems),
            containers: place(&answer.container_filesystems),
        };
    }
}

impl std::fmt::Debug for Sampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sampler")
    }
}

impl std::fmt::Debug for SamplerDeps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SamplerDeps").field("root", &self.root).finish_non_exhaustive()
    }
}

// === impl PodCgroups ===

impl PodCgroups {
    /// The cgroup's path below the hierarchies.
    #[must_use]
    pub fn path(&self, name: &Name) -> String {
        name.path(self.driver)
    }

    fn of_all(&self) -> CgroupStats {
        let path = self.path(&self.all);
        let file = |controller: &str, file: &str| self.hand.read(&path, controller, file).ok().flatten();
        let memory = match self.hand.version() {
            Version::V1 => cgroup::memory_v1(&file),
            Version::V2 => cgroup::memory_v2(&file),
        };
        CgroupStats { memory, ..CgroupStats::default() }
    }

    fn read(&self, path: &str) -> CgroupStats {
        let file = |controller: &str, file: &str| self.hand.read(path, controller, file).ok().flatten();
        match self.hand.version() {
            Version::V1 => cgroup::read_v1(&file, rustix::param::clock_ticks_per_second()),
            Version::V2 => cgroup::read_v2(&file),
        }
    }
}

/// Reads /proc; blocks, though only on files of the kernel's own making.
fn read_machine() -> Machine {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let stat = read("/proc/stat");
    Machine {
        booted: proc::booted(&stat),
        cpu_nanos: proc::cpu_nanos(&stat, rustix::param::clock_ticks_per_second()),
        memory: proc::memory(&read("/proc/meminfo")),
        faults: proc::faults(&read("/proc/vmstat")),
        interfaces: proc::interfaces(&read("/proc/net/dev"))
            .into_iter()
            .filter(|i| !proc::is_of_pods(i))
            .collect(),
        default_interface: proc::default_interface(&read("/proc/net/route")),
        tasks: proc::tasks(
            &read("/proc/loadavg"),
            &read("/proc/sys/kernel/pid_max"),
            &read("/proc/sys/kernel/threads-max"),
        ),
    }
}

/// The file system that holds `path`.
fn disk(path: &Path) -> Option<Disk> {
    let s = rustix::fs::statvfs(path).ok()?;
    let device = rustix::fs::stat(path).ok()?.st_dev;
    Some(Disk {
        capacity: s.f_blocks.saturating_mul(s.f_frsize),
        available: s.f_bavail.saturating_mul(s.f_frsize),
        used: s.f_blocks.saturating_sub(s.f_bfree).saturating_mul(s.f_frsize),
        inodes: s.f_files,
        inodes_free: s.f_ffree,
        device,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use kubelet_core::eviction::signal::{Signal, readings};

    #[test]
    fn this_machine_can_be_read() {
        let disks = Disks { node: disk(Path::new("/")), ..Disks::default() };
        let all = readings(&read_machine(), &disks, None, Default::default());
        for signal in [Signal::MemoryAvailable, Signal::NodefsAvailable, Signal::PidAvailable] {
            let reading = all[&signal];
            assert!(reading.available > 0 && reading.available <= reading.capacity, "{signal:?} {reading:?}");
        }
        assert!(!all.contains_key(&Signal::ImagefsAvailable));
    }
}
