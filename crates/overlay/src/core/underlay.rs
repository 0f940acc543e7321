//! Which device of the machine, and which of its addresses, others reach it by.

use std::net::IpAddr;

use super::Family;

/// An address of the machine, and the device that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Local {
    pub(crate) ip: IpAddr,
    pub(crate) device: u32,
    pub(crate) name: String,
    pub(crate) mtu: u32,
}

/// Chooses for a family: what was asked for by name or address, the first that is there; else the Node's own address; else
/// the first one of the device that packets to the rest of the world leave by.
pub(crate) fn choose<'a>(
    family: Family,
    asked: &[String],
    of_the_node: &[IpAddr],
    all: &'a [Local],
    default_device: Option<u32>,
) -> Result<&'a Local, String> {
    let fits = |local: &&Local| Family::of(local.ip) == family && is_reachable(local.ip);
    let own = |of: &mut dyn Iterator<Item = &'a Local>| -> Option<&'a Local> {
        let all: Vec<&Local> = of.filter(fits).collect();
        all.iter().find(|local| of_the_node.contains(&local.ip)).or(all.first()).copied()
    };
    if !asked.is_empty() {
        let found = asked.iter().find_map(|word| match word.parse::<IpAddr>() {
            // An address of one family names the device for the other.
            Ok(ip) if Family::of(ip) == family => all.iter().find(|local| local.ip == ip),
            Ok(ip) => {
                let device = all.iter().find(|local| local.ip == ip)?.device;
                own(&mut all.iter().filter(|local| local.device == device))
            }
            Err(_) => own(&mut all.iter().filter(|local| local.name == *word)),
        });
        return found.ok_or_else(|| {
            format!("--iface {}: no such device with an {} address here", asked.join(","), family.name())
        });
    }
    let of_node = all.iter().find(|local| fits(local) && of_the_node.contains(&local.ip));
    let by_default = || own(&mut all.iter().filter(|local| Some(local.device) == default_device));
    of_node.or_else(by_default).ok_or_else(|| {
        format!(
            "this machine has no {} address that others could reach: name a device with --iface",
            family.name()
        )
    })
}

fn is_reachable(ip: IpAddr) -> bool {
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(is_link_local || ip.is_loopback() || ip.is_multicast() || ip.is_unspecified())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn locals() -> Vec<Local> {
        let of = |ip: &str, device, name: &str| Local {
            ip: ip.parse().unwrap(),
            device,
            name: name.into(),
            mtu: 1500,
        };
        vec![
            of("127.0.0.1", 1, "lo"),
            of("169.254.1.1", 2, "eth0"),
            of("192.0.2.1", 2, "eth0"),
            of("fe80::1", 2, "eth0"),
            of("2001:db8::1", 2, "eth0"),
            of("198.51.100.1", 3, "eth1"),
            of("198.51.100.2", 3, "eth1"),
        ]
    }

    #[test]
    fn the_node_s_own_address_comes_before_the_way_out_and_after_what_was_asked_for() {
        let all = locals();
        let found = |family, asked: &[&str], node: &[&str]| {
            let asked: Vec<String> = asked.iter().map(|word| (*word).to_owned()).collect();
            let node: Vec<IpAddr> = node.iter().map(|ip| ip.parse().unwrap()).collect();
            choose(family, &asked, &node, &all, Some(2)).map(|local| local.ip.to_string())
        };
        for (family, asked, node, want) in [
            (Family::V4, &[][..], &["198.51.100.2"][..], "198.51.100.2"),
            (Family::V4, &[], &["203.0.113.9"], "192.0.2.1"),
            (Family::V6, &[], &[], "2001:db8::1"),
            (Family::V4, &["eth7", "eth1"], &["192.0.2.1"], "198.51.100.1"),
            (Family::V4, &["eth1"], &["198.51.100.2"], "198.51.100.2"),
            (Family::V4, &["198.51.100.2"], &[], "198.51.100.2"),
            (Family::V6, &["192.0.2.1"], &[], "2001:db8::1"),
        ] {
            assert_eq!(found(family, asked, node).as_deref(), Ok(want), "{asked:?} {node:?}");
        }
        let told = found(Family::V6, &["eth1"], &[]).unwrap_err();
        assert_eq!(told, "--iface eth1: no such device with an IPv6 address here");
        let told = choose(Family::V4, &[], &[], &all, None).unwrap_err();
        assert!(told.contains("name a device with --iface"), "{told}");
    }
}
