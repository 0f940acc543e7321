//! Which rotated logs of a container go, which are packed, and what the next one is called.

use base::time::Wall;
use jiff::{SignedDuration, Timestamp, civil::DateTime, tz::TimeZone};

pub const COMPRESSED: &str = ".gz";
pub const TEMPORARY: &str = ".tmp";

const STAMP: &str = "%Y%m%d-%H%M%S";

/// What to do with the files beside a log before it is rotated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// Leftovers of an interrupted packing, and what exceeds the number of files.
    pub remove: Vec<String>,
    pub compress: Vec<String>,
    /// The name the log itself gets.
    pub rename_to: String,
}

/// Plans the rotation of `log`. `names` are the files of its directory. At most `max_files` are left
/// afterwards, the fresh log included, of which the newest rotated one is not packed.
#[must_use]
pub fn rotate(log: &str, names: &[String], max_files: usize, now: Wall) -> Rotation {
    let mut plan = Rotation::default();
    let mut kept = Vec::new();
    for name in names.iter().filter(|n| stem(log, n).is_some() || is_temporary(log, n)) {
        let packed_too = || names.iter().any(|other| *other == format!("{name}{COMPRESSED}"));
        if is_temporary(log, name) || packed_too() {
            plan.remove.push(name.clone());
        } else {
            kept.push(name.clone());
        }
    }
    kept.sort_unstable_by_key(|name| stem(log, name).map(str::to_owned));
    let newest = kept.last().and_then(|name| stem(log, name)).map(str::to_owned);
    // Two places are taken: by the log being rotated and by the one that follows it.
    let excess = kept.len().saturating_sub(max_files.saturating_sub(2));
    plan.remove.extend(kept.drain(..excess));
    plan.compress = kept.into_iter().filter(|name| !name.ends_with(COMPRESSED)).collect();
    plan.rename_to = format!("{log}.{}", next_stamp(now, newest.as_deref()));
    plan
}

/// The rotated logs that came after `seen`, oldest first, each as its stem and the file to read.
#[must_use]
pub fn rotated_since(log: &str, names: &[String], seen: Option<&str>) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for name in names {
        let Some(stem) = stem(log, name) else { continue };
        if seen.is_some_and(|seen| stem <= seen) {
            continue;
        }
        match found.iter_mut().find(|(s, _)| s == stem) {
            // The plain file is whole as long as it is there; the packed one may be new.
            Some((_, file)) if !name.ends_with(COMPRESSED) => *file = name.clone(),
            Some(_) => {}
            None => found.push((stem.to_owned(), name.clone())),
        }
    }
    found.sort_unstable();
    found
}

/// The time part of a rotated log's name, packed or not; `None` for other files.
#[must_use]
pub fn stem<'a>(log: &str, name: &'a str) -> Option<&'a str> {
    let stamp = name.strip_prefix(log)?.strip_prefix('.')?;
    let stamp = stamp.strip_suffix(COMPRESSED).unwrap_or(stamp);
    DateTime::strptime(STAMP, stamp).is_ok().then_some(stamp)
}

fn is_temporary(log: &str, name: &str) -> bool {
    name.strip_suffix(TEMPORARY).is_some_and(|n| stem(log, n).is_some())
}

/// Names must grow, or the newest log could be taken for an old one: when the clock was set back, or
/// two rotations fall into one second, the last name plus one second is used.
fn next_stamp(now: Wall, newest: Option<&str>) -> String {
    let utc = |t: Timestamp| t.to_zoned(TimeZone::UTC).datetime();
    let now = utc(Timestamp::from_nanosecond(now.0.into()).unwrap_or_default());
    let after = newest
        .and_then(|stamp| DateTime::strptime(STAMP, stamp).ok())
        .and_then(|last| last.checked_add(SignedDuration::from_secs(1)).ok());
    now.max(after.unwrap_or(now)).strftime(STAMP).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|s| (*s).to_owned()).collect()
    }

    /// 2026-01-01T00:00:00Z
    const NOW: Wall = Wall(1_767_225_600_000_000_000);

    #[test]
    fn the_oldest_go_the_middle_is_packed_and_leftovers_are_swept() {
        let files = names(&[
            "0.log",
            "0.log.20250101-000000.gz",
            "0.log.20250102-000000.gz",
            "0.log.20250102-000000",
            "0.log.20250103-000000",
            "0.log.20250103-000000.tmp",
            "0.log.mine",
            "1.log.20250101-000000",
        ]);
        let plan = rotate("0.log", &files, 4, NOW);
        assert_eq!(
            plan,
            Rotation {
                remove: names(&[
                    "0.log.20250102-000000",
                    "0.log.20250103-000000.tmp",
                    "0.log.20250101-000000.gz"
                ]),
                compress: names(&["0.log.20250103-000000"]),
                rename_to: "0.log.20260101-000000".to_owned(),
            }
        );
    }

    #[test]
    fn two_files_keep_no_old_rotation() {
        let plan = rotate("0.log", &names(&["0.log", "0.log.20250101-000000"]), 2, NOW);
        assert_eq!((plan.remove.len(), plan.compress.len()), (1, 0));
    }

    #[test]
    fn names_grow_even_when_the_clock_does_not() {
        let plan = rotate("0.log", &names(&["0.log", "0.log.20260101-000000"]), 9, NOW);
        assert_eq!(plan.rename_to, "0.log.20260101-000001");
        let plan = rotate("0.log", &names(&["0.log", "0.log.20271231-235959.gz"]), 9, NOW);
        assert_eq!(plan.rename_to, "0.log.20280101-000000");
    }

    #[test]
    fn a_reader_finds_what_came_after() {
        let files = names(&[
            "0.log",
            "0.log.20250103-000000",
            "0.log.20250103-000000.gz",
            "0.log.20250102-000000.gz",
            "0.log.20250101-000000.gz",
            "0.log.20250104-000000.tmp",
        ]);
        let found = rotated_since("0.log", &files, Some("20250101-000000"));
        let found: Vec<&str> = found.iter().map(|(_, f)| f.as_str()).collect();
        assert_eq!(found, ["0.log.20250102-000000.gz", "0.log.20250103-000000"]);
        assert_eq!(rotated_since("0.log", &files, None).len(), 3);
    }
}
