//! Properties: the rules do to every packet what the reference model says, and the way they are kept up to
//! date does not show in them.
#![allow(clippy::unwrap_used)]

mod support;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use proptest::prelude::*;
use proxy_core::objects::{Cluster, Family, ServiceKey};
use proxy_core::rules::{Delta, NodeRules, RuleSet, Rulebook};
use proxy_core::trace::trace;
use serde_json::json;
use support::{drafts, node, reference};

#[derive(Clone, Debug)]
enum Event {
    PutService(Box<Service>),
    RemoveService(usize),
    PutSlice(Box<EndpointSlice>),
    RemoveSlice(usize),
    Zone(&'static str),
    Update,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        5 => drafts::service().prop_map(|s| Event::PutService(Box::new(s))),
        2 => (0..4usize).prop_map(Event::RemoveService),
        6 => drafts::slice().prop_map(|s| Event::PutSlice(Box::new(s))),
        3 => (0..8usize).prop_map(Event::RemoveSlice),
        1 => prop_oneof![Just("a"), Just("b")].prop_map(Event::Zone),
        6 => Just(Event::Update),
    ]
}

fn act(cluster: &mut Cluster, event: &Event) -> bool {
    match event {
        Event::PutService(service) => cluster.put_service(service),
        Event::RemoveService(i) => cluster.remove_service(&ServiceKey::new("ns", &format!("s{i}"))),
        Event::PutSlice(slice) => cluster.put_slice(slice),
        Event::RemoveSlice(i) => cluster.remove_slice("ns", &format!("slice{i}")),
        Event::Zone(zone) => {
            let labels = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": zone}}});
            cluster.put_node(&node(labels))
        }
        Event::Update => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn every_packet_meets_the_fate_the_reference_model_says(
        world in drafts::world(),
        shots in prop::collection::vec(drafts::shot(), 40),
    ) {
        let books = Family::BOTH.map(|family| world.book(family));
        for packet in shots.into_iter().map(|shot| shot.aim(&world)) {
            let rules = books[Family::of(packet.destination) as usize].rules();
            prop_assert_eq!(
                trace(rules, &world.host, &packet),
                reference::fate(&world, &packet),
                "{:?}", packet
            );
        }
    }

    #[test]
    fn rules_kept_up_to_date_are_rules_made_anew(
        world in drafts::world(),
        events in prop::collection::vec(event(), 0..40),
    ) {
        let mut cluster = world.cluster();
        let mut books = Family::BOTH.map(|family| Rulebook::new(family, world.settings.clone()));
        let mut kernels = Family::BOTH.map(|f| RuleSet::empty(f, NodeRules::unknown(world.settings.mode)));
        for event in events.iter().chain([&Event::Update]) {
            act(&mut cluster, event);
            if !matches!(event, Event::Update) {
                continue;
            }
            for (book, kernel) in books.iter_mut().zip(&mut kernels) {
                let before = book.rules().clone();
                let changed = cluster.take_changes(before.family).expect("both kinds are listed");
                let delta = book.update(&cluster, &world.host, changed);
                prop_assert_eq!(&delta, &Delta::between(&before, book.rules()));
                kernel.apply(&delta);
                prop_assert_eq!(&*kernel, book.rules());
                let again = cluster.take_changes(before.family).expect("both kinds are listed");
                prop_assert!(book.update(&cluster, &world.host, again).is_empty());
            }
        }
        for book in &books {
            let mut anew = Rulebook::new(book.rules().family, world.settings.clone());
            let mut everything = cluster.clone();
            let changed = everything.take_changes(book.rules().family).expect("both kinds are listed");
            anew.update(&everything, &world.host, changed);
            prop_assert_eq!(anew.rules(), book.rules());
            prop_assert_eq!(anew.no_local_endpoints(), book.no_local_endpoints());
        }
    }

    #[test]
    fn the_order_in_which_objects_come_does_not_show(world in drafts::world()) {
        let mut reversed = world.clone();
        reversed.services.reverse();
        reversed.slices.reverse();
        for family in Family::BOTH {
            let (one, other) = (world.book(family), reversed.book(family));
            prop_assert_eq!(one.rules(), other.rules());
        }
    }
}
