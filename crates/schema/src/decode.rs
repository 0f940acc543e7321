//! Strict decoding: what stands in a request, and what of it the type does not know.
//!
//! Two steps. `parse` reads JSON and notices keys that stand twice. `conform` holds a document against its type: it
//! refuses what does not fit, names what is unknown, and brings the rest into the one form upstream's types would
//! write back (no nulls, no zeros that mean nothing, canonical quantities and times).

mod conform;
mod order;
mod parse;
mod scalar;

pub use conform::{Misfit, conform};
pub use order::in_order;
pub use parse::{MAX_DEPTH, ParseError, Parsed, parse};

use std::fmt;

/// Complaints kept per document; a hostile one could hold millions.
pub const MAX_COMPLAINTS: usize = 100;

/// A step from the root to a place, kept on the stack of the walk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crumb<'a> {
    pub(crate) parent: Option<&'a Crumb<'a>>,
    pub(crate) step: Step<'a>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step<'a> {
    Key(&'a str),
    /// A key of a map: no field.
    Entry(&'a str),
    Index(usize),
}

// === impl Crumb ===

/// `spec.containers[0].name`
impl fmt::Display for Crumb<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.step {
            Step::Key(key) | Step::Entry(key) if self.parent.is_none() => f.write_str(key),
            Step::Key(key) | Step::Entry(key) => write!(f, ".{key}"),
            Step::Index(i) => write!(f, "[{i}]"),
        }
    }
}

pub(crate) fn complain(complaints: &mut Vec<String>, what: &str, at: &Crumb<'_>) {
    if complaints.len() < MAX_COMPLAINTS {
        complaints.push(format!("{what} field \"{at}\""));
    }
}
