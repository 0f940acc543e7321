//! What nodes and containers use, from two looks at what their kubelets tell: the objects of metrics.k8s.io.
//!
//! A counter of processor time says nothing by itself: two points in time do. A container that is too young for two has
//! its own start as the first, once it is ten seconds old. A Pod is told of when all of its containers are.

use std::collections::BTreeMap;

use base::quantity::Quantity;
use base::time::Wall;
use serde_json::{Value, json};

use crate::kinds::node_metrics::API_VERSION;

const SECOND: i64 = 1_000_000_000;
/// A younger container has no figures yet; upstream's metrics-server says so too.
const YOUNGEST: i64 = 10 * SECOND;
/// For one that was not there at the look before: what it used since it began says little about now.
const OLDEST: i64 = 60 * SECOND;
/// Containers of one node that are kept.
const CONTAINERS_MAX: usize = 20_000;

/// Processor time so far, in seconds, and memory in use, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// Nanoseconds since the epoch.
    pub at: i64,
    pub cpu: Option<f64>,
    pub memory: Option<f64>,
    /// Seconds since the epoch.
    pub started: Option<f64>,
}

/// What a kubelet told at once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Look {
    node: Point,
    /// By namespace and name, then by container.
    pods: BTreeMap<(String, String), BTreeMap<String, Point>>,
}

/// The last look at a node, and the one before it.
#[derive(Clone, Debug, Default)]
pub struct Looks {
    last: Look,
    before: Option<Look>,
}

/// What somebody uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Nanoseconds since the epoch.
    pub at: i64,
    /// For how long it was looked, in nanoseconds.
    pub window: i64,
    pub nano_cores: i64,
    pub bytes: i64,
}

/// A Pod by its containers.
pub type PodUsed = Vec<(String, Used)>;

// === impl Look ===

impl Look {
    /// Reads what a kubelet writes on `/metrics/resource`. What it says of other things, or unintelligibly, is passed over.
    #[must_use]
    pub fn read(text: &str, now: Wall) -> Look {
        let mut look = Look::default();
        let mut kept = 0;
        for sample in text.lines().filter(|l| !l.starts_with('#')).filter_map(Sample::parse) {
            let at = sample.at.map_or(now.0, |millis| millis.saturating_mul(1_000_000));
            let point = match sample.name {
                "node_cpu_usage_seconds_total" | "node_memory_working_set_bytes" => &mut look.node,
                name if name.starts_with("container_") => {
                    let [namespace, pod, container] =
                        ["namespace", "pod", "container"].map(|l| sample.label(l));
                    let (Some(namespace), Some(pod), Some(container)) = (namespace, pod, container) else {
                        continue;
                    };
                    let of_pod = look.pods.entry((namespace, pod)).or_default();
                    kept += usize::from(!of_pod.contains_key(&container));
                    if kept > CONTAINERS_MAX {
                        continue;
                    }
                    of_pod.entry(container).or_default()
                }
                _ => continue,
            };
            match sample.name {
                // The moment of the counter is what counts.
                "node_cpu_usage_seconds_total" | "container_cpu_usage_seconds_total" => {
                    (point.cpu, point.at) = (Some(sample.value), at);
                }
                "node_memory_working_set_bytes" | "container_memory_working_set_bytes" => {
                    point.memory = Some(sample.value);
                }
                "container_start_time_seconds" => point.started = Some(sample.value),
                _ => {}
            }
        }
        look
    }
}

// === impl Looks ===

impl Looks {
    /// The first look, or the first after a long time.
    #[must_use]
    pub fn begin(look: Look) -> Looks {
        Looks { last: look, before: None }
    }

    pub fn note(&mut self, look: Look) {
        self.before = Some(std::mem::replace(&mut self.last, look));
    }

    #[must_use]
    pub fn last(&self) -> &Look {
        &self.last
    }

    /// Whether there is anything to compare the last look with.
    #[must_use]
    pub fn are_two(&self) -> bool {
        self.before.is_some()
    }

    #[must_use]
    pub fn node(&self) -> Option<Used> {
        used(self.last.node, self.before.as_ref()?.node)
    }

    /// None as long as one of its containers cannot be told of.
    #[must_use]
    pub fn pod(&self, namespace: &str, name: &str) -> Option<PodUsed> {
        let key = (namespace.to_owned(), name.to_owned());
        let last = self.last.pods.get(&key)?;
        let before = self.before.as_ref().and_then(|look| look.pods.get(&key));
        let of = |(container, point): (&String, &Point)| {
            let first = first(*point, before.and_then(|b| b.get(container)).copied())?;
            Some((container.clone(), used(*point, first)?))
        };
        last.iter().map(of).collect()
    }
}

/// The point to compare with: the one before, or the container's own start.
fn first(last: Point, before: Option<Point>) -> Option<Point> {
    match before {
        // One that began anew counts from nothing.
        Some(before) if before.started == last.started && before.at < last.at => Some(before),
        _ => {
            let started = last.started? * SECOND as f64;
            let age = last.at.saturating_sub(started as i64);
            let born = Point { at: started as i64, cpu: Some(0.0), ..Point::default() };
            (YOUNGEST..=OLDEST).contains(&age).then_some(born)
        }
    }
}

fn used(last: Point, first: Point) -> Option<Used> {
    let window = last.at.checked_sub(first.at).filter(|w| *w > 0)?;
    let spent = last.cpu? - first.cpu?;
    let nano_cores = spent * SECOND as f64 / (window as f64 / SECOND as f64);
    // A counter that went back was begun anew.
    (spent >= 0.0 && nano_cores.is_finite()).then_some(Used {
        at: last.at,
        window,
        nano_cores: nano_cores.round() as i64,
        bytes: last.memory? as i64,
    })
}

/// NodeMetrics.
#[must_use]
pub fn of_node(node: &Value, used: Used, now: Wall) -> Value {
    let mut out = object("NodeMetrics", node, [used].iter(), now);
    out["usage"] = usage(used);
    out
}

/// PodMetrics.
#[must_use]
pub fn of_pod(pod: &Value, used: &PodUsed, now: Wall) -> Value {
    let mut out = object("PodMetrics", pod, used.iter().map(|(_, u)| u), now);
    out["metadata"]["namespace"] = pod["metadata"]["namespace"].clone();
    out["containers"] =
        used.iter().map(|(name, used)| json!({"name": name, "usage": usage(*used)})).collect();
    out
}

/// As old as the oldest of its figures.
fn object<'a>(kind: &str, source: &Value, used: impl Iterator<Item = &'a Used>, now: Wall) -> Value {
    let oldest = used.min_by_key(|u| u.at).copied().unwrap_or_default();
    let mut metadata = json!({"name": source["metadata"]["name"], "creationTimestamp": time(now.0)});
    if source["metadata"]["labels"].is_object() {
        metadata["labels"] = source["metadata"]["labels"].clone();
    }
    json!({
        "kind": kind, "apiVersion": API_VERSION, "metadata": metadata, "timestamp": time(oldest.at),
        "window": window(oldest.window),
    })
}

fn usage(used: Used) -> Value {
    json!({"cpu": format!("{}n", used.nano_cores), "memory": Quantity::from_bytes(used.bytes).to_string()})
}

/// Seconds, to the millisecond.
fn window(nanos: i64) -> String {
    let millis = nanos / 1_000_000;
    let text = format!("{}.{:03}", millis / 1000, millis % 1000);
    format!("{}s", text.trim_end_matches('0').trim_end_matches('.'))
}

fn time(nanos: i64) -> String {
    jiff::Timestamp::from_second(nanos / SECOND).unwrap_or_default().to_string()
}

/// A line of the text: `name{label="value"} 1.5 1700000000000`.
struct Sample<'a> {
    name: &'a str,
    labels: &'a str,
    value: f64,
    /// Milliseconds since the epoch.
    at: Option<i64>,
}

// === impl Sample ===

impl<'a> Sample<'a> {
    fn parse(line: &'a str) -> Option<Sample<'a>> {
        let name_end = line.find(['{', ' '])?;
        let (name, rest) = line.split_at(name_end);
        let (labels, figures) = match rest.strip_prefix('{') {
            Some(rest) => rest.split_at(end_of_labels(rest)?),
            None => ("", rest),
        };
        let mut words = figures.trim_start_matches('}').split_ascii_whitespace();
        let value = words.next()?.parse().ok().filter(|v: &f64| v.is_finite())?;
        Some(Sample { name, labels, value, at: words.next().and_then(|w| w.parse().ok()) })
    }

    fn label(&self, wanted: &str) -> Option<String> {
        let mut rest = self.labels;
        loop {
            let (name, after) = rest.split_once("=\"")?;
            let end = end_of_value(after)?;
            if name.trim_start_matches([',', ' ']) == wanted {
                return Some(unescape(&after[..end]));
            }
            rest = &after[end + 1..];
        }
    }
}

/// Where the brace is that no quotes hold.
fn end_of_labels(text: &str) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    for (i, c) in text.bytes().enumerate() {
        match c {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => quoted = !quoted,
            b'}' if !quoted => return Some(i),
            _ => {}
        }
    }
    None
}

/// Where the quote is that ends a value.
fn end_of_value(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (i, c) in text.bytes().enumerate() {
        match c {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Some(i),
            _ => {}
        }
    }
    None
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, c == '\\') {
            (_, true) => match chars.next() {
                Some('n') => out.push('\n'),
                Some(other) => out.push(other),
                None => {}
            },
            (c, _) => out.push(c),
        }
    }
    out
}

#[cfg(test)]
#[path = "node_metrics_tests.rs"]
mod tests;
