//! Every row of what cluster DNS has to say, as tables.
#![allow(clippy::unwrap_used)]

mod small_cluster;

use dns_core::Rtype;
use dns_core::lookup::Found;
use dns_core::name;
use dns_core::zone::{Kind, Zone};
use serde_json::{Value, json};
use small_cluster::{STOCK, ask, cluster, corefile, found, put, service, slice, told};

const SOA: &str = "cluster.local. 5 SOA ns.dns.cluster.local. hostmaster.cluster.local. 7 7200 1800 86400 5";

/// Answers, with `SOA` for a denial's; `>` for what goes on to others.
fn say(zone: &Zone, options: &str, asked: &str, rtype: &str) -> String {
    let query = ask(asked, rtype.parse().unwrap());
    let text = match found(zone, &corefile(options), &query) {
        Found::Answer(answer) => told(&answer),
        Found::Chase(answer, target) => format!("{} > {}", told(&answer), name::text(&target)),
        Found::Fallthrough(answer) => format!("> {}", told(&answer)),
        Found::NotOurs => "not ours".into(),
    };
    text.replace(SOA, "SOA")
}

const EMPTY: &str = "NOERROR aa auth: SOA";
const MISSING: &str = "NXDOMAIN aa auth: SOA";

#[test]
fn every_record_of_the_specification_is_there() {
    let zone = cluster();
    let rows = [
        ("dns-version.cluster.local", "TXT", "NOERROR aa: dns-version.cluster.local. 28800 TXT \"1.1.0\""),
        ("cluster.local", "SOA", "NOERROR aa: SOA"),
        (
            "cluster.local",
            "NS",
            "NOERROR aa: cluster.local. 5 NS kube-dns.kube-system.svc.cluster.local. \
          add: kube-dns.kube-system.svc.cluster.local. 5 A 10.96.0.10",
        ),
        ("ns.dns.cluster.local", "A", "NOERROR aa: ns.dns.cluster.local. 5 A 10.96.0.10"),
        // Cluster IPs.
        ("web.default.svc.cluster.local", "A", "NOERROR aa: web.default.svc.cluster.local. 5 A 10.96.0.20"),
        ("WEB.Default.svc.CLUSTER.local", "A", "NOERROR aa: WEB.Default.svc.CLUSTER.local. 5 A 10.96.0.20"),
        (
            "dual.default.svc.cluster.local",
            "AAAA",
            "NOERROR aa: dual.default.svc.cluster.local. 5 AAAA fd00::21",
        ),
        ("bare.default.svc.cluster.local", "A", "NOERROR aa: bare.default.svc.cluster.local. 5 A 10.96.0.22"),
        (
            "_http._tcp.web.default.svc.cluster.local",
            "SRV",
            "NOERROR aa: \
          _http._tcp.web.default.svc.cluster.local. 5 SRV 0 100 80 web.default.svc.cluster.local. \
          add: web.default.svc.cluster.local. 5 A 10.96.0.20",
        ),
        (
            "_http._tcp.web.default.svc.cluster.local",
            "A",
            "NOERROR aa: \
          _http._tcp.web.default.svc.cluster.local. 5 A 10.96.0.20",
        ),
        (
            "web.default.svc.cluster.local",
            "SRV",
            "NOERROR aa: \
          web.default.svc.cluster.local. 5 SRV 0 50 80 web.default.svc.cluster.local.; \
          web.default.svc.cluster.local. 5 SRV 0 50 53 web.default.svc.cluster.local. \
          add: web.default.svc.cluster.local. 5 A 10.96.0.20",
        ),
        (
            "dual.default.svc.cluster.local",
            "SRV",
            "NOERROR aa: \
          dual.default.svc.cluster.local. 5 SRV 0 50 443 dual.default.svc.cluster.local. \
          add: dual.default.svc.cluster.local. 5 A 10.96.0.21; dual.default.svc.cluster.local. 5 AAAA fd00::21",
        ),
        (
            "10-244-0-9.web.default.svc.cluster.local",
            "A",
            "NOERROR aa: \
          10-244-0-9.web.default.svc.cluster.local. 5 A 10.244.0.9",
        ),
        // Headless: ready ones, and those of whom nothing is said.
        (
            "db.default.svc.cluster.local",
            "A",
            "NOERROR aa: db.default.svc.cluster.local. 5 A 10.244.0.5; \
          db.default.svc.cluster.local. 5 A 10.244.0.6; db.default.svc.cluster.local. 5 A 10.244.0.7",
        ),
        ("db.default.svc.cluster.local", "AAAA", "NOERROR aa: db.default.svc.cluster.local. 5 AAAA fd00::"),
        (
            "db-1.db.default.svc.cluster.local",
            "A",
            "NOERROR aa: db-1.db.default.svc.cluster.local. 5 A 10.244.0.6",
        ),
        (
            "10-244-0-7.db.default.svc.cluster.local",
            "A",
            "NOERROR aa: \
          10-244-0-7.db.default.svc.cluster.local. 5 A 10.244.0.7",
        ),
        (
            "fd00--0.db.default.svc.cluster.local",
            "AAAA",
            "NOERROR aa: \
          fd00--0.db.default.svc.cluster.local. 5 AAAA fd00::",
        ),
        (
            "_pg._tcp.db.default.svc.cluster.local",
            "SRV",
            "NOERROR aa: \
          _pg._tcp.db.default.svc.cluster.local. 5 SRV 0 25 5432 db-0.db.default.svc.cluster.local.; \
          _pg._tcp.db.default.svc.cluster.local. 5 SRV 0 25 5432 db-1.db.default.svc.cluster.local.; \
          _pg._tcp.db.default.svc.cluster.local. 5 SRV 0 25 5432 10-244-0-7.db.default.svc.cluster.local.; \
          _pg._tcp.db.default.svc.cluster.local. 5 SRV 0 25 5432 fd00--0.db.default.svc.cluster.local. \
          add: db-0.db.default.svc.cluster.local. 5 A 10.244.0.5; db-1.db.default.svc.cluster.local. 5 A 10.244.0.6; \
          10-244-0-7.db.default.svc.cluster.local. 5 A 10.244.0.7; fd00--0.db.default.svc.cluster.local. 5 AAAA fd00::",
        ),
        (
            "portless.default.svc.cluster.local",
            "A",
            "NOERROR aa: portless.default.svc.cluster.local. 5 A 10.244.0.5",
        ),
        // Aliases.
        (
            "far.default.svc.cluster.local",
            "A",
            "NOERROR aa: \
          far.default.svc.cluster.local. 5 CNAME foo.example.com. > foo.example.com.",
        ),
        (
            "far.default.svc.cluster.local",
            "CNAME",
            "NOERROR aa: far.default.svc.cluster.local. 5 CNAME foo.example.com.",
        ),
        (
            "near.default.svc.cluster.local",
            "A",
            "NOERROR aa: \
          near.default.svc.cluster.local. 5 CNAME web.default.svc.cluster.local.; \
          web.default.svc.cluster.local. 5 A 10.96.0.20",
        ),
        (
            "nowhere.default.svc.cluster.local",
            "A",
            "NOERROR aa: \
          nowhere.default.svc.cluster.local. 5 CNAME no.default.svc.cluster.local.",
        ),
        // Addresses.
        (
            "20.0.96.10.in-addr.arpa",
            "PTR",
            "NOERROR aa: 20.0.96.10.in-addr.arpa. 5 PTR web.default.svc.cluster.local.",
        ),
        (
            "5.0.244.10.in-addr.arpa",
            "PTR",
            "NOERROR aa: \
          5.0.244.10.in-addr.arpa. 5 PTR db-0.db.default.svc.cluster.local.; \
          5.0.244.10.in-addr.arpa. 5 PTR 10-244-0-5.portless.default.svc.cluster.local.",
        ),
        (
            "1.2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa",
            "PTR",
            "NOERROR aa: \
          1.2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa. 5 PTR \
          dual.default.svc.cluster.local.",
        ),
        // Pods.
        (
            "10-1-2-3.default.pod.cluster.local",
            "A",
            "NOERROR aa: 10-1-2-3.default.pod.cluster.local. 5 A 10.1.2.3",
        ),
        (
            "fd00--1.default.pod.cluster.local",
            "AAAA",
            "NOERROR aa: fd00--1.default.pod.cluster.local. 5 AAAA fd00::1",
        ),
    ];
    for (asked, rtype, said) in rows {
        assert_eq!(say(&zone, STOCK, asked, rtype), said, "{rtype} {asked}");
    }
}

#[test]
fn what_does_not_exist_is_denied_and_what_has_no_such_record_is_empty() {
    let zone = cluster();
    let missing = [
        ("no.default.svc.cluster.local", "A"),
        ("web.nowhere.svc.cluster.local", "A"),
        ("nowhere.svc.cluster.local", "A"),
        ("x.web.default.svc.cluster.local", "A"),
        ("db-2.db.default.svc.cluster.local", "A"),
        ("10-244-0-5.db.default.svc.cluster.local", "A"),
        ("_no._tcp.web.default.svc.cluster.local", "SRV"),
        ("_http._udp.web.default.svc.cluster.local", "SRV"),
        ("_._tcp.dual.default.svc.cluster.local", "SRV"),
        ("quiet.default.svc.cluster.local", "A"),
        ("x.far.default.svc.cluster.local", "A"),
        ("_http._tcp.far.default.svc.cluster.local", "SRV"),
        ("literal.default.svc.cluster.local", "A"),
        ("a.b.c.web.default.svc.cluster.local", "A"),
        ("*.default.svc.cluster.local", "A"),
        ("web.*.svc.cluster.local", "A"),
        ("web.default.cluster.local", "A"),
        ("example.com.default.svc.cluster.local", "A"),
        ("example.com.cluster.local", "AAAA"),
        ("1-2-3.default.pod.cluster.local", "A"),
        ("10-1-2-3.nowhere.pod.cluster.local", "A"),
        ("x.10-1-2-3.default.pod.cluster.local", "A"),
    ];
    for (asked, rtype) in missing {
        assert_eq!(say(&zone, STOCK, asked, rtype), MISSING, "{rtype} {asked}");
    }
    let empty = [
        ("web.default.svc.cluster.local", "AAAA"),
        ("web.default.svc.cluster.local", "TXT"),
        ("web.default.svc.cluster.local", "MX"),
        ("web.default.svc.cluster.local", "ANY"),
        ("web.default.svc.cluster.local", "CNAME"),
        ("bare.default.svc.cluster.local", "SRV"),
        ("portless.default.svc.cluster.local", "SRV"),
        ("far.default.svc.cluster.local", "SRV"),
        ("ring.default.svc.cluster.local", "A"),
        ("cluster.local", "A"),
        ("svc.cluster.local", "A"),
        ("pod.cluster.local", "A"),
        ("default.svc.cluster.local", "A"),
        ("empty.svc.cluster.local", "AAAA"),
        ("default.pod.cluster.local", "A"),
        ("dns-version.cluster.local", "A"),
        ("10-1-2-3.default.pod.cluster.local", "AAAA"),
    ];
    for (asked, rtype) in empty {
        assert_eq!(say(&zone, STOCK, asked, rtype), EMPTY, "{rtype} {asked}");
    }
}

#[test]
fn others_are_asked_only_for_what_may_be_theirs() {
    let zone = cluster();
    let unknown = "20.1.96.10.in-addr.arpa";
    assert!(say(&zone, STOCK, unknown, "PTR").starts_with("> NXDOMAIN aa auth: in-addr.arpa. 5 SOA"));
    assert!(say(&zone, "", unknown, "PTR").starts_with("NXDOMAIN aa auth: in-addr.arpa."));
    assert!(say(&zone, STOCK, "20.0.96.10.in-addr.arpa", "A").starts_with("NOERROR aa auth: in-addr.arpa."));
    assert_eq!(say(&zone, "fallthrough", "no.default.svc.cluster.local", "A"), format!("> {MISSING}"));
    assert_eq!(say(&zone, STOCK, "example.com", "A"), "not ours");
    for rtype in ["AXFR", "IXFR"] {
        assert_eq!(say(&zone, STOCK, "cluster.local", rtype), "REFUSED", "{rtype}");
    }
}

#[test]
fn options_of_the_plugin_are_obeyed() {
    let zone = cluster();
    let pod = "10-244-0-5.default.pod.cluster.local";
    let rows = [
        ("pods disabled", pod, MISSING.to_owned()),
        ("pods disabled", "default.pod.cluster.local", MISSING.to_owned()),
        ("pods verified", pod, format!("NOERROR aa: {pod}. 5 A 10.244.0.5")),
        ("pods verified", "10-244-0-66.default.pod.cluster.local", MISSING.to_owned()),
        ("pods verified", "10-244-0-5.empty.pod.cluster.local", MISSING.to_owned()),
        ("namespaces kube-system", "web.default.svc.cluster.local", MISSING.to_owned()),
        ("ignore empty_service", "dual.default.svc.cluster.local", MISSING.to_owned()),
        (
            "ttl 30",
            "web.default.svc.cluster.local",
            "NOERROR aa: web.default.svc.cluster.local. 30 A 10.96.0.20".into(),
        ),
    ];
    for (options, asked, said) in rows {
        assert_eq!(say(&zone, options, asked, "A"), said, "{options}: {asked}");
    }
    // A denial lasts no longer than five minutes, whatever the records do.
    assert!(say(&zone, "ttl 600", "no.default.svc.cluster.local", "A").contains("cluster.local. 300 SOA"));
    let mut zone = Zone::default();
    zone.keep_pod_names(true);
    [Kind::Services, Kind::Slices, Kind::Namespaces].iter().for_each(|kind| zone.end(*kind));
    put(&mut zone, json!({"kind": "Namespace", "metadata": {"name": "default"}}));
    put(&mut zone, service("db", json!({"clusterIP": "None"})));
    put(
        &mut zone,
        slice("s", "db", json!([{"addresses": ["10.0.0.1"], "targetRef": {"name": "a.b"}}]), json!([])),
    );
    assert!(
        say(&zone, "", "1.0.0.10.in-addr.arpa", "PTR").ends_with("PTR a.b.db.default.svc.cluster.local.")
    );
}

#[test]
fn nothing_is_denied_before_everything_was_listed() {
    let mut zone = Zone::default();
    let name = "web.default.svc.cluster.local";
    for kind in [Kind::Services, Kind::Slices, Kind::Namespaces] {
        assert_eq!(say(&zone, STOCK, name, "A"), "SERVFAIL");
        assert_eq!(say(&zone, STOCK, "1.0.96.10.in-addr.arpa", "PTR"), "SERVFAIL");
        zone.begin(kind);
        zone.end(kind);
    }
    assert_eq!(say(&zone, "pods verified", name, "A"), "SERVFAIL");
    assert!(say(&zone, STOCK, name, "A").starts_with("NXDOMAIN"));
}

/// An owner of a namespace writes slices without end. What a question costs is bounded by what an answer can hold.
#[test]
fn a_service_with_endpoints_and_ports_without_end_costs_one_answer() {
    let mut zone = cluster();
    put(&mut zone, service("huge", json!({"clusterIP": "None", "ports": []})));
    let ports: Vec<Value> =
        (1..=100).map(|port| json!({"name": format!("p{port}"), "port": port, "protocol": "TCP"})).collect();
    for part in 0..60 {
        let endpoints: Vec<Value> =
            (0..1000).map(|n| json!({"addresses": [format!("10.{part}.{}.{}", n / 250, n % 250)]})).collect();
        put(&mut zone, slice(&format!("huge-{part}"), "huge", json!(endpoints), json!(ports)));
    }
    for rtype in ["A", "SRV"] {
        let query = ask("huge.default.svc.cluster.local", rtype.parse().unwrap());
        let Found::Answer(said) = found(&zone, &corefile(""), &query) else { panic!("{rtype}: no answer") };
        let count = said.answer.len();
        assert!((1000..=4200).contains(&count) && said.additional.len() <= 4200, "{rtype}: {count}");
    }
}

#[test]
fn the_zone_follows_what_changes() {
    let mut zone = cluster();
    let a = |zone: &Zone, name: &str| say(zone, STOCK, &format!("{name}.default.svc.cluster.local"), "A");
    // An ExternalName becomes a cluster IP, and back.
    put(&mut zone, service("far", json!({"clusterIP": "10.96.0.99", "ports": []})));
    assert!(a(&zone, "far").ends_with("A 10.96.0.99"));
    assert!(say(&zone, STOCK, "99.0.96.10.in-addr.arpa", "PTR").starts_with("NOERROR"));
    put(&mut zone, service("far", json!({"type": "ExternalName", "externalName": "bar.example.com"})));
    assert!(a(&zone, "far").contains("CNAME bar.example.com."));
    assert!(say(&zone, STOCK, "99.0.96.10.in-addr.arpa", "PTR").starts_with("> NXDOMAIN"));
    // The last slice goes, then comes before its Service does.
    zone.remove(Kind::Slices, "default", "portless-1");
    assert_eq!(a(&zone, "portless"), MISSING);
    assert!(
        say(&zone, STOCK, "5.0.244.10.in-addr.arpa", "PTR")
            .ends_with("PTR db-0.db.default.svc.cluster.local.")
    );
    zone.remove(Kind::Services, "default", "portless");
    put(&mut zone, slice("portless-2", "portless", json!([{"addresses": ["10.9.9.9"]}]), json!([])));
    assert_eq!(a(&zone, "portless"), MISSING);
    put(&mut zone, service("portless", json!({"clusterIP": "None"})));
    assert!(a(&zone, "portless").ends_with("A 10.9.9.9"));
    // A new list has neither web nor its slice.
    zone.begin(Kind::Services);
    assert!(a(&zone, "web").starts_with("NOERROR"));
    put(&mut zone, service("db", json!({"clusterIP": "None"})));
    zone.end(Kind::Services);
    assert_eq!(a(&zone, "web"), MISSING);
    assert!(a(&zone, "db").starts_with("NOERROR"));
    zone.begin(Kind::Slices);
    zone.end(Kind::Slices);
    assert_eq!(a(&zone, "db"), MISSING);
    zone.begin(Kind::Namespaces);
    zone.end(Kind::Namespaces);
    assert_eq!(say(&zone, STOCK, "default.svc.cluster.local", "A"), MISSING);
    assert!(matches!(
        found(&zone, &corefile(STOCK), &ask("default.svc.cluster.local", Rtype::A)),
        Found::Answer(_)
    ));
}

/// What this process has in memory, in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn an_endpoint_costs_a_tenth_of_a_kilobyte() {
    const SERVICES: usize = 1000;
    const ENDPOINTS: usize = 100;
    let mut zone = Zone::default();
    put(&mut zone, json!({"kind": "Namespace", "metadata": {"name": "default"}}));
    let load = |zone: &mut Zone, number: usize| {
        let name = format!("service-{number}");
        put(zone, service(&name, json!({"clusterIP": "None"})));
        let ip = |endpoint: usize| format!("10.{}.{}.{}", number / 256, number % 256, endpoint);
        let endpoints: Vec<_> = (0..ENDPOINTS).map(|e| json!({"addresses": [ip(e)]})).collect();
        put(
            zone,
            slice(&format!("{name}-x"), &name, json!(endpoints), json!([{"name": "http", "port": 80}])),
        );
    };
    let before = resident();
    (0..SERVICES).for_each(|number| load(&mut zone, number));
    let each = (resident() - before) / (SERVICES * ENDPOINTS);
    assert!(each <= 110, "{each} bytes for each endpoint");
}
