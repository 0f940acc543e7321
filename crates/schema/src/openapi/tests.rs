#![allow(clippy::unwrap_used)]

use super::*;

const ALL: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

fn deployments() -> Resource<'static> {
    let kind = ("apps", "v1", "Deployment");
    Resource {
        group: "apps",
        version: "v1",
        kind: "Deployment",
        plural: "deployments",
        is_namespaced: true,
        verbs: ALL.to_vec(),
        subresources: vec![
            Sub { name: "status", kind, verbs: vec!["get", "patch", "update"] },
            Sub {
                name: "scale",
                kind: ("autoscaling", "v1", "Scale"),
                verbs: vec!["get", "patch", "update"],
            },
        ],
        schema: Source::Builtin("io.k8s.api.apps.v1.Deployment"),
    }
}

fn crontabs(schema: &Value) -> Resource<'_> {
    Resource {
        group: "stable.example.com",
        version: "v1",
        kind: "CronTab",
        plural: "crontabs",
        is_namespaced: false,
        verbs: ALL.to_vec(),
        subresources: vec![],
        schema: Source::Custom(schema),
    }
}

/// Every `$ref` of a document.
fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    // A field of that name has a schema, a reference has a text.
                    Value::String(to) if key == "$ref" => found.push(to.clone()),
                    value => references(value, found),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

#[test]
fn documents_are_whole() {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "n": {"type": "integer", "nullable": true}, "either": {"x-kubernetes-int-or-string": true,
            "anyOf": [{"type": "integer"}, {"type": "string"}]}}}}});
    let resources = [deployments(), crontabs(&schema)];
    for (document, prefix) in [(v3(&resources), "#/components/schemas/"), (v2(&resources), "#/definitions/")]
    {
        let document: Value = serde_json::from_slice(&document).unwrap();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 200, "{}", found.len());
        for reference in found {
            let name = reference.strip_prefix(prefix).unwrap();
            let definitions =
                document.pointer("/components/schemas").or(document.get("definitions")).unwrap();
            assert!(definitions.get(name).is_some(), "{reference}");
        }
    }
}

#[test]
fn what_kubectl_looks_for_is_there() {
    let document: Value = serde_json::from_slice(&v3(&[deployments()])).unwrap();
    let patch = &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
    assert_eq!(patch["operationId"], "patchAppsV1NamespacedDeployment");
    let kind = json!({"group": "apps", "version": "v1", "kind": "Deployment"});
    assert_eq!(patch["x-kubernetes-group-version-kind"], kind);
    let parameters: Vec<&str> =
        patch["parameters"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap()).collect();
    assert_eq!(parameters, ["dryRun", "fieldManager", "fieldValidation", "force"]);
    assert!(patch["requestBody"]["content"].get("application/strategic-merge-patch+json").is_some());
    let schemas = &document["components"]["schemas"];
    assert_eq!(schemas["io.k8s.api.apps.v1.Deployment"]["x-kubernetes-group-version-kind"], json!([kind]));
    let containers = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(containers["x-kubernetes-list-type"], "map");
    assert!(containers["description"].as_str().unwrap().starts_with("List of containers"));
    let protocol = &schemas["io.k8s.api.core.v1.ContainerPort"]["properties"]["protocol"];
    assert_eq!(protocol["default"], "TCP");
    let scale = &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale"]["get"];
    assert_eq!(scale["x-kubernetes-group-version-kind"]["kind"], "Scale");
}

#[test]
fn custom_kinds_are_told_as_upstream_tells_them() {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"type": "string"}}});
    let embedding = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "inner": {"type": "object", "x-kubernetes-embedded-resource": true},
        "any": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}}}}});
    let name = "com.example.stable.v1.CronTab";
    let v2 = |schema: &Value| -> Value {
        serde_json::from_slice::<Value>(&v2(&[crontabs(schema)])).unwrap()["definitions"][name].clone()
    };
    let kinds = json!([{"group": "stable.example.com", "version": "v1", "kind": "CronTab"}]);
    let bare = json!({"type": "object", "x-kubernetes-group-version-kind": kinds});
    assert_eq!((v2(&open), v2(&Value::Null)), (bare.clone(), bare));
    let told = v2(&embedding);
    let described = |field: &str| told["properties"][field]["description"].as_str().unwrap();
    assert!(described("apiVersion").starts_with("APIVersion defines the versioned schema"), "{told}");
    assert!(described("metadata").starts_with("Standard object's metadata"), "{told}");
    let inner = &told["properties"]["spec"]["properties"]["inner"];
    assert_eq!(inner["required"], json!(["apiVersion", "kind"]));
    assert!(inner["properties"]["metadata"]["$ref"].as_str().unwrap().ends_with(".ObjectMeta"));
    let any = &told["properties"]["spec"]["properties"]["any"];
    assert_eq!(any.get("properties"), None, "kubectl would take these for all there are");
    let v3: Value = serde_json::from_slice(&v3(&[crontabs(&open)])).unwrap();
    assert_eq!(v3["components"]["schemas"][name]["properties"]["a"], json!({"type": "string"}));
}

#[test]
fn digests_follow_what_is_served() {
    let (one, two) = (json!({"type": "object"}), json!({"type": "object", "description": "x"}));
    assert_eq!(digest(&[crontabs(&one)]), digest(&[crontabs(&one)]));
    assert_ne!(digest(&[crontabs(&one)]), digest(&[crontabs(&two)]));
    let index = v3_index([("apis/apps/v1", digest(&[deployments()]))]);
    let address = index["paths"]["apis/apps/v1"]["serverRelativeURL"].as_str().unwrap();
    assert!(address.starts_with("/openapi/v3/apis/apps/v1?hash="));
}

/// Reads a message's fields: number and content of those that have a length.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    fn number(bytes: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return value;
            }
        }
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = number(&mut bytes);
        let length = match tag & 7 {
            0 => {
                number(&mut bytes);
                0
            }
            1 => 8,
            _ => usize::try_from(number(&mut bytes)).unwrap(),
        };
        found.push((tag >> 3, bytes[..length].to_vec()));
        bytes = &bytes[length..];
    }
    found
}

#[test]
fn protobuf_tells_the_same() {
    let resources = [deployments()];
    let document: Value = serde_json::from_slice(&v2(&resources)).unwrap();
    let message = fields(&v2_protobuf(&resources));
    let inside = |number: u64| -> Vec<(u64, Vec<u8>)> {
        fields(&message.iter().find(|(field, _)| *field == number).unwrap().1)
    };
    let names = |number: u64| -> Vec<String> {
        inside(number)
            .iter()
            .map(|(_, entry)| String::from_utf8(fields(entry)[0].1.clone()).unwrap())
            .collect()
    };
    let mut paths = names(8);
    paths.sort();
    assert_eq!(paths, document["paths"].as_object().unwrap().keys().cloned().collect::<Vec<_>>());
    let mut definitions = names(9);
    definitions.sort();
    assert_eq!(definitions, document["definitions"].as_object().unwrap().keys().cloned().collect::<Vec<_>>());
}
