//! Where a Node is, as its object says it to the others: read of theirs, written on ours.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Value, json};

use super::mac::Mac;
use super::net_conf::{Backend, NetConf};
use super::node::{self, Keys, Node};
use super::{Both, Family};

/// Where the Pods of a Node are, by family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) node: String,
    pub(crate) ends: Both<End>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) subnet: IpNet,
    /// Where the machine is.
    pub(crate) public: IpAddr,
    /// Of the tunnel, where there is one.
    pub(crate) mac: Option<Mac>,
}

/// What our Node has, and what it is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Own {
    pub(crate) lease: Lease,
    /// Annotations that are not yet as they should be.
    pub(crate) changes: BTreeMap<String, String>,
}

// === impl Lease ===

impl Lease {
    /// None where the Node is not one of this network, or has no subnet yet. `Err` says why nobody can get there.
    pub(crate) fn of(node: &Node, keys: &Keys, conf: &NetConf) -> Result<Option<Lease>, String> {
        if node.annotation(keys, node::MANAGED) != Some("true") {
            return Ok(None);
        }
        let mut ends = Both::default();
        for family in Family::ALL {
            let (Some(network), Some(subnet)) = (conf.networks.get(family), node.subnets.get(family)) else {
                continue;
            };
            ends.set(family, Some(end(node, keys, conf, (*network, *subnet))?));
        }
        Ok((ends != Both::default()).then(|| Lease { node: node.name.clone(), ends }))
    }

    /// Ours. `public` is where this machine is, where its Node does not say otherwise; `there` the address of the tunnel that
    /// is there already.
    pub(crate) fn own(
        node: &Node,
        keys: &Keys,
        conf: &NetConf,
        public: &Both<IpAddr>,
        there: &Both<Mac>,
    ) -> Result<Own, String> {
        let (mut ends, mut wanted) = (Both::default(), BTreeMap::new());
        for (family, network) in
            Family::ALL.into_iter().filter_map(|f| conf.networks.get(f).map(|net| (f, *net)))
        {
            let Some(subnet) = node.subnets.get(family).copied() else {
                return Err(format!("spec.podCIDRs has no {} network yet", family.name()));
            };
            is_inside(network, subnet)?;
            let (data, place, overwrite) = names(family);
            let public = match node.annotation(keys, overwrite) {
                Some(text) => address(keys, overwrite, text, family)?,
                None => *public.get(family).ok_or_else(|| format!("it has no {} address", family.name()))?,
            };
            let mac = matches!(conf.backend, Backend::Vxlan(_)).then(|| {
                let known = node.annotation(keys, data).and_then(|text| read_data(text).ok());
                let known = known.map(|(_, mac)| mac).or_else(|| there.get(family).copied());
                known.unwrap_or_else(|| Mac::named(&format!("{} {}", node.uid, family.name())))
            });
            wanted.insert(keys.name(place), public.to_string());
            wanted.insert(keys.name(data), data_text(conf.backend, mac));
            ends.set(family, Some(End { subnet, public, mac }));
        }
        wanted.insert(keys.name(node::TYPE), conf.backend.name().to_owned());
        wanted.insert(keys.name(node::MANAGED), "true".to_owned());
        wanted.retain(|key, value| !is_same(node.annotations.get(key), value));
        Ok(Own { lease: Lease { node: node.name.clone(), ends }, changes: wanted })
    }
}

fn names(family: Family) -> (&'static str, &'static str, &'static str) {
    match family {
        Family::V4 => (node::DATA, node::PUBLIC, node::OVERWRITE),
        Family::V6 => (node::DATA_V6, node::PUBLIC_V6, node::OVERWRITE_V6),
    }
}

fn end(node: &Node, keys: &Keys, conf: &NetConf, (network, subnet): (IpNet, IpNet)) -> Result<End, String> {
    is_inside(network, subnet)?;
    let kind = node.annotation(keys, node::TYPE).unwrap_or_default();
    if kind != conf.backend.name() {
        return Err(format!(
            "annotation {}: {kind:?} is not {:?}",
            keys.name(node::TYPE),
            conf.backend.name()
        ));
    }
    let family = Family::of_net(subnet);
    let (data, place, _) = names(family);
    let public = node.annotation(keys, place).unwrap_or_default();
    let public = address(keys, place, public, family)?;
    let Backend::Vxlan(vxlan) = conf.backend else { return Ok(End { subnet, public, mac: None }) };
    let text = node.annotation(keys, data).unwrap_or_default();
    let (vni, mac) = read_data(text).map_err(|e| format!("annotation {}: {e}", keys.name(data)))?;
    match vni == vxlan.vni {
        true => Ok(End { subnet, public, mac: Some(mac) }),
        false => Err(format!("annotation {}: its VNI is {vni} and not {}", keys.name(data), vxlan.vni)),
    }
}

fn is_inside(network: IpNet, subnet: IpNet) -> Result<(), String> {
    match network.contains(&subnet) {
        true => Ok(()),
        false => Err(format!("spec.podCIDRs: {subnet} is not inside of {network}")),
    }
}

fn address(keys: &Keys, name: &str, text: &str, family: Family) -> Result<IpAddr, String> {
    let read = text.parse::<IpAddr>().ok().filter(|ip| Family::of(*ip) == family);
    let fits = read.filter(|ip| !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback());
    fits.ok_or_else(|| format!("annotation {}: {text:?} is no {} address", keys.name(name), family.name()))
}

fn read_data(text: &str) -> Result<(u32, Mac), String> {
    let value: Value = serde_json::from_str(text).map_err(|_| format!("{text:?} is no JSON object"))?;
    let vni = value["VNI"].as_u64().and_then(|vni| u32::try_from(vni).ok()).unwrap_or_default();
    let mac = value["VtepMAC"].as_str().and_then(Mac::parse).filter(|mac| mac.is_of_one());
    Ok((vni, mac.ok_or_else(|| format!("{text:?} has no VtepMAC of one machine"))?))
}

fn data_text(backend: Backend, mac: Option<Mac>) -> String {
    match (backend, mac) {
        (Backend::Vxlan(vxlan), Some(mac)) => {
            json!({"VNI": vxlan.vni, "VtepMAC": mac.to_string()}).to_string()
        }
        _ => "null".to_owned(),
    }
}

/// Others write JSON with the fields in another order.
fn is_same(there: Option<&String>, wanted: &str) -> bool {
    let as_json = |text: &str| serde_json::from_str::<Value>(text).ok();
    there.is_some_and(|there| {
        there == wanted || (as_json(there).is_some() && as_json(there) == as_json(wanted))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn node(annotations: &[(&str, &str)]) -> Node {
        let all = annotations.iter();
        Node {
            name: "b".into(),
            uid: "uid-b".into(),
            subnets: Both { v4: Some("10.244.1.0/24".parse().unwrap()), v6: None },
            annotations: all.map(|(k, v)| (format!("e.com/{k}"), (*v).to_owned())).collect(),
            ..Node::default()
        }
    }

    fn conf(backend: &str) -> NetConf {
        NetConf::parse(&format!(r#"{{"Network": "10.244.0.0/16", "Backend": {backend}}}"#)).unwrap()
    }

    fn keys() -> Keys {
        Keys::new("e.com").unwrap()
    }

    const VXLAN: &str = r#"{"Type": "vxlan"}"#;
    const WHOLE: [(&str, &str); 4] = [
        ("kube-subnet-manager", "true"),
        ("backend-type", "vxlan"),
        ("backend-data", r#"{"VNI":1,"VtepMAC":"0a:00:00:00:00:01"}"#),
        ("public-ip", "192.0.2.2"),
    ];

    #[test]
    fn a_node_says_where_it_is() {
        let lease = Lease::of(&node(&WHOLE), &keys(), &conf(VXLAN)).unwrap().unwrap();
        let end = lease.ends.v4.unwrap();
        assert_eq!(
            (end.subnet.to_string(), end.public.to_string()),
            ("10.244.1.0/24".into(), "192.0.2.2".into())
        );
        assert_eq!(end.mac, Some(Mac([10, 0, 0, 0, 0, 1])));
        assert_eq!(Lease::of(&node(&WHOLE[1..]), &keys(), &conf(VXLAN)), Ok(None));
        let without = Node { subnets: Both::default(), ..node(&WHOLE) };
        assert_eq!(Lease::of(&without, &keys(), &conf(VXLAN)), Ok(None));
    }

    #[test]
    fn what_nobody_can_follow_is_told() {
        let with = |key: &str, value: &str| {
            let mut all = WHOLE;
            all.iter_mut().find(|(known, _)| *known == key).unwrap().1 = value;
            let all: Vec<(&str, &str)> = all.to_vec();
            Lease::of(&node(&all), &keys(), &conf(VXLAN)).unwrap_err()
        };
        for (key, value, want) in [
            ("backend-type", "host-gw", "annotation e.com/backend-type: \"host-gw\" is not \"vxlan\""),
            ("public-ip", "x", "annotation e.com/public-ip: \"x\" is no IPv4 address"),
            ("public-ip", "fd00::1", "annotation e.com/public-ip: \"fd00::1\" is no IPv4 address"),
            ("public-ip", "127.0.0.1", "annotation e.com/public-ip: \"127.0.0.1\" is no IPv4 address"),
            ("backend-data", "null", "annotation e.com/backend-data: \"null\" has no VtepMAC of one machine"),
            (
                "backend-data",
                r#"{"VNI":2,"VtepMAC":"0a:00:00:00:00:01"}"#,
                "annotation e.com/backend-data: its VNI is 2 and not 1",
            ),
        ] {
            assert_eq!(with(key, value), want);
        }
        let mut elsewhere = node(&WHOLE);
        elsewhere.subnets.v4 = Some("10.9.1.0/24".parse().unwrap());
        let told = Lease::of(&elsewhere, &keys(), &conf(VXLAN)).unwrap_err();
        assert_eq!(told, "spec.podCIDRs: 10.9.1.0/24 is not inside of 10.244.0.0/16");
    }

    #[test]
    fn ours_is_written_once_and_read_by_others() {
        let public = Both { v4: Some("192.0.2.2".parse().unwrap()), v6: None };
        let mut ours = node(&[]);
        let own = Lease::own(&ours, &keys(), &conf(VXLAN), &public, &Both::default()).unwrap();
        assert_eq!(own.changes.len(), 4);
        ours.annotations.extend(own.changes);
        let again = Lease::own(&ours, &keys(), &conf(VXLAN), &public, &Both::default()).unwrap();
        assert!(again.changes.is_empty());
        assert_eq!(Lease::of(&ours, &keys(), &conf(VXLAN)).unwrap(), Some(again.lease));
        let moved = Both { v4: Some("192.0.2.9".parse().unwrap()), v6: None };
        let own = Lease::own(&ours, &keys(), &conf(VXLAN), &moved, &Both::default()).unwrap();
        assert_eq!(own.changes, [("e.com/public-ip".to_owned(), "192.0.2.9".to_owned())].into());
    }

    #[test]
    fn the_address_of_the_tunnel_is_kept_and_the_owner_may_say_where_the_machine_is() {
        let public = Both { v4: Some("192.0.2.2".parse().unwrap()), v6: None };
        let there = Both { v4: Some(Mac([2, 0, 0, 0, 0, 9])), v6: None };
        let mac = |node: &Node| {
            let own = Lease::own(node, &keys(), &conf(VXLAN), &public, &there).unwrap();
            own.lease.ends.v4.unwrap().mac.unwrap().to_string()
        };
        assert_eq!(mac(&node(&WHOLE)), "0a:00:00:00:00:01");
        assert_eq!(mac(&node(&[])), "02:00:00:00:00:09");
        let all = [WHOLE.as_slice(), &[("public-ip-overwrite", "198.51.100.7")]].concat();
        let own = Lease::own(&node(&all), &keys(), &conf(VXLAN), &public, &there).unwrap();
        assert_eq!(own.changes, [("e.com/public-ip".to_owned(), "198.51.100.7".to_owned())].into());
        let all = [("public-ip-overwrite", "here")];
        let told = Lease::own(&node(&all), &keys(), &conf(VXLAN), &public, &there).unwrap_err();
        assert_eq!(told, "annotation e.com/public-ip-overwrite: \"here\" is no IPv4 address");
    }

    #[test]
    fn without_a_tunnel_the_data_is_nothing_as_flannel_writes_it() {
        let public = Both { v4: Some("192.0.2.2".parse().unwrap()), v6: None };
        let conf = conf(r#"{"Type": "host-gw"}"#);
        let own = Lease::own(&node(&[]), &keys(), &conf, &public, &Both::default()).unwrap();
        assert_eq!(
            (own.changes["e.com/backend-data"].as_str(), own.lease.ends.v4.unwrap().mac),
            ("null", None)
        );
    }
}
