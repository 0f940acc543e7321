//! An API server in memory: optimistic locking, generated names, graceful deletion, watches that lag; and faults.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use base::rng::Rng;
use base::time::Wall;
use bytes::Bytes;
use controllers::port::Api;
use controllers_core::plan::{Act, Target, Why, WriteError};
use controllers_core::resource::{PODS, Resource};
use controllers_core::terms::timestamp;
use serde_json::{Value, json};

#[derive(Debug)]
pub(crate) struct Server(pub(crate) Mutex<Store>);

#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) objects: BTreeMap<(Resource, String), Value>,
    pub(crate) revision: u64,
    /// Everything that happened: resource, whether it is gone, and the object.
    pub(crate) log: Vec<(u64, Resource, bool, Value)>,
    rng: Rng,
    /// How often a request fails, and how often its answer is lost.
    pub(crate) trouble: f64,
    pub(crate) now: u64,
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
            Act::Create { resource, namespace, .. } if resource.plural == "events" => {
                Ok(namespace.clone().into())
            }
            Act::Create { resource, .. } => self.create(*resource, act.body()),
            Act::Update { target, .. } => self.update(target, act.body()),
            Act::Patch { target, .. } if target.resource.plural == "events" => Ok(Bytes::new()),
            Act::Patch { target, .. } => self.patch(target, &act.body()),
            Act::Delete { target, uid, .. } => self.delete(target, uid.as_deref()),
            Act::Get { path } => {
                let found = self
                    .objects
                    .iter()
                    .find(|((resource, name), _)| resource.object_path("n", name) == *path);
                found.map(|(_, value)| value.to_string().into()).ok_or_else(not_found)
            }
            Act::Post { .. } => Ok(Bytes::new()),
        }
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
        value["metadata"]["namespace"] = json!("n");
        value["metadata"]["uid"] = json!(format!("u{}", self.uids));
        value["metadata"]["generation"] = json!(1);
        value["metadata"]["creationTimestamp"] = json!(self.time());
        Ok(self.put(resource, &name, value))
    }

    fn update(&mut self, target: &Target, new: Value) -> Result<Bytes, WriteError> {
        let mut known = self.known(target)?.clone();
        if known["metadata"]["resourceVersion"] != new["metadata"]["resourceVersion"] {
            return Err(WriteError::new(Why::Conflict, "the object has been modified"));
        }
        if target.subresource == "status" {
            known["status"] = new["status"].clone();
            known["metadata"]["annotations"] = new["metadata"]["annotations"].clone();
        } else {
            let generation = known["metadata"]["generation"].as_i64().unwrap_or(0);
            let is_other = known["spec"] != new["spec"];
            let status = known["status"].take();
            known = new;
            known["status"] = status;
            known["metadata"]["generation"] = json!(generation + i64::from(is_other));
        }
        Ok(self.put(target.resource, &target.name, known))
    }

    /// Adopting and releasing, which is all that is patched here.
    fn patch(&mut self, target: &Target, patch: &Value) -> Result<Bytes, WriteError> {
        let mut known = self.known(target)?.clone();
        if known["metadata"]["uid"] != patch["metadata"]["uid"] {
            return Err(WriteError::new(Why::Conflict, "another uid"));
        }
        let owner = &patch["metadata"]["ownerReferences"][0];
        known["metadata"]["ownerReferences"] =
            if owner["$patch"] == "delete" { json!([]) } else { json!([owner]) };
        Ok(self.put(target.resource, &target.name, known))
    }

    fn delete(&mut self, target: &Target, uid: Option<&str>) -> Result<Bytes, WriteError> {
        let Ok(known) = self.known(target) else { return Ok(Bytes::new()) };
        let mut known = known.clone();
        if uid.is_some_and(|uid| known["metadata"]["uid"] != uid) {
            return Err(WriteError::new(Why::Conflict, "another uid"));
        }
        if target.resource != PODS {
            self.remove(target.resource, &target.name);
            return Ok(Bytes::new());
        }
        if known["metadata"]["deletionTimestamp"].is_null() {
            known["metadata"]["deletionTimestamp"] = json!(self.time());
            return Ok(self.put(PODS, &target.name, known));
        }
        Ok(Bytes::new())
    }

    pub(crate) fn put(&mut self, resource: Resource, name: &str, mut value: Value) -> Bytes {
        self.revision += 1;
        value["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.log.push((self.revision, resource, false, value.clone()));
        let answer = value.to_string().into();
        self.objects.insert((resource, name.to_owned()), value);
        self.check();
        answer
    }

    pub(crate) fn remove(&mut self, resource: Resource, name: &str) {
        let Some(mut value) = self.objects.remove(&(resource, name.to_owned())) else { return };
        self.revision += 1;
        value["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.log.push((self.revision, resource, true, value));
        self.check();
    }

    pub(crate) fn of(&self, resource: Resource) -> impl Iterator<Item = (&String, &Value)> {
        self.objects
            .iter()
            .filter(move |((known, _), _)| *known == resource)
            .map(|((_, name), value)| (name, value))
    }

    pub(crate) fn time(&self) -> String {
        timestamp(Wall::from_secs(self.now.cast_signed()))
    }

    fn known(&self, target: &Target) -> Result<&Value, WriteError> {
        self.objects.get(&(target.resource, target.name.clone())).ok_or_else(not_found)
    }
}

fn not_found() -> WriteError {
    WriteError::new(Why::NotFound, "not found")
}
