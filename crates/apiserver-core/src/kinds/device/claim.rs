//! ResourceClaim: devices a Pod needs, which of them it got, and who uses them. ResourceClaimTemplate: a claim per Pod.

use std::collections::BTreeSet;

use api::field::FieldErrors;
use base::time::Wall;
use serde_json::{Value, json};

use super::request::{self, Requests};
use super::{GROUP, NAME_AND_AGE, at_most, binding_conditions, configuration, driver, json_object};
use super::{label_name, node_selector, pool, set_of, uuid};
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, Strategy};
use crate::kinds::{check, meta};
use crate::table;

const RESERVED_FOR: usize = 256;
const RESULTS: usize = 32;
const CONDITIONS: usize = 8;
const IPS: usize = 16;
const DATA: usize = 10 * 1024;

pub(in crate::kinds) fn kind() -> Kind {
    Kind::new(GROUP, "v1", "ResourceClaim", "resourceclaims", Claim).with_status()
}

pub(in crate::kinds) fn template() -> Kind {
    Kind::new(GROUP, "v1", "ResourceClaimTemplate", "resourceclaimtemplates", Template)
}

#[derive(Debug)]
struct Claim;

#[derive(Debug)]
struct Template;

/// What tells one allocated device from another.
pub type DeviceKey<'a> = (&'a str, &'a str, &'a str, &'a str);

/// Driver, pool, device and share of an allocated device, or of what is told of one.
#[must_use]
pub fn device_key(device: &Value) -> DeviceKey<'_> {
    let text = |name: &str| doc::text(device, name);
    (text("driver"), text("pool"), text("device"), text("shareID"))
}

// === impl Claim ===

impl Strategy for Claim {
    fn set_defaults(&self, object: &mut Value) {
        if let Some(devices) = doc::at_mut(object, "spec.devices") {
            request::set_defaults(devices);
        }
        for result in doc::list_mut(object, "status.allocation.devices.results") {
            doc::list_mut(result, "tolerations").for_each(|t| doc::fill_text(t, "operator", "Equal"));
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        doc::set(object, "status", json!({}));
    }

    fn prepare_status(&self, new: &mut Value, old: &Value) {
        // Upstream resets all metadata but managedFields.
        let managed = doc::at(new, "metadata.managedFields").clone();
        let metadata = doc::at(old, "metadata").clone();
        doc::set(new, "metadata", metadata);
        match managed {
            Value::Null => drop(doc::remove(new, "metadata.managedFields")),
            managed => doc::set(new, "metadata.managedFields", managed),
        }
        drop_deallocated(new, old);
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        request::validate(errors, &Field::root(object).get("spec").get("devices"));
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        check::immutable(errors, new, old, "spec");
    }

    fn validate_status(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        let root = Field::root(new);
        let status = root.get("status");
        reserved_for(errors, new, old);
        let allocation = status.get("allocation");
        let allocated: BTreeSet<DeviceKey<'_>> =
            doc::list(new, "status.allocation.devices.results").iter().map(device_key).collect();
        let key = |device: &Field<'_>| {
            let (driver, pool, device, share) = device_key(device.value);
            let id = format!("{driver}/{pool}/{device}");
            if share.is_empty() { id } else { format!("{id}/{share}") }
        };
        for device in set_of(errors, &status.get("devices"), usize::MAX, key) {
            if !allocated.contains(&device_key(device.value)) {
                errors.invalid(&device.at, key(&device), "must be an allocated device in the claim");
            }
            device_status(errors, &device);
        }
        let before = doc::at(old, "status.allocation");
        if !before.is_null() && allocation.is_set() {
            check::immutable(errors, new, old, "status.allocation");
        } else if allocation.is_set() {
            validate_allocation(errors, &allocation, &Requests::of(&root.get("spec").get("devices")));
        }
    }

    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[
            Column::NAME,
            Column::text("State", "A summary of the current state (allocated, pending, reserved, etc.)."),
            Column::AGE,
        ];
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        vec![table::name(object), state(object).into(), table::age(object, now).into()]
    }
}

// === impl Template ===

impl Strategy for Template {
    fn set_defaults(&self, object: &mut Value) {
        if let Some(devices) = doc::at_mut(object, "spec.spec.devices") {
            request::set_defaults(devices);
        }
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let spec = Field::root(object).get("spec");
        meta::labels_and_annotations(errors, &spec.get("metadata"));
        request::validate(errors, &spec.get("spec").get("devices"));
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        check::immutable(errors, new, old, "spec");
    }

    fn columns(&self) -> &[Column] {
        NAME_AND_AGE
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        vec![table::name(object), table::age(object, now).into()]
    }
}

fn state(claim: &Value) -> String {
    let deleted = !doc::at(claim, "metadata.deletionTimestamp").is_null();
    let allocated = !doc::at(claim, "status.allocation").is_null();
    let states = [
        (deleted, "deleted"),
        (!allocated && !deleted, "pending"),
        (allocated, "allocated"),
        (allocated && !doc::list(claim, "status.reservedFor").is_empty(), "reserved"),
    ];
    states.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect::<Vec<_>>().join(",")
}

/// What was told of a device that is no longer allocated goes with it.
fn drop_deallocated(new: &mut Value, old: &Value) {
    let keys = |claim: &Value| -> BTreeSet<[String; 4]> {
        let results = doc::list(claim, "status.allocation.devices.results").iter();
        results.map(|r| <[&str; 4]>::from(device_key(r)).map(str::to_owned)).collect()
    };
    let (before, now) = (keys(old), keys(new));
    let kept: Vec<Value> = doc::list(new, "status.devices")
        .iter()
        .filter(|device| {
            let key = <[&str; 4]>::from(device_key(device)).map(str::to_owned);
            now.contains(&key) || !before.contains(&key)
        })
        .cloned()
        .collect();
    if kept.len() != doc::list(new, "status.devices").len() {
        match kept.is_empty() {
            true => drop(doc::remove(new, "status.devices")),
            false => doc::set(new, "status.devices", kept),
        }
    }
}

fn reserved_for(errors: &mut FieldErrors, new: &Value, old: &Value) {
    let status = Field::root(new).get("status");
    let list = status.get("reservedFor");
    for user in set_of(errors, &list, RESERVED_FOR, |user| user.get("uid").text().to_owned()) {
        for name in ["resource", "name", "uid"] {
            check::required(errors, &user.get(name));
        }
    }
    if list.is_empty() {
        return;
    }
    if !status.get("allocation").is_set() {
        errors.forbidden(&list.at, "may not be specified when `allocated` is not set");
    } else if !doc::at(new, "metadata.deletionTimestamp").is_null() {
        let before = doc::list(old, "status.reservedFor");
        if list.items().any(|user| !before.contains(user.value)) {
            let message =
                "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
            errors.forbidden(&list.at, message);
        }
    }
}

fn validate_allocation(errors: &mut FieldErrors, allocation: &Field<'_>, requests: &Requests<'_>) {
    let devices = allocation.get("devices");
    for result in at_most(errors, &devices.get("results"), RESULTS) {
        requests.check(errors, &result.get("request"));
        driver(errors, &result.get("driver"));
        pool(errors, &result.get("pool"));
        label_name(errors, &result.get("device"));
        binding_conditions(errors, &result);
        let share = result.get("shareID");
        if share.is_set() {
            uuid(errors, &share);
        }
    }
    for config in at_most(errors, &devices.get("config"), 2 * super::CONFIGS) {
        check::one_of(errors, &config.get("source"), &["FromClaim", "FromClass"]);
        requests.check_all(errors, &config.get("requests"));
        configuration(errors, &config);
    }
    let selector = allocation.get("nodeSelector");
    if selector.is_set() {
        node_selector(errors, &selector);
    }
}

fn device_status(errors: &mut FieldErrors, device: &Field<'_>) {
    driver(errors, &device.get("driver"));
    pool(errors, &device.get("pool"));
    label_name(errors, &device.get("device"));
    let (share, data, network) = (device.get("shareID"), device.get("data"), device.get("networkData"));
    if share.is_set() {
        uuid(errors, &share);
    }
    let conditions = device.get("conditions");
    for condition in set_of(errors, &conditions, CONDITIONS, |c| c.get("type").text().to_owned()) {
        check::required(errors, &condition.get("type"));
        check::one_of(errors, &condition.get("status"), &["False", "True", "Unknown"]);
        for name in ["reason", "lastTransitionTime"] {
            check::required(errors, &condition.get(name));
        }
    }
    if data.is_set() {
        json_object(errors, &data, DATA);
    }
    for (name, max) in [("interfaceName", 256), ("hardwareAddress", 128)] {
        let field = network.get(name);
        if field.len() > max {
            errors.too_long(&field.at, max);
        }
    }
    for address in set_of(errors, &network.get("ips"), IPS, |ip| ip.text().to_owned()) {
        let is_good = address.text().split_once('/').is_some_and(|(ip, bits)| {
            let ip = ip.parse::<std::net::IpAddr>();
            let most = if matches!(ip, Ok(std::net::IpAddr::V4(_))) { 32 } else { 128 };
            ip.is_ok() && bits.parse::<u8>().is_ok_and(|b| b <= most)
        });
        if !is_good {
            let message = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
            errors.invalid(&address.at, address.text(), message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> Value {
        let mut claim = json!({"metadata": {"name": "c"}, "spec": {"devices": {
            "requests": [
                {"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}},
                {"name": "nic", "firstAvailable": [{"name": "fast", "deviceClassName": "nic"}, {"name": "any", "deviceClassName": "nic"}]},
            ],
            "constraints": [{"requests": ["gpu", "nic/fast"], "matchAttribute": "example.com/numa"}],
        }}});
        Claim.set_defaults(&mut claim);
        claim
    }

    fn complaints(claim: &Value) -> String {
        let mut errors = FieldErrors::default();
        Claim.validate(claim, &mut errors);
        errors.to_string()
    }

    #[test]
    fn a_request_is_for_one_device_unless_it_says_otherwise() {
        let claim = claim();
        assert_eq!(complaints(&claim), "[]");
        let requests = &claim["spec"]["devices"]["requests"];
        assert_eq!(requests[0]["exactly"]["allocationMode"], "ExactCount");
        assert_eq!(
            (&requests[0]["exactly"]["count"], &requests[1]["firstAvailable"][1]["count"]),
            (&json!(1), &json!(1))
        );
    }

    #[test]
    fn what_a_claim_may_not_say() {
        let with = |path: &str, value: Value| {
            let mut claim = claim();
            let slot = claim.pointer_mut(path);
            if let Some(slot) = slot {
                *slot = value;
            }
            complaints(&claim)
        };
        let first = "/spec/devices/requests/0";
        for (path, value, why) in [
            (first, json!({"name": "gpu"}), "exactly one of `exactly` or `firstAvailable` is required"),
            (
                first,
                json!({"name": "nic", "exactly": {"deviceClassName": "a", "allocationMode": "All"}}),
                "Duplicate value: \"nic\"",
            ),
            ("/spec/devices/requests/0/name", json!("a_b"), "requests[0].name: Invalid value"),
            (
                "/spec/devices/requests/0/exactly/deviceClassName",
                json!(""),
                "deviceClassName: Required value",
            ),
            ("/spec/devices/requests/0/exactly/count", json!(-1), "must be greater than zero"),
            (
                "/spec/devices/requests/0/exactly/allocationMode",
                json!("All"),
                "must not be specified when allocationMode is 'All'",
            ),
            ("/spec/devices/requests/0/exactly/allocationMode", json!("Some"), "Unsupported value: \"Some\""),
            (
                "/spec/devices/constraints/0/requests/1",
                json!("nic/slow"),
                "must be the name of a request in the claim",
            ),
            ("/spec/devices/constraints/0/matchAttribute", json!("numa"), "a fully qualified name must be"),
            ("/spec/devices/constraints/0/matchAttribute", Value::Null, "constraints[0]: Required value"),
        ] {
            let said = with(path, value.clone());
            assert!(said.contains(why), "{path} {value}: {said}");
        }
        let (old, mut new) = (claim(), claim());
        new["spec"]["devices"]["requests"][0]["name"] = "other".into();
        let mut errors = FieldErrors::default();
        Claim.validate_update(&new, &old, &mut errors);
        assert!(errors.to_string().starts_with("spec: Invalid value"));
        assert!(errors.to_string().ends_with("field is immutable"));
    }

    #[test]
    fn devices_are_allocated_once_and_told_of_while_they_are() {
        let said = |new: &Value, old: &Value| {
            let mut errors = FieldErrors::default();
            Claim.validate_status(new, old, &mut errors);
            errors.to_string()
        };
        let free = claim();
        assert_eq!(state(&free), "pending");
        let result = json!({"request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": "gpu-0"});
        let mut allocated = free.clone();
        allocated["status"] = json!({"allocation": {"devices": {"results": [result]}}});
        assert_eq!(said(&allocated, &free), "[]");
        let mut reserved = allocated.clone();
        reserved["status"]["reservedFor"] = json!([{"resource": "pods", "name": "p", "uid": "u"}]);
        assert_eq!(
            (said(&reserved, &allocated), state(&reserved)),
            ("[]".to_owned(), "allocated,reserved".to_owned())
        );
        let mut ghost = free.clone();
        ghost["status"] = json!({"reservedFor": reserved["status"]["reservedFor"]});
        assert!(said(&ghost, &free).contains("may not be specified when `allocated` is not set"));
        let mut moved = allocated.clone();
        moved["status"]["allocation"]["devices"]["results"][0]["device"] = "gpu-1".into();
        assert!(said(&moved, &allocated).contains("field is immutable"));
        let mut told = allocated.clone();
        told["status"]["devices"] = json!([{"driver": "gpu.example.com", "pool": "n1", "device": "gpu-0",
            "networkData": {"ips": ["10.0.0.1/24"]}}]);
        assert_eq!(said(&told, &allocated), "[]");
        told["status"]["devices"][0]["device"] = "gpu-1".into();
        assert!(said(&told, &allocated).contains("must be an allocated device in the claim"));
        told["status"]["devices"][0]["device"] = "gpu-0".into();
        let mut freed = told.clone();
        doc::remove(&mut freed, "status.allocation");
        Claim.prepare_status(&mut freed, &told);
        assert_eq!(freed["status"], json!({}), "what was told of the device is gone too");
        let mut ending = reserved.clone();
        ending["metadata"]["deletionTimestamp"] = "t".into();
        let mut more = ending.clone();
        more["status"]["reservedFor"] = json!([{"resource": "pods", "name": "q", "uid": "v"}]);
        assert!(said(&more, &ending).contains("new entries may not be added"));
    }
}
