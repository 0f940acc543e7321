//! How fast something grows: two looks tell it, and they must lie apart.

use std::collections::BTreeMap;
use std::time::Duration;

use base::time::Mono;

/// Two looks closer together than this say nothing about a rate.
const APART: Duration = Duration::from_secs(1);

/// Remembers the last looks at many counters of nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    last: BTreeMap<String, Last>,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    at: Mono,
    nanos: u64,
    rate: Option<u64>,
}

// === impl Rates ===

impl Rates {
    /// The rate of one of them, in nanoseconds per second; none before a second look.
    pub fn of(&mut self, key: &str, nanos: u64, now: Mono) -> Option<u64> {
        let Some(last) = self.last.get_mut(key) else {
            self.last.insert(key.to_owned(), Last { at: now, nanos, rate: None });
            return None;
        };
        let passed = now.since(last.at);
        if nanos < last.nanos {
            // It began anew.
            *last = Last { at: now, nanos, rate: None };
        } else if passed >= APART {
            let spent = u128::from(nanos - last.nanos) * 1_000_000_000;
            let rate = u64::try_from(spent / passed.as_nanos().max(1)).ok();
            *last = Last { at: now, nanos, rate };
        }
        last.rate
    }

    /// Forgets what was not looked at since then.
    pub fn forget_before(&mut self, then: Mono) {
        self.last.retain(|_, last| last.at >= then);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_takes_two_looks_that_lie_apart() {
        let (mut rates, at) = (Rates::default(), |ms| Mono(Duration::from_millis(ms)));
        let table = [
            (0, 0, None),
            (500, 10, None),
            (4_000_000_000, 2000, Some(2_000_000_000)),
            (4_000_000_001, 2001, Some(2_000_000_000)),
            (100, 4000, None),
            (1_000_000_100, 6000, Some(500_000_000)),
        ];
        for (nanos, ms, want) in table {
            assert_eq!(rates.of("a", nanos, at(ms)), want, "{nanos} at {ms}");
        }
        assert_eq!(rates.of("b", 7, at(6000)), None, "each has its own");
        rates.forget_before(at(6001));
        assert_eq!(rates.of("a", 9_000_000_100, at(9000)), None);
    }
}
