//! What an authorizer says, and why.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Allow,
    Deny,
    NoOpinion,
}

/// A decision and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub decision: Decision,
    pub reason: String,
}

// === impl Verdict ===

impl Verdict {
    #[must_use]
    pub fn allow(reason: impl Into<String>) -> Verdict {
        Verdict { decision: Decision::Allow, reason: reason.into() }
    }

    #[must_use]
    pub fn no_opinion(reason: impl Into<String>) -> Verdict {
        Verdict { decision: Decision::NoOpinion, reason: reason.into() }
    }

    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.decision == Decision::Allow
    }
}
