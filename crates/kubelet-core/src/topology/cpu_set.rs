//! Sets of CPUs in the kernel's list format: `0-3,8`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Numbers of CPUs, or of what CPUs belong to.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuSet(BTreeSet<u32>);

/// The largest number that is taken for a CPU's: a list cannot make us count for ever.
const MAX: u32 = 1 << 20;

/// A list of CPUs that cannot be read, in Go's words for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseCpuSetError {
    #[error("strconv.Atoi: parsing {0:?}: invalid syntax")]
    Number(String),
    #[error("invalid range {0:?} ({1} > {2})")]
    Range(String, u32, u32),
}

// === impl CpuSet ===

impl CpuSet {
    pub const EMPTY: CpuSet = CpuSet(BTreeSet::new());

    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// From the lowest number on.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    #[must_use]
    pub fn union(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.union(&other.0).copied().collect())
    }

    #[must_use]
    pub fn intersection(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.intersection(&other.0).copied().collect())
    }

    /// What is here and not there.
    #[must_use]
    pub fn without(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.difference(&other.0).copied().collect())
    }

    #[must_use]
    pub fn is_subset(&self, other: &CpuSet) -> bool {
        self.0.is_subset(&other.0)
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(iter: I) -> Self {
        CpuSet(iter.into_iter().collect())
    }
}

impl<const N: usize> From<[u32; N]> for CpuSet {
    fn from(cpus: [u32; N]) -> Self {
        cpus.into_iter().collect()
    }
}

impl FromStr for CpuSet {
    type Err = ParseCpuSetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |t: &str| {
            let n: u32 = t.parse().map_err(|_| ParseCpuSetError::Number(t.to_owned()))?;
            if n > MAX { Err(ParseCpuSetError::Number(t.to_owned())) } else { Ok(n) }
        };
        let mut set = BTreeSet::new();
        for range in text.split(',').filter(|_| !text.is_empty()) {
            match range.split_once('-') {
                None => _ = set.insert(number(range)?),
                Some((first, last)) => {
                    let (first, last) = (number(first)?, number(last)?);
                    if first > last {
                        return Err(ParseCpuSetError::Range(range.to_owned(), first, last));
                    }
                    set.extend(first..=last);
                }
            }
        }
        Ok(CpuSet(set))
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut comma = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
            comma = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_are_read_and_refused() {
        let read = |t: &str| t.parse::<CpuSet>().map(|s| s.to_string()).map_err(|e| e.to_string());
        assert_eq!(read(""), Ok(String::new()));
        assert_eq!(read("5"), Ok("5".to_owned()));
        assert_eq!(read("1,2,3"), Ok("1-3".to_owned()));
        assert_eq!(read("4,1-2,9-9"), Ok("1-2,4,9".to_owned()));
        assert_eq!(read("5-3"), Err("invalid range \"5-3\" (5 > 3)".to_owned()));
        for wrong in ["nonint", "nonint-1", "1-", "-1", "1,,2", "0-4000000000"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(cpus in proptest::collection::btree_set(0u32..300, 0..64)) {
            let set: CpuSet = cpus.into_iter().collect();
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
        }
    }
}
