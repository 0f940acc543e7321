//! Every error answers one question: what should the loop that met it do?

/// What a loop does about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Passing trouble: back off and try again.
    Retry,
    /// Nothing to do until an event wakes us.
    Wait,
    /// The user's mistake: reason and message go to the Pod's status and an Event.
    Reject,
    /// Ours: report and exit.
    Fault,
}

/// Implemented by every error type of the workspace.
pub trait Classify {
    fn class(&self) -> Class;
}
