//! Bytes in, bytes out: sizes, refusals, and whatever a stranger may send.
#![allow(clippy::unwrap_used)]

mod small_cluster;

use dns_core::lookup::Found;
use dns_core::message::{self, Answer, TCP_SIZE};
use dns_core::query::{self, Edns, Query, Read};
use dns_core::{Rcode, Rtype, name, route};
use domain::base::Message;
use proptest::prelude::*;
use serde_json::json;
use small_cluster::{STOCK, ask, cluster, corefile, edns, found, put, read, service, slice, told, wire};

fn answer(query: &Query) -> Answer {
    match found(&cluster(), &corefile(STOCK), query) {
        Found::Answer(answer) | Found::Chase(answer, _) | Found::Fallthrough(answer) => answer,
        Found::NotOurs => Answer::new(Rcode::REFUSED),
    }
}

/// A headless Service that fits into no datagram.
fn large(query: &Query) -> Answer {
    let mut zone = cluster();
    put(&mut zone, service("large", json!({"clusterIP": "None"})));
    let endpoints: Vec<_> = (0..200).map(|n| json!({"addresses": [format!("10.7.0.{n}")]})).collect();
    put(&mut zone, slice("large", "large", json!(endpoints), json!([])));
    match found(&zone, &corefile(STOCK), query) {
        Found::Answer(answer) => answer,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_question_is_read_as_it_was_written() {
    let mut query = ask("wEb.Default.svc.cluster.local", Rtype::A);
    query.edns = Some(Edns { size: 1232, wants_dnssec: true, version: 0 });
    let heard = read(&wire(&query));
    assert_eq!(heard, query);
    let said = answer(&heard).write(&heard, heard.udp_size());
    let heard = message::hear(&said).unwrap();
    assert_eq!(heard.id, 7);
    assert_eq!(name::text(&heard.question.unwrap().0), "wEb.Default.svc.cluster.local.");
    assert_eq!(told(&heard.answer), "NOERROR aa: wEb.Default.svc.cluster.local. 5 A 10.96.0.20");
    let opt = Message::from_slice(&said).unwrap().opt().unwrap();
    assert_eq!((opt.udp_payload_size(), opt.dnssec_ok()), (1232, true));
}

#[test]
fn what_is_no_question_is_refused_or_not_answered_at_all() {
    let good = wire(&ask("web.default.svc.cluster.local", Rtype::A));
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let code = |bytes: &[u8]| match query::read(bytes) {
        Read::Query(_) => "query",
        Read::Ignored => "ignored",
        Read::Refused(reply) => {
            assert_eq!((reply.len(), &reply[..2], reply[2] & 0x80), (12, &bytes[..2], 0x80));
            assert!(reply[4..].iter().all(|byte| *byte == 0));
            ["", "FORMERR", "", "", "NOTIMP"][usize::from(reply[3] & 15)]
        }
    };
    let rows = [
        (good.clone(), "query"),
        (vec![], "ignored"),
        (good[..11].to_vec(), "ignored"),
        (good[..12].to_vec(), "FORMERR"),
        (good[..20].to_vec(), "FORMERR"),
        // An answer; a notification; none, and two questions; too much beside it.
        (changed(2, 0x80), "ignored"),
        (changed(2, 0x20), "NOTIMP"),
        (changed(5, 0), "FORMERR"),
        (changed(5, 2), "FORMERR"),
        (changed(7, 9), "FORMERR"),
        (changed(11, 1), "FORMERR"),
    ];
    for (bytes, said) in rows {
        assert_eq!(code(&bytes), said, "{bytes:?}");
    }
    let with = |change: fn(&mut Query)| {
        let mut query = ask("web.default.svc.cluster.local", Rtype::A);
        change(&mut query);
        let refused = route::refusal(&query);
        (
            refused.map(|answer| {
                Message::from_octets(answer.write(&query, 512)).unwrap().opt_rcode().to_string()
            }),
            query,
        )
    };
    assert_eq!(with(|_| ()).0, None);
    assert_eq!(with(|query| query.rtype = Rtype::AXFR).0.as_deref(), Some("REFUSED"));
    assert_eq!(with(|query| query.class = domain::base::iana::Class::CH).0.as_deref(), Some("REFUSED"));
    let version = |query: &mut Query| query.edns = Some(Edns { size: 512, wants_dnssec: false, version: 1 });
    assert_eq!(with(version).0.as_deref(), Some("BADVERS"));
}

#[test]
fn what_does_not_fit_is_cut_and_said_to_be() {
    let mut query = ask("large.default.svc.cluster.local", Rtype::A);
    let count = |bytes: &[u8]| {
        let heard = message::hear(bytes).unwrap();
        (heard.answer.is_truncated, heard.answer.answer.len())
    };
    let all = large(&query);
    let bytes = all.write(&query, query.udp_size());
    assert!(bytes.len() <= 512 && bytes.len() > 490, "{}", bytes.len());
    assert_eq!(count(&bytes), (true, 28));
    query.edns = Some(edns(1232));
    let bytes = all.write(&query, query.udp_size());
    assert!(bytes.len() <= 1232 && Message::from_slice(&bytes).unwrap().opt().is_some());
    assert!(count(&bytes).0);
    assert_eq!(count(&all.write(&query, TCP_SIZE)), (false, 200));
    // Less than 512 is nobody's limit.
    query.edns = Some(edns(100));
    assert_eq!(read(&wire(&query)).udp_size(), 512);
    // What is only beside the answer goes without a word.
    let mut query = ask("_pg._tcp.db.default.svc.cluster.local", Rtype::SRV);
    query.edns = Some(edns(512));
    let said = answer(&query);
    let whole = said.write(&query, TCP_SIZE).len();
    let heard = message::hear(&said.write(&query, whole - 10)).unwrap().answer;
    assert_eq!((heard.is_truncated, heard.answer.len(), heard.additional.len()), (false, 4, 3));
}

#[test]
fn addresses_are_told_in_any_order_and_aliases_first() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..50 {
        let mut said = answer(&ask("db.default.svc.cluster.local", Rtype::A));
        said.shuffle(seed);
        assert_eq!(said.answer.len(), 3);
        seen.insert(told(&said));
    }
    assert_eq!(seen.len(), 6);
    let mut said = answer(&ask("near.default.svc.cluster.local", Rtype::A));
    said.answer.reverse();
    said.shuffle(1);
    assert_eq!(said.answer[0].rtype(), Rtype::CNAME);
}

/// Names of the cluster, and of nobody.
fn names() -> impl Strategy<Value = String> {
    let label = prop_oneof![
        Just("web"),
        Just("db"),
        Just("far"),
        Just("default"),
        Just("svc"),
        Just("pod"),
        Just("_http"),
        Just("_tcp"),
        Just("10-244-0-7"),
        Just("*"),
        Just("dns-version"),
        Just("ns"),
        Just("dns"),
        Just("in-addr.arpa"),
        Just("10"),
    ];
    let zone = prop_oneof![
        Just("svc.cluster.local"),
        Just("cluster.local"),
        Just("in-addr.arpa"),
        Just("example.com")
    ];
    (prop::collection::vec(label, 0..6), zone)
        .prop_map(|(labels, zone)| format!("{}.{zone}", labels.join(".")))
}

proptest! {
    #[test]
    fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = message::hear(&bytes);
        if let Read::Query(query) = query::read(&bytes) {
            let said = answer(&query).write(&query, query.udp_size());
            prop_assert!(said.len() <= query.udp_size());
            prop_assert!(message::hear(&said).is_ok());
        }
    }

    #[test]
    fn changes_of_a_good_question_are_borne(
        changes in prop::collection::vec((0_usize..80, any::<u8>()), 1..5), name in names(),
    ) {
        let Ok(_) = name::parse(name.trim_start_matches('.')) else { return Ok(()) };
        let mut bytes = wire(&Query { edns: Some(edns(4096)), ..ask(name.trim_start_matches('.'), Rtype::A) });
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        let _ = message::hear(&bytes);
        if let Read::Query(query) = query::read(&bytes) {
            let said = answer(&query).write(&query, query.udp_size());
            prop_assert!(said.len() <= query.udp_size());
            prop_assert!(message::hear(&said).is_ok());
        }
    }

    #[test]
    fn every_answer_parses_and_fits(name in names(), rtype in 1_u16..260, size in prop::option::of(any::<u16>())) {
        let Ok(_) = name::parse(name.trim_start_matches('.')) else { return Ok(()) };
        let mut query = ask(name.trim_start_matches('.'), Rtype::from_int(rtype));
        query.edns = size.map(|size| edns(size.max(512)));
        let query = read(&wire(&query));
        let whole = answer(&query);
        let said = whole.write(&query, query.udp_size());
        prop_assert!(said.len() <= query.udp_size());
        let heard = message::hear(&said).unwrap();
        prop_assert_eq!(heard.question, Some((query.name.clone(), query.rtype)));
        if !heard.answer.is_truncated {
            prop_assert_eq!(heard.answer.answer, whole.answer);
        }
    }
}
