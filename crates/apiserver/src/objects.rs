//! Objects as the inside of the server reads and writes them: straight from the store, without the verbs.
//!
//! Authentication, admission and the small controllers of the server use this; what clients send goes through the
//! registry.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use serde_json::Value;

use crate::store_errors;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::document::encode;
use store::{Entry, Expect, ListOptions, Store, Write, WriteError};

/// Where the objects of a kind lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub storage: &'static str,
    pub namespaced: bool,
    /// How an error status names the kind: `serviceaccounts`, `priorityclasses.scheduling.k8s.io`.
    pub resource: &'static str,
}

/// Access to the store in terms of places and names. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Objects {
    store: Store,
    steady: Arc<Mutex<HashMap<String, Kept>>>,
}

/// What was found where little ever changes, and when. Admission asks for it with every Pod.
#[derive(Debug)]
struct Kept {
    rev: u64,
    found: Arc<[Stored]>,
}

/// Questions whose answers are kept, and how much one of them may be.
const KEPT: usize = 1024;
const KEPT_OBJECTS: usize = 32;

/// An object and the revision it has. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    pub object: Arc<Value>,
    pub rev: u64,
}

/// The places the server itself looks into.
pub mod places {
    use super::Place;

    pub const NAMESPACES: Place = cluster("namespaces");
    pub const NODES: Place = cluster("nodes");
    pub const PODS: Place = namespaced("pods");
    pub const SECRETS: Place = namespaced("secrets");
    pub const CONFIG_MAPS: Place = namespaced("configmaps");
    pub const SERVICE_ACCOUNTS: Place = namespaced("serviceaccounts");
    pub const SERVICES: Place = namespaced("services");
    pub const ENDPOINTS: Place = namespaced("endpoints");
    pub const LIMIT_RANGES: Place = namespaced("limitranges");
    pub const RESOURCE_QUOTAS: Place = namespaced("resourcequotas");
    pub const CLAIMS: Place = namespaced("persistentvolumeclaims");
    pub const VOLUMES: Place = cluster("persistentvolumes");
    pub const ROLES: Place = namespaced("roles.rbac.authorization.k8s.io");
    pub const CLUSTER_ROLES: Place = cluster("clusterroles.rbac.authorization.k8s.io");
    pub const ROLE_BINDINGS: Place = namespaced("rolebindings.rbac.authorization.k8s.io");
    pub const CLUSTER_ROLE_BINDINGS: Place = cluster("clusterrolebindings.rbac.authorization.k8s.io");
    pub const PRIORITY_CLASSES: Place = cluster("priorityclasses.scheduling.k8s.io");
    pub const RUNTIME_CLASSES: Place = cluster("runtimeclasses.node.k8s.io");
    pub const STORAGE_CLASSES: Place = cluster("storageclasses.storage.k8s.io");
    pub const INGRESS_CLASSES: Place = cluster("ingressclasses.networking.k8s.io");
    pub const VOLUME_ATTACHMENTS: Place = cluster("volumeattachments.storage.k8s.io");
    pub const RESOURCE_SLICES: Place = cluster("resourceslices.resource.k8s.io");
    pub const CSI_DRIVERS: Place = cluster("csidrivers.storage.k8s.io");
    pub const SIGNING_REQUESTS: Place = cluster("certificatesigningrequests.certificates.k8s.io");

    /// Where little changes, and every Pod is measured by it.
    pub(super) const STEADY: &[Place] = &[
        NAMESPACES,
        SERVICE_ACCOUNTS,
        LIMIT_RANGES,
        RESOURCE_QUOTAS,
        PRIORITY_CLASSES,
        RUNTIME_CLASSES,
        STORAGE_CLASSES,
        INGRESS_CLASSES,
        CSI_DRIVERS,
    ];

    const fn cluster(storage: &'static str) -> Place {
        Place { storage, namespaced: false, resource: storage }
    }

    const fn namespaced(storage: &'static str) -> Place {
        Place { storage, namespaced: true, resource: storage }
    }
}

// === impl Place ===

impl Place {
    #[must_use]
    pub fn key(&self, namespace: &str, name: &str) -> String {
        if self.namespaced {
            format!("/registry/{}/{namespace}/{name}", self.storage)
        } else {
            format!("/registry/{}/{name}", self.storage)
        }
    }

    /// What all keys begin with, of one namespace or of all ("").
    #[must_use]
    pub fn prefix(&self, namespace: &str) -> String {
        if self.namespaced && !namespace.is_empty() {
            format!("/registry/{}/{namespace}/", self.storage)
        } else {
            format!("/registry/{}/", self.storage)
        }
    }

    /// Namespace and name from a key below this place.
    #[must_use]
    pub fn split<'k>(&self, key: &'k str) -> (&'k str, &'k str) {
        let mut parts = key.rsplit('/');
        let name = parts.next().unwrap_or_default();
        (if self.namespaced { parts.next().unwrap_or_default() } else { "" }, name)
    }

    /// `serviceaccounts "default" not found`
    #[must_use]
    pub fn not_found(&self, name: &str) -> ApiStatus {
        ApiStatus::new(404, "NotFound", format!("{} {name:?} not found", self.resource))
    }
}

// === impl Objects ===

impl Objects {
    #[must_use]
    pub fn new(store: Store) -> Objects {
        Objects { store, steady: Arc::default() }
    }

    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    pub async fn find(&self, place: Place, namespace: &str, name: &str) -> Result<Option<Stored>, ApiStatus> {
        // A name from outside must not reach into another place.
        if name.is_empty() || name.contains('/') || namespace.contains('/') {
            return Ok(None);
        }
        let key = place.key(namespace, name);
        if let Some(kept) = self.kept(place, &key) {
            return Ok(kept.first().cloned());
        }
        let rev = self.store.revision();
        let entry = self.store.get(&key).await.map_err(|e| store_errors::of_read(&e))?;
        let found = entry.map(|e| decode(&e)).transpose()?;
        self.keep(place, key, rev, found.as_slice());
        Ok(found)
    }

    /// All objects of a namespace, or of all ("").
    pub async fn list(&self, place: Place, namespace: &str) -> Result<Vec<Stored>, ApiStatus> {
        let prefix = place.prefix(namespace);
        if let Some(kept) = self.kept(place, &prefix) {
            return Ok(kept.to_vec());
        }
        let rev = self.store.revision();
        let found = self.read_all(&prefix).await?;
        self.keep(place, prefix, rev, &found);
        Ok(found)
    }

    async fn read_all(&self, prefix: &str) -> Result<Vec<Stored>, ApiStatus> {
        let mut out = Vec::new();
        let mut options = ListOptions { prefix: prefix.into(), limit: 500, ..ListOptions::default() };
        loop {
            let page = self.store.list(options.clone()).await.map_err(|e| store_errors::of_read(&e))?;
            for entry in &page.entries {
                out.push(decode(entry)?);
            }
            match page.entries.last() {
                Some(last) if page.more => {
                    options.after = Some(last.key.clone());
                    options.at = Some(page.revision);
                }
                _ => return Ok(out),
            }
        }
    }

    /// What was found before, if nothing of its resource has changed since.
    fn kept(&self, place: Place, question: &str) -> Option<Arc<[Stored]>> {
        if !places::STEADY.contains(&place) {
            return None;
        }
        let steady = self.steady.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = steady.get(question)?;
        (self.store.last_change(question) <= kept.rev).then(|| kept.found.clone())
    }

    /// `rev` was the store's before the question was asked: what changed meanwhile is then asked for again.
    fn keep(&self, place: Place, question: String, rev: u64, found: &[Stored]) {
        if !places::STEADY.contains(&place) || found.len() > KEPT_OBJECTS {
            return;
        }
        let mut steady = self.steady.lock().unwrap_or_else(PoisonError::into_inner);
        if steady.len() >= KEPT {
            steady.clear();
        }
        steady.insert(question, Kept { rev, found: found.into() });
    }

    /// Writes an object; false when it is not in the expected state.
    pub async fn put(&self, place: Place, object: &Value, expect: Expect) -> Result<bool, ApiStatus> {
        let key = place.key(text(object, "namespace"), text(object, "name"));
        settle(self.store.put(&key, encode(object), expect).await.map(drop))
    }

    /// Removes an object; false when it is not in the expected state.
    pub async fn delete(
        &self,
        place: Place,
        namespace: &str,
        name: &str,
        expect: Expect,
    ) -> Result<bool, ApiStatus> {
        settle(self.store.delete(&place.key(namespace, name), expect).await.map(drop))
    }

    /// Writes several objects at once or none of them.
    pub async fn put_all(&self, writes: Vec<(Place, Value, Expect)>) -> Result<bool, ApiStatus> {
        if writes.is_empty() {
            return Ok(true);
        }
        let writes = writes.iter().map(|(place, object, expect)| {
            Write::put(&place.key(text(object, "namespace"), text(object, "name")), encode(object), *expect)
        });
        settle(self.store.transact(writes.collect()).await.map(drop))
    }
}

/// The object of an entry or a change, as it lies in the store.
pub fn decode_bytes(value: &Bytes) -> Result<Value, serde_json::Error> {
    schema::nesting::read_stored(value)
}

fn decode(entry: &Entry) -> Result<Stored, ApiStatus> {
    match decode_bytes(&entry.value) {
        Ok(object) => Ok(Stored { object: Arc::new(object), rev: entry.rev }),
        Err(error) => Err(ApiStatus::internal(format!("reading {}: {error}", entry.key))),
    }
}

fn settle(outcome: Result<(), WriteError>) -> Result<bool, ApiStatus> {
    match outcome {
        Ok(()) => Ok(true),
        Err(WriteError::Conflict { .. }) => Ok(false),
        Err(error) => Err(store_errors::of_write(&error)),
    }
}

fn text<'o>(object: &'o Value, field: &str) -> &'o str {
    object["metadata"][field].as_str().unwrap_or_default()
}

/// A store in a temporary directory, for tests.
#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod testing {
    use super::*;

    pub(crate) struct Scratch {
        pub(crate) objects: Objects,
        _dir: tempfile::TempDir,
    }

    impl Scratch {
        pub(crate) fn new() -> Scratch {
            let dir = tempfile::tempdir().unwrap();
            let store = Store::open(dir.path(), store::Options::default()).unwrap();
            Scratch { objects: Objects::new(store), _dir: dir }
        }

        pub(crate) async fn with(self, items: &[(Place, Value)]) -> Scratch {
            for (place, object) in items {
                assert!(self.objects.put(*place, object, Expect::Any).await.unwrap());
            }
            self
        }
    }

    #[tokio::test]
    async fn what_is_kept_is_never_old() {
        use serde_json::json;
        let scratch = Scratch::new();
        let objects = &scratch.objects;
        let range = |n: i64| json!({"metadata": {"name": "a", "namespace": "x"}, "n": n});
        for n in 0..5 {
            assert_eq!(objects.list(places::LIMIT_RANGES, "x").await.unwrap().len(), usize::from(n > 0));
            objects.put(places::LIMIT_RANGES, &range(n), Expect::Any).await.unwrap();
            for _ in 0..2 {
                let found = objects.find(places::LIMIT_RANGES, "x", "a").await.unwrap().unwrap();
                assert_eq!(found.object["n"], n);
                assert_eq!(objects.list(places::LIMIT_RANGES, "").await.unwrap(), [found]);
            }
            assert_eq!(objects.list(places::LIMIT_RANGES, "y").await.unwrap(), []);
        }
        assert!(!objects.steady.lock().unwrap().is_empty());
        objects.delete(places::LIMIT_RANGES, "x", "a", Expect::Any).await.unwrap();
        assert_eq!(objects.find(places::LIMIT_RANGES, "x", "a").await.unwrap(), None);
        assert_eq!(objects.find(places::PODS, "x", "a").await.unwrap(), None);
        assert!(!objects.steady.lock().unwrap().contains_key("/registry/pods/x/a"));
    }

    #[tokio::test]
    async fn what_is_put_is_found_and_listed() {
        use serde_json::json;
        let scratch = Scratch::new();
        let objects = &scratch.objects;
        let pod = |ns: &str, name: &str| json!({"kind": "Pod", "metadata": {"name": name, "namespace": ns}});
        for (ns, name) in [("a", "x"), ("a", "y"), ("b", "x")] {
            assert!(objects.put(places::PODS, &pod(ns, name), Expect::Absent).await.unwrap());
        }
        assert!(!objects.put(places::PODS, &pod("a", "x"), Expect::Absent).await.unwrap());
        assert_eq!(objects.find(places::PODS, "b", "x").await.unwrap().unwrap().object, pod("b", "x").into());
        assert_eq!(objects.find(places::PODS, "b", "y").await.unwrap(), None);
        assert_eq!(objects.list(places::PODS, "a").await.unwrap().len(), 2);
        assert_eq!(objects.list(places::PODS, "").await.unwrap().len(), 3);
        assert_eq!(objects.find(places::NODES, "", "../pods/a/x").await.unwrap(), None);
    }
}
