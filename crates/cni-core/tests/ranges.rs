//! Addresses of ranges: never one twice, all of them, and none that is not theirs.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni_core::fields::Fields;
use cni_core::ranges::{Range, RangeSet};
use proptest::prelude::*;
use serde_json::json;

fn range(subnet: &str, start: Option<&str>, end: Option<&str>) -> Range {
    let value = json!({"subnet": subnet, "rangeStart": start, "rangeEnd": end});
    Range::read(&Fields::of(&value, String::new()).unwrap()).unwrap()
}

fn round(set: &RangeSet, last: Option<&str>) -> Vec<String> {
    set.candidates(last.map(|ip| ip.parse().unwrap()))
        .map(|(address, _)| address.addr().to_string())
        .collect()
}

#[test]
fn a_round_goes_through_all_ranges_and_misses_gateways() {
    let set = RangeSet::of(vec![
        range("10.1.0.0/29", None, None),
        range("10.2.0.0/24", Some("10.2.0.8"), Some("10.2.0.9")),
    ])
    .unwrap();
    let all = ["10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5", "10.1.0.6", "10.2.0.8", "10.2.0.9"];
    assert_eq!(round(&set, None), all);
    assert_eq!(
        round(&set, Some("10.1.0.5")),
        ["10.1.0.6", "10.2.0.8", "10.2.0.9", "10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5"]
    );
    assert_eq!(round(&set, Some("10.2.0.9")), all);
    // One that is of no range any more says nothing.
    assert_eq!(round(&set, Some("10.7.0.1")), all);
    let (address, gateway) = set.candidates(None).next().unwrap();
    assert_eq!((address.to_string(), gateway.to_string()), ("10.1.0.2/29".into(), "10.1.0.1".into()));
}

#[test]
fn a_range_of_version_six_is_as_long_as_one_looks() {
    let set = RangeSet::of(vec![range("fd00::/64", None, None)]).unwrap();
    let some: Vec<String> = set.candidates(None).take(2).map(|(a, _)| a.to_string()).collect();
    assert_eq!(some, ["fd00::2/64", "fd00::3/64"]);
    // The last one is not kept free, as it is not sent to all.
    let last = set.candidates(Some("fd00::ffff:ffff:ffff:fffe".parse().unwrap())).next().unwrap();
    assert_eq!(last.0.addr().to_string(), "fd00::ffff:ffff:ffff:ffff");
    assert_eq!(set.candidates(Some(last.0.addr())).next().unwrap().0.addr().to_string(), "fd00::2");
}

proptest! {
    /// Whoever comes and goes: who has an address has it alone, one that is free is found as long as there is one, and it is of
    /// the range.
    #[test]
    fn nobody_ever_gets_what_somebody_has(
        length in 26_u8..30,
        comes in proptest::collection::vec(any::<(bool, u8)>(), 1..400),
    ) {
        let subnet = format!("10.1.0.0/{length}");
        let set = RangeSet::of(vec![range(&subnet, None, None)]).unwrap();
        let room = (1 << (32 - length)) - 3;
        let (mut taken, mut order): (BTreeSet<IpAddr>, Vec<IpAddr>) = Default::default();
        let mut last = None;
        for (comes, who) in comes {
            if comes {
                let free = set.candidates(last).map(|(address, _)| address.addr()).find(|ip| !taken.contains(ip));
                prop_assert_eq!(free.is_some(), taken.len() < room);
                if let Some(ip) = free {
                    prop_assert!(taken.insert(ip) && set.range_of(ip).is_some());
                    order.push(ip);
                    last = Some(ip);
                }
            } else if !order.is_empty() {
                taken.remove(&order.remove(usize::from(who) % order.len()));
            }
        }
    }

    /// A round ends, wherever it begins, and has everybody once.
    #[test]
    fn a_round_has_everybody_once(first in 2_u8..100, count in 1_u8..100, begin in any::<u8>()) {
        let (start, end) = (format!("10.1.0.{first}"), format!("10.1.0.{}", first + count));
        let set = RangeSet::of(vec![range("10.1.0.0/24", Some(&start), Some(&end))]).unwrap();
        let last: IpAddr = [10, 1, 0, begin].into();
        let all: Vec<IpAddr> = set.candidates(Some(last)).map(|(address, _)| address.addr()).collect();
        let once: BTreeSet<IpAddr> = all.iter().copied().collect();
        prop_assert_eq!((all.len(), once.len()), (usize::from(count) + 1, usize::from(count) + 1));
    }
}
