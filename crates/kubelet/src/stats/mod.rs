//! One sampler for everybody who wants figures: eviction, `/stats/summary`, the metrics and the node's conditions.
//!
//! It measures when it is asked, and no more than was asked for: [`Sampler::signals`] is a handful of small files every
//! ten seconds; what a Pod has on disk is walked only for those who have a limit, or when somebody looks. Containers are
//! measured by the runtime; by their cgroups where it does not answer, or measures nothing.

mod disk_use;
mod machine;
mod pods;
mod processes;
mod system;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use base::time::{Clock, Now};
use cri::v1;
use kubelet_core::cgroup::{Driver, Name};
use kubelet_core::stats::{CgroupStats, Disks, Machine, PodStats, Processes, Rates, cgroup};
use sys::cgroup::{Files, Hierarchies, Version};
use tokio::time::timeout;

use crate::host::facts::online_cpus;
use crate::host::identity::{MachineIdentity, read_identity};
use crate::metrics::Metrics;
use crate::pods::status_board::{Entry, StatusBoard};
use crate::ports::Runtime;
use disk_use::DiskUse;

pub use machine::{Device, Processors};
pub use system::{Named, Owner, System, SystemCgroups};

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
    pub system: SystemCgroups,
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
    identity: Arc<OnceLock<(MachineIdentity, Processors)>>,
    /// When the kubelet began, in seconds since the epoch.
    began: i64,
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
    /// And what their processes have open.
    Descriptors,
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
            disk_use,
            rates: Arc::default(),
            places: Mutex::default(),
            looking: Default::default(),
            identity: Arc::default(),
            began: deps.clock.now().wall.secs(),
            deps,
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
                node: machine::disk(&root),
                images: places.images.as_deref().and_then(machine::disk),
                containers: places.containers.as_deref().and_then(machine::disk),
            };
            (machine::read(), disks, cgroups.map(|c| c.of_all()))
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
        let blind = |error: &str| Blind(error.to_owned());
        let containers = match asked.map_err(|_| blind("no answer in time")) {
            Ok(Ok(all)) => all,
            // With the containers' own cgroups the runtime is not needed.
            _ if depth >= Depth::Full && self.deps.cgroups.is_some() => Vec::new(),
            Ok(Err(error)) => return Err(blind(&error.to_string())),
            Err(error) => return Err(error),
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

    /// What the cgroups use that are no Pod's; nothing where Pods have no cgroups of their own.
    pub async fn system(&self, depth: Depth, machine: &Machine) -> System {
        let Some(cgroups) = self.deps.cgroups.clone() else { return System::default() };
        let (configured, began) = (self.deps.system.clone(), self.began);
        let read = tokio::task::spawn_blocking(move || configured.read(&cgroups, depth, began));
        let mut found = read.await.unwrap_or_default();
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        found.complete(machine, &mut rates, self.deps.clock.now());
        found
    }

    /// Which machine this is, and how many processors of it are on.
    pub async fn machine(&self) -> (MachineIdentity, Processors) {
        let known = self.identity.clone();
        let read = move || {
            let logical = online_cpus().map_or(1, i64::unsigned_abs);
            let (identity, processors) =
                known.get_or_init(|| (read_identity(), machine::processors(logical))).clone();
            (identity, Processors { logical, ..processors })
        };
        tokio::task::spawn_blocking(read).await.unwrap_or_default()
    }

    /// What the machine's disks did, by their numbers.
    pub async fn devices(&self) -> BTreeMap<(u32, u32), Device> {
        tokio::task::spawn_blocking(machine::devices).await.unwrap_or_default()
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
        let files = self.hand.files(&path);
        let file = |controller: &str, file: &str| files.read(controller, file);
        let memory = match self.hand.version() {
            Version::V1 => cgroup::memory_v1(&file),
            Version::V2 => cgroup::memory_v2(&file),
        };
        CgroupStats { memory, ..CgroupStats::default() }
    }

    fn read(&self, files: &Files<'_>) -> CgroupStats {
        let file = |controller: &str, file: &str| files.read(controller, file);
        match self.hand.version() {
            Version::V1 => cgroup::read_v1(&file, rustix::param::clock_ticks_per_second()),
            Version::V2 => cgroup::read_v2(&file),
        }
    }
}
