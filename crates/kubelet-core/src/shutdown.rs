//! Who is ended when the machine goes down: in which order, and in how much time.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

/// The priority from which on Pods are critical.
const CRITICAL: i32 = 2_000_000_000;

/// Pods of this priority and above, up to the next one, have so many seconds to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    pub priority: i32,
    pub seconds: i64,
}

/// The periods in the order in which they pass: the given ones, or one for all Pods and one for critical ones. None: the
/// machine does not wait.
#[must_use]
pub fn periods(total: Duration, critical: Duration, mut given: Vec<Period>) -> Vec<Period> {
    given.sort_by_key(|p| p.priority);
    if !given.is_empty() {
        return given;
    }
    let Some(others) = total.checked_sub(critical).filter(|_| !total.is_zero()) else { return given };
    let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    vec![
        Period { priority: 0, seconds: seconds(others) },
        Period { priority: CRITICAL, seconds: seconds(critical) },
    ]
}

/// All of it together.
#[must_use]
pub fn total(periods: &[Period]) -> Duration {
    let seconds = periods.iter().filter_map(|p| u64::try_from(p.seconds).ok());
    Duration::from_secs(seconds.fold(0, u64::saturating_add))
}

/// Which period a Pod ends in. Below the lowest is the lowest.
#[must_use]
pub fn period_of(periods: &[Period], pod: &Pod) -> usize {
    let priority = pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0);
    periods.partition_point(|p| p.priority <= priority).saturating_sub(1)
}

/// The seconds a Pod gets: its own, but no more than its period has.
#[must_use]
pub fn grace(period: Period, pod: &Pod) -> i64 {
    let own = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
    own.map_or(period.seconds, |own| own.min(period.seconds))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSpec;

    use super::*;

    fn period(priority: i32, seconds: i64) -> Period {
        Period { priority, seconds }
    }

    fn pod(priority: Option<i32>, grace: Option<i64>) -> Pod {
        let spec = PodSpec { priority, termination_grace_period_seconds: grace, ..PodSpec::default() };
        Pod { spec: Some(spec), ..Pod::default() }
    }

    #[test]
    fn two_periods_are_made_of_two_numbers() {
        let seconds = Duration::from_secs;
        assert_eq!(periods(seconds(0), seconds(0), vec![]), []);
        assert_eq!(periods(seconds(10), seconds(20), vec![]), []);
        let both = periods(seconds(30), seconds(10), vec![]);
        assert_eq!(both, [period(0, 20), period(CRITICAL, 10)]);
        assert_eq!(total(&both), seconds(30));
        let given = periods(seconds(0), seconds(0), vec![period(100, 1), period(-5, 2)]);
        assert_eq!(given, [period(-5, 2), period(100, 1)]);
    }

    #[test]
    fn pods_end_in_the_period_of_their_priority() {
        let periods = [period(-10, 1), period(0, 2), period(100, 3)];
        for (priority, want) in [
            (None, 1),
            (Some(-11), 0),
            (Some(-10), 0),
            (Some(-1), 0),
            (Some(99), 1),
            (Some(100), 2),
            (Some(1000), 2),
        ] {
            assert_eq!(period_of(&periods, &pod(priority, None)), want, "{priority:?}");
        }
    }

    #[test]
    fn nobody_gets_more_than_he_asks_for() {
        let ten = period(0, 10);
        assert_eq!([None, Some(3), Some(10), Some(60)].map(|g| grace(ten, &pod(None, g))), [10, 3, 10, 10]);
    }
}
