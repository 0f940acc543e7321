//! Definitions against a real store.

use serde_json::json;

use super::*;
use crate::clock::SystemClock;
use crate::registry::addresses::{Addresses, Ranges};
use crate::registry::patch::Patch;
use apiserver_core::document;
use apiserver_core::options::{FieldValidation, WriteOptions};
use store::{Expect, Store};

struct Bench {
    registry: Registry,
    _dir: tempfile::TempDir,
}

const BINDINGS: (&str, &str, &str) = ("rbac.authorization.k8s.io", "v1", "rolebindings");

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), store::Options::default()).unwrap();
        let catalog = Catalog::new(apiserver_core::kinds::all().into_iter().map(Arc::new));
        let addresses = Addresses::new(Ranges::default());
        let registry = Registry::new(store, catalog, Arc::new(SystemClock::default()), None, addresses);
        Bench { registry, _dir: dir }
    }

    fn call(&self, verb: &'static str, (group, version, plural): (&str, &str, &str), name: &str) -> Call {
        let kind = self.registry.kind(group, version, plural).unwrap();
        Call::internal(kind, verb, "ns", name)
    }

    fn definition_call(&self, verb: &'static str, name: &str) -> Call {
        Call::internal(definitions(&self.registry).unwrap(), verb, "", name)
    }

    async fn define(&self, object: Value) -> Value {
        let mut call = self.definition_call("create", "");
        let made = self.registry.create(&mut call, object).await.unwrap().object;
        settle(&self.registry, None).await.unwrap();
        self.definition(meta::name(&made)).await.unwrap()
    }

    async fn definition(&self, name: &str) -> Option<Value> {
        let kind = definitions(&self.registry).unwrap();
        self.registry.find(&kind, "", name).await.unwrap().map(|d| present(&kind, &d))
    }

    /// Writes an object where and as an earlier release would have.
    async fn put_raw(&self, key: &str, object: &Value) {
        self.registry.store().put(key, document::encode(object), Expect::Any).await.unwrap();
    }

    async fn has(&self, key: &str) -> bool {
        self.registry.store().get(key).await.unwrap().is_some()
    }

    async fn bind(&self, name: &str) {
        let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": name}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}});
        self.registry.create(&mut self.call("create", BINDINGS, ""), binding).await.unwrap();
    }
}

fn definition_of(plural: &str, group: &str, version: &str, kind: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}"),
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}},
        "spec": {"group": group, "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
            "versions": [{"name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": {"type": "object", "properties": {"n": {"type": "integer"}}}}}}}]},
    })
}

fn condition(object: &Value, kind: &str) -> String {
    let found = doc::list(object, "status.conditions").iter().find(|c| c["type"] == kind);
    let text = |field: &str| found.map(|c| doc::text(c, field).to_owned()).unwrap_or_default();
    format!("{} {}: {}", text("status"), text("reason"), text("message"))
}

#[tokio::test]
async fn a_definition_cannot_take_over_a_built_in_kind_nor_take_it_along() {
    let bench = Bench::new();
    bench.bind("mine").await;
    for (version, kind) in [("v1", "RoleBinding"), ("v1alpha9", "Other")] {
        let object = bench.define(definition_of(BINDINGS.2, BINDINGS.0, version, kind)).await;
        assert!(condition(&object, "NamesAccepted").starts_with("False "), "{object}");
        assert_eq!(condition(&object, "Established"), "False NotAccepted: not all names are accepted");
        let approval = condition(&object, "KubernetesAPIApprovalPolicyConformant");
        assert_eq!(approval, "False UnapprovedAnnotation: not approved: \"unapproved, a test\"");
        let served = bench.registry.kind(BINDINGS.0, "v1", BINDINGS.2).unwrap();
        assert!(!served.is_custom());
        assert!(bench.registry.kind(BINDINGS.0, "v1alpha9", BINDINGS.2).is_err());
        let name = meta::name(&object);
        let mut call = bench.definition_call("delete", name);
        bench.registry.delete(&mut call, &DeleteOptions::default()).await.unwrap();
        assert!(end(&bench.registry, name).await.unwrap());
        assert_eq!(bench.definition(name).await, None);
        assert!(bench.has("/registry/rolebindings.rbac.authorization.k8s.io/ns/mine").await);
    }
}

#[tokio::test]
async fn a_forged_status_makes_no_second_owner() {
    let bench = Bench::new();
    let object =
        definition_of("certificatesigningrequests", "certificates.k8s.io", "v1", "CertificateSigningRequest");
    let object = bench.define(object).await;
    let mut call = bench.definition_call("update", meta::name(&object));
    call.attributes.resource.as_mut().unwrap().subresource = "status".to_owned();
    let mut forged = object.clone();
    forged["status"]["acceptedNames"] = object["spec"]["names"].clone();
    forged["status"]["conditions"] =
        json!([{"type": "Established", "status": "True"}, {"type": "NamesAccepted", "status": "True"}]);
    bench.registry.update(&mut call, forged.clone()).await.unwrap();
    // Served as if nobody had judged it …
    bench.registry.set_catalog(Catalog::new(
        bench.registry.catalog().kinds().cloned().chain(custom::kinds(&forged).into_iter().map(Arc::new)),
    ));
    let path = ("certificates.k8s.io", "v1", "certificatesigningrequests");
    assert!(!bench.registry.kind(path.0, path.1, path.2).unwrap().is_custom());
    // … and after it was.
    settle(&bench.registry, None).await.unwrap();
    assert!(!bench.registry.kind(path.0, path.1, path.2).unwrap().is_custom());
    let judged = bench.definition(meta::name(&object)).await.unwrap();
    assert!(!definition::is_established(&judged), "{judged}");
}

#[tokio::test]
async fn a_name_that_is_given_up_goes_to_whoever_waits_for_it() {
    let bench = Bench::new();
    let mut first = definition_of("foos", "example.com", "v1", "Foo");
    first["spec"]["names"]["shortNames"] = json!(["x"]);
    let mut second = definition_of("bars", "example.com", "v1", "Bar");
    second["spec"]["names"]["shortNames"] = json!(["x"]);
    bench.define(first).await;
    let second = bench.define(second).await;
    assert_eq!(condition(&second, "NamesAccepted"), "False ShortNamesConflict: \"x\" is already in use");
    let mut call = bench.definition_call("delete", "foos.example.com");
    bench.registry.delete(&mut call, &DeleteOptions::default()).await.unwrap();
    assert!(end(&bench.registry, "foos.example.com").await.unwrap());
    settle(&bench.registry, Some(&["example.com".to_owned()].into())).await.unwrap();
    let second = bench.definition("bars.example.com").await.unwrap();
    assert!(definition::is_established(&second), "{second}");
    let kind = bench.registry.kind("example.com", "v1", "bars").unwrap();
    assert_eq!(kind.short_names, ["x"]);
}

#[tokio::test]
async fn objects_of_an_earlier_release_move_to_their_own_place() {
    let bench = Bench::new();
    bench.define(definition_of("foos", "example.com", "v1", "Foo")).await;
    for i in 0..250 {
        let name = format!("a{i}");
        let object = json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": name, "namespace": "ns", "uid": name}});
        bench.put_raw(&format!("/registry/foos.example.com/ns/{name}"), &object).await;
    }
    // A start of the earlier release after the move: what it wrote last counts.
    let older = json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": "b", "namespace": "ns", "uid": "old"}});
    let newer = json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": "b", "namespace": "ns", "uid": "new"}});
    bench.put_raw("/custom/foos.example.com/ns/b", &older).await;
    bench.put_raw("/registry/foos.example.com/ns/b", &newer).await;
    for _ in 0..2 {
        prepare(&bench.registry).await.unwrap();
        let kind = bench.registry.kind("example.com", "v1", "foos").unwrap();
        let (found, _) = bench.registry.list_all(Selection::all(kind.clone())).await.unwrap();
        assert_eq!(found.len(), 251);
        let b = bench.registry.get(&kind, "ns", "b").await.unwrap().to_value();
        assert_eq!(meta::uid(&b), "new");
        let left = store::ListOptions { prefix: "/registry/foos.example.com/".into(), ..Default::default() };
        assert_eq!(bench.registry.store().list(left).await.unwrap().entries.len(), 0);
    }
}

#[tokio::test]
async fn a_store_whose_definition_took_over_a_built_in_kind_gives_it_back() {
    let bench = Bench::new();
    bench.bind("mine").await;
    // As an earlier release left it: established, with objects of both in one place.
    let mut taken = definition_of(BINDINGS.2, BINDINGS.0, "v1alpha9", "Other");
    taken["spec"]["names"]["listKind"] = json!("OtherList");
    taken["spec"]["names"]["singular"] = json!("other");
    taken["metadata"]["uid"] = json!("u");
    taken["metadata"]["finalizers"] = json!([CLEANUP]);
    let established = json!([{"type": "Established", "status": "True"}]);
    taken["status"] = json!({"storedVersions": ["v1alpha9"], "conditions": established, "acceptedNames": taken["spec"]["names"]});
    let name = "rolebindings.rbac.authorization.k8s.io";
    bench.put_raw(&format!("/registry/customresourcedefinitions.apiextensions.k8s.io/{name}"), &taken).await;
    let other = json!({"apiVersion": "rbac.authorization.k8s.io/v1alpha9", "kind": "Other", "metadata": {"name": "forged", "namespace": "ns", "uid": "f"}});
    bench.put_raw(&format!("/registry/{name}/ns/forged"), &other).await;

    prepare(&bench.registry).await.unwrap();
    assert!(bench.has(&format!("/registry/{name}/ns/mine")).await);
    assert!(!bench.has(&format!("/registry/{name}/ns/forged")).await, "no binding, and not among them");
    assert!(bench.has(&format!("/custom/{name}/ns/forged")).await);
    assert!(bench.registry.kind(BINDINGS.0, "v1alpha9", BINDINGS.2).is_err());
    let judged = bench.definition(name).await.unwrap();
    assert_eq!(
        condition(&judged, "NamesAccepted"),
        "False PluralConflict: \"rolebindings\" is already in use"
    );
    assert_eq!(condition(&judged, "Established"), "False NotAccepted: not all names are accepted");

    let mut call = bench.definition_call("delete", name);
    bench.registry.delete(&mut call, &DeleteOptions::default()).await.unwrap();
    assert!(end(&bench.registry, name).await.unwrap());
    assert!(bench.has(&format!("/registry/{name}/ns/mine")).await);
    assert!(!bench.has(&format!("/custom/{name}/ns/forged")).await);
}

#[tokio::test]
async fn a_kind_goes_with_its_objects_even_if_nobody_serves_it_and_takes_no_new_ones() {
    let bench = Bench::new();
    let mut object = bench.define(definition_of("foos", "example.com", "v1", "Foo")).await;
    let foo = |name: &str| json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": name, "finalizers": ["x.y/z"]}});
    let path = ("example.com", "v1", "foos");
    bench.registry.create(&mut bench.call("create", path, ""), foo("a")).await.unwrap();
    object["spec"]["versions"][0]["served"] = json!(false);
    let mut call = bench.definition_call("update", "foos.example.com");
    bench.registry.update(&mut call, object).await.unwrap();
    settle(&bench.registry, None).await.unwrap();
    assert!(bench.registry.kind("example.com", "v1", "foos").is_err());
    let mut call = bench.definition_call("delete", "foos.example.com");
    bench.registry.delete(&mut call, &DeleteOptions::default()).await.unwrap();
    assert!(!end(&bench.registry, "foos.example.com").await.unwrap(), "a finalizer holds one");

    let ending = bench.definition("foos.example.com").await.unwrap();
    let kind = Arc::new(custom::stored_kind(&ending).unwrap());
    let mut call = Call::internal(kind.clone(), "create", "ns", "");
    assert_eq!(bench.registry.create(&mut call, foo("b")).await.unwrap_err().code, 405);
    bench
        .registry
        .rewrite(&kind, "ns", "a", |object| {
            meta::set_finalizer(object, "x.y/z", false);
            Ok(true)
        })
        .await
        .unwrap();
    assert!(end(&bench.registry, "foos.example.com").await.unwrap());
    assert_eq!(bench.definition("foos.example.com").await, None);
    assert!(!bench.has("/custom/foos.example.com/ns/a").await);
}

#[tokio::test]
async fn a_definition_can_be_changed_after_it_was_made() {
    let bench = Bench::new();
    let made = bench.define(definition_of("foos", "example.com", "v1", "Foo")).await;
    assert_eq!(meta::finalizers(&made).collect::<Vec<_>>(), [CLEANUP]);
    let name = "foos.example.com";
    let patches = [
        Patch::Merge(json!({"metadata": {"labels": {"merge": "a"}}})),
        Patch::Strategic(json!({"metadata": {"labels": {"strategic": "a"}}})),
        Patch::Json(json!([{"op": "add", "path": "/metadata/labels/json", "value": "a"}])),
        Patch::Apply(json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": name, "labels": {"apply": "a"}}})),
        Patch::Merge(json!({"spec": {"names": {"shortNames": ["f"]}}})),
    ];
    for patch in patches {
        let mut call = bench.definition_call("patch", name);
        call.options = WriteOptions { field_manager: "m".to_owned(), ..WriteOptions::default() };
        bench.registry.patch(&mut call, &patch).await.unwrap_or_else(|e| panic!("{patch:?}: {}", e.message));
    }
    let mut object = bench.definition(name).await.unwrap();
    object["metadata"]["labels"]["replace"] = json!("a");
    let mut call = bench.definition_call("update", name);
    let written = bench.registry.update(&mut call, object).await.unwrap().object;
    let labels: Vec<&str> =
        written["metadata"]["labels"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(labels, ["apply", "json", "merge", "replace", "strategic"]);
    let mut call = bench.definition_call("update", name);
    call.attributes.resource.as_mut().unwrap().subresource = "status".to_owned();
    bench.registry.update(&mut call, written).await.unwrap();
}

#[tokio::test]
async fn defaults_a_schema_gains_later_are_seen_when_reading() {
    let bench = Bench::new();
    let path = ("example.com", "v1", "foos");
    let mut object = bench.define(definition_of("foos", "example.com", "v1", "Foo")).await;
    let foo =
        json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": "a"}, "spec": {"n": 1}});
    bench.registry.create(&mut bench.call("create", path, ""), foo).await.unwrap();
    let old = bench.registry.kind(path.0, path.1, path.2).unwrap();
    assert!(!old.strategy.converts(), "as long as nothing can differ, nothing is read twice");
    let properties = json!({"spec": {"type": "object", "properties": {"m": {"type": "integer", "default": 5}}},
        "top": {"type": "string", "default": "x"}});
    object["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"] = properties;
    bench.registry.update(&mut bench.definition_call("update", "foos.example.com"), object).await.unwrap();
    settle(&bench.registry, None).await.unwrap();

    let kind = bench.registry.kind(path.0, path.1, path.2).unwrap();
    let expected = |object: &Value| {
        assert_eq!((&object["spec"], &object["top"]), (&json!({"m": 5}), &json!("x")), "{object}");
    };
    expected(&present(&kind, &bench.registry.get(&kind, "ns", "a").await.unwrap()));
    let (listed, _) = bench.registry.list_all(Selection::all(kind.clone())).await.unwrap();
    expected(&present(&kind, &listed[0]));
    let mut watch =
        bench.registry.watch(Selection::all(kind.clone()), &ListOptions::default()).await.unwrap();
    let Some(Event::Added(document)) = watch.next().await else { panic!("no event") };
    expected(&present(&kind, &document));
    assert!(kind.strategy.converts(), "so that no stored text is passed on as it is");
    let patch = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    expected(&bench.registry.patch(&mut bench.call("patch", path, "a"), &patch).await.unwrap().object);
}

#[tokio::test]
async fn an_apply_tells_fields_that_are_not_declared_and_then_keys_that_stand_twice() {
    let bench = Bench::new();
    let path = ("example.com", "v1", "foos");
    bench.define(definition_of("foos", "example.com", "v1", "Foo")).await;
    let apply = async |wanted: Value, complaints: &[&str], how: FieldValidation| {
        let mut call = bench.call("patch", path, "a");
        call.complaints = complaints.iter().map(|c| (*c).to_owned()).collect();
        call.options.field_validation = how;
        let outcome = bench.registry.patch(&mut call, &Patch::Apply(wanted)).await;
        outcome.map(|_| call.warnings).map_err(|api_status| (api_status.code, api_status.message))
    };
    let foo =
        json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": "a"}, "spec": {"n": 1}});
    let mut odd = foo.clone();
    odd["unknownField"] = json!("x");
    odd["metadata"]["unknownMeta"] = json!("x");
    let twice = "yaml: unmarshal errors:\n  line 9: key \"n\" already set in map";
    for how in [FieldValidation::Strict, FieldValidation::Warn, FieldValidation::Ignore] {
        let (code, message) = apply(odd.clone(), &[twice], how).await.unwrap_err();
        let start = "failed to create typed patch object (ns/a; example.com/v1, Kind=Foo): errors:\n";
        assert!(code == 500 && message.starts_with(start), "{code} {message}");
        for field in [".unknownField", ".metadata.unknownMeta"] {
            assert!(message.contains(&format!("{field}: field not declared in schema")), "{message}");
        }
    }
    let (code, message) = apply(foo.clone(), &[twice], FieldValidation::Strict).await.unwrap_err();
    let told = format!("error converting YAML to JSON: {twice}");
    assert_eq!((code, message), (400, format!("error strict decoding YAML: {told}")));
    assert_eq!(apply(foo.clone(), &[twice], FieldValidation::Warn).await, Ok(vec![told]));
    assert_eq!(apply(foo, &[twice], FieldValidation::Ignore).await, Ok(Vec::new()));
}
