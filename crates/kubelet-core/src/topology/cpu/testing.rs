//! Machines to try things on.

use super::super::cpu_set::CpuSet;
use super::super::layout::{CpuPlace, CpuTopology};
use super::super::wants::{ContainerWant, Lasting, PodWant};

/// A machine of so many CPUs, each where `place` says (node, socket, core, cache).
fn machine(cpus: u32, place: impl Fn(u32) -> (u32, u32, u32, u32)) -> CpuTopology {
    let place = |cpu| {
        let (numa, socket, core, cache) = place(cpu);
        (cpu, CpuPlace { numa, socket, core, cache })
    };
    CpuTopology::new((0..cpus).map(place).collect())
}

/// One socket, four cores of two threads: 0 and 4, 1 and 5…
pub(crate) fn single_socket() -> CpuTopology {
    machine(8, |c| (0, 0, c % 4, 0))
}

/// Two sockets with a node each, three cores of two threads each; even cores are on the first.
pub(crate) fn dual_socket() -> CpuTopology {
    machine(12, |c| (c % 2, c % 2, c % 6, 0))
}

/// Two sockets of four CPUs, no threads.
pub(crate) fn dual_socket_without_threads() -> CpuTopology {
    let second = |c: u32| u32::from(c >= 4);
    machine(8, |c| (second(c), second(c), c, 0))
}

/// Two sockets with two nodes each, ten cores of two threads on each node.
pub(crate) fn four_nodes() -> CpuTopology {
    machine(80, |c| (c % 40 / 10, c % 40 / 20, c % 40, 0))
}

/// Two nodes of two sockets each.
pub(crate) fn two_sockets_a_node() -> CpuTopology {
    machine(80, |c| (c % 40 / 20, c % 40 / 10, c % 40, 0))
}

/// Two sockets with four nodes each, sixteen cores of two threads on each node.
pub(crate) fn eight_nodes() -> CpuTopology {
    machine(256, |c| (c % 128 / 16, c % 128 / 64, c % 128, 0))
}

/// Sixteen CPUs without threads, four behind each cache, in so many sockets.
pub(crate) fn four_caches(sockets: u32) -> CpuTopology {
    machine(16, |c| (0, c / (16 / sockets), c, c / 4))
}

/// One socket, eight cores of two threads, four behind each cache.
pub(crate) fn two_caches() -> CpuTopology {
    machine(16, |c| (0, 0, c % 8, c % 8 / 4))
}

pub(crate) fn set(text: &str) -> CpuSet {
    text.parse().unwrap_or_default()
}

/// A Pod `uid` with these containers: name, how long it lasts, CPUs.
pub(crate) fn pod(uid: &str, containers: &[(&str, Lasting, usize)]) -> PodWant {
    let container = |(name, lasting, cpus): &(&str, Lasting, usize)| ContainerWant {
        name: (*name).to_owned(),
        lasting: *lasting,
        cpus: *cpus,
        ..ContainerWant::default()
    };
    PodWant { uid: uid.to_owned(), containers: containers.iter().map(container).collect() }
}
