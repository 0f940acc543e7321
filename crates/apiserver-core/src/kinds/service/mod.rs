//! Service: one address for many Pods. Cluster addresses and node ports are given out by the registry, after
//! `prepare_*` and before `validate*`.

mod linked;
mod validate;

use std::borrow::Cow;
use std::collections::BTreeSet;

use api::field::FieldErrors;
use base::time::Wall;
use serde_json::{Value, json};

use crate::doc;
use crate::kind::{Column, Kind, NameRule, Strategy, Subresource};
use crate::table;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::text("Type", "How the service is exposed"),
    Column::text("Cluster-IP", "The address inside the cluster"),
    Column::text("External-IP", "Addresses outside the cluster"),
    Column::text("Port(s)", "Ports, node ports and protocols"),
    Column::AGE,
    Column::wide("Selector", "Labels of the Pods behind it"),
];

/// How long a client keeps its Pod where affinity is asked for without a time.
const AFFINITY_SECONDS: i64 = 10_800;

pub(super) fn kind() -> Kind {
    Kind::core("Service", "services", Service)
        .short(&["svc"])
        .category("all")
        .with(Subresource::new("proxy", "ServiceProxyOptions", super::PROXY_VERBS))
        .with_status()
}

/// Whether traffic from outside the cluster may arrive.
#[must_use]
pub fn is_externally_accessible(service: &Value) -> bool {
    match doc::text(service, "spec.type") {
        "LoadBalancer" | "NodePort" => true,
        "ClusterIP" => !doc::list(service, "spec.externalIPs").is_empty(),
        _ => false,
    }
}

/// Whether it has cluster addresses at all; `None` counts as one.
#[must_use]
pub fn needs_cluster_ip(service: &Value) -> bool {
    doc::text(service, "spec.type") != "ExternalName"
}

#[must_use]
pub fn needs_node_ports(service: &Value) -> bool {
    matches!(doc::text(service, "spec.type"), "NodePort" | "LoadBalancer")
}

#[must_use]
pub fn needs_health_check_port(service: &Value) -> bool {
    doc::text(service, "spec.type") == "LoadBalancer"
        && doc::text(service, "spec.externalTrafficPolicy") == "Local"
}

#[must_use]
pub fn is_headless(service: &Value) -> bool {
    doc::list(service, "spec.clusterIPs") == ["None"]
}

#[derive(Debug)]
struct Service;

// === impl Service ===

impl Strategy for Service {
    fn set_defaults(&self, object: &mut Value) {
        default_affinity(object);
        doc::fill_text(object, "spec.type", "ClusterIP");
        for port in doc::list_mut(object, "spec.ports") {
            doc::fill_text(port, "protocol", "TCP");
            let target = &port["targetPort"];
            if doc::is_unset(target) || target.as_i64() == Some(0) {
                let number = doc::int(port, "port");
                doc::set(port, "targetPort", number);
            }
        }
        if is_externally_accessible(object) {
            doc::fill_text(object, "spec.externalTrafficPolicy", "Cluster");
        }
        if matches!(doc::text(object, "spec.type"), "NodePort" | "LoadBalancer" | "ClusterIP") {
            doc::fill(object, "spec.internalTrafficPolicy", "Cluster");
        }
        if doc::text(object, "spec.type") == "LoadBalancer" {
            doc::fill(object, "spec.allocateLoadBalancerNodePorts", true);
            for ingress in doc::list_mut(object, "status.loadBalancer.ingress") {
                if !doc::text(ingress, "ip").is_empty() {
                    doc::fill(ingress, "ipMode", "VIP");
                }
            }
        }
        doc::fill(object, "status.loadBalancer", json!({}));
    }

    fn prepare_create(&self, object: &mut Value) {
        doc::set(object, "status", json!({"loadBalancer": {}}));
        linked::complete_new(object);
    }

    fn prepare_update(&self, new: &mut Value, old: &Value) {
        linked::keep_allocated(new, old);
        linked::reconcile_cluster_ips(new, old);
        linked::drop_what_no_longer_applies(new, old);
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        validate::service(errors, object, None);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        validate::update(errors, new, old);
        validate::service(errors, new, Some(old));
    }

    fn validate_status(&self, new: &Value, _old: &Value, errors: &mut FieldErrors) {
        validate::load_balancer_status(errors, new);
    }

    fn warnings(&self, new: &Value, _old: Option<&Value>) -> Vec<String> {
        warnings(new)
    }

    fn returns_deleted(&self) -> bool {
        true
    }

    fn name_rule(&self) -> NameRule {
        NameRule::DnsLabel
    }

    fn creates_on_update(&self) -> bool {
        true
    }

    fn field<'a>(&self, name: &str, object: &'a Value) -> Option<Cow<'a, str>> {
        matches!(name, "spec.clusterIP" | "spec.type").then(|| doc::text(object, name).into())
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let cluster_ip = doc::list(object, "spec.clusterIPs").first().and_then(Value::as_str);
        let ports: Vec<String> = doc::list(object, "spec.ports").iter().map(port_cell).collect();
        vec![
            table::name(object),
            doc::text(object, "spec.type").into(),
            cluster_ip.unwrap_or("<none>").into(),
            external_ip(object).into(),
            table::or_none(ports.join(",")).into(),
            table::age(object, now).into(),
            table::labels(doc::at(object, "spec.selector")).into(),
        ]
    }
}

fn default_affinity(object: &mut Value) {
    doc::fill_text(object, "spec.sessionAffinity", "None");
    match doc::text(object, "spec.sessionAffinity") {
        "None" => drop(doc::remove(object, "spec.sessionAffinityConfig")),
        "ClientIP" if doc::at(object, "spec.sessionAffinityConfig.clientIP.timeoutSeconds").is_null() => {
            let config = json!({"clientIP": {"timeoutSeconds": AFFINITY_SECONDS}});
            doc::set(object, "spec.sessionAffinityConfig", config);
        }
        _ => {}
    }
}

fn port_cell(port: &Value) -> String {
    let (number, protocol) = (doc::int(port, "port"), doc::text(port, "protocol"));
    match doc::int(port, "nodePort") {
        0 => format!("{number}/{protocol}"),
        node_port => format!("{number}:{node_port}/{protocol}"),
    }
}

fn external_ip(object: &Value) -> String {
    let asked = || doc::list(object, "spec.externalIPs").iter().filter_map(Value::as_str);
    match doc::text(object, "spec.type") {
        "ClusterIP" | "NodePort" => table::or_none(asked().collect::<Vec<_>>().join(",")),
        "LoadBalancer" => {
            let given = load_balancer_addresses(object, "status.loadBalancer.ingress");
            let all: Vec<&str> = given.into_iter().chain(asked()).collect();
            if all.is_empty() { "<pending>".to_owned() } else { all.join(",") }
        }
        "ExternalName" => doc::text(object, "spec.externalName").to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

/// Where a load balancer listens, each once and in order.
pub(super) fn load_balancer_addresses<'a>(object: &'a Value, path: &str) -> BTreeSet<&'a str> {
    let address = |ingress: &'a Value| match doc::text(ingress, "ip") {
        "" => doc::text(ingress, "hostname"),
        ip => ip,
    };
    doc::list(object, path).iter().map(address).filter(|a| !a.is_empty()).collect()
}

fn warnings(service: &Value) -> Vec<String> {
    let mut out = Vec::new();
    let text = |path: &str| doc::text(service, path);
    let has_external_ips = !doc::list(service, "spec.externalIPs").is_empty();
    let kind = text("spec.type");
    if kind == "ClusterIP" && text("spec.clusterIP") == "None" {
        if !text("spec.loadBalancerIP").is_empty() {
            out.push("spec.loadBalancerIP is ignored for headless services".to_owned());
        }
        if has_external_ips {
            out.push("spec.externalIPs is ignored for headless services".to_owned());
        }
        if text("spec.sessionAffinity") != "None" {
            out.push("spec.SessionAffinity is ignored for headless services".to_owned());
        }
    } else if has_external_ips && kind != "ExternalName" {
        out.push(
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters".to_owned(),
        );
    }
    if kind == "ExternalName" && has_external_ips {
        out.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".to_owned());
    }
    if kind != "ExternalName" && !text("spec.externalName").is_empty() {
        out.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".to_owned());
    }
    if text("spec.trafficDistribution") == "PreferClose" {
        out.push(
            "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"".to_owned(),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn defaulted(spec: Value) -> Value {
        let mut object = json!({"metadata": {"name": "s"}, "spec": spec});
        Service.set_defaults(&mut object);
        let once = object.clone();
        Service.set_defaults(&mut object);
        assert_eq!(once, object, "idempotent");
        Service.prepare_create(&mut object);
        object
    }

    #[test]
    fn defaults() {
        assert_eq!(
            defaulted(json!({"ports": [{"port": 80}], "selector": {"a": "b"}}))["spec"],
            json!({"type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster",
                "selector": {"a": "b"}, "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}]})
        );
        let lb = defaulted(
            json!({"type": "LoadBalancer", "sessionAffinity": "ClientIP", "clusterIP": "10.0.0.1"}),
        );
        assert_eq!(
            lb["spec"],
            json!({"type": "LoadBalancer", "sessionAffinity": "ClientIP", "internalTrafficPolicy": "Cluster",
                "externalTrafficPolicy": "Cluster", "allocateLoadBalancerNodePorts": true, "clusterIP": "10.0.0.1",
                "clusterIPs": ["10.0.0.1"], "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10800}}})
        );
        assert_eq!(
            defaulted(json!({"type": "ExternalName", "externalName": "x"}))["spec"]["internalTrafficPolicy"],
            Value::Null
        );
    }

    #[test]
    fn cells() {
        let row = |spec: Value, status: Value| {
            let object = json!({"metadata": {"name": "s"}, "spec": spec, "status": status});
            json!(&Service.cells(&object, Wall::from_secs(0))[1..5])
        };
        let ports =
            json!([{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]);
        assert_eq!(
            row(json!({"type": "NodePort", "clusterIPs": ["10.0.0.1"], "ports": ports}), json!({})),
            json!(["NodePort", "10.0.0.1", "<none>", "80:30080/TCP,53/UDP"])
        );
        assert_eq!(
            row(json!({"type": "LoadBalancer"}), json!({})),
            json!(["LoadBalancer", "<none>", "<pending>", "<none>"])
        );
        let status = json!({"loadBalancer": {"ingress": [{"hostname": "b.example"}, {"ip": "1.2.3.4"}]}});
        assert_eq!(
            row(json!({"type": "LoadBalancer", "externalIPs": ["5.6.7.8"]}), status)[2],
            "1.2.3.4,b.example,5.6.7.8"
        );
        assert_eq!(
            row(json!({"type": "ExternalName", "externalName": "db.example"}), json!({}))[2],
            "db.example"
        );
    }
}
