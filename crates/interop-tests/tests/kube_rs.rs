//! kube-rs against `longshore apiserver`: watches that neither drop nor repeat, informers that survive kills and
//! compaction, conflicts.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fixture::ApiServer;
use futures_util::{StreamExt, TryStreamExt, pin_mut};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{
    Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, ResourceExt, WatchEvent, WatchParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher::{self, watcher};
use kube::runtime::{WatchStreamExt, reflector};
use kube::{Client, Config, Error};
use serde_json::json;

const TIMEOUT: Duration = Duration::from_secs(60);

struct Place {
    dir: tempfile::TempDir,
    binary: PathBuf,
}

impl Place {
    /// None, with a word about it, where there is nothing to test.
    fn new() -> Option<Place> {
        let Some(binary) = std::env::var_os("LONGSHORE_BINARY") else {
            eprintln!("skipped: LONGSHORE_BINARY is not set; cargo xtask test sets it");
            return None;
        };
        Some(Place { dir: tempfile::tempdir().unwrap(), binary: binary.into() })
    }

    fn start(&self, flags: &[&str]) -> ApiServer {
        ApiServer::start(&self.binary, self.dir.path(), flags).unwrap()
    }

    async fn start_at(&self, port: u16, flags: &'static [&'static str]) -> ApiServer {
        let (binary, dir) = (self.binary.clone(), self.dir.path().to_owned());
        let starting = move || ApiServer::start_at(&binary, &dir, port, flags).unwrap();
        tokio::task::spawn_blocking(starting).await.unwrap()
    }
}

async fn client(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

async fn maps(server: &ApiServer) -> Api<ConfigMap> {
    Api::default_namespaced(client(&server.kubeconfig()).await)
}

fn map(name: &str, data: &[(&str, &str)]) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.to_owned());
    map.data = Some(data.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect());
    map
}

fn revision(object: &ConfigMap) -> u64 {
    object.resource_version().unwrap().parse().unwrap()
}

fn refusal(error: Error) -> (u16, String, String) {
    match error {
        Error::Api(status) => (status.code, status.reason.clone(), status.message.clone()),
        other => panic!("{other}"),
    }
}

/// Asks again and again, for as long as anybody would wait.
async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let asking = async {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, asking).await.unwrap_or_else(|_| panic!("in vain: {what}"))
}

/// Creates, updates and deletes; tells the revision of everything that was acknowledged.
async fn write(maps: Api<ConfigMap>, writer: usize, rounds: usize) -> Vec<u64> {
    let mut revisions = Vec::new();
    for round in 0..rounds {
        let name = format!("w{writer}-{}", round % 3);
        let mut made = maps.create(&PostParams::default(), &map(&name, &[])).await.unwrap();
        revisions.push(revision(&made));
        for n in 0..6 {
            made.data = Some(BTreeMap::from([("n".to_owned(), n.to_string())]));
            made = maps.replace(&name, &PostParams::default(), &made).await.unwrap();
            revisions.push(revision(&made));
        }
        maps.delete(&name, &DeleteParams::default()).await.unwrap();
    }
    revisions
}

async fn follow(maps: Api<ConfigMap>, from: String, count: usize) -> Vec<(u64, &'static str, String)> {
    let params = WatchParams { bookmarks: false, ..WatchParams::default() };
    let stream = maps.watch(&params, &from).await.unwrap();
    pin_mut!(stream);
    let mut seen = Vec::new();
    while seen.len() < count {
        let (kind, object) = match stream.try_next().await.unwrap().expect("the watch goes on") {
            WatchEvent::Added(object) => ("added", object),
            WatchEvent::Modified(object) => ("modified", object),
            WatchEvent::Deleted(object) => ("deleted", object),
            other => panic!("{other:?}"),
        };
        seen.push((revision(&object), kind, object.name_any()));
    }
    seen
}

#[tokio::test]
async fn every_watcher_sees_every_revision_once_and_in_order() {
    const WRITERS: usize = 6;
    const ROUNDS: usize = 8;
    const WATCHERS: usize = 24;
    let Some(place) = Place::new() else { return };
    let server = place.start(&[]);
    let first = maps(&server).await;
    let from = first.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    // A create, six updates and a deletion per round.
    let count = WRITERS * ROUNDS * 8;
    let mut watchers = Vec::new();
    for i in 0..WATCHERS {
        // Some share a connection, some do not; some start in the middle of it.
        let maps = if i % 3 == 0 { maps(&server).await } else { first.clone() };
        let from = from.clone();
        watchers.push(tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(40 * (i as u64 % 5))).await;
            follow(maps, from, count).await
        }));
    }
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        writers.push(tokio::spawn(write(maps(&server).await, writer, ROUNDS)));
    }
    let mut acknowledged = Vec::new();
    for writer in writers {
        acknowledged.extend(writer.await.unwrap());
    }
    acknowledged.sort_unstable();
    let mut told = None;
    for watcher in watchers {
        let seen = tokio::time::timeout(TIMEOUT, watcher).await.expect("all events arrive").unwrap();
        assert!(seen.is_sorted_by(|a, b| a.0 < b.0), "in order, and none twice");
        let written: Vec<u64> = seen.iter().filter(|e| e.1 != "deleted").map(|e| e.0).collect();
        assert_eq!(written, acknowledged, "what was acknowledged is what is seen");
        assert_eq!(*told.get_or_insert_with(|| seen.clone()), seen, "all see the same");
    }
}

#[tokio::test]
async fn informers_survive_kills_and_compaction() {
    const FLAGS: &[&str] = &["--etcd-compaction-interval=1s"];
    let Some(place) = Place::new() else { return };
    let mut server = place.start(FLAGS);
    let port = server.port();
    let api = maps(&server).await;
    let (store, writer) = reflector::store();
    let restarts = Arc::new(Mutex::new(0));
    let counted = restarts.clone();
    let stream = watcher(api.clone(), watcher::Config::default()).default_backoff();
    let informer = tokio::spawn(async move {
        let events = stream.inspect(move |event| {
            if matches!(event, Ok(watcher::Event::Init)) {
                *counted.lock().unwrap() += 1;
            }
        });
        reflector(writer, events).for_each(|_| async {}).await;
    });
    tokio::time::timeout(TIMEOUT, store.wait_until_ready()).await.unwrap().unwrap();
    let mut kept: Vec<String> = Vec::new();
    for round in 0..3 {
        for n in 0..20 {
            let name = format!("r{round}-{n}");
            api.create(&PostParams::default(), &map(&name, &[])).await.unwrap();
            if n % 4 == 0 {
                api.delete(&name, &DeleteParams::default()).await.unwrap();
            } else {
                kept.push(name);
            }
        }
        server.kill();
        server = place.start_at(port, FLAGS).await;
        if round == 1 {
            // Long enough, and with enough written, that the informer's revision is gone when it comes back.
            for n in 0..30 {
                let other = Api::<ConfigMap>::namespaced(client(&server.kubeconfig()).await, "kube-public");
                other.create(&PostParams::default(), &map(&format!("fill-{n}"), &[])).await.unwrap();
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        until("the informer sees what is there", async || {
            let mut seen: Vec<String> = store.state().iter().map(|m| m.name_any()).collect();
            seen.retain(|name| name.starts_with('r'));
            seen.sort();
            kept.sort();
            (seen == kept).then_some(())
        })
        .await;
    }
    let there = api.list(&ListParams::default()).await.unwrap();
    let mut there: Vec<String> =
        there.iter().map(ResourceExt::name_any).filter(|n| n.starts_with('r')).collect();
    there.sort();
    assert_eq!(there, kept, "no acknowledged write is lost");
    assert!(*restarts.lock().unwrap() >= 1);
    informer.abort();
}

#[tokio::test]
async fn a_compacted_revision_is_gone() {
    let Some(place) = Place::new() else { return };
    let server = place.start(&["--etcd-compaction-interval=1s"]);
    let maps = maps(&server).await;
    let old =
        maps.create(&PostParams::default(), &map("old", &[])).await.unwrap().resource_version().unwrap();
    let status = until("the revision is compacted", async || {
        let other = format!("m-{}", maps.list(&ListParams::default()).await.unwrap().items.len());
        maps.create(&PostParams::default(), &map(&other, &[])).await.unwrap();
        let stream = maps.watch(&WatchParams::default().timeout(1), &old).await.unwrap();
        pin_mut!(stream);
        match stream.try_next().await.unwrap() {
            Some(WatchEvent::Error(status)) => Some(status),
            _ => None,
        }
    })
    .await;
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
}

#[tokio::test]
async fn apply_conflicts_are_told_and_forced() {
    let Some(place) = Place::new() else { return };
    let server = place.start(&[]);
    let maps = maps(&server).await;
    let apply = async |manager: &str, force: bool, data: serde_json::Value| {
        let params = PatchParams { force, ..PatchParams::apply(manager) };
        let body =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owned"}, "data": data});
        maps.patch("owned", &params, &Patch::Apply(&body)).await.map(|m| m.data.unwrap_or_default())
    };
    let data = |pairs: &[(&str, &str)]| map("x", pairs).data.unwrap();
    apply("one", false, json!({"a": "1", "b": "1"})).await.unwrap();
    apply("two", false, json!({"b": "1", "c": "2"})).await.unwrap();
    let (code, reason, message) = refusal(apply("two", false, json!({"a": "2"})).await.unwrap_err());
    assert_eq!((code, reason.as_str()), (409, "Conflict"));
    assert!(message.contains("conflict with \"one\": .data.a"), "{message}");
    let forced = apply("two", true, json!({"a": "2"})).await.unwrap();
    assert_eq!(forced, data(&[("a", "2"), ("b", "1")]), "b is one's too; c was only two's");
    let left = apply("one", false, json!({})).await.unwrap();
    assert_eq!(left, data(&[("a", "2")]));
}

#[tokio::test]
async fn patches_and_optimistic_concurrency() {
    let Some(place) = Place::new() else { return };
    let server = place.start(&[]);
    let maps = maps(&server).await;
    let params = PatchParams::default();
    maps.create(&PostParams::default(), &map("counter", &[("n", "0"), ("x", "y")])).await.unwrap();
    let merged =
        maps.patch("counter", &params, &Patch::Merge(json!({"data": {"x": null, "z": "1"}}))).await.unwrap();
    assert_eq!(merged.data, map("", &[("n", "0"), ("z", "1")]).data);
    let strategic = Patch::Strategic(json!({"data": {"$patch": "replace", "n": "0"}}));
    let replaced = maps.patch("counter", &params, &strategic).await.unwrap();
    assert_eq!(replaced.data, map("", &[("n", "0")]).data);
    let stale = json!({"metadata": {"resourceVersion": merged.resource_version()}, "data": {"n": "9"}});
    let (code, ..) = refusal(maps.patch("counter", &params, &Patch::Merge(stale)).await.unwrap_err());
    assert_eq!(code, 409);
    let mut workers = Vec::new();
    for _ in 0..6 {
        let maps = maps.clone();
        workers.push(tokio::spawn(async move {
            let mut conflicts = 0;
            for _ in 0..10 {
                loop {
                    let mut found = maps.get("counter").await.unwrap();
                    let data = found.data.as_mut().unwrap();
                    let n: u64 = data["n"].parse().unwrap();
                    data.insert("n".to_owned(), (n + 1).to_string());
                    match maps.replace("counter", &PostParams::default(), &found).await {
                        Ok(_) => break,
                        Err(error) => assert_eq!(refusal(error).1, "Conflict"),
                    }
                    conflicts += 1;
                }
            }
            conflicts
        }));
    }
    let mut conflicts = 0;
    for worker in workers {
        conflicts += worker.await.unwrap();
    }
    assert_eq!(maps.get("counter").await.unwrap().data.unwrap()["n"], "60");
    eprintln!("{conflicts} conflicts");
}
