//! The node as the cluster sees it: its object, its lease, its CSINode and what happens to it.
//!
//! | task | does |
//! |---|---|
//! | reporter | registers the node, keeps its status true, tells the runtime the Pod network |
//! | lease | renews the heartbeat |
//! | csi_node | enters the node among those that can mount |
//!
//! None of them touches a Pod. While the API server is away they wait, and nothing else happens.

mod csi_node;
mod lease;
mod look;
pub mod memory_release;
mod reporter;
pub mod shutdown;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::config::gates::Gates;
use api::config::kubelet::Loaded;
use k8s_openapi::api::core::v1::Taint;
use kubelet_core::dispatch::Known;
use kubelet_core::node::NodeEvent;
use kubelet_core::node::capacity::{PodLimit, Reserved};
use kubelet_core::node::register::Registration;
use kubelet_core::node::status::{Fixed, Identity};
use supervise::Supervisor;
use tokio::sync::watch;

use crate::cluster::Cluster;
use crate::cluster::node_events::NodeEvents;
use crate::host::facts::Machine;
use crate::host::identity::{MachineIdentity, read_identity};
use crate::pods::node::Node;
use crate::pods::pod_files::PodDirs;
use crate::start_error::StartError;

/// Gates of features that a scheduler may count on, as far as this kubelet has them.
const DECLARED: [&str; 4] = [
    "ExtendWebSocketsToKubelet",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
];

/// What the parts that join the node to its cluster may look at.
#[derive(Debug)]
pub struct ClusterDeps<'a> {
    pub cluster: &'a Arc<Cluster>,
    pub node: &'a Arc<Node>,
    /// The Pods that have a task or an owner.
    pub known: watch::Receiver<Arc<Known>>,
    pub loaded: &'a Loaded,
    pub dirs: &'a PodDirs,
    pub machine: &'a Machine,
    /// `v1.36.4`
    pub version: &'a str,
    pub tasks: &'a Supervisor,
}

/// Starts all of it; returns where to tell what happens to the node.
pub(crate) fn start(w: &ClusterDeps<'_>) -> Result<NodeEvents, StartError> {
    let events = NodeEvents::new(w.node.recorder.clone(), w.cluster.node_name.clone());
    let (csi, storage) = csi_node::task(w.cluster.clone(), w.node.rng_for("CSINode"));
    w.tasks.lasting("csi_node", csi, csi_node::Task::run);
    let seconds = w.loaded.config.node_lease_duration_seconds;
    let lease =
        lease::Renewal::new(w.cluster.clone(), w.node.clock.clone(), seconds, w.node.rng_for("lease"));
    w.tasks.lasting("lease", lease, lease::Renewal::run);
    let identity = read_identity();
    let fixed = fixed(w, &identity);
    let look = look::Look::new(w, &fixed, storage);
    let reporter = reporter::Reporter::new(reporter::ReporterDeps {
        cluster: w.cluster.clone(),
        node: w.node.clone(),
        registration: w.loaded.config.register_node.then(|| registration(w, &fixed.name)),
        update_frequency: w.loaded.config.node_status_update_frequency.to_std(),
        report_frequency: w.loaded.config.node_status_report_frequency.to_std(),
        fixed,
        look,
        events: events.clone(),
        boot_age: identity.boot_age,
    });
    w.tasks.lasting("node_status", reporter, reporter::Reporter::run);
    events.tell(NodeEvent {
        warning: false,
        reason: "Starting".to_owned(),
        message: "Starting kubelet.".to_owned(),
    });
    if !w.machine.cgroup_v2 {
        events.tell(NodeEvent {
            warning: true,
            reason: "CgroupV1".to_owned(),
            message: "cgroup v1 detected. cgroup v1 support is deprecated and will be removed in a future release. Please migrate to cgroup v2. More information at https://git.k8s.io/enhancements/keps/sig-node/5573-remove-cgroup-v1".to_owned(),
        });
    }
    Ok(events)
}

/// What the Node object declares, in order; none with the gate off.
pub fn declared_features(gates: &Gates) -> Option<Vec<String>> {
    let mut declared: Vec<String> =
        DECLARED.iter().filter(|gate| gates.enabled(gate)).map(|gate| (*gate).to_owned()).collect();
    declared.sort_unstable();
    gates.enabled("NodeDeclaredFeatures").then_some(declared)
}

fn fixed(w: &ClusterDeps<'_>, identity: &MachineIdentity) -> Fixed {
    let Loaded { config, flags, gates, .. } = w.loaded;
    let declared = declared_features(gates).unwrap_or_default();
    Fixed {
        name: w.cluster.node_name.to_string(),
        identity: Identity {
            machine_id: identity.machine_id.clone(),
            system_uuid: identity.system_uuid.clone(),
            boot_id: identity.boot_id.clone(),
            os_image: identity.os_image.clone(),
            kernel: w.machine.kernel.clone(),
            arch: crate::host::facts::go_arch().to_owned(),
            kubelet_version: w.version.to_owned(),
            swap: w.machine.memory.swap,
        },
        pods: Some(PodLimit { max: i64::from(config.max_pods), per_core: i64::from(config.pods_per_core) }),
        reserved: Reserved::new(config, flags.experimental_allocatable_ignore_eviction),
        port: if config.enable_server { config.port } else { 0 },
        max_images: usize::try_from(config.node_status_max_images).ok(),
        declared,
        counts_storage: config.local_storage_capacity_isolation,
    }
}

fn registration(w: &ClusterDeps<'_>, name: &str) -> Registration {
    let Loaded { config, flags, .. } = w.loaded;
    let taints = config.register_with_taints.iter().map(|t| Taint {
        key: t.key.clone(),
        value: Some(t.value.clone()).filter(|v| !v.is_empty()),
        effect: t.effect.clone(),
        time_added: None,
    });
    Registration {
        hostname: name.to_owned(),
        labels: flags.node_labels.clone(),
        taints: taints.collect(),
        provider_id: config.provider_id.clone(),
        controller_attach: config.enable_controller_attach_detach,
        external_cloud: flags.cloud_provider == "external",
        without_devices: !has_device_book(&w.dirs.root),
    }
}

/// Where upstream's kubelet keeps book of devices, there is a file beside its socket.
fn has_device_book(root: &Path) -> bool {
    let entries = std::fs::read_dir(root.join("device-plugins")).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
}

/// Keeps a repeated complaint out of the log: the first at once, then one a minute.
#[derive(Clone, Debug, Default)]
struct Complaint {
    last: Option<tokio::time::Instant>,
}

// === impl Complaint ===

impl Complaint {
    const EVERY: Duration = Duration::from_secs(60);

    fn log(&mut self, error: &dyn std::fmt::Display, what: &'static str) {
        if self.last.is_none_or(|at| at.elapsed() >= Self::EVERY) {
            self.last = Some(tokio::time::Instant::now());
            tracing::warn!(%error, what, "the API server was not told");
        } else {
            tracing::debug!(%error, what, "the API server was not told");
        }
    }

    /// It works again: the next trouble is news.
    fn clear(&mut self, what: &'static str) {
        if self.last.take().is_some() {
            tracing::info!(what, "the API server was told again");
        }
    }
}
