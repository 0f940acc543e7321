//! An API server in memory: optimistic locking, generated names, graceful deletion, finalizers, watches that lag; and faults.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::rng::Rng;
use base::time::Wall;
use bytes::Bytes;
use controllers::port::Api;
use controllers_core::plan::{Act, PatchKind, Target, Why, WriteError};
use controllers_core::resource::{PODS, Resource};
use controllers_core::terms::timestamp;
use schema::patch::apply_strategic;
use schema::types::At;
use serde_json::{Value, json};
use tokio::sync::Notify;

pub(crate) const NAMESPACE: &str = "n";

pub(crate) struct Server(pub(crate) Mutex<Store>);

/// What must never be seen, at any revision. Says what is wrong with what is there.
pub(crate) type Check = Box<dyn Fn(&Store) -> Vec<String> + Send>;

pub(crate) struct Store {
    pub(crate) objects: BTreeMap<(Resource, String), Value>,
    pub(crate) revision: u64,
    /// Everything that happened: resource, whether it is gone, and the object.
    pub(crate) log: Vec<(u64, Resource, bool, Value)>,
    rng: Rng,
    /// How often a request fails, and how often its answer is lost.
    pub(crate) trouble: f64,
    pub(crate) now: u64,
    /// Something happened.
    pub(crate) news: Arc<Notify>,
    pub(crate) check: Check,
    /// What must never happen, and did.
    pub(crate) broken: Vec<String>,
    uids: u64,
}

impl Server {
    pub(crate) fn new(rng: Rng) -> Server {
        Server(Mutex::new(Store {
            objects: BTreeMap::new(),
            revision: 10,
            log: Vec::new(),
            rng,
            trouble: 0.0,
            now: 1000,
            news: Arc::new(Notify::new()),
            check: Box::new(|_| Vec::new()),
            broken: Vec::new(),
            uids: 0,
        }))
    }

    pub(crate) fn store(&self) -> std::sync::MutexGuard<'_, Store> {
        self.0.lock().unwrap()
    }

    fn luck(&self) -> (bool, bool, Duration, Duration) {
        let mut store = self.store();
        let trouble = store.trouble;
        let mut pause = || store.rng.up_to(Duration::from_millis(40));
        let (before, after) = (pause(), pause());
        (store.rng.chance(trouble), store.rng.chance(trouble), before, after)
    }
}

#[async_trait::async_trait]
impl Api for Server {
    async fn act(&self, act: &Act) -> Result<Bytes, WriteError> {
        let (is_refused, is_lost, before, after) = self.luck();
        tokio::time::sleep(before).await;
        if is_refused {
            return Err(WriteError::new(Why::TooManyRequests, "later"));
        }
        let answer = self.store().act(act);
        tokio::time::sleep(after).await;
        if is_lost { Err(WriteError::new(Why::Lost, "no answer")) } else { answer }
    }

    async fn revision(&self, _: Resource) -> Result<u64, WriteError> {
        let (is_refused, ..) = self.luck();
        if is_refused { Err(WriteError::new(Why::Lost, "no answer")) } else { Ok(self.store().revision) }
    }
}

impl Store {
    pub(crate) fn act(&mut self, act: &Act) -> Result<Bytes, WriteError> {
        match act {
            Act::Create { resource, .. } if resource.plural == "events" => Ok(Bytes::new()),
            Act::Create { resource, .. } => self.create(*resource, act.body()),
            Act::Update { target, .. } => self.update(target, act.body()),
            Act::Patch { target, .. } if target.resource.plural == "events" => Ok(Bytes::new()),
            Act::Patch { target, kind, .. } => self.patch(target, *kind, act.body()),
            Act::Delete { target, uid, .. } => self.delete(target, uid.as_deref()),
            Act::Get { path } => self.read(path),
            Act::DeleteAt { .. }
            | Act::DeleteIf { .. }
            | Act::Merge { .. }
            | Act::Put { .. }
            | Act::Post { .. } => Ok(Bytes::new()),
        }
    }

    fn read(&self, path: &str) -> Result<Bytes, WriteError> {
        let is_it =
            |resource: &Resource, name: &str| resource.object_path(namespace(*resource), name) == path;
        if let Some((_, value)) = self.objects.iter().find(|((resource, name), _)| is_it(resource, name)) {
            return Ok(value.to_string().into());
        }
        if path == PODS.path(NAMESPACE) {
            let items: Vec<&Value> = self.of(PODS).map(|(_, pod)| pod).collect();
            return Ok(json!({ "items": items }).to_string().into());
        }
        Err(not_found())
    }

    pub(crate) fn create(&mut self, resource: Resource, mut value: Value) -> Result<Bytes, WriteError> {
        let meta = &value["metadata"];
        self.uids += 1;
        let name = match meta["name"].as_str() {
            Some(name) => name.to_owned(),
            None => format!("{}{}", meta["generateName"].as_str().unwrap_or_default(), self.uids),
        };
        if self.objects.contains_key(&(resource, name.clone())) {
            return Err(WriteError::new(Why::AlreadyExists, format!("{name} already exists")));
        }
        value["metadata"]["name"] = json!(name);
        if resource.is_namespaced {
            value["metadata"]["namespace"] = json!(NAMESPACE);
        }
        value["metadata"]["uid"] = json!(format!("u{}", self.uids));
        value["metadata"]["generation"] = json!(1);
        value["metadata"]["creationTimestamp"] = json!(self.time());
        Ok(self.put(resource, &name, value))
    }

    fn update(&mut self, target: &Target, new: Value) -> Result<Bytes, WriteError> {
        let known = self.known(target)?.clone();
        if known["metadata"]["resourceVersion"] != new["metadata"]["resourceVersion"] {
            return Err(WriteError::new(Why::Conflict, "the object has been modified"));
        }
        Ok(self.replace(target, known, new))
    }

    fn patch(&mut self, target: &Target, kind: PatchKind, patch: Value) -> Result<Bytes, WriteError> {
        let known = self.known(target)?.clone();
        let uid = &patch["metadata"]["uid"];
        if uid.is_string() && *uid != known["metadata"]["uid"] {
            return Err(WriteError::new(Why::Conflict, "another uid"));
        }
        let mut new = known.clone();
        match kind {
            PatchKind::Strategic => {
                let at = At::named(&target.resource.schema_name()).unwrap();
                apply_strategic(&mut new, patch, at).unwrap();
            }
            _ => schema::patch::apply_merge(&mut new, &patch),
        }
        Ok(self.replace(target, known, new))
    }

    /// Takes of an object what may be written there.
    fn replace(&mut self, target: &Target, mut known: Value, mut new: Value) -> Bytes {
        if target.subresource == "status" {
            known["status"] = new["status"].take();
            known["metadata"]["annotations"] = new["metadata"]["annotations"].take();
        } else {
            let generation = known["metadata"]["generation"].as_i64().unwrap_or(0);
            let is_other = known["spec"] != new["spec"];
            new["status"] = known["status"].take();
            new["metadata"]["generation"] = json!(generation + i64::from(is_other));
            known = new;
        }
        self.put(target.resource, &target.name, known)
    }

    fn delete(&mut self, target: &Target, uid: Option<&str>) -> Result<Bytes, WriteError> {
        let Ok(known) = self.known(target) else { return Ok(Bytes::new()) };
        if uid.is_some_and(|uid| known["metadata"]["uid"] != uid) {
            return Err(WriteError::new(Why::Conflict, "another uid"));
        }
        self.begin_delete(target.resource, &target.name);
        Ok(Bytes::new())
    }

    /// Pods take their time, and what has finalizers waits for them.
    pub(crate) fn begin_delete(&mut self, resource: Resource, name: &str) {
        let Some(mut known) = self.objects.get(&(resource, name.to_owned())).cloned() else { return };
        if known["metadata"]["deletionTimestamp"].is_null() {
            known["metadata"]["deletionTimestamp"] = json!(self.time());
            let runs = resource == PODS && known["status"]["phase"] == "Running";
            known["metadata"]["deletionGracePeriodSeconds"] = json!(if runs { 30 } else { 0 });
            self.put(resource, name, known);
        }
    }

    /// A deleted object goes with its last finalizer, and a Pod not before its containers have ended.
    pub(crate) fn put(&mut self, resource: Resource, name: &str, mut value: Value) -> Bytes {
        let meta = &value["metadata"];
        let is_held = meta["finalizers"].as_array().is_some_and(|held| !held.is_empty())
            || (resource == PODS && meta["deletionGracePeriodSeconds"] != 0);
        if !meta["deletionTimestamp"].is_null() && !is_held {
            let answer = value.to_string().into();
            self.objects.insert((resource, name.to_owned()), value);
            self.remove(resource, name);
            return answer;
        }
        self.revision += 1;
        value["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.log.push((self.revision, resource, false, value.clone()));
        let answer = value.to_string().into();
        self.objects.insert((resource, name.to_owned()), value);
        self.look();
        answer
    }

    pub(crate) fn remove(&mut self, resource: Resource, name: &str) {
        let Some(mut value) = self.objects.remove(&(resource, name.to_owned())) else { return };
        self.revision += 1;
        value["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.log.push((self.revision, resource, true, value));
        self.look();
    }

    /// What users and kubelets write.
    pub(crate) fn change(&mut self, resource: Resource, name: &str, change: impl FnOnce(&mut Value)) {
        let Some(mut value) = self.objects.get(&(resource, name.to_owned())).cloned() else { return };
        let spec = value["spec"].clone();
        change(&mut value);
        if value["spec"] != spec {
            let generation = value["metadata"]["generation"].as_i64().unwrap_or(0);
            value["metadata"]["generation"] = json!(generation + 1);
        }
        self.put(resource, name, value);
    }

    fn look(&mut self) {
        self.news.notify_waiters();
        let wrong = (self.check)(self);
        self.broken.extend(wrong);
    }

    pub(crate) fn of(&self, resource: Resource) -> impl Iterator<Item = (&String, &Value)> {
        self.objects
            .iter()
            .filter(move |((known, _), _)| *known == resource)
            .map(|((_, name), value)| (name, value))
    }

    pub(crate) fn names(&self, resource: Resource) -> Vec<String> {
        self.of(resource).map(|(name, _)| name.clone()).collect()
    }

    pub(crate) fn get(&self, resource: Resource, name: &str) -> &Value {
        self.objects.get(&(resource, name.to_owned())).unwrap_or(&Value::Null)
    }

    pub(crate) fn time(&self) -> String {
        timestamp(Wall::from_secs(self.now.cast_signed()))
    }

    fn known(&self, target: &Target) -> Result<&Value, WriteError> {
        self.objects.get(&(target.resource, target.name.clone())).ok_or_else(not_found)
    }
}

fn namespace(resource: Resource) -> &'static str {
    if resource.is_namespaced { NAMESPACE } else { "" }
}

fn not_found() -> WriteError {
    WriteError::new(Why::NotFound, "not found")
}
