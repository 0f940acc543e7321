//! Node Allocatable: what is kept back, and what enforcing it needs.

use std::collections::{BTreeMap, BTreeSet};

use base::quantity::Quantity;

use crate::config::check::Check;
use crate::config::kubelet::types::KubeletConfiguration;

pub(super) fn check(c: &KubeletConfiguration, check: &mut Check) {
    enforcement(c, check);
    reserved_map("kubeReserved", &c.kube_reserved, check);
    reserved_map("systemReserved", &c.system_reserved, check);
    qos_reserved(c, check);
    reserved_cpus(c, check);
    reserved_memory(c, check);
}

fn enforcement(c: &KubeletConfiguration, check: &mut Check) {
    let path = "enforceNodeAllocatable";
    let levels: Vec<&str> = c.enforce_node_allocatable.iter().map(String::as_str).collect();
    for (whole, part) in
        [("system-reserved", "system-reserved-compressible"), ("kube-reserved", "kube-reserved-compressible")]
    {
        if levels.contains(&whole) && levels.contains(&part) {
            check.fail(path, format!("{whole:?} and {part:?} exclude each other"));
        }
    }
    let mut seen = BTreeSet::new();
    for level in &levels {
        if !seen.insert(level) {
            check.fail(path, format!("{level:?} is named twice"));
            continue;
        }
        let needs = match *level {
            "pods" => None,
            "system-reserved" | "system-reserved-compressible" => {
                Some(("systemReservedCgroup", &c.system_reserved_cgroup))
            }
            "kube-reserved" | "kube-reserved-compressible" => {
                Some(("kubeReservedCgroup", &c.kube_reserved_cgroup))
            }
            "none" => {
                if levels.len() > 1 {
                    check.fail(path, "\"none\" must stand alone");
                }
                continue;
            }
            other => {
                check.fail(path, format!("{other:?} is not something to enforce"));
                continue;
            }
        };
        if let Some((name, "")) = needs.map(|(n, v)| (n, v.as_str())) {
            check.fail(name, format!("must be set to enforce {level:?}"));
        }
        if !c.cgroups_per_qos {
            check.fail("cgroupsPerQOS", format!("must be true to enforce {level:?}"));
        }
    }
}

fn reserved_map(path: &str, map: &BTreeMap<String, String>, check: &mut Check) {
    for (resource, text) in map {
        let path = format!("{path}[{resource}]");
        if !matches!(resource.as_str(), "cpu" | "memory" | "ephemeral-storage" | "pid") {
            check.fail(&path, "only cpu, memory, ephemeral-storage and pid can be reserved");
        } else if check.quantity(&path, text).is_some_and(Quantity::is_negative) {
            check.fail(&path, format!("{text} must not be negative"));
        }
    }
}

fn qos_reserved(c: &KubeletConfiguration, check: &mut Check) {
    for (resource, text) in &c.qos_reserved {
        let path = format!("qosReserved[{resource}]");
        if resource != "memory" {
            check.fail(&path, "only memory is supported");
        }
        let percent = text.strip_suffix('%').and_then(|n| n.parse::<i64>().ok());
        if !percent.is_some_and(|n| (0..=100).contains(&n)) {
            check.fail(&path, format!("{text:?} must be a percentage from 0% to 100%"));
        }
    }
}

fn reserved_cpus(c: &KubeletConfiguration, check: &mut Check) {
    let path = "reservedSystemCPUs";
    let cpus = c.reserved_system_cpus.as_str();
    if !cpus.is_empty() {
        if !c.system_reserved_cgroup.is_empty() || !c.kube_reserved_cgroup.is_empty() {
            check.fail(path, "excludes systemReservedCgroup and kubeReservedCgroup");
        }
        if !is_cpu_set(cpus) {
            check.fail(path, format!("{cpus:?} is not a list of CPUs such as 0-1,4"));
        }
        return;
    }
    if c.cpu_manager_policy == "static" {
        let maps = [&c.kube_reserved, &c.system_reserved];
        let reserved = maps.into_iter().filter_map(|m| m.get("cpu")?.parse::<Quantity>().ok());
        if reserved.fold(Quantity::ZERO, Quantity::plus).is_zero() {
            let text =
                "\"static\" needs a CPU reservation in kubeReserved, systemReserved or reservedSystemCPUs";
            check.fail("cpuManagerPolicy", text);
        }
    }
}

/// Linux list format, `0-1,4`.
fn is_cpu_set(text: &str) -> bool {
    text.split(',').all(|part| {
        let number = |s: &str| s.parse::<u32>().ok().filter(|_| !s.starts_with('+'));
        match part.split_once('-') {
            None => number(part).is_some(),
            Some((a, b)) => matches!((number(a), number(b)), (Some(a), Some(b)) if a <= b),
        }
    })
}

fn reserved_memory(c: &KubeletConfiguration, check: &mut Check) {
    let mut seen = BTreeSet::new();
    let mut total = Quantity::ZERO;
    for (i, node) in c.reserved_memory.iter().enumerate() {
        for (resource, &quantity) in &node.limits {
            let path = format!("reservedMemory[{i}].limits[{resource}]");
            if resource != "memory" && !resource.starts_with("hugepages-") {
                check.fail(&path, "only memory and hugepages-<size> can be reserved");
            }
            if quantity.is_zero() {
                check.fail(&path, "must not be zero");
            }
            if !seen.insert((node.numa_node, resource.clone())) {
                let text = format!("is reserved twice on NUMA node {}", node.numa_node);
                check.fail(&path, text);
            }
            if resource == "memory" {
                total = total.plus(quantity);
            }
        }
    }
    if c.memory_manager_policy == "Static" {
        static_memory(c, total, check);
    }
}

/// The static memory policy refuses to start unless the NUMA reservations add up to what is kept
/// back from Pods. A percentage threshold depends on the machine and is checked there.
fn static_memory(c: &KubeletConfiguration, total: Quantity, check: &mut Check) {
    let threshold = c.eviction_hard.get("memory.available");
    if threshold.is_some_and(|t| t.ends_with('%')) {
        return;
    }
    let parts = [c.kube_reserved.get("memory"), c.system_reserved.get("memory"), threshold];
    let wanted = parts.into_iter().filter_map(|text| text?.parse().ok()).fold(Quantity::ZERO, Quantity::plus);
    if wanted != total {
        let text = format!(
            "the memory reserved on all NUMA nodes is {total}, but kubeReserved, systemReserved and the hard eviction threshold add up to {wanted}"
        );
        check.fail("reservedMemory", text);
    }
}
