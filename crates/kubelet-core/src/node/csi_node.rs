//! The node's entry among those that can mount: its CSINode.

use std::collections::BTreeSet;

use k8s_openapi::api::storage::v1::{CSINode, CSINodeSpec};

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
mod tests {
    use super::*;

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
