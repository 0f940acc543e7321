//! What an examination found: `longshore doctor`.

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub grade: Grade,
    pub text: String,
    /// What to do about it.
    pub advice: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grade {
    Good,
    /// Worth knowing, and not the reason.
    Note,
    Wrong,
}

/// The first thing that is wrong.
#[must_use]
pub fn verdict(findings: &[Finding]) -> Option<&Finding> {
    findings.iter().find(|finding| finding.grade == Grade::Wrong)
}
