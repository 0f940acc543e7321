//! What chains that are there do with packets to an address, read from the text of `iptables-save`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::doctor::Treatment;
use crate::objects::Protocol;

use super::{EXTERNAL_SERVICES, NODE_PORTS, SERVICES};

/// How deep chains lead to one another: services, firewall, external, list, endpoint.
const DEPTH: usize = 6;

type Chains<'a> = BTreeMap<(&'a str, &'a str), Vec<&'a str>>;

/// Every endpoint that some packet to the address may be sent to, or what else becomes of it. An address of the node's own
/// may have node ports.
pub fn look(text: &str, protocol: Protocol, address: SocketAddr, is_own: bool) -> Treatment {
    let mut chains = Chains::new();
    let mut table = "";
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name.trim();
        } else if let Some((chain, rule)) = line.strip_prefix("-A ").and_then(|rule| rule.split_once(' ')) {
            chains.entry((table, chain)).or_default().push(rule);
        }
    }
    let rules = |table, chain| chains.get(&(table, chain)).into_iter().flatten();
    let is_it = |rule: &&&str| is_for(rule, protocol, address);
    let is_its_port = |rule: &&&str| is_own && is_for_port(rule, protocol, address.port());
    let by_address = rules("nat", SERVICES).find(is_it);
    let node_ports = || rules("nat", NODE_PORTS).find(is_its_port);
    if let Some(to) = by_address.or_else(node_ports).and_then(|rule| target(rule)) {
        let mut found = BTreeSet::new();
        follow(&chains, to, DEPTH, &mut found);
        return Treatment::Sent(found);
    }
    let refusals = [SERVICES, EXTERNAL_SERVICES].into_iter().flat_map(|chain| rules("filter", chain));
    match refusals.filter(|rule| is_it(rule) || is_its_port(rule)).find_map(|rule| target(rule)) {
        Some("REJECT") => Treatment::Rejected,
        Some("DROP") => Treatment::Dropped,
        _ => Treatment::Nothing,
    }
}

fn follow(chains: &Chains<'_>, chain: &str, depth: usize, found: &mut BTreeSet<SocketAddr>) {
    for rule in chains.get(&("nat", chain)).into_iter().flatten() {
        let words: Vec<&str> = rule.split(' ').collect();
        if let Some(at) = words.iter().position(|word| *word == "--to-destination") {
            found.extend(words.get(at + 1).and_then(|text| text.parse::<SocketAddr>().ok()));
        } else if let Some(next) = target(rule).filter(|_| depth > 0) {
            follow(chains, next, depth - 1, found);
        }
    }
}

fn is_for(rule: &str, protocol: Protocol, address: SocketAddr) -> bool {
    let words: Vec<&str> = rule.split(' ').collect();
    let has = |flag: &str, value: String| words.windows(2).any(|pair| pair[0] == flag && pair[1] == value);
    let length = if address.is_ipv4() { 32 } else { 128 };
    has("-p", protocol.to_string())
        && has("--dport", address.port().to_string())
        && has("-d", format!("{}/{length}", address.ip()))
}

/// A rule about a port of every address that gets to it.
fn is_for_port(rule: &str, protocol: Protocol, port: u16) -> bool {
    let words: Vec<&str> = rule.split(' ').collect();
    let has = |flag: &str, value: String| words.windows(2).any(|pair| pair[0] == flag && pair[1] == value);
    has("-p", protocol.to_string()) && has("--dport", port.to_string()) && !words.contains(&"-d")
}

fn target(rule: &str) -> Option<&str> {
    let mut words = rule.split(' ');
    words.find(|word| *word == "-j")?;
    words.next()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// As iptables-save prints it.
    const TEXT: &str = "\
*nat
:KUBE-SERVICES - [0:0]
-A KUBE-SERVICES -d 10.96.1.1/32 -p tcp -m comment --comment \"default/web:http cluster IP\" -m tcp --dport 80 -j KUBE-SVC-A
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-NODEPORTS -d 127.0.0.0/8 -p tcp -m tcp --dport 30080 -m nfacct --nfacct-name  localhost -j KUBE-EXT-A
-A KUBE-NODEPORTS -p tcp -m comment --comment \"default/web:http\" -m tcp --dport 30080 -j KUBE-EXT-A
-A KUBE-EXT-A -j KUBE-SVC-A
-A KUBE-SVC-A ! -s 10.244.0.0/16 -d 10.96.1.1/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SVC-A -m statistic --mode random --probability 0.5 -j KUBE-SEP-1
-A KUBE-SVC-A -j KUBE-SEP-2
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-SEP-1 -p tcp -m tcp -j DNAT --to-destination 10.244.0.5:8080
-A KUBE-SEP-2 -p tcp -m tcp -j DNAT --to-destination 10.244.0.6:8080
COMMIT
*filter
-A KUBE-SERVICES -d 10.96.1.2/32 -p tcp -m comment --comment \"default/lone:http has no endpoints\" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
-A KUBE-SERVICES -d 10.96.1.3/32 -p udp -m udp --dport 53 -j DROP
-A KUBE-EXTERNAL-SERVICES -p tcp -m addrtype --dst-type LOCAL -m tcp --dport 30081 -j REJECT
COMMIT
";

    #[test]
    fn chains_are_followed_to_their_endpoints() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let both = Treatment::Sent(BTreeSet::from([at("10.244.0.5:8080"), at("10.244.0.6:8080")]));
        let rows = [
            ("10.96.1.1:80", Protocol::Tcp, both.clone()),
            ("192.168.0.1:30080", Protocol::Tcp, both),
            ("192.168.0.1:30081", Protocol::Tcp, Treatment::Rejected),
            ("192.168.0.1:30082", Protocol::Tcp, Treatment::Nothing),
            ("10.96.1.1:30080", Protocol::Tcp, Treatment::Nothing),
            ("10.96.1.1:80", Protocol::Udp, Treatment::Nothing),
            ("10.96.1.1:81", Protocol::Tcp, Treatment::Nothing),
            ("10.96.1.2:80", Protocol::Tcp, Treatment::Rejected),
            ("10.96.1.3:53", Protocol::Udp, Treatment::Dropped),
        ];
        for (address, protocol, wanted) in rows {
            let is_own = address.starts_with("192.");
            assert_eq!(look(TEXT, protocol, at(address), is_own), wanted, "{address}");
        }
    }
}
