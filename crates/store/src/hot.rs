//! Notices a key that is written far too often: a controller that wakes itself, or two that undo each other's work.
//! Such a loop looks like health from everywhere else: every write succeeds.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base::time::Mono;

/// Keys that are counted at once.
const KEYS: usize = 256;
const WINDOW: Duration = Duration::from_secs(10);
/// Writes of one key in a window: a hundred a second, which nobody needs for long.
const TOO_MANY: u32 = 1000;

pub(super) const HELP: &str = "Times that one key was written a thousand times within ten seconds.";

/// Counts the keys that are written most (Misra and Gries: a key that has more than one in `KEYS` of all writes cannot
/// be missed, however many others there are).
#[derive(Debug, Default)]
pub(super) struct Meter {
    counts: HashMap<Arc<str>, Count>,
    since: Mono,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    writes: u32,
    told: bool,
}

// === impl Meter ===

impl Meter {
    /// Counts what was written, and raises the alarm. Says for how many keys.
    pub(super) fn note_all<'k>(&mut self, now: Mono, keys: impl Iterator<Item = &'k Arc<str>>) -> usize {
        keys.filter(|key| {
            let hot = self.note(now, key);
            if hot {
                let (writes, seconds) = (TOO_MANY, now.since(self.since).as_secs());
                tracing::warn!(%key, writes, seconds, "one object is written far too often; something goes in circles");
            }
            hot
        })
        .count()
    }

    fn note(&mut self, now: Mono, key: &Arc<str>) -> bool {
        if now.since(self.since) >= WINDOW {
            self.counts.clear();
            self.since = now;
        }
        if let Some(count) = self.counts.get_mut(key) {
            count.writes = count.writes.saturating_add(1);
            let hot = count.writes >= TOO_MANY && !count.told;
            count.told |= hot;
            return hot;
        }
        if self.counts.len() < KEYS {
            self.counts.insert(key.clone(), Count { writes: 1, told: false });
        } else {
            self.counts.retain(|_, count| {
                count.writes -= 1;
                count.writes > 0
            });
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono(Duration::from_secs(seconds))
    }

    #[test]
    fn a_key_written_in_circles_raises_an_alarm_once_a_window() {
        let (mut meter, key) = (Meter::default(), Arc::from("/registry/pods/a/b"));
        let mut alarms =
            |now, times| (0..times).filter(|_| meter.note_all(now, [&key].into_iter()) > 0).count();
        assert_eq!(alarms(at(1), TOO_MANY - 1), 0);
        assert_eq!(alarms(at(2), 3 * TOO_MANY), 1);
        assert_eq!(alarms(at(11), TOO_MANY - 1), 0, "a new window");
        assert_eq!(alarms(at(12), 1), 1);
    }

    #[test]
    fn many_keys_written_now_and_then_are_no_alarm_and_hide_none() {
        let (mut meter, hot) = (Meter::default(), Arc::from("hot"));
        let mut alarms = 0;
        for n in 0..100_000u32 {
            let cold: Arc<str> = format!("cold{}", n % 5000).into();
            alarms += meter.note_all(at(1), [&cold].into_iter());
            if n % 16 == 0 {
                alarms += meter.note_all(at(1), [&hot].into_iter());
            }
        }
        assert_eq!(alarms, 1);
        assert!(meter.counts.len() <= KEYS);
    }
}
