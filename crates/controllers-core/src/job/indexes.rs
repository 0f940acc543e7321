//! Sets of completion indexes, as a Job's status writes them: `0,2-4`.

use std::fmt;

/// Inclusive spans, in order, none touching the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Indexes(Vec<(u32, u32)>);

// === impl Indexes ===

impl Indexes {
    /// Indexes below a number. What cannot be read is left out: it was counted by nobody.
    pub(super) fn read(text: &str, below: u32) -> Indexes {
        let Some(last) = below.checked_sub(1) else { return Indexes::default() };
        let span = |part: &str| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            let (from, to): (u32, u32) = (from.parse().ok()?, to.parse().ok()?);
            (from <= last && from <= to).then(|| (from, to.min(last)))
        };
        Indexes::of(text.split(',').filter_map(span).collect())
    }

    pub(super) fn has(&self, index: u32) -> bool {
        let after = self.0.partition_point(|(from, _)| *from <= index);
        after.checked_sub(1).is_some_and(|at| self.0[at].1 >= index)
    }

    pub(super) fn total(&self) -> usize {
        self.0.iter().map(|(from, to)| (to - from) as usize + 1).sum()
    }

    /// These and more.
    pub(super) fn with(&self, more: impl IntoIterator<Item = u32>) -> Indexes {
        Indexes::of(self.0.iter().copied().chain(more.into_iter().map(|index| (index, index))).collect())
    }

    pub(super) fn and(&self, other: &Indexes) -> Indexes {
        Indexes::of(self.0.iter().chain(&other.0).copied().collect())
    }

    /// The first indexes that are not in it.
    pub(super) fn missing(&self, below: u32, count: usize) -> Vec<u32> {
        let mut found = Vec::new();
        let mut next = 0;
        for (from, to) in self.0.iter().copied().chain([(below, below)]) {
            found.extend((next..from.min(below)).take(count - found.len()));
            next = to.saturating_add(1);
            if found.len() == count {
                break;
            }
        }
        found
    }

    fn of(mut spans: Vec<(u32, u32)>) -> Indexes {
        spans.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(spans.len());
        for (from, to) in spans {
            match merged.last_mut() {
                Some(last) if from <= last.1.saturating_add(1) => last.1 = last.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        Indexes(merged)
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (from, to)) in self.0.iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            match to - from {
                0 => write!(f, "{comma}{from}")?,
                1 => write!(f, "{comma}{from},{to}")?,
                _ => write!(f, "{comma}{from}-{to}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_read_and_written_as_upstream_does() {
        for (text, below, want, total) in [
            ("", 5, "", 0),
            ("0,2-4", 10, "0,2-4", 4),
            ("5,6", 10, "5,6", 2),
            ("5-6", 10, "5,6", 2),
            ("0-9", 3, "0-2", 3),
            ("1,7", 3, "1", 1),
            ("x,1,3-2", 5, "1", 1),
            ("0-4294967295", 2, "0,1", 2),
        ] {
            let indexes = Indexes::read(text, below);
            assert_eq!((indexes.to_string().as_str(), indexes.total()), (want, total), "{text:?}");
        }
        let some = Indexes::read("1,3-5", 10);
        assert_eq!(some.with([2, 0, 9]).to_string(), "0-5,9");
        assert_eq!(some.missing(8, 3), [0, 2, 6]);
        assert_eq!(some.missing(3, 9), [0, 2]);
        assert!(Indexes::default().missing(2, 0).is_empty());
        assert!(some.has(4) && !some.has(2) && !some.has(6) && !Indexes::default().has(0));
    }
}
