//! Event: something that happened to an object. Two groups show the same events, each with its own names for the
//! fields; they are kept as the core group names them.

use std::borrow::Cow;

use api::field::{FieldErrors, Path};
use api::names;
use base::time::Wall;
use serde_json::Value;

use super::check;
use crate::doc;
use crate::kind::{Column, Kind, NameRule, Strategy};
use crate::table;

const COLUMNS: &[Column] = &[
    Column::text("Last Seen", "When it was seen last"),
    Column::text("Type", "Normal or Warning"),
    Column::text("Reason", "Why it happened, in one word"),
    Column::text("Object", "What it is about"),
    Column::wide("Subobject", "Which part of the object it is about"),
    Column::wide("Source", "Who reports it"),
    Column::text("Message", "What happened"),
    Column::wide("First Seen", "When it was seen first"),
    Column::wide("Count", "How often it was seen"),
    Column::new("Name", "string", "name", 1, "The name, unique within a namespace"),
];

/// Fields by their name in events.k8s.io and in the core group.
const NAMES: &[(&str, &str)] = &[
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

pub(super) fn core() -> Kind {
    Kind::core("Event", "events", Core).short(&["ev"])
}

pub(super) fn events() -> Kind {
    Kind::new("events.k8s.io", "v1", "Event", "events", Events).short(&["ev"]).stored_as("events")
}

#[derive(Debug)]
struct Core;

#[derive(Debug)]
struct Events;

// === impl Core ===

impl Strategy for Core {
    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        plausible(errors, object, "reportingComponent");
    }

    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    fn creates_on_update(&self) -> bool {
        true
    }

    fn field<'a>(&self, name: &str, object: &'a Value) -> Option<Cow<'a, str>> {
        let path = match name {
            "involvedObject.kind"
            | "involvedObject.namespace"
            | "involvedObject.name"
            | "involvedObject.uid"
            | "involvedObject.apiVersion"
            | "involvedObject.resourceVersion"
            | "involvedObject.fieldPath"
            | "reason"
            | "reportingComponent"
            | "type" => name,
            "source" => match doc::text(object, "source.component") {
                "" => "reportingComponent",
                _ => "source.component",
            },
            _ => return None,
        };
        Some(doc::text(object, path).into())
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let mut first = table::since(&object["firstTimestamp"], now);
        if object["firstTimestamp"].is_null() {
            first = table::since(&object["eventTime"], now);
        }
        let mut last = match &object["lastTimestamp"] {
            Value::Null => first.clone(),
            time => table::since(time, now),
        };
        let mut count = doc::int(object, "count").max(1);
        if !object["series"].is_null() {
            last = table::since(doc::at(object, "series.lastObservedTime"), now);
            count = doc::int(object, "series.count");
        }
        vec![
            last.into(),
            doc::text(object, "type").into(),
            doc::text(object, "reason").into(),
            target(object).into(),
            doc::text(object, "involvedObject.fieldPath").into(),
            source(object).into(),
            doc::text(object, "message").trim().into(),
            first.into(),
            count.into(),
            table::name(object),
        ]
    }
}

// === impl Events ===

impl Strategy for Events {
    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let core = to_core(object);
        plausible(errors, &core, "reportingController");
        series(errors, object);
        if object["eventTime"].is_null() {
            errors.required(&Path::new("eventTime"), "");
        }
        let kind = doc::text(object, "type");
        if !matches!(kind, "Normal" | "Warning") {
            errors.invalid(&Path::new("type"), "", format!("has invalid value: {kind}"));
        }
        for field in ["firstTimestamp", "lastTimestamp", "count", "source"] {
            if !doc::is_unset(&core[field]) && core[field].as_i64() != Some(0) {
                errors.invalid(&Path::new(field), "", "needs to be unset");
            }
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        let (new_core, old_core) = (to_core(new), to_core(old));
        plausible(errors, &new_core, "reportingController");
        if new["series"] != old["series"] {
            series(errors, new);
        }
        for field in [
            "involvedObject",
            "reason",
            "message",
            "source",
            "firstTimestamp",
            "lastTimestamp",
            "count",
            "type",
            "eventTime",
            "action",
            "related",
            "reportingInstance",
        ] {
            check::immutable(errors, &new_core, &old_core, field);
        }
        if new["reportingController"] != old["reportingController"] {
            let now = new["reportingController"].clone();
            errors.invalid(&Path::new("reportingController"), now, check::IMMUTABLE);
        }
    }

    fn creates_on_update(&self) -> bool {
        true
    }

    fn converts(&self) -> bool {
        true
    }

    fn write_as_stored(&self, object: &mut Value) {
        rename(object, |(here, core)| (here, core));
        doc::set(object, "apiVersion", "v1");
    }

    fn show_as_here(&self, object: &mut Value) {
        rename(object, |(here, core)| (core, here));
        doc::set(object, "apiVersion", "events.k8s.io/v1");
    }

    fn field<'a>(&self, name: &str, object: &'a Value) -> Option<Cow<'a, str>> {
        let known = matches!(
            name,
            "reason"
                | "regarding.kind"
                | "regarding.namespace"
                | "regarding.name"
                | "regarding.uid"
                | "regarding.apiVersion"
                | "regarding.resourceVersion"
                | "regarding.fieldPath"
                | "reportingController"
                | "type"
        );
        known.then(|| doc::text(object, name).into())
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        Core.cells(&to_core(object), now)
    }
}

fn rename(object: &mut Value, direction: fn((&'static str, &'static str)) -> (&'static str, &'static str)) {
    let Some(map) = object.as_object_mut() else { return };
    for pair in NAMES {
        let (from, to) = direction(*pair);
        if let Some(value) = map.remove(from) {
            map.insert(to.to_owned(), value);
        }
    }
}

fn to_core(object: &Value) -> Value {
    let mut core = object.clone();
    Events.write_as_stored(&mut core);
    core
}

/// An event is in the namespace of its object, and one with a time also says who reports it and what was done.
fn plausible(errors: &mut FieldErrors, object: &Value, controller: &str) {
    let (namespace, about) =
        (doc::text(object, "metadata.namespace"), doc::text(object, "involvedObject.namespace"));
    let is_old = object["eventTime"].is_null();
    let fits = match (about, is_old) {
        ("", true) => matches!(namespace, "" | "default"),
        ("", false) => matches!(namespace, "default" | "kube-system"),
        (about, true) => about == namespace,
        (_, false) => true,
    };
    if !fits {
        errors.invalid(&Path::new("involvedObject.namespace"), about, "does not match event.namespace");
    }
    if !is_old {
        let reporter = doc::text(object, "reportingComponent");
        if reporter.is_empty() {
            errors.required(&Path::new(controller), "");
        }
        errors.each(&Path::new(controller), reporter, names::qualified_name(reporter));
        for field in ["reportingInstance", "action", "reason"] {
            match object[field].as_str().unwrap_or_default().len() {
                0 => errors.required(&Path::new(field), ""),
                1..=128 => {}
                _ => errors.invalid(&Path::new(field), "", "can have at most 128 characters"),
            }
        }
        if doc::text(object, "message").len() > 1024 {
            errors.invalid(&Path::new("message"), "", "can have at most 1024 characters");
        }
    }
    errors.each(&Path::new("namespace"), namespace, names::dns_subdomain(namespace));
}

fn series(errors: &mut FieldErrors, object: &Value) {
    if object["series"].is_null() {
        return;
    }
    if doc::int(object, "series.count") < 2 {
        errors.invalid(&Path::new("series.count"), "", "should be at least 2");
    }
    if doc::at(object, "series.lastObservedTime").is_null() {
        errors.required(&Path::new("series.lastObservedTime"), "");
    }
}

fn target(object: &Value) -> String {
    let kind = doc::text(object, "involvedObject.kind").to_lowercase();
    match doc::text(object, "involvedObject.name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    }
}

fn source(object: &Value) -> String {
    let first = |a: &str, b: &str| match doc::text(object, a) {
        "" => doc::text(object, b).to_owned(),
        text => text.to_owned(),
    };
    let component = first("source.component", "reportingComponent");
    match first("source.host", "reportingInstance") {
        instance if instance.is_empty() => component,
        instance => format!("{component}, {instance}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_groups_show_the_same_event() {
        let stored = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default"},
            "involvedObject": {"kind": "Pod", "name": "p"}, "reason": "Started", "message": " went up\n", "type": "Normal",
            "firstTimestamp": "1970-01-01T00:00:00Z", "lastTimestamp": "1970-01-01T00:01:00Z", "count": 3,
            "source": {"component": "kubelet", "host": "n"}, "reportingComponent": "kubelet"});
        let mut shown = stored.clone();
        Events.show_as_here(&mut shown);
        assert_eq!(shown["regarding"]["name"], "p");
        assert_eq!(shown["apiVersion"], "events.k8s.io/v1");
        let mut back = shown.clone();
        Events.write_as_stored(&mut back);
        assert_eq!(back, stored);
        let cells = json!(["60s", "Normal", "Started", "pod/p", "", "kubelet, n", "went up", "2m", 3, "e"]);
        assert_eq!(json!(Core.cells(&stored, Wall::from_secs(120))), cells);
        assert_eq!(json!(Events.cells(&shown, Wall::from_secs(120))), cells);
        assert_eq!(Core.field("involvedObject.name", &stored).as_deref(), Some("p"));
        assert_eq!(Core.field("source", &stored).as_deref(), Some("kubelet"));
        assert_eq!(Events.field("regarding.name", &shown).as_deref(), Some("p"));
        assert_eq!(Events.field("involvedObject.name", &shown), None);
    }

    #[test]
    fn an_event_lives_with_its_object() {
        let complaints = |object: Value| {
            let mut errors = FieldErrors::default();
            Core.validate(&object, &mut errors);
            errors.to_string()
        };
        let event = |namespace: &str, about: &str| json!({"metadata": {"namespace": namespace}, "involvedObject": {"namespace": about}});
        assert_eq!(complaints(event("a", "a")), "[]");
        assert_eq!(complaints(event("default", "")), "[]");
        let want = "involvedObject.namespace: Invalid value: \"b\": does not match event.namespace";
        assert_eq!(complaints(event("a", "b")), want);
        let mut timed = event("a", "a");
        timed["eventTime"] = json!("1970-01-01T00:00:00.000000Z");
        assert!(complaints(timed).contains("reportingComponent: Required value"));
    }
}
