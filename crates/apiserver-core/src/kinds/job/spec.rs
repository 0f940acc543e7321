//! The spec of a Job, also inside a CronJob.

use std::collections::BTreeSet;

use api::field::{FieldErrors, Path};
use api::names;
use serde_json::{Map, Value};

use super::super::{check, pod_template};
use crate::doc::{self, Field};

/// Parallelism and failed indexes are bounded so that the lists of indexes in the status are.
const MAX_INDEXES: i64 = 100_000;
const MAX_INDEXES_OF_MANY: i64 = 10_000;

pub(super) fn set_defaults(object: &mut Value) {
    pod_template::set_defaults(object, "spec.template");
    doc::fill(object, "spec", Map::new());
    let Some(spec) = doc::at_mut(object, "spec") else { return };
    if spec["completions"].is_null() && spec["parallelism"].is_null() {
        doc::set(spec, "completions", 1);
    }
    doc::fill(spec, "parallelism", 1);
    let limit = if spec["backoffLimitPerIndex"].is_null() { 6 } else { i32::MAX };
    doc::fill(spec, "backoffLimit", limit);
    doc::fill(spec, "completionMode", "NonIndexed");
    doc::fill(spec, "suspend", false);
    let policy = if spec["podFailurePolicy"].is_null() { "TerminatingOrFailed" } else { "Failed" };
    doc::fill(spec, "podReplacementPolicy", policy);
    for rule in doc::list_mut(spec, "podFailurePolicy.rules") {
        for pattern in doc::list_mut(rule, "onPodConditions") {
            doc::fill_text(pattern, "status", "True");
        }
    }
}

pub(crate) fn validate_spec(errors: &mut FieldErrors, spec: &Field<'_>) {
    for name in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ] {
        check::non_negative(errors, &spec.get(name));
    }
    let (per_index, max_failed) = (spec.get("backoffLimitPerIndex"), spec.get("maxFailedIndexes"));
    if max_failed.is_set() && !per_index.is_set() {
        errors.required(&per_index.at, "when maxFailedIndexes is specified");
    }
    let manager = spec.get("managedBy");
    if manager.is_set() {
        check::domain_path(errors, &manager);
        if manager.len() > 63 {
            errors.too_long(&manager.at, 63);
        }
    }
    let mode = spec.get("completionMode");
    check::one_of_if_set(errors, &mode, &["NonIndexed", "Indexed"]);
    match mode.text() {
        "Indexed" => indexed(errors, spec),
        "" | "NonIndexed" => {
            for field in [&per_index, &max_failed].into_iter().filter(|f| f.is_set()) {
                errors.invalid(&field.at, field.value.clone(), "requires indexed completion mode");
            }
        }
        _ => {}
    }
    failure_policy(errors, spec);
    success_policy(errors, spec);
    let replacement = spec.get("podReplacementPolicy");
    let policies: &[&str] = match spec.get("podFailurePolicy").is_set() {
        true => &["Failed"],
        false => &["Failed", "TerminatingOrFailed"],
    };
    check::one_of_if_set(errors, &replacement, policies);
    pod_template::validate(errors, &spec.get("template"));
    restart_policy(errors, spec);
}

/// What a later write may not change.
pub(super) fn validate_update(errors: &mut FieldErrors, new: &Value, old: &Value) {
    let (completions, parallelism) = (doc::at(new, "spec.completions"), doc::at(new, "spec.parallelism"));
    if doc::text(new, "spec.completionMode") != "Indexed" {
        check::immutable(errors, new, old, "spec.completions");
    } else if completions != doc::at(old, "spec.completions")
        && !completions.is_null()
        && completions != parallelism
    {
        let message = "can only be modified in tandem with spec.parallelism";
        errors.invalid(&Path::new("spec.completions"), completions.clone(), message);
    }
    check::immutable(errors, new, old, "spec.selector");
    template(errors, new, old);
    for field in ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy"]
    {
        check::immutable(errors, new, old, &format!("spec.{field}"));
    }
}

fn indexed(errors: &mut FieldErrors, spec: &Field<'_>) {
    let (completions, parallelism) = (spec.get("completions"), spec.get("parallelism"));
    let max_failed = spec.get("maxFailedIndexes");
    let above = |field: &Field<'_>, limit: i64| field.int().filter(|n| *n > limit);
    if !completions.is_set() {
        errors.required(&completions.at, "when completion mode is Indexed");
    }
    if let Some(n) = above(&parallelism, MAX_INDEXES) {
        let message = format!("must be less than or equal to {MAX_INDEXES} when completion mode is Indexed");
        errors.invalid(&parallelism.at, n, message);
    }
    if let Some(n) = completions.int().and_then(|c| above(&max_failed, c)) {
        errors.invalid(&max_failed.at, n, "must be less than or equal to completions");
    }
    if let Some(n) = above(&max_failed, MAX_INDEXES) {
        errors.invalid(&max_failed.at, n, format!("must be less than or equal to {MAX_INDEXES}"));
    }
    if above(&completions, MAX_INDEXES).is_some() && spec.get("backoffLimitPerIndex").is_set() {
        if !max_failed.is_set() {
            let message = format!("must be specified when completions is above {MAX_INDEXES}");
            errors.required(&max_failed.at, &message);
        }
        for field in [&parallelism, &max_failed] {
            if let Some(n) = above(field, MAX_INDEXES_OF_MANY) {
                let message = format!(
                    "must be less than or equal to {MAX_INDEXES_OF_MANY} when completions are above {MAX_INDEXES} and \
                     used with backoff limit per index"
                );
                errors.invalid(&field.at, n, message);
            }
        }
    }
}

fn restart_policy(errors: &mut FieldErrors, spec: &Field<'_>) {
    let policy = spec.get("template").get("spec").get("restartPolicy");
    match policy.text() {
        "" | "Always" => errors.required(&policy.at, "valid values: \"OnFailure\", \"Never\""),
        "OnFailure" if spec.get("podFailurePolicy").is_set() => {
            let message = "only \"Never\" is supported when podFailurePolicy is specified";
            errors.invalid(&policy.at, policy.text(), message);
        }
        "OnFailure" | "Never" => {}
        other => errors.unsupported(&policy.at, other, &["OnFailure", "Never"]),
    }
}

fn failure_policy(errors: &mut FieldErrors, spec: &Field<'_>) {
    let rules = spec.get("podFailurePolicy").get("rules");
    if rules.len() > 20 {
        errors.too_many(&rules.at, rules.len(), 20);
    }
    let template = spec.get("template").get("spec");
    let containers: BTreeSet<&str> = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| doc::list(template.value, list))
        .map(|c| doc::text(c, "name"))
        .collect();
    for rule in rules.items() {
        let action = rule.get("action");
        let actions = ["Count", "FailIndex", "FailJob", "Ignore"];
        match action.text() {
            "" => {
                errors.required(&action.at, "valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]")
            }
            "FailIndex" if !spec.get("backoffLimitPerIndex").is_set() => {
                errors.invalid(&action.at, "FailIndex", "requires the backoffLimitPerIndex to be set");
            }
            word if actions.contains(&word) => {}
            word => errors.unsupported(&action.at, word, &actions),
        }
        let (codes, conditions) = (rule.get("onExitCodes"), rule.get("onPodConditions"));
        if codes.is_set() {
            exit_codes(errors, &codes, &containers);
        }
        if conditions.len() > 20 {
            errors.too_many(&conditions.at, conditions.len(), 20);
        }
        for pattern in conditions.items() {
            check::spelled(errors, &pattern.get("type"), names::qualified_name);
            check::one_of(errors, &pattern.get("status"), &["False", "True", "Unknown"]);
        }
        match (codes.is_set(), conditions.is_empty()) {
            (true, false) => {
                errors.invalid_here(
                    &rule.at,
                    "specifying both OnExitCodes and OnPodConditions is not supported",
                );
            }
            (false, true) => {
                errors
                    .invalid_here(&rule.at, "specifying one of OnExitCodes and OnPodConditions is required");
            }
            _ => {}
        }
    }
}

fn exit_codes(errors: &mut FieldErrors, codes: &Field<'_>, containers: &BTreeSet<&str>) {
    let (operator, container, values) =
        (codes.get("operator"), codes.get("containerName"), codes.get("values"));
    check::one_of(errors, &operator, &["In", "NotIn"]);
    if container.is_set() && !containers.contains(container.text()) {
        let message = "must be one of the container or initContainer names in the pod template";
        errors.invalid(&container.at, container.text(), message);
    }
    match values.len() {
        0 => errors.invalid(&values.at, values.value.clone(), "at least one value is required"),
        1..=255 => {}
        n => errors.too_many(&values.at, n, 255),
    }
    let mut seen = BTreeSet::new();
    for value in values.items() {
        let code = value.int().unwrap_or_default();
        if operator.text() == "In" && code == 0 {
            errors.invalid(&value.at, code, "must not be 0 for the In operator");
        }
        if !seen.insert(code) {
            errors.duplicate(&value.at, code);
        }
    }
    let numbers: Vec<i64> = values.items().map(|v| v.int().unwrap_or_default()).collect();
    if !numbers.is_sorted() {
        errors.invalid(&values.at, values.value.clone(), "must be ordered");
    }
}

fn success_policy(errors: &mut FieldErrors, spec: &Field<'_>) {
    let policy = spec.get("successPolicy");
    if !policy.is_set() {
        return;
    }
    if doc::text(spec.value, "completionMode") != "Indexed" {
        return errors.invalid(&policy.at, policy.value.clone(), "requires indexed completion mode");
    }
    let rules = policy.get("rules");
    let completions = doc::int(spec.value, "completions");
    match rules.len() {
        0 => errors
            .required(&rules.at, "at least one rules must be specified when the successPolicy is specified"),
        1..=20 => {}
        n => errors.too_many(&rules.at, n, 20),
    }
    for rule in rules.items() {
        let (count, indexes) = (rule.get("succeededCount"), rule.get("succeededIndexes"));
        if !count.is_set() && !indexes.is_set() {
            let message = "at least one of succeededCount or succeededIndexes must be specified";
            errors.required(&rule.at, message);
        }
        check::non_negative(errors, &count);
        if let Some(n) = count.int().filter(|n| *n > completions) {
            let message =
                format!("must be less than or equal to {completions} (the number of specified completions)");
            errors.invalid(&count.at, n, message);
        }
        if indexes.is_set() {
            match count_indexes(indexes.text(), completions) {
                Err(why) => {
                    let message = format!("error parsing succeededIndexes: {why}");
                    errors.invalid(&indexes.at, indexes.text(), message);
                }
                Ok(total) if count.int().is_some_and(|n| n > total) => {
                    let message = format!(
                        "must be less than or equal to {total} (the number of indexes in the specified \
                         succeededIndexes field)"
                    );
                    errors.invalid(&count.at, count.value.clone(), message);
                }
                Ok(_) => {}
            }
        }
    }
}

/// How many indexes a list such as `1,3-5,7` names.
fn count_indexes(text: &str, completions: i64) -> Result<i64, String> {
    let (mut total, mut last) = (0, None);
    if text.is_empty() {
        return Ok(0);
    }
    for interval in text.split(',') {
        let number = |part: &str| {
            part.parse::<i64>().map_err(|_| format!("cannot convert string to integer for index: {part:?}"))
        };
        let (low, high) = match interval.split_once('-') {
            Some((low, high)) => (number(low)?, number(high)?),
            None => (number(interval)?, number(interval)?),
        };
        if let Some(wrong) = [low, high].into_iter().find(|n| !(0..completions).contains(n)) {
            return Err(format!("too large index: \"{wrong}\""));
        }
        if low > high || (interval.contains('-') && low == high) {
            return Err(format!("non-increasing order, previous: {low}, current: {high}"));
        }
        if let Some(last) = last.filter(|last| *last >= low) {
            return Err(format!("non-increasing order, previous: {last}, current: {low}"));
        }
        last = Some(high);
        total += high - low + 1;
    }
    Ok(total)
}

/// The template is fixed, unless nothing has been made from it yet: then it may be told where its Pods shall run and
/// what they need.
fn template(errors: &mut FieldErrors, new: &Value, old: &Value) {
    let suspended = doc::list(old, "status.conditions")
        .iter()
        .any(|c| doc::text(c, "type") == "Suspended" && doc::text(c, "status") == "True");
    let idle = doc::is_true(old, "spec.suspend")
        && (doc::at(old, "status.startTime").is_null() || suspended)
        && doc::int(old, "status.active") == 0;
    let mut before = doc::at(old, "spec.template").clone();
    let now = doc::at(new, "spec.template");
    if idle {
        for path in [
            "metadata.annotations",
            "metadata.labels",
            "spec.nodeSelector",
            "spec.tolerations",
            "spec.schedulingGates",
            "spec.affinity.nodeAffinity",
        ] {
            doc::keep(&mut before, now, path);
        }
        for list in ["spec.containers", "spec.initContainers"] {
            for (container, new) in doc::list_mut(&mut before, list).zip(doc::list(now, list)) {
                doc::keep(container, new, "resources");
            }
        }
    }
    if !doc::same(now, &before) {
        errors.invalid(&Path::new("spec.template"), now.clone(), check::IMMUTABLE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_indexes() {
        assert_eq!(count_indexes("", 5), Ok(0));
        assert_eq!(count_indexes("0,2-4", 5), Ok(4));
        for bad in ["5", "x", "3,1", "2-1", "1-", "-1", "1,,2"] {
            assert!(count_indexes(bad, 5).is_err(), "{bad}");
        }
    }
}
