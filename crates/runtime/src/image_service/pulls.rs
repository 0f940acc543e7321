//! Who pulls what: one pull of a name at a time, and not too many of all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};
use tonic::Status;

/// Pulls at once. A kubelet asks for fewer; each has layers under way, and files open.
const MOST: usize = 32;

#[derive(Debug)]
pub(super) struct Pulls {
    places: Arc<Semaphore>,
    /// By name; an entry is worth something as long as somebody has a turn or waits for one.
    names: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
}

#[derive(Debug)]
pub(super) struct Turn {
    _place: OwnedSemaphorePermit,
    _name: OwnedMutexGuard<()>,
}

// === impl Pulls ===

impl Default for Pulls {
    fn default() -> Pulls {
        Pulls { places: Arc::new(Semaphore::new(MOST)), names: Mutex::default() }
    }
}

impl Pulls {
    /// Waits while the same name is being pulled.
    pub(super) async fn turn(&self, name: &str) -> Result<Turn, Status> {
        let name = self.lock(name).lock_owned().await;
        let place = self.places.clone().acquire_owned().await;
        let place = place.map_err(|_| Status::unavailable("the runtime is stopping"))?;
        Ok(Turn { _place: place, _name: name })
    }

    fn lock(&self, name: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = names.get(name).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::new(tokio::sync::Mutex::new(()));
        names.insert(name.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_name_has_one_turn_at_a_time_and_is_forgotten() {
        let pulls = Pulls::default();
        let first = pulls.turn("a").await.unwrap();
        let other = pulls.turn("b").await.unwrap();
        let second = tokio::time::timeout(Duration::from_secs(1), pulls.turn("a"));
        assert!(second.await.is_err());
        drop((first, other));
        let _again = pulls.turn("a").await.unwrap();
        assert_eq!(pulls.names.lock().unwrap().len(), 1);
    }
}
