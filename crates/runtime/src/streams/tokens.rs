//! What was promised and not yet fetched, by token.

use std::collections::HashMap;
use std::fmt::Write;
use std::time::Duration;

use cri::v1::{AttachRequest, ExecRequest};
use streaming::StreamOptions;
use tokio::time::Instant;

/// A token works for so long, as upstream's do.
const LIFE: Duration = Duration::from_secs(60);
/// Promises at once.
const MOST: usize = 1000;

/// What a URL leads to.
#[derive(Clone, Debug)]
pub(super) enum Promise {
    Exec(ExecRequest),
    Attach(AttachRequest),
    Ports { sandbox: String },
}

#[derive(Debug, Default)]
pub(super) struct Tokens(HashMap<String, (Promise, Instant)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{MOST} streams were asked for in the last minute and not yet fetched; try again later")]
pub(super) struct TooMany;

// === impl Promise ===

impl Promise {
    /// The first part of its path, as upstream has it.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Promise::Exec(_) => "exec",
            Promise::Attach(_) => "attach",
            Promise::Ports { .. } => "portforward",
        }
    }

    /// The streams that its client has to open.
    pub(super) fn wants(&self) -> StreamOptions {
        let (stdin, stdout, stderr, tty) = match self {
            Promise::Exec(r) => (r.stdin, r.stdout, r.stderr, r.tty),
            Promise::Attach(r) => (r.stdin, r.stdout, r.stderr, r.tty),
            Promise::Ports { .. } => return StreamOptions::default(),
        };
        // A terminal has one output.
        StreamOptions { stdin, stdout, stderr: stderr && !tty, tty }
    }
}

// === impl Tokens ===

impl Tokens {
    pub(super) fn promise(&mut self, token: &str, promise: Promise, now: Instant) -> Result<(), TooMany> {
        if self.0.len() >= MOST {
            self.0.retain(|_, (_, until)| now < *until);
        }
        if self.0.len() >= MOST {
            return Err(TooMany);
        }
        self.0.insert(token.to_owned(), (promise, now + LIFE));
        Ok(())
    }

    /// A token works once, and only for what it was given for.
    pub(super) fn redeem(&mut self, token: &str, kind: &str, now: Instant) -> Option<Promise> {
        let (promise, until) = self.0.remove(token)?;
        (now < until && promise.kind() == kind).then_some(promise)
    }
}

/// 128 bits that nobody can guess.
pub(super) fn token() -> Result<String, aws_lc_rs::error::Unspecified> {
    let mut bytes = [0; 16];
    aws_lc_rs::rand::fill(&mut bytes)?;
    let mut text = String::with_capacity(32);
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn ports() -> Promise {
        Promise::Ports { sandbox: "s".into() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_works_once_in_time_and_for_what_it_is() {
        let (mut tokens, now) = (Tokens::default(), Instant::now());
        for token in ["a", "b", "c"] {
            tokens.promise(token, ports(), now).unwrap();
        }
        assert!(tokens.redeem("a", "portforward", now).is_some());
        assert!(tokens.redeem("a", "portforward", now).is_none());
        assert!(tokens.redeem("b", "exec", now).is_none());
        assert!(tokens.redeem("b", "portforward", now).is_none());
        assert!(tokens.redeem("c", "portforward", now + LIFE).is_none());
        assert!(tokens.redeem("d", "portforward", now).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn promises_are_bounded_and_old_ones_make_room() {
        let (mut tokens, now) = (Tokens::default(), Instant::now());
        for i in 0..MOST {
            tokens.promise(&i.to_string(), ports(), now).unwrap();
        }
        assert_eq!(tokens.promise("more", ports(), now), Err(TooMany));
        tokens.promise("more", ports(), now + LIFE).unwrap();
        assert_eq!(tokens.0.len(), 1);
    }

    #[test]
    fn tokens_differ() {
        assert_ne!(token().unwrap(), token().unwrap());
        assert_eq!(token().unwrap().len(), 32);
    }
}
