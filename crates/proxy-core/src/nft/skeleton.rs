//! The chains that are the same whatever Services there are: where packets enter, and how they find their frontend.

use nft::{Address, Chain, ChainType, Cmp, Ct, Expr, Hook, HookPoint, Meta, Reg, Rule, Verdict};

use crate::objects::Cidr;
use crate::rules::{Detector, NodePortAddresses, NodeRules, OffCluster, Unserved};

use super::frontend::{Frontend, Matches};
use super::pick::{ends, forget_client, go, jump, map, note, rule};
use super::sets::SetId;

/// Set on packets whose source is to be changed. Others may use the other bits.
pub(super) type MasqueradeBit = u32;

/// `ct state new`, and `ct status dnat`.
const STATE_NEW: u32 = 8;
const STATUS_DNAT: u32 = 32;

/// Before others translate destinations, and where they do.
const BEFORE_DNAT: i32 = -110;
const DNAT: i32 = -100;
const FILTER: i32 = 0;
const SNAT: i32 = 100;

pub(super) fn chains(words: Matches, node: &NodeRules, mark: MasqueradeBit) -> Vec<(Chain, Vec<Rule>)> {
    let mut chains = entrances();
    chains.extend(checks(words, node));
    chains.push(plain(
        "services",
        [
            vec![when_known(words, Frontend::Vip, Frontend::Vip.all(), "vips")],
            node_port_conditions(words, node).map(|c| with(c, go("nodeports"))).into_iter().collect(),
        ]
        .concat(),
    ));
    chains.extend(vips(words, node));
    chains.extend(node_ports(words, node));
    chains.extend(Frontend::BOTH.into_iter().flat_map(|frontend| ends(frontend, words)));
    chains.push(plain("forget-client", vec![forget_client(words)]));
    chains.push(plain("mark-for-masquerade", vec![rule(set_mark(!mark, mark))]));
    chains.push(plain("masquerading", masquerading(words, mark)));
    chains
}

fn plain(name: &str, rules: Vec<Rule>) -> (Chain, Vec<Rule>) {
    (Chain { name: name.into(), hook: None }, rules)
}

fn with(mut exprs: Vec<Expr>, last: Expr) -> Rule {
    exprs.push(last);
    rule(exprs)
}

// Where the kernel calls us.

fn entrances() -> Vec<(Chain, Vec<Rule>)> {
    let entrance = |name: &str, kind, point, priority, calls: Vec<Rule>| {
        (Chain { name: name.into(), hook: Some(Hook { kind, point, priority }) }, calls)
    };
    let firewall = || vec![with(is_new(), jump("firewall-check"))];
    // A packet that was translated is not for a Service any more, even if its endpoint's address is one.
    let check = |chain: &str| with([is_new(), is_not_translated()].concat(), jump(chain));
    let always = |chain: &str| vec![rule(vec![jump(chain)])];
    let (services, node_ports) = (|| check("service-endpoints-check"), || check("nodeport-endpoints-check"));
    let cluster_ips = || check("cluster-ips-check");
    use {ChainType::Filter, ChainType::Nat, HookPoint as At};
    vec![
        entrance("filter-prerouting-pre-dnat", Filter, At::Prerouting, BEFORE_DNAT, firewall()),
        entrance("filter-output-pre-dnat", Filter, At::Output, BEFORE_DNAT, firewall()),
        entrance("filter-input", Filter, At::Input, FILTER, vec![services(), node_ports()]),
        entrance("filter-forward", Filter, At::Forward, FILTER, vec![services(), cluster_ips()]),
        entrance("filter-output", Filter, At::Output, FILTER, vec![services(), cluster_ips()]),
        entrance("nat-prerouting", Nat, At::Prerouting, DNAT, always("services")),
        entrance("nat-output", Nat, At::Output, DNAT, always("services")),
        entrance("nat-postrouting", Nat, At::Postrouting, SNAT, always("masquerading")),
    ]
}

fn is_new() -> Vec<Expr> {
    bits(Expr::Ct { key: Ct::State, into: Reg(0) }, STATE_NEW, Cmp::NotEqual)
}

fn is_not_translated() -> Vec<Expr> {
    bits(Expr::Ct { key: Ct::Status, into: Reg(0) }, STATUS_DNAT, Cmp::Equal)
}

/// Compares bits of a number with zero.
fn bits(load: Expr, bits: u32, op: Cmp) -> Vec<Expr> {
    let zero = || [0; 4].into();
    vec![
        load,
        Expr::Bitwise { from: Reg(0), into: Reg(0), mask: bits.to_ne_bytes().into(), xor: zero() },
        Expr::Cmp { from: Reg(0), op, data: zero() },
    ]
}

// What is refused.

fn checks(words: Matches, node: &NodeRules) -> Vec<(Chain, Vec<Rule>)> {
    let member = |frontend: Frontend, set: SetId, last| {
        let mut exprs = words.key(frontend, Reg(0));
        exprs.push(is_in(set));
        exprs.push(last);
        exprs
    };
    let drop = || Expr::Verdict(Verdict::Drop);
    let refuse = |frontend: Frontend| {
        [
            member(frontend, frontend.rejected(), go("reject-chain")),
            member(frontend, frontend.dropped(), drop()),
        ]
    };
    let on_node_ports = |exprs: Vec<Expr>| {
        node_port_conditions(words, node).map(|conditions| rule([conditions, exprs].concat()))
    };
    // Unreachable: the port, by the number each family has for it.
    let code = if words.address_len() == 4 { 3 } else { 4 };
    vec![
        plain("firewall-check", vec![firewall(words)]),
        plain("service-endpoints-check", refuse(Frontend::Vip).map(rule).to_vec()),
        plain(
            "nodeport-endpoints-check",
            refuse(Frontend::NodePort).into_iter().filter_map(on_node_ports).collect(),
        ),
        plain("cluster-ips-check", unserved(words, node)),
        plain("reject-chain", vec![rule(vec![Expr::Reject { code }])]),
    ]
}

fn firewall(words: Matches) -> Rule {
    let mut exprs = words.key(Frontend::Vip, Reg(0));
    exprs.push(is_in(SetId::FirewallIps));
    exprs.push(words.source(Reg(0).after(words.key_len(Frontend::Vip))));
    exprs.push(Expr::Member { set: SetId::FirewallAllowed.name().into(), key: Reg(0), is_inverted: true });
    with(exprs, Expr::Verdict(Verdict::Drop))
}

/// Ports of a ClusterIP that nobody serves, and addresses that nobody has. An address that is the machine's own
/// is the machine's business.
fn unserved(words: Matches, node: &NodeRules) -> Vec<Rule> {
    let finish = |treatment, comment: &str, conditions: Vec<Expr>| {
        let verdict = match treatment {
            Unserved::Pass => return None,
            Unserved::Reject => go("reject-chain"),
            Unserved::Drop => Expr::Verdict(Verdict::Drop),
        };
        let not_ours = words.address_type(Address::Destination, Cmp::NotEqual).to_vec();
        let exprs = [conditions, not_ours, vec![verdict]].concat();
        Some(Rule { exprs, comment: Some(comment.into()) })
    };
    let known = vec![words.destination(Reg(0)), is_in(SetId::ClusterIps)];
    let unused = finish(node.manners.unused_port, "invalid ports of ClusterIPs", known);
    let unallocated = node.service_cidrs.iter().filter_map(|cidr| {
        let inside = words.in_prefix(words.destination(Reg(0)), Cmp::Equal, cidr);
        finish(node.manners.unallocated_ip, "unallocated ClusterIPs", inside)
    });
    unused.into_iter().chain(unallocated).collect()
}

fn is_in(set: SetId) -> Expr {
    Expr::Member { set: set.name().into(), key: Reg(0), is_inverted: false }
}

// How a packet finds its frontend.

/// Goes to the chain if the map knows the packet, with what the map says of it noted.
fn when_known(words: Matches, frontend: Frontend, known: SetId, chain: &str) -> Rule {
    with(look_up(words, frontend, known), go(chain))
}

fn look_up(words: Matches, frontend: Frontend, known: SetId) -> Vec<Expr> {
    let mut exprs = words.key(frontend, Reg(0));
    exprs.push(map(known, Reg(0), Reg(0)));
    exprs.push(note());
    exprs
}

/// To the chain that picks as was noted.
fn pick(frontend: Frontend) -> Rule {
    let noted = Expr::Meta { key: Meta::Priority, into: Reg(0) };
    rule(vec![noted, Expr::VerdictMap { map: frontend.picks().name().into(), key: Reg(0) }])
}

fn vips(words: Matches, node: &NodeRules) -> Vec<(Chain, Vec<Rule>)> {
    let frontend = Frontend::Vip;
    let mut external = words.key(frontend, Reg(0));
    external.push(is_in(SetId::ExternalIps));
    let mut rules =
        vec![when_known(words, frontend, frontend.local(), "local-vips"), with(external, go("marked-vips"))];
    rules.extend(off_cluster(words, node).map(|conditions| with(conditions, go("marked-vips"))));
    rules.push(pick(frontend));
    let [marked, short] = from_here(words, frontend, "marked-vips", "vips-from-pods");
    vec![plain("vips", rules), plain("local-vips", sides(words, node, frontend)), marked, short]
}

fn node_ports(words: Matches, node: &NodeRules) -> Vec<(Chain, Vec<Rule>)> {
    let frontend = Frontend::NodePort;
    let rules = vec![
        when_known(words, frontend, frontend.local(), "local-nodeports"),
        when_known(words, frontend, frontend.all(), "marked-nodeports"),
    ];
    let [marked, short] = from_here(words, frontend, "marked-nodeports", "nodeports-from-pods");
    vec![plain("nodeports", rules), plain("local-nodeports", sides(words, node, frontend)), marked, short]
}

/// Where external traffic stays on its node, whoever is on the node already reaches every endpoint: Pods as
/// they are, the node itself masqueraded.
fn sides(words: Matches, node: &NodeRules, frontend: Frontend) -> Vec<Rule> {
    let (marked, short) = match frontend {
        Frontend::Vip => ("marked-vips", "vips-from-pods"),
        Frontend::NodePort => ("marked-nodeports", "nodeports-from-pods"),
    };
    let from_pods = node.detector.as_ref().map(|d| with(detect(words, d, Cmp::Equal), go(short)));
    let from_node = with(words.address_type(Address::Source, Cmp::Equal).to_vec(), go(marked));
    from_pods.into_iter().chain([from_node, pick(frontend)]).collect()
}

/// What was noted may be about those who come from outside.
fn from_here(words: Matches, frontend: Frontend, marked: &str, short: &str) -> [(Chain, Vec<Rule>); 2] {
    let mark = rule(vec![jump("mark-for-masquerade")]);
    let again = || vec![rule(look_up(words, frontend, frontend.all())), pick(frontend)];
    [plain(marked, [vec![mark], again()].concat()), plain(short, again())]
}

fn off_cluster(words: Matches, node: &NodeRules) -> Option<Vec<Expr>> {
    match &node.off_cluster {
        OffCluster::Never => None,
        OffCluster::Always => Some(Vec::new()),
        OffCluster::NotLocal(detector) => Some(detect(words, detector, Cmp::NotEqual)),
        OffCluster::FromClusterIps => Some(vec![words.source(Reg(0)), is_in(SetId::ClusterIps)]),
    }
}

fn detect(words: Matches, detector: &Detector, op: Cmp) -> Vec<Expr> {
    /// The kernel's limit for names of interfaces, with the zero at the end.
    const NAME: usize = 16;
    let interface = |name: Vec<u8>| {
        vec![
            Expr::Meta { key: Meta::InputName, into: Reg(0) },
            Expr::Cmp { from: Reg(0), op, data: name.into() },
        ]
    };
    match detector {
        Detector::Source(cidr) => words.in_prefix(words.source(Reg(0)), op, cidr),
        Detector::Interface(name) => {
            let mut name = name.as_bytes().to_vec();
            name.resize(NAME, 0);
            interface(name)
        }
        Detector::InterfacePrefix(prefix) => {
            interface(prefix.as_bytes()[..prefix.len().min(NAME - 1)].to_vec())
        }
    }
}

/// `None` if no address serves node ports.
fn node_port_conditions(words: Matches, node: &NodeRules) -> Option<Vec<Expr>> {
    match &node.node_port_addresses {
        NodePortAddresses::Only(_) => Some(vec![words.destination(Reg(0)), is_in(SetId::NodePortIps)]),
        NodePortAddresses::AllLocal { loopback } => {
            let mut exprs = words.address_type(Address::Destination, Cmp::Equal).to_vec();
            let loopback_range = if words.address_len() == 4 { "127.0.0.0/8" } else { "::1/128" };
            if let Some(range) = Cidr::parse(loopback_range).filter(|_| !loopback) {
                exprs.extend(words.in_prefix(words.destination(Reg(0)), Cmp::NotEqual, &range));
            }
            Some(exprs)
        }
    }
}

// Whose source is changed.

fn set_mark(mask: u32, xor: u32) -> Vec<Expr> {
    let (mask, xor) = (mask.to_ne_bytes().into(), xor.to_ne_bytes().into());
    vec![
        Expr::Meta { key: Meta::Mark, into: Reg(0) },
        Expr::Bitwise { from: Reg(0), into: Reg(0), mask, xor },
        Expr::SetMeta { key: Meta::Mark, from: Reg(0) },
    ]
}

/// The mark is taken off again: a packet that comes back into the stack, out of a tunnel say, is not
/// masqueraded twice.
fn masquerading(words: Matches, mark: MasqueradeBit) -> Vec<Rule> {
    let is_marked = bits(Expr::Meta { key: Meta::Mark, into: Reg(0) }, mark, Cmp::NotEqual);
    let marked = [is_marked, set_mark(u32::MAX, mark), vec![Expr::Masquerade]].concat();
    let mut hairpin = bits(Expr::Ct { key: Ct::Status, into: Reg(0) }, STATUS_DNAT, Cmp::NotEqual);
    let len = words.address_len();
    hairpin.extend([
        words.source(Reg(0)),
        words.destination(Reg(0).after(len)),
        words.protocol(Reg(0).after(2 * len)),
        words.port(Reg(0).after(2 * len + 4)),
        is_in(SetId::HairpinConnections),
        Expr::Masquerade,
    ]);
    let comment = |text: &str| Some(text.into());
    vec![
        Rule { exprs: marked, comment: comment("marked for masquerade") },
        Rule { exprs: hairpin, comment: comment("endpoints that meet themselves") },
    ]
}
