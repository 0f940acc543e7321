//! Staged volumes that nobody uses any more are unstaged, and the node no longer says that it uses them.
//!
//! It works from the disk, so it also finds what a crash left between staging and publishing.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use csi::v1::NodeUnstageVolumeRequest;
use futures_util::future::join_all;
use kubelet_core::volumes::csi::needs_attach;
use tokio_util::sync::CancellationToken;

use super::block::Places;
use super::books::{Entry, Kept};
use super::{CsiVolumes, act, books, lane, named};
use crate::ports::VolumeError;

const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(120);
/// The long look, in case a hint was lost.
const SLOW: Duration = Duration::from_secs(600);

/// A staged volume.
#[derive(Clone, Debug)]
struct Staged {
    entry: Entry,
    /// As people call it.
    name: String,
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    /// The directory that holds `globalmount`.
    Mount(PathBuf),
    Device,
}

impl CsiVolumes {
    /// Sweeps whenever there may be something, until cancelled.
    pub(in crate::volumes) async fn sweep_until(self: Arc<Self>, token: CancellationToken) {
        let mut drivers = self.parts.drivers.subscribe();
        let mut pause = RETRY_MIN;
        loop {
            let left = self.sweep().await;
            let wait = if left { pause } else { SLOW };
            pause = if left { (pause * 2).min(RETRY_MAX) } else { RETRY_MIN };
            tokio::select! {
                () = token.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
                () = self.unused.notified() => {}
                Ok(()) = drivers.changed() => {}
            }
        }
    }

    /// One pass. True if something is left to be done.
    async fn sweep(self: &Arc<Self>) -> bool {
        let corrupt = self.corrupt_on_disk();
        for dir in &corrupt {
            let dir = dir.display();
            tracing::warn!(%dir, "nothing is unstaged while it is not known which volume a Pod has here");
        }
        let published = self.published_on_disk();
        let is_unused =
            |staged: &Staged| !self.is_wanted(&staged.entry) && !published.contains(&staged.entry);
        let unused = self.staged_on_disk().into_iter().filter(|s| corrupt.is_empty() && is_unused(s));
        let done = join_all(unused.map(|staged| self.unstage(staged))).await;
        let left: Vec<VolumeError> = done.into_iter().filter_map(Result::err).collect();
        left.iter().for_each(|error| tracing::warn!(%error, "volume not unstaged yet"));
        self.settle_in_use().await;
        !left.is_empty() || !corrupt.is_empty()
    }

    async fn unstage(self: &Arc<Self>, staged: Staged) -> Result<(), VolumeError> {
        let name = staged.entry.unique_name();
        let errand = lane::Errand { act: act::UNSTAGE, volume: staged.name.clone(), key: name.clone() };
        let is_device = matches!(staged.place, Place::Device);
        let operation = self.parts.measured.begin(if is_device { "unmap_device" } else { "unmount_device" });
        let (this, driver) = (self.clone(), staged.entry.driver.clone());
        let work = async move {
            let done = this.unstage_now(&staged, &name).await;
            done.map_err(|e| named(act::UNSTAGE, &staged.name, e))
        };
        let done = self.lanes.run(errand, lane::UNMOUNT_PATIENCE, Box::pin(work)).await;
        self.parts.measured.end(operation, &driver, done.is_ok());
        done
    }

    async fn unstage_now(&self, staged: &Staged, unique: &str) -> Result<(), String> {
        // Somebody may have come for it while we waited for our turn, or for the driver.
        let is_used = || {
            let is_published = || self.published_on_disk().contains(&staged.entry);
            self.is_wanted(&staged.entry) || !self.corrupt_on_disk().is_empty() || is_published()
        };
        if is_used() {
            return Ok(());
        }
        let session = self.session(&staged.entry.driver).await?;
        if is_used() {
            return Ok(());
        }
        self.lock().staged.remove(unique);
        type Close = Box<dyn Fn() -> std::io::Result<()> + Send + Sync>;
        let (path, is_staged, close): (PathBuf, bool, Close) = match &staged.place {
            // Nobody looks whether it is there: what is mounted there may hang whoever looks, or be dead.
            Place::Mount(dir) => {
                let (path, dir) = (dir.join(books::GLOBAL_MOUNT), dir.clone());
                (path, true, Box::new(move || books::close(&dir, books::GLOBAL_MOUNT)))
            }
            Place::Device => {
                let places = Places::new(&self.root, &staged.name);
                let path = places.staging.clone();
                let is_there = books::is_mounted(&path) || path.symlink_metadata().is_ok();
                (path, is_there, Box::new(move || places.close()))
            }
        };
        if session.offers.stage && is_staged {
            self.calls(&session, "NodeUnstageVolume");
            let request = NodeUnstageVolumeRequest {
                volume_id: staged.entry.handle.clone(),
                staging_target_path: path.to_string_lossy().into_owned(),
            };
            let call = session.driver.unstage(request);
            let done = self.parts.measured.call(&session.name, "NodeUnstageVolume", call).await;
            done.map_err(|e| e.to_string())?;
        }
        close().map_err(|e| format!("clean up {}: {e}", path.display()))
    }

    /// What the node says is in use: what a Pod wants or has, and what is still staged.
    async fn settle_in_use(&self) {
        let mut on_disk = BTreeSet::new();
        for entry in self.staged_on_disk().into_iter().map(|s| s.entry).chain(self.published_on_disk()) {
            // A driver that cannot be asked about may need its volumes attached.
            let object = self.parts.storage.driver(&entry.driver).await.ok().flatten();
            if !entry.ephemeral && needs_attach(object.as_deref()) {
                on_disk.insert(entry.unique_name());
            }
        }
        let mut state = self.lock();
        let wanted: BTreeSet<String> = state.wanted.keys().cloned().collect();
        let mut in_use: BTreeSet<String> =
            state.in_use.iter().filter(|n| wanted.contains(*n)).cloned().collect();
        in_use.extend(on_disk);
        state.in_use.clone_from(&in_use);
        self.parts.storage.report_in_use(in_use.into_iter().collect());
    }

    fn is_wanted(&self, entry: &Entry) -> bool {
        self.lock().wanted.contains_key(&entry.unique_name())
    }

    fn staged_on_disk(&self) -> Vec<Staged> {
        let root = books::staging(&self.root);
        let mut all = Vec::new();
        for (driver, dir) in books::names(&root) {
            if driver == books::DEVICES {
                let spec_names = books::names(&dir).into_iter().map(|(name, _)| name);
                let devices = spec_names.filter(|n| n != "staging" && n != "publish").filter_map(|name| {
                    let entry = books::read(&Places::new(&self.root, &name).data())?;
                    Some(Staged { entry, name, place: Place::Device })
                });
                all.extend(devices);
            } else {
                all.extend(books::list(&dir).into_iter().map(|Kept { dir, entry, .. }| Staged {
                    name: entry.handle.clone(),
                    entry,
                    place: Place::Mount(dir),
                }));
            }
        }
        all
    }

    /// Every volume that some Pod's directory tells of.
    fn published_on_disk(&self) -> Vec<Entry> {
        self.pods_on_disk().flat_map(|uid| self.entries_of(&uid)).collect()
    }

    /// Whether another Pod's directory tells of the volume.
    pub(super) fn has_another(&self, unique: &str, uid: &str) -> bool {
        let others = self.pods_on_disk().filter(|other| other != uid);
        others.flat_map(|other| self.entries_of(&other)).any(|entry| entry.unique_name() == unique)
    }

    fn entries_of(&self, uid: &str) -> impl Iterator<Item = Entry> + use<> {
        let mounts = books::list(&books::of_pod(&self.root, uid));
        mounts.into_iter().chain(self.devices_of(uid)).map(|kept| kept.entry)
    }

    /// The records of Pods' volumes that tell nothing: any staged volume may be theirs.
    fn corrupt_on_disk(&self) -> Vec<PathBuf> {
        self.pods_on_disk().flat_map(|uid| self.corrupt_of(&uid)).map(|corrupt| corrupt.dir).collect()
    }

    fn pods_on_disk(&self) -> impl Iterator<Item = String> + use<> {
        books::names(&self.root.join("pods")).into_iter().map(|(uid, _)| uid)
    }
}
