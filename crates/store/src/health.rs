//! Whether the store can do what it is there for.

use std::sync::Arc;

use super::error::{Fault, ReadError};
use super::{Store, reader};

/// How the store is, as far as its own work shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Health {
    #[default]
    Good,
    /// The last write found no room; the next one is tried all the same.
    Full,
    /// Writes fail. They are refused until a try of the store's own succeeds.
    Failing { cause: Arc<str> },
    /// Nothing is read or written any more.
    Closed,
}

// === impl Store ===

impl Store {
    #[must_use]
    pub fn health(&self) -> Health {
        if self.is_open() { self.shared().health.borrow().clone() } else { Health::Closed }
    }

    /// Follows the health. What it says of a closed store is only that it changed.
    #[must_use]
    pub fn health_changes(&self) -> tokio::sync::watch::Receiver<Health> {
        self.shared().health.subscribe()
    }

    /// Reads a little, from the file and not from memory.
    pub async fn try_read(&self) -> Result<(), ReadError> {
        let (reply, answer) = tokio::sync::oneshot::channel();
        let request = reader::Request::Get { key: "/".into(), at: None, reply };
        self.shared().ask(request, answer).await.map(drop)
    }

    /// Ends when the store has closed, whoever closed it.
    pub async fn closed(&self) {
        let mut health = self.shared().health.subscribe();
        // The sender lives in what `self` holds.
        let _ = health.wait_for(|_| !self.is_open()).await;
    }
}

// === impl Health ===

impl Health {
    pub(super) fn of(fault: &Fault) -> Health {
        match fault {
            Fault::Full { .. } => Health::Full,
            Fault::Closed => Health::Closed,
            other => Health::Failing { cause: other.to_string().into() },
        }
    }
}
