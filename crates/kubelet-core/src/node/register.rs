//! The node's first object, and what is put right in one that is there already.

use std::collections::BTreeMap;

use base::time::Wall;
use k8s_openapi::api::core::v1::{Node, NodeSpec, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::capacity::{is_extended, is_huge_page};
use super::status::{self, ARCH_LABEL, Described, Fixed, Moment, OS_LABEL};

const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";
const BETA_OS_LABEL: &str = "beta.kubernetes.io/os";
const BETA_ARCH_LABEL: &str = "beta.kubernetes.io/arch";
pub const CONTROLLER_ATTACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// Labels that are put right on an object that is there already; all others are only given at creation.
const DEFAULT_LABELS: [&str; 11] = [
    HOSTNAME_LABEL,
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    OS_LABEL,
    ARCH_LABEL,
    BETA_OS_LABEL,
    BETA_ARCH_LABEL,
];

/// What the configuration says about the object's first form.
#[derive(Clone, Debug, Default)]
pub struct Registration {
    pub hostname: String,
    /// `--node-labels`
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub provider_id: String,
    /// A controller attaches volumes, not this kubelet.
    pub controller_attach: bool,
    pub external_cloud: bool,
    /// No book of devices is kept here: what the object has of extended resources is from an earlier machine.
    pub without_devices: bool,
}

/// The object a new node is created with.
#[must_use]
pub fn first(registration: &Registration, fixed: &Fixed, moment: &Moment, now: Wall) -> Described {
    let mut node = Node::default();
    node.metadata.name = Some(fixed.name.clone());
    let arch = fixed.identity.arch.as_str();
    let own = [
        (HOSTNAME_LABEL, registration.hostname.as_str()),
        (OS_LABEL, "linux"),
        (ARCH_LABEL, arch),
        (BETA_OS_LABEL, "linux"),
        (BETA_ARCH_LABEL, arch),
    ];
    let labels = own.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned()));
    node.metadata.labels = Some(labels.chain(registration.labels.clone()).collect());
    if registration.controller_attach {
        let annotation = (CONTROLLER_ATTACH.to_owned(), "true".to_owned());
        node.metadata.annotations = Some(BTreeMap::from([annotation]));
    }
    let mut taints = registration.taints.clone();
    if registration.external_cloud {
        taints.push(Taint {
            key: UNINITIALIZED.to_owned(),
            value: Some("true".to_owned()),
            effect: "NoSchedule".to_owned(),
            time_added: None,
        });
    }
    node.spec = Some(NodeSpec {
        provider_id: Some(registration.provider_id.clone()).filter(|p| !p.is_empty()),
        taints: Some(taints).filter(|t| !t.is_empty()),
        ..Default::default()
    });
    status::describe(&node, fixed, moment, now)
}

/// The object that is there already, as far as a kubelet that starts puts it right. None if it needs nothing.
#[must_use]
pub fn reconcile(registration: &Registration, first: &Node, existing: &Node) -> Option<Node> {
    let mut node = existing.clone();
    reconcile_attach(first, &mut node);
    reconcile_labels(first, &mut node);
    reconcile_huge_pages(first, &mut node);
    if registration.without_devices {
        zero_extended(&mut node);
    }
    (node != *existing).then_some(node)
}

fn reconcile_attach(first: &Node, node: &mut Node) {
    let wanted = first.metadata.annotations.as_ref().and_then(|a| a.get(CONTROLLER_ATTACH));
    match wanted {
        Some(value) => {
            let annotations = node.metadata.annotations.get_or_insert_default();
            annotations.insert(CONTROLLER_ATTACH.to_owned(), value.clone());
        }
        None => {
            if let Some(annotations) = &mut node.metadata.annotations {
                annotations.remove(CONTROLLER_ATTACH);
            }
        }
    }
}

fn reconcile_labels(first: &Node, node: &mut Node) {
    let wanted = first.metadata.labels.iter().flatten();
    for (key, value) in wanted.filter(|(k, _)| DEFAULT_LABELS.contains(&k.as_str())) {
        let labels = node.metadata.labels.get_or_insert_default();
        // An empty value means that the label is not wanted at all.
        match value.is_empty() {
            true => labels.remove(key),
            false => labels.insert(key.clone(), value.clone()),
        };
    }
}

/// Page sizes the machine has now are entered, those it no longer has are struck.
fn reconcile_huge_pages(first: &Node, node: &mut Node) {
    let Some(fresh) = &first.status else { return };
    let status = node.status.get_or_insert_default();
    for (new, old) in [(&fresh.capacity, &mut status.capacity), (&fresh.allocatable, &mut status.allocatable)]
    {
        let Some(old) = old else {
            old.clone_from(new);
            continue;
        };
        let Some(new) = new else { continue };
        old.retain(|name, _| !is_huge_page(name) || new.contains_key(name));
        let pages = new.iter().filter(|(name, _)| is_huge_page(name));
        old.extend(pages.map(|(name, q)| (name.clone(), q.clone())));
    }
}

/// Until whoever has them says so again, there are none.
fn zero_extended(node: &mut Node) {
    let Some(status) = &mut node.status else { return };
    for resources in [&mut status.capacity, &mut status.allocatable].into_iter().flatten() {
        for (_, amount) in resources.iter_mut().filter(|(name, _)| is_extended(name)) {
            *amount = Quantity("0".to_owned());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::node::testing::{fixed, moment};

    fn registration() -> Registration {
        Registration {
            hostname: "n1".into(),
            labels: BTreeMap::from([("team".into(), "blue".into())]),
            taints: vec![Taint { key: "gpu".into(), effect: "NoExecute".into(), ..Default::default() }],
            controller_attach: true,
            ..Registration::default()
        }
    }

    fn make(registration: &Registration) -> Node {
        first(registration, &fixed(), &moment(), Wall::from_secs(1)).node
    }

    #[test]
    fn a_new_node_carries_its_labels_and_taints() {
        let node =
            make(&Registration { external_cloud: true, provider_id: "aws:///x".into(), ..registration() });
        let labels: Vec<String> =
            node.metadata.labels.unwrap().iter().map(|(k, v)| format!("{k}={v}")).collect();
        let want = [
            "beta.kubernetes.io/arch=amd64",
            "beta.kubernetes.io/os=linux",
            "kubernetes.io/arch=amd64",
            "kubernetes.io/hostname=n1",
            "kubernetes.io/os=linux",
            "team=blue",
        ];
        assert_eq!(labels, want);
        let spec = node.spec.unwrap();
        let taints: Vec<String> =
            spec.taints.unwrap().iter().map(|t| format!("{}:{}", t.key, t.effect)).collect();
        assert_eq!(taints, ["gpu:NoExecute", "node.cloudprovider.kubernetes.io/uninitialized:NoSchedule"]);
        assert_eq!(spec.provider_id.as_deref(), Some("aws:///x"));
        assert_eq!(node.metadata.annotations.unwrap()[CONTROLLER_ATTACH], "true");
    }

    #[test]
    fn an_object_that_is_right_is_left_alone() {
        let node = make(&registration());
        assert_eq!(reconcile(&registration(), &node, &node), None);
    }

    #[test]
    fn taints_and_own_labels_are_given_only_once() {
        let first = make(&registration());
        let mut existing = first.clone();
        existing.metadata.labels.as_mut().unwrap().insert("team".into(), "red".into());
        existing.metadata.labels.as_mut().unwrap().insert("extra".into(), "1".into());
        existing.spec.as_mut().unwrap().taints = None;
        assert_eq!(reconcile(&registration(), &first, &existing), None);
    }

    #[test]
    fn extended_resources_of_an_earlier_machine_are_zeroed() {
        let first = make(&registration());
        let mut existing = first.clone();
        let status = existing.status.as_mut().unwrap();
        for map in [status.capacity.as_mut().unwrap(), status.allocatable.as_mut().unwrap()] {
            map.insert("example.com/dongle".into(), Quantity("4".to_owned()));
        }
        assert_eq!(reconcile(&registration(), &first, &existing), None, "there is a book of devices");
        let without = Registration { without_devices: true, ..registration() };
        let status = reconcile(&without, &first, &existing).unwrap().status.unwrap();
        for map in [status.capacity.unwrap(), status.allocatable.unwrap()] {
            assert_eq!(map["example.com/dongle"].0, "0");
            assert_ne!(map["memory"].0, "0");
        }
    }

    #[test]
    fn default_labels_annotation_and_huge_pages_are_put_right() {
        let first = make(&registration());
        let mut existing = first.clone();
        existing.metadata.labels.as_mut().unwrap().insert(HOSTNAME_LABEL.into(), "old".into());
        existing.metadata.annotations = None;
        let q = |s: &str| Quantity(s.to_owned());
        let status = existing.status.as_mut().unwrap();
        for map in [status.capacity.as_mut().unwrap(), status.allocatable.as_mut().unwrap()] {
            map.remove("hugepages-2Mi");
            map.insert("hugepages-1Gi".into(), q("1Gi"));
            map.insert("memory".into(), q("1Gi"));
        }
        let fixed = reconcile(&registration(), &first, &existing).unwrap();
        assert_eq!(fixed.metadata.labels, first.metadata.labels);
        assert_eq!(fixed.metadata.annotations, first.metadata.annotations);
        let status = fixed.status.unwrap();
        for map in [status.capacity.unwrap(), status.allocatable.unwrap()] {
            assert!(!map.contains_key("hugepages-1Gi"));
            assert_eq!(map["hugepages-2Mi"], q("0"));
            assert_eq!(map["memory"], q("1Gi"), "the status loop's business, not ours");
        }
        let without = make(&Registration { controller_attach: false, ..registration() });
        let node = reconcile(&registration(), &without, &first).unwrap();
        assert!(!node.metadata.annotations.unwrap().contains_key(CONTROLLER_ATTACH));
    }
}
