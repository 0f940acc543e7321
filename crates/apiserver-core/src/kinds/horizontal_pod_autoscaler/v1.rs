//! autoscaling/v1: the same autoscalers with one number for a metric. What it has no field for travels in annotations,
//! as upstream's conversion has it.

use api::field::FieldErrors;
use base::time::Wall;
use serde_json::{Map, Value, json};

use super::{Autoscaler, COLUMNS};
use crate::doc;
use crate::kind::{Column, Kind, Strategy};
use crate::meta::metadata_mut;

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";

pub(in crate::kinds) fn kind() -> Kind {
    Kind::new("autoscaling", "v1", "HorizontalPodAutoscaler", "horizontalpodautoscalers", V1)
        .stored_as("horizontalpodautoscalers.autoscaling")
        .short(&["hpa"])
        .category("all")
        .with_status()
}

#[derive(Debug)]
struct V1;

/// How a source of metrics is named in both versions: of each field its path in v1 and in v2.
struct Source {
    /// `resource`
    name: &'static str,
    same: &'static [&'static str],
    spec: &'static [(&'static str, &'static str)],
    status: &'static [(&'static str, &'static str)],
}

const METRIC: [(&str, &str); 2] = [("metricName", "metric.name"), ("selector", "metric.selector")];

const SOURCES: &[Source] = &[
    Source {
        name: "resource",
        same: &["name"],
        spec: &[
            ("targetAverageUtilization", "target.averageUtilization"),
            ("targetAverageValue", "target.averageValue"),
        ],
        status: &[
            ("currentAverageUtilization", "current.averageUtilization"),
            ("currentAverageValue", "current.averageValue"),
        ],
    },
    Source {
        name: "containerResource",
        same: &["name", "container"],
        spec: &[
            ("targetAverageUtilization", "target.averageUtilization"),
            ("targetAverageValue", "target.averageValue"),
        ],
        status: &[
            ("currentAverageUtilization", "current.averageUtilization"),
            ("currentAverageValue", "current.averageValue"),
        ],
    },
    Source {
        name: "pods",
        same: &[],
        spec: &[METRIC[0], METRIC[1], ("targetAverageValue", "target.averageValue")],
        status: &[METRIC[0], METRIC[1], ("currentAverageValue", "current.averageValue")],
    },
    Source {
        name: "object",
        same: &[],
        spec: &[
            METRIC[0],
            METRIC[1],
            ("target", "describedObject"),
            ("targetValue", "target.value"),
            ("averageValue", "target.averageValue"),
        ],
        status: &[
            METRIC[0],
            METRIC[1],
            ("target", "describedObject"),
            ("currentValue", "current.value"),
            ("averageValue", "current.averageValue"),
        ],
    },
    Source {
        name: "external",
        same: &[],
        spec: &[
            METRIC[0],
            ("metricSelector", "metric.selector"),
            ("targetValue", "target.value"),
            ("targetAverageValue", "target.averageValue"),
        ],
        status: &[
            METRIC[0],
            ("metricSelector", "metric.selector"),
            ("currentValue", "current.value"),
            ("currentAverageValue", "current.averageValue"),
        ],
    },
];

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Spec,
    Status,
}

// === impl V1 ===

impl Strategy for V1 {
    fn set_defaults(&self, object: &mut Value) {
        doc::fill(object, "spec.minReplicas", 1);
    }

    fn prepare_create(&self, object: &mut Value) {
        doc::set(object, "status", json!({"currentReplicas": 0, "desiredReplicas": 0}));
        keep_annotations(object, &Value::Null, &[CURRENT_METRICS, CONDITIONS]);
    }

    fn prepare_update(&self, new: &mut Value, old: &Value) {
        keep_annotations(new, old, &[CURRENT_METRICS, CONDITIONS]);
    }

    fn prepare_status(&self, new: &mut Value, old: &Value) {
        keep_annotations(new, old, &[METRICS, BEHAVIOR]);
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        Autoscaler.validate(&stored(object), errors);
    }

    fn validate_status(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        Autoscaler.validate_status(&stored(new), &stored(old), errors);
    }

    fn converts(&self) -> bool {
        true
    }

    fn write_as_stored(&self, object: &mut Value) {
        to_v2(object);
    }

    fn show_as_here(&self, object: &mut Value) {
        to_v1(object);
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        Autoscaler.cells(&stored(object), now)
    }
}

fn stored(object: &Value) -> Value {
    let mut stored = object.clone();
    to_v2(&mut stored);
    stored
}

/// What of the object lies in annotations here is not for every subresource either.
fn keep_annotations(new: &mut Value, old: &Value, names: &[&str]) {
    let kept = names.iter().map(|name| (*name, annotation(old, name).map(str::to_owned)));
    for (name, text) in kept.collect::<Vec<_>>() {
        set_annotation(new, name, text);
    }
}

fn annotation<'o>(object: &'o Value, name: &str) -> Option<&'o str> {
    object["metadata"]["annotations"].get(name)?.as_str()
}

fn set_annotation(object: &mut Value, name: &str, text: Option<String>) {
    if text.is_none() && annotation(object, name).is_none() {
        return;
    }
    let metadata = metadata_mut(object);
    let all = metadata.entry("annotations").or_insert_with(|| json!({}));
    match (all.as_object_mut(), text) {
        (Some(all), Some(text)) => drop(all.insert(name.to_owned(), text.into())),
        (Some(all), None) => drop(all.remove(name)),
        (None, _) => {}
    }
    if metadata["annotations"].as_object().is_none_or(Map::is_empty) {
        metadata.remove("annotations");
    }
}

fn take_annotation(object: &mut Value, name: &str) -> Option<Value> {
    let text = annotation(object, name)?.to_owned();
    set_annotation(object, name, None);
    serde_json::from_str(&text).ok()
}

fn is_cpu_utilization(metric: &Value) -> bool {
    let resource = &metric["resource"];
    metric["type"] == "Resource"
        && resource["name"] == "cpu"
        && resource["target"]["averageUtilization"].is_number()
}

fn to_v1(object: &mut Value) {
    doc::set(object, "apiVersion", "autoscaling/v1");
    let metrics = doc::remove(object, "spec.metrics").unwrap_or_default();
    let metrics: Vec<Value> = metrics.as_array().cloned().unwrap_or_default();
    let (cpu, others): (Vec<Value>, Vec<Value>) = metrics.into_iter().partition(is_cpu_utilization);
    if let Some(first) = cpu.first() {
        let percentage = first["resource"]["target"]["averageUtilization"].clone();
        doc::set(object, "spec.targetCPUUtilizationPercentage", percentage);
    }
    let others: Vec<Value> = others.iter().map(|m| metric_to_v1(m, Part::Spec)).collect();
    set_annotation(object, METRICS, (!others.is_empty()).then(|| Value::from(others).to_string()));
    let behavior = doc::remove(object, "spec.behavior").filter(Value::is_object);
    set_annotation(object, BEHAVIOR, behavior.map(|b| behavior_to_v1(&b).to_string()));

    let current = doc::remove(object, "status.currentMetrics").unwrap_or_default();
    let current: Vec<Value> = current.as_array().cloned().unwrap_or_default();
    let cpu = current.iter().rev().find(|m| m["type"] == "Resource" && m["resource"]["name"] == "cpu");
    if let Some(percentage) =
        cpu.map(|m| &m["resource"]["current"]["averageUtilization"]).filter(|p| p.is_number())
    {
        doc::set(object, "status.currentCPUUtilizationPercentage", percentage.clone());
    }
    let current: Vec<Value> = current.iter().map(|m| metric_to_v1(m, Part::Status)).collect();
    set_annotation(object, CURRENT_METRICS, (!current.is_empty()).then(|| Value::from(current).to_string()));
    let conditions = doc::remove(object, "status.conditions").unwrap_or_default();
    let conditions = conditions.as_array().filter(|c| !c.is_empty());
    set_annotation(object, CONDITIONS, conditions.map(|c| Value::from(c.clone()).to_string()));
    if object["status"].is_object() {
        doc::fill(object, "status.currentReplicas", 0);
    }
}

fn to_v2(object: &mut Value) {
    doc::set(object, "apiVersion", "autoscaling/v2");
    let others = take_annotation(object, METRICS).unwrap_or_default();
    let others = others.as_array().into_iter().flatten().map(|m| metric_to_v2(m, Part::Spec));
    let mut metrics: Vec<Value> = others.collect();
    let asked = doc::remove(object, "spec.targetCPUUtilizationPercentage").filter(Value::is_number);
    // The default belongs here: only now it is known that there is nothing else.
    if let Some(percentage) = asked.or_else(|| metrics.is_empty().then(|| json!(80))) {
        metrics.push(json!({"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": percentage}}}));
    }
    doc::set(object, "spec.metrics", metrics);
    let behavior = take_annotation(object, BEHAVIOR).map(|b| behavior_to_v2(&b));
    if let Some(behavior) = behavior.filter(|b| b.as_object().is_some_and(|b| !b.is_empty())) {
        doc::set(object, "spec.behavior", behavior);
    }

    let current = take_annotation(object, CURRENT_METRICS);
    let conditions = take_annotation(object, CONDITIONS).filter(Value::is_array);
    if !object["status"].is_object() {
        return;
    }
    let percentage = doc::remove(object, "status.currentCPUUtilizationPercentage").filter(Value::is_number);
    let current = match (current.as_ref().and_then(Value::as_array), percentage) {
        (Some(current), _) => current.iter().map(|m| metric_to_v2(m, Part::Status)).collect(),
        (None, Some(percentage)) => json!([{"type": "Resource", "resource": {"name": "cpu",
            "current": {"averageUtilization": percentage}}}]),
        (None, None) => Value::Null,
    };
    doc::set(object, "status.currentMetrics", current);
    if let Some(conditions) = conditions {
        doc::set(object, "status.conditions", conditions);
    }
}

fn source(metric: &Value) -> Option<&'static Source> {
    let kind = doc::text(metric, "type");
    SOURCES.iter().find(|s| s.name.eq_ignore_ascii_case(kind))
}

fn metric_to_v1(metric: &Value, part: Part) -> Value {
    let Some(source) = source(metric) else { return metric.clone() };
    let (from, mut out) = (&metric[source.name], json!({}));
    source.same.iter().for_each(|name| copy(from, name, &mut out, name));
    source.fields(part).iter().for_each(|(here, there)| copy(from, there, &mut out, here));
    // Amounts that v1 cannot leave out.
    let required = match (source.name, part) {
        ("pods", Part::Spec) => Some("targetAverageValue"),
        ("object", Part::Spec) => Some("targetValue"),
        ("object" | "external", Part::Status) => Some("currentValue"),
        (_, Part::Status) => Some("currentAverageValue"),
        _ => None,
    };
    if let Some(name) = required {
        doc::fill(&mut out, name, "0");
    }
    json!({"type": metric["type"], source.name: out})
}

fn metric_to_v2(metric: &Value, part: Part) -> Value {
    let Some(source) = source(metric) else { return metric.clone() };
    let (from, mut out) = (&metric[source.name], json!({}));
    source.same.iter().for_each(|name| copy(from, name, &mut out, name));
    source.fields(part).iter().for_each(|(here, there)| copy(from, here, &mut out, there));
    if part == Part::Spec {
        let target = &out["target"];
        let kind = match source.name {
            "resource" | "containerResource" if !target["averageUtilization"].is_null() => "Utilization",
            "object" if target["averageValue"].is_null() => "Value",
            "external" if !target["value"].is_null() => "Value",
            _ => "AverageValue",
        };
        // A zero that v1 had to write.
        if source.name == "object" && kind == "AverageValue" && target["value"] == "0" {
            doc::remove(&mut out, "target.value");
        }
        doc::set(&mut out, "target.type", kind);
    }
    json!({"type": metric["type"], source.name: out})
}

fn copy(from: &Value, path: &str, to: &mut Value, there: &str) {
    let value = doc::at(from, path);
    if !value.is_null() {
        doc::set(to, there, value.clone());
    }
}

/// Upstream writes its internal type there: every field, by its name in Go.
fn behavior_to_v1(behavior: &Value) -> Value {
    let rules = |name: &str| match &behavior[name] {
        Value::Null => Value::Null,
        rules => json!({
            "StabilizationWindowSeconds": rules["stabilizationWindowSeconds"],
            "SelectPolicy": rules["selectPolicy"],
            "Policies": rules["policies"].as_array().map(|all| all.iter().map(|p| json!({
                "Type": p["type"], "Value": p["value"], "PeriodSeconds": p["periodSeconds"],
            })).collect::<Vec<_>>()),
            "Tolerance": rules["tolerance"],
        }),
    };
    json!({"ScaleUp": rules("scaleUp"), "ScaleDown": rules("scaleDown")})
}

/// Go reads names in any case; absent and null are the same.
fn behavior_to_v2(value: &Value) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| {
                let mut name = name.clone();
                if let Some(first) = name.get_mut(..1) {
                    first.make_ascii_lowercase();
                }
                (name, behavior_to_v2(value))
            })
            .collect::<Map<String, Value>>()
            .into(),
        Value::Array(all) => all.iter().map(behavior_to_v2).collect(),
        other => other.clone(),
    }
}

// === impl Source ===

impl Source {
    fn fields(&self, part: Part) -> &'static [(&'static str, &'static str)] {
        match part {
            Part::Spec => self.spec,
            Part::Status => self.status,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn full() -> Value {
        json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "h", "annotations": {"mine": "x"}},
            "spec": {
                "scaleTargetRef": {"kind": "Deployment", "name": "web"}, "minReplicas": 1, "maxReplicas": 5,
                "metrics": [
                    {"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}},
                    {"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "c",
                        "target": {"type": "Utilization", "averageUtilization": 30}}},
                    {"type": "Pods", "pods": {"metric": {"name": "p", "selector": {"matchLabels": {"a": "b"}}},
                        "target": {"type": "AverageValue", "averageValue": "10"}}},
                    {"type": "Object", "object": {"describedObject": {"kind": "Service", "name": "s", "apiVersion": "v1"},
                        "metric": {"name": "o"}, "target": {"type": "Value", "value": "3"}}},
                    {"type": "External", "external": {"metric": {"name": "e"}, "target": {"type": "AverageValue", "averageValue": "7"}}},
                    {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}}},
                ],
                "behavior": {"scaleDown": {"stabilizationWindowSeconds": 5, "selectPolicy": "Max",
                    "policies": [{"type": "Pods", "value": 4, "periodSeconds": 60}]}},
            },
            "status": {
                "currentReplicas": 2, "desiredReplicas": 3,
                "currentMetrics": [{"type": "Resource", "resource": {"name": "cpu",
                    "current": {"averageUtilization": 40, "averageValue": "100m"}}}],
                "conditions": [{"type": "AbleToScale", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            },
        })
    }

    #[test]
    fn nothing_is_lost_on_the_way_through_v1() {
        let mut shown = full();
        to_v1(&mut shown);
        assert_eq!(shown["apiVersion"], "autoscaling/v1");
        assert_eq!(shown["spec"]["targetCPUUtilizationPercentage"], 60);
        assert_eq!(
            shown["status"],
            json!({"currentReplicas": 2, "desiredReplicas": 3, "currentCPUUtilizationPercentage": 40})
        );
        let names: Vec<&String> = shown["metadata"]["annotations"].as_object().unwrap().keys().collect();
        assert_eq!(names.len(), 5, "{names:?}");
        let metrics: Value = serde_json::from_str(annotation(&shown, METRICS).unwrap()).unwrap();
        assert_eq!(
            metrics[0],
            json!({"type": "Resource", "resource": {"name": "memory", "targetAverageValue": "1Gi"}})
        );
        assert_eq!(metrics[3]["object"]["target"]["name"], "s");
        let behavior: Value = serde_json::from_str(annotation(&shown, BEHAVIOR).unwrap()).unwrap();
        assert_eq!(
            behavior["ScaleDown"]["Policies"][0],
            json!({"Type": "Pods", "Value": 4, "PeriodSeconds": 60})
        );
        assert_eq!(behavior["ScaleUp"], Value::Null);
        to_v2(&mut shown);
        assert_eq!(shown, full());
    }

    #[test]
    fn a_plain_v1_autoscaler_is_one_of_v2_and_back() {
        let mut object = json!({
            "apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
            "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "web"}, "maxReplicas": 5},
        });
        V1.set_defaults(&mut object);
        V1.prepare_create(&mut object);
        let mut errors = FieldErrors::default();
        V1.validate(&object, &mut errors);
        assert_eq!(errors.to_string(), "[]");
        let kept = stored(&object);
        assert_eq!(kept["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 80);
        assert_eq!(
            kept["status"],
            json!({"currentMetrics": null, "currentReplicas": 0, "desiredReplicas": 0})
        );
        let mut shown = kept;
        to_v1(&mut shown);
        assert_eq!(shown["spec"]["targetCPUUtilizationPercentage"], 80);
        assert!(shown["metadata"].get("annotations").is_none());
        assert_eq!(V1.cells(&shown, Wall::from_secs(0))[2], "cpu: <unknown>/80%");
    }

    #[test]
    fn status_in_annotations_is_written_through_status_only() {
        let mut old = full();
        to_v1(&mut old);
        let mut new = old.clone();
        new["metadata"]["annotations"] = json!({"mine": "y", CONDITIONS: "[]"});
        V1.prepare_update(&mut new, &old);
        assert_eq!(annotation(&new, CONDITIONS), annotation(&old, CONDITIONS));
        assert_eq!((annotation(&new, "mine"), annotation(&new, METRICS)), (Some("y"), None));
        let mut status = old.clone();
        status["metadata"]["annotations"] = json!({CONDITIONS: "[]"});
        V1.prepare_status(&mut status, &old);
        assert_eq!(annotation(&status, METRICS), annotation(&old, METRICS));
        assert_eq!(annotation(&status, CONDITIONS), Some("[]"));
    }
}
