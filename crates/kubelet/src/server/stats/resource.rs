//! `/metrics/resource`: what metrics-server asks for.

use std::fmt::{self, Write};

use base::metrics::{MetricType, Text};
use kubelet_core::stats::ContainerStats;

use super::{Look, cpu_seconds, started, swap_used, working_set};

pub(super) fn write(out: &mut dyn Write, look: &Look) -> fmt::Result {
    let mut text = Text::new(out);
    let now = Some(look.now.0 / 1_000_000);
    let cpu = (
        "container_cpu_usage_seconds_total",
        MetricType::Counter,
        "Cumulative cpu time consumed by the container in core-seconds",
    );
    family(&mut text, cpu, look, cpu_seconds, cpu_time)?;
    let memory = (
        "container_memory_working_set_bytes",
        MetricType::Gauge,
        "Current working set of the container in bytes",
    );
    family(&mut text, memory, look, working_set, memory_time)?;
    let start = (
        "container_start_time_seconds",
        MetricType::Gauge,
        "Start time of the container since unix epoch in seconds",
    );
    family(&mut text, start, look, started, |_| None)?;
    let swap = (
        "container_swap_usage_bytes",
        MetricType::Gauge,
        "Current amount of the container swap usage in bytes",
    );
    family(&mut text, swap, look, swap_used, memory_time)?;
    let machine = &look.signals.machine;
    let memory = machine.memory.as_ref();
    let node = [
        (
            "node_cpu_usage_seconds_total",
            MetricType::Counter,
            "Cumulative cpu time consumed by the node in core-seconds",
            machine.cpu_nanos.map(|n| n as f64 / 1e9),
        ),
        (
            "node_memory_working_set_bytes",
            MetricType::Gauge,
            "Current working set of the node in bytes",
            memory.map(|m| m.working_set as f64),
        ),
        (
            "node_swap_usage_bytes",
            MetricType::Gauge,
            "Current swap usage of the node in bytes",
            memory.map(|m| m.swap_used as f64),
        ),
    ];
    for (name, kind, help, value) in node {
        if let Some(value) = value {
            text.header(name, kind, help)?;
            text.sample(name, &[], value, now)?;
        }
    }
    pods(&mut text, look, "pod_cpu_usage_seconds_total", MetricType::Counter, cpu_seconds)?;
    pods(&mut text, look, "pod_memory_working_set_bytes", MetricType::Gauge, working_set)?;
    pods(&mut text, look, "pod_swap_usage_bytes", MetricType::Gauge, swap_used)?;
    text.header(
        "resource_scrape_error",
        MetricType::Gauge,
        "1 if there was an error while getting container metrics, 0 otherwise",
    )?;
    text.sample("resource_scrape_error", &[], f64::from(u8::from(look.blind)), None)
}

fn family(
    text: &mut Text<'_>,
    (name, kind, help): (&str, MetricType, &str),
    look: &Look,
    of: fn(&ContainerStats) -> Option<f64>,
    at: fn(&ContainerStats) -> Option<i64>,
) -> fmt::Result {
    if look.containers().any(|(_, c)| of(c).is_some()) {
        text.header(name, kind, help)?;
    }
    for (pod, c) in look.containers() {
        if let Some(value) = of(c) {
            let labels = [("container", c.name.as_str()), ("namespace", &pod.namespace), ("pod", &pod.name)];
            text.sample(name, &labels, value, at(c))?;
        }
    }
    Ok(())
}

fn pods(
    text: &mut Text<'_>,
    look: &Look,
    name: &str,
    kind: MetricType,
    of: fn(&ContainerStats) -> Option<f64>,
) -> fmt::Result {
    if look.containers().any(|(_, c)| of(c).is_some()) {
        text.header(name, kind, "The same of all containers of the pod")?;
    }
    for pod in &look.pods {
        let known: Vec<f64> = pod.containers.iter().filter_map(of).collect();
        if !known.is_empty() {
            let labels = [("namespace", pod.namespace.as_str()), ("pod", &pod.name)];
            text.sample(name, &labels, known.iter().sum(), Some(look.now.0 / 1_000_000))?;
        }
    }
    Ok(())
}

fn cpu_time(c: &ContainerStats) -> Option<i64> {
    c.cpu.map(|cpu| cpu.at.0 / 1_000_000)
}

fn memory_time(c: &ContainerStats) -> Option<i64> {
    c.memory.map(|memory| memory.at.0 / 1_000_000)
}
