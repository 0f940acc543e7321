//! What was measured, beside what upstream's kubelet needs for the same.

use std::time::Duration;

use crate::server::Requests;

/// The goals: parts of upstream's figures, and megabytes.
const START: f64 = 0.75;
const DELETE: f64 = 0.25;
const CROWD: f64 = 0.6;
const MEMORY_MB: f64 = 20.0;
const CPU: f64 = 0.1;

/// Upstream's kubelet 1.36.4 with kube-apiserver, containerd 2.1 and Pods like ours, on two cores.
const RECORDED: Summary = Summary {
    start: Some(Duration::from_millis(570)),
    start_p99: None,
    crowd: Some(Duration::from_millis(21_400)),
    removal: Some(Duration::from_millis(1450)),
    crowd_removal: None,
    memory: Some(125.0),
    cpu: Some(4.8),
    requests: None,
};

/// The crowd of the recorded figures.
const RECORDED_CROWD: usize = 100;

/// One kubelet's figures, as they came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) starts: Vec<Duration>,
    pub(crate) removals: Vec<Duration>,
    pub(crate) crowds: Vec<Duration>,
    pub(crate) crowd_removals: Vec<Duration>,
    /// Megabytes and percent of a core, with the crowd at rest.
    pub(crate) memory: f64,
    pub(crate) cpu: f64,
    pub(crate) requests: Requests,
}

#[derive(Clone, Copy, Debug)]
struct Summary {
    start: Option<Duration>,
    start_p99: Option<Duration>,
    crowd: Option<Duration>,
    removal: Option<Duration>,
    crowd_removal: Option<Duration>,
    memory: Option<f64>,
    cpu: Option<f64>,
    requests: Option<f64>,
}

// === impl Figures ===

impl Figures {
    fn sum_up(&self) -> Summary {
        Summary {
            start: quantile(&self.starts, 0.5),
            start_p99: quantile(&self.starts, 0.99),
            crowd: quantile(&self.crowds, 0.5),
            removal: quantile(&self.removals, 0.5),
            crowd_removal: quantile(&self.crowd_removals, 0.5),
            memory: Some(self.memory),
            cpu: Some(self.cpu),
            requests: Some(self.requests.total()),
        }
    }

    fn tell_requests(&self, who: &str) {
        let all: Vec<String> =
            self.requests.0.iter().map(|(what, each)| format!("{what} {each:.1}")).collect();
        println!("{who} asks, per Pod: {}", all.join(", "));
    }
}

/// Prints both, and whether the goals were met. The floor is the crowd on the runtime alone: a goal below it tells of the
/// runtime, not of a kubelet.
pub(crate) fn compare(ours: &Figures, theirs: Option<&Figures>, crowd: usize, floor: Duration) -> bool {
    ours.tell_requests("longshore");
    if let Some(theirs) = theirs {
        theirs.tell_requests("upstream");
    }
    let mine = ours.sum_up();
    let (name, peer) = match theirs {
        Some(theirs) => ("upstream", theirs.sum_up()),
        None if crowd == RECORDED_CROWD => ("recorded", RECORDED),
        // Figures of another crowd tell nothing about this one.
        None => ("recorded", Summary { crowd: None, memory: None, cpu: None, ..RECORDED }),
    };
    table(&mine, name, &peer, crowd);
    println!(
        "{:<26}{:>14}",
        format!("{crowd} at once, no kubelet"),
        format!("{:.0} ms", floor.as_secs_f64() * 1e3)
    );
    let goals = [
        at_most("start, p50", mine.start, peer.start, START),
        at_most("delete, p50", mine.removal, peer.removal, DELETE),
        at_most("all at once", mine.crowd, peer.crowd, CROWD),
        mine.memory.map(|mb| (format!("{mb:.1} MB PSS (goal: at most {MEMORY_MB} MB)"), mb <= MEMORY_MB)),
        ratio("processor time at rest", mine.cpu, peer.cpu, CPU),
        mine.requests.zip(peer.requests).map(|(mine, theirs)| {
            (format!("{mine:.1} requests per Pod (goal: fewer than {theirs:.1})"), mine < theirs)
        }),
    ];
    println!();
    let goals: Vec<(String, bool)> = goals.into_iter().flatten().collect();
    for (what, reached) in &goals {
        println!("{} {what}", if *reached { "reached:" } else { "MISSED: " });
    }
    if let Some(crowd) = peer.crowd {
        let part = floor.as_secs_f64() / crowd.as_secs_f64();
        println!("the runtime alone needs {part:.2} of upstream's time for all at once");
    }
    if theirs.is_none() {
        println!("held against recorded figures: give --peer-kubelet for a comparison");
    }
    goals.iter().all(|(_, reached)| *reached)
}

fn table(mine: &Summary, name: &str, peer: &Summary, crowd: usize) {
    let time = |d: Option<Duration>| d.map_or("-".to_owned(), |d| format!("{:.0} ms", d.as_secs_f64() * 1e3));
    let number = |n: Option<f64>, unit: &str| n.map_or("-".to_owned(), |n| format!("{n:.2}{unit}"));
    let rows = [
        ("POST to Ready, p50".to_owned(), time(mine.start), time(peer.start)),
        ("POST to Ready, p99".to_owned(), time(mine.start_p99), time(peer.start_p99)),
        (format!("{crowd} at once, all Ready"), time(mine.crowd), time(peer.crowd)),
        ("DELETE to gone, p50".to_owned(), time(mine.removal), time(peer.removal)),
        (format!("{crowd} at once, all gone"), time(mine.crowd_removal), time(peer.crowd_removal)),
        (format!("PSS, {crowd} idle Pods"), number(mine.memory, " MB"), number(peer.memory, " MB")),
        (format!("CPU, {crowd} idle Pods"), number(mine.cpu, " %"), number(peer.cpu, " %")),
        ("API requests per Pod".to_owned(), number(mine.requests, ""), number(peer.requests, "")),
    ];
    println!("\n{:<26}{:>14}{name:>14}", "", "longshore");
    for (what, mine, theirs) in rows {
        println!("{what:<26}{mine:>14}{theirs:>14}");
    }
}

fn at_most(
    what: &str,
    mine: Option<Duration>,
    theirs: Option<Duration>,
    part: f64,
) -> Option<(String, bool)> {
    let seconds = |d: Option<Duration>| d.map(|d| d.as_secs_f64());
    ratio(what, seconds(mine), seconds(theirs), part)
}

fn ratio(what: &str, mine: Option<f64>, theirs: Option<f64>, part: f64) -> Option<(String, bool)> {
    let ratio = mine? / theirs?;
    Some((format!("{what}: {ratio:.2} of upstream's (goal: at most {part})"), ratio <= part))
}

fn quantile(samples: &[Duration], q: f64) -> Option<Duration> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let index = ((sorted.len() as f64 * q) as usize).min(sorted.len().checked_sub(1)?);
    sorted.get(index).copied()
}
