//! Everything there is: nodes with their Pods, storage, budgets, owners of Pods. One task owns it; a cycle looks at it as it is.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use crate::classes::{ClassId, Classes};
use crate::labels::Labels;
use crate::node::{Node, NodeInfo};
use crate::objects::{Budget, Storage, Workloads};
use crate::pod::Pod;
use crate::topology::Column;
use crate::{Key, Name};

/// Topology keys of which the domains are remembered.
const MOST_COLUMNS: usize = 64;

#[derive(Debug, Default)]
pub struct Cluster {
    infos: Vec<NodeInfo>,
    by_name: HashMap<Name, usize>,
    free: Vec<usize>,
    /// Nodes in the order in which they came, by zone in the order in which those came.
    zones: Vec<((Name, Name), Vec<usize>)>,
    order: Option<Arc<[usize]>>,
    placed: HashMap<Name, Placed>,
    pub classes: Classes,
    /// Nodes with a Pod that has any inter-pod term, and those with one that keeps others away.
    with_affinity: BTreeSet<usize>,
    with_required_anti_affinity: BTreeSet<usize>,
    /// How many placed Pods mount a claim.
    claim_users: HashMap<Key, usize>,
    /// How many nodes have an image.
    image_nodes: HashMap<Name, i64>,
    pub storage: Storage,
    pub workloads: Workloads,
    pub namespaces: HashMap<Name, Labels>,
    pub budgets: HashMap<Key, Budget>,
    /// Made when they are first asked for.
    columns: Mutex<HashMap<Name, Arc<Column>>>,
    pub nominations: Nominations,
}

/// Pods that wait for a node that others leave, by node.
#[derive(Clone, Debug, Default)]
pub struct Nominations {
    by_node: HashMap<Name, Vec<Arc<Pod>>>,
    nodes: HashMap<Name, Name>,
}

#[derive(Clone, Debug)]
struct Placed {
    pod: Arc<Pod>,
    class: ClassId,
    node: usize,
    is_assumed: bool,
}

// === impl Cluster ===

impl Cluster {
    // --- nodes ---

    /// A node that is new or has changed: before and after.
    pub fn set_node(&mut self, mut node: Node) -> (Option<Arc<Node>>, Arc<Node>) {
        for (image, _) in &mut node.images {
            match self.image_nodes.get_key_value(image) {
                Some((known, _)) => *image = known.clone(),
                None => _ = self.image_nodes.insert(image.clone(), 0),
            }
            if let Some(count) = self.image_nodes.get_mut(image) {
                *count += 1;
            }
        }
        let (index, node) = (self.slot(&node.name.clone()), Arc::new(node));
        let old = self.infos[index].node.replace(node.clone());
        self.forget_images(old.as_deref());
        if old.as_ref().is_none_or(|old| old.zone() != node.zone()) {
            self.leave_zone(index);
            let zone = node.zone();
            match self.zones.iter_mut().find(|(known, _)| *known == zone) {
                Some((_, nodes)) => nodes.push(index),
                None => self.zones.push((zone, vec![index])),
            }
            self.order = None;
        }
        if old.as_ref().is_none_or(|old| old.labels != node.labels) {
            self.forget_columns();
        }
        (old, node)
    }

    pub fn remove_node(&mut self, name: &str) -> Option<Arc<Node>> {
        let index = *self.by_name.get(name)?;
        let old = self.infos[index].node.take()?;
        self.forget_images(Some(&old));
        self.leave_zone(index);
        self.order = None;
        self.forget_columns();
        self.free_slot(index);
        Some(old)
    }

    fn leave_zone(&mut self, index: usize) {
        for (_, nodes) in &mut self.zones {
            nodes.retain(|n| *n != index);
        }
        self.zones.retain(|(_, nodes)| !nodes.is_empty());
    }

    fn forget_images(&mut self, node: Option<&Node>) {
        for (image, _) in node.into_iter().flat_map(|n| &n.images) {
            if let Some(count) = self.image_nodes.get_mut(image) {
                *count -= 1;
                if *count == 0 {
                    self.image_nodes.remove(image);
                }
            }
        }
    }

    fn slot(&mut self, name: &Name) -> usize {
        if let Some(index) = self.by_name.get(name) {
            return *index;
        }
        let index = self.free.pop().unwrap_or(self.infos.len());
        if index == self.infos.len() {
            self.infos.push(NodeInfo::default());
        }
        self.infos[index] = NodeInfo { index, ..NodeInfo::default() };
        self.by_name.insert(name.clone(), index);
        self.forget_columns();
        index
    }

    /// A node of which neither the object nor a Pod is left needs no place.
    fn free_slot(&mut self, index: usize) {
        let info = &self.infos[index];
        if info.node.is_none() && info.pods.is_empty() {
            self.by_name.retain(|_, known| *known != index);
            self.free.push(index);
        }
    }

    /// Indices of all nodes, zones taking turns, so that the first few of them are spread.
    pub fn order(&mut self) -> Arc<[usize]> {
        if let Some(order) = &self.order {
            return order.clone();
        }
        let longest = self.zones.iter().map(|(_, nodes)| nodes.len()).max().unwrap_or(0);
        let turn = |n: usize| self.zones.iter().filter_map(move |(_, nodes)| nodes.get(n).copied());
        let order: Arc<[usize]> = (0..longest).flat_map(turn).collect();
        self.order = Some(order.clone());
        order
    }

    #[must_use]
    pub fn node_count(&self) -> usize {
        self.zones.iter().map(|(_, nodes)| nodes.len()).sum()
    }

    #[must_use]
    pub fn info(&self, index: usize) -> &NodeInfo {
        &self.infos[index]
    }

    /// All nodes, with those of which only Pods speak.
    #[must_use]
    pub fn infos(&self) -> &[NodeInfo] {
        &self.infos
    }

    #[must_use]
    pub fn node_index(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied().filter(|index| self.infos[*index].node.is_some())
    }

    /// How many nodes have an image.
    #[must_use]
    pub fn nodes_with_image(&self, image: &str) -> i64 {
        self.image_nodes.get(image).copied().unwrap_or(0)
    }

    /// The domains of a topology key.
    #[must_use]
    pub fn column(&self, key: &Name) -> Arc<Column> {
        let mut columns = self.columns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(column) = columns.get(key) {
            return column.clone();
        }
        if columns.len() >= MOST_COLUMNS {
            columns.clear();
        }
        let column = Arc::new(Column::new(key, &self.infos));
        columns.insert(key.clone(), column.clone());
        column
    }

    fn forget_columns(&mut self) {
        self.columns.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
    }

    // --- Pods ---

    /// A Pod stands on its node: the API server says so, whatever was assumed. Before and after.
    pub fn set_pod(&mut self, pod: Pod) -> (Option<Arc<Pod>>, Arc<Pod>) {
        let old = self.take_pod(&pod.uid.clone());
        let pod = self.place(pod, false);
        (old, pod)
    }

    /// A Pod will stand on its node as soon as the API server has heard of it.
    pub fn assume(&mut self, pod: Pod) -> Arc<Pod> {
        self.take_pod(&pod.uid.clone());
        self.place(pod, true)
    }

    /// It will not.
    pub fn forget(&mut self, uid: &Name) -> Option<Arc<Pod>> {
        if !self.is_assumed(uid) {
            return None;
        }
        self.take_pod(uid)
    }

    pub fn remove_pod(&mut self, uid: &Name) -> Option<Arc<Pod>> {
        self.take_pod(uid)
    }

    #[must_use]
    pub fn is_assumed(&self, uid: &Name) -> bool {
        self.placed.get(uid).is_some_and(|p| p.is_assumed)
    }

    #[must_use]
    pub fn pod(&self, uid: &Name) -> Option<&Arc<Pod>> {
        self.placed.get(uid).map(|p| &p.pod)
    }

    #[must_use]
    pub fn pod_count(&self) -> usize {
        self.placed.len()
    }

    #[must_use]
    pub fn assumed_count(&self) -> usize {
        self.placed.values().filter(|p| p.is_assumed).count()
    }

    /// Whether any placed Pod mounts the claim.
    #[must_use]
    pub fn is_claim_used(&self, claim: &Key) -> bool {
        self.claim_users.contains_key(claim)
    }

    fn place(&mut self, mut pod: Pod, is_assumed: bool) -> Arc<Pod> {
        let (class, shared) = self.classes.take(&pod.class);
        pod.class = shared;
        let (node, pod) = (self.slot(&pod.node.clone()), Arc::new(pod));
        self.infos[node].add(pod.clone(), class);
        self.note_affinity(node);
        for (name, _) in pod.claim_names() {
            let key = Key { namespace: pod.key.namespace.clone(), name: name.clone() };
            *self.claim_users.entry(key).or_default() += 1;
        }
        self.placed.insert(pod.uid.clone(), Placed { pod: pod.clone(), class, node, is_assumed });
        pod
    }

    fn take_pod(&mut self, uid: &Name) -> Option<Arc<Pod>> {
        let Placed { pod, class, node, .. } = self.placed.remove(uid)?;
        self.infos[node].remove(uid, class);
        self.note_affinity(node);
        self.classes.release(class);
        self.free_slot(node);
        for (name, _) in pod.claim_names() {
            let key = Key { namespace: pod.key.namespace.clone(), name: name.clone() };
            if let Some(users) = self.claim_users.get_mut(&key) {
                *users -= 1;
                if *users == 0 {
                    self.claim_users.remove(&key);
                }
            }
        }
        Some(pod)
    }

    fn note_affinity(&mut self, node: usize) {
        let (any, anti) =
            (self.infos[node].with_affinity > 0, self.infos[node].with_required_anti_affinity > 0);
        for (nodes, has) in [(&mut self.with_affinity, any), (&mut self.with_required_anti_affinity, anti)] {
            match has {
                true => nodes.insert(node),
                false => nodes.remove(&node),
            };
        }
    }

    /// Nodes with a Pod that has any inter-pod term.
    pub fn infos_with_affinity(&self) -> impl Iterator<Item = &NodeInfo> {
        self.with_affinity.iter().map(|index| &self.infos[*index])
    }

    /// Nodes with a Pod that keeps others away.
    pub fn infos_with_required_anti_affinity(&self) -> impl Iterator<Item = &NodeInfo> {
        self.with_required_anti_affinity.iter().map(|index| &self.infos[*index])
    }

    /// The class of a Pod, for a trial on a copy of a node. One that no placed Pod has is nobody's.
    #[must_use]
    pub fn class_of(&self, pod: &Pod) -> Option<ClassId> {
        self.placed.get(&pod.uid).map(|p| p.class).or_else(|| self.classes.id(&pod.class))
    }

    /// The labels of a namespace; none where it is not known.
    #[must_use]
    pub fn namespace_labels(&self, name: &Name) -> Labels {
        self.namespaces.get(name).cloned().unwrap_or_default()
    }
}

// === impl Nominations ===

impl Nominations {
    /// Remembers a Pod under a node, and under no other.
    pub fn set(&mut self, pod: Arc<Pod>, node: &Name) {
        self.remove(&pod.uid);
        if !node.is_empty() {
            self.nodes.insert(pod.uid.clone(), node.clone());
            self.by_node.entry(node.clone()).or_default().push(pod);
        }
    }

    pub fn remove(&mut self, uid: &Name) -> Option<Arc<Pod>> {
        let node = self.nodes.remove(uid)?;
        let pods = self.by_node.get_mut(&node)?;
        let at = pods.iter().position(|p| p.uid == *uid)?;
        let pod = pods.swap_remove(at);
        if pods.is_empty() {
            self.by_node.remove(&node);
        }
        Some(pod)
    }

    #[must_use]
    pub fn on(&self, node: &str) -> &[Arc<Pod>] {
        if self.by_node.is_empty() {
            return &[];
        }
        self.by_node.get(node).map(Vec::as_slice).unwrap_or_default()
    }

    #[must_use]
    pub fn node_of(&self, uid: &Name) -> Option<&Name> {
        self.nodes.get(uid)
    }
}
