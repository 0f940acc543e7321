//! Events as the API server is told of them: alike ones combined, equal ones counted, chatty objects silenced.
//!
//! The numbers and the words are upstream's, because people and alerts know them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::time::Duration;

use base::time::{Mono, Now, Wall};

/// Objects, kinds of events and single events remembered at once.
const REMEMBERED: usize = 4096;
/// So many events that differ only in their words within the interval become one.
const ALIKE: usize = 10;
const ALIKE_FOR: Duration = Duration::from_secs(600);
/// What one object may say at once, and how soon it may say one thing more.
const BURST: f64 = 25.0;
const REFILL: Duration = Duration::from_secs(300);

/// Something that happened to an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Happened {
    pub about: About,
    /// `spec.containers{name}` and the like; empty for the object itself.
    pub field_path: String,
    /// `Normal` or `Warning`.
    pub kind: &'static str,
    pub reason: String,
    pub message: String,
    /// For programs.
    pub annotations: BTreeMap<String, String>,
}

/// The object an event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct About {
    pub kind: &'static str,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub resource_version: String,
}

/// What the API server is to be told.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// The Event's own name.
    pub name: String,
    pub happened: Happened,
    pub first: Wall,
    pub last: Wall,
    /// Above one, the Event is there already and only has to be brought up to date.
    pub count: u32,
}

/// The memory of what was told.
#[derive(Debug, Default)]
pub struct Correlator {
    groups: Recent<Group, Alike>,
    counts: Recent<Counted, Count>,
    budgets: Recent<(About, &'static str), Budget>,
    /// The time in the last name. Clocks stand still and jump, and no two Events may have one name.
    named: i64,
}

/// Events that differ only in their words.
type Group = (About, &'static str, String);

/// A single event, or all of a group from the moment they are combined.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Counted {
    One(Happened),
    Combined(Group),
}

#[derive(Debug, Default)]
struct Alike {
    messages: BTreeSet<String>,
    last: Mono,
}

#[derive(Clone, Debug)]
struct Count {
    name: String,
    first: Wall,
    count: u32,
}

#[derive(Debug)]
struct Budget {
    left: f64,
    at: Mono,
}

// === impl Correlator ===

impl Correlator {
    /// What to tell of it; nothing if the object has said too much lately. What is not told is counted
    /// nevertheless, and comes out with the next one that is.
    pub fn correlate(&mut self, event: Happened, now: Now) -> Option<Told> {
        let (event, key) = self.combine(event, now.mono);
        let told = self.count(event, key, now.wall);
        self.may_speak(&told.happened, now.mono).then_some(told)
    }

    fn combine(&mut self, mut event: Happened, now: Mono) -> (Happened, Counted) {
        let about = unversioned(&event.about);
        let group: Group = (about, event.kind, event.reason.clone());
        let alike = self.groups.entry(group.clone(), Alike::default);
        if now.since(alike.last) > ALIKE_FOR {
            alike.messages.clear();
        }
        alike.last = now;
        alike.messages.insert(event.message.clone());
        if alike.messages.len() < ALIKE {
            let key = Happened { about: unversioned(&event.about), ..event.clone() };
            return (event, Counted::One(key));
        }
        alike.messages.pop_last();
        event.message = format!("(combined from similar events): {}", event.message);
        (event, Counted::Combined(group))
    }

    fn count(&mut self, event: Happened, key: Counted, now: Wall) -> Told {
        let named = &mut self.named;
        let fresh = || {
            *named = now.0.max(named.saturating_add(1));
            Count { name: event_name(&event.about.name, *named), first: now, count: 0 }
        };
        let known = self.counts.entry(key, fresh);
        known.count = known.count.saturating_add(1);
        let Count { name, first, count } = known.clone();
        Told { name, first, count, last: now, happened: event }
    }

    fn may_speak(&mut self, event: &Happened, now: Mono) -> bool {
        let about = (unversioned(&event.about), event.kind);
        let budget = self.budgets.entry(about, || Budget { left: BURST, at: now });
        let earned = now.since(budget.at).as_secs_f64() / REFILL.as_secs_f64();
        budget.left = (budget.left + earned).min(BURST);
        budget.at = now;
        let may = budget.left >= 1.0;
        if may {
            budget.left -= 1.0;
        }
        may
    }
}

/// The object's version changes with every status; it is the same object.
fn unversioned(about: &About) -> About {
    About { resource_version: String::new(), ..about.clone() }
}

/// Upstream's shape: the object's name and the time in hexadecimal.
fn event_name(object: &str, nanoseconds: i64) -> String {
    let suffix = format!(".{nanoseconds:x}");
    let room = 253 - suffix.len();
    let object: String = object.chars().take(room).collect();
    format!("{}{suffix}", object.trim_end_matches(['.', '-']))
}

/// A map that forgets what was not asked for in the longest time.
#[derive(Debug)]
struct Recent<K, V> {
    entries: HashMap<K, (u64, V)>,
    turn: u64,
}

// === impl Recent ===

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), turn: 0 }
    }
}

impl<K: Clone + Eq + Hash, V> Recent<K, V> {
    fn entry(&mut self, key: K, fresh: impl FnOnce() -> V) -> &mut V {
        if self.entries.len() >= REMEMBERED && !self.entries.contains_key(&key) {
            // A quarter at once, so that a full memory does not search itself for each event.
            let mut turns: Vec<u64> = self.entries.values().map(|(turn, _)| *turn).collect();
            turns.sort_unstable();
            let oldest = turns[REMEMBERED / 4];
            self.entries.retain(|_, (turn, _)| *turn > oldest);
        }
        self.turn += 1;
        let entry = self.entries.entry(key).or_insert_with(|| (0, fresh()));
        entry.0 = self.turn;
        &mut entry.1
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn event(name: &str, reason: &str, message: &str) -> Happened {
        let about = About {
            kind: "Pod",
            namespace: "s".into(),
            name: name.into(),
            uid: format!("uid-{name}"),
            resource_version: message.len().to_string(),
        };
        let (reason, message) = (reason.into(), message.into());
        let (field_path, annotations) = (String::new(), BTreeMap::new());
        Happened { about, field_path, kind: "Warning", reason, message, annotations }
    }

    fn at(seconds: u64) -> Now {
        Now { mono: Mono(Duration::from_secs(seconds)), wall: Wall::from_secs(1_000 + seconds.cast_signed()) }
    }

    #[test]
    fn equal_events_are_counted() {
        let mut c = Correlator::default();
        let first = c.correlate(event("p", "BackOff", "again"), at(0)).unwrap();
        assert_eq!((first.count, first.name.as_str()), (1, "p.e8d4a51000"));
        let second = c.correlate(event("p", "BackOff", "again"), at(5)).unwrap();
        assert_eq!((second.count, &second.name), (2, &first.name));
        assert_eq!((second.first, second.last), (Wall::from_secs(1_000), Wall::from_secs(1_005)));
        let other = c.correlate(event("q", "BackOff", "again"), at(6)).unwrap();
        assert_eq!(other.count, 1);
    }

    #[test]
    fn ten_that_differ_in_words_become_one() {
        let mut c = Correlator::default();
        let mut say =
            |n: u64, at_: u64| c.correlate(event("p", "Failed", &format!("try {n}")), at(at_)).unwrap();
        for n in 0..9 {
            assert_eq!(say(n, n).happened.message, format!("try {n}"));
        }
        let tenth = say(9, 9);
        assert_eq!(tenth.happened.message, "(combined from similar events): try 9");
        let next = say(10, 10);
        assert_eq!((next.count, &next.name), (2, &tenth.name));
        // After ten quiet minutes they are single again.
        assert_eq!(say(11, 700).happened.message, "try 11");
    }

    #[test]
    fn who_says_too_much_is_heard_every_five_minutes() {
        let mut c = Correlator::default();
        let mut heard = |at_: u64| c.correlate(event("p", "BackOff", "again"), at(at_)).map(|t| t.count);
        assert_eq!((0..40).filter(|_| heard(0).is_some()).count(), 25);
        assert_eq!(heard(299), None);
        assert_eq!(heard(300), Some(42), "what was not told was counted");
        assert_eq!(heard(301), None);
        assert!(c.correlate(event("q", "BackOff", "again"), at(301)).is_some());
    }

    #[test]
    fn memory_is_bounded() {
        let mut c = Correlator::default();
        for n in 0..3 * REMEMBERED {
            c.correlate(event(&format!("p{n}"), "Pulled", "x"), at(n as u64));
        }
        let sizes = [c.groups.entries.len(), c.counts.entries.len(), c.budgets.entries.len()];
        assert!(sizes.iter().all(|n| *n <= REMEMBERED), "{sizes:?}");
    }

    #[test]
    fn names_fit() {
        let name = event_name(&"x".repeat(253), 1_000_000_000);
        assert_eq!(name.len(), 253);
    }

    #[test]
    fn no_two_have_one_name_while_the_clock_stands_or_jumps_back() {
        let mut c = Correlator::default();
        let times = [9, 9, 9, 5, 5, 10];
        let names = times.iter().enumerate().map(|(n, at_)| {
            let message = n.to_string();
            c.correlate(event("p", "Pulled", &message), at(*at_)).unwrap().name
        });
        assert_eq!(names.collect::<BTreeSet<_>>().len(), times.len());
    }
}
