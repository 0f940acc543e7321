//! Thresholds over time.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const ONE_DISK: Layout = Layout { image_disk: false, split: false };

fn at(s: u64) -> Mono {
    Mono(Duration::from_secs(s))
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn thresholds(edit: impl FnOnce(&mut KubeletConfiguration)) -> Thresholds {
    let hard = map(&[("memory.available", "100"), ("nodefs.available", "10%")]);
    let mut config = KubeletConfiguration { eviction_hard: hard, ..KubeletConfiguration::default() };
    edit(&mut config);
    Thresholds::new(&config)
}

fn readings(memory: i64, disk: i64, now: Mono) -> Readings {
    let reading = |available| Reading { available, capacity: 1000, at: now };
    Readings::from([(Signal::MemoryAvailable, reading(memory)), (Signal::NodefsAvailable, reading(disk))])
}

fn look(t: &mut Thresholds, memory: i64, disk: i64, s: u64) -> Verdict {
    t.look(&readings(memory, disk, at(s)), ONE_DISK, at(s))
}

fn signals(verdict: &Verdict) -> Vec<Signal> {
    verdict.met.iter().map(|m| m.signal).collect()
}

#[test]
fn a_threshold_presses_below_it_and_for_a_while_after() {
    let mut t = thresholds(|_| {});
    let calm = Pressures::default();
    let mut pressures = |memory, disk, s| look(&mut t, memory, disk, s).pressures;
    assert_eq!(pressures(100, 101, 0), calm);
    assert_eq!(pressures(99, 500, 10), Pressures { memory: true, ..calm });
    assert_eq!(pressures(900, 99, 20), Pressures { memory: true, disk: true, ..calm });
    assert_eq!(pressures(900, 900, 309), Pressures { memory: true, disk: true, ..calm });
    assert_eq!(pressures(900, 900, 310), Pressures { disk: true, ..calm });
    assert_eq!(pressures(900, 900, 320), calm);
}

#[test]
fn a_minimum_reclaim_keeps_it_pressed() {
    let mut t = thresholds(|c| {
        c.eviction_minimum_reclaim = map(&[("memory.available", "50")]);
        c.eviction_pressure_transition_period = GoDuration::ZERO;
    });
    for (memory, s, want) in
        [(120, 0, false), (99, 1, true), (149, 2, true), (150, 3, false), (120, 4, false)]
    {
        let verdict = look(&mut t, memory, 900, s);
        assert_eq!((verdict.pressures.memory, !verdict.met.is_empty()), (want, want), "{memory} at {s}");
    }
    assert!(
        !t.are_resolved(&readings(149, 900, at(9))),
        "nobody goes only once the minimum reclaim is there"
    );
    assert!(t.are_resolved(&readings(150, 900, at(9))));
}

#[test]
fn a_soft_threshold_costs_a_pod_only_after_its_grace() {
    let mut t = thresholds(|c| {
        c.eviction_hard.clear();
        c.eviction_soft = map(&[("memory.available", "100")]);
        c.eviction_soft_grace_period = map(&[("memory.available", "30s")]);
        c.eviction_minimum_reclaim = map(&[("memory.available", "50")]);
        c.eviction_pressure_transition_period = GoDuration::ZERO;
    });
    let table = [
        (99, 0, (true, false)),
        (120, 10, (false, false)),
        (99, 20, (true, false)),
        (99, 49, (true, false)),
        (99, 50, (true, true)),
        (120, 60, (true, true)),
        (150, 70, (false, false)),
    ];
    for (memory, s, want) in table {
        let verdict = look(&mut t, memory, 0, s);
        assert_eq!((verdict.pressures.memory, !verdict.met.is_empty()), want, "{memory} at {s}");
    }
}

#[test]
fn what_is_off_or_unreadable_presses_nobody() {
    let mut t = thresholds(|c| {
        c.eviction_hard =
            map(&[("nodefs.available", "0%"), ("imagefs.available", "50%"), ("pid.available", "5%")]);
    });
    let reading = Reading { available: 40, capacity: 1000, at: at(1) };
    let pids = Readings::from([(Signal::PidAvailable, reading)]);
    assert_eq!(look(&mut t, 0, 0, 0), Verdict::default());
    let verdict = t.look(&pids, ONE_DISK, at(1));
    assert_eq!(verdict.pressures, Pressures { pids: true, ..Default::default() });
    assert_eq!(signals(&verdict), [Signal::PidAvailable]);
}

#[test]
fn the_same_reading_costs_no_second_pod() {
    let mut t = thresholds(|_| {});
    let old = readings(1, 900, at(0));
    assert_eq!(t.look(&old, ONE_DISK, at(0)).met.len(), 1);
    let again = t.look(&old, ONE_DISK, at(10));
    assert!(again.met.is_empty() && again.pressures.memory);
    assert_eq!(look(&mut t, 1, 900, 20).met.len(), 1);
}

#[test]
fn memory_is_relieved_before_disks_and_hard_before_soft() {
    let mut t = thresholds(|c| {
        c.eviction_soft = map(&[("memory.available", "500")]);
        c.eviction_soft_grace_period = map(&[("memory.available", "0s"), ("nodefs.available", "1s")]);
        c.enforce_node_allocatable = vec!["pods".to_owned()];
    });
    let mut all = readings(1, 1, at(0));
    all.insert(Signal::AllocatableMemoryAvailable, Reading { available: 1, capacity: 1000, at: at(0) });
    let verdict = t.look(&all, ONE_DISK, at(0));
    use Signal::{AllocatableMemoryAvailable, MemoryAvailable, NodefsAvailable};
    assert_eq!(signals(&verdict)[..2], [MemoryAvailable, MemoryAvailable]);
    assert_eq!(signals(&verdict)[2..], [AllocatableMemoryAvailable, NodefsAvailable]);
}

#[test]
fn the_file_system_of_containers_has_the_thresholds_of_the_one_it_is_on() {
    let config = |c: &mut KubeletConfiguration| {
        c.eviction_hard = map(&[
            ("nodefs.available", "10%"),
            ("imagefs.available", "20%"),
            ("containerfs.available", "90%"),
        ]);
    };
    let table = [
        (ONE_DISK, 100),
        (Layout { image_disk: true, split: false }, 200),
        (Layout { image_disk: true, split: true }, 100),
    ];
    for (layout, limit) in table {
        let met = |available| {
            let reading = Reading { available, capacity: 1000, at: at(0) };
            let all = Readings::from([(Signal::ContainerfsAvailable, reading)]);
            !thresholds(config).look(&all, layout, at(0)).met.is_empty()
        };
        assert_eq!((met(limit - 1), met(limit)), (true, false), "{layout:?}");
    }
}

#[test]
fn all_pods_together_have_the_threshold_of_memory_where_they_are_held_to_a_part() {
    for (levels, want) in [(vec!["pods".to_owned()], true), (vec!["none".to_owned()], false)] {
        let mut t = thresholds(|c| c.enforce_node_allocatable = levels.clone());
        let reading = Reading { available: 99, capacity: 1000, at: at(0) };
        let all = Readings::from([(Signal::AllocatableMemoryAvailable, reading)]);
        assert_eq!(t.look(&all, ONE_DISK, at(0)).pressures.memory, want, "{levels:?}");
    }
}

#[test]
fn the_kernel_is_told_at_which_use_of_memory_to_wake_us() {
    let t = thresholds(|c| c.enforce_node_allocatable = vec![]);
    assert_eq!(t.memory_limits(&readings(700, 0, at(0))), [(Signal::MemoryAvailable, 900)]);
}

proptest! {
    #[test]
    fn pressure_never_ends_before_the_transition_period(steps in proptest::collection::vec(0i64..200, 1..40)) {
        let mut t = thresholds(|_| {});
        let mut last = None;
        for (i, memory) in steps.into_iter().enumerate() {
            let s = 10 * u64::try_from(i).unwrap();
            let pressed = look(&mut t, memory, 900, s).pressures.memory;
            if memory < 100 {
                last = Some(s);
            }
            prop_assert_eq!(pressed, last.is_some_and(|l| s - l < 300));
        }
    }
}
