//! The verbs against a real store, on kinds as they are served.

use std::sync::Arc;

use api::selector::{FieldSelector, LabelSelector};
use serde_json::{Value, json};

use super::addresses::{Addresses, Ranges};
use super::list::End;
use super::patch::Patch;
use super::watch::Event;
use super::{Outcome, Registry};
use crate::clock::SystemClock;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::call::Call;
use apiserver_core::catalog::Catalog;
use apiserver_core::kind::Kind;
use apiserver_core::kinds;
use apiserver_core::meta;
use apiserver_core::options::{DeleteOptions, ListOptions};
use apiserver_core::selection::{Selection, present};
use store::Store;

struct Bench {
    registry: Registry,
    _dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), store::Options::default()).unwrap();
        let catalog = Catalog::new(kinds::all().into_iter().map(Arc::new));
        let addresses = Addresses::new(Ranges::default());
        let registry = Registry::new(store, catalog, Arc::new(SystemClock::default()), None, addresses);
        Bench { registry, _dir: dir }
    }

    fn kind(&self, plural: &str) -> Arc<Kind> {
        self.registry.kind("", "v1", plural).unwrap()
    }

    fn call(&self, verb: &'static str, plural: &str, name: &str) -> Call {
        Call::internal(self.kind(plural), verb, "ns", name)
    }

    async fn create(&self, plural: &str, object: Value) -> Result<Value, ApiStatus> {
        self.registry.create(&mut self.call("create", plural, ""), object).await.map(|w| w.object)
    }

    async fn map(&self, name: &str, labels: Value) -> Value {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, "data": {"a": "1"},
        });
        self.create("configmaps", object).await.unwrap()
    }

    async fn get(&self, plural: &str, name: &str) -> Option<Value> {
        let kind = self.kind(plural);
        self.registry.find(&kind, "ns", name).await.unwrap().map(|d| present(&kind, &d))
    }

    async fn delete(&self, plural: &str, name: &str, options: &DeleteOptions) -> Result<bool, ApiStatus> {
        self.registry.delete(&mut self.call("delete", plural, name), options).await.map(|d| d.done)
    }

    fn selection(&self, plural: &str, labels: &str, fields: &str) -> Selection {
        let (labels, fields) = (LabelSelector::parse(labels).unwrap(), FieldSelector::parse(fields).unwrap());
        Selection::new(self.kind(plural), "ns", labels, fields).unwrap()
    }

    async fn names(
        &self,
        selection: Selection,
        options: &ListOptions,
    ) -> Result<(Vec<String>, End), ApiStatus> {
        let mut lister = self.registry.list(selection, options).await?;
        let mut out = Vec::new();
        while let Some(page) = lister.next_page().await? {
            out.extend(page.iter().map(|d| meta::name(&d.to_value()).to_owned()));
        }
        Ok((out, lister.end()))
    }
}

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    })
}

#[tokio::test]
async fn a_new_object_is_stamped_and_found() {
    let bench = Bench::new();
    let made = bench.map("a", json!({})).await;
    assert_eq!(meta::namespace(&made), "ns");
    assert!(meta::uid(&made).len() == 36 && made["metadata"]["creationTimestamp"].is_string());
    assert_eq!(bench.get("configmaps", "a").await.unwrap(), made);
    let again = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    assert_eq!(bench.create("configmaps", again).await.unwrap_err().reason, "AlreadyExists");
    let bad = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "A_"}});
    assert_eq!(bench.create("configmaps", bad).await.unwrap_err().reason, "Invalid");
    let elsewhere =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b", "namespace": "x"}});
    assert_eq!(bench.create("configmaps", elsewhere).await.unwrap_err().code, 400);
    let generated = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "g-"}});
    let generated = bench.create("configmaps", generated).await.unwrap();
    assert!(meta::name(&generated).starts_with("g-") && meta::name(&generated).len() == 7);
}

#[tokio::test]
async fn a_dry_run_leaves_nothing() {
    let bench = Bench::new();
    let mut call = bench.call("create", "configmaps", "");
    call.options.dry_run = true;
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    bench.registry.create(&mut call, object).await.unwrap();
    assert_eq!(bench.get("configmaps", "a").await, None);
}

#[tokio::test]
async fn updates_build_on_what_is_there() {
    let bench = Bench::new();
    let first = bench.map("a", json!({})).await;
    let mut second = first.clone();
    second["data"]["a"] = "2".into();
    let mut call = bench.call("update", "configmaps", "a");
    let written = bench.registry.update(&mut call, second.clone()).await.unwrap();
    assert_eq!((&written.object["data"]["a"], written.outcome), (&json!("2"), Outcome::Updated));
    // The first version is no longer there to build on.
    let stale = bench.registry.update(&mut call, second).await.unwrap_err();
    assert_eq!((stale.code, stale.reason), (409, "Conflict"));
    // The same again is no write.
    let same = bench.registry.update(&mut call, written.object.clone()).await.unwrap();
    assert_eq!(same.object, written.object);
    let mut other = written.object.clone();
    other["metadata"]["uid"] = "other".into();
    assert_eq!(bench.registry.update(&mut call, other).await.unwrap_err().reason, "Conflict");
}

#[tokio::test]
async fn patches_of_three_kinds() {
    let bench = Bench::new();
    bench.map("a", json!({})).await;
    let patches = [
        (Patch::Json(json!([{"op": "add", "path": "/data/b", "value": "2"}])), json!({"a": "1", "b": "2"})),
        (Patch::Merge(json!({"data": {"a": null}})), json!({"b": "2"})),
        (Patch::Strategic(json!({"data": {"c": "3"}})), json!({"b": "2", "c": "3"})),
    ];
    for (patch, data) in patches {
        let mut call = bench.call("patch", "configmaps", "a");
        let written = bench.registry.patch(&mut call, &patch).await.unwrap();
        assert_eq!(written.object["data"], data);
    }
    let wrong = Patch::Merge(json!({"data": 7}));
    let api_status =
        bench.registry.patch(&mut bench.call("patch", "configmaps", "a"), &wrong).await.unwrap_err();
    assert_eq!(api_status.code, 422, "{}", api_status.message);
}

#[tokio::test]
async fn appliers_share_an_object_and_clash_over_a_field() {
    let bench = Bench::new();
    let config = |value: &str| {
        Patch::Apply(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": value},
        }))
    };
    let apply = async |manager: &str, patch: &Patch, force: bool| {
        let mut call = bench.call("patch", "configmaps", "a");
        manager.clone_into(&mut call.options.field_manager);
        call.options.force = force;
        bench.registry.patch(&mut call, patch).await
    };
    let made = apply("one", &config("1"), false).await.unwrap();
    assert_eq!(made.outcome, Outcome::Created);
    let again = apply("one", &config("1"), false).await.unwrap();
    assert_eq!(again.object["metadata"]["resourceVersion"], made.object["metadata"]["resourceVersion"]);
    let clash = apply("two", &config("2"), false).await.unwrap_err();
    assert_eq!((clash.code, clash.reason), (409, "Conflict"));
    assert_eq!(clash.details.unwrap().causes[0].field, ".data.x");
    assert_eq!(apply("two", &config("2"), true).await.unwrap().object["data"]["x"], "2");
}

#[tokio::test]
async fn lists_are_paged_at_one_revision() {
    let bench = Bench::new();
    for i in 0..7 {
        bench.map(&format!("m{i}"), json!({"even": (i % 2 == 0).to_string()})).await;
    }
    let all = || bench.selection("configmaps", "", "");
    let mut options = ListOptions { limit: Some(3), ..ListOptions::default() };
    let (first, end) = bench.names(all(), &options).await.unwrap();
    assert_eq!((first.as_slice(), end.remaining), (&["m0", "m1", "m2"].map(String::from)[..], Some(4)));
    // What comes later is not in the later pages.
    bench.map("m3a", json!({})).await;
    options.continue_token = end.continue_token;
    let (second, end) = bench.names(all(), &options).await.unwrap();
    assert_eq!(second, ["m3", "m4", "m5"]);
    options.continue_token = end.continue_token;
    let (third, end) = bench.names(all(), &options).await.unwrap();
    assert_eq!((third, end), (vec!["m6".to_owned()], End::default()));
    let none = ListOptions::default();
    let (even, _) = bench.names(bench.selection("configmaps", "even=true", ""), &none).await.unwrap();
    assert_eq!(even, ["m0", "m2", "m4", "m6"]);
    let (one, _) = bench.names(bench.selection("configmaps", "", "metadata.name=m5"), &none).await.unwrap();
    assert_eq!(one, ["m5"]);
    let two_even = ListOptions { limit: Some(2), ..ListOptions::default() };
    let (even, end) = bench.names(bench.selection("configmaps", "even=true", ""), &two_even).await.unwrap();
    assert!(even == ["m0", "m2"] && end.continue_token.is_some() && end.remaining.is_none());
    let bad = ListOptions { continue_token: Some("bm9uc2Vuc2U".into()), ..ListOptions::default() };
    assert_eq!(bench.names(all(), &bad).await.unwrap_err().code, 400);
    let future = ListOptions { version: Some(u64::MAX), ..ListOptions::default() };
    assert_eq!(bench.names(all(), &future).await.unwrap_err().code, 504);
}

#[tokio::test]
async fn an_old_token_is_refused_with_a_way_on() {
    let bench = Bench::new();
    for i in 0..4 {
        bench.map(&format!("m{i}"), json!({})).await;
    }
    let all = || bench.selection("configmaps", "", "");
    let mut options = ListOptions { limit: Some(2), ..ListOptions::default() };
    let (_, end) = bench.names(all(), &options).await.unwrap();
    bench.map("m9", json!({})).await;
    let store = bench.registry.store();
    store.compact(store.revision()).await.unwrap();
    options.continue_token = end.continue_token;
    let api_status = bench.names(all(), &options).await.unwrap_err();
    assert_eq!((api_status.code, api_status.reason), (410, "Expired"));
    options.continue_token = Some(api_status.details.unwrap().continue_token);
    let (rest, _) = bench.names(all(), &options).await.unwrap();
    assert_eq!(rest, ["m2", "m3"]);
}

#[tokio::test]
async fn a_watch_tells_what_begins_and_ceases_to_match() {
    let bench = Bench::new();
    bench.map("a", json!({"in": "yes"})).await;
    bench.map("b", json!({})).await;
    let selection = bench.selection("configmaps", "in=yes", "");
    let mut watch = bench.registry.watch(selection, &ListOptions::default()).await.unwrap();
    let label = async |name: &str, value: Value| {
        let patch = Patch::Merge(json!({"metadata": {"labels": {"in": value}}}));
        bench.registry.patch(&mut bench.call("patch", "configmaps", name), &patch).await.unwrap();
    };
    label("b", json!("yes")).await;
    label("a", Value::Null).await;
    bench.delete("configmaps", "b", &DeleteOptions::default()).await.unwrap();
    let mut told = Vec::new();
    for _ in 0..4 {
        told.push(match watch.next().await.unwrap() {
            Event::Added(d) => format!("added {}", meta::name(&d.to_value())),
            Event::Modified(d) => format!("modified {}", meta::name(&d.to_value())),
            Event::Deleted(d) => format!("deleted {}", meta::name(&d.to_value())),
            other => format!("{other:?}"),
        });
    }
    assert_eq!(told, ["added a", "added b", "deleted a", "deleted b"]);
}

#[tokio::test]
async fn a_watch_from_a_forgotten_revision_says_so() {
    let bench = Bench::new();
    bench.map("a", json!({})).await;
    bench.map("b", json!({})).await;
    let store = bench.registry.store();
    store.compact(store.revision()).await.unwrap();
    let options = ListOptions { version: Some(1), ..ListOptions::default() };
    let selection = bench.selection("configmaps", "", "");
    let mut watch = bench.registry.watch(selection, &options).await.unwrap();
    let Some(Event::Failed(api_status)) = watch.next().await else { panic!("no failure") };
    assert_eq!((api_status.code, api_status.reason), (410, "Expired"));
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn initial_events_end_with_a_mark() {
    let bench = Bench::new();
    bench.map("a", json!({})).await;
    let options = ListOptions {
        send_initial_events: Some(true),
        version_match: Some(apiserver_core::options::VersionMatch::NotOlderThan),
        bookmarks: true,
        ..ListOptions::default()
    };
    let selection = bench.selection("configmaps", "", "");
    let mut watch = bench.registry.watch(selection, &options).await.unwrap();
    assert!(matches!(watch.next().await, Some(Event::Added(_))));
    assert!(matches!(watch.next().await, Some(Event::Bookmark { initial_events_end: true, rev: 1 })));
}

#[tokio::test]
async fn finalizers_hold_an_object_until_the_last_is_gone() {
    let bench = Bench::new();
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "finalizers": ["example.com/x"]},
    });
    bench.create("configmaps", object).await.unwrap();
    assert!(!bench.delete("configmaps", "a", &DeleteOptions::default()).await.unwrap());
    let held = bench.get("configmaps", "a").await.unwrap();
    assert!(meta::is_deleting(&held));
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let written = bench.registry.patch(&mut bench.call("patch", "configmaps", "a"), &patch).await.unwrap();
    assert_eq!(written.outcome, Outcome::Deleted);
    assert_eq!(bench.get("configmaps", "a").await, None);
}

#[tokio::test]
async fn a_pod_on_a_node_is_given_its_grace() {
    let bench = Bench::new();
    bench.create("pods", pod("loose")).await.unwrap();
    assert!(bench.delete("pods", "loose", &DeleteOptions::default()).await.unwrap(), "nobody runs it");
    let mut bound = pod("bound");
    bound["spec"]["nodeName"] = "n".into();
    bench.create("pods", bound).await.unwrap();
    assert!(!bench.delete("pods", "bound", &DeleteOptions::default()).await.unwrap());
    let waiting = bench.get("pods", "bound").await.unwrap();
    assert_eq!(waiting["metadata"]["deletionGracePeriodSeconds"], 30);
    // A second deletion can only hasten it.
    let longer = DeleteOptions { grace_seconds: Some(60), ..DeleteOptions::default() };
    bench.delete("pods", "bound", &longer).await.unwrap();
    let still = bench.get("pods", "bound").await.unwrap();
    assert_eq!(still["metadata"]["deletionGracePeriodSeconds"], 30);
    let node = DeleteOptions { grace_seconds: Some(0), ..DeleteOptions::default() };
    assert!(bench.delete("pods", "bound", &node).await.unwrap());
}

#[tokio::test]
async fn preconditions_name_the_one_that_is_meant() {
    let bench = Bench::new();
    let made = bench.map("a", json!({})).await;
    let wrong = DeleteOptions { uid: Some("other".into()), ..DeleteOptions::default() };
    assert_eq!(bench.delete("configmaps", "a", &wrong).await.unwrap_err().reason, "Conflict");
    let right = DeleteOptions { uid: Some(meta::uid(&made).into()), ..DeleteOptions::default() };
    assert!(bench.delete("configmaps", "a", &right).await.unwrap());
    assert_eq!(bench.delete("configmaps", "a", &right).await.unwrap_err().reason, "NotFound");
}

#[tokio::test]
async fn services_get_addresses_and_give_them_back() {
    let bench = Bench::new();
    let service = |name: &str, ip: Option<&str>| {
        let mut service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"type": "NodePort", "ports": [{"port": 80}]},
        });
        if let Some(ip) = ip {
            service["spec"]["clusterIP"] = ip.into();
        }
        service
    };
    let made = bench.create("services", service("a", None)).await.unwrap();
    let ip = made["spec"]["clusterIP"].as_str().unwrap();
    assert!(made["spec"]["ports"][0]["nodePort"].as_i64().unwrap() >= 30_000);
    let clash = bench.create("services", service("b", Some(ip))).await.unwrap_err();
    assert!(clash.message.contains("already allocated"), "{}", clash.message);
    bench.delete("services", "a", &DeleteOptions::default()).await.unwrap();
    bench.create("services", service("b", Some(ip))).await.unwrap();
}

#[tokio::test]
async fn a_pod_is_bound_once() {
    let bench = Bench::new();
    bench.create("pods", pod("p")).await.unwrap();
    let call = bench.call("create", "pods", "p");
    let binding = |node: &str| json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": node}});
    bench.registry.bind(&call, &binding("n1")).await.unwrap();
    assert_eq!(bench.get("pods", "p").await.unwrap()["spec"]["nodeName"], "n1");
    assert_eq!(bench.registry.bind(&call, &binding("n2")).await.unwrap_err().reason, "Conflict");
}

#[tokio::test]
async fn an_evicted_pod_says_why_it_ends() {
    let bench = Bench::new();
    let mut held = pod("p");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let made = bench.create("pods", held).await.unwrap();
    let call = bench.call("create", "pods", "p");
    let evict = async |options: Value| {
        let eviction = json!({"metadata": {"name": "p"}, "deleteOptions": options});
        bench.registry.evict(&call, &eviction).await
    };
    evict(json!({"dryRun": ["All"]})).await.unwrap();
    assert_eq!(bench.get("pods", "p").await.unwrap(), made, "a dry run leaves nothing");
    let stale = evict(json!({"preconditions": {"resourceVersion": "77"}})).await.unwrap_err();
    assert_eq!(stale.reason, "Conflict");
    assert_eq!(bench.get("pods", "p").await.unwrap(), made, "nor does one of another Pod");
    let version = &made["metadata"]["resourceVersion"];
    evict(json!({"preconditions": {"resourceVersion": version}})).await.unwrap();
    let ending = bench.get("pods", "p").await.unwrap();
    assert!(meta::is_deleting(&ending));
    let mut condition = ending["status"]["conditions"][0].clone();
    assert!(condition["lastTransitionTime"].take().is_string());
    let said = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting", "lastProbeTime": null, "lastTransitionTime": null,
    });
    assert_eq!(condition, said);
}

#[tokio::test]
async fn nobody_makes_a_mirror_of_a_pod_that_is_there() {
    let bench = Bench::new();
    bench.create("pods", pod("p")).await.unwrap();
    let mirror = json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}});
    for subresource in ["", "status", "ephemeralcontainers", "resize"] {
        let mut call = bench.call("patch", "pods", "p");
        if let Some(resource) = &mut call.attributes.resource {
            resource.subresource = subresource.into();
        }
        let api_status = bench.registry.patch(&mut call, &Patch::Merge(mirror.clone())).await.unwrap_err();
        assert!(
            api_status.message.contains("may not add mirror pod annotation"),
            "{subresource}: {}",
            api_status.message
        );
    }
    let mut created = pod("m");
    created["metadata"]["annotations"] = mirror["metadata"]["annotations"].clone();
    bench.create("pods", created).await.unwrap();
    let gone = Patch::Merge(json!({"metadata": {"annotations": null}}));
    let api_status = bench.registry.patch(&mut bench.call("patch", "pods", "m"), &gone).await.unwrap_err();
    assert!(api_status.message.contains("may not remove or update mirror pod annotation"));
}

#[tokio::test]
async fn both_versions_of_an_autoscaler_show_one_object() {
    let bench = Bench::new();
    let kind =
        |version: &str| bench.registry.kind("autoscaling", version, "horizontalpodautoscalers").unwrap();
    let object = json!({
        "apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "web"}, "maxReplicas": 5,
            "targetCPUUtilizationPercentage": 70},
    });
    let made =
        bench.registry.create(&mut Call::internal(kind("v1"), "create", "ns", ""), object).await.unwrap();
    assert_eq!(made.object["spec"]["targetCPUUtilizationPercentage"], 70);
    let memory = json!({"type": "Resource", "resource": {"name": "memory",
        "target": {"type": "Utilization", "averageUtilization": 50}}});
    let add = Patch::Json(json!([{"op": "add", "path": "/spec/metrics/-", "value": memory}]));
    let written =
        bench.registry.patch(&mut Call::internal(kind("v2"), "patch", "ns", "h"), &add).await.unwrap();
    assert_eq!(written.object["spec"]["metrics"].as_array().map(Vec::len), Some(2));
    let more = Patch::Merge(json!({"spec": {"maxReplicas": 9}}));
    let shown =
        bench.registry.patch(&mut Call::internal(kind("v1"), "patch", "ns", "h"), &more).await.unwrap();
    assert_eq!(shown.object["apiVersion"], "autoscaling/v1");
    let stored =
        bench.registry.find(&kind("v2"), "ns", "h").await.unwrap().map(|d| present(&kind("v2"), &d)).unwrap();
    assert_eq!(
        (&stored["apiVersion"], &stored["spec"]["maxReplicas"]),
        (&json!("autoscaling/v2"), &json!(9))
    );
    assert_eq!(stored["spec"]["metrics"][0], memory, "the metric v1 has no field for is still there");
}

#[tokio::test]
async fn status_is_written_through_its_subresource_alone() {
    let bench = Bench::new();
    bench.create("pods", pod("p")).await.unwrap();
    let both = Patch::Merge(json!({"status": {"phase": "Running"}, "spec": {"activeDeadlineSeconds": 5}}));
    let mut main = bench.call("patch", "pods", "p");
    let written = bench.registry.patch(&mut main, &both).await.unwrap().object;
    assert_eq!(
        (&written["status"]["phase"], &written["spec"]["activeDeadlineSeconds"]),
        (&json!("Pending"), &json!(5))
    );
    let mut status = bench.call("patch", "pods", "p");
    if let Some(resource) = &mut status.attributes.resource {
        resource.subresource = "status".into();
    }
    let back = Patch::Merge(json!({"status": {"phase": "Running"}, "spec": {"activeDeadlineSeconds": 9}}));
    let written = bench.registry.patch(&mut status, &back).await.unwrap().object;
    assert_eq!(
        (&written["status"]["phase"], &written["spec"]["activeDeadlineSeconds"]),
        (&json!("Running"), &json!(5))
    );
}
