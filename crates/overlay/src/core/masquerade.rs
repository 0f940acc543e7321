//! Pods look like their machine to the rest of the world: one chain in a table of our own for each family. Among Pods, and
//! from machines to Pods, addresses stay as they are.

use ipnet::IpNet;
use nft::{
    Chain, ChainType, Cmp, Expr, Family as NftFamily, Hook, HookPoint, Message, Meta, Reg, Rule, TableId,
    Verdict,
};

use super::Family;

const TABLE: &str = "longshore-overlay";
const COMMENT: &str = "Pods look like their machine to the rest of the world";
const CHAIN: &str = "postrouting";
const SNAT: i32 = 100;
/// What kube-proxy marks a packet with that it masquerades itself.
const PROXY_MARK: u32 = 0x4000;

pub(crate) fn table(family: Family) -> TableId {
    let family = match family {
        Family::V4 => NftFamily::Ip,
        Family::V6 => NftFamily::Ip6,
    };
    TableId { family, name: TABLE.into() }
}

/// All of the table; what is in it is replaced in one transaction.
pub(crate) fn messages(network: IpNet) -> Vec<Message> {
    let hook = Hook { kind: ChainType::Nat, point: HookPoint::Postrouting, priority: SNAT };
    let mut messages = vec![
        Message::AddTableFor(COMMENT.into()),
        Message::AddChain(Chain { name: CHAIN.into(), hook: Some(hook) }),
        Message::FlushChain(CHAIN.into()),
    ];
    let add = |exprs| Message::AddRule(CHAIN.into(), Rule { exprs, comment: None });
    messages.extend(rules(network).into_iter().map(add));
    messages
}

pub(crate) fn rules(network: IpNet) -> Vec<Vec<Expr>> {
    let (source, destination, length, multicast) = match network {
        IpNet::V4(_) => (12, 16, 4, "224.0.0.0/4"),
        IpNet::V6(_) => (8, 24, 16, "ff00::/8"),
    };
    let is_in = |offset, net: IpNet, op| {
        vec![
            Expr::Network { offset, len: length, into: Reg(0) },
            Expr::Bitwise {
                from: Reg(0),
                into: Reg(0),
                mask: octets(net, true),
                xor: vec![0; length as usize].into(),
            },
            Expr::Cmp { from: Reg(0), op, data: octets(net, false) },
        ]
    };
    let mark = PROXY_MARK.to_ne_bytes();
    let is_marked = vec![
        Expr::Meta { key: Meta::Mark, into: Reg(0) },
        Expr::Bitwise { from: Reg(0), into: Reg(0), mask: mark.into(), xor: vec![0; 4].into() },
        Expr::Cmp { from: Reg(0), op: Cmp::Equal, data: mark.into() },
    ];
    let leave = || vec![Expr::Verdict(Verdict::Return)];
    let mut rules =
        vec![[is_marked, leave()].concat(), [is_in(destination, network, Cmp::Equal), leave()].concat()];
    // A prefix that does not parse would leave multicast in; both are constants.
    let outside = multicast.parse().map(|net| is_in(destination, net, Cmp::NotEqual)).unwrap_or_default();
    rules.push([is_in(source, network, Cmp::Equal), outside, vec![Expr::Masquerade]].concat());
    rules
}

/// Of the mask, or of the network.
fn octets(net: IpNet, is_mask: bool) -> Box<[u8]> {
    match (net, is_mask) {
        (IpNet::V4(net), true) => net.netmask().octets().into(),
        (IpNet::V4(net), false) => net.network().octets().into(),
        (IpNet::V6(net), true) => net.netmask().octets().into(),
        (IpNet::V6(net), false) => net.network().octets().into(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_world_sees_the_machine_and_pods_see_pods() {
        for (network, length) in [("10.244.0.0/16", 4), ("fd00:10::/48", 16)] {
            let rules = rules(network.parse().unwrap());
            assert_eq!(rules.len(), 3);
            let last = rules.last().unwrap();
            assert!(last.contains(&Expr::Masquerade) && last.len() == 7, "{last:?}");
            let masks = last.iter().filter_map(|expr| match expr {
                Expr::Bitwise { mask, .. } => Some(mask.len()),
                _ => None,
            });
            assert_eq!(masks.collect::<Vec<_>>(), [length, length]);
        }
    }
}
