//! A cgroup for every Pod, below one for its class, below one for all Pods: what a Pod may use at most, and what the
//! node keeps for itself.

mod existing;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::pod::{QosClass, qos_class};
use async_trait::async_trait;
use base::ids::PodUid;
use base::time::Clock;
use k8s_openapi::api::core::v1::Pod;
use kubelet_core::cgroup::{self, Driver, Limits, Name, Rules, unit};
use sys::cgroup::{Hierarchies, Version};
use systemd::Places;

use crate::host::units::Units;
use crate::metrics::Metrics;
use crate::ports::{Cgroups, PodBounds};

/// How often what is left in a Pod's cgroup is killed before somebody is told.
const TRIES: usize = 5;
const BETWEEN_TRIES: Duration = Duration::from_millis(20);

/// Every container lands below the runtime's own default parent, or below the one configured.
#[derive(Clone, Debug, Default)]
pub struct RuntimeCgroups {
    pub parent: String,
}

#[async_trait]
impl Cgroups for RuntimeCgroups {
    async fn ensure(&self, _: &Pod) -> io::Result<String> {
        Ok(self.parent.clone())
    }

    async fn bounds(&self, _: &Pod) -> io::Result<Option<PodBounds>> {
        Ok(None)
    }

    async fn bound(&self, _: &Pod, _: &Limits) -> io::Result<()> {
        Ok(())
    }

    async fn remove(&self, _: &PodUid) -> io::Result<()> {
        Ok(())
    }

    async fn known(&self) -> io::Result<Vec<PodUid>> {
        Ok(Vec::new())
    }
}

/// One for every Pod, made by ourselves or, where it owns the tree, by systemd.
#[derive(Clone, Debug)]
pub struct NodeCgroups(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    hand: Hierarchies,
    /// systemd, if it makes them.
    units: Option<Units>,
    all: Name,
    rules: Rules,
    /// What each Burstable Pod asks for, in millicores.
    burstable: Mutex<BTreeMap<PodUid, i64>>,
    /// Held while the shares of the class are changed: the last sum wins.
    sharing: tokio::sync::Mutex<()>,
    /// Cgroups that are there, but do not have all of their limits.
    unfinished: Mutex<BTreeSet<Name>>,
}

/// Counts and times the calls.
pub struct Timed {
    pub cgroups: Arc<dyn Cgroups>,
    pub clock: Arc<dyn Clock>,
    pub metrics: Arc<Metrics>,
}

// === impl NodeCgroups ===

impl NodeCgroups {
    /// Makes the cgroups that Pods are put in. With places, systemd is asked for them.
    pub async fn open(
        hand: Hierarchies,
        systemd: Option<Places>,
        all: Name,
        rules: Rules,
    ) -> io::Result<Self> {
        let units = systemd.map(|places| Units::new(places, hand.version() == Version::V2));
        Self::start(Inner {
            hand,
            units,
            all,
            rules,
            burstable: Mutex::default(),
            sharing: tokio::sync::Mutex::default(),
            unfinished: Mutex::default(),
        })
        .await
    }

    async fn start(inner: Inner) -> io::Result<Self> {
        let this = Self(Arc::new(inner));
        let least = Limits { cpu_shares: Some(cgroup::shares(0)), ..Limits::default() };
        let class = |class| cgroup::of_class(&this.0.all, class);
        this.set_up(&this.0.all, &Limits::default()).await?;
        // The shares of Pods that run already stay as they are until it is known what they are.
        this.set_up(&class(QosClass::Burstable), &Limits::default()).await?;
        this.set_up(&class(QosClass::BestEffort), &least).await?;
        let known = this.aside(Inner::recall).await?;
        *this.0.lock() = known;
        this.share().await?;
        Ok(this)
    }

    /// Holds all Pods together to this.
    pub async fn enforce(&self, whole: &Limits) -> io::Result<()> {
        self.change(&self.0.all, whole).await
    }

    /// The cgroup of all Pods, for people.
    #[must_use]
    pub fn all(&self) -> &Name {
        &self.0.all
    }

    async fn set_up(&self, name: &Name, limits: &Limits) -> io::Result<()> {
        let limits = match &self.0.units {
            Some(units) => {
                let limits = unit::rounded(limits);
                units.make(name, &limits).await.map_err(io::Error::other)?;
                limits
            }
            None => limits.clone(),
        };
        // systemd does not know every controller.
        let path = self.0.path(name);
        self.aside(move |inner| {
            inner.hand.make(&path)?;
            inner.write(&path, &limits)
        })
        .await
    }

    async fn is_inhabited(&self, path: &str) -> io::Result<bool> {
        let path = path.to_owned();
        self.aside(move |inner| Ok(!inner.hand.processes(&path)?.is_empty())).await
    }

    async fn change(&self, name: &Name, limits: &Limits) -> io::Result<()> {
        let limits = match &self.0.units {
            Some(units) => {
                let limits = unit::rounded(limits);
                units.change(name, &limits).await.map_err(io::Error::other)?;
                limits
            }
            None => limits.clone(),
        };
        let path = self.0.path(name);
        self.aside(move |inner| inner.write(&path, &limits)).await
    }

    fn of_pod(&self, pod: &Pod) -> io::Result<Name> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        cgroup::of_pod(&self.0.all, qos_class(pod), uid).map_err(invalid)
    }

    /// A Burstable Pod came or went.
    async fn burst(&self, uid: PodUid, milli: Option<i64>) -> io::Result<()> {
        let changed = match milli {
            Some(milli) => self.0.lock().insert(uid, milli) != Some(milli),
            None => self.0.lock().remove(&uid).is_some(),
        };
        if changed { self.share().await } else { Ok(()) }
    }

    /// The class gets what its Pods ask for together.
    async fn share(&self) -> io::Result<()> {
        let _last = self.0.sharing.lock().await;
        let sum = self.0.lock().values().fold(0_i64, |sum, milli| sum.saturating_add(*milli));
        let limits = Limits { cpu_shares: Some(cgroup::shares(sum)), ..Limits::default() };
        self.change(&cgroup::of_class(&self.0.all, QosClass::Burstable), &limits).await
    }

    /// Kills what is left in the cgroup and takes it away.
    async fn take_away(&self, name: Name) -> io::Result<()> {
        let path = self.0.path(&name);
        if let Some(units) = &self.0.units {
            let there = {
                let path = path.clone();
                self.aside(move |inner| {
                    let there = inner.hand.is_anywhere(&path);
                    if there { inner.quiet(&path).map(|()| true) } else { Ok(false) }
                })
                .await?
            };
            if there {
                units.stop(&name).await.map_err(io::Error::other)?;
            }
        }
        self.aside(move |inner| inner.empty(&path)).await?;
        self.0.unfinished().remove(&name);
        Ok(())
    }

    /// More than a few system calls: beside the loop, not in it.
    async fn aside<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Inner) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let inner = self.0.clone();
        tokio::task::spawn_blocking(move || act(&inner)).await.map_err(io::Error::other)?
    }
}

#[async_trait]
impl Cgroups for NodeCgroups {
    async fn ensure(&self, pod: &Pod) -> io::Result<String> {
        let uid = PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default());
        let name = self.of_pod(pod)?;
        let path = self.0.path(&name);
        // It is made once: whoever changed it since had a reason. One that nothing runs in may be all that an earlier
        // life of the agent came to.
        let is_finished = !self.0.unfinished().contains(&name);
        if is_finished && self.0.hand.exists(&path) && self.is_inhabited(&path).await? {
            return Ok(format!("/{path}"));
        }
        self.0.unfinished().insert(name.clone());
        self.set_up(&name, &cgroup::pod_rules(pod, &self.0.rules)).await?;
        if qos_class(pod) == QosClass::Burstable {
            self.burst(uid, Some(cgroup::requested(pod))).await?;
        }
        self.0.unfinished().remove(&name);
        Ok(format!("/{path}"))
    }

    async fn bounds(&self, pod: &Pod) -> io::Result<Option<PodBounds>> {
        let path = self.0.path(&self.of_pod(pod)?);
        let (now, memory_used) =
            self.aside(move |inner| Ok((inner.read(&path)?, inner.memory_used(&path)?))).await?;
        Ok(Some(PodBounds { now, next: cgroup::pod_rules(pod, &self.0.rules), memory_used }))
    }

    async fn bound(&self, pod: &Pod, limits: &Limits) -> io::Result<()> {
        self.change(&self.of_pod(pod)?, limits).await?;
        if limits.cpu_shares.is_some() && qos_class(pod) == QosClass::Burstable {
            let uid = PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default());
            self.burst(uid, Some(cgroup::requested(pod))).await?;
        }
        Ok(())
    }

    /// Whatever class it had.
    async fn remove(&self, uid: &PodUid) -> io::Result<()> {
        for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            self.take_away(cgroup::of_pod(&self.0.all, class, uid.as_str()).map_err(invalid)?).await?;
        }
        self.burst(uid.clone(), None).await
    }

    async fn known(&self) -> io::Result<Vec<PodUid>> {
        self.aside(Inner::list).await
    }

    /// Holds the Pods of a class to this. What they use already is not taken from them: a kernel that finds a limit below it
    /// would kill them.
    async fn hold_class(&self, class: QosClass, limits: &Limits) -> io::Result<()> {
        let name = cgroup::of_class(&self.0.all, class);
        let mut limits = limits.clone();
        if let Some(bytes) = limits.memory {
            let path = self.0.path(&name);
            let used = self.aside(move |inner| inner.memory_used(&path)).await?;
            let used = used.and_then(|used| i64::try_from(used).ok()).unwrap_or(0);
            limits.memory = Some(bytes.max(used));
        }
        self.change(&name, &limits).await
    }
}

// === impl Inner ===

impl Inner {
    fn driver(&self) -> Driver {
        if self.units.is_some() { Driver::Systemd } else { Driver::Cgroupfs }
    }

    fn path(&self, name: &Name) -> String {
        name.path(self.driver())
    }

    /// Writes what is limited. A controller this machine lacks limits nothing.
    fn write(&self, name: &str, limits: &Limits) -> io::Result<()> {
        let write = |controller: &str, file: &str, value: String| {
            self.hand.write(name, controller, file, &value).map(drop)
        };
        let new = self.hand.version() == Version::V2;
        if let Some(shares) = limits.cpu_shares {
            match new {
                true => write("cpu", "cpu.weight", cgroup::weight(shares).to_string())?,
                false => write("cpu", "cpu.shares", shares.to_string())?,
            }
        }
        match limits.cpu_quota {
            Some((quota, period)) if new => {
                let quota = if quota < 0 { "max".to_owned() } else { quota.to_string() };
                write("cpu", "cpu.max", format!("{quota} {period}"))?;
            }
            Some((quota, period)) => {
                write("cpu", "cpu.cfs_period_us", period.to_string())?;
                write("cpu", "cpu.cfs_quota_us", quota.to_string())?;
            }
            None => {}
        }
        if let Some(bytes) = limits.memory {
            write("memory", if new { "memory.max" } else { "memory.limit_in_bytes" }, bytes.to_string())?;
        }
        for (file, bytes) in [("memory.min", limits.memory_min), ("memory.low", limits.memory_low)] {
            if let Some(bytes) = bytes.filter(|_| new) {
                write("memory", file, bytes.to_string())?;
            }
        }
        if let Some(pids) = limits.pids {
            write("pids", "pids.max", pids.to_string())?;
        }
        if let Some(cpus) = limits.cpus.as_ref().filter(|_| new) {
            write("cpuset", "cpuset.cpus", cpus.clone())?;
        }
        for (size, bytes) in &limits.hugepages {
            let end = if new { "max" } else { "limit_in_bytes" };
            write("hugetlb", &format!("hugetlb.{size}.{end}"), bytes.to_string())?;
        }
        Ok(())
    }

    /// What is limited, of what a resize moves.
    fn read(&self, name: &str) -> io::Result<Limits> {
        let number = |text: Option<String>| text.and_then(|t| t.parse::<i64>().ok());
        let read = |controller: &str, file: &str| self.hand.read(name, controller, file);
        let (cpu_shares, cpu_quota, memory) = match self.hand.version() {
            Version::V1 => {
                let quota = number(read("cpu", "cpu.cfs_quota_us")?);
                let period = number(read("cpu", "cpu.cfs_period_us")?).unwrap_or(100_000);
                // Version 1 says no limit with the largest number of whole pages.
                let memory =
                    number(read("memory", "memory.limit_in_bytes")?).filter(|m| *m < i64::MAX >> 12 << 12);
                (number(read("cpu", "cpu.shares")?), quota.map(|q| (q, period)), memory)
            }
            Version::V2 => {
                let shares = number(read("cpu", "cpu.weight")?).map(cgroup::shares_of);
                let quota = read("cpu", "cpu.max")?.and_then(|text| {
                    let (quota, period) = text.split_once(' ')?;
                    Some((quota.parse().unwrap_or(-1), period.parse().ok()?))
                });
                (shares, quota, number(read("memory", "memory.max")?))
            }
        };
        Ok(Limits { cpu_shares, cpu_quota, memory, ..Limits::default() })
    }

    fn memory_used(&self, name: &str) -> io::Result<Option<u64>> {
        let file = match self.hand.version() {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        };
        Ok(self.hand.read(name, "memory", file)?.and_then(|text| text.parse().ok()))
    }

    /// What Burstable Pods of an earlier life of the agent ask for, as their cgroups say.
    fn recall(&self) -> io::Result<BTreeMap<PodUid, i64>> {
        let class = self.path(&cgroup::of_class(&self.all, QosClass::Burstable));
        let mut known = BTreeMap::new();
        for directory in self.hand.children(&class)? {
            let Some(uid) = cgroup::pod_uid(&directory, self.driver()) else { continue };
            let name = format!("{class}/{directory}");
            let number = |text: Option<String>| text.and_then(|t| t.parse::<i64>().ok());
            let shares = match self.hand.version() {
                Version::V1 => number(self.hand.read(&name, "cpu", "cpu.shares")?),
                Version::V2 => number(self.hand.read(&name, "cpu", "cpu.weight")?).map(cgroup::shares_of),
            };
            known.insert(PodUid::from(uid), shares.unwrap_or(0).saturating_mul(1000) / 1024);
        }
        Ok(known)
    }

    /// Kills what runs in the cgroup, until nothing does.
    fn quiet(&self, name: &str) -> io::Result<()> {
        for tries in 1..=TRIES {
            if self.hand.processes(name)?.is_empty() {
                return Ok(());
            }
            self.kill(name, tries)?;
        }
        match self.hand.processes(name)?.len() {
            0 => Ok(()),
            left => Err(io::Error::other(format!("{left} processes in {name} cannot be killed"))),
        }
    }

    fn empty(&self, name: &str) -> io::Result<()> {
        let mut tries = 1;
        loop {
            let Err(error) = self.hand.remove(name) else { return Ok(()) };
            if tries == TRIES {
                return Err(error);
            }
            self.kill(name, tries)?;
            tries += 1;
        }
    }

    /// Kills, and gives the kernel a moment to see it.
    fn kill(&self, name: &str, tries: usize) -> io::Result<()> {
        let killed = self.hand.kill(name)?;
        tracing::info!(cgroup = name, killed, "killed what was left in a Pod's cgroup");
        std::thread::sleep(BETWEEN_TRIES * u32::try_from(tries).unwrap_or(1));
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<PodUid>> {
        let mut found = Vec::new();
        for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            let children = self.hand.children(&self.path(&cgroup::of_class(&self.all, class)))?;
            let uids = children.iter().filter_map(|c| cgroup::pod_uid(c, self.driver()));
            found.extend(uids.map(PodUid::from));
        }
        Ok(found)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PodUid, i64>> {
        self.burstable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unfinished(&self) -> MutexGuard<'_, BTreeSet<Name>> {
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Timed ===

impl Timed {
    async fn time<T>(&self, operation: &str, call: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let begun = self.clock.now().mono;
        let outcome = call.await;
        let took = self.clock.now().mono.since(begun).as_secs_f64();
        self.metrics.cgroup_manager_duration_seconds.observe([operation], took);
        outcome
    }
}

#[async_trait]
impl Cgroups for Timed {
    async fn ensure(&self, pod: &Pod) -> io::Result<String> {
        self.time("create", self.cgroups.ensure(pod)).await
    }

    async fn bounds(&self, pod: &Pod) -> io::Result<Option<PodBounds>> {
        self.time("get", self.cgroups.bounds(pod)).await
    }

    async fn bound(&self, pod: &Pod, limits: &Limits) -> io::Result<()> {
        self.time("update", self.cgroups.bound(pod, limits)).await
    }

    async fn remove(&self, uid: &PodUid) -> io::Result<()> {
        self.time("destroy", self.cgroups.remove(uid)).await
    }

    async fn known(&self) -> io::Result<Vec<PodUid>> {
        self.cgroups.known().await
    }

    async fn hold_class(&self, class: QosClass, limits: &Limits) -> io::Result<()> {
        self.time("update", self.cgroups.hold_class(class, limits)).await
    }
}

impl std::fmt::Debug for Timed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Timed").finish_non_exhaustive()
    }
}

fn invalid(error: cgroup::NameError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

#[cfg(test)]
mod tests;
