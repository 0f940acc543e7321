//! PersistentVolumeClaim: a wish for storage.

use api::field::{FieldErrors, Path};
use api::names;
use base::time::Wall;
use serde_json::Value;

use super::{check, quantity, selector};
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, Strategy};
use crate::table;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::text("Status", "Whether it has a volume"),
    Column::text("Volume", "The volume it has"),
    Column::text("Capacity", "How much there is"),
    Column::text("Access Modes", "How the volume may be mounted"),
    Column::text("StorageClass", "The class of storage it asks for"),
    Column::text("VolumeAttributesClass", "The class of attributes it asks for"),
    Column::AGE,
    Column::wide("VolumeMode", "Filesystem or block device"),
];

pub(super) const ACCESS_MODES: &[&str] =
    &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
pub(super) const VOLUME_MODES: &[&str] = &["Block", "Filesystem"];
/// Where the class was written before there was a field.
pub(super) const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

pub(super) fn kind() -> Kind {
    Kind::core("PersistentVolumeClaim", "persistentvolumeclaims", PersistentVolumeClaim)
        .short(&["pvc"])
        .with_status()
}

#[derive(Debug)]
struct PersistentVolumeClaim;

// === impl PersistentVolumeClaim ===

impl Strategy for PersistentVolumeClaim {
    fn set_defaults(&self, object: &mut Value) {
        set_defaults(object);
    }

    fn prepare_create(&self, object: &mut Value) {
        doc::set(object, "status", serde_json::json!({"phase": "Pending"}));
        same_sources(object);
    }

    fn prepare_update(&self, new: &mut Value, _old: &Value) {
        same_sources(new);
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        validate_spec(errors, &Field::root(object).get("spec"));
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        self.validate(new, errors);
        change(errors, new, old);
    }

    fn validate_status(&self, new: &Value, _old: &Value, errors: &mut FieldErrors) {
        for (_, amount) in Field::root(new).get("status").get("capacity").entries() {
            quantity::non_negative(errors, &amount);
        }
    }

    fn returns_deleted(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let volume = doc::text(object, "spec.volumeName");
        let (mut capacity, mut modes) = (String::new(), String::new());
        if !volume.is_empty() {
            capacity = quantity::cell(doc::at(object, "status.capacity.storage"));
            modes = access_modes(doc::at(object, "status.accessModes"));
        }
        vec![
            table::name(object),
            phase(object).into(),
            volume.into(),
            capacity.into(),
            modes.into(),
            class(object).into(),
            table::text_or(object, "spec.volumeAttributesClassName", "<unset>").into(),
            table::age(object, now).into(),
            table::text_or(object, "spec.volumeMode", "<unset>").into(),
        ]
    }
}

/// Also for the claims a StatefulSet makes.
pub(super) fn set_defaults(claim: &mut Value) {
    doc::fill_text(claim, "status.phase", "Pending");
    doc::fill(claim, "spec.volumeMode", "Filesystem");
}

pub(super) fn validate_spec(errors: &mut FieldErrors, spec: &Field<'_>) {
    let modes = spec.get("accessModes");
    if modes.is_empty() {
        errors.required(&modes.at, "at least 1 access mode is required");
    }
    selector::validate(errors, &spec.get("selector"));
    validate_modes(errors, &modes);
    let at = spec.at.child("resources").key("storage");
    match doc::at(spec.value, "resources.requests.storage") {
        Value::Null => errors.required(&at, ""),
        value => drop(quantity::positive(errors, &Field { value, at })),
    }
    for class in ["storageClassName", "volumeAttributesClassName"] {
        let field = spec.get(class);
        if !field.is_empty() {
            check::spelled(errors, &field, names::dns_subdomain);
        }
    }
    check::one_of_if_set(errors, &spec.get("volumeMode"), VOLUME_MODES);
    let (source, reference) = (spec.get("dataSource"), spec.get("dataSourceRef"));
    for field in [&source, &reference].into_iter().filter(|f| f.is_set()) {
        data_source(errors, field);
    }
    let is_elsewhere = !reference.get("namespace").is_empty();
    if source.is_set() && is_elsewhere {
        let message = "may not be specified when dataSourceRef.namespace is specified";
        errors.invalid(&spec.at, source.at.to_string(), message);
    } else if source.is_set() && reference.is_set() && !doc::same(source.value, reference.value) {
        errors.invalid(&spec.at, source.at.to_string(), "must match dataSourceRef");
    }
}

pub(super) fn validate_modes(errors: &mut FieldErrors, modes: &Field<'_>) {
    let (mut alone, mut others) = (false, false);
    for mode in modes.items() {
        match mode.text() {
            "ReadWriteOncePod" => alone = true,
            word if ACCESS_MODES.contains(&word) => others = true,
            word => errors.unsupported(&modes.at, word, ACCESS_MODES),
        }
    }
    if alone && others {
        errors.forbidden(&modes.at, "may not use ReadWriteOncePod with other access modes");
    }
}

/// `RWO,ROX`
pub(super) fn access_modes(modes: &Value) -> String {
    let all = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let has = |name: &str| modes.as_array().is_some_and(|list| list.iter().any(|m| m == name));
    all.iter().filter(|(name, _)| has(name)).map(|(_, short)| *short).collect::<Vec<_>>().join(",")
}

pub(super) fn phase(object: &Value) -> &str {
    match doc::at(object, "metadata.deletionTimestamp") {
        Value::Null => doc::text(object, "status.phase"),
        _ => "Terminating",
    }
}

/// The class, wherever it is written.
pub(super) fn class(object: &Value) -> &str {
    match doc::at(object, "metadata.annotations").get(CLASS_ANNOTATION).and_then(Value::as_str) {
        Some(class) => class,
        None => doc::text(object, "spec.storageClassName"),
    }
}

/// The older field and the newer one say the same, unless the source is in another namespace.
fn same_sources(object: &mut Value) {
    if !doc::text(object, "spec.dataSourceRef.namespace").is_empty() {
        return;
    }
    for (from, to) in [("spec.dataSource", "spec.dataSourceRef"), ("spec.dataSourceRef", "spec.dataSource")] {
        let value = doc::at(object, from).clone();
        if !value.is_null() {
            doc::fill(object, to, value);
        }
    }
}

fn data_source(errors: &mut FieldErrors, source: &Field<'_>) {
    check::required(errors, &source.get("name"));
    check::required(errors, &source.get("kind"));
    let (group, kind) = (source.get("apiGroup"), source.get("kind"));
    if group.is_empty() && kind.text() != "PersistentVolumeClaim" {
        let message = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        errors.invalid(&source.at, kind.text(), message);
    }
    if !group.is_empty() {
        check::spelled(errors, &group, names::dns_subdomain);
    }
    let namespace = source.get("namespace");
    if !namespace.is_empty() {
        check::spelled(errors, &namespace, names::dns_label);
    }
}

fn change(errors: &mut FieldErrors, new: &Value, old: &Value) {
    let mut rest = new["spec"].clone();
    let mut before = old["spec"].clone();
    if doc::text(&before, "volumeName").is_empty() {
        doc::keep(&mut before, &rest, "volumeName");
    }
    if before["storageClassName"].is_null() {
        doc::keep(&mut rest, &before, "storageClassName");
    }
    if doc::text(new, "status.phase") == "Bound" {
        doc::keep(&mut rest, &before, "resources.requests.storage");
        doc::keep(&mut rest, &before, "volumeAttributesClassName");
    }
    if !doc::same(&rest, &before) {
        let message = format!(
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound \
             claims\n{}",
            super::pod::change::differences(&before, &rest)
        );
        errors.forbidden(&Path::new("spec"), &message);
    }
    let size = |object: &Value, path: &str| quantity::parse(doc::at(object, path));
    let path = "spec.resources.requests.storage";
    if let (Some(now), Some(was)) = (size(new, path), size(old, path))
        && now < was
        && size(old, "status.capacity.storage").is_some_and(|there| now <= there)
    {
        errors.forbidden(&Path::new(path), "field can not be less than status.capacity");
    }
    if !doc::same(doc::at(new, "spec.volumeMode"), doc::at(old, "spec.volumeMode")) {
        let mode = doc::at(new, "spec.volumeMode").clone();
        errors.invalid(&Path::new("volumeMode"), mode, check::IMMUTABLE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claim(change: impl FnOnce(&mut Value)) -> Value {
        let mut object = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}});
        change(&mut object);
        PersistentVolumeClaim.set_defaults(&mut object);
        object
    }

    fn complaints(object: &Value) -> String {
        let mut errors = FieldErrors::default();
        PersistentVolumeClaim.validate(object, &mut errors);
        errors.to_string()
    }

    #[test]
    fn statuses() {
        assert_eq!(complaints(&claim(|_| {})), "[]");
        assert_eq!(
            complaints(&claim(|c| c["spec"] = json!({}))),
            "[spec.accessModes: Required value: at least 1 access mode is required, spec.resources[storage]: Required \
             value]"
        );
        assert_eq!(
            complaints(&claim(|c| c["spec"]["accessModes"] = json!(["ReadWriteOncePod", "ReadWriteOnce"]))),
            "spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes"
        );
        assert_eq!(
            complaints(&claim(|c| c["spec"]["resources"]["requests"]["storage"] = json!("0"))),
            "spec.resources[storage]: Invalid value: \"0\": must be greater than zero"
        );
    }

    #[test]
    fn a_claim_hardly_changes() {
        let old = claim(|c| c["status"] = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}}));
        let with = |change: &dyn Fn(&mut Value)| {
            let mut new = old.clone();
            change(&mut new["spec"]);
            let mut errors = FieldErrors::default();
            PersistentVolumeClaim.validate_update(&new, &old, &mut errors);
            errors.to_string()
        };
        assert_eq!(with(&|s| s["resources"]["requests"]["storage"] = json!("2Gi")), "[]");
        assert_eq!(with(&|s| s["volumeName"] = json!("pv")), "[]");
        assert_eq!(with(&|s| s["storageClassName"] = json!("fast")), "[]");
        assert_eq!(
            with(&|s| s["resources"]["requests"]["storage"] = json!("512Mi")),
            "spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"
        );
        assert!(with(&|s| s["accessModes"] = json!(["ReadWriteMany"])).starts_with(
            "spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName \
             for bound claims\n- accessModes[0]"
        ));
    }

    #[test]
    fn cells() {
        let object = claim(|c| {
            c["spec"]["volumeName"] = json!("pv");
            c["spec"]["storageClassName"] = json!("fast");
            c["status"] = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce", "ReadOnlyMany"]});
        });
        assert_eq!(
            json!(PersistentVolumeClaim.cells(&object, Wall::from_secs(0))),
            json!(["c", "Bound", "pv", "1Gi", "RWO,ROX", "fast", "<unset>", "<unknown>", "Filesystem"])
        );
    }
}
