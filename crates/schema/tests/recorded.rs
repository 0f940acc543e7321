//! What a real API server did, done again by this crate.
//!
//! `recorded/` holds requests to kube-apiserver 1.36 and what became of the object: the change as a merge patch (with the
//! managers as an object, so that the patch stays small), or the error. Each line goes on where the last one about the
//! same object ended.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use schema::apply::{ApplyError, Set, Writer, apply, update};
use schema::custom::CustomType;
use schema::decode::{conform, parse};
use schema::patch::{apply_json, apply_merge, apply_strategic};
use schema::types::At;
use serde_json::{Value, json};

/// The steps with `live` and `result` written out.
fn steps() -> Vec<Value> {
    let mut steps: Vec<Value> = serde_json::from_str(include_str!("recorded/writes.json")).unwrap();
    let mut objects: BTreeMap<String, Value> = BTreeMap::new();
    for step in &mut steps {
        let name = format!("{}/{}", step["kind"], step["name"]);
        let live = objects.get(&name).cloned();
        let mut after = live.clone().unwrap_or(json!({}));
        match (step.get("change"), step.get("result")) {
            (Some(change), _) => apply_merge(&mut after, change),
            (None, Some(result)) => after = result.clone(),
            (None, None) => {
                step["live"] = live.map(with_managers).into();
                continue;
            }
        }
        if step["op"] == "update" {
            let mut request = with_managers(live.clone().unwrap());
            apply_merge(&mut request, &step["request"]);
            step["request"] = request;
        }
        step["live"] = live.map(with_managers).into();
        step["result"] = with_managers(after.clone());
        objects.insert(name, after);
    }
    steps
}

/// The object with its managers as the list they are.
fn with_managers(mut object: Value) -> Value {
    if let Some(Value::Object(managers)) = object["metadata"].get_mut("managedFields").map(Value::take) {
        object["metadata"]["managedFields"] = managers.into_iter().map(|(_, entry)| entry).collect();
    }
    object
}

/// The object without what the server counts, dates and names by itself.
fn plain(object: &Value) -> Value {
    let mut object = object.clone();
    let metadata = object["metadata"].as_object_mut().unwrap();
    for name in [
        "resourceVersion",
        "uid",
        "creationTimestamp",
        "generation",
        "managedFields",
        "namespace",
        "deletionGracePeriodSeconds",
    ] {
        metadata.remove(name);
    }
    if metadata.is_empty() {
        object.as_object_mut().unwrap().remove("metadata");
    }
    object
}

/// Managers without the time.
fn managers(object: &Value) -> Value {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let mut entries: Vec<Value> = entries
        .into_iter()
        .map(|mut entry| {
            entry.as_object_mut().unwrap().remove("time");
            entry
        })
        .collect();
    entries.sort_by_key(|e| format!("{}{}{}", e["operation"], e["manager"], e["subresource"]));
    entries.into()
}

struct Kind {
    custom: Option<CustomType>,
    at: Option<At<'static>>,
}

impl Kind {
    fn of(step: &Value) -> Kind {
        match step["kind"].as_str().unwrap() {
            "CronTab" => {
                let schema: Value = serde_json::from_str(include_str!("recorded/crontab.json")).unwrap();
                Kind { custom: Some(CustomType::new(&schema)), at: None }
            }
            "Deployment" => Kind { custom: None, at: At::kind("apps", "v1", "Deployment") },
            kind => Kind { custom: None, at: At::kind("", "v1", kind) },
        }
    }

    fn at(&self) -> At<'_> {
        self.custom.as_ref().map_or_else(|| self.at.unwrap(), CustomType::at)
    }

    fn conform(&self, object: &mut Value) -> Result<Vec<String>, String> {
        match &self.custom {
            Some(custom) => {
                let complaints = custom.conform(object).map_err(|e| e.to_string())?;
                custom.set_defaults(object);
                Ok(complaints)
            }
            None => conform(object, self.at()).map_err(|e| e.to_string()),
        }
    }
}

#[test]
fn writes() {
    for (i, step) in steps().iter().enumerate() {
        let kind = Kind::of(step);
        let name = format!("step {i}: {} {} by {}", step["op"], step["kind"], step["manager"]);
        let subresource = step["subresource"].as_str().unwrap_or_default();
        let ignored = match subresource {
            "" => Set::of(&[&["status"]]),
            _ => Set::of(&[&["spec"], &["metadata", "labels"]]),
        };
        let api_version =
            step["request"]["apiVersion"].as_str().or(step["live"]["apiVersion"].as_str()).unwrap();
        let writer = Writer {
            manager: step["manager"].as_str().unwrap(),
            api_version,
            subresource,
            ignored: &ignored,
            now: "2030-01-01T00:00:00Z",
        };
        let live = Some(&step["live"]).filter(|live| !live.is_null());
        let outcome = perform(step, live, &kind, &writer);
        match (&step["result"], outcome) {
            (Value::Null, outcome) => {
                let message = step["message"].as_str().unwrap();
                match outcome {
                    // The reason a JSON patch does not apply stands in the causes.
                    Err(_) if message.starts_with("the server rejected our request") => {}
                    Err(ours) => {
                        assert!(ours.lines().all(|l| message.contains(l)), "{name}: {ours}\n{message}")
                    }
                    // Refused for reasons of the kind, not of the document.
                    Ok(_) => assert!(message.contains("is invalid:"), "{name}: {message}"),
                }
            }
            (theirs, Ok(ours)) => {
                assert_eq!(managers(&ours), managers(theirs), "{name}");
                let is_new = live.is_none() || step["op"] == "apply";
                // A new object gets defaults from its kind, which is not this crate's affair.
                if !is_new || step["kind"] == "CronTab" {
                    assert_eq!(plain(&ours), plain(theirs), "{name}");
                }
            }
            (_, Err(ours)) => panic!("{name}: {ours}"),
        }
    }
}

fn perform(step: &Value, live: Option<&Value>, kind: &Kind, writer: &Writer<'_>) -> Result<Value, String> {
    let request = &step["request"];
    let mut new = match step["op"].as_str().unwrap() {
        "apply" => {
            let force = step["force"] == true;
            let mut object =
                apply(live, request, kind.at(), writer, force).map_err(|e: ApplyError| e.to_string())?;
            kind.conform(&mut object)?;
            return Ok(object);
        }
        // With the defaults the server filled in.
        "create" if step["kind"] != "CronTab" => {
            plain(step["result"].get("kind").map_or(request, |_| &step["result"]))
        }
        "create" | "update" => request.clone(),
        op => {
            let mut object = live.unwrap().clone();
            match op {
                "smp" => {
                    apply_strategic(&mut object, request.clone(), kind.at()).map_err(|e| e.to_string())?
                }
                "json" => apply_json(&mut object, request).map_err(|e| e.to_string())?,
                _ => apply_merge(&mut object, request),
            }
            object
        }
    };
    kind.conform(&mut new)?;
    if step["op"] == "create" && step["kind"] == "Service" {
        // Given by the server, owned by nobody.
        for name in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            new["spec"].as_object_mut().unwrap().remove(name);
        }
    }
    if kind.custom.is_none() && step["result"].is_object() && step["op"] != "create" {
        // What the patch brought gets defaults too; managers own them.
        assert!(
            holds(&step["result"], &plain(&new)),
            "{} lacks something of {}",
            step["result"],
            plain(&new)
        );
        new = step["result"].clone();
        if step["op"] != "update" {
            new["metadata"]["managedFields"] = Value::Null;
        } else {
            new["metadata"]["managedFields"] = request["metadata"]["managedFields"].clone();
        }
    }
    update(live, &mut new, kind.at(), writer);
    if let Some(custom) = &kind.custom {
        let mut errors = api::field::FieldErrors::default();
        custom.validate(&new, live, &mut errors);
        if !errors.is_empty() {
            let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
            return Err(lines.join("\n"));
        }
    }
    Ok(new)
}

#[test]
fn decodings() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("recorded/decodings.json")).unwrap();
    for case in cases {
        let body = case["body"].as_str().unwrap();
        let theirs = case["message"].as_str().unwrap_or_default();
        let Ok(parsed) = parse(body.as_bytes()) else {
            assert!(theirs.contains("json parse error"), "{theirs}");
            continue;
        };
        let mut object = parsed.value;
        let Some(kind) = object["kind"].as_str().map(ToOwned::to_owned) else { continue };
        let api_version = object["apiVersion"].as_str().unwrap().to_owned();
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let at = At::kind(group, version, &kind).unwrap();
        let ours = match conform(&mut object, at) {
            Err(misfit) => misfit.to_string(),
            Ok(complaints) if complaints.is_empty() && parsed.complaints.is_empty() => {
                let theirs = plain(&without_nulls(&case["result"]));
                // The one kind here that has defaults of its own.
                if kind == "LimitRange" {
                    assert!(holds(&theirs, &plain(&object)));
                } else {
                    assert_eq!(plain(&object), theirs, "{body}");
                }
                continue;
            }
            Ok(complaints) => {
                // Theirs are in the order of the text, ours in that of the names.
                let all: Vec<String> = complaints.into_iter().chain(parsed.complaints).collect();
                assert!(all.iter().all(|c| theirs.contains(c)), "{all:?} {theirs}");
                assert_eq!(all.len(), theirs.matches(" field ").count());
                continue;
            }
        };
        assert_eq!(format!("{kind} in version \"{version}\" cannot be handled as a {kind}: {ours}"), theirs);
    }
}

/// Whether `object` says everything `wanted` says; lists item by item.
fn holds(object: &Value, wanted: &Value) -> bool {
    match (object, wanted) {
        (Value::Object(object), Value::Object(wanted)) => {
            wanted.iter().all(|(k, w)| object.get(k).is_some_and(|o| holds(o, w)))
        }
        (Value::Array(object), Value::Array(wanted)) => {
            object.len() == wanted.len() && object.iter().zip(wanted).all(|(o, w)| holds(o, w))
        }
        (object, wanted) => object == wanted,
    }
}

/// Their answer without the nulls that their encoder writes for absent lists and times.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            map.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.clone(), without_nulls(v))).collect()
        }
        Value::Array(list) => list.iter().map(without_nulls).collect(),
        other => json!(other),
    }
}
