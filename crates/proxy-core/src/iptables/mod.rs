//! The rules as iptables-restore reads them, with the chain names, order and comments of upstream's kube-proxy, so
//! that `iptables -t nat -L KUBE-SERVICES -n` shows what people know.
//!
//! * [`Renderer`]: a rule set as a whole script, or the script of a [`Delta`](crate::rules::Delta).
//! * [`Saved`]: what `iptables-save` says is there: which jumps are missing, which chains nobody needs.
//! * [`look`]: what chains that are there do with a packet.
//! * [`walk`]: what a script does to a table, and the fate of a packet there.

mod ipset;
pub mod ipvs_chains;
mod look;
mod names;
mod render;
mod saved;
mod script;
pub mod walk;

pub use ipset::Entry;
pub use look::look;
pub(crate) use render::is_local as is_local_match;
pub use render::{INVALID_DROPPED, LOCALHOST_ACCEPTED, Options, Renderer};
pub use saved::{Saved, remove};
pub use script::{Script, Table};

pub(crate) const SERVICES: &str = "KUBE-SERVICES";
pub(crate) const EXTERNAL_SERVICES: &str = "KUBE-EXTERNAL-SERVICES";
pub(crate) const NODE_PORTS: &str = "KUBE-NODEPORTS";
pub(crate) const POSTROUTING: &str = "KUBE-POSTROUTING";
pub(crate) const MARK_MASQ: &str = "KUBE-MARK-MASQ";
pub(crate) const FORWARD: &str = "KUBE-FORWARD";
pub(crate) const PROXY_FIREWALL: &str = "KUBE-PROXY-FIREWALL";
/// The kubelet's chain against martians. We write the same rule and never take it away.
pub(crate) const KUBELET_FIREWALL: &str = "KUBE-FIREWALL";

/// Holds nothing and is called by nobody; when it is gone, somebody flushed the tables.
pub const CANARY: &str = "KUBE-PROXY-CANARY";

/// How a built-in chain leads to one of ours.
#[derive(Clone, Copy, Debug)]
pub struct Jump {
    pub table: Table,
    pub from: &'static str,
    pub to: &'static str,
    pub comment: &'static str,
    /// First packets of a connection only.
    pub only_new: bool,
}

const fn jump(
    table: Table,
    from: &'static str,
    to: &'static str,
    comment: &'static str,
    only_new: bool,
) -> Jump {
    Jump { table, from, to, comment, only_new }
}

const EXTERNALLY_VISIBLE: &str = "kubernetes externally-visible service portals";
const PORTALS: &str = "kubernetes service portals";
const FIREWALL: &str = "kubernetes load balancer firewall";

/// Each is put before all other rules, so the last one of a chain comes first. Upstream does not look at external
/// addresses on the way out, and a node's packet to one without endpoints goes to the network; other modes refuse it,
/// and so do we.
#[rustfmt::skip]
pub const JUMPS: &[Jump] = &[
    jump(Table::Filter, "INPUT", EXTERNAL_SERVICES, EXTERNALLY_VISIBLE, true),
    jump(Table::Filter, "FORWARD", EXTERNAL_SERVICES, EXTERNALLY_VISIBLE, true),
    jump(Table::Filter, "OUTPUT", EXTERNAL_SERVICES, EXTERNALLY_VISIBLE, true),
    jump(Table::Filter, "INPUT", NODE_PORTS, "kubernetes health check service ports", false),
    jump(Table::Filter, "FORWARD", SERVICES, PORTALS, true),
    jump(Table::Filter, "OUTPUT", SERVICES, PORTALS, true),
    jump(Table::Filter, "FORWARD", FORWARD, "kubernetes forwarding rules", false),
    jump(Table::Filter, "INPUT", PROXY_FIREWALL, FIREWALL, true),
    jump(Table::Filter, "OUTPUT", PROXY_FIREWALL, FIREWALL, true),
    jump(Table::Filter, "FORWARD", PROXY_FIREWALL, FIREWALL, true),
    jump(Table::Nat, "OUTPUT", SERVICES, PORTALS, false),
    jump(Table::Nat, "PREROUTING", SERVICES, PORTALS, false),
    jump(Table::Nat, "POSTROUTING", POSTROUTING, "kubernetes postrouting rules", false),
    jump(Table::Filter, "INPUT", KUBELET_FIREWALL, "", false),
    jump(Table::Filter, "OUTPUT", KUBELET_FIREWALL, "", false),
];

// === impl Jump ===

impl Jump {
    /// The rule without the word that says where it goes.
    pub(crate) fn rule(&self) -> String {
        let state = if self.only_new { "-m conntrack --ctstate NEW " } else { "" };
        let comment = match self.comment {
            "" => String::new(),
            text => format!("-m comment --comment \"{text}\" "),
        };
        format!("{state}{comment}-j {}", self.to)
    }
}
