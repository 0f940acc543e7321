//! The status of a Job: it ends once and counts only up.

use api::field::{FieldErrors, Path};
use base::rfc3339::Moment;
use serde_json::Value;

use super::super::pod_template;
use crate::doc::{self, Field};

/// How far it is, for the table.
pub(super) fn word(job: &Value) -> &'static str {
    let order = [
        ("Complete", "Complete"),
        ("Failed", "Failed"),
        ("", "Terminating"),
        ("Suspended", "Suspended"),
        ("FailureTarget", "FailureTarget"),
        ("SuccessCriteriaMet", "SuccessCriteriaMet"),
    ];
    let holds = |condition: &str| match condition {
        "" => !doc::at(job, "metadata.deletionTimestamp").is_null(),
        condition => is(job, condition),
    };
    order.iter().find(|(condition, _)| holds(condition)).map_or("Running", |(_, word)| word)
}

pub(super) fn validate(errors: &mut FieldErrors, new: &Value, old: &Value) {
    let status = Field::root(new).get("status");
    pod_template::counts(errors, &status, &["active", "succeeded", "failed", "ready", "terminating"]);
    end(errors, new, &status);
    conflicts(errors, new, &status.at.child("conditions"));
    for condition in ["Failed", "Complete", "FailureTarget", "SuccessCriteriaMet"] {
        if is(old, condition) && !is(new, condition) {
            let message = match condition {
                "SuccessCriteriaMet" => "cannot disable the SuccessCriteriaMet=True condition".to_owned(),
                _ => format!("cannot disable the terminal {condition}=True condition"),
            };
            errors.invalid_here(&status.at.child("conditions"), &message);
        }
    }
    for counter in ["failed", "succeeded"] {
        let path = format!("status.{counter}");
        if doc::int(new, &path) < doc::int(old, &path) {
            let message = format!("cannot decrease the {counter} counter");
            errors.invalid(&Path::new(&path), doc::int(new, &path), message);
        }
    }
    let changed = |path: &str| {
        let (now, before) = (doc::at(new, path), doc::at(old, path));
        (!before.is_null() && now != before).then(|| now.clone())
    };
    if let Some(now) = changed("status.completionTime").filter(|now| !now.is_null()) {
        errors.invalid(&Path::new("status.completionTime"), now, "field is immutable");
    }
    if let Some(now) = changed("status.startTime").filter(|_| !doc::is_true(new, "spec.suspend")) {
        let message = "field is immutable for unsuspended job once set";
        errors.invalid(&Path::new("status.startTime"), now, message);
    }
}

fn end(errors: &mut FieldErrors, job: &Value, status: &Field<'_>) {
    let (start, completion) = (status.get("startTime"), status.get("completionTime"));
    let is_complete = is(job, "Complete");
    if completion.is_set() && !is_complete {
        let message = "cannot set completionTime when there is no Complete=True condition";
        errors.invalid(&completion.at, completion.value.clone(), message);
    }
    if is_complete && !completion.is_set() {
        errors.required(&completion.at, "completionTime is required for Complete jobs");
    }
    let time = |field: &Field<'_>| Moment::parse_lenient(field.text());
    if let (Some(start), Some(end)) = (time(&start), time(&completion))
        && end < start
    {
        errors.invalid(&completion.at, completion.value.clone(), "must be equal to or after `startTime`");
    }
    if is_complete || is(job, "Failed") {
        for name in ["active", "terminating"] {
            if let Some(n) = status.get(name).int().filter(|n| *n > 0) {
                errors.invalid(&status.at.child(name), n, format!("{name}>0 is invalid for finished job"));
            }
        }
        if !start.is_set() {
            errors.required(&start.at, "startTime is required for finished job");
        }
    }
    let (ready, active) = (status.get("ready"), status.get("active").int().unwrap_or_default());
    if let Some(n) = ready.int().filter(|n| *n > active) {
        errors.invalid(&ready.at, n, "cannot set more ready pods than active");
    }
}

fn conflicts(errors: &mut FieldErrors, job: &Value, at: &Path) {
    let pairs = [
        ("Complete", "Failed", "cannot set Complete=True and Failed=true conditions"),
        ("Complete", "FailureTarget", "cannot set Complete=True and FailureTarget=true conditions"),
        ("SuccessCriteriaMet", "Failed", "cannot set SuccessCriteriaMet=True and Failed=true conditions"),
        (
            "SuccessCriteriaMet",
            "FailureTarget",
            "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions",
        ),
    ];
    for (a, b, message) in pairs {
        if is(job, a) && is(job, b) {
            errors.invalid_here(at, message);
        }
    }
    let needs = [
        (
            "Failed",
            "FailureTarget",
            "cannot set Failed=True condition without the FailureTarget=true condition",
        ),
        (
            "Complete",
            "SuccessCriteriaMet",
            "cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
        ),
    ];
    for (a, b, message) in needs {
        if is(job, a) && !is(job, b) {
            errors.invalid_here(at, message);
        }
    }
}

fn is(job: &Value, condition: &str) -> bool {
    doc::list(job, "status.conditions")
        .iter()
        .any(|c| doc::text(c, "type") == condition && doc::text(c, "status") == "True")
}
