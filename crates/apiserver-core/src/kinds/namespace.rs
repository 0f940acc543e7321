//! Namespace: it ends in phases, since everything in it ends first.

use std::borrow::Cow;

use api::field::{FieldErrors, Path};
use api::names;
use base::time::Wall;
use serde_json::{Value, json};

use crate::doc::{self, Field};
use crate::kind::{Column, Kind, NameRule, Strategy, Subresource, Verb};
use crate::table;

/// The label that lets selectors find a namespace by name.
pub const NAME_LABEL: &str = "kubernetes.io/metadata.name";

const COLUMNS: &[Column] =
    &[Column::NAME, Column::text("Status", "The status of the namespace"), Column::AGE];

/// A whole collection of namespaces is not deleted at once.
const VERBS: &[Verb] =
    &[Verb::Create, Verb::Delete, Verb::Get, Verb::List, Verb::Patch, Verb::Update, Verb::Watch];

pub(super) fn kind() -> Kind {
    Kind::core("Namespace", "namespaces", Namespace)
        .cluster_scoped()
        .short(&["ns"])
        .verbs(VERBS)
        .with(Subresource::new("finalize", "Namespace", &[Verb::Update]))
        .with_status()
}

#[derive(Debug)]
struct Namespace;

// === impl Namespace ===

impl Strategy for Namespace {
    fn set_defaults(&self, object: &mut Value) {
        let name = doc::text(object, "metadata.name").to_owned();
        if !name.is_empty() {
            doc::fill(object, "metadata.labels", json!({}));
            if let Some(labels) = doc::at_mut(object, "metadata.labels").and_then(Value::as_object_mut) {
                labels.insert(NAME_LABEL.to_owned(), name.into());
            }
        }
        doc::fill_text(object, "status.phase", "Active");
    }

    fn prepare_create(&self, object: &mut Value) {
        doc::set(object, "status", json!({"phase": "Active"}));
        doc::fill(object, "spec.finalizers", json!([]));
        if let Some(finalizers) = doc::at_mut(object, "spec.finalizers").and_then(Value::as_array_mut)
            && !finalizers.contains(&"kubernetes".into())
        {
            finalizers.push("kubernetes".into());
        }
    }

    fn prepare_update(&self, new: &mut Value, old: &Value) {
        doc::keep(new, old, "spec.finalizers");
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let field = Field::root(object).get("spec").get("finalizers");
        for finalizer in field.items() {
            let name = finalizer.text();
            errors.each(&field.at, name, names::qualified_name(name));
            if !name.contains('/') && !matches!(name, "kubernetes" | "orphan" | "foregroundDeletion") {
                let message = "name is neither a standard finalizer name nor is it fully qualified";
                errors.invalid(&field.at, name, message);
            }
        }
    }

    fn validate_status(&self, new: &Value, _old: &Value, errors: &mut FieldErrors) {
        let phase = doc::text(new, "status.phase");
        let (expected, state) = match doc::at(new, "metadata.deletionTimestamp") {
            Value::Null => ("Active", "empty"),
            _ => ("Terminating", "not empty"),
        };
        if phase != expected {
            let message = format!("may only be '{expected}' if `deletionTimestamp` is {state}");
            errors.invalid(&Path::new("status.Phase"), phase, message);
        }
    }

    fn is_held(&self, object: &Value) -> bool {
        !doc::list(object, "spec.finalizers").is_empty()
    }

    fn begin_deletion(&self, object: &mut Value) {
        doc::set(object, "status.phase", "Terminating");
    }

    fn returns_deleted(&self) -> bool {
        true
    }

    fn name_rule(&self) -> NameRule {
        NameRule::DnsLabel
    }

    fn field<'a>(&self, name: &str, object: &'a Value) -> Option<Cow<'a, str>> {
        (name == "status.phase").then(|| doc::text(object, name).into())
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let phase = doc::text(object, "status.phase");
        vec![table::name(object), phase.into(), table::age(object, now).into()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_namespace_is_active_and_labelled() {
        let mut object = json!({"metadata": {"name": "dev"}, "status": {"phase": "Odd"}});
        Namespace.set_defaults(&mut object);
        Namespace.prepare_create(&mut object);
        assert_eq!(
            object,
            json!({"metadata": {"name": "dev", "labels": {NAME_LABEL: "dev"}},
                "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}})
        );
        let mut new = json!({"metadata": {"name": "dev"}, "spec": {}});
        Namespace.prepare_update(&mut new, &object);
        assert_eq!(new["spec"]["finalizers"], json!(["kubernetes"]));
        assert_eq!(Namespace.field("status.phase", &object).as_deref(), Some("Active"));
        assert_eq!(Namespace.field("spec.x", &object), None);
    }

    #[test]
    fn the_phase_follows_the_deletion() {
        let check = |object: Value| {
            let mut errors = FieldErrors::default();
            Namespace.validate_status(&object, &object, &mut errors);
            errors.to_string()
        };
        assert_eq!(check(json!({"status": {"phase": "Active"}})), "[]");
        assert_eq!(
            check(json!({"status": {"phase": "Terminating"}})),
            "status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty"
        );
        let dying = json!({"metadata": {"deletionTimestamp": "x"}, "status": {"phase": "Terminating"}});
        assert_eq!(check(dying), "[]");
    }
}
