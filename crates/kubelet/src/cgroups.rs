//! A cgroup for every Pod, below one for its class, below one for all Pods: what a Pod may use at most, and what the
//! node keeps for itself.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::pod::{QosClass, qos_class};
use async_trait::async_trait;
use base::ids::PodUid;
use base::time::Clock;
use k8s_openapi::api::core::v1::Pod;
use kubelet_core::cgroup::{self, Driver, Limits, Name, Rules};
use sys::cgroup::{Hierarchies, Version};

use crate::metrics::Metrics;
use crate::ports::Cgroups;

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

    async fn remove(&self, _: &PodUid) -> io::Result<()> {
        Ok(())
    }

    async fn known(&self) -> io::Result<Vec<PodUid>> {
        Ok(Vec::new())
    }
}

/// Where systemd owns the tree: Pods are put below the slices upstream uses, which the runtime asks systemd for.
/// The slices themselves carry no limits; the containers do.
#[derive(Clone, Debug)]
pub struct SliceCgroups {
    pub all: Name,
}

#[async_trait]
impl Cgroups for SliceCgroups {
    async fn ensure(&self, pod: &Pod) -> io::Result<String> {
        let name = name_of(&self.all, pod)?;
        Ok(format!("/{}", name.path(Driver::Systemd)))
    }

    async fn remove(&self, _: &PodUid) -> io::Result<()> {
        Ok(())
    }

    async fn known(&self) -> io::Result<Vec<PodUid>> {
        Ok(Vec::new())
    }
}

/// Where the tree is ours to make.
#[derive(Clone, Debug)]
pub struct NodeCgroups(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    hand: Hierarchies,
    all: Name,
    rules: Rules,
    /// What each Burstable Pod asks for, in millicores.
    burstable: Mutex<BTreeMap<PodUid, i64>>,
}

/// Counts and times the calls.
pub struct Timed {
    pub cgroups: Arc<dyn Cgroups>,
    pub clock: Arc<dyn Clock>,
    pub metrics: Arc<Metrics>,
}

// === impl NodeCgroups ===

impl NodeCgroups {
    /// Makes the cgroups that Pods are put in. `whole` is what all of them together may use.
    pub fn open(hand: Hierarchies, all: Name, whole: &Limits, rules: Rules) -> io::Result<Self> {
        let inner = Inner { hand, all, rules, burstable: Mutex::default() };
        inner.set_up(&inner.all, whole)?;
        for class in [QosClass::Burstable, QosClass::BestEffort] {
            let least = Limits { cpu_shares: Some(cgroup::shares(0)), ..Limits::default() };
            let name = cgroup::of_class(&inner.all, class);
            // The shares of Pods that run already stay as they are until it is known what they are.
            match inner.hand.exists(&path(&name)) {
                true => {}
                false => inner.set_up(&name, &least)?,
            }
        }
        inner.recall()?;
        Ok(Self(Arc::new(inner)))
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
        let name = name_of(&self.0.all, pod)?;
        let parent = format!("/{}", path(&name));
        // It is made once: whoever changed it since had a reason.
        if self.0.hand.exists(&path(&name)) {
            return Ok(parent);
        }
        let limits = cgroup::pod_rules(pod, &self.0.rules);
        let asked = (qos_class(pod) == QosClass::Burstable).then(|| cgroup::requested(pod));
        self.aside(move |inner| {
            inner.set_up(&name, &limits)?;
            match asked {
                Some(milli) => inner.burst(uid, Some(milli)),
                None => Ok(()),
            }
        })
        .await?;
        Ok(parent)
    }

    async fn remove(&self, uid: &PodUid) -> io::Result<()> {
        let uid = uid.clone();
        self.aside(move |inner| inner.take_away(&uid)).await
    }

    async fn known(&self) -> io::Result<Vec<PodUid>> {
        self.aside(Inner::list).await
    }
}

// === impl Inner ===

impl Inner {
    fn set_up(&self, name: &Name, limits: &Limits) -> io::Result<()> {
        self.hand.make(&path(name))?;
        self.bound(name, limits)
    }

    /// Writes what is limited. A controller this machine lacks limits nothing.
    fn bound(&self, name: &Name, limits: &Limits) -> io::Result<()> {
        let name = path(name);
        let write = |controller: &str, file: &str, value: String| {
            self.hand.write(&name, controller, file, &value).map(drop)
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
        if let Some(pids) = limits.pids {
            write("pids", "pids.max", pids.to_string())?;
        }
        for (size, bytes) in &limits.hugepages {
            let end = if new { "max" } else { "limit_in_bytes" };
            write("hugetlb", &format!("hugetlb.{size}.{end}"), bytes.to_string())?;
        }
        Ok(())
    }

    /// What Burstable Pods of an earlier life of the agent ask for, as their cgroups say.
    fn recall(&self) -> io::Result<()> {
        let class = cgroup::of_class(&self.all, QosClass::Burstable);
        let mut known = BTreeMap::new();
        for directory in self.hand.children(&path(&class))? {
            let Some(uid) = cgroup::pod_uid(&directory, Driver::Cgroupfs) else { continue };
            let name = format!("{}/{directory}", path(&class));
            let number = |text: Option<String>| text.and_then(|t| t.parse::<i64>().ok());
            let shares = match self.hand.version() {
                Version::V1 => number(self.hand.read(&name, "cpu", "cpu.shares")?),
                Version::V2 => number(self.hand.read(&name, "cpu", "cpu.weight")?).map(cgroup::shares_of),
            };
            known.insert(PodUid::from(uid), shares.unwrap_or(0).saturating_mul(1000) / 1024);
        }
        *self.lock() = known;
        self.share()
    }

    /// A Burstable Pod came or went.
    fn burst(&self, uid: PodUid, milli: Option<i64>) -> io::Result<()> {
        let changed = match milli {
            Some(milli) => self.lock().insert(uid, milli) != Some(milli),
            None => self.lock().remove(&uid).is_some(),
        };
        if changed { self.share() } else { Ok(()) }
    }

    /// The class gets what its Pods ask for together.
    fn share(&self) -> io::Result<()> {
        let sum = self.lock().values().fold(0_i64, |sum, milli| sum.saturating_add(*milli));
        let limits = Limits { cpu_shares: Some(cgroup::shares(sum)), ..Limits::default() };
        self.bound(&cgroup::of_class(&self.all, QosClass::Burstable), &limits)
    }

    /// Kills what is left in the Pod's cgroup and removes it, whatever class it had.
    fn take_away(&self, uid: &PodUid) -> io::Result<()> {
        for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            let name = cgroup::of_pod(&self.all, class, uid.as_str()).map_err(invalid)?;
            self.empty(&path(&name))?;
        }
        self.burst(uid.clone(), None)
    }

    fn empty(&self, name: &str) -> io::Result<()> {
        let mut tries = 1;
        loop {
            let Err(error) = self.hand.remove(name) else { return Ok(()) };
            if tries == TRIES {
                return Err(error);
            }
            let killed = self.hand.kill(name)?;
            tracing::info!(cgroup = name, killed, "killed what was left in a Pod's cgroup");
            std::thread::sleep(BETWEEN_TRIES * u32::try_from(tries).unwrap_or(1));
            tries += 1;
        }
    }

    fn list(&self) -> io::Result<Vec<PodUid>> {
        let mut found = Vec::new();
        for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            let children = self.hand.children(&path(&cgroup::of_class(&self.all, class)))?;
            let uids = children.iter().filter_map(|c| cgroup::pod_uid(c, Driver::Cgroupfs));
            found.extend(uids.map(PodUid::from));
        }
        Ok(found)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<PodUid, i64>> {
        self.burstable.lock().unwrap_or_else(PoisonError::into_inner)
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

    async fn remove(&self, uid: &PodUid) -> io::Result<()> {
        self.time("destroy", self.cgroups.remove(uid)).await
    }

    async fn known(&self) -> io::Result<Vec<PodUid>> {
        self.cgroups.known().await
    }
}

impl std::fmt::Debug for Timed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Timed").finish_non_exhaustive()
    }
}

fn name_of(all: &Name, pod: &Pod) -> io::Result<Name> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    cgroup::of_pod(all, qos_class(pod), uid).map_err(invalid)
}

fn path(name: &Name) -> String {
    name.path(Driver::Cgroupfs)
}

fn invalid(error: cgroup::NameError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        Rules {
            cfs_quota: true,
            cfs_period: Duration::from_millis(100),
            pids: Some(100),
            hugepage_sizes: Vec::new(),
        }
    }

    fn pod(uid: &str, resources: &str) -> Pod {
        let text = format!(
            r#"{{"metadata":{{"uid":"{uid}"}},"spec":{{"containers":[{{"name":"a","resources":{resources}}}]}}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    /// The real hierarchies, below a cgroup of this test's own; none where we may not make one.
    fn open(root: &str) -> Option<NodeCgroups> {
        let hand = Hierarchies::find().ok()?;
        hand.make(root).ok()?;
        let all = cgroup::all_pods(root).unwrap();
        let whole = Limits { memory: Some(8 << 30), ..Limits::default() };
        Some(NodeCgroups::open(hand, all, &whole, rules()).unwrap())
    }

    #[tokio::test]
    async fn a_pod_is_bounded_remembered_and_taken_away() {
        let root = format!("longshore-kubelet-{}", std::process::id());
        let Some(cgroups) = open(&root) else { return };
        let guaranteed =
            pod("g", r#"{"limits":{"cpu":"1","memory":"64Mi"},"requests":{"cpu":"1","memory":"64Mi"}}"#);
        let burstable = pod("b", r#"{"requests":{"cpu":"500m"}}"#);
        assert_eq!(cgroups.ensure(&guaranteed).await.unwrap(), format!("/{root}/kubepods/podg"));
        assert_eq!(cgroups.ensure(&burstable).await.unwrap(), format!("/{root}/kubepods/burstable/podb"));
        let hand = cgroups.0.hand.clone();
        let v1 = hand.version() == Version::V1;
        let read = |name: &str, controller: &str, old: &str, new: &str| {
            let file = if v1 { old } else { new };
            hand.read(&format!("{root}/kubepods/{name}"), controller, file).unwrap().unwrap()
        };
        assert_eq!(read("podg", "memory", "memory.limit_in_bytes", "memory.max"), (64 << 20).to_string());
        assert_eq!(read("podg", "pids", "pids.max", "pids.max"), "100");
        let quota = read("podg", "cpu", "cpu.cfs_quota_us", "cpu.max");
        assert_eq!(quota, if v1 { "100000" } else { "100000 100000" });
        let shares = |name: &str| read(name, "cpu", "cpu.shares", "cpu.weight");
        let want = |shares: i64| if v1 { shares } else { cgroup::weight(shares) }.to_string();
        assert_eq!((shares("burstable"), shares("besteffort")), (want(512), want(2)));

        // Another life of the agent finds them again.
        let again =
            NodeCgroups::open(hand.clone(), cgroups.0.all.clone(), &Limits::default(), rules()).unwrap();
        assert_eq!(again.known().await.unwrap(), [PodUid::from("g"), PodUid::from("b")]);
        again.ensure(&pod("c", r#"{"requests":{"cpu":"1"}}"#)).await.unwrap();
        assert_eq!(shares("burstable"), want(1536));

        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        hand.write(&format!("{root}/kubepods/podg"), "pids", "cgroup.procs", &child.id().to_string())
            .unwrap();
        let reaper = std::thread::spawn(move || child.wait());
        for uid in ["g", "b", "c"] {
            again.remove(&PodUid::from(uid)).await.unwrap();
        }
        reaper.join().unwrap().unwrap();
        assert_eq!(again.known().await.unwrap(), []);
        assert_eq!(shares("burstable"), want(2));
        hand.remove(&root).unwrap();
    }

    #[tokio::test]
    async fn slices_are_named_as_upstream_does() {
        let all = cgroup::all_pods("").unwrap();
        let parent = SliceCgroups { all }.ensure(&pod("a-b", "{}")).await.unwrap();
        assert_eq!(parent, "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-poda_b.slice");
    }
}
