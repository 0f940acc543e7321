use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use base::rng::Rng;

use super::*;
use crate::cache::Cache;
use crate::ownership::{Known, News, Served};
use crate::plan::WriteError;
use crate::testing::at;

/// Random clusters in a normal run.
const SEEDS: u64 = 400;
/// Syncs until a cluster has come to rest: more would be a collector that never ends.
const SYNCS: usize = 2_000;

/// An API server with objects by path, and a collector that hears of them when it is told.
struct Cluster {
    objects: BTreeMap<String, Value>,
    revision: u64,
    collector: Collector,
    served: Vec<Arc<Served>>,
    unheard: VecDeque<News>,
    woken: BTreeSet<Box<str>>,
    said: Vec<String>,
    failures: Vec<String>,
}

fn resource(group: &str, plural: &str, kind: &str, is_namespaced: bool) -> Arc<Served> {
    let (group, plural, kind) = (group.into(), plural.into(), kind.into());
    Arc::new(Served { group, version: "v1".into(), plural, kind, is_namespaced, is_collectable: true })
}

fn reference(owner: &Value, blocks: bool) -> Value {
    json!({"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
           "uid": owner["metadata"]["uid"], "blockOwnerDeletion": blocks})
}

/// A Pod of namespace `ns` whose UID is made from its name.
fn pod(name: &str, owners: &[&Value]) -> Value {
    let owners: Vec<Value> = owners.iter().map(|owner| reference(owner, true)).collect();
    let uid = format!("u-{name}");
    json!({"apiVersion": "v1", "kind": "Pod",
           "metadata": {"namespace": "ns", "name": name, "uid": uid, "ownerReferences": owners}})
}

/// The same of another kind, namespace or finalizer: whatever the patch says.
fn with(mut object: Value, key: &str, value: Value) -> Value {
    match key {
        "kind" | "apiVersion" => object[key] = value,
        _ => object["metadata"][key] = value,
    }
    object
}

impl Cluster {
    fn new(objects: impl IntoIterator<Item = Value>) -> Cluster {
        let mut cluster = Cluster::unlisted(objects);
        cluster.list();
        cluster
    }

    /// The collector has heard of no object yet.
    fn unlisted(objects: impl IntoIterator<Item = Value>) -> Cluster {
        let served = vec![
            resource("", "pods", "Pod", true),
            resource("apps", "replicasets", "ReplicaSet", true),
            resource("", "nodes", "Node", false),
        ];
        let mut cluster = Cluster {
            objects: BTreeMap::new(),
            revision: 0,
            collector: Collector::default(),
            served: served.clone(),
            unheard: VecDeque::new(),
            woken: BTreeSet::new(),
            said: Vec::new(),
            failures: Vec::new(),
        };
        objects.into_iter().for_each(|object| cluster.put(object));
        cluster.unheard.clear();
        cluster.tell(News::Served(served));
        cluster
    }

    fn list(&mut self) {
        for served in self.served.clone() {
            let all = self.objects.values().filter(|object| object["kind"] == served.kind);
            let all = all.map(|object| Known::read(object.to_string().as_bytes()).unwrap()).collect();
            self.unheard.clear();
            self.tell(News::Listed(served, all));
        }
    }

    fn tell(&mut self, news: News) {
        self.woken.extend(self.collector.graph.hear(news));
    }

    fn served(&self, object: &Value) -> Arc<Served> {
        self.served.iter().find(|served| object["kind"] == served.kind).unwrap().clone()
    }

    fn path(&self, object: &Value) -> String {
        let metadata = &object["metadata"];
        let namespace = metadata["namespace"].as_str().unwrap_or_default();
        self.served(object).object_path(namespace, metadata["name"].as_str().unwrap())
    }

    fn put(&mut self, mut object: Value) {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        let known = Known::read(object.to_string().as_bytes()).unwrap();
        self.unheard.push_back(News::Seen(self.served(&object), known));
        self.objects.insert(self.path(&object), object);
    }

    /// As an API server deletes: what has finalizers ends later.
    fn delete(&mut self, path: &str, how: Propagation) {
        let Some(mut object) = self.objects.get(path).cloned() else { return };
        let mut left: Vec<Value> =
            finalizers(&object).filter(|f| *f != FOREGROUND && *f != ORPHAN).cloned().collect();
        match how {
            Propagation::Foreground => left.push(FOREGROUND.into()),
            Propagation::Orphan => left.push(ORPHAN.into()),
            Propagation::Background => {}
        }
        object["metadata"]["deletionTimestamp"] = "t".into();
        object["metadata"]["finalizers"] = left.into();
        self.end_or_put(object);
    }

    fn end_or_put(&mut self, object: Value) {
        let is_over =
            object["metadata"]["deletionTimestamp"].is_string() && finalizers(&object).next().is_none();
        if !is_over {
            return self.put(object);
        }
        let path = self.path(&object);
        self.objects.remove(&path);
        self.unheard.push_back(News::Gone(text(&object["metadata"], "uid").to_owned()));
    }

    fn act(&mut self, act: &Act) -> Outcome {
        let refused = |why, message: &str| Outcome::Failed(WriteError::new(why, message));
        let (Act::Get { path } | Act::Merge { path, .. } | Act::DeleteIf { path, .. }) = act else {
            panic!("{act:?}")
        };
        let Some(mut object) = self.objects.get(path).cloned() else {
            return refused(Why::NotFound, "not found");
        };
        let body = act.body();
        let is_as_read = |wanted: &Value| {
            ["uid", "resourceVersion"].iter().all(|key| wanted[key] == object["metadata"][key])
        };
        match act {
            Act::DeleteIf { .. } if is_as_read(&body["preconditions"]) => {
                let how = match text(&body, "propagationPolicy") {
                    "Foreground" => Propagation::Foreground,
                    "Orphan" => Propagation::Orphan,
                    _ => Propagation::Background,
                };
                self.delete(path, how);
            }
            Act::Merge { .. } if is_as_read(&body["metadata"]) => {
                for (key, value) in body["metadata"].as_object().unwrap() {
                    object["metadata"][key] = value.clone();
                }
                self.end_or_put(object.clone());
            }
            Act::Get { .. } => {}
            _ => return refused(Why::Conflict, "somebody was faster"),
        }
        Outcome::Done(object.to_string().into())
    }

    /// One sync, with whatever comes of it.
    fn sync(&mut self, uid: &str) {
        let (cache, key, now) = (Cache::new([]), Key::new("", uid), at(1));
        let (mut done, mut has_failed) = (Done::default(), false);
        let mut plan = self.collector.reconcile(&cache, &key, now);
        loop {
            self.woken.extend(plan.others.iter().map(|other| (*other.name).into()));
            self.failures.extend(plan.failure.take());
            if !plan.has_acts() {
                break;
            }
            for step in std::mem::take(&mut plan.steps) {
                for act in step.acts.into_iter().filter(|_| !has_failed) {
                    if !matches!(act, Act::Get { .. }) {
                        self.said.push(act.name());
                    }
                    let outcome = self.act(&act);
                    done.acts.push((act, outcome));
                }
                has_failed |= done.failure().is_some();
            }
            plan = self.collector.settle(&cache, &key, now, &done);
        }
        if has_failed {
            self.woken.insert(uid.into());
        }
    }

    /// Hears everything at once, until nothing is left to do. What was written, in order.
    fn settle(&mut self) -> Vec<String> {
        for _ in 0..SYNCS {
            while let Some(news) = self.unheard.pop_front() {
                self.tell(news);
            }
            let Some(uid) = self.woken.pop_first() else { return std::mem::take(&mut self.said) };
            self.sync(&uid);
        }
        panic!("no end: {:?}", self.said)
    }

    fn names(&self) -> Vec<&str> {
        self.objects.values().map(|object| text(&object["metadata"], "name")).collect()
    }
}

const POD: &str = "/api/v1/namespaces/ns/pods/";

#[test]
fn what_nobody_owns_any_more_goes_and_what_it_owned() {
    let set = with(with(pod("set", &[]), "kind", "ReplicaSet".into()), "apiVersion", "apps/v1".into());
    let (a, b) = (pod("a", &[&set]), pod("b", &[]));
    let child = pod("child", &[&a]);
    let mut cluster = Cluster::new([set, a, b, child]);
    assert_eq!(cluster.settle(), [""; 0], "everybody has an owner");
    cluster.delete("/apis/apps/v1/namespaces/ns/replicasets/set", Propagation::Background);
    assert_eq!(cluster.settle(), [format!("delete {POD}a"), format!("delete {POD}child")]);
    assert_eq!(cluster.names(), ["b"]);
}

#[test]
fn only_the_live_owner_counts() {
    let owner = pod("owner", &[]);
    let a = pod("a", &[&owner]);
    // The collector never hears of the owner: it asks.
    let mut cluster = Cluster::unlisted([owner.clone(), a.clone()]);
    let known = Known::read(a.to_string().as_bytes()).unwrap();
    cluster.tell(News::Seen(cluster.served(&a), known));
    assert_eq!(cluster.settle(), [""; 0]);
    // Another one of its name is not it.
    let other = with(owner.clone(), "uid", "u-other".into());
    assert_eq!(Cluster::new([other, a.clone()]).settle(), [format!("delete {POD}a")]);
    // Nor is one in another namespace, whatever its UID.
    let elsewhere = with(owner, "namespace", "elsewhere".into());
    assert_eq!(Cluster::new([elsewhere, a]).settle(), [format!("delete {POD}a")]);
}

#[test]
fn of_several_owners_only_those_that_are_gone_are_forgotten() {
    let (one, two) = (pod("one", &[]), pod("two", &[]));
    let a = pod("a", &[&one, &two]);
    let mut cluster = Cluster::new([one.clone(), two, a]);
    cluster.delete(&format!("{POD}two"), Propagation::Background);
    assert_eq!(cluster.settle(), [format!("merge {POD}a")]);
    assert_eq!(references(&cluster.objects[&format!("{POD}a")]), [reference(&one, true)]);
}

#[test]
fn in_the_foreground_the_owner_goes_last() {
    let owner = pod("owner", &[]);
    let held = with(pod("held", &[&owner]), "finalizers", json!(["example.com/hold"]));
    let free = with(pod("free", &[]), "ownerReferences", json!([reference(&owner, false)]));
    let mut cluster = Cluster::new([owner, held, free]);
    cluster.delete(&format!("{POD}owner"), Propagation::Foreground);
    assert_eq!(cluster.settle(), [format!("delete {POD}free"), format!("delete {POD}held")]);
    assert_eq!(cluster.names(), ["held", "owner"], "what is held holds its owner");
    let held = cluster.objects[&format!("{POD}held")].clone();
    cluster.end_or_put(with(held, "finalizers", json!([])));
    assert_eq!(cluster.settle(), [format!("merge {POD}owner")]);
    assert!(cluster.names().is_empty());
}

#[test]
fn orphans_stay_and_are_nobodys() {
    let (owner, other) = (pod("owner", &[]), pod("other", &[]));
    let (a, b) = (pod("a", &[&owner]), pod("b", &[&owner, &other]));
    let mut cluster = Cluster::new([owner, other.clone(), a, b]);
    cluster.delete(&format!("{POD}owner"), Propagation::Orphan);
    assert_eq!(cluster.settle(), ["a", "b", "owner"].map(|name| format!("merge {POD}{name}")));
    assert_eq!(cluster.names(), ["a", "b", "other"]);
    assert!(references(&cluster.objects[&format!("{POD}a")]).is_empty());
    assert_eq!(references(&cluster.objects[&format!("{POD}b")]), [reference(&other, true)]);
}

#[test]
fn a_circle_that_waits_for_itself_is_opened() {
    let a = pod("a", &[&pod("c", &[])]);
    let (b, c) = (pod("b", &[&a]), pod("c", &[&pod("b", &[])]));
    let mut cluster = Cluster::new([a, b, c]);
    cluster.delete(&format!("{POD}a"), Propagation::Foreground);
    cluster.settle();
    assert!(cluster.names().is_empty(), "{:?}", cluster.objects);
}

#[test]
fn nothing_goes_on_account_of_what_nobody_serves_or_may_own() {
    let stranger = with(pod("stranger", &[]), "apiVersion", "x.example.com/v1".into());
    let a = with(pod("a", &[]), "ownerReferences", json!([reference(&stranger, true)]));
    let mut cluster = Cluster::new([a]);
    assert_eq!(cluster.settle(), [""; 0]);
    assert_eq!(cluster.failures, ["owner of a: no matches for kind Pod in x.example.com/v1"]);
    // What is in no namespace names an owner in one.
    let node = with(with(pod("node", &[&pod("gone", &[])]), "kind", "Node".into()), "namespace", Value::Null);
    let mut node = node;
    node["metadata"].as_object_mut().unwrap().remove("namespace");
    assert_eq!(Cluster::new([node]).settle(), [""; 0]);
}

#[test]
fn nothing_is_decided_before_everything_was_listed_or_waited_for() {
    let mut graph = Graph::default();
    assert!(!graph.is_complete());
    let (pods, nodes) = (resource("", "pods", "Pod", true), resource("", "nodes", "Node", false));
    graph.hear(News::Served(vec![pods.clone(), nodes]));
    graph.hear(News::Listed(pods.clone(), Vec::new()));
    assert!(!graph.is_complete(), "Nodes are not listed");
    graph.hear(News::Served(vec![pods]));
    assert!(graph.is_complete(), "nobody serves Nodes any more");
    let mut graph = Graph::default();
    graph.hear(News::Served(vec![resource("", "pods", "Pod", true)]));
    graph.hear(News::Enough);
    assert!(graph.is_complete());
}

#[test]
fn what_is_not_served_any_more_holds_nobody_back_and_takes_nothing_along() {
    let set = |name: &str, owners: &[&Value]| {
        with(with(pod(name, owners), "kind", "ReplicaSet".into()), "apiVersion", "apps/v1".into())
    };
    let owner = pod("owner", &[]);
    let held = with(set("held", &[&owner]), "finalizers", json!(["example.com/hold"]));
    let other = set("other", &[]);
    let child = pod("child", &[&other]);
    let mut cluster = Cluster::new([owner, held, other, child]);
    cluster.delete(&format!("{POD}owner"), Propagation::Foreground);
    cluster.settle();
    assert_eq!(cluster.objects.len(), 4, "what is held holds its owner");
    cluster.served.retain(|served| served.kind != "ReplicaSet");
    cluster.objects.retain(|_, object| object["kind"] != "ReplicaSet");
    cluster.tell(News::Served(cluster.served.clone()));
    assert_eq!(cluster.settle(), [format!("merge {POD}owner")]);
    assert_eq!(cluster.names(), ["child"]);
}

#[test]
fn what_went_while_nobody_watched_is_missed_in_the_next_list() {
    let owner = pod("owner", &[]);
    let mut cluster = Cluster::new([owner.clone(), pod("a", &[&owner])]);
    cluster.settle();
    cluster.delete(&format!("{POD}owner"), Propagation::Background);
    cluster.unheard.clear();
    cluster.list();
    assert_eq!(cluster.settle(), [format!("delete {POD}a")]);
}

/// Random owners, deletions of every kind and news that come late, are lost, and are listed again: in the end exactly those
/// are there who still have an owner or never had one.
#[test]
fn whatever_the_order_those_stay_who_have_an_owner() {
    for seed in 0..SEEDS {
        let mut rng = Rng::new(seed);
        let mut objects: Vec<Value> = Vec::new();
        for n in 0..(4 + rng.below(12)) {
            let mut owner = |o: &Value| match rng.chance(0.25) {
                true => Some(reference(o, rng.chance(0.5))),
                false => None,
            };
            let owners: Vec<Value> = objects.iter().filter_map(&mut owner).collect();
            objects.push(with(pod(&format!("p{n:02}"), &[]), "ownerReferences", owners.into()));
        }
        let mut cluster = Cluster::new(objects.clone());
        let mut deleted = BTreeSet::new();
        for _ in 0..(1 + rng.below(4)) {
            let name = format!("p{:02}", rng.below(objects.len().try_into().unwrap()));
            let how = if rng.chance(0.5) { Propagation::Background } else { Propagation::Foreground };
            if deleted.insert(name.clone()) {
                cluster.delete(&format!("{POD}{name}"), how);
            }
            // Some of the news arrive, some of the work is done.
            for _ in 0..rng.below(8) {
                if rng.chance(0.6)
                    && let Some(news) = cluster.unheard.pop_front()
                {
                    cluster.tell(news);
                } else if let Some(uid) = cluster.woken.pop_first() {
                    cluster.sync(&uid);
                }
            }
            if rng.chance(0.2) {
                cluster.unheard.clear();
                cluster.list();
            }
        }
        cluster.settle();
        let mut stays: Vec<&str> = Vec::new();
        for object in &objects {
            let name = text(&object["metadata"], "name");
            let owners = references(object);
            let has_owner = owners.iter().any(|owner| stays.contains(&text(owner, "name")));
            if !deleted.contains(name) && (owners.is_empty() || has_owner) {
                stays.push(name);
            }
        }
        assert_eq!(cluster.names(), stays, "seed {seed}");
        for object in cluster.objects.values() {
            let known = |owner: &Value| stays.contains(&text(owner, "name"));
            assert!(references(object).iter().all(known), "seed {seed}: {object}");
        }
    }
}
