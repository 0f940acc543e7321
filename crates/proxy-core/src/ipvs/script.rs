//! The iptables rules. They only name sets, so they are the same whatever Services there are.

use crate::iptables::ipvs_chains::{IPVS_FILTER, JUMPS, LOAD_BALANCER, NODE_PORT, SOURCE_RANGES};
use crate::iptables::{
    FORWARD, MARK_MASQ, POSTROUTING, PROXY_FIREWALL, SERVICES, Saved, Script, Table, is_local_match,
};
use crate::objects::{Family, Protocol};
use crate::rules::{NodeRules, OffCluster};

use super::sets::{SetId, SetKind};

/// What the rules depend on besides the node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The bit that asks for masquerading.
    pub mark: u32,
    /// Whether this iptables knows `--random-fully`.
    pub random_fully: bool,
}

const CHAINS: [(Table, &[&str]); 3] = [
    (Table::Nat, &[SERVICES, POSTROUTING, NODE_PORT, LOAD_BALANCER, MARK_MASQ]),
    (Table::Filter, &[FORWARD, NODE_PORT, PROXY_FIREWALL, SOURCE_RANGES, IPVS_FILTER]),
    (Table::Mangle, &[PROXY_FIREWALL, SOURCE_RANGES]),
];

/// Everything, whatever is there; jumps that are missing come.
pub fn script(family: Family, node: &NodeRules, options: Options, saved: &Saved) -> Script {
    let mut page = Page { family, script: Script::default() };
    for (table, chains) in CHAINS {
        chains.iter().for_each(|chain| page.script.chain(table, chain));
    }
    saved.add_jumps(&mut page.script, JUMPS);
    page.services(node);
    page.node_ports();
    page.firewall();
    page.masquerading(options);
    page.filter(options);
    page.script
}

struct Page {
    family: Family,
    script: Script,
}

// === impl Page ===

impl Page {
    fn services(&mut self, node: &NodeRules) {
        let loopback = match self.family {
            Family::V4 => "127.0.0.0/8",
            Family::V6 => "::1/128",
        };
        self.nat(SERVICES, &format!("-s {loopback} -j RETURN"));
        let balanced = self.told(SetId::LoadBalancer, "dst,dst");
        self.nat(SERVICES, &format!("{balanced} -j {LOAD_BALANCER}"));
        let cluster = self.told(SetId::ClusterIp, "dst,dst");
        match &node.off_cluster {
            OffCluster::Never => {}
            OffCluster::Always => self.nat(SERVICES, &format!("{cluster} -j {MARK_MASQ}")),
            OffCluster::NotLocal(detector) => {
                let local = is_local_match(detector);
                self.nat(SERVICES, &format!("{cluster} ! {local} -j {MARK_MASQ}"));
            }
            // The device has every address, so the kernel takes the Service's own as the source of what the node
            // sends it.
            OffCluster::FromClusterIps => {
                let from_itself = self.plain(SetId::ClusterIp, "src,dst");
                self.nat(SERVICES, &format!("{cluster} {from_itself} -j {MARK_MASQ}"));
            }
        }
        let external = self.told(SetId::ExternalIp, "dst,dst");
        self.nat(SERVICES, &format!("{external} -j {MARK_MASQ}"));
        // What is for an address of a Service is not for a node port of the same number.
        for set in [SetId::ExternalIp, SetId::ExternalIpLocal, SetId::ClusterIp, SetId::LoadBalancer] {
            let known = self.plain(set, "dst,dst");
            self.nat(SERVICES, &format!("{known} -j ACCEPT"));
        }
        self.nat(SERVICES, &format!("-m addrtype --dst-type LOCAL -j {NODE_PORT}"));
        let local = self.told(SetId::LoadBalancerLocal, "dst,dst");
        self.nat(LOAD_BALANCER, &format!("{local} -j RETURN"));
        self.nat(LOAD_BALANCER, &format!("-j {MARK_MASQ}"));
    }

    fn node_ports(&mut self) {
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            let [all, local] = SetId::node_ports(protocol);
            for (set, to) in [(local, "RETURN"), (all, MARK_MASQ)] {
                let side = if set.kind() == SetKind::Port { "dst" } else { "dst,dst" };
                let known = self.told(set, side);
                self.nat(NODE_PORT, &format!("-p {protocol} {known} -j {to}"));
            }
        }
    }

    /// In both tables: IPVS takes the node's own packets before `filter` sees where they went.
    fn firewall(&mut self) {
        let guarded = self.told(SetId::LoadBalancerFirewall, "dst,dst");
        let from_range = self.told(SetId::LoadBalancerSourceCidr, "dst,dst,src");
        let from_itself = self.told(SetId::LoadBalancerSourceIp, "dst,dst,src");
        for table in [Table::Filter, Table::Mangle] {
            let mut append =
                |chain: &str, rule: &str| self.script.append(table, chain, format_args!("{rule}"));
            append(PROXY_FIREWALL, &format!("{guarded} -j {SOURCE_RANGES}"));
            append(SOURCE_RANGES, &format!("{from_range} -j RETURN"));
            append(SOURCE_RANGES, &format!("{from_itself} -j RETURN"));
            append(SOURCE_RANGES, "-j DROP");
        }
    }

    fn masquerading(&mut self, options: Options) {
        let mark = format!("{:#x}", options.mark);
        let hairpin = self.told(SetId::LoopBack, "dst,dst,src");
        self.nat(POSTROUTING, &format!("{hairpin} -j MASQUERADE"));
        self.nat(POSTROUTING, &format!("-m mark ! --mark {mark}/{mark} -j RETURN"));
        // A packet that comes by again must not be masqueraded again.
        self.nat(POSTROUTING, &format!("-j MARK --xor-mark {mark}"));
        let fully = if options.random_fully { " --random-fully" } else { "" };
        self.nat(
            POSTROUTING,
            &format!(
                "-m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE{fully}"
            ),
        );
        self.nat(MARK_MASQ, &format!("-j MARK --or-mark {mark}"));
    }

    fn filter(&mut self, options: Options) {
        let mark = format!("{:#x}", options.mark);
        let checked = self.told(SetId::HealthCheckNodePort, "dst");
        let mut rules = vec![
            (
                FORWARD,
                format!(
                    "-m comment --comment \"kubernetes forwarding rules\" -m mark --mark {mark}/{mark} -j ACCEPT"
                ),
            ),
            (
                FORWARD,
                "-m comment --comment \"kubernetes forwarding conntrack rule\" -m conntrack --ctstate \
                 RELATED,ESTABLISHED -j ACCEPT"
                    .to_owned(),
            ),
            (NODE_PORT, format!("-p tcp {checked} -j ACCEPT")),
        ];
        // Through the address of a Service nobody reaches what listens on the node.
        for set in [SetId::LoadBalancer, SetId::ClusterIp, SetId::ExternalIp, SetId::ExternalIpLocal] {
            rules.push((IPVS_FILTER, format!("{} -j RETURN", self.plain(set, "dst,dst"))));
        }
        let checked = self.plain(SetId::HealthCheckNodePort, "dst");
        rules.push((IPVS_FILTER, format!("-p tcp {checked} -j RETURN")));
        let ours = self.plain(SetId::IpvsIps, "dst");
        rules.push((IPVS_FILTER, format!("-m conntrack --ctstate NEW {ours} -j REJECT")));
        for (chain, rule) in rules {
            self.script.append(Table::Filter, chain, format_args!("{rule}"));
        }
    }

    fn nat(&mut self, chain: &str, rule: &str) {
        self.script.append(Table::Nat, chain, format_args!("{rule}"));
    }

    fn told(&self, set: SetId, side: &str) -> String {
        format!("-m comment --comment \"{}\" {}", set.comment(), self.plain(set, side))
    }

    fn plain(&self, set: SetId, side: &str) -> String {
        format!("-m set --match-set {} {side}", set.name(self.family))
    }
}
