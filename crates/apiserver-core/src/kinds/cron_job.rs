//! CronJob: Jobs by the clock.

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
    if let Err(why) = parse(text) {
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
    }
}

const MONTHS: &[&str] = &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const FIELDS: [(u32, u32, &[&str]); 5] =
    [(0, 59, &[]), (0, 23, &[]), (1, 31, &[]), (1, 12, MONTHS), (0, 6, DAYS)];

/// The standard form of cron: five fields, or a name such as `@hourly`, or `@every 1h30m`.
fn parse(text: &str) -> Result<(), String> {
    let mut rest = text;
    if rest.starts_with("TZ=") || rest.starts_with("CRON_TZ=") {
        rest = rest.split_once(' ').map_or("", |(_, rest)| rest.trim());
    }
    if rest.starts_with('@') {
        let known = ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];
        let is_period =
            rest.strip_prefix("@every ").is_some_and(|d| d.parse::<base::duration::GoDuration>().is_ok());
        return if known.contains(&rest) || is_period {
            Ok(())
        } else {
            Err(format!("unrecognized descriptor: {rest}"))
        };
    }
    let fields: Vec<&str> = rest.split_whitespace().collect();
    if fields.len() != 5 {
        return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
    }
    for (field, (low, high, names)) in fields.iter().zip(FIELDS) {
        field.split(',').try_for_each(|part| parse_range(part, low, high, names))?;
    }
    Ok(())
}

/// `*`, `5`, `1-5`, each with a step such as `/2`.
fn parse_range(text: &str, low: u32, high: u32, names: &[&str]) -> Result<(), String> {
    let number = |word: &str| {
        let named = names.iter().position(|n| n.eq_ignore_ascii_case(word));
        let first = if names.len() == 12 { 1 } else { 0 };
        named.map(|i| i as u32 + first).or_else(|| word.parse::<u32>().ok()).ok_or_else(|| {
            format!("failed to parse int from {word}: strconv.Atoi: parsing {word:?}: invalid syntax")
        })
    };
    let (range, step) = match text.split_once('/') {
        Some((_, step)) if step.contains('/') => return Err(format!("too many slashes: {text}")),
        Some((range, step)) => (range, Some(number(step)?)),
        None => (text, None),
    };
    let (start, end) = match range.split_once('-') {
        _ if matches!(range, "*" | "?") => (low, high),
        Some((_, end)) if end.contains('-') => return Err(format!("too many hyphens: {text}")),
        Some((start, end)) => (number(start)?, number(end)?),
        None => {
            let start = number(range)?;
            (start, if step.is_some() { high } else { start })
        }
    };
    if start < low {
        return Err(format!("beginning of range ({start}) below minimum ({low}): {text}"));
    }
    if end > high {
        return Err(format!("end of range ({end}) above maximum ({high}): {text}"));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {text}"));
    }
    if step == Some(0) {
        return Err(format!("step of range should be a positive number: {text}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn schedules() {
        for good in [
            "* * * * *",
            "*/5 0 1,15 * mon-fri",
            "0 22 * JAN 0",
            "@hourly",
            "@every 1h30m",
            "TZ=UTC 0 0 * * ?",
        ] {
            assert_eq!(parse(good), Ok(()), "{good}");
        }
        for (bad, want) in [
            ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("@often", "unrecognized descriptor: @often"),
            ("x * * * *", "failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax"),
        ] {
            assert_eq!(parse(bad), Err(want.to_owned()), "{bad}");
        }
    }

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
        for want in [
            "cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
            "timeZone must be an explicit time zone",
            "spec.jobTemplate.spec.selector: Invalid value: {}: `selector` will be auto-generated",
        ] {
            assert!(text.contains(want), "{text}");
        }
    }
}
