//! Patches: RFC 6902 (JSON), RFC 7386 (merge) and strategic merge.

mod json;
mod merge;
mod strategic;

pub use json::{MAX_OPERATIONS, apply_json};
pub use merge::apply_merge;
pub use strategic::apply_strategic;

/// Why a patch was not applied. The class tells the code of the answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// Not a patch at all: 400.
    #[error("{0}")]
    Malformed(String),
    /// A patch, but not for this document: 422.
    #[error("{0}")]
    Refused(String),
    /// More than the server is willing to do: 413.
    #[error("{0}")]
    TooLarge(String),
}
