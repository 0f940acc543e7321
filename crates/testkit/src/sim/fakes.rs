//! The world around a simulated kubelet, apart from the runtime: clock, volumes, files, network.
//! Their state outlives the agent, as a disk would.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base::class::Class;
use base::ids::PodUid;
use base::rng::Rng;
use base::time::{Clock, Mono, Now, Wall};
use cri::v1::{PodSandbox, PodSandboxState};
use k8s_openapi::api::core::v1::{Pod, PodStatus, Volume};
use kubelet::ports::{
    Cgroups, GrpcHealth, HttpAnswer, HttpGet, Mounted, MountedVolume, Net, NetError, PodBounds, PodFiles,
    VolumeAct, VolumeError, Volumes,
};
use kubelet_core::cgroup::{self, Limits, Rules};

use crate::fake_runtime::FakeRuntime;

/// Tokio's (paused) time, and a wall clock that can be moved by hand.
#[derive(Debug)]
pub struct SimClock {
    origin: tokio::time::Instant,
    /// Nanoseconds the wall clock was moved by.
    moved: AtomicI64,
}

impl SimClock {
    #[must_use]
    pub fn start() -> Arc<Self> {
        Arc::new(Self { origin: tokio::time::Instant::now(), moved: AtomicI64::new(0) })
    }

    /// Somebody sets the wall clock.
    pub fn jump(&self, seconds: i64) {
        self.moved.fetch_add(seconds * 1_000_000_000, Ordering::Relaxed);
    }
}

impl Clock for SimClock {
    fn now(&self) -> Now {
        let mono = self.origin.elapsed();
        let begun = 1_790_000_000_000_000_000_i64;
        let wall =
            begun + i64::try_from(mono.as_nanos()).unwrap_or(i64::MAX) + self.moved.load(Ordering::Relaxed);
        Now { mono: Mono(mono), wall: Wall(wall) }
    }
}

/// What the disk holds.
#[derive(Debug, Default)]
pub struct DiskState {
    /// Mounted volumes by Pod.
    pub mounted: BTreeMap<PodUid, BTreeSet<String>>,
    /// Pods whose directory exists.
    pub directories: BTreeSet<PodUid>,
    /// Highest log number by Pod and container.
    pub logs: BTreeMap<(String, String), u32>,
    pub statuses: BTreeMap<PodUid, PodStatus>,
    /// Files about all Pods, by name.
    pub checkpoints: BTreeMap<&'static str, String>,
    /// What the cgroup of each Pod holds it to.
    pub cgroups: BTreeMap<PodUid, Limits>,
    /// The memory that every Pod uses.
    pub memory_used: u64,
    /// Who knows whether anything runs in them.
    pub runtime: Option<FakeRuntime>,
    pub faults: f64,
    /// A file that cannot be written.
    pub unwritable: Option<&'static str>,
    /// Nothing can be unmounted.
    pub stuck: bool,
    rng: Option<Rng>,
}

/// Volumes and small files in memory, with seeded failures.
#[derive(Clone, Debug)]
pub struct FakeDisk(Arc<Mutex<DiskState>>);

impl FakeDisk {
    #[must_use]
    pub fn new(rng: Rng) -> Self {
        Self(Arc::new(Mutex::new(DiskState { rng: Some(rng), ..Default::default() })))
    }

    pub fn lock(&self) -> MutexGuard<'_, DiskState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a file about all Pods says.
    #[must_use]
    pub fn checkpoint(&self, name: &str) -> Option<String> {
        self.lock().checkpoints.get(name).cloned()
    }

    /// Takes some time, and sometimes fails after half the work.
    async fn trouble(&self, act: VolumeAct) -> Result<(), VolumeError> {
        let (delay, fails) = {
            let mut state = self.lock();
            let p = state.faults;
            let rng = state.rng.get_or_insert_with(|| Rng::new(0));
            (rng.up_to(Duration::from_millis(20)), rng.chance(p))
        };
        tokio::time::sleep(delay).await;
        match fails {
            false => Ok(()),
            true => Err(VolumeError {
                act,
                volume: "simulated".into(),
                message: "simulated fault".into(),
                class: Class::Retry,
            }),
        }
    }
}

#[async_trait]
impl Volumes for FakeDisk {
    async fn mount(&self, pod: &Pod) -> Result<Mounted, VolumeError> {
        let uid = uid(pod);
        let volumes: Vec<&Volume> = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()).collect();
        self.lock().directories.insert(uid.clone());
        for volume in &volumes {
            self.trouble(VolumeAct::SetUp).await?;
            self.lock().mounted.entry(uid.clone()).or_default().insert(volume.name.clone());
        }
        let place = |v: &Volume| match &v.image {
            Some(image) => MountedVolume::Image { reference: image.reference.clone().unwrap_or_default() },
            None => MountedVolume::Host { path: format!("/pods/{uid}/{}", v.name).into(), read_only: false },
        };
        let places = volumes.into_iter().map(|v| (v.name.clone(), place(v))).collect();
        Ok(Mounted { places, ..Mounted::default() })
    }

    async fn sub_path(
        &self,
        pod: &Pod,
        container: &str,
        index: usize,
        volume: &str,
        _: &str,
    ) -> Result<PathBuf, VolumeError> {
        self.trouble(VolumeAct::SetUp).await?;
        Ok(format!("/pods/{}/volume-subpaths/{volume}/{container}/{index}", uid(pod)).into())
    }

    async fn unmount(&self, uid: &PodUid) -> Result<(), VolumeError> {
        loop {
            self.trouble(VolumeAct::Unmount).await?;
            if self.lock().stuck {
                std::future::pending::<()>().await;
            }
            let mut state = self.lock();
            let Some(mounted) = state.mounted.get_mut(uid) else { break };
            if mounted.pop_first().is_none() {
                state.mounted.remove(uid);
                break;
            }
        }
        Ok(())
    }

    async fn remove(&self, uid: &PodUid) -> Result<(), VolumeError> {
        self.trouble(VolumeAct::Unmount).await?;
        let mut state = self.lock();
        state.directories.remove(uid);
        state.statuses.remove(uid);
        Ok(())
    }

    async fn known(&self) -> Result<Vec<PodUid>, VolumeError> {
        self.trouble(VolumeAct::List).await?;
        Ok(self.lock().directories.iter().cloned().collect())
    }
}

#[async_trait]
impl PodFiles for FakeDisk {
    async fn prepare(&self, pod: &Pod) -> std::io::Result<()> {
        self.lock().directories.insert(uid(pod));
        Ok(())
    }

    async fn write_hosts(&self, pod: &Pod, _: &str) -> std::io::Result<PathBuf> {
        Ok(format!("/pods/{}/etc-hosts", uid(pod)).into())
    }

    async fn node_hosts(&self) -> std::io::Result<String> {
        Ok("127.0.0.1\tlocalhost\n".into())
    }

    async fn node_resolver(&self) -> std::io::Result<Option<String>> {
        Ok(Some("nameserver 192.0.2.53\n".into()))
    }

    async fn prepare_container(&self, pod: &Pod, container: &str) -> std::io::Result<PathBuf> {
        let mut state = self.lock();
        let key = (uid(pod).to_string(), container.to_owned());
        state.logs.entry(key).and_modify(|n| *n += 1).or_insert(0);
        Ok(format!("/pods/{}/containers/{container}/0", uid(pod)).into())
    }

    async fn restart_count_from_logs(&self, pod: &Pod, container: &str) -> std::io::Result<Option<u32>> {
        Ok(self.lock().logs.get(&(uid(pod).to_string(), container.to_owned())).copied())
    }

    fn log_directory(&self, pod: &Pod) -> PathBuf {
        format!("/logs/{}", uid(pod)).into()
    }

    async fn termination_message(&self, _: &str) -> std::io::Result<String> {
        Ok(String::new())
    }

    async fn log_tail(&self, _: &str) -> std::io::Result<String> {
        Ok("the last words".into())
    }

    async fn save_status(&self, uid: &PodUid, status: &PodStatus) -> std::io::Result<()> {
        let mut state = self.lock();
        if state.directories.contains(uid) {
            state.statuses.insert(uid.clone(), status.clone());
        }
        Ok(())
    }

    async fn load_status(&self, uid: &PodUid) -> std::io::Result<Option<PodStatus>> {
        Ok(self.lock().statuses.get(uid).cloned())
    }

    async fn save_checkpoint(&self, name: &'static str, text: String) -> std::io::Result<()> {
        self.trouble(VolumeAct::SetUp).await.map_err(std::io::Error::other)?;
        let mut state = self.lock();
        if state.unwritable == Some(name) {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        state.checkpoints.insert(name, text);
        Ok(())
    }

    async fn load_checkpoint(&self, name: &'static str) -> std::io::Result<Option<String>> {
        Ok(self.checkpoint(name))
    }

    async fn link_log(&self, _: &Pod, _: &str, _: &str, _: &str) -> std::io::Result<()> {
        Ok(())
    }

    async fn remove_logs(&self, _: &cri::v1::ContainerStatus) -> std::io::Result<()> {
        Ok(())
    }
}

#[async_trait]
impl Cgroups for FakeDisk {
    async fn ensure(&self, pod: &Pod) -> std::io::Result<String> {
        // One in which something runs stays as it is, as the real one.
        let (of, runtime) = (uid(pod), self.lock().runtime.clone());
        let ready = |s: &PodSandbox| {
            s.state() == PodSandboxState::SandboxReady
                && s.metadata.as_ref().is_some_and(|m| m.uid == of.as_str())
        };
        let is_inhabited = runtime.is_some_and(|r| r.sandboxes().iter().any(ready));
        let mut state = self.lock();
        if !is_inhabited || !state.cgroups.contains_key(&of) {
            state.cgroups.insert(of.clone(), limits(pod));
        }
        Ok(String::new())
    }

    async fn bounds(&self, pod: &Pod) -> std::io::Result<Option<PodBounds>> {
        let state = self.lock();
        let now = state.cgroups.get(&uid(pod)).cloned().unwrap_or_default();
        Ok(Some(PodBounds { now, next: limits(pod), memory_used: Some(state.memory_used) }))
    }

    async fn bound(&self, pod: &Pod, limits: &Limits) -> std::io::Result<()> {
        self.trouble(VolumeAct::SetUp).await.map_err(std::io::Error::other)?;
        let mut state = self.lock();
        let has = state.cgroups.entry(uid(pod)).or_default();
        has.cpu_shares = limits.cpu_shares.or(has.cpu_shares);
        has.cpu_quota = limits.cpu_quota.or(has.cpu_quota);
        has.memory = limits.memory.or(has.memory);
        Ok(())
    }

    async fn remove(&self, uid: &PodUid) -> std::io::Result<()> {
        self.lock().cgroups.remove(uid);
        Ok(())
    }

    async fn known(&self) -> std::io::Result<Vec<PodUid>> {
        Ok(Vec::new())
    }
}

/// What the cgroup of the Pod should hold it to.
pub(super) fn limits(pod: &Pod) -> Limits {
    let cfs_period = Duration::from_millis(100);
    cgroup::pod_rules(
        pod,
        &Rules {
            cfs_quota: true,
            cfs_period,
            pids: None,
            hugepage_sizes: Vec::new(),
            exclusive_cpus: false,
            reserves_memory: false,
        },
    )
}

/// A network on which every port is open.
#[derive(Clone, Copy, Debug)]
pub struct OpenNet;

#[async_trait]
impl Net for OpenNet {
    async fn http_get(&self, _: HttpGet) -> Result<HttpAnswer, NetError> {
        Ok(HttpAnswer { status: 200, body: String::new(), foreign_redirect: false })
    }

    async fn tcp_connect(&self, _: &str, _: u16, _: Duration) -> Result<(), NetError> {
        Ok(())
    }

    async fn grpc_health(&self, _: &str, _: u16, _: &str, _: Duration) -> Result<GrpcHealth, NetError> {
        Ok(GrpcHealth::Serving)
    }
}

fn uid(pod: &Pod) -> PodUid {
    PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default())
}
