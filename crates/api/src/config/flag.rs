//! A row of an agent's flag table: the flag, and the field it sets.

use base::flags::{Flag, FlagType};

use super::doc::{Field, Standing};

/// What a flag sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A field of the configuration kind, by path.
    Field(&'static str),
    /// A setting that only flags have.
    Own(Standing),
}

#[derive(Clone, Copy, Debug)]
pub struct FlagRow {
    pub flag: Flag,
    pub target: Target,
}

/// The flag that sets a field, if any.
pub(super) fn for_field(rows: &[FlagRow], path: &str) -> Option<&'static str> {
    let sets = |r: &&FlagRow| matches!(r.target, Target::Field(p) if p == path);
    Some(rows.iter().find(sets)?.flag.name)
}

/// A flag that only flags have.
pub(super) const fn own(
    name: &'static str,
    kind: FlagType,
    default: &'static str,
    standing: Standing,
    help: &'static str,
) -> FlagRow {
    FlagRow { flag: Flag::new(name, kind, default, help), target: Target::Own(standing) }
}

/// The same, and nobody should use it any more.
pub(super) const fn old(
    name: &'static str,
    kind: FlagType,
    default: &'static str,
    why: &'static str,
    standing: Standing,
    help: &'static str,
) -> FlagRow {
    FlagRow { flag: Flag::new(name, kind, default, help).deprecated(why), target: Target::Own(standing) }
}

/// A flag that sets a field.
pub(super) const fn field(
    name: &'static str,
    path: &'static str,
    kind: FlagType,
    default: &'static str,
    help: &'static str,
) -> FlagRow {
    FlagRow { flag: Flag::new(name, kind, default, help), target: Target::Field(path) }
}

pub(super) const fn short(mut row: FlagRow, letter: char) -> FlagRow {
    row.flag = row.flag.short(letter);
    row
}

// === impl FlagRow ===

impl FlagRow {
    /// Whether this build acts on the flag; a field's flag stands as its field does.
    pub fn standing(&self, fields: &[Field]) -> Standing {
        match self.target {
            Target::Own(standing) => standing,
            Target::Field(path) => {
                fields.iter().find(|f| f.path == path).map_or(Standing::NotYet, |f| f.standing)
            }
        }
    }
}
