//! Why a part of the kubelet cannot begin.

/// Why the kubelet did not start, for the operator.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct StartError(String);

impl StartError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}
