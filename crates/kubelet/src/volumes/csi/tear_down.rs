//! Taking a Pod's volumes away: the driver first, the books last.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use base::ids::PodUid;
use csi::v1::NodeUnpublishVolumeRequest;
use futures_util::future::join_all;
use kubelet_core::volumes::csi::PLUGIN;

use super::books::{Entry, Kept};
use super::disk::OfPod;
use super::{CsiVolumes, REGISTRATION, State, books, named, volume_queue};
use crate::ports::{VolumeAct, VolumeError};

impl CsiVolumes {
    /// Whether a Pod has, or wanted, anything of a driver. Most have not.
    pub(in crate::volumes) async fn knows(&self, uid: &PodUid) -> Result<bool, VolumeError> {
        if self.lock().wanted.values().any(|pods| pods.contains_key(uid)) {
            return Ok(true);
        }
        let of = uid.clone();
        let known = self.on_disk(move |disk| disk.knows(of.as_str())).await;
        known.map_err(|e| named(VolumeAct::Unmount, uid.as_str(), e.to_string()))
    }

    /// Unpublishes all volumes of a Pod that no longer runs. The first that resists is the error; it holds up no other.
    pub(in crate::volumes) async fn tear_down(self: &Arc<Self>, uid: &PodUid) -> Result<(), VolumeError> {
        self.wait_for_begun(uid).await?;
        let OfPod { mounts, devices } = self.volumes_of(uid).await?;
        let of_mounts = mounts.into_iter().map(|kept| self.take_away(uid, kept, false));
        let of_devices = devices.into_iter().map(|kept| self.take_away(uid, kept, true));
        let mut done = join_all(of_mounts).await;
        done.extend(join_all(of_devices).await);
        done.into_iter().collect::<Result<Vec<()>, _>>()?;
        self.deps.figures.forget(uid);
        self.forget(uid);
        self.unused.notify_one();
        Ok(())
    }

    fn forget(&self, uid: &PodUid) {
        let mut state = self.lock();
        state.published.retain(|(of, _), _| of != uid);
        state.leaving.remove(uid);
        state.wanted.retain(|_, pods| {
            pods.remove(uid);
            !pods.is_empty()
        });
        let State { here, wanted, .. } = &mut *state;
        here.retain(|name, _| wanted.contains_key(name));
    }

    /// A set-up may be under way whose books are not written yet. It ends, or is named, before anything is looked for.
    async fn wait_for_begun(&self, uid: &PodUid) -> Result<(), VolumeError> {
        let begun: Vec<(String, String)> = {
            let mut state = self.lock();
            state.leaving.insert(uid.clone());
            let all = state.wanted.iter();
            all.filter_map(|(key, pods)| Some((key.clone(), pods.get(uid)?.clone()))).collect()
        };
        let pass = |(key, volume)| {
            let queued = volume_queue::VolumeOperation { act: VolumeAct::Unmount, volume, key };
            self.queues.run(queued, volume_queue::UNMOUNT_TIMEOUT, async { Ok(()) })
        };
        let passed = join_all(begun.into_iter().map(pass)).await;
        passed.into_iter().collect()
    }

    async fn volumes_of(&self, uid: &PodUid) -> Result<OfPod, VolumeError> {
        let known: BTreeMap<_, _> = {
            let state = self.lock();
            let all = state.published.values();
            all.map(|p| (p.path.clone(), (p.driver.clone(), p.handle.clone()))).collect()
        };
        let of = uid.clone();
        let found = self.on_disk(move |disk| disk.of_pod(&of, &known)).await;
        found.map_err(|e| named(VolumeAct::Unmount, uid.as_str(), e.to_string()))?
    }

    async fn take_away(self: &Arc<Self>, uid: &PodUid, kept: Kept, block: bool) -> Result<(), VolumeError> {
        let act = if block { VolumeAct::Unmap } else { VolumeAct::Unmount };
        let queued =
            volume_queue::VolumeOperation { act, volume: kept.name.clone(), key: kept.entry.unique_name() };
        let operation = self.deps.measured.begin(if block { "unmap_volume" } else { "volume_unmount" });
        let (this, uid, driver) = (self.clone(), uid.clone(), kept.entry.driver.clone());
        let work = async move {
            let done = match block {
                true => this.unmap(&uid, &kept).await,
                false => this.unmount(&uid, &kept).await,
            };
            done.map_err(|e| named(act, &kept.name, e))
        };
        let done = self.queues.run(queued, volume_queue::UNMOUNT_TIMEOUT, Box::pin(work)).await;
        self.deps.measured.end(operation, &driver, done.is_ok());
        done
    }

    async fn unmount(&self, uid: &PodUid, kept: &Kept) -> Result<(), String> {
        let failed = |e: String| format!("{PLUGIN}: Unmounter.TearDownAt failed: {e}");
        self.unpublish(&kept.entry, &kept.dir.join(books::MOUNT)).await.map_err(failed)?;
        let (uid, kept) = (uid.clone(), kept.clone());
        let closed = self.try_on_disk(move |disk| disk.close_mount(uid.as_str(), &kept)).await;
        closed.map_err(|e| format!("{PLUGIN}: Unmounter.TearDownAt {e}"))
    }

    async fn unmap(&self, uid: &PodUid, kept: &Kept) -> Result<(), String> {
        let failed = |e: String| format!("{PLUGIN}: blockMapper.unpublishVolumeForBlock failed: {e}");
        self.unpublish(&kept.entry, &self.disk.device(uid.as_str(), &kept.name)).await.map_err(failed)?;
        let (uid, name) = (uid.clone(), kept.name.clone());
        let closed = self.try_on_disk(move |disk| disk.close_device(uid.as_str(), &name)).await;
        closed.map_err(|e| e.to_string())
    }

    async fn unpublish(&self, entry: &Entry, target: &Path) -> Result<(), String> {
        let name = &entry.driver;
        self.waits_for(format!("CSI driver {name} to register"));
        let driver = self.deps.drivers.wait_for(name, REGISTRATION).await?;
        self.waits_for(format!("CSI driver {name} to answer NodeUnpublishVolume"));
        let request = NodeUnpublishVolumeRequest {
            volume_id: entry.handle.clone(),
            target_path: target.to_string_lossy().into_owned(),
        };
        let call = driver.unpublish(request);
        let done = self.deps.measured.call(name, "NodeUnpublishVolume", call).await;
        done.map_err(|e| e.to_string())
    }
}
