//! Volumes on this node: the adapter behind [`ports::Volumes`].
//!
//! What to provide is decided in [`kubelet_core::volumes`]; here each kind is a file and a line in
//! [`kind_of`]. What exists is read from the disk and the mount table each time, so a restarted agent
//! knows as much as one that never stopped; only what a claim was bound to is remembered, for as long as
//! the API server is away. Every path a Pod can reach is walked by descriptor (docs/decisions/005.md),
//! and every operation runs in its Pod's own [`pod_queue`].

mod atomic_writer;
mod census;
mod csi;
mod device;
pub mod drivers;
mod empty_dir;
mod exclusive;
mod figures;
mod files;
mod force_unmount;
mod fs_group;
mod host_path;
mod image;
mod kind;
mod local;
mod local_device;
mod memory_dir;
mod nfs;
mod pod_queue;
mod program;
mod ready;
mod site;
mod sub_path;
mod teardown;
mod timeouts;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use base::class::Class;
use base::ids::PodUid;
use base::rng::Rng;
use base::time::Clock;
use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kubelet_core::downward::Allocatable;
use kubelet_core::references::References;
use kubelet_core::volumes::{self as core, Desired, Source};
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::ports::{self, Mounted, MountedVolume, NoObjects, Objects, VolumeAct, VolumeError};
use census::Census;
pub use csi::CsiDeps;
use csi::{Csi, CsiVolumes};
use empty_dir::EmptyDir;
use exclusive::Holders;
pub use figures::{Amount, Figures, VolumeFigures};
use files::Files;
use host_path::HostPath;
use image::Image;
use kind::{Exclusive, NoRoot, Tools, VolumeKind};
use local::Local;
use local_device::LocalDevice;
use nfs::Nfs;
use pod_queue::{PodQueues, waiting_for};
use ready::{Ask, Outcome, Ready};
use site::{PodDir, Site, Tree};
pub use timeouts::Timeouts;

/// Volumes below the kubelet's root directory.
pub struct NodeVolumes {
    inner: Arc<Inner>,
    queues: PodQueues,
    objects: Arc<dyn Objects>,
    /// None where nothing speaks to drivers.
    csi: Option<Arc<CsiVolumes>>,
    /// What volumes were when they last became ready, but for those whose files we write. Held for map
    /// operations only.
    remembered: Mutex<HashMap<PodUid, BTreeMap<String, Desired>>>,
    census: Census,
}

struct Inner {
    tree: Tree,
    allocatable: ArcSwap<Allocatable>,
    clock: Arc<dyn Clock>,
    rng: Mutex<Rng>,
    holders: Holders,
    timeouts: Timeouts,
}

// === impl NodeVolumes ===

impl NodeVolumes {
    /// Opens `<root>/pods`, making it (0750) when missing.
    pub fn open(root: &Path, allocatable: Allocatable, clock: Arc<dyn Clock>, rng: Rng) -> io::Result<Self> {
        Self::open_with(root, allocatable, clock, rng, Timeouts::default())
    }

    /// [`NodeVolumes::open`] for whoever waits longer, or less long.
    pub fn open_with(
        root: &Path,
        allocatable: Allocatable,
        clock: Arc<dyn Clock>,
        rng: Rng,
        timeouts: Timeouts,
    ) -> io::Result<Self> {
        let inner = Inner {
            tree: Tree::open(root)?,
            allocatable: ArcSwap::from_pointee(allocatable),
            clock: clock.clone(),
            rng: Mutex::new(rng),
            holders: Holders::default(),
            timeouts,
        };
        Ok(Self {
            inner: Arc::new(inner),
            queues: PodQueues::new(clock),
            objects: Arc::new(NoObjects),
            csi: None,
            remembered: Mutex::default(),
            census: Census::default(),
        })
    }

    /// Where volumes are counted; nowhere by default.
    #[must_use]
    pub fn with_metrics(mut self, metrics: Arc<Metrics>) -> Self {
        self.census = Census::new(metrics);
        self
    }

    /// Where the content of ConfigMaps, Secrets and tokens comes from; nowhere by default.
    #[must_use]
    pub fn with_objects(mut self, objects: Arc<dyn Objects>) -> Self {
        self.objects = objects;
        self
    }

    /// Volumes that drivers mount.
    #[must_use]
    pub fn with_csi(mut self, parts: CsiDeps) -> Self {
        let root = self.inner.tree.path.parent().unwrap_or(&self.inner.tree.path);
        self.csi = Some(Arc::new(CsiVolumes::new(root, parts)));
        self
    }

    /// Takes care of volumes that drivers staged for Pods that are gone, until cancelled.
    pub async fn sweep(self: Arc<Self>, token: CancellationToken) {
        match self.csi.clone() {
            Some(csi) => csi.sweep_until(token).await,
            None => token.cancelled().await,
        }
    }

    /// Asks drivers from time to time how many volumes they can have, until cancelled.
    pub async fn refresh(self: Arc<Self>, token: CancellationToken) {
        match self.csi.clone() {
            Some(csi) => csi.refresh_until(token).await,
            None => token.cancelled().await,
        }
    }

    /// Measures what drivers tell of their volumes, until cancelled.
    pub async fn measure(self: Arc<Self>, every: Duration, token: CancellationToken) {
        match self.csi.clone().filter(|_| !every.is_zero()) {
            Some(csi) => csi.measure_until(every, token).await,
            None => token.cancelled().await,
        }
    }

    /// What the drivers make of their volumes, each by itself: one that hangs holds up no other.
    async fn driven(&self, pod: &Pod, uid: &PodUid, asks: Vec<Ask>) -> Vec<Outcome> {
        if asks.is_empty() {
            return Vec::new();
        }
        let pod = Arc::new(pod.clone());
        join_all(asks.into_iter().map(|ask| self.driven_one(&pod, uid, ask))).await
    }

    async fn driven_one(&self, pod: &Arc<Pod>, uid: &PodUid, ask: Ask) -> Outcome {
        let (volume, error) = ask.split()?;
        let (Source::Csi(source), Some(csi)) = (&volume.source, &self.csi) else {
            return Err(reject(VolumeAct::SetUp, &volume.name, "this node speaks to no CSI drivers".into()));
        };
        let made = match (error, &volume.misplaced) {
            (Some(error), _) => Err(error),
            (None, Some(why)) if csi.standing(uid, source).await?.is_none() => {
                Err(reject(VolumeAct::CheckNode, &source.spec_name, why.clone()))
            }
            (None, _) => csi.set_up(pod, uid, &volume.name, source, volume.fs_group).await,
        };
        let standing = match &made {
            Ok(_) => None,
            Err(_) => csi.standing(uid, source).await?,
        };
        Ready::of(volume.clone(), made, || standing)
    }

    /// What drivers published for the Pod goes before anything is unmounted from under them.
    async fn take_from_drivers(&self, uid: &PodUid) -> Result<(), VolumeError> {
        let Some(csi) = &self.csi else { return Ok(()) };
        if !csi.knows(uid).await? {
            return Ok(());
        }
        let (inner, work_uid) = (Arc::clone(&self.inner), uid.clone());
        let work = move || teardown::unmount_sub_paths(&inner.tree, work_uid.as_str());
        self.take_away(uid, work).await?;
        csi.tear_down(uid).await
    }

    /// The work of a Pod that is to go. Its turn would never come while the Pod looks for a subPath on a dead server: who
    /// hangs there is left behind.
    async fn take_away(
        &self,
        uid: &PodUid,
        work: impl FnOnce() -> Result<(), VolumeError> + Send + 'static,
    ) -> Result<(), VolumeError> {
        let timeouts = self.inner.timeouts;
        let done = self.queues.run(VolumeAct::Unmount, uid, timeouts.unmount, work).await;
        if done.is_err() && self.queues.pass_by(VolumeAct::SubPath, uid, timeouts.gently) {
            tracing::warn!(pod_uid = %uid, "a subPath is no longer waited for");
        }
        done
    }

    /// Each volume of the Pod, or why it cannot be had and what it was before.
    async fn desired(&self, pod: &Pod, uid: &PodUid) -> Vec<Ask> {
        let references = self.objects.supply(pod, &References::of_volumes(pod)).await;
        let all = core::desired(pod, &self.inner.allocatable.load(), &references);
        let remembered = self.remembered();
        let was = |name: &str| remembered.get(uid).and_then(|all| all.get(name)).cloned();
        let one = |shall: Result<Desired, core::Refused>| match shall {
            Ok(volume) => Ask { was: was(&volume.name), shall: Ok(volume) },
            Err(e) => {
                let was = was(&e.volume).or_else(|| core::written(pod, &e.volume));
                let act = if e.of_claim { VolumeAct::Process } else { VolumeAct::SetUp };
                Ask { was, shall: Err(reject(act, &e.volume, e.message)) }
            }
        };
        all.into_iter().map(one).collect()
    }

    async fn desired_one(&self, pod: &Pod, uid: &PodUid, volume: &str) -> Result<Desired, VolumeError> {
        let found = self.desired(pod, uid).await.into_iter().find(|ask| ask.name() == volume);
        let found =
            found.ok_or_else(|| reject(VolumeAct::SubPath, volume, "the Pod has no such volume".into()))?;
        found.split().map(|(desired, _)| desired)
    }

    /// Where the volume is, as far as that is known without asking anybody: it was made ready before.
    fn known_place(&self, pod: &Pod, uid: &PodUid, volume: &str) -> Option<Desired> {
        let was = self.remembered().get(uid).and_then(|all| all.get(volume)).cloned();
        was.or_else(|| core::written(pod, volume))
    }

    /// For when the API server is away. What we write ourselves is on the disk, and too secret to be held here.
    fn remember(&self, uid: &PodUid, ready: &[Ready]) {
        let kept = ready.iter().filter(|r| !matches!(r.volume.source, Source::Files { .. }));
        let kept: BTreeMap<_, _> = kept.map(|r| (r.volume.name.clone(), r.volume.clone())).collect();
        if !kept.is_empty() {
            self.remembered().insert(uid.clone(), kept);
        }
    }

    fn forget(&self, uid: &PodUid) {
        self.remembered().remove(uid);
        self.inner.holders.forget(uid);
        self.census.forget(uid);
    }

    fn remembered(&self) -> MutexGuard<'_, HashMap<PodUid, BTreeMap<String, Desired>>> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the node has for Pods bounds volumes in memory; it may change while we run.
    pub fn set_allocatable(&self, allocatable: Allocatable) {
        self.inner.allocatable.store(Arc::new(allocatable));
    }
}

impl std::fmt::Debug for NodeVolumes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeVolumes").field("tree", &self.inner.tree).finish_non_exhaustive()
    }
}

#[async_trait]
impl ports::Volumes for NodeVolumes {
    async fn mount(&self, pod: &Pod) -> Result<Mounted, VolumeError> {
        let uid = uid_of(pod)?;
        let asks = self.desired(pod, &uid).await;
        self.census.desire(&uid, &asks);
        let (driven, own): (Vec<_>, Vec<_>) = asks.into_iter().partition(Ask::is_driven);
        let inner = Arc::clone(&self.inner);
        let work_uid = uid.clone();
        let own = self
            .queues
            .run(VolumeAct::SetUp, &uid, self.inner.timeouts.set_up, move || inner.mount(&work_uid, own));
        let (own, driven) = tokio::join!(own, self.driven(pod, &uid, driven));
        let all: Vec<Outcome> = own?.into_iter().chain(driven).collect();
        self.census.have(&uid, &all);
        let all: Vec<Ready> = all.into_iter().collect::<Result<_, _>>()?;
        self.remember(&uid, &all);
        Ok(ready::mounted(all))
    }

    async fn sub_path(
        &self,
        pod: &Pod,
        container: &str,
        index: usize,
        volume: &str,
        sub_path: &str,
    ) -> Result<PathBuf, VolumeError> {
        let uid = uid_of(pod)?;
        let desired = match self.known_place(pod, &uid, volume) {
            Some(desired) => desired,
            None => self.desired_one(pod, &uid, volume).await?,
        };
        let want = sub_path::Wanted { container: container.to_owned(), index, sub_path: sub_path.to_owned() };
        let inner = Arc::clone(&self.inner);
        let work_uid = uid.clone();
        let work = move || inner.sub_path(&work_uid, &desired, &want);
        self.queues.run(VolumeAct::SubPath, &uid, self.inner.timeouts.set_up, work).await
    }

    async fn unmount(&self, uid: &PodUid) -> Result<(), VolumeError> {
        self.take_from_drivers(uid).await?;
        let inner = Arc::clone(&self.inner);
        let work_uid = uid.clone();
        let work = move || teardown::remove_volumes(&inner.tree, &inner.timeouts, work_uid.as_str());
        self.take_away(uid, work).await?;
        self.forget(uid);
        Ok(())
    }

    async fn remove(&self, uid: &PodUid) -> Result<(), VolumeError> {
        self.take_from_drivers(uid).await?;
        let inner = Arc::clone(&self.inner);
        let work_uid = uid.clone();
        let work = move || teardown::remove_pod(&inner.tree, &inner.timeouts, work_uid.as_str());
        self.take_away(uid, work).await?;
        self.forget(uid);
        Ok(())
    }

    async fn known(&self) -> Result<Vec<PodUid>, VolumeError> {
        let inner = Arc::clone(&self.inner);
        // Listing our own directory belongs to no Pod.
        let queue = PodUid::from("");
        let work = move || inner.tree.pods().map_err(|e| retry(VolumeAct::List, "pods", &e));
        self.queues.run(VolumeAct::List, &queue, self.inner.timeouts.set_up, work).await
    }
}

// === impl Inner ===

impl Inner {
    /// Makes ready what can be had, each volume by itself.
    fn mount(&self, uid: &PodUid, asks: Vec<Ask>) -> Result<Vec<Outcome>, VolumeError> {
        let pod = self.tree.pod(uid.as_str()).map_err(|e| retry(VolumeAct::SetUp, uid.as_str(), &e))?;
        teardown::forget_removed(&pod).map_err(|message| retry(VolumeAct::SetUp, uid.as_str(), &message))?;
        Ok(asks.into_iter().map(|ask| self.mount_one(&pod, uid, ask)).collect())
    }

    fn mount_one(&self, pod: &PodDir, uid: &PodUid, ask: Ask) -> Outcome {
        let is_known = ask.is_known();
        let (volume, error) = ask.split()?;
        let site = Site { pod, volume: &volume.name, fs_group: volume.fs_group };
        let kind = kind_of(&volume);
        let standing = || kind.standing(&site, is_known);
        let made = match error {
            Some(error) => Err(error),
            None => match volume.misplaced.as_ref().filter(|_| standing().is_none()) {
                Some(why) => Err(reject(VolumeAct::CheckNode, &volume.name, why.clone())),
                None => {
                    let once = (is_known && kind.is_set_up_once()).then(standing).flatten();
                    once.map_or_else(|| self.set_up_for(uid, &site, &*kind), Ok)
                }
            },
        };
        Ready::of(volume.clone(), made, standing)
    }

    /// Sets it up unless it is another Pod's.
    fn set_up_for(
        &self,
        uid: &PodUid,
        site: &Site<'_>,
        kind: &dyn VolumeKind,
    ) -> Result<MountedVolume, VolumeError> {
        let tools = Tools { stamp: &|| self.stamp(), program: self.timeouts.program };
        let set_up = || kind.set_up(site, &tools).map_err(|e| retry(VolumeAct::SetUp, site.volume, &e));
        let Some(Exclusive { name, act }) = kind.exclusive() else { return set_up() };
        let is_elsewhere = kind.is_elsewhere(site).map_err(|e| retry(VolumeAct::SetUp, name, &e))?;
        if is_elsewhere || !self.holders.take(name, uid) {
            return Err(retry(act, name, &core::IN_USE));
        }
        let made = set_up();
        if made.is_err() {
            self.holders.give_back(name, uid);
        }
        made
    }

    fn sub_path(
        &self,
        uid: &PodUid,
        volume: &Desired,
        want: &sub_path::Wanted,
    ) -> Result<PathBuf, VolumeError> {
        let pod = self.tree.pod(uid.as_str()).map_err(|e| retry(VolumeAct::SubPath, &volume.name, &e))?;
        let (kind, name) = (kind_of(volume), volume.name.as_str());
        let of = kind.server().unwrap_or(name);
        waiting_for(Some(name), format!("look for subPath {:?} of {of}", want.sub_path));
        let site = Site { pod: &pod, volume: name, fs_group: None };
        let root = kind.open(&site).map_err(|why| match why {
            NoRoot::Failed(error) => retry(VolumeAct::SubPath, name, &error),
            NoRoot::Never(why) => reject(VolumeAct::SubPath, name, why.to_owned()),
        })?;
        sub_path::prepare(&pod, &root, &volume.name, want)
    }

    /// The name of a new directory of files: upstream's shape, `..2006_01_02_15_04_05.0123456789`.
    fn stamp(&self) -> String {
        let wall = self.clock.now().wall;
        let random = match self.rng.lock() {
            Ok(mut rng) => rng.below(10_000_000_000),
            Err(poisoned) => poisoned.into_inner().below(10_000_000_000),
        };
        let time = jiff::Timestamp::from_second(wall.secs()).unwrap_or_default();
        format!("..{}.{random:010}", time.strftime("%Y_%m_%d_%H_%M_%S"))
    }
}

/// Makes mounts below the kubelet's root propagate to containers that ask for it, and back. Says
/// whether the root had to become a mount of its own, which the caller may undo at its end.
pub fn share_root(root: &Path) -> io::Result<bool> {
    sys::mount::make_shared(root)
}

/// The table of kinds: one line each.
fn kind_of(volume: &Desired) -> Box<dyn VolumeKind + '_> {
    let read_only = volume.read_only;
    match &volume.source {
        Source::EmptyDir(medium) => Box::new(EmptyDir { medium, read_only }),
        Source::HostPath { path, kind } => {
            Box::new(HostPath { path: Path::new(path), kind: *kind, read_only })
        }
        Source::Files { kind, payload, size, nested } => {
            Box::new(Files { kind: *kind, payload, nested, size: *size, read_only })
        }
        Source::Nfs { share, options } => Box::new(Nfs { share, options, read_only }),
        Source::Local { path, spec_name, fs_type, options, exclusive } => Box::new(Local {
            path: Path::new(path),
            spec_name,
            manner: device::Manner { fs_type, options, read_only },
            exclusive: *exclusive,
        }),
        Source::Device { path, spec_name, exclusive } => {
            Box::new(LocalDevice { path: Path::new(path), spec_name, exclusive: *exclusive, read_only })
        }
        Source::Csi(volume) => Box::new(Csi(volume)),
        Source::Image { reference } => Box::new(Image { reference }),
    }
}

fn uid_of(pod: &Pod) -> Result<PodUid, VolumeError> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    match site::is_file_name(uid) {
        true => Ok(PodUid::from(uid)),
        false => Err(reject(VolumeAct::SetUp, uid, format!("{uid:?} is no Pod UID"))),
    }
}

fn reject(act: VolumeAct, volume: &str, message: String) -> VolumeError {
    VolumeError { act, volume: volume.to_owned(), message, class: Class::Reject }
}

fn retry(act: VolumeAct, volume: &str, error: &dyn std::fmt::Display) -> VolumeError {
    VolumeError { act, volume: volume.to_owned(), message: error.to_string(), class: Class::Retry }
}

#[cfg(test)]
mod tests;
