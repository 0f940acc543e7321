//! The chains that only ipvs mode has. Who removes or judges what is in the tables has to know them in every mode.

use super::script::Table;
use super::{FORWARD, Jump, POSTROUTING, PROXY_FIREWALL, SERVICES};

pub(crate) const NODE_PORT: &str = "KUBE-NODE-PORT";
pub(crate) const LOAD_BALANCER: &str = "KUBE-LOAD-BALANCER";
pub(crate) const SOURCE_RANGES: &str = "KUBE-SOURCE-RANGES-FIREWALL";
pub(crate) const IPVS_FILTER: &str = "KUBE-IPVS-FILTER";

/// Chains that only chains of ours lead to, and one of upstream's that we have no use for.
pub(crate) const INNER_CHAINS: [&str; 3] = [LOAD_BALANCER, SOURCE_RANGES, "KUBE-IPVS-OUT-FILTER"];

const PORTALS: &str = "kubernetes service portals";
const FIREWALL: &str = "kube-proxy firewall rules";

const fn jump(table: Table, from: &'static str, to: &'static str, comment: &'static str) -> Jump {
    Jump { table, from, to, comment, only_new: false }
}

/// Each is put before all other rules, so the last one of a chain comes first.
pub const JUMPS: &[Jump] = &[
    jump(Table::Nat, "OUTPUT", SERVICES, PORTALS),
    jump(Table::Nat, "PREROUTING", SERVICES, PORTALS),
    jump(Table::Nat, "POSTROUTING", POSTROUTING, "kubernetes postrouting rules"),
    jump(Table::Filter, "FORWARD", FORWARD, "kubernetes forwarding rules"),
    jump(Table::Filter, "INPUT", NODE_PORT, "kubernetes health check rules"),
    jump(Table::Filter, "INPUT", PROXY_FIREWALL, FIREWALL),
    jump(Table::Filter, "FORWARD", PROXY_FIREWALL, FIREWALL),
    jump(Table::Filter, "INPUT", IPVS_FILTER, "kubernetes ipvs access filter"),
    jump(Table::Mangle, "OUTPUT", PROXY_FIREWALL, FIREWALL),
];
