//! When a machine counts as short of memory, disk or process ids.
//!
//! A threshold that is met presses at once. One that has pressed for its grace period lets go only when the minimum
//! reclaim is there too, and a pressure is told for a while after it was last seen: a scheduler must not chase a node
//! that flaps.

use std::collections::BTreeMap;
use std::time::Duration;

use api::config::kubelet::KubeletConfiguration;
use base::duration::GoDuration;
use base::quantity::Quantity;
use base::time::Mono;

use super::capacity::Threshold;
use super::conditions::Pressures;

/// What there is of something, and how much of it is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    pub available: i64,
    pub capacity: i64,
}

/// Readings by signal: `memory.available`, `nodefs.inodesFree`, …
pub type Readings = BTreeMap<&'static str, Reading>;

/// The thresholds of a node and what became of them.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    rules: Vec<Rule>,
    transition: Duration,
    /// When each pressure was last seen: memory, disk, process ids.
    seen: [Option<Mono>; 3],
}

#[derive(Clone, Debug)]
struct Rule {
    signal: String,
    threshold: Threshold,
    reclaim: Option<Threshold>,
    grace: Duration,
    first_met: Option<Mono>,
    /// It was met for its whole grace period and is not resolved yet.
    holds: bool,
}

// === impl Watch ===

impl Watch {
    /// Reads the thresholds of a valid configuration.
    #[must_use]
    pub fn new(config: &KubeletConfiguration) -> Watch {
        let reclaim = |signal: &str| config.eviction_minimum_reclaim.get(signal).and_then(|t| amount(t));
        let rule = |signal: &String, text: &String, grace: Duration| {
            Some(Rule {
                signal: signal.clone(),
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
        Watch {
            rules: hard.chain(soft).collect(),
            transition: config.eviction_pressure_transition_period.to_std(),
            seen: [None; 3],
        }
    }

    /// Looks at what is left of everything. What cannot be read presses nobody.
    pub fn look(&mut self, readings: &Readings, now: Mono) -> Pressures {
        for rule in &mut self.rules {
            let Some(reading) = readings.get(rule.signal.as_str()) else { continue };
            if rule.look(*reading, now)
                && let Some(kind) = kind(&rule.signal)
            {
                self.seen[kind] = Some(now);
            }
        }
        let pressed =
            |kind: usize| self.seen[kind].is_some_and(|at| at == now || now.since(at) < self.transition);
        Pressures { memory: pressed(0), disk: pressed(1), pids: pressed(2) }
    }
}

// === impl Rule ===

impl Rule {
    /// Whether it presses now.
    fn look(&mut self, reading: Reading, now: Mono) -> bool {
        let capacity = Quantity::from_value(reading.capacity);
        let limit = self.threshold.of(capacity).value();
        let enough = self.reclaim.map_or(limit, |r| limit.saturating_add(r.of(capacity).value()));
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
}

/// A minimum reclaim; unlike a threshold it may be all or nothing.
fn amount(text: &str) -> Option<Threshold> {
    match text.strip_suffix('%') {
        Some(number) => number.parse::<f32>().ok().map(|percent| Threshold::Fraction(percent / 100.0)),
        None => text.parse().ok().map(Threshold::Amount),
    }
}

/// Which of the three pressures a signal stands for.
fn kind(signal: &str) -> Option<usize> {
    match signal {
        "memory.available" | "allocatableMemory.available" => Some(0),
        "pid.available" => Some(2),
        _ if ["nodefs.", "imagefs.", "containerfs."].iter().any(|p| signal.starts_with(p)) => Some(1),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(s: u64) -> Mono {
        Mono(Duration::from_secs(s))
    }

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn watch(edit: impl FnOnce(&mut KubeletConfiguration)) -> Watch {
        let hard = map(&[("memory.available", "100"), ("nodefs.available", "10%")]);
        let mut config = KubeletConfiguration { eviction_hard: hard, ..KubeletConfiguration::default() };
        edit(&mut config);
        Watch::new(&config)
    }

    fn readings(memory: i64, disk: i64) -> Readings {
        let reading = |available| Reading { available, capacity: 1000 };
        BTreeMap::from([("memory.available", reading(memory)), ("nodefs.available", reading(disk))])
    }

    #[test]
    fn a_threshold_presses_below_it_and_for_a_while_after() {
        let mut watch = watch(|_| {});
        let calm = Pressures::default();
        assert_eq!(watch.look(&readings(100, 101), at(0)), calm);
        assert_eq!(watch.look(&readings(99, 500), at(10)), Pressures { memory: true, ..calm });
        assert_eq!(watch.look(&readings(900, 99), at(20)), Pressures { memory: true, disk: true, ..calm });
        assert_eq!(watch.look(&readings(900, 900), at(309)), Pressures { memory: true, disk: true, ..calm });
        assert_eq!(watch.look(&readings(900, 900), at(310)), Pressures { disk: true, ..calm });
        assert_eq!(watch.look(&readings(900, 900), at(320)), calm);
    }

    #[test]
    fn a_minimum_reclaim_keeps_it_pressed() {
        let mut watch = watch(|c| {
            c.eviction_minimum_reclaim = map(&[("memory.available", "50")]);
            c.eviction_pressure_transition_period = GoDuration::ZERO;
        });
        assert!(!watch.look(&readings(120, 900), at(0)).memory, "not met before");
        assert!(watch.look(&readings(99, 900), at(1)).memory);
        assert!(watch.look(&readings(149, 900), at(2)).memory, "met, but not enough came back");
        assert!(!watch.look(&readings(150, 900), at(3)).memory);
        assert!(!watch.look(&readings(120, 900), at(4)).memory);
    }

    #[test]
    fn a_soft_threshold_holds_only_after_its_grace() {
        let mut watch = watch(|c| {
            c.eviction_hard.clear();
            c.eviction_soft = map(&[("memory.available", "100")]);
            c.eviction_soft_grace_period = map(&[("memory.available", "30s")]);
            c.eviction_minimum_reclaim = map(&[("memory.available", "50")]);
            c.eviction_pressure_transition_period = GoDuration::ZERO;
        });
        assert!(watch.look(&readings(99, 0), at(0)).memory);
        assert!(!watch.look(&readings(120, 0), at(10)).memory, "let go before the grace was over");
        assert!(watch.look(&readings(99, 0), at(20)).memory);
        assert!(watch.look(&readings(99, 0), at(50)).memory);
        assert!(watch.look(&readings(120, 0), at(60)).memory, "now it holds");
    }

    #[test]
    fn what_is_off_or_unreadable_presses_nobody() {
        let mut watch = watch(|c| {
            c.eviction_hard =
                map(&[("nodefs.available", "0%"), ("imagefs.available", "50%"), ("pid.available", "5%")]);
        });
        let pids = BTreeMap::from([("pid.available", Reading { available: 40, capacity: 1000 })]);
        assert_eq!(watch.look(&readings(0, 0), at(0)), Pressures::default());
        assert_eq!(watch.look(&pids, at(1)), Pressures { pids: true, ..Default::default() });
    }

    proptest! {
        #[test]
        fn pressure_never_ends_before_the_transition_period(steps in proptest::collection::vec(0i64..200, 1..40)) {
            let mut watch = watch(|_| {});
            let mut last = None;
            for (i, memory) in steps.into_iter().enumerate() {
                let now = at(10 * u64::try_from(i).unwrap());
                let pressed = watch.look(&readings(memory, 900), now).memory;
                if memory < 100 {
                    last = Some(now);
                }
                let wanted = last.is_some_and(|l| now.since(l) < Duration::from_secs(300));
                prop_assert_eq!(pressed, wanted);
            }
        }
    }
}
