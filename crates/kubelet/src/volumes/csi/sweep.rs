//! Staged volumes that nobody uses any more are unstaged, and the node no longer says that it uses them.
//!
//! It works from the disk, so it also finds what a crash left between staging and publishing.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use csi::v1::NodeUnstageVolumeRequest;
use futures_util::future::join_all;
use kubelet_core::volumes::csi::needs_attach;
use tokio_util::sync::CancellationToken;

use super::books::Entry;
use super::disk::{Disk, Place, Staged};
use super::{CsiVolumes, books, named, volume_queue};
use crate::ports::{VolumeAct, VolumeError};

const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(120);
/// The long look, in case a hint was lost.
const SLOW: Duration = Duration::from_secs(600);

impl CsiVolumes {
    /// Sweeps whenever there may be something, until cancelled.
    pub(in crate::volumes) async fn sweep_until(self: Arc<Self>, token: CancellationToken) {
        let mut drivers = self.deps.drivers.subscribe();
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
        let settled = self.settle_in_use().await;
        let found = self.on_disk(|disk| (disk.corrupt(), disk.published(), disk.staged())).await;
        let (Ok(()), Ok((corrupt, published, staged))) = (settled, found) else {
            tracing::warn!("the disk could not be searched for volumes that nobody uses");
            return true;
        };
        for dir in &corrupt {
            let dir = dir.display();
            tracing::warn!(%dir, "nothing is unstaged while it is not known which volume a Pod has here");
        }
        let is_unused =
            |staged: &Staged| !self.is_wanted(&staged.entry) && !published.contains(&staged.entry);
        let unused = staged.into_iter().filter(|s| corrupt.is_empty() && is_unused(s));
        let done = join_all(unused.map(|staged| self.unstage(staged))).await;
        let left: Vec<VolumeError> = done.into_iter().filter_map(Result::err).collect();
        left.iter().for_each(|error| tracing::warn!(%error, "volume not unstaged yet"));
        let settled = self.settle_in_use().await;
        !left.is_empty() || !corrupt.is_empty() || settled.is_err()
    }

    async fn unstage(self: &Arc<Self>, staged: Staged) -> Result<(), VolumeError> {
        let name = staged.entry.unique_name();
        let queued = volume_queue::VolumeOperation {
            act: VolumeAct::Unstage,
            volume: staged.name.clone(),
            key: name.clone(),
        };
        let is_device = matches!(staged.place, Place::Device);
        let operation = self.deps.measured.begin(if is_device { "unmap_device" } else { "unmount_device" });
        let (this, driver) = (self.clone(), staged.entry.driver.clone());
        let work = async move {
            let done = this.unstage_now(&staged, &name).await;
            done.map_err(|e| named(VolumeAct::Unstage, &staged.name, e))
        };
        let done = self.queues.run(queued, volume_queue::UNMOUNT_TIMEOUT, Box::pin(work)).await;
        self.deps.measured.end(operation, &driver, done.is_ok());
        done
    }

    async fn unstage_now(&self, staged: &Staged, unique: &str) -> Result<(), String> {
        // Somebody may have come for it while we waited for our turn, or for the driver.
        if self.is_used(&staged.entry).await? {
            return Ok(());
        }
        let session = self.session(&staged.entry.driver).await?;
        if self.is_used(&staged.entry).await? {
            return Ok(());
        }
        self.lock().staged.remove(unique);
        let (path, is_staged) = match &staged.place {
            // Nobody looks whether it is there: what is mounted there may hang whoever looks, or be dead.
            Place::Mount(dir) => (dir.join(books::GLOBAL_MOUNT), true),
            Place::Device => {
                let path = self.disk.device_places(&staged.name).staging;
                let at = path.clone();
                let look = move |_: &Disk| books::is_mounted(&at) || at.symlink_metadata().is_ok();
                (path, self.on_disk(look).await.map_err(|e| e.to_string())?)
            }
        };
        if session.offers.stage && is_staged {
            self.calls(&session, "NodeUnstageVolume");
            let request = NodeUnstageVolumeRequest {
                volume_id: staged.entry.handle.clone(),
                staging_target_path: path.to_string_lossy().into_owned(),
            };
            let call = session.driver.unstage(request);
            let done = self.deps.measured.call(&session.name, "NodeUnstageVolume", call).await;
            done.map_err(|e| e.to_string())?;
        }
        let staged = staged.clone();
        let closed = self.try_on_disk(move |disk| match &staged.place {
            Place::Mount(dir) => books::close(dir, books::GLOBAL_MOUNT),
            Place::Device => disk.device_places(&staged.name).close(),
        });
        closed.await.map_err(|e| format!("clean up {}: {e}", path.display()))
    }

    /// Whether a Pod wants or has the volume, or may have it.
    async fn is_used(&self, entry: &Entry) -> Result<bool, String> {
        if self.is_wanted(entry) {
            return Ok(true);
        }
        let of = entry.clone();
        let is_on_disk =
            self.on_disk(move |disk| !disk.corrupt().is_empty() || disk.published().contains(&of));
        // Once more: the look took its time.
        is_on_disk.await.map(|is_on_disk| is_on_disk || self.is_wanted(entry)).map_err(|e| e.to_string())
    }

    /// What the node says is in use: what a Pod wants or has, and what is still staged.
    async fn settle_in_use(&self) -> io::Result<()> {
        let mut on_disk = BTreeSet::new();
        let (staged, published) = self.on_disk(|disk| (disk.staged(), disk.published())).await?;
        for entry in staged.into_iter().map(|s| s.entry).chain(published) {
            // A driver that cannot be asked about may need its volumes attached.
            let object = self.deps.storage.driver(&entry.driver).await.ok().flatten();
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
        self.deps.storage.report_in_use(in_use.into_iter().collect());
        Ok(())
    }

    fn is_wanted(&self, entry: &Entry) -> bool {
        self.lock().wanted.contains_key(&entry.unique_name())
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
    use tokio::sync::Notify;

    use super::*;
    use crate::events::Recorder;
    use crate::ports::{NoStorage, Storage};
    use crate::testing::clock;
    use crate::volumes::CsiDeps;
    use crate::volumes::drivers::Measured;
    use crate::volumes::drivers::registration::Registrar;

    /// What the node said is in use, word for word.
    #[derive(Default)]
    struct Told(Mutex<Vec<Vec<String>>>, Notify);

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
            self.1.notify_one();
        }

        fn node_name(&self) -> &str {
            "n"
        }
    }

    fn volumes(root: &Path, told: &Arc<Told>) -> Arc<CsiVolumes> {
        let clock = clock();
        let measured = Measured { metrics: Arc::default(), clock: clock.clone() };
        let drivers = Arc::default();
        let parts = CsiDeps {
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
        Arc::new(CsiVolumes::new(root, parts))
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
        told.1.notified().await;
        use_one("newer");
        assert!(!sweeping.is_finished());
        let left = "kubernetes.io/csi/d^left";
        assert_eq!(*told.0.lock().unwrap(), [vec![left, "new"], vec![left, "new", "newer"]]);
        assert!(sweeping.await.unwrap());
    }
}
