//! Job: Pods that come to an end.

mod spec;
mod status;

use std::borrow::Cow;

use api::field::{FieldErrors, Path};
use api::names;
use base::rfc3339::Moment;
use base::time::Wall;
use serde_json::{Value, json};

use super::{pod_template, selector};
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, Strategy};
use crate::table;

pub(super) use spec::validate_spec;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::text("Status", "How far it is"),
    Column::text("Completions", "How many Pods succeeded, and how many shall"),
    Column::text("Duration", "How long it took or has taken so far"),
    Column::AGE,
    Column::wide("Containers", "Names of the containers in the template"),
    Column::wide("Images", "Images of the containers in the template"),
    Column::wide("Selector", "Which Pods belong to it"),
];

/// Labels by which a Job knows its Pods, the older unqualified ones included.
const NAME_LABELS: [&str; 2] = ["job-name", "batch.kubernetes.io/job-name"];
const UID_LABELS: [&str; 2] = ["controller-uid", "batch.kubernetes.io/controller-uid"];

pub(super) fn kind() -> Kind {
    Kind::new("batch", "v1", "Job", "jobs", Job).category("all").with_status()
}

#[derive(Debug)]
struct Job;

// === impl Job ===

impl Strategy for Job {
    fn set_defaults(&self, object: &mut Value) {
        let labels = doc::at(object, "spec.template.metadata.labels").clone();
        if !labels.is_null() && doc::is_unset(doc::at(object, "metadata.labels")) {
            doc::set(object, "metadata.labels", labels);
        }
        spec::set_defaults(object);
        doc::fill(object, "spec.manualSelector", false);
    }

    fn prepare_create(&self, object: &mut Value) {
        if !doc::is_true(object, "spec.manualSelector") {
            select_by_uid(object);
        }
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        generated_selector(errors, object);
        let spec = Field::root(object).get("spec");
        validate_spec(errors, &spec);
        let selector = spec.get("selector");
        if selector.is_set() {
            selector::validate(errors, &selector);
        } else {
            errors.required(&selector.at, "");
        }
        pod_template::matches_template(errors, &selector, &spec.get("template"));
        host_names(errors, object);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        self.validate(new, errors);
        spec::validate_update(errors, new, old);
    }

    fn validate_status(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        status::validate(errors, new, old);
    }

    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        let complaints = names::dns_label(doc::text(new, "metadata.name"));
        if old.is_some() || complaints.is_empty() {
            return Vec::new();
        }
        vec![format!(
            "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS \
             label is recommended: [{}]",
            complaints.join(" ")
        )]
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn orphans_by_default(&self) -> bool {
        true
    }

    fn field<'a>(&self, name: &str, object: &'a Value) -> Option<Cow<'a, str>> {
        (name == "status.successful").then(|| doc::int(object, "status.succeeded").to_string().into())
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let [names, images] = table::containers(doc::at(object, "spec.template"));
        vec![
            table::name(object),
            status::word(object).into(),
            completions(object).into(),
            duration(object, now).into(),
            table::age(object, now).into(),
            names,
            images,
            table::selector(doc::at(object, "spec.selector")).into(),
        ]
    }
}

fn completions(object: &Value) -> String {
    let done = doc::int(object, "status.succeeded");
    match (doc::at(object, "spec.completions").as_i64(), doc::int(object, "spec.parallelism")) {
        (Some(wanted), _) => format!("{done}/{wanted}"),
        (None, parallel) if parallel > 1 => format!("{done}/1 of {parallel}"),
        (None, _) => format!("{done}/1"),
    }
}

fn duration(object: &Value, now: Wall) -> String {
    let time = |path: &str| Moment::parse_lenient(doc::text(object, path)).map(|at| at.secs);
    let Some(start) = time("status.startTime") else { return String::new() };
    let end = time("status.completionTime").unwrap_or(now.secs());
    table::short_duration(end.saturating_sub(start))
}

/// A Job without a selector of its own selects by its uid, which no other object has.
fn select_by_uid(object: &mut Value) {
    let name = doc::text(object, "metadata.name").to_owned();
    let uid = doc::text(object, "metadata.uid").to_owned();
    doc::fill(object, "spec.template.metadata.labels", json!({}));
    if let Some(labels) = doc::at_mut(object, "spec.template.metadata.labels").and_then(Value::as_object_mut)
    {
        for (keys, value) in [(NAME_LABELS, &name), (UID_LABELS, &uid)] {
            for key in keys {
                labels.entry(key).or_insert_with(|| value.as_str().into());
            }
        }
    }
    doc::fill(object, "spec.selector.matchLabels", json!({}));
    if let Some(labels) = doc::at_mut(object, "spec.selector.matchLabels").and_then(Value::as_object_mut) {
        labels.entry(UID_LABELS[1]).or_insert_with(|| uid.into());
    }
}

fn generated_selector(errors: &mut FieldErrors, object: &Value) {
    if doc::is_true(object, "spec.manualSelector") || doc::at(object, "spec.selector").is_null() {
        return;
    }
    let (name, uid) = (doc::text(object, "metadata.name"), doc::text(object, "metadata.uid"));
    if uid.is_empty() {
        errors.required(&Path::new("metadata.uid"), "");
    }
    let labels = doc::at(object, "spec.template.metadata.labels");
    let at = Path::new("spec.template.metadata.labels");
    for (key, want) in
        [(UID_LABELS[0], uid), (NAME_LABELS[0], name), (UID_LABELS[1], uid), (NAME_LABELS[1], name)]
    {
        match labels.get(key).and_then(Value::as_str) {
            None => errors.required(&at.key(key), &format!("must be '{want}'")),
            Some(value) if value != want => {
                errors.invalid(&at.key(key), labels.clone(), format!("must be '{want}'"))
            }
            Some(_) => {}
        }
    }
    let expected =
        json!({UID_LABELS[0]: uid, UID_LABELS[1]: uid, NAME_LABELS[0]: name, NAME_LABELS[1]: name});
    let selector = doc::at(object, "spec.selector");
    if !selector::matches(selector, &expected) {
        errors.invalid(&Path::new("spec.selector"), selector.clone(), "`selector` not auto-generated");
    }
}

/// The Pods of an indexed Job are named by their index.
fn host_names(errors: &mut FieldErrors, object: &Value) {
    let completions = doc::int(object, "spec.completions");
    if doc::text(object, "spec.completionMode") != "Indexed" || completions <= 0 {
        return;
    }
    let name = doc::text(object, "metadata.name");
    let longest = format!("{name}-{}", completions - 1);
    if !names::dns_label(&longest).is_empty() {
        let message = format!("will not able to create pod with invalid DNS label: {longest}");
        errors.invalid(&Path::new("metadata.name"), name, message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn job(change: impl FnOnce(&mut Value)) -> Value {
        let mut object = json!({"metadata": {"name": "j", "uid": "u"}, "spec": {"template": {"spec":
            {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}}}});
        change(&mut object["spec"]);
        Job.set_defaults(&mut object);
        let once = object.clone();
        Job.set_defaults(&mut object);
        assert_eq!(once, object, "idempotent");
        Job.prepare_create(&mut object);
        object
    }

    fn complaints(change: impl FnOnce(&mut Value)) -> String {
        let mut errors = FieldErrors::default();
        Job.validate(&job(change), &mut errors);
        errors.to_string()
    }

    #[test]
    fn a_new_job_knows_its_pods() {
        let object = job(|_| {});
        let mut spec = object["spec"].clone();
        doc::remove(&mut spec, "template.spec");
        assert_eq!(
            spec,
            json!({"backoffLimit": 6, "completionMode": "NonIndexed", "completions": 1, "parallelism": 1,
                "manualSelector": false, "podReplacementPolicy": "TerminatingOrFailed", "suspend": false,
                "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}},
                "template": {"metadata": {"labels": {"job-name": "j", "batch.kubernetes.io/job-name": "j",
                    "controller-uid": "u", "batch.kubernetes.io/controller-uid": "u"}}}})
        );
        assert_eq!(complaints(|_| {}), "[]");
    }

    #[test]
    fn statuses() {
        assert_eq!(
            complaints(|s| s["template"]["spec"]["restartPolicy"] = json!("Always")),
            "spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\""
        );
        assert_eq!(
            complaints(|s| s["completions"] = json!(-1)),
            "spec.completions: Invalid value: -1: must be greater than or equal to 0"
        );
        assert_eq!(
            complaints(|s| {
                s["completionMode"] = json!("Indexed");
                s["parallelism"] = json!(2);
            }),
            "spec.completions: Required value: when completion mode is Indexed"
        );
        assert_eq!(
            complaints(|s| s["backoffLimitPerIndex"] = json!(1)),
            "spec.backoffLimitPerIndex: Invalid value: 1: requires indexed completion mode"
        );
        assert!(
            complaints(|s| s["template"]["metadata"] = json!({"labels": {"job-name": "other"}}))
                .contains("must be 'j'")
        );
    }

    #[test]
    fn the_template_is_fixed() {
        let old = job(|_| {});
        let changed = |suspend: bool| {
            let mut old = old.clone();
            old["spec"]["suspend"] = json!(suspend);
            let mut new = old.clone();
            new["spec"]["parallelism"] = json!(3);
            new["spec"]["template"]["spec"]["nodeSelector"] = json!({"a": "b"});
            let mut errors = FieldErrors::default();
            Job.validate_update(&new, &old, &mut errors);
            errors.to_string()
        };
        assert!(changed(false).contains("field is immutable"), "{}", changed(false));
        assert_eq!(changed(true), "[]");
    }

    #[test]
    fn cells() {
        let mut object = job(|s| s["completions"] = json!(3));
        object["status"] = json!({"succeeded": 1, "startTime": "1970-01-01T00:00:00Z"});
        assert_eq!(
            json!(&Job.cells(&object, Wall::from_secs(90))[..4]),
            json!(["j", "Running", "1/3", "90s"])
        );
        object["status"]["conditions"] = json!([{"type": "Complete", "status": "True"}]);
        object["status"]["completionTime"] = json!("1970-01-01T00:00:07Z");
        assert_eq!(json!(&Job.cells(&object, Wall::from_secs(90))[1..4]), json!(["Complete", "1/3", "7s"]));
        assert_eq!(Job.field("status.successful", &object).as_deref(), Some("1"));
    }
}
