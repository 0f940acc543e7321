//! Where the node is reached: InternalIP first, then Hostname.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::NodeAddress;

/// Where a node's own address may come from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// `--node-ip`; an unspecified address only chooses the family.
    pub given: Vec<IpAddr>,
    pub hostname: String,
    /// What the node's name means to the resolver.
    pub by_name: Vec<IpAddr>,
    /// The address towards the default route, per family.
    pub default_v4: Option<IpAddr>,
    pub default_v6: Option<IpAddr>,
    /// Every address of this machine.
    pub local: BTreeSet<IpAddr>,
    /// A cloud controller fills in the addresses later.
    pub external_cloud: bool,
}

/// Why the node has no address, or not the one it was given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("failed to validate nodeIP: {0}")]
    First(String),
    #[error("failed to validate secondaryNodeIP: {0}")]
    Second(String),
    #[error(
        "can't get ip address of node {0}. error: no default routes found in \"/proc/net/route\" or \"/proc/net/ipv6_route\""
    )]
    None(String),
}

/// The node's own addresses, primary first.
pub fn choose(sources: &Sources) -> Result<Vec<IpAddr>, AddressError> {
    let given: Vec<IpAddr> = sources.given.iter().take(2).copied().collect();
    let specified = |i: usize| given.get(i).copied().filter(|ip| !ip.is_unspecified());
    let check = |ip: IpAddr| usable(ip, &sources.local);
    if let Some(ip) = specified(0) {
        check(ip).map_err(AddressError::First)?;
    }
    if let Some(ip) = specified(1) {
        check(ip).map_err(AddressError::Second)?;
    }
    if let Some(first) = specified(0) {
        return Ok([Some(first), specified(1)].into_iter().flatten().collect());
    }
    if let Ok(ip) = sources.hostname.parse() {
        return Ok(vec![ip]);
    }
    let v6 = given.first().is_some_and(IpAddr::is_ipv6);
    let mut named = sources.by_name.iter().copied().filter(|ip| check(*ip).is_ok());
    let named: Vec<IpAddr> = named.by_ref().collect();
    // The family wanted, else whatever the name gives, else the default route.
    let by_name = named.iter().find(|ip| ip.is_ipv6() == v6).or_else(|| named.first()).copied();
    let (preferred, other) =
        if v6 { (sources.default_v6, sources.default_v4) } else { (sources.default_v4, sources.default_v6) };
    let ip = by_name.or(preferred).or(other);
    ip.map(|ip| vec![ip]).ok_or_else(|| AddressError::None(sources.hostname.clone()))
}

/// What `status.addresses` becomes; `now` is what it says today.
pub fn describe(sources: &Sources, now: &[NodeAddress]) -> Result<Vec<NodeAddress>, AddressError> {
    let hostname = address("Hostname", &sources.hostname);
    if sources.external_cloud {
        if !now.is_empty() {
            choose_given(sources)?;
            return Ok(now.to_vec());
        }
        if sources.given.is_empty() {
            return Ok(vec![hostname]);
        }
    }
    let ips = choose(sources)?;
    Ok(ips.iter().map(|ip| address("InternalIP", &ip.to_string())).chain([hostname]).collect())
}

/// The addresses that Pods are told for the host: internal ones before external ones, the first of them and the first of
/// the other family.
#[must_use]
pub fn host_ips(addresses: &[NodeAddress]) -> Vec<IpAddr> {
    let of = |kind: &'static str| addresses.iter().filter(move |a| a.type_ == kind);
    let mut all = of("InternalIP").chain(of("ExternalIP")).filter_map(|a| a.address.parse::<IpAddr>().ok());
    let Some(first) = all.next() else { return Vec::new() };
    [first].into_iter().chain(all.find(|ip| ip.is_ipv6() != first.is_ipv6())).collect()
}

/// The value of `alpha.kubernetes.io/provided-node-ip`, which tells a cloud controller what was asked for.
#[must_use]
pub fn provided(sources: &Sources) -> Option<String> {
    let specified: Vec<String> =
        sources.given.iter().take(2).filter(|ip| !ip.is_unspecified()).map(ToString::to_string).collect();
    let first = sources.given.first().is_some_and(|ip| !ip.is_unspecified());
    (sources.external_cloud && first).then(|| specified.join(","))
}

/// A given address must be one of this host's even where the cloud has the last word.
fn choose_given(sources: &Sources) -> Result<(), AddressError> {
    match sources.given.first() {
        Some(ip) if !ip.is_unspecified() => choose(sources).map(|_| ()),
        _ => Ok(()),
    }
}

/// Whether a node may be known by this address; the reason if not.
pub fn usable(ip: IpAddr, local: &BTreeSet<IpAddr>) -> Result<(), String> {
    let link_local = match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if ip.is_loopback() {
        Err("nodeIP can't be loopback address".to_owned())
    } else if ip.is_multicast() {
        Err("nodeIP can't be a multicast address".to_owned())
    } else if link_local {
        Err("nodeIP can't be a link-local unicast address".to_owned())
    } else if ip.is_unspecified() {
        Err("nodeIP can't be an all zeros address".to_owned())
    } else if !local.contains(&ip) {
        Err(format!("node IP: \"{ip}\" not found in the host's network interfaces"))
    } else {
        Ok(())
    }
}

fn address(kind: &str, text: &str) -> NodeAddress {
    NodeAddress { type_: kind.to_owned(), address: text.to_owned() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn sources(edit: impl FnOnce(&mut Sources)) -> Sources {
        let mut s = Sources {
            hostname: "n1".into(),
            default_v4: Some(ip("10.0.0.9")),
            default_v6: Some(ip("fd00::9")),
            local: ["127.0.0.1", "10.0.0.9", "10.0.0.5", "fd00::9", "fd00::5"].map(ip).into(),
            ..Sources::default()
        };
        edit(&mut s);
        s
    }

    fn text(s: &Sources, now: &[NodeAddress]) -> String {
        match describe(s, now) {
            Ok(all) => all.iter().map(|a| format!("{}:{}", a.type_, a.address)).collect::<Vec<_>>().join(" "),
            Err(e) => e.to_string(),
        }
    }

    #[test]
    fn addresses_come_from_the_first_source_that_has_one() {
        let cases: &[(&str, Sources)] = &[
            ("InternalIP:10.0.0.9 Hostname:n1", sources(|_| {})),
            ("InternalIP:10.0.0.5 Hostname:n1", sources(|s| s.given = vec![ip("10.0.0.5")])),
            (
                "InternalIP:fd00::5 InternalIP:10.0.0.5 Hostname:n1",
                sources(|s| s.given = vec![ip("fd00::5"), ip("10.0.0.5")]),
            ),
            ("InternalIP:fd00::9 Hostname:n1", sources(|s| s.given = vec![ip("::")])),
            ("InternalIP:10.0.0.9 Hostname:n1", sources(|s| s.given = vec![ip("0.0.0.0")])),
            ("InternalIP:192.0.2.7 Hostname:192.0.2.7", sources(|s| s.hostname = "192.0.2.7".into())),
            (
                "InternalIP:10.0.0.5 Hostname:n1",
                sources(|s| s.by_name = vec![ip("127.0.1.1"), ip("fd00::5"), ip("10.0.0.5")]),
            ),
            ("InternalIP:fd00::5 Hostname:n1", sources(|s| s.by_name = vec![ip("fd00::5"), ip("8.8.8.8")])),
            (
                "failed to validate nodeIP: node IP: \"10.9.9.9\" not found in the host's network interfaces",
                sources(|s| s.given = vec![ip("10.9.9.9")]),
            ),
            (
                "failed to validate secondaryNodeIP: nodeIP can't be a link-local unicast address",
                sources(|s| s.given = vec![ip("10.0.0.5"), ip("fe80::1")]),
            ),
        ];
        for (want, sources) in cases {
            assert_eq!(text(sources, &[]), *want, "{sources:?}");
        }
        let nowhere = sources(|s| (s.default_v4, s.default_v6) = (None, None));
        assert!(text(&nowhere, &[]).starts_with("can't get ip address of node n1."));
    }

    #[test]
    fn pods_are_told_one_address_of_each_family_and_internal_ones_first() {
        type Known = &'static [(&'static str, &'static str)];
        let cases: &[(Known, &[&str])] = &[
            (&[], &[]),
            (&[("Hostname", "10.0.0.1")], &[]),
            (&[("InternalIP", "fd00::5"), ("Hostname", "n1")], &["fd00::5"]),
            (&[("ExternalIP", "1.2.3.4"), ("InternalIP", "10.0.0.5")], &["10.0.0.5"]),
            (&[("ExternalIP", "1.2.3.4"), ("InternalIP", "fd00::5")], &["fd00::5", "1.2.3.4"]),
            (
                &[("InternalIP", "10.0.0.5"), ("InternalIP", "10.0.0.6"), ("InternalIP", "fd00::5")],
                &["10.0.0.5", "fd00::5"],
            ),
            (&[("InternalIP", "not one"), ("ExternalIP", "1.2.3.4")], &["1.2.3.4"]),
        ];
        for (known, want) in cases {
            let known: Vec<NodeAddress> = known.iter().map(|(kind, text)| address(kind, text)).collect();
            let want: Vec<IpAddr> = want.iter().map(|text| ip(text)).collect();
            assert_eq!(host_ips(&known), want, "{known:?}");
        }
        let only_v6 = sources(|s| s.default_v4 = None);
        assert_eq!(host_ips(&describe(&only_v6, &[]).unwrap()), [ip("fd00::9")]);
    }

    #[test]
    fn a_cloud_has_the_last_word() {
        let cloud = sources(|s| s.external_cloud = true);
        assert_eq!(text(&cloud, &[]), "Hostname:n1");
        assert_eq!(text(&cloud, &[address("ExternalIP", "1.2.3.4")]), "ExternalIP:1.2.3.4");
        assert_eq!(provided(&cloud), None);
        let asked = sources(|s| (s.external_cloud, s.given) = (true, vec![ip("10.0.0.5"), ip("fd00::5")]));
        assert_eq!(text(&asked, &[]), "InternalIP:10.0.0.5 InternalIP:fd00::5 Hostname:n1");
        assert_eq!(provided(&asked).as_deref(), Some("10.0.0.5,fd00::5"));
        let none = sources(|s| s.given = vec![ip("10.0.0.5")]);
        assert_eq!(provided(&none), None);
    }
}
