//! All objects of a kind, by name: watched from the first question on, and known while the API server is away.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use api::json::FromJson;
use base::rng::Rng;
use client::Client;
use client::reflector::{Cache, Objects, Reflector};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{Metadata, Resource};
use tokio_util::sync::CancellationToken;

/// How long whoever asks waits for the first list.
const FIRST_LIST: Duration = Duration::from_secs(5);

/// What is kept of an object.
type Keep<O, T> = fn(O) -> T;

/// Of each object `O` a `T` is kept.
pub(super) struct Listed<O, T> {
    client: Client,
    path: &'static str,
    keep: Keep<O, T>,
    seed: u64,
    token: CancellationToken,
    /// None before the first question.
    known: OnceLock<Cache<T>>,
}

// === impl Listed ===

impl<O, T> Listed<O, T>
where
    O: FromJson + Resource + Metadata<Ty = ObjectMeta> + Send + 'static,
    T: Clone + Send + Sync + 'static,
{
    pub(super) fn new(
        client: Client,
        path: &'static str,
        keep: Keep<O, T>,
        mut rng: Rng,
        token: CancellationToken,
    ) -> Self {
        Self { client, path, keep, seed: rng.next_u64(), token, known: OnceLock::new() }
    }

    /// None where the first list does not come.
    pub(super) async fn all(&self) -> Option<BTreeMap<String, T>> {
        let known = self.known.get_or_init(|| self.watch()).clone();
        tokio::time::timeout(FIRST_LIST, known.synced()).await.ok()?;
        Some(known.with_all(|all| all.map(|(key, kept)| (key.name.clone(), kept.clone())).collect()))
    }

    fn watch(&self) -> Cache<T> {
        let (cache, client, keep) = (Cache::new(Vec::new()), self.client.clone(), self.keep);
        let (resource, mut rng) = (client::Resource::new(self.path), Rng::new(self.seed));
        let known = cache.clone();
        supervise::spawn_restarting("watch_of_a_kind", self.token.clone(), move || {
            let reader = Objects::keeping(client.clone(), keep);
            let (resource, cache) = (resource.clone(), cache.clone());
            let mut reflector = Reflector::with_cache(client.clone(), resource, rng.child(), reader, cache);
            async move {
                loop {
                    reflector.next().await;
                }
            }
        });
        known
    }
}
