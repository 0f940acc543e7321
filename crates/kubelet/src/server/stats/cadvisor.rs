//! `/metrics/cadvisor`: the families that dashboards are built on, as far as the runtime measures them.

use std::fmt::{self, Write};

use base::metrics::{MetricType, Text};
use kubelet_core::stats::ContainerStats;

use super::{Look, cpu_seconds, started, swap_used, working_set};

/// A family: name, kind, what it is, one more label, and a container's value.
type Row = (
    &'static str,
    MetricType,
    &'static str,
    Option<(&'static str, &'static str)>,
    fn(&ContainerStats) -> Option<f64>,
);

const CONTAINERS: &[Row] = &[
    (
        "container_cpu_usage_seconds_total",
        MetricType::Counter,
        "Cumulative cpu time consumed in seconds.",
        Some(("cpu", "total")),
        cpu_seconds,
    ),
    (
        "container_fs_usage_bytes",
        MetricType::Gauge,
        "Number of bytes that are consumed by the container.",
        None,
        |c| c.rootfs.map(|(_, used)| used.bytes as f64),
    ),
    (
        "container_last_seen",
        MetricType::Gauge,
        "Last time a container was seen by the exporter.",
        None,
        |c| c.cpu.map(|cpu| cpu.at.secs() as f64),
    ),
    ("container_memory_rss", MetricType::Gauge, "Size of RSS in bytes.", None, |c| {
        c.memory?.rss.map(|n| n as f64)
    }),
    ("container_memory_swap", MetricType::Gauge, "Container swap usage in bytes.", None, swap_used),
    (
        "container_memory_usage_bytes",
        MetricType::Gauge,
        "Current memory usage in bytes, including all memory.",
        None,
        |c| c.memory?.usage.map(|n| n as f64),
    ),
    (
        "container_memory_working_set_bytes",
        MetricType::Gauge,
        "Current working set in bytes.",
        None,
        working_set,
    ),
    (
        "container_start_time_seconds",
        MetricType::Gauge,
        "Start time of the container since unix epoch in seconds.",
        None,
        started,
    ),
];

pub(super) fn write(out: &mut dyn Write, look: &Look) -> fmt::Result {
    let mut text = Text::new(out);
    for (name, kind, help, extra, of) in CONTAINERS {
        if look.containers().any(|(_, c)| of(c).is_some()) {
            text.header(name, *kind, help)?;
        }
        for (pod, c) in look.containers() {
            let Some(value) = of(c) else { continue };
            let id = format!("/{}", c.id);
            let mut labels: Vec<(&str, &str)> = vec![("container", &c.name)];
            labels.extend(*extra);
            labels.extend([
                ("id", id.as_str()),
                ("image", &c.image),
                ("name", &c.id),
                ("namespace", &pod.namespace),
                ("pod", &pod.name),
            ]);
            let at = c.cpu.map(|cpu| cpu.at.0 / 1_000_000);
            text.sample(name, &labels, value, at)?;
        }
    }
    let memory = look.signals.machine.memory.as_ref();
    let machine = [
        ("machine_cpu_cores", "Number of logical CPU cores.", Some(look.cores as f64)),
        (
            "machine_memory_bytes",
            "Amount of memory installed on the machine.",
            memory.map(|m| m.total as f64),
        ),
        (
            "machine_swap_bytes",
            "Amount of swap memory available on the machine.",
            memory.map(|m| m.swap_total as f64),
        ),
    ];
    let names = &look.identity;
    let labels = [
        ("boot_id", names.boot_id.as_str()),
        ("machine_id", names.machine_id.as_str()),
        ("system_uuid", names.system_uuid.as_str()),
    ];
    for (name, help, value) in machine {
        if let Some(value) = value {
            text.header(name, MetricType::Gauge, help)?;
            text.sample(name, &labels, value, None)?;
        }
    }
    let name = "machine_scrape_error";
    text.header(
        name,
        MetricType::Gauge,
        "1 if there was an error while getting machine metrics, 0 otherwise.",
    )?;
    text.sample(name, &[], 0.0, None)
}
