//! The numbers are those of upstream's own tables.

use super::super::layout::CpuTopology;
use super::distribute::take_evenly;
use super::take::{Manner, Order, take};
use super::testing::*;

type Row = (fn() -> CpuTopology, &'static str, usize, &'static str);

/// Both ways of taking agree here.
const COMMON: [Row; 12] = [
    (single_socket, "0-7", 0, ""),
    (single_socket, "0-7", 1, "0"),
    (single_socket, "0-7", 2, "0,4"),
    (single_socket, "0-7", 8, "0-7"),
    (single_socket, "0,1,2,3,6", 2, "2,6"),
    (single_socket, "1,3,5,6,7", 1, "6"),
    (dual_socket, "0-11", 6, "0,2,4,6,8,10"),
    (four_nodes, "0-79", 40, "0-19,40-59"),
    (four_nodes, "0-79", 20, "0-9,40-49"),
    (four_nodes, "10-39,50-79", 20, "10-19,50-59"),
    (four_nodes, "0-79", 60, "0-29,40-69"),
    (four_nodes, "1-39,41-79", 60, "10-39,50-79"),
];

const PACKED: [Row; 3] = [
    (dual_socket, "1-5,7-11", 1, "2"),
    (dual_socket, "0-11", 8, "0,6,2,8,4,10,1,7"),
    (four_nodes, "0-79", 64, "0-29,40-69,30,31,70,71"),
];

const BY_CACHE: [Row; 7] = [
    (|| four_caches(1), "1-15", 10, "1,2,4-11"),
    (dual_socket, "1-5,7-11", 1, "1"),
    (|| four_caches(2), "0-15", 4, "0-3"),
    (|| four_caches(2), "2-15", 6, "2-7"),
    (|| four_caches(2), "8-15", 4, "8-11"),
    (two_caches, "2-3,10-11,4-7,12-15", 6, "4-6,12-14"),
    (two_caches, "1-7,9-15", 10, "4-7,12-15,1,9"),
];

const SPREAD: [Row; 7] = [
    (single_socket, "0-7", 3, "0-2"),
    (dual_socket, "0-11", 2, "0,2"),
    (dual_socket, "0-11", 3, "0,2,4"),
    (dual_socket, "0-11", 6, "0,2,4,6,8,10"),
    (dual_socket, "0-11", 8, "0,2,4,6,8,10,1,3"),
    (dual_socket_without_threads, "0-7", 2, "0,1"),
    (four_nodes, "0-79", 8, "0-7"),
];

/// With the size of a group.
const EVENLY: [(Row, usize); 17] = [
    ((dual_socket, "0-11", 8, "0,6,2,8,1,7,3,9"), 1),
    ((four_nodes, "0-79", 64, "0-7,10-17,20-27,30-37,40-47,50-57,60-67,70-77"), 1),
    ((four_nodes, "0-79", 48, "0-7,10-17,20-27,40-47,50-57,60-67"), 1),
    ((four_nodes, "1-29,32-39,41-69,72-79", 48, "1-8,10-17,20-27,41-48,50-57,60-67"), 1),
    ((four_nodes, "2-29,31-39,42-69,71-79", 48, "10-17,20-27,31-38,50-57,60-67,71-78"), 1),
    (
        (
            four_nodes,
            "0-2,10-12,20-22,30-32,40-41,50-51,60-61,70-71",
            16,
            "0-1,10-11,20-21,30-31,40-41,50-51,60-61,70-71",
        ),
        1,
    ),
    ((dual_socket, "1-5,7-11", 1, "1"), 1),
    ((dual_socket, "1-5,7-11", 1, "2"), 2),
    ((four_nodes, "0-79", 26, "0-6,10-16,40-45,50-55"), 1),
    ((four_nodes, "0-79", 26, "0-6,10-15,40-46,50-55"), 2),
    ((four_nodes, "0-79", 62, "0-7,10-17,20-27,30-37,40-47,50-57,60-66,70-76"), 1),
    ((four_nodes, "0-79", 62, "0-7,10-17,20-27,30-36,40-47,50-57,60-67,70-76"), 2),
    (
        (
            four_nodes,
            "0-8,10-18,20-39,40-48,50-58,60-79",
            62,
            "0-7,10-17,20-27,30-37,40-46,50-56,60-67,70-77",
        ),
        1,
    ),
    (
        (
            four_nodes,
            "0-8,10-18,20-39,40-48,50-58,60-79",
            62,
            "0-7,10-16,20-27,30-37,40-47,50-56,60-67,70-77",
        ),
        2,
    ),
    (
        (
            four_nodes,
            "0-3,10-13,20-23,30-36,40-43,50-53,60-63,70-76",
            34,
            "0-3,10-13,20-23,30-34,40-43,50-53,60-63,70-74",
        ),
        1,
    ),
    (
        (
            eight_nodes,
            "0,128,30,31,158,159,43-47,171-175,62,63,190,191,75-79,203-207,94,96,222,223,101-111,229-239,126,127,254,255",
            28,
            "43-47,75-79,96,101-105,171-174,203-206,229-232",
        ),
        1,
    ),
    ((four_nodes, "0-79", 3, "0,1,40"), 1),
];

fn check(row: &Row, taken: Result<super::CpuSet, super::TakeError>) {
    let (_, free, count, want) = row;
    assert_eq!(taken, Ok(set(want)), "{count} of {free}");
}

#[test]
fn whole_parts_of_the_machine_come_first() {
    for row in COMMON.iter().chain(&PACKED) {
        check(row, take(&row.0(), &set(row.1), row.2, Manner::default()));
    }
}

#[test]
fn cpus_behind_one_cache_go_together_if_asked_for() {
    let manner = Manner { by_cache: true, ..Manner::default() };
    BY_CACHE.iter().for_each(|row| check(row, take(&row.0(), &set(row.1), row.2, manner)));
}

#[test]
fn cores_are_spread_over_if_asked_for() {
    let manner = Manner { order: Order::Spread, ..Manner::default() };
    SPREAD.iter().for_each(|row| check(row, take(&row.0(), &set(row.1), row.2, manner)));
}

#[test]
fn nodes_give_equally_much_if_asked_for() {
    let common = COMMON.iter().filter(|(machine, free, ..)| *free != "1,3,5,6,7" || machine().cores > 4);
    for (row, group) in common.map(|row| (row, 1)).chain(EVENLY.iter().map(|(row, group)| (row, *group))) {
        check(row, take_evenly(&row.0(), &set(row.1), row.2, group, Order::Packed));
    }
}

#[test]
fn more_than_there_is_cannot_be_taken() {
    let told = "not enough cpus available to satisfy request: requested=5, available=4";
    let free = set("0,2,4,6");
    let packed = take(&single_socket(), &free, 5, Manner::default());
    assert_eq!(packed.map_err(|e| e.to_string()), Err(told.to_owned()));
    let evenly = take_evenly(&single_socket(), &free, 5, 1, Order::Packed);
    assert_eq!(evenly.map_err(|e| e.to_string()), Err(told.to_owned()));
}
