//! The kinds of storage.k8s.io: how volumes are made and attached.

use std::collections::BTreeSet;

use api::field::{FieldErrors, Path};
use api::names;
use base::time::Wall;
use serde_json::{Value, json};

use super::{check, quantity, selector};
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, Strategy};
use crate::table;

const GROUP: &str = "storage.k8s.io";
/// Bytes of all parameters of a class, or of an attachment's metadata, together.
const PARAMETERS_SIZE: usize = 256 * 1024;
const PARAMETERS_COUNT: usize = 512;

pub(super) fn storage_class() -> Kind {
    Kind::new(GROUP, "v1", "StorageClass", "storageclasses", StorageClass).cluster_scoped().short(&["sc"])
}

pub(super) fn csi_driver() -> Kind {
    Kind::new(GROUP, "v1", "CSIDriver", "csidrivers", CsiDriver).cluster_scoped()
}

pub(super) fn csi_node() -> Kind {
    Kind::new(GROUP, "v1", "CSINode", "csinodes", CsiNode).cluster_scoped()
}

pub(super) fn csi_storage_capacity() -> Kind {
    Kind::new(GROUP, "v1", "CSIStorageCapacity", "csistoragecapacities", CsiStorageCapacity)
}

pub(super) fn volume_attachment() -> Kind {
    Kind::new(GROUP, "v1", "VolumeAttachment", "volumeattachments", VolumeAttachment)
        .cluster_scoped()
        .with_status()
}

pub(super) fn volume_attributes_class() -> Kind {
    Kind::new(GROUP, "v1", "VolumeAttributesClass", "volumeattributesclasses", VolumeAttributesClass)
        .cluster_scoped()
        .short(&["vac"])
}

#[derive(Debug)]
struct StorageClass;

#[derive(Debug)]
struct CsiDriver;

#[derive(Debug)]
struct CsiNode;

#[derive(Debug)]
struct CsiStorageCapacity;

#[derive(Debug)]
struct VolumeAttachment;

#[derive(Debug)]
struct VolumeAttributesClass;

// === impl StorageClass ===

impl Strategy for StorageClass {
    fn set_defaults(&self, object: &mut Value) {
        doc::fill(object, "reclaimPolicy", "Delete");
        doc::fill(object, "volumeBindingMode", "Immediate");
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let root = Field::root(object);
        let provisioner = root.get("provisioner");
        if provisioner.is_empty() {
            errors.required(&provisioner.at, "");
        } else {
            let lower = provisioner.text().to_lowercase();
            errors.each(&provisioner.at, &lower, names::qualified_name(&lower));
        }
        parameters(errors, &root.get("parameters"));
        check::one_of_if_set(errors, &root.get("reclaimPolicy"), &["Delete", "Retain"]);
        check::one_of(errors, &root.get("volumeBindingMode"), &["Immediate", "WaitForFirstConsumer"]);
        for term in root.get("allowedTopologies").items() {
            topology(errors, &term);
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        for field in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
            check::immutable(errors, new, old, field);
        }
    }

    fn returns_deleted(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[
            Column::NAME,
            Column::text("Provisioner", "Who makes its volumes"),
            Column::text("ReclaimPolicy", "What becomes of a volume nobody claims any more"),
            Column::text("VolumeBindingMode", "When a claim gets its volume"),
            Column::text("AllowVolumeExpansion", "Whether volumes may grow"),
            Column::AGE,
        ];
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let defaults = [
            "storageclass.kubernetes.io/is-default-class",
            "storageclass.beta.kubernetes.io/is-default-class",
        ];
        vec![
            table::name_and_default(object, &defaults),
            doc::text(object, "provisioner").into(),
            table::text_or(object, "reclaimPolicy", "Delete").into(),
            table::text_or(object, "volumeBindingMode", "Immediate").into(),
            doc::is_true(object, "allowVolumeExpansion").into(),
            table::age(object, now).into(),
        ]
    }
}

// === impl CsiDriver ===

impl Strategy for CsiDriver {
    fn set_defaults(&self, object: &mut Value) {
        doc::fill(object, "spec.attachRequired", true);
        for flag in ["podInfoOnMount", "storageCapacity", "requiresRepublish", "seLinuxMount"] {
            doc::fill(object, &format!("spec.{flag}"), false);
        }
        doc::fill(object, "spec.fsGroupPolicy", "ReadWriteOnceWithFSType");
        if doc::list(object, "spec.volumeLifecycleModes").is_empty() {
            doc::set(object, "spec.volumeLifecycleModes", json!(["Persistent"]));
        }
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let spec = Field::root(object).get("spec");
        let policies = ["File", "None", "ReadWriteOnceWithFSType"];
        check::one_of_if_set(errors, &spec.get("fsGroupPolicy"), &policies);
        token_requests(errors, &spec.get("tokenRequests"));
        let modes = spec.get("volumeLifecycleModes");
        for mode in modes.items().filter(|m| !matches!(m.text(), "Persistent" | "Ephemeral")) {
            errors.unsupported(&modes.at, mode.text(), &["Persistent", "Ephemeral"]);
        }
        let period = spec.get("nodeAllocatableUpdatePeriodSeconds");
        if let Some(seconds) = period.int().filter(|s| *s < 10) {
            errors.invalid(&period.at, seconds, "must be greater than or equal to 10 seconds");
        }
        let in_secrets = spec.get("serviceAccountTokenInSecrets");
        if in_secrets.is_set() && spec.get("tokenRequests").is_empty() {
            let message = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
            errors.invalid(&in_secrets.at, in_secrets.value.clone(), message);
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        self.validate(new, errors);
        if doc::at(new, "spec.attachRequired") != doc::at(old, "spec.attachRequired") {
            let now = doc::at(new, "spec.attachRequired").clone();
            errors.invalid(&Path::new("spec.attachedRequired"), now, check::IMMUTABLE);
        }
        check::immutable(errors, new, old, "spec.volumeLifecycleModes");
    }

    fn updates_unconditionally(&self) -> bool {
        false
    }

    fn returns_deleted(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[
            Column::NAME,
            Column::boolean("AttachRequired", "Whether volumes are attached before they are mounted"),
            Column::boolean("PodInfoOnMount", "Whether the driver hears of the Pod"),
            Column::boolean("StorageCapacity", "Whether the driver says how much room there is"),
            Column::text("TokenRequests", "Audiences of the tokens the driver gets"),
            Column::boolean("RequiresRepublish", "Whether the driver is called again and again"),
            Column::text("Modes", "Which volumes the driver makes"),
            Column::AGE,
        ];
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let joined = |path: &str, name: Option<&str>| -> String {
            let text = |v: &Value| name.map_or(v, |n| &v[n]).as_str().unwrap_or_default().to_owned();
            doc::list(object, path).iter().map(text).collect::<Vec<_>>().join(",")
        };
        let requests = match doc::at(object, "spec.tokenRequests") {
            Value::Null => "<unset>".to_owned(),
            _ => joined("spec.tokenRequests", Some("audience")),
        };
        vec![
            table::name(object),
            doc::at(object, "spec.attachRequired").as_bool().unwrap_or(true).into(),
            doc::is_true(object, "spec.podInfoOnMount").into(),
            doc::is_true(object, "spec.storageCapacity").into(),
            requests.into(),
            doc::is_true(object, "spec.requiresRepublish").into(),
            table::or_none(joined("spec.volumeLifecycleModes", None)).into(),
            table::age(object, now).into(),
        ]
    }
}

// === impl CsiNode ===

impl Strategy for CsiNode {
    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let mut seen = BTreeSet::new();
        for driver in Field::root(object).get("spec").get("drivers").items() {
            let (name, id) = (driver.get("name"), driver.get("nodeID"));
            driver_name(errors, &name);
            match id.len() {
                0 => errors.required(&id.at, ""),
                1..=256 => {}
                _ => errors.invalid(&id.at, id.text(), "must be 256 characters or less"),
            }
            check::non_negative(errors, &driver.get("allocatable").get("count"));
            if !seen.insert(name.text()) {
                errors.duplicate(&name.at, name.text());
            }
            let mut keys = BTreeSet::new();
            for key in driver.get("topologyKeys").items() {
                if key.is_empty() {
                    errors.required(&driver.at, "");
                }
                if !keys.insert(key.text()) {
                    errors.duplicate(&driver.at, key.text());
                }
                errors.each(&driver.at, key.text(), names::qualified_name(key.text()));
            }
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        self.validate(new, errors);
        let bare = |driver: &Value| {
            let mut driver = driver.clone();
            doc::remove(&mut driver, "allocatable");
            driver
        };
        for before in doc::list(old, "spec.drivers") {
            let same_name = |d: &&Value| d["name"] == before["name"];
            for now in doc::list(new, "spec.drivers").iter().filter(same_name) {
                if !doc::same(&bare(now), &bare(before)) {
                    errors.invalid(&Path::new("spec.drivers"), now.clone(), check::IMMUTABLE);
                }
            }
        }
    }

    fn updates_unconditionally(&self) -> bool {
        false
    }

    fn returns_deleted(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[
            Column::NAME,
            Column::number("Drivers", "How many drivers are registered on the node"),
            Column::AGE,
        ];
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let drivers = doc::list(object, "spec.drivers").len();
        vec![table::name(object), drivers.into(), table::age(object, now).into()]
    }
}

// === impl CsiStorageCapacity ===

impl Strategy for CsiStorageCapacity {
    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let root = Field::root(object);
        check::spelled(errors, &root.get("storageClassName"), names::dns_subdomain);
        for amount in [root.get("capacity"), root.get("maximumVolumeSize")].into_iter().filter(Field::is_set)
        {
            quantity::non_negative(errors, &amount);
        }
        selector::validate(errors, &root.get("nodeTopology"));
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        self.validate(new, errors);
        check::immutable(errors, new, old, "nodeTopology");
        check::immutable(errors, new, old, "storageClassName");
    }

    fn updates_unconditionally(&self) -> bool {
        false
    }

    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[
            Column::NAME,
            Column::text("StorageClassName", "The class it is about"),
            Column::text("Capacity", "How much room there is"),
        ];
        COLUMNS
    }

    fn cells(&self, object: &Value, _now: Wall) -> Vec<Value> {
        let capacity = match &object["capacity"] {
            Value::Null => "<unset>".to_owned(),
            amount => quantity::cell(amount),
        };
        vec![table::name(object), doc::text(object, "storageClassName").into(), capacity.into()]
    }
}

// === impl VolumeAttachment ===

impl Strategy for VolumeAttachment {
    fn prepare_create(&self, object: &mut Value) {
        doc::set(object, "status", json!({"attached": false}));
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let spec = Field::root(object).get("spec");
        driver_name(errors, &spec.get("attacher"));
        let source = spec.get("source");
        let (inline, volume) = (source.get("inlineVolumeSpec"), source.get("persistentVolumeName"));
        let message = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
        match (inline.is_set(), volume.is_set()) {
            (false, false) => errors.required(&source.at, message),
            (true, true) => errors.forbidden(&source.at, message),
            (false, true) if volume.is_empty() => {
                errors.required(&volume.at, "must specify non empty persistentVolumeName");
            }
            (false, true) => check::spelled(errors, &volume, names::dns_subdomain),
            (true, false) => {}
        }
        check::spelled(errors, &spec.get("nodeName"), names::dns_subdomain);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        self.validate(new, errors);
        check::immutable(errors, new, old, "spec");
    }

    fn validate_status(&self, new: &Value, _old: &Value, errors: &mut FieldErrors) {
        let status = Field::root(new).get("status");
        let metadata = status.get("attachmentMetadata");
        if size(&metadata) > PARAMETERS_SIZE {
            errors.too_long(&metadata.at, PARAMETERS_SIZE);
        }
    }

    fn updates_unconditionally(&self) -> bool {
        false
    }

    fn returns_deleted(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[
            Column::NAME,
            Column::new("Attacher", "string", "name", 0, "Who attaches it"),
            Column::text("PV", "The volume"),
            Column::text("Node", "Where it is attached"),
            Column::boolean("Attached", "Whether it is"),
            Column::AGE,
        ];
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        vec![
            table::name(object),
            doc::text(object, "spec.attacher").into(),
            doc::text(object, "spec.source.persistentVolumeName").into(),
            doc::text(object, "spec.nodeName").into(),
            doc::is_true(object, "status.attached").into(),
            table::age(object, now).into(),
        ]
    }
}

// === impl VolumeAttributesClass ===

impl Strategy for VolumeAttributesClass {
    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let root = Field::root(object);
        driver_name(errors, &root.get("driverName"));
        let given = root.get("parameters");
        parameters(errors, &given);
        if given.is_empty() {
            errors.required(&given.at, "must contain at least one key/value pair");
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        check::immutable(errors, new, old, "driverName");
        check::immutable(errors, new, old, "parameters");
    }

    fn returns_deleted(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] =
            &[Column::NAME, Column::text("DriverName", "The driver that knows the attributes"), Column::AGE];
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        vec![table::name(object), doc::text(object, "driverName").into(), table::age(object, now).into()]
    }
}

fn driver_name(errors: &mut FieldErrors, name: &Field<'_>) {
    if name.is_empty() {
        return errors.required(&name.at, "");
    }
    if name.len() > 63 {
        errors.too_long(&name.at, 63);
    }
    errors.each(&name.at, name.text(), names::dns_subdomain(&name.text().to_lowercase()));
}

fn parameters(errors: &mut FieldErrors, field: &Field<'_>) {
    if field.len() > PARAMETERS_COUNT {
        return errors.too_long(&field.at, PARAMETERS_COUNT);
    }
    if field.entries().any(|(key, _)| key.is_empty()) {
        errors.invalid(&field.at, "", "field can not be empty.");
    }
    if size(field) > PARAMETERS_SIZE {
        errors.too_long(&field.at, PARAMETERS_SIZE);
    }
}

fn size(field: &Field<'_>) -> usize {
    field.entries().map(|(key, value)| key.len() + value.text().len()).sum()
}

fn topology(errors: &mut FieldErrors, term: &Field<'_>) {
    let mut seen = BTreeSet::new();
    for expression in term.get("matchLabelExpressions").items() {
        let (key, values) = (expression.get("key"), expression.get("values"));
        if values.is_empty() {
            errors.required(&values.at, "");
        }
        let mut listed = BTreeSet::new();
        for value in values.items().filter(|v| !listed.insert(v.text())) {
            errors.duplicate(&value.at, value.text());
        }
        check::spelled(errors, &key, names::qualified_name);
        if !seen.insert(key.text()) {
            errors.duplicate(&key.at, key.text());
        }
    }
}

fn token_requests(errors: &mut FieldErrors, requests: &Field<'_>) {
    let mut seen = BTreeSet::new();
    for request in requests.items() {
        let (audience, expiry) = (request.get("audience"), request.get("expirationSeconds"));
        if !seen.insert(audience.text()) {
            errors.duplicate(&audience.at, audience.text());
            continue;
        }
        match expiry.int() {
            Some(seconds) if seconds < 600 => {
                errors.invalid(&expiry.at, seconds, "may not specify a duration less than 10 minutes");
            }
            Some(seconds) if seconds > 1 << 32 => {
                errors.invalid(&expiry.at, seconds, "may not specify a duration larger than 2^32 seconds");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(strategy: &dyn Strategy, object: &Value) -> String {
        let mut errors = FieldErrors::default();
        strategy.validate(object, &mut errors);
        errors.to_string()
    }

    #[test]
    fn classes() {
        let mut object = json!({"metadata": {"name": "fast", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}});
        StorageClass.set_defaults(&mut object);
        assert_eq!(
            json!(StorageClass.cells(&object, Wall::from_secs(0))),
            json!(["fast (default)", "", "Delete", "Immediate", false, "<unknown>"])
        );
        assert_eq!(complaints(&StorageClass, &object), "provisioner: Required value");
        let mut new = object.clone();
        new["provisioner"] = json!("x");
        let mut errors = FieldErrors::default();
        StorageClass.validate_update(&new, &object, &mut errors);
        assert_eq!(errors.to_string(), "provisioner: Invalid value: \"x\": field is immutable");
    }

    #[test]
    fn drivers_and_nodes() {
        let mut driver = json!({"metadata": {"name": "d"}});
        CsiDriver.set_defaults(&mut driver);
        assert_eq!(complaints(&CsiDriver, &driver), "[]");
        assert_eq!(
            json!(CsiDriver.cells(&driver, Wall::from_secs(0))),
            json!(["d", true, false, false, "<unset>", false, "Persistent", "<unknown>"])
        );
        let node = json!({"metadata": {"name": "n"}, "spec": {"drivers": [{"name": "d", "nodeID": "n"}, {"name": "d"}]}});
        assert_eq!(
            complaints(&CsiNode, &node),
            "[spec.drivers[1].nodeID: Required value, spec.drivers[1].name: Duplicate value: \"d\"]"
        );
        assert_eq!(json!(CsiNode.cells(&node, Wall::from_secs(0))), json!(["n", 2, "<unknown>"]));
    }

    #[test]
    fn attachments() {
        let object =
            json!({"metadata": {"name": "a"}, "spec": {"attacher": "d", "nodeName": "n", "source": {}}});
        assert_eq!(
            complaints(&VolumeAttachment, &object),
            "spec.source: Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName"
        );
        assert_eq!(
            json!(VolumeAttachment.cells(&object, Wall::from_secs(0))),
            json!(["a", "d", "", "n", false, "<unknown>"])
        );
    }
}
