//! csi: a driver mounts, we keep the books.
//!
//! The disk is the truth: `vol_data.json` is written before a driver is asked for anything, in the place and the words
//! of upstream, and removed when the driver has said that nothing is left. So whatever a crash interrupts is found
//! again: a volume of a Pod by the Pod's teardown, a staged volume nobody uses by the [`sweep`]. Calls are idempotent
//! by contract and are simply made again.
//!
//! | place below the root | holds |
//! |---|---|
//! | `plugins/kubernetes.io/csi/<driver>/<sha256 of handle>/` | `globalmount`, where the volume is staged for the node |
//! | `pods/<uid>/volumes/kubernetes.io~csi/<name>/` | `mount`, where it is published for a Pod |
//! | `plugins/kubernetes.io/csi/volumeDevices/` | the same for devices, see [`block`] |
//!
//! Operations on one volume follow each other in its [`volume_queue`]; a driver that hangs holds that queue and no other.

mod block;
mod books;
mod disk;
mod expand;
mod kind;
mod mount;
mod refresh;
mod request;
mod stats;
mod sweep;
mod tear_down;
mod volume_queue;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::class::Class;
use base::ids::PodUid;
use k8s_openapi::api::core::v1::Pod;
use kubelet_core::volumes::csi::{PLUGIN, attachment_name, check_lifecycle, needs_attach};
use kubelet_core::volumes::expand::{Expansion, Here};
use kubelet_core::volumes::{CsiVolume, FsGroup, IN_USE};
use tokio::sync::Notify;

use crate::events::Recorder;
use crate::ports::{MountedVolume, Storage, VolumeAct, VolumeError};
use crate::volumes::VolumeFigures;
use crate::volumes::drivers::registration::Registrar;
use crate::volumes::drivers::{Drivers, Measured};
pub(super) use block::is_device;
use disk::Disk;
pub(super) use kind::Csi;
use volume_queue::VolumeQueues;

/// How long a driver that has not registered is waited for: after a restart, all of them come back at once.
const REGISTRATION: Duration = Duration::from_secs(10);

/// What it takes to have volumes of drivers.
pub struct CsiDeps {
    pub drivers: Arc<Drivers>,
    pub registrar: Registrar,
    pub storage: Arc<dyn Storage>,
    pub measured: Measured,
    pub recorder: Recorder,
    pub figures: Arc<VolumeFigures>,
}

impl std::fmt::Debug for CsiDeps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CsiDeps").field("drivers", &self.drivers).finish_non_exhaustive()
    }
}

/// The volumes that drivers mount on this node.
pub(super) struct CsiVolumes {
    disk: Disk,
    deps: CsiDeps,
    queues: VolumeQueues,
    /// Held for set operations only.
    state: Mutex<State>,
    /// Wakes when something may be left to unstage.
    unused: Notify,
    /// Wakes when there is a volume that nobody has measured yet.
    unmeasured: Notify,
}

#[derive(Default)]
struct State {
    /// Who wants a volume, by its unique name, and how people call it; also while it is not mounted yet.
    wanted: BTreeMap<String, BTreeMap<PodUid, String>>,
    /// Pods whose volumes are being taken away: what was begun for them is not carried on.
    leaving: BTreeSet<PodUid>,
    /// Volumes that were staged in this life of the agent.
    staged: HashSet<String>,
    /// What is known of the sizes of volumes that Pods want.
    here: BTreeMap<String, Here>,
    /// What Pods have, by Pod and the Pod's name for it.
    published: BTreeMap<(PodUid, String), stats::Published>,
    /// What the node says is in use: a controller does not detach it.
    in_use: BTreeSet<String>,
    /// What an earlier life left is among them. Before that nothing is said: a node that leaves out a volume it still has
    /// may lose it.
    settled: bool,
}

/// One volume of one Pod.
#[derive(Clone)]
struct Job {
    pod: Arc<Pod>,
    uid: PodUid,
    volume: CsiVolume,
    group: Option<FsGroup>,
}

// === impl CsiVolumes ===

impl CsiVolumes {
    pub(super) fn new(root: &Path, deps: CsiDeps) -> Self {
        let queues = VolumeQueues::new(deps.measured.clock.clone());
        Self {
            disk: Disk::new(root),
            deps,
            queues,
            state: Mutex::default(),
            unused: Notify::new(),
            unmeasured: Notify::new(),
        }
    }

    /// Makes the volume ready for the Pod, whatever that takes, and says where it is.
    pub(super) async fn set_up(
        self: &Arc<Self>,
        pod: &Arc<Pod>,
        uid: &PodUid,
        own_name: &str,
        volume: &CsiVolume,
        group: Option<FsGroup>,
    ) -> Result<MountedVolume, VolumeError> {
        let name = volume.unique_name();
        // First of all: from here on nobody takes it for unused.
        self.want(&name, uid, &volume.spec_name);
        let fail = |message: String| failed(VolumeAct::SetUp, volume, message);
        let object = self.deps.storage.driver(&volume.driver).await.map_err(fail)?;
        check_lifecycle(object.as_deref(), &volume.driver, volume.lifecycle).map_err(|e| {
            fail(format!("{PLUGIN}: mounter.SetupAt failed to check volume lifecycle mode: {e}"))
        })?;
        let job = Job { pod: pod.clone(), uid: uid.clone(), volume: volume.clone(), group };
        let republish = object.as_ref().and_then(|o| o.spec.requires_republish) == Some(true);
        let (of, node) = (job.clone(), self.deps.storage.node_name().to_owned());
        let there = self.try_on_disk(move |disk| disk.found(&of, &node)).await;
        let there = there.map_err(|e| fail(format!("look for the volume and its record: {e}")))?;
        self.note_size(&job, there.is_none());
        let grows = !matches!(self.expansion(&job, true), Expansion::Nothing);
        if let Some(ready) = there.clone().filter(|_| !republish && !grows) {
            self.note((uid.clone(), own_name.to_owned()), volume, &ready);
            return Ok(ready);
        }
        let attaches = volume.is_persistent() && needs_attach(object.as_deref());
        if attaches && there.is_none() {
            self.hold(&name);
            if let Err(error) = self.deps.storage.wait_attached(&name).await {
                let full = self.is_exhausted(volume, object.as_deref()).await;
                // Who reads of it knows it by the name it has in the Pod.
                return Err(named(
                    if full { VolumeAct::FindRoom } else { VolumeAct::Attach },
                    own_name,
                    error,
                ));
            }
        }
        let this = self.clone();
        let work = async move {
            match there.filter(|_| !republish) {
                Some(ready) => Ok(this.grow(&job, ready).await),
                None if job.volume.block => this.map(&job, object.as_deref(), attaches).await,
                None => this.mount(&job, object.as_deref(), attaches).await,
            }
        };
        let queue = volume_queue::VolumeOperation {
            act: VolumeAct::SetUp,
            volume: volume.spec_name.clone(),
            key: name,
        };
        let operation = self.deps.measured.begin(if volume.block { "map_volume" } else { "volume_mount" });
        let ready = self.queues.run(queue, volume_queue::MOUNT_TIMEOUT, Box::pin(work)).await;
        self.deps.measured.end(operation, &volume.driver, ready.is_ok());
        let ready = ready?;
        self.note((uid.clone(), own_name.to_owned()), volume, &ready);
        Ok(ready)
    }

    fn want(&self, name: &str, uid: &PodUid, spec_name: &str) {
        let mut state = self.lock();
        state.leaving.remove(uid);
        state.wanted.entry(name.to_owned()).or_default().insert(uid.clone(), spec_name.to_owned());
    }

    /// Work outlives whoever asked for it. It does nothing more for a Pod that is leaving: nobody would undo it.
    fn check_wanted(&self, job: &Job) -> Result<(), String> {
        let state = self.lock();
        let wants =
            state.wanted.get(&job.volume.unique_name()).is_some_and(|pods| pods.contains_key(&job.uid));
        match wants && !state.leaving.contains(&job.uid) {
            true => Ok(()),
            false => Err("the Pod is leaving".to_owned()),
        }
    }

    /// A volume for one Pod at a time is not given to a second one, not even while the first is leaving. Asked in the
    /// volume's queue, and records are written before drivers are asked, so two that come at once are told apart.
    async fn check_alone(&self, job: &Job) -> Result<(), String> {
        if !job.volume.is_exclusive() {
            return Ok(());
        }
        let (name, uid) = (job.volume.unique_name(), job.uid.clone());
        match self.on_disk(move |disk| disk.has_another(&name, uid.as_str())).await {
            Ok(false) => Ok(()),
            Ok(true) => Err(IN_USE.to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Where the volume is, if it was published for the Pod, now or in an earlier life of the agent.
    pub(super) async fn standing(
        &self,
        uid: &PodUid,
        volume: &CsiVolume,
    ) -> Result<Option<MountedVolume>, VolumeError> {
        let (uid, of) = (uid.clone(), volume.clone());
        let standing = self.on_disk(move |disk| disk.standing(uid.as_str(), &of)).await;
        standing.map_err(|e| failed(VolumeAct::SetUp, volume, e.to_string()))
    }

    /// Remembers what can be measured.
    fn note(&self, key: (PodUid, String), volume: &CsiVolume, ready: &MountedVolume) {
        let (MountedVolume::Host { path, .. } | MountedVolume::Device { path, .. }) = ready else { return };
        let (driver, handle, path) = (volume.driver.clone(), volume.handle.clone(), path.clone());
        let claim = volume.claim.clone();
        let is_new =
            self.lock().published.insert(key, stats::Published { driver, handle, claim, path }).is_none();
        if is_new {
            self.unmeasured.notify_one();
        }
    }

    /// What the attachment says about where the volume is; it also has to say that it is attached.
    async fn publish_context(
        &self,
        volume: &CsiVolume,
        attaches: bool,
    ) -> Result<BTreeMap<String, String>, String> {
        if !attaches {
            return Ok(BTreeMap::new());
        }
        let id = attachment_name(&volume.handle, &volume.driver, self.deps.storage.node_name());
        let handle = &volume.handle;
        let found = self.deps.storage.attachment(&id).await;
        let attachment =
            found.map_err(|e| format!("volume {handle} has GET error for volume attachment {id}: {e}"))?;
        if attachment.metadata.deletion_timestamp.is_some() {
            return Err("volume attachment is being deleted".to_owned());
        }
        let status = attachment.status.unwrap_or_default();
        match (status.attached, status.attach_error.and_then(|e| e.message)) {
            (true, _) => Ok(status.attachment_metadata.unwrap_or_default()),
            (false, Some(error)) => Err(error),
            (false, None) => Err(format!("volume {handle} is not attached for volume attachment {id}")),
        }
    }

    /// The node says that it uses the volume, until the [`sweep`] finds that it does not.
    fn hold(&self, name: &str) {
        let mut state = self.lock();
        if state.in_use.insert(name.to_owned()) && state.settled {
            self.deps.storage.report_in_use(state.in_use.iter().cloned().collect());
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed(act: VolumeAct, volume: &CsiVolume, message: impl Into<String>) -> VolumeError {
    named(act, &volume.spec_name, message)
}

fn named(act: VolumeAct, volume: &str, message: impl Into<String>) -> VolumeError {
    VolumeError { act, volume: volume.to_owned(), message: message.into(), class: Class::Retry }
}
