//! One ConfigMap or Secret.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::rng::Rng;
use base::time::{Clock, Mono};
use client::{Client, ClientError, Event, Read, Request, Resource, Watcher};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kubelet_core::references::Referenced;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Strategy;

/// How long a Pod waits for the first word about an object.
const FIRST_WORD: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    ConfigMap,
    Secret,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    pub(super) kind: Kind,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// What is known of an object.
#[derive(Clone, Debug)]
pub(super) enum Known {
    Nothing,
    Missing,
    ConfigMap(Arc<ConfigMap>),
    Secret(Arc<Secret>),
    Failed(String),
}

/// An object that some Pod refers to.
pub(super) struct Followed {
    key: Key,
    client: Client,
    clock: Arc<dyn Clock>,
    known: watch::Sender<(Mono, Known)>,
    /// One question at a time: many Pods that start together ask once.
    asking: tokio::sync::Mutex<()>,
    /// Somebody waited too long for the first word.
    given_up: AtomicBool,
    stop: CancellationToken,
}

// === impl Followed ===

impl Followed {
    pub(super) fn new(key: Key, client: Client, clock: Arc<dyn Clock>) -> Arc<Self> {
        let known = watch::channel((Mono::default(), Known::Nothing)).0;
        let (asking, given_up) = (tokio::sync::Mutex::default(), AtomicBool::default());
        Arc::new(Self { key, client, clock, known, asking, given_up, stop: CancellationToken::new() })
    }

    /// Keeps it current until stopped; `changed` is told of every change after the first word. An immutable
    /// object is not watched any longer than it takes to see it.
    pub(super) fn watch(
        self: &Arc<Self>,
        mut rng: Rng,
        changed: impl Fn(&Key) + Clone + Send + Sync + 'static,
        token: &CancellationToken,
    ) {
        let (this, token) = (self.clone(), token.clone());
        let resource = Resource {
            field_selector: format!("metadata.name={}", self.key.name),
            ..Resource::new(self.key.collection())
        };
        supervise::spawn_restarting("watch_of_an_object", self.stop.clone(), move || {
            let mut watcher = Watcher::new(this.client.clone(), resource.clone(), rng.child());
            let (this, changed, token) = (this.clone(), changed.clone(), token.clone());
            async move { _ = token.run_until_cancelled(this.keep_current(&mut watcher, &changed)).await }
        });
    }

    async fn keep_current(&self, watcher: &mut Watcher, changed: &(impl Fn(&Key) + Sync)) {
        loop {
            let known = match watcher.next().await {
                Event::Listed(all) => all.first().map_or(Known::Missing, |raw| self.read(raw)),
                Event::Applied(raw) => self.read(&raw),
                Event::Deleted(_) => Known::Missing,
            };
            let settled = known.is_immutable();
            let first = matches!(self.known.borrow().1, Known::Nothing);
            self.set(known);
            // Who waits for the first word hears it, unless he has given up.
            if !first || self.given_up.swap(false, Ordering::Relaxed) {
                changed(&self.key);
            }
            if settled {
                return;
            }
        }
    }

    pub(super) fn stop(&self) {
        self.stop.cancel();
    }

    /// The next reader asks again, unless a watch keeps it current.
    pub(super) fn expire(&self, strategy: Strategy) {
        if strategy != Strategy::Watch {
            self.known.send_modify(|(_, known)| *known = Known::Nothing);
        }
    }

    /// What is known, not older than `age`; `Duration::MAX` is for what a watch keeps current.
    pub(super) async fn get(&self, age: Duration) -> Known {
        if age == Duration::MAX {
            let mut known = self.known.subscribe();
            let first = known.wait_for(|(_, known)| !matches!(known, Known::Nothing));
            let Ok(Ok(known)) = tokio::time::timeout(FIRST_WORD, first).await else {
                self.given_up.store(true, Ordering::Relaxed);
                let kind = self.key.resource();
                return Known::Failed(format!(
                    "failed to sync {kind} cache: timed out waiting for the condition"
                ));
            };
            return known.1.clone();
        }
        let _turn = self.asking.lock().await;
        let (at, known) = self.known.borrow().clone();
        let fresh = !matches!(known, Known::Nothing | Known::Failed(_));
        if fresh && (known.is_immutable() || self.clock.now().mono.since(at) < age) {
            return known;
        }
        let path = format!("{}/{}", self.key.collection(), self.key.name);
        let answer = match self.ask(path).await {
            Ok(known) => known,
            Err(e) if e.is_not_found() => Known::Missing,
            // What was known before is better than nothing while the server is out of reach.
            Err(e) if fresh => {
                tracing::debug!(error = %e, "an object could not be read again");
                return known;
            }
            Err(e) => Known::Failed(e.to_string()),
        };
        self.set(answer.clone());
        answer
    }

    async fn ask(&self, path: String) -> Result<Known, ClientError> {
        let bytes = self.client.ask_bytes(Request::get(path)).await?;
        let text = String::from_utf8_lossy(&bytes);
        Ok(serde_json::from_str(&text).map_or_else(|_| self.unreadable(), |raw| self.read(raw)))
    }

    fn read(&self, raw: &RawValue) -> Known {
        let read = match self.key.kind {
            Kind::ConfigMap => match self.client.read::<ConfigMap>(raw) {
                Read::Whole(map) => Some(Known::ConfigMap(Arc::new(map))),
                _ => None,
            },
            Kind::Secret => match self.client.read::<Secret>(raw) {
                Read::Whole(secret) => Some(Known::Secret(Arc::new(secret))),
                _ => None,
            },
        };
        read.unwrap_or_else(|| self.unreadable())
    }

    /// What was known before is better than half an object.
    fn unreadable(&self) -> Known {
        match &self.known.borrow().1 {
            known @ (Known::ConfigMap(_) | Known::Secret(_)) => known.clone(),
            _ => {
                let Key { namespace, name, .. } = &self.key;
                Known::Failed(format!("{} {namespace}/{name} is not understood", self.key.resource()))
            }
        }
    }

    fn set(&self, known: Known) {
        self.known.send_replace((self.clock.now().mono, known));
    }
}

// === impl Key ===

impl Key {
    fn resource(&self) -> &'static str {
        match self.kind {
            Kind::ConfigMap => "configmap",
            Kind::Secret => "secret",
        }
    }

    fn collection(&self) -> String {
        format!("/api/v1/namespaces/{}/{}s", self.namespace, self.resource())
    }
}

// === impl Known ===

impl Known {
    fn is_immutable(&self) -> bool {
        match self {
            Known::ConfigMap(map) => map.immutable == Some(true),
            Known::Secret(secret) => secret.immutable == Some(true),
            _ => false,
        }
    }

    pub(super) fn into_config_map(self) -> Referenced<ConfigMap> {
        match self {
            Known::ConfigMap(map) => Referenced::Found(map),
            other => other.into_none(),
        }
    }

    pub(super) fn into_secret(self) -> Referenced<Secret> {
        match self {
            Known::Secret(secret) => Referenced::Found(secret),
            other => other.into_none(),
        }
    }

    fn into_none<T>(self) -> Referenced<T> {
        match self {
            Known::Failed(why) => Referenced::Failed(why),
            _ => Referenced::Missing,
        }
    }
}
