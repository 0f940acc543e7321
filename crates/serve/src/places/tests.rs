#![allow(clippy::unwrap_used, clippy::type_complexity)]

use proptest::prelude::*;

use super::*;

const TIMES: Times = Times {
    first: Duration::from_secs(10),
    idle: Duration::from_secs(90),
    busy: Some(Duration::from_secs(60)),
};
const LIMITS: Limits = Limits { remote: 4, local: 2, known: 3, per_source: 3, known_takes: 2 };

fn at(seconds: u64) -> Mono {
    Mono(Duration::from_secs(seconds))
}

fn far(n: u8) -> Source {
    Source::of([10, 0, 0, n].into(), [192, 0, 2, 1].into())
}

fn here() -> Source {
    Source::of([127, 0, 0, 1].into(), [127, 0, 0, 1].into())
}

/// What was done before the newcomer came, each at its second.
#[derive(Clone, Copy, Debug)]
enum Did {
    Enter(Source),
    Ask(u64),
    Answered(u64),
    GaveUp(u64),
    Know(u64),
    Stream(u64),
    Leave(u64),
}
use Did::{Answered, Ask, Enter, GaveUp, Know, Leave, Stream};

fn play(proof: Proof, before: &[(u64, Did)]) -> Places {
    let mut places = Places::new(LIMITS, proof, TIMES);
    for (second, did) in before {
        let now = at(*second);
        match *did {
            Enter(source) => assert_eq!(places.enter(source, now).unwrap().gone, None, "{did:?}"),
            Ask(id) => places.ask(Id(id), now),
            Answered(id) => places.end(Id(id), true, now),
            GaveUp(id) => places.end(Id(id), false, now),
            Know(id) => assert_eq!(places.know(Id(id), now), (true, None), "{did:?}"),
            Stream(id) => places.stream(Id(id)),
            Leave(id) => drop(places.leave(Id(id)).unwrap()),
        }
    }
    places
}

/// Four strangers of four addresses, one second after another.
const FOUR: [u8; 4] = [1, 2, 3, 4];

fn four() -> Vec<(u64, Did)> {
    FOUR.iter().map(|n| (u64::from(*n), Enter(far(*n)))).collect()
}

#[test]
fn who_deserves_a_place_least_makes_way() {
    let full = |id| Ok(Some((Id(id), Why::Full)));
    let source = |id| Ok(Some((Id(id), Why::Source)));
    let rows: Vec<(&str, Proof, Vec<(u64, Did)>, Source, Result<Option<(Id, Why)>, Refused>)> = vec![
        ("there is room", Proof::Answer, vec![(0, Enter(far(1)))], far(2), Ok(None)),
        ("the oldest that never asked", Proof::Answer, four(), far(9), full(1)),
        (
            "not one that was answered",
            Proof::Answer,
            [four(), vec![(5, Ask(1)), (5, Answered(1))]].concat(),
            far(9),
            full(2),
        ),
        (
            "an answer proves nothing where identities count",
            Proof::Identity,
            [four(), vec![(5, Ask(1)), (5, Answered(1))]].concat(),
            far(9),
            full(1),
        ),
        (
            "nor does a request that was given up",
            Proof::Answer,
            [four(), vec![(5, Ask(1)), (5, GaveUp(1))]].concat(),
            far(9),
            full(1),
        ),
        (
            "one that is idle before one at work, though it was served",
            Proof::Answer,
            [four(), vec![(5, Ask(1)), (5, Ask(2)), (5, Ask(3)), (6, Ask(4)), (7, Answered(4))]].concat(),
            far(9),
            full(4),
        ),
        (
            "of those who were served, the one that is idle for longest",
            Proof::Answer,
            [four(), (1..=4).flat_map(|id| [(5, Ask(id)), (20 - id, Answered(id))]).collect::<Vec<_>>()]
                .concat(),
            far(9),
            full(4),
        ),
        (
            "if all are at work, the oldest that was never answered",
            Proof::Answer,
            [four(), vec![(5, Ask(1)), (6, Answered(1)), (7, Ask(1)), (7, Ask(2)), (7, Ask(3)), (7, Ask(4))]]
                .concat(),
            far(9),
            full(2),
        ),
        (
            "an address with too many pays itself",
            Proof::Answer,
            vec![(0, Enter(far(1))), (1, Enter(far(2))), (2, Enter(far(2))), (3, Enter(far(2)))],
            far(2),
            source(2),
        ),
        ("those of this machine have places of their own", Proof::Answer, four(), here(), Ok(None)),
        (
            "which only they compete for",
            Proof::Answer,
            [vec![(0, Enter(here())), (0, Enter(here()))], four()].concat(),
            here(),
            full(1),
        ),
        (
            "those who are known have others",
            Proof::Identity,
            [four(), vec![(5, Ask(1)), (5, Know(1)), (5, Answered(1))]].concat(),
            far(9),
            Ok(None),
        ),
        (
            "and are not disturbed, even if idle",
            Proof::Identity,
            [four(), vec![(5, Ask(1)), (5, Know(1)), (6, Answered(1)), (6, Enter(far(5)))]].concat(),
            far(9),
            full(2),
        ),
        (
            "a trusted one takes the place of one who is idle",
            Proof::Identity,
            vec![
                (0, Enter(Source::Trusted)),
                (1, Enter(Source::Trusted)),
                (2, Enter(Source::Trusted)),
                (3, Ask(1)),
            ],
            Source::Trusted,
            full(2),
        ),
        (
            "and of nobody at work",
            Proof::Identity,
            vec![
                (0, Enter(Source::Trusted)),
                (1, Enter(Source::Trusted)),
                (2, Enter(Source::Trusted)),
                (3, Ask(1)),
                (3, Ask(2)),
                (3, Ask(3)),
                (3, Stream(3)),
                (3, GaveUp(3)),
            ],
            Source::Trusted,
            Err(Refused(Why::Full)),
        ),
        ("who left, left room", Proof::Answer, [four(), vec![(5, Leave(2))]].concat(), far(9), Ok(None)),
    ];
    for (name, proof, before, newcomer, expected) in rows {
        let mut places = play(proof, &before);
        assert_eq!(places.enter(newcomer, at(30)).map(|e| e.gone), expected, "{name}");
    }
}

#[test]
fn a_newcomer_has_a_moment_before_those_who_were_served_and_idle() {
    let served = (1..=3).flat_map(|n| [(1, Enter(far(n))), (1, Ask(n.into())), (2, Answered(n.into()))]);
    let before: Vec<_> = served.chain([(30, Enter(far(4)))]).collect();
    let gone = |now: Mono| play(Proof::Answer, &before).enter(far(9), now).unwrap().gone.unwrap().0;
    assert_eq!(gone(at(30) + Duration::from_millis(999)), Id(1));
    assert_eq!(gone(at(31)), Id(4));
}

#[test]
fn who_is_known_moves_and_the_idle_make_room() {
    let known = |ids: std::ops::RangeInclusive<u64>| {
        ids.flat_map(|id| {
            let source = far(u8::try_from(id).unwrap());
            [(id, Enter(source)), (id, Ask(id)), (id, Know(id))]
        })
    };
    let newcomer = [(20, Enter(far(9))), (20, Ask(4))];
    // All are at work: it stays among the strangers.
    let mut places = play(Proof::Identity, &known(1..=3).chain(newcomer).collect::<Vec<_>>());
    assert_eq!(places.know(Id(4), at(21)), (false, None));
    assert_eq!(places.pool(Id(4)), Some(Pool::Remote));
    // One is not.
    let idle = [(19, Answered(2))];
    let mut places = play(Proof::Identity, &known(1..=3).chain(idle).chain(newcomer).collect::<Vec<_>>());
    assert_eq!(places.know(Id(4), at(21)), (true, Some((Id(2), Why::Full))));
    assert_eq!((places.count(Pool::Known), places.count(Pool::Remote)), (3, 0));
    assert_eq!(places.know(Id(4), at(22)), (false, None), "once");
    // An address elsewhere has half at most; one here may have all.
    for (source, third) in [(far(1), Some(Pool::Remote)), (here(), Some(Pool::Known))] {
        let mut places = Places::new(Limits { local: 4, ..LIMITS }, Proof::Identity, TIMES);
        for n in 1..=3 {
            let id = places.enter(source, at(n)).unwrap().id;
            places.ask(id, at(n));
            places.know(id, at(n));
        }
        assert_eq!(places.pool(Id(3)), third, "{source:?}");
    }
}

#[test]
fn when_descriptors_run_out_only_those_not_at_work_go() {
    let before =
        [(0, Enter(far(1))), (0, Ask(1)), (1, Enter(far(2))), (1, Ask(2)), (1, Know(2)), (2, Answered(2))];
    let mut places = play(Proof::Identity, &[&before[..], &[(3, Enter(here()))]].concat());
    assert_eq!(places.relieve(at(9)), Some((Id(3), Pool::Local)));
    assert_eq!(places.relieve(at(9)), Some((Id(2), Pool::Known)), "the known after the strangers");
    assert_eq!(places.relieve(at(9)), None, "the other is at work");
}

#[test]
fn the_clock_ends_silence_and_nothing_else() {
    let end = Verdict::End;
    let rows: &[(&str, &[(u64, Did)], u64, Verdict)] = &[
        ("time to ask", &[], 9, Verdict::Wait(at(10))),
        ("nothing asked", &[], 10, end(Why::NothingAsked)),
        ("at work", &[(9, Ask(1))], 12, Verdict::Wait(at(69))),
        ("too long", &[(9, Ask(1))], 69, end(Why::TooLong)),
        ("a stream", &[(9, Ask(1)), (9, Stream(1)), (10, GaveUp(1))], 500, Verdict::Wait(at(590))),
        ("kept", &[(9, Ask(1)), (11, Answered(1))], 50, Verdict::Wait(at(101))),
        ("idle", &[(9, Ask(1)), (11, Answered(1))], 101, end(Why::Idle)),
        ("one of two requests", &[(9, Ask(1)), (9, Ask(1)), (11, Answered(1))], 60, Verdict::Wait(at(71))),
    ];
    for (name, did, now, expected) in rows {
        let before = [&[(0, Enter(far(1)))], *did].concat();
        assert_eq!(play(Proof::Answer, &before).verdict(Id(1), at(*now)), *expected, "{name}");
    }
}

#[test]
fn a_source_is_an_address_or_a_network_of_one_owner() {
    let of = |peer: &str, own: &str| Source::of(peer.parse().unwrap(), own.parse().unwrap());
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    assert_eq!(of("127.0.0.1", "127.0.0.1"), Source::Local(ip("127.0.0.1")));
    assert_eq!(of("::ffff:127.0.0.1", "::ffff:127.0.0.1"), Source::Local(ip("127.0.0.1")));
    assert_eq!(of("192.0.2.1", "192.0.2.1"), Source::Local(ip("192.0.2.1")), "our own address");
    assert_eq!(of("::ffff:10.0.0.7", "::ffff:192.0.2.1"), Source::Remote(ip("10.0.0.7")));
    assert_eq!(of("2001:db8::1:2:3:4", "2001:db8::1"), Source::Remote(ip("2001:db8::")));
    assert_eq!(of("fe80::1", "fe80::2"), Source::Remote(ip("fe80::1")));
}

#[test]
fn few_descriptors_mean_few_places_for_everybody() {
    let usual = Limits { remote: 512, local: 256, known: 2048, per_source: 128, known_takes: 2 };
    assert_eq!(usual.within(4864), usual);
    let few = usual.within(64);
    assert_eq!(few, Limits { remote: 6, local: 4, known: 26, per_source: 3, known_takes: 2 });
    let none = Limits { known: 0, ..usual }.within(0);
    assert_eq!((none.remote, none.local, none.known, none.per_source), (4, 4, 0, 2));
}

proptest! {
    /// Whatever strangers do, those who are known and at work stay, nobody has more places than there are, and a stranger
    /// is never refused.
    #[test]
    fn strangers_disturb_nobody_at_work(steps in proptest::collection::vec((0_u8..6, 1_u8..8, 0_u64..40), 1..300)) {
        let mut places = Places::new(LIMITS, Proof::Identity, TIMES);
        let known = places.enter(here(), at(0)).unwrap().id;
        places.ask(known, at(0));
        places.know(known, at(0));
        let mut now = at(0);
        for (what, n, pick) in steps {
            now = now + Duration::from_millis(u64::from(n) * 150);
            let id = Id(places.last.saturating_sub(pick));
            match what {
                0 | 1 => prop_assert!(places.enter(far(n), now).is_ok()),
                2 => prop_assert!(places.enter(here(), now).is_ok()),
                3 => places.ask(id, now),
                4 if id != known => places.end(id, n % 2 == 0, now),
                _ => drop(places.relieve(now)),
            }
            prop_assert_eq!(places.pool(known), Some(Pool::Known));
            for (pool, limit) in [(Pool::Remote, 4), (Pool::Local, 2), (Pool::Known, 3)] {
                prop_assert!(places.count(pool) <= limit);
            }
        }
    }
}
