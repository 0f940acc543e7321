//! From a rule set to the script that brings it about.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::objects::{Family, PortKey};
use crate::rules::{
    Delta, Detector, Endpoint, External, List, Masquerade, NodePortAddresses, NodePortKey, OffCluster,
    PortRules, RuleSet, Scope, VipKey, Way,
};

use super::names::Names;
use super::saved::Saved;
use super::script::{Script, Table};
use super::{
    CANARY, EXTERNAL_SERVICES, FORWARD, KUBELET_FIREWALL, MARK_MASQ, NODE_PORTS, POSTROUTING, PROXY_FIREWALL,
    SERVICES,
};

/// Beyond so many endpoints their rules carry no comments: the kernel keeps them in full.
const LARGE: usize = 1000;

/// What the rules depend on besides the rule set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The bit that asks for masquerading.
    pub mark: u32,
    /// Whether this iptables knows `--random-fully`.
    pub random_fully: bool,
    /// Whether conntrack takes packets outside of the window; if not, what it calls invalid is dropped.
    pub be_liberal: bool,
    /// Whether [`INVALID_DROPPED`] and [`LOCALHOST_ACCEPTED`] are there to be added to.
    pub has_accounts: bool,
}

/// The accounts that packets are counted in, by upstream's names.
pub const INVALID_DROPPED: &str = "ct_state_invalid_dropped_pkts";
pub const LOCALHOST_ACCEPTED: &str = "localhost_nps_accepted_pkts";

#[derive(Clone, Copy, Debug)]
pub struct Renderer {
    options: Options,
}

/// One rendering under way.
struct Page<'a> {
    rules: &'a RuleSet,
    options: Options,
    is_large: bool,
    script: Script,
}

// === impl Renderer ===

impl Renderer {
    pub fn new(options: Options) -> Self {
        Self { options }
    }

    /// Everything, whatever is there: jumps that are missing come, chains nobody needs go.
    pub fn whole(&self, rules: &RuleSet, saved: &Saved) -> Script {
        let mut page = Page::new(rules, self.options);
        for table in Table::ALL {
            page.script.chain(table, CANARY);
        }
        page.fixed_chains();
        page.kubelet_firewall(saved);
        saved.add_jumps(&mut page.script, super::JUMPS);
        page.top_level();
        let (of_lists, mut needed) = (page.script.rules(Table::Nat), BTreeSet::new());
        for port in rules.ports.values() {
            needed.extend(page.port_chains(port));
        }
        page.script.of_ports = page.script.rules(Table::Nat) - of_lists;
        for stale in saved.service_chains().filter(|chain| !needed.contains(*chain)) {
            page.script.delete_chain(Table::Nat, stale);
        }
        page.script
    }

    /// The filter table, the lists of addresses, and the chains of the Service ports that changed; the others are as
    /// they were. `None` if something changed that every port rests on.
    pub fn change(&self, rules: &RuleSet, delta: &Delta) -> Option<Script> {
        if delta.node.is_some() {
            return None;
        }
        let mut page = Page::new(rules, self.options);
        page.fixed_chains();
        page.top_level();
        let of_lists = page.script.rules(Table::Nat);
        let mut before =
            Page { rules, options: self.options, is_large: page.is_large, script: Script::default() };
        for change in &delta.ports {
            let needed = change.new.as_ref().map(|port| page.port_chains(port)).unwrap_or_default();
            let had = change.old.as_ref().map(|port| before.port_chains(port)).unwrap_or_default();
            for stale in had.difference(&needed) {
                page.script.delete_chain(Table::Nat, stale);
            }
        }
        page.script.of_ports = page.script.rules(Table::Nat) - of_lists;
        page.script.of_ports_before = before.script.rules(Table::Nat);
        Some(page.script)
    }

    /// Whether there is so much that to write all of it for no reason is too much.
    pub fn is_large(rules: &RuleSet) -> bool {
        let total: usize = rules.ports.values().map(|port| port.cluster.len().max(port.local.len())).sum();
        total > LARGE
    }
}

/// The names of a port's chains.
fn chains(port: &PortRules) -> BTreeSet<String> {
    let names = Names::new(&port.key);
    let mut all: BTreeSet<String> = endpoints(port).iter().map(|e| names.endpoint(e.address)).collect();
    all.extend(uses(port, List::Cluster).then(|| names.cluster()));
    all.extend(uses(port, List::Local).then(|| names.local()));
    all.extend(port.external.filter(is_served).map(|_| names.external()));
    all.extend(port.firewall().map(|_| names.firewall()));
    all
}

fn is_served(external: &External) -> bool {
    external.from_others != Way::Reject
}

/// Whether some packet takes that list.
fn uses(port: &PortRules, list: List) -> bool {
    let external = port.external.map(|e| [e.from_pods, e.from_node, Some(e.from_others)]);
    let ways = external.into_iter().flatten().flatten().chain([port.internal]);
    ways.into_iter().any(|way| matches!(way, Way::To(l, _) if l == list))
}

fn endpoints(port: &PortRules) -> BTreeSet<Endpoint> {
    let lists = [List::Cluster, List::Local].into_iter().filter(|list| uses(port, *list));
    lists.flat_map(|list| port.list(list).iter().copied()).collect()
}

// === impl Page ===

impl<'a> Page<'a> {
    fn new(rules: &'a RuleSet, options: Options) -> Self {
        Self { rules, options, is_large: Renderer::is_large(rules), script: Script::default() }
    }

    fn fixed_chains(&mut self) {
        for chain in [SERVICES, EXTERNAL_SERVICES, FORWARD, NODE_PORTS, PROXY_FIREWALL] {
            self.script.chain(Table::Filter, chain);
        }
        for chain in [SERVICES, NODE_PORTS, POSTROUTING, MARK_MASQ] {
            self.script.chain(Table::Nat, chain);
        }
    }

    /// With 127.0.0.0/8 routed, the network could reach what listens on the loopback device only. The kubelet writes
    /// the same rule; where we have no use for it, its chain is only there for the jumps.
    fn kubelet_firewall(&mut self, saved: &Saved) {
        if self.serves_loopback() {
            self.script.chain(Table::Filter, KUBELET_FIREWALL);
            self.filter(KUBELET_FIREWALL, format_args!(
                "-m comment --comment \"block incoming localnet connections\" -d 127.0.0.0/8 ! -s 127.0.0.0/8 \
                 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"
            ));
        } else if !saved.has_chain(Table::Filter, KUBELET_FIREWALL) {
            self.script.chain(Table::Filter, KUBELET_FIREWALL);
        }
    }

    fn serves_loopback(&self) -> bool {
        match &self.rules.node.node_port_addresses {
            NodePortAddresses::AllLocal { loopback } => *loopback,
            NodePortAddresses::Only(ips) => ips.iter().any(IpAddr::is_loopback),
        }
    }

    /// The part of a rule that adds to an account, if there are any.
    fn count_in(&self, account: &str) -> String {
        match self.options.has_accounts {
            true => format!("-m nfacct --nfacct-name {account} "),
            false => String::new(),
        }
    }

    /// What is written anew each time: everything but the chains of single ports.
    fn top_level(&mut self) {
        self.masquerading();
        let rules = self.rules;
        for port in rules.ports.values() {
            self.addresses(port);
        }
        // After the addresses: an address of a Service that is also the node's belongs to the Service.
        for (key, owner) in &rules.node_ports {
            self.node_port(*key, owner);
        }
        // Once for each port of a Service, as upstream, though all have the same.
        for name in rules.ports.keys() {
            let Some(check) = rules.health_checks.get(&name.service) else { continue };
            self.filter(NODE_PORTS, format_args!(
                "-m comment --comment \"{name} health check node port\" -m tcp -p tcp --dport {} -j ACCEPT",
                check.port
            ));
        }
        self.node_port_addresses();
        self.forwarding();
    }

    fn masquerading(&mut self) {
        let mark = format!("{:#x}", self.options.mark);
        self.nat(POSTROUTING, format_args!("-m mark ! --mark {mark}/{mark} -j RETURN"));
        // A packet that comes by again must not be masqueraded again.
        self.nat(POSTROUTING, format_args!("-j MARK --xor-mark {mark}"));
        let fully = if self.options.random_fully { " --random-fully" } else { "" };
        self.nat(
            POSTROUTING,
            format_args!(
                "-m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE{fully}"
            ),
        );
        self.nat(MARK_MASQ, format_args!("-j MARK --or-mark {mark}"));
    }

    fn forwarding(&mut self) {
        let mark = format!("{:#x}", self.options.mark);
        if !self.options.be_liberal {
            let count = self.count_in(INVALID_DROPPED);
            self.filter(FORWARD, format_args!("-m conntrack --ctstate INVALID {count}-j DROP"));
        }
        self.filter(
            FORWARD,
            format_args!(
                "-m comment --comment \"kubernetes forwarding rules\" -m mark --mark {mark}/{mark} -j ACCEPT"
            ),
        );
        self.filter(
            FORWARD,
            format_args!(
                "-m comment --comment \"kubernetes forwarding conntrack rule\" -m conntrack --ctstate \
             RELATED,ESTABLISHED -j ACCEPT"
            ),
        );
    }

    /// The addresses that this port answers for, and nobody before it.
    fn addresses(&mut self, port: &PortRules) {
        let names = Names::new(&port.key);
        let mut seen = BTreeSet::new();
        let others = port.external_ips().iter().chain(port.load_balancer_vips());
        for ip in std::iter::once(&port.cluster_ip).chain(others) {
            let key = VipKey { ip: *ip, protocol: port.key.protocol, port: port.port };
            let Some(vip) = self.rules.vips.get(&key).filter(|vip| vip.owner == port.key) else { continue };
            if !seen.insert(*ip) {
                continue;
            }
            match (vip.scope, &port.external) {
                (Scope::External, Some(external)) => {
                    self.external_address(port, external, &names, key, vip.firewall.is_some());
                }
                _ => self.cluster_address(port, &names, key),
            }
        }
    }

    fn cluster_address(&mut self, port: &PortRules, names: &Names<'_>, key: VipKey) {
        let to = destination(key);
        match port.internal {
            Way::To(list, _) => {
                let comment = format!("{} cluster IP", port.key);
                let chain = list_chain(names, list);
                self.nat(SERVICES, format_args!("-m comment --comment \"{comment}\" {to} -j {chain}"));
            }
            refusal => self.refuse(SERVICES, &port.key, refusal, &to, key),
        }
    }

    fn external_address(
        &mut self,
        port: &PortRules,
        external: &External,
        names: &Names<'_>,
        key: VipKey,
        is_guarded: bool,
    ) {
        let to = destination(key);
        let name = &port.key;
        let is_balanced = port.load_balancer_vips().contains(&key.ip);
        if is_served(external) {
            let kind = if is_balanced { "loadbalancer IP" } else { "external IP" };
            let chain = if is_guarded { names.firewall() } else { names.external() };
            self.nat(SERVICES, format_args!("-m comment --comment \"{name} {kind}\" {to} -j {chain}"));
        }
        if is_guarded {
            self.filter(
                PROXY_FIREWALL,
                format_args!(
                    "-m comment --comment \"{name} traffic not accepted by {}\" {to} -j DROP",
                    names.firewall()
                ),
            );
        }
        match external.from_others {
            Way::To(..) if is_guarded => self.keep_from_node_ports(&to, key),
            Way::To(..) => {}
            refusal => self.refuse(EXTERNAL_SERVICES, name, refusal, &to, key),
        }
    }

    fn refuse(&mut self, chain: &str, name: &PortKey, way: Way, to: &str, key: VipKey) {
        let (why, verdict) = refusal(way);
        self.filter(chain, format_args!("-m comment --comment \"{name} has no {why}\" {to} -j {verdict}"));
        self.keep_from_node_ports(to, key);
    }

    /// A packet to this address that was not sent anywhere must not be taken for one to a node port of the same number,
    /// should the address be the node's.
    fn keep_from_node_ports(&mut self, to: &str, key: VipKey) {
        let same = NodePortKey { protocol: key.protocol, port: key.port };
        if self.rules.node_ports.contains_key(&same) {
            self.nat(SERVICES, format_args!("{to} -j RETURN"));
        }
    }

    fn node_port(&mut self, key: NodePortKey, owner: &PortKey) {
        let Some(port) = self.rules.ports.get(owner) else { return };
        let Some(external) = &port.external else { return };
        let to = format!("-m {0} -p {0} --dport {1}", key.protocol, key.port);
        if is_served(external) {
            let chain = Names::new(owner).external();
            if self.options.has_accounts && self.rules.family == Family::V4 && self.serves_loopback() {
                let to = format!("-m {0} -p {0} -d 127.0.0.0/8 --dport {1}", key.protocol, key.port);
                let count = self.count_in(LOCALHOST_ACCEPTED);
                self.nat(NODE_PORTS, format_args!("-m comment --comment \"{owner}\" {to} {count}-j {chain}"));
            }
            self.nat(NODE_PORTS, format_args!("-m comment --comment \"{owner}\" {to} -j {chain}"));
        }
        if !matches!(external.from_others, Way::To(..)) {
            let (why, verdict) = refusal(external.from_others);
            self.filter(EXTERNAL_SERVICES, format_args!(
                "-m comment --comment \"{owner} has no {why}\" -m addrtype --dst-type LOCAL {to} -j {verdict}"
            ));
        }
    }

    fn node_port_addresses(&mut self) {
        const LAST: &str = "-m comment --comment \"kubernetes service nodeports; NOTE: this must be the last rule in this \
                            chain\"";
        match &self.rules.node.node_port_addresses {
            NodePortAddresses::AllLocal { loopback } => {
                let but = match (loopback, self.rules.family) {
                    (true, _) => "",
                    (false, Family::V4) => " ! -d 127.0.0.0/8",
                    (false, Family::V6) => " ! -d ::1/128",
                };
                let to = format!("-m addrtype --dst-type LOCAL{but}");
                self.nat(SERVICES, format_args!("{LAST} {to} -j {NODE_PORTS}"));
            }
            NodePortAddresses::Only(ips) => {
                for ip in ips {
                    self.nat(SERVICES, format_args!("{LAST} -d {ip} -j {NODE_PORTS}"));
                }
            }
        }
    }

    /// The chains of one port; says which.
    fn port_chains(&mut self, port: &PortRules) -> BTreeSet<String> {
        let names = Names::new(&port.key);
        let all = chains(port);
        for chain in &all {
            self.script.chain(Table::Nat, chain);
        }
        if let Way::To(list, Masquerade::OffCluster) = port.internal {
            self.mark_off_cluster(port, &list_chain(&names, list));
        }
        if let Some(external) = port.external.as_ref().filter(|e| is_served(e)) {
            self.external_chain(port, external, &names);
        }
        self.firewall_chain(port, &names);
        for list in [List::Cluster, List::Local] {
            if uses(port, list) {
                self.balance(port, list, &names);
            }
        }
        for endpoint in endpoints(port) {
            self.endpoint_chain(port, endpoint, &names);
        }
        all
    }

    fn mark_off_cluster(&mut self, port: &PortRules, chain: &str) {
        let which = match &self.rules.node.off_cluster {
            OffCluster::Always => String::new(),
            OffCluster::NotLocal(detector) => format!(" ! {}", is_local(detector)),
            OffCluster::Never | OffCluster::FromClusterIps => return,
        };
        let key = VipKey { ip: port.cluster_ip, protocol: port.key.protocol, port: port.port };
        let (name, to) = (&port.key, destination(key));
        self.nat(
            chain,
            format_args!("-m comment --comment \"{name} cluster IP\" {to}{which} -j {MARK_MASQ}"),
        );
    }

    fn external_chain(&mut self, port: &PortRules, external: &External, names: &Names<'_>) {
        let (name, chain) = (&port.key, names.external());
        let comment =
            |what: &str| format!("-m comment --comment \"{what} for {name} external destinations\"");
        if let (Some(Way::To(list, _)), Some(detector)) = (external.from_pods, &self.rules.node.detector) {
            let (to, who) = (list_chain(names, list), is_local(detector));
            self.nat(&chain, format_args!("{} {who} -j {to}", comment("pod traffic")));
        }
        if let Some(Way::To(list, masquerade)) = external.from_node {
            const NODE: &str = "-m addrtype --src-type LOCAL";
            if masquerade == Masquerade::Always {
                let said = comment("masquerade LOCAL traffic");
                self.nat(&chain, format_args!("{said} {NODE} -j {MARK_MASQ}"));
            }
            let to = list_chain(names, list);
            self.nat(&chain, format_args!("{} {NODE} -j {to}", comment("route LOCAL traffic")));
        }
        if let Way::To(list, masquerade) = external.from_others {
            if masquerade == Masquerade::Always {
                self.nat(&chain, format_args!("{} -j {MARK_MASQ}", comment("masquerade traffic")));
            }
            self.nat(&chain, format_args!("-j {}", list_chain(names, list)));
        }
    }

    /// What is not allowed falls through, is not translated, and meets the firewall in the filter table.
    fn firewall_chain(&mut self, port: &PortRules, names: &Names<'_>) {
        let Some(allowed) = port.firewall() else { return };
        let (name, chain, to) = (&port.key, names.firewall(), names.external());
        for source in allowed.iter() {
            let rule = format_args!("-m comment --comment \"{name} loadbalancer IP\" -s {source} -j {to}");
            self.script.append(Table::Nat, &chain, rule);
        }
        self.nat(
            &chain,
            format_args!(
                "-m comment --comment \"other traffic to {name} will be dropped by {PROXY_FIREWALL}\""
            ),
        );
    }

    /// The first rule takes one of n packets, the next one of the n-1 that are left, and so on.
    fn balance(&mut self, port: &PortRules, list: List, names: &Names<'_>) {
        let (chain, list) = (list_chain(names, list), in_order(port.list(list)));
        let name = &port.key;
        let comment = |endpoint: &Endpoint| match self.is_large {
            true => String::new(),
            false => format!("-m comment --comment \"{name} -> {}\" ", endpoint.address),
        };
        let mut lines = Vec::with_capacity(2 * list.len());
        if let Some(seconds) = port.affinity {
            for endpoint in list.iter() {
                let (said, to) = (comment(endpoint), names.endpoint(endpoint.address));
                let known = format!("-m recent --name {to} --rcheck --seconds {seconds} --reap");
                lines.push(format!("{said}{known} -j {to}"));
            }
        }
        for (i, endpoint) in list.iter().enumerate() {
            let (said, to) = (comment(endpoint), names.endpoint(endpoint.address));
            let left = list.len() - i;
            let chance = match left {
                1 => String::new(),
                _ => format!("-m statistic --mode random --probability {:.10} ", 1.0 / left as f64),
            };
            lines.push(format!("{said}{chance}-j {to}"));
        }
        for line in lines {
            self.nat(&chain, format_args!("{line}"));
        }
    }

    fn endpoint_chain(&mut self, port: &PortRules, endpoint: Endpoint, names: &Names<'_>) {
        let (chain, name, protocol) = (names.endpoint(endpoint.address), &port.key, port.key.protocol);
        let comment = match self.is_large {
            true => String::new(),
            false => format!("-m comment --comment \"{name}\" "),
        };
        let ip = endpoint.address.ip();
        self.nat(&chain, format_args!("{comment}-s {ip} -j {MARK_MASQ}"));
        let remember = match port.affinity {
            Some(_) => format!("-m recent --name {chain} --set "),
            None => String::new(),
        };
        let to = endpoint.address;
        self.nat(
            &chain,
            format_args!("{comment}{remember}-m {protocol} -p {protocol} -j DNAT --to-destination {to}"),
        );
    }

    fn nat(&mut self, chain: &str, rule: std::fmt::Arguments<'_>) {
        self.script.append(Table::Nat, chain, rule);
    }

    fn filter(&mut self, chain: &str, rule: std::fmt::Arguments<'_>) {
        self.script.append(Table::Filter, chain, rule);
    }
}

/// As upstream has them: by their text.
fn in_order(list: &[Endpoint]) -> Vec<Endpoint> {
    let mut list = list.to_vec();
    list.sort_by_cached_key(|endpoint| endpoint.address.to_string());
    list
}

fn destination(key: VipKey) -> String {
    format!("-m {0} -p {0} -d {1} --dport {2}", key.protocol, key.ip, key.port)
}

fn list_chain(names: &Names<'_>, list: List) -> String {
    match list {
        List::Cluster => names.cluster(),
        List::Local => names.local(),
    }
}

fn refusal(way: Way) -> (&'static str, &'static str) {
    match way {
        Way::Drop => ("local endpoints", "DROP"),
        _ => ("endpoints", "REJECT"),
    }
}

/// A match on packets of this node's Pods; `!` before it turns it round.
pub(crate) fn is_local(detector: &Detector) -> String {
    match detector {
        Detector::Source(cidr) => format!("-s {cidr}"),
        Detector::Interface(name) => format!("-i {name}"),
        Detector::InterfacePrefix(prefix) => format!("-i {prefix}+"),
    }
}
