//! Malformed manifests: whatever is done to a good one, the answer is a Pod that is valid or an
//! error that says where the trouble is. Never a panic, never a hang.
#![allow(clippy::unwrap_used)]

use api::pod::static_pod::{Origin, prepare};
use api::pod::{Manifest, ManifestError, decode};
use base::time::Wall;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use serde_json::{Value, json};

const CASES: u32 = 1000;

/// A Pod that uses most of the fields a node cares about.
fn good() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "namespace": "default", "labels": {"app": "web"}, "annotations": {"a/b": "c"}},
        "spec": {
            "restartPolicy": "OnFailure", "terminationGracePeriodSeconds": 10, "activeDeadlineSeconds": 100,
            "hostname": "h", "subdomain": "s", "dnsPolicy": "None",
            "dnsConfig": {"nameservers": ["10.0.0.1"], "searches": ["a.b"], "options": [{"name": "ndots", "value": "5"}]},
            "hostAliases": [{"ip": "10.0.0.2", "hostnames": ["x"]}],
            "tolerations": [{"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute", "tolerationSeconds": 5}],
            "securityContext": {"runAsUser": 1, "fsGroup": 2, "supplementalGroups": [3],
                "sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}], "seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [
                {"name": "e", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
                {"name": "h", "hostPath": {"path": "/tmp", "type": "Directory"}},
                {"name": "d", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
                {"name": "p", "projected": {"sources": [{"downwardAPI": {"items": [
                    {"path": "cpu", "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu", "divisor": "1m"}}]}}]}}
            ],
            "initContainers": [{"name": "i", "image": "y:1", "restartPolicy": "Always", "startupProbe": {"exec": {"command": ["true"]}}}],
            "containers": [{
                "name": "c", "image": "x:1", "command": ["a"], "args": ["b"], "workingDir": "/",
                "ports": [{"name": "http", "containerPort": 80, "hostPort": 8080, "protocol": "TCP"}],
                "env": [{"name": "A", "value": "b"}, {"name": "F", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}},
                "volumeMounts": [{"name": "e", "mountPath": "/e", "subPath": "a/b"}, {"name": "h", "mountPath": "/h", "readOnly": true}],
                "livenessProbe": {"httpGet": {"port": "http", "path": "/", "httpHeaders": [{"name": "X", "value": "y"}]}, "periodSeconds": 5},
                "readinessProbe": {"tcpSocket": {"port": 80}, "successThreshold": 2},
                "lifecycle": {"preStop": {"sleep": {"seconds": 1}}, "postStart": {"exec": {"command": ["x"]}}},
                "securityContext": {"capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}, "readOnlyRootFilesystem": true},
                "restartPolicy": "Never",
                "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]
            }]
        }
    })
}

#[derive(Clone, Debug)]
enum Mutation {
    Delete,
    Swap(Value),
    Rename(String),
    Duplicate,
    Nest(u8),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let odd = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|f| json!(f)),
        ".{0,20}".prop_map(Value::from),
        (0u32..1_000_000).prop_map(|n| Value::from("x".repeat(n as usize % 100_000))),
        prop::sample::select(vec![
            "..",
            "/",
            "../..",
            "\u{0}",
            "\u{202e}",
            "é\u{301}",
            "$(A)",
            "-1",
            "1e999",
            "0x10",
            ""
        ])
        .prop_map(Value::from),
        Just(json!([])),
        Just(json!({})),
        Just(json!([[1], {"a": null}])),
    ];
    prop_oneof![
        2 => Just(Mutation::Delete),
        5 => odd.prop_map(Mutation::Swap),
        1 => "\\PC{1,12}".prop_map(Mutation::Rename),
        1 => Just(Mutation::Duplicate),
        1 => any::<u8>().prop_map(Mutation::Nest),
    ]
}

/// Pointers to every value of the document.
fn pointers(value: &Value, at: String, out: &mut Vec<String>) {
    out.push(at.clone());
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                pointers(inner, format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")), out);
            }
        }
        Value::Array(items) => {
            for (i, inner) in items.iter().enumerate() {
                pointers(inner, format!("{at}/{i}"), out);
            }
        }
        _ => {}
    }
}

fn mutate(document: &mut Value, pick: prop::sample::Index, mutation: &Mutation) {
    let mut all = Vec::new();
    pointers(document, String::new(), &mut all);
    let at = pick.get(&all).clone();
    if let Mutation::Swap(value) = mutation {
        *document.pointer_mut(&at).unwrap() = value.clone();
        return;
    }
    if let Mutation::Nest(depth) = mutation {
        let slot = document.pointer_mut(&at).unwrap();
        for _ in 0..*depth {
            *slot = json!([slot.take()]);
        }
        return;
    }
    let Some((parent, key)) = at.rsplit_once('/') else { return };
    match document.pointer_mut(parent).unwrap() {
        Value::Object(map) => {
            let key = key.replace("~1", "/").replace("~0", "~");
            let value = map.remove(&key).unwrap_or_default();
            if let Mutation::Rename(name) = mutation {
                map.insert(name.clone(), value);
            }
        }
        Value::Array(items) => {
            let index: usize = key.parse().unwrap();
            match mutation {
                Mutation::Duplicate => items.push(items[index].clone()),
                _ => drop(items.remove(index)),
            }
        }
        _ => {}
    }
}

/// Text in, a good Pod or a clear error out.
fn judge(bytes: &[u8]) -> Result<(), TestCaseError> {
    let pod = match decode(bytes, &mut |_| {}) {
        Ok(Manifest::Pod(pod)) => *pod,
        Ok(Manifest::List(_)) => return Ok(()),
        Err(e) => return clear(&e),
    };
    match prepare(pod, Origin::File("/m/web.yaml"), "node", Wall(1)) {
        Ok(pod) => {
            prop_assert!(api::pod::validate(&pod).is_empty());
            let text = serde_json::to_vec(&pod).unwrap();
            let again = decode(&text, &mut |_| {});
            let same = matches!(again, Ok(Manifest::Pod(again)) if *again == pod);
            prop_assert!(same, "the Pod does not survive being written and read");
        }
        Err(e) => clear(&e)?,
    }
    Ok(())
}

fn clear(e: &ManifestError) -> Result<(), TestCaseError> {
    let text = e.to_string();
    prop_assert!(!text.is_empty() && text.len() < 200_000, "{} bytes", text.len());
    let names_a_place = match e {
        ManifestError::Invalid(errors) => errors.iter().all(|f| !f.field.is_empty()),
        ManifestError::Shape(shape) => !shape.message.is_empty(),
        _ => true,
    };
    prop_assert!(names_a_place, "{text}");
    Ok(())
}

fn run<S: Strategy>(strategy: S, test: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    TestRunner::new(config).run(&strategy, test).unwrap();
}

#[test]
fn the_good_one_is_good() {
    let text = serde_json::to_vec(&good()).unwrap();
    let Ok(Manifest::Pod(pod)) = decode(&text, &mut |f| panic!("unknown field {f}")) else { panic!() };
    prepare(*pod, Origin::File("/m"), "node", Wall(1)).unwrap();
}

#[test]
fn mutated_manifests_give_clear_errors() {
    let mutations = prop::collection::vec((any::<prop::sample::Index>(), mutation()), 1..6);
    run((mutations, any::<bool>()), |(mutations, as_yaml)| {
        let mut document = good();
        for (pick, mutation) in &mutations {
            mutate(&mut document, *pick, mutation);
        }
        let text = if as_yaml { api::yaml::from_value_to_yaml(&document) } else { document.to_string() };
        judge(text.as_bytes())
    });
}

#[test]
fn damaged_bytes_give_clear_errors() {
    let cuts = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0usize..20), 1..8);
    run((cuts, any::<bool>()), |(cuts, as_yaml)| {
        let text = if as_yaml { api::yaml::from_value_to_yaml(&good()) } else { good().to_string() };
        let mut bytes = text.into_bytes();
        for (at, byte, remove) in cuts {
            let at = at.index(bytes.len());
            let end = (at + remove).min(bytes.len());
            bytes.splice(at..end, [byte]);
        }
        judge(&bytes)
    });
}

#[test]
fn nonsense_gives_clear_errors() {
    run(prop::collection::vec(any::<u8>(), 0..2000), |bytes| judge(&bytes));
}

#[test]
fn deep_nesting_and_bombs_are_refused() {
    for text in [
        "[".repeat(100_000),
        "{\"a\":".repeat(100_000),
        "- ".repeat(100_000),
        format!("apiVersion: v1\nkind: Pod\nspec: {}", "{a: ".repeat(5000)),
        {
            let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
            for i in 1..12 {
                bomb.push_str(&format!("a{i}: &a{i} [{}]\n", vec![format!("*a{}", i - 1); 9].join(", ")));
            }
            bomb
        },
    ] {
        assert!(decode(text.as_bytes(), &mut |_| {}).is_err());
    }
}
