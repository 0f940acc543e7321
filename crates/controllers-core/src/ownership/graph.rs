//! Who owns whom, of all objects of all kinds, as the garbage collector has heard of them. What is here may be behind: nothing is
//! decided by it alone.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use serde::Deserialize;

use crate::ownership::served::{Served, collectable};

/// The finalizers that say what shall become of dependents.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
pub(crate) const ORPHAN: &str = "orphan";

/// Something that was heard of the objects of the cluster.
#[derive(Debug)]
pub enum News {
    /// All resources that are served now.
    Served(Vec<Arc<Served>>),
    /// All objects of a resource.
    Listed(Arc<Served>, Vec<Known>),
    /// An object was made or changed.
    Seen(Arc<Served>, Known),
    /// The object of this UID is gone.
    Gone(String),
    /// What cannot be listed is not waited for any longer.
    Enough,
}

/// What is known of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    pub uid: Box<str>,
    pub namespace: Box<str>,
    pub name: Box<str>,
    pub owners: Box<[Reference]>,
    pub is_deleting: bool,
    /// It ends after its dependents.
    pub waits: bool,
    /// It ends, and its dependents stay.
    pub orphans: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    pub uid: Box<str>,
    /// Empty for the core group.
    pub group: Box<str>,
    pub kind: Box<str>,
    pub name: Box<str>,
    pub blocks: bool,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) served: Arc<Served>,
    pub(crate) known: Known,
}

/// Every object by its UID.
#[derive(Debug, Default)]
pub struct Graph {
    served: Option<Vec<Arc<Served>>>,
    nodes: HashMap<Box<str>, Node>,
    /// UIDs of owners, there or not, and of what names them.
    dependents: HashMap<Box<str>, BTreeSet<Box<str>>>,
    /// Resources whose first list was heard: group and plural.
    listed: HashSet<(String, String)>,
    is_enough: bool,
}

/// An object as a list or a watch of metadata has it.
#[derive(Deserialize)]
struct Doc {
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    uid: String,
    name: String,
    #[serde(default)]
    namespace: String,
    deletion_timestamp: Option<String>,
    #[serde(default)]
    finalizers: Option<Vec<String>>,
    #[serde(default)]
    owner_references: Option<Vec<RawReference>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawReference {
    uid: String,
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    block_owner_deletion: Option<bool>,
}

// === impl Graph ===

impl Graph {
    /// Learns, and tells the UIDs of what has to be looked at.
    pub fn hear(&mut self, news: News) -> BTreeSet<Box<str>> {
        let mut wakes = BTreeSet::new();
        match news {
            News::Served(all) => self.serve(all, &mut wakes),
            News::Listed(served, objects) => {
                let there: HashSet<Box<str>> = objects.iter().map(|known| known.uid.clone()).collect();
                let is_gone =
                    |node: &Node| node.served.is_same_resource(&served) && !there.contains(&node.known.uid);
                let gone: Vec<Box<str>> = self
                    .nodes
                    .values()
                    .filter(|node| is_gone(node))
                    .map(|node| node.known.uid.clone())
                    .collect();
                gone.iter().for_each(|uid| self.forget(uid, &mut wakes));
                objects.into_iter().for_each(|known| self.see(&served, known, &mut wakes));
                self.listed.insert((served.group.clone(), served.plural.clone()));
            }
            News::Seen(served, known) => self.see(&served, known, &mut wakes),
            News::Gone(uid) => self.forget(&uid, &mut wakes),
            News::Enough => self.is_enough = true,
        }
        wakes
    }

    /// Whether all resources were listed once. Before that what is not here may well be there.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let Some(all) = &self.served else { return false };
        let is_listed =
            |served: &Arc<Served>| self.listed.contains(&(served.group.clone(), served.plural.clone()));
        self.is_enough || collectable(all).iter().all(is_listed)
    }

    pub(crate) fn node(&self, uid: &str) -> Option<&Node> {
        self.nodes.get(uid)
    }

    pub(crate) fn dependents(&self, uid: &str) -> impl Iterator<Item = &Node> {
        self.dependents.get(uid).into_iter().flatten().filter_map(|dependent| self.nodes.get(dependent))
    }

    /// The resource that a reference means; None if nobody serves it.
    pub(crate) fn resource(&self, api_version: &str, kind: &str) -> Option<&Arc<Served>> {
        let mut all = self.served.iter().flatten();
        all.find(|served| served.kind == kind && served.api_version() == api_version)
    }

    /// Whether the owners of an object have to be asked for: one is not known, is another than the reference says, or waits.
    pub(crate) fn is_doubtful(&self, node: &Node) -> bool {
        node.known.owners.iter().any(|reference| {
            self.nodes.get(&reference.uid).is_none_or(|owner| {
                owner.known.waits
                    || owner.known.name != reference.name
                    || *owner.served.kind != *reference.kind
                    || *owner.served.group != *reference.group
                    || !may_own(&owner.known.namespace, &node.known.namespace)
            })
        })
    }

    /// Whether something holds an owner back that ends after its dependents.
    pub(crate) fn is_held_back(&self, uid: &str) -> bool {
        let Some(owner) = self.nodes.get(uid) else { return false };
        self.dependents(uid).any(|dependent| blocks(dependent, owner))
    }

    /// Whether an object that waits for its dependents waits, through others that wait too, for itself.
    pub(crate) fn is_in_circle(&self, uid: &str) -> bool {
        let (mut seen, mut next) = (HashSet::new(), vec![uid]);
        while let Some(owner) = next.pop().and_then(|owner| self.nodes.get(owner)) {
            let waiting =
                self.dependents(&owner.known.uid).filter(|one| one.known.waits && blocks(one, owner));
            for dependent in waiting {
                let found = &*dependent.known.uid;
                if found == uid {
                    return true;
                }
                if seen.insert(found) {
                    next.push(found);
                }
            }
        }
        false
    }

    /// What is not served any more may come back: its objects are forgotten, and what they own stays. What waited for them
    /// waits no longer.
    fn serve(&mut self, all: Vec<Arc<Served>>, wakes: &mut BTreeSet<Box<str>>) {
        let watched = collectable(&all);
        let is_gone = |served: &Served| !watched.iter().any(|known| known.is_same_resource(served));
        let (gone, kept) =
            std::mem::take(&mut self.nodes).into_iter().partition(|(_, node)| is_gone(&node.served));
        self.nodes = kept;
        let gone: HashMap<Box<str>, Node> = gone;
        gone.values().for_each(|node| self.part(node, wakes));
        self.listed.retain(|(group, plural)| {
            watched.iter().any(|served| served.group == *group && served.plural == *plural)
        });
        self.served = Some(all);
    }

    fn see(&mut self, served: &Arc<Served>, known: Known, wakes: &mut BTreeSet<Box<str>>) {
        let uid = known.uid.clone();
        let before = self.nodes.remove(&uid);
        let is_owned_anew = before.as_ref().is_none_or(|before| before.known.owners != known.owners);
        if let Some(before) = before.filter(|_| is_owned_anew) {
            self.part(&before, wakes);
        }
        if is_owned_anew {
            for reference in &known.owners {
                self.dependents.entry(reference.uid.clone()).or_default().insert(uid.clone());
            }
        }
        let node = Node { served: served.clone(), known };
        if node.known.waits || node.known.orphans || (is_owned_anew && self.is_doubtful(&node)) {
            wakes.insert(uid.clone());
        }
        self.nodes.insert(uid, node);
    }

    fn forget(&mut self, uid: &str, wakes: &mut BTreeSet<Box<str>>) {
        if let Some(node) = self.nodes.remove(uid) {
            self.part(&node, wakes);
        }
        wakes.extend(self.dependents.get(uid).into_iter().flatten().cloned());
    }

    /// Takes an object from its owners, and wakes those that waited for that.
    fn part(&mut self, node: &Node, wakes: &mut BTreeSet<Box<str>>) {
        for reference in &node.known.owners {
            if let Some(dependents) = self.dependents.get_mut(&reference.uid) {
                dependents.remove(&node.known.uid);
                if dependents.is_empty() {
                    self.dependents.remove(&reference.uid);
                }
            }
            if self.nodes.get(&reference.uid).is_some_and(|owner| owner.known.waits) {
                wakes.insert(reference.uid.clone());
            }
        }
    }
}

// === impl Known ===

impl Known {
    /// Reads the metadata of an object. None: nobody can say which object this is, or who owns it.
    #[must_use]
    pub fn read(json: &[u8]) -> Option<Known> {
        let Doc { metadata } = serde_json::from_slice(json).ok()?;
        let is_deleting = metadata.deletion_timestamp.is_some();
        let has = |finalizer: &str| metadata.finalizers.iter().flatten().any(|known| known == finalizer);
        let (waits, orphans) = (is_deleting && has(FOREGROUND), is_deleting && has(ORPHAN));
        let owners = metadata.owner_references.unwrap_or_default().into_iter().map(Reference::from).collect();
        let (uid, name, namespace) = (metadata.uid, metadata.name, metadata.namespace);
        Some(Known {
            uid: uid.into(),
            namespace: namespace.into(),
            name: name.into(),
            owners,
            is_deleting,
            waits,
            orphans,
        })
    }
}

impl From<RawReference> for Reference {
    fn from(raw: RawReference) -> Reference {
        let group = raw.api_version.split_once('/').map_or("", |(group, _)| group).into();
        let blocks = raw.block_owner_deletion.unwrap_or(false);
        Reference { uid: raw.uid.into(), group, kind: raw.kind.into(), name: raw.name.into(), blocks }
    }
}

/// What is in a namespace owns nothing outside of it: otherwise whoever writes in one namespace could hold back deletions in
/// another.
fn may_own(owner: &str, dependent: &str) -> bool {
    owner.is_empty() || owner == dependent
}

fn blocks(dependent: &Node, owner: &Node) -> bool {
    may_own(&owner.known.namespace, &dependent.known.namespace)
        && dependent.known.owners.iter().any(|reference| reference.blocks && reference.uid == owner.known.uid)
}
