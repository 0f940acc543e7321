//! What the metrics tell of placements.

use kubelet_core::topology::admit::Placement;
use kubelet_core::topology::layout::Level;

use crate::metrics::Metrics;

/// Counters as they were told last: the core counts, a family only grows.
#[derive(Clone, Debug, Default)]
pub(super) struct Told(Vec<u64>);

// === impl Told ===

impl Told {
    pub(super) fn tell(&mut self, placement: &Placement, metrics: &Metrics) {
        let cpus = placement.cpus.as_ref().map(|c| c.figures).unwrap_or_default();
        let memory = placement.memory.as_ref().map(|m| m.figures).unwrap_or_default();
        let topology = placement.figures;
        let m = metrics;
        let aligned = |of: [&str; 2], n: f64| m.container_aligned_compute_resources_count.add(of, n);
        let failed = |of: [&str; 2], n: f64| m.container_aligned_compute_resources_failure_count.add(of, n);
        let allocated = |of: [&str; 2], n: f64| m.resource_manager_allocations_total.add(of, n);
        let wrong = |of: [&str; 2], n: f64| m.resource_manager_allocation_errors_total.add(of, n);
        let assigned = |of: [&str; 2], n: f64| m.resource_manager_container_assignments.add(of, n);
        let rows: [(u64, &dyn Fn(f64)); 19] = [
            (cpus.requests, &|n| m.cpu_manager_pinning_requests_total.add([], n)),
            (cpus.errors, &|n| m.cpu_manager_pinning_errors_total.add([], n)),
            (cpus.errors, &|n| wrong(["cpu", "node"], n)),
            (cpus.allocations, &|n| allocated(["cpu", "node"], n)),
            (cpus.allocations, &|n| assigned(["cpu", "node_exclusive"], n)),
            (cpus.whole_cores, &|n| aligned(["container", "physical_cpu"], n)),
            (cpus.no_whole_cores, &|n| failed(["container", "physical_cpu"], n)),
            (cpus.one_cache, &|n| aligned(["container", "uncore_cache"], n)),
            (memory.requests, &|n| m.memory_manager_pinning_requests_total.add([], n)),
            (memory.errors, &|n| m.memory_manager_pinning_errors_total.add([], n)),
            (memory.errors, &|n| wrong(["memory", "node"], n)),
            (memory.blocks, &|n| allocated(["memory", "node"], n)),
            (memory.containers, &|n| assigned(["memory", "node_exclusive"], n)),
            (topology.requests, &|n| m.topology_manager_admission_requests_total.add([], n)),
            (topology.errors, &|n| m.topology_manager_admission_errors_total.add([], n)),
            (topology.aligned[0], &|n| aligned(["container", "numa_node"], n)),
            (topology.aligned[1], &|n| aligned(["pod", "numa_node"], n)),
            (topology.unaligned[0], &|n| failed(["container", "numa_node"], n)),
            (topology.unaligned[1], &|n| failed(["pod", "numa_node"], n)),
        ];
        self.0.resize(rows.len(), 0);
        for ((now, add), told) in rows.into_iter().zip(&mut self.0) {
            #[allow(clippy::cast_precision_loss)]
            if now > *told {
                add((now - *told) as f64);
            }
            *told = now;
        }
        tell_pools(placement, metrics);
    }
}

fn tell_pools(placement: &Placement, metrics: &Metrics) {
    let Some(cpus) = &placement.cpus else { return };
    #[allow(clippy::cast_precision_loss)]
    let count = |n: usize| n as f64;
    let exclusive = cpus.state.exclusive();
    metrics.cpu_manager_shared_pool_size_millicores.set([], count(cpus.available().len() * 1000));
    metrics.cpu_manager_exclusive_cpu_allocation_count.set([], count(exclusive.len()));
    let all = &cpus.topology().all;
    for node in all.groups(Level::Numa) {
        let here = all.cpus_in(Level::Numa, &[node]).intersection(&exclusive);
        metrics.cpu_manager_allocation_per_numa.set([&node.to_string()], count(here.len()));
    }
}
