//! Why an image was not pulled.

use base::class::{Class, Classify};
use http::StatusCode;

use crate::hosts::BadHosts;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Image(#[from] images::Error),
    #[error(transparent)]
    Hosts(#[from] BadHosts),
    /// Kubelets look for the first word.
    #[error("RegistryUnavailable: {host}: {why}")]
    Unavailable { host: String, why: String },
    #[error("{url}: {status}{}", .why.as_ref().map(|why| format!(": {why}")).unwrap_or_default())]
    Answer { url: String, status: StatusCode, why: Option<String> },
    #[error("{url}: {why}")]
    Refused { url: String, why: String },
    #[error("{url}: nothing came for {seconds} s")]
    Stalled { url: String, seconds: u64 },
    #[error("{host} wants a login: {why}")]
    Login { host: String, why: String },
    #[error("{name} is for no platform of this machine: linux/{architecture} is wanted")]
    Platform { name: String, architecture: String },
}

// === impl Error ===

impl Error {
    /// Whether the registry says that there is no such image.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Error::Answer { status, .. } if *status == StatusCode::NOT_FOUND)
    }

    /// Whether another mirror, or another try, may do better: it is about the way, not about the image.
    pub(crate) fn is_about_the_way(&self) -> bool {
        match self {
            Error::Unavailable { .. }
            | Error::Stalled { .. }
            | Error::Answer { .. }
            | Error::Login { .. } => true,
            Error::Image(error) => matches!(error, images::Error::Mismatch { .. }),
            _ => false,
        }
    }

    /// Whether the same request may go better in a moment.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Error::Unavailable { .. } | Error::Stalled { .. } => true,
            Error::Answer { status, .. } => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            _ => false,
        }
    }
}

impl Classify for Error {
    fn class(&self) -> Class {
        match self {
            Error::Image(error) => error.class(),
            Error::Hosts(_) | Error::Refused { .. } | Error::Platform { .. } | Error::Login { .. } => {
                Class::Reject
            }
            Error::Answer { .. } if !self.is_passing() => Class::Reject,
            Error::Answer { .. } | Error::Unavailable { .. } | Error::Stalled { .. } => Class::Retry,
        }
    }
}
