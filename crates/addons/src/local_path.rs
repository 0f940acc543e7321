//! The provisioner of the class `local-path`: directories of this machine, made and removed in this process. No image is needed
//! for it, and no network.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use api::events::About;
use base::rng::Rng;
use client::reflector::Cache;
use client::{Client, ClientError, Request};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rustix::fs::Mode;
use serde_json::json;
use supervise::Supervisor;
use tokio::sync::Mutex;

use crate::core::local_path::{
    End, FINALIZER, PROVISIONER, Wish, class, directory, end, volume, volume_name, wish,
};
use crate::events::{Grade, Recorder};
use crate::follow::{Follow, Round, rounds};
use crate::{Error, Storage};

const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
const VOLUMES: &str = "/api/v1/persistentvolumes";

/// Reconciles all claims and volumes.
struct Provisioner {
    client: Client,
    storage: Storage,
    claims: Cache<Arc<PersistentVolumeClaim>>,
    volumes: Cache<Arc<PersistentVolume>>,
    classes: Cache<Arc<StorageClass>>,
    recorder: Recorder,
    has_class: bool,
    /// What was said of which object, by UID: said once.
    told: BTreeMap<String, String>,
}

/// Only root may look for volumes; a volume itself is for whoever runs in the Pod.
pub(crate) fn prepare(storage: &Storage) -> Result<(), Error> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&storage.base);
    let made = made.and_then(|()| fs::set_permissions(&storage.base, fs::Permissions::from_mode(0o700)));
    made.map_err(|cause| Error::Path { act: "make", path: storage.base.clone(), cause })
}

pub(crate) fn start((client, rng): (Client, Rng), storage: Storage, tasks: &Supervisor) {
    let mut follow = Follow::new((&client, rng), tasks);
    let claims = follow.resource("watch of claims", "/api/v1/persistentvolumeclaims", Arc::new);
    let volumes = follow.resource("watch of volumes", VOLUMES, Arc::new);
    let classes = follow.resource("watch of StorageClasses", CLASSES, Arc::new);
    let changed = follow.changed.clone();
    let recorder = Recorder::new(client.clone(), PROVISIONER);
    let (has_class, told) = (false, BTreeMap::new());
    let all = Provisioner { client, storage, claims, volumes, classes, recorder, has_class, told };
    tasks.lasting("local-path provisioner", Arc::new(Mutex::new(all)), move |all, token| {
        let changed = changed.clone();
        rounds(changed, token, move || {
            let all = all.clone();
            async move { all.lock().await.round().await }
        })
    });
}

// === impl Provisioner ===

impl Provisioner {
    async fn round(&mut self) -> Round {
        if !self.has_class {
            match self.client.ask_bytes(Request::post(CLASSES, class().to_string())).await {
                Err(error) if !error.is_already_exists() => {
                    tracing::warn!(%error, "StorageClass not created; trying again");
                    return Round::Again;
                }
                _ => self.has_class = true,
            }
        }
        if !self.claims.has_synced() || !self.volumes.has_synced() || !self.classes.has_synced() {
            return Round::Done;
        }
        let (claims, volumes) = (self.claims.all(), self.volumes.all());
        let classes: Vec<StorageClass> = self.classes.all().iter().map(|class| (**class).clone()).collect();
        let is_there = |uid: &String| {
            let metas = claims.iter().map(|c| &c.metadata).chain(volumes.iter().map(|v| &v.metadata));
            metas.into_iter().any(|meta| meta.uid.as_ref() == Some(uid))
        };
        self.told.retain(|uid, _| is_there(uid));
        let mut round = Round::Done;
        for claim in &claims {
            let left = match wish(claim, &classes, &self.storage.node) {
                Wish::Nothing => Round::Done,
                Wish::Refuse(why) => self.refuse(claim, &why).await,
                Wish::Make => self.make(claim, &classes).await,
            };
            round = if left == Round::Again { left } else { round };
        }
        for volume in &volumes {
            let left = match end(volume, &self.storage.node, &self.storage.base) {
                End::Nothing => Round::Done,
                End::Release => self.let_go(volume).await,
                End::Refuse(why) => self.not_deleted(volume, &why).await,
                End::Reclaim(path) => self.reclaim(volume, &path).await,
            };
            round = if left == Round::Again { left } else { round };
        }
        round
    }

    async fn refuse(&mut self, claim: &PersistentVolumeClaim, why: &str) -> Round {
        let class =
            claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()).unwrap_or_default();
        let message = format!("failed to provision volume with StorageClass {class:?}: {why}");
        if self.is_news(&claim.metadata, &message) {
            let about = about("PersistentVolumeClaim", &claim.metadata);
            self.recorder.tell(about, Grade::Warning, "ProvisioningFailed", message).await;
        }
        Round::Done
    }

    async fn make(&mut self, claim: &PersistentVolumeClaim, classes: &[StorageClass]) -> Round {
        if self.volumes.all().iter().any(|known| known.metadata.name.as_deref() == Some(&volume_name(claim)))
        {
            // The controller of volumes has it and binds it.
            return Round::Done;
        }
        let about = || about("PersistentVolumeClaim", &claim.metadata);
        let Some(name) = directory(claim) else { return Round::Done };
        let path = self.storage.base.join(&name);
        let Some(object) = volume(claim, classes, &self.storage.node, &path) else { return Round::Done };
        let base = self.storage.base.clone();
        let made = blocking(move || make_directory(&base, OsStr::new(&name))).await;
        if let Err(error) = made {
            self.refuse(claim, &format!("make {}: {error}", path.display())).await;
            return Round::Again;
        }
        match self.client.ask_bytes(Request::post(VOLUMES, object.to_string())).await {
            Err(error) if !error.is_already_exists() => {
                self.refuse(claim, &error.to_string()).await;
                Round::Again
            }
            _ => {
                let message = format!("Successfully provisioned volume {}", volume_name(claim));
                self.recorder.tell(about(), Grade::Normal, "ProvisioningSucceeded", message).await;
                Round::Done
            }
        }
    }

    async fn reclaim(&mut self, volume: &PersistentVolume, path: &Path) -> Round {
        let (base, name) =
            (self.storage.base.clone(), path.file_name().map(OsString::from).unwrap_or_default());
        if let Err(error) = blocking(move || remove_directory(&base, &name)).await {
            return self.not_deleted(volume, &format!("remove {}: {error}", path.display())).await;
        }
        if volume.metadata.deletion_timestamp.is_some() {
            return self.let_go(volume).await;
        }
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        let body = json!({"preconditions": {"uid": volume.metadata.uid}});
        let deleted =
            self.client.ask_bytes(Request::delete(format!("{VOLUMES}/{name}"), body.to_string())).await;
        self.said(deleted.map(drop), name)
    }

    /// Takes our finalizer off.
    async fn let_go(&mut self, volume: &PersistentVolume) -> Round {
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        let all = volume.metadata.finalizers.iter().flatten();
        let others: Vec<&String> = all.filter(|finalizer| *finalizer != FINALIZER).collect();
        let change =
            json!({"metadata": {"resourceVersion": volume.metadata.resource_version, "finalizers": others}});
        let request =
            Request::patch(format!("{VOLUMES}/{name}"), "application/merge-patch+json", change.to_string());
        let patched = self.client.ask_bytes(request).await;
        self.said(patched.map(drop), name)
    }

    fn said(&self, answer: Result<(), ClientError>, volume: &str) -> Round {
        match answer {
            // Gone, or changed meanwhile: its next state comes by itself.
            Err(error) if error.is_not_found() || error.is_conflict() => Round::Done,
            Err(error) => {
                tracing::warn!(%error, volume, "a volume does not go; trying again");
                Round::Again
            }
            Ok(()) => Round::Done,
        }
    }

    async fn not_deleted(&mut self, volume: &PersistentVolume, why: &str) -> Round {
        if self.is_news(&volume.metadata, why) {
            let about = about("PersistentVolume", &volume.metadata);
            self.recorder.tell(about, Grade::Warning, "VolumeFailedDelete", why.to_owned()).await;
        }
        Round::Again
    }

    fn is_news(&mut self, meta: &ObjectMeta, message: &str) -> bool {
        let uid = meta.uid.clone().unwrap_or_default();
        self.told.insert(uid, message.to_owned()).as_deref() != Some(message)
    }
}

/// For whoever runs in the Pod, whatever our umask.
fn make_directory(base: &Path, name: &OsStr) -> io::Result<()> {
    let base = sys::fd::open_dir(base)?;
    let made = sys::fd::make_dir(&base, name, Mode::from_raw_mode(0o777))?;
    sys::fd::chmod(&made, Mode::from_raw_mode(0o777))
}

/// Never what is mounted: that is somebody's.
fn remove_directory(base: &Path, name: &OsStr) -> io::Result<()> {
    sys::tree::remove(sys::fd::open_dir(base)?, name).map_err(io::Error::other)
}

async fn blocking(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

fn about(kind: &'static str, meta: &ObjectMeta) -> About {
    About {
        kind,
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        resource_version: meta.resource_version.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn directories_are_open_to_pods_and_removed_without_following_links() {
        let scratch = tempfile::tempdir().unwrap();
        let storage = Storage { node: "n".into(), base: scratch.path().join("storage") };
        prepare(&storage).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let (name, path) = (OsStr::new("pvc-1_a_b"), storage.base.join("pvc-1_a_b"));
        make_directory(&storage.base, name).unwrap();
        // A second attempt finds it.
        make_directory(&storage.base, name).unwrap();
        assert_eq!((mode(&storage.base), mode(&path)), (0o700, 0o777));
        let outside = scratch.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "").unwrap();
        symlink(&outside, path.join("link")).unwrap();
        fs::write(path.join("file"), "").unwrap();
        remove_directory(&storage.base, name).unwrap();
        assert!(!path.exists() && outside.join("kept").exists());
        // Gone already is fine; a link in its place goes, and not what it points to.
        remove_directory(&storage.base, name).unwrap();
        symlink(&outside, &path).unwrap();
        remove_directory(&storage.base, name).unwrap();
        assert!(outside.join("kept").exists());
    }

    #[test]
    fn a_link_in_the_place_of_a_directory_is_not_followed() {
        let scratch = tempfile::tempdir().unwrap();
        let base = scratch.path().join("storage");
        prepare(&Storage { node: "n".into(), base: base.clone() }).unwrap();
        let outside = scratch.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::set_permissions(&outside, fs::Permissions::from_mode(0o700)).unwrap();
        symlink(&outside, base.join("pvc-1_a_b")).unwrap();
        assert!(make_directory(&base, OsStr::new("pvc-1_a_b")).is_err());
        assert_eq!(fs::metadata(&outside).unwrap().permissions().mode() & 0o777, 0o700);
    }
}
