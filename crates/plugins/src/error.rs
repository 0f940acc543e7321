//! What went wrong with a call to a plugin.

use base::class::{Class, Classify};
use tonic::{Code, Status};

/// A failed call, in the words in which gRPC programs usually print it: people search for them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {code:?} desc = {message}")]
pub struct Error {
    pub code: Code,
    pub message: String,
}

pub type Result<T> = std::result::Result<T, Error>;

// === impl Error ===

impl Error {
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Whether the plugin did nothing, or undid what it did. After any other error it may still be at work.
    #[must_use]
    pub fn is_final(&self) -> bool {
        !matches!(
            self.code,
            Code::Cancelled
                | Code::DeadlineExceeded
                | Code::Unavailable
                | Code::ResourceExhausted
                | Code::Aborted
        )
    }

    /// No other attempt can do better.
    #[must_use]
    pub fn is_infeasible(&self) -> bool {
        matches!(self.code, Code::InvalidArgument | Code::OutOfRange | Code::NotFound)
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        let Some(source) = std::error::Error::source(&status) else {
            return Self::new(status.code(), status.message());
        };
        // Only trouble on our side of the wire carries a source: the connection could not be made or broke.
        Self::new(Code::Unavailable, base::causes(source))
    }
}

impl Classify for Error {
    fn class(&self) -> Class {
        Class::Retry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_still_be_under_way_is_not_final() {
        for code in [Code::DeadlineExceeded, Code::Aborted, Code::Unavailable, Code::Cancelled] {
            assert!(!Error::new(code, "").is_final(), "{code:?}");
        }
        for code in [Code::Internal, Code::InvalidArgument, Code::NotFound, Code::Unimplemented] {
            assert!(Error::new(code, "").is_final(), "{code:?}");
        }
        let text = Error::new(Code::Internal, "no disk").to_string();
        assert_eq!(text, "rpc error: code = Internal desc = no disk");
    }
}
