//! How much of the past is kept: decides, from what was written when, up to where to compact.

use std::collections::VecDeque;
use std::time::Duration;

use base::time::Mono;

/// How much history watchers and paged lists can fall back on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Changes younger than this are kept …
    pub age: Duration,
    /// … unless they are more bytes than this.
    pub bytes: u64,
}

/// A few samples of "at this time the store was at this revision and had written so many bytes".
#[derive(Debug)]
pub(super) struct History {
    keep: Retention,
    marks: VecDeque<Mark>,
    /// Bytes written up to now, since an arbitrary origin.
    written: u64,
    revision: u64,
    /// Bytes written when the compacted revision was.
    floor: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    at: Mono,
    revision: u64,
    written: u64,
}

// === impl Retention ===

impl Default for Retention {
    /// Upstream's API server compacts etcd every five minutes to what it was five minutes before.
    fn default() -> Retention {
        Retention { age: Duration::from_mins(5), bytes: 64 << 20 }
    }
}

// === impl History ===

impl History {
    /// `bytes` of changes up to `revision` were found at the start; their age is unknown, so they count as new.
    pub(super) fn new(keep: Retention, now: Mono, revision: u64, bytes: u64) -> History {
        let mark = Mark { at: now, revision, written: bytes };
        History { keep, marks: VecDeque::from([mark]), written: bytes, revision, floor: 0 }
    }

    /// The store has moved to `revision` by changes of `bytes`.
    pub(super) fn note(&mut self, now: Mono, revision: u64, bytes: u64) {
        self.written += bytes;
        self.revision = revision;
        let worth = self.marks.back().is_none_or(|last| {
            now.since(last.at) >= self.keep.age / 20 || self.written - last.written >= self.keep.bytes / 16
        });
        if worth {
            self.marks.push_back(Mark { at: now, revision, written: self.written });
        }
    }

    /// The revision up to which history may go now.
    pub(super) fn due(&mut self, now: Mono) -> Option<u64> {
        // A store that fell silent still has a present, and it will be old some day.
        if self
            .marks
            .back()
            .is_some_and(|last| last.revision < self.revision && now.since(last.at) >= self.keep.age / 20)
        {
            self.marks.push_back(Mark { at: now, revision: self.revision, written: self.written });
        }
        let mut target = None;
        while let Some(mark) = self.marks.front().copied() {
            let old = now.since(mark.at) >= self.keep.age;
            let too_much = self.written - self.floor > self.keep.bytes;
            if !old && !too_much {
                break;
            }
            self.floor = mark.written;
            target = Some(mark.revision);
            self.marks.pop_front();
        }
        target
    }

    /// How long until age alone makes something due; None when there is no history.
    pub(super) fn until_due(&self, now: Mono) -> Option<Duration> {
        let oldest = match self.marks.front() {
            Some(mark) => mark.at,
            None => return None,
        };
        Some(self.keep.age.saturating_sub(now.since(oldest)).max(Duration::from_millis(50)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Mono {
        Mono(Duration::from_secs(secs))
    }

    fn history() -> History {
        History::new(Retention { age: Duration::from_secs(300), bytes: 1600 }, at(0), 10, 0)
    }

    #[test]
    fn a_change_is_kept_for_the_whole_age_and_then_goes() {
        let mut h = history();
        h.note(at(100), 20, 1);
        assert_eq!(h.due(at(299)), None);
        assert_eq!(h.due(at(300)), Some(10));
        assert_eq!(h.due(at(399)), None);
        assert_eq!(h.due(at(400)), Some(20));
        assert_eq!((h.due(at(9999)), h.until_due(at(9999))), (None, None));
    }

    #[test]
    fn changes_between_two_marks_go_too_once_the_store_is_silent() {
        let mut h = history();
        h.note(at(1), 11, 1);
        assert_eq!(h.due(at(2)), None);
        assert_eq!(h.due(at(300)), Some(10));
        assert_eq!(h.due(at(599)), None);
        assert_eq!(h.due(at(600)), Some(11));
        assert_eq!(h.until_due(at(601)), None);
    }

    #[test]
    fn size_wins_over_age() {
        let mut h = history();
        for i in 0..32 {
            h.note(at(1), 11 + i, 100);
        }
        let target = h.due(at(1)).unwrap_or_default();
        assert_eq!(target, 26, "3200 bytes written, the last 1600 stay");
        assert_eq!(h.due(at(1)), None);
    }

    #[test]
    fn marks_are_few() {
        let mut h = history();
        for i in 0..100_000 {
            h.note(Mono(Duration::from_millis(i)), 11 + i, 0);
        }
        assert!(h.marks.len() <= 22, "{}", h.marks.len());
    }
}
