//! Where metrics are asked for, and what the answers say.

use std::fmt::Write;
use std::time::Duration;

use api::selector::LabelSelector;
use base::duration::GoDuration;
use base::quantity::Quantity;
use serde_json::{Value, json};

use super::replicas::{Advice, Asked, Pods, Target, Usage, Used, quantity};
use super::spec::Hpa;
use crate::kinds::{self, Kind, Missing};
use crate::object::wall;
use crate::plan::{Act, Done, Outcome, Why};

/// What a metric comes to.
#[derive(Debug)]
pub(super) struct Metric {
    pub(super) replicas: i32,
    pub(super) name: String,
    /// `status.currentMetrics`
    pub(super) status: Value,
}

/// Why a metric comes to nothing: what the event and the condition say, and the whole story.
#[derive(Debug)]
pub(super) struct Bad {
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) story: String,
}

/// Either it needs answers first, or it is bad.
#[derive(Debug)]
pub(super) enum Not {
    Yet(Vec<Act>),
    Good(Bad),
}

/// What all metrics of an autoscaler are judged by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker<'a> {
    pub(super) hpa: &'a Hpa,
    pub(super) done: &'a Done,
    pub(super) pods: &'a Pods,
    /// As the scale has it.
    pub(super) selector: &'a str,
    pub(super) asked: Asked<'a>,
    /// How many there are, where `asked.current` is how many there should be.
    pub(super) running: i32,
}

const CUSTOM: &str = "/apis/custom.metrics.k8s.io";
const EXTERNAL: &str = "/apis/external.metrics.k8s.io/v1beta1";
const RESOURCE: &str = "/apis/metrics.k8s.io/v1beta1";

/// What a sample of custom metrics stands for that does not say it.
const WINDOW: Duration = Duration::from_secs(60);

// === impl Asker ===

impl Asker<'_> {
    pub(super) fn metric(&self, spec: &Value) -> Result<Metric, Not> {
        let (reason, of, result) = match spec["type"].as_str().unwrap_or_default() {
            "Resource" => {
                let source = &spec["resource"];
                let of = format!("{} resource metric value", text(&source["name"]));
                ("FailedGetResourceMetric", of, self.resource(source, None))
            }
            "ContainerResource" => {
                let source = &spec["containerResource"];
                let container = text(&source["container"]);
                let of = format!("{container} container metric value");
                ("FailedGetContainerResourceMetric", of, self.resource(source, Some(container)))
            }
            "Pods" => {
                ("FailedGetPodsMetric", "pods metric value".to_owned(), self.pods_metric(&spec["pods"]))
            }
            "Object" => {
                ("FailedGetObjectMetric", "object metric value".to_owned(), self.object(&spec["object"]))
            }
            "External" => {
                let source = &spec["external"];
                let of = format!("{} external metric value", text(&source["metric"]["name"]));
                ("FailedGetExternalMetric", of, self.external(source))
            }
            other => {
                let message = format!("unknown metric source type {other:?}");
                let story = message.clone();
                return Err(Not::Good(Bad { reason: "InvalidMetricSourceType", message, story }));
            }
        };
        result.map_err(|missing| match missing {
            Missing::Answers(acts) => Not::Yet(acts),
            Missing::Nothing(message) => {
                let story = format!("failed to get {of}: {message}");
                Not::Good(Bad { reason, message, story })
            }
        })
    }

    /// CPU, memory and the like, of Pods or of one container of each.
    fn resource(&self, source: &Value, container: Option<&str>) -> Result<Metric, Missing> {
        let (name, target) = (text(&source["name"]), &source["target"]);
        let is_cpu = name == "cpu";
        let (percent, amount) = (target["averageUtilization"].as_i64(), quantity(&target["averageValue"]));
        let what = if amount.is_some() { "usage" } else { "utilization" };
        let failed = |why: String| Missing::Nothing(format!("failed to get {name} {what}: {why}"));
        let advised = |target: Target| {
            let unable = |why| failed(format!("unable to get metrics for resource {name}: {why}"));
            let usage = self.resource_usage(name, container).map_err(|why| with(why, unable))?;
            self.pods.advice(usage, &target, is_cpu, self.asked).map_err(failed)
        };
        let (advice, title) = if let Some(amount) = amount {
            (advised(Target::Amount(amount))?, format!("{name} resource"))
        } else if let Some(percent) = percent.and_then(|percent| i32::try_from(percent).ok()) {
            // Requests that are not there are told after samples that are not there, as upstream does.
            let requests = self.pods.requests(name, container);
            let advice = match requests {
                Ok(requests) => advised(Target::Percent(percent, requests))?,
                Err(why) => {
                    advised(Target::Amount(1))?;
                    return Err(failed(why));
                }
            };
            let of = if container.is_some() { "container resource" } else { "resource" };
            (advice, format!("{name} {of} utilization (percentage of request)"))
        } else {
            let why = "invalid resource metric source: neither an average utilization target nor an average value (usage) target was set";
            return Err(Missing::Nothing(why.to_owned()));
        };
        let Advice { replicas, percent, average } = advice;
        let mut current = json!({"averageValue": amount_of(name, average)});
        if let Some(percent) = percent {
            current["averageUtilization"] = json!(percent);
        }
        let status = match container {
            None => json!({"type": "Resource", "resource": {"name": name, "current": current}}),
            Some(container) => json!({"type": "ContainerResource",
                "containerResource": {"name": name, "container": container, "current": current}}),
        };
        Ok(Metric { replicas, name: title, status })
    }

    fn resource_usage(&self, name: &str, container: Option<&str>) -> Result<Usage, Missing> {
        let namespace = &self.hpa.object.meta.namespace;
        let path = format!("{RESOURCE}/namespaces/{namespace}/pods?labelSelector={}", encode(self.selector));
        let list = self.answer(path, "resource metrics", Some("get pods.metrics.k8s.io"))?;
        let items = items(&list, "resource metrics")?;
        let one = |item: &Value| {
            let containers = item["containers"].as_array().filter(|all| !all.is_empty())?;
            let amounts = containers
                .iter()
                .filter(|one| container.is_none_or(|container| one["name"] == container))
                .map(|one| quantity(&one["usage"][name]));
            let amounts: Option<Vec<i64>> = amounts.collect();
            let value =
                amounts.filter(|amounts| !amounts.is_empty())?.into_iter().fold(0, i64::saturating_add);
            let window: Option<GoDuration> = item["window"].as_str().and_then(|text| text.parse().ok());
            let at = item["timestamp"].as_str().and_then(wall);
            let window = window.map_or(Duration::ZERO, GoDuration::to_std);
            Some((text(&item["metadata"]["name"]).to_owned(), Used { value, at, window }))
        };
        Ok(items.iter().filter_map(one).collect())
    }

    /// A number for each Pod.
    fn pods_metric(&self, source: &Value) -> Result<Metric, Missing> {
        let name = text(&source["metric"]["name"]);
        let Some(target) = quantity(&source["target"]["averageValue"]) else {
            return Err(Missing::Nothing(
                "invalid pods metric source: no average value target was set".into(),
            ));
        };
        let unable = |why| Missing::Nothing(format!("unable to get metric {name}: {why}"));
        let list =
            self.custom("pods/*", &source["metric"], Some(self.selector)).map_err(|why| with(why, unable))?;
        let samples = items(&list, "custom metrics").map_err(|why| with(why, unable))?;
        let one = |item: &Value| {
            let seconds = item["windowSeconds"].as_u64().or(item["window"].as_u64());
            let window = seconds.map_or(WINDOW, Duration::from_secs);
            let used = Used {
                value: quantity(&item["value"])?,
                at: item["timestamp"].as_str().and_then(wall),
                window,
            };
            Some((text(&item["describedObject"]["name"]).to_owned(), used))
        };
        let usage = samples.iter().filter_map(one).collect();
        let advice = self.pods.advice(usage, &Target::Amount(target), false, self.asked);
        let Advice { replicas, average, .. } = advice.map_err(Missing::Nothing)?;
        let current = json!({"averageValue": amount_of("", average)});
        let status = json!({"type": "Pods", "pods": {"metric": source["metric"], "current": current}});
        Ok(Metric { replicas, name: format!("pods metric {name}"), status })
    }

    /// A number of one object, for all Pods together.
    fn object(&self, source: &Value) -> Result<Metric, Missing> {
        let (metric, object) = (&source["metric"], &source["describedObject"]);
        let (name, kind) = (text(&metric["name"]), text(&object["kind"]));
        let (whole, each) = targets(&source["target"]);
        if whole.is_none() && each.is_none() {
            let why =
                "invalid object metric source: neither a value target nor an average value target was set";
            return Err(Missing::Nothing(why.to_owned()));
        }
        let namespace = &self.hpa.object.meta.namespace;
        let on = format!("on {kind} {namespace}/{}", text(&object["name"]));
        let unable = |why: String| {
            let why = format!("unable to get metric {name}: {why} {on}");
            Missing::Nothing(if whole.is_some() {
                why
            } else {
                format!("failed to get {name} object metric: {why}")
            })
        };
        let value = self.object_value(object, metric).map_err(|why| with(why, unable))?;
        let title = match whole {
            Some(_) => format!("{kind} metric {name}"),
            None => format!("external metric {name}({})", said(&metric["selector"])),
        };
        let (replicas, current) = self.by_number(value, whole, each)?;
        let status = json!({"type": "Object",
            "object": {"metric": metric, "describedObject": object, "current": current}});
        Ok(Metric { replicas, name: title, status })
    }

    fn object_value(&self, object: &Value, metric: &Value) -> Result<i64, Missing> {
        let (api_version, kind, name) =
            (text(&object["apiVersion"]), text(&object["kind"]), text(&object["name"]));
        let is_namespace = kind == "Namespace" && !api_version.contains('/');
        let place = if is_namespace {
            "metrics".to_owned()
        } else {
            let api_version = if api_version.is_empty() { "v1" } else { api_version };
            let served = kinds::served(Kind { api_version, kind }, self.done)?;
            let dot = if served.group.is_empty() { "" } else { "." };
            format!("{}{dot}{}/{}", served.plural, served.group, encode(name))
        };
        let list = self.custom(&place, metric, None)?;
        let values = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        match values {
            [one] => {
                quantity(&one["value"]).ok_or_else(|| Missing::Nothing("the metric has no value".to_owned()))
            }
            _ => Err(Missing::Nothing(format!(
                "unable to fetch metrics from custom metrics API: the custom metrics API server returned {} results when we asked for exactly one",
                values.len()
            ))),
        }
    }

    /// Numbers from outside of the cluster.
    fn external(&self, source: &Value) -> Result<Metric, Missing> {
        let metric = &source["metric"];
        let name = text(&metric["name"]);
        let (whole, each) = targets(&source["target"]);
        if whole.is_none() && each.is_none() {
            let why =
                "invalid external metric source: neither a value target nor an average value target was set";
            return Err(Missing::Nothing(why.to_owned()));
        }
        let namespace = &self.hpa.object.meta.namespace;
        let unable = |why: String| {
            let story = format!(
                "unable to get external metric {namespace}/{name}/{}: {why}",
                said(&metric["selector"])
            );
            let head = if each.is_some() {
                format!("failed to get {name} external metric")
            } else {
                format!("failed to get external metric {name}")
            };
            Missing::Nothing(format!("{head}: {story}"))
        };
        let selector = LabelSelector::from_object(&metric["selector"]);
        let mut path = format!("{EXTERNAL}/namespaces/{namespace}/{}", encode(name));
        if !selector.is_empty() {
            let _ = write!(path, "?labelSelector={}", encode(&selector.to_string()));
        }
        let missing = format!("get {name}.external.metrics.k8s.io");
        let list = self.answer(path, "external metrics", Some(&missing)).map_err(|why| with(why, unable))?;
        let samples = items(&list, "external metrics").map_err(|why| with(why, unable))?;
        let values = samples.iter().filter_map(|item| quantity(&item["value"]));
        let (replicas, current) =
            self.by_number(values.fold(0, i64::saturating_add), whole.filter(|_| each.is_none()), each)?;
        let status = json!({"type": "External", "external": {"metric": metric, "current": current}});
        Ok(Metric {
            replicas,
            name: format!("external metric {name}({})", said(&metric["selector"])),
            status,
        })
    }

    /// One number against a target for all, or for each.
    fn by_number(&self, value: i64, whole: Option<i64>, each: Option<i64>) -> Result<(i32, Value), Missing> {
        if let Some(target) = whole {
            let replicas = self.pods.advice_of_ratio(value as f64 / target as f64, self.asked);
            return Ok((replicas.map_err(Missing::Nothing)?, json!({"value": amount_of("", value)})));
        }
        let (value, target) = (value as f64, each.unwrap_or(1) as f64);
        let ratio = value / (target * f64::from(self.running));
        let replicas =
            if self.asked.tolerances.has(ratio) { self.running } else { (value / target).ceil() as i32 };
        let average = (value / f64::from(self.running)).ceil() as i64;
        Ok((replicas, json!({"averageValue": amount_of("", average)})))
    }

    /// The custom metrics API serves one version or the other.
    fn custom(&self, place: &str, metric: &Value, pods: Option<&str>) -> Result<Value, Missing> {
        let unregistered = "no custom metrics API (custom.metrics.k8s.io) registered";
        let group = match self.done.answer(CUSTOM) {
            None => return Err(Missing::Answers(vec![Act::Get { path: CUSTOM.to_owned() }])),
            Some(Outcome::Failed(refusal)) if refusal.why == Why::NotFound => Err(unregistered.to_owned()),
            Some(Outcome::Failed(refusal)) => Err(refusal.message.clone()),
            Some(Outcome::Done(group)) => Ok(serde_json::from_slice::<Value>(group).unwrap_or_default()),
            Some(Outcome::Skipped) => Err("it was not asked".to_owned()),
        };
        let failed =
            |why| Missing::Nothing(format!("unable to fetch metrics from custom metrics API: {why}"));
        let group = group.map_err(failed)?;
        let versions = group["versions"].as_array().into_iter().flatten();
        let is_new = versions.into_iter().any(|version| version["version"] == "v1beta2");
        let version = if is_new { "v1beta2" } else { "v1beta1" };
        let (namespace, name) = (&self.hpa.object.meta.namespace, text(&metric["name"]));
        let mut path = format!("{CUSTOM}/{version}/namespaces/{namespace}/{place}/{}", encode(name));
        let mut mark = '?';
        let selector = LabelSelector::from_object(&metric["selector"]);
        let own = (!selector.is_empty()).then(|| selector.to_string());
        for (key, said) in [("labelSelector", pods.map(str::to_owned)), ("metricLabelSelector", own)] {
            if let Some(said) = said {
                let _ = write!(path, "{mark}{key}={}", encode(&said));
                mark = '&';
            }
        }
        self.answer(path, "custom metrics", None)
    }

    /// What the API of some metrics answered. Where it is not served at all, upstream's client has words of its own.
    fn answer(&self, path: String, api: &str, missing: Option<&str>) -> Result<Value, Missing> {
        let failed =
            |why: &str| Err(Missing::Nothing(format!("unable to fetch metrics from {api} API: {why}")));
        match (self.done.answer(&path), missing) {
            (None, _) => Err(Missing::Answers(vec![Act::Get { path }])),
            (Some(Outcome::Failed(refusal)), Some(what)) if refusal.why == Why::NotFound => {
                failed(&format!("the server could not find the requested resource ({what})"))
            }
            (Some(Outcome::Failed(refusal)), _) => failed(&refusal.message),
            (Some(Outcome::Done(answer)), _) => match serde_json::from_slice(answer) {
                Ok(answer) => Ok(answer),
                Err(error) => failed(&format!("the answer is no JSON at column {}", error.column())),
            },
            (Some(Outcome::Skipped), _) => failed("it was not asked"),
        }
    }
}

/// A target for all together, and one for each.
fn targets(target: &Value) -> (Option<i64>, Option<i64>) {
    let (whole, each) = (quantity(&target["value"]), quantity(&target["averageValue"]));
    match target["type"].as_str() {
        Some("Value") => (whole, None),
        Some("AverageValue") => (None, each),
        _ => (whole, each),
    }
}

fn items<'a>(list: &'a Value, api: &str) -> Result<&'a [Value], Missing> {
    let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    if items.is_empty() {
        return Err(Missing::Nothing(format!("no metrics returned from {api} API")));
    }
    Ok(items)
}

/// Puts a story around a failure; questions stay questions.
fn with(missing: Missing, story: impl FnOnce(String) -> Missing) -> Missing {
    match missing {
        Missing::Nothing(why) => story(why),
        questions => questions,
    }
}

/// Thousandths as a quantity; whole bytes of memory in binary units, as the metrics server has them.
fn amount_of(resource: &str, milli: i64) -> String {
    if resource == "memory" && milli % 1000 == 0 {
        return Quantity::from_bytes(milli / 1000).to_string();
    }
    Quantity::from_milli(milli).to_string()
}

/// A selector as upstream's messages print it.
fn said(selector: &Value) -> String {
    if selector.is_null() {
        return "nil".to_owned();
    }
    let mut labels = String::new();
    for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
        let _ = write!(labels, "{key}: {},", text(value));
    }
    let mut terms = String::new();
    for term in selector["matchExpressions"].as_array().into_iter().flatten() {
        let values = term["values"].as_array().into_iter().flatten();
        let values: Vec<&str> = values.filter_map(Value::as_str).collect();
        let (key, operator) = (text(&term["key"]), text(&term["operator"]));
        let _ = write!(
            terms,
            "LabelSelectorRequirement{{Key:{key},Operator:{operator},Values:[{}],}},",
            values.join(" ")
        );
    }
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{terms}}},}}"
    )
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Percent-encodes a part of a path or a query; a dot alone would lead elsewhere.
fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => out.push(char::from(byte)),
            b'.' if text.bytes().any(|byte| byte != b'.') => out.push('.'),
            other => _ = write!(out, "%{other:02X}"),
        }
    }
    out
}
