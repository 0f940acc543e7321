//! Worlds for tables: objects as drafts or as YAML, and plans as short text.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::yaml::{DuplicateKeys, to_value};
use base::time::{Mono, Now, Wall};
use bytes::Bytes;
use serde_json::{Value, json};

use crate::cache::Cache;
use crate::controller::{Controller, Key, Wakes, Watch};
use crate::object::Object;
use crate::plan::{Act, Done, Outcome, Plan, Target, Why, WriteError};
use crate::resource::Resource;
use crate::table;
use crate::terms::timestamp;
use crate::view::View;

/// The namespace of everything here.
pub(crate) const NAMESPACE: &str = "ns";

/// An object to be written down. Names make UIDs: `web` has `u-web`.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    resource: Resource,
    pub(crate) value: Value,
}

/// A cache with everything that any controller looks at.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) cache: Cache,
    /// What the API server answers elsewhere, by path.
    pub(crate) answers: BTreeMap<String, Value>,
    pub(crate) version: u64,
}

/// What a sync did and said, all rounds together.
#[derive(Debug, Default)]
pub(crate) struct Ran {
    pub(crate) said: Vec<String>,
    pub(crate) wake: Option<Duration>,
    pub(crate) failure: Option<String>,
}

/// So many seconds after the beginning of 1970, on both clocks.
pub(crate) fn at(seconds: u64) -> Now {
    Now { mono: Mono(Duration::from_secs(seconds)), wall: Wall::from_secs(seconds.cast_signed()) }
}

pub(crate) fn draft(resource: Resource, name: &str) -> Draft {
    let mut metadata =
        json!({"name": name, "uid": format!("u-{name}"), "resourceVersion": "1", "generation": 1});
    if resource.is_namespaced {
        metadata["namespace"] = json!(NAMESPACE);
    }
    Draft { resource, value: json!({ "metadata": metadata }) }
}

pub(crate) fn pod(name: &str) -> Draft {
    draft(crate::resource::PODS, name)
}

/// A ReplicaSet with the label and selector `app=a`.
pub(crate) fn replica_set(name: &str, replicas: i32) -> Draft {
    let template =
        json!({"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let spec = json!({"replicas": replicas, "selector": {"matchLabels": {"app": "a"}}, "template": template});
    draft(crate::resource::REPLICA_SETS, name).set("/spec", spec)
}

// === impl Draft ===

impl Draft {
    /// Reads an object; it says its kind, and gets a name-made UID, a revision and a generation where it has none.
    pub(crate) fn yaml(text: &str) -> Draft {
        let value = to_value(text.as_bytes(), DuplicateKeys::Reject).expect("YAML");
        let (version, kind) =
            (value["apiVersion"].as_str().unwrap_or("v1"), value["kind"].as_str().expect("kind"));
        let known = table::resources().into_iter().find(|r| r.kind == kind && r.api_version() == version);
        let resource = known.unwrap_or_else(|| panic!("no controller looks at {version} {kind}"));
        let mut draft = draft(resource, value["metadata"]["name"].as_str().expect("name"));
        for (key, given) in value.as_object().into_iter().flatten() {
            if key == "metadata" {
                for (key, given) in given.as_object().into_iter().flatten() {
                    draft.value["metadata"][key] = given.clone();
                }
            } else {
                draft.value[key] = given.clone();
            }
        }
        draft
    }

    /// Sets what stands at a JSON pointer; objects on the way are made.
    pub(crate) fn set(mut self, pointer: &str, to: Value) -> Draft {
        let mut place = &mut self.value;
        for part in pointer.split('/').skip(1) {
            let part = part.replace("~1", "/");
            place = &mut place[part];
        }
        *place = to;
        self
    }

    pub(crate) fn uid(self, uid: &str) -> Draft {
        self.set("/metadata/uid", json!(uid))
    }

    pub(crate) fn label(mut self, key: &str, value: &str) -> Draft {
        self.value["metadata"]["labels"][key] = json!(value);
        self
    }

    pub(crate) fn annotation(mut self, key: &str, value: &str) -> Draft {
        self.value["metadata"]["annotations"][key] = json!(value);
        self
    }

    /// No UID: no controller.
    pub(crate) fn controller(self, kind: &str, name: &str, uid: &str) -> Draft {
        if uid.is_empty() {
            return self;
        }
        let group = if kind == "ReplicationController" { "v1" } else { "apps/v1" };
        let owner =
            json!([{"apiVersion": group, "kind": kind, "name": name, "uid": uid, "controller": true}]);
        self.set("/metadata/ownerReferences", owner)
    }

    pub(crate) fn owned_by(self, owner: &Draft) -> Draft {
        let owner = owner.object();
        self.set("/metadata/ownerReferences", json!([owner.as_controller()]))
    }

    pub(crate) fn deleting(self, is: bool) -> Draft {
        if is { self.set("/metadata/deletionTimestamp", json!("1970-01-01T00:00:01Z")) } else { self }
    }

    pub(crate) fn created(self, seconds: i64) -> Draft {
        self.set("/metadata/creationTimestamp", json!(timestamp(Wall::from_secs(seconds))))
    }

    pub(crate) fn on(self, node: &str) -> Draft {
        self.set("/spec/nodeName", json!(node))
    }

    pub(crate) fn phase(self, phase: &str) -> Draft {
        self.set("/status/phase", json!(phase))
    }

    pub(crate) fn running(self) -> Draft {
        self.phase("Running")
    }

    /// Ready since so many seconds after the beginning of 1970.
    pub(crate) fn ready(self, since: i64) -> Draft {
        let time = timestamp(Wall::from_secs(since));
        self.set(
            "/status/conditions",
            json!([{"type": "Ready", "status": "True", "lastTransitionTime": time}]),
        )
    }

    pub(crate) fn restarts(self, count: i64) -> Draft {
        self.set("/status/containerStatuses", json!([{"name": "c", "restartCount": count}]))
    }

    pub(crate) fn object(&self) -> Object {
        self.try_object().expect("an object has a name")
    }

    /// None if nobody can say which object it is.
    pub(crate) fn try_object(&self) -> Option<Object> {
        Object::new(self.resource, self.value.to_string().as_bytes())
    }
}

// === impl World ===

impl World {
    pub(crate) fn new(objects: impl IntoIterator<Item = Draft>) -> World {
        let cache = Cache::new(table::resources());
        for resource in cache.resources() {
            cache.replace(resource, Vec::new(), 1);
        }
        let mut world = World { cache, answers: BTreeMap::new(), version: 1 };
        objects.into_iter().for_each(|draft| world.put(draft));
        world
    }

    /// Makes or changes an object, at a new revision.
    pub(crate) fn put(&mut self, draft: Draft) {
        self.version += 1;
        let draft = draft.set("/metadata/resourceVersion", json!(self.version.to_string()));
        self.cache.apply(draft.object());
    }

    /// The object that is there, when there is one only.
    pub(crate) fn only(&self) -> Arc<Object> {
        let mut all: Vec<Arc<Object>> = self.cache.resources().flat_map(|r| self.cache.list(r, "")).collect();
        assert_eq!(all.len(), 1, "more than one object");
        all.remove(0)
    }

    pub(crate) fn get(&self, resource: Resource, name: &str) -> Arc<Object> {
        let namespace = if resource.is_namespaced { NAMESPACE } else { "" };
        self.cache.get(resource, namespace, name).expect("it is there")
    }

    pub(crate) fn reconcile(&self, controller: &mut dyn Controller, name: &str, now: Now) -> Plan {
        controller.reconcile(&self.cache, &Key::new(NAMESPACE, name), now)
    }

    /// What follows when every act had this outcome.
    pub(crate) fn settle(
        &self,
        controller: &mut dyn Controller,
        name: &str,
        now: Now,
        plan: &Plan,
        outcome: &Outcome,
    ) -> Plan {
        let acts = plan.acts().map(|act| (act.clone(), outcome.clone())).collect();
        let done = Done { acts, last: 0, rounds: 1 };
        controller.settle(&self.cache, &Key::new(NAMESPACE, name), now, &done)
    }

    /// Carries a whole sync out, as an API server would that refuses nothing. What was written is in the world afterwards.
    pub(crate) fn sync(&mut self, controller: &mut dyn Controller, name: &str, now: Now) -> Ran {
        self.sync_key(controller, &Key::new(NAMESPACE, name), now)
    }

    pub(crate) fn sync_key(&mut self, controller: &mut dyn Controller, key: &Key, now: Now) -> Ran {
        let (mut done, mut ran) = (Done::default(), Ran::default());
        let mut plan = controller.reconcile(&self.cache, key, now);
        loop {
            ran.said.extend(said(&plan));
            ran.failure = ran.failure.or(plan.failure.clone());
            ran.wake = [ran.wake, plan.wake].into_iter().flatten().min();
            if !plan.has_acts() {
                return ran;
            }
            done.last = done.acts.len();
            done.rounds += 1;
            for act in plan.acts() {
                let outcome = self.act(act, now);
                done.acts.push((act.clone(), outcome));
            }
            plan = controller.settle(&self.cache, key, now, &done);
        }
    }

    /// Does what is asked, on objects that the cache holds.
    fn act(&mut self, act: &Act, now: Now) -> Outcome {
        let written = match act {
            Act::Create { resource, namespace, .. } => {
                let mut body = act.body();
                let metadata = &mut body["metadata"];
                if metadata["name"].is_null() {
                    let prefix = metadata["generateName"].as_str().unwrap_or_default();
                    metadata["name"] = format!("{prefix}{}", self.version).into();
                }
                let name = metadata["name"].as_str().unwrap_or_default().to_owned();
                if self.cache.get(*resource, namespace, &name).is_some() {
                    return refused(Why::AlreadyExists, &format!("{resource} \"{name}\" already exists"));
                }
                metadata["uid"] = format!("u-{name}").into();
                metadata["creationTimestamp"] = timestamp(now.wall).into();
                Draft { resource: *resource, value: body }
            }
            Act::Update { target, .. } | Act::Patch { target, .. } | Act::Delete { target, .. } => {
                let Some(known) = self.cache.get(target.resource, &target.namespace, &target.name) else {
                    return refused(Why::NotFound, "not found");
                };
                let mut value = known.value();
                match act {
                    Act::Delete { .. } => {
                        self.cache.remove(&known);
                        return Outcome::Done(Bytes::new());
                    }
                    Act::Update { .. } if target.subresource == "status" => {
                        value["status"] = act.body()["status"].take();
                    }
                    Act::Update { .. } => value = act.body(),
                    _ => merge(&mut value, &act.body()),
                }
                Draft { resource: target.resource, value }
            }
            Act::Get { path } if self.answers.contains_key(path) => {
                return Outcome::Done(self.answers[path].to_string().into());
            }
            Act::Put { path, .. } => {
                self.answers.insert(path.clone(), act.body());
                return Outcome::Done(act.body().to_string().into());
            }
            Act::Get { path } => {
                let all = self.cache.resources().flat_map(|resource| self.cache.list(resource, ""));
                let found = all.into_iter().find(|object| Target::of(object).path() == *path);
                return found.map_or_else(
                    || refused(Why::NotFound, "not found"),
                    |object| Outcome::Done(object.value().to_string().into()),
                );
            }
            Act::DeleteAt { .. } | Act::DeleteIf { .. } | Act::Merge { .. } | Act::Post { .. } => {
                return Outcome::Done(Bytes::new());
            }
        };
        let value = written.value.to_string();
        self.put(written);
        Outcome::Done(value.into())
    }

    /// Whom a change of an object wakes.
    pub(crate) fn wakes(&self, watches: &[Watch], old: Option<&Draft>, new: Option<&Draft>) -> Vec<String> {
        let (old, new) = (old.map(|d| Arc::new(d.object())), new.map(|d| Arc::new(d.object())));
        let change = crate::cache::Change { old, new };
        let resource = change.object().expect("something changed").meta.resource;
        let mut wakes = Wakes::default();
        watches
            .iter()
            .filter(|w| w.resource == resource)
            .for_each(|w| (w.keys)(&change, &self.cache, &mut wakes));
        wakes.0.iter().map(|(key, _)| key.to_string()).collect()
    }
}

/// A merge patch.
fn merge(value: &mut Value, patch: &Value) {
    let Some(members) = patch.as_object() else {
        *value = patch.clone();
        return;
    };
    for (key, patch) in members {
        match patch {
            Value::Null => _ = value.as_object_mut().map(|value| value.remove(key)),
            patch => merge(&mut value[key], patch),
        }
    }
}

pub(crate) fn refused(why: Why, message: &str) -> Outcome {
    Outcome::Failed(WriteError::new(why, message))
}

/// The acts and events of a plan, one line each; `3 x create pods in ns` for equal ones in a row.
pub(crate) fn said(plan: &Plan) -> Vec<String> {
    let acts = plan.acts().map(crate::plan::Act::name);
    let events = plan.events.iter().map(|event| {
        let kind = if event.is_warning { "Warning" } else { "Normal" };
        format!("{kind} {}: {}", event.reason, event.message)
    });
    let mut lines: Vec<(usize, String)> = Vec::new();
    for line in acts.chain(events) {
        match lines.last_mut() {
            Some((count, last)) if *last == line => *count += 1,
            _ => lines.push((1, line)),
        }
    }
    lines
        .into_iter()
        .map(|(count, line)| if count == 1 { line } else { format!("{count} x {line}") })
        .collect()
}

impl IntoIterator for Draft {
    type Item = Draft;
    type IntoIter = std::iter::Once<Draft>;

    fn into_iter(self) -> Self::IntoIter {
        std::iter::once(self)
    }
}
