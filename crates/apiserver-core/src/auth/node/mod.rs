//! What a kubelet may do: its own node, its own Pods, and what they name. Nothing of other nodes.

mod graph;
pub mod references;

use std::sync::{PoisonError, RwLock};

use serde_json::Value;

pub use graph::{Asked, Graph, Watched};

use super::rbac::{Rule, policy};
use super::verdict::Verdict;
use crate::request::{Attributes, Resource};

/// The rights of nodes, kept up to date by a watch.
#[derive(Debug)]
pub struct NodeRights {
    graph: RwLock<Graph>,
    /// What all nodes may do alike.
    rules: Vec<Rule>,
}

// === impl NodeRights ===

impl Default for NodeRights {
    fn default() -> NodeRights {
        NodeRights { graph: RwLock::default(), rules: policy::node_rules() }
    }
}

impl NodeRights {
    pub fn put(&self, kind: Watched, object: &Value) {
        self.graph.write().unwrap_or_else(PoisonError::into_inner).put(kind, object);
    }

    pub fn remove(&self, kind: Watched, namespace: &str, name: &str) {
        self.graph.write().unwrap_or_else(PoisonError::into_inner).remove(kind, namespace, name);
    }

    /// Forgets everything: the watch starts anew.
    pub fn replace(&self, graph: Graph) {
        *self.graph.write().unwrap_or_else(PoisonError::into_inner) = graph;
    }

    #[must_use]
    pub fn authorize(&self, attributes: &Attributes) -> Verdict {
        let Some(node) = attributes.user.node_name() else {
            return Verdict::no_opinion("");
        };
        if let Some(resource) = &attributes.resource {
            let question = Question { rights: self, node, verb: &attributes.verb, resource };
            if let Some(answer) = question.answer() {
                return match answer {
                    Ok(()) => Verdict::allow(""),
                    Err(why) => Verdict::no_opinion(why),
                };
            }
        }
        if self.rules.iter().any(|rule| rule.allows(attributes)) {
            Verdict::allow("")
        } else {
            Verdict::no_opinion("")
        }
    }
}

struct Question<'a> {
    rights: &'a NodeRights,
    node: &'a str,
    verb: &'a str,
    resource: &'a Resource,
}

type Answer = Result<(), String>;

// === impl Question ===

impl Question<'_> {
    /// The answer for resources that are divided among nodes; None for the others.
    fn answer(&self) -> Option<Answer> {
        let subresource = self.resource.subresource.as_str();
        Some(match (self.resource.group.as_str(), self.resource.plural.as_str()) {
            ("", "secrets") => self.read(Asked::Secret),
            ("", "configmaps") => self.read(Asked::ConfigMap),
            ("", "persistentvolumeclaims") if subresource == "status" => self.claim_status(),
            ("", "persistentvolumeclaims") => self.get(Asked::PersistentVolumeClaim),
            ("", "persistentvolumes") => self.get(Asked::PersistentVolume),
            ("resource.k8s.io", "resourceclaims") => self.get(Asked::ResourceClaim),
            ("storage.k8s.io", "volumeattachments") => self.get(Asked::VolumeAttachment),
            ("", "serviceaccounts") if self.verb == "get" && subresource.is_empty() => {
                self.read(Asked::ServiceAccount)
            }
            ("", "serviceaccounts") => self.create_token(),
            ("coordination.k8s.io", "leases") => self.lease(),
            ("storage.k8s.io", "csinodes") => self.csi_node(),
            ("resource.k8s.io", "resourceslices") => self.resource_slice(),
            ("", "nodes") => self.own_node(),
            ("", "pods") => self.pod(),
            ("certificates.k8s.io", "podcertificaterequests") => Err(String::new()),
            ("certificates.k8s.io", "clustertrustbundles") => {
                require(matches!(self.verb, "get" | "list" | "watch"), "can only read resources of this type")
            }
            _ => return None,
        })
    }

    fn related(&self, asked: Asked) -> Answer {
        let Resource { namespace, name, .. } = self.resource;
        if name.is_empty() {
            return Err("No Object name found".to_owned());
        }
        let graph = self.rights.graph.read().unwrap_or_else(PoisonError::into_inner);
        if graph.is_related(self.node, asked, namespace, name) {
            Ok(())
        } else {
            Err(format!("no relationship found between node '{}' and this object", self.node))
        }
    }

    fn get(&self, asked: Asked) -> Answer {
        require(self.verb == "get", "can only get individual resources of this type")?;
        require(self.resource.subresource.is_empty(), "cannot get subresource")?;
        self.related(asked)
    }

    fn read(&self, asked: Asked) -> Answer {
        require(matches!(self.verb, "get" | "list" | "watch"), "can only read resources of this type")?;
        require(self.resource.subresource.is_empty(), "cannot read subresource")?;
        require(!self.resource.namespace.is_empty(), "can only read namespaced object of this type")?;
        self.related(asked)
    }

    fn claim_status(&self) -> Answer {
        require(matches!(self.verb, "update" | "patch"), "can only get/update/patch this type")?;
        self.related(Asked::PersistentVolumeClaim)
    }

    fn create_token(&self) -> Answer {
        let named = self.verb == "create" && !self.resource.name.is_empty();
        require(named, "can only create tokens for individual service accounts")?;
        let token = self.resource.subresource == "token";
        require(token, "can only create token subresource of serviceaccount")?;
        self.related(Asked::ServiceAccount)
    }

    /// The name is not known at create: NodeRestriction looks at it.
    fn lease(&self) -> Answer {
        let verb = matches!(self.verb, "get" | "create" | "update" | "patch" | "delete");
        require(verb, "can only get, create, update, patch, or delete a node lease")?;
        let here = self.resource.namespace == "kube-node-lease";
        require(here, "can only access leases in the \"kube-node-lease\" system namespace")?;
        let own = self.verb == "create" || self.resource.name == self.node;
        require(own, "can only access node lease with the same name as the requesting node")
    }

    fn csi_node(&self) -> Answer {
        let verb = matches!(self.verb, "get" | "create" | "update" | "patch" | "delete");
        require(verb, "can only get, create, update, patch, or delete a CSINode")?;
        require(self.resource.subresource.is_empty(), "cannot authorize CSINode subresources")?;
        let own = self.verb == "create" || self.resource.name == self.node;
        require(own, "can only access CSINode with the same name as the requesting node")
    }

    fn resource_slice(&self) -> Answer {
        require(self.resource.subresource.is_empty(), "cannot authorize ResourceSlice subresources")?;
        match self.verb {
            "create" => Ok(()),
            "get" | "update" | "patch" | "delete" => self.related(Asked::ResourceSlice),
            "watch" | "list" | "deletecollection" => require(
                self.selects("spec.nodeName"),
                "can only list/watch/deletecollection resourceslices with nodeName field selector",
            ),
            _ => Err("only the following verbs are allowed for a ResourceSlice: get, watch, list, create, \
                      update, patch, delete, deletecollection"
                .to_owned()),
        }
    }

    fn own_node(&self) -> Answer {
        match (self.resource.subresource.as_str(), self.verb) {
            ("", "create" | "update" | "patch") | ("status", "update" | "patch") => Ok(()),
            // By name and not by the graph: a kubelet looks for its Node before it creates it.
            ("", "get" | "list" | "watch") => match self.resource.name.as_str() {
                name if name == self.node => Ok(()),
                "" => Err(format!("node '{}' cannot read all nodes, only its own Node object", self.node)),
                name => Err(format!("node '{}' cannot read '{name}', only its own Node object", self.node)),
            },
            _ => Err(String::new()),
        }
    }

    fn pod(&self) -> Answer {
        match (self.resource.subresource.as_str(), self.verb) {
            ("", "get") => self.get(Asked::Pod),
            ("", "list" | "watch") if self.selects("spec.nodeName") => Ok(()),
            ("", "list" | "watch") if !self.resource.name.is_empty() => self.related(Asked::Pod),
            ("", "list" | "watch") => {
                Err("can only list/watch pods with spec.nodeName field selector".to_owned())
            }
            // Mirror Pods, reports and evictions: NodeRestriction keeps them to this node.
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => Ok(()),
            _ => Err(String::new()),
        }
    }

    fn selects(&self, field: &str) -> bool {
        self.resource.field_selector.exact(field) == Some(self.node)
    }
}

fn require(condition: bool, why: &str) -> Answer {
    if condition { Ok(()) } else { Err(why.to_owned()) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::request::{User, groups};
    use api::selector::FieldSelector;
    use serde_json::json;
    use std::sync::Arc;

    fn rights() -> NodeRights {
        let rights = NodeRights::default();
        let pod = |name: &str, node: &str, mirror: bool| {
            let annotations = if mirror { json!({"kubernetes.io/config.mirror": "x"}) } else { json!({}) };
            json!({"metadata": {"name": name, "namespace": "web", "annotations": annotations},
            "spec": {"nodeName": node, "serviceAccountName": format!("sa-{name}"), "volumes": [
                {"secret": {"secretName": format!("s-{name}")}}, {"configMap": {"name": "shared"}},
                {"persistentVolumeClaim": {"claimName": format!("c-{name}")}}]}})
        };
        rights.put(Watched::Pod, &pod("a", "n1", false));
        rights.put(Watched::Pod, &pod("b", "n2", false));
        rights.put(Watched::Pod, &pod("m", "n1", true));
        rights.put(Watched::Pod, &pod("free", "", false));
        rights.put(
            Watched::PersistentVolume,
            &json!({"metadata": {"name": "pv-a"}, "spec": {"claimRef": {"namespace": "web", "name": "c-a"},
                "csi": {"nodeStageSecretRef": {"name": "stage", "namespace": "csi"}}}}),
        );
        rights
            .put(Watched::VolumeAttachment, &json!({"metadata": {"name": "va"}, "spec": {"nodeName": "n1"}}));
        rights
    }

    fn ask(line: &str) -> Attributes {
        // verb group/resource[/sub] namespace name [selector]
        let words: Vec<&str> = line.split(' ').collect();
        let mut path = words[1].split('/');
        let group = path.next().unwrap();
        let plural = path.next().unwrap();
        let dash = |w: &str| if w == "-" { String::new() } else { w.to_owned() };
        Attributes {
            user: Arc::new(User::new("system:node:n1", &[groups::NODES])),
            verb: words[0].to_owned().into(),
            path: String::new(),
            resource: Some(Resource {
                group: dash(group),
                plural: plural.into(),
                subresource: path.next().unwrap_or_default().into(),
                namespace: dash(words[2]),
                name: dash(words[3]),
                field_selector: FieldSelector::parse(words.get(4).copied().unwrap_or_default()).unwrap(),
                ..Resource::default()
            }),
        }
    }

    #[test]
    fn a_node_sees_what_its_pods_name_and_nothing_else() {
        let rights = rights();
        for line in [
            "get -/secrets web s-a",
            "watch -/secrets web s-a",
            "get -/configmaps web shared",
            "get -/persistentvolumeclaims web c-a",
            "get -/persistentvolumes - pv-a",
            "get -/secrets csi stage",
            "get storage.k8s.io/volumeattachments - va",
            "create -/serviceaccounts/token web sa-a",
            "get -/serviceaccounts web sa-a",
            "get -/pods web a",
            "list -/pods - - spec.nodeName=n1",
            "watch -/pods - - spec.nodeName=n1,metadata.namespace=web",
            "get -/nodes - n1",
            "watch -/nodes - n1",
            "create -/nodes - -",
            "patch -/nodes/status - n1",
            "create -/pods web -",
            "patch -/pods/status web a",
            "create -/pods/eviction web a",
            "create coordination.k8s.io/leases kube-node-lease -",
            "update coordination.k8s.io/leases kube-node-lease n1",
            "get storage.k8s.io/csinodes - n1",
            "patch -/persistentvolumeclaims/status web c-a",
            "list -/services - -",
            "create -/events default -",
            "create certificates.k8s.io/certificatesigningrequests - -",
            "create authorization.k8s.io/subjectaccessreviews - -",
        ] {
            assert!(rights.authorize(&ask(line)).is_allowed(), "{line}");
        }
        for line in [
            "get -/secrets web s-b",
            "get -/secrets web s-m",
            "get -/secrets web s-free",
            "get -/secrets other s-a",
            "list -/secrets web -",
            "list -/secrets - -",
            "update -/secrets web s-a",
            "get -/persistentvolumes - pv-b",
            "create -/serviceaccounts/token web sa-b",
            "create -/serviceaccounts/token web sa-m",
            "get -/pods web b",
            "list -/pods - -",
            "list -/pods - - spec.nodeName=n2",
            "list -/pods - - spec.nodeName!=n1",
            "get -/nodes - n2",
            "list -/nodes - -",
            "delete -/nodes - n1",
            "update coordination.k8s.io/leases kube-node-lease n2",
            "update coordination.k8s.io/leases default n1",
            "update -/pods web a",
            "create -/pods/exec web a",
            "delete -/services web x",
        ] {
            assert!(!rights.authorize(&ask(line)).is_allowed(), "{line}");
        }
        let verdict = rights.authorize(&ask("get -/secrets web s-b"));
        assert_eq!(verdict.reason, "no relationship found between node 'n1' and this object");
    }

    #[test]
    fn rights_end_with_the_pod_and_move_with_it() {
        let rights = rights();
        rights.remove(Watched::Pod, "web", "a");
        for line in ["get -/secrets web s-a", "get -/persistentvolumes - pv-a", "get -/secrets csi stage"] {
            assert!(!rights.authorize(&ask(line)).is_allowed(), "{line}");
        }
        rights.put(
            Watched::Pod,
            &json!({"metadata": {"name": "b", "namespace": "web"}, "spec": {"nodeName": "n1",
                "volumes": [{"secret": {"secretName": "s-b"}}]}}),
        );
        assert!(rights.authorize(&ask("get -/secrets web s-b")).is_allowed());
        let other = Attributes {
            user: Arc::new(User::new("system:node:n2", &[groups::NODES])),
            ..ask("get -/secrets web s-b")
        };
        assert!(!rights.authorize(&other).is_allowed());
        let outsider =
            Attributes { user: Arc::new(User::new("system:node:n1", &[])), ..ask("list -/services - -") };
        assert!(!rights.authorize(&outsider).is_allowed());
    }
}
