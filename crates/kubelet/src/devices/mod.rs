//! Device plugins: how they come and go, what they have, and what they give to containers. Who gets which device is decided
//! in `kubelet_core::devices`.
//!
//! | task | input | output |
//! |---|---|---|
//! | registration | plugins that call `kubelet.sock` | one task per plugin |
//! | plugin, one each | its list of devices, as it changes | the books, and a wake for whoever shows them |

mod options;
mod server;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use base::time::Clock;
use k8s_openapi::api::core::v1::{PodStatus, ResourceHealth, ResourceStatus};
use kubelet_core::devices::checkpoint::{self, Saved};
use kubelet_core::devices::{Allocation, Counts, Device, DeviceBooks, Devices, Ids, Plan};
use kubelet_core::node::capacity::is_extended;
use kubelet_core::topology::admission_error::AdmissionError;
use kubelet_core::topology::mask::Hint;
use kubelet_core::topology::wants::{ContainerWant, PodWant};
use plugins::device::v1beta1::DevicePluginOptions;
use plugins::device::{DevicePlugin, HEALTHY, VERSION};
use prost::Message;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::host::files::write_whole;
use crate::metrics::Metrics;

pub use options::ContainerDevices;
pub use server::RegistrationService;

/// Where plugins register and put their sockets. Upstream does not let anyone change it, so plugins do not ask.
pub const USUAL_DIR: &str = "/var/lib/kubelet/device-plugins";

/// The most that is taken from one plugin: upstream takes what a message holds.
const MOST_DEVICES: usize = 64 * 1024;

/// A plugin that is there.
#[derive(Clone, Debug)]
struct Connected {
    plugin: DevicePlugin,
    options: DevicePluginOptions,
    /// Tells it from others of the same name.
    serial: u64,
    over: CancellationToken,
}

/// All device plugins, and who has which device.
pub struct DevicePlugins {
    dir: PathBuf,
    /// Both held for map operations only.
    books: Mutex<DeviceBooks>,
    plugins: Mutex<HashMap<String, Connected>>,
    serial: AtomicU64,
    /// What the checkpoint says; held while it is written.
    written: tokio::sync::Mutex<String>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    /// Ticks when devices come, go, or change their health.
    changed: watch::Sender<u64>,
    /// Why no plugin can register any more.
    broken: OnceLock<String>,
    token: CancellationToken,
}

/// Devices that were chosen and not yet given.
struct Chosen<'a> {
    devices: &'a DevicePlugins,
    resource: &'a str,
    ids: &'a Ids,
}

// === impl Chosen ===

impl Drop for Chosen<'_> {
    fn drop(&mut self) {
        self.devices.books().unchoose(self.resource, self.ids);
    }
}

// === impl DevicePlugins ===

impl DevicePlugins {
    /// Goes on from the checkpoint in the directory. One that cannot be read is told of and passed over, as upstream does.
    #[must_use]
    pub fn open(
        dir: &Path,
        nodes: Vec<u32>,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
        token: CancellationToken,
    ) -> Arc<Self> {
        let found = std::fs::read_to_string(dir.join(checkpoint::FILE));
        let saved = match &found {
            Ok(text) => checkpoint::read(text).unwrap_or_else(|error| {
                tracing::error!(%error, "the checkpoint of devices is not read: who has which device may be unknown");
                Saved::default()
            }),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::error!(%error, "the checkpoint of devices is not read");
                }
                Saved::default()
            }
        };
        let books = DeviceBooks::new(nodes, saved.entries, saved.resources);
        // A node that never had a device has no checkpoint: by that it is seen after a new installation.
        let written = found.unwrap_or_else(|_| checkpoint::write(&books));
        Arc::new(Self {
            dir: dir.to_owned(),
            books: Mutex::new(books),
            plugins: Mutex::default(),
            serial: AtomicU64::new(0),
            written: tokio::sync::Mutex::new(written),
            clock,
            metrics,
            changed: watch::Sender::default(),
            broken: OnceLock::new(),
            token,
        })
    }

    /// Ticks when devices come, go, or change their health.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub fn books(&self) -> MutexGuard<'_, DeviceBooks> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plugins(&self) -> MutexGuard<'_, HashMap<String, Connected>> {
        self.plugins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the node has of devices now, and which resources it has no more.
    pub fn counts(&self) -> (Counts, Vec<String>) {
        self.books().counts(self.clock.now().mono)
    }

    /// Devices that work or are held, by resource: what a node without an object has to offer.
    #[must_use]
    pub fn offered(&self) -> BTreeMap<String, i64> {
        let mut all = self.held();
        for (name, devices) in self.books().resources() {
            let healthy = i64::try_from(devices.values().filter(|d| d.healthy).count()).unwrap_or(i64::MAX);
            let there = all.entry(name.to_owned()).or_default();
            *there = (*there).max(healthy);
        }
        all
    }

    /// Devices that containers have, by resource.
    #[must_use]
    pub fn held(&self) -> BTreeMap<String, i64> {
        let books = self.books();
        let mut ids: BTreeMap<String, Ids> = BTreeMap::new();
        for (resource, allocation) in books.entries().values().flat_map(BTreeMap::values).flatten() {
            ids.entry(resource.clone()).or_default().extend(allocation.ids());
        }
        ids.into_iter().map(|(name, ids)| (name, i64::try_from(ids.len()).unwrap_or(i64::MAX))).collect()
    }

    /// Adds to the status what the containers have and how it is.
    pub fn describe(&self, uid: &str, status: &mut PodStatus) {
        let books = self.books();
        for container in status.container_statuses.iter_mut().flatten() {
            let Some(held) = books.of_container(uid, &container.name).filter(|h| !h.is_empty()) else {
                continue;
            };
            let health = |resource: &str, id: String| {
                let health = if books.is_healthy(resource, &id) { "Healthy" } else { "Unhealthy" };
                ResourceHealth {
                    health: Some(health.to_owned()),
                    resource_id: id,
                    ..ResourceHealth::default()
                }
            };
            let of = |(resource, allocation): (&String, &Allocation)| ResourceStatus {
                name: resource.clone(),
                resources: Some(allocation.ids().into_iter().map(|id| health(resource, id)).collect()),
            };
            container.allocated_resources_status = Some(held.iter().map(of).collect());
        }
    }

    /// Whether a plugin may register under this name and version, or in upstream's words why not.
    fn check(resource: &str, versions: &[&str]) -> Result<(), String> {
        if !versions.contains(&VERSION) {
            let all = versions.join(" ");
            return Err(format!(
                "manager version, {VERSION}, is not among plugin supported versions [{all}]"
            ));
        }
        if !is_extended(resource) {
            return Err(format!(
                "invalid name of device plugin socket: the ResourceName {resource:?} is invalid"
            ));
        }
        Ok(())
    }

    /// Lets a plugin in: asks what it can, and follows its devices until it goes.
    async fn connect(self: &Arc<Self>, resource: &str, socket: &Path) -> Result<(), String> {
        let plugin = DevicePlugin::new(socket);
        let options =
            plugin.options().await.map_err(|e| format!("failed to get device plugin options: {e}"))?;
        let over = self.token.child_token();
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let connected = Connected { plugin: plugin.clone(), options, serial, over: over.clone() };
        let before = self.plugins().insert(resource.to_owned(), connected);
        if let Some(before) = before {
            before.over.cancel();
        }
        self.books().connected(resource);
        tracing::info!(resource, socket = %socket.display(), "device plugin registered");
        let (devices, resource) = (self.clone(), resource.to_owned());
        supervise::spawn(
            "device_plugin",
            async move { devices.follow(&resource, &plugin, serial, over).await },
        );
        Ok(())
    }

    async fn follow(&self, resource: &str, plugin: &DevicePlugin, serial: u64, over: CancellationToken) {
        let ended = over.run_until_cancelled(self.listen(resource, plugin)).await;
        if let Some(Err(error)) = ended {
            tracing::warn!(resource, %error, "device plugin gone");
        }
        {
            let mut plugins = self.plugins();
            // Another one may have come in its place.
            if plugins.get(resource).is_none_or(|p| p.serial != serial) {
                return;
            }
            plugins.remove(resource);
        }
        self.books().disconnected(resource, self.clock.now().mono);
        self.changed.send_modify(|n| *n += 1);
        self.save().await;
    }

    async fn listen(&self, resource: &str, plugin: &DevicePlugin) -> plugins::Result<()> {
        let mut stream = plugin.list_and_watch().await?;
        while let Some(list) = stream.message().await? {
            let device = |d: plugins::device::v1beta1::Device| {
                let nodes = d.topology.map(|t| t.nodes).unwrap_or_default();
                let nodes = nodes.into_iter().map(|n| n.id).collect();
                (d.id, Device { healthy: d.health == HEALTHY, nodes })
            };
            let devices: Devices = list.devices.into_iter().take(MOST_DEVICES).map(device).collect();
            tracing::info!(resource, devices = devices.len(), "devices heard of");
            self.books().heard(resource, devices);
            self.changed.send_modify(|n| *n += 1);
            self.save().await;
        }
        Ok(())
    }

    /// The devices of one container. What it has, it keeps; `runs` says that it runs already.
    pub async fn allocate(
        &self,
        pod: &PodWant,
        container: &ContainerWant,
        hint: Hint,
        runs: bool,
    ) -> Result<(), AdmissionError> {
        for (resource, count) in &container.devices {
            if !self.books().is_ours(resource) {
                continue;
            }
            let count = usize::try_from(*count).unwrap_or(usize::MAX);
            let plan = self.books().plan(&pod.uid, &container.name, resource, count, hint, runs);
            let given = match plan {
                Ok(Some(plan)) => self.ask_for(&pod.uid, &container.name, resource, &plan).await,
                Ok(None) => Ok(()),
                Err(why) => Err(why),
            };
            given.map_err(|why| AdmissionError::unexpected(&why))?;
        }
        self.books().remember(pod, &container.name);
        self.save().await;
        Ok(())
    }

    async fn ask_for(&self, uid: &str, container: &str, resource: &str, plan: &Plan) -> Result<(), String> {
        let connected = self.plugins().get(resource).cloned();
        let connected = connected.ok_or_else(|| format!("unknown Device Plugin {resource}"))?;
        let list = |ids: &Ids| ids.iter().cloned().collect::<Vec<_>>();
        let mut preferred = Ids::new();
        if let Some(ask) = plan.ask.as_ref().filter(|_| connected.options.get_preferred_allocation_available)
        {
            let asked =
                connected.plugin.preferred(list(&ask.available), list(&ask.must_include), ask.size).await;
            let answer = asked
                .map_err(|e| format!("device plugin GetPreferredAllocation rpc failed with err: {e}"))?;
            preferred.extend(answer);
        }
        let ids = self.books().choose(resource, plan, &preferred)?;
        // Whatever happens, also that nobody waits any more: what is not the container's in the end is free again.
        let _chosen = Chosen { devices: self, resource, ids: &ids };
        let begun = self.clock.now().mono;
        let answer = connected.plugin.allocate(list(&ids)).await;
        let took = self.clock.now().mono.since(begun).as_secs_f64();
        self.metrics.device_plugin_alloc_duration_seconds.observe([resource], took);
        let answer = answer.map_err(|e| e.to_string())?;
        let answer = answer.ok_or(
            "no containers return in allocation response &AllocateResponse{ContainerResponses:[]*ContainerAllocateResponse{},}",
        )?;
        self.books().insert(uid, container, resource, &ids, answer.encode_to_vec());
        Ok(())
    }

    /// The container is about to start: plugins that want to know are told.
    pub async fn pre_start(&self, uid: &str, container: &str) -> Result<(), String> {
        let held: BTreeMap<String, Ids> = {
            let books = self.books();
            let of = books.of_container(uid, container).into_iter().flatten();
            of.map(|(resource, a)| (resource.clone(), a.ids())).collect()
        };
        for (resource, ids) in held {
            let connected = self.plugins().get(&resource).cloned();
            // A container that has its devices may be started again while their plugin is away.
            let Some(connected) = connected else { continue };
            if connected.options.pre_start_required {
                let told = connected.plugin.pre_start(ids.into_iter().collect()).await;
                told.map_err(|e| format!("device plugin PreStartContainer rpc failed with err: {e}"))?;
            }
        }
        Ok(())
    }

    /// What the container's devices want of its config.
    #[must_use]
    pub fn of_container(&self, uid: &str, container: &str) -> ContainerDevices {
        let books = self.books();
        let held = books.of_container(uid, container).into_iter().flatten();
        ContainerDevices::from_answers(held.map(|(_, a)| a.answer.as_slice()))
    }

    /// Nothing of these Pods runs any more.
    pub async fn keep_only(&self, lives: impl Fn(&str) -> bool) {
        self.books().keep_only(lives);
        self.save().await;
    }

    /// Writes the checkpoint, if it says something else now.
    async fn save(&self) {
        let mut written = self.written.lock().await;
        let text = checkpoint::write(&self.books());
        if *written == text {
            return;
        }
        let (path, content) = (self.dir.join(checkpoint::FILE), text.clone());
        let done = tokio::task::spawn_blocking(move || write_whole(&path, content.as_bytes(), 0o600)).await;
        match done.map_err(io::Error::other).and_then(|done| done) {
            Ok(()) => *written = text,
            Err(error) => tracing::error!(%error, "failed to write the checkpoint of devices"),
        }
    }
}

impl std::fmt::Debug for DevicePlugins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DevicePlugins").field("dir", &self.dir).finish_non_exhaustive()
    }
}
