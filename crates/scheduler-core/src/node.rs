//! A node: what the object says, and what stands on it.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;

use crate::classes::ClassId;
use crate::labels::Labels;
use crate::pod::{Effect, Pod, Port, Toleration};
use crate::resources::Resources;
use crate::{Key, Name};

pub const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONES: [&str; 2] = ["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"];
const REGIONS: [&str; 2] = ["topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"];

/// What is known of a Node. Made once for each change of the object.
#[derive(Clone, Debug, Default)]
pub struct Node {
    pub name: Name,
    pub labels: Labels,
    pub is_unschedulable: bool,
    pub taints: Vec<Taint>,
    pub allocatable: Resources,
    pub allowed_pods: i64,
    /// Names of images with their sizes, sorted by name.
    pub images: Vec<(Name, i64)>,
    pub features: Vec<Name>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taint {
    pub key: Name,
    pub value: Name,
    pub effect: Effect,
}

/// A node with all that stands on it, assumed Pods among them.
#[derive(Clone, Debug, Default)]
pub struct NodeInfo {
    /// Its place in the cluster's table.
    pub index: usize,
    /// None while only Pods speak of it.
    pub node: Option<Arc<Node>>,
    pub pods: Vec<Arc<Pod>>,
    pub requested: Resources,
    /// As the scores count them.
    pub score_requested: Resources,
    pub ports: Vec<Port>,
    pub classes: Vec<ClassCount>,
    /// Pods with any inter-pod term.
    pub with_affinity: usize,
    pub with_required_anti_affinity: usize,
}

/// How many Pods of a class stand on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassCount {
    pub class: ClassId,
    pub all: i64,
    pub terminating: i64,
}

// === impl Node ===

impl Node {
    #[must_use]
    pub fn read(node: &core::Node) -> Node {
        let status = node.status.as_ref();
        let allocatable = status.and_then(|s| s.allocatable.as_ref());
        let pods = allocatable.and_then(|list| list.get("pods"));
        let pods = pods.and_then(|q| api::pod::Amount::parse(&q.0).ok());
        let spec = node.spec.as_ref();
        let mut images: Vec<(Name, i64)> = status
            .and_then(|s| s.images.as_ref())
            .into_iter()
            .flatten()
            .flat_map(|i| i.names.iter().flatten().map(|n| (n.as_str().into(), i.size_bytes.unwrap_or(0))))
            .collect();
        images.sort();
        images.dedup_by(|a, b| a.0 == b.0);
        let features = status.and_then(|s| s.declared_features.as_ref());
        Node {
            name: node.metadata.name.as_deref().unwrap_or_default().into(),
            labels: Labels::from(node.metadata.labels.as_ref()),
            is_unschedulable: spec.and_then(|s| s.unschedulable).unwrap_or_default(),
            taints: spec
                .and_then(|s| s.taints.as_ref())
                .into_iter()
                .flatten()
                .filter_map(Taint::read)
                .collect(),
            allocatable: Resources::read(allocatable),
            allowed_pods: pods.map_or(0, |p| p.value()),
            images,
            features: features.into_iter().flatten().map(|f| f.as_str().into()).collect(),
        }
    }

    /// Nodes with the same answer share their fate: region and zone.
    #[must_use]
    pub fn zone(&self) -> (Name, Name) {
        let find =
            |keys: [&str; 2]| keys.iter().find_map(|k| self.labels.get(k).cloned()).unwrap_or_default();
        (find(REGIONS), find(ZONES))
    }

    /// The first taint that keeps such a Pod away.
    #[must_use]
    pub fn untolerated(&self, tolerations: &[Toleration]) -> Option<&Taint> {
        self.taints.iter().find(|t| t.effect != Effect::PreferNoSchedule && !t.is_tolerated(tolerations))
    }

    #[must_use]
    pub fn image_size(&self, name: &str) -> Option<i64> {
        let at = self.images.binary_search_by(|(known, _)| known.as_ref().cmp(name)).ok()?;
        self.images.get(at).map(|(_, size)| *size)
    }
}

// === impl Taint ===

impl Taint {
    fn read(taint: &core::Taint) -> Option<Taint> {
        let value = taint.value.as_deref().unwrap_or_default().into();
        Some(Taint { key: taint.key.as_str().into(), value, effect: Effect::read(&taint.effect)? })
    }

    #[must_use]
    pub fn is_tolerated(&self, tolerations: &[Toleration]) -> bool {
        tolerations.iter().any(|t| t.tolerates(&self.key, &self.value, self.effect))
    }
}

// === impl NodeInfo ===

impl NodeInfo {
    pub fn add(&mut self, pod: Arc<Pod>, class: ClassId) {
        self.requested.add(&pod.requests);
        self.score_requested.add(&pod.score_requests);
        self.ports.extend(pod.ports.iter().cloned());
        self.with_affinity += usize::from(!pod.class.affinity.is_empty());
        self.with_required_anti_affinity += usize::from(!pod.class.affinity.required_anti.is_empty());
        self.count(class, 1, i64::from(pod.is_terminating));
        self.pods.push(pod);
    }

    /// Takes a Pod away; tells whether it was there.
    pub fn remove(&mut self, uid: &Name, class: ClassId) -> bool {
        let Some(at) = self.pods.iter().position(|p| p.uid == *uid) else { return false };
        let pod = self.pods.swap_remove(at);
        self.requested.subtract(&pod.requests);
        self.score_requested.subtract(&pod.score_requests);
        for port in &pod.ports {
            if let Some(at) = self.ports.iter().position(|p| p == port) {
                self.ports.swap_remove(at);
            }
        }
        self.with_affinity -= usize::from(!pod.class.affinity.is_empty());
        self.with_required_anti_affinity -= usize::from(!pod.class.affinity.required_anti.is_empty());
        self.count(class, -1, -i64::from(pod.is_terminating));
        true
    }

    fn count(&mut self, class: ClassId, all: i64, terminating: i64) {
        match self.classes.iter_mut().find(|c| c.class == class) {
            Some(known) => {
                known.all += all;
                known.terminating += terminating;
            }
            None => self.classes.push(ClassCount { class, all, terminating }),
        }
        self.classes.retain(|c| c.all > 0);
    }

    #[must_use]
    pub fn name(&self) -> &str {
        self.node.as_ref().map_or("", |n| &n.name)
    }

    /// Whether a Pod on it mounts the claim.
    #[must_use]
    pub fn uses(&self, claim: &Key) -> bool {
        let uses = |pod: &Arc<Pod>| {
            pod.key.namespace == claim.namespace && pod.claim_names().any(|(name, _)| *name == claim.name)
        };
        self.pods.iter().any(uses)
    }
}
