//! What went wrong with a call to the runtime.

use base::class::{Class, Classify};
use tonic::{Code, Status};

/// A failed call. `op` is the act in words (`create container`), `object` what it was done to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{op} {object:?}: {code:?}: {message}")]
pub struct Error {
    pub op: &'static str,
    pub object: String,
    pub code: Code,
    pub message: String,
}

pub type Result<T> = std::result::Result<T, Error>;

// === impl Error ===

impl Error {
    #[must_use]
    pub fn new(op: &'static str, object: &str, code: Code, message: impl Into<String>) -> Self {
        Self { op, object: object.to_owned(), code, message: message.into() }
    }

    #[must_use]
    pub fn from_status(op: &'static str, object: &str, status: &Status) -> Self {
        let Some(source) = std::error::Error::source(status) else {
            return Self::new(op, object, status.code(), status.message());
        };
        // Only trouble on our side of the wire carries a source: the connection could not be made or
        // broke under the call. Whatever code it was given, the runtime is simply not there.
        Self::new(op, object, Code::Unavailable, base::causes(source))
    }

    /// The error in the words in which gRPC programs usually print it, for texts people search for.
    #[must_use]
    pub fn grpc_text(&self) -> String {
        format!("rpc error: code = {:?} desc = {}", self.code, self.message)
    }

    /// The object is gone, which for a stop or a removal is as good as done.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.code == Code::NotFound
    }

    /// The runtime does not know this call.
    #[must_use]
    pub fn is_unimplemented(&self) -> bool {
        self.code == Code::Unimplemented
    }

    /// Whether the call may have had its effect although it failed.
    #[must_use]
    pub fn is_ambiguous(&self) -> bool {
        matches!(
            self.code,
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown | Code::Internal
        )
    }
}

impl Classify for Error {
    fn class(&self) -> Class {
        match self.code {
            Code::InvalidArgument | Code::OutOfRange => Class::Reject,
            // Asking again cannot help; a runtime that learns the call is a restarted runtime.
            Code::Unimplemented => Class::Wait,
            _ => Class::Retry,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes() {
        let rows = [
            (Code::Unavailable, Class::Retry),
            (Code::DeadlineExceeded, Class::Retry),
            (Code::Unknown, Class::Retry),
            (Code::NotFound, Class::Retry),
            (Code::InvalidArgument, Class::Reject),
            (Code::Unimplemented, Class::Wait),
        ];
        for (code, class) in rows {
            assert_eq!(Error::new("stop container", "c", code, "x").class(), class, "{code:?}");
        }
    }

    #[test]
    fn the_message_names_act_and_object() {
        let error = Error::from_status("remove image", "busybox", &Status::not_found("no such image"));
        assert_eq!(error.to_string(), "remove image \"busybox\": NotFound: no such image");
        assert!(error.is_not_found() && !error.is_ambiguous());
    }
}
