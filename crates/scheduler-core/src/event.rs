//! What happens in a cluster, as far as it may make a waiting Pod fit.

use std::sync::Arc;

use crate::node::Node;
use crate::objects::{Attachment, Capacity, Claim, CsiNode, StorageClass, Volume};
use crate::pod::Pod;

/// Kinds of objects whose changes somebody may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    Pod,
    Node,
    Claim,
    Volume,
    StorageClass,
    CsiNode,
    CsiDriver,
    Capacity,
    Attachment,
}

/// What happened; several at once where an update changed several things.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Action(u16);

/// One change.
#[derive(Clone, Debug)]
pub struct Event {
    pub resource: Resource,
    pub action: Action,
    pub what: What,
}

/// Before and after, where somebody looks at it.
#[derive(Clone, Debug)]
pub enum What {
    Pod(Option<Arc<Pod>>, Option<Arc<Pod>>),
    Node(Option<Arc<Node>>, Option<Arc<Node>>),
    Claim(Option<Arc<Claim>>, Option<Arc<Claim>>),
    CsiNode(Option<Arc<CsiNode>>, Option<Arc<CsiNode>>),
    Attachment(Option<Arc<Attachment>>, Option<Arc<Attachment>>),
    /// Before, if it is not new, and now.
    Class(Option<Arc<StorageClass>>, Arc<StorageClass>),
    Capacity(Option<Arc<Capacity>>, Arc<Capacity>),
    Volume(Option<Arc<Volume>>, Arc<Volume>),
    Other,
}

/// The names of what happens to objects of a kind.
macro_rules! labels {
    ($kind:literal) => {
        [concat!($kind, "Add"), concat!($kind, "Delete"), concat!($kind, "Update")]
    };
}

// === impl Action ===

impl Action {
    pub const ADD: Action = Action(1);
    pub const DELETE: Action = Action(1 << 1);
    /// An update of which nothing is known but that it is one.
    pub const UPDATE: Action = Action(1 << 2);
    pub const NODE_ALLOCATABLE: Action = Action(1 << 3);
    pub const NODE_LABEL: Action = Action(1 << 4);
    pub const NODE_TAINT: Action = Action(1 << 5);
    pub const NODE_FEATURE: Action = Action(1 << 6);
    pub const POD_LABEL: Action = Action(1 << 7);
    pub const POD_SCALE_DOWN: Action = Action(1 << 8);
    pub const POD_TOLERATION: Action = Action(1 << 9);
    pub const POD_GATES: Action = Action(1 << 10);
    /// Every kind of update.
    pub const ANY_UPDATE: Action = Action(0x7fc);

    #[must_use]
    pub const fn or(self, other: Action) -> Action {
        Action(self.0 | other.0)
    }

    #[must_use]
    pub const fn meets(self, other: Action) -> bool {
        self.0 & other.0 != 0
    }

    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

// === impl Event ===

impl Event {
    #[must_use]
    pub fn of_node(old: Option<Arc<Node>>, new: Option<Arc<Node>>) -> Option<Event> {
        let action = match (&old, &new) {
            (None, Some(_)) => Action::ADD,
            (Some(_), None) => Action::DELETE,
            (Some(old), Some(new)) => node_changes(old, new),
            (None, None) => Action::default(),
        };
        let what = What::Node(old, new);
        (!action.is_none()).then_some(Event { resource: Resource::Node, action, what })
    }

    #[must_use]
    pub fn of_pod(old: Option<Arc<Pod>>, new: Option<Arc<Pod>>) -> Event {
        let action = match (&old, &new) {
            (None, _) => Action::ADD,
            (Some(_), None) => Action::DELETE,
            (Some(old), Some(new)) => pod_changes(old, new),
        };
        Event { resource: Resource::Pod, action, what: What::Pod(old, new) }
    }

    /// Of an object whose kind is all that matters.
    #[must_use]
    pub fn of_other(resource: Resource, action: Action) -> Event {
        Event { resource, action, what: What::Other }
    }

    #[must_use]
    pub fn of_claim(old: Option<Arc<Claim>>, new: Option<Arc<Claim>>) -> Event {
        let action = added_or_changed(old.is_some(), new.is_some());
        Event { resource: Resource::Claim, action, what: What::Claim(old, new) }
    }

    #[must_use]
    pub fn of_class(old: Option<Arc<StorageClass>>, new: Arc<StorageClass>) -> Event {
        let action = added_or_changed(old.is_some(), true);
        Event { resource: Resource::StorageClass, action, what: What::Class(old, new) }
    }

    #[must_use]
    pub fn of_capacity(old: Option<Arc<Capacity>>, new: Arc<Capacity>) -> Event {
        let action = added_or_changed(old.is_some(), true);
        Event { resource: Resource::Capacity, action, what: What::Capacity(old, new) }
    }

    #[must_use]
    pub fn of_volume(old: Option<Arc<Volume>>, new: Arc<Volume>) -> Event {
        let action = added_or_changed(old.is_some(), true);
        Event { resource: Resource::Volume, action, what: What::Volume(old, new) }
    }

    #[must_use]
    pub fn of_csi_node(old: Option<Arc<CsiNode>>, new: Option<Arc<CsiNode>>) -> Event {
        let action = added_or_changed(old.is_some(), new.is_some());
        Event { resource: Resource::CsiNode, action, what: What::CsiNode(old, new) }
    }

    #[must_use]
    pub fn of_attachment(old: Option<Arc<Attachment>>, new: Option<Arc<Attachment>>) -> Event {
        let action = added_or_changed(old.is_some(), new.is_some());
        Event { resource: Resource::Attachment, action, what: What::Attachment(old, new) }
    }

    /// As upstream's metrics name it. Where several things changed at once, the first of them stands for all.
    #[must_use]
    pub fn label(&self) -> &'static str {
        let is_placed = |pod: &Option<Arc<Pod>>| pod.as_ref().is_some_and(|p| p.is_bound());
        let which = |names: [&'static str; 3]| match self.action {
            a if a == Action::ADD => names[0],
            a if a == Action::DELETE => names[1],
            _ => names[2],
        };
        match (self.resource, &self.what) {
            (Resource::Pod, What::Pod(old, new)) if is_placed(old) || is_placed(new) => {
                match self.pod_change() {
                    Some((assigned, _)) => assigned,
                    None => which(["AssignedPodAdd", "AssignedPodDelete", "AssignedPodUpdate"]),
                }
            }
            (Resource::Pod, _) => match self.pod_change() {
                Some((_, waiting)) => waiting,
                None => which(["UnschedulablePodAdd", "UnschedulablePodDelete", "UnschedulablePodUpdate"]),
            },
            (Resource::Node, _) => self.node_label(),
            (resource, _) => which(match resource {
                Resource::Claim => labels!("PersistentVolumeClaim"),
                Resource::Volume => labels!("PersistentVolume"),
                Resource::StorageClass => labels!("storage.k8s.io/StorageClass"),
                Resource::CsiNode => labels!("storage.k8s.io/CSINode"),
                Resource::CsiDriver => labels!("storage.k8s.io/CSIDriver"),
                Resource::Capacity => labels!("storage.k8s.io/CSIStorageCapacity"),
                Resource::Attachment => labels!("storage.k8s.io/VolumeAttachment"),
                Resource::Pod | Resource::Node => labels!(""),
            }),
        }
    }

    fn pod_change(&self) -> Option<(&'static str, &'static str)> {
        let names = [
            (Action::POD_LABEL, ("AssignedPodUpdatePodLabel", "UnschedulablePodUpdatePodLabel")),
            (Action::POD_SCALE_DOWN, ("AssignedPodUpdatePodScaleDown", "UnschedulablePodUpdatePodScaleDown")),
            (
                Action::POD_GATES,
                (
                    "AssignedPodUpdatePodSchedulingGatesEliminated",
                    "UnschedulablePodUpdatePodSchedulingGatesEliminated",
                ),
            ),
            (
                Action::POD_TOLERATION,
                ("AssignedPodUpdatePodToleration", "UnschedulablePodUpdatePodToleration"),
            ),
        ];
        names.into_iter().find(|(action, _)| self.action.meets(*action)).map(|(_, names)| names)
    }

    fn node_label(&self) -> &'static str {
        let names = [
            (Action::ADD, "NodeAdd"),
            (Action::DELETE, "NodeDelete"),
            (Action::NODE_ALLOCATABLE, "NodeUpdateNodeAllocatable"),
            (Action::NODE_LABEL, "NodeUpdateNodeLabel"),
            (Action::NODE_TAINT, "NodeUpdateNodeTaint"),
            (Action::NODE_FEATURE, "NodeUpdateNodeDeclaredFeature"),
        ];
        names
            .into_iter()
            .find(|(action, _)| self.action.meets(*action))
            .map_or("NodeUpdate", |(_, name)| name)
    }
}

fn added_or_changed(was: bool, is: bool) -> Action {
    match (was, is) {
        (false, _) => Action::ADD,
        (true, true) => Action::UPDATE,
        (true, false) => Action::DELETE,
    }
}

fn node_changes(old: &Node, new: &Node) -> Action {
    let mut action = Action::default();
    if old.allocatable != new.allocatable || old.allowed_pods != new.allowed_pods {
        action = action.or(Action::NODE_ALLOCATABLE);
    }
    if old.labels != new.labels {
        action = action.or(Action::NODE_LABEL);
    }
    if old.taints != new.taints || old.is_unschedulable != new.is_unschedulable {
        action = action.or(Action::NODE_TAINT);
    }
    if old.features != new.features {
        action = action.or(Action::NODE_FEATURE);
    }
    action
}

fn pod_changes(old: &Pod, new: &Pod) -> Action {
    let mut action = Action::default();
    if old.class.labels != new.class.labels {
        action = action.or(Action::POD_LABEL);
    }
    let (was, is) = (&old.requests, &new.requests);
    let shrinks = is.milli_cpu < was.milli_cpu
        || is.memory < was.memory
        || is.ephemeral_storage < was.ephemeral_storage
        || was.scalars().iter().any(|(name, amount)| is.scalar(name) < *amount);
    if shrinks {
        action = action.or(Action::POD_SCALE_DOWN);
    }
    if old.tolerations != new.tolerations {
        action = action.or(Action::POD_TOLERATION);
    }
    if !old.gates.is_empty() && new.gates.is_empty() {
        action = action.or(Action::POD_GATES);
    }
    if action.is_none() { Action::UPDATE } else { action }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing;

    #[test]
    fn events_are_named_as_upstream_names_them() {
        let pod = |node: &str, labels: serde_json::Value| {
            let pod = testing::labelled("p", labels, json!({}));
            Some(Arc::new(pod.on(node)))
        };
        let node = |labels: serde_json::Value| Some(Arc::new(testing::node("n", labels)));
        for (event, expected) in [
            (Event::of_pod(None, pod("n", json!({}))), "AssignedPodAdd"),
            (Event::of_pod(pod("n", json!({})), None), "AssignedPodDelete"),
            (Event::of_pod(pod("n", json!({})), pod("n", json!({"a": "b"}))), "AssignedPodUpdatePodLabel"),
            (Event::of_pod(pod("", json!({})), pod("", json!({}))), "UnschedulablePodUpdate"),
            (Event::of_node(None, node(json!({}))).unwrap(), "NodeAdd"),
            (Event::of_node(node(json!({})), node(json!({"a": "b"}))).unwrap(), "NodeUpdateNodeLabel"),
            (Event::of_claim(None, None), "PersistentVolumeClaimAdd"),
            (Event::of_other(Resource::CsiDriver, Action::UPDATE), "storage.k8s.io/CSIDriverUpdate"),
        ] {
            assert_eq!(event.label(), expected);
        }
    }
}
