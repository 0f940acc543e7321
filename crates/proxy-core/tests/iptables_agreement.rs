//! Properties: the rendered chains do to every packet what the neutral rules and the reference model say, and the way
//! they are kept up to date does not show in them.
#![allow(clippy::unwrap_used)]

mod support;

use proptest::prelude::*;
use proxy_core::doctor::Treatment;
use proxy_core::iptables::walk::{Ending, Tables};
use proxy_core::iptables::{Options, Renderer, Saved, Table, look, remove};
use proxy_core::objects::{Cluster, Family, ServiceKey};
use proxy_core::rules::{Mode, Rulebook};
use proxy_core::trace::{Fate, Packet, trace};
use support::{World, drafts, reference};

const RENDERER: Options = Options { mark: 0x4000, random_fully: true, be_liberal: false, has_accounts: true };

fn world() -> impl Strategy<Value = World> {
    drafts::world().prop_map(|mut world| {
        world.settings.mode = Mode::Iptables;
        world
    })
}

fn render(book: &Rulebook) -> Tables {
    let mut tables = Tables::default();
    let script = Renderer::new(RENDERER).whole(book.rules(), &Saved::read(&tables.save()));
    tables.restore(&script.to_string()).unwrap();
    tables
}

fn expected(fate: &Fate) -> Vec<Ending> {
    let mut ends = match fate {
        Fate::Sent { targets, .. } => targets
            .iter()
            .map(|t| Ending::Sent { endpoint: t.endpoint, is_masqueraded: t.is_masqueraded })
            .collect(),
        Fate::Rejected => vec![Ending::Rejected],
        Fate::Dropped => vec![Ending::Dropped],
        Fate::Passed => vec![Ending::Passed],
    };
    ends.sort();
    ends
}

/// A packet as the kernel can see it: what comes in by an interface does not come from the node itself, and the
/// loopback device is a world of its own.
fn is_possible(world: &World, packet: &Packet) -> bool {
    let is_loopback = packet.destination.is_loopback();
    match packet.arrival.interface() {
        Some(_) => !world.host.is_local(packet.source) && !is_loopback,
        None => !is_loopback || packet.source.is_loopback(),
    }
}

fn become_another(cluster: &mut Cluster, world: &World) {
    let names: Vec<ServiceKey> = cluster.services().map(|(key, _)| key.clone()).collect();
    for name in names {
        if !world.services.iter().any(|s| s.metadata.name.as_deref() == Some(&*name.name)) {
            cluster.remove_service(&name);
        }
    }
    for service in &world.services {
        cluster.put_service(service);
    }
    for slice in &world.slices {
        cluster.put_slice(slice);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn the_chains_treat_every_packet_as_the_rules_do(
        world in world(),
        shots in prop::collection::vec(drafts::shot(), 40),
    ) {
        let books = Family::BOTH.map(|family| world.book(family));
        let tables = [render(&books[0]), render(&books[1])];
        for packet in shots.into_iter().map(|shot| shot.aim(&world)).filter(|p| is_possible(&world, p)) {
            let family = Family::of(packet.destination) as usize;
            let fate = trace(books[family].rules(), &world.host, &packet);
            prop_assert_eq!(&fate, &reference::fate(&world, &packet));
            let found = tables[family].endings(&world.host, &packet);
            let (ends, chances): (Vec<_>, Vec<_>) = found.into_iter().unzip();
            prop_assert_eq!(&ends, &expected(&fate), "{:?}\n{}", packet, tables[family].save());
            for chance in chances {
                prop_assert!((chance - 1.0 / ends.len() as f64).abs() < 1e-6, "{:?}: {}", ends, chance);
            }
            // So does whoever only reads what iptables-save says, and does not understand all of it.
            let seen = look(&tables[family].save(), &packet, &world.host);
            prop_assert_eq!(&seen, &Treatment::from(&fate), "{:?}\n{}", packet, tables[family].save());
        }
    }

    #[test]
    fn chains_kept_up_to_date_are_chains_made_anew(worlds in prop::collection::vec(world(), 2..5)) {
        let settings = worlds[0].settings.clone();
        for family in Family::BOTH {
            let mut cluster = worlds[0].cluster();
            let mut book = Rulebook::new(family, settings.clone());
            let changed = cluster.take_changes(family).unwrap();
            book.update(&cluster, &worlds[0].host, changed);
            let mut tables = render(&book);
            let anew = |book: &Rulebook| Renderer::new(RENDERER).whole(book.rules(), &Saved::read(""));
            let mut of_ports = anew(&book).rules_of_ports(0);
            for world in &worlds[1..] {
                become_another(&mut cluster, world);
                let changed = cluster.take_changes(family).unwrap();
                let delta = book.update(&cluster, &worlds[0].host, changed);
                let script = Renderer::new(RENDERER).change(book.rules(), &delta).expect("the node stays as it is");
                tables.restore(&script.to_string()).map_err(TestCaseError::fail)?;
                prop_assert_eq!(&tables, &render(&book));
                // A metric says how many rules there are, also of those that the script leaves out.
                of_ports = script.rules_of_ports(of_ports);
                prop_assert_eq!(script.nat_rules(of_ports), anew(&book).rules(Table::Nat));
            }
            // A whole script onto what is there changes nothing, and onto what somebody spoiled it heals.
            let whole = Renderer::new(RENDERER).whole(book.rules(), &Saved::read(&tables.save()));
            let mut again = tables.clone();
            again.restore(&whole.to_string()).map_err(TestCaseError::fail)?;
            prop_assert_eq!(&again, &tables);
            again.restore("*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-LEFTOVER - [0:0]\nCOMMIT\n").unwrap();
            let heal = Renderer::new(RENDERER).whole(book.rules(), &Saved::read(&again.save()));
            again.restore(&heal.to_string()).map_err(TestCaseError::fail)?;
            prop_assert_eq!(&again, &tables);
        }
    }

    #[test]
    fn removal_leaves_the_kubelets_chain_and_strangers_alone(world in world()) {
        let mut tables = Tables::default();
        let strangers = "*nat\n:CNI-X - [0:0]\n-A PREROUTING -j CNI-X\n-A CNI-X -j ACCEPT\nCOMMIT\n";
        tables.restore(strangers).unwrap();
        let before = tables.clone();
        let book = world.book(Family::V4);
        let script = Renderer::new(RENDERER).whole(book.rules(), &Saved::read(&tables.save()));
        tables.restore(&script.to_string()).map_err(TestCaseError::fail)?;
        let script = remove(&Saved::read(&tables.save()));
        tables.restore(&script.to_string()).map_err(TestCaseError::fail)?;
        let left = tables.save();
        prop_assert!(left.lines().filter(|l| l.contains("KUBE-")).all(|l| l.contains("KUBE-FIREWALL")), "{}", left);
        prop_assert!(before.save().lines().all(|line| left.contains(line)));
    }
}
