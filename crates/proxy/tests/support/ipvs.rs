//! What a kernel with IPVS holds, and whether there is one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use fixture::{Netns, Tools};
use proxy::backend::iptables::Programs;
use proxy::backend::ipvs::{SCHEDULERS, check};
use proxy_core::ipvs::DEVICE;
use proxy_core::objects::Family;
use sys::ipset::{Ipsets, SetType};
use sys::ipvs::{Behaviour, Ipvs, Order, ServerId};
use sys::link::Links;

use super::Lab;

/// Virtual servers there are somebody else's.
pub(crate) const EXCLUDED: &str = "203.0.113.0/24";

/// Everything of this mode in a node, but for what traffic changes by itself.
#[derive(Debug, PartialEq)]
pub(crate) struct State {
    /// Real servers with their weights, behind virtual ones with their schedulers.
    pub(crate) servers: BTreeMap<ServerId, (String, BTreeMap<SocketAddr, u32>)>,
    pub(crate) sets: BTreeMap<String, usize>,
    pub(crate) addresses: BTreeSet<IpAddr>,
    pub(crate) has_device: bool,
    /// As `iptables-save` tells them, without counters.
    pub(crate) rules: Vec<String>,
}

pub(crate) fn programs(family: Family) -> Option<Programs> {
    Some(Programs::of(family, Tools::iptables_from_env("nft")?, Vec::new()))
}

/// Says why these tests cannot run here. In a machine that was made for them, they must.
pub(crate) fn skipped() -> bool {
    if super::skipped() {
        return true;
    }
    let ns = Netns::new().unwrap();
    let kernel = ns.within(|| SCHEDULERS.iter().try_for_each(|s| check(s)).map_err(|e| e.to_string()));
    let why = match (kernel, programs(Family::V4)) {
        (Err(why), _) => why,
        (_, None) => "no iptables".to_owned(),
        (Ok(()), Some(_)) => return false,
    };
    assert!(std::env::var_os("LONGSHORE_SKIPS_NOTHING").is_none(), "cannot run here: {why}");
    #[allow(clippy::print_stderr)]
    {
        eprintln!("skipped: {why}; `cargo xtask vm` has a kernel for it");
    }
    true
}

/// What the proxy sets at its start.
pub(crate) fn set_sysctls(lab: &Lab) {
    for name in ["conntrack", "expire_nodest_conn", "expire_quiescent_template"] {
        lab.node.ns.sysctl(&format!("net/ipv4/vs/{name}"), "1").unwrap();
    }
}

/// A virtual server and a set that are none of ours; what is there now.
pub(crate) fn make_foreign(lab: &Lab) -> State {
    let id = ServerId { protocol: 6, address: "203.0.113.1:80".parse().unwrap() };
    let behaviour = Behaviour { scheduler: "rr".into(), persistence: None, hashes_ports: false };
    lab.node.ns.within(|| {
        Ipvs::open().unwrap().carry_out(&[Order::Add(id, behaviour)]).unwrap().none().unwrap();
        Ipsets::open().unwrap().create("KUBE-FOREIGN", SetType::Ip, false).unwrap();
    });
    State::read(lab)
}

// === impl State ===

impl State {
    pub(crate) fn read(lab: &Lab) -> Self {
        lab.node.ns.within(|| {
            let mut ipvs = Ipvs::open().unwrap();
            let mut servers = BTreeMap::new();
            for (id, behaviour) in ipvs.servers().unwrap() {
                let reals = ipvs.reals(id).unwrap().into_iter().map(|real| (real.address, real.weight));
                servers.insert(id, (behaviour.scheduler, reals.collect()));
            }
            let sets = Ipsets::open().unwrap().list("").unwrap().into_iter();
            let mut links = Links::open().unwrap();
            let device = links.find(DEVICE).unwrap();
            let addresses = links.addresses().unwrap().into_iter().filter(|(at, _)| Some(*at) == device);
            Self {
                servers,
                sets: sets.map(|set| (set.name, set.entries.len())).collect(),
                addresses: addresses.map(|(_, ip)| ip).collect(),
                has_device: device.is_some(),
                rules: Family::BOTH.into_iter().flat_map(rules).collect(),
            }
        })
    }
}

/// But for a chain of the kubelet's, which iptables mode makes as well and nobody removes.
fn rules(family: Family) -> Vec<String> {
    let text = programs(family).unwrap().save_text().unwrap();
    let rules = text.lines().filter(|line| line.starts_with("-A") && !line.contains(" KUBE-FIREWALL"));
    rules.map(str::to_owned).collect()
}
