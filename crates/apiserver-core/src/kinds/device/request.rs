//! What a claim asks for: devices of a class, by count, by selector, with constraints among them.

use std::collections::{BTreeMap, BTreeSet};

use api::field::FieldErrors;
use api::names;
use serde_json::Value;

use super::{at_most, configuration, fully_qualified, label_name, selectors, set_of};
use crate::doc::{self, Field};
use crate::kinds::check;

const REQUESTS: usize = 32;
const CONSTRAINTS: usize = 32;
const FIRST_AVAILABLE: usize = 8;
const TOLERATIONS: usize = 16;
pub(super) const EFFECTS: &[&str] = &["NoExecute", "NoSchedule", "None"];

/// The requests of a claim by name, each with the names of its alternatives.
pub(super) struct Requests<'a>(BTreeMap<&'a str, BTreeSet<&'a str>>);

pub(super) fn set_defaults(devices: &mut Value) {
    for request in doc::list_mut(devices, "requests") {
        if let Some(exactly) = request.get_mut("exactly").filter(|e| e.is_object()) {
            set_count(exactly);
        }
        doc::list_mut(request, "firstAvailable").for_each(set_count);
    }
}

fn set_count(request: &mut Value) {
    doc::fill_text(request, "allocationMode", "ExactCount");
    if request["allocationMode"] == "ExactCount" {
        doc::fill_zero(request, "count", 1);
    }
    for toleration in doc::list_mut(request, "tolerations") {
        doc::fill_text(toleration, "operator", "Equal");
    }
}

/// The whole of `spec.devices`.
pub(super) fn validate(errors: &mut FieldErrors, devices: &Field<'_>) {
    let known = Requests::of(devices);
    for request in set_of(errors, &devices.get("requests"), REQUESTS, |r| r.get("name").text().to_owned()) {
        validate_request(errors, &request);
    }
    for constraint in at_most(errors, &devices.get("constraints"), CONSTRAINTS) {
        known.check_all(errors, &constraint.get("requests"));
        let (same, distinct) = (constraint.get("matchAttribute"), constraint.get("distinctAttribute"));
        if same.is_set() {
            fully_qualified(errors, &same);
        } else if distinct.is_set() {
            fully_qualified(errors, &distinct);
        } else {
            let message = "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are set";
            errors.required(&constraint.at, message);
        }
    }
    for config in at_most(errors, &devices.get("config"), super::CONFIGS) {
        known.check_all(errors, &config.get("requests"));
        configuration(errors, &config);
    }
}

fn validate_request(errors: &mut FieldErrors, request: &Field<'_>) {
    label_name(errors, &request.get("name"));
    let (exactly, first) = (request.get("exactly"), request.get("firstAvailable"));
    match (exactly.is_set(), !first.is_empty()) {
        (false, false) => {
            errors.required(&request.at, "exactly one of `exactly` or `firstAvailable` is required");
        }
        (true, true) => {
            let message =
                "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
            errors.invalid(&request.at, Value::Null, message);
        }
        (true, false) => one(errors, &exactly),
        (false, true) => {
            for sub in set_of(errors, &first, FIRST_AVAILABLE, |s| s.get("name").text().to_owned()) {
                label_name(errors, &sub.get("name"));
                one(errors, &sub);
            }
        }
    }
}

fn one(errors: &mut FieldErrors, request: &Field<'_>) {
    let class = request.get("deviceClassName");
    if class.is_empty() {
        errors.required(&class.at, "");
    } else {
        check::spelled(errors, &class, names::dns_subdomain);
    }
    selectors(errors, &request.get("selectors"));
    let (mode, count) = (request.get("allocationMode"), request.get("count"));
    let wanted = count.int().unwrap_or_default();
    match mode.text() {
        "All" if wanted != 0 => {
            errors.invalid(&count.at, wanted, "must not be specified when allocationMode is 'All'");
        }
        "ExactCount" if wanted <= 0 => errors.invalid(&count.at, wanted, "must be greater than zero"),
        "All" | "ExactCount" => {}
        other => errors.unsupported(&mode.at, other, &["All", "ExactCount"]),
    }
    for toleration in at_most(errors, &request.get("tolerations"), TOLERATIONS) {
        self::toleration(errors, &toleration);
    }
    for (name, _) in request.get("capacity").get("requests").entries() {
        super::qualified(errors, &request.at.child("capacity").child("requests"), name);
    }
}

fn toleration(errors: &mut FieldErrors, toleration: &Field<'_>) {
    let (key, value) = (toleration.get("key"), toleration.get("value"));
    if !key.is_empty() {
        check::spelled(errors, &key, names::qualified_name);
    }
    let operator = toleration.get("operator");
    match operator.text() {
        "Exists" if !value.is_empty() => {
            errors.invalid(&value.at, value.text(), "must be empty for operator `Exists`");
        }
        "Equal" => check::spelled(errors, &value, names::label_value),
        _ => check::one_of(errors, &operator, &["Equal", "Exists"]),
    }
    check::one_of_if_set(errors, &toleration.get("effect"), EFFECTS);
}

// === impl Requests ===

impl<'a> Requests<'a> {
    pub(super) fn of(devices: &Field<'a>) -> Requests<'a> {
        let names = |list: Field<'a>| list.items().map(|i| i.get("name").text()).collect();
        let requests = devices.get("requests").items();
        Requests(requests.map(|r| (r.get("name").text(), names(r.get("firstAvailable")))).collect())
    }

    fn has(&self, name: &str) -> bool {
        match name.split_once('/') {
            None => self.0.contains_key(name),
            Some((request, sub)) => self.0.get(request).is_some_and(|subs| subs.contains(sub)),
        }
    }

    /// One reference to a request.
    pub(super) fn check(&self, errors: &mut FieldErrors, field: &Field<'_>) {
        for part in field.text().splitn(2, '/') {
            errors.each(&field.at, part, names::dns_label(part));
        }
        if !self.has(field.text()) {
            let message = "must be the name of a request in the claim or the name of a request and a subrequest \
                           separated by '/'";
            errors.invalid(&field.at, field.text(), message);
        }
    }

    pub(super) fn check_all(&self, errors: &mut FieldErrors, list: &Field<'_>) {
        for name in set_of(errors, list, REQUESTS, |n| n.text().to_owned()) {
            self.check(errors, &name);
        }
    }
}
