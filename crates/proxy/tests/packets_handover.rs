//! The table `kube-proxy` changes hands between our proxy and upstream's, in both directions, with real packets.
#![allow(clippy::unwrap_used)]

mod support;

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::Stdio;

use fixture::Tools;
use proxy::backend::nft::NftDataplane;
use proxy::ports::Dataplane;
use proxy_core::objects::{Family, Protocol};
use serde_json::json;
use support::matrix::Kernel;
use support::{Answer, Lab, MASQUERADE_BIT, Party, service, settings, slices};

fn open(family: Family) -> Box<dyn Dataplane> {
    Box::new(NftDataplane::open(family, MASQUERADE_BIT).unwrap())
}

/// What upstream's kube-proxy 1.36 tells the kernel first, for one Service with a node port and one endpoint: its names,
/// types and order of commands. Chains that both of us call are deleted and made anew, or emptied; sets are added.
fn upstream(family: Family, vip: &str, node_port: u16, endpoint: SocketAddr) -> String {
    let (ip, address, reject) = match family {
        Family::V4 => ("ip", "ipv4_addr", "127.0.0.0/8"),
        Family::V6 => ("ip6", "ipv6_addr", "::1"),
    };
    let table = format!("{ip} kube-proxy");
    let mut script = format!("add table {table} {{ comment \"rules for kube-proxy\" ; }}\n");
    let bases = [
        ("filter-prerouting-pre-dnat", "filter hook prerouting priority -110"),
        ("filter-output-pre-dnat", "filter hook output priority -110"),
        ("filter-input", "filter hook input priority 0"),
        ("filter-forward", "filter hook forward priority 0"),
        ("filter-output", "filter hook output priority 0"),
        ("nat-prerouting", "nat hook prerouting priority -100"),
        ("nat-output", "nat hook output priority -100"),
        ("nat-postrouting", "nat hook postrouting priority 100"),
    ];
    for (chain, _) in bases {
        writeln!(script, "add chain {table} {chain}\ndelete chain {table} {chain}").unwrap();
    }
    for (chain, hook) in bases {
        writeln!(script, "add chain {table} {chain} {{ type {hook} ; }}\nflush chain {table} {chain}")
            .unwrap();
    }
    let plain = [
        "service-endpoints-check",
        "nodeport-endpoints-check",
        "cluster-ips-check",
        "firewall-check",
        "services",
        "masquerading",
        "reject-chain",
    ];
    for chain in plain {
        writeln!(script, "add chain {table} {chain}\nflush chain {table} {chain}").unwrap();
    }
    let jumps = [
        ("nat-prerouting", "jump services"),
        ("nat-output", "jump services"),
        ("nat-postrouting", "jump masquerading"),
        ("filter-input", "ct state new jump nodeport-endpoints-check"),
        ("filter-input", "ct state new jump service-endpoints-check"),
        ("filter-forward", "ct state new jump service-endpoints-check"),
        ("filter-forward", "ct state new jump cluster-ips-check"),
        ("filter-output", "ct state new jump service-endpoints-check"),
        ("filter-output", "ct state new jump cluster-ips-check"),
        ("filter-prerouting-pre-dnat", "ct state new jump firewall-check"),
        ("filter-output-pre-dnat", "ct state new jump firewall-check"),
        ("reject-chain", "reject"),
    ];
    for (chain, rule) in jumps {
        writeln!(script, "add rule {table} {chain} {rule}").unwrap();
    }
    let verdicts = |key: &str| format!("{{ type {key} : verdict ; }}");
    let (service, port) = (format!("{address} . inet_proto . inet_service"), "inet_proto . inet_service");
    writeln!(
        script,
        "add set {table} hairpin-connections {{ type {address} . {address} . inet_proto . inet_service ; }}
add set {table} cluster-ips {{ type {address} ; }}
add set {table} nodeport-ips {{ type {address} ; }}
delete set {table} nodeport-ips
add map {table} no-endpoint-services {of_service}
add map {table} no-endpoint-nodeports {of_port}
add map {table} firewall-ips {of_service}
add map {table} service-ips {of_service}
add map {table} service-nodeports {of_port}
add rule {table} cluster-ips-check {ip} daddr @cluster-ips reject
add rule {table} service-endpoints-check {ip} daddr . meta l4proto . th dport vmap @no-endpoint-services
add rule {table} nodeport-endpoints-check fib daddr type local {ip} daddr != {reject} meta l4proto . th dport vmap @no-endpoint-nodeports
add rule {table} firewall-check {ip} daddr . meta l4proto . th dport vmap @firewall-ips
add rule {table} services {ip} daddr . meta l4proto . th dport vmap @service-ips
add rule {table} services fib daddr type local {ip} daddr != {reject} meta l4proto . th dport vmap @service-nodeports
add chain {table} service-ABCDEFGH-ns/web/tcp/tcp
flush chain {table} service-ABCDEFGH-ns/web/tcp/tcp
add rule {table} service-ABCDEFGH-ns/web/tcp/tcp meta l4proto tcp dnat to {endpoint}
add element {table} cluster-ips {{ {vip} }}
add element {table} service-ips {{ {vip} . tcp . 80 : goto service-ABCDEFGH-ns/web/tcp/tcp }}
add element {table} service-nodeports {{ tcp . {node_port} : goto service-ABCDEFGH-ns/web/tcp/tcp }}",
        of_service = verdicts(&service),
        of_port = verdicts(port),
    )
    .unwrap();
    script
}

fn load_rules(lab: &Lab, script: &str) {
    let nft = Tools::nft_from_env().unwrap().display().to_string();
    let mut command = lab.node.ns.command(&nft);
    let mut child = command.args(["-f", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{}\n{script}", String::from_utf8_lossy(&out.stderr));
}

fn answered_by(lab: &Lab, family: Family, name: &str) {
    let vip: SocketAddr =
        if family == Family::V4 { "10.96.0.10:80" } else { "[fd96::10]:80" }.parse().unwrap();
    let node_port = SocketAddr::new(lab.node.ip(family), 30010);
    for (client, to) in [(&lab.pods[2], vip), (&lab.outside, node_port)] {
        for answer in client.calls(to, Protocol::Tcp, 4) {
            let Answer::From { name: who, .. } = &answer else { panic!("{} {to}: {answer:?}", client.name) };
            assert_eq!(who, name, "{} {to}", client.name);
        }
    }
}

#[test]
fn each_proxy_takes_over_the_table_that_the_other_left() {
    if support::skipped() {
        return;
    }
    // Without the packages there is nobody to play upstream's part.
    if Tools::nft_from_env().is_none() {
        return;
    }
    let lab = Lab::new();
    let mut cluster = support::cluster();
    let ports = json!([{"name": "tcp", "port": 80, "nodePort": 30010}]);
    let sticky = json!({"spec": {"type": "NodePort", "ports": ports, "sessionAffinity": "ClientIP"}});
    cluster.replace_services(&[service("web", 10, sticky), service("idle", 11, json!({}))]);
    cluster.replace_slices(&slices("web", &[&lab.pods[0]]));
    let ours = |cluster: &mut proxy_core::objects::Cluster| {
        // Each time an agent that has just started, and knows nothing of what was before.
        Kernel::both(&lab, &settings(), open).iter_mut().for_each(|kernel| kernel.update(&lab, cluster));
    };
    ours(&mut cluster);
    let endpoint = |party: &Party, family| SocketAddr::new(party.ip(family), support::TARGET);
    for family in Family::BOTH {
        answered_by(&lab, family, "a");
        let vip = if family == Family::V4 { "10.96.0.10" } else { "fd96::10" };
        let script = upstream(family, vip, 30010, endpoint(&lab.pods[1], family));
        load_rules(&lab, &script);
        answered_by(&lab, family, "b");
        // A proxy that starts again finds its own.
        load_rules(&lab, &script);
        answered_by(&lab, family, "b");
    }
    let mut cluster_again = support::cluster();
    let over =
        json!({"spec": {"type": "NodePort", "ports": [{"name": "tcp", "port": 80, "nodePort": 30010}]}});
    cluster_again.replace_services(&[service("web", 10, over)]);
    cluster_again.replace_slices(&slices("web", &[&lab.pods[0]]));
    ours(&mut cluster_again);
    for family in Family::BOTH {
        answered_by(&lab, family, "a");
    }
}
