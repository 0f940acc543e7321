//! What a Service may not be.

use std::collections::BTreeSet;

use api::field::{FieldErrors, Path};
use api::names;
use serde_json::{Value, json};

use super::super::{address, check, endpoints};
use super::{is_externally_accessible, is_headless, needs_health_check_port};
use crate::doc::{self, Field};

const TYPES: &[&str] = &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
const ONLY_LOAD_BALANCER: &str = "may only be used when `type` is 'LoadBalancer'";
const SET_ONCE: &str = "may not change once set";

pub(super) fn service(errors: &mut FieldErrors, object: &Value, old: Option<&Value>) {
    let spec = Field::root(object).get("spec");
    let kind = doc::text(object, "spec.type");
    if spec.get("ports").is_empty() && !is_headless(object) && kind != "ExternalName" {
        errors.required(&spec.at.child("ports"), "");
    }
    by_type(errors, object, &spec);
    ports(errors, &spec, kind);
    check::labels(errors, &spec.get("selector"));
    affinity(errors, &spec);
    if kind != "ExternalName" {
        addresses(errors, object, &spec);
    }
    let known = old.map(|o| doc::list(o, "spec.externalIPs")).unwrap_or_default();
    for ip in spec.get("externalIPs").items().filter(|ip| !known.contains(ip.value)) {
        address::endpoint_ip(errors, &ip);
    }
    check::one_of(errors, &spec.get("type"), TYPES);
    load_balancer(errors, &spec, kind);
    traffic(errors, object, &spec);
}

/// What a later write may not change.
pub(super) fn update(errors: &mut FieldErrors, new: &Value, old: &Value) {
    let external = |s: &Value| doc::text(s, "spec.type") == "ExternalName";
    if !external(new) && !external(old) {
        if !(is_headless(new) && is_headless(old)) {
            stays_at_its_place(errors, new, old, "clusterIPs", "clusterIP");
        }
        if !is_headless(new) && !is_headless(old) {
            stays_at_its_place(errors, new, old, "ipFamilies", "ipFamily");
        }
    }
    let both = |test: fn(&Value) -> bool| test(new) && test(old);
    if both(|s| doc::text(s, "spec.type") == "LoadBalancer") {
        check::unchanged(errors, new, old, "spec.loadBalancerClass", SET_ONCE);
    }
    if both(needs_health_check_port)
        && doc::int(new, "spec.healthCheckNodePort") != doc::int(old, "spec.healthCheckNodePort")
    {
        errors.forbidden(&Path::new("spec.healthCheckNodePort"), check::IMMUTABLE);
    }
}

pub(super) fn load_balancer_status(errors: &mut FieldErrors, object: &Value) {
    let ingress = Field::root(object).get("status").get("loadBalancer").get("ingress");
    if doc::text(object, "spec.type") != "LoadBalancer" && !ingress.is_empty() {
        return errors.forbidden(&ingress.at, "may only be used when `spec.type` is 'LoadBalancer'");
    }
    for point in ingress.items() {
        let (ip, mode, host) = (point.get("ip"), point.get("ipMode"), point.get("hostname"));
        if !ip.is_empty() {
            address::ip(errors, &ip);
        }
        match (ip.is_empty(), mode.is_set()) {
            (false, false) => errors.required(&mode.at, "must be specified when `ip` is set"),
            (true, true) => errors.forbidden(&mode.at, "may not be specified when `ip` is not set"),
            _ => check::one_of_if_set(errors, &mode, &["Proxy", "VIP"]),
        }
        if !host.is_empty() {
            check::spelled(errors, &host, names::dns_subdomain);
            if names::ip(host.text()).is_empty() {
                errors.invalid(&host.at, host.text(), "must be a DNS name, not an IP address");
            }
        }
    }
}

fn by_type(errors: &mut FieldErrors, object: &Value, spec: &Field<'_>) {
    match doc::text(object, "spec.type") {
        kind @ ("LoadBalancer" | "NodePort") if is_headless(object) => {
            let message = format!("may not be set to 'None' for {kind} services");
            errors.invalid(&spec.at.child("clusterIPs").index(0), "None", message);
        }
        "ExternalName" => {
            for name in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
                if !doc::is_unset(spec.get(name).value) {
                    errors.forbidden(&spec.at.child(name), "may not be set for ExternalName services");
                }
            }
            let name = spec.get("externalName");
            // A trailing dot says that the name is complete.
            match name.text().strip_suffix('.').unwrap_or(name.text()) {
                "" => errors.required(&name.at, ""),
                text => errors.each(&name.at, text, names::dns_subdomain(text)),
            }
        }
        _ => {}
    }
}

fn ports(errors: &mut FieldErrors, spec: &Field<'_>, kind: &str) {
    let ports = spec.get("ports");
    let mut seen_names = BTreeSet::new();
    for port in ports.items() {
        let name = port.get("name");
        if !name.is_empty() {
            check::spelled(errors, &name, names::dns_label);
            if !seen_names.insert(name.text()) {
                errors.duplicate(&name.at, name.text());
            }
        } else if ports.len() > 1 {
            errors.required(&name.at, "");
        }
        check::port_number(errors, &port.get("port"));
        check::one_of(errors, &port.get("protocol"), endpoints::PROTOCOLS);
        check::port_or_name(errors, &port.get("targetPort"));
        let app = port.get("appProtocol");
        if app.is_set() {
            check::spelled(errors, &app, names::qualified_name);
        }
    }
    unique_ports(errors, &ports, kind);
}

fn unique_ports(errors: &mut FieldErrors, ports: &Field<'_>, kind: &str) {
    let (mut node_ports, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for port in ports.items() {
        let node_port = port.get("nodePort");
        let Some(number) = node_port.int().filter(|n| *n != 0) else { continue };
        if kind == "ClusterIP" {
            errors.forbidden(&node_port.at, "may not be used when `type` is 'ClusterIP'");
        }
        if !node_ports.insert((doc::text(port.value, "protocol"), number)) {
            errors.duplicate(&node_port.at, number);
        }
    }
    for port in ports.items() {
        let (protocol, number) = (doc::text(port.value, "protocol"), doc::int(port.value, "port"));
        if !numbers.insert((protocol, number)) {
            let shown = json!({"protocol": protocol, "port": number, "targetPort": 0});
            errors.duplicate(&port.at, shown);
        }
    }
}

fn affinity(errors: &mut FieldErrors, spec: &Field<'_>) {
    let (affinity, config) = (spec.get("sessionAffinity"), spec.get("sessionAffinityConfig"));
    check::one_of(errors, &affinity, &["ClientIP", "None"]);
    match affinity.text() {
        "ClientIP" => {
            let timeout = config.get("clientIP").get("timeoutSeconds");
            match timeout.int() {
                None => {
                    let client = config.get("clientIP");
                    let missing = [&config, &client].into_iter().find(|f| !f.is_set());
                    let at = missing.map_or(&timeout.at, |f| &f.at).clone();
                    errors.required(&at, "when session affinity type is ClientIP");
                }
                Some(seconds) if !(1..=86_400).contains(&seconds) => {
                    errors.invalid(&timeout.at, seconds, "must be greater than 0 and less than 86400");
                }
                Some(_) => {}
            }
        }
        "None" if config.is_set() => {
            errors.forbidden(&config.at, "must not be set when session affinity is None");
        }
        _ => {}
    }
}

/// `clusterIP`, `clusterIPs` and `ipFamilies` agree with each other.
fn addresses(errors: &mut FieldErrors, object: &Value, spec: &Field<'_>) {
    let (single, list) = (spec.get("clusterIP"), spec.get("clusterIPs"));
    let families = spec.get("ipFamilies");
    match (single.text(), list.items().next()) {
        ("", Some(_)) => {
            errors.invalid(&list.at, list.value.clone(), "must be empty when `clusterIP` is not specified");
        }
        ("", None) => {}
        (_, None) => errors.required(&list.at, ""),
        (ip, Some(first)) if first.text() != ip => {
            errors.invalid(&list.at, list.value.clone(), "first value must match `clusterIP`");
        }
        _ => {}
    }
    let mut seen = BTreeSet::new();
    for family in families.items() {
        check::one_of_if_set(errors, &family, &["IPv4", "IPv6"]);
        if !seen.insert(family.text()) {
            errors.duplicate(&family.at, family.text());
        }
    }
    let policies = ["PreferDualStack", "RequireDualStack", "SingleStack"];
    check::one_of_if_set(errors, &spec.get("ipFamilyPolicy"), &policies);
    let Some(is_ipv6) = cluster_ips(errors, &list) else { return };
    if is_ipv6.len() > 1 && !address::is_dual_stack(&is_ipv6) {
        let message = "may specify no more than one IP for each IP family";
        errors.invalid(&list.at, list.value.clone(), message);
    }
    if !is_headless(object) {
        for ((i, (ip, is_ipv6)), family) in list.items().zip(is_ipv6).enumerate().zip(families.items()) {
            let expected = family.text();
            if (expected == "IPv6") != is_ipv6 {
                let message = format!("expected an {expected} value as indicated by `ipFamilies[{i}]`");
                errors.invalid(&ip.at, ip.text(), message);
            }
        }
    }
}

/// The family of each address; None where one is no address.
fn cluster_ips(errors: &mut FieldErrors, list: &Field<'_>) -> Option<Vec<bool>> {
    let mut families = Some(Vec::new());
    for (i, ip) in list.items().enumerate() {
        if i == 0 && ip.text() == "None" {
            if list.len() > 1 {
                errors.invalid(&list.at, list.value.clone(), "'None' must be the first and only value");
                families = None;
            }
            continue;
        }
        let parsed = address::ip(errors, &ip);
        families = families.zip(parsed).map(|(mut all, ip)| {
            all.push(ip.is_ipv6());
            all
        });
    }
    if list.len() > 2 {
        errors.invalid(&list.at, list.value.clone(), "may only hold up to 2 values");
    }
    families
}

fn load_balancer(errors: &mut FieldErrors, spec: &Field<'_>, kind: &str) {
    let is_load_balancer = kind == "LoadBalancer";
    let ranges = spec.get("loadBalancerSourceRanges");
    if !ranges.is_empty() {
        // Upstream spells this path as the Go field.
        let at = spec.at.child("LoadBalancerSourceRanges");
        if !is_load_balancer {
            errors.forbidden(&at, ONLY_LOAD_BALANCER);
        }
        for (i, range) in ranges.items().enumerate() {
            address::cidr(errors, &Field { value: range.value, at: at.index(i) });
        }
    }
    let allocate = spec.get("allocateLoadBalancerNodePorts");
    if allocate.is_set() && !is_load_balancer {
        errors.forbidden(&allocate.at, ONLY_LOAD_BALANCER);
    }
    if is_load_balancer && !allocate.is_set() {
        errors.required(&Path::new("allocateLoadBalancerNodePorts"), "");
    }
    let class = spec.get("loadBalancerClass");
    if class.is_set() && is_load_balancer {
        check::spelled(errors, &class, names::qualified_name);
    } else if class.is_set() {
        errors.forbidden(&class.at, ONLY_LOAD_BALANCER);
    }
}

fn traffic(errors: &mut FieldErrors, object: &Value, spec: &Field<'_>) {
    let external = spec.get("externalTrafficPolicy");
    if is_externally_accessible(object) {
        check::one_of(errors, &external, &["Cluster", "Local"]);
    } else if !external.is_empty() {
        errors.invalid(&external.at, external.text(), "may only be set for externally-accessible services");
    }
    let health = spec.get("healthCheckNodePort");
    let number = health.int().unwrap_or_default();
    match (needs_health_check_port(object), number) {
        (true, 0) => errors.required(&health.at, ""),
        (true, _) => check::port_number(errors, &health),
        (false, 0) => {}
        (false, _) => {
            let message =
                "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
            errors.invalid(&health.at, number, message);
        }
    }
    let internal = spec.get("internalTrafficPolicy");
    match doc::text(object, "spec.type") {
        "NodePort" | "LoadBalancer" | "ClusterIP" if !internal.is_set() => errors.required(&internal.at, ""),
        _ => check::one_of_if_set(errors, &internal, &["Cluster", "Local"]),
    }
    let distributions = ["PreferClose", "PreferSameZone", "PreferSameNode"];
    check::one_of_if_set(errors, &spec.get("trafficDistribution"), &distributions);
}

/// The first element never changes; the second may come, and go if a single stack is asked for.
fn stays_at_its_place(errors: &mut FieldErrors, new: &Value, old: &Value, list: &str, word: &str) {
    let path = format!("spec.{list}");
    let at = Path::new(&path);
    let (now, before) = (doc::list(new, &path), doc::list(old, &path));
    let shown = doc::at(new, &path).clone();
    if now.len() == before.len() {
        for (i, _) in now.iter().zip(before).enumerate().filter(|(_, (n, b))| n != b) {
            errors.invalid(&at.index(i), shown.clone(), SET_ONCE);
        }
        return;
    }
    if now.is_empty() {
        errors.invalid(&at.index(0), shown.clone(), format!("primary {word} can not be unset"));
    } else if before.first().is_some_and(|first| first != &now[0]) {
        errors.invalid(&at.index(0), shown, SET_ONCE);
    }
    let policy = doc::at(new, "spec.ipFamilyPolicy");
    if now.len() == 1 && before.len() > 1 && policy != "SingleStack" {
        let message = format!("must be set to 'SingleStack' when releasing the secondary {word}");
        errors.invalid(&Path::new("spec.ipFamilyPolicy"), policy.clone(), message);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::defaulted;
    use super::*;

    fn complaints(spec: Value) -> String {
        let mut errors = FieldErrors::default();
        service(&mut errors, &defaulted(spec), None);
        errors.to_string()
    }

    #[test]
    fn what_is_refused() {
        let ports = json!([{"port": 80}]);
        for (spec, want) in [
            (json!({"ports": ports}), "[]"),
            (json!({"clusterIP": "None"}), "[]"),
            (json!({}), "spec.ports: Required value"),
            (
                json!({"ports": [{"port": 80}, {"name": "b", "port": 80}]}),
                "[spec.ports[0].name: Required value, spec.ports[1]: Duplicate value: \
                 {\"port\":80,\"protocol\":\"TCP\",\"targetPort\":0}]",
            ),
            (
                json!({"ports": [{"port": 0, "targetPort": "x_y"}]}),
                "[spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive, \
                 spec.ports[0].targetPort: Invalid value: \"x_y\": must contain only alpha-numeric characters (a-z, \
                 0-9), and hyphens (-)]",
            ),
            (
                json!({"type": "X", "ports": ports}),
                "spec.type: Unsupported value: \"X\": supported values: \"ClusterIP\", \"ExternalName\", \
                 \"LoadBalancer\", \"NodePort\"",
            ),
            (
                json!({"ports": [{"port": 80, "nodePort": 30000}]}),
                "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
            ),
            (
                json!({"type": "NodePort", "clusterIP": "None", "ports": ports}),
                "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for NodePort services",
            ),
            (json!({"type": "ExternalName"}), "spec.externalName: Required value"),
            (
                json!({"ports": ports, "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "10.0.0.2"]}),
                "spec.clusterIPs: Invalid value: [\"10.0.0.1\",\"10.0.0.2\"]: may specify no more than one IP for each \
                 IP family",
            ),
            (
                json!({"ports": ports, "clusterIP": "10.0.0.1", "ipFamilies": ["IPv6"]}),
                "spec.clusterIPs[0]: Invalid value: \"10.0.0.1\": expected an IPv6 value as indicated by \
                 `ipFamilies[0]`",
            ),
            (
                json!({"ports": ports, "clusterIP": "10.0.0"}),
                "spec.clusterIPs[0]: Invalid value: \"10.0.0\": must be a valid IP address, (e.g. 10.9.8.7 or \
                 2001:db8::ffff)",
            ),
            (
                json!({"ports": ports, "loadBalancerSourceRanges": ["10.0.0.0/8"]}),
                "spec.LoadBalancerSourceRanges: Forbidden: may only be used when `type` is 'LoadBalancer'",
            ),
            (
                json!({"ports": ports, "externalIPs": ["127.0.0.1"]}),
                "spec.externalIPs[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, \
                 ::1/128)",
            ),
            (
                json!({"ports": ports, "trafficDistribution": "Far"}),
                "spec.trafficDistribution: Unsupported value: \"Far\": supported values: \"PreferClose\", \
                 \"PreferSameZone\", \"PreferSameNode\"",
            ),
        ] {
            assert_eq!(complaints(spec.clone()), want, "{spec}");
        }
    }

    #[test]
    fn addresses_stay() {
        let changed = |old: Value, new: Value| {
            let mut errors = FieldErrors::default();
            update(&mut errors, &json!({"spec": new}), &json!({"spec": old}));
            errors.to_string()
        };
        let old = json!({"type": "ClusterIP", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"]});
        assert_eq!(
            changed(
                old.clone(),
                json!({"type": "ClusterIP", "clusterIPs": ["10.0.0.2"], "ipFamilies": ["IPv4"]})
            ),
            "spec.clusterIPs[0]: Invalid value: [\"10.0.0.2\"]: may not change once set"
        );
        assert_eq!(
            changed(
                old.clone(),
                json!({"type": "ClusterIP", "clusterIPs": ["None"], "ipFamilies": ["IPv4"]})
            ),
            "spec.clusterIPs[0]: Invalid value: [\"None\"]: may not change once set"
        );
        let dual = json!({"type": "ClusterIP", "clusterIPs": ["10.0.0.1", "fd00::1"], "ipFamilies": ["IPv4", "IPv6"]});
        assert_eq!(changed(old.clone(), dual.clone()), "[]");
        assert!(
            changed(dual, old)
                .contains("must be set to 'SingleStack' when releasing the secondary clusterIP")
        );
    }
}
