//! How much must be left, and since when it is not.
//!
//! A threshold that is met presses at once. One that was met for its whole grace period lets go only when the minimum
//! reclaim is there too, and a pressure is told for a while after it was last seen: a scheduler must not chase a node
//! that flaps.

use std::time::Duration;

use api::config::kubelet::KubeletConfiguration;
use base::duration::GoDuration;
use base::quantity::Quantity;
use base::time::Mono;

use super::{Layout, Reading, Readings, Resource, Signal};
use crate::node::capacity::Threshold;
use crate::node::conditions::Pressures;

/// The thresholds of a node and what became of them.
#[derive(Clone, Debug, Default)]
pub struct Thresholds {
    /// As configured, without those of the containers' file system.
    configured: Vec<Rule>,
    rules: Vec<Rule>,
    layout: Option<Layout>,
    transition: Duration,
    /// When each pressure was last seen: memory, disk, process ids.
    seen: [Option<Mono>; 3],
    last: Readings,
}

#[derive(Clone, Debug)]
struct Rule {
    signal: Signal,
    threshold: Threshold,
    reclaim: Option<Threshold>,
    grace: Duration,
    first_met: Option<Mono>,
    /// It was met for its whole grace period and is not resolved yet.
    holds: bool,
}

/// A threshold that is met, and has been for its grace period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Met {
    pub signal: Signal,
    pub threshold: Threshold,
    pub grace: Duration,
}

/// A threshold, and how much must be left of what it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    pub signal: Signal,
    pub limit: i64,
    pub grace: Duration,
}

/// What a look came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    pub pressures: Pressures,
    /// What is to be relieved, the most urgent first.
    pub met: Vec<Met>,
}

// === impl Thresholds ===

impl Thresholds {
    /// Reads the thresholds of a valid configuration.
    #[must_use]
    pub fn new(config: &KubeletConfiguration) -> Thresholds {
        let reclaim = |signal: &str| config.eviction_minimum_reclaim.get(signal).and_then(|t| amount(t));
        let rule = |signal: &String, text: &String, grace: Duration| {
            Some(Rule {
                signal: Signal::parse(signal)?,
                threshold: Threshold::parse(text)?,
                reclaim: reclaim(signal),
                grace,
                first_met: None,
                holds: false,
            })
        };
        let hard = config.eviction_hard.iter().filter_map(|(s, t)| rule(s, t, Duration::ZERO));
        let soft = config.eviction_soft.iter().filter_map(|(signal, text)| {
            let grace = config.eviction_soft_grace_period.get(signal)?;
            rule(signal, text, grace.parse::<GoDuration>().ok()?.to_std())
        });
        let mut configured: Vec<Rule> = hard.chain(soft).collect();
        // Nobody is asked about the containers' file system: it has the thresholds of the one it is on.
        configured.retain(|r| Layout::default().stands_for(r.signal).is_none());
        if config.enforce_node_allocatable.iter().any(|level| level == "pods") {
            let hard = |r: &&Rule| r.signal == Signal::MemoryAvailable && r.grace.is_zero();
            let copy = configured.iter().find(hard).cloned();
            configured.extend(copy.map(|rule| Rule { signal: Signal::AllocatableMemoryAvailable, ..rule }));
        }
        let transition = config.eviction_pressure_transition_period.to_std();
        Thresholds { rules: configured.clone(), configured, transition, ..Thresholds::default() }
    }

    /// Whether there is anything to watch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.configured.is_empty()
    }

    /// Looks at what is left of everything. What cannot be read presses nobody.
    pub fn look(&mut self, readings: &Readings, layout: Layout, now: Mono) -> Verdict {
        self.settle(layout);
        let mut met = Vec::new();
        for rule in &mut self.rules {
            let Some(reading) = readings.get(&rule.signal) else {
                // As upstream: what cannot be seen is not met any more.
                (rule.first_met, rule.holds) = (None, false);
                continue;
            };
            if rule.look(*reading, now) {
                self.seen[kind(rule.signal)] = Some(now);
            }
            // The same reading twice costs one Pod, not two.
            let is_news = self.last.get(&rule.signal).is_none_or(|last| reading.at > last.at);
            if rule.holds && is_news {
                met.push(Met { signal: rule.signal, threshold: rule.threshold, grace: rule.grace });
            }
        }
        met.sort_by_key(|m| (m.signal.resource() != Resource::Memory, !m.is_hard(), m.signal));
        self.last.clone_from(readings);
        let pressed =
            |kind: usize| self.seen[kind].is_some_and(|at| at == now || now.since(at) < self.transition);
        let pressures = Pressures { memory: pressed(0), disk: pressed(1), pids: pressed(2) };
        Verdict { pressures, met }
    }

    /// Whether all is well again, minimum reclaims and soft thresholds included: then nobody has to go.
    #[must_use]
    pub fn are_resolved(&self, readings: &Readings) -> bool {
        let met = |rule: &Rule| readings.get(&rule.signal).is_some_and(|r| r.available < rule.limits(*r).1);
        !self.rules.iter().any(met)
    }

    /// Every threshold of what could be read.
    #[must_use]
    pub fn states(&self, readings: &Readings, layout: Layout) -> Vec<State> {
        let mut settled = self.clone();
        settled.settle(layout);
        let state = |rule: &Rule| {
            let (limit, _) = rule.limits(*readings.get(&rule.signal)?);
            Some(State { signal: rule.signal, limit, grace: rule.grace })
        };
        settled.rules.iter().filter_map(state).collect()
    }

    /// What the amount of memory in use is at which the kernel is to say so, given what is free to go: for each
    /// threshold on memory and what is read of it.
    #[must_use]
    pub fn memory_limits(&self, readings: &Readings) -> Vec<(Signal, i64)> {
        let memory = self.rules.iter().filter(|r| r.signal.resource() == Resource::Memory);
        let limit = |rule: &Rule| {
            let reading = readings.get(&rule.signal)?;
            Some((rule.signal, reading.capacity - rule.limits(*reading).0))
        };
        memory.filter_map(limit).collect()
    }

    /// Gives the containers' file system the thresholds of the one it is on.
    fn settle(&mut self, layout: Layout) {
        if self.layout == Some(layout) {
            return;
        }
        self.layout = Some(layout);
        self.rules.retain(|r| layout.stands_for(r.signal).is_none());
        for signal in [Signal::ContainerfsAvailable, Signal::ContainerfsInodesFree] {
            let like = layout.stands_for(signal);
            let copies: Vec<Rule> =
                self.configured.iter().filter(|r| Some(r.signal) == like).cloned().collect();
            self.rules.extend(copies.into_iter().map(|rule| Rule { signal, ..rule }));
        }
    }
}

// === impl Rule ===

impl Rule {
    /// Whether it presses now.
    fn look(&mut self, reading: Reading, now: Mono) -> bool {
        let (limit, enough) = self.limits(reading);
        let pressed = reading.available < limit || (self.holds && reading.available < enough);
        match pressed {
            true => {
                let since = *self.first_met.get_or_insert(now);
                self.holds = now.since(since) >= self.grace;
            }
            false => (self.first_met, self.holds) = (None, false),
        }
        pressed
    }

    /// Below the first it is met; once met, it is until the second.
    fn limits(&self, reading: Reading) -> (i64, i64) {
        let capacity = Quantity::from_value(reading.capacity);
        let limit = self.threshold.of(capacity).value();
        let enough = self.reclaim.map_or(limit, |r| limit.saturating_add(r.of(capacity).value()));
        (limit, enough)
    }
}

// === impl Met ===

impl Met {
    #[must_use]
    pub fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }

    /// How much must be left.
    #[must_use]
    pub fn limit(&self, reading: Reading) -> Quantity {
        self.threshold.of(Quantity::from_value(reading.capacity))
    }
}

/// A minimum reclaim; unlike a threshold it may be all or nothing.
fn amount(text: &str) -> Option<Threshold> {
    match text.strip_suffix('%') {
        Some(number) => number.parse::<f32>().ok().map(|percent| Threshold::Fraction(percent / 100.0)),
        None => text.parse().ok().map(Threshold::Amount),
    }
}

/// Which of the three pressures a signal stands for.
fn kind(signal: Signal) -> usize {
    match signal.resource() {
        Resource::Memory => 0,
        Resource::EphemeralStorage | Resource::Inodes => 1,
        Resource::Pids => 2,
    }
}

#[cfg(test)]
#[path = "threshold_tests.rs"]
mod tests;
