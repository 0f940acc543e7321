//! Corefiles as people have them, and what is refused.
#![allow(clippy::unwrap_used)]

mod small_cluster;

use std::time::Duration;

use base::time::Mono;
use dns_core::cache::{Cache, Sort};
use dns_core::corefile::{self, Policy, Upstream, default_text};
use dns_core::hosts::Table;
use dns_core::message::{Answer, address, cname, soa};
use dns_core::{Rcode, Rtype, name, route};
use small_cluster::ask;

const KUBEADM: &str = "
.:53 {
    errors
    health {
       lameduck 5s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
       ttl 30
    }
    prometheus :9153
    forward . /etc/resolv.conf {
       max_concurrent 1000
    }
    cache 30 {
       disable success cluster.local
       disable denial cluster.local
    }
    loop
    reload
    loadbalance
}
# stub domains
corp.example:53, lab.example {
    errors
    cache 30
    forward . 10.1.0.1 [fd00::53]:5353 dns://10.1.0.2:54 {
        policy sequential
        force_tcp
        except public.corp.example
    }
}
";

#[test]
fn kubeadms_file_is_read_with_stub_domains() {
    let file = corefile::read(KUBEADM).unwrap();
    assert_eq!((file.port, file.servers.len()), (53, 2));
    assert_eq!(file.health.unwrap().to_string(), "[::]:8080");
    assert_eq!(file.ready.unwrap().to_string(), "[::]:8181");
    assert_eq!(file.prometheus.unwrap().to_string(), "[::]:9153");
    let first = &file.servers[0];
    assert_eq!(first.kubernetes.as_ref().unwrap().ttl, 30);
    assert!(first.shuffles && first.finds_loops && first.logs_errors && !first.logs_queries);
    assert_eq!(first.forward[0].to, [Upstream::File("/etc/resolv.conf".into())]);
    assert_eq!(first.forward[0].max_concurrent, Some(1000));
    let second = &file.servers[1].forward[0];
    assert_eq!((second.policy, second.forces_tcp), (Policy::Sequential, true));
    let to = ["10.1.0.1:53", "[fd00::53]:5353", "10.1.0.2:54"].map(|a| Upstream::Address(a.parse().unwrap()));
    assert_eq!(second.to, to);
    let server = |asked: &str| {
        let asked = name::parse(asked).unwrap();
        let (server, zone) = route::server(&file, &asked).unwrap();
        (name::text(zone), route::forward(server, &asked).is_some())
    };
    assert_eq!(server("www.CORP.example"), ("corp.example.".into(), true));
    assert_eq!(server("www.public.corp.example"), ("corp.example.".into(), false));
    assert_eq!(server("a.lab.example"), ("lab.example.".into(), true));
    assert_eq!(server("xcorp.example"), (".".into(), true));
    assert_eq!(
        corefile::read(&default_text("cluster.local")).unwrap().servers[0].kubernetes.as_ref().unwrap().ttl,
        5
    );
}

#[test]
fn what_is_not_supported_is_refused_by_its_name_and_line() {
    let rows = [
        (".:53 {\n errors\n template ANY ANY\n}", "Corefile:3: plugin \"template\" is not supported"),
        (".:53 {\n import custom/*.override\n}", "Corefile:2: plugin \"import\" is not supported"),
        (
            ".:53 {\n kubernetes {\n  labels x\n }\n}",
            "Corefile:2: plugin \"kubernetes\": option \"labels\" in line 3 is not supported",
        ),
        (
            ".:53 {\n cache {\n  prefetch 10\n }\n}",
            "Corefile:2: plugin \"cache\": option \"prefetch\" in line 3 is not supported",
        ),
        (
            ".:53 {\n forward . tls://9.9.9.9\n}",
            "Corefile:2: plugin \"forward\": upstream tls:// is not supported: only plain DNS is",
        ),
        (
            ".:53 {\n forward . resolver\n}",
            "Corefile:2: plugin \"forward\": \"resolver\" is neither an address nor a file",
        ),
        (".:53 {\n forward .\n}", "Corefile:2: plugin \"forward\": needs between one and 15 upstreams"),
        ("tls://.:853 {\n}", "Corefile:1: server tls:// is not supported: only plain DNS is"),
        (".:53 {\n}\na.b:54 {\n}", "Corefile:3: port 54: all servers have to listen on one port"),
        (".:53 {\n}\n. {\n}", "Corefile:3: zone . has a server already"),
        (".:53 {\n errors", "Corefile:1: the block that begins here has no '}'"),
        (".:53", "Corefile:1: a server without a block: '{' is missing"),
        ("", "Corefile:1: no server"),
        (
            ".:53 {\n rewrite name regex a b\n}",
            "Corefile:2: plugin \"rewrite\": \"name regex a b\" is not supported",
        ),
        (
            ".:53 {\n kubernetes cluster.local 10.0.0.0/8\n}",
            "Corefile:2: plugin \"kubernetes\": 10.0.0.0/8 is an address range; write in-addr.arpa or ip6.arpa",
        ),
        (
            ".:53 {\n kubernetes {\n ttl 9999\n }\n}",
            "Corefile:2: plugin \"kubernetes\": ttl is between 0 and 3600",
        ),
        (".:53 {\n \"x\n}", "Corefile:2: a quote without an end"),
        (".:53 {\n a { b { c { d { e } } } }\n}", "Corefile:2: too many blocks in each other"),
    ];
    for (text, said) in rows {
        assert_eq!(corefile::read(text).unwrap_err().to_string(), said, "{text}");
    }
}

#[test]
fn names_are_rewritten() {
    let text = ". {\n rewrite name old.example new.default.svc.cluster.local\n rewrite stop name suffix .ext. .svc.cluster.local. answer auto\n rewrite name prefix a- b-\n}";
    let rules = corefile::read(text).unwrap().servers.remove(0).rewrite;
    let made = |asked: &str| {
        let asked = name::parse(asked).unwrap();
        rules.iter().find_map(|rule| rule.apply(&asked)).map(|name| name::text(&name))
    };
    assert_eq!(made("OLD.example").as_deref(), Some("new.default.svc.cluster.local."));
    assert_eq!(made("x.old.example"), None);
    assert_eq!(made("web.default.ext").as_deref(), Some("web.default.svc.cluster.local."));
    assert_eq!(made("a-web.x").as_deref(), Some("b-web.x."));
}

#[test]
fn hosts_are_answered_and_others_go_on() {
    let text = ". {\n hosts /etc/coredns/NodeHosts {\n 10.0.0.9 inline.example\n ttl 60\n reload 15s\n fallthrough\n }\n}";
    let plugin = corefile::read(text).unwrap().servers.remove(0).hosts.unwrap();
    let table = Table::read([
        "10.0.0.1 Node-1 node-1.lan # x\n\n# 1.1.1.1 y\nfd00::1 node-1\nbad line\n",
        &plugin.inline[0],
    ]);
    let say = |asked: &str, rtype| {
        table.answer(&plugin, &ask(asked, rtype)).map(|answer| small_cluster::told(&answer))
    };
    assert_eq!(say("NODE-1", Rtype::A).as_deref(), Some("NOERROR aa: NODE-1. 60 A 10.0.0.1"));
    assert_eq!(say("node-1", Rtype::AAAA).as_deref(), Some("NOERROR aa: node-1. 60 AAAA fd00::1"));
    assert_eq!(say("node-1", Rtype::MX).as_deref(), Some("NOERROR aa"));
    assert_eq!(say("inline.example", Rtype::A).as_deref(), Some("NOERROR aa: inline.example. 60 A 10.0.0.9"));
    assert_eq!(
        say("1.0.0.10.in-addr.arpa", Rtype::PTR).as_deref(),
        Some("NOERROR aa: 1.0.0.10.in-addr.arpa. 60 PTR node-1.; 1.0.0.10.in-addr.arpa. 60 PTR node-1.lan.")
    );
    assert_eq!(say("other", Rtype::A), None);
    let plugin = corefile::Hosts { fallthrough: None, ..plugin };
    assert_eq!(table.answer(&plugin, &ask("other", Rtype::A)).unwrap().rcode, Rcode::NXDOMAIN);
}

fn at(seconds: u64) -> Mono {
    Mono(Duration::from_secs(seconds))
}

#[test]
fn answers_are_kept_for_their_time_and_no_longer() {
    let text = ". {\n cache 30 {\n success 2\n disable denial secret.example\n }\n}";
    let mut cache = Cache::new(corefile::read(text).unwrap().servers.remove(0).cache.unwrap());
    let query = ask("www.example", Rtype::A);
    let mut said = Answer::new(Rcode::NOERROR);
    said.answer.push(cname(&query.name, 300, name::parse("real.example").unwrap()));
    said.answer.push(address(&name::parse("real.example").unwrap(), 100, "192.0.2.1".parse().unwrap()));
    assert!(cache.get(&query, at(0)).is_none());
    cache.put(&query, &mut said, at(0));
    assert_eq!(said.answer[0].ttl().as_secs(), 30);
    for (now, left) in [(0, Some(30)), (10, Some(20)), (29, Some(1)), (30, None)] {
        let found = cache.get(&ask("WWW.example", Rtype::A), at(now));
        assert_eq!(found.map(|(answer, _)| answer.answer[1].ttl().as_secs()), left, "{now}");
    }
    // Other questions; answers that were cut; what nobody vouches for.
    assert!(cache.get(&ask("www.example", Rtype::AAAA), at(0)).is_none());
    let mut checked = query.clone();
    checked.checking_disabled = true;
    assert!(cache.get(&checked, at(0)).is_none());
    let other = ask("other.example", Rtype::A);
    let mut cut = Answer { is_truncated: true, ..said.clone() };
    cache.put(&other, &mut cut, at(0));
    cache.put(&other, &mut Answer::new(Rcode::NXDOMAIN), at(0));
    cache.put(&other, &mut Answer::new(Rcode::REFUSED), at(0));
    assert!(cache.get(&other, at(0)).is_none());
    // A short life is stretched to five seconds, a failure lasts as long.
    let mut short = Answer::new(Rcode::NOERROR);
    short.answer.push(address(&other.name, 1, "192.0.2.2".parse().unwrap()));
    cache.put(&other, &mut short, at(0));
    assert!(cache.get(&other, at(4)).is_some() && cache.get(&other, at(5)).is_none());
    cache.put(&other, &mut Answer::new(Rcode::SERVFAIL), at(10));
    assert_eq!(cache.get(&other, at(14)).unwrap().1, Sort::Denial);
    assert!(cache.get(&other, at(15)).is_none());
    // Denials, by their SOA.
    let mut denial = Answer::new(Rcode::NXDOMAIN);
    denial.authority.push(soa(&name::parse("example").unwrap(), 10, 1));
    let no = ask("no.example", Rtype::A);
    cache.put(&no, &mut denial.clone(), at(0));
    assert_eq!(cache.get(&no, at(9)).unwrap().0.rcode, Rcode::NXDOMAIN);
    assert!(cache.get(&no, at(10)).is_none());
    let secret = ask("x.secret.example", Rtype::A);
    cache.put(&secret, &mut denial, at(0));
    assert!(cache.get(&secret, at(0)).is_none());
    // There is an end to it: the oldest goes.
    for name in ["a.example", "b.example", "c.example"] {
        cache.put(&ask(name, Rtype::A), &mut said.clone(), at(0));
    }
    assert_eq!(cache.len(Sort::Success), 2);
    assert!(cache.get(&ask("a.example", Rtype::A), at(0)).is_none());
    assert!(cache.get(&ask("c.example", Rtype::A), at(0)).is_some());
}
