#![allow(clippy::unwrap_used)]

use super::*;
use kubelet_core::eviction::Signal;
use kubelet_core::stats::{Disk, Disks, Machine, Memory};

#[test]
fn readings_are_made_of_what_was_measured_and_of_nothing_else() {
    let memory = Memory { total: 1000, working_set: 400, ..Memory::default() };
    let machine = Machine { memory: Some(memory), ..Machine::default() };
    let disk = Disk { capacity: 100, available: 60, ..Disk::default() };
    let disks = Disks { node: Some(disk), ..Disks::default() };
    let signals = Signals { machine, disks, ..Signals::default() };
    let all = of(&signals);
    assert_eq!(all.keys().copied().collect::<Vec<_>>(), [Signal::MemoryAvailable, Signal::NodefsAvailable]);
    assert_eq!((all[&Signal::MemoryAvailable].available, all[&Signal::NodefsAvailable].available), (600, 60));
}
