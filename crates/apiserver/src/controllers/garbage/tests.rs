//! The collector beside a real store, on kinds as they are served.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::clock::SystemClock;
use crate::registry::addresses::{Addresses, Ranges};
use apiserver_core::catalog::Catalog;
use apiserver_core::kinds;
use store::{Change, Store};

struct Bench {
    registry: Registry,
    collecting: tokio::task::JoinHandle<()>,
    _dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), store::Options::default()).unwrap();
        let catalog = Catalog::new(kinds::all().into_iter().map(Arc::new));
        let addresses = Addresses::new(Ranges::default());
        let registry = Registry::new(store, catalog, Arc::new(SystemClock::default()), None, addresses);
        let collecting = tokio::spawn(run(registry.clone()));
        Bench { registry, collecting, _dir: dir }
    }

    fn call(&self, verb: &'static str, (group, plural): (&str, &str), name: &str) -> Call {
        Call::internal(self.registry.kind(group, "v1", plural).unwrap(), verb, "ns", name)
    }

    async fn create(&self, what: (&str, &str), object: Value) -> Value {
        self.registry.create(&mut self.call("create", what, ""), object).await.unwrap().object
    }

    async fn map(&self, name: &str, owners: &[&Value]) -> Value {
        let owners: Vec<Value> = owners.iter().map(|owner| reference(owner)).collect();
        let metadata = json!({"name": name, "ownerReferences": owners});
        self.create(
            ("", "configmaps"),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}),
        )
        .await
    }

    async fn delete(&self, what: (&str, &str), name: &str, how: Option<Propagation>) {
        let options = DeleteOptions { propagation: how, ..DeleteOptions::default() };
        let done = self.registry.delete(&mut self.call("delete", what, name), &options).await;
        // The collector may have been quicker.
        assert!(done.map_or_else(|api_status| api_status.is_not_found(), |_| true));
    }

    async fn get(&self, (group, plural): (&str, &str), name: &str) -> Option<Value> {
        let kind = self.registry.kind(group, "v1", plural).unwrap();
        self.registry.find(&kind, "ns", name).await.unwrap().map(|d| present(&kind, &d))
    }

    /// All changes until these objects are gone, the last of them included.
    async fn until_gone(&self, names: &[&str]) -> Vec<Arc<Change>> {
        let mut watch = self.registry.store().watch("/registry/", 0).unwrap();
        let (mut left, mut changes) = (names.iter().copied().collect::<BTreeSet<_>>(), Vec::new());
        while !left.is_empty() {
            let change = watch.next().await.unwrap();
            if change.kind == ChangeKind::Deleted {
                left.remove(change.key.rsplit('/').next().unwrap());
            }
            changes.push(change);
            assert!(changes.len() < 500, "something goes in circles");
        }
        changes
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.collecting.abort();
    }
}

fn reference(owner: &Value) -> Value {
    json!({
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta::name(owner), "uid": meta::uid(owner),
        "blockOwnerDeletion": true,
    })
}

fn deleted(changes: &[Arc<Change>]) -> Vec<&str> {
    let gone = changes.iter().filter(|c| c.kind == ChangeKind::Deleted);
    gone.filter_map(|c| c.key.rsplit('/').next()).collect()
}

const MAPS: (&str, &str) = ("", "configmaps");

#[tokio::test]
async fn foreground_deletion_waits_for_dependents() {
    let bench = Bench::new();
    let owner = bench.map("owner", &[]).await;
    bench.map("dependent", &[&owner]).await;
    bench.delete(MAPS, "owner", Some(Propagation::Foreground)).await;
    assert_eq!(deleted(&bench.until_gone(&["owner"]).await), ["dependent", "owner"]);
}

#[tokio::test]
async fn orphans_lose_their_owner_and_stay() {
    let bench = Bench::new();
    let owner = bench.map("owner", &[]).await;
    bench.map("dependent", &[&owner]).await;
    bench.delete(MAPS, "owner", Some(Propagation::Orphan)).await;
    assert_eq!(deleted(&bench.until_gone(&["owner"]).await), ["owner"]);
    let kept = bench.get(MAPS, "dependent").await.unwrap();
    assert!(kept["metadata"].get("ownerReferences").is_none());
}

/// These kinds orphan their dependents unless somebody says otherwise: nobody may say so again once it is done.
#[tokio::test]
async fn kinds_that_orphan_by_default_end_in_few_writes_however_they_are_deleted() {
    let template = |policy: &str| {
        json!({
            "metadata": {"labels": {"a": "b"}},
            "spec": {"restartPolicy": policy, "containers": [{"name": "c", "image": "i"}]},
        })
    };
    let controller = json!({
        "apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "x"},
        "spec": {"replicas": 1, "selector": {"a": "b"}, "template": template("Always")},
    });
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": {"template": template("Never")},
    });
    for (what, object) in [(("", "replicationcontrollers"), controller), (("batch", "jobs"), job)] {
        for how in
            [None, Some(Propagation::Orphan), Some(Propagation::Foreground), Some(Propagation::Background)]
        {
            let bench = Bench::new();
            let owner = bench.create(what, object.clone()).await;
            bench.map("dependent", &[&owner]).await;
            bench.delete(what, "x", how).await;
            let changes = bench.until_gone(&["x"]).await;
            assert!(changes.len() <= 8, "{what:?} {how:?}: {} writes", changes.len());
            let orphaned = matches!(how, None | Some(Propagation::Orphan));
            if !orphaned {
                bench.until_gone(&["dependent"]).await;
            }
            assert_eq!(bench.get(MAPS, "dependent").await.is_some(), orphaned, "{what:?} {how:?}");
        }
    }
}

#[tokio::test]
async fn a_circle_of_owners_ends_under_foreground_deletion() {
    for start in [&["a"][..], &["a", "b", "c"]] {
        let bench = Bench::new();
        let a = bench.map("a", &[]).await;
        let b = bench.map("b", &[&a]).await;
        let c = bench.map("c", &[&b]).await;
        let kind = bench.registry.kind("", "v1", "configmaps").unwrap();
        let close = |object: &mut Value| {
            object["metadata"]["ownerReferences"] = json!([reference(&c)]);
            Ok(true)
        };
        bench.registry.rewrite(&kind, "ns", "a", close).await.unwrap();
        for name in start {
            bench.delete(MAPS, name, Some(Propagation::Foreground)).await;
        }
        bench.until_gone(&["a", "b", "c"]).await;
    }
}

/// Somebody who writes in one namespace only names an owner in another, and never lets his object go.
#[tokio::test]
async fn nobody_holds_back_a_deletion_in_another_namespace() {
    let bench = Bench::new();
    let owner = bench.map("owner", &[]).await;
    bench.map("dependent", &[&owner]).await;
    let foreign = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "foreign", "finalizers": ["example.com/never"], "ownerReferences": [reference(&owner)]},
    });
    let maps = bench.registry.kind("", "v1", "configmaps").unwrap();
    bench.registry.create(&mut Call::internal(maps, "create", "elsewhere", ""), foreign).await.unwrap();
    bench.delete(MAPS, "owner", Some(Propagation::Foreground)).await;
    let gone = bench.until_gone(&["owner"]);
    let changes = tokio::time::timeout(Duration::from_secs(60), gone).await.expect("the owner goes");
    assert_eq!(deleted(&changes), ["dependent", "owner"]);
}

#[tokio::test]
async fn an_owner_is_looked_at_again_when_a_dependent_disowns_it() {
    let bench = Bench::new();
    let owner = bench.map("owner", &[]).await;
    let other = bench.map("other", &[]).await;
    // It has another owner, so it stays; and a finalizer of somebody else would keep it in any case.
    bench.map("dependent", &[&owner, &other]).await;
    bench.delete(MAPS, "owner", Some(Propagation::Foreground)).await;
    bench.until_gone(&["owner"]).await;
    let kept = bench.get(MAPS, "dependent").await.unwrap();
    assert_eq!(kept["metadata"]["ownerReferences"], json!([reference(&other)]));
}

#[tokio::test]
async fn what_is_in_no_namespace_is_not_collected_for_an_owner_in_one() {
    let bench = Bench::new();
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1,
        "metadata": {"name": "class", "ownerReferences": [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": "u"},
        ]},
    });
    let what = ("scheduling.k8s.io", "priorityclasses");
    bench.create(what, class).await;
    // Something that is collected after it shows that its turn has passed.
    bench
        .map(
            "gone",
            &[&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "none", "uid": "u"}})],
        )
        .await;
    assert_eq!(deleted(&bench.until_gone(&["gone"]).await), ["gone"]);
}

/// Deleting an owner reads its dependents a few times each, however many there are.
#[tokio::test]
async fn an_owner_with_many_dependents_costs_a_few_reads_for_each() {
    const DEPENDENTS: u64 = 5_000;
    let bench = Bench::new();
    let owner = bench.map("owner", &[]).await;
    let making = (0..DEPENDENTS).map(|n| {
        let (bench, owner) = (&bench, &owner);
        async move { bench.map(&format!("d{n}"), &[owner]).await }
    });
    futures_util::future::join_all(making).await;
    let mut watch = bench.registry.store().watch("/registry/", bench.registry.store().revision()).unwrap();
    let before = bench.registry.store().stats().reads;
    bench.delete(MAPS, "owner", Some(Propagation::Foreground)).await;
    loop {
        let change = watch.next().await.unwrap();
        if change.kind == ChangeKind::Deleted && change.key.ends_with("/owner") {
            break;
        }
    }
    let reads = bench.registry.store().stats().reads - before;
    assert!(reads >= DEPENDENTS, "{reads}");
    assert!(reads < 10 * DEPENDENTS, "{reads} reads for {DEPENDENTS} dependents");
}
