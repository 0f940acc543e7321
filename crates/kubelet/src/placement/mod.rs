//! Which CPUs and which memory each container has, kept across restarts. What is decided lies in
//! `kubelet_core::topology`; here it is remembered, counted and handed out.

mod figures;
mod files;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::quantity::Quantity;
use k8s_openapi::api::core::v1::Pod;
use kubelet_core::admission::Rejection;
use kubelet_core::cri_config::LinuxResources;
use kubelet_core::devices::DeviceBooks;
use kubelet_core::topology::admission_error::AdmissionError;
use kubelet_core::topology::admit::Placement;
use kubelet_core::topology::cpu::StaticCpus;
use kubelet_core::topology::cpu::options::{OptionGates, Options};
use kubelet_core::topology::cpu_set::CpuSet;
use kubelet_core::topology::machine::Machine;
use kubelet_core::topology::memory::state::Block;
use kubelet_core::topology::memory::{StaticMemory, reserved};
use kubelet_core::topology::policy::{Policy, PolicyName};
use kubelet_core::topology::wants::PodWant;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::devices::DevicePlugins;
use crate::metrics::Metrics;
use crate::start_error::StartError;
use figures::Told;
use files::{Files, Texts};

/// What the configuration says about placing.
#[derive(Clone, Debug)]
pub struct Settings {
    pub cpu_policy: String,
    pub cpu_options: BTreeMap<String, String>,
    pub option_gates: OptionGates,
    pub reserved_cpus: String,
    pub memory_policy: String,
    pub reserved_memory: Vec<(u32, BTreeMap<String, Quantity>)>,
    pub topology_policy: String,
    pub topology_scope: String,
    pub topology_options: BTreeMap<String, String>,
    /// What Node Allocatable keeps from Pods, by resource.
    pub kept_back: BTreeMap<String, Quantity>,
}

/// Every container's place on this node.
#[derive(Debug, Default)]
pub struct Places {
    /// Held for one decision, never across an await.
    core: Mutex<Placement>,
    /// None where nothing is remembered: in simulations.
    files: Option<Files>,
    /// What was written last; held while it is written, so that the files never go back.
    written: tokio::sync::Mutex<Texts>,
    told: Mutex<Told>,
    metrics: Arc<Metrics>,
    /// Pods of an earlier life that nobody has spoken of yet.
    inherited: Mutex<BTreeSet<String>>,
    /// Somebody's CPUs changed, and with them everybody's.
    pub changed: Notify,
    /// None in simulations.
    devices: Option<Arc<DevicePlugins>>,
}

/// Where one container runs. Empty: anywhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub cpus: String,
    pub memory_nodes: String,
    /// The CPUs are its own: it needs no quota.
    pub exclusive: bool,
}

// === impl Place ===

impl Place {
    pub fn apply(&self, resources: &mut LinuxResources) {
        resources.cpuset_cpus.clone_from(&self.cpus);
        resources.cpuset_mems.clone_from(&self.memory_nodes);
        if self.exclusive {
            (resources.cpu_quota, resources.cpu_period) = (0, 0);
        }
    }
}

// === impl Places ===

impl Places {
    /// Goes on from the files below `root`.
    pub fn open(
        settings: &Settings,
        machine: &Machine,
        root: &Path,
        metrics: Arc<Metrics>,
    ) -> Result<Self, StartError> {
        let mut placement = policies(settings, machine).map_err(StartError::new)?;
        let files = Files {
            root: root.to_owned(),
            cpu_policy: settings.cpu_policy.clone(),
            memory_policy: settings.memory_policy.clone(),
        };
        let (cpus, memory) = files.read().map_err(StartError::new)?;
        let inherited = cpus.entries.keys().chain(memory.entries.keys()).cloned().collect();
        let refuse = |manager: &str, why: String| {
            let advice = "please drain node and remove policy state file";
            StartError::new(format!("start {manager} error: {why}, {advice}"))
        };
        if let Some(policy) = &mut placement.cpus {
            policy.resume(cpus).map_err(|e| refuse("cpu manager", e))?;
        }
        if let Some(policy) = &mut placement.memory {
            policy.resume(memory).map_err(|e| refuse("memory manager", e))?;
        }
        let texts = files.texts(&placement);
        // A full disk ends no kubelet whose Pods run: what is not written down now is tried again with the next change.
        let written = match files.write(&texts, &Texts::default()) {
            Ok(()) => texts,
            Err(error) => {
                tracing::error!(%error, "the state of the CPU and memory managers is not written down");
                Texts::default()
            }
        };
        let places = Self {
            core: Mutex::new(placement),
            files: Some(files),
            written: tokio::sync::Mutex::new(written),
            metrics,
            inherited: Mutex::new(inherited),
            ..Self::default()
        };
        places.tell();
        Ok(places)
    }

    /// Whether anybody can have CPUs of his own.
    #[must_use]
    pub fn pins_cpus(&self) -> bool {
        self.core().cpus.is_some()
    }

    #[must_use]
    pub fn with_devices(mut self, devices: Arc<DevicePlugins>) -> Self {
        self.lock(&self.inherited).extend(devices.books().entries().keys().cloned());
        self.devices = Some(devices);
        self
    }

    #[must_use]
    pub fn devices(&self) -> Option<&Arc<DevicePlugins>> {
        self.devices.as_ref()
    }

    /// Ticks when devices come, go, or change their health; never where there are none.
    #[must_use]
    pub fn subscribe_devices(&self) -> watch::Receiver<u64> {
        self.devices.as_ref().map_or_else(|| watch::channel(0).1, |d| d.subscribe())
    }

    /// Finds a place for every container of the Pod, and devices. One that has a place keeps it. `runs` says which of them
    /// run already.
    pub async fn admit(&self, pod: &Pod, runs: impl Fn(&str) -> bool + Send) -> Result<(), Rejection> {
        let want = PodWant::new(pod);
        let begun = Instant::now();
        let asked = self.core().policy.kind != PolicyName::None;
        let done = self.place_all(&want, runs).await;
        if asked {
            let took = begun.elapsed().as_secs_f64() * 1000.0;
            self.metrics.topology_manager_admission_duration_ms.observe([], took);
        }
        self.lock(&self.inherited).remove(&want.uid);
        self.save().await;
        done.map_err(|refusal| Rejection {
            reason: refusal.reason.to_owned(),
            message: refusal.message,
            by_labels: false,
        })
    }

    async fn place_all(
        &self,
        want: &PodWant,
        runs: impl Fn(&str) -> bool + Send,
    ) -> Result<(), AdmissionError> {
        let of_pod = self.with_books(|core, books| core.begin(want, books))?;
        for container in &want.containers {
            let hint = self.with_books(|core, books| core.place(want, container, of_pod, books))?;
            let Some(devices) = self.devices.as_ref().filter(|_| !container.devices.is_empty()) else {
                continue;
            };
            devices.allocate(want, container, hint, runs(&container.name)).await?;
        }
        Ok(())
    }

    /// Decides with an eye on the devices.
    fn with_books<T>(&self, decide: impl FnOnce(&mut Placement, &DeviceBooks) -> T) -> T {
        let mut core = self.core();
        match &self.devices {
            Some(devices) => decide(&mut core, &devices.books()),
            None => decide(&mut core, &DeviceBooks::default()),
        }
    }

    /// Where the container runs.
    #[must_use]
    pub fn of(&self, uid: &str, container: &str) -> Place {
        let core = self.core();
        let cpus = core.cpus.as_ref().map(|c| &c.state);
        let nodes = core.memory.as_ref().map(|m| m.state.nodes_of(uid, container)).unwrap_or_default();
        Place {
            cpus: cpus.map(|s| s.own_or_shared(uid, container).to_string()).unwrap_or_default(),
            memory_nodes: nodes.into_iter().collect::<CpuSet>().to_string(),
            exclusive: cpus.is_some_and(|s| s.own(uid, container).is_some()),
        }
    }

    /// CPUs and memory that are the container's alone.
    #[must_use]
    pub fn own(&self, uid: &str, container: &str) -> (CpuSet, Vec<Block>) {
        let core = self.core();
        let cpus = core.cpus.as_ref().and_then(|c| c.state.own(uid, container).cloned());
        let blocks = core.memory.as_ref().and_then(|m| m.state.blocks(uid, container).map(<[Block]>::to_vec));
        (cpus.unwrap_or_default(), blocks.unwrap_or_default())
    }

    /// CPUs and memory that containers may have for themselves.
    #[must_use]
    pub fn allocatable(&self) -> (CpuSet, Vec<Block>) {
        let core = self.core();
        let cpus = core.cpus.as_ref().map(StaticCpus::allocatable);
        let memory = core.memory.as_ref().map(StaticMemory::allocatable);
        (cpus.unwrap_or_default(), memory.unwrap_or_default())
    }

    /// The container is about to start: what init containers before it had is free.
    pub async fn starting(&self, pod: &Pod, container: &str) {
        let want = PodWant::new(pod);
        self.core().started(&want, container);
        self.save().await;
    }

    /// Nothing of the Pod runs any more.
    pub async fn release(&self, uid: &str) {
        self.core().keep_only(|other, _| other != uid);
        if let Some(devices) = &self.devices {
            devices.keep_only(|other| other != uid).await;
        }
        self.lock(&self.inherited).remove(uid);
        self.save().await;
    }

    /// Every source has spoken: what an earlier life gave to Pods that are not among these is free.
    pub async fn forget_strangers(&self, knows: impl Fn(&str) -> bool) {
        let strangers: BTreeSet<String> = {
            let mut inherited = self.lock(&self.inherited);
            std::mem::take(&mut *inherited).into_iter().filter(|uid| !knows(uid)).collect()
        };
        if !strangers.is_empty() {
            self.core().keep_only(|uid, _| !strangers.contains(uid));
            if let Some(devices) = &self.devices {
                devices.keep_only(|uid| !strangers.contains(uid)).await;
            }
            self.save().await;
        }
    }

    /// Writes what has changed. A disk that is full is no reason to run nothing: upstream too goes on.
    async fn save(&self) {
        self.tell();
        let Some(files) = &self.files else { return };
        let mut written = self.written.lock().await;
        let texts = files.texts(&self.core());
        if *written == texts {
            return;
        }
        self.changed.notify_one();
        let (to, new, before) = (files.clone(), texts.clone(), written.clone());
        let done = tokio::task::spawn_blocking(move || to.write(&new, &before)).await;
        match done.map_err(std::io::Error::other).and_then(|written| written) {
            Ok(()) => *written = texts,
            Err(error) => tracing::error!(%error, "placements are not written down"),
        }
    }

    fn tell(&self) {
        self.lock(&self.told).tell(&self.core(), &self.metrics);
    }

    fn core(&self) -> MutexGuard<'_, Placement> {
        self.lock(&self.core)
    }

    fn lock<'a, T>(&self, what: &'a Mutex<T>) -> MutexGuard<'a, T> {
        what.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The policies, or in upstream's words why they cannot be had on this machine.
fn policies(settings: &Settings, machine: &Machine) -> Result<Placement, String> {
    let policy = Policy::new(
        &settings.topology_policy,
        &settings.topology_scope,
        &settings.topology_options,
        &machine.nodes,
    )?;
    let options = Options::read(&settings.cpu_options, settings.option_gates);
    let cpus = match settings.cpu_policy.as_str() {
        "none" if settings.cpu_options.is_empty() => None,
        "none" => {
            let given: Vec<String> = settings.cpu_options.iter().map(|(k, v)| format!("{k}:{v}")).collect();
            let given = given.join(" ");
            return Err(format!(
                "new none policy error: None policy: received unsupported options=map[{given}]"
            ));
        }
        "static" => {
            let options = options.map_err(|e| format!("new static policy error: {e}"))?;
            Some(static_cpus(settings, machine, options, policy.guarantees_alignment())?)
        }
        other => return Err(format!("unknown policy: \"{other}\"")),
    };
    let memory = match settings.memory_policy.as_str() {
        "None" => None,
        "Static" => {
            let kept = reserved::check(&machine.nodes, &settings.kept_back, &settings.reserved_memory)?;
            Some(StaticMemory::new(&machine.nodes, &kept))
        }
        other => return Err(format!("unknown policy: {other:?}")),
    };
    Ok(Placement { policy, cpus, memory, ..Placement::default() })
}

fn static_cpus(
    settings: &Settings,
    machine: &Machine,
    options: Options,
    single_numa: bool,
) -> Result<StaticCpus, String> {
    let milli = settings.kept_back.get("cpu").map_or(0, |q| q.milli_value());
    if milli <= 0 {
        return Err("[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero".to_owned());
    }
    let named: CpuSet = settings.reserved_cpus.parse().map_err(|e| format!("reservedSystemCPUs: {e}"))?;
    let count = usize::try_from((milli + 999) / 1000).unwrap_or(usize::MAX);
    StaticCpus::new(machine.cpus.clone(), options, count, &named, single_numa)
}

#[cfg(test)]
mod tests;
