//! Taking a Pod's volumes away: the driver first, the books last.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::ids::PodUid;
use csi::v1::NodeUnpublishVolumeRequest;
use futures_util::future::join_all;
use kubelet_core::volumes::csi::{PLUGIN, key};

use super::block::Places;
use super::books::{Entry, Kept};
use super::{CsiVolumes, REGISTRATION, State, books, named, volume_queue};
use crate::ports::{VolumeAct, VolumeError};

/// A volume of a Pod whose record tells nothing.
pub(super) struct Corrupt {
    /// The directory's name.
    name: String,
    /// Where the record is.
    pub(super) dir: PathBuf,
    /// Where the volume is.
    target: PathBuf,
}

impl CsiVolumes {
    /// Whether a Pod has, or wanted, anything of a driver. Most have not.
    pub(in crate::volumes) fn knows(&self, uid: &PodUid) -> bool {
        let dirs = [books::of_pod(&self.root, uid.as_str()), books::devices_of_pod(&self.root, uid.as_str())];
        dirs.iter().any(|dir| dir.exists()) || self.lock().wanted.values().any(|pods| pods.contains_key(uid))
    }

    /// Unpublishes all volumes of a Pod that no longer runs. The first that resists is the error; it holds up no other.
    pub(in crate::volumes) async fn tear_down(self: &Arc<Self>, uid: &PodUid) -> Result<(), VolumeError> {
        self.wait_for_begun(uid).await?;
        self.check_records(uid)?;
        let mounts = books::list(&books::of_pod(&self.root, uid.as_str()));
        let devices = self.devices_of(uid.as_str());
        let of_mounts = mounts.into_iter().map(|kept| self.take_away(uid, kept, false));
        let of_devices = devices.into_iter().map(|kept| self.take_away(uid, kept, true));
        let mut done = join_all(of_mounts).await;
        done.extend(join_all(of_devices).await);
        done.into_iter().collect::<Result<Vec<()>, _>>()?;
        self.parts.figures.forget(uid);
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
            let errand = volume_queue::Errand { act: VolumeAct::Unmount, volume, key };
            self.queues.run(errand, volume_queue::UNMOUNT_PATIENCE, async { Ok(()) })
        };
        let passed = join_all(begun.into_iter().map(pass)).await;
        passed.into_iter().collect()
    }

    /// A mount whose record is corrupt belongs to a driver that nobody can name, so nobody can ask it.
    fn check_records(&self, uid: &PodUid) -> Result<(), VolumeError> {
        for Corrupt { name, dir, target } in self.corrupt_of(uid.as_str()) {
            let published = self.lock().published.values().find(|p| p.path == target).cloned();
            if let Some(known) = published {
                let data = [(key::DRIVER, known.driver), (key::HANDLE, known.handle)];
                let data = data.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
                books::write(&dir, &data).map_err(|e| named(VolumeAct::Unmount, &name, e.to_string()))?;
            } else if books::is_mounted(&target) {
                let (dir, target) = (dir.display(), target.display());
                let why = format!(
                    "its record in {dir} is corrupt, so its driver cannot be asked: unmount {target} by hand"
                );
                return Err(named(VolumeAct::Unmount, &name, why));
            } else {
                self.drop_mark(uid.as_str(), &name)
                    .map_err(|e| named(VolumeAct::Unmount, &name, e.to_string()))?;
            }
        }
        Ok(())
    }

    /// What the Pod has although its record tells nothing.
    pub(super) fn corrupt_of(&self, uid: &str) -> Vec<Corrupt> {
        let mounts = books::names(&books::of_pod(&self.root, uid)).into_iter().map(|(name, dir)| Corrupt {
            target: dir.join(books::MOUNT),
            name,
            dir,
        });
        let devices = self.links_of(uid).into_iter().map(|name| {
            let places = Places::new(&self.root, &name);
            Corrupt { dir: places.data(), target: places.publish_dir.join(uid), name }
        });
        mounts.chain(devices).filter(|c| books::is_corrupt(&c.dir)).collect()
    }

    async fn take_away(self: &Arc<Self>, uid: &PodUid, kept: Kept, block: bool) -> Result<(), VolumeError> {
        let act = if block { VolumeAct::Unmap } else { VolumeAct::Unmount };
        let errand = volume_queue::Errand { act, volume: kept.name.clone(), key: kept.entry.unique_name() };
        let operation = self.parts.measured.begin(if block { "unmap_volume" } else { "volume_unmount" });
        let (this, uid, driver) = (self.clone(), uid.clone(), kept.entry.driver.clone());
        let work = async move {
            let done = match block {
                true => this.unmap(uid.as_str(), &kept).await,
                false => this.unmount(uid.as_str(), &kept).await,
            };
            done.map_err(|e| named(act, &kept.name, e))
        };
        let done = self.queues.run(errand, volume_queue::UNMOUNT_PATIENCE, Box::pin(work)).await;
        self.parts.measured.end(operation, &driver, done.is_ok());
        done
    }

    async fn unmount(&self, uid: &str, kept: &Kept) -> Result<(), String> {
        let target = kept.dir.join(books::MOUNT);
        self.unpublish(&kept.entry, &target)
            .await
            .map_err(|e| format!("{PLUGIN}: Unmounter.TearDownAt failed: {e}"))?;
        self.drop_mark(uid, &kept.name).map_err(|e| e.to_string())?;
        books::close(&kept.dir, books::MOUNT).map_err(|e| {
            format!("{PLUGIN}: Unmounter.TearDownAt failed to clean mount dir [{}]: {e}", target.display())
        })
    }

    async fn unmap(&self, uid: &str, kept: &Kept) -> Result<(), String> {
        let places = Places::new(&self.root, &kept.name);
        let device = places.publish_dir.join(uid);
        self.unpublish(&kept.entry, &device)
            .await
            .map_err(|e| format!("{PLUGIN}: blockMapper.unpublishVolumeForBlock failed: {e}"))?;
        if books::is_mounted(&device) {
            return Err(format!("{} is still mounted", device.display()));
        }
        let link = books::devices_of_pod(&self.root, uid).join(&kept.name);
        let all = [books::remove_empty(&device), self.drop_mark(uid, &kept.name), books::remove_empty(&link)];
        all.into_iter().collect::<Result<Vec<()>, _>>().map(drop).map_err(|e| e.to_string())
    }

    async fn unpublish(&self, entry: &Entry, target: &Path) -> Result<(), String> {
        let name = &entry.driver;
        self.waits_for(format!("CSI driver {name} to register"));
        let driver = self.parts.drivers.wait_for(name, REGISTRATION).await?;
        self.waits_for(format!("CSI driver {name} to answer NodeUnpublishVolume"));
        let request = NodeUnpublishVolumeRequest {
            volume_id: entry.handle.clone(),
            target_path: target.to_string_lossy().into_owned(),
        };
        let call = driver.unpublish(request);
        let done = self.parts.measured.call(name, "NodeUnpublishVolume", call).await;
        done.map_err(|e| e.to_string())
    }

    /// The devices of a Pod, by the links that lead to them.
    pub(super) fn devices_of(&self, uid: &str) -> Vec<Kept> {
        let kept = |name: String| {
            let data: PathBuf = Places::new(&self.root, &name).data();
            Some(Kept { entry: books::read(&data)?, name, dir: data })
        };
        self.links_of(uid).into_iter().filter_map(kept).collect()
    }

    fn links_of(&self, uid: &str) -> Vec<String> {
        let dir = books::devices_of_pod(&self.root, uid);
        let names = std::fs::read_dir(dir).into_iter().flatten().flatten();
        names.filter_map(|e| e.file_name().into_string().ok()).collect()
    }
}
