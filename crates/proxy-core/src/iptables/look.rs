//! What chains that are there do with a packet, read from the text of `iptables-save`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use crate::doctor::Treatment;
use crate::objects::Cidr;
use crate::rules::Host;
use crate::trace::Packet;

use super::{EXTERNAL_SERVICES, PROXY_FIREWALL, SERVICES};

/// How deep chains lead to one another: services, node ports, firewall, external, list, endpoint.
const DEPTH: usize = 6;

/// Where a packet that was sent nowhere is refused, in this order.
const REJECTIONS: [&str; 3] = [PROXY_FIREWALL, SERVICES, EXTERNAL_SERVICES];

/// Every endpoint that the packet may be sent to, or what else becomes of it. Of the rules only those are understood that a
/// kube-proxy writes, whichever it is; nothing that others do matters here.
pub fn look(text: &str, packet: &Packet, host: &Host) -> Treatment {
    let mut chains = BTreeMap::<_, Vec<&str>>::new();
    let mut table = "";
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name.trim();
        } else if let Some((chain, rule)) = line.strip_prefix("-A ").and_then(|rule| rule.split_once(' ')) {
            chains.entry((table, chain)).or_default().push(rule);
        }
    }
    let mut look = Look { chains: &chains, packet, host, found: BTreeSet::new() };
    look.follow(SERVICES, DEPTH);
    if !look.found.is_empty() {
        return Treatment::Sent(look.found);
    }
    let rules = REJECTIONS.into_iter().flat_map(|chain| chains.get(&("filter", chain)).into_iter().flatten());
    match rules.filter(|rule| look.fits(rule) == Fit::Always).find_map(|rule| target(rule)) {
        Some("REJECT") => Treatment::Rejected,
        Some("DROP") => Treatment::Dropped,
        _ => Treatment::Nothing,
    }
}

struct Look<'a> {
    /// By table and name.
    chains: &'a BTreeMap<(&'a str, &'a str), Vec<&'a str>>,
    packet: &'a Packet,
    host: &'a Host,
    found: BTreeSet<SocketAddr>,
}

/// Whether a rule is for the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    Never,
    /// Chance decides, or what was before.
    Perhaps,
    Always,
}

// === impl Look ===

impl Look<'_> {
    /// Says whether the packet comes out of the chain again.
    fn follow(&mut self, chain: &str, depth: usize) -> bool {
        for rule in self.chains.get(&("nat", chain)).into_iter().flatten() {
            let fit = self.fits(rule);
            if fit == Fit::Never {
                continue;
            }
            let words: Vec<&str> = rule.split(' ').collect();
            let comes_out = match words.iter().position(|word| *word == "--to-destination") {
                Some(at) => {
                    self.found.extend(words.get(at + 1).and_then(|text| text.parse::<SocketAddr>().ok()));
                    false
                }
                None => match target(rule) {
                    Some("RETURN") if fit == Fit::Always => return true,
                    Some(next) if depth > 0 => self.follow(next, depth - 1),
                    _ => true,
                },
            };
            if !comes_out && fit == Fit::Always {
                return false;
            }
        }
        true
    }

    fn fits(&self, rule: &str) -> Fit {
        let mut fit = Fit::Always;
        let (mut before, mut words) = ("", rule.split(' ').peekable());
        while let Some(word) = words.next() {
            let is_negated = before == "!";
            before = word;
            let value = words.peek().copied().unwrap_or_default();
            let fits = match word {
                "-j" => break,
                "-p" => value == self.packet.protocol.to_string(),
                "--dport" => value == self.packet.port.to_string(),
                "-s" => is_in(value, self.packet.source),
                "-d" => is_in(value, self.packet.destination),
                "-i" => self.came_in_by(value),
                "--src-type" => self.host.is_local(self.packet.source),
                "--dst-type" => self.host.is_local(self.packet.destination),
                "--probability" | "--rcheck" => {
                    fit = fit.min(Fit::Perhaps);
                    continue;
                }
                _ => continue,
            };
            if fits == is_negated {
                return Fit::Never;
            }
        }
        fit
    }

    fn came_in_by(&self, name: &str) -> bool {
        self.packet.arrival.interface().is_some_and(|interface| match name.strip_suffix('+') {
            Some(prefix) => interface.starts_with(prefix),
            None => interface == name,
        })
    }
}

/// Whether an address is the one that a rule names, or in the range.
fn is_in(text: &str, ip: IpAddr) -> bool {
    let range = Cidr::parse(text).or_else(|| text.parse().ok().map(Cidr::host));
    range.is_some_and(|range| range.contains(ip))
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
    use crate::objects::Protocol;
    use crate::trace::Arrival;

    /// As iptables-save prints it.
    const TEXT: &str = "\
*nat
:KUBE-SERVICES - [0:0]
-A KUBE-SERVICES -d 10.96.1.1/32 -p tcp -m comment --comment \"default/web:http cluster IP\" -m tcp --dport 80 -j KUBE-SVC-A
-A KUBE-SERVICES -d 5.6.7.1/32 -p tcp -m comment --comment \"default/web:http loadbalancer IP\" -m tcp --dport 80 -j KUBE-FW-A
-A KUBE-SERVICES -d 5.6.7.2/32 -p tcp -m comment --comment \"default/near:http loadbalancer IP\" -m tcp --dport 80 -j KUBE-EXT-B
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-NODEPORTS -d 127.0.0.0/8 -p tcp -m tcp --dport 30080 -m nfacct --nfacct-name  localhost -j KUBE-EXT-A
-A KUBE-NODEPORTS -p tcp -m comment --comment \"default/web:http\" -m tcp --dport 30080 -j KUBE-EXT-A
-A KUBE-FW-A -s 10.244.0.0/16 -m comment --comment \"default/web:http loadbalancer IP\" -j KUBE-EXT-A
-A KUBE-FW-A -s 192.168.7.0/24 -m comment --comment \"default/web:http loadbalancer IP\" -j KUBE-EXT-A
-A KUBE-EXT-A -j KUBE-SVC-A
-A KUBE-EXT-B -s 10.244.0.0/16 -m comment --comment \"pod traffic for default/near:http external destinations\" -j KUBE-SVC-B
-A KUBE-EXT-B -m comment --comment \"masquerade LOCAL traffic\" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ
-A KUBE-EXT-B -m comment --comment \"route LOCAL traffic\" -m addrtype --src-type LOCAL -j KUBE-SVC-B
-A KUBE-EXT-B -j KUBE-SVL-B
-A KUBE-SVC-A ! -s 10.244.0.0/16 -d 10.96.1.1/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SVC-A -m statistic --mode random --probability 0.5 -j KUBE-SEP-1
-A KUBE-SVC-A -j KUBE-SEP-2
-A KUBE-SVC-B -m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-1 --mask 255.255.255.255 --rsource -j KUBE-SEP-1
-A KUBE-SVC-B -j KUBE-SEP-2
-A KUBE-SVL-B -j KUBE-SEP-3
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-SEP-1 -p tcp -m tcp -j DNAT --to-destination 10.244.0.5:8080
-A KUBE-SEP-2 -s 10.244.0.6/32 -j KUBE-MARK-MASQ
-A KUBE-SEP-2 -p tcp -m tcp -j DNAT --to-destination 10.244.0.6:8080
-A KUBE-SEP-3 -p tcp -m tcp -j DNAT --to-destination 10.244.0.7:8080
COMMIT
*filter
-A KUBE-PROXY-FIREWALL -d 5.6.7.1/32 -p tcp -m comment --comment \"default/web:http traffic not accepted by KUBE-FW-A\" -m tcp --dport 80 -j DROP
-A KUBE-SERVICES -d 10.96.1.2/32 -p tcp -m comment --comment \"default/lone:http has no endpoints\" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
-A KUBE-SERVICES -d 10.96.1.3/32 -p udp -m udp --dport 53 -j DROP
-A KUBE-EXTERNAL-SERVICES -p tcp -m addrtype --dst-type LOCAL -m tcp --dport 30081 -j REJECT
COMMIT
";

    #[test]
    fn chains_are_followed_to_their_endpoints() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let host = Host { addresses: ["192.168.0.1", "192.168.7.1"].map(|ip| ip.parse().unwrap()).into() };
        let sent = |endpoints: &[&str]| Treatment::Sent(endpoints.iter().map(|text| at(text)).collect());
        let both = sent(&["10.244.0.5:8080", "10.244.0.6:8080"]);
        let rows = [
            ("10.96.1.1:80", Protocol::Tcp, both.clone()),
            ("192.168.0.1:30080", Protocol::Tcp, both.clone()),
            ("192.168.0.1:30081", Protocol::Tcp, Treatment::Rejected),
            ("192.168.0.1:30082", Protocol::Tcp, Treatment::Nothing),
            ("10.96.1.1:30080", Protocol::Tcp, Treatment::Nothing),
            ("10.96.1.1:80", Protocol::Udp, Treatment::Nothing),
            ("10.96.1.1:81", Protocol::Tcp, Treatment::Nothing),
            ("10.96.1.2:80", Protocol::Tcp, Treatment::Rejected),
            ("10.96.1.3:53", Protocol::Udp, Treatment::Dropped),
            // Not among the source ranges.
            ("5.6.7.1:80", Protocol::Tcp, Treatment::Dropped),
            // Not to the one that is for those who come from outside.
            ("5.6.7.2:80", Protocol::Tcp, both.clone()),
        ];
        let look_from = |source: &str, address: &str, protocol| {
            let (source, to) = (source.parse().unwrap(), at(address));
            let (destination, port, arrival) = (to.ip(), to.port(), Arrival::Node);
            look(TEXT, &Packet { source, destination, protocol, port, arrival }, &host)
        };
        for (address, protocol, wanted) in rows {
            assert_eq!(look_from("192.168.0.1", address, protocol), wanted, "{address}");
        }
        assert_eq!(look_from("192.168.7.1", "5.6.7.1:80", Protocol::Tcp), both);
    }
}
