//! Volumes on this node: the adapter behind [`ports::Volumes`].
//!
//! What to provide is decided in [`kubelet_core::volumes`]; here each kind is a file and a line in
//! [`set_up`]. Nothing is remembered: what exists is read from the disk and the mount table each
//! time, so a restarted agent knows as much as one that never stopped. Every path a Pod can reach is
//! walked by descriptor (docs/decisions/005.md), and every operation runs in its Pod's own [`lane`].

mod atomic_writer;
mod csi;
mod empty_dir;
mod figures;
mod files;
mod fs_group;
mod host_path;
mod lane;
mod local;
mod memory_dir;
mod nfs;
mod site;
mod sub_path;
mod teardown;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
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
use kubelet_core::supplies::Wants;
use kubelet_core::volumes::{self as core, Desired, Source};
use tokio_util::sync::CancellationToken;

use crate::ports::{self, MountedVolume, MountedVolumes, NoObjects, Objects, VolumeError};
pub use csi::CsiParts;
use csi::CsiVolumes;
pub use figures::{Amount, Figures, VolumeFigures};
use lane::Lanes;
use site::{Site, Tree};

/// Volumes below the kubelet's root directory.
pub struct NodeVolumes {
    inner: Arc<Inner>,
    lanes: Lanes,
    objects: Arc<dyn Objects>,
    /// None where nothing speaks to drivers.
    csi: Option<Arc<CsiVolumes>>,
}

struct Inner {
    tree: Tree,
    allocatable: ArcSwap<Allocatable>,
    clock: Arc<dyn Clock>,
    rng: Mutex<Rng>,
}

/// An operation that has not answered by then is reported; the Pod alone waits for it.
pub const DEADLINE: Duration = Duration::from_secs(120);

// === impl NodeVolumes ===

impl NodeVolumes {
    /// Opens `<root>/pods`, making it (0750) when missing.
    pub fn open(root: &Path, allocatable: Allocatable, clock: Arc<dyn Clock>, rng: Rng) -> io::Result<Self> {
        let inner = Inner {
            tree: Tree::open(root)?,
            allocatable: ArcSwap::from_pointee(allocatable),
            clock,
            rng: Mutex::new(rng),
        };
        Ok(Self {
            inner: Arc::new(inner),
            lanes: Lanes::new(DEADLINE),
            objects: Arc::new(NoObjects),
            csi: None,
        })
    }

    /// Where the content of ConfigMaps, Secrets and tokens comes from; nowhere by default.
    #[must_use]
    pub fn with_objects(mut self, objects: Arc<dyn Objects>) -> Self {
        self.objects = objects;
        self
    }

    /// Volumes that drivers mount.
    #[must_use]
    pub fn with_csi(mut self, parts: CsiParts) -> Self {
        let root = self.inner.tree.path.parent().unwrap_or(&self.inner.tree.path).to_owned();
        self.csi = Some(Arc::new(CsiVolumes::new(root, parts)));
        self
    }

    /// Takes care of volumes that drivers staged for Pods that are gone, until cancelled.
    pub fn sweep(&self, token: CancellationToken) -> impl Future<Output = ()> + Send + 'static {
        let csi = self.csi.clone();
        async move {
            match csi {
                Some(csi) => csi.sweep_until(token).await,
                None => token.cancelled().await,
            }
        }
    }

    /// Asks drivers from time to time how many volumes they can have, until cancelled.
    pub fn refresh(&self, token: CancellationToken) -> impl Future<Output = ()> + Send + 'static {
        let csi = self.csi.clone();
        async move {
            match csi {
                Some(csi) => csi.refresh_until(token).await,
                None => token.cancelled().await,
            }
        }
    }

    /// Measures what drivers tell of their volumes, until cancelled.
    pub fn measure(
        &self,
        every: Duration,
        token: CancellationToken,
    ) -> impl Future<Output = ()> + Send + 'static {
        let csi = self.csi.clone().filter(|_| !every.is_zero());
        async move {
            match csi {
                Some(csi) => csi.measure_until(every, token).await,
                None => token.cancelled().await,
            }
        }
    }

    /// What the drivers make of their volumes, each by itself: one that hangs holds up no other.
    async fn driven(
        &self,
        pod: &Pod,
        uid: &PodUid,
        volumes: Vec<Desired>,
    ) -> Vec<Result<(String, MountedVolume), VolumeError>> {
        if volumes.is_empty() {
            return Vec::new();
        }
        let pod = Arc::new(pod.clone());
        let one = async |volume: Desired| {
            let Desired { name, source, fs_group, .. } = volume;
            let (Source::Csi(source), Some(csi)) = (source, &self.csi) else {
                return Err(reject(SET_UP, &name, "this node speaks to no CSI drivers".into()));
            };
            csi.set_up(&pod, uid, &name, &source, fs_group).await.map(|place| (name, place))
        };
        join_all(volumes.into_iter().map(one)).await
    }

    /// What drivers published for the Pod goes before anything is unmounted from under them.
    async fn take_from_drivers(&self, uid: &PodUid) -> Result<(), VolumeError> {
        let Some(csi) = self.csi.as_ref().filter(|csi| csi.knows(uid)) else { return Ok(()) };
        let (inner, work_uid) = (Arc::clone(&self.inner), uid.clone());
        let work = move || teardown::unmount_sub_paths(&inner.tree, work_uid.as_str());
        self.lanes.run(teardown::ACT, uid, work).await?;
        csi.tear_down(uid).await
    }

    /// Another deadline than [`DEADLINE`].
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.lanes = Lanes::new(deadline);
        self
    }

    /// Each volume of the Pod, or why it cannot be had.
    async fn desired(&self, pod: &Pod) -> Vec<Result<Desired, VolumeError>> {
        let supplies = self.objects.supply(pod, &Wants::of_volumes(pod)).await;
        let all = core::desired(pod, &self.inner.allocatable.load(), &supplies).into_iter();
        all.map(|d| d.map_err(|e| reject(SET_UP, &e.volume, e.message))).collect()
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
    async fn mount(&self, pod: &Pod) -> Result<MountedVolumes, VolumeError> {
        let uid = uid_of(pod)?;
        let desired = self.desired(pod).await;
        let is_driven =
            |d: &Result<Desired, VolumeError>| matches!(d, Ok(Desired { source: Source::Csi(_), .. }));
        let (driven, own): (Vec<_>, Vec<_>) = desired.into_iter().partition(is_driven);
        let driven = driven.into_iter().flatten().collect();
        let inner = Arc::clone(&self.inner);
        let work_uid = uid.clone();
        let own = self.lanes.run(SET_UP, &uid, move || inner.mount(&work_uid, own));
        let (own, driven) = tokio::join!(own, self.driven(pod, &uid, driven));
        let mut mounted = own?;
        mounted.extend(driven.into_iter().collect::<Result<Vec<_>, _>>()?);
        Ok(mounted)
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
        let is_it = |d: &Result<Desired, VolumeError>| match d {
            Ok(d) => d.name == volume,
            Err(e) => e.volume == volume,
        };
        let desired = self.desired(pod).await.into_iter().find(is_it);
        let desired =
            desired.ok_or_else(|| reject(SUB_PATH, volume, "the Pod has no such volume".into()))??;
        let want = sub_path::Wanted { container: container.to_owned(), index, sub_path: sub_path.to_owned() };
        let inner = Arc::clone(&self.inner);
        let work_uid = uid.clone();
        self.lanes.run(SUB_PATH, &uid, move || inner.sub_path(&work_uid, &desired, &want)).await
    }

    async fn unmount(&self, uid: &PodUid) -> Result<(), VolumeError> {
        self.take_from_drivers(uid).await?;
        let inner = Arc::clone(&self.inner);
        let work_uid = uid.clone();
        let work = move || teardown::remove_volumes(&inner.tree, work_uid.as_str());
        self.lanes.run(teardown::ACT, uid, work).await
    }

    async fn remove(&self, uid: &PodUid) -> Result<(), VolumeError> {
        self.take_from_drivers(uid).await?;
        let inner = Arc::clone(&self.inner);
        let work_uid = uid.clone();
        self.lanes.run(teardown::ACT, uid, move || teardown::remove_pod(&inner.tree, work_uid.as_str())).await
    }

    async fn known(&self) -> Result<Vec<PodUid>, VolumeError> {
        let inner = Arc::clone(&self.inner);
        // Listing our own directory belongs to no Pod.
        let lane = PodUid::from("");
        let work = move || inner.tree.pods().map_err(|e| retry("list", "pods", &e));
        self.lanes.run("list", &lane, work).await
    }
}

// === impl Inner ===

impl Inner {
    /// Makes ready what can be had; the first volume that cannot is the error.
    fn mount(
        &self,
        uid: &PodUid,
        desired: Vec<Result<Desired, VolumeError>>,
    ) -> Result<MountedVolumes, VolumeError> {
        let pod = self.tree.pod(uid.as_str()).map_err(|e| retry(SET_UP, uid.as_str(), &e))?;
        teardown::forget_removed(&pod).map_err(|message| retry(SET_UP, uid.as_str(), &message))?;
        let mut mounted = MountedVolumes::new();
        let mut refused = None;
        for volume in desired {
            let place = volume.and_then(|volume| {
                let site = Site { pod: &pod, volume: &volume.name, fs_group: volume.fs_group };
                let place = self.set_up(&site, &volume).map_err(|e| retry(SET_UP, &volume.name, &e))?;
                Ok((volume.name, place))
            });
            match place {
                Ok((name, place)) => _ = mounted.insert(name, place),
                Err(error) => _ = refused.get_or_insert(error),
            }
        }
        refused.map_or(Ok(mounted), Err)
    }

    /// One line per kind.
    fn set_up(&self, site: &Site<'_>, volume: &Desired) -> io::Result<MountedVolume> {
        let path = match &volume.source {
            Source::EmptyDir(medium) => empty_dir::set_up(site, medium)?,
            Source::HostPath { path, kind } => host_path::set_up(Path::new(path), *kind)?,
            Source::Files { kind, payload, size } => {
                files::set_up(site, *kind, payload, *size, &mut || self.stamp())?
            }
            Source::Nfs { share, options } => nfs::set_up(site, share, options)?,
            Source::Local { path, spec_name } => {
                let site = Site { volume: spec_name, ..*site };
                local::set_up(&site, Path::new(path), volume.read_only)?
            }
            Source::Device { path, .. } => {
                let path = local::device(Path::new(path))?;
                return Ok(MountedVolume::Device { path, read_only: volume.read_only });
            }
            Source::Csi(_) => return Err(io::Error::other("a driver mounts this volume")),
            Source::Image { reference } => {
                return Ok(MountedVolume::Image { reference: reference.clone() });
            }
        };
        Ok(MountedVolume::Host { path, read_only: volume.read_only })
    }

    fn sub_path(
        &self,
        uid: &PodUid,
        volume: &Desired,
        want: &sub_path::Wanted,
    ) -> Result<PathBuf, VolumeError> {
        let pod = self.tree.pod(uid.as_str()).map_err(|e| retry(SUB_PATH, &volume.name, &e))?;
        let root = match &volume.source {
            Source::EmptyDir(_) => pod.open_volume(empty_dir::PLUGIN, &volume.name),
            Source::Files { kind, .. } => pod.open_volume(files::plugin(*kind), &volume.name),
            Source::HostPath { path, .. } => host_path::open(Path::new(path)),
            Source::Nfs { .. } => pod.open_volume(nfs::PLUGIN, &volume.name),
            Source::Local { spec_name, .. } => pod.open_volume(local::PLUGIN, spec_name),
            Source::Csi(volume) => {
                pod.open_volume(core::csi::PLUGIN_DIR, &format!("{}/mount", volume.spec_name))
            }
            Source::Device { .. } => {
                let message = "a device has no subPath".to_owned();
                return Err(reject(SUB_PATH, &volume.name, message));
            }
            Source::Image { .. } => {
                let message = "the runtime resolves the subPath of an image".to_owned();
                return Err(reject(SUB_PATH, &volume.name, message));
            }
        };
        let root = root.map_err(|e| retry(SUB_PATH, &volume.name, &e))?;
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

const SET_UP: &str = "set up";
const SUB_PATH: &str = "prepare subPath of";

fn uid_of(pod: &Pod) -> Result<PodUid, VolumeError> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    match site::is_file_name(uid) {
        true => Ok(PodUid::from(uid)),
        false => Err(reject(SET_UP, uid, format!("{uid:?} is no Pod UID"))),
    }
}

fn reject(act: &'static str, volume: &str, message: String) -> VolumeError {
    VolumeError { act, volume: volume.to_owned(), message, class: Class::Reject }
}

fn retry(act: &'static str, volume: &str, error: &dyn std::fmt::Display) -> VolumeError {
    VolumeError { act, volume: volume.to_owned(), message: error.to_string(), class: Class::Retry }
}

#[cfg(test)]
mod tests;
