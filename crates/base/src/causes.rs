//! An error with what caused it.

use std::error::Error;

/// The error's words and those of its causes, down to the first one. What is said already is not said twice: some errors
/// quote what caused them.
#[must_use]
pub fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.ends_with(&words) {
            text = format!("{text}: {words}");
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("read the file")]
    struct Outer(#[source] std::fmt::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("write: {0}")]
    struct Quoting(#[source] std::fmt::Error);

    #[test]
    fn the_first_cause_comes_last() {
        let text = causes(&Outer(std::fmt::Error));
        assert_eq!(text, format!("read the file: {}", std::fmt::Error));
        assert_eq!(causes(&std::fmt::Error), std::fmt::Error.to_string());
        assert_eq!(causes(&Quoting(std::fmt::Error)), format!("write: {}", std::fmt::Error));
    }
}
