#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::decode::conform;

const NOW: &str = "2024-01-01T00:00:00Z";
const LATER: &str = "2024-01-02T00:00:00Z";

fn deployment() -> At<'static> {
    At::kind("apps", "v1", "Deployment").unwrap()
}

fn ignored() -> &'static Set {
    static IGNORED: std::sync::OnceLock<Set> = std::sync::OnceLock::new();
    IGNORED.get_or_init(|| Set::of(&[&["status"]]))
}

fn writer(manager: &'static str, now: &'static str) -> Writer<'static> {
    Writer { manager, api_version: "apps/v1", subresource: "", ignored: ignored(), now }
}

fn config(spec: Value) -> Value {
    let mut config =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "d"}});
    // An empty object is something to own; nothing is not.
    if spec != json!({}) {
        config["spec"] = spec;
    }
    config
}

fn applied(
    live: Option<&Value>,
    manager: &'static str,
    spec: Value,
    force: bool,
) -> Result<Value, ApplyError> {
    let mut object = apply(live, &config(spec), deployment(), &writer(manager, NOW), force)?;
    conform(&mut object, deployment()).unwrap();
    Ok(object)
}

fn updated(live: Option<&Value>, manager: &'static str, mut new: Value) -> Value {
    conform(&mut new, deployment()).unwrap();
    update(live, &mut new, deployment(), &writer(manager, NOW));
    new
}

/// manager -> fields
fn owners(object: &Value) -> Value {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    entries.into_iter().map(|e| (e["manager"].as_str().unwrap().to_owned(), e["fieldsV1"].clone())).collect()
}

#[test]
fn a_create_owns_what_it_says() {
    let object = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "strategy": {"type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": "25%"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [
                {"name": "c", "image": "i", "ports": [{"containerPort": 80, "protocol": "TCP"}], "args": ["a"]}]}}}});
    let object = updated(None, "kubectl-create", object);
    // What is always there (spec, template, the list of containers) is not owned; what was brought along is.
    let want = json!({
        "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
        "f:spec": {"f:replicas": {}, "f:selector": {}, "f:strategy": {
                "f:rollingUpdate": {".": {}, "f:maxSurge": {}}, "f:type": {}},
            "f:template": {"f:metadata": {"f:labels": {".": {}, "f:app": {}}}, "f:spec": {"f:containers": {
                "k:{\"name\":\"c\"}": {".": {}, "f:args": {}, "f:image": {}, "f:name": {}, "f:ports": {".": {},
                    "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}, "f:protocol": {}}},
                    "f:resources": {}}}}}}});
    assert_eq!(owners(&object)["kubectl-create"], want);
    let entry = &object["metadata"]["managedFields"][0];
    assert_eq!(entry["operation"], "Update");
    assert_eq!(entry["apiVersion"], "apps/v1");
    assert_eq!(entry["time"], NOW);
    assert_eq!(entry["fieldsType"], "FieldsV1");
}

#[test]
fn an_update_takes_what_it_changes() {
    let first = updated(None, "a", config(json!({"replicas": 1, "paused": true})));
    let mut second = first.clone();
    second["spec"]["replicas"] = 5.into();
    second["spec"].as_object_mut().unwrap().remove("paused");
    let second = updated(Some(&first), "b", second);
    assert_eq!(owners(&second), json!({"b": {"f:spec": {"f:replicas": {}}}}));
    // A write that changes nothing leaves no trace, not even of the time.
    let mut third = second.clone();
    conform(&mut third, deployment()).unwrap();
    update(Some(&second), &mut third, deployment(), &writer("c", LATER));
    assert_eq!(third, second);
}

#[test]
fn the_status_is_owned_through_its_subresource_only() {
    let first = updated(None, "a", config(json!({"replicas": 1})));
    let mut second = first.clone();
    second["status"] = json!({"replicas": 1});
    let through_main = updated(Some(&first), "b", second.clone());
    assert_eq!(owners(&through_main), owners(&first));
    let ignored = Set::of(&[&["spec"], &["metadata"]]);
    let status = Writer { subresource: "status", ignored: &ignored, ..writer("b", NOW) };
    update(Some(&first), &mut second, deployment(), &status);
    assert_eq!(owners(&second)["b"], json!({"f:status": {"f:replicas": {}}}));
    assert_eq!(second["metadata"]["managedFields"][1]["subresource"], "status");
}

#[test]
fn managers_can_be_edited_and_reset() {
    let first = updated(None, "a", config(json!({"replicas": 1})));
    let mut reset = first.clone();
    reset["metadata"]["managedFields"] = json!([{}]);
    let reset = updated(Some(&first), "b", reset);
    assert_eq!(reset["metadata"].get("managedFields"), None);
    // Untracked, and an update does not begin to track.
    let mut changed = reset.clone();
    changed["spec"]["replicas"] = 2.into();
    let changed = updated(Some(&reset), "b", changed);
    assert_eq!(changed["metadata"].get("managedFields"), None);
    // The first apply does.
    let object = applied(Some(&changed), "ssa", json!({"replicas": 2}), false).unwrap();
    assert_eq!(owners(&object)["before-first-apply"]["f:spec"]["f:replicas"], json!({}));
    assert_eq!(owners(&object)["ssa"], json!({"f:spec": {"f:replicas": {}}}));
    let error = applied(Some(&changed), "ssa", json!({"replicas": 3}), false).unwrap_err();
    let want =
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using apps/v1: .spec.replicas";
    assert_eq!(error.to_string(), want);
    let mut nonsense = first.clone();
    nonsense["metadata"]["managedFields"] = json!([{"manager": "x"}]);
    assert_eq!(owners(&updated(Some(&first), "b", nonsense)), owners(&first));
}

#[test]
fn conflicts_are_told_and_forced() {
    let live = updated(None, "kubectl-create", config(json!({"replicas": 1, "paused": true})));
    let live = applied(Some(&live), "other", json!({"minReadySeconds": 4}), false).unwrap();
    let error = applied(Some(&live), "me", json!({"replicas": 2}), false).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"kubectl-create\" using apps/v1: .spec.replicas"
    );
    let error =
        applied(Some(&live), "me", json!({"replicas": 2, "paused": false, "minReadySeconds": 5}), false)
            .unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 3 conflicts: conflicts with \"kubectl-create\" using apps/v1:\n- .spec.paused\n\
         - .spec.replicas\nconflicts with \"other\":\n- .spec.minReadySeconds"
    );
    let forced = applied(Some(&live), "me", json!({"replicas": 2}), true).unwrap();
    assert_eq!(forced["spec"]["replicas"], 2);
    assert_eq!(owners(&forced)["me"], json!({"f:spec": {"f:replicas": {}}}));
    assert_eq!(owners(&forced)["kubectl-create"]["f:spec"].get("f:replicas"), None);
    // The same value is shared, not contested.
    let shared = applied(Some(&live), "me", json!({"replicas": 1}), false).unwrap();
    assert!(owners(&shared)["kubectl-create"]["f:spec"].get("f:replicas").is_some());
    assert!(owners(&shared)["me"]["f:spec"].get("f:replicas").is_some());
}

#[test]
fn what_is_no_longer_applied_goes_unless_owned() {
    let containers = |names: &[&str]| -> Value {
        names.iter().map(|n| json!({"name": n, "image": "i"})).collect::<Vec<_>>().into()
    };
    let spec = |names: &[&str]| json!({"template": {"spec": {"containers": containers(names)}}});
    let one = applied(None, "a", spec(&["x", "y", "z"]), false).unwrap();
    let two = applied(Some(&one), "b", spec(&["y"]), false).unwrap();
    let three = applied(Some(&two), "a", spec(&["z", "x2"]), false).unwrap();
    let names: Vec<&str> = three["spec"]["template"]["spec"]["containers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["y", "z", "x2"]);
    // A field inside an item that another manager owns keeps the item, without what only we applied.
    let with_tty = json!({"template": {"spec": {"containers": [{"name": "x", "tty": true, "image": "i"}]}}});
    let only_tty = json!({"template": {"spec": {"containers": [{"name": "x", "tty": true}]}}});
    let one = applied(None, "a", with_tty, false).unwrap();
    let two = applied(Some(&one), "b", only_tty, false).unwrap();
    let three = applied(Some(&two), "a", json!({}), false).unwrap();
    let left = json!([{"name": "x", "tty": true, "resources": {}}]);
    assert_eq!(three["spec"]["template"]["spec"]["containers"], left);
    assert_eq!(owners(&three).get("a"), None);
}

#[test]
fn default_keys_tell_ports_apart() {
    let spec = |ports: Value| json!({"template": {"spec": {"containers": [{"name": "c", "ports": ports}]}}});
    let one = applied(
        None,
        "a",
        spec(json!([{"containerPort": 53}, {"containerPort": 53, "protocol": "UDP"}])),
        false,
    );
    let one = one.unwrap();
    let key = "k:{\"containerPort\":53,\"protocol\":\"TCP\"}";
    let fields =
        &owners(&one)["a"]["f:spec"]["f:template"]["f:spec"]["f:containers"]["k:{\"name\":\"c\"}"]["f:ports"];
    assert!(fields.get(key).is_some(), "{fields}");
    let twice = spec(json!([{"containerPort": 53}, {"containerPort": 53, "protocol": "TCP"}]));
    let error = applied(None, "a", twice, false).unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to create typed patch object (d/web; apps/v1, Kind=Deployment): \
         .spec.template.spec.containers[name=\"c\"].ports: duplicate entries for key [containerPort=53,protocol=\"TCP\"]"
    );
}

#[test]
fn atomic_things_are_replaced() {
    let one = applied(None, "a", json!({"selector": {"matchLabels": {"a": "1", "b": "2"}}}), false).unwrap();
    let two = applied(Some(&one), "a", json!({"selector": {"matchLabels": {"b": "2"}}}), false).unwrap();
    assert_eq!(two["spec"]["selector"], json!({"matchLabels": {"b": "2"}}));
    assert_eq!(owners(&two)["a"], json!({"f:spec": {"f:selector": {}}}));
}

#[test]
fn configurations_are_checked() {
    let unknown = applied(None, "a", json!({"foo": 1}), false).unwrap_err();
    let want = "failed to create typed patch object (d/web; apps/v1, Kind=Deployment): \
                .spec.foo: field not declared in schema";
    assert_eq!(unknown.to_string(), want);
    let mut wrong = config(json!({}));
    wrong["apiVersion"] = "apps/v2".into();
    let error = apply(None, &wrong, deployment(), &writer("a", NOW), false).unwrap_err();
    let want =
        "Incorrect version specified in apply patch. Specified patch version: apps/v2, expected: apps/v1";
    assert_eq!(error, ApplyError::BadRequest(want.into()));
    wrong = config(json!({}));
    wrong["metadata"]["managedFields"] = json!([]);
    let error = apply(None, &wrong, deployment(), &writer("a", NOW), false).unwrap_err();
    assert_eq!(error, ApplyError::BadRequest("metadata.managedFields must be nil".into()));
}

#[test]
fn kubectl_takes_over_from_its_client_side_self() {
    let mut object = config(json!({"replicas": 1, "paused": true}));
    object["metadata"]["annotations"] =
        json!({LAST_APPLIED: config(json!({"replicas": 1, "paused": true})).to_string()});
    let mut live = updated(None, "kubectl-client-side-apply", object);
    // Somebody else changed what kubectl applied: that stays a conflict.
    let scaled = applied(Some(&live), "kubectl", json!({"replicas": 3}), false).unwrap();
    assert_eq!(scaled["spec"]["replicas"], 3);
    let annotation = scaled["metadata"]["annotations"][LAST_APPLIED].as_str().unwrap();
    assert_eq!(annotation, format!("{}\n", config(json!({"replicas": 3}))));
    let mut new = live.clone();
    new["spec"]["replicas"] = 9.into();
    live = updated(Some(&live), "scaler", new);
    let error = applied(Some(&live), "kubectl", json!({"replicas": 3, "paused": false}), false).unwrap_err();
    let want = "Apply failed with 1 conflict: conflict with \"scaler\" using apps/v1: .spec.replicas";
    assert_eq!(error.to_string(), want);
}

#[test]
fn unknown_types_are_owned_as_they_look() {
    let at = At::UNKNOWN;
    let w = Writer { api_version: "example.com/v1", ..writer("a", NOW) };
    let config = |spec: Value| json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": "f"}, "spec": spec});
    let one = apply(None, &config(json!({"list": [1, 2], "map": {"x": 1, "y": 2}})), at, &w, false).unwrap();
    let want = json!({"f:spec": {".": {}, "f:list": {}, "f:map": {".": {}, "f:x": {}, "f:y": {}}}});
    assert_eq!(owners(&one)["a"], want);
    let two = apply(Some(&one), &config(json!({"list": [2], "map": {"y": 2}})), at, &w, false).unwrap();
    assert_eq!(two["spec"], json!({"list": [2], "map": {"y": 2}}));
}

fn arbitrary_spec() -> impl Strategy<Value = Value> {
    let container = ("[a-c]", proptest::option::of("[x-z]"), proptest::option::of(0..3_i64)).prop_map(
        |(name, image, port)| {
            let mut container = json!({"name": name});
            if let Some(image) = image {
                container["image"] = image.into();
            }
            if let Some(port) = port {
                container["ports"] = json!([{"containerPort": port + 1}]);
            }
            container
        },
    );
    (
        proptest::option::of(1..4_i64),
        proptest::option::of(any::<bool>()),
        proptest::collection::vec(container, 0..4),
        proptest::collection::btree_map("[a-c]", "[x-z]", 0..3),
    )
        .prop_map(|(replicas, paused, mut containers, labels)| {
            let mut seen = std::collections::BTreeSet::new();
            containers.retain(|c| seen.insert(c["name"].to_string()));
            let mut spec = json!({});
            if let Some(replicas) = replicas {
                spec["replicas"] = replicas.into();
            }
            if paused == Some(true) {
                spec["paused"] = true.into();
            }
            if !containers.is_empty() {
                spec["template"]["spec"]["containers"] = containers.into();
            }
            if !labels.is_empty() {
                spec["template"]["metadata"]["labels"] = json!(labels);
            }
            spec
        })
}

/// Whether `object` holds everything `wanted` says; lists by name.
fn holds(object: &Value, wanted: &Value) -> bool {
    match (object, wanted) {
        (Value::Object(object), Value::Object(wanted)) => {
            wanted.iter().all(|(k, w)| object.get(k).is_some_and(|o| holds(o, w)))
        }
        (Value::Array(object), Value::Array(wanted)) => {
            wanted.iter().all(|w| object.iter().any(|o| holds(o, w)))
        }
        (object, wanted) => object == wanted,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn applying_twice_is_applying_once(first in arbitrary_spec(), second in arbitrary_spec()) {
        let one = applied(None, "a", first, false).unwrap();
        let two = applied(Some(&one), "b", second.clone(), true).unwrap();
        let three = applied(Some(&two), "b", second.clone(), false).unwrap();
        prop_assert_eq!(&two, &three);
        prop_assert!(holds(&two["spec"], &second), "{} lacks {}", two["spec"], second);
    }

    #[test]
    fn a_lone_manager_gets_what_it_says(first in arbitrary_spec(), second in arbitrary_spec()) {
        let fresh = applied(None, "a", second.clone(), false).unwrap();
        let one = applied(None, "a", first, false).unwrap();
        let two = applied(Some(&one), "a", second, false).unwrap();
        prop_assert_eq!(&two["spec"], &fresh["spec"]);
        prop_assert_eq!(owners(&two), owners(&fresh));
    }

    #[test]
    fn forced_managers_leave_nothing_behind(specs in proptest::collection::vec((0..2_usize, arbitrary_spec()), 1..5)) {
        let mut live: Option<Value> = None;
        for (who, spec) in specs {
            live = Some(applied(live.as_ref(), ["a", "b"][who], spec, true).unwrap());
        }
        let blank = applied(None, "x", json!({}), false).unwrap();
        for who in ["a", "b"] {
            live = Some(applied(live.as_ref(), who, json!({}), false).unwrap());
        }
        let live = live.unwrap();
        prop_assert_eq!(&live["spec"], &blank["spec"]);
        prop_assert_eq!(live["metadata"].get("managedFields"), None);
    }

    #[test]
    fn without_conflict_nothing_of_others_changes(first in arbitrary_spec(), second in arbitrary_spec()) {
        let one = applied(None, "a", first.clone(), false).unwrap();
        if let Ok(two) = applied(Some(&one), "b", second.clone(), false) {
            prop_assert!(holds(&two["spec"], &first));
            prop_assert!(holds(&two["spec"], &second));
        }
    }

    #[test]
    fn updates_account_for_every_change(first in arbitrary_spec(), second in arbitrary_spec()) {
        let one = updated(None, "a", config(first));
        prop_assume!(owners(&one) != json!({}));
        let two = updated(Some(&one), "b", config(second));
        let (Ok(before), Ok(after)) = (Managed::of(&one), Managed::of(&two)) else { panic!() };
        let changes = walk::compare(&without_managers(&one), &without_managers(&two), deployment());
        let taken = changes.added.union(&changes.modified).difference(&NOBODYS);
        let owned = |m: &Managed, name: &str| -> Set {
            m.entries.iter().filter(|(m, _)| m.name == name).fold(Set::default(), |s, (_, e)| s.union(&e.set))
        };
        prop_assert_eq!(owned(&after, "b"), taken.clone());
        prop_assert_eq!(owned(&after, "a"), owned(&before, "a").difference(&taken).difference(&changes.removed));
    }
}

/// What the long way finds.
fn compared(new: &Value, at: At<'_>, writer: &Writer<'_>) -> Value {
    let mut managed = Managed::default();
    note_update(&walk::blank(at), new, at, &mut managed, writer, writer.manager);
    let mut object = json!({});
    managed.write(&mut object);
    object["metadata"]["managedFields"].take()
}

fn created(new: &Value, at: At<'_>, writer: &Writer<'_>) -> Value {
    let mut new = new.clone();
    update(None, &mut new, at, writer);
    new["metadata"]["managedFields"].take()
}

/// JSON whose keys are often those of fields.
fn arbitrary_json() -> impl Strategy<Value = Value> {
    const NAMES: &[&str] = &[
        "metadata",
        "labels",
        "spec",
        "template",
        "containers",
        "ports",
        "name",
        "containerPort",
        "protocol",
        "status",
        "replicas",
        "selector",
        "finalizers",
        "env",
        "managedFields",
        "strategy",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0..3_i64).prop_map(Value::from),
        "[ab]?".prop_map(Value::from),
    ];
    leaf.prop_recursive(8, 96, 6, |inner| {
        let name = proptest::sample::select(NAMES).prop_map(str::to_owned);
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(name, inner, 0..6)
                .prop_map(|map| map.into_iter().collect::<Map<_, _>>().into()),
        ]
    })
}

proptest! {
    #[test]
    fn a_create_owns_what_a_comparison_with_nothing_finds(
        meta in arbitrary_json(), spec in arbitrary_json(), pod in arbitrary_json(),
        ports in arbitrary_json(), port in arbitrary_json(), finalizers in arbitrary_json(), status in arbitrary_json(),
    ) {
        let pod = json!({"containers": [{"name": "a", "ports": ports, "env": pod}, {"name": "a"},
            {"name": "b", "image": "x", "ports": [{"containerPort": 1}, {"containerPort": 1, "protocol": "UDP"}, port]}]});
        let whole = json!({"kind": "X", "metadata": {"name": "n", "labels": meta, "finalizers": finalizers,
            "annotations": {"a": "b"}}, "spec": {"template": {"metadata": meta, "spec": pod}, "replicas": 1},
            "status": status});
        let odd = json!({"metadata": {"labels": meta, "ownerReferences": ports}, "spec": spec, "more": status});
        let nothing = Set::default();
        let plain = writer("m", NOW);
        let deep = Writer { ignored: &Set::of(&[&["spec", "template"], &["metadata", "labels", "name"]]), ..plain };
        for object in [&whole, &odd, &json!({})] {
            for at in [deployment(), At::kind("", "v1", "Pod").unwrap(), At::UNKNOWN] {
                for writer in [plain, deep, Writer { ignored: &nothing, subresource: "scale", ..plain }] {
                    prop_assert_eq!(created(object, at, &writer), compared(object, at, &writer));
                }
            }
        }
    }
}
