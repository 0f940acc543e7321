//! ResourceSlice: the devices a driver has to offer, on one node or for many.

use std::borrow::Cow;

use api::field::FieldErrors;
use api::names;
use base::time::Wall;
use serde_json::Value;

use super::request::EFFECTS;
use super::{GROUP, at_most, binding_conditions, driver, label_name, node_selector, pool, qualified, set_of};
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, Strategy};
use crate::kinds::{check, quantity};
use crate::table;

const DEVICES: usize = 128;
/// Where devices have taints, use counters or have lists for attributes.
const ADVANCED_DEVICES: usize = 64;
const ATTRIBUTES: usize = 32;
const VALUES: usize = 48;
const VALUE: usize = 64;
const TAINTS: usize = 16;
const COUNTER_SETS: usize = 8;
const COUNTERS: usize = 32;
const CONSUMED_SETS: usize = 2;
const LISTS: [&str; 4] = ["bools", "ints", "strings", "versions"];

pub(in crate::kinds) fn kind() -> Kind {
    Kind::new(GROUP, "v1", "ResourceSlice", "resourceslices", Slice).cluster_scoped()
}

#[derive(Debug)]
struct Slice;

// === impl Slice ===

impl Strategy for Slice {
    fn set_defaults(&self, object: &mut Value) {
        for device in doc::list_mut(object, "spec.devices") {
            let mappings = device.get_mut("nodeAllocatableResourceMappings").and_then(Value::as_object_mut);
            for (_, mapping) in mappings.into_iter().flatten() {
                doc::fill(mapping, "allocationMultiplier", "1");
            }
        }
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let spec = Field::root(object).get("spec");
        driver(errors, &spec.get("driver"));
        let pool = spec.get("pool");
        self::pool(errors, &pool.get("name"));
        let (count, generation) = (pool.get("resourceSliceCount"), pool.get("generation"));
        if count.int().unwrap_or_default() <= 0 {
            errors.invalid(&count.at, count.int().unwrap_or_default(), "must be greater than zero");
        }
        if let Some(n) = generation.int().filter(|n| *n < 0) {
            errors.invalid(&generation.at, n, "must be greater than or equal to zero");
        }
        place(errors, &spec);
        let devices = spec.get("devices");
        if spec.get("sharedCounters").is_set() && devices.is_set() {
            errors.invalid(&spec.at, "", "only one of `sharedCounters` or `devices` is allowed");
        }
        let most = if devices.items().any(|d| is_advanced(d.value)) { ADVANCED_DEVICES } else { DEVICES };
        let per_device = spec.get("perDeviceNodeSelection").is_true();
        for device in set_of(errors, &devices, most, |d| d.get("name").text().to_owned()) {
            validate_device(errors, &device, per_device);
        }
        let sets = spec.get("sharedCounters");
        for set in set_of(errors, &sets, COUNTER_SETS, |s| s.get("name").text().to_owned()) {
            counters(errors, &set, "name");
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        self.validate(new, errors);
        for field in ["spec.pool.name", "spec.driver", "spec.nodeName"] {
            check::immutable(errors, new, old, field);
        }
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn field<'a>(&self, name: &str, object: &'a Value) -> Option<Cow<'a, str>> {
        matches!(name, "spec.nodeName" | "spec.driver").then(|| doc::text(object, name).into())
    }

    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[
            Column::NAME,
            Column::text("Node", "The node whose devices these are"),
            Column::text("Driver", "Who offers them"),
            Column::text("Pool", "The pool they belong to"),
            Column::AGE,
        ];
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        vec![
            table::name(object),
            doc::text(object, "spec.nodeName").into(),
            doc::text(object, "spec.driver").into(),
            doc::text(object, "spec.pool.name").into(),
            table::age(object, now).into(),
        ]
    }
}

/// For which nodes the devices are: said in exactly one way.
fn place(errors: &mut FieldErrors, spec: &Field<'_>) {
    const ONE: &str =
        "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    let mut said = placed(errors, spec, "must be either unset or set to a non-empty string");
    let selector = spec.get("nodeSelector");
    if selector.is_set() && selector.get("nodeSelectorTerms").len() != 1 {
        let terms = selector.get("nodeSelectorTerms");
        errors.invalid(&terms.at, terms.value.clone(), "must have exactly one node selector term");
    }
    let per_device = spec.get("perDeviceNodeSelection");
    if per_device.is_true() {
        said.push("`perDeviceNodeSelection`");
    } else if per_device.is_set() {
        errors.invalid(&per_device.at, false, "must be either unset or set to true");
    }
    match said.len() {
        0 => errors.required(&spec.at, ONE),
        1 => {}
        _ => {
            let message = format!("{ONE}, but multiple fields are set");
            errors.invalid(&spec.at, format!("{{{}}}", said.join(", ")), message);
        }
    }
}

/// The ways that slices and devices share.
fn placed(errors: &mut FieldErrors, of: &Field<'_>, empty: &str) -> Vec<&'static str> {
    let mut said = Vec::new();
    let (node, selector, all) = (of.get("nodeName"), of.get("nodeSelector"), of.get("allNodes"));
    if node.is_set() && node.is_empty() {
        errors.invalid(&node.at, "", empty);
    } else if node.is_set() {
        said.push("`nodeName`");
        check::spelled(errors, &node, names::dns_subdomain);
    }
    if selector.is_set() {
        said.push("`nodeSelector`");
        node_selector(errors, &selector);
    }
    if all.is_true() {
        said.push("`allNodes`");
    } else if all.is_set() {
        errors.invalid(&all.at, false, "must be either unset or set to true");
    }
    said
}

fn is_advanced(device: &Value) -> bool {
    !doc::list(device, "taints").is_empty()
        || !doc::list(device, "consumesCounters").is_empty()
        || doc::entries(device, "attributes").any(|(_, a)| LISTS.iter().any(|list| !a[*list].is_null()))
}

fn validate_device(errors: &mut FieldErrors, device: &Field<'_>, per_device: bool) {
    label_name(errors, &device.get("name"));
    let (attributes, capacity) = (device.get("attributes"), device.get("capacity"));
    let count = attributes.len() + capacity.len();
    if count > ATTRIBUTES {
        let message = format!("the total number of attributes and capacities must not exceed {ATTRIBUTES}");
        errors.invalid(&device.at, count, message);
    }
    let values: usize = attributes
        .entries()
        .map(|(_, a)| LISTS.iter().map(|list| a.get(list).len()).sum::<usize>().max(1))
        .sum();
    if values > VALUES {
        let message = format!("the total number of attribute values must not exceed {VALUES}");
        errors.invalid(&device.at, values, message);
    }
    for (name, value) in attributes.entries() {
        qualified(errors, &attributes.at, name);
        attribute(errors, &value);
    }
    let shared = device.get("allowMultipleAllocations").is_true();
    for (name, value) in capacity.entries() {
        qualified(errors, &capacity.at, name);
        amount(errors, &value, shared);
    }
    for taint in at_most(errors, &device.get("taints"), TAINTS) {
        check::spelled(errors, &taint.get("key"), names::qualified_name);
        check::spelled(errors, &taint.get("value"), names::label_value);
        check::one_of(errors, &taint.get("effect"), EFFECTS);
    }
    let consumed = device.get("consumesCounters");
    for set in set_of(errors, &consumed, CONSUMED_SETS, |s| s.get("counterSet").text().to_owned()) {
        counters(errors, &set, "counterSet");
    }
    device_place(errors, device, per_device);
    binding_conditions(errors, device);
}

fn device_place(errors: &mut FieldErrors, device: &Field<'_>, per_device: bool) {
    if !per_device {
        if ["nodeName", "nodeSelector", "allNodes"].iter().any(|name| device.get(name).is_set()) {
            let message = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is \
                           set to true in the ResourceSlice spec";
            errors.invalid(&device.at, Value::Null, message);
        }
        return;
    }
    const ONE: &str = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when \
                       `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
    let said = placed(errors, device, "must not be empty");
    match said.len() {
        0 => errors.required(&device.at, ONE),
        1 => {}
        _ => errors.invalid(&device.at, format!("{{{}}}", said.join(", ")), ONE),
    }
}

fn attribute(errors: &mut FieldErrors, attribute: &Field<'_>) {
    let single = ["bool", "int", "string", "version"];
    let said = single.iter().chain(&LISTS).filter(|name| attribute.get(name).is_set()).count();
    if said != 1 {
        let value = if said == 0 { Value::from("") } else { attribute.value.clone() };
        errors.invalid(&attribute.at, value, "exactly one value must be specified");
    }
    for list in LISTS.iter().map(|name| attribute.get(name)).filter(|l| l.is_set() && l.is_empty()) {
        errors.invalid(&list.at, list.value.clone(), "must not be empty if specified");
    }
    let texts = [attribute.get("string")].into_iter().chain(attribute.get("strings").items());
    let versions = [attribute.get("version")].into_iter().chain(attribute.get("versions").items());
    for (text, is_version) in texts.map(|t| (t, false)).chain(versions.map(|v| (v, true))) {
        if is_version && text.is_set() && !is_semver(text.text()) {
            errors.invalid(&text.at, text.text(), "must be a string compatible with semver.org spec 2.0.0");
        }
        if text.len() > VALUE {
            errors.too_long(&text.at, VALUE);
        }
    }
}

/// How much of something a device has, and in which parts it is given out.
fn amount(errors: &mut FieldErrors, capacity: &Field<'_>, shared: bool) {
    let policy = capacity.get("requestPolicy");
    if !policy.is_set() {
        return;
    }
    if !shared {
        return errors.forbidden(&policy.at, "allowMultipleAllocations must be true");
    }
    let (values, range, default) =
        (policy.get("validValues"), policy.get("validRange"), policy.get("default"));
    if !values.is_empty() && range.is_set() {
        let message = "exactly one policy can be specified, cannot specify \"validValues\" and \"validRange\" at the \
                       same time";
        return errors.forbidden(&policy.at, message);
    }
    let parse = |field: &Field<'_>| quantity::parse(field.value);
    let most = parse(&capacity.get("value"));
    if (!values.is_empty() || range.is_set()) && !default.is_set() {
        let what = if range.is_set() { "validRange" } else { "validValues" };
        return errors.required(&default.at, &format!("required when {what} is defined"));
    }
    if !values.is_empty() {
        for value in set_of(errors, &values, 10, |v| v.text().to_owned()) {
            if parse(&value) > most {
                let message =
                    format!("option is larger than capacity value: {}", capacity.get("value").text());
                errors.invalid(&value.at, value.text(), message);
            }
        }
        if !values.items().any(|v| parse(&v) == parse(&default)) {
            let message = "default value is not valid according to the requestPolicy";
            errors.invalid(&values.at, default.text(), message);
        }
    } else if range.is_set() {
        let (min, max) = (range.get("min"), range.get("max"));
        if !min.is_set() {
            return errors.required(&min.at, "required when validRange is defined");
        }
        let said = |f: &Field<'_>| f.text().to_owned();
        for (bad, at, value, message) in [
            (
                parse(&min) > most,
                &min,
                said(&min),
                format!("min is larger than capacity value: {}", said(&capacity.get("value"))),
            ),
            (
                parse(&default) < parse(&min),
                &min,
                said(&default),
                format!("default is less than min: {}", said(&min)),
            ),
            (
                max.is_set() && parse(&min) > parse(&max),
                &max,
                said(&min),
                format!("min is larger than max: {}", said(&max)),
            ),
            (
                max.is_set() && parse(&default) > parse(&max),
                &max,
                said(&default),
                format!("default is more than max: {}", said(&max)),
            ),
        ] {
            if bad {
                errors.invalid(&at.at, value, message);
            }
        }
    }
}

fn counters(errors: &mut FieldErrors, set: &Field<'_>, name: &str) {
    let (name, counters) = (set.get(name), set.get("counters"));
    if name.is_empty() {
        errors.required(&name.at, "");
    } else {
        label_name(errors, &name);
    }
    if counters.is_empty() {
        errors.required(&counters.at, "");
    } else if counters.len() > COUNTERS {
        errors.too_many(&counters.at, counters.len(), COUNTERS);
    }
    for (key, _) in counters.entries() {
        errors.each(&counters.at, key, names::dns_label(key));
    }
}

fn is_semver(text: &str) -> bool {
    let (rest, build) = text.split_once('+').map_or((text, None), |(rest, build)| (rest, Some(build)));
    let (core, pre) = rest.split_once('-').map_or((rest, None), |(core, pre)| (core, Some(pre)));
    let number = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|b| b.is_ascii_digit())
            && (part == "0" || !part.starts_with('0'))
    };
    let word = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let is_digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    core.split('.').count() == 3
        && core.split('.').all(number)
        && pre.is_none_or(|p| p.split('.').all(|part| word(part) && (!is_digits(part) || number(part))))
        && build.is_none_or(|b| b.split('.').all(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn slice() -> Value {
        json!({"metadata": {"name": "s"}, "spec": {
            "driver": "gpu.example.com", "nodeName": "n1", "pool": {"name": "n1", "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0", "attributes": {"model": {"string": "x"}, "gpu.example.com/fw": {"version": "1.2.3-rc.1+b"}},
                "capacity": {"memory": {"value": "8Gi"}}}],
        }})
    }

    fn complaints(slice: &Value) -> String {
        let mut errors = FieldErrors::default();
        Slice.validate(slice, &mut errors);
        errors.to_string()
    }

    #[test]
    fn what_a_slice_may_not_say() {
        assert_eq!(complaints(&slice()), "[]");
        let device = |extra: Value| {
            let mut device = json!({"name": "d"});
            for (key, value) in extra.as_object().into_iter().flatten() {
                device[key] = value.clone();
            }
            ("devices", json!([device]))
        };
        let many = |n: usize, extra: Value| -> Value {
            (0..n)
                .map(|i| {
                    let mut device = extra.clone();
                    device["name"] = format!("d{i}").into();
                    device
                })
                .collect()
        };
        let attributes: Value =
            (0..33).map(|i| (format!("a{i}"), json!({"int": i}))).collect::<serde_json::Map<_, _>>().into();
        for ((field, value), why) in [
            (("nodeName", Value::Null), "spec: Required value: exactly one of `nodeName`"),
            (("allNodes", json!(true)), "but multiple fields are set"),
            (("allNodes", json!(false)), "must be either unset or set to true"),
            (("nodeName", json!("")), "must be either unset or set to a non-empty string"),
            (("pool", json!({"name": "a", "resourceSliceCount": 0})), "must be greater than zero"),
            (("pool", json!({"name": "a b", "resourceSliceCount": 1})), "spec.pool.name: Invalid value"),
            (("driver", json!("")), "spec.driver: Required value"),
            (("devices", many(129, json!({}))), "Too many: 129"),
            (
                ("devices", many(65, json!({"taints": [{"key": "a", "effect": "NoSchedule"}]}))),
                "Too many: 65",
            ),
            (("devices", json!([{"name": "a"}, {"name": "a"}])), "Duplicate value"),
            (
                ("sharedCounters", json!([{"name": "a", "counters": {"b": {"value": "1"}}}])),
                "only one of `sharedCounters` or `devices`",
            ),
            (device(json!({"attributes": {"a": {}}})), "exactly one value must be specified"),
            (
                device(json!({"attributes": {"a": {"int": 1, "bool": true}}})),
                "exactly one value must be specified",
            ),
            (device(json!({"attributes": {"a": {"version": "1.2"}}})), "semver.org"),
            (device(json!({"attributes": {"a": {"string": "x".repeat(65)}}})), "Too long"),
            (device(json!({"attributes": attributes})), "must not exceed 32"),
            (device(json!({"attributes": {"a-b": {"int": 1}}})), "a valid C identifier"),
            (device(json!({"nodeName": "n1"})), "can only be set if `perDeviceNodeSelection`"),
            (device(json!({"taints": [{"key": "a", "effect": "Maybe"}]})), "Unsupported value: \"Maybe\""),
            (
                device(json!({"capacity": {"m": {"value": "1", "requestPolicy": {}}}})),
                "allowMultipleAllocations must be true",
            ),
            (device(json!({"consumesCounters": [{"counterSet": "a"}]})), "counters: Required value"),
            (device(json!({"bindingConditions": ["a"]})), "bindingFailureConditions are required"),
        ] {
            let mut slice = slice();
            slice["spec"][field] = value;
            let said = complaints(&slice);
            assert!(said.contains(why), "{field}: {why}: {said}");
        }
    }

    #[test]
    fn a_slice_stays_with_its_driver_pool_and_node() {
        for path in ["/spec/driver", "/spec/pool/name", "/spec/nodeName"] {
            let (old, mut new) = (slice(), slice());
            if let Some(slot) = new.pointer_mut(path) {
                *slot = "other".into();
            }
            let mut errors = FieldErrors::default();
            Slice.validate_update(&new, &old, &mut errors);
            assert!(errors.to_string().contains("field is immutable"), "{path}");
        }
        assert_eq!(Slice.field("spec.nodeName", &slice()).as_deref(), Some("n1"));
        assert_eq!(Slice.field("spec.pool.name", &slice()), None);
    }

    #[test]
    fn versions_are_those_of_semver() {
        for good in ["0.0.0", "1.2.3", "1.2.3-a.b-c.0", "1.2.3+01.x", "1.2.3-rc+b"] {
            assert!(is_semver(good), "{good}");
        }
        for bad in ["", "1", "1.2", "1.2.3.4", "01.2.3", "1.2.3-", "1.2.3-01", "1.2.3+", "v1.2.3", "1.2.x"] {
            assert!(!is_semver(bad), "{bad}");
        }
    }
}
