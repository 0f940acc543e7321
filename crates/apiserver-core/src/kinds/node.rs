//! Node: what a kubelet says of its machine.

use std::borrow::Cow;
use std::collections::BTreeSet;

use api::field::{FieldErrors, Path};
use api::names;
use api::pod::Amount;
use base::time::Wall;
use serde_json::{Value, json};

use super::{address, check};
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, Strategy, Subresource};
use crate::table;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::text("Status", "The status of the node"),
    Column::text("Roles", "The roles of the node"),
    Column::AGE,
    Column::text("Version", "Version of the kubelet"),
    Column::wide("Internal-IP", "The first address inside the cluster"),
    Column::wide("External-IP", "The first address outside the cluster"),
    Column::wide("OS-Image", "What the operating system calls itself"),
    Column::wide("Kernel-Version", "Version and architecture of the kernel"),
    Column::wide("Container-Runtime", "Name and version of the container runtime"),
];

pub(super) fn kind() -> Kind {
    Kind::core("Node", "nodes", Node)
        .cluster_scoped()
        .short(&["no"])
        .with(Subresource::new("proxy", "NodeProxyOptions", super::PROXY_VERBS))
        .with_status()
}

#[derive(Debug)]
struct Node;

// === impl Node ===

impl Strategy for Node {
    fn set_defaults(&self, object: &mut Value) {
        if !doc::at(object, "status.capacity").is_null() {
            let capacity = doc::at(object, "status.capacity").clone();
            doc::fill(object, "status.allocatable", capacity);
        }
        sync_pod_cidrs(object);
    }

    fn prepare_create(&self, object: &mut Value) {
        doc::remove(object, "spec.configSource");
        doc::remove(object, "status.config");
    }

    fn prepare_update(&self, new: &mut Value, old: &Value) {
        if doc::at(old, "spec.configSource").is_null() {
            doc::remove(new, "spec.configSource");
        }
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let root = Field::root(object);
        taints(errors, &root.get("spec").get("taints"));
        resources(errors, object);
        let field = root.get("spec").get("podCIDRs");
        let families: Vec<Option<bool>> =
            field.items().map(|c| Some(address::cidr(errors, &c)?.addr().is_ipv6())).collect();
        if families.len() > 1 {
            let known: Vec<bool> = families.iter().copied().flatten().collect();
            if !address::is_dual_stack(&known) {
                let message = "may specify no more than one CIDR for each IP family";
                errors.invalid(&field.at, field.value.clone(), message);
            }
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        taints(errors, &Field::root(new).get("spec").get("taints"));
        self.validate_status(new, old, errors);
        let set_once = [("podCIDRs", "podCIDR"), ("providerID", "providerID")];
        for (name, word) in set_once {
            let path = format!("spec.{name}");
            let before = doc::at(old, &path);
            if !doc::is_unset(before) && before != doc::at(new, &path) {
                let message = format!("node updates may not change {word} except from \"\" to valid");
                errors.forbidden(&Path::new(&path), &message);
            }
        }
        if doc::text(new, "spec.externalID") != doc::text(old, "spec.externalID") {
            errors.forbidden(&Path::new("spec.externalID"), "may not be updated");
        }
    }

    fn validate_status(&self, new: &Value, _old: &Value, errors: &mut FieldErrors) {
        resources(errors, new);
        let mut seen = BTreeSet::new();
        for address in Field::root(new).get("status").get("addresses").items() {
            let key = (doc::text(address.value, "type"), doc::text(address.value, "address"));
            if !seen.insert(key) {
                errors.duplicate(&address.at, address.value.clone());
            }
        }
    }

    fn keeps_status(&self) -> bool {
        true
    }

    fn field<'a>(&self, name: &str, object: &'a Value) -> Option<Cow<'a, str>> {
        (name == "spec.unschedulable").then(|| doc::is_true(object, name).to_string().into())
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let info = |name: &str| table::text_or(object, &format!("status.nodeInfo.{name}"), "<unknown>");
        let mut kernel = info("kernelVersion");
        match doc::text(object, "status.nodeInfo.architecture") {
            "" => {}
            arch => kernel = format!("{kernel} ({arch})"),
        }
        vec![
            table::name(object),
            status(object).into(),
            roles(object).into(),
            table::age(object, now).into(),
            doc::text(object, "status.nodeInfo.kubeletVersion").into(),
            first_address(object, "InternalIP").into(),
            first_address(object, "ExternalIP").into(),
            info("osImage").into(),
            kernel.into(),
            info("containerRuntimeVersion").into(),
        ]
    }
}

/// The older single field and the list always say the same.
fn sync_pod_cidrs(object: &mut Value) {
    let first = doc::list(object, "spec.podCIDRs").first().cloned();
    let single = doc::text(object, "spec.podCIDR").to_owned();
    match first {
        Some(first) => doc::set(object, "spec.podCIDR", first),
        None if !single.is_empty() => doc::set(object, "spec.podCIDRs", json!([single])),
        None => {}
    }
}

fn taints(errors: &mut FieldErrors, field: &Field<'_>) {
    let mut seen = BTreeSet::new();
    for taint in field.items() {
        // Upstream reports taints as if they were metadata.
        let at = Path::new(&taint.at.to_string().replacen("spec.", "metadata.", 1));
        let (key, value) = (doc::text(taint.value, "key"), doc::text(taint.value, "value"));
        let effect = doc::text(taint.value, "effect");
        errors.each(&at.child("key"), key, names::qualified_name(key));
        let complaints = names::label_value(value);
        if !complaints.is_empty() {
            errors.invalid(&at.child("value"), value, complaints.join(";"));
        }
        let supported = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        check::one_of(errors, &Field { value: &taint.value["effect"], at: at.child("effect") }, &supported);
        if !seen.insert((key, effect)) {
            let message = "taints must be unique by key and effect pair";
            errors.duplicate_because(&at, taint.value.clone(), message);
        }
    }
}

fn resources(errors: &mut FieldErrors, object: &Value) {
    for list in ["capacity", "allocatable"] {
        for (name, quantity) in doc::entries(object, &format!("status.{list}")) {
            let at = Path::new("status").child(list).child(name);
            let text = quantity.as_str().unwrap_or_default();
            if Amount::parse(text).is_ok_and(Amount::is_negative) {
                errors.invalid(&at, text, check::NEGATIVE);
            }
        }
    }
}

fn status(object: &Value) -> String {
    let ready = doc::list(object, "status.conditions").iter().find(|c| doc::text(c, "type") == "Ready");
    let mut words = vec![match ready.map(|c| doc::text(c, "status")) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }];
    if doc::is_true(object, "spec.unschedulable") {
        words.push("SchedulingDisabled");
    }
    words.join(",")
}

fn roles(object: &Value) -> String {
    let mut roles = BTreeSet::new();
    for (key, value) in doc::entries(object, "metadata.labels") {
        let role = match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => role,
            None if key == "kubernetes.io/role" => value.as_str().unwrap_or_default(),
            None => "",
        };
        if !role.is_empty() {
            roles.insert(role);
        }
    }
    table::or_none(roles.into_iter().collect::<Vec<_>>().join(","))
}

fn first_address(object: &Value, kind: &str) -> String {
    let found = doc::list(object, "status.addresses").iter().find(|a| doc::text(a, "type") == kind);
    found.map_or_else(|| "<none>".to_owned(), |a| doc::text(a, "address").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells() {
        let node = json!({
            "metadata": {"name": "n", "labels": {"node-role.kubernetes.io/control-plane": "", "kubernetes.io/role": "a"},
                "creationTimestamp": "1970-01-01T00:00:00Z"},
            "spec": {"unschedulable": true},
            "status": {"conditions": [{"type": "Ready", "status": "True"}],
                "addresses": [{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "10.0.0.1"}],
                "nodeInfo": {"kubeletVersion": "v1", "kernelVersion": "6.1", "architecture": "amd64", "osImage": "Debian"}},
        });
        assert_eq!(
            json!(Node.cells(&node, Wall::from_secs(60))),
            json!([
                "n",
                "Ready,SchedulingDisabled",
                "a,control-plane",
                "60s",
                "v1",
                "10.0.0.1",
                "<none>",
                "Debian",
                "6.1 (amd64)",
                "<unknown>"
            ])
        );
        let bare = json!({"metadata": {"name": "n"}});
        assert_eq!(json!(&Node.cells(&bare, Wall::from_secs(0))[..3]), json!(["n", "Unknown", "<none>"]));
    }

    #[test]
    fn statuses() {
        let taint = json!({"key": "a", "effect": "NoSchedule"});
        let new = json!({"spec": {"taints": [taint, taint, {"key": "b", "effect": "X"}], "podCIDR": "10.1.0.0/24",
            "podCIDRs": ["10.1.0.0/24"]}});
        let old = json!({"spec": {"podCIDRs": ["10.0.0.0/24"]}});
        let mut errors = FieldErrors::default();
        Node.validate_update(&new, &old, &mut errors);
        assert_eq!(
            errors.to_string(),
            "[metadata.taints[1]: Duplicate value: {\"effect\":\"NoSchedule\",\"key\":\"a\"}: taints must be unique by \
             key and effect pair, metadata.taints[2].effect: Unsupported value: \"X\": supported values: \
             \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\", spec.podCIDRs: Forbidden: node updates may not \
             change podCIDR except from \"\" to valid]"
        );
    }
}
