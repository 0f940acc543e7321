//! What every Pod task shares: the ports, the clock, the settings. Built once, never changed.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::quantity::Quantity;
use base::rng::Rng;
use base::time::{Clock, Now};
use cri::v1;
use k8s_openapi::api::core::v1::{Node as NodeObject, Pod};
use kubelet_core::admission::{NodeOffer, Rejection};
use kubelet_core::cri_config;
use kubelet_core::node::capacity::is_extended;
use kubelet_core::node::conditions::Pressures;
use tokio::sync::watch;

use crate::cluster::own_node::OwnNodeView;
use crate::events::{EventType, Recorder};
use crate::host::userns::UsernsStore;
use crate::images::ImagePuller;
use crate::metrics::Metrics;
use crate::placement::Places;
use crate::pods::host_ips::HostIps;
use crate::pods::prober::Prober;
use crate::pods::records::ResourceRecords;
use crate::pods::status_board::StatusBoard;
use crate::ports::{Cgroups, Net, Objects, PodFiles, Runtime, Volumes};
use crate::runtime::health::{RuntimeHealth, features_of};
use crate::runtime::observer::Observer;

/// The node as its Pods see it.
pub struct Node {
    pub runtime: Arc<dyn Runtime>,
    pub volumes: Arc<dyn Volumes>,
    pub objects: Arc<dyn Objects>,
    pub files: Arc<dyn PodFiles>,
    pub cgroups: Arc<dyn Cgroups>,
    /// What Pods were granted, and what their cgroups were last told.
    pub records: Arc<ResourceRecords>,
    pub net: Arc<dyn Net>,
    pub clock: Arc<dyn Clock>,
    pub recorder: Recorder,
    pub metrics: Arc<Metrics>,
    pub observer: Arc<Observer>,
    pub images: Arc<ImagePuller>,
    pub prober: Arc<Prober>,
    pub board: Arc<StatusBoard>,
    /// Id ranges for Pods with hostUsers=false; none where the node grants none.
    pub userns: Option<Arc<UsernsStore>>,
    pub health: watch::Receiver<RuntimeHealth>,
    pub facts: NodeFacts,
    pub offer: NodeOffer,
    /// This node's object, where there is an API server: its labels and taints are what counts.
    pub own: Option<OwnNodeView>,
    pub host_ips: HostIps,
    /// The machine is going down: nobody is let in any more.
    pub shutting_down: watch::Sender<bool>,
    /// What the node is short of, as eviction sees it.
    pub pressures: watch::Sender<Pressures>,
    /// Which CPUs and which memory containers have.
    pub places: Arc<Places>,
    pub settings: PodSettings,
}

/// What is true of the machine and its runtime.
#[derive(Clone, Debug, Default)]
pub struct NodeFacts {
    /// `containerd`, from CRI Version; the scheme of container ids.
    pub runtime_name: String,
    /// The runtime's handlers as it told them at the start, until `health` knows better.
    pub handlers: Vec<v1::RuntimeHandler>,
    /// The runtime knows supplementalGroupsPolicy Strict, or did at the start.
    pub strict_groups: bool,
    pub cri_config: cri_config::NodeFacts,
}

/// What the configuration says about running Pods.
#[derive(Clone, Debug)]
pub struct PodSettings {
    pub cri_config: cri_config::CriSettings,
    pub sync_frequency: Duration,
    /// The first wait of a container that keeps ending, and the longest.
    pub restart_period: (Duration, Duration),
    /// Seed of the jitter each Pod task draws from.
    pub seed: u64,
}

impl Default for PodSettings {
    fn default() -> Self {
        Self {
            cri_config: cri_config::CriSettings::default(),
            sync_frequency: Duration::from_secs(60),
            restart_period: (Duration::from_secs(10), Duration::from_secs(300)),
            seed: 0,
        }
    }
}

// === impl Node ===

impl Node {
    #[must_use]
    pub fn now(&self) -> Now {
        self.clock.now()
    }

    /// What the node offers, with labels and taints as the API server has them; until it is registered, as
    /// it will be. The runtime may have been replaced since the start.
    pub(super) fn offer_now(&self) -> Cow<'_, NodeOffer> {
        let object = self.own.as_ref().and_then(OwnNodeView::object);
        let (shutting_down, pressures) = (*self.shutting_down.borrow(), *self.pressures.borrow());
        let strict_groups = {
            let health = self.health.borrow();
            if health.answered { health.groups_policy == Some(true) } else { self.offer.strict_groups }
        };
        let devices = self.places.devices().map(|d| d.offered()).unwrap_or_default();
        let is_calm = !shutting_down && pressures == Pressures::default() && devices.is_empty();
        if object.is_none() && is_calm && strict_groups == self.offer.strict_groups {
            return Cow::Borrowed(&self.offer);
        }
        let mut offer = NodeOffer { shutting_down, strict_groups, pressures, ..self.offer.clone() };
        offer.extended.extend(devices.clone());
        let Some(object) = object else { return Cow::Owned(offer) };
        offer.labels = object.metadata.labels.clone().unwrap_or_default();
        offer.taints = object.spec.as_ref().and_then(|s| s.taints.clone()).unwrap_or_default();
        offer.extended = extended(&object);
        // Pods that have their devices stay, whatever their plugin says of itself just now.
        for (name, held) in self.places.devices().map(|d| d.held()).unwrap_or_default() {
            let there = offer.extended.entry(name).or_default();
            *there = (*there).max(held);
        }
        Cow::Owned(offer)
    }

    /// What CRI configs have to know of the machine, with its addresses as they are now.
    #[must_use]
    pub fn cri_config_facts(&self) -> cri_config::NodeFacts {
        cri_config::NodeFacts { host_ips: self.host_ips.now(), ..self.facts.cri_config.clone() }
    }

    /// What a handler of the runtime can do, as the runtime last told.
    #[must_use]
    pub fn handler(&self, name: &str) -> cri_config::HandlerFeatures {
        let health = self.health.borrow();
        let told = if health.answered { &health.handlers } else { &self.facts.handlers };
        features_of(told, name)
    }

    /// Tells the user that it may not.
    pub fn reject(&self, pod: &Pod, rejection: &Rejection) {
        self.metrics.admission_rejections_total.inc([rejection.label()]);
        self.recorder.pod(pod, EventType::Warning, &rejection.reason, &rejection.message);
    }

    /// A generator for one Pod: the same node seed and Pod give the same draws.
    #[must_use]
    pub fn rng_for(&self, uid: &str) -> Rng {
        Rng::new(self.settings.seed ^ u64::from(base::fnv::fnv1a32(uid.as_bytes())))
    }
}

/// Resources beyond the machine's own that the object says there are.
fn extended(node: &NodeObject) -> BTreeMap<String, i64> {
    let allocatable = node.status.iter().flat_map(|s| s.allocatable.iter().flatten());
    allocatable
        .filter(|(name, _)| is_extended(name))
        .filter_map(|(name, q)| Some((name.clone(), q.0.parse::<Quantity>().ok()?.value())))
        .collect()
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("name", &self.facts.cri_config.name).finish_non_exhaustive()
    }
}
