//! LimitRanger: what a namespace's LimitRanges fill in, and what they do not let pass.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::quantity::Quantity;
use serde_json::{Value, json};

use super::{Operation, Review};
use crate::api_status::ApiStatus;
use crate::doc;
use api::quota::amounts::{self, Amounts, amounts};

const NOTE: &str = "kubernetes.io/limit-ranger";

/// Whether the LimitRanges of its namespace fill in something of what is written.
#[must_use]
pub fn completes(review: &Review<'_>) -> bool {
    review.is_on("", "pods") && review.operation == Operation::Create
}

/// Whether what is written has to be within the LimitRanges of its namespace.
#[must_use]
pub fn bounds(review: &Review<'_>) -> bool {
    bounds_pod(review) || bounds_claim(review)
}

pub fn mutate(ranges: &[Arc<Value>], object: &mut Value) {
    ranges.iter().for_each(|range| fill(range, object));
}

pub fn validate(ranges: &[Arc<Value>], review: &Review<'_>, object: &Value) -> Result<(), ApiStatus> {
    for range in ranges {
        let problems =
            if bounds_pod(review) { pod_problems(range, object) } else { claim_problems(range, object) };
        let why = match problems.as_slice() {
            [] => continue,
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        return Err(review.forbid(object, &why));
    }
    Ok(())
}

fn bounds_pod(review: &Review<'_>) -> bool {
    let resize = review.is_at("", "pods") && review.subresource() == "resize";
    completes(review) || resize
}

fn bounds_claim(review: &Review<'_>) -> bool {
    review.is_on("", "persistentvolumeclaims") && review.operation != Operation::Delete
}

/// Puts the defaults where a container says nothing, and notes what it did.
fn fill(range: &Value, pod: &mut Value) {
    let (mut requests, mut limits) = (BTreeMap::new(), BTreeMap::new());
    for limit in doc::list(range, "spec.limits").iter().filter(|l| l["type"] == "Container") {
        requests.extend(doc::entries(limit, "defaultRequest").map(|(k, v)| (k.to_owned(), v.clone())));
        limits.extend(doc::entries(limit, "default").map(|(k, v)| (k.to_owned(), v.clone())));
    }
    let mut notes = Vec::new();
    for (field, what) in [("spec.containers", "container"), ("spec.initContainers", "init container")] {
        for container in doc::list_mut(pod, field) {
            let name = doc::text(container, "name").to_owned();
            for (kind, defaults, word) in [("requests", &requests, "request"), ("limits", &limits, "limit")] {
                let missing: Vec<&String> =
                    defaults.keys().filter(|k| container["resources"][kind].get(k).is_none()).collect();
                for key in &missing {
                    container["resources"][kind][key.as_str()] = defaults[*key].clone();
                }
                if !missing.is_empty() {
                    let keys: Vec<&str> = missing.iter().map(|k| k.as_str()).collect();
                    notes.push(format!("{} {word} for {what} {name}", keys.join(", ")));
                }
            }
        }
    }
    if !notes.is_empty() {
        let note = format!("LimitRanger plugin set: {}", notes.join("; "));
        if !pod["metadata"]["annotations"].is_object() {
            pod["metadata"]["annotations"] = json!({});
        }
        pod["metadata"]["annotations"][NOTE] = note.into();
    }
}

fn pod_problems(range: &Value, pod: &Value) -> Vec<String> {
    let mut out = Vec::new();
    for limit in doc::list(range, "spec.limits") {
        match doc::text(limit, "type") {
            "Container" => {
                for field in ["spec.containers", "spec.initContainers"] {
                    for container in doc::list(pod, field) {
                        let (requests, limits) = (
                            amounts(&container["resources"]["requests"]),
                            amounts(&container["resources"]["limits"]),
                        );
                        constrain(limit, &requests, &limits, &mut out);
                    }
                }
            }
            "Pod" => {
                let (requests, limits) = (amounts::requests(pod), amounts::limits(pod));
                constrain(limit, &requests, &limits, &mut out);
            }
            _ => {}
        }
    }
    out
}

fn constrain(limit: &Value, requests: &Amounts, limits: &Amounts, out: &mut Vec<String>) {
    let what = doc::text(limit, "type");
    for (name, least) in amounts(&limit["min"]) {
        out.extend(below(what, &name, least, requests.get(&name), limits.get(&name)));
    }
    for (name, most) in amounts(&limit["max"]) {
        out.extend(above(what, &name, most, requests.get(&name), limits.get(&name)));
    }
    for (name, ratio) in amounts(&limit["maxLimitRequestRatio"]) {
        out.extend(too_wide(what, &name, ratio, requests.get(&name), limits.get(&name)));
    }
}

fn claim_problems(range: &Value, claim: &Value) -> Vec<String> {
    let requests = amounts(&claim["spec"]["resources"]["requests"]);
    let mut out = Vec::new();
    for limit in doc::list(range, "spec.limits").iter().filter(|l| l["type"] == "PersistentVolumeClaim") {
        for (name, least) in amounts(&limit["min"]) {
            out.extend(below("PersistentVolumeClaim", &name, least, requests.get(&name), None));
        }
        for (name, most) in amounts(&limit["max"]) {
            let head = format!("maximum {name} usage per PersistentVolumeClaim is {most}");
            match requests.get(&name) {
                None => out.push(format!("{head}.  No request is specified")),
                Some(request) if *request > most => out.push(format!("{head}, but request is {request}")),
                Some(_) => {}
            }
        }
    }
    out
}

fn below(
    what: &str,
    name: &str,
    least: Quantity,
    request: Option<&Quantity>,
    limit: Option<&Quantity>,
) -> Option<String> {
    let head = format!("minimum {name} usage per {what} is {least}");
    match (request, limit) {
        (None, _) => Some(format!("{head}.  No request is specified")),
        (Some(request), _) if *request < least => Some(format!("{head}, but request is {request}")),
        (_, Some(limit)) if *limit < least => Some(format!("{head}, but limit is {limit}")),
        _ => None,
    }
}

fn above(
    what: &str,
    name: &str,
    most: Quantity,
    request: Option<&Quantity>,
    limit: Option<&Quantity>,
) -> Option<String> {
    let head = format!("maximum {name} usage per {what} is {most}");
    match (limit, request) {
        (None, _) => Some(format!("{head}.  No limit is specified")),
        (Some(limit), _) if *limit > most => Some(format!("{head}, but limit is {limit}")),
        (_, Some(request)) if *request > most => Some(format!("{head}, but request is {request}")),
        _ => None,
    }
}

fn too_wide(
    what: &str,
    name: &str,
    most: Quantity,
    request: Option<&Quantity>,
    limit: Option<&Quantity>,
) -> Option<String> {
    let head = format!("{name} max limit to request ratio per {what} is {most}");
    let Some(request) = request.filter(|r| !r.is_zero()) else {
        return Some(format!("{head}, but no request is specified or request is 0"));
    };
    let Some(limit) = limit.filter(|l| !l.is_zero()) else {
        return Some(format!("{head}, but no limit is specified or limit is 0"));
    };
    let ratio = limit.milli_value() as f64 / request.milli_value() as f64;
    (ratio > most.milli_value() as f64 / 1000.0).then(|| format!("{head}, but provided ratio is {ratio:.6}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::testing::Ask;
    use super::*;

    fn ranges(limit: Value) -> [Arc<Value>; 1] {
        let range = json!({"metadata": {"name": "r", "namespace": "web"}, "spec": {"limits": [limit]}});
        [Arc::new(range)]
    }

    #[test]
    fn defaults_fill_what_containers_leave_open() {
        let ranges = ranges(json!({"type": "Container", "default": {"cpu": "1", "memory": "1Gi"},
            "defaultRequest": {"cpu": "100m"}}));
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [
            {"name": "a"}, {"name": "b", "resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}}]}});
        assert!(completes(&Ask::create("", "pods", "web").review()));
        mutate(&ranges, &mut pod);
        assert_eq!(pod["spec"]["containers"][0]["resources"]["limits"], json!({"cpu": "1", "memory": "1Gi"}));
        assert_eq!(pod["spec"]["containers"][1]["resources"]["limits"], json!({"cpu": "2", "memory": "1Gi"}));
        assert_eq!(
            pod["metadata"]["annotations"][NOTE],
            "LimitRanger plugin set: cpu request for container a; cpu, memory limit for container a; \
             memory limit for container b"
        );
    }

    #[test]
    fn what_is_out_of_range_is_told_as_upstream_tells_it() {
        let limit = |extra: Value| {
            let mut limit = json!({"type": "Container"});
            limit.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            limit
        };
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [
            {"name": "a", "resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "2"}}}]}});
        for (extra, why) in [
            (json!({"min": {"cpu": "1"}}), "minimum cpu usage per Container is 1, but request is 500m"),
            (json!({"max": {"cpu": "1"}}), "maximum cpu usage per Container is 1, but limit is 2"),
            (
                json!({"max": {"memory": "1Gi"}}),
                "maximum memory usage per Container is 1Gi.  No limit is specified",
            ),
            (
                json!({"maxLimitRequestRatio": {"cpu": "3"}}),
                "cpu max limit to request ratio per Container is 3, but provided ratio is 4.000000",
            ),
            (
                json!({"type": "Pod", "max": {"cpu": "1500m"}}),
                "maximum cpu usage per Pod is 1500m, but limit is 2",
            ),
        ] {
            let ranges = ranges(limit(extra));
            let ask = Ask::create("", "pods", "web");
            let api_status = validate(&ranges, &ask.review(), &pod).unwrap_err();
            assert_eq!(api_status.message, format!("pods \"p\" is forbidden: {why}"));
        }
        let ranges = ranges(json!({"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}}));
        let claim =
            json!({"metadata": {"name": "c"}, "spec": {"resources": {"requests": {"storage": "2Gi"}}}});
        let ask = Ask::create("", "persistentvolumeclaims", "web");
        let api_status = validate(&ranges, &ask.review(), &claim).unwrap_err();
        assert!(
            api_status
                .message
                .ends_with("maximum storage usage per PersistentVolumeClaim is 1Gi, but request is 2Gi")
        );
    }
}
