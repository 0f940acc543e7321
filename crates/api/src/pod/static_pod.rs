//! Making a manifest into a Pod of this node: identity, annotations, and what it may not refer to.

use base::fnv::fnv1a128;
use base::time::Wall;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodStatus, Toleration, Volume, VolumeProjection};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{ManifestError, set_defaults, validate};
use crate::json::ToJson;

pub const SOURCE_ANNOTATION: &str = "kubernetes.io/config.source";
pub const SEEN_ANNOTATION: &str = "kubernetes.io/config.seen";
pub const HASH_ANNOTATION: &str = "kubernetes.io/config.hash";
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// Where a manifest came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin<'a> {
    File(&'a str),
    Url(&'a str),
    /// Given by command at this moment. Two submissions are two Pods, even of the same text.
    Local(Wall),
}

/// Gives the Pod its identity on this node, fills in defaults and refuses what cannot run here.
///
/// `seen` is when this version of the manifest was first read.
pub fn prepare(mut pod: Pod, origin: Origin<'_>, node: &str, seen: Wall) -> Result<Pod, ManifestError> {
    if pod.metadata.name.as_deref().unwrap_or_default().is_empty() {
        return Err(ManifestError::NoName);
    }
    forget_former_life(&mut pod);
    // Before defaulting, so that a kubelet with other defaults finds the Pod it already runs.
    let uid = match pod.metadata.uid.take().filter(|uid| !uid.is_empty()) {
        Some(uid) => uid,
        None => derive_uid(&pod, origin, node),
    };
    set_defaults(&mut pod);
    let meta = &mut pod.metadata;
    let local = matches!(origin, Origin::Local(_));
    if !local && let Some(name) = &mut meta.name {
        *name = format!("{name}-{}", node.to_lowercase());
    }
    if meta.namespace.as_deref().unwrap_or_default().is_empty() {
        meta.namespace = Some("default".to_owned());
    }
    if let Origin::Local(at) = origin {
        meta.creation_timestamp = timestamp(at).map(Time);
    }
    let annotations = meta.annotations.get_or_insert_default();
    annotations.insert(SOURCE_ANNOTATION.to_owned(), origin.source().to_owned());
    if let Some(at) = timestamp(seen) {
        annotations.insert(SEEN_ANNOTATION.to_owned(), at.to_string());
    }
    identify(&mut pod, &uid);
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(node.to_owned());
    if !matches!(origin, Origin::Url(_)) {
        tolerate_no_execute(spec);
    }
    pod.status = Some(PodStatus { phase: Some("Pending".to_owned()), ..PodStatus::default() });

    let errors = validate(&pod);
    if !errors.is_empty() {
        return Err(ManifestError::Invalid(errors));
    }
    uid_is_a_path_element(&pod)?;
    match pod.spec.as_ref().and_then(reference) {
        Some(kind) => Err(ManifestError::Reference(kind)),
        None => Ok(pod),
    }
}

/// Gives a prepared Pod another UID than its own.
pub fn identify(pod: &mut Pod, uid: &str) {
    pod.metadata.annotations.get_or_insert_default().insert(HASH_ANNOTATION.to_owned(), uid.to_owned());
    pod.metadata.uid = Some(uid.to_owned());
}

/// Whether the kubelet got the Pod from a file, a URL or a command and not from an API server.
#[must_use]
pub fn is_static(pod: &Pod) -> bool {
    let source = pod.metadata.annotations.as_ref().and_then(|a| a.get(SOURCE_ANNOTATION));
    source.is_some_and(|s| s != "api")
}

// === impl Origin ===

impl Origin<'_> {
    /// The value of the source annotation.
    #[must_use]
    pub fn source(self) -> &'static str {
        match self {
            Origin::File(_) => "file",
            Origin::Url(_) => "http",
            Origin::Local(_) => "local",
        }
    }
}

/// A manifest copied from a running cluster carries traces of another Pod's life.
fn forget_former_life(pod: &mut Pod) {
    let meta = &mut pod.metadata;
    meta.deletion_timestamp = None;
    meta.deletion_grace_period_seconds = None;
    meta.managed_fields = None;
    meta.owner_references = None;
    meta.resource_version = None;
    meta.creation_timestamp = None;
    pod.status = None;
    if let Some(annotations) = &mut meta.annotations {
        for key in [SOURCE_ANNOTATION, SEEN_ANNOTATION, HASH_ANNOTATION, MIRROR_ANNOTATION] {
            annotations.remove(key);
        }
    }
}

fn derive_uid(pod: &Pod, origin: Origin<'_>, node: &str) -> String {
    // Struct order and sorted maps make this text canonical.
    let mut text = pod.to_json();
    let tail = match origin {
        Origin::File(path) => format!("host:{node}file:{path}"),
        Origin::Url(url) => format!("url:{url}"),
        Origin::Local(at) => format!("host:{node}local:{}", at.0),
    };
    text.extend_from_slice(tail.as_bytes());
    format!("{:032x}", fnv1a128(&text))
}

/// A UID written in the manifest becomes a directory name.
fn uid_is_a_path_element(pod: &Pod) -> Result<(), ManifestError> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let good = uid.len() <= 128 && uid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if good {
        return Ok(());
    }
    let mut errors = crate::field::FieldErrors::default();
    let message = "must be at most 128 letters, digits, '-' or '_'";
    errors.invalid(&crate::field::Path::new("metadata").child("uid"), uid, message);
    Err(ManifestError::Invalid(errors))
}

fn timestamp(at: Wall) -> Option<jiff::Timestamp> {
    jiff::Timestamp::from_nanosecond(i128::from(at.0)).ok()
}

/// Node trouble does not evict a Pod that has nowhere else to go.
fn tolerate_no_execute(spec: &mut PodSpec) {
    let everything = Toleration {
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        ..Toleration::default()
    };
    let tolerations = spec.tolerations.get_or_insert_default();
    let same = |t: &Toleration| {
        t.key.as_deref().unwrap_or_default().is_empty()
            && t.value.as_deref().unwrap_or_default().is_empty()
            && t.operator == everything.operator
            && t.effect == everything.effect
    };
    match tolerations.iter_mut().find(|t| same(t)) {
        Some(t) => *t = everything,
        None => tolerations.push(everything),
    }
}

/// The first kind of API object the Pod refers to, in upstream's words.
fn reference(spec: &PodSpec) -> Option<&'static str> {
    if spec.service_account_name.as_deref().is_some_and(|s| !s.is_empty()) {
        return Some("serviceaccounts");
    }
    let containers = || spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let volumes = || spec.volumes.iter().flatten();
    if spec.image_pull_secrets.as_ref().is_some_and(|s| !s.is_empty())
        || containers().any(env_names_secret)
        || volumes().any(volume_names_secret)
    {
        return Some("secrets");
    }
    if containers().any(env_names_config_map) || volumes().any(|v| v.config_map.is_some()) {
        return Some("configmaps");
    }
    if spec.resource_claims.as_ref().is_some_and(|c| !c.is_empty()) {
        return Some("resourceclaims");
    }
    volumes().find_map(volume_reference)
}

fn env_names_secret(c: &Container) -> bool {
    c.env_from.iter().flatten().any(|e| e.secret_ref.is_some())
        || c.env.iter().flatten().filter_map(|e| e.value_from.as_ref()).any(|v| v.secret_key_ref.is_some())
}

fn env_names_config_map(c: &Container) -> bool {
    c.env_from.iter().flatten().any(|e| e.config_map_ref.is_some())
        || c.env
            .iter()
            .flatten()
            .filter_map(|e| e.value_from.as_ref())
            .any(|v| v.config_map_key_ref.is_some())
}

fn volume_names_secret(v: &Volume) -> bool {
    v.secret.is_some()
        || v.azure_file.is_some()
        || v.cephfs.as_ref().is_some_and(|s| s.secret_ref.is_some())
        || v.cinder.as_ref().is_some_and(|s| s.secret_ref.is_some())
        || v.flex_volume.as_ref().is_some_and(|s| s.secret_ref.is_some())
        || v.rbd.as_ref().is_some_and(|s| s.secret_ref.is_some())
        || v.scale_io.is_some()
        || v.iscsi.as_ref().is_some_and(|s| s.secret_ref.is_some())
        || v.storageos.as_ref().is_some_and(|s| s.secret_ref.is_some())
        || v.csi.as_ref().is_some_and(|s| s.node_publish_secret_ref.is_some())
}

fn volume_reference(v: &Volume) -> Option<&'static str> {
    if v.csi.is_some() {
        Some("csidrivers (via CSI volumes)")
    } else if v.glusterfs.is_some() {
        Some("endpoints (via glusterFS volumes)")
    } else if v.persistent_volume_claim.is_some() {
        Some("persistentvolumeclaims")
    } else if v.ephemeral.is_some() {
        Some("persistentvolumeclaims (via ephemeral volumes)")
    } else {
        let sources = v.projected.as_ref().and_then(|p| p.sources.as_ref());
        sources.into_iter().flatten().find_map(projected_reference)
    }
}

fn projected_reference(s: &VolumeProjection) -> Option<&'static str> {
    if s.config_map.is_some() {
        Some("configmaps (via projected volumes)")
    } else if s.secret.is_some() {
        Some("secrets (via projected volumes)")
    } else if s.service_account_token.is_some() {
        Some("serviceaccounts (via projected volumes)")
    } else if s.cluster_trust_bundle.is_some() {
        Some("clustertrustbundles")
    } else if s.pod_certificate.is_some() {
        Some("podcertificates")
    } else {
        None
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const SEEN: Wall = Wall(1_700_000_000_123_456_789);

    fn pod(spec: Value) -> Pod {
        let mut whole =
            json!({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "c", "image": "x"}]}});
        whole["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        serde_json::from_value(whole).unwrap()
    }

    fn prepared(spec: Value, origin: Origin<'_>) -> Pod {
        prepare(pod(spec), origin, "node-1", SEEN).unwrap()
    }

    #[test]
    fn identity_of_a_file_pod() {
        let p = prepared(json!({}), Origin::File("/m/web.yaml"));
        assert_eq!(p.metadata.name.as_deref(), Some("web-node-1"));
        assert_eq!(p.metadata.namespace.as_deref(), Some("default"));
        let uid = p.metadata.uid.clone().unwrap();
        let annotations = p.metadata.annotations.clone().unwrap();
        assert_eq!(annotations[HASH_ANNOTATION], uid);
        assert_eq!(annotations[SOURCE_ANNOTATION], "file");
        assert_eq!(annotations[SEEN_ANNOTATION], "2023-11-14T22:13:20.123456789Z");
        let spec = p.spec.clone().unwrap();
        assert_eq!(spec.node_name.as_deref(), Some("node-1"));
        assert_eq!(spec.tolerations.unwrap()[0].effect.as_deref(), Some("NoExecute"));
        assert_eq!(p.status.as_ref().unwrap().phase.as_deref(), Some("Pending"));
        assert!(is_static(&p));
        // Pinned: another value would restart every Pod of every node at an upgrade.
        assert_eq!(uid, "87ca6ef6266ab536edcc17ce16bab60b");
    }

    #[test]
    fn uid_follows_text_place_and_host() {
        let uid = |p: Pod| p.metadata.uid.unwrap();
        let base = uid(prepared(json!({}), Origin::File("/a")));
        assert_eq!(base, uid(prepare(pod(json!({})), Origin::File("/a"), "node-1", Wall(5)).unwrap()));
        assert_ne!(base, uid(prepared(json!({}), Origin::File("/b"))));
        assert_ne!(base, uid(prepared(json!({}), Origin::Url("/a"))));
        assert_ne!(base, uid(prepared(json!({"hostNetwork": true}), Origin::File("/a"))));
        assert_ne!(base, uid(prepare(pod(json!({})), Origin::File("/a"), "other", SEEN).unwrap()));
        let local = |at| uid(prepared(json!({}), Origin::Local(Wall(at))));
        assert_ne!(local(1), local(2));
        let mut given = pod(json!({}));
        given.metadata.uid = Some("mine".into());
        assert_eq!(uid(prepare(given, Origin::File("/a"), "n", SEEN).unwrap()), "mine");
    }

    #[test]
    fn a_uid_is_never_a_path() {
        for bad in ["../../etc", "a/b", "a b", ".."] {
            let mut p = pod(json!({}));
            p.metadata.uid = Some(bad.into());
            let error = prepare(p, Origin::File("/a"), "n", SEEN).unwrap_err().to_string();
            assert!(error.starts_with("invalid pod: metadata.uid: Invalid value"), "{error}");
        }
    }

    #[test]
    fn local_pods_keep_their_name_and_have_an_age() {
        let p = prepared(json!({}), Origin::Local(SEEN));
        assert_eq!(p.metadata.name.as_deref(), Some("web"));
        assert_eq!(p.metadata.creation_timestamp.unwrap().0.as_nanosecond(), i128::from(SEEN.0));
    }

    #[test]
    fn traces_of_a_former_life_are_dropped() {
        let mut p = pod(json!({}));
        p.metadata.deletion_timestamp = timestamp(SEEN).map(Time);
        p.metadata.annotations = Some([(MIRROR_ANNOTATION.to_owned(), "x".to_owned())].into());
        p.status = Some(PodStatus { pod_ip: Some("1.2.3.4".into()), ..PodStatus::default() });
        let p = prepare(p, Origin::File("/a"), "n", SEEN).unwrap();
        assert!(p.metadata.deletion_timestamp.is_none() && p.status.unwrap().pod_ip.is_none());
        assert!(!p.metadata.annotations.unwrap().contains_key(MIRROR_ANNOTATION));
    }

    #[test]
    fn references_are_refused() {
        let c = |extra: Value| {
            let mut c = json!({"name": "c", "image": "x"});
            c.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            json!({ "containers": [c] })
        };
        let v = |extra: Value| {
            let mut v = json!({"name": "v"});
            v.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            json!({ "volumes": [v] })
        };
        let projected = |source: Value| v(json!({"projected": {"sources": [source]}}));
        for (spec, want) in [
            (json!({"serviceAccountName": "s"}), "serviceaccounts"),
            (json!({"serviceAccount": "s"}), "serviceaccounts"),
            (json!({"imagePullSecrets": [{"name": "s"}]}), "secrets"),
            (
                c(json!({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]})),
                "secrets",
            ),
            (c(json!({"envFrom": [{"secretRef": {"name": "s"}}]})), "secrets"),
            (
                c(
                    json!({"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "s", "key": "k"}}}]}),
                ),
                "configmaps",
            ),
            (c(json!({"envFrom": [{"configMapRef": {"name": "s"}}]})), "configmaps"),
            (v(json!({"secret": {"secretName": "s"}})), "secrets"),
            (v(json!({"configMap": {"name": "s"}})), "configmaps"),
            (v(json!({"persistentVolumeClaim": {"claimName": "s"}})), "persistentvolumeclaims"),
            (v(json!({"csi": {"driver": "d"}})), "csidrivers (via CSI volumes)"),
            (
                v(json!({"ephemeral": {"volumeClaimTemplate": {"spec": {}}}})),
                "persistentvolumeclaims (via ephemeral volumes)",
            ),
            (projected(json!({"secret": {"name": "s"}})), "secrets (via projected volumes)"),
            (projected(json!({"configMap": {"name": "s"}})), "configmaps (via projected volumes)"),
            (
                projected(json!({"serviceAccountToken": {"path": "t"}})),
                "serviceaccounts (via projected volumes)",
            ),
            (projected(json!({"clusterTrustBundle": {"path": "t", "name": "n"}})), "clustertrustbundles"),
            (
                projected(
                    json!({"podCertificate": {"signerName": "a.b/c", "keyType": "ED25519", "keyPath": "k"}}),
                ),
                "podcertificates",
            ),
            (json!({"resourceClaims": [{"name": "r", "resourceClaimName": "x"}]}), "resourceclaims"),
        ] {
            let got = prepare(pod(spec.clone()), Origin::File("/a"), "n", SEEN).unwrap_err().to_string();
            assert_eq!(got, format!("static pods may not reference {want}"), "{spec}");
        }
        prepared(projected(json!({"downwardAPI": {"items": []}})), Origin::File("/a"));
    }
}
