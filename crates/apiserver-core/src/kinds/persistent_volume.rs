//! PersistentVolume: storage that is there.

use api::field::{FieldErrors, Path};
use api::names;
use base::time::Wall;
use serde_json::{Value, json};

use super::{check, persistent_volume_claim as claim, quantity};
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, Strategy};
use crate::table;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::text("Capacity", "How much there is"),
    Column::text("Access Modes", "How it may be mounted"),
    Column::text("Reclaim Policy", "What becomes of it when nobody claims it any more"),
    Column::text("Status", "Whether it is claimed"),
    Column::text("Claim", "Who claims it"),
    Column::text("StorageClass", "Its class of storage"),
    Column::text("VolumeAttributesClass", "Its class of attributes"),
    Column::text("Reason", "Why it is in this state"),
    Column::AGE,
    Column::wide("VolumeMode", "Filesystem or block device"),
];

const SOURCES: &[&str] = &[
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "csi",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "glusterfs",
    "hostPath",
    "iscsi",
    "local",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];

pub(super) fn kind() -> Kind {
    Kind::core("PersistentVolume", "persistentvolumes", PersistentVolume)
        .cluster_scoped()
        .short(&["pv"])
        .with_status()
}

#[derive(Debug)]
struct PersistentVolume;

// === impl PersistentVolume ===

impl Strategy for PersistentVolume {
    fn set_defaults(&self, object: &mut Value) {
        doc::fill_text(object, "status.phase", "Pending");
        doc::fill_text(object, "spec.persistentVolumeReclaimPolicy", "Retain");
        doc::fill(object, "spec.volumeMode", "Filesystem");
        if let Some(host) = doc::at_mut(object, "spec.hostPath") {
            doc::fill(host, "type", "");
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        doc::set(object, "status", json!({"phase": "Pending"}));
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let spec = Field::root(object).get("spec");
        check::required(errors, &spec.get("accessModes"));
        claim::validate_modes(errors, &spec.get("accessModes"));
        capacity(errors, &spec.get("capacity"));
        let policies = ["Delete", "Recycle", "Retain"];
        check::one_of_if_set(errors, &spec.get("persistentVolumeReclaimPolicy"), &policies);
        sources(errors, &spec);
        let class = spec.get("storageClassName");
        if !class.is_empty() {
            check::spelled(errors, &class, names::dns_subdomain);
        }
        check::one_of_if_set(errors, &spec.get("volumeMode"), claim::VOLUME_MODES);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        self.validate(new, errors);
        let only_sources = |object: &Value| -> Value {
            doc::entries(object, "spec")
                .filter(|(key, _)| SOURCES.contains(key))
                .map(|(key, value)| (key.to_owned(), value.clone()))
                .collect::<serde_json::Map<_, _>>()
                .into()
        };
        let (mut now, before) = (only_sources(new), only_sources(old));
        if doc::at(&before, "csi.controllerExpandSecretRef").is_null() {
            doc::remove(&mut now, "csi.controllerExpandSecretRef");
        }
        if !doc::same(&now, &before) {
            let message = format!(
                "spec.persistentvolumesource is immutable after creation\n{}",
                super::pod::change::differences(&before, &now)
            );
            errors.forbidden(&Path::new("spec.persistentvolumesource"), &message);
        }
        if !doc::same(doc::at(new, "spec.volumeMode"), doc::at(old, "spec.volumeMode")) {
            let mode = doc::at(new, "spec.volumeMode").clone();
            errors.invalid(&Path::new("volumeMode"), mode, check::IMMUTABLE);
        }
        let affinity = doc::at(old, "spec.nodeAffinity");
        if !affinity.is_null() && !doc::same(doc::at(new, "spec.nodeAffinity"), affinity) {
            let now = doc::at(new, "spec.nodeAffinity").clone();
            errors.invalid(&Path::new("nodeAffinity"), now, check::IMMUTABLE);
        }
    }

    fn returns_deleted(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let claimed = match doc::at(object, "spec.claimRef") {
            Value::Null => String::new(),
            claim => format!("{}/{}", doc::text(claim, "namespace"), doc::text(claim, "name")),
        };
        vec![
            table::name(object),
            quantity::cell(doc::at(object, "spec.capacity.storage")).into(),
            claim::access_modes(doc::at(object, "spec.accessModes")).into(),
            doc::text(object, "spec.persistentVolumeReclaimPolicy").into(),
            claim::phase(object).into(),
            claimed.into(),
            claim::class(object).into(),
            table::text_or(object, "spec.volumeAttributesClassName", "<unset>").into(),
            doc::text(object, "status.reason").into(),
            table::age(object, now).into(),
            table::text_or(object, "spec.volumeMode", "<unset>").into(),
        ]
    }
}

fn capacity(errors: &mut FieldErrors, capacity: &Field<'_>) {
    if capacity.is_empty() {
        errors.required(&capacity.at, "");
    }
    if !capacity.get("storage").is_set() || capacity.len() > 1 {
        errors.unsupported_value(&capacity.at, capacity.value.clone(), &["storage"]);
    }
    for (_, amount) in capacity.entries() {
        quantity::positive(errors, &amount);
    }
}

fn sources(errors: &mut FieldErrors, spec: &Field<'_>) {
    let set: Vec<Field<'_>> = SOURCES.iter().map(|s| spec.get(s)).filter(Field::is_set).collect();
    if set.is_empty() {
        return errors.required(&spec.at, "must specify a volume type");
    }
    for extra in set.iter().skip(1) {
        errors.forbidden(&extra.at, "may not specify more than 1 volume type");
    }
    for source in ["hostPath", "local", "nfs"] {
        let source = spec.get(source);
        let path = source.get("path");
        if source.is_set() && path.is_empty() {
            errors.required(&path.at, "");
        }
        if path.text().split('/').any(|part| part == "..") {
            errors.invalid(&path.at, path.text(), "must not contain '..'");
        }
    }
    if spec.get("local").is_set() && !spec.get("nodeAffinity").is_set() {
        errors.required(&spec.at.child("nodeAffinity"), "Local volume requires node affinity");
    }
    let csi = spec.get("csi");
    if csi.is_set() {
        check::required(errors, &csi.get("driver"));
        check::required(errors, &csi.get("volumeHandle"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(spec: Value) -> Value {
        let mut object = json!({"metadata": {"name": "v"}, "spec": spec});
        PersistentVolume.set_defaults(&mut object);
        object
    }

    fn complaints(spec: Value) -> String {
        let mut errors = FieldErrors::default();
        PersistentVolume.validate(&volume(spec), &mut errors);
        errors.to_string()
    }

    #[test]
    fn statuses() {
        let with = |key: &str, value: Value| {
            let mut spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/a"}});
            spec[key] = value;
            complaints(spec)
        };
        assert_eq!(with("storageClassName", json!("fast")), "[]");
        assert_eq!(with("hostPath", Value::Null), "spec: Required value: must specify a volume type");
        assert_eq!(
            with("nfs", json!({"path": "/", "server": "s"})),
            "spec.nfs: Forbidden: may not specify more than 1 volume type"
        );
        assert_eq!(
            with("hostPath", json!({"path": "/a/.."})),
            "spec.hostPath.path: Invalid value: \"/a/..\": must not contain '..'"
        );
        assert_eq!(
            with("capacity", Value::Null),
            "[spec.capacity: Required value, spec.capacity: Unsupported value: null: supported values: \"storage\"]"
        );
    }

    #[test]
    fn cells_and_the_source_stays() {
        let old = volume(
            json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "hostPath": {"path": "/a"},
            "claimRef": {"namespace": "n", "name": "c"}}),
        );
        assert_eq!(
            json!(PersistentVolume.cells(&old, Wall::from_secs(0))),
            json!([
                "v",
                "1Gi",
                "RWX",
                "Retain",
                "Pending",
                "n/c",
                "",
                "<unset>",
                "",
                "<unknown>",
                "Filesystem"
            ])
        );
        let mut new = old.clone();
        new["spec"]["hostPath"]["path"] = json!("/b");
        let mut errors = FieldErrors::default();
        PersistentVolume.validate_update(&new, &old, &mut errors);
        assert!(
            errors.to_string().starts_with(
                "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable"
            )
        );
    }
}
