//! What containers and Pods use, read from cgroups, directories and network devices.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use cri::v1::{self, UInt64Value};
use sys::cgroup::{Hierarchies, Version};
use sys::usage::{Usage, Walk};
use tonic::Status;

use crate::books::{Container, Sandbox};
use crate::daemon::{Daemon, blocking};
use crate::{ids, pressure, rootfs};

/// A writable layer is measured this often at most.
const DISK_AGE: i64 = 10_000_000_000;
/// Files that one question may look at; beyond, what was counted so far is told.
const DISK_BUDGET: u64 = 200_000;
/// No limit, as the old hierarchies write it.
const UNLIMITED: u64 = 1 << 60;

/// What a cgroup says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Used {
    cpu: Option<u64>,
    memory: Option<u64>,
    limit: Option<u64>,
    inactive: u64,
    rss: u64,
    faults: u64,
    major_faults: u64,
    swap: Option<u64>,
    swap_limit: Option<u64>,
}

pub(crate) async fn list(
    daemon: &Arc<Daemon>,
    filter: &v1::ContainerStatsFilter,
) -> Result<Vec<v1::ContainerStats>, Status> {
    let mut wanted = daemon.books.containers();
    wanted.retain(|container| {
        container.id.starts_with(&filter.id)
            && container.sandbox.id.starts_with(&filter.pod_sandbox_id)
            && filter.label_selector.iter().all(|(k, v)| container.config.labels.get(k) == Some(v))
            && container.pid().is_some()
    });
    containers(daemon, wanted).await
}

pub(crate) async fn list_sandboxes(
    daemon: &Arc<Daemon>,
    filter: &v1::PodSandboxStatsFilter,
) -> Result<Vec<v1::PodSandboxStats>, Status> {
    let mut wanted = daemon.books.sandboxes();
    wanted.retain(|sandbox| {
        sandbox.id.starts_with(&filter.id)
            && filter.label_selector.iter().all(|(k, v)| sandbox.config.labels.get(k) == Some(v))
            && sandbox.phase() == crate::records::SandboxPhase::Ready
    });
    sandboxes(daemon, wanted).await
}

pub(crate) async fn containers(
    daemon: &Arc<Daemon>,
    wanted: Vec<Arc<Container>>,
) -> Result<Vec<v1::ContainerStats>, Status> {
    let daemon = daemon.clone();
    blocking(move || {
        daemon.samples.retain(|id| {
            daemon.books.find_container(id).is_some() || daemon.books.find_sandbox(id).is_some()
        });
        Ok(wanted.iter().map(|container| container_stats(&daemon, container)).collect())
    })
    .await
}

pub(crate) async fn sandboxes(
    daemon: &Arc<Daemon>,
    wanted: Vec<Arc<Sandbox>>,
) -> Result<Vec<v1::PodSandboxStats>, Status> {
    let daemon = daemon.clone();
    blocking(move || Ok(wanted.iter().map(|sandbox| sandbox_stats(&daemon, sandbox)).collect())).await
}

fn container_stats(daemon: &Daemon, container: &Container) -> v1::ContainerStats {
    let now = ids::now();
    let used = used(&daemon.hierarchies, &container.cgroup);
    let attributes = v1::ContainerAttributes {
        id: container.id.clone(),
        metadata: container.config.metadata.clone(),
        labels: container.config.labels.clone(),
        annotations: container.config.annotations.clone(),
    };
    v1::ContainerStats {
        attributes: Some(attributes),
        cpu: cpu(daemon, (&container.id, &container.cgroup), now, &used),
        memory: memory(daemon, &container.cgroup, now, &used),
        writable_layer: writable_layer(daemon, container, now),
        swap: swap(now, &used),
        io: io(daemon, &container.cgroup, now),
    }
}

fn sandbox_stats(daemon: &Daemon, sandbox: &Sandbox) -> v1::PodSandboxStats {
    let now = ids::now();
    let parent = sandbox.cgroup_parent().trim_matches('/').to_owned();
    let used = used(&daemon.hierarchies, &parent);
    let of_sandbox = daemon.books.containers_of(&sandbox.id);
    let running: Vec<_> = of_sandbox.iter().filter(|container| container.pid().is_some()).collect();
    let processes = running
        .iter()
        .map(|container| daemon.hierarchies.processes(&container.cgroup).map_or(0, |all| all.len() as u64))
        .sum();
    let network = match sandbox.is_host_network() {
        true => None,
        false => running.iter().find_map(|container| network(container.pid()?, now)),
    };
    let attributes = v1::PodSandboxAttributes {
        id: sandbox.id.clone(),
        metadata: sandbox.config.metadata.clone(),
        labels: sandbox.config.labels.clone(),
        annotations: sandbox.config.annotations.clone(),
    };
    let linux = v1::LinuxPodSandboxStats {
        cpu: cpu(daemon, (&sandbox.id, &parent), now, &used),
        memory: memory(daemon, &parent, now, &used),
        network,
        process: Some(v1::ProcessUsage { timestamp: now, process_count: value(processes) }),
        containers: running.iter().map(|container| container_stats(daemon, container)).collect(),
        io: io(daemon, &parent, now),
    };
    v1::PodSandboxStats { attributes: Some(attributes), linux: Some(linux) }
}

fn value(value: u64) -> Option<UInt64Value> {
    Some(UInt64Value { value })
}

fn cpu(daemon: &Daemon, (id, cgroup): (&str, &str), now: i64, used: &Used) -> Option<v1::CpuUsage> {
    let nanoseconds = used.cpu?;
    let rate = daemon.samples.rate(id, now, nanoseconds);
    Some(v1::CpuUsage {
        timestamp: now,
        usage_core_nano_seconds: value(nanoseconds),
        usage_nano_cores: rate.and_then(value),
        psi: pressure::of(&daemon.hierarchies, cgroup, "cpu"),
    })
}

fn memory(daemon: &Daemon, cgroup: &str, now: i64, used: &Used) -> Option<v1::MemoryUsage> {
    let usage = used.memory?;
    let working = usage.saturating_sub(used.inactive);
    Some(v1::MemoryUsage {
        timestamp: now,
        working_set_bytes: value(working),
        available_bytes: used.limit.and_then(|limit| value(limit.saturating_sub(working))),
        usage_bytes: value(usage),
        rss_bytes: value(used.rss),
        page_faults: value(used.faults),
        major_page_faults: value(used.major_faults),
        psi: pressure::of(&daemon.hierarchies, cgroup, "memory"),
    })
}

fn io(daemon: &Daemon, cgroup: &str, now: i64) -> Option<v1::IoUsage> {
    let psi = pressure::of(&daemon.hierarchies, cgroup, "io")?;
    Some(v1::IoUsage { timestamp: now, psi: Some(psi) })
}

fn swap(now: i64, used: &Used) -> Option<v1::SwapUsage> {
    let usage = used.swap?;
    let available = used.swap_limit.map_or(0, |limit| limit.saturating_sub(usage));
    Some(v1::SwapUsage {
        timestamp: now,
        swap_available_bytes: value(available),
        swap_usage_bytes: value(usage),
    })
}

fn writable_layer(daemon: &Daemon, container: &Container, now: i64) -> Option<v1::FilesystemUsage> {
    let known = daemon.samples.disk(&container.id, now, DISK_AGE);
    let (timestamp, usage) = known.or_else(|| {
        let usage = measure(&rootfs::upper(container))?;
        daemon.samples.keep_disk(&container.id, now, usage);
        Some((now, usage))
    })?;
    let mountpoint = daemon.containers_dir().display().to_string();
    Some(v1::FilesystemUsage {
        timestamp,
        fs_id: Some(v1::FilesystemIdentifier { mountpoint }),
        used_bytes: value(usage.bytes),
        inodes_used: value(usage.inodes),
    })
}

fn measure(dir: &Path) -> Option<Usage> {
    let mut walk = Walk::of(sys::fd::open_dir(dir).ok()?).ok()?;
    let mut budget = DISK_BUDGET;
    match walk.go_on(&mut budget) {
        Ok(Some(usage)) => Some(usage),
        // Too much for now, or changing while it is looked at.
        Ok(None) | Err(_) => Some(walk.so_far()),
    }
}

fn used(hierarchies: &Hierarchies, cgroup: &str) -> Used {
    let read = |controller: &str, file: &str| hierarchies.read(cgroup, controller, file).ok().flatten();
    let number = |controller: &str, file: &str| read(controller, file)?.parse::<u64>().ok();
    let stat = read("memory", "memory.stat").unwrap_or_default();
    let of = |key: &str| field(&stat, key).unwrap_or_default();
    let bounded = |limit: Option<u64>| limit.filter(|limit| *limit < UNLIMITED);
    match hierarchies.version() {
        Version::V1 => Used {
            cpu: number("cpuacct", "cpuacct.usage"),
            memory: number("memory", "memory.usage_in_bytes"),
            limit: bounded(number("memory", "memory.limit_in_bytes")),
            inactive: of("total_inactive_file"),
            rss: of("total_rss"),
            faults: of("total_pgfault"),
            major_faults: of("total_pgmajfault"),
            swap: field(&stat, "total_swap"),
            swap_limit: None,
        },
        Version::V2 => Used {
            cpu: read("cpu", "cpu.stat").and_then(|stat| field(&stat, "usage_usec")).map(|usec| usec * 1000),
            memory: number("memory", "memory.current"),
            limit: bounded(number("memory", "memory.max")),
            inactive: of("inactive_file"),
            rss: of("anon"),
            faults: of("pgfault"),
            major_faults: of("pgmajfault"),
            swap: number("memory", "memory.swap.current"),
            swap_limit: bounded(number("memory", "memory.swap.max")),
        },
    }
}

/// `key value`, a line each.
fn field(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}

/// As somebody sees it who lives in the Pod's network.
fn network(pid: i32, now: i64) -> Option<v1::NetworkUsage> {
    let text = fs::read_to_string(format!("/proc/{pid}/net/dev")).ok()?;
    let mut all = interfaces(&text);
    let at = all.iter().position(|interface| interface.name == "eth0");
    let default_interface = at.map(|at| all.remove(at));
    Some(v1::NetworkUsage { timestamp: now, default_interface, interfaces: all })
}

fn interfaces(text: &str) -> Vec<v1::NetworkInterfaceUsage> {
    let one = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        let numbers: Vec<u64> = rest.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let at = |at: usize| numbers.get(at).copied().and_then(value);
        let name = name.trim().to_owned();
        let usage = v1::NetworkInterfaceUsage {
            rx_bytes: at(0),
            rx_errors: at(2),
            tx_bytes: at(8),
            tx_errors: at(10),
            name,
        };
        Some(usage).filter(|usage| usage.name != "lo")
    };
    text.lines().filter_map(one).collect()
}

/// Name, help, whether it only goes up.
const OF_CONTAINERS: [(&str, &str, bool); 6] = [
    ("container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds.", true),
    ("container_memory_usage_bytes", "Current memory usage in bytes, including all memory.", false),
    ("container_memory_working_set_bytes", "Current working set in bytes.", false),
    ("container_memory_rss", "Size of RSS in bytes.", false),
    ("container_memory_swap", "Container swap usage in bytes.", false),
    ("container_fs_usage_bytes", "Number of bytes that are consumed by the container.", false),
];
const OF_PODS: [(&str, &str); 4] = [
    ("container_network_receive_bytes_total", "Cumulative count of bytes received."),
    ("container_network_receive_errors_total", "Cumulative count of errors encountered while receiving."),
    ("container_network_transmit_bytes_total", "Cumulative count of bytes transmitted."),
    ("container_network_transmit_errors_total", "Cumulative count of errors encountered while transmitting."),
];

pub(crate) fn descriptors() -> Vec<v1::MetricDescriptor> {
    let keys = |keys: &[&str]| keys.iter().map(ToString::to_string).collect();
    let container = OF_CONTAINERS.iter().map(|(name, help, _)| v1::MetricDescriptor {
        name: (*name).into(),
        help: (*help).into(),
        label_keys: keys(&["id", "name", "image", "container", "pod", "namespace"]),
    });
    let pod = OF_PODS.iter().map(|(name, help)| v1::MetricDescriptor {
        name: (*name).into(),
        help: (*help).into(),
        label_keys: keys(&["id", "pod", "namespace", "interface"]),
    });
    container.chain(pod).collect()
}

pub(crate) async fn metrics(daemon: &Arc<Daemon>) -> Result<Vec<v1::PodSandboxMetrics>, Status> {
    let wanted = daemon.books.sandboxes();
    let ready = wanted.into_iter().filter(|s| s.phase() == crate::records::SandboxPhase::Ready).collect();
    let stats = sandboxes(daemon, ready).await?;
    Ok(stats.into_iter().map(|stats| pod_metrics(daemon, stats)).collect())
}

fn pod_metrics(daemon: &Daemon, stats: v1::PodSandboxStats) -> v1::PodSandboxMetrics {
    let attributes = stats.attributes.unwrap_or_default();
    let (linux, pod) = (stats.linux.unwrap_or_default(), attributes.metadata.unwrap_or_default());
    let network = linux.network.unwrap_or_default();
    let all = network.default_interface.iter().chain(&network.interfaces);
    let metrics = all.flat_map(|interface| {
        let values = [interface.rx_bytes, interface.rx_errors, interface.tx_bytes, interface.tx_errors];
        let labels =
            vec![attributes.id.clone(), pod.name.clone(), pod.namespace.clone(), interface.name.clone()];
        OF_PODS.iter().zip(values).map(move |((name, _), value)| v1::Metric {
            name: (*name).into(),
            timestamp: network.timestamp,
            metric_type: v1::MetricType::Counter.into(),
            label_values: labels.clone(),
            value,
        })
    });
    v1::PodSandboxMetrics {
        pod_sandbox_id: attributes.id.clone(),
        metrics: metrics.collect(),
        container_metrics: linux.containers.iter().map(|c| container_metrics(daemon, c, &pod)).collect(),
    }
}

fn container_metrics(
    daemon: &Daemon,
    stats: &v1::ContainerStats,
    pod: &v1::PodSandboxMetadata,
) -> v1::ContainerMetrics {
    let attributes = stats.attributes.clone().unwrap_or_default();
    let image =
        daemon.books.find_container(&attributes.id).map(|container| container.image.reference.clone());
    let name = attributes.metadata.unwrap_or_default().name;
    let (cpu, memory) = (stats.cpu.unwrap_or_default(), stats.memory.unwrap_or_default());
    let seconds = cpu.usage_core_nano_seconds.map(|used| UInt64Value { value: used.value / 1_000_000_000 });
    let values = [
        seconds,
        memory.usage_bytes,
        memory.working_set_bytes,
        memory.rss_bytes,
        stats.swap.as_ref().and_then(|swap| swap.swap_usage_bytes),
        stats.writable_layer.as_ref().and_then(|layer| layer.used_bytes),
    ];
    let labels = vec![
        attributes.id.clone(),
        attributes.id.clone(),
        image.unwrap_or_default(),
        name,
        pod.name.clone(),
        pod.namespace.clone(),
    ];
    let metrics = OF_CONTAINERS.iter().zip(values).map(|((name, _, is_counter), value)| v1::Metric {
        name: (*name).into(),
        timestamp: cpu.timestamp,
        metric_type: if *is_counter { v1::MetricType::Counter } else { v1::MetricType::Gauge }.into(),
        label_values: labels.clone(),
        value,
    });
    v1::ContainerMetrics { container_id: attributes.id.clone(), metrics: metrics.collect() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let stat = "cache 5\ntotal_rss 77\ntotal_rss_huge 3\n";
        assert_eq!((field(stat, "total_rss"), field(stat, "rss"), field("", "x")), (Some(77), None, None));
        let dev = "Inter-|   Receive  |  Transmit\n face |bytes    packets errs drop fifo frame compressed multicast|bytes\n    \
            lo: 1 2 0 0 0 0 0 0 1 2 0 0 0 0 0 0\n  eth0:1078 12 3 0 0 0 0 0 816 9 4 0 0 0 0 0\n";
        let all = interfaces(dev);
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].rx_bytes.unwrap().value, all[0].rx_errors.unwrap().value), (1078, 3));
        assert_eq!((all[0].tx_bytes.unwrap().value, all[0].tx_errors.unwrap().value), (816, 4));
    }

    #[test]
    fn every_metric_has_a_descriptor_with_as_many_labels() {
        let container = v1::ContainerStats::default();
        let names: Vec<String> = descriptors().into_iter().map(|d| d.name).collect();
        assert_eq!(names.len(), OF_CONTAINERS.len() + OF_PODS.len());
        assert!(container.cpu.is_none());
    }
}
