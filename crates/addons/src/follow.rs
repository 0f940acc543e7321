//! Caches of what is watched, and one notice for all of them: who reconciles everything has nothing to know of single changes.

use std::sync::Arc;
use std::time::Duration;

use api::json::FromJson;
use base::rng::Rng;
use client::reflector::{Cache, Objects, Reflector};
use client::{Client, Resource};
use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use supervise::Supervisor;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Changes that come together are looked at together.
const TOGETHER: Duration = Duration::from_millis(20);
/// Between two attempts at what did not work, and between two looks at what may have changed without a word.
const AGAIN: Duration = Duration::from_secs(5);

/// Starts caches that tell of their changes in one place.
pub(crate) struct Follow<'a> {
    pub(crate) client: &'a Client,
    pub(crate) rng: Rng,
    pub(crate) tasks: &'a Supervisor,
    pub(crate) changed: Arc<Notify>,
}

/// What one round has left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    Done,
    /// Something did not work, or waits for what nobody tells of.
    Again,
}

// === impl Follow ===

impl<'a> Follow<'a> {
    pub(crate) fn new((client, rng): (&'a Client, Rng), tasks: &'a Supervisor) -> Follow<'a> {
        Follow { client, rng, tasks, changed: Arc::default() }
    }

    /// Follows a resource; `keep` makes of each object what matters.
    pub(crate) fn resource<O, T>(
        &mut self,
        name: &'static str,
        path: &'static str,
        keep: fn(O) -> T,
    ) -> Cache<T>
    where
        O: FromJson + k8s_openapi::Resource + Metadata<Ty = ObjectMeta> + Send + 'static,
        T: Clone + PartialEq + Send + Sync + 'static,
    {
        let cache: Cache<T> = Cache::new(Vec::new());
        let (client, told, changed, rng) =
            (self.client.clone(), cache.clone(), self.changed.clone(), self.rng.child());
        self.tasks.restart(name, move || {
            let objects = Objects::keeping(client.clone(), keep);
            let (client, rng) = (client.clone(), rng.clone());
            let mut reflector =
                Reflector::with_cache(client, Resource::new(path), rng, objects, told.clone());
            let changed = changed.clone();
            async move {
                loop {
                    use client::reflector::Change;
                    match reflector.next().await {
                        // A heartbeat of a Node is none of ours.
                        Change::Updated { old, new, .. } if old == new => {}
                        _ => changed.notify_one(),
                    }
                }
            }
        });
        cache
    }
}

/// Runs a round after every change, and again after a while if one has left something.
pub(crate) async fn rounds<F>(changed: Arc<Notify>, token: CancellationToken, mut round: impl FnMut() -> F)
where
    F: Future<Output = Round>,
{
    let all = async {
        loop {
            let left = round().await;
            if left == Round::Again {
                _ = tokio::time::timeout(AGAIN, changed.notified()).await;
            } else {
                changed.notified().await;
            }
            tokio::time::sleep(TOGETHER).await;
        }
    };
    token.run_until_cancelled(all).await.unwrap_or(())
}
