#![allow(clippy::unwrap_used, clippy::print_stderr)]

use super::*;
use fixture::Netns;

fn entry(kind: SetType, is_v6: bool, number: u16) -> Entry {
    let ip = |n: u16| -> IpAddr {
        match is_v6 {
            false => format!("10.96.{}.{}", n / 250, n % 250 + 1).parse().unwrap(),
            true => format!("fd96::{:x}", n + 1).parse().unwrap(),
        }
    };
    let (protocol, port) = (Some(17), Some(53 + number % 3));
    match kind {
        SetType::Ip => Entry { ip: Some(ip(number)), ..Entry::default() },
        SetType::IpPort => Entry { ip: Some(ip(number)), protocol, port, second: None },
        SetType::IpPortIp => Entry { ip: Some(ip(number)), protocol, port, second: Some((ip(number), None)) },
        SetType::IpPortNet => {
            let net: IpAddr = if is_v6 { "fd44::" } else { "10.244.0.0" }.parse().unwrap();
            let length = if is_v6 { 64 } else { 16 };
            Entry { ip: Some(ip(number)), protocol, port, second: Some((net, Some(length))) }
        }
        SetType::Port => Entry { port: Some(30_000 + number), ..Entry::default() },
    }
}

#[test]
fn every_kind_of_set_is_filled_and_emptied() {
    if let Err(why) = Netns::available() {
        eprintln!("skipped: {why}");
        return;
    }
    let ns = Netns::new().unwrap();
    ns.within(|| {
        let mut sets = Ipsets::open().unwrap();
        match sets.create("KUBE-X", SetType::Ip, false) {
            Err(Error::Refused { code, .. }) if code == Errno::OPNOTSUPP.raw_os_error() || code == 22 => {
                eprintln!("skipped: this kernel has no ipset");
                return;
            }
            made => made.unwrap(),
        }
        assert!(sets.create("KUBE-X", SetType::Ip, false).is_err(), "it is there");
        sets.destroy("KUBE-X").unwrap();
        sets.destroy("KUBE-X").unwrap();
        for kind in SetType::ALL {
            for is_v6 in [false, true] {
                fill_and_empty(&mut sets, kind, is_v6);
            }
        }
        assert_eq!(sets.list("").unwrap(), vec![]);
        assert!(sets.add("KUBE-X", &[Entry::default()]).unwrap().none().is_err());
        one_that_is_refused_keeps_no_other_away(&mut sets);
    });
}

fn fill_and_empty(sets: &mut Ipsets, kind: SetType, is_v6: bool) {
    let name = "KUBE-6-LOAD-BALANCER-SOURCE-CID";
    sets.create(name, kind, is_v6).unwrap();
    let entries: Vec<Entry> = (0..1200).map(|number| entry(kind, is_v6, number)).collect();
    sets.add(name, &entries).unwrap().none().unwrap();
    sets.add(name, &entries[..3]).unwrap().none().unwrap();
    let [set] = <[Set; 1]>::try_from(sets.list("KUBE-").unwrap()).unwrap();
    assert_eq!((set.name.as_str(), set.kind), (name, Some(kind)));
    assert_eq!(set.is_v6, is_v6 && kind != SetType::Port);
    let sorted = |mut entries: Vec<Entry>| {
        entries.sort();
        entries
    };
    assert_eq!(sorted(set.entries), sorted(entries.clone()), "{kind:?}");
    sets.delete(name, &entries[1..]).unwrap().none().unwrap();
    sets.delete(name, &entries[1..]).unwrap().none().unwrap();
    assert_eq!(sets.list("KUBE-").unwrap()[0].entries, entries[..1], "{kind:?}");
    sets.destroy(name).unwrap();
}

fn one_that_is_refused_keeps_no_other_away(sets: &mut Ipsets) {
    sets.create("KUBE-X", SetType::IpPort, false).unwrap();
    let mut entries: Vec<Entry> = (0..1200).map(|number| entry(SetType::IpPort, false, number)).collect();
    entries[700].ip = Some("fd96::1".parse().unwrap());
    entries[1100].port = None;
    let refused = sets.add("KUBE-X", &entries).unwrap().0;
    assert!(matches!(refused.as_slice(), [(700, _), (1100, _)]), "{refused:?}");
    assert_eq!(sets.list("KUBE-X").unwrap()[0].entries.len(), entries.len() - 2);
    sets.destroy("KUBE-X").unwrap();
}
