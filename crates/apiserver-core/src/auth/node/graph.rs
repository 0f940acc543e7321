//! Which node has to do with which object: node, its Pods, what they name, and the volumes behind their claims.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::references::{References, of_pod, secrets_of_volume};

/// What ties nodes to objects. On one machine a node has a few hundred Pods at most, so questions are answered by
/// looking at them, and only what cannot be asked otherwise is kept.
#[derive(Debug, Default)]
pub struct Graph {
    pods: HashMap<Key, OnNode>,
    by_node: HashMap<Box<str>, HashSet<Key>>,
    volumes: HashMap<Box<str>, Bound>,
    attachments: HashMap<Box<str>, Box<str>>,
    slices: HashMap<Box<str>, Box<str>>,
}

/// Namespace and name.
type Key = (Box<str>, Box<str>);

#[derive(Debug)]
struct OnNode {
    node: Box<str>,
    references: References,
}

/// A PersistentVolume with a claim.
#[derive(Debug)]
struct Bound {
    claim: Key,
    secrets: Vec<(String, String)>,
}

/// Kinds whose objects belong to nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    Pod,
    PersistentVolume,
    VolumeAttachment,
    ResourceSlice,
}

/// Kinds a node may ask about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Pod,
    Secret,
    ConfigMap,
    ServiceAccount,
    PersistentVolumeClaim,
    PersistentVolume,
    ResourceClaim,
    VolumeAttachment,
    ResourceSlice,
}

const MIRROR: &str = "kubernetes.io/config.mirror";

// === impl Graph ===

impl Graph {
    pub fn put(&mut self, kind: Watched, object: &Value) {
        let name: Box<str> = text(&object["metadata"]["name"]).into();
        let namespace: Box<str> = text(&object["metadata"]["namespace"]).into();
        let node = text(&object["spec"]["nodeName"]);
        self.remove(kind, &namespace, &name);
        match kind {
            Watched::Pod if !node.is_empty() => {
                // A node makes mirror Pods itself: what they name gives it no rights.
                let mirror = object["metadata"]["annotations"].get(MIRROR).is_some();
                let references = if mirror { References::default() } else { of_pod(object) };
                let key = (namespace, name);
                self.by_node.entry(node.into()).or_default().insert(key.clone());
                self.pods.insert(key, OnNode { node: node.into(), references });
            }
            Watched::Pod => {}
            Watched::PersistentVolume => {
                let claim = &object["spec"]["claimRef"];
                if claim.is_object() {
                    let claim = (text(&claim["namespace"]).into(), text(&claim["name"]).into());
                    self.volumes.insert(name, Bound { claim, secrets: secrets_of_volume(object) });
                }
            }
            Watched::VolumeAttachment => drop(self.attachments.insert(name, node.into())),
            Watched::ResourceSlice => drop(self.slices.insert(name, node.into())),
        }
    }

    pub fn remove(&mut self, kind: Watched, namespace: &str, name: &str) {
        match kind {
            Watched::Pod => {
                let key = (namespace.into(), name.into());
                let Some(pod) = self.pods.remove(&key) else { return };
                if let Some(keys) = self.by_node.get_mut(&pod.node) {
                    keys.remove(&key);
                    if keys.is_empty() {
                        self.by_node.remove(&pod.node);
                    }
                }
            }
            Watched::PersistentVolume => drop(self.volumes.remove(name)),
            Watched::VolumeAttachment => drop(self.attachments.remove(name)),
            Watched::ResourceSlice => drop(self.slices.remove(name)),
        }
    }

    /// Whether the object has to do with the node.
    #[must_use]
    pub fn is_related(&self, node: &str, asked: Asked, namespace: &str, name: &str) -> bool {
        let own = |found: Option<&Box<str>>| found.is_some_and(|n| &**n == node);
        match asked {
            Asked::Pod => own(self.pods.get(&(namespace.into(), name.into())).map(|p| &p.node)),
            Asked::VolumeAttachment => own(self.attachments.get(name)),
            Asked::ResourceSlice => own(self.slices.get(name)),
            Asked::PersistentVolume => {
                self.volumes.get(name).is_some_and(|v| self.uses_claim(node, &v.claim.0, &v.claim.1))
            }
            Asked::PersistentVolumeClaim => self.uses_claim(node, namespace, name),
            Asked::Secret => {
                self.names(node, namespace, |r| r.secrets.contains(name))
                    || self.volumes.values().any(|v| {
                        v.secrets.iter().any(|(ns, n)| ns == namespace && n == name)
                            && self.uses_claim(node, &v.claim.0, &v.claim.1)
                    })
            }
            Asked::ConfigMap => self.names(node, namespace, |r| r.config_maps.contains(name)),
            Asked::ServiceAccount => self.names(node, namespace, |r| r.service_account == name),
            Asked::ResourceClaim => self.names(node, namespace, |r| r.resource_claims.contains(name)),
        }
    }

    fn uses_claim(&self, node: &str, namespace: &str, name: &str) -> bool {
        self.names(node, namespace, |r| r.claims.contains(name))
    }

    fn names(&self, node: &str, namespace: &str, has: impl Fn(&References) -> bool) -> bool {
        let pods = self.by_node.get(node).into_iter().flatten();
        pods.filter(|key| &*key.0 == namespace)
            .filter_map(|key| self.pods.get(key))
            .any(|pod| has(&pod.references))
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
