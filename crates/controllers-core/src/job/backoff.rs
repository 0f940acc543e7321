//! How long a Job waits after Pods have failed.

use std::time::Duration;

use base::time::{Now, Wall};

const FIRST: Duration = Duration::from_secs(10);
const LAST: Duration = Duration::from_secs(600);

/// Failures since the last success, and when the last one was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) failures: u32,
    pub(super) last: Option<Wall>,
}

// === impl Record ===

impl Record {
    /// What it is after Pods have ended at these times.
    pub(super) fn after(self, succeeded: &[Wall], failed: &[Wall]) -> Record {
        let mut failed = failed.to_vec();
        let known = match succeeded.iter().max() {
            None => self,
            Some(success) => {
                failed.retain(|at| at > success);
                Record::default()
            }
        };
        let count = u32::try_from(failed.len()).unwrap_or(u32::MAX);
        Record {
            failures: known.failures.saturating_add(count),
            last: failed.into_iter().max().or(known.last),
        }
    }

    /// How long nothing new is begun.
    pub(super) fn left(self, now: Now) -> Option<Duration> {
        let last = self.last.filter(|_| self.failures > 0)?;
        let doublings = (self.failures - 1).min(16);
        let pause = FIRST.saturating_mul(1 << doublings).min(LAST);
        let end = Wall(last.0.saturating_add(i64::try_from(pause.as_nanos()).unwrap_or(i64::MAX)));
        Some(end.since(now.wall)).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    #[test]
    fn each_failure_doubles_the_pause_and_a_success_ends_it() {
        let secs = Wall::from_secs;
        for (failures, pause) in [(1, 10), (2, 20), (3, 40), (6, 320), (7, 600), (500, 600)] {
            let record = Record { failures, last: Some(secs(100)) };
            assert_eq!(record.left(at(100)), Some(Duration::from_secs(pause)), "{failures}");
            assert_eq!(record.left(at(100 + pause)), None, "{failures}");
        }
        let two = Record::default().after(&[], &[secs(5), secs(3)]);
        assert_eq!(two, Record { failures: 2, last: Some(secs(5)) });
        assert_eq!(two.after(&[secs(9)], &[]), Record::default());
        assert_eq!(two.after(&[secs(9)], &[secs(8), secs(11)]), Record { failures: 1, last: Some(secs(11)) });
    }
}
