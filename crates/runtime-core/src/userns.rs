//! The user namespace of a Pod: which ids outside stand for those inside.

/// One range of ids, as the CRI gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub inside: u32,
    pub outside: u32,
    pub length: u32,
}

/// Users and groups alike: the ids from 0 on are those from `host` on outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Who is root inside.
    pub host: u32,
    pub length: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadMapping {
    #[error("{0} has {1} ranges; exactly one is supported")]
    Count(&'static str, usize),
    #[error("{0} does not map id 0")]
    Root(&'static str),
    #[error("{0} maps no id, or ids beyond the last there is")]
    Length(&'static str),
    #[error("{0} maps the machine's root")]
    HostRoot(&'static str),
    #[error("uids and gids are mapped differently, which is not supported")]
    Different,
}

/// The highest id means "no id".
const LAST: u32 = u32::MAX - 1;

// === impl Mapping ===

impl Mapping {
    pub fn new(uids: &[Range], gids: &[Range]) -> Result<Mapping, BadMapping> {
        let (uids, gids) = (one("uids", uids)?, one("gids", gids)?);
        if uids == gids { Ok(uids) } else { Err(BadMapping::Different) }
    }

    /// As the kernel takes it in `uid_map` and `gid_map`.
    #[must_use]
    pub fn line(&self) -> String {
        format!("0 {} {}\n", self.host, self.length)
    }
}

fn one(what: &'static str, ranges: &[Range]) -> Result<Mapping, BadMapping> {
    let [Range { inside, outside, length }] = *ranges else {
        return Err(BadMapping::Count(what, ranges.len()));
    };
    if inside != 0 {
        return Err(BadMapping::Root(what));
    }
    if length == 0 || outside.checked_add(length - 1).is_none_or(|last| last > LAST) {
        return Err(BadMapping::Length(what));
    }
    // It would be no other user than the machine's own.
    if outside == 0 {
        return Err(BadMapping::HostRoot(what));
    }
    Ok(Mapping { host: outside, length })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const GOOD: Range = Range { inside: 0, outside: 65_536, length: 65_536 };

    #[test]
    fn one_range_from_root_on_is_taken() {
        let mapping = Mapping::new(&[GOOD], &[GOOD]).unwrap();
        assert_eq!(mapping, Mapping { host: 65_536, length: 65_536 });
        assert_eq!(mapping.line(), "0 65536 65536\n");
    }

    #[test]
    fn anything_else_is_refused_by_the_name_of_its_field() {
        let rows: [(&[Range], &str); 6] = [
            (&[], "gids has 0 ranges"),
            (&[GOOD, GOOD], "gids has 2 ranges"),
            (&[Range { inside: 1, ..GOOD }], "gids does not map id 0"),
            (&[Range { length: 0, ..GOOD }], "gids maps no id"),
            (&[Range { outside: u32::MAX - 1, length: 2, ..GOOD }], "gids maps no id"),
            (&[Range { outside: 0, ..GOOD }], "gids maps the machine's root"),
        ];
        for (gids, want) in rows {
            let error = Mapping::new(&[GOOD], gids).unwrap_err().to_string();
            assert!(error.starts_with(want), "{error}");
        }
        let other = Range { outside: 131_072, ..GOOD };
        assert_eq!(Mapping::new(&[GOOD], &[other]), Err(BadMapping::Different));
    }
}
