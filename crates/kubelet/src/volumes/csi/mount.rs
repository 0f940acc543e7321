//! Directories: staged once for the node, published for each Pod.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use csi::v1::{NodePublishVolumeRequest, NodeStageVolumeRequest};
use csi::{Capabilities, Driver};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::CSIDriver;
use kubelet_core::references::TokenWant;
use kubelet_core::volumes::csi::{PLUGIN, SecretRef, TOKENS, group_policy, pod_attributes, staging_name};

use super::request::{capability, merged};
use super::{CsiVolumes, Job, REGISTRATION, books, failed, volume_queue};
use crate::events::EventType;
use crate::ports::{MountedVolume, VolumeAct, VolumeError};
use crate::volumes::fs_group::{self, Access, News};
use crate::volumes::host_path;

/// A driver and what it can do, for the length of one operation.
pub(super) struct Session {
    pub(super) name: String,
    pub(super) driver: Driver,
    pub(super) offers: Capabilities,
}

impl CsiVolumes {
    /// Stages, publishes and gives the volume to the Pod's group, as far as that is not done yet.
    pub(super) async fn mount(
        &self,
        job: &Job,
        object: Option<&CSIDriver>,
        attaches: bool,
    ) -> Result<MountedVolume, VolumeError> {
        let volume = &job.volume;
        self.check_alone(job).await.map_err(|e| failed(VolumeAct::SetUp, volume, e))?;
        let stage = if volume.is_persistent() { VolumeAct::Stage } else { VolumeAct::SetUp };
        let missing = |e: String| match volume.is_persistent() {
            true => format!("{PLUGIN}: attacher.MountDevice failed to create newCsiDriverClient: {e}"),
            false => format!("{PLUGIN}: mounter.SetUpAt failed to get CSI client: {e}"),
        };
        let session = self.session(&volume.driver).await.map_err(|e| failed(stage, volume, missing(e)))?;
        let context = self.publish_context(volume, attaches).await;
        let context = context.map_err(|e| failed(stage, volume, e))?;
        let mut staging = None;
        if volume.is_persistent() {
            let done = self.stage(&session, job, &context).await;
            staging = done.map_err(|e| failed(VolumeAct::Stage, volume, e))?;
        }
        let path = self.publish(&session, job, object, context, staging.as_deref()).await;
        let path = path.map_err(|e| failed(VolumeAct::SetUp, volume, e))?;
        let fail = |e: io::Error| failed(VolumeAct::SetUp, volume, e.to_string());
        let (uid, name) = (job.uid.clone(), volume.spec_name.clone());
        let is_new = !self.on_disk(move |disk| disk.has_mark(uid.as_str(), &name)).await.map_err(fail)?;
        if is_new {
            self.give_away(job, object, session.offers, &path)
                .await
                .map_err(|e| failed(VolumeAct::SetUp, volume, e))?;
            self.set_mark(job).await.map_err(fail)?;
        }
        self.expand(&session, job, &path).await;
        Ok(MountedVolume::Host { path, read_only: volume.read_only })
    }

    /// The set-up of the volume came to its end.
    pub(super) async fn set_mark(&self, job: &Job) -> io::Result<()> {
        let (uid, name) = (job.uid.clone(), job.volume.spec_name.clone());
        self.try_on_disk(move |disk| disk.set_mark(uid.as_str(), &name)).await
    }

    pub(super) async fn session(&self, name: &str) -> Result<Session, String> {
        self.waits_for(format!("CSI driver {name} to register"));
        let driver = self.deps.drivers.wait_for(name, REGISTRATION).await?;
        self.waits_for(format!("CSI driver {name} to answer NodeGetCapabilities"));
        let asked = self.deps.measured.call(name, "NodeGetCapabilities", driver.capabilities()).await;
        Ok(Session { name: name.to_owned(), driver, offers: asked.map_err(|e| e.to_string())? })
    }

    /// Tells whoever asks what the current work is held up by.
    pub(super) fn waits_for(&self, what: String) {
        volume_queue::waiting_for(what, self.deps.measured.clock.now().mono);
    }

    pub(super) fn calls(&self, session: &Session, method: &str) {
        self.waits_for(format!("CSI driver {} to answer {method}", session.name));
    }

    /// Stages the volume for the node. None if the driver has no use for that.
    async fn stage(
        &self,
        session: &Session,
        job: &Job,
        context: &BTreeMap<String, String>,
    ) -> Result<Option<PathBuf>, String> {
        let volume = &job.volume;
        let dir = self.disk.staging().join(&volume.driver).join(staging_name(&volume.handle));
        let target = dir.join(books::GLOBAL_MOUNT);
        let name = volume.unique_name();
        if !session.offers.stage {
            return Ok(None);
        }
        let at = dir.clone();
        let was_known = self.on_disk(move |_| books::read(&at).is_some()).await.map_err(|e| e.to_string())?;
        if was_known && self.lock().staged.contains(&name) {
            return Ok(Some(target));
        }
        let secrets = self.secrets(volume.stage_secret.as_ref(), "NodeStageSecretRef").await?;
        let (at, mount, data) = (dir.clone(), target.clone(), volume.staged_data());
        let recorded = self.try_on_disk(move |_| {
            books::make_mount_point(&mount).map_err(|e| {
                io::Error::other(format!("attacher.MountDevice failed to create dir {mount:?}:  {e}"))
            })?;
            let failed = |e| io::Error::other(format!("failed to save volume info data: {e}"));
            books::write(&at, &data).map_err(failed)
        });
        recorded.await.map_err(|e| format!("{PLUGIN}: {e}"))?;
        if let Err(error) = self.ask_to_stage(session, job, &target, context, secrets).await {
            // A driver that is done with it left nothing behind, unless an earlier attempt did.
            if error.is_final() && !was_known {
                let _ = self.try_on_disk(move |_| books::close(&dir, books::GLOBAL_MOUNT)).await;
            }
            return Err(error.to_string());
        }
        self.lock().staged.insert(name);
        Ok(Some(target))
    }

    async fn publish(
        &self,
        session: &Session,
        job: &Job,
        object: Option<&CSIDriver>,
        context: BTreeMap<String, String>,
        staging: Option<&Path>,
    ) -> Result<PathBuf, String> {
        let volume = &job.volume;
        self.check_wanted(job)?;
        let dir = self.disk.target(job.uid.as_str(), &volume.spec_name);
        let target = dir.join(books::MOUNT);
        let mut secrets = self.secrets(volume.publish_secret.as_ref(), "NodePublishSecretRef").await?;
        let mut attributes = attributes(job, object);
        if let Some((tokens, in_secrets)) = self.tokens(&job.pod, object).await? {
            let tokens = BTreeMap::from([(TOKENS.to_owned(), tokens)]);
            match in_secrets {
                true => secrets = merged(&secrets, tokens),
                false => attributes = merged(&attributes, tokens),
            }
        }
        let (at, data) = (dir.clone(), volume.data(self.deps.storage.node_name()));
        let recorded = self.try_on_disk(move |_| {
            let was_known = books::read(&at).is_some();
            books::write(&at, &data).map(|()| was_known)
        });
        let was_known = recorded
            .await
            .map_err(|e| format!("{PLUGIN}: mounter.SetUpAt failed to save volume info data: {e}"))?;
        let request = NodePublishVolumeRequest {
            publish_context: context,
            staging_target_path: staging.map(text).unwrap_or_default(),
            target_path: text(&target),
            secrets,
            volume_context: attributes,
            ..NodePublishVolumeRequest::default()
        };
        if let Err(error) = self.ask_to_publish(session, job, request).await {
            // What was published once stays: its Pod may be running on it.
            if error.is_final() && !was_known {
                let _ = self.try_on_disk(move |_| books::close(&dir, books::MOUNT)).await;
            }
            return Err(error.to_string());
        }
        Ok(target)
    }

    pub(super) async fn ask_to_stage(
        &self,
        session: &Session,
        job: &Job,
        target: &Path,
        context: &BTreeMap<String, String>,
        secrets: BTreeMap<String, String>,
    ) -> csi::Result<()> {
        let volume = &job.volume;
        self.calls(session, "NodeStageVolume");
        let call = session.driver.stage(NodeStageVolumeRequest {
            volume_id: volume.handle.clone(),
            publish_context: context.clone(),
            staging_target_path: text(target),
            volume_capability: Some(capability(volume, session.offers, job.group)),
            secrets,
            volume_context: volume.attributes.clone(),
        });
        self.deps.measured.call(&session.name, "NodeStageVolume", call).await
    }

    /// The request says where and with what; the rest is the volume's.
    pub(super) async fn ask_to_publish(
        &self,
        session: &Session,
        job: &Job,
        request: NodePublishVolumeRequest,
    ) -> csi::Result<()> {
        let volume = &job.volume;
        self.calls(session, "NodePublishVolume");
        let call = session.driver.publish(NodePublishVolumeRequest {
            volume_id: volume.handle.clone(),
            volume_capability: Some(capability(volume, session.offers, job.group)),
            readonly: volume.read_only,
            ..request
        });
        self.deps.measured.call(&session.name, "NodePublishVolume", call).await
    }

    pub(super) async fn secrets(
        &self,
        reference: Option<&SecretRef>,
        field: &str,
    ) -> Result<BTreeMap<String, String>, String> {
        let Some(reference) = reference else { return Ok(BTreeMap::new()) };
        self.deps
            .storage
            .secret(reference)
            .await
            .map_err(|e| format!("fetching {field} {}/{} failed: {e}", reference.namespace, reference.name))
    }

    /// The tokens a driver asks for, and whether they go with the secrets.
    async fn tokens(&self, pod: &Pod, object: Option<&CSIDriver>) -> Result<Option<(String, bool)>, String> {
        let Some(spec) = object.map(|o| &o.spec) else { return Ok(None) };
        let requests = spec.token_requests.iter().flatten();
        let wants: Vec<TokenWant> = requests
            .map(|r| TokenWant {
                audience: r.audience.clone(),
                seconds: r.expiration_seconds.unwrap_or(3600),
            })
            .collect();
        if wants.is_empty() {
            return Ok(None);
        }
        let tokens = self.deps.storage.tokens(pod, &wants).await.map_err(|e| {
            format!("{PLUGIN}: mounter.SetUpAt failed to get service accoount token attributes: {e}")
        })?;
        Ok(Some((tokens, spec.service_account_token_in_secrets == Some(true))))
    }

    /// Gives the volume to the Pod's group, unless the driver did or nobody shall.
    async fn give_away(
        &self,
        job: &Job,
        object: Option<&CSIDriver>,
        offers: Capabilities,
        path: &Path,
    ) -> Result<(), String> {
        let policy = group_policy(object)
            .map_err(|e| format!("{PLUGIN}: mounter.SetupAt failed to check fsGroup policy: {e}"))?;
        let Some(group) = job.group.filter(|_| !offers.mount_group && job.volume.takes_group(policy)) else {
            return Ok(());
        };
        self.waits_for(format!("the files of the volume to be given to group {}", group.gid));
        let (path, pod, recorder) = (path.to_owned(), job.pod.clone(), self.deps.recorder.clone());
        let give = move || {
            let mut tell = |news| {
                let text = slow_walk(&path, pod.metadata.uid.as_deref().unwrap_or_default(), news);
                recorder.pod(&pod, EventType::Warning, "VolumePermissionChangeInProgress", text);
            };
            let root = host_path::open(&path)?;
            fs_group::apply_telling(root, group, Access::ReadWrite, &mut tell)
        };
        let done = volume_queue::on_thread(give).await;
        done.map_err(|e| format!("applyFSGroup failed for vol {}: {e}", job.volume.handle))
    }
}

/// What the driver learns of the volume, and of the Pod if it wants to.
pub(super) fn attributes(job: &Job, object: Option<&CSIDriver>) -> BTreeMap<String, String> {
    let attributes = &job.volume.attributes;
    match object.and_then(|o| o.spec.pod_info_on_mount) {
        Some(true) => merged(attributes, pod_attributes(&job.pod, job.volume.lifecycle)),
        _ => attributes.clone(),
    }
}

/// What the owner of a Pod reads who waits for its files to change hands. The path begins with the Pod's UID.
fn slow_walk(path: &Path, uid: &str, news: News) -> String {
    let path = path.to_string_lossy();
    let path = path.find(uid).map_or(&*path, |at| &path[at..]);
    match news {
        News::Slow => format!(
            "Setting volume ownership for {path} is taking longer than expected, consider using OnRootMismatch - \
             https://kubernetes.io/docs/tasks/configure-pod-container/security-context/\
             #configure-volume-permission-and-ownership-change-policy-for-pods"
        ),
        News::Done(files) => format!("Setting volume ownership for {path}, processed {files} files."),
    }
}

pub(super) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_walk_is_told_by_the_place_in_the_pod() {
        let path = Path::new("/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~csi/pv/mount");
        let told = slow_walk(path, "u-1", News::Done(7));
        let want = "Setting volume ownership for u-1/volumes/kubernetes.io~csi/pv/mount, processed 7 files.";
        assert_eq!(told, want);
        assert!(slow_walk(path, "other", News::Slow).contains(" for /var/lib/kubelet/pods/u-1/volumes/"));
    }
}
