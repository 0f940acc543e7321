//! What an autoscaler remembers: recent advice and recent changes. A process that is restarted has forgotten it, as upstream's.

use std::collections::VecDeque;
use std::time::Duration;

use base::time::Mono;

use super::spec::{Behavior, Rules, Select};

/// The bounds that were in the way, as a condition says it: reason and message.
pub(super) type Said = (&'static str, &'static str);

#[derive(Debug, Default)]
pub(super) struct History {
    /// Advice before anything was made of it.
    advice: VecDeque<(Mono, i32)>,
    ups: VecDeque<(Mono, i32)>,
    downs: VecDeque<(Mono, i32)>,
}

/// A number of replicas between bounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) current: i32,
    pub(super) desired: i32,
    pub(super) min: i32,
    pub(super) max: i32,
}

const IN_RANGE: Said = ("DesiredWithinRange", "the desired count is within the acceptable range");
const UP_LIMIT: Said =
    ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const DOWN_LIMIT: Said =
    ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate");
const TOO_MANY: Said =
    ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
const TOO_FEW: Said = ("TooFewReplicas", "the desired replica count is less than the minimum replica count");

const READY: Said = ("ReadyForNewScale", "recommended size matches current size");
const DOWN_STABILIZED: Said = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);
const UP_STABILIZED: Said = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);

// === impl History ===

impl History {
    /// The first advice is what is there: nobody is scaled down at the start of the controller.
    pub(super) fn begin(&mut self, current: i32, now: Mono) {
        if self.advice.is_empty() {
            self.advice.push_back((now, current));
        }
    }

    /// By the old rules: the highest advice of the window. Returns it, and what to say of it.
    pub(super) fn stabilize(&mut self, desired: i32, window: Duration, now: Mono) -> (i32, Said) {
        self.advice.retain(|(at, _)| now.since(*at) <= window);
        let highest = self.advice.iter().map(|(_, advice)| *advice).fold(desired, i32::max);
        self.advice.push_back((now, desired));
        (highest, if highest == desired { READY } else { DOWN_STABILIZED })
    }

    /// With behavior: up to the lowest advice of one window, down to the highest of the other.
    pub(super) fn stabilize_with(&mut self, wanted: Wanted, behavior: &Behavior, now: Mono) -> (i32, Said) {
        let Wanted { current, desired, .. } = wanted;
        let longest = behavior.up.window.max(behavior.down.window);
        self.advice.retain(|(at, _)| now.since(*at) <= longest);
        let within = |window: Duration| {
            self.advice.iter().filter(move |(at, _)| now.since(*at) < window).map(|(_, advice)| *advice)
        };
        let up = within(behavior.up.window).fold(desired, i32::min);
        let down = within(behavior.down.window).fold(desired, i32::max);
        let stable = current.max(up).min(down);
        self.advice.push_back((now, desired));
        let said = match () {
            () if stable == desired => READY,
            () if desired >= current => UP_STABILIZED,
            () => DOWN_STABILIZED,
        };
        (stable, said)
    }

    /// What the policies leave of a change.
    pub(super) fn limit(&self, wanted: Wanted, behavior: &Behavior, now: Mono) -> (i32, Said) {
        let Wanted { current, desired, min, max } = wanted;
        if desired > current {
            let limit = self.up_limit(current, &behavior.up, now).max(current);
            let (most, said) = if max > limit { (limit, UP_LIMIT) } else { (max, TOO_MANY) };
            return if desired > most { (most, said) } else { (desired, IN_RANGE) };
        }
        if desired < current {
            let limit = self.down_limit(current, &behavior.down, now).min(current);
            let (least, said) = if min < limit { (limit, DOWN_LIMIT) } else { (min, TOO_FEW) };
            return if desired < least { (least, said) } else { (desired, IN_RANGE) };
        }
        (desired, IN_RANGE)
    }

    fn up_limit(&self, current: i32, rules: &Rules, now: Mono) -> i32 {
        let allowed = rules.policies.iter().map(|policy| {
            let start = self.at_start_of(policy.period, current, now);
            if policy.is_percent {
                (f64::from(start) * (1.0 + f64::from(policy.value) / 100.0)).ceil() as i32
            } else {
                start.saturating_add(policy.value)
            }
        });
        match rules.select {
            Select::Disabled => current,
            Select::Min => allowed.min().unwrap_or(i32::MAX),
            Select::Max => allowed.max().unwrap_or(i32::MIN),
        }
    }

    fn down_limit(&self, current: i32, rules: &Rules, now: Mono) -> i32 {
        let allowed = rules.policies.iter().map(|policy| {
            let start = self.at_start_of(policy.period, current, now);
            if policy.is_percent {
                (f64::from(start) * (1.0 - f64::from(policy.value) / 100.0)) as i32
            } else {
                start.saturating_sub(policy.value)
            }
        });
        match rules.select {
            Select::Disabled => current,
            Select::Min => allowed.max().unwrap_or(i32::MIN),
            Select::Max => allowed.min().unwrap_or(i32::MAX),
        }
    }

    /// How many there were when the period began.
    fn at_start_of(&self, period: Duration, current: i32, now: Mono) -> i32 {
        let sum = |changes: &VecDeque<(Mono, i32)>| {
            let recent = changes.iter().filter(|(at, _)| now.since(*at) < period);
            recent.fold(0i32, |sum, (_, change)| sum.saturating_add(*change))
        };
        current.saturating_sub(sum(&self.ups)).saturating_add(sum(&self.downs))
    }

    /// It was scaled.
    pub(super) fn changed(&mut self, before: i32, after: i32, behavior: Option<&Behavior>, now: Mono) {
        let Some(behavior) = behavior else { return };
        let (changes, rules) =
            if after > before { (&mut self.ups, &behavior.up) } else { (&mut self.downs, &behavior.down) };
        let longest = rules.longest_period();
        changes.retain(|(at, _)| now.since(*at) <= longest);
        changes.push_back((now, after.abs_diff(before).try_into().unwrap_or(i32::MAX)));
    }
}

/// By the old rules: at most the double, or four.
pub(super) fn limit(wanted: Wanted) -> (i32, Said) {
    let Wanted { current, desired, min, max } = wanted;
    let limit = current.saturating_mul(2).max(4);
    let (most, said) = if max > limit { (limit, UP_LIMIT) } else { (max, TOO_MANY) };
    match () {
        () if desired < min => (min, TOO_FEW),
        () if desired > most => (most, said),
        () => (desired, IN_RANGE),
    }
}
