//! What every object has: `metadata`.

use api::field::{FieldErrors, Path};
use api::names;
use serde_json::Value;

use super::check;
use crate::doc::{self, Field};
use crate::kind::{Kind, NameRule};

/// Annotations of one object, keys and values together.
const ANNOTATIONS_MAX: usize = 256 * 1024;

/// What may not stand in the metadata of a new object.
pub fn validate(kind: &Kind, object: &Value, errors: &mut FieldErrors) {
    let meta = Field::root(object).get("metadata");
    name(errors, &meta, kind.strategy.name_rule());
    namespace(errors, &meta, kind.is_namespaced());
    check::non_negative(errors, &meta.get("generation"));
    common(errors, &meta);
    finalizers(errors, &meta.get("finalizers"));
    if asks_for_domains(kind) {
        qualified_finalizers(errors, &meta.get("finalizers"));
    }
}

/// What a later write may not do to the metadata.
pub fn validate_update(kind: &Kind, new: &Value, old: &Value, errors: &mut FieldErrors) {
    let meta = Field::root(new).get("metadata");
    if !doc::at(old, "metadata.deletionTimestamp").is_null() {
        no_new_finalizers(errors, &meta.get("finalizers"), doc::list(old, "metadata.finalizers"));
    }
    if doc::int(new, "metadata.generation") < doc::int(old, "metadata.generation") {
        let generation = doc::int(new, "metadata.generation");
        errors.invalid(&meta.get("generation").at, generation, "must not be decremented");
    }
    let fixed =
        ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"];
    for field in fixed {
        check::immutable(errors, new, old, &format!("metadata.{field}"));
    }
    common(errors, &meta);
    if asks_for_domains(kind) {
        qualified_finalizers(errors, &meta.get("finalizers"));
    }
}

/// The complaints about a name of this kind, as it is or as the beginning of one to be made up.
#[must_use]
pub fn name_complaints(rule: NameRule, name: &str, is_prefix: bool) -> Vec<String> {
    // A prefix may end in a dash, since letters follow.
    let masked = match name.strip_suffix('-') {
        Some(rest) if is_prefix && !rest.is_empty() => format!("{rest}a"),
        _ => name.to_owned(),
    };
    match rule {
        NameRule::DnsSubdomain => names::dns_subdomain(&masked),
        NameRule::DnsLabel => names::dns_label(&masked),
        NameRule::Dns1035Label => names::dns_1035_label(&masked),
        NameRule::PathSegment if is_prefix => names::path_segment(&masked),
        NameRule::PathSegment => names::path_segment(name),
        NameRule::IpAddress => canonical_ip(name),
    }
}

/// Labels and annotations, as a template has them too.
pub fn labels_and_annotations(errors: &mut FieldErrors, meta: &Field<'_>) {
    check::labels(errors, &meta.get("labels"));
    annotations(errors, &meta.get("annotations"));
}

fn common(errors: &mut FieldErrors, meta: &Field<'_>) {
    labels_and_annotations(errors, meta);
    owners(errors, &meta.get("ownerReferences"));
}

fn name(errors: &mut FieldErrors, meta: &Field<'_>, rule: NameRule) {
    let (prefix, name) = (meta.get("generateName"), meta.get("name"));
    if !prefix.text().is_empty() {
        errors.each(&prefix.at, prefix.text(), name_complaints(rule, prefix.text(), true));
    }
    if name.text().is_empty() {
        errors.required(&name.at, "name or generateName is required");
    } else {
        errors.each(&name.at, name.text(), name_complaints(rule, name.text(), false));
    }
}

fn canonical_ip(name: &str) -> Vec<String> {
    match name.parse::<std::net::IpAddr>() {
        Err(_) => vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()],
        Ok(ip) if ip.to_string() != name => vec![format!("must be in canonical form ({:?})", ip.to_string())],
        Ok(_) => Vec::new(),
    }
}

fn namespace(errors: &mut FieldErrors, meta: &Field<'_>, is_namespaced: bool) {
    let namespace = meta.get("namespace");
    match (is_namespaced, namespace.text()) {
        (true, "") => errors.required(&namespace.at, ""),
        (true, name) => errors.each(&namespace.at, name, names::dns_label(name)),
        (false, "") => {}
        (false, _) => errors.forbidden(&namespace.at, "not allowed on this type"),
    }
}

fn annotations(errors: &mut FieldErrors, field: &Field<'_>) {
    let mut size = 0;
    for (key, value) in field.entries() {
        size += key.len() + value.text().len();
        errors.each(&field.at, key, names::qualified_name(&key.to_lowercase()));
    }
    if size > ANNOTATIONS_MAX {
        errors.too_long(&field.at, ANNOTATIONS_MAX);
    }
}

fn owners(errors: &mut FieldErrors, field: &Field<'_>) {
    let mut controller: Option<String> = None;
    for owner in field.items() {
        // Upstream's messages name the list, not the element.
        let at = |name: &str| field.at.child(name);
        let (version, kind) = (doc::text(owner.value, "apiVersion"), doc::text(owner.value, "kind"));
        if version.rsplit('/').next().unwrap_or_default().is_empty() {
            errors.invalid(&at("apiVersion"), version, "version must not be empty");
        }
        for name in ["kind", "name", "uid"] {
            if doc::text(owner.value, name).is_empty() {
                errors.invalid(&at(name), "", "must not be empty");
            }
        }
        if (version, kind) == ("v1", "Event") {
            let message = "/v1, Kind=Event is disallowed from being an owner";
            errors.invalid(&field.at, owner.value.clone(), message);
        }
        if doc::is_true(owner.value, "controller") {
            let this = format!("{kind}/{}", doc::text(owner.value, "name"));
            match &controller {
                None => controller = Some(this),
                Some(first) => {
                    let message = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for \
                         {first} and {this}"
                    );
                    errors.invalid(&field.at, field.value.clone(), message);
                }
            }
        }
    }
}

fn finalizers(errors: &mut FieldErrors, field: &Field<'_>) {
    for finalizer in field.items() {
        errors.each(&field.at, finalizer.text(), names::qualified_name(finalizer.text()));
    }
    let has = |name: &str| field.items().any(|f| f.text() == name);
    if has("orphan") && has("foregroundDeletion") {
        let message = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.invalid(&field.at, field.value.clone(), message);
    }
}

/// Whether a finalizer must say whose it is. Upstream's servers for custom kinds and for other servers do not ask, and
/// the finalizer that holds a definition says nothing.
fn asks_for_domains(kind: &Kind) -> bool {
    !kind.is_custom() && !matches!(&*kind.group, "apiextensions.k8s.io" | "apiregistration.k8s.io")
}

fn qualified_finalizers(errors: &mut FieldErrors, field: &Field<'_>) {
    for finalizer in field.items() {
        let name = finalizer.text();
        if !name.contains('/') && !matches!(name, "kubernetes" | "orphan" | "foregroundDeletion") {
            let message = "name is neither a standard finalizer name nor is it fully qualified";
            errors.invalid(&finalizer.at, name, message);
        }
    }
}

fn no_new_finalizers(errors: &mut FieldErrors, field: &Field<'_>, old: &[Value]) {
    let mut added: Vec<&str> = field.items().filter(|f| !old.contains(f.value)).map(|f| f.text()).collect();
    added.sort_unstable();
    added.dedup();
    if !added.is_empty() {
        let list: Vec<String> = added.iter().map(|f| format!("{f:?}")).collect();
        let message = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
            list.join(", ")
        );
        errors.forbidden(&Path::new("metadata.finalizers"), &message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn complaints(meta: Value) -> String {
        let mut errors = FieldErrors::default();
        validate(&super::super::config_map::kind(), &json!({"metadata": meta}), &mut errors);
        errors.to_string()
    }

    #[test]
    fn names_labels_owners_and_finalizers() {
        let good = json!({"name": "a.b", "namespace": "n", "labels": {"a/b": "c"}, "finalizers": ["x.y/z"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true}]});
        assert_eq!(complaints(good), "[]");
        for (meta, want) in [
            (json!({"namespace": "n"}), "metadata.name: Required value: name or generateName is required"),
            (json!({"name": "a"}), "metadata.namespace: Required value"),
            (
                json!({"name": "a", "namespace": "n", "finalizers": ["x"]}),
                "metadata.finalizers[0]: Invalid value: \"x\": name is neither a standard finalizer name nor is \
                 it fully qualified",
            ),
            (
                json!({"name": "a", "namespace": "n", "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p"}]}),
                "metadata.ownerReferences.uid: Invalid value: \"\": must not be empty",
            ),
            (
                json!({"name": "a", "namespace": "n", "annotations": {"k": "v".repeat(ANNOTATIONS_MAX)}}),
                "metadata.annotations: Too long: may not be more than 262144 bytes",
            ),
        ] {
            assert_eq!(complaints(meta), want);
        }
        assert!(complaints(json!({"name": "A", "namespace": "n"})).contains("lowercase RFC 1123 subdomain"));
        assert!(name_complaints(NameRule::DnsSubdomain, "web-", true).is_empty());
        assert!(!name_complaints(NameRule::DnsSubdomain, "web-", false).is_empty());
    }

    #[test]
    fn a_dying_object_gets_no_new_finalizer() {
        let old = json!({"metadata": {"name": "a", "deletionTimestamp": "x", "finalizers": ["a/b"]}});
        let new = json!({"metadata": {"name": "b", "deletionTimestamp": "x", "finalizers": ["a/b", "c/d"]}});
        let mut errors = FieldErrors::default();
        validate_update(&super::super::config_map::kind(), &new, &old, &mut errors);
        assert_eq!(
            errors.to_string(),
            "[metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found \
             new finalizers []string{\"c/d\"}, metadata.name: Invalid value: \"b\": field is immutable]"
        );
    }
}
