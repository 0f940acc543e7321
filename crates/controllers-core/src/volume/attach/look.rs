//! Which volumes should be attached to which Nodes, and which are.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::Users;
use crate::object::Object;
use crate::resource::{CSI_DRIVERS, NODES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, VOLUME_ATTACHMENTS};
use crate::view::View;
use crate::volume::{claims_of, is_over};

/// Before `driver^handle`: how volumes are called in the status of Nodes.
const PLUGIN: &str = "kubernetes.io/csi/";
/// Nodes whose kubelet leaves attaching to a controller say so.
const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// A volume on a Node.
pub(super) type Place = (Arc<Volume>, Arc<str>);

/// A volume as its driver calls it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Volume {
    pub(super) driver: String,
    pub(super) handle: String,
}

/// Somebody wants a volume on a Node.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) claimed: Arc<Claimed>,
    pub(super) pods: Vec<Arc<Object>>,
}

/// What the PersistentVolume says.
#[derive(Clone, Debug)]
pub(super) struct Claimed {
    pub(super) name: String,
    pub(super) may_be_shared: bool,
}

/// A VolumeAttachment.
#[derive(Clone, Debug)]
pub(super) struct Attachment {
    pub(super) object: Arc<Object>,
    pub(super) is_attached: bool,
    pub(super) error: Option<String>,
}

/// What a Node says.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeSays {
    pub(super) object: Option<Arc<Object>>,
    pub(super) is_ready: bool,
    pub(super) is_out_of_service: bool,
    /// Names of volumes, ours and others; with what else is said of them.
    pub(super) reported: BTreeMap<String, Value>,
    pub(super) in_use: BTreeSet<String>,
}

/// Everything at one moment.
#[derive(Debug, Default)]
pub(super) struct Look {
    pub(super) wanted: BTreeMap<Place, Wanted>,
    pub(super) attachments: BTreeMap<Place, Attachment>,
    pub(super) nodes: BTreeMap<Arc<str>, NodeSays>,
}

// === impl Volume ===

impl Volume {
    /// How it is called in `volumesAttached` and `volumesInUse`.
    pub(super) fn unique_name(&self) -> String {
        format!("{PLUGIN}{}^{}", self.driver, self.handle)
    }

    fn of_unique_name(name: &str) -> Option<Volume> {
        let (driver, handle) = name.strip_prefix(PLUGIN)?.split_once('^')?;
        Some(Volume { driver: driver.to_owned(), handle: handle.to_owned() })
    }

    fn of_persistent_volume(volume: &Value) -> Option<Volume> {
        let csi = &volume["spec"]["csi"];
        let text = |field: &str| csi[field].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        Some(Volume { driver: text("driver")?, handle: text("volumeHandle")? })
    }

    /// The name of its VolumeAttachment.
    pub(super) fn attachment(&self, node: &str) -> String {
        let mut hash = Sha256::new();
        [&*self.handle, &*self.driver, node].iter().for_each(|part| hash.update(part.as_bytes()));
        hash.finalize().iter().fold("csi-".to_owned(), |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

// === impl NodeSays ===

impl NodeSays {
    fn read(node: &Arc<Object>) -> NodeSays {
        let value = node.value();
        let list = |at: &str| value.pointer(at).and_then(Value::as_array).cloned().unwrap_or_default();
        let name = |one: &Value| one["name"].as_str().map(str::to_owned);
        let is_ready = |one: &Value| one["type"] == "Ready" && one["status"] == "True";
        let attached = list("/status/volumesAttached");
        NodeSays {
            object: Some(node.clone()),
            is_ready: list("/status/conditions").iter().any(is_ready),
            is_out_of_service: list("/spec/taints").iter().any(|taint| taint["key"] == OUT_OF_SERVICE),
            reported: attached.into_iter().filter_map(|one| Some((name(&one)?, one))).collect(),
            in_use: in_use(&value),
        }
    }

    fn is_managed(&self) -> bool {
        let value = self.object.as_ref().map(|node| node.value()).unwrap_or_default();
        value["metadata"]["annotations"][MANAGED].is_string()
    }
}

// === impl Look ===

impl Look {
    /// `gone`: what Nodes that were deleted had in use when they were last seen.
    pub(super) fn new(view: &dyn View, users: &Users, gone: &BTreeMap<Arc<str>, BTreeSet<String>>) -> Look {
        let mut look = Look::default();
        for attachment in view.list(VOLUME_ATTACHMENTS, "") {
            look.add_attachment(view, &attachment);
        }
        // Without anything that could be attached, Nodes need not be read.
        let has_csi = !look.attachments.is_empty() || !users.is_empty();
        for node in view.list(NODES, "") {
            if has_csi || names_a_volume(&node) {
                look.nodes.insert((*node.meta.name).into(), NodeSays::read(&node));
            }
        }
        for (node, in_use) in gone {
            look.nodes
                .entry(node.clone())
                .or_insert_with(|| NodeSays { in_use: in_use.clone(), ..NodeSays::default() });
        }
        let managed: BTreeSet<Arc<str>> =
            look.nodes.iter().filter(|(_, says)| says.is_managed()).map(|(name, _)| name.clone()).collect();
        for pod in users.values().filter(|pod| !is_over(pod)) {
            if let Some(node) = managed.get(&*pod.meta.node) {
                look.add_pod(view, pod, node);
            }
        }
        look
    }

    fn add_attachment(&mut self, view: &dyn View, object: &Arc<Object>) {
        let value = object.value();
        let (spec, status) = (&value["spec"], &value["status"]);
        let volume = spec["source"]["persistentVolumeName"].as_str();
        let volume = volume.and_then(|name| view.get(PERSISTENT_VOLUMES, "", name));
        let volume = volume.and_then(|volume| Volume::of_persistent_volume(&volume.value()));
        let (Some(volume), Some(node)) = (volume, spec["nodeName"].as_str()) else { return };
        // Somebody else's, made by his own rules.
        if volume.attachment(node) != *object.meta.name {
            return;
        }
        let error = status["attachError"]["message"].as_str().map(str::to_owned);
        let attachment =
            Attachment { object: object.clone(), is_attached: status["attached"] == true, error };
        self.attachments.insert((Arc::new(volume), node.into()), attachment);
    }

    fn add_pod(&mut self, view: &dyn View, pod: &Arc<Object>, node: &Arc<str>) {
        for (claim, is_own) in claims_of(&pod.value()) {
            let found = view.get(PERSISTENT_VOLUME_CLAIMS, &pod.meta.namespace, &claim);
            let found = found.filter(|claim| !is_own || claim.is_controlled_by(&pod.meta.uid));
            let Some((volume, claimed)) = found.and_then(|claim| behind(view, &claim)) else { continue };
            let new = || Wanted { claimed: Arc::new(claimed), pods: Vec::new() };
            let wanted = self.wanted.entry((Arc::new(volume), node.clone())).or_insert_with(new);
            wanted.pods.push(pod.clone());
        }
    }

    pub(super) fn is_reported(&self, (volume, node): &Place) -> bool {
        self.nodes.get(node).is_some_and(|says| says.reported.contains_key(&volume.unique_name()))
    }

    /// Everything that may be attached somewhere: what has a VolumeAttachment, and what a Node is told to have.
    pub(super) fn actual(&self) -> BTreeSet<Place> {
        let mut places: BTreeSet<Place> = self.attachments.keys().cloned().collect();
        for (node, says) in &self.nodes {
            let volumes = says.reported.keys().filter_map(|name| Volume::of_unique_name(name));
            places.extend(volumes.map(|volume| (Arc::new(volume), node.clone())));
        }
        places
    }
}

pub(super) fn in_use(node: &Value) -> BTreeSet<String> {
    let list = node["status"]["volumesInUse"].as_array().into_iter().flatten();
    list.filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

fn names_a_volume(node: &Object) -> bool {
    std::str::from_utf8(node.json()).is_ok_and(|text| text.contains("\"volumesAttached\""))
}

/// The volume that a bound claim has, if it is one that has to be attached.
fn behind(view: &dyn View, claim: &Object) -> Option<(Volume, Claimed)> {
    let value = claim.value();
    if value["status"]["phase"] != "Bound" {
        return None;
    }
    let name = value["spec"]["volumeName"].as_str().filter(|name| !name.is_empty())?;
    let persistent = view.get(PERSISTENT_VOLUMES, "", name)?.value();
    if persistent["spec"]["claimRef"]["uid"] != *claim.meta.uid {
        return None;
    }
    let volume = Volume::of_persistent_volume(&persistent)?;
    let driver = view.get(CSI_DRIVERS, "", &volume.driver);
    if driver.is_some_and(|driver| driver.value()["spec"]["attachRequired"] == false) {
        return None;
    }
    let modes = persistent["spec"]["accessModes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let shares = |mode: &Value| mode == "ReadWriteMany" || mode == "ReadOnlyMany";
    let may_be_shared = modes.is_empty() || modes.iter().any(shares);
    Some((volume, Claimed { name: name.to_owned(), may_be_shared }))
}
