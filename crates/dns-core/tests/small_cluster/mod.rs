//! A small cluster, and questions to it.
#![allow(clippy::unwrap_used, dead_code)]

use dns_core::corefile::{self, Corefile};
use dns_core::lookup::{self, Found, Scene};
use dns_core::message::{Answer, Record};
use dns_core::name;
use dns_core::query::{self, Edns, Query, Read};
use dns_core::zone::{Kind, Zone};
use domain::base::iana::Class;
use domain::base::{MessageBuilder, Rtype};
use serde_json::{Value, json};

pub(crate) fn put(zone: &mut Zone, object: Value) {
    match object["kind"].as_str().unwrap() {
        "Service" => zone.put_service(&serde_json::from_value(object).unwrap()),
        "EndpointSlice" => zone.put_slice(&serde_json::from_value(object).unwrap()),
        "Pod" => zone.put_pod(&serde_json::from_value(object).unwrap()),
        "Namespace" => zone.put_namespace(&serde_json::from_value(object["metadata"].clone()).unwrap()),
        other => panic!("{other}"),
    }
}

pub(crate) fn service(name: &str, spec: Value) -> Value {
    json!({"kind": "Service", "metadata": {"name": name, "namespace": "default"}, "spec": spec})
}

pub(crate) fn slice(name: &str, service: &str, endpoints: Value, ports: Value) -> Value {
    let labels = json!({"kubernetes.io/service-name": service, "other": "x"});
    json!({"kind": "EndpointSlice", "metadata": {"name": name, "namespace": "default", "labels": labels},
           "endpoints": endpoints, "ports": ports})
}

/// Services of every kind.
pub(crate) fn cluster() -> Zone {
    let mut zone = Zone::default();
    let kinds = [Kind::Services, Kind::Slices, Kind::Namespaces, Kind::Pods];
    kinds.iter().for_each(|kind| zone.begin(*kind));
    let http = json!([{"name": "http", "port": 80, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}]);
    for namespace in ["default", "kube-system", "empty"] {
        put(&mut zone, json!({"kind": "Namespace", "metadata": {"name": namespace}}));
    }
    put(
        &mut zone,
        service(
            "web",
            json!({"type": "ClusterIP", "clusterIP": "10.96.0.20", "clusterIPs": ["10.96.0.20"], "ports": http}),
        ),
    );
    put(
        &mut zone,
        slice(
            "web-1",
            "web",
            json!([{"addresses": ["10.244.0.9"]}]),
            json!([{"name": "http", "port": 8080}]),
        ),
    );
    put(
        &mut zone,
        service(
            "dual",
            json!({"clusterIP": "10.96.0.21", "clusterIPs": ["10.96.0.21", "fd00::21"], "ports": [{"port": 443}]}),
        ),
    );
    put(&mut zone, service("bare", json!({"clusterIP": "10.96.0.22"})));
    put(&mut zone, service("db", json!({"clusterIP": "None", "ports": [{"name": "pg", "port": 5432}]})));
    let endpoints = json!([
        {"addresses": ["10.244.0.5"], "hostname": "db-0", "conditions": {"ready": true}, "targetRef": {"name": "db-0"}},
        {"addresses": ["10.244.0.6"], "hostname": "db-1", "conditions": {}, "targetRef": {"name": "db-1"}},
        {"addresses": ["10.244.0.7"], "conditions": {"ready": null}, "targetRef": {"name": "stray"}},
        {"addresses": ["10.244.0.8"], "hostname": "db-2", "conditions": {"ready": false}},
    ]);
    put(&mut zone, slice("db-a", "db", endpoints, json!([{"name": "pg", "port": 5432, "protocol": "TCP"}])));
    put(
        &mut zone,
        slice("db-6", "db", json!([{"addresses": ["fd00::"]}]), json!([{"name": "pg", "port": 5432}])),
    );
    put(&mut zone, service("quiet", json!({"clusterIP": "None"})));
    put(&mut zone, service("portless", json!({"clusterIP": "None"})));
    put(&mut zone, slice("portless-1", "portless", json!([{"addresses": ["10.244.0.5"]}]), json!([])));
    put(&mut zone, service("far", json!({"type": "ExternalName", "externalName": "foo.example.com"})));
    put(
        &mut zone,
        service("near", json!({"type": "ExternalName", "externalName": "web.default.svc.cluster.local"})),
    );
    put(
        &mut zone,
        service("nowhere", json!({"type": "ExternalName", "externalName": "no.default.svc.cluster.local"})),
    );
    put(
        &mut zone,
        service("ring", json!({"type": "ExternalName", "externalName": "ring.default.svc.cluster.local"})),
    );
    put(&mut zone, service("literal", json!({"type": "ExternalName", "externalName": "192.0.2.1"})));
    put(
        &mut zone,
        json!({"kind": "Service", "metadata": {"name": "kube-dns", "namespace": "kube-system"}, "spec": {"clusterIP": "10.96.0.10"}}),
    );
    put(
        &mut zone,
        json!({"kind": "Pod", "metadata": {"name": "p", "namespace": "default"},
        "status": {"podIPs": [{"ip": "10.244.0.5"}], "phase": "Running"}}),
    );
    put(
        &mut zone,
        json!({"kind": "Pod", "metadata": {"name": "q", "namespace": "default"},
        "status": {"podIPs": [{"ip": "10.244.0.66"}], "phase": "Failed"}}),
    );
    kinds.iter().for_each(|kind| zone.end(*kind));
    zone.set_serial(7);
    zone
}

/// kubeadm's way, with other options of the plugin.
pub(crate) fn corefile(options: &str) -> Corefile {
    let text = format!(".:53 {{\n kubernetes cluster.local in-addr.arpa ip6.arpa {{\n{options}\n }}\n}}");
    corefile::read(&text).unwrap()
}

pub(crate) const STOCK: &str = "pods insecure\nfallthrough in-addr.arpa ip6.arpa";

pub(crate) fn ask(name: &str, rtype: Rtype) -> Query {
    Query {
        id: 7,
        wants_recursion: true,
        checking_disabled: false,
        name: name::parse(name).unwrap(),
        rtype,
        class: Class::IN,
        edns: None,
    }
}

pub(crate) fn edns(size: u16) -> Edns {
    Edns { size, wants_dnssec: false, version: 0 }
}

pub(crate) fn found(zone: &Zone, file: &Corefile, query: &Query) -> Found {
    let plugin = file.servers[0].kubernetes.as_ref().unwrap();
    lookup::answer(&Scene { zone, plugin, own: &["192.0.2.53".parse().unwrap()] }, query)
}

/// `owner ttl type data` without the class, dots at the end kept.
pub(crate) fn line(record: &Record) -> String {
    // The codec prints the target of SRV without its last dot.
    let dot = if record.rtype() == Rtype::SRV { "." } else { "" };
    format!(
        "{} {} {} {}{dot}",
        name::text(record.owner()),
        record.ttl().as_secs(),
        record.rtype(),
        record.data()
    )
}

/// Everything that is said, in a line.
pub(crate) fn told(answer: &Answer) -> String {
    let lines = |records: &[Record]| records.iter().map(line).collect::<Vec<_>>().join("; ");
    let mut text = format!("{}{}", answer.rcode, if answer.is_authoritative { " aa" } else { "" });
    for (name, records) in [("", &answer.answer), (" auth", &answer.authority), (" add", &answer.additional)]
    {
        if !records.is_empty() {
            text.push_str(&format!("{name}: {}", lines(records)));
        }
    }
    text
}

/// The bytes a client would send.
pub(crate) fn wire(query: &Query) -> Vec<u8> {
    let mut builder = MessageBuilder::new_vec();
    builder.header_mut().set_id(query.id);
    builder.header_mut().set_rd(query.wants_recursion);
    let mut builder = builder.question();
    builder.push((&query.name, query.rtype, query.class)).unwrap();
    let mut builder = builder.additional();
    if let Some(edns) = query.edns {
        let fill = |opt: &mut domain::base::message_builder::OptBuilder<'_, Vec<u8>>| {
            opt.set_udp_payload_size(edns.size);
            opt.set_version(edns.version);
            opt.set_dnssec_ok(edns.wants_dnssec);
            Ok(())
        };
        builder.opt(fill).unwrap();
    }
    builder.finish()
}

pub(crate) fn read(bytes: &[u8]) -> Query {
    match query::read(bytes) {
        Read::Query(query) => query,
        other => panic!("{other:?}"),
    }
}
