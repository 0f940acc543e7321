//! What the loop knows, and how news change it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use base::rng::Rng;
use base::time::Mono;
use client::Client;
use scheduler_core::cluster::Cluster;
use scheduler_core::cycle::Sampling;
use scheduler_core::event::{Action, Event, Resource};
use scheduler_core::extender::Objects;
use scheduler_core::objects::Selecting;
use scheduler_core::pod::Pod;
use scheduler_core::profile::Profiles;
use scheduler_core::queue::Queue;
use scheduler_core::{Key, Name};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::bind::{Outcome, PreBind};
use crate::events::Recorder;
use crate::extenders::Extenders;
use crate::informers::{News, Workload};
use crate::metrics::Metrics;
use crate::seen::Seen;

/// Everything the one loop owns.
#[derive(Debug)]
pub(crate) struct Scheduler {
    pub(crate) client: Client,
    pub(crate) profiles: Arc<Profiles>,
    pub(crate) cluster: Cluster,
    pub(crate) queue: Queue,
    /// Every Pod there is, by name: what was last heard of it.
    pub(crate) pods: HashMap<Key, Arc<Pod>>,
    pub(crate) sampling: Sampling,
    pub(crate) rng: Rng,
    pub(crate) recorder: Recorder,
    pub(crate) extenders: Extenders,
    /// What extenders are shown; empty where there are none.
    pub(crate) objects: Objects,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) seen: Seen,
    pub(crate) outcomes: mpsc::Sender<Outcome>,
    /// Bindings under way.
    pub(crate) binding: usize,
    /// Those of them that still wait for volumes, by Pod.
    pub(crate) pre_binding: HashMap<Name, Arc<PreBind>>,
    /// Resources that were not told whole yet: nothing is decided before.
    pub(crate) unsynced: BTreeSet<&'static str>,
    pub(crate) began: Instant,
}

// === impl Scheduler ===

impl Scheduler {
    pub(crate) fn now(&self) -> Mono {
        // The first second is not the zeroth, so that nothing is due at the very beginning.
        Mono(self.began.elapsed() + std::time::Duration::from_secs(1))
    }

    pub(crate) fn hear(&mut self, news: News) {
        match news {
            News::Pod(pod, raw) => {
                if let Some(raw) = raw {
                    self.objects.pods.insert(pod.uid.clone(), raw);
                }
                self.set_pod(Arc::new(*pod));
            }
            News::PodGone(key) => self.remove_pod(&key),
            News::Node(node, raw) => {
                if let Some(raw) = raw {
                    self.objects.nodes.insert(node.name.clone(), raw);
                }
                let (old, new) = self.cluster.set_node(*node);
                if let Some(event) = Event::of_node(old, Some(new)) {
                    self.happened(&event);
                }
            }
            News::NodeGone(name) => {
                self.objects.nodes.remove(&name);
                if let Some(event) =
                    self.cluster.remove_node(&name).and_then(|old| Event::of_node(Some(old), None))
                {
                    self.happened(&event);
                }
            }
            News::Claim(claim) => {
                let (old, new) = self.cluster.storage.set_claim(claim);
                self.happened(&Event::of_claim(old, Some(new)));
            }
            News::ClaimGone(key) => _ = self.cluster.storage.remove_claim(&key),
            News::Volume(volume) => {
                let (old, new) = self.cluster.storage.set_volume(volume);
                self.happened(&Event::of_volume(old, new));
            }
            News::VolumeGone(name) => _ = self.cluster.storage.remove_volume(&name),
            News::Budget(budget) => _ = self.cluster.budgets.insert(budget.key.clone(), budget),
            News::BudgetGone(key) => _ = self.cluster.budgets.remove(&key),
            News::Namespace(name, labels) => _ = self.cluster.namespaces.insert(name, labels),
            News::NamespaceGone(name) => _ = self.cluster.namespaces.remove(&name),
            News::Workload(kind, selecting) => {
                _ = self.workloads(kind).insert(selecting.key.clone(), selecting);
            }
            News::WorkloadGone(kind, key) => _ = self.workloads(kind).remove(&key),
            News::Synced(resource) => {
                self.unsynced.remove(resource);
                if self.unsynced.is_empty() {
                    self.seen.set_synced();
                }
            }
            other => self.hear_of_storage(other),
        }
    }

    fn hear_of_storage(&mut self, news: News) {
        let storage = &mut self.cluster.storage;
        match news {
            News::Class(class) => {
                let class = Arc::new(class);
                let old = storage.classes.insert(class.name.clone(), class.clone());
                self.happened(&Event::of_class(old, class));
            }
            News::ClassGone(name) => _ = storage.classes.remove(&name),
            News::CsiNode(node) => {
                let node = Arc::new(node);
                let old = storage.csi_nodes.insert(node.name.clone(), node.clone());
                self.happened(&Event::of_csi_node(old, Some(node)));
            }
            News::CsiNodeGone(name) => _ = storage.csi_nodes.remove(&name),
            News::Driver(driver) => {
                let old = storage.drivers.insert(driver.name.clone(), Arc::new(driver));
                self.other(Resource::CsiDriver, old.is_some());
            }
            News::DriverGone(name) => _ = storage.drivers.remove(&name),
            News::Capacity(capacity) => {
                let capacity = Arc::new(capacity);
                let old = storage.capacities.insert(capacity.key.clone(), capacity.clone());
                self.happened(&Event::of_capacity(old, capacity));
            }
            News::CapacityGone(key) => _ = storage.capacities.remove(&key),
            News::Attachment(attachment) => {
                let attachment = Arc::new(attachment);
                let old = storage.attachments.insert(attachment.name.clone(), attachment.clone());
                self.happened(&Event::of_attachment(old, Some(attachment)));
            }
            News::AttachmentGone(name) => {
                if let Some(old) = storage.attachments.remove(&name) {
                    self.happened(&Event::of_attachment(Some(old), None));
                }
            }
            _ => {}
        }
    }

    fn workloads(&mut self, kind: Workload) -> &mut HashMap<Key, Selecting> {
        let all = &mut self.cluster.workloads;
        match kind {
            Workload::Service => &mut all.services,
            Workload::ReplicationController => &mut all.replication_controllers,
            Workload::ReplicaSet => &mut all.replica_sets,
            Workload::StatefulSet => &mut all.stateful_sets,
        }
    }

    fn other(&mut self, resource: Resource, was_known: bool) {
        let action = if was_known { Action::UPDATE } else { Action::ADD };
        self.happened(&Event::of_other(resource, action));
    }

    pub(crate) fn happened(&mut self, event: &Event) {
        let now = self.now();
        self.queue.happened(event, &self.cluster, now);
    }

    fn set_pod(&mut self, pod: Arc<Pod>) {
        let mut known = self.pods.insert(pod.key.clone(), pod.clone());
        if let Some(other) = known.take_if(|known| known.uid != pod.uid) {
            self.forget_pod(&other);
        }
        if pod.is_bound() {
            self.queue.remove(&pod.uid);
            self.cluster.nominations.remove(&pod.uid);
            let was_assumed = self.cluster.is_assumed(&pod.uid);
            let (old, new) = self.cluster.set_pod((*pod).clone());
            // For who waits, an assumed Pod was never there.
            self.happened(&Event::of_pod(old.filter(|_| !was_assumed), Some(new)));
            return;
        }
        if self.profiles.get(&pod.scheduler).is_none() {
            return;
        }
        // What the API server says before it has heard of our binding is old.
        if self.cluster.is_assumed(&pod.uid) {
            return;
        }
        self.cluster.nominations.set(pod.clone(), &pod.nominated.clone());
        let now = self.now();
        self.queue.set(pod.clone(), &self.cluster, now);
        // The node it was promised is for others again.
        if let Some(old) = known.filter(|old| !old.nominated.is_empty() && old.nominated != pod.nominated) {
            self.freed(&old);
        }
    }

    fn remove_pod(&mut self, key: &Key) {
        if let Some(pod) = self.pods.remove(key) {
            self.forget_pod(&pod);
        }
    }

    fn forget_pod(&mut self, pod: &Arc<Pod>) {
        self.objects.pods.remove(&pod.uid);
        self.queue.remove(&pod.uid);
        let nominated = self.cluster.nominations.remove(&pod.uid);
        match self.cluster.remove_pod(&pod.uid) {
            Some(gone) => self.happened(&Event::of_pod(Some(gone), None)),
            None if nominated.is_some() => self.freed(pod),
            None => {}
        }
    }

    /// A nomination has ended: to Pods that are not more important it is as if the Pod had left the node.
    fn freed(&mut self, pod: &Arc<Pod>) {
        let now = self.now();
        let event = Event::of_pod(Some(pod.clone()), None);
        self.queue.happened_to(&event, &self.cluster, now, |waiting| waiting.priority <= pod.priority);
    }

    /// The Pod as the API server last told it, if it is still the same one.
    pub(crate) fn fresh(&self, key: &Key, uid: &Name) -> Option<&Arc<Pod>> {
        self.pods.get(key).filter(|pod| pod.uid == *uid)
    }
}
