//! When the node's status is worth a request: at a change, and now and then.

use std::time::Duration;

use base::rng::Rng;
use base::time::Mono;

/// When the last report went out, and when the next is due although nothing changed.
#[derive(Clone, Debug)]
pub struct Schedule {
    frequency: Duration,
    next: Option<Mono>,
}

// === impl Schedule ===

impl Schedule {
    #[must_use]
    pub fn new(frequency: Duration) -> Schedule {
        Schedule { frequency, next: None }
    }

    /// Whether to send now. The first look after a start is always sent.
    #[must_use]
    pub fn is_due(&self, changed: bool, now: Mono) -> bool {
        changed || self.next.is_none_or(|next| now >= next)
    }

    /// A report went out. After a change the next interval is between half and one and a half periods, so that
    /// nodes that changed together do not report together for ever.
    pub fn sent(&mut self, changed: bool, now: Mono, rng: &mut Rng) {
        let wait = match changed || self.next.is_none() {
            true => self.frequency / 2 + rng.up_to(self.frequency),
            false => self.frequency,
        };
        self.next = Some(now + wait);
    }
}

/// A period, up to a twenty-fifth longer each time: nodes that started together drift apart.
#[must_use]
pub fn jittered(period: Duration, rng: &mut Rng) -> Duration {
    period + rng.up_to(period / 25)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::rng::Rng;
    use proptest::prelude::*;

    const FREQUENCY: Duration = Duration::from_secs(300);

    fn at(s: u64) -> Mono {
        Mono(Duration::from_secs(s))
    }

    #[test]
    fn a_change_is_sent_at_once_and_calm_every_five_minutes() {
        let mut rng = Rng::new(1);
        let mut schedule = Schedule::new(FREQUENCY);
        assert!(schedule.is_due(false, at(0)), "the first look");
        schedule.sent(false, at(0), &mut rng);
        assert!(!schedule.is_due(false, at(149)) && schedule.is_due(false, at(450)));
        assert!(schedule.is_due(true, at(1)));
        schedule.sent(false, at(450), &mut rng);
        assert!(!schedule.is_due(false, at(749)) && schedule.is_due(false, at(750)));
    }

    proptest! {
        #[test]
        fn the_interval_after_a_change_is_spread(seed: u64) {
            let mut rng = Rng::new(seed);
            let mut schedule = Schedule::new(FREQUENCY);
            schedule.sent(true, at(0), &mut rng);
            prop_assert!(!schedule.is_due(false, at(149)) && schedule.is_due(false, at(451)));
            let period = jittered(Duration::from_secs(10), &mut rng);
            prop_assert!(period >= Duration::from_secs(10) && period <= Duration::from_millis(10_400));
        }
    }
}
