//! The kinds of resource.k8s.io: devices that Pods claim, who offers them, and what they are like.
//!
//! Selectors are kept, not compiled: an expression that is no CEL fails where it is evaluated, in the scheduler.

pub mod claim;
mod request;
mod slice;

use api::field::{FieldErrors, Path};
use api::names;
use base::time::Wall;
use serde_json::Value;

use super::check;
use crate::doc::Field;
use crate::kind::{Column, Kind, Strategy};
use crate::table;

pub(super) use claim::{kind as resource_claim, template as resource_claim_template};
pub(super) use slice::kind as resource_slice;

pub(super) const GROUP: &str = "resource.k8s.io";
const SELECTORS: usize = 32;
const CONFIGS: usize = 32;
const EXPRESSION: usize = 10 * 1024;
const PARAMETERS: usize = 10 * 1024;
const DOMAIN: usize = 63;
const IDENTIFIER: usize = 32;

pub(super) fn device_class() -> Kind {
    Kind::new(GROUP, "v1", "DeviceClass", "deviceclasses", DeviceClass).cluster_scoped()
}

#[derive(Debug)]
struct DeviceClass;

// === impl DeviceClass ===

impl Strategy for DeviceClass {
    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let spec = Field::root(object).get("spec");
        selectors(errors, &spec.get("selectors"));
        for config in at_most(errors, &spec.get("config"), CONFIGS) {
            configuration(errors, &config);
        }
        let resource = spec.get("extendedResourceName");
        if resource.is_set() && !is_extended(resource.text()) {
            errors.invalid(&resource.at, resource.text(), "must be a valid extended resource name");
        }
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        NAME_AND_AGE
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        vec![table::name(object), table::age(object, now).into()]
    }
}

const NAME_AND_AGE: &[Column] = &[Column::NAME, Column::AGE];

/// The elements of a list that is short enough; a longer one is not looked at.
fn at_most<'a>(errors: &mut FieldErrors, list: &Field<'a>, max: usize) -> Vec<Field<'a>> {
    if list.len() > max {
        errors.too_many(&list.at, list.len(), max);
        return Vec::new();
    }
    list.items().collect()
}

/// The same, where no two may have the same key.
fn set_of<'a>(
    errors: &mut FieldErrors,
    list: &Field<'a>,
    max: usize,
    key: impl Fn(&Field<'a>) -> String,
) -> Vec<Field<'a>> {
    let items = at_most(errors, list, max);
    let mut seen = std::collections::BTreeSet::new();
    for item in &items {
        let key = key(item);
        if !seen.insert(key.clone()) {
            errors.duplicate(&item.at, key);
        }
    }
    items
}

fn selectors(errors: &mut FieldErrors, list: &Field<'_>) {
    for selector in at_most(errors, list, SELECTORS) {
        let cel = selector.get("cel");
        let expression = cel.get("expression");
        if !cel.is_set() {
            errors.required(&cel.at, "");
        } else if expression.is_empty() {
            errors.required(&expression.at, "");
        } else if expression.len() > EXPRESSION {
            errors.too_long(&expression.at, EXPRESSION);
        }
    }
}

fn configuration(errors: &mut FieldErrors, config: &Field<'_>) {
    let opaque = config.get("opaque");
    if !opaque.is_set() {
        return errors.required(&opaque.at, "");
    }
    driver(errors, &opaque.get("driver"));
    json_object(errors, &opaque.get("parameters"), PARAMETERS);
}

fn json_object(errors: &mut FieldErrors, field: &Field<'_>, max: usize) {
    if !field.is_set() {
        errors.required(&field.at, "");
    } else if !field.value.is_object() {
        errors.invalid(&field.at, "<value omitted>", "must be a valid JSON object");
    } else if field.value.to_string().len() > max {
        errors.too_long(&field.at, max);
    }
}

/// Spelled as the name of a CSI driver.
fn driver(errors: &mut FieldErrors, field: &Field<'_>) {
    if field.is_empty() {
        errors.required(&field.at, "");
    } else {
        domain(errors, &field.at, field.text());
    }
}

fn domain(errors: &mut FieldErrors, at: &Path, text: &str) {
    if text.len() > DOMAIN {
        errors.too_long(at, DOMAIN);
    }
    let lower = text.to_lowercase();
    errors.each(at, text, names::dns_subdomain(&lower));
}

fn label_name(errors: &mut FieldErrors, field: &Field<'_>) {
    check::spelled(errors, field, names::dns_label);
}

/// Names separated by slashes, each of them a subdomain.
fn pool(errors: &mut FieldErrors, field: &Field<'_>) {
    const LONGEST: usize = 253;
    if field.is_empty() {
        return errors.required(&field.at, "");
    }
    if field.len() > LONGEST {
        errors.too_long(&field.at, LONGEST);
    }
    for part in field.text().split('/') {
        errors.each(&field.at, part, names::dns_subdomain(part));
    }
}

/// `model` or `gpu.example.com/model`.
fn qualified(errors: &mut FieldErrors, at: &Path, name: &str) {
    match name.split_once('/') {
        None => identifier(errors, at, name),
        Some((host, id)) => {
            if host.is_empty() {
                errors.invalid(at, "", "the domain must not be empty");
            } else {
                domain(errors, at, host);
            }
            if id.is_empty() {
                errors.invalid(at, "", "the name must not be empty");
            } else {
                identifier(errors, at, id);
            }
        }
    }
}

fn fully_qualified(errors: &mut FieldErrors, field: &Field<'_>) {
    qualified(errors, &field.at, field.text());
    if !field.text().contains('/') {
        let message = "a fully qualified name must be a domain and a name separated by a slash";
        errors.invalid(&field.at, field.text(), message);
    }
}

fn identifier(errors: &mut FieldErrors, at: &Path, id: &str) {
    if id.len() > IDENTIFIER {
        errors.too_long(at, IDENTIFIER);
    }
    let starts = id.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    if !starts || !id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        let message = "a valid C identifier must start with alphabetic character or '_', followed by a string of \
                       alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for \
                       validation is '[A-Za-z_][A-Za-z0-9_]*')";
        errors.invalid(at, id, message);
    }
}

fn uuid(errors: &mut FieldErrors, field: &Field<'_>) {
    let text = field.text();
    let dashes = [8, 13, 18, 23];
    let is_good = text.len() == 36
        && text.bytes().enumerate().all(|(i, b)| match dashes.contains(&i) {
            true => b == b'-',
            false => matches!(b, b'0'..=b'9' | b'a'..=b'f'),
        });
    if !is_good {
        let message = "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with \
                       lowercase hexadecimal characters";
        errors.invalid(&field.at, text, message);
    }
}

/// A resource with a domain that is not Kubernetes' own.
fn is_extended(name: &str) -> bool {
    name.split_once('/').is_some_and(|(host, _)| host != "kubernetes.io" && !host.ends_with(".kubernetes.io"))
        && !name.starts_with("requests.")
        && names::qualified_name(&format!("requests.{name}")).is_empty()
}

fn node_selector(errors: &mut FieldErrors, selector: &Field<'_>) {
    let terms = selector.get("nodeSelectorTerms");
    if terms.is_empty() {
        errors.required(&terms.at, "must have at least one node selector term");
    }
    for term in terms.items() {
        for requirement in term.get("matchExpressions").items() {
            node_requirement(errors, &requirement);
        }
        for field in term.get("matchFields").items() {
            let key = field.get("key");
            if key.text() != "metadata.name" {
                errors.invalid(&key.at, key.text(), "not a valid field selector key");
            }
            check::one_of(errors, &field.get("operator"), &["In", "NotIn"]);
            let values = field.get("values");
            if values.len() != 1 {
                errors.required(
                    &values.at,
                    "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
                );
            }
        }
    }
}

fn node_requirement(errors: &mut FieldErrors, requirement: &Field<'_>) {
    let (key, operator, values) =
        (requirement.get("key"), requirement.get("operator"), requirement.get("values"));
    match operator.text() {
        "In" | "NotIn" if values.is_empty() => {
            errors.required(&values.at, "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            errors
                .forbidden(&values.at, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
        }
        "Gt" | "Lt" if values.len() != 1 => {
            errors.required(&values.at, "must be specified single value when `operator` is 'Lt' or 'Gt'");
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        _ => errors.invalid(&operator.at, operator.text(), "not a valid selector operator"),
    }
    check::spelled(errors, &key, names::qualified_name);
}

/// Conditions of a device that must come true before a Pod is bound, and those that end the attempt.
fn binding_conditions(errors: &mut FieldErrors, device: &Field<'_>) {
    const MOST: usize = 4;
    let (good, bad) = (device.get("bindingConditions"), device.get("bindingFailureConditions"));
    for list in [&good, &bad] {
        for condition in set_of(errors, list, MOST, |c| c.text().to_owned()) {
            check::spelled(errors, &condition, names::qualified_name);
        }
    }
    for condition in bad.items().filter(|b| good.items().any(|g| g.text() == b.text())) {
        let message = "bindingFailureConditions must not overlap with bindingConditions";
        errors.invalid(&condition.at, condition.text(), message);
    }
    if good.is_empty() && !bad.is_empty() {
        let message = "bindingConditions are required to use bindingFailureConditions";
        errors.invalid(&good.at, good.value.clone(), message);
    }
    if bad.is_empty() && !good.is_empty() {
        let message = "bindingFailureConditions are required to use bindingConditions";
        errors.invalid(&bad.at, bad.value.clone(), message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_class_may_not_say() {
        let complaints = |spec: Value| {
            let mut errors = FieldErrors::default();
            DeviceClass.validate(&json!({"spec": spec}), &mut errors);
            errors.to_string()
        };
        let config = |driver: &str, parameters: Value| json!({"config": [{"opaque": {"driver": driver, "parameters": parameters}}]});
        assert_eq!(
            complaints(
                json!({"selectors": [{"cel": {"expression": "true"}}], "extendedResourceName": "example.com/gpu"})
            ),
            "[]"
        );
        assert_eq!(complaints(config("gpu.example.com", json!({"a": 1}))), "[]");
        for (spec, why) in [
            (json!({"selectors": [{}]}), "spec.selectors[0].cel: Required value"),
            (
                json!({"selectors": vec![json!({"cel": {"expression": "true"}}); 33]}),
                "spec.selectors: Too many: 33",
            ),
            (json!({"selectors": [{"cel": {"expression": "x".repeat(10 * 1024 + 1)}}]}), "Too long"),
            (json!({"config": [{}]}), "spec.config[0].opaque: Required value"),
            (config("", json!({})), "driver: Required value"),
            (config("a b", json!({})), "driver: Invalid value"),
            (config("d", json!([])), "must be a valid JSON object"),
            (json!({"extendedResourceName": "cpu"}), "must be a valid extended resource name"),
            (
                json!({"extendedResourceName": "x.kubernetes.io/gpu"}),
                "must be a valid extended resource name",
            ),
        ] {
            let said = complaints(spec.clone());
            assert!(said.contains(why), "{spec}: {said}");
        }
    }

    #[test]
    fn names_are_spelled_as_upstream_spells_them() {
        let said = |check: fn(&mut FieldErrors, &Field<'_>), text: &str| {
            let mut errors = FieldErrors::default();
            check(&mut errors, &Field::root(&json!(text)));
            errors.to_string()
        };
        for good in ["a", "node-1", "a.b/c.d"] {
            assert_eq!(said(pool, good), "[]");
        }
        assert!(said(pool, "a//b").contains("Invalid") && said(pool, "").contains("Required"));
        assert_eq!(said(fully_qualified, "gpu.example.com/model"), "[]");
        for bad in ["model", "gpu.example.com/", "/model", "gpu.example.com/a-b", "gpu.example.com/a/b"] {
            assert_ne!(said(fully_qualified, bad), "[]", "{bad}");
        }
        assert_eq!(said(uuid, "01234567-89ab-cdef-0123-456789abcdef"), "[]");
        assert_ne!(said(uuid, "01234567-89AB-cdef-0123-456789abcdef"), "[]");
    }
}
