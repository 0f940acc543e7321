//! CustomResourceDefinition: a kind that users bring along. Its schemas are checked where they are compiled.

use std::collections::BTreeSet;

use api::field::{FieldErrors, Path};
use api::names;
use base::time::Wall;
use schema::custom::CustomType;
use serde_json::{Value, json};

use super::check;
use super::definition_names::Verdict;
use crate::doc::{self, Field};
use crate::kind::{Kind, Strategy};

pub(super) fn kind() -> Kind {
    Kind::new(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        Definition,
    )
    .cluster_scoped()
    .short(&["crd", "crds"])
    .category("api-extensions")
    .with_status()
}

/// Writes down what came of the names, and with all of them begins to serve, as upstream's naming and establishing
/// controllers do. Returns whether the object changed.
pub fn establish(object: &mut Value, verdict: &Verdict, now: Wall) -> bool {
    let before = object["status"].clone();
    doc::set(object, "status.acceptedNames", verdict.accepted.clone());
    let (status, reason, message) = match &verdict.conflict {
        None => ("True", "NoConflicts", "no conflicts found"),
        Some((reason, message)) => ("False", *reason, message.as_str()),
    };
    set_condition(object, "NamesAccepted", status, reason, message, now);
    if verdict.conflict.is_none() {
        let message = "the initial names have been accepted";
        set_condition(object, "Established", "True", "InitialNamesAccepted", message, now);
    } else if verdict.is_ousted || !is_established(object) {
        set_condition(object, "Established", "False", "NotAccepted", "not all names are accepted", now);
    }
    if let Some((status, reason, message)) = approval_condition(object) {
        set_condition(object, "KubernetesAPIApprovalPolicyConformant", status, reason, &message, now);
    }
    object["status"] != before
}

#[must_use]
pub fn is_established(object: &Value) -> bool {
    doc::list(object, "status.conditions")
        .iter()
        .any(|c| doc::text(c, "type") == "Established" && doc::text(c, "status") == "True")
}

/// Only structural schemas can be pruned, defaulted and owned by field.
fn schemas(errors: &mut FieldErrors, object: &Value) {
    for (i, version) in doc::list(object, "spec.versions").iter().enumerate() {
        let schema = doc::at(version, "schema.openAPIV3Schema");
        let at = Path::new("spec").child("versions").index(i).child("schema").child("openAPIV3Schema");
        if schema.is_object() {
            schema::custom::check_schema(schema, &at, errors);
        } else {
            errors.required(&at, "schemas are required");
        }
    }
}

#[derive(Debug)]
struct Definition;

// === impl Definition ===

impl Strategy for Definition {
    fn set_defaults(&self, object: &mut Value) {
        let kind = doc::text(object, "spec.names.kind").to_owned();
        if !kind.is_empty() {
            doc::fill_text(object, "spec.names.singular", &kind.to_lowercase());
            doc::fill_text(object, "spec.names.listKind", &format!("{kind}List"));
        }
        doc::fill(object, "spec.conversion", json!({"strategy": "None"}));
        if let Some(service) = doc::at_mut(object, "spec.conversion.webhook.clientConfig.service") {
            doc::fill(service, "port", 443);
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        doc::remove(object, "status");
        remember_storage_version(object);
    }

    fn prepare_update(&self, new: &mut Value, _old: &Value) {
        remember_storage_version(new);
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        no_webhook(errors, object);
        let name = doc::text(object, "metadata.name");
        let expected =
            format!("{}.{}", doc::text(object, "spec.names.plural"), doc::text(object, "spec.group"));
        if name != expected {
            errors.invalid(&Path::new("metadata.name"), name, "must be spec.names.plural+\".\"+spec.group");
        }
        spec(errors, object);
        schemas(errors, object);
        stored_versions(errors, object);
        approval(errors, object);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        // A definition from before this was refused can still be labelled, and be mended.
        if doc::at(new, "spec.conversion") != doc::at(old, "spec.conversion") {
            no_webhook(errors, new);
        }
        spec(errors, new);
        schemas(errors, new);
        if is_established(old) {
            check::immutable(errors, new, old, "spec.scope");
            check::immutable(errors, new, old, "spec.names.kind");
        }
        check::immutable(errors, new, old, "spec.group");
        check::immutable(errors, new, old, "spec.names.plural");
        stored_versions(errors, new);
    }

    fn warnings(&self, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let has_rules =
            |version: &Value| CustomType::new(doc::at(version, "schema.openAPIV3Schema")).has_rules();
        let versions = doc::list(new, "spec.versions").iter().enumerate();
        versions
            .filter(|(_, version)| has_rules(version))
            .map(|(i, _)| {
                format!("spec.versions[{i}].schema.openAPIV3Schema: x-kubernetes-validations are kept, but this server does not evaluate them")
            })
            .collect()
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn updates_unconditionally(&self) -> bool {
        false
    }
}

/// A version that was once stored is remembered, for its objects may still be there.
fn remember_storage_version(object: &mut Value) {
    let storage = doc::list(object, "spec.versions").iter().find(|v| doc::is_true(v, "storage"));
    let Some(name) = storage.map(|v| v["name"].clone()).filter(Value::is_string) else { return };
    doc::fill(object, "status.storedVersions", json!([]));
    if let Some(stored) = doc::at_mut(object, "status.storedVersions").and_then(Value::as_array_mut)
        && !stored.contains(&name)
    {
        stored.push(name);
    }
}

fn set_condition(object: &mut Value, kind: &str, status: &str, reason: &str, message: &str, now: Wall) {
    doc::fill(object, "status.conditions", json!([]));
    let Some(list) = doc::at_mut(object, "status.conditions").and_then(Value::as_array_mut) else { return };
    let before = list.iter().position(|c| c["type"] == kind);
    let since = match before.map(|i| &list[i]) {
        Some(c) if c["status"] == status => c["lastTransitionTime"].clone(),
        _ => jiff::Timestamp::from_second(now.secs()).map(|t| t.to_string()).unwrap_or_default().into(),
    };
    let condition = json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since});
    match before {
        Some(i) => list[i] = condition,
        None => list.push(condition),
    }
}

fn spec(errors: &mut FieldErrors, object: &Value) {
    let spec = Field::root(object).get("spec");
    let group = spec.get("group");
    if group.is_empty() {
        errors.required(&group.at, "");
    } else {
        let complaints = names::dns_subdomain(group.text());
        if !complaints.is_empty() {
            errors.invalid(&group.at, group.text(), complaints.join(","));
        } else if !group.text().contains('.') {
            errors.invalid(&group.at, group.text(), "should be a domain with at least one dot");
        }
    }
    check::one_of(errors, &spec.get("scope"), &["Cluster", "Namespaced"]);
    versions(errors, &spec.get("versions"));
    let names = spec.get("names");
    for name in ["plural", "singular", "kind", "listKind"] {
        check::required(errors, &names.get(name));
    }
    kind_names(errors, &names);
    conversion(errors, &spec.get("conversion"));
    if spec.get("preserveUnknownFields").is_true() {
        let message = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in \
                       spec.versions[*].schema instead";
        errors.invalid(&spec.at.child("preserveUnknownFields"), true, message);
    }
}

fn versions(errors: &mut FieldErrors, versions: &Field<'_>) {
    let (mut seen, mut storing, mut unique) = (BTreeSet::new(), 0, true);
    for version in versions.items() {
        storing += usize::from(version.get("storage").is_true());
        let name = version.get("name");
        unique &= seen.insert(name.text());
        let complaints = names::dns_1035_label(name.text());
        if !complaints.is_empty() {
            errors.invalid(&name.at, name.text(), complaints.join(","));
        }
        let warning = version.get("deprecationWarning");
        if warning.is_set() && !version.get("deprecated").is_true() {
            errors.invalid(&warning.at, warning.text(), "can only be set for deprecated versions");
        }
        subresources(errors, &version.get("subresources"));
        for column in version.get("additionalPrinterColumns").items() {
            printer_column(errors, &column);
        }
        let fields = version.get("selectableFields");
        if fields.len() > 8 {
            errors.too_many(&fields.at, fields.len(), 8);
        }
    }
    let shown = || json!(versions.items().map(|v| v.get("name").value.clone()).collect::<Vec<_>>());
    if !unique {
        errors.invalid(&versions.at, shown(), "must contain unique version names");
    }
    if storing != 1 {
        errors.invalid(&versions.at, shown(), "must have exactly one version marked as storage version");
    }
}

fn subresources(errors: &mut FieldErrors, subresources: &Field<'_>) {
    let scale = subresources.get("scale");
    if !scale.is_set() {
        return;
    }
    for (name, root) in [("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")] {
        let path = scale.get(name);
        if path.is_empty() {
            errors.required(&path.at, "");
        } else if !is_simple_path(path.text()) || !path.text().starts_with(root) {
            let message = format!("should be a json path under {}", root.trim_end_matches('.'));
            errors.invalid(&path.at, path.text(), message);
        }
    }
    let selector = scale.get("labelSelectorPath");
    let text = selector.text();
    if selector.is_set()
        && !text.is_empty()
        && (!is_simple_path(text) || !(text.starts_with(".spec.") || text.starts_with(".status.")))
    {
        errors.invalid(&selector.at, text, "should be a json path under either .spec or .status");
    }
}

/// `.spec.replicas`: names, each after a dot.
fn is_simple_path(path: &str) -> bool {
    path.strip_prefix('.').is_some_and(|rest| {
        rest.split('.').all(|name| {
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
        })
    })
}

fn printer_column(errors: &mut FieldErrors, column: &Field<'_>) {
    check::required(errors, &column.get("name"));
    check::one_of(errors, &column.get("type"), &["boolean", "date", "integer", "number", "string"]);
    let format = column.get("format");
    if !format.is_empty() {
        let formats = ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
        check::one_of_if_set(errors, &format, &formats);
    }
    let path = column.get("jsonPath");
    if path.is_empty() {
        errors.required(&path.at, "");
    } else if !path.text().starts_with('.') {
        errors.invalid(&path.at, path.text(), "is an invalid path: must start with '.'");
    }
}

fn kind_names(errors: &mut FieldErrors, kind_names: &Field<'_>) {
    for name in ["plural", "singular", "kind", "listKind"] {
        let field = kind_names.get(name);
        if field.is_empty() {
            continue;
        }
        // A kind is spelled in CamelCase, but is otherwise a label.
        let complaints = names::dns_1035_label(&field.text().to_lowercase());
        let is_lower = matches!(name, "kind" | "listKind") || field.text().to_lowercase() == field.text();
        if !complaints.is_empty() || !is_lower {
            let complaints = if is_lower { complaints } else { names::dns_1035_label(field.text()) };
            let prefix = if matches!(name, "kind" | "listKind") {
                "may have mixed case, but should otherwise match: "
            } else {
                ""
            };
            errors.invalid(&field.at, field.text(), format!("{prefix}{}", complaints.join(",")));
        }
    }
    for list in ["shortNames", "categories"] {
        for name in kind_names.get(list).items() {
            let complaints = names::dns_1035_label(name.text());
            if !complaints.is_empty() {
                errors.invalid(&name.at, name.text(), complaints.join(","));
            }
        }
    }
    let kind = kind_names.get("kind");
    if !kind.is_empty() && kind.text() == kind_names.get("listKind").text() {
        let list = kind_names.get("listKind");
        errors.invalid(&list.at, list.text(), "kind and listKind may not be the same");
    }
}

fn conversion(errors: &mut FieldErrors, conversion: &Field<'_>) {
    let (strategy, webhook) = (conversion.get("strategy"), conversion.get("webhook"));
    if !conversion.is_set() {
        return;
    }
    check::one_of(errors, &strategy, &["None", "Webhook"]);
    let client = webhook.get("clientConfig");
    match strategy.text() {
        "Webhook" if !client.is_set() => {
            let at = conversion.at.child("webhookClientConfig");
            errors.required(&at, "required when strategy is set to Webhook");
        }
        "None" if webhook.is_set() => {
            let at = conversion.at.child("webhookClientConfig");
            errors.forbidden(&at, "should not be set when strategy is not set to Webhook");
        }
        _ => {}
    }
}

/// Nobody calls conversion webhooks yet: objects would be served as they are stored, in the name of another version.
fn no_webhook(errors: &mut FieldErrors, object: &Value) {
    let strategy = Field::root(object).get("spec").get("conversion").get("strategy");
    if strategy.text() == "Webhook" {
        let message = "conversion webhooks are not supported by this server; use None";
        errors.forbidden(&strategy.at, message);
    }
}

fn stored_versions(errors: &mut FieldErrors, object: &Value) {
    let stored = Field::root(object).get("status").get("storedVersions");
    if stored.is_empty() {
        return errors.invalid(&stored.at, stored.value.clone(), "must have at least one stored version");
    }
    let known: BTreeSet<&str> =
        doc::list(object, "spec.versions").iter().map(|v| doc::text(v, "name")).collect();
    for version in stored.items().filter(|v| !known.contains(v.text())) {
        let name = version.text();
        let message = format!(
            "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions \
             until a storage migration ensures no data remains persisted in {name} and removes {name} from \
             status.storedVersions"
        );
        errors.invalid(&version.at, name, message);
    }
}

const APPROVAL: &str = "api-approved.kubernetes.io";

/// Groups of the Kubernetes project itself are only for kinds it has approved of.
fn approval(errors: &mut FieldErrors, object: &Value) {
    if let Some(("False", reason, message)) = approval_condition(object) {
        let at = Path::new("metadata.annotations").key(APPROVAL);
        match reason {
            "MissingAnnotation" => errors.required(&at, &message),
            "InvalidAnnotation" => {
                let said = doc::at(object, "metadata.annotations").get(APPROVAL).cloned().unwrap_or_default();
                errors.invalid(&at, said, message);
            }
            _ => {}
        }
    }
}

/// Status, reason and message of the condition that tells of approval; None for groups that need none.
fn approval_condition(object: &Value) -> Option<(&'static str, &'static str, String)> {
    let group = doc::text(object, "spec.group");
    let is_protected = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|domain| group == *domain || group.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')));
    if !is_protected {
        return None;
    }
    let annotation = doc::at(object, "metadata.annotations").get(APPROVAL).and_then(Value::as_str);
    let must = "protected groups must have approval annotation \"api-approved.kubernetes.io\"";
    let see = "see https://github.com/kubernetes/enhancements/pull/1111";
    Some(match annotation.unwrap_or_default() {
        "" => ("False", "MissingAnnotation", format!("{must}, {see}")),
        said if said.starts_with("unapproved") => {
            ("False", "UnapprovedAnnotation", format!("not approved: {said:?}"))
        }
        url if is_url(url) => ("True", "ApprovedAnnotation", format!("approved in {url}")),
        _ => {
            let why = format!("{must} with either a URL or a reason starting with \"unapproved\", {see}");
            ("False", "InvalidAnnotation", why)
        }
    })
}

/// Something with a scheme and a host.
fn is_url(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, rest)| {
        let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
        is_scheme && rest.split('/').next().is_some_and(|host| !host.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::super::definition_names::Taken;
    use super::*;

    fn definition(change: impl FnOnce(&mut Value)) -> Value {
        let mut object = json!({"metadata": {"name": "things.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
        change(&mut object);
        Definition.set_defaults(&mut object);
        Definition.prepare_create(&mut object);
        object
    }

    fn complaints(change: impl FnOnce(&mut Value)) -> String {
        let mut errors = FieldErrors::default();
        Definition.validate(&definition(change), &mut errors);
        errors.to_string()
    }

    #[test]
    fn defaults_and_establishing() {
        let mut object = definition(|_| {});
        assert_eq!(
            object["spec"]["names"],
            json!({"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"})
        );
        assert_eq!(object["spec"]["conversion"], json!({"strategy": "None"}));
        assert_eq!(object["status"], json!({"storedVersions": ["v1"]}));
        assert!(!is_established(&object));
        let judge = |object: &Value| Taken::default().judge(object);
        let verdict = judge(&object);
        assert!(establish(&mut object, &verdict, Wall::from_secs(0)));
        assert!(is_established(&object));
        assert_eq!(object["status"]["acceptedNames"], object["spec"]["names"]);
        let again = judge(&object);
        assert!(!establish(&mut object, &again, Wall::from_secs(9)), "nothing more to do");
    }

    #[test]
    fn rules_nobody_evaluates_are_warned_about() {
        let rules = |d: &mut Value| {
            let schema = json!({"type": "object", "properties": {"spec": {
                "type": "object", "x-kubernetes-validations": [{"rule": "self.a > 1"}]}}});
            d["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = schema;
        };
        assert_eq!(complaints(rules), "[]");
        let told = Definition.warnings(&definition(rules), None);
        assert!(told.len() == 1 && told[0].contains("spec.versions[0]"), "{told:?}");
        assert_eq!(Definition.warnings(&definition(|_| {}), None), Vec::<String>::new());
    }

    #[test]
    fn a_conversion_webhook_is_refused_by_name() {
        let webhook = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
            "clientConfig": {"service": {"namespace": "n", "name": "s"}}}});
        let api_status = "spec.conversion.strategy: Forbidden: conversion webhooks are not supported by this server; use None";
        assert_eq!(complaints(|d| d["spec"]["conversion"] = webhook.clone()), api_status);
        let (plain, old) = (definition(|_| {}), definition(|d| d["spec"]["conversion"] = webhook.clone()));
        let update = |new: &Value, old: &Value| {
            let mut errors = FieldErrors::default();
            Definition.validate_update(new, old, &mut errors);
            errors.to_string()
        };
        assert_eq!(update(&old, &plain), api_status);
        assert_eq!(update(&old, &old), "[]", "what an earlier release took can be labelled");
        assert_eq!(update(&plain, &old), "[]");
    }

    #[test]
    fn statuses() {
        assert_eq!(complaints(|_| {}), "[]");
        assert_eq!(
            complaints(|d| d["metadata"]["name"] = json!("x")),
            "metadata.name: Invalid value: \"x\": must be spec.names.plural+\".\"+spec.group"
        );
        assert_eq!(
            complaints(|d| d["spec"]["versions"][0]["schema"] = Value::Null),
            "spec.versions[0].schema.openAPIV3Schema: Required value: schemas are required"
        );
        assert!(
            complaints(|d| d["spec"]["versions"][0]["storage"] = json!(false))
                .contains("must have exactly one version marked as storage version")
        );
        assert!(
            complaints(|d| d["spec"]["scope"] = json!("World"))
                .contains("supported values: \"Cluster\", \"Namespaced\"")
        );
        assert!(
            complaints(|d| {
                d["metadata"]["name"] = json!("things.x.k8s.io");
                d["spec"]["group"] = json!("x.k8s.io");
            })
            .contains("protected groups must have approval annotation")
        );
        let old = definition(|_| {});
        let mut new = old.clone();
        new["spec"]["group"] = json!("other.com");
        new["spec"]["versions"][0]["name"] = json!("v2");
        let mut errors = FieldErrors::default();
        Definition.validate_update(&new, &old, &mut errors);
        let text = errors.to_string();
        assert!(text.contains("spec.group: Invalid value: \"other.com\": field is immutable"), "{text}");
        assert!(text.contains("v1 was previously a storage version"), "{text}");
    }
}
