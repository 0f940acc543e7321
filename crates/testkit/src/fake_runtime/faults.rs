//! What goes wrong, drawn from the seed.

use std::time::Duration;

use base::rng::Rng;

/// Probabilities are per call (0.0 to 1.0); the default is a runtime where nothing goes wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Each call takes up to this long, part of it before and part of it after the effect.
    pub latency: Duration,
    /// The call fails and nothing happened.
    pub error: f64,
    /// The effect happens and the caller gets `Unavailable`.
    pub lost_reply: f64,
    /// The call is answered only by its deadline; whether it had an effect is a coin toss.
    pub hang: f64,
    /// An event is delivered twice.
    pub duplicate_event: f64,
    /// An event is delivered late by up to `event_delay`, and so perhaps after newer ones.
    pub late_event: f64,
    pub event_delay: Duration,
    /// An event is never delivered.
    pub lost_event: f64,
}

/// What happens to one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fate {
    pub(super) before: Duration,
    pub(super) after: Duration,
    pub(super) fault: InjectedFault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InjectedFault {
    None,
    Error,
    LostReply,
    Hang { effect: bool },
}

// === impl Faults ===

impl Faults {
    /// Lively: every kind of fault, each seldom enough that work gets done.
    #[must_use]
    pub fn stormy() -> Self {
        Self {
            latency: Duration::from_millis(200),
            error: 0.03,
            lost_reply: 0.03,
            hang: 0.002,
            duplicate_event: 0.1,
            late_event: 0.1,
            event_delay: Duration::from_secs(3),
            lost_event: 0.02,
        }
    }

    pub(super) fn draw(&self, rng: &mut Rng) -> Fate {
        let fault = if rng.chance(self.error) {
            InjectedFault::Error
        } else if rng.chance(self.lost_reply) {
            InjectedFault::LostReply
        } else if rng.chance(self.hang) {
            InjectedFault::Hang { effect: rng.chance(0.5) }
        } else {
            InjectedFault::None
        };
        Fate { before: rng.up_to(self.latency / 2), after: rng.up_to(self.latency / 2), fault }
    }

    /// The delays with which an event is delivered: none, one or two of them.
    pub(super) fn deliveries(&self, rng: &mut Rng) -> Vec<Duration> {
        if rng.chance(self.lost_event) {
            return Vec::new();
        }
        let copies = if rng.chance(self.duplicate_event) { 2 } else { 1 };
        let mut delay =
            || if rng.chance(self.late_event) { rng.up_to(self.event_delay) } else { Duration::ZERO };
        (0..copies).map(|_| delay()).collect()
    }
}
