//! One Pod of the queue.

use std::sync::Arc;
use std::time::Duration;

use base::time::Mono;

use super::{History, MOST_EVENTS, Pauses};
use crate::event::Event;
use crate::plugins::PluginId;
use crate::plugins::priority_sort::Rank;
use crate::pod::Pod;
use crate::status::PluginSet;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Active,
    /// Until the second that is told.
    Backoff(u64),
    ErrorBackoff(u64),
    Unschedulable,
    Gated,
    InFlight,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) pod: Arc<Pod>,
    pub(super) place: Place,
    pub(super) rank: Rank,
    pub(super) history: History,
    /// When it last came to the queue.
    pub(super) since: Mono,
    pub(super) rejected_by: PluginSet,
    /// What happened while it was in flight.
    events: Vec<Event>,
    missed: bool,
}

// === impl Entry ===

impl Entry {
    pub(super) fn new(pod: Arc<Pod>, now: Mono) -> Entry {
        let rank = Rank { priority: pod.priority, since: 0 };
        Entry {
            pod,
            place: Place::InFlight,
            rank,
            history: History::default(),
            since: now,
            rejected_by: PluginSet::default(),
            events: Vec::new(),
            missed: false,
        }
    }

    pub(super) fn remember(&mut self, event: &Event) {
        if self.events.len() < MOST_EVENTS {
            self.events.push(event.clone());
        } else {
            self.missed = true;
        }
    }

    /// What was remembered, and whether it was too much.
    pub(super) fn take_events(&mut self) -> (Vec<Event>, bool) {
        (std::mem::take(&mut self.events), std::mem::take(&mut self.missed))
    }

    /// The second in which its pause ends: doubled with each refusal, or with each error in a row.
    pub(super) fn window(&self, pauses: &Pauses) -> u64 {
        let History { errors, rejections, .. } = self.history;
        let times = if errors > 0 { errors } else { rejections };
        let pause = match times {
            0 => Duration::ZERO,
            n => pauses.first.saturating_mul(1 << (n - 1).min(20)).min(pauses.most),
        };
        (self.since + pause).0.as_secs()
    }

    /// Under which plugins it is found when something happens. Where nobody said no, under the one that anything wakes.
    pub(super) fn waits_for(&self) -> Vec<PluginId> {
        match self.rejected_by.is_empty() {
            true => vec![PluginId::Extender],
            false => self.rejected_by.iter().collect(),
        }
    }
}
