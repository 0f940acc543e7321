#![allow(clippy::unwrap_used)]

use api::field::Path;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::apply::{Set, Writer, apply};

fn crontab() -> Value {
    json!({"type": "object", "required": ["spec"], "properties": {
        "spec": {"type": "object", "required": ["cron"], "properties": {
            "cron": {"type": "string", "pattern": "^\\d+ \\*$", "minLength": 3, "maxLength": 10},
            "replicas": {"type": "integer", "minimum": 1, "maximum": 10, "default": 1},
            "mode": {"type": "string", "enum": ["A", "B"]},
            "port": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
            "maybe": {"type": "string", "nullable": true},
            "ratio": {"type": "number", "multipleOf": 0.5},
            "when": {"type": "string", "format": "date-time"},
            "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
                "known": {"type": "object", "properties": {"x": {"type": "integer"}}}}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 2},
            "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set", "maxItems": 3},
            "jobs": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"},
                    "retries": {"type": "integer", "default": 3}}}},
            "template": {"type": "object", "x-kubernetes-embedded-resource": true,
                "x-kubernetes-preserve-unknown-fields": true},
        }, "oneOf": [{"required": ["mode"]}, {"required": ["cron"]}]},
        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
}

fn object(spec: Value) -> Value {
    json!({"apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": {"name": "c"}, "spec": spec})
}

fn mistakes(spec: Value) -> Vec<String> {
    let mut errors = FieldErrors::default();
    CustomType::new(&crontab()).validate(&object(spec), None, &mut errors);
    errors.iter().map(ToString::to_string).collect()
}

fn schema_mistakes(schema: &Value) -> Vec<String> {
    let mut errors = FieldErrors::default();
    check_schema(schema, &Path::new("schema"), &mut errors);
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn unknown_fields_are_pruned() {
    let custom = CustomType::new(&crontab());
    let mut given = object(json!({"cron": "1 *", "foo": 1, "jobs": [{"name": "a", "bar": 2}],
        "any": {"free": {"deep": 1}, "known": {"x": 1, "y": 2}}, "labels": {"a": "b"},
        "template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"typo": 1}, "spec": {"x": 1}}}));
    given["extra"] = json!({});
    given["metadata"]["typo"] = json!(1);
    let complaints = custom.conform(&mut given).unwrap();
    let want = [
        "unknown field \"metadata.typo\"",
        "unknown field \"extra\"",
        "unknown field \"spec.any.known.y\"",
        "unknown field \"spec.foo\"",
        "unknown field \"spec.jobs[0].bar\"",
        "unknown field \"spec.template.metadata.typo\"",
    ];
    assert_eq!(complaints, want);
    let want = object(
        json!({"cron": "1 *", "jobs": [{"name": "a"}], "any": {"free": {"deep": 1}, "known": {"x": 1}},
        "labels": {"a": "b"}, "template": {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {"x": 1}}}),
    );
    assert_eq!(given, want);
}

#[test]
fn metadata_of_an_embedded_resource_is_metadata() {
    let custom = CustomType::new(&crontab());
    let embedded = |metadata: Value| {
        object(json!({"cron": "1 *", "template": {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}}))
    };
    let message = custom.conform(&mut embedded(json!({"labels": {"a": 1}}))).unwrap_err().to_string();
    assert!(message.contains("cannot unmarshal number"), "{message}");
    // What is stored already is read all the same.
    let mut stored = embedded(json!({"labels": {"a": 1}}));
    custom.refresh(&mut stored);
    assert_eq!(stored["spec"]["template"]["metadata"], json!({"labels": {"a": 1}}));
}

/// What a tightened schema says of an update.
fn ratcheted(old: Value, new: Value) -> Vec<String> {
    let mut errors = FieldErrors::default();
    CustomType::new(&crontab()).validate(&object(new), Some(&object(old)), &mut errors);
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn what_is_unchanged_is_not_judged_again() {
    let old = json!({"cron": "x", "labels": {"a": 1}, "tags": ["a", 2],
        "jobs": [{"name": "a", "retries": "many"}, {"name": "b", "retries": 1}]});
    let with = |place: &str, value: Value| {
        let mut new = old.clone();
        *new.pointer_mut(place).unwrap() = value;
        ratcheted(old.clone(), new)
    };
    assert_eq!(ratcheted(old.clone(), old.clone()), [""; 0]);
    assert_eq!(with("/jobs/1/retries", json!(2)), [""; 0], "another field, another item");
    let turned = json!([{"name": "b", "retries": 1}, {"name": "a", "retries": "many"}]);
    assert_eq!(with("/jobs", turned), [""; 0], "items are known by their keys, not by their places");
    for (place, value, at) in [
        ("/cron", json!("y"), "spec.cron"),
        ("/labels/a", json!(2), "spec.labels.a"),
        ("/jobs/0/name", json!("c"), "spec.jobs[0].retries"),
        ("/tags", json!(["b", 2]), "spec.tags[1]"),
        ("/jobs/1", json!({"name": "a"}), "spec.jobs[1]"),
    ] {
        let mistakes = with(place, value);
        assert!(mistakes.iter().any(|m| m.starts_with(at)), "{place}: {mistakes:?}");
    }
}

#[test]
fn items_that_were_repeated_before_may_stay() {
    let old = json!({"cron": "1 *", "jobs": [{"name": "a"}, {"name": "a"}]});
    let mut new = old.clone();
    new["jobs"][1]["retries"] = json!(1);
    assert_eq!(ratcheted(old, new.clone()), [""; 0]);
    assert_eq!(mistakes(new), ["spec.jobs[1]: Duplicate value: {\"name\":\"a\"}"]);
}

#[test]
fn defaults_are_filled() {
    let custom = CustomType::new(&crontab());
    let mut given = object(
        json!({"cron": "1 *", "replicas": null, "maybe": null, "mode": null, "jobs": [{"name": "a"}]}),
    );
    custom.set_defaults(&mut given);
    let want = json!({"cron": "1 *", "replicas": 1, "maybe": null, "jobs": [{"name": "a", "retries": 3}]});
    assert_eq!(given["spec"], want);
}

#[test]
fn defaults_of_a_long_list_come_to_an_end() {
    let property = json!({"type": "string", "default": "x".repeat(1024)});
    let properties: serde_json::Map<String, Value> =
        (0..300).map(|n| (format!("p{n}"), property.clone())).collect();
    let items = json!({"type": "object", "properties": properties});
    let schema = json!({"type": "object", "properties": {"spec": {"type": "array", "items": items}}});
    let mut given = json!({"spec": vec![json!({}); 3_000]});
    CustomType::new(&schema).set_defaults(&mut given);
    assert_eq!(given["spec"][0].as_object().unwrap().len(), 300);
    let size = given.to_string().len();
    assert!((4 << 20..5 << 20).contains(&size), "{size}");
}

#[test]
fn mistakes_speak_as_upstream() {
    let good = json!({"cron": "12 *", "replicas": 2, "port": "http", "ratio": 1.5, "tags": ["a", "b"],
        "when": "2024-01-01T00:00:00Z", "maybe": null});
    assert_eq!(mistakes(good), [""; 0]);
    let cases = [
        (
            json!({"cron": 1}),
            vec![
                "spec.cron: Invalid value: \"integer\": spec.cron in body must be of type string: \"integer\"",
            ],
        ),
        (json!({"mode": "A"}), vec!["spec.cron: Required value"]),
        (
            json!({"cron": "x *"}),
            vec!["spec.cron: Invalid value: \"x *\": spec.cron in body should match '^\\d+ \\*$'"],
        ),
        (json!({"cron": "123456789 *"}), vec!["spec.cron: Too long: may not be more than 10 bytes"]),
        (
            json!({"cron": "1 *", "replicas": 11}),
            vec![
                "spec.replicas: Invalid value: 11: spec.replicas in body should be less than or equal to 10",
            ],
        ),
        (
            json!({"cron": "1 *", "replicas": 1.5}),
            vec![
                "spec.replicas: Invalid value: \"number\": spec.replicas in body must be of type integer: \"number\"",
            ],
        ),
        (
            json!({"cron": "1 *", "ratio": 0.7}),
            vec!["spec.ratio: Invalid value: 0.7: spec.ratio in body should be a multiple of 0.5"],
        ),
        (
            json!({"cron": "1 *", "when": "noon"}),
            vec!["spec.when: Invalid value: \"noon\": spec.when in body must be of type date-time: \"noon\""],
        ),
        (
            json!({"cron": "1 *", "mode": "C"}),
            vec![
                "spec.mode: Unsupported value: \"C\": supported values: \"A\", \"B\"",
                "<nil>: Invalid value: \"\": \"spec\" must validate one and only one schema (oneOf). \
                 Found 2 valid alternatives",
            ],
        ),
        (json!({"cron": "1 *", "tags": ["a", "a"]}), vec!["spec.tags[1]: Duplicate value: \"a\""]),
        (
            json!({"cron": "1 *", "jobs": [{"name": "a"}, {"name": "a"}]}),
            vec!["spec.jobs[1]: Duplicate value: {\"name\":\"a\"}"],
        ),
        (json!({"cron": "1 *", "jobs": [{}]}), vec!["spec.jobs[0].name: Required value"]),
        (
            json!({"cron": "1 *", "tags": ["a", "b", "c", "d"]}),
            vec!["spec.tags: Too many: 4: must have at most 3 items"],
        ),
        (
            json!({"cron": "1 *", "labels": {"a": 1}}),
            vec![
                "spec.labels.a: Invalid value: \"integer\": spec.labels.a in body must be of type string: \"integer\"",
            ],
        ),
        (
            json!({"cron": "1 *", "template": {"kind": "Pod"}}),
            vec!["spec.template.apiVersion: Required value"],
        ),
        (
            json!({"cron": null}),
            vec!["spec.cron: Invalid value: \"null\": spec.cron in body must be of type string: \"null\""],
        ),
        (
            json!({"cron": "1 *", "port": true}),
            vec![
                "spec.port: Invalid value: \"boolean\": spec.port in body must be of type integer,string: \"boolean\"",
            ],
        ),
    ];
    for (spec, want) in cases {
        let mut found = mistakes(spec.clone());
        found.sort_by_key(|m| m.starts_with('<'));
        assert_eq!(found, want, "{spec}");
    }
}

#[test]
fn schemas_must_be_structural() {
    assert_eq!(schema_mistakes(&crontab()), [""; 0]);
    let cases = [
        (json!({}), "schema.type: Required value: must not be empty at the root"),
        (json!({"type": "string"}), "schema.type: Invalid value: \"string\": must be object at the root"),
        (
            json!({"type": "object", "properties": {"a": {}}}),
            "schema.properties[a].type: Required value: must not be empty for specified object fields",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "array"}}}),
            "schema.properties[a].items: Required value: must be specified",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}),
            "schema.properties[a].pattern: Invalid value: \"(\": must be a valid regular expression, but isn't:",
        ),
        (
            json!({"type": "object", "anyOf": [{"properties": {"a": {"minimum": 1}}}]}),
            "schema.properties[a]: Required value: because it is defined in schema.anyOf[0].properties[a]",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string", "allOf": [{"type": "string"}]}}}),
            "schema.properties[a].allOf[0].type: Forbidden: must be empty to be structural",
        ),
        (
            json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {}}}}}),
            "schema.properties[metadata]: Forbidden: must not specify anything other than name and generateName",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "array", "x-kubernetes-list-type": "map",
                "items": {"type": "object"}}}}),
            "schema.properties[a].x-kubernetes-list-map-keys: Required value: must not be empty",
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
            "schema.additionalProperties: Forbidden: must not be used at the root",
        ),
    ];
    for (schema, want) in cases {
        let found = schema_mistakes(&schema);
        assert!(found.iter().any(|m| m.starts_with(want)), "{found:?} lacks {want}");
    }
    let mut deep = json!({"type": "string"});
    for _ in 0..60 {
        deep = json!({"type": "object", "properties": {"a": deep}});
    }
    assert_eq!(schema_mistakes(&deep).len(), 1);
}

#[test]
fn lists_of_custom_kinds_are_owned_as_said() {
    let custom = CustomType::new(&crontab());
    let ignored = Set::of(&[&["status"]]);
    let writer = |manager| Writer {
        manager,
        api_version: "stable.example.com/v1",
        subresource: "",
        ignored: &ignored,
        now: "2024-01-01T00:00:00Z",
    };
    let jobs = |names: &[&str]| json!({"jobs": names.iter().map(|n| json!({"name": n})).collect::<Vec<_>>()});
    let one = apply(None, &object(jobs(&["a", "b"])), custom.at(), &writer("x"), false).unwrap();
    let two = apply(Some(&one), &object(jobs(&["c"])), custom.at(), &writer("y"), false).unwrap();
    let three = apply(Some(&two), &object(jobs(&["b"])), custom.at(), &writer("x"), false).unwrap();
    assert_eq!(three["spec"], jobs(&["b", "c"]));
    let mut labelled = object(json!({"any": {"free": [1]}}));
    labelled["metadata"]["labels"] = json!({"a": "b"});
    let four = apply(None, &labelled, custom.at(), &writer("x"), false).unwrap();
    let fields = &four["metadata"]["managedFields"][0]["fieldsV1"];
    let want = json!({"f:metadata": {"f:labels": {"f:a": {}}}, "f:spec": {"f:any": {"f:free": {}}}});
    assert_eq!(fields, &want);
    let unknown = apply(None, &object(json!({"foo": 1})), custom.at(), &writer("x"), false).unwrap_err();
    assert!(unknown.to_string().ends_with(".spec.foo: field not declared in schema"), "{unknown}");
}

proptest! {
    #[test]
    fn any_object_meets_any_schema(schema in crate::testing::json_value(), object in crate::testing::json_value()) {
        let nested = json!({"type": "object", "properties": {"a": schema, "b": {"type": "array", "items": schema}}});
        for schema in [&schema, &nested] {
            let _ = schema_mistakes(schema);
            let custom = CustomType::new(schema);
            for object in [object.clone(), json!({"a": object, "b": [object]})] {
                let mut object = object;
                let _ = custom.conform(&mut object);
                custom.set_defaults(&mut object);
                custom.validate(&object, None, &mut FieldErrors::default());
            }
        }
    }

    #[test]
    fn pruning_and_defaulting_settle(spec in crate::testing::json_value()) {
        let custom = CustomType::new(&crontab());
        let mut once = object(spec);
        custom.conform(&mut once).unwrap();
        custom.set_defaults(&mut once);
        let mut twice = once.clone();
        prop_assert_eq!(custom.conform(&mut twice).unwrap(), Vec::<String>::new());
        custom.set_defaults(&mut twice);
        prop_assert_eq!(once, twice);
    }
}
