//! ConfigMaps, Secrets, tokens, Services and RuntimeClasses, as the node's Pods use them.
//!
//! An object is followed for as long as some Pod refers to it, in the way that
//! `configMapAndSecretChangeDetectionStrategy` says: watched one by one (a node may see only what its Pods use), read
//! again when it is older than a while, or read each time.

mod accounts;
mod bundles;
mod claims;
mod classes;
mod followed;
mod listed;
mod pull;
mod services;
mod storage;
mod tokens;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base::ids::PodUid;
use base::rng::Rng;
use base::time::Clock;
use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kubelet_core::references::{ReferencedObjects, References};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Cluster;
use crate::ports::Objects;
use bundles::Bundles;
use classes::Classes;
use followed::{Followed, Key, Kind};
pub use pull::pull_secrets;
use services::Services;
pub use storage::ApiStorage;
use tokens::Tokens;

/// How changes are noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    Watch,
    /// Read again when older than the node's TTL annotation says, or a minute.
    Cache,
    Get,
}

/// What the Pods of this node refer to.
pub struct ApiObjects {
    cluster: Arc<Cluster>,
    strategy: Strategy,
    clock: Arc<dyn Clock>,
    tokens: Arc<Tokens>,
    storage: Arc<ApiStorage>,
    services: Services,
    classes: Classes,
    /// None unless the feature gate ClusterTrustBundleProjection is on.
    bundles: Option<Bundles>,
    /// Held for map operations only, never across an await.
    state: Mutex<State>,
    wakes: Wakes,
    token: CancellationToken,
}

#[derive(Default)]
struct State {
    pods: HashMap<PodUid, BTreeSet<Key>>,
    objects: HashMap<Key, Arc<Followed>>,
    rng: Option<Rng>,
}

/// Pods to wake, and the objects they wait for.
#[derive(Clone, Debug, Default)]
struct Wakes(Arc<Mutex<HashMap<PodUid, Wake>>>);

#[derive(Debug, Default)]
struct Wake {
    keys: BTreeSet<Key>,
    count: watch::Sender<u64>,
}

const TTL: &str = "node.alpha.kubernetes.io/ttl";
const DEFAULT_TTL: Duration = Duration::from_secs(60);

// === impl ApiObjects ===

impl ApiObjects {
    /// Ends with the token.
    #[must_use]
    pub fn new(
        cluster: Arc<Cluster>,
        strategy: Strategy,
        clock: Arc<dyn Clock>,
        mut rng: Rng,
        token: CancellationToken,
    ) -> Self {
        let tokens = Arc::new(Tokens::new(cluster.client.clone(), clock.clone(), rng.child()));
        let storage =
            ApiStorage::new(cluster.clone(), tokens.clone(), clock.clone(), rng.child(), token.clone());
        Self {
            tokens,
            storage: Arc::new(storage),
            services: Services::new(cluster.client.clone(), rng.child(), token.clone()),
            classes: Classes::new(cluster.client.clone(), rng.child(), token.clone()),
            bundles: None,
            state: Mutex::new(State { rng: Some(rng), ..State::default() }),
            wakes: Wakes::default(),
            cluster,
            strategy,
            clock,
            token,
        }
    }

    /// Pods may have the certificates of ClusterTrustBundles.
    #[must_use]
    pub fn with_trust_bundles(mut self, rng: Rng) -> Self {
        self.bundles = Some(Bundles::new(self.cluster.client.clone(), rng, self.token.clone()));
        self
    }

    /// What volumes of drivers need.
    #[must_use]
    pub fn storage(&self) -> Arc<ApiStorage> {
        self.storage.clone()
    }

    /// How old a cached object may be.
    fn max_age(&self) -> Duration {
        match self.strategy {
            Strategy::Watch => Duration::MAX,
            Strategy::Get => Duration::ZERO,
            Strategy::Cache => {
                let node = self.cluster.own_node().borrow().object.clone();
                let ttl = node.and_then(|n| n.metadata.annotations.as_ref()?.get(TTL)?.parse().ok());
                ttl.map_or(DEFAULT_TTL, Duration::from_secs)
            }
        }
    }

    /// The object's place, for as long as somebody holds it.
    fn object(&self, key: &Key) -> Arc<Followed> {
        let mut state = self.lock();
        if let Some(known) = state.objects.get(key) {
            return known.clone();
        }
        let watched = self.strategy == Strategy::Watch;
        let rng = watched.then(|| state.rng.get_or_insert_with(|| Rng::new(0)).child());
        let followed = Followed::new(key.clone(), self.cluster.client.clone(), self.clock.clone());
        if let Some(rng) = rng {
            let wakes = self.wakes.clone();
            followed.watch(rng, move |key| wakes.wake(key), &self.token);
        }
        state.objects.insert(key.clone(), followed.clone());
        followed
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Objects for ApiObjects {
    fn follow(&self, pod: &Pod) {
        let Some(uid) = pod.metadata.uid.as_deref().map(PodUid::from) else { return };
        let wanted = keys(pod, &References::of_pod(pod));
        self.wakes.set(&uid, &wanted);
        let known = self.lock().pods.insert(uid, wanted.clone());
        if known.as_ref() == Some(&wanted) {
            return;
        }
        for key in &wanted {
            let object = self.object(key);
            if known.as_ref().is_none_or(|k| !k.contains(key)) {
                // A new Pod sees the object as it is now, not as it was a minute ago.
                object.expire(self.strategy);
            }
        }
        self.lock().drop_unused();
    }

    fn forget(&self, uid: &PodUid) {
        self.wakes.remove(uid);
        self.tokens.forget(uid);
        let mut state = self.lock();
        if state.pods.remove(uid).is_some() {
            state.drop_unused();
        }
    }

    fn wake(&self, uid: &PodUid) -> watch::Receiver<u64> {
        self.wakes.subscribe(uid)
    }

    async fn supply(&self, pod: &Pod, wants: &References) -> ReferencedObjects {
        let mut references = ReferencedObjects { has_server: true, ..ReferencedObjects::default() };
        let age = self.max_age();
        let objects = keys(pod, wants).into_iter().map(|key| {
            let object = self.object(&key);
            async move { (key, object.get(age).await) }
        });
        // Side by side: a Pod with many claims waits for the slowest answer, not for the sum of them.
        let claims = wants.claims.iter().map(|claim| claims::volume_of(&self.cluster, pod, claim));
        let tokens = wants.tokens.iter().map(|want| self.tokens.get(pod, want));
        let (objects, claims, tokens) = tokio::join!(join_all(objects), join_all(claims), join_all(tokens));
        for (key, known) in objects {
            match key.kind {
                Kind::ConfigMap => _ = references.config_maps.insert(key.name, known.into_config_map()),
                Kind::Secret => _ = references.secrets.insert(key.name, known.into_secret()),
            }
        }
        references.claims.extend(wants.claims.iter().cloned().zip(claims));
        references.tokens.extend(wants.tokens.iter().cloned().zip(tokens));
        if let Some(bundles) = self.bundles.as_ref().filter(|_| wants.trust_bundles) {
            references.trust_bundles = Some(bundles.all().await);
        }
        references
    }

    async fn service_env(&self, pod: &Pod) -> Result<BTreeMap<String, String>, String> {
        self.services.env(pod).await
    }

    async fn runtime_handler(&self, class: &str) -> Result<String, String> {
        if class.is_empty() {
            return Ok(String::new());
        }
        self.classes.handler(class).await
    }
}

impl std::fmt::Debug for ApiObjects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiObjects").field("strategy", &self.strategy).finish_non_exhaustive()
    }
}

// === impl State ===

impl State {
    /// Objects no Pod refers to any more are no longer watched.
    fn drop_unused(&mut self) {
        let used: BTreeSet<&Key> = self.pods.values().flatten().collect();
        self.objects.retain(|key, object| {
            let keep = used.contains(key);
            if !keep {
                object.stop();
            }
            keep
        });
    }
}

// === impl Wakes ===

impl Wakes {
    fn set(&self, uid: &PodUid, keys: &BTreeSet<Key>) {
        let mut all = self.lock();
        all.entry(uid.clone()).or_default().keys.clone_from(keys);
    }

    fn subscribe(&self, uid: &PodUid) -> watch::Receiver<u64> {
        let mut all = self.lock();
        all.entry(uid.clone()).or_default().count.subscribe()
    }

    fn remove(&self, uid: &PodUid) {
        self.lock().remove(uid);
    }

    fn wake(&self, key: &Key) {
        for wake in self.lock().values().filter(|wake| wake.keys.contains(key)) {
            wake.count.send_modify(|n| *n += 1);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PodUid, Wake>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn keys(pod: &Pod, wants: &References) -> BTreeSet<Key> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let key = |kind, name: &String| Key { kind, namespace: namespace.to_owned(), name: name.clone() };
    let maps = wants.config_maps.iter().map(|n| key(Kind::ConfigMap, n));
    maps.chain(wants.secrets.iter().map(|n| key(Kind::Secret, n))).collect()
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
