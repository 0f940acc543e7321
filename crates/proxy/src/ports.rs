//! What the loop needs of the world.

use std::io;
use std::time::Duration;

use base::class::{Class, Classify};
use proxy_core::rules::{Delta, RuleSet};
use tokio::sync::mpsc;

use crate::yield_flag::{Outcome, YieldFlag};

/// No call takes longer, whatever the number of rules.
pub(crate) const PROGRAM_TIMEOUT: Duration = Duration::from_secs(300);

/// The rules of one family in the kernel. Its calls block: they are made on a thread of their own.
pub trait Dataplane: Send + 'static {
    /// Looks at what the kernel holds and brings it to the rules, touching nothing that is right. Says what was
    /// wrong. When asked to yield it may leave off, as long as it has not changed anything. [`Error::Unread`] if it could not look;
    /// whoever had no reason for doubt has none then.
    fn verify(&mut self, rules: &RuleSet, flag: &YieldFlag) -> Result<Outcome<Vec<String>>, Error>;

    /// Brings the kernel from the rules before `delta` to those after it, which are `rules`, at once. Only
    /// after a [`Dataplane::verify`], and after a failure only after another one.
    fn apply(&mut self, rules: &RuleSet, delta: &Delta) -> Result<(), Error>;

    /// What can wait until the rules are in the kernel, such as forgetting flows to endpoints that are gone. Called after
    /// every success; left when asked to yield, it is called again.
    fn tidy(&mut self, _: &RuleSet, _: &YieldFlag) -> Outcome<()> {
        Outcome::Done(())
    }

    /// Whether everything is to be compared now and then though nothing seems wrong.
    fn is_worth_a_look(&self, _: &RuleSet) -> bool {
        true
    }

    /// Starts to listen for others that touch what is ours: something arrives each time they did. Called from
    /// within the runtime, once, after the first verification.
    fn listen(&mut self) -> Result<mpsc::Receiver<()>, Error>;

    /// Who touched what is ours last, if the kernel tells.
    fn last_to_touch(&self) -> Option<String> {
        None
    }

    /// Whether it also hears of what others did before it began to listen. Who does not has to look once more then.
    fn hears_the_past(&self) -> bool {
        false
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Nftables(#[from] sys::nft::Error),
    #[error(transparent)]
    Iptables(#[from] IptablesError),
    #[error(transparent)]
    Ipvs(#[from] sys::ipvs::Error),
    #[error(transparent)]
    Ipset(#[from] sys::ipset::Error),
    #[error(transparent)]
    Links(#[from] sys::link::Error),
    #[error("ipset {0} has our name and is of another type")]
    StrangeSet(String),
    /// Nothing is known but that nothing was changed.
    #[error("not compared with the kernel: {0}")]
    Unread(#[source] sys::nft::Error),
    #[error("listening to the kernel: {0}")]
    Listening(#[source] std::io::Error),
    #[error("starting a thread: {0}")]
    Thread(#[source] std::io::Error),
}

/// Why iptables-save or iptables-restore did not do it.
#[derive(Debug, thiserror::Error)]
pub enum IptablesError {
    #[error("running {program}: {cause}")]
    Running { program: String, cause: io::Error },
    #[error("{program} failed: {message}{}", near(.lines))]
    Failed { program: String, code: Option<i32>, message: String, lines: String },
    #[error("{program} did not end within {} s", PROGRAM_TIMEOUT.as_secs())]
    Hung { program: String },
}

fn near(lines: &str) -> String {
    if lines.is_empty() { String::new() } else { format!(" near:\n{lines}") }
}

// === impl Error ===

impl Classify for Error {
    /// A kernel that refuses today may agree tomorrow, and there is nobody else to ask.
    fn class(&self) -> Class {
        Class::Retry
    }
}
