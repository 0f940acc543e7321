//! Figures, and how they are said.

use std::time::Duration;

use crate::Effort;
use crate::load::CLASSES;
use crate::side::Cost;

#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) deployment: Vec<Duration>,
    /// By size of the cluster and class: Pods a second.
    pub(crate) rates: [[Vec<f64>; 3]; 2],
    pub(crate) slices: Vec<Duration>,
    /// With the first Deployment only, and with everything.
    pub(crate) small_memory: Cost,
    pub(crate) memory: Cost,
    pub(crate) idle: Cost,
}

/// The goals.
const FASTER: f64 = 10.0;
const SMALL_MB: f64 = 15.0;
const IDLE: f64 = 0.001;

/// How one figure is said, and how many times better ours is.
struct Row {
    what: String,
    value: Box<dyn Fn(&Figures) -> f64>,
    unit: &'static str,
    more_is_better: bool,
}

fn rows(effort: Effort) -> Vec<Row> {
    let row = |what: &str, unit, more_is_better, value: Box<dyn Fn(&Figures) -> f64>| Row {
        what: what.to_owned(),
        value,
        unit,
        more_is_better,
    };
    let mut rows = vec![row(
        "Deployment of 100 to bound",
        "ms",
        false,
        Box::new(|f| millis(median(&f.deployment).unwrap_or_default())),
    )];
    for (size, nodes) in effort.nodes.into_iter().enumerate() {
        for class in CLASSES {
            let what = format!("{class:?} Pods on {nodes} Nodes");
            let rate = move |f: &Figures| median(&f.rates[size][class as usize]).unwrap_or_default();
            rows.push(row(&what, "/s", true, Box::new(rate)));
        }
    }
    for (what, share) in [("p50", 0.5), ("p99", 0.99)] {
        let value = move |f: &Figures| millis(quantile(&f.slices, share));
        rows.push(row(&format!("ready to EndpointSlice, {what}"), "ms", false, Box::new(value)));
    }
    let two = |cost: &Cost| cost.controllers + cost.scheduler;
    rows.push(row("memory of the two, 100 Pods", "MB", false, Box::new(move |f| two(&f.small_memory) / 1e6)));
    rows.push(row("memory of the two, all Pods", "MB", false, Box::new(move |f| two(&f.memory) / 1e6)));
    rows.push(row(
        "memory of all, all Pods",
        "MB",
        false,
        Box::new(move |f| (two(&f.memory) + f.memory.server) / 1e6),
    ));
    rows.push(row("idle, of the two", "% of a processor", false, Box::new(move |f| two(&f.idle) * 100.0)));
    rows.push(row("idle, of the server", "% of a processor", false, Box::new(|f| f.idle.server * 100.0)));
    rows
}

/// Prints both, and whether the goals were met. Without a peer nothing is said about ratios.
pub(crate) fn compare(effort: Effort, ours: &Figures, theirs: Option<&Figures>) -> bool {
    let services = effort.services;
    println!("{services} Services of {} Pods; the median of {} rounds\n", crate::BEHIND, effort.rounds);
    println!("{:<32}{:>12}{:>12}{:>10}", "", "longshore", "upstream", "ratio");
    let mut goals = Vec::new();
    for row in rows(effort) {
        let mine = (row.value)(ours);
        let Some(theirs) = theirs else {
            println!("{:<32}{mine:>12.1}{:>12}{:>10}  {}", row.what, "-", "-", row.unit);
            continue;
        };
        let their = (row.value)(theirs);
        let ratio = if row.more_is_better { mine / their } else { their / mine };
        println!("{:<32}{mine:>12.1}{their:>12.1}{ratio:>9.1}x  {}", row.what, row.unit);
        if row.more_is_better || row.what.starts_with("Deployment") {
            goals.push((format!("{}: {ratio:.1} times as fast (goal: {FASTER})", row.what), ratio >= FASTER));
        }
    }
    if theirs.is_none() {
        println!("\nnot compared: give the four --peer-…");
    }
    let small = (ours.small_memory.controllers + ours.small_memory.scheduler) / 1e6;
    let idle = ours.idle.controllers + ours.idle.scheduler;
    goals.push((format!("{small:.1} MB for the two with 100 Pods (goal: {SMALL_MB} MB)"), small <= SMALL_MB));
    goals.push((format!("{:.2} % idle (goal: {} %)", idle * 100.0, IDLE * 100.0), idle <= IDLE));
    println!();
    for (what, reached) in &goals {
        println!("{} {what}", if *reached { "reached:" } else { "MISSED: " });
    }
    goals.iter().all(|(_, reached)| *reached)
}

fn median<T: Copy + PartialOrd>(all: &[T]) -> Option<T> {
    let mut sorted = all.to_vec();
    sorted.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    sorted.get(sorted.len() / 2).copied()
}

fn quantile(sorted: &[Duration], share: f64) -> Duration {
    let index = ((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(index).copied().unwrap_or_default()
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
