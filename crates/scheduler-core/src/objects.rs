//! Everything else the decisions look at: storage, budgets, namespaces, and the owners of Pods.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use api::pod::Amount;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1 as storage;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use crate::labels::{Labels, NodeSelector, Selector};
use crate::migration::{self, Handle};
use crate::{Key, Name};

pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
pub const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
const MIGRATED: &str = "storage.alpha.kubernetes.io/migrated-plugins";
const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub key: Key,
    pub uid: Name,
    pub version: Name,
    /// Empty for none.
    pub volume: Name,
    /// None where nothing was said: the default class has not been set yet.
    pub class: Option<Name>,
    pub attributes_class: Option<Name>,
    pub modes: Vec<Name>,
    pub is_block: bool,
    pub request: i64,
    pub selector: Option<Selector>,
    pub selected_node: Option<Name>,
    pub is_bind_completed: bool,
    pub is_lost: bool,
    pub is_terminating: bool,
    /// The Pod that controls it, if one does.
    pub owner: Option<Name>,
}

/// A PersistentVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    pub name: Name,
    pub version: Name,
    pub labels: Labels,
    pub capacity: i64,
    pub class: Name,
    pub attributes_class: Option<Name>,
    pub modes: Vec<Name>,
    pub is_block: bool,
    pub affinity: Option<NodeSelector>,
    pub claim: Option<ClaimRef>,
    pub is_available: bool,
    pub is_terminating: bool,
    /// Driver and handle.
    pub csi: Option<Handle>,
    /// The same of a volume of an old kind that its driver took over.
    pub migrated: Option<Handle>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRef {
    pub key: Key,
    /// Empty where it was bound by hand before the claim was there.
    pub uid: Name,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageClass {
    pub name: Name,
    pub provisioner: Name,
    pub waits_for_consumer: bool,
    /// None: everywhere.
    pub topologies: Option<Vec<Topology>>,
}

/// Labels of a node, each with the values it may have.
pub type Topology = Vec<(Name, Vec<Name>)>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsiNode {
    pub name: Name,
    /// How many volumes each driver can attach.
    pub limits: BTreeMap<Name, Option<i64>>,
    /// Old plugins whose work drivers do on this node, as the node lists them.
    pub migrated: Name,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsiDriver {
    pub name: Name,
    pub tracks_capacity: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    pub key: Key,
    pub class: Name,
    pub topology: Selector,
    /// The largest volume, where it is known.
    pub limit: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    pub name: Name,
    pub node: Name,
    pub attacher: Name,
    pub volume: Option<Name>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    pub key: Key,
    pub selector: Selector,
    pub allowed: i64,
    pub disrupted: Vec<Name>,
}

/// What a Service, ReplicationController, ReplicaSet or StatefulSet selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selecting {
    pub key: Key,
    pub selector: Selector,
}

/// Storage objects by name, and what was assumed of them.
#[derive(Clone, Debug, Default)]
pub struct Storage {
    pub claims: HashMap<Key, Arc<Claim>>,
    pub volumes: HashMap<Name, Arc<Volume>>,
    pub classes: HashMap<Name, Arc<StorageClass>>,
    pub csi_nodes: HashMap<Name, Arc<CsiNode>>,
    pub drivers: HashMap<Name, Arc<CsiDriver>>,
    pub capacities: HashMap<Key, Arc<Capacity>>,
    pub attachments: HashMap<Name, Arc<Attachment>>,
    /// Volumes that are promised to claims, until the API server says so too.
    assumed_volumes: HashMap<Name, Arc<Volume>>,
    /// Claims with a node, until the API server says so too.
    assumed_claims: HashMap<Key, Arc<Claim>>,
}

/// Owners by kind.
#[derive(Clone, Debug, Default)]
pub struct Workloads {
    pub services: HashMap<Key, Selecting>,
    pub replication_controllers: HashMap<Key, Selecting>,
    pub replica_sets: HashMap<Key, Selecting>,
    pub stateful_sets: HashMap<Key, Selecting>,
}

fn text(text: &Option<String>) -> Name {
    text.as_deref().unwrap_or_default().into()
}

fn key(meta: &ObjectMeta) -> Key {
    Key { namespace: text(&meta.namespace), name: text(&meta.name) }
}

fn whole(quantity: &Quantity) -> i64 {
    Amount::parse(&quantity.0).unwrap_or_default().value()
}

fn annotation<'a>(meta: &'a ObjectMeta, name: &str) -> Option<&'a String> {
    meta.annotations.as_ref().and_then(|all| all.get(name))
}

fn names(all: Option<&Vec<String>>) -> Vec<Name> {
    all.into_iter().flatten().map(|n| n.as_str().into()).collect()
}

// === impl Claim ===

impl Claim {
    #[must_use]
    pub fn read(claim: &core::PersistentVolumeClaim) -> Claim {
        let (meta, spec) = (&claim.metadata, claim.spec.clone().unwrap_or_default());
        let request = spec.resources.as_ref().and_then(|r| r.requests.as_ref()?.get("storage").map(whole));
        let beta = annotation(meta, BETA_CLASS);
        let owner = meta.owner_references.iter().flatten().find(|o| o.controller == Some(true));
        Claim {
            key: key(meta),
            uid: text(&meta.uid),
            version: text(&meta.resource_version),
            volume: text(&spec.volume_name),
            class: beta.or(spec.storage_class_name.as_ref()).map(|c| c.as_str().into()),
            attributes_class: spec.volume_attributes_class_name.as_deref().map(Name::from),
            modes: names(spec.access_modes.as_ref()),
            is_block: spec.volume_mode.as_deref() == Some("Block"),
            request: request.unwrap_or(0),
            selector: spec.selector.as_ref().map(|s| Selector::read(Some(s))),
            selected_node: annotation(meta, SELECTED_NODE).map(|n| n.as_str().into()),
            is_bind_completed: annotation(meta, BIND_COMPLETED).is_some(),
            is_lost: claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Lost"),
            is_terminating: meta.deletion_timestamp.is_some(),
            owner: owner.map(|o| o.uid.as_str().into()),
        }
    }

    /// Claim and volume know each other.
    #[must_use]
    pub fn is_fully_bound(&self) -> bool {
        !self.volume.is_empty() && self.is_bind_completed
    }

    #[must_use]
    pub fn is_exclusive(&self) -> bool {
        self.modes.iter().any(|m| **m == *"ReadWriteOncePod")
    }
}

// === impl Volume ===

impl Volume {
    #[must_use]
    pub fn read(volume: &core::PersistentVolume) -> Volume {
        let (meta, spec) = (&volume.metadata, volume.spec.clone().unwrap_or_default());
        let affinity = spec.node_affinity.as_ref().and_then(|a| a.required.as_ref());
        let class = annotation(meta, BETA_CLASS).or(spec.storage_class_name.as_ref());
        Volume {
            name: text(&meta.name),
            version: text(&meta.resource_version),
            labels: Labels::from(meta.labels.as_ref()),
            capacity: spec.capacity.as_ref().and_then(|c| c.get("storage").map(whole)).unwrap_or(0),
            class: class.map(|c| c.as_str().into()).unwrap_or_default(),
            attributes_class: spec.volume_attributes_class_name.as_deref().map(Name::from),
            modes: names(spec.access_modes.as_ref()),
            is_block: spec.volume_mode.as_deref() == Some("Block"),
            affinity: affinity.map(|s| NodeSelector::read(&s.node_selector_terms)),
            claim: spec.claim_ref.as_ref().map(|r| ClaimRef {
                key: Key { namespace: text(&r.namespace), name: text(&r.name) },
                uid: text(&r.uid),
            }),
            is_available: volume.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Available"),
            is_terminating: meta.deletion_timestamp.is_some(),
            csi: spec.csi.as_ref().map(|c| (c.driver.as_str().into(), c.volume_handle.as_str().into())),
            migrated: migration::of_persistent(volume),
        }
    }

    /// Whether a node can reach it.
    #[must_use]
    pub fn is_reachable(&self, labels: &Labels, node: &Name) -> bool {
        self.affinity.as_ref().is_none_or(|s| s.matches(labels, node))
    }
}

// === impl StorageClass ===

impl StorageClass {
    #[must_use]
    pub fn read(class: &storage::StorageClass) -> StorageClass {
        let topologies = class.allowed_topologies.as_ref().filter(|all| !all.is_empty());
        StorageClass {
            name: text(&class.metadata.name),
            provisioner: class.provisioner.as_str().into(),
            waits_for_consumer: class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"),
            topologies: topologies.map(|all| {
                let terms = all.iter().map(|t| t.match_label_expressions.iter().flatten());
                terms
                    .map(|term| {
                        term.map(|e| {
                            (e.key.as_str().into(), e.values.iter().map(|v| v.as_str().into()).collect())
                        })
                        .collect()
                    })
                    .collect()
            }),
        }
    }

    /// Whether volumes of it can be made for a node. A term without expressions means no node.
    #[must_use]
    pub fn allows(&self, labels: &Labels) -> bool {
        let holds = |term: &Topology| {
            !term.is_empty()
                && term.iter().all(|(key, values)| labels.get(key).is_some_and(|v| values.contains(v)))
        };
        self.topologies.as_ref().is_none_or(|all| all.iter().any(holds))
    }
}

// === impl CsiNode ===

impl CsiNode {
    #[must_use]
    pub fn read(node: &storage::CSINode) -> CsiNode {
        let limit = |d: &storage::CSINodeDriver| d.allocatable.as_ref().and_then(|a| a.count).map(i64::from);
        let limits = node.spec.drivers.iter().map(|d| (d.name.as_str().into(), limit(d))).collect();
        let migrated = annotation(&node.metadata, MIGRATED).map_or("", String::as_str).into();
        CsiNode { name: text(&node.metadata.name), limits, migrated }
    }
}

// === impl CsiDriver ===

impl CsiDriver {
    #[must_use]
    pub fn read(driver: &storage::CSIDriver) -> CsiDriver {
        let tracks_capacity = driver.spec.storage_capacity.unwrap_or_default();
        CsiDriver { name: text(&driver.metadata.name), tracks_capacity }
    }
}

// === impl Capacity ===

impl Capacity {
    #[must_use]
    pub fn read(capacity: &storage::CSIStorageCapacity) -> Capacity {
        Capacity {
            key: key(&capacity.metadata),
            class: capacity.storage_class_name.as_str().into(),
            topology: Selector::read(capacity.node_topology.as_ref()),
            limit: capacity.maximum_volume_size.as_ref().or(capacity.capacity.as_ref()).map(whole),
        }
    }
}

// === impl Attachment ===

impl Attachment {
    #[must_use]
    pub fn read(attachment: &storage::VolumeAttachment) -> Attachment {
        Attachment {
            name: text(&attachment.metadata.name),
            node: attachment.spec.node_name.as_str().into(),
            attacher: attachment.spec.attacher.as_str().into(),
            volume: attachment.spec.source.persistent_volume_name.as_deref().map(Name::from),
        }
    }
}

// === impl Budget ===

impl Budget {
    #[must_use]
    pub fn read(budget: &PodDisruptionBudget) -> Budget {
        let status = budget.status.as_ref();
        let disrupted = status.and_then(|s| s.disrupted_pods.as_ref());
        Budget {
            key: key(&budget.metadata),
            selector: Selector::read(budget.spec.as_ref().and_then(|s| s.selector.as_ref())),
            allowed: status.and_then(|s| s.disruptions_allowed).map_or(0, i64::from),
            disrupted: disrupted.into_iter().flatten().map(|(name, _)| name.as_str().into()).collect(),
        }
    }
}

// === impl Selecting ===

impl Selecting {
    /// A Service or a ReplicationController; one that selects nothing stands for nothing.
    #[must_use]
    pub fn by_map(meta: &ObjectMeta, selector: Option<&BTreeMap<String, String>>) -> Selecting {
        let selector = selector.filter(|s| !s.is_empty()).map_or(Selector::NOTHING, Selector::exactly);
        Selecting { key: key(meta), selector }
    }

    /// A ReplicaSet or a StatefulSet.
    #[must_use]
    pub fn by_selector(meta: &ObjectMeta, selector: Option<&LabelSelector>) -> Selecting {
        Selecting { key: key(meta), selector: Selector::read(selector) }
    }
}

// === impl Storage ===

impl Storage {
    /// A claim with what was assumed of it.
    #[must_use]
    pub fn claim(&self, key: &Key) -> Option<&Arc<Claim>> {
        self.assumed_claims.get(key).or_else(|| self.claims.get(key))
    }

    #[must_use]
    pub fn volume(&self, name: &Name) -> Option<&Arc<Volume>> {
        self.assumed_volumes.get(name).or_else(|| self.volumes.get(name))
    }

    /// All volumes of a class.
    pub fn volumes_of<'a>(&'a self, class: &'a Name) -> impl Iterator<Item = &'a Arc<Volume>> {
        self.volumes.values().filter_map(|v| self.volume(&v.name)).filter(move |v| v.class == *class)
    }

    /// Promises a volume to a claim.
    pub fn assume_volume(&mut self, name: &Name, claim: &Claim) {
        let Some(known) = self.volume(name) else { return };
        let claim = Some(ClaimRef { key: claim.key.clone(), uid: claim.uid.clone() });
        let assumed = Volume { claim, ..(**known).clone() };
        self.assumed_volumes.insert(name.clone(), Arc::new(assumed));
    }

    pub fn assume_claim(&mut self, key: &Key, node: &Name) {
        let Some(known) = self.claim(key) else { return };
        let assumed = Claim { selected_node: Some(node.clone()), ..(**known).clone() };
        self.assumed_claims.insert(key.clone(), Arc::new(assumed));
    }

    pub fn forget_volume(&mut self, name: &Name) {
        self.assumed_volumes.remove(name);
    }

    pub fn forget_claim(&mut self, key: &Key) {
        self.assumed_claims.remove(key);
    }

    /// News of a volume end what was assumed of it, once they are news indeed.
    pub fn set_volume(&mut self, volume: Volume) -> (Option<Arc<Volume>>, Arc<Volume>) {
        let volume = Arc::new(volume);
        if self.assumed_volumes.get(&volume.name).is_some_and(|a| a.version != volume.version) {
            self.assumed_volumes.remove(&volume.name);
        }
        (self.volumes.insert(volume.name.clone(), volume.clone()), volume)
    }

    pub fn set_claim(&mut self, claim: Claim) -> (Option<Arc<Claim>>, Arc<Claim>) {
        let claim = Arc::new(claim);
        if self.assumed_claims.get(&claim.key).is_some_and(|a| a.version != claim.version) {
            self.assumed_claims.remove(&claim.key);
        }
        (self.claims.insert(claim.key.clone(), claim.clone()), claim)
    }

    pub fn remove_volume(&mut self, name: &Name) -> Option<Arc<Volume>> {
        self.assumed_volumes.remove(name);
        self.volumes.remove(name)
    }

    pub fn remove_claim(&mut self, key: &Key) -> Option<Arc<Claim>> {
        self.assumed_claims.remove(key);
        self.claims.remove(key)
    }
}
