//! Tasks that somebody waits for by a key: one that panicked comes back with its key like any other, so that nobody
//! waits for it for ever.

use std::collections::HashMap;

use tokio::task::{Id, JoinError, JoinSet};

#[derive(Debug)]
pub(super) struct KeyedTasks<K, T> {
    tasks: JoinSet<T>,
    keys: HashMap<Id, K>,
}

// === impl KeyedTasks ===

impl<K, T: Send + 'static> KeyedTasks<K, T> {
    pub(super) fn new() -> Self {
        Self { tasks: JoinSet::new(), keys: HashMap::new() }
    }

    pub(super) fn spawn(&mut self, key: K, task: impl Future<Output = T> + Send + 'static) {
        let handle = self.tasks.spawn(task);
        self.keys.insert(handle.id(), key);
    }

    /// The next that ended, in whatever way; none if there are none. Cancel-safe.
    pub(super) async fn join_next(&mut self) -> Option<(K, Result<T, JoinError>)> {
        loop {
            let (id, ended) = match self.tasks.join_next_with_id().await? {
                Ok((id, value)) => (id, Ok(value)),
                Err(error) => (error.id(), Err(error)),
            };
            if let Some(key) = self.keys.remove(&id) {
                return Some((key, ended));
            }
        }
    }

    pub(super) async fn shutdown(&mut self) {
        self.tasks.shutdown().await;
        self.keys.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_panicked_comes_back_with_its_key() {
        let mut tasks = KeyedTasks::new();
        tasks.spawn("lost", async { panic!("as a bug would") });
        let Some((key, Err(error))) = tasks.join_next().await else { panic!("it came back otherwise") };
        assert!(key == "lost" && error.is_panic());
        tasks.spawn("well", async { 7 });
        assert!(matches!(tasks.join_next().await, Some(("well", Ok(7)))));
        assert!(tasks.join_next().await.is_none());
    }
}
