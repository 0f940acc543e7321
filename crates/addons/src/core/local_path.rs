//! Volumes that are directories of this machine: when one is made, what its PersistentVolume says, and when it goes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::{Value, json};

/// The StorageClass that everybody has by default.
pub const CLASS: &str = "local-path";
/// As clusters everywhere have it: manifests name it.
pub(crate) const PROVISIONER: &str = "rancher.io/local-path";
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const WANTED_OF: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// A volume with it goes when its directory is gone.
pub(crate) const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
const IN_USE: &str = "kubernetes.io/pv-protection";
const HOSTNAME: &str = "kubernetes.io/hostname";
const MODES: [&str; 2] = ["ReadWriteOnce", "ReadWriteOncePod"];

/// What to do about a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Not ours, not yet, or done.
    Nothing,
    /// Why it cannot be had.
    Refuse(String),
    Make,
}

/// What to do about a volume of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Nothing,
    /// Its directory goes, then the object.
    Reclaim(PathBuf),
    /// The object goes, and the directory stays: so was the wish.
    Release,
    /// It says a place that we do not give.
    Refuse(String),
}

/// The class itself.
pub(crate) fn class() -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": CLASS, "annotations": {DEFAULT_CLASS: "true"}},
        "provisioner": PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
    })
}

pub(crate) fn wish(claim: &PersistentVolumeClaim, classes: &[StorageClass], node: &str) -> Wish {
    let Some(class) = class_of(claim, classes) else { return Wish::Nothing };
    let annotations = claim.metadata.annotations.as_ref();
    let annotation = |key: &str| annotations.and_then(|all| all.get(key)).map(String::as_str);
    let spec = claim.spec.clone().unwrap_or_default();
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
    let is_asked = WANTED_OF.iter().any(|key| annotation(key) == Some(PROVISIONER));
    if !is_asked
        || phase != "Pending"
        || claim.metadata.deletion_timestamp.is_some()
        || spec.volume_name.is_some_and(|name| !name.is_empty())
    {
        return Wish::Nothing;
    }
    match (annotation(SELECTED_NODE), class.volume_binding_mode.as_deref()) {
        (None, Some("WaitForFirstConsumer")) => return Wish::Nothing,
        (Some(selected), _) if selected != node => {
            return Wish::Refuse(format!(
                "its Pod is on node {selected}, and the disk is that of node {node}"
            ));
        }
        _ => {}
    }
    let modes = spec.access_modes.unwrap_or_default();
    if let Some(mode) = modes.iter().find(|mode| !MODES.contains(&mode.as_str())) {
        let can = MODES.join(" and ");
        return Wish::Refuse(format!(
            "access mode {mode} needs a file server; directories of a node have {can}"
        ));
    }
    if spec.volume_mode.as_deref() == Some("Block") {
        return Wish::Refuse("volumeMode Block: a directory is no block device".to_owned());
    }
    if spec.selector.is_some() {
        return Wish::Refuse("claim.spec.selector is not supported".to_owned());
    }
    if spec.data_source.is_some() || spec.data_source_ref.is_some() {
        return Wish::Refuse("claim.spec.dataSource: directories are not copied".to_owned());
    }
    match class.parameters.as_ref().and_then(|all| all.keys().next()) {
        Some(parameter) => Wish::Refuse(format!("StorageClass parameter {parameter} is not supported")),
        None => Wish::Make,
    }
}

/// The class of a claim, where it is one of ours.
fn class_of<'a>(claim: &PersistentVolumeClaim, classes: &'a [StorageClass]) -> Option<&'a StorageClass> {
    let name = claim.spec.as_ref()?.storage_class_name.as_ref()?;
    let is_it = |class: &&StorageClass| class.metadata.name.as_ref() == Some(name);
    classes.iter().find(is_it).filter(|class| class.provisioner == PROVISIONER)
}

/// The name of the claim's volume.
pub(crate) fn volume_name(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", claim.metadata.uid.as_deref().unwrap_or_default())
}

/// The name of its directory; none where the object says what no API server would let through.
pub(crate) fn directory(claim: &PersistentVolumeClaim) -> Option<String> {
    let meta = &claim.metadata;
    let (namespace, name) = (meta.namespace.as_deref()?, meta.name.as_deref()?);
    let is_plain = |text: &str| {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.')
    };
    let uid = meta.uid.as_deref()?;
    [uid, namespace, name]
        .iter()
        .all(|text| is_plain(text))
        .then(|| format!("{}_{namespace}_{name}", volume_name(claim)))
}

/// The volume that the claim gets.
pub(crate) fn volume(
    claim: &PersistentVolumeClaim,
    classes: &[StorageClass],
    node: &str,
    path: &Path,
) -> Option<Value> {
    let class = class_of(claim, classes)?;
    let (meta, spec) = (&claim.metadata, claim.spec.as_ref()?);
    let requests = spec.resources.as_ref().and_then(|resources| resources.requests.clone());
    let size = requests.unwrap_or_default().remove("storage").map_or_else(|| "0".to_owned(), |size| size.0);
    Some(json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {
            "name": volume_name(claim),
            "annotations": {PROVISIONED_BY: PROVISIONER, "local.path.provisioner/selected-node": node},
            "finalizers": [FINALIZER],
        },
        "spec": {
            "capacity": {"storage": size},
            "accessModes": spec.access_modes,
            "volumeMode": "Filesystem",
            "storageClassName": class.metadata.name,
            "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": meta.namespace,
                "name": meta.name, "uid": meta.uid, "resourceVersion": meta.resource_version,
            },
            // What the kubelet finds missing it does not make: a directory that is gone is told, not replaced by an empty one.
            "local": {"path": path},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": [node]}]},
            ]}},
        },
    }))
}

/// What is to be done at the end of a volume.
pub(crate) fn end(volume: &PersistentVolume, node: &str, base: &Path) -> End {
    let (meta, spec) = (&volume.metadata, volume.spec.clone().unwrap_or_default());
    let annotations = meta.annotations.as_ref();
    let annotation = |key: &str| annotations.and_then(|all: &BTreeMap<_, _>| all.get(key));
    let is_ours = annotation(PROVISIONED_BY).is_some_and(|by| by == PROVISIONER)
        && annotation("local.path.provisioner/selected-node").is_some_and(|of| of == node);
    let is_deleted = spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete");
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let finalizers = meta.finalizers.as_deref().unwrap_or_default();
    let has = |name: &str| finalizers.iter().any(|finalizer| finalizer == name);
    let is_leaving = meta.deletion_timestamp.is_some();
    if !is_ours || (is_leaving && (has(IN_USE) || !has(FINALIZER))) {
        return End::Nothing;
    }
    match (is_deleted, is_leaving, phase) {
        (true, true, _) | (true, false, Some("Released" | "Failed")) => {}
        (false, true, _) => return End::Release,
        _ => return End::Nothing,
    }
    let path = spec.local.map(|local| PathBuf::from(local.path)).unwrap_or_default();
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    // Whoever may write volumes may not have any directory of the machine deleted.
    let is_one_of_ours = path.parent() == Some(base) && name.starts_with("pvc-");
    match is_one_of_ours {
        true => End::Reclaim(path),
        false => End::Refuse(format!("{} is no directory of a volume in {}", path.display(), base.display())),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn claim(change: impl FnOnce(&mut Value)) -> PersistentVolumeClaim {
        let mut object = json!({
            "metadata": {"name": "data", "namespace": "shop", "uid": "u-1", "resourceVersion": "7",
                         "annotations": {WANTED_OF[0]: PROVISIONER, SELECTED_NODE: "n1"}},
            "spec": {"storageClassName": CLASS, "accessModes": ["ReadWriteOnce"],
                     "resources": {"requests": {"storage": "1Gi"}}},
            "status": {"phase": "Pending"},
        });
        change(&mut object);
        serde_json::from_value(object).unwrap()
    }

    fn classes() -> Vec<StorageClass> {
        vec![serde_json::from_value(class()).unwrap()]
    }

    #[test]
    fn a_claim_gets_a_volume_when_its_pod_has_a_node() {
        type Row = (&'static str, fn(&mut Value), Result<Wish, &'static str>);
        let rows: &[Row] = &[
            ("as it should be", |_| (), Ok(Wish::Make)),
            (
                "its Pod has no node yet",
                |c| _ = c["metadata"]["annotations"].as_object_mut().unwrap().remove(SELECTED_NODE),
                Ok(Wish::Nothing),
            ),
            ("nobody asked us yet", |c| c["metadata"]["annotations"] = json!({}), Ok(Wish::Nothing)),
            ("bound", |c| c["spec"]["volumeName"] = json!("pv"), Ok(Wish::Nothing)),
            ("of another class", |c| c["spec"]["storageClassName"] = json!("nfs"), Ok(Wish::Nothing)),
            (
                "going",
                |c| c["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
                Ok(Wish::Nothing),
            ),
            (
                "elsewhere",
                |c| c["metadata"]["annotations"][SELECTED_NODE] = json!("n2"),
                Err("its Pod is on node n2, and the disk is that of node n1"),
            ),
            (
                "for many",
                |c| c["spec"]["accessModes"] = json!(["ReadWriteOnce", "ReadWriteMany"]),
                Err(
                    "access mode ReadWriteMany needs a file server; directories of a node have ReadWriteOnce and \
                     ReadWriteOncePod",
                ),
            ),
            (
                "a device",
                |c| c["spec"]["volumeMode"] = json!("Block"),
                Err("volumeMode Block: a directory is no block device"),
            ),
            ("chosen", |c| c["spec"]["selector"] = json!({}), Err("claim.spec.selector is not supported")),
            (
                "a copy",
                |c| c["spec"]["dataSource"] = json!({"kind": "PersistentVolumeClaim", "name": "x"}),
                Err("claim.spec.dataSource: directories are not copied"),
            ),
        ];
        for (what, change, want) in rows {
            let want = want.clone().unwrap_or_else(|why| Wish::Refuse(why.to_owned()));
            assert_eq!(wish(&claim(change), &classes(), "n1"), want, "{what}");
        }
        let mut odd = classes();
        odd[0].parameters = Some(BTreeMap::from([("nodePath".to_owned(), "/srv".to_owned())]));
        let want = Wish::Refuse("StorageClass parameter nodePath is not supported".to_owned());
        assert_eq!(wish(&claim(|_| ()), &odd, "n1"), want);
        odd[0].provisioner = "example.com/other".to_owned();
        assert_eq!(wish(&claim(|_| ()), &odd, "n1"), Wish::Nothing);
    }

    #[test]
    fn a_claim_without_binding_mode_is_served_at_once() {
        let mut now = classes();
        now[0].volume_binding_mode = Some("Immediate".to_owned());
        let waiting = claim(|c| c["metadata"]["annotations"] = json!({WANTED_OF[1]: PROVISIONER}));
        assert_eq!(wish(&waiting, &now, "n1"), Wish::Make);
    }

    #[test]
    fn names_of_directories_hold_no_way_out() {
        assert_eq!(directory(&claim(|_| ())).as_deref(), Some("pvc-u-1_shop_data"));
        for (field, text) in [("name", "../x"), ("namespace", "a/b"), ("uid", ""), ("uid", "a/../..")] {
            assert_eq!(directory(&claim(|c| c["metadata"][field] = json!(text))), None, "{field} {text}");
        }
    }

    fn made(change: impl FnOnce(&mut Value)) -> PersistentVolume {
        let path = Path::new("/srv/volumes/pvc-u-1_shop_data");
        let mut object = volume(&claim(|_| ()), &classes(), "n1", path).unwrap();
        object["status"] = json!({"phase": "Released"});
        change(&mut object);
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_volume_is_what_its_claim_asks_for() {
        let volume = made(|_| ());
        let spec = volume.spec.unwrap();
        assert_eq!(spec.capacity.unwrap()["storage"].0, "1Gi");
        assert_eq!(spec.claim_ref.unwrap().uid.as_deref(), Some("u-1"));
        assert_eq!(spec.persistent_volume_reclaim_policy.as_deref(), Some("Delete"));
        assert_eq!(volume.metadata.name.as_deref(), Some("pvc-u-1"));
    }

    #[test]
    fn a_directory_goes_only_with_a_volume_of_ours_that_nobody_has() {
        let base = Path::new("/srv/volumes");
        let reclaim = || End::Reclaim(base.join("pvc-u-1_shop_data"));
        let leaving = json!("2026-01-01T00:00:00Z");
        type Row<'a> = (&'static str, &'a dyn Fn(&mut Value), End);
        let rows: &[Row] = &[
            ("released", &|_| (), reclaim()),
            ("bound", &|v| v["status"]["phase"] = json!("Bound"), End::Nothing),
            ("kept", &|v| v["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain"), End::Nothing),
            ("deleted by hand", &|v| v["metadata"]["deletionTimestamp"] = leaving.clone(), reclaim()),
            (
                "deleted while in use",
                &|v| {
                    v["metadata"]["deletionTimestamp"] = leaving.clone();
                    v["metadata"]["finalizers"] = json!([FINALIZER, IN_USE]);
                },
                End::Nothing,
            ),
            (
                "deleted and kept",
                &|v| {
                    v["metadata"]["deletionTimestamp"] = leaving.clone();
                    v["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
                },
                End::Release,
            ),
            ("somebody else's", &|v| v["metadata"]["annotations"][PROVISIONED_BY] = json!("x"), End::Nothing),
            (
                "of another node",
                &|v| v["metadata"]["annotations"]["local.path.provisioner/selected-node"] = json!("n2"),
                End::Nothing,
            ),
            (
                "a lie",
                &|v| v["spec"]["local"]["path"] = json!("/etc"),
                End::Refuse("/etc is no directory of a volume in /srv/volumes".to_owned()),
            ),
            (
                "another lie",
                &|v| v["spec"]["local"]["path"] = json!("/srv/volumes/pvc-x/../../y"),
                End::Refuse(
                    "/srv/volumes/pvc-x/../../y is no directory of a volume in /srv/volumes".to_owned(),
                ),
            ),
        ];
        for (what, change, want) in rows {
            assert_eq!(end(&made(change), "n1", base), *want, "{what}");
        }
    }
}
