//! Pods to be made: the template inside a controller, and what Pods and templates share.

use api::field::{FieldErrors, Path};
use api::json::ToJson;
use api::pod::Stage;
use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{check, meta, selector};
use crate::doc::{self, Field};

/// Fills in the defaults of the template at `path`.
pub(super) fn set_defaults(object: &mut Value, path: &str) {
    if let Some(template) = doc::at_mut(object, path) {
        default_spec(template, api::pod::set_template_defaults);
    }
}

/// Runs typed defaulting over the `spec` of a Pod or a template. A spec that does not decode is left as it is: its
/// mistakes are for validation to name.
pub(super) fn default_spec(owner: &mut Value, fill: impl FnOnce(&mut PodSpec)) {
    let Some(slot) = doc::at_mut(owner, "spec") else { return };
    let Ok(mut spec) = api::pod::decode_spec(slot) else { return };
    fill(&mut spec);
    *slot = spec.to_value();
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in doc::list_mut(slot, list) {
            // Upstream's encoding always shows this one.
            doc::fill(container, "resources", json!({}));
        }
    }
}

/// The spec and the annotations that belong to it. `owner` is the Pod or the template.
pub(super) fn validate_spec(errors: &mut FieldErrors, owner: &Field<'_>, stage: Stage) {
    let spec = owner.get("spec");
    let meta = ObjectMeta {
        annotations: Deserialize::deserialize(doc::at(owner.value, "metadata.annotations"))
            .unwrap_or_default(),
        ..ObjectMeta::default()
    };
    match api::pod::decode_spec(spec.value) {
        Ok(spec) => errors.extend(api::pod::validate_spec(&meta, &spec, &owner.at, stage)),
        Err(_) if spec.value.is_null() => errors.required(&spec.at.child("containers"), ""),
        Err(e) => errors.invalid(&spec.at, Value::Null, e.to_string()),
    }
}

/// What any template may not be.
pub(super) fn validate(errors: &mut FieldErrors, template: &Field<'_>) {
    // Upstream leaves the metadata out of these paths.
    let labels = Field { value: doc::at(template.value, "metadata.labels"), at: template.at.child("labels") };
    check::labels(errors, &labels);
    let mut found = FieldErrors::default();
    let bare = json!({"annotations": doc::at(template.value, "metadata.annotations")});
    meta::labels_and_annotations(&mut found, &Field { value: &bare, at: template.at.clone() });
    errors.extend(found);
    validate_spec(errors, template, Stage::Template);
}

/// A template whose Pods run until their controller ends them. `kind` is the word upstream uses in its messages.
pub(super) fn validate_lasting(errors: &mut FieldErrors, template: &Field<'_>, kind: &str) {
    validate(errors, template);
    only_always(errors, template, kind);
}

pub(super) fn only_always(errors: &mut FieldErrors, template: &Field<'_>, kind: &str) {
    let policy = template.get("spec").get("restartPolicy");
    if policy.text() != "Always" {
        errors.unsupported(&policy.at, policy.text(), &["Always"]);
    }
    let deadline = template.get("spec").get("activeDeadlineSeconds");
    if deadline.is_set() {
        errors.forbidden(&deadline.at, &format!("activeDeadlineSeconds in {kind} is not Supported"));
    }
}

/// A selector is there, selects something, and what it selects are the Pods of the template. `noun` is how upstream's
/// message names the kind.
pub(super) fn validate_selector(errors: &mut FieldErrors, spec: &Field<'_>, noun: &str) {
    let selector = spec.get("selector");
    if !selector.is_set() {
        return errors.required(&selector.at, "");
    }
    selector::validate(errors, &selector);
    if selector::is_empty(selector.value) {
        let message = format!("empty selector is invalid for {noun}");
        return errors.invalid(&selector.at, selector.value.clone(), message);
    }
    matches_template(errors, &selector, &spec.get("template"));
}

pub(super) fn matches_template(errors: &mut FieldErrors, selector: &Field<'_>, template: &Field<'_>) {
    let labels = template.get("metadata").get("labels");
    let none = json!({});
    let given = if labels.is_set() { labels.value } else { &none };
    if !selector::matches(selector.value, given) {
        errors.invalid(&labels.at, given.clone(), "`selector` does not match template `labels`");
    }
}

/// Numbers of a status that may not be negative.
pub(super) fn counts(errors: &mut FieldErrors, status: &Field<'_>, names: &[&str]) {
    for name in names {
        check::non_negative(errors, &status.get(name));
    }
}

/// A count in a status that is a part of another.
pub(super) fn at_most(errors: &mut FieldErrors, status: &Field<'_>, part: &str, whole: &str, message: &str) {
    let (p, w) = (status.get(part).int().unwrap_or_default(), status.get(whole).int().unwrap_or_default());
    if p > w {
        errors.invalid(&status.at.child(part), p, message);
    }
}

/// The count of name collisions only grows.
pub(super) fn collisions_grow(errors: &mut FieldErrors, new: &Value, old: &Value) {
    let path = "status.collisionCount";
    if doc::int(new, path) < doc::int(old, path) {
        errors.invalid(&Path::new(path), doc::int(new, path), "cannot be decremented");
    }
}
