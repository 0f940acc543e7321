//! What was measured before: a rate needs two looks, and a large directory is not walked at every question.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sys::usage::Usage;

/// A rate over less says nothing.
const APART: i64 = 100_000_000;

/// By container or sandbox.
#[derive(Debug, Default)]
pub(crate) struct Samples(Mutex<HashMap<String, Sample>>);

#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    at: i64,
    /// Nanoseconds of processors.
    used: u64,
    rate: Option<u64>,
    /// When, and how much its directory takes.
    disk: Option<(i64, Usage)>,
}

// === impl Samples ===

impl Samples {
    /// Nanoseconds of processors in a second, since an earlier look.
    pub(crate) fn rate(&self, id: &str, at: i64, used: u64) -> Option<u64> {
        let mut all = self.all();
        let sample = all.entry(id.to_owned()).or_default();
        let apart = at - sample.at;
        if sample.at > 0 && apart < APART {
            return sample.rate;
        }
        let more = used.saturating_sub(sample.used);
        let rate = u128::from(more) * 1_000_000_000 / u128::from(apart.max(1).unsigned_abs());
        let rate = (sample.at > 0).then(|| u64::try_from(rate).unwrap_or(u64::MAX));
        (sample.at, sample.used, sample.rate) = (at, used, rate);
        rate
    }

    /// The last walk, if it is not older than this.
    pub(crate) fn disk(&self, id: &str, now: i64, age: i64) -> Option<(i64, Usage)> {
        self.all().get(id)?.disk.filter(|(at, _)| now - at < age)
    }

    pub(crate) fn keep_disk(&self, id: &str, at: i64, usage: Usage) {
        self.all().entry(id.to_owned()).or_default().disk = Some((at, usage));
    }

    /// Only what is still there is remembered.
    pub(crate) fn retain(&self, is_there: impl Fn(&str) -> bool) {
        self.all().retain(|id, _| is_there(id));
    }

    /// Of all directories together.
    pub(crate) fn written(&self) -> (u64, u64) {
        let disks = self.all();
        let disks = disks.values().filter_map(|sample| sample.disk);
        disks.fold((0, 0), |(bytes, inodes), (_, usage)| (bytes + usage.bytes, inodes + usage.inodes))
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Sample>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_needs_two_looks_that_are_apart() {
        let samples = Samples::default();
        assert_eq!(samples.rate("a", 1_000_000_000, 500), None);
        assert_eq!(samples.rate("a", 1_000_000_001, 900), None, "too near");
        assert_eq!(samples.rate("a", 3_000_000_000, 1_000_000_500), Some(500_000_000));
        assert_eq!(samples.rate("a", 3_050_000_000, 9_000_000_500), Some(500_000_000), "the one before");
        samples.retain(|id| id != "a");
        assert_eq!(samples.rate("a", 4_000_000_000, 0), None);
    }
}
