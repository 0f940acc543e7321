//! The table that holds what all plugins need of nf_tables: one of each family, rules that never change, and sets whose
//! elements say whose they are. Nobody else's table is read or written.

use std::fmt::Write as _;
use std::net::IpAddr;

use ipnet::IpNet;
use nft::{
    Address, Chain, ChainType, Cmp, Element, Expr, Family, Field, Hook, HookPoint, Message, Meta, Reg, Rule,
    Set, TableId, Value, Values, Verdict,
};

use crate::portmap::{HostPort, PortMap, Targets};
use crate::request::AttachmentId;

pub const TABLE: &str = "longshore-cni";
const COMMENT: &str = "what CNI plugins keep for Pods";

const DNAT: i32 = -100;
const FILTER: i32 = 0;
const SNAT: i32 = 100;
/// `RTN_LOCAL`.
const LOCAL: u32 = 2;

/// What an element may say of itself.
const LABEL_MOST: usize = 120;
const NETWORK_MOST: usize = 40;

/// One file per plugin, one set per question that a rule asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetId {
    /// Protocol and port, and where they lead.
    HostPorts,
    /// The same of one address of the machine.
    AddressPorts,
    /// A container that reaches itself by a port of the machine.
    Hairpins,
    /// Containers whose ports the machine itself reaches by 127.0.0.1.
    FromLoopback,
    /// Containers that never see who calls.
    HiddenCallers,
    /// Containers and the networks that they are in.
    Neighbours,
    /// Containers that look like the machine to the rest of the world.
    Masqueraded,
    /// Bridges whose containers only know each other.
    Bridges,
    SameBridge,
    /// Bridges whose containers do not even know each other.
    IsolatedBridges,
}

/// One thing that a plugin wants of the table, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub set: SetId,
    pub family: Family,
    pub element: Element,
}

// === impl SetId ===

impl SetId {
    pub const ALL: [SetId; 10] = [
        SetId::HostPorts,
        SetId::AddressPorts,
        SetId::Hairpins,
        SetId::FromLoopback,
        SetId::HiddenCallers,
        SetId::Neighbours,
        SetId::Masqueraded,
        SetId::Bridges,
        SetId::SameBridge,
        SetId::IsolatedBridges,
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            SetId::HostPorts => "host-ports",
            SetId::AddressPorts => "address-ports",
            SetId::Hairpins => "hairpins",
            SetId::FromLoopback => "from-loopback",
            SetId::HiddenCallers => "hidden-callers",
            SetId::Neighbours => "neighbours",
            SetId::Masqueraded => "masqueraded",
            SetId::Bridges => "bridges",
            SetId::SameBridge => "same-bridge",
            SetId::IsolatedBridges => "isolated-bridges",
        }
    }

    /// Whether one that stands for somebody else's container is a conflict, and not just older than who has its address now.
    #[must_use]
    pub fn is_claimed(self) -> bool {
        matches!(self, SetId::HostPorts | SetId::AddressPorts)
    }

    /// Whether an element is of a whole network, so that each of its containers finds it there.
    #[must_use]
    pub fn is_shared(self) -> bool {
        matches!(self, SetId::Bridges | SetId::SameBridge | SetId::IsolatedBridges)
    }

    fn set(self, family: Family) -> Set {
        let ip = if family == Family::Ip { Field::Ipv4 } else { Field::Ipv6 };
        let target = || Some(Values::Fields(vec![ip, Field::Port]));
        let (key, values) = match self {
            SetId::HostPorts => (vec![Field::Protocol, Field::Port], target()),
            SetId::AddressPorts => (vec![ip, Field::Protocol, Field::Port], target()),
            SetId::Hairpins | SetId::Neighbours => (vec![ip, ip], None),
            SetId::FromLoopback | SetId::HiddenCallers | SetId::Masqueraded => (vec![ip], None),
            SetId::Bridges => (vec![Field::Interface], None),
            SetId::SameBridge | SetId::IsolatedBridges => (vec![Field::Interface, Field::Interface], None),
        };
        let is_interval = self == SetId::Neighbours;
        Set { name: self.name().into(), key, values, is_interval, is_dynamic: false, size: None }
    }
}

#[must_use]
pub fn table(family: Family) -> TableId {
    TableId { family, name: TABLE.into() }
}

#[must_use]
pub fn family(ip: IpAddr) -> Family {
    if ip.is_ipv4() { Family::Ip } else { Family::Ip6 }
}

/// Whose an element is. The network comes first, so that what is left of one can be found.
#[must_use]
pub fn label(network: &str, of: &AttachmentId) -> String {
    let text = format!("{}{}/{}", label_of_network(network), of.container, of.interface);
    if text.len() <= LABEL_MOST {
        return text;
    }
    let id = format!("{}/{}", of.container, of.interface);
    format!("{}#{:032x}", label_of_network(network), base::fnv::fnv1a128(id.as_bytes()))
}

/// How the labels of a network begin.
#[must_use]
pub fn label_of_network(network: &str) -> String {
    match network.len() <= NETWORK_MOST {
        true => format!("{network}: "),
        false => format!("#{:032x}: ", base::fnv::fnv1a128(network.as_bytes())),
    }
}

// === what is wanted ===

/// The ports of a container.
#[must_use]
pub fn ports(map: &PortMap, to: Targets, label: &str) -> Vec<Entry> {
    let mut entries: Vec<Entry> = map.targets(to).map(|(port, ip)| port_entry(port, ip, label)).collect();
    if entries.is_empty() || !map.masquerade {
        return entries;
    }
    for ip in [to.v4, to.v6].into_iter().flatten() {
        let twice = [octets(ip), octets(ip)].concat();
        entries.push(entry(SetId::Hairpins, ip, twice, label));
        if map.masquerade_all {
            entries.push(entry(SetId::HiddenCallers, ip, octets(ip), label));
        }
        if ip.is_ipv4() {
            entries.push(entry(SetId::FromLoopback, ip, octets(ip), label));
        }
    }
    entries
}

fn port_entry(port: HostPort, to: IpAddr, label: &str) -> Entry {
    let place = [padded(&[port.protocol as u8]), padded(&port.host.to_be_bytes())].concat();
    let value = [octets(to), padded(&port.container.to_be_bytes())].concat();
    let (set, key) = match port.ip {
        None => (SetId::HostPorts, place),
        Some(ip) => (SetId::AddressPorts, [octets(ip), place].concat()),
    };
    let mut entry = entry(set, to, key, label);
    entry.element.value = Some(Value::Data(value.into()));
    entry
}

/// What makes a container's packets look like the machine's, except for those in its own network.
#[must_use]
pub fn masquerade(address: IpNet, label: &str) -> [Entry; 2] {
    let ip = address.addr();
    let mut inside = entry(SetId::Neighbours, ip, [octets(ip), octets(address.network())].concat(), label);
    inside.element.end = Some([octets(ip), octets(address.broadcast())].concat().into());
    [inside, entry(SetId::Masqueraded, ip, octets(ip), label)]
}

/// What keeps the containers of a bridge apart. They are the network's, and stay as long as it has containers.
#[must_use]
pub fn isolation(bridge: &str, is_from_itself: bool, network: &str) -> Vec<Entry> {
    let label = label_of_network(network);
    let mut name = bridge.as_bytes().to_vec();
    name.resize(16, 0);
    let twice = [name.clone(), name.clone()].concat();
    let of = |set: SetId, key: &[u8]| {
        [Family::Ip, Family::Ip6].map(|family| Entry {
            set,
            family,
            element: Element { comment: Some(label.as_str().into()), ..Element::new(key.to_vec()) },
        })
    };
    let mut entries = of(SetId::Bridges, &name).to_vec();
    entries.extend(of(SetId::SameBridge, &twice));
    if is_from_itself {
        entries.extend(of(SetId::IsolatedBridges, &twice));
    }
    entries
}

fn entry(set: SetId, ip: IpAddr, key: Vec<u8>, label: &str) -> Entry {
    Entry { set, family: family(ip), element: Element { comment: Some(label.into()), ..Element::new(key) } }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    out.resize(4, 0);
    out
}

/// For a person: a port, or the key as it is.
#[must_use]
pub fn shown(entry: &Entry) -> String {
    let key = &entry.element.key;
    match (entry.set.is_claimed(), key.get(key.len().saturating_sub(8)..)) {
        (true, Some([protocol, _, _, _, high, low, ..])) => {
            let protocol = match protocol {
                6 => "tcp",
                17 => "udp",
                _ => "sctp",
            };
            format!("host port {}/{protocol}", u16::from_be_bytes([*high, *low]))
        }
        _ => key.iter().fold(format!("{} ", entry.set.name()), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        }),
    }
}

// === the rules ===

/// Everything but elements, whatever of it is there already.
#[must_use]
pub fn skeleton(family: Family) -> Vec<Message> {
    let mut messages = vec![Message::AddTableFor(COMMENT.into())];
    messages.extend(SetId::ALL.map(|set| Message::AddSet(set.set(family))));
    for (chain, rules) in chains(family) {
        let name = chain.name.clone();
        messages.push(Message::AddChain(chain));
        messages.push(Message::FlushChain(name.clone()));
        messages.extend(
            rules.into_iter().map(|exprs| Message::AddRule(name.clone(), Rule { exprs, comment: None })),
        );
    }
    messages
}

fn chains(family: Family) -> Vec<(Chain, Vec<Vec<Expr>>)> {
    let entrance = |name: &str, kind, point, priority| Chain {
        name: name.into(),
        hook: Some(Hook { kind, point, priority }),
    };
    let to_ports = || vec![[is_local(), vec![Expr::Verdict(Verdict::Goto("ports".into()))]].concat()];
    vec![
        (Chain { name: "ports".into(), hook: None }, ports_rules(family)),
        (entrance("prerouting", ChainType::Nat, HookPoint::Prerouting, DNAT), to_ports()),
        (entrance("output", ChainType::Nat, HookPoint::Output, DNAT), to_ports()),
        (entrance("postrouting", ChainType::Nat, HookPoint::Postrouting, SNAT), postrouting(family)),
        (entrance("forward", ChainType::Filter, HookPoint::Forward, FILTER), forward()),
    ]
}

fn length(family: Family) -> usize {
    if family == Family::Ip { 4 } else { 16 }
}

fn source(family: Family, into: Reg) -> Expr {
    match family {
        Family::Ip => Expr::Network { offset: 12, len: 4, into },
        Family::Ip6 => Expr::Network { offset: 8, len: 16, into },
    }
}

fn destination(family: Family, into: Reg) -> Expr {
    match family {
        Family::Ip => Expr::Network { offset: 16, len: 4, into },
        Family::Ip6 => Expr::Network { offset: 24, len: 16, into },
    }
}

fn is_in(set: SetId) -> Expr {
    Expr::Member { set: set.name().into(), key: Reg(0), is_inverted: false }
}

fn is_local() -> Vec<Expr> {
    vec![
        Expr::AddressType { of: Address::Destination, into: Reg(0) },
        Expr::Cmp { from: Reg(0), op: Cmp::Equal, data: LOCAL.to_ne_bytes().into() },
    ]
}

/// Keys are read into the first registers; an address and its port come out in the eighth and behind it.
fn ports_rules(family: Family) -> Vec<Vec<Expr>> {
    let out = Reg(8);
    let place = |at: Reg| {
        vec![
            Expr::Meta { key: Meta::Protocol, into: at },
            Expr::Transport { offset: 2, len: 2, into: at.after(4) },
        ]
    };
    let leads = |map: SetId| {
        vec![
            Expr::Map { map: map.name().into(), key: Reg(0), into: out },
            Expr::Dnat { family, address: out, port: out.after(length(family)) },
        ]
    };
    vec![
        [vec![destination(family, Reg(0))], place(Reg(0).after(length(family))), leads(SetId::AddressPorts)]
            .concat(),
        [place(Reg(0)), leads(SetId::HostPorts)].concat(),
    ]
}

fn postrouting(family: Family) -> Vec<Vec<Expr>> {
    let both = || vec![source(family, Reg(0)), destination(family, Reg(0).after(length(family)))];
    let mut rules = vec![[both(), vec![is_in(SetId::Hairpins), Expr::Masquerade]].concat()];
    if family == Family::Ip {
        // 127.0.0.0/8, which nobody else can answer.
        let loopback = begins(source(family, Reg(0)), &[0xff, 0, 0, 0], &[127, 0, 0, 0]);
        let to = vec![destination(family, Reg(0)), is_in(SetId::FromLoopback), Expr::Masquerade];
        rules.push([loopback, to].concat());
    }
    rules.push(vec![destination(family, Reg(0)), is_in(SetId::HiddenCallers), Expr::Masquerade]);
    let mut groups = (vec![0; length(family)], vec![0; length(family)]);
    (groups.0[0], groups.1[0]) = if family == Family::Ip { (0xf0, 0xe0) } else { (0xff, 0xff) };
    let leave = || vec![Expr::Verdict(Verdict::Return)];
    rules.push([begins(destination(family, Reg(0)), &groups.0, &groups.1), leave()].concat());
    rules.push([both(), vec![is_in(SetId::Neighbours)], leave()].concat());
    rules.push(vec![source(family, Reg(0)), is_in(SetId::Masqueraded), Expr::Masquerade]);
    rules
}

fn begins(load: Expr, mask: &[u8], value: &[u8]) -> Vec<Expr> {
    let xor = vec![0; mask.len()].into();
    vec![
        load,
        Expr::Bitwise { from: Reg(0), into: Reg(0), mask: mask.into(), xor },
        Expr::Cmp { from: Reg(0), op: Cmp::Equal, data: value.into() },
    ]
}

/// A verdict here says nothing for other tables: what they drop stays dropped.
fn forward() -> Vec<Vec<Expr>> {
    let name = |key: Meta, into: Reg| Expr::Meta { key, into };
    let both = || vec![name(Meta::InputName, Reg(0)), name(Meta::OutputName, Reg(4))];
    let drop = || Expr::Verdict(Verdict::Drop);
    vec![
        [both(), vec![is_in(SetId::IsolatedBridges), drop()]].concat(),
        [both(), vec![is_in(SetId::SameBridge), Expr::Verdict(Verdict::Return)]].concat(),
        vec![
            name(Meta::InputName, Reg(0)),
            is_in(SetId::Bridges),
            name(Meta::OutputName, Reg(0)),
            is_in(SetId::Bridges),
            drop(),
        ],
    ]
}
