//! Why a Pod is not let in, for want of a place.

/// A reason and a message, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct AdmissionError {
    pub reason: &'static str,
    pub message: String,
}

// === impl AdmissionError ===

impl AdmissionError {
    /// What has no name of its own.
    #[must_use]
    pub fn unexpected(why: &str) -> Self {
        Self {
            reason: "UnexpectedAdmissionError",
            message: format!("Allocate failed due to {why}, which is unexpected"),
        }
    }

    /// Nothing that all resources could agree on.
    #[must_use]
    pub fn affinity() -> Self {
        Self {
            reason: "TopologyAffinityError",
            message: "Resources cannot be allocated with Topology locality".to_owned(),
        }
    }

    pub(super) fn smt(why: String) -> Self {
        Self { reason: "SMTAlignmentError", message: format!("SMT Alignment Error: {why}") }
    }
}
