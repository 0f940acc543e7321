//! What a Pod's resolver is told.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Pod, PodDNSConfigOption};

use super::metadata::describe;
use super::types::{Dns, NodeFacts, Warning};

const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARS: usize = 2048;
const MAX_SEARCH_NAME: usize = 253;

/// Reason and message of the event that such a node gets; its Pods get one as well.
pub const MISSING_CLUSTER_DNS: (&str, &str) = (
    "MissingClusterDNS",
    "kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. Falling back to \"Default\" policy.",
);

enum Base {
    Cluster,
    Host,
    Nothing,
}

/// The resolver settings of a Pod, and what had to be left out of them.
pub(super) fn dns(pod: &Pod, node: &NodeFacts) -> (Dns, Vec<Warning>) {
    let mut warnings = Vec::new();
    let mut dns = match base_of(pod) {
        Base::Nothing => Dns::default(),
        Base::Host => host(node),
        Base::Cluster if node.cluster_dns.is_empty() => {
            let (reason, of_node) = MISSING_CLUSTER_DNS;
            warnings.push(Warning { reason, message: format!("pod: {:?}. {of_node}", describe(pod)) });
            host(node)
        }
        Base::Cluster => cluster(pod, node),
    };
    if let Some(extra) = pod.spec.as_ref().and_then(|s| s.dns_config.as_ref()) {
        dns.servers.extend(extra.nameservers.iter().flatten().cloned());
        dns.searches.extend(extra.searches.iter().flatten().cloned());
        dns.servers = distinct(dns.servers);
        dns.searches = distinct(dns.searches);
        dns.options = merge_options(dns.options, extra.options.as_deref().unwrap_or_default());
    }
    fit(&mut dns, &mut warnings);
    (dns, warnings)
}

/// Reads a resolver file: nameservers add up, the last `search` line wins, options merge by name.
/// A nameserver line without a name is an error.
pub fn parse_resolv_conf(text: &str) -> Result<Dns, String> {
    let mut dns = Dns::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => {
                dns.servers.push(words.next().ok_or("nameserver list is empty")?.to_owned());
            }
            Some("search") => {
                let names = words.filter(|w| *w != ".");
                dns.searches = names.map(|w| w.strip_suffix('.').unwrap_or(w).to_owned()).collect();
            }
            Some("options") => {
                for option in words {
                    let name = |o: &str| o.split(':').next().unwrap_or_default().to_owned();
                    dns.options.retain(|o| name(o) != name(option));
                    dns.options.push(option.to_owned());
                }
            }
            _ => {}
        }
    }
    Ok(dns)
}

/// Says what of a resolver file will not reach the Pods that inherit it, in upstream's words.
pub fn check_resolver(path: &str, text: &str, cluster_domain: &str) -> Result<(), String> {
    let searches = parse_resolv_conf(text)?.searches;
    // Pods look into the cluster's own three domains first.
    let most = if cluster_domain.is_empty() { MAX_SEARCHES } else { MAX_SEARCHES - 3 };
    if searches.len() > most {
        return Err(format!(
            "Resolv.conf file '{path}' contains search line consisting of more than {most} domains!"
        ));
    }
    if searches.iter().any(|name| name.len() > MAX_SEARCH_NAME) {
        return Err(format!(
            "Resolv.conf file {path:?} contains a search path which length is more than allowed {MAX_SEARCH_NAME} chars!"
        ));
    }
    if searches.join(" ").len() > MAX_SEARCH_CHARS {
        return Err(format!(
            "Resolv.conf file '{path}' contains search line which length is more than allowed {MAX_SEARCH_CHARS} chars!"
        ));
    }
    Ok(())
}

fn base_of(pod: &Pod) -> Base {
    let spec = pod.spec.as_ref();
    let host_network = spec.and_then(|s| s.host_network) == Some(true);
    match spec.and_then(|s| s.dns_policy.as_deref()).unwrap_or("ClusterFirst") {
        "None" => Base::Nothing,
        "Default" => Base::Host,
        "ClusterFirst" if host_network => Base::Host,
        _ => Base::Cluster,
    }
}

fn cluster(pod: &Pod, node: &NodeFacts) -> Dns {
    let host = node.resolv_conf.clone().unwrap_or_default();
    let domain = &node.cluster_domain;
    let searches = if domain.is_empty() {
        host.searches
    } else {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let own = [format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.clone()];
        distinct(own.into_iter().chain(host.searches).collect())
    };
    Dns {
        servers: node.cluster_dns.iter().map(ToString::to_string).collect(),
        searches,
        options: vec!["ndots:5".into()],
    }
}

/// The host's own settings. Without a resolver file lookups end at a local server, which is what
/// resolvers do when none is named.
fn host(node: &NodeFacts) -> Dns {
    if let Some(dns) = &node.resolv_conf {
        return dns.clone();
    }
    let local = |ip: &IpAddr| if ip.is_ipv6() { "::1" } else { "127.0.0.1" }.to_owned();
    let mut servers: Vec<String> = node.host_ips.iter().map(local).collect();
    if servers.is_empty() {
        servers.push("127.0.0.1".into());
    }
    Dns { servers, searches: vec![".".into()], options: Vec::new() }
}

fn merge_options(have: Vec<String>, extra: &[PodDNSConfigOption]) -> Vec<String> {
    let have = have.iter().map(|o| o.split_once(':').unwrap_or((o, "")));
    let extra =
        extra.iter().map(|o| (o.name.as_deref().unwrap_or_default(), o.value.as_deref().unwrap_or_default()));
    let mut merged: Vec<(&str, &str)> = Vec::new();
    for (name, value) in have.chain(extra) {
        match merged.iter_mut().find(|(n, _)| *n == name) {
            Some(old) => old.1 = value,
            None => merged.push((name, value)),
        }
    }
    let text = |(name, value): &(&str, &str)| match *value {
        "" => (*name).to_owned(),
        value => format!("{name}:{value}"),
    };
    merged.iter().map(text).collect()
}

fn fit(dns: &mut Dns, warnings: &mut Vec<Warning>) {
    if dns.servers.len() > MAX_SERVERS {
        dns.servers.truncate(MAX_SERVERS);
        warnings.push(Warning {
            reason: "DNSConfigForming",
            message: format!(
                "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {}",
                dns.servers.join(" ")
            ),
        });
    }
    let before = dns.searches.len();
    dns.searches.truncate(MAX_SEARCHES);
    // Some resolvers abort on a longer name.
    dns.searches.retain(|s| s.len() <= MAX_SEARCH_NAME);
    while dns.searches.join(" ").len() > MAX_SEARCH_CHARS {
        dns.searches.pop();
    }
    if dns.searches.len() < before {
        warnings.push(Warning {
            reason: "DNSConfigForming",
            message: format!(
                "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {}",
                dns.searches.join(" ")
            ),
        });
    }
}

fn distinct(names: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::BTreeSet::new();
    names.into_iter().filter(|n| seen.insert(n.clone())).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::testing::{node, pod};
    use super::*;

    fn show(d: &Dns) -> String {
        format!("{} | {} | {}", d.servers.join(" "), d.searches.join(" "), d.options.join(" "))
    }

    fn of(spec: &str, node: &NodeFacts) -> (String, Vec<Warning>) {
        let (d, w) = dns(&pod(spec), node);
        (show(&d), w)
    }

    #[test]
    fn a_resolver_file_that_is_too_much_for_pods_is_told() {
        let file = |names: &[String]| format!("nameserver 192.0.2.1\nsearch {}\n", names.join(" "));
        let many =
            |n: usize, length: usize| -> Vec<String> { (0..n).map(|i| format!("{i:0length$}")).collect() };
        let told = |text: &str, domain: &str| check_resolver("/r", text, domain);
        assert_eq!(told(&file(&many(29, 3)), "cluster.local"), Ok(()));
        assert_eq!(told(&file(&many(32, 3)), ""), Ok(()));
        let rows = [
            (
                file(&many(30, 3)),
                "Resolv.conf file '/r' contains search line consisting of more than 29 domains!",
            ),
            (
                file(&many(1, 254)),
                "Resolv.conf file \"/r\" contains a search path which length is more than allowed 253 chars!",
            ),
            (
                file(&many(9, 250)),
                "Resolv.conf file '/r' contains search line which length is more than allowed 2048 chars!",
            ),
            ("nameserver\n".to_owned(), "nameserver list is empty"),
        ];
        for (text, want) in rows {
            assert_eq!(told(&text, "cluster.local").unwrap_err(), want);
        }
    }

    #[test]
    fn policies() {
        let node = node();
        let cluster =
            "10.96.0.10 | shop.svc.cluster.local svc.cluster.local cluster.local lan.example | ndots:5";
        let host = "192.0.2.53 | lan.example | timeout:2";
        for (spec, want) in [
            ("{containers: []}", cluster),
            ("{containers: [], dnsPolicy: ClusterFirst}", cluster),
            ("{containers: [], dnsPolicy: ClusterFirst, hostNetwork: true}", host),
            ("{containers: [], dnsPolicy: ClusterFirstWithHostNet, hostNetwork: true}", cluster),
            ("{containers: [], dnsPolicy: Default}", host),
            ("{containers: [], dnsPolicy: None, dnsConfig: {nameservers: [1.1.1.1]}}", "1.1.1.1 |  | "),
            (
                "{containers: [], dnsPolicy: Default, dnsConfig: {nameservers: [192.0.2.53, 9.9.9.9], searches: [lan.example, x.y], options: [{name: timeout, value: '3'}, {name: edns0}]}}",
                "192.0.2.53 9.9.9.9 | lan.example x.y | timeout:3 edns0",
            ),
        ] {
            assert_eq!(of(spec, &node), (want.to_owned(), vec![]), "{spec}");
        }
    }

    #[test]
    fn no_cluster_dns_and_no_resolver_file() {
        let bare = NodeFacts { cluster_dns: vec![], ..node() };
        let (text, warnings) = of("containers: []", &bare);
        assert_eq!(text, "192.0.2.53 | lan.example | timeout:2");
        assert_eq!(warnings[0].reason, "MissingClusterDNS");
        assert_eq!(
            warnings[0].message,
            "pod: \"web_shop(u-1)\". kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. Falling back to \"Default\" policy."
        );
        let none = NodeFacts { resolv_conf: None, ..bare };
        assert_eq!(of("containers: []", &none).0, "127.0.0.1 ::1 | . | ");
        assert_eq!(of("containers: []", &NodeFacts::default()).0, "127.0.0.1 | . | ");
    }

    #[test]
    fn limits() {
        let searches: Vec<String> = (0..40).map(|i| format!("s{i}.example")).collect();
        let spec = format!(
            "{{containers: [], dnsPolicy: None, dnsConfig: {{nameservers: [1.1.1.1, 1.1.1.2, 1.1.1.3, 1.1.1.4], searches: [{}]}}}}",
            searches.join(", ")
        );
        let (d, w) = dns(&pod(&spec), &node());
        assert_eq!((d.servers.len(), d.searches.len()), (3, 32));
        assert_eq!(w.len(), 2);
        assert_eq!(
            w[0].message,
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: 1.1.1.1 1.1.1.2 1.1.1.3"
        );
        let long: Vec<String> = (0..20).map(|i| format!("{}{i:03}", "x".repeat(200))).collect();
        let mut d = Dns { searches: long, ..Dns::default() };
        d.searches.insert(0, "y".repeat(254));
        fit(&mut d, &mut vec![]);
        assert_eq!(d.searches.len(), 10, "10 names of 203 and 9 spaces fit in 2048");
    }

    #[test]
    fn resolver_files() {
        let text = "# c\nnameserver 1.1.1.1\n  nameserver  2.2.2.2 x\nsearch a.b\nsearch c.d. . e\noptions ndots:2 rotate\noptions ndots:3\nsortlist x\n";
        assert_eq!(show(&parse_resolv_conf(text).unwrap()), "1.1.1.1 2.2.2.2 | c.d e | rotate ndots:3");
        assert!(parse_resolv_conf("nameserver\n").is_err());
    }
}
