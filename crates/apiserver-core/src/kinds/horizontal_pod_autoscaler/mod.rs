//! HorizontalPodAutoscaler: how many Pods there shall be, by what they have to do.

mod v1;

use api::field::FieldErrors;
use api::names;
use base::time::Wall;
use serde_json::{Value, json};

use super::{check, quantity};
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, Strategy};
use crate::table;
pub(super) use v1::kind as v1;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::text("Reference", "What is scaled"),
    Column::text("Targets", "What is measured, and what it shall be"),
    Column::text("MinPods", "The fewest Pods"),
    Column::text("MaxPods", "The most Pods"),
    Column::text("Replicas", "How many Pods there are"),
    Column::AGE,
];

pub(super) fn kind() -> Kind {
    Kind::new("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", Autoscaler)
        .short(&["hpa"])
        .category("all")
        .with_status()
}

#[derive(Debug)]
struct Autoscaler;

// === impl Autoscaler ===

impl Strategy for Autoscaler {
    fn set_defaults(&self, object: &mut Value) {
        doc::fill(object, "spec.minReplicas", 1);
        if doc::list(object, "spec.metrics").is_empty() {
            let cpu = json!([{"type": "Resource", "resource": {"name": "cpu",
                "target": {"type": "Utilization", "averageUtilization": 80}}}]);
            doc::set(object, "spec.metrics", cpu);
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        doc::set(object, "status", json!({"currentMetrics": null, "desiredReplicas": 0}));
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let spec = Field::root(object).get("spec");
        let (min, max) = (spec.get("minReplicas"), spec.get("maxReplicas"));
        if let Some(n) = min.int().filter(|n| *n < 1) {
            errors.invalid(&min.at, n, "must be greater than or equal to 1");
        }
        let most = max.int().unwrap_or_default();
        if most < 1 {
            errors.invalid(&max.at, most, "must be greater than 0");
        }
        if min.int().is_some_and(|n| most < n) {
            errors.invalid(&max.at, most, "must be greater than or equal to `minReplicas`");
        }
        target(errors, &spec.get("scaleTargetRef"));
        for metric in spec.get("metrics").items() {
            self::metric(errors, &metric);
        }
    }

    fn validate_status(&self, new: &Value, _old: &Value, errors: &mut FieldErrors) {
        let status = Field::root(new).get("status");
        check::non_negative(errors, &status.get("currentReplicas"));
        check::non_negative(errors, &status.get("desiredReplicas"));
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let reference = doc::at(object, "spec.scaleTargetRef");
        let min = doc::at(object, "spec.minReplicas").as_i64();
        vec![
            table::name(object),
            format!("{}/{}", doc::text(reference, "kind"), doc::text(reference, "name")).into(),
            targets(object).into(),
            min.map_or_else(|| "<unset>".to_owned(), |n| n.to_string()).into(),
            doc::int(object, "spec.maxReplicas").into(),
            doc::int(object, "status.currentReplicas").into(),
            table::age(object, now).into(),
        ]
    }
}

fn target(errors: &mut FieldErrors, reference: &Field<'_>) {
    for name in ["kind", "name"] {
        let field = reference.get(name);
        if field.is_empty() {
            errors.required(&field.at, "");
        } else {
            check::spelled(errors, &field, names::path_segment);
        }
    }
}

fn metric(errors: &mut FieldErrors, metric: &Field<'_>) {
    let kinds = ["ContainerResource", "External", "Object", "Pods", "Resource"];
    let kind = metric.get("type");
    if kind.is_empty() {
        return errors.required(&kind.at, "must specify a metric source type");
    }
    if !kinds.contains(&kind.text()) {
        return errors.unsupported(&kind.at, kind.text(), &kinds);
    }
    let mut name = kind.text().to_owned();
    name[..1].make_ascii_lowercase();
    let source = metric.get(&name);
    if !source.is_set() {
        return errors.required(&source.at, "must populate information for the given metric source");
    }
    let target = source.get("target");
    check::one_of(errors, &target.get("type"), &["AverageValue", "Utilization", "Value"]);
    let given =
        ["averageUtilization", "averageValue", "value"].iter().filter(|f| target.get(f).is_set()).count();
    if given == 0 {
        errors.required(&target.at, "must set either a target raw value or a target utilization");
    }
    let utilization = target.get("averageUtilization");
    if let Some(n) = utilization.int().filter(|n| *n < 1) {
        errors.invalid(&utilization.at, n, "must be greater than 0");
    }
    for amount in [target.get("value"), target.get("averageValue")].into_iter().filter(Field::is_set) {
        if quantity::parse(amount.value).is_none_or(|a| a.is_negative() || a.is_zero()) {
            errors.invalid(&amount.at, amount.value.clone(), "must be positive");
        }
    }
}

fn targets(object: &Value) -> String {
    let specs = doc::list(object, "spec.metrics");
    if specs.is_empty() {
        return "<none>".to_owned();
    }
    let current = doc::list(object, "status.currentMetrics");
    let cells: Vec<String> =
        specs.iter().enumerate().map(|(i, spec)| measured(spec, current.get(i))).collect();
    let shown = cells[..cells.len().min(2)].join(", ");
    if cells.len() > 2 { format!("{shown} + {} more...", cells.len() - 2) } else { shown }
}

/// `cpu: 40%/80%`
fn measured(spec: &Value, status: Option<&Value>) -> String {
    let kind = doc::text(spec, "type");
    let (key, is_resource) = match kind {
        "Resource" => ("resource", true),
        "ContainerResource" => ("containerResource", true),
        "External" => ("external", false),
        "Pods" => ("pods", false),
        "Object" => ("object", false),
        _ => return "<unknown type>".to_owned(),
    };
    let now = status.map_or(&Value::Null, |s| &s[key]["current"]);
    let target = &spec[key]["target"];
    let amount = |value: &Value| match value {
        Value::Null => "<unknown>".to_owned(),
        value => quantity::cell(value),
    };
    let percent =
        |value: &Value, nothing: &str| value.as_i64().map_or_else(|| nothing.to_owned(), |p| format!("{p}%"));
    let cell = if !target["averageValue"].is_null() {
        let suffix = if matches!(kind, "External" | "Object") { " (avg)" } else { "" };
        format!("{}/{}{suffix}", amount(&now["averageValue"]), quantity::cell(&target["averageValue"]))
    } else if is_resource {
        format!(
            "{}/{}",
            percent(&now["averageUtilization"], "<unknown>"),
            percent(&target["averageUtilization"], "<auto>")
        )
    } else {
        format!("{}/{}", amount(&now["value"]), quantity::cell(&target["value"]))
    };
    match is_resource {
        true => format!("{}: {cell}", doc::text(&spec[key], "name")),
        false => cell,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_cells_and_refusals() {
        let mut object = json!({"metadata": {"name": "h"}, "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "web"}, "maxReplicas": 5}});
        Autoscaler.set_defaults(&mut object);
        let mut errors = FieldErrors::default();
        Autoscaler.validate(&object, &mut errors);
        assert_eq!(errors.to_string(), "[]");
        assert_eq!(
            json!(Autoscaler.cells(&object, Wall::from_secs(0))),
            json!(["h", "Deployment/web", "cpu: <unknown>/80%", "1", 5, 0, "<unknown>"])
        );
        object["status"] = json!({"currentMetrics": [{"resource": {"current": {"averageUtilization": 40}}}]});
        assert_eq!(targets(&object), "cpu: 40%/80%");
        object["spec"]["minReplicas"] = json!(9);
        Autoscaler.validate(&object, &mut errors);
        assert_eq!(
            errors.to_string(),
            "spec.maxReplicas: Invalid value: 5: must be greater than or equal to `minReplicas`"
        );
    }
}
