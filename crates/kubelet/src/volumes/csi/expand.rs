//! Volumes that became larger while Pods have them, or before.

use std::path::Path;

use csi::v1::NodeExpandVolumeRequest;
use kubelet_core::volumes::csi::{ClaimRef, staging_name};
use kubelet_core::volumes::expand::{Call, Expansion, Here, News, Writes, plan_expand};
use tonic::Code;

use super::mount::{Session, text};
use super::request::capability;
use super::{CsiVolumes, Job, books};
use crate::events::EventType;
use crate::ports::MountedVolume;

/// Why the driver did not expand it.
struct ExpandError {
    /// None if it was not asked.
    code: Option<Code>,
    is_final: bool,
    is_infeasible: bool,
    message: String,
}

impl CsiVolumes {
    /// What is to be done about the size of the job's volume, if its driver expands volumes or nobody knows yet.
    pub(super) fn expansion(&self, job: &Job, offers: bool) -> Expansion {
        let volume = &job.volume;
        let (Some(capacity), Some(claim)) = (volume.capacity, &volume.claim) else {
            return Expansion::Nothing;
        };
        let here = self.here(&volume.unique_name(), |here| *here);
        plan_expand(&claim.sizes, capacity, here, offers, volume.read_only)
    }

    /// The volume has the size its claim says when it comes to this node.
    pub(super) fn note_size(&self, job: &Job, is_new: bool) {
        let Some(claim) = &job.volume.claim else { return };
        self.here(&job.volume.unique_name(), |here| {
            here.size = here.size.or(claim.sizes.capacity);
            // One that is not mounted yet is not in use.
            here.refused &= !is_new;
        });
    }

    /// Expands a volume that is in place.
    pub(super) async fn grow(&self, job: &Job, ready: MountedVolume) -> MountedVolume {
        let (MountedVolume::Host { path, .. } | MountedVolume::Device { path, .. }) = &ready else {
            return ready;
        };
        match self.session(&job.volume.driver).await {
            Ok(session) => self.expand(&session, job, path).await,
            Err(error) => tracing::warn!(volume = job.volume.spec_name, error, "volume not expanded yet"),
        }
        ready
    }

    /// Tells the driver of a volume that became larger; what comes of it does not keep the Pod from running.
    pub(super) async fn expand(&self, session: &Session, job: &Job, path: &Path) {
        let (name, Some(claim)) = (job.volume.unique_name(), &job.volume.claim) else { return };
        match self.expansion(job, session.offers.expand) {
            Expansion::Nothing => {}
            Expansion::Settled(size) => self.here(&name, |here| here.size = Some(size)),
            Expansion::ReadOnly => {
                self.here(&name, |here| here.told = true);
                let head =
                    format!("MountVolume.NodeExpandVolume failed for volume {:?}", job.volume.spec_name);
                let message = format!("{head} requested read-only file system");
                self.tell_both(job, claim, EventType::Warning, "FileSystemResizeFailed", message);
            }
            Expansion::Call(call) => match self.call_expand(session, job, claim, call, path).await {
                Ok(()) => self.here(&name, |here| *here = Here { size: Some(call.size), ..Here::default() }),
                Err(error) => self.refused(job, claim, call, error).await,
            },
        }
    }

    async fn call_expand(
        &self,
        session: &Session,
        job: &Job,
        claim: &ClaimRef,
        call: Call,
        path: &Path,
    ) -> Result<(), ExpandError> {
        let volume = &job.volume;
        let storage = &self.deps.storage;
        if call.writes == Writes::All {
            storage.tell_claim(claim, &News::InProgress).await.map_err(|e| {
                ExpandError::unasked(format!("failed to mark node expansion in progress: {e}"), false)
            })?;
        }
        if !session.offers.expand {
            let message = format!("NodeExpand is not supported by the CSI driver {}", session.name);
            return Err(ExpandError::unasked(message, true));
        }
        let secrets = self.secrets(volume.expand_secret.as_ref(), "NodeExpandSecretRef").await;
        let secrets = secrets.map_err(|e| ExpandError::unasked(e, false))?;
        self.calls(session, "NodeExpandVolume");
        let request = NodeExpandVolumeRequest {
            volume_id: volume.handle.clone(),
            volume_path: text(path),
            capacity_range: Some(csi::v1::CapacityRange { required_bytes: call.size, limit_bytes: 0 }),
            staging_target_path: self.staged_at(session, job),
            volume_capability: Some(capability(volume, session.offers, None)),
            secrets,
        };
        let asked = session.driver.expand(request);
        self.deps.measured.call(&session.name, "NodeExpandVolume", asked).await.map_err(ExpandError::from)?;
        let node = storage.node_name();
        let message =
            format!("MountVolume.NodeExpandVolume succeeded for volume {:?} {node}", volume.spec_name);
        self.tell_both(job, claim, EventType::Normal, "FileSystemResizeSuccessful", message);
        if matches!(call.writes, Writes::All | Writes::Size) {
            let told = storage.tell_claim(claim, &News::Size(call.size)).await;
            told.map_err(|e| {
                ExpandError::unasked(format!("update of the claim's status failed: {e}"), false)
            })?;
        }
        Ok(())
    }

    /// The driver is not asked again for what it will not do, and the claim tells so.
    async fn refused(&self, job: &Job, claim: &ClaimRef, call: Call, error: ExpandError) {
        let name = job.volume.unique_name();
        let in_use = error.code == Some(Code::FailedPrecondition);
        self.here(&name, |here| {
            here.refused |= in_use;
            here.failed |= error.is_final;
        });
        if error.is_final && matches!(call.writes, Writes::All | Writes::Failure) {
            let why = error.message.clone();
            let is_infeasible = error.is_infeasible || call.gives_up;
            let news = if is_infeasible { News::Infeasible(why) } else { News::Failed(why) };
            if let Err(error) = self.deps.storage.tell_claim(claim, &news).await {
                tracing::warn!(volume = job.volume.spec_name, error, "claim not told that it does not grow");
            }
        }
        let (spec_name, error) = (&job.volume.spec_name, error.message);
        if in_use {
            tracing::warn!(
                volume = spec_name,
                error,
                "the driver does not expand the volume while it is in use"
            );
            return;
        }
        let message = format!("NodeExpandVolume.NodeExpandVolume failed for volume {spec_name:?} : {error}");
        self.deps.recorder.pod(&job.pod, EventType::Warning, "VolumeResizeFailed", message);
    }

    fn tell_both(&self, job: &Job, claim: &ClaimRef, kind: EventType, reason: &str, message: String) {
        self.deps.recorder.claim(&claim.namespace, &claim.name, &claim.uid, kind, reason, &message);
        self.deps.recorder.pod(&job.pod, kind, reason, message);
    }

    /// Where the driver staged the volume; empty if it has no use for that.
    fn staged_at(&self, session: &Session, job: &Job) -> String {
        let volume = &job.volume;
        match (session.offers.stage, volume.block) {
            (false, _) => String::new(),
            (true, true) => text(&self.disk.device_places(&volume.spec_name).staging),
            (true, false) => {
                let dir = self.disk.staging().join(&volume.driver).join(staging_name(&volume.handle));
                text(&dir.join(books::GLOBAL_MOUNT))
            }
        }
    }

    fn here<T>(&self, name: &str, change: impl FnOnce(&mut Here) -> T) -> T {
        change(self.lock().here.entry(name.to_owned()).or_default())
    }
}

// === impl ExpandError ===

impl ExpandError {
    fn unasked(message: String, is_final: bool) -> Self {
        Self { code: None, is_final, is_infeasible: false, message }
    }
}

impl From<csi::Error> for ExpandError {
    fn from(error: csi::Error) -> Self {
        let (is_final, is_infeasible) = (error.is_final(), error.is_infeasible());
        let message = match is_infeasible {
            true => format!("Expander.NodeExpand failed to expand the volume {error}"),
            false => format!("Expander.NodeExpand failed to expand the volume : {error}"),
        };
        Self { code: Some(error.code), is_final, is_infeasible, message }
    }
}
