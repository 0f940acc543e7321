//! Properties: the rendered table does to every packet what the neutral rules and the reference model say, and
//! the way it is kept up to date does not show in it.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;

use proptest::prelude::*;
use proxy_core::nft::walk::{Ending, Memory, ending, endings};
use proxy_core::nft::{Content, Digest, Renderer, compare};
use proxy_core::objects::{Cluster, Family};
use proxy_core::rules::{Mode, Rulebook};
use proxy_core::trace::{Fate, Packet, trace};
use support::{World, drafts, reference, slice, web};

const MASQUERADE_BIT: u8 = 14;

fn world() -> impl Strategy<Value = World> {
    drafts::world().prop_map(|mut world| {
        world.settings.mode = Mode::Nftables;
        world
    })
}

fn render(book: &Rulebook) -> Content {
    Renderer::new(book.rules().family, MASQUERADE_BIT).whole(book.rules())
}

fn expected(fate: &Fate) -> BTreeSet<Ending> {
    match fate {
        Fate::Sent { targets, .. } => targets
            .iter()
            .map(|t| Ending::Sent { endpoint: t.endpoint, is_masqueraded: t.is_masqueraded })
            .collect(),
        Fate::Rejected => BTreeSet::from([Ending::Rejected]),
        Fate::Dropped => BTreeSet::from([Ending::Dropped]),
        Fate::Passed => BTreeSet::from([Ending::Passed]),
    }
}

/// A packet as the kernel can see it: what comes in by an interface does not come from the node itself.
fn is_possible(world: &World, packet: &Packet) -> bool {
    packet.arrival.interface().is_none() || !world.host.is_local(packet.source)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_table_treats_every_packet_as_the_rules_do(
        mut earlier in world(),
        world in world(),
        shots in prop::collection::vec(drafts::shot(), 40),
    ) {
        let books = Family::BOTH.map(|family| world.book(family));
        earlier.settings = world.settings.clone();
        // Made anew, and by a change of others in which endpoints had other places.
        let tables = books.each_ref().map(|book| [render(book), reach(&earlier, &world, book)]);
        for packet in shots.into_iter().map(|shot| shot.aim(&world)).filter(|p| is_possible(&world, p)) {
            let family = Family::of(packet.destination) as usize;
            let fate = trace(books[family].rules(), &world.host, &packet);
            prop_assert_eq!(&fate, &reference::fate(&world, &packet));
            for table in &tables[family] {
                prop_assert_eq!(endings(table, &world.host, &packet), expected(&fate), "{:?}", packet);
            }
        }
    }

    #[test]
    fn a_table_kept_up_to_date_is_a_table_made_anew(
        worlds in prop::collection::vec(world(), 2..5),
        sweeps in 0..4,
    ) {
        let settings = worlds[0].settings.clone();
        for family in Family::BOTH {
            let mut cluster = worlds[0].cluster();
            let mut book = Rulebook::new(family, settings.clone());
            let mut renderer = Renderer::new(family, MASQUERADE_BIT);
            let changed = cluster.take_changes(family).expect("both kinds are listed");
            book.update(&cluster, &worlds[0].host, changed);
            prop_assert_eq!(renderer.digest(book.rules(), || true), None);
            let mut table = renderer.whole(book.rules());
            for world in &worlds[1..] {
                become_another(&mut cluster, world);
                let changed = cluster.take_changes(family).expect("both kinds are listed");
                let delta = book.update(&cluster, &world.host, changed);
                table.apply(&renderer.change(book.rules(), &delta));
                // What it would take to put it right: nothing.
                let mut anew = Renderer::new(family, MASQUERADE_BIT);
                anew.adopt(&table);
                let findings = compare(&table, anew.whole(book.rules()));
                prop_assert_eq!(findings.steps, Vec::<Vec<_>>::new(), "{:?}", findings.faults);
                let digest = renderer.digest(book.rules(), || true);
                prop_assert_eq!(digest, Some(Digest::from(table.clone())));
                // Whatever is swept away, the next change finds what it needs.
                for _ in 0..sweeps {
                    table.apply(&renderer.sweep());
                    let digest = renderer.digest(book.rules(), || true);
                    prop_assert_eq!(digest, Some(Digest::from(table.clone())));
                }
            }
        }
    }

    #[test]
    fn a_digest_tells_tables_apart(one in world(), other in world(), at in any::<prop::sample::Index>()) {
        for family in Family::BOTH {
            let (one, other) = (render(&one.book(family)), render(&other.book(family)));
            let is_same = compare(&one, other.clone()).steps.is_empty();
            prop_assert_eq!(Digest::from(one.clone()) == Digest::from(other), is_same);
            // One element less, and one in a place that another had.
            let filled: Vec<usize> = (0..one.sets.len()).filter(|set| !one.sets[*set].1.is_empty()).collect();
            prop_assume!(!filled.is_empty());
            let set = *at.get(&filled);
            let (mut less, mut moved) = (one.clone(), one.clone());
            less.sets[set].1.pop();
            moved.sets[set].1.last_mut().unwrap().comment = Some("of somebody else".into());
            for table in [less, moved] {
                prop_assert_ne!(Digest::from(table), Digest::from(one.clone()));
            }
        }
    }

    #[test]
    fn whatever_is_in_the_table_is_put_right(one in world(), other in world(), cut in 0..400usize) {
        for family in Family::BOTH {
            let should = render(&one.book(family));
            let mut table = render(&other.book(family));
            // Somebody removed things, or a build was cut short.
            if cut % 3 == 0 {
                table.chains.truncate(cut % 40);
                table.sets.truncate(cut % 30);
            }
            let repair = compare(&table, should.clone());
            repair.steps.iter().for_each(|step| table.apply(step));
            let again = compare(&table, should);
            prop_assert!(again.steps.is_empty(), "{:?}", again.faults);
        }
    }

    #[test]
    fn a_client_keeps_its_endpoint_at_every_address_of_a_service(
        world in world(),
        shot in drafts::shot(),
        others in prop::collection::vec((drafts::shot(), 0..8u32), 12),
        first in 0..8u32,
    ) {
        let packet = shot.aim(&world);
        prop_assume!(is_possible(&world, &packet));
        let family = Family::of(packet.destination);
        let book = world.book(family);
        let Fate::Sent { affinity: Some(_), port, .. } = trace(book.rules(), &world.host, &packet) else {
            return Ok(());
        };
        let mut memory = Memory::default();
        let table = render(&book);
        let Ending::Sent { endpoint, .. } = ending(&table, &world.host, &packet, &mut memory, first) else {
            return Err(TestCaseError::fail("not sent"));
        };
        for (shot, draw) in others {
            let aimed = shot.aim(&world);
            let other = Packet { source: packet.source, arrival: packet.arrival.clone(), ..aimed };
            if Family::of(other.destination) != family || !is_possible(&world, &other) {
                continue;
            }
            let fate = trace(book.rules(), &world.host, &other);
            let Fate::Sent { port: its, targets, .. } = fate else { continue };
            if its == port && targets.iter().any(|target| target.endpoint == endpoint) {
                let now = ending(&table, &world.host, &other, &mut memory, draw);
                prop_assert!(matches!(now, Ending::Sent { endpoint: now, .. } if now == endpoint), "{:?}", now);
            } else if its == port {
                // An address that may not lead there has made the client forget it.
                return Ok(());
            }
        }
    }

    #[test]
    fn a_client_keeps_its_endpoint_while_there_is_one(
        world in world(),
        shot in drafts::shot(),
        first in 0..8u32,
        draws in prop::collection::vec(0..8u32, 6),
    ) {
        let packet = shot.aim(&world);
        prop_assume!(is_possible(&world, &packet));
        let family = Family::of(packet.destination);
        let book = world.book(family);
        let Fate::Sent { affinity: Some(_), targets, port } = trace(book.rules(), &world.host, &packet) else {
            return Ok(());
        };
        let mut memory = Memory::default();
        let table = render(&book);
        let had = ending(&table, &world.host, &packet, &mut memory, first);
        for draw in &draws {
            prop_assert_eq!(ending(&table, &world.host, &packet, &mut memory, *draw), had);
        }
        // The endpoint goes; from then on the client keeps another.
        let Ending::Sent { endpoint, .. } = had else { return Err(TestCaseError::fail("not sent")) };
        let mut after = world.clone();
        for e in after.slices.iter_mut().flat_map(|s| s.endpoints.iter_mut().flatten()) {
            if e.addresses[0].parse() == Ok(endpoint.ip()) {
                e.conditions = serde_json::from_value(serde_json::json!({"ready": false, "serving": false})).unwrap();
            }
        }
        let book = after.book(family);
        let table = render(&book);
        let had = ending(&table, &world.host, &packet, &mut memory, first);
        prop_assert!(!matches!(had, Ending::Sent { endpoint: now, .. } if now == endpoint), "{} {:?}", port, targets);
        for draw in &draws {
            prop_assert_eq!(ending(&table, &world.host, &packet, &mut memory, *draw), had);
        }
    }
}

/// A table that was made for another world and then changed.
fn reach(earlier: &World, world: &World, wanted: &Rulebook) -> Content {
    let family = wanted.rules().family;
    let mut cluster = earlier.cluster();
    let mut book = Rulebook::new(family, earlier.settings.clone());
    let mut renderer = Renderer::new(family, MASQUERADE_BIT);
    let changed = cluster.take_changes(family).expect("both kinds are listed");
    book.update(&cluster, &earlier.host, changed);
    let mut table = renderer.whole(book.rules());
    become_another(&mut cluster, world);
    let changed = cluster.take_changes(family).expect("both kinds are listed");
    let delta = book.update(&cluster, &world.host, changed);
    table.apply(&renderer.change(book.rules(), &delta));
    table
}

/// How many elements of a set go and come.
fn count(messages: &[nft::Message], wanted: &str) -> (usize, usize) {
    let of = |message: &nft::Message| match message {
        nft::Message::DeleteElements(set, elements) if &**set == wanted => (elements.len(), 0),
        nft::Message::AddElements(set, elements) if &**set == wanted => (0, elements.len()),
        _ => (0, 0),
    };
    messages.iter().map(of).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

#[test]
fn who_goes_moves_one_other_and_who_comes_moves_nobody() {
    const MANY: u8 = 20;
    let endpoint = |number: u8| format!("10.244.0.{number} here");
    let told = |numbers: &[u8]| {
        let endpoints: Vec<String> = numbers.iter().map(|number| endpoint(*number)).collect();
        slice("web-1", &endpoints.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let all: Vec<u8> = (10..10 + MANY).collect();
    for affinity in ["None", "ClientIP"] {
        let mut world = World::new(Mode::Nftables);
        world.services.push(web(serde_json::json!({"spec": {"sessionAffinity": affinity}})));
        world.slices.push(told(&all));
        let mut cluster = world.cluster();
        let (mut book, mut renderer) =
            (Rulebook::new(Family::V4, world.settings.clone()), Renderer::new(Family::V4, MASQUERADE_BIT));
        let mut step = |cluster: &mut Cluster, is_first: bool| {
            let changed = cluster.take_changes(Family::V4).unwrap();
            let delta = book.update(cluster, &world.host, changed);
            if is_first {
                renderer.whole(book.rules());
                return Vec::new();
            }
            renderer.change(book.rules(), &delta)
        };
        step(&mut cluster, true);
        // At the address of the cluster, an external one and that of the load balancer.
        const FRONTENDS: usize = 3;
        for gone in &all {
            let left: Vec<u8> = all.iter().copied().filter(|number| number != gone).collect();
            cluster.put_slice(&told(&left));
            let messages = step(&mut cluster, false);
            let (deleted, added) = count(&messages, "service-endpoints");
            assert!(deleted <= 2 * FRONTENDS && added <= FRONTENDS, "{gone}: {deleted} {added}");
            let (deleted, added) = count(&messages, "nodeport-endpoints");
            assert!(deleted <= 2 && added <= 1, "{gone}: {deleted} {added}");
            cluster.put_slice(&told(&all));
            let messages = step(&mut cluster, false);
            assert_eq!(count(&messages, "service-endpoints"), (0, FRONTENDS), "{gone}");
            assert_eq!(count(&messages, "nodeport-endpoints"), (0, 1), "{gone}");
        }
    }
}

fn become_another(cluster: &mut Cluster, world: &World) {
    cluster.put_node(&world.node);
    cluster.replace_services(&world.services);
    cluster.replace_slices(&world.slices);
}
