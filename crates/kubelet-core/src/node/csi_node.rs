//! The node's entry among those that can mount: its CSINode.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};

use super::owner;

const MIGRATED: &str = "storage.alpha.kubernetes.io/migrated-plugins";

/// Volume kinds of old that are served by CSI drivers on every node of this release.
const MIGRATED_PLUGINS: [&str; 7] = [
    "kubernetes.io/aws-ebs",
    "kubernetes.io/azure-disk",
    "kubernetes.io/azure-file",
    "kubernetes.io/cinder",
    "kubernetes.io/gce-pd",
    "kubernetes.io/portworx-volume",
    "kubernetes.io/vsphere-volume",
];

/// What to do about the object that is there.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Create(CSINode),
    /// It belongs to a node of the same name that is gone; its drivers are not ours.
    Delete,
    Update(CSINode),
    Nothing,
}

/// What a driver says of itself on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverInfo {
    pub name: String,
    /// How the driver calls this node.
    pub node_id: String,
    /// How many volumes it can have here; zero or less says nothing.
    pub max_volumes: i64,
    pub topology: BTreeMap<String, String>,
}

/// The annotation of a Node that holds the drivers' names for it, as JSON.
pub const NODE_ID: &str = "csi.volume.kubernetes.io/nodeid";

/// Enters a driver; none if it is there already, as it is now.
#[must_use]
pub fn with_driver(existing: &CSINode, driver: &DriverInfo) -> Option<CSINode> {
    let keys: Vec<String> = driver.topology.keys().cloned().collect();
    let count = (driver.max_volumes > 0).then(|| i32::try_from(driver.max_volumes).unwrap_or(i32::MAX));
    let entry = CSINodeDriver {
        name: driver.name.clone(),
        node_id: driver.node_id.clone(),
        topology_keys: Some(keys).filter(|k| !k.is_empty()),
        allocatable: count.map(|count| VolumeNodeResources { count: Some(count) }),
    };
    let is_same = |old: &CSINodeDriver| {
        let keys =
            |d: &CSINodeDriver| -> BTreeSet<String> { d.topology_keys.iter().flatten().cloned().collect() };
        let count = |d: &CSINodeDriver| d.allocatable.as_ref().and_then(|a| a.count);
        old.node_id == entry.node_id && keys(old) == keys(&entry) && count(old) == count(&entry)
    };
    if existing.spec.drivers.iter().any(|d| d.name == driver.name && is_same(d)) {
        return None;
    }
    let mut object = existing.clone();
    object.spec.drivers.retain(|d| d.name != driver.name);
    object.spec.drivers.push(entry);
    Some(object)
}

/// Takes a driver out; none if it is not there.
#[must_use]
pub fn without_driver(existing: &CSINode, driver: &str) -> Option<CSINode> {
    let mut object = existing.clone();
    object.spec.drivers.retain(|d| d.name != driver);
    (object.spec.drivers.len() != existing.spec.drivers.len()).then_some(object)
}

/// The Node with a driver's name for it and the labels of where the driver says it is; none if nothing changes.
pub fn node_with_driver(node: &Node, driver: &DriverInfo) -> Result<Option<Node>, String> {
    let mut ids = node_ids(node)?;
    let labels = node.metadata.labels.clone().unwrap_or_default();
    for (key, value) in &driver.topology {
        if let Some(old) = labels.get(key).filter(|old| *old != value) {
            return Err(format!(
                "detected topology value collision: driver reported {key:?}:{value:?} but existing label is {key:?}:{old:?}"
            ));
        }
    }
    ids.insert(driver.name.clone(), driver.node_id.clone());
    let mut changed = set_node_ids(node, &ids);
    if !driver.topology.is_empty() {
        changed.metadata.labels = Some(labels.into_iter().chain(driver.topology.clone()).collect());
    }
    Ok(Some(changed).filter(|n| n.metadata != node.metadata))
}

/// The Node without a driver's name for it; none if it has none. Labels stay: volumes may still be found by them.
pub fn node_without_driver(node: &Node, driver: &str) -> Result<Option<Node>, String> {
    let mut ids = node_ids(node)?;
    Ok(ids.remove(driver).map(|_| set_node_ids(node, &ids)))
}

fn node_ids(node: &Node) -> Result<BTreeMap<String, String>, String> {
    let text = node.metadata.annotations.as_ref().and_then(|a| a.get(NODE_ID)).filter(|t| !t.is_empty());
    text.map_or(Ok(BTreeMap::new()), |text| {
        serde_json::from_str(text)
            .map_err(|e| format!("failed to parse node's {NODE_ID:?} annotation value ({text:?}) err={e}"))
    })
}

fn set_node_ids(node: &Node, ids: &BTreeMap<String, String>) -> Node {
    let mut node = node.clone();
    let annotations = node.metadata.annotations.get_or_insert_default();
    match ids.is_empty() {
        true => drop(annotations.remove(NODE_ID)),
        false => drop(annotations.insert(NODE_ID.to_owned(), serde_json::json!(ids).to_string())),
    }
    node
}

/// The next step towards a right CSINode.
#[must_use]
pub fn step(existing: Option<&CSINode>, node: &str, uid: &str) -> Step {
    let Some(existing) = existing else { return Step::Create(new(node, uid)) };
    let owners = existing.metadata.owner_references.as_deref().unwrap_or_default();
    if !owners.iter().any(|o| o.kind == "Node" && o.uid == uid) {
        return Step::Delete;
    }
    let text =
        existing.metadata.annotations.as_ref().and_then(|a| a.get(MIGRATED)).map_or("", String::as_str);
    let has: BTreeSet<&str> = text.split(',').filter(|t| !t.is_empty()).collect();
    if has == BTreeSet::from(MIGRATED_PLUGINS) {
        return Step::Nothing;
    }
    let mut fixed = existing.clone();
    annotate(&mut fixed);
    Step::Update(fixed)
}

fn new(node: &str, uid: &str) -> CSINode {
    let mut object = CSINode { spec: CSINodeSpec::default(), ..Default::default() };
    object.metadata.name = Some(node.to_owned());
    object.metadata.owner_references = Some(vec![owner(node, uid)]);
    annotate(&mut object);
    object
}

fn annotate(object: &mut CSINode) {
    let annotations = object.metadata.annotations.get_or_insert_default();
    annotations.insert(MIGRATED.to_owned(), MIGRATED_PLUGINS.join(","));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn driver(id: &str, max: i64, zone: &str) -> DriverInfo {
        let topology = BTreeMap::from([("topology.d/zone".to_owned(), zone.to_owned())]);
        DriverInfo { name: "d".into(), node_id: id.into(), max_volumes: max, topology }
    }

    #[test]
    fn a_driver_is_entered_once_and_taken_out() {
        let Step::Create(empty) = step(None, "n1", "u1") else { panic!("not created") };
        let one = with_driver(&empty, &driver("id", 3, "a")).unwrap();
        assert_eq!(with_driver(&one, &driver("id", 3, "b")), None, "the same keys");
        let entry = &one.spec.drivers[0];
        assert_eq!(entry.topology_keys.as_deref(), Some(["topology.d/zone".to_owned()].as_slice()));
        assert_eq!(entry.allocatable.as_ref().unwrap().count, Some(3));
        let fewer = with_driver(&one, &driver("id", 1 << 40, "a")).unwrap();
        assert_eq!(fewer.spec.drivers.len(), 1);
        assert_eq!(fewer.spec.drivers[0].allocatable.as_ref().unwrap().count, Some(i32::MAX));
        assert_eq!(with_driver(&one, &driver("id", 0, "a")).unwrap().spec.drivers[0].allocatable, None);
        assert_eq!(without_driver(&one, "d"), Some(empty.clone()));
        assert_eq!(without_driver(&empty, "d"), None);
    }

    #[test]
    fn a_node_carries_the_drivers_names_for_it() {
        let bare = Node::default();
        let one = node_with_driver(&bare, &driver("id", 0, "a")).unwrap().unwrap();
        assert_eq!(one.metadata.annotations.as_ref().unwrap()[NODE_ID], r#"{"d":"id"}"#);
        assert_eq!(one.metadata.labels.as_ref().unwrap()["topology.d/zone"], "a");
        assert_eq!(node_with_driver(&one, &driver("id", 0, "a")).unwrap(), None);
        let moved = node_with_driver(&one, &driver("id", 0, "b")).unwrap_err();
        assert!(
            moved.starts_with("detected topology value collision: driver reported \"topology.d/zone\":\"b\"")
        );
        let gone = node_without_driver(&one, "d").unwrap().unwrap();
        assert!(!gone.metadata.annotations.unwrap().contains_key(NODE_ID));
        assert_eq!(node_without_driver(&bare, "d").unwrap(), None);
    }

    #[test]
    fn it_is_made_once_and_never_inherited() {
        let Step::Create(made) = step(None, "n1", "u1") else { panic!("not created") };
        assert_eq!(step(Some(&made), "n1", "u1"), Step::Nothing);
        assert_eq!(step(Some(&made), "n1", "u2"), Step::Delete, "another node's");
        let mut bare = made.clone();
        bare.metadata.annotations = None;
        assert_eq!(step(Some(&bare), "n1", "u1"), Step::Update(made));
    }
}
