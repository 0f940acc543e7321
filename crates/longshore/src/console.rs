//! Words for the person at the terminal. Agents log through tracing instead.

use std::io::Write;

/// Writes to standard output; a closed pipe is not our business.
pub(crate) fn out(text: &str) {
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

/// Writes to standard error.
pub(crate) fn err(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
