//! Where traffic to an address or a node port may go, by where it comes from.

use crate::rules::{External, PortRules, Scope, Vip, Way};

/// For everybody, or for those who come from this node if there is a second way, for those who come from outside.
pub(super) fn ways_of_vip(vip: &Vip, port: &PortRules) -> (Way, Option<Way>) {
    match (vip.scope, &port.external) {
        (Scope::External, Some(external)) => ways_of_others(external),
        _ => (port.internal, None),
    }
}

/// The same. `None` for a port that is not for those outside.
pub(super) fn ways_of_node_port(port: &PortRules) -> Option<(Way, Option<Way>)> {
    port.external.as_ref().map(ways_of_others)
}

fn ways_of_others(external: &External) -> (Way, Option<Way>) {
    let from_here = external.from_node.or(external.from_pods);
    (from_here.unwrap_or(external.from_others), from_here.map(|_| external.from_others))
}
