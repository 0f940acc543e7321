//! Why a request got no good answer.

use std::time::Duration;

use base::class::{Class, Classify};
use serde::Deserialize;

use crate::kubeconfig::ConfigError;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("connecting to {server}: {why}")]
    Connect { server: String, why: String },
    #[error("{act}: no answer within {} s", .after.as_secs())]
    Timeout { act: String, after: Duration },
    #[error("{act}: {why}")]
    Transport { act: String, why: String },
    #[error("{act}: the answer is larger than {limit} bytes")]
    TooLarge { act: String, limit: usize },
    #[error("{act}: the answer is not understood: {why}")]
    Decode { act: String, why: String },
    #[error("{act}: {answer}")]
    Api { act: String, answer: ApiError },
    #[error("credentials: {0}")]
    Credentials(String),
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// The server's Status.
#[derive(Clone, Debug, Default, PartialEq, thiserror::Error)]
#[error("{message} ({code} {reason})")]
pub struct ApiError {
    pub code: u16,
    pub reason: String,
    pub message: String,
    pub retry_after: Option<Duration>,
    /// Reasons of the causes in its details: `NamespaceTerminating`.
    pub causes: Vec<String>,
}

// === impl ClientError ===

impl ClientError {
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        match self {
            ClientError::Api { answer, .. } => Some(answer.code),
            _ => None,
        }
    }

    /// How long the server asks to be left alone.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            ClientError::Api { answer, .. } => answer.retry_after,
            _ => None,
        }
    }

    /// After which pause the same may be asked again, as upstream reads it: whatever the verb, the server has not begun.
    pub(crate) fn again_after(&self) -> Option<Duration> {
        self.retry_after().filter(|_| self.code().is_some_and(|code| code == 429 || code >= 500))
    }

    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self, ClientError::Api { answer, .. } if answer.code == 409 && answer.reason != "AlreadyExists")
    }

    #[must_use]
    pub fn is_already_exists(&self) -> bool {
        matches!(self, ClientError::Api { answer, .. } if answer.code == 409 && answer.reason == "AlreadyExists")
    }

    /// Whether the server gave this as a cause, in the details of its answer.
    #[must_use]
    pub fn has_cause(&self, reason: &str) -> bool {
        matches!(self, ClientError::Api { answer, .. } if answer.causes.iter().any(|cause| cause == reason))
    }

    /// The revision asked for is gone: list again.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.code() == Some(410)
    }
}

impl Classify for ClientError {
    fn class(&self) -> Class {
        match self {
            ClientError::Api { answer, .. } => match answer.code {
                400 | 403 | 404 | 405 | 409 | 413 | 415 | 422 => Class::Reject,
                _ => Class::Retry,
            },
            ClientError::Config(_) | ClientError::TooLarge { .. } | ClientError::Decode { .. } => {
                Class::Reject
            }
            _ => Class::Retry,
        }
    }
}

// === impl ApiError ===

impl ApiError {
    /// Reads the body of a refusal; a body that is no Status is shown as it is.
    pub(crate) fn read(code: u16, retry_after: Option<Duration>, body: &[u8]) -> ApiError {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Status {
            reason: String,
            message: String,
            details: Details,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Details {
            causes: Vec<Cause>,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Cause {
            reason: String,
        }
        let status: Status = serde_json::from_slice(body).unwrap_or_default();
        let message = if status.message.is_empty() {
            String::from_utf8_lossy(body).chars().take(512).collect()
        } else {
            status.message
        };
        let causes = status.details.causes.into_iter().map(|cause| cause.reason).collect();
        ApiError { code, reason: status.reason, message, retry_after, causes }
    }
}
