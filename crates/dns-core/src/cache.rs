//! Answers of upstreams, for as long as they last. Pure: time is an argument.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use base::time::Mono;
use domain::base::Rtype;
use domain::base::iana::Rcode;
use domain::rdata::ZoneRecordData;

use crate::corefile;
use crate::message::{self, Answer, TCP_SIZE};
use crate::name::{self, Name};
use crate::query::Query;

/// Bytes that each half may hold, whatever its number of entries: answers of an upstream can be large.
const BYTES: usize = 8 << 20;
/// What an entry costs beside its bytes.
const OVERHEAD: usize = 96;

/// Success and denial apart, so that names that do not exist drive out none that do.
#[derive(Debug)]
pub struct Cache {
    settings: corefile::Cache,
    halves: [Half; 2],
}

/// Which half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    Success,
    Denial,
}

/// A question, without its case and who asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    name: Name,
    rtype: Rtype,
    wants_dnssec: bool,
    checking_disabled: bool,
}

#[derive(Debug, Default)]
struct Half {
    entries: HashMap<Key, Entry>,
    /// In the order they came; a key that is here and not there was replaced or has ended.
    order: VecDeque<(Key, u64)>,
    bytes: usize,
    turn: u64,
}

#[derive(Debug)]
struct Entry {
    bytes: Box<[u8]>,
    stored: Mono,
    ttl: u32,
    turn: u64,
}

/// For how long an answer lasts, and in which half; none if it is not to be kept.
#[must_use]
pub fn lifetime(settings: &corefile::Cache, query: &Query, answer: &Answer) -> Option<(Sort, u32)> {
    let has = |zones: &[Name]| zones.iter().any(|zone| query.name.ends_with(zone));
    if answer.is_truncated || !has(&settings.zones) {
        return None;
    }
    let soa = answer.authority.iter().find_map(|record| match record.data() {
        ZoneRecordData::Soa(soa) => Some(soa.minimum().as_secs().min(record.ttl().as_secs())),
        _ => None,
    });
    let least =
        |records: &mut dyn Iterator<Item = &message::Record>| records.map(|r| r.ttl().as_secs()).min();
    let (sort, ttl) = match answer.rcode {
        Rcode::NOERROR if !answer.answer.is_empty() => {
            let all = answer.answer.iter().chain(&answer.authority).chain(&answer.additional);
            (Sort::Success, least(&mut all.into_iter())?)
        }
        Rcode::NOERROR | Rcode::NXDOMAIN => {
            let aliases = least(&mut answer.answer.iter()).unwrap_or(u32::MAX);
            (Sort::Denial, soa?.min(aliases))
        }
        Rcode::SERVFAIL => {
            let seconds = u32::try_from(settings.servfail.as_secs()).unwrap_or(u32::MAX);
            return (seconds > 0 && !has(&settings.denial.disabled)).then_some((Sort::Denial, seconds));
        }
        _ => return None,
    };
    let part = if sort == Sort::Success { &settings.success } else { &settings.denial };
    let ttl = ttl.max(part.min_ttl).min(part.max_ttl);
    (ttl > 0 && !has(&part.disabled)).then_some((sort, ttl))
}

// === impl Cache ===

impl Cache {
    #[must_use]
    pub fn new(settings: corefile::Cache) -> Cache {
        Cache { settings, halves: Default::default() }
    }

    #[must_use]
    pub fn settings(&self) -> &corefile::Cache {
        &self.settings
    }

    #[must_use]
    pub fn len(&self, sort: Sort) -> usize {
        self.halves[sort as usize].entries.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.halves.iter().all(|half| half.entries.is_empty())
    }

    /// What was said before, with what is left of its time.
    #[must_use]
    pub fn get(&self, query: &Query, now: Mono) -> Option<(Answer, Sort)> {
        let key = Key::new(query);
        for sort in [Sort::Denial, Sort::Success] {
            let Some(entry) = self.halves[sort as usize].entries.get(&key) else { continue };
            let left = Duration::from_secs(entry.ttl.into()).saturating_sub(now.since(entry.stored));
            let left = u32::try_from(left.as_millis().div_ceil(1000)).unwrap_or(0);
            if left == 0 {
                continue;
            }
            let mut answer = message::hear(&entry.bytes).ok()?.answer;
            answer.set_ttl(left);
            return Some((answer, sort));
        }
        None
    }

    /// Keeps an answer if it may be kept. It is given the lifetime that it will be told with, now and later.
    pub fn put(&mut self, query: &Query, answer: &mut Answer, now: Mono) {
        let Some((sort, ttl)) = lifetime(&self.settings, query, answer) else { return };
        answer.set_ttl(ttl);
        let bytes: Box<[u8]> = answer.write(&Query { edns: None, ..query.clone() }, TCP_SIZE).into();
        let capacity = match sort {
            Sort::Success => self.settings.success.capacity,
            Sort::Denial => self.settings.denial.capacity,
        };
        let key = Key::new(query);
        let other = if sort == Sort::Success { Sort::Denial } else { Sort::Success };
        self.halves[other as usize].remove(&key);
        self.halves[sort as usize].put(key, bytes, now, ttl, capacity);
    }
}

// === impl Half ===

impl Half {
    fn put(&mut self, key: Key, bytes: Box<[u8]>, stored: Mono, ttl: u32, capacity: usize) {
        let size = bytes.len() + OVERHEAD;
        self.remove(&key);
        while (self.entries.len() >= capacity || self.bytes + size > BYTES) && self.remove_oldest() {}
        if self.entries.len() >= capacity || self.bytes + size > BYTES {
            return;
        }
        self.turn += 1;
        self.bytes += size;
        self.order.push_back((key.clone(), self.turn));
        self.entries.insert(key, Entry { bytes, stored, ttl, turn: self.turn });
        // Entries that were replaced leave their place in the order behind.
        if self.order.len() > 2 * self.entries.len() + 16 {
            let entries = &self.entries;
            self.order.retain(|(key, turn)| entries.get(key).is_some_and(|entry| entry.turn == *turn));
        }
    }

    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.bytes -= entry.bytes.len() + OVERHEAD;
        }
    }

    fn remove_oldest(&mut self) -> bool {
        let Some((key, turn)) = self.order.pop_front() else { return false };
        if self.entries.get(&key).is_some_and(|entry| entry.turn == turn) {
            self.remove(&key);
        }
        true
    }
}

// === impl Key ===

impl Key {
    fn new(query: &Query) -> Key {
        Key {
            name: name::canonical(&query.name),
            rtype: query.rtype,
            wants_dnssec: query.wants_dnssec(),
            checking_disabled: query.checking_disabled,
        }
    }
}
