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
use super::{CsiVolumes, books, named, volume_queue};
use crate::ports::{VolumeAct, VolumeError};

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
        // Before anything is waited for.
        self.settle_in_use().await;
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
        let errand =
            volume_queue::Errand { act: VolumeAct::Unstage, volume: staged.name.clone(), key: name.clone() };
        let is_device = matches!(staged.place, Place::Device);
        let operation = self.parts.measured.begin(if is_device { "unmap_device" } else { "unmount_device" });
        let (this, driver) = (self.clone(), staged.entry.driver.clone());
        let work = async move {
            let done = this.unstage_now(&staged, &name).await;
            done.map_err(|e| named(VolumeAct::Unstage, &staged.name, e))
        };
        let done = self.queues.run(errand, volume_queue::UNMOUNT_PATIENCE, Box::pin(work)).await;
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
        state.settled = true;
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::sync::Mutex;

    use async_trait::async_trait;
    use base::ids::PodUid;
    use k8s_openapi::api::core::v1::Pod;
    use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
    use kubelet_core::references::TokenWant;
    use kubelet_core::volumes::csi::{ClaimRef, SecretRef, key};
    use kubelet_core::volumes::expand::News;

    use super::*;
    use crate::events::Recorder;
    use crate::ports::{NoStorage, Storage};
    use crate::testing::clock;
    use crate::volumes::CsiParts;
    use crate::volumes::drivers::Measured;
    use crate::volumes::drivers::registration::Registrar;

    /// What the node said is in use, word for word.
    #[derive(Default)]
    struct Told(Mutex<Vec<Vec<String>>>);

    #[async_trait]
    impl Storage for Told {
        async fn driver(&self, name: &str) -> Result<Option<Arc<CSIDriver>>, String> {
            NoStorage.driver(name).await
        }

        async fn wait_attached(&self, volume: &str) -> Result<(), String> {
            NoStorage.wait_attached(volume).await
        }

        async fn attachment(&self, name: &str) -> Result<VolumeAttachment, String> {
            NoStorage.attachment(name).await
        }

        async fn secret(&self, reference: &SecretRef) -> Result<BTreeMap<String, String>, String> {
            NoStorage.secret(reference).await
        }

        async fn tokens(&self, pod: &Pod, wants: &[TokenWant]) -> Result<String, String> {
            NoStorage.tokens(pod, wants).await
        }

        async fn tell_claim(&self, claim: &ClaimRef, news: &News) -> Result<(), String> {
            NoStorage.tell_claim(claim, news).await
        }

        fn report_in_use(&self, volumes: Vec<String>) {
            self.0.lock().unwrap().push(volumes);
        }

        fn node_name(&self) -> &str {
            "n"
        }
    }

    fn volumes(root: &Path, told: &Arc<Told>) -> Arc<CsiVolumes> {
        let clock = clock();
        let measured = Measured { metrics: Arc::default(), clock: clock.clone() };
        let drivers = Arc::default();
        let parts = CsiParts {
            registrar: Registrar {
                drivers: Arc::clone(&drivers),
                csi_node: None,
                measured: measured.clone(),
            },
            drivers,
            storage: told.clone(),
            measured,
            recorder: Recorder::new(clock),
            figures: Arc::default(),
        };
        Arc::new(CsiVolumes::new(root.to_owned(), parts))
    }

    #[tokio::test(start_paused = true)]
    async fn what_an_earlier_life_left_is_in_use_from_the_first_word_on() {
        let root = tempfile::tempdir().unwrap();
        let data = [(key::DRIVER, "d"), (key::HANDLE, "left")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        books::write(&books::staging(root.path()).join("d/x"), &data.into()).unwrap();
        let told = Arc::new(Told::default());
        let volumes = volumes(root.path(), &told);
        let use_one = |name: &str| {
            volumes.want(name, &PodUid::from("u"), "pv");
            volumes.hold(name);
        };
        use_one("new");
        assert!(told.0.lock().unwrap().is_empty(), "who does not know yet what it has says nothing");
        // The driver of what is left is not there, so that has to wait.
        let sweeping = tokio::spawn({
            let volumes = volumes.clone();
            async move { volumes.sweep().await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        use_one("newer");
        assert!(!sweeping.is_finished());
        let left = "kubernetes.io/csi/d^left";
        assert_eq!(*told.0.lock().unwrap(), [vec![left, "new"], vec![left, "new", "newer"]]);
        assert!(sweeping.await.unwrap());
    }
}
