//! CronJob: Jobs by the clock.

use api::cron::{self, Schedule};
use api::field::{FieldErrors, Path};
use base::time::Wall;
use serde_json::Value;

use super::{check, job};
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, Strategy};
use crate::table;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::text("Schedule", "When its Jobs start"),
    Column::text("Timezone", "Where the clock is that the schedule goes by"),
    Column::boolean("Suspend", "Whether it makes no Jobs for now"),
    Column::number("Active", "How many of its Jobs are running"),
    Column::text("Last Schedule", "When it last made a Job"),
    Column::AGE,
    Column::wide("Containers", "Names of the containers in the template"),
    Column::wide("Images", "Images of the containers in the template"),
    Column::wide("Selector", "Which Pods belong to its Jobs"),
];

/// Each Job gets a suffix of eleven characters, and its name is that of a label.
const NAME_MAX: usize = 52;

pub(super) fn kind() -> Kind {
    Kind::new("batch", "v1", "CronJob", "cronjobs", CronJob).short(&["cj"]).category("all").with_status()
}

#[derive(Debug)]
struct CronJob;

// === impl CronJob ===

impl Strategy for CronJob {
    fn set_defaults(&self, object: &mut Value) {
        doc::fill_text(object, "spec.concurrencyPolicy", "Allow");
        doc::fill(object, "spec.suspend", false);
        doc::fill(object, "spec.successfulJobsHistoryLimit", 3);
        doc::fill(object, "spec.failedJobsHistoryLimit", 1);
        super::pod_template::set_defaults(object, "spec.jobTemplate.spec.template");
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        spec(errors, object, None);
        let name = doc::text(object, "metadata.name");
        if name.len() > NAME_MAX {
            let message = format!("must be no more than {NAME_MAX} characters");
            errors.invalid(&Path::new("metadata.name"), name, message);
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        spec(errors, new, Some(old));
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let last = match doc::at(object, "status.lastScheduleTime") {
            Value::Null => "<none>".to_owned(),
            time => table::since(time, now),
        };
        let suspend = match doc::at(object, "spec.suspend") {
            Value::Bool(true) => "True",
            Value::Bool(false) => "False",
            _ => "<unset>",
        };
        let [names, images] = table::containers(doc::at(object, "spec.jobTemplate.spec.template"));
        vec![
            table::name(object),
            doc::text(object, "spec.schedule").into(),
            table::text_or(object, "spec.timeZone", "<none>").into(),
            suspend.into(),
            doc::list(object, "status.active").len().into(),
            last.into(),
            table::age(object, now).into(),
            names,
            images,
            table::selector(doc::at(object, "spec.jobTemplate.spec.selector")).into(),
        ]
    }
}

fn spec(errors: &mut FieldErrors, object: &Value, old: Option<&Value>) {
    let spec = Field::root(object).get("spec");
    let zone = spec.get("timeZone");
    schedule(errors, &spec.get("schedule"), zone.is_set(), old);
    check::non_negative(errors, &spec.get("startingDeadlineSeconds"));
    if zone.is_set() && old.is_none_or(|o| doc::at(o, "spec.timeZone") != zone.value) {
        time_zone(errors, &zone);
    }
    check::one_of(errors, &spec.get("concurrencyPolicy"), &["Allow", "Forbid", "Replace"]);
    let template = spec.get("jobTemplate").get("spec");
    job::validate_spec(errors, &template);
    let selector = template.get("selector");
    if selector.is_set() {
        errors.invalid(&selector.at, selector.value.clone(), "`selector` will be auto-generated");
    }
    let manual = template.get("manualSelector");
    if manual.is_true() {
        errors.unsupported_value(&manual.at, true.into(), &["nil", "false"]);
    }
    check::non_negative(errors, &spec.get("successfulJobsHistoryLimit"));
    check::non_negative(errors, &spec.get("failedJobsHistoryLimit"));
}

fn schedule(errors: &mut FieldErrors, field: &Field<'_>, has_zone: bool, old: Option<&Value>) {
    let text = field.text();
    if text.is_empty() {
        return errors.required(&field.at, "");
    }
    if let Err(why) = Schedule::parse(text) {
        errors.invalid(&field.at, text, why);
    }
    // Older servers took the zone inside the schedule; what they stored stays valid.
    let tolerated = old.is_some_and(|o| doc::text(o, "spec.schedule").contains("TZ"));
    if text.contains("TZ") && tolerated && has_zone {
        errors.invalid(&field.at, text, "cannot use both timeZone field and TZ or CRON_TZ in schedule");
    } else if text.contains("TZ") && !tolerated {
        errors.invalid(&field.at, text, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead");
    }
}

fn time_zone(errors: &mut FieldErrors, zone: &Field<'_>) {
    let text = zone.text();
    if text.is_empty() {
        return errors.invalid(&zone.at, text, "timeZone must be nil or non-empty string");
    }
    let is_good = |part: &str| {
        (1..=14).contains(&part.len())
            && !matches!(part, "." | "..")
            && !part.starts_with('-')
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_+".contains(&b))
    };
    if !text.split('/').all(is_good) {
        errors.invalid(&zone.at, text, format!("unknown time zone {text}"));
    } else if text.eq_ignore_ascii_case("local") {
        let message = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        errors.invalid(&zone.at, text, message);
    } else if cron::time_zone(text).is_none() {
        errors.invalid(&zone.at, text, format!("unknown time zone {text}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn defaults_refusals_and_cells() {
        let mut object = json!({"metadata": {"name": "c"}, "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template":
            {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "x"}]}}}}}});
        CronJob.set_defaults(&mut object);
        let mut errors = FieldErrors::default();
        CronJob.validate(&object, &mut errors);
        assert_eq!(errors.to_string(), "[]");
        assert_eq!(
            json!(&CronJob.cells(&object, Wall::from_secs(0))[1..6]),
            json!(["* * * * *", "<none>", "False", 0, "<none>"])
        );
        object["spec"]["timeZone"] = json!("Local");
        object["spec"]["schedule"] = json!("TZ=UTC * * * * *");
        object["spec"]["jobTemplate"]["spec"]["selector"] = json!({});
        CronJob.validate(&object, &mut errors);
        let text = errors.to_string();
        object["spec"]["timeZone"] = json!("Mars/Olympus");
        CronJob.validate(&object, &mut errors);
        let text = format!("{text}{errors}");
        for want in [
            "unknown time zone Mars/Olympus",
            "cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
            "timeZone must be an explicit time zone",
            "spec.jobTemplate.spec.selector: Invalid value: {}: `selector` will be auto-generated",
        ] {
            assert!(text.contains(want), "{text}");
        }
    }
}
