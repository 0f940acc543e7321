//! Which images go: upstream's image garbage collection.
//!
//! An image that a container has, running or dead, is in use. One that was just pulled will be used soon. The one that was
//! not used for longest goes first.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::time::Mono;

/// When images go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImagePolicy {
    /// From this use of the file system on images go, until it is down to the other. 100 turns it off.
    pub high_percent: u64,
    pub low_percent: u64,
    /// Younger ones stay.
    pub min_age: Duration,
    /// Unused for longer they go, however much room there is; none keeps them.
    pub max_age: Option<Duration>,
}

/// An image that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    pub id: String,
    pub bytes: u64,
    /// The runtime must have it.
    pub pinned: bool,
}

/// What is remembered of images; it begins anew with the kubelet.
#[derive(Clone, Debug)]
pub struct ImageUse {
    began: Mono,
    known: BTreeMap<String, Record>,
}

#[derive(Clone, Debug)]
struct Record {
    first_seen: Mono,
    last_used: Option<Mono>,
    bytes: u64,
    is_free: bool,
}

/// An image to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unused {
    pub id: String,
    pub bytes: u64,
}

// === impl ImageUse ===

impl ImageUse {
    #[must_use]
    pub fn new(began: Mono) -> ImageUse {
        ImageUse { began, known: BTreeMap::new() }
    }

    /// Takes note of what is there and of the ids that containers use.
    pub fn look(&mut self, present: &[Present], in_use: &BTreeSet<String>, now: Mono) {
        let ids: BTreeSet<&str> = present.iter().map(|p| p.id.as_str()).collect();
        self.known.retain(|id, _| ids.contains(id.as_str()));
        for image in present {
            let record = self.known.entry(image.id.clone()).or_insert(Record {
                first_seen: now,
                last_used: None,
                bytes: 0,
                is_free: false,
            });
            let used = in_use.contains(&image.id);
            if used {
                record.last_used = Some(now);
            }
            (record.bytes, record.is_free) = (image.bytes, !used && !image.pinned);
        }
    }

    /// Those that go because nobody used them for too long. Not before this life of the kubelet is as old as that: it does
    /// not know what was used before.
    #[must_use]
    pub fn too_old(&self, policy: &ImagePolicy, now: Mono) -> Vec<Unused> {
        let Some(most) = policy.max_age.filter(|most| now.since(self.began) > *most) else {
            return Vec::new();
        };
        let since = |record: &Record| now.since(record.last_used.unwrap_or_default());
        self.free().into_iter().filter(|(_, r)| since(r) > most).map(unused).collect()
    }

    /// Those that go so that so many bytes are freed, as far as there are any.
    #[must_use]
    pub fn for_room(&self, policy: &ImagePolicy, bytes: u64, now: Mono) -> Vec<Unused> {
        let mut freed = 0u64;
        let mut chosen = Vec::new();
        for (id, record) in self.free() {
            if freed >= bytes {
                break;
            }
            if now.since(record.first_seen) >= policy.min_age {
                freed = freed.saturating_add(record.bytes);
                chosen.push(unused((id, record)));
            }
        }
        chosen
    }

    pub fn forget(&mut self, id: &str) {
        self.known.remove(id);
    }

    /// Least recently used first, then longest there.
    fn free(&self) -> Vec<(&String, &Record)> {
        let mut free: Vec<(&String, &Record)> = self.known.iter().filter(|(_, r)| r.is_free).collect();
        free.sort_by_key(|(_, r)| (r.last_used, r.first_seen));
        free
    }
}

// === impl ImagePolicy ===

impl ImagePolicy {
    /// How many bytes are to be freed on a file system of that size, and its use in percent; none if there is room.
    #[must_use]
    pub fn to_free(&self, capacity: u64, available: u64) -> Option<(u64, u64)> {
        let available = available.min(capacity);
        let percent = |n: u64| u128::from(capacity) * u128::from(n) / 100;
        let free = u64::try_from(u128::from(available) * 100 / u128::from(capacity.max(1))).unwrap_or(100);
        let used = 100 - free.min(100);
        if self.high_percent >= 100 || used < self.high_percent {
            return None;
        }
        let wanted = percent(100u64.saturating_sub(self.low_percent)).saturating_sub(u128::from(available));
        Some((u64::try_from(wanted).unwrap_or(u64::MAX), used))
    }
}

/// What people are told when too little could be freed, in upstream's words.
#[must_use]
pub fn too_little_freed(used_percent: u64, capacity: u64, freed: u64) -> String {
    format!(
        "Insufficient free disk space on the node's image filesystem ({used_percent}% of {} used). Failed to free \
         sufficient space by deleting unused images (freed {freed} bytes). Investigate disk usage, as it could be used by \
         active images, logs, volumes, or other data.",
        size(capacity)
    )
}

fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    #[allow(clippy::cast_precision_loss)]
    let mut size = bytes as f64 / 1024.0;
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    format!("{size:.1} {}", UNITS[unit])
}

fn unused((id, record): (&String, &Record)) -> Unused {
    Unused { id: id.clone(), bytes: record.bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Mono {
        Mono(Duration::from_secs(s))
    }

    fn image(id: &str, bytes: u64) -> Present {
        Present { id: id.into(), bytes, pinned: id == "pinned" }
    }

    fn policy(max_age: Option<u64>) -> ImagePolicy {
        let (min_age, max_age) = (Duration::from_secs(120), max_age.map(Duration::from_secs));
        ImagePolicy { high_percent: 85, low_percent: 80, min_age, max_age }
    }

    fn set(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    fn ids(unused: &[Unused]) -> Vec<&str> {
        unused.iter().map(|u| u.id.as_str()).collect()
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first_and_only_as_much_as_is_needed() {
        let mut uses = ImageUse::new(at(0));
        let all = [image("a", 10), image("b", 10), image("c", 10), image("pinned", 10), image("used", 10)];
        uses.look(&all, &set(&["a", "b", "used"]), at(0));
        uses.look(&all, &set(&["a", "used"]), at(100));
        uses.look(&[&all[..], &[image("young", 10)]].concat(), &set(&["used"]), at(200));
        let of = |bytes| uses.for_room(&policy(None), bytes, at(200));
        assert_eq!(ids(&of(u64::MAX)), ["c", "b", "a"], "never the pinned, the used or the young one");
        assert_eq!(ids(&of(11)), ["c", "b"]);
        assert_eq!(ids(&of(0)), [""; 0]);
    }

    #[test]
    fn age_alone_costs_an_image_only_once_the_kubelet_is_as_old() {
        let mut uses = ImageUse::new(at(0));
        let all = [image("never", 1), image("once", 1)];
        uses.look(&all, &set(&["once"]), at(150));
        uses.look(&all, &set(&[]), at(160));
        let of = |s| uses.too_old(&policy(Some(300)), at(s));
        assert_eq!(ids(&of(300)), [""; 0]);
        assert_eq!(ids(&of(301)), ["never"]);
        assert_eq!(ids(&of(451)), ["never", "once"]);
        assert!(uses.too_old(&policy(None), at(9_999)).is_empty());
    }

    #[test]
    fn room_is_made_from_the_high_mark_down_to_the_low_one() {
        let p = policy(None);
        for (available, want) in [(160, None), (150, Some((50, 85))), (0, Some((200, 100))), (9_999, None)] {
            assert_eq!(p.to_free(1000, available), want, "{available}");
        }
        assert_eq!(ImagePolicy { high_percent: 100, ..p }.to_free(1000, 0), None);
    }

    #[test]
    fn the_words_are_upstreams() {
        let text = too_little_freed(97, 3 << 30, 5);
        assert!(text.starts_with(
            "Insufficient free disk space on the node's image filesystem (97% of 3.0 GiB used). "
        ));
        assert_eq!([size(3), size(2048), size(5 << 40)], ["3 B", "2.0 KiB", "5.0 TiB"]);
    }
}
