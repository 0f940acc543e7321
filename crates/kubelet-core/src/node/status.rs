//! The whole of `status`, put on top of the object the API server has.

use std::collections::{BTreeMap, BTreeSet};

use base::quantity::Quantity;
use base::time::Wall;
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeDaemonEndpoints, NodeFeatures, NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures, NodeStatus, NodeSwapStatus, NodeSystemInfo,
};
use k8s_openapi::apimachinery::pkg::api::resource;

use super::NodeEvent;
use super::addresses::{self, Sources};
use super::capacity::{self, Machine, PodLimit, Reserved, Resources};
use super::conditions::{self, Health, Pressures};
use crate::devices::Counts;

/// The reason of the event about a machine that came up again.
pub const REBOOTED: &str = "Rebooted";
pub const OS_LABEL: &str = "kubernetes.io/os";
pub const ARCH_LABEL: &str = "kubernetes.io/arch";
pub const PROVIDED_IP: &str = "alpha.kubernetes.io/provided-node-ip";

/// Names listed for one image; an image with a hundred tags must not fill the object.
const NAMES_PER_IMAGE: usize = 5;

/// What is true of this node for as long as the kubelet runs.
#[derive(Clone, Debug, Default)]
pub struct Fixed {
    pub name: String,
    pub identity: Identity,
    pub pods: Option<PodLimit>,
    pub reserved: Reserved,
    /// Where logs and exec are asked for; zero if nowhere.
    pub port: i32,
    /// Images listed, the largest first; none lists all.
    pub max_images: Option<usize>,
    /// Features a scheduler may count on, sorted.
    pub declared: Vec<String>,
    /// Ephemeral storage is counted, and so must be known before the node is ready.
    pub counts_storage: bool,
}

/// Which machine this is, and what runs on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    pub machine_id: String,
    pub system_uuid: String,
    pub boot_id: String,
    pub kernel: String,
    pub os_image: String,
    /// Go's name: `amd64`.
    pub arch: String,
    pub kubelet_version: String,
    pub swap: i64,
}

/// What may differ from one look to the next.
#[derive(Clone, Debug, Default)]
pub struct Moment {
    pub machine: Machine,
    pub addresses: Sources,
    pub runtime: Runtime,
    pub images: Vec<Image>,
    pub health: Health,
    pub pressures: Pressures,
    /// None while it is not known: what the object says stays.
    pub volumes_in_use: Option<Vec<String>>,
    pub devices: DeviceCounts,
}

/// What device plugins bring to the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceCounts {
    pub counts: Counts,
    /// Resources whose plugins are gone for good: the node has none of them any more, and says so.
    pub gone: BTreeSet<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runtime {
    pub name: String,
    /// None if it does not answer.
    pub version: Option<String>,
    pub handlers: Vec<Handler>,
    /// Whether it knows supplementalGroupsPolicy; none if it does not say.
    pub groups_policy: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handler {
    pub name: String,
    pub recursive_read_only: bool,
    pub user_namespaces: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    pub id: String,
    pub digests: Vec<String>,
    pub tags: Vec<String>,
    pub size: i64,
}

/// The object as it should be.
#[derive(Clone, Debug)]
pub struct Described {
    pub node: Node,
    pub events: Vec<NodeEvent>,
    /// Why some part could not be described; that part is as it was.
    pub problem: Option<String>,
}

/// Puts what is true now on top of `existing`.
#[must_use]
pub fn describe(existing: &Node, fixed: &Fixed, moment: &Moment, now: Wall) -> Described {
    let mut node = existing.clone();
    set_labels(&mut node, &fixed.identity.arch);
    let problem = set_addresses(&mut node, &moment.addresses);
    let status = node.status.get_or_insert_default();
    let mut events = Vec::new();
    events.extend(set_identity(status, fixed, &moment.runtime));
    let all = set_resources(status, fixed, &moment.machine, &moment.devices);
    let port = DaemonEndpoint { port: fixed.port };
    status.daemon_endpoints = Some(NodeDaemonEndpoints { kubelet_endpoint: Some(port) });
    status.images = some(list_images(&moment.images, fixed.max_images));
    status.runtime_handlers = some(handlers(&moment.runtime.handlers));
    if let Some(known) = moment.runtime.groups_policy {
        status.features = Some(NodeFeatures { supplemental_groups_policy: Some(known) });
    }
    status.declared_features = some(fixed.declared.clone());
    if let Some(volumes) = &moment.volumes_in_use {
        status.volumes_in_use = some(volumes.clone());
    }
    let missing = missing(&all, fixed.counts_storage);
    let troubles = conditions::troubles(&moment.health, &missing);
    let conditions = status.conditions.get_or_insert_default();
    events.extend(conditions::update(conditions, &fixed.name, moment.pressures, &troubles, now));
    Described { node, events, problem }
}

/// Operating system and architecture are repaired if somebody changed them; Pods are placed by them.
fn set_labels(node: &mut Node, arch: &str) {
    let labels = node.metadata.labels.get_or_insert_default();
    for (key, value) in [(OS_LABEL, "linux"), (ARCH_LABEL, arch)] {
        if labels.get(key).is_none_or(|v| v != value) {
            labels.insert(key.to_owned(), value.to_owned());
        }
    }
}

fn set_addresses(node: &mut Node, sources: &Sources) -> Option<String> {
    match addresses::provided(sources) {
        Some(text) => {
            node.metadata.annotations.get_or_insert_default().insert(PROVIDED_IP.to_owned(), text);
        }
        None => {
            if let Some(annotations) = &mut node.metadata.annotations {
                annotations.remove(PROVIDED_IP);
            }
        }
    }
    let status = node.status.get_or_insert_default();
    match addresses::describe(sources, status.addresses.as_deref().unwrap_or_default()) {
        Ok(all) => {
            status.addresses = Some(all);
            None
        }
        Err(error) => Some(error.to_string()),
    }
}

fn set_identity(status: &mut NodeStatus, fixed: &Fixed, runtime: &Runtime) -> Option<NodeEvent> {
    let identity = &fixed.identity;
    let before = status.node_info.take().unwrap_or_default();
    let rebooted = !before.boot_id.is_empty() && before.boot_id != identity.boot_id;
    let version = runtime.version.as_deref().unwrap_or("Unknown");
    let swap = (identity.swap != 0).then_some(NodeSwapStatus { capacity: Some(identity.swap) });
    status.node_info = Some(NodeSystemInfo {
        architecture: identity.arch.clone(),
        boot_id: identity.boot_id.clone(),
        container_runtime_version: format!("{}://{version}", runtime.name),
        kernel_version: identity.kernel.clone(),
        // Deprecated and cleared: the kubelet cannot know it.
        kube_proxy_version: String::new(),
        kubelet_version: identity.kubelet_version.clone(),
        machine_id: identity.machine_id.clone(),
        operating_system: "linux".to_owned(),
        os_image: identity.os_image.clone(),
        swap: swap.or(before.swap),
        system_uuid: identity.system_uuid.clone(),
    });
    rebooted.then(|| NodeEvent {
        warning: true,
        reason: REBOOTED.to_owned(),
        message: format!("Node {} has been rebooted, boot id: {}", fixed.name, identity.boot_id),
    })
}

/// Sets capacity and allocatable, and returns the capacity. What others advertise (resources patched in by hand or by
/// operators, under whatever name) stays; of allocatable, as upstream has it, extended resources only with a capacity.
fn set_resources(
    status: &mut NodeStatus,
    fixed: &Fixed,
    machine: &Machine,
    devices: &DeviceCounts,
) -> Resources {
    let limit = fixed.pods.unwrap_or(PodLimit { max: 0, per_core: 0 });
    let own = capacity::capacity(machine, limit);
    // A size of huge pages that the machine does not have any more is not somebody else's.
    let kept = |list: &Option<BTreeMap<String, resource::Quantity>>| -> Resources {
        let kept = list.iter().flatten();
        let kept = kept.filter(|(name, _)| own.contains_key(*name) || !capacity::is_huge_page(name));
        kept.filter_map(|(name, q)| Some((name.clone(), q.0.parse().ok()?))).collect()
    };
    let (mut all, mut usable) = (kept(&status.capacity), kept(&status.allocatable));
    all.extend(own);
    let number = |n: u64| Quantity::from_value(i64::try_from(n).unwrap_or(i64::MAX));
    all.extend(devices.gone.iter().map(|name| (name.clone(), number(0))));
    all.extend(devices.counts.capacity.iter().map(|(name, n)| (name.clone(), number(*n))));
    usable.retain(|name, _| all.contains_key(name) || !capacity::is_extended(name));
    usable.extend(capacity::allocatable(&all, &fixed.reserved));
    usable.extend(devices.counts.allocatable.iter().map(|(name, n)| (name.clone(), number(*n))));
    status.capacity = Some(capacity::to_api(&all));
    status.allocatable = Some(capacity::to_api(&usable));
    all
}

fn missing(all: &Resources, counts_storage: bool) -> Vec<&'static str> {
    let storage = counts_storage.then_some(capacity::EPHEMERAL_STORAGE);
    let needed = [capacity::CPU, capacity::MEMORY, capacity::PODS].into_iter().chain(storage);
    needed.filter(|name| !all.contains_key(*name)).collect()
}

fn list_images(images: &[Image], max: Option<usize>) -> Vec<ContainerImage> {
    let mut sorted: Vec<&Image> = images.iter().collect();
    sorted.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| b.id.cmp(&a.id)));
    let entry = |image: &Image| ContainerImage {
        names: Some(image.digests.iter().chain(&image.tags).take(NAMES_PER_IMAGE).cloned().collect()),
        size_bytes: Some(image.size),
    };
    sorted.into_iter().take(max.unwrap_or(usize::MAX)).map(entry).collect()
}

fn handlers(all: &[Handler]) -> Vec<NodeRuntimeHandler> {
    let sorted: BTreeMap<&str, &Handler> = all.iter().map(|h| (h.name.as_str(), h)).collect();
    let entry = |h: &Handler| NodeRuntimeHandler {
        name: Some(h.name.clone()),
        features: Some(NodeRuntimeHandlerFeatures {
            recursive_read_only_mounts: Some(h.recursive_read_only),
            user_namespaces: Some(h.user_namespaces),
        }),
    };
    sorted.into_values().map(entry).collect()
}

fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::node::testing::{fixed, moment};

    fn describe_new() -> Described {
        describe(&Node::default(), &fixed(), &moment(), Wall::from_secs(100))
    }

    #[test]
    fn a_healthy_machine_says_all_about_itself() {
        let mut described = describe_new();
        assert_eq!(described.problem, None);
        described.node.metadata.name = Some("n1".into());
        insta::assert_snapshot!(serde_json::to_string_pretty(&described.node).unwrap());
    }

    #[test]
    fn describing_twice_changes_nothing() {
        let first = describe_new();
        let second = describe(&first.node, &fixed(), &moment(), Wall::from_secs(100));
        assert_eq!(second.node, first.node);
        assert!(second.events.is_empty(), "{:?}", second.events);
    }

    #[test]
    fn a_clock_that_jumps_changes_nothing() {
        let first = describe_new();
        for second in [0, 99, 1_000_000] {
            let next = describe(&first.node, &fixed(), &moment(), Wall::from_secs(second));
            assert!(!crate::node::patch::has_changed(&first.node, &next.node), "at {second}");
            assert!(next.events.is_empty(), "{:?}", next.events);
        }
    }

    #[test]
    fn a_new_boot_is_told_and_a_new_node_is_no_boot() {
        let first = describe_new();
        assert!(!first.events.iter().any(|e| e.reason == "Rebooted"));
        let mut fixed = fixed();
        fixed.identity.boot_id = "b2".into();
        let second = describe(&first.node, &fixed, &moment(), Wall::from_secs(101));
        let event = second.events.iter().find(|e| e.reason == "Rebooted").unwrap();
        assert!(event.warning);
        assert_eq!(event.message, "Node n1 has been rebooted, boot id: b2");
    }

    #[test]
    fn what_others_advertise_stays_and_what_is_ours_is_put_right() {
        let mut existing = describe_new().node;
        let status = existing.status.as_mut().unwrap();
        let quantity = |s: &str| k8s_openapi::apimachinery::pkg::api::resource::Quantity(s.to_owned());
        status.capacity.as_mut().unwrap().insert("example.com/dongle".into(), quantity("4"));
        let others = [("kubernetes.io/batch-cpu", "32"), ("attachable-volumes-csi-x", "15"), ("odd", "1")];
        for (name, amount) in others {
            status.capacity.as_mut().unwrap().insert(name.into(), quantity(amount));
        }
        status.capacity.as_mut().unwrap().insert("hugepages-16Gi".into(), quantity("16Gi"));
        status.capacity.as_mut().unwrap().insert("memory".into(), quantity("1"));
        for name in ["example.com/gone", "kubernetes.io/only", "hugepages-16Gi"] {
            status.allocatable.as_mut().unwrap().insert(name.into(), quantity("7"));
        }
        status.volumes_in_use = Some(vec!["kubernetes.io/csi/x".into()]);
        existing.metadata.labels.as_mut().unwrap().insert(ARCH_LABEL.into(), "vax".into());
        let node = describe(&existing, &fixed(), &moment(), Wall::from_secs(100)).node;
        let status = node.status.unwrap();
        let allocatable = status.allocatable.unwrap();
        let capacity = status.capacity.unwrap();
        assert_eq!(allocatable["example.com/dongle"], quantity("4"));
        for (name, amount) in others {
            assert_eq!(
                (&capacity[name], &allocatable[name]),
                (&quantity(amount), &quantity(amount)),
                "{name}"
            );
        }
        assert_eq!(allocatable["kubernetes.io/only"], quantity("7"));
        assert_eq!(allocatable.get("example.com/gone"), None, "without a capacity");
        assert!(!capacity.contains_key("hugepages-16Gi") && !allocatable.contains_key("hugepages-16Gi"));
        assert_eq!(capacity["memory"], quantity("16Gi"));
        assert_eq!(status.volumes_in_use.unwrap(), ["kubernetes.io/csi/x"]);
        assert_eq!(node.metadata.labels.unwrap()[ARCH_LABEL], "amd64");
    }

    #[test]
    fn an_address_that_went_away_keeps_the_rest_working() {
        let first = describe_new();
        let mut moment = moment();
        moment.addresses.given = vec!["10.9.9.9".parse().unwrap()];
        let second = describe(&first.node, &fixed(), &moment, Wall::from_secs(100));
        assert!(second.problem.unwrap().contains("10.9.9.9"));
        let addresses = |n: &Node| n.status.as_ref().unwrap().addresses.clone();
        assert_eq!(addresses(&second.node), addresses(&first.node));
        assert!(conditions::is_ready(&second.node.status.unwrap().conditions.unwrap()));
    }

    #[test]
    fn unknown_storage_is_missing_capacity_only_where_it_counts() {
        let mut moment = moment();
        moment.machine.ephemeral_storage = None;
        for (counts, ready) in [(true, false), (false, true)] {
            let fixed = Fixed { counts_storage: counts, ..fixed() };
            let node = describe(&Node::default(), &fixed, &moment, Wall::from_secs(1)).node;
            let conditions = node.status.unwrap().conditions.unwrap();
            assert_eq!(conditions::is_ready(&conditions), ready);
            if !ready {
                let message = conditions[3].message.as_deref();
                assert_eq!(message, Some("missing node capacity for resources: ephemeral-storage"));
            }
        }
    }

    #[test]
    fn images_are_the_largest_with_few_names() {
        let image = |id: &str, size, tags: usize| Image {
            id: id.into(),
            digests: vec![format!("{id}@sha256:1")],
            tags: (0..tags).map(|i| format!("{id}:{i}")).collect(),
            size,
        };
        let all = [image("a", 1, 1), image("b", 5, 9), image("c", 5, 0)];
        let listed = list_images(&all, Some(2));
        let names: Vec<Vec<String>> = listed.iter().map(|i| i.names.clone().unwrap()).collect();
        assert_eq!(names[0], ["c@sha256:1"]);
        assert_eq!(names[1], ["b@sha256:1", "b:0", "b:1", "b:2", "b:3"]);
        assert_eq!(names.len(), 2);
        assert_eq!(list_images(&all, None).len(), 3);
        assert!(list_images(&all, Some(0)).is_empty());
    }
}
