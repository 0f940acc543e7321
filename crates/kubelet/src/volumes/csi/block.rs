//! Devices: the driver puts one at a path of ours, and containers get it from there.
//!
//! | place below `plugins/kubernetes.io/csi/volumeDevices` | holds |
//! |---|---|
//! | `staging/<name>` | whatever the driver needs for the node |
//! | `publish/<name>/<pod uid>` | the device, one per Pod |
//! | `<name>/data/vol_data.json` | whose it is |
//!
//! A link `pods/<uid>/volumeDevices/kubernetes.io~csi/<name>` leads to the device, which is how a Pod's devices are found.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use csi::v1::NodePublishVolumeRequest;
use k8s_openapi::api::storage::v1::CSIDriver;
use kubelet_core::volumes::csi::PLUGIN;

use super::mount::{Session, attributes, text};
use super::{CsiVolumes, Job, books, failed};
use crate::ports::{MountedVolume, VolumeAct, VolumeError};

/// The places of one device.
pub(super) struct Places {
    pub(super) staging: PathBuf,
    pub(super) publish_dir: PathBuf,
    pub(super) own: PathBuf,
}

// === impl Places ===

impl Places {
    pub(super) fn new(root: &Path, name: &str) -> Self {
        let all = books::staging(root).join(books::DEVICES);
        Self {
            staging: all.join("staging").join(name),
            publish_dir: all.join("publish").join(name),
            own: all.join(name),
        }
    }

    /// The directory of the books.
    pub(super) fn data(&self) -> PathBuf {
        self.own.join("data")
    }

    /// Nothing is left that a driver knows of: the directories go.
    pub(super) fn close(&self) -> io::Result<()> {
        for dir in [&self.staging, &self.publish_dir] {
            books::remove_empty(dir)?;
        }
        books::remove_empty(&self.own.join("dev"))?;
        books::forget(&self.data())?;
        books::remove_empty(&self.data())?;
        books::remove_empty(&self.own)
    }
}

impl CsiVolumes {
    /// Stages and publishes the device for a Pod.
    pub(super) async fn map(
        &self,
        job: &Job,
        object: Option<&CSIDriver>,
        attaches: bool,
    ) -> Result<MountedVolume, VolumeError> {
        let volume = &job.volume;
        let refuse = |e: String| failed(VolumeAct::StageDevice, volume, e);
        self.check_alone(job).await.map_err(refuse)?;
        let session = self.session(&volume.driver).await.map_err(|e| {
            refuse(format!("{PLUGIN}: blockMapper.SetUpDevice failed to get CSI client: {e}"))
        })?;
        let context = self.publish_context(volume, attaches).await.map_err(|e| {
            refuse(format!("{PLUGIN}: blockMapper.SetupDevice failed to get volume attachment: {e}"))
        })?;
        let places = self.disk.device_places(&volume.spec_name);
        let (at, data) = (places.data(), volume.data(self.deps.storage.node_name()));
        let recorded = self.try_on_disk(move |_| books::write(&at, &data)).await;
        recorded.map_err(|e| refuse(format!("{PLUGIN}: failed to save volume info data: {e}")))?;
        self.stage_device(&session, job, &places, &context).await.map_err(refuse)?;
        let refuse = |e: String| failed(VolumeAct::Map, volume, e);
        let device = self.publish_device(&session, job, object, &places, context).await.map_err(refuse)?;
        self.set_mark(job).await.map_err(|e| refuse(e.to_string()))?;
        self.expand(&session, job, &device).await;
        let mapped = self.standing(&job.uid, volume).await?;
        mapped.ok_or_else(|| refuse(format!("{} is no block device", device.display())))
    }

    async fn stage_device(
        &self,
        session: &Session,
        job: &Job,
        places: &Places,
        context: &BTreeMap<String, String>,
    ) -> Result<(), String> {
        let volume = &job.volume;
        if !session.offers.stage || self.lock().staged.contains(&volume.unique_name()) {
            return Ok(());
        }
        let secrets = self.secrets(volume.stage_secret.as_ref(), "NodeStageSecretRef").await?;
        let at = places.staging.clone();
        self.try_on_disk(move |_| books::make_mount_point(&at)).await.map_err(|e| {
            format!(
                "{PLUGIN}: blockMapper.stageVolumeForBlock failed to create dir {}: {e}",
                places.staging.display()
            )
        })?;
        let done = self.ask_to_stage(session, job, &places.staging, context, secrets).await;
        done.map_err(|e| e.to_string())?;
        self.lock().staged.insert(volume.unique_name());
        Ok(())
    }

    async fn publish_device(
        &self,
        session: &Session,
        job: &Job,
        object: Option<&CSIDriver>,
        places: &Places,
        context: BTreeMap<String, String>,
    ) -> Result<PathBuf, String> {
        let volume = &job.volume;
        self.check_wanted(job)?;
        let secrets = self.secrets(volume.publish_secret.as_ref(), "NodePublishSecretRef").await?;
        let device = self.disk.device(job.uid.as_str(), &volume.spec_name);
        let (dir, uid, name) = (places.publish_dir.clone(), job.uid.clone(), volume.spec_name.clone());
        let made = self.on_disk(move |disk| {
            books::make_dir(&dir).map_err(|e| {
                let dir = dir.display();
                format!("{PLUGIN}: blockMapper.publishVolumeForBlock failed to create dir {dir}:  {e}")
            })?;
            // The link is the Pod's record of the device, so it comes before the device.
            let device = disk.device(uid.as_str(), &name);
            disk.link(uid.as_str(), &name).map_err(|e| format!("link {}: {e}", device.display()))
        });
        made.await.map_err(|e| e.to_string())??;
        let request = NodePublishVolumeRequest {
            publish_context: context,
            // Also to a driver that does not stage devices, as upstream has it: it may attach them there.
            staging_target_path: text(&places.staging),
            target_path: text(&device),
            secrets,
            volume_context: attributes(job, object),
            ..NodePublishVolumeRequest::default()
        };
        let done = self.ask_to_publish(session, job, request).await;
        done.map(|()| device).map_err(|e| e.to_string())
    }
}

pub(in crate::volumes) fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device())
}
