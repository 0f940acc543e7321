//! What the loop needs of the world.

use base::class::{Class, Classify};
use proxy_core::rules::{Delta, RuleSet};
use tokio::sync::mpsc;

use crate::knock::{Knock, Outcome};

/// The rules of one family in the kernel. Its calls block: they are made on a thread of their own.
pub trait Dataplane: Send + 'static {
    /// Looks at what the kernel holds and brings it to the rules, touching nothing that is right. Says what was
    /// wrong. At a knock it may leave off, as long as it has not changed anything. [`Error::Unread`] if it could not look;
    /// whoever had no reason for doubt has none then.
    fn verify(&mut self, rules: &RuleSet, knock: &Knock) -> Result<Outcome<Vec<String>>, Error>;

    /// Brings the kernel from the rules before `delta` to those after it, which are `rules`, at once. Only
    /// after a [`Dataplane::verify`], and after a failure only after another one.
    fn apply(&mut self, rules: &RuleSet, delta: &Delta) -> Result<(), Error>;

    /// What can wait until the rules are in the kernel, such as forgetting flows to endpoints that are gone. Called after
    /// every success; left at a knock, it is called again.
    fn tidy(&mut self, _: &RuleSet, _: &Knock) -> Outcome<()> {
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
    Iptables(#[from] crate::backend::iptables::IptablesError),
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

// === impl Error ===

impl Classify for Error {
    /// A kernel that refuses today may agree tomorrow, and there is nobody else to ask.
    fn class(&self) -> Class {
        Class::Retry
    }
}
