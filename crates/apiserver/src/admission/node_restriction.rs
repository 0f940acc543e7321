//! NodeRestriction: a kubelet writes its own Node, its own Pods' status, its own lease, and nothing else.

use apiserver_core::admission::{Operation, Review, is_mirror};
use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::Chain;
use crate::objects::{Place, places};
use apiserver_core::api_status::{ApiStatus, Details};
use apiserver_core::auth::csr;
use apiserver_core::auth::node::references::of_pod;
use apiserver_core::doc;
use apiserver_core::request::{Attributes, Resource, groups};

/// Labels below kubernetes.io and k8s.io that are the kubelet's to set.
const KUBELET_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];
const KUBELET_PREFIXES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
const RESTRICTED: &str = "node-restriction.kubernetes.io";

/// What is wrong: a sentence for a Forbidden, or a status of its own.
enum Wrong {
    Why(String),
    ApiStatus(ApiStatus),
}

type Verdict = Result<(), Wrong>;

pub(super) async fn admit(
    chain: &Chain,
    review: &Review<'_>,
    object: Option<&Value>,
) -> Result<(), ApiStatus> {
    let user = review.user();
    if !user.is_in(groups::NODES) || !user.name.starts_with("system:node:") {
        return Ok(());
    }
    let nothing = Value::Null;
    let shown = object.or(review.old).unwrap_or(&nothing);
    let verdict = match user.node_name() {
        None => Err(Wrong::Why(format!("could not determine node from user {:?}", user.name))),
        Some(node) => {
            let case = Case { chain, review, node, object: object.unwrap_or(&nothing), shown };
            case.judge().await
        }
    };
    verdict.map_err(|wrong| match wrong {
        Wrong::Why(why) => review.forbid(shown, &why),
        Wrong::ApiStatus(api_status) => api_status,
    })
}

struct Case<'a> {
    chain: &'a Chain,
    review: &'a Review<'a>,
    node: &'a str,
    /// The new object; null for a delete.
    object: &'a Value,
    shown: &'a Value,
}

// === impl Case ===

impl Case<'_> {
    async fn judge(&self) -> Verdict {
        let review = self.review;
        match (review.kind.group.as_ref(), review.kind.plural.as_ref(), review.subresource()) {
            ("", "pods", "") => self.pod().await,
            ("", "pods", "status") => self.pod_status(),
            ("", "pods", "eviction") => self.eviction().await,
            ("", "pods", other) => wrong(format!(
                "unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"
            )),
            ("", "nodes", _) => self.own_node(),
            ("", "persistentvolumeclaims", "status") => self.claim_status(),
            ("", "persistentvolumeclaims", _) => wrong("may only update PVC status"),
            ("", "serviceaccounts", "token") => self.token().await,
            ("coordination.k8s.io", "leases", _) => self.lease(),
            ("storage.k8s.io", "csinodes", _) => self.named_like_node("CSINode"),
            ("resource.k8s.io", "resourceslices", _) => self.resource_slice(),
            ("certificates.k8s.io", "certificatesigningrequests", "") => self.signing_request(),
            _ => Ok(()),
        }
    }

    async fn pod(&self) -> Verdict {
        let node = self.node;
        match self.review.operation {
            Operation::Create => self.mirror_pod().await,
            Operation::Delete => {
                let old = self.review.old.unwrap_or(&Value::Null);
                let own = doc::text(old, "spec.nodeName") == node;
                require(own, || {
                    format!("node {node:?} can only delete pods with spec.nodeName set to itself")
                })
            }
            Operation::Update => wrong(format!(
                "unexpected operation \"UPDATE\", node {node:?} can only create and delete mirror pods"
            )),
        }
    }

    async fn mirror_pod(&self) -> Verdict {
        let (pod, node) = (self.object, self.node);
        require(is_mirror(pod), || {
            format!(
                "pod does not have \"kubernetes.io/config.mirror\" annotation, node {node:?} can only create mirror pods"
            )
        })?;
        let own = doc::text(pod, "spec.nodeName") == node;
        require(own, || format!("node {node:?} can only create pods with spec.nodeName set to itself"))?;
        let owner = match doc::list(pod, "metadata.ownerReferences") {
            [one] => one,
            [] => {
                return wrong(format!(
                    "node {node:?} can only create pods with an owner reference set to itself"
                ));
            }
            _ => {
                return wrong(format!(
                    "node {node:?} can only create pods with a single owner reference set to itself"
                ));
            }
        };
        let is_node = owner["apiVersion"] == "v1" && owner["kind"] == "Node" && owner["name"] == node;
        require(is_node, || {
            format!("node {node:?} can only create pods with an owner reference set to itself")
        })?;
        require(owner["controller"] == true, || {
            format!("node {node:?} can only create pods with a controller owner reference set to itself")
        })?;
        require(owner["blockOwnerDeletion"] != true, || {
            format!("node {node:?} must not set blockOwnerDeletion on an owner reference")
        })?;
        let found = self.find(places::NODES, node).await?;
        let (said, is) = (doc::text(owner, "uid"), doc::text(&found, "metadata.uid"));
        require(said == is, || format!("node {node} UID mismatch: expected {said} got {is}"))?;
        let references = of_pod(pod);
        let named = [
            (!references.service_account.is_empty(), "serviceaccounts"),
            (!references.secrets.is_empty(), "secrets"),
            (!references.config_maps.is_empty(), "configmaps"),
            (!references.claims.is_empty(), "persistentvolumeclaims"),
            (!doc::list(pod, "spec.resourceClaims").is_empty(), "resourceclaims"),
        ];
        let named = named.into_iter().find(|(has, _)| *has).map(|(_, what)| what);
        match named.or_else(|| doc::list(pod, "spec.volumes").iter().find_map(object_behind)) {
            Some(what) => wrong(format!("node {node:?} can not create pods that reference {what}")),
            None => Ok(()),
        }
    }

    fn pod_status(&self) -> Verdict {
        let node = self.node;
        let Some(old) = self.review.old.filter(|_| self.review.operation == Operation::Update) else {
            return wrong("unexpected operation");
        };
        require(doc::text(old, "spec.nodeName") == node, || {
            format!("node {node:?} can only update pod status for pods with spec.nodeName set to itself")
        })?;
        let same = |path: &str| {
            let (a, b) = (doc::at(old, path), doc::at(self.object, path));
            a == b || (is_empty(a) && is_empty(b))
        };
        require(same("metadata.labels"), || {
            format!("node {node:?} cannot update labels through pod status")
        })?;
        require(same("status.resourceClaimStatuses"), || {
            format!("node {node:?} cannot update resource claim statues")
        })?;
        require(same("status.extendedResourceClaimStatus"), || {
            format!("node {node:?} cannot update extended resource claim status")
        })
    }

    async fn eviction(&self) -> Verdict {
        let name = self.review.name(self.object);
        let pod = self.find(places::PODS, name).await?;
        let own = doc::text(&pod, "spec.nodeName") == self.node;
        require(own, || format!("node {} can only evict pods with spec.nodeName set to itself", self.node))
    }

    fn own_node(&self) -> Verdict {
        let (node, name) = (self.node, self.review.name(self.shown));
        require(name == node, || format!("node {node:?} is not allowed to modify node {name:?}"))?;
        let nothing = Value::Null;
        let old = self.review.old.unwrap_or(&nothing);
        match self.review.operation {
            Operation::Delete => Ok(()),
            Operation::Create => {
                let bad = forbidden_labels(self.object, &nothing);
                require(bad.is_empty(), || {
                    format!("node {node:?} is not allowed to set the following labels: {bad}")
                })
            }
            Operation::Update => {
                let same = |path: &str| {
                    let (a, b) = (doc::at(old, path), doc::at(self.object, path));
                    a == b || (is_empty(a) && is_empty(b))
                };
                require(same("spec.taints"), || format!("node {node:?} is not allowed to modify taints"))?;
                require(same("metadata.ownerReferences"), || {
                    format!("node {node:?} is not allowed to modify ownerReferences")
                })?;
                let bad = forbidden_labels(self.object, old);
                require(bad.is_empty(), || format!("is not allowed to modify labels: {bad}"))
            }
        }
    }

    fn claim_status(&self) -> Verdict {
        let bare = |claim: &Value| {
            let mut claim = claim.clone();
            for (of, fields) in [
                ("metadata", &["resourceVersion", "managedFields"][..]),
                ("status", &["capacity", "conditions", "allocatedResources", "allocatedResourceStatuses"]),
            ] {
                if let Some(map) = claim.get_mut(of).and_then(Value::as_object_mut) {
                    fields.iter().for_each(|f| drop(map.remove(*f)));
                }
            }
            claim
        };
        let same = self.review.old.is_some_and(|old| bare(old) == bare(self.object));
        require(same, || {
            format!(
                "node {:?} is not allowed to update fields other than status.quantity and status.conditions",
                self.node
            )
        })
    }

    async fn token(&self) -> Verdict {
        let bound = &self.object["spec"]["boundObjectRef"];
        let (name, uid) = (doc::text(bound, "name"), doc::text(bound, "uid"));
        let to_pod = bound["apiVersion"] == "v1" && bound["kind"] == "Pod" && !name.is_empty();
        require(to_pod, || "node requested token not bound to a pod".to_owned())?;
        require(!uid.is_empty(), || "node requested token with a pod binding without a uid".to_owned())?;
        let pod = self.find(places::PODS, name).await?;
        require(doc::text(&pod, "metadata.uid") == uid, || {
            format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. The object might \
                 have been deleted and then recreated"
            )
        })?;
        require(doc::text(&pod, "spec.nodeName") == self.node, || {
            "node requested token bound to a pod scheduled on a different node".to_owned()
        })?;
        self.audience(&pod).await
    }

    /// A node asks for tokens for whom the Pod has volumes for, or for whom a role lets it.
    async fn audience(&self, pod: &Value) -> Verdict {
        let asked = match doc::list(self.object, "spec.audiences") {
            [] => "",
            [one] => one.as_str().unwrap_or_default(),
            _ => return wrong("node may only request 0 or 1 audiences"),
        };
        for volume in doc::list(pod, "spec.volumes") {
            let mut sources = doc::list(volume, "projected.sources").iter();
            if sources.any(|s| {
                s["serviceAccountToken"].is_object() && doc::text(s, "serviceAccountToken.audience") == asked
            }) {
                return Ok(());
            }
            let driver = self.driver_of(volume, pod).await?;
            if !driver.is_empty() && self.driver_wants(&driver, asked).await? {
                return Ok(());
            }
        }
        let resource = Resource {
            version: "v1".into(),
            plural: asked.into(),
            namespace: self.review.namespace().into(),
            name: self.review.name(self.object).into(),
            ..Resource::default()
        };
        let attributes = Attributes {
            user: self.review.attributes.user.clone(),
            verb: "request-serviceaccounts-token-audience".into(),
            path: String::new(),
            resource: Some(resource),
        };
        require(self.chain.authorizer.authorize(&attributes).is_allowed(), || {
            let user = &self.review.user().name;
            format!(
                "audience {asked:?} not found in pod spec volume, {user} is not authorized to request tokens for \
                 this audience"
            )
        })
    }

    async fn driver_of(&self, volume: &Value, pod: &Value) -> Result<String, Wrong> {
        let inline = doc::text(volume, "csi.driver");
        if !inline.is_empty() {
            return Ok(inline.to_owned());
        }
        let claim = if volume["ephemeral"].is_object() {
            format!("{}-{}", doc::text(pod, "metadata.name"), doc::text(volume, "name"))
        } else {
            doc::text(volume, "persistentVolumeClaim.claimName").to_owned()
        };
        let objects = &self.chain.objects;
        let claim =
            objects.find(places::CLAIMS, self.review.namespace(), &claim).await.map_err(Wrong::ApiStatus)?;
        let Some(claim) = claim else { return Ok(String::new()) };
        let name = doc::text(&claim.object, "spec.volumeName");
        let volume = objects.find(places::VOLUMES, "", name).await.map_err(Wrong::ApiStatus)?;
        Ok(volume.map(|v| doc::text(&v.object, "spec.csi.driver").to_owned()).unwrap_or_default())
    }

    async fn driver_wants(&self, driver: &str, audience: &str) -> Result<bool, Wrong> {
        let found =
            self.chain.objects.find(places::CSI_DRIVERS, "", driver).await.map_err(Wrong::ApiStatus)?;
        Ok(found.is_some_and(|d| {
            doc::list(&d.object, "spec.tokenRequests").iter().any(|t| doc::text(t, "audience") == audience)
        }))
    }

    fn lease(&self) -> Verdict {
        require(self.review.namespace() == "kube-node-lease", || {
            "can only access leases in the \"kube-node-lease\" system namespace".to_owned()
        })?;
        self.named_like_node("node lease")
    }

    fn named_like_node(&self, what: &str) -> Verdict {
        require(self.review.name(self.shown) == self.node, || {
            format!("can only access {what} with the same name as the requesting node")
        })
    }

    fn resource_slice(&self) -> Verdict {
        let act = match self.review.operation {
            Operation::Create => "create",
            Operation::Delete => "delete",
            Operation::Update => return Ok(()),
        };
        require(doc::text(self.shown, "spec.nodeName") == self.node, || {
            format!("can only {act} ResourceSlice with the same NodeName as the requesting node")
        })
    }

    fn signing_request(&self) -> Verdict {
        let signer = doc::text(self.object, "spec.signerName");
        if self.review.operation != Operation::Create
            || ![csr::SERVING, csr::CLIENT_KUBELET].contains(&signer)
        {
            return Ok(());
        }
        let request =
            csr::request(self.object).map_err(|e| Wrong::Why(format!("unable to parse csr: {e}")))?;
        let expected = format!("system:node:{}", self.node);
        require(request.common_name == expected, || format!("can only create a node CSR with CN={expected}"))
    }

    async fn find(&self, place: Place, name: &str) -> Result<Arc<Value>, Wrong> {
        let found = self.chain.objects.find(place, self.review.namespace(), name).await;
        match found.map_err(Wrong::ApiStatus)? {
            Some(found) => Ok(found.object),
            None => {
                let mut api_status = place.not_found(name);
                let details =
                    Details { name: name.to_owned(), kind: place.resource.to_owned(), ..Details::default() };
                api_status.details = Some(Box::new(details));
                Err(Wrong::ApiStatus(api_status))
            }
        }
    }
}

fn require(condition: bool, why: impl FnOnce() -> String) -> Verdict {
    if condition { Ok(()) } else { Err(Wrong::Why(why())) }
}

fn wrong(why: impl Into<String>) -> Verdict {
    Err(Wrong::Why(why.into()))
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// The labels that differ and are not the kubelet's to set, joined for a message.
fn forbidden_labels(new: &Value, old: &Value) -> String {
    let (new, old) = (&new["metadata"]["labels"], &old["metadata"]["labels"]);
    let maps = new.as_object().into_iter().chain(old.as_object());
    let all: BTreeSet<&str> = maps.flat_map(|m| m.keys().map(String::as_str)).collect();
    let bad: Vec<&str> = all.into_iter().filter(|k| new.get(k) != old.get(k) && !is_kubelets(k)).collect();
    bad.join(", ")
}

fn is_kubelets(label: &str) -> bool {
    let prefix = label.split_once('/').map_or("", |(prefix, _)| prefix);
    let below = |domain: &str| prefix == domain || prefix.ends_with(&format!(".{domain}"));
    if below(RESTRICTED) {
        return false;
    }
    if !below("kubernetes.io") && !below("k8s.io") {
        return true;
    }
    KUBELET_LABELS.contains(&label) || KUBELET_PREFIXES.into_iter().any(below)
}

/// Volumes that need nothing of the API server. Whatever is not here may, or will one day.
const PLAIN_VOLUMES: &[&str] = &[
    "awsElasticBlockStore",
    "azureDisk",
    "cephfs",
    "cinder",
    "downwardAPI",
    "emptyDir",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "hostPath",
    "image",
    "iscsi",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];

/// What of the API server a volume of a mirror Pod would need.
fn object_behind(volume: &Value) -> Option<&'static str> {
    let kinds = volume.as_object().into_iter().flatten().filter(|(kind, _)| *kind != "name");
    kinds.filter(|(kind, _)| !PLAIN_VOLUMES.contains(&kind.as_str())).find_map(|(kind, value)| {
        match kind.as_str() {
            "projected" => doc::list(value, "sources").iter().find_map(projected_object),
            "csi" => Some("csidrivers (via CSI volumes)"),
            "glusterfs" => Some("endpoints (via glusterFS volumes)"),
            "azureFile" => Some("secrets (via azureFile volumes)"),
            _ => Some("volumes of an unknown type"),
        }
    })
}

fn projected_object(source: &Value) -> Option<&'static str> {
    source.as_object().into_iter().flatten().find_map(|(kind, _)| match kind.as_str() {
        "downwardAPI" => None,
        "clusterTrustBundle" => Some("clustertrustbundles"),
        "podCertificate" => Some("podcertificates"),
        _ => Some("projected volumes of an unknown source"),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::testing::{Ask, Bench};
    use super::*;
    use apiserver_core::request::User;
    use serde_json::json;
    use store::Expect;

    async fn bench() -> Bench {
        let pod = |name: &str, node: &str| {
            (
                places::PODS,
                json!({"metadata": {"name": name, "namespace": "web", "uid": name}, "spec": {"nodeName": node,
                "volumes": [{"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]}}),
            )
        };
        let node = (places::NODES, json!({"metadata": {"name": "n1", "uid": "u1"}}));
        Bench::with(&[pod("mine", "n1"), pod("other", "n2"), node]).await
    }

    fn node() -> User {
        User::new("system:node:n1", &[groups::NODES])
    }

    async fn why(bench: &Bench, ask: Ask, object: Option<Value>) -> String {
        let ask = ask.by(node());
        match admit(&bench.chain, &ask.review(), object.as_ref()).await {
            Ok(()) => String::new(),
            Err(api_status) => api_status.message,
        }
    }

    #[tokio::test]
    async fn a_node_changes_its_own_node_and_only_its_own_labels() {
        let bench = bench().await;
        let node =
            |name: &str, labels: Value| json!({"metadata": {"name": name, "labels": labels}, "spec": {}});
        let create = || Ask::create("", "nodes", "");
        let fine = json!({"kubernetes.io/hostname": "n1", "example.com/x": "y", "node.kubernetes.io/z": "1"});
        assert_eq!(why(&bench, create(), Some(node("n1", fine))).await, "");
        assert!(
            why(&bench, create(), Some(node("n2", json!({}))))
                .await
                .contains("not allowed to modify node \"n2\"")
        );
        for label in
            ["node-role.kubernetes.io/control-plane", "node-restriction.kubernetes.io/x", "foo.k8s.io/y"]
        {
            let text = why(&bench, create(), Some(node("n1", json!({label: ""})))).await;
            assert!(text.contains(&format!("set the following labels: {label}")), "{text}");
        }
        let old = node("n1", json!({"node-role.kubernetes.io/x": ""}));
        let update = || create().update(old.clone());
        assert!(
            why(&bench, update(), Some(node("n1", json!({}))))
                .await
                .contains("is not allowed to modify labels")
        );
        let mut tainted = old.clone();
        tainted["spec"]["taints"] = json!([{"key": "x"}]);
        assert!(why(&bench, update(), Some(tainted)).await.contains("modify taints"));
        assert_eq!(why(&bench, update(), Some(old.clone())).await, "");
    }

    #[tokio::test]
    async fn a_node_makes_mirror_pods_of_its_own_only() {
        let bench = bench().await;
        let pod = json!({"metadata": {"name": "s", "annotations": {"kubernetes.io/config.mirror": "h"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1", "controller": true}]},
            "spec": {"nodeName": "n1", "containers": [{"name": "c"}]}});
        let create = || Ask::create("", "pods", "web");
        assert_eq!(why(&bench, create(), Some(pod.clone())).await, "");
        let changed = |path: &str, value: Value| {
            let mut pod = pod.clone();
            doc::set(&mut pod, path, value);
            Some(pod)
        };
        for (object, part) in [
            (changed("metadata.annotations", json!({})), "can only create mirror pods"),
            (changed("spec.nodeName", json!("n2")), "spec.nodeName set to itself"),
            (changed("metadata.ownerReferences", json!([])), "an owner reference set to itself"),
            (
                changed("spec.serviceAccountName", json!("x")),
                "can not create pods that reference serviceaccounts",
            ),
            (changed("spec.volumes", json!([{"configMap": {"name": "c"}}])), "reference configmaps"),
            (changed("spec.volumes", json!([{"name": "v", "csi": {"driver": "d"}}])), "csidrivers (via CSI"),
            (changed("spec.volumes", json!([{"name": "v", "news": {}}])), "of an unknown type"),
            (
                changed("spec.volumes", json!([{"projected": {"sources": [{"clusterTrustBundle": {}}]}}])),
                "reference clustertrustbundles",
            ),
            (
                changed("spec.volumes", json!([{"projected": {"sources": [{"podCertificate": {}}]}}])),
                "reference podcertificates",
            ),
        ] {
            let text = why(&bench, create(), object).await;
            assert!(text.contains(part), "{text}");
        }
        let stored = |node: &str| json!({"metadata": {"name": "s"}, "spec": {"nodeName": node}});
        assert_eq!(why(&bench, create().delete(stored("n1")), None).await, "");
        assert!(why(&bench, create().delete(stored("n2")), None).await.contains("can only delete pods"));
        let status = || Ask::create("", "pods/status", "web");
        assert_eq!(why(&bench, status().update(stored("n1")), Some(stored("n1"))).await, "");
        assert!(why(&bench, status().update(stored("n2")), Some(stored("n2"))).await.contains("pod status"));
        let labelled = json!({"metadata": {"name": "s", "labels": {"a": "b"}}, "spec": {"nodeName": "n1"}});
        assert!(
            why(&bench, status().update(stored("n1")), Some(labelled)).await.contains("cannot update labels")
        );
    }

    #[tokio::test]
    async fn a_node_asks_for_tokens_of_pods_it_runs() {
        let bench = bench().await;
        let request = |pod: &str, uid: &str, audiences: Value| {
            Some(json!({"spec": {"audiences": audiences,
                "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}}}))
        };
        let ask = || Ask::create("", "serviceaccounts/token", "web");
        assert_eq!(why(&bench, ask(), request("mine", "mine", json!([]))).await, "");
        for (object, part) in [
            (request("other", "other", json!([])), "scheduled on a different node"),
            (request("mine", "old", json!([])), "does not match the UID in record"),
            (request("mine", "", json!([])), "without a uid"),
            (request("mine", "mine", json!(["vault"])), "audience \"vault\" not found in pod spec volume"),
            (Some(json!({"spec": {}})), "not bound to a pod"),
            (request("gone", "x", json!([])), "pods \"gone\" not found"),
        ] {
            let text = why(&bench, ask(), object).await;
            assert!(text.contains(part), "{text}");
        }
        // Through the chain, as the token and eviction subresources come.
        let sent = ask().by(node());
        let other = request("other", "other", json!([])).unwrap();
        bench
            .scratch
            .objects
            .put(places::NAMESPACES, &json!({"metadata": {"name": "web"}}), Expect::Any)
            .await
            .unwrap();
        assert_eq!(bench.chain.send(&sent.review(), &other).await.unwrap_err().code, 403);
        let eviction = Ask::create("", "pods/eviction", "web").by(node());
        let of = |pod: &str| json!({"metadata": {"name": pod}});
        assert!(bench.chain.send(&eviction.review(), &of("mine")).await.is_ok());
        assert_eq!(bench.chain.send(&eviction.review(), &of("other")).await.unwrap_err().code, 403);
        let lease = |name: &str| Some(json!({"metadata": {"name": name}}));
        let leases = |ns: &str| Ask::create("coordination.k8s.io", "leases", ns);
        assert_eq!(why(&bench, leases("kube-node-lease"), lease("n1")).await, "");
        assert!(!why(&bench, leases("kube-node-lease"), lease("n2")).await.is_empty());
        assert!(!why(&bench, leases("web"), lease("n1")).await.is_empty());
    }

    #[tokio::test]
    async fn others_are_not_restricted() {
        let bench = bench().await;
        let ask = Ask::create("", "nodes", "").by(User::new("root", &["system:masters"]));
        let node = json!({"metadata": {"name": "any", "labels": {"node-role.kubernetes.io/x": ""}}});
        assert!(admit(&bench.chain, &ask.review(), Some(&node)).await.is_ok());
    }
}
