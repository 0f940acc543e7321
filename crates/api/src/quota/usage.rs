//! How much of a quota an object uses, and which quotas it falls under. Pure.

use std::collections::{BTreeMap, BTreeSet};

use base::quantity::Quantity;
use base::rfc3339::Moment;
use base::time::Wall;
use serde_json::Value;

use super::amounts::{Amounts, add, amounts, limits, requests};
use super::{at, list, text};

/// What one object uses of everything that can be limited. `storage` says what kind it is. `now`: a Pod that should be gone by
/// then, and its grace over once more, uses nothing.
pub fn of(storage: &str, object: &Value, now: Option<Wall>) -> Amounts {
    let mut out = Amounts::new();
    let one = Quantity::from_value(1);
    out.insert(format!("count/{storage}"), one);
    match storage {
        "pods" if is_over(object) || now.is_some_and(|now| is_overdue(object, now)) => {}
        "pods" => pod(object, &mut out),
        "services" => service(object, &mut out),
        "persistentvolumeclaims" => claim(object, &mut out),
        "configmaps" | "secrets" | "replicationcontrollers" | "resourcequotas" => {
            out.insert(storage.to_owned(), one);
        }
        _ => {}
    }
    out
}

/// Which kinds a limited resource is about: the storage to count through.
pub fn storage_of(resource: &str) -> &str {
    if let Some(counted) = resource.strip_prefix("count/") {
        return counted;
    }
    if resource.starts_with("services") {
        return "services";
    }
    let claims = resource == "persistentvolumeclaims"
        || resource == "requests.storage"
        || resource.contains(".storageclass.storage.k8s.io/");
    if claims {
        return "persistentvolumeclaims";
    }
    match resource {
        "configmaps" | "secrets" | "replicationcontrollers" | "resourcequotas" => resource,
        _ => "pods",
    }
}

/// Whether a quota's scopes take the object in. Scopes are about Pods, and one about claims; a quota with scopes counts
/// nothing else.
pub fn is_in_scope(quota: &Value, storage: &str, object: &Value) -> bool {
    let plain =
        list(quota, "spec.scopes").iter().map(|s| (s.as_str().unwrap_or_default(), "Exists", Vec::new()));
    let selected = list(quota, "spec.scopeSelector.matchExpressions").iter().map(|e| {
        let values = list(e, "values").iter().filter_map(Value::as_str).collect::<Vec<_>>();
        (text(e, "scopeName"), text(e, "operator"), values)
    });
    let mut all = plain.chain(selected).peekable();
    if all.peek().is_none() {
        return true;
    }
    let matches = match storage {
        "pods" => matches_scope,
        "persistentvolumeclaims" => claim_matches_scope,
        _ => return false,
    };
    all.all(|(scope, operator, values)| matches(scope, operator, &values, object))
}

/// Everything about a Pod that scopes look at.
pub fn scopes(pod: &Value) -> (bool, bool, bool, &str) {
    (is_terminating(pod), is_best_effort(pod), crosses_namespaces(pod), text(pod, "spec.priorityClassName"))
}

fn is_terminating(pod: &Value) -> bool {
    at(pod, "spec.activeDeadlineSeconds").as_i64().is_some_and(|s| s >= 0)
}

fn matches_scope(scope: &str, operator: &str, values: &[&str], pod: &Value) -> bool {
    match scope {
        "Terminating" => is_terminating(pod),
        "NotTerminating" => !is_terminating(pod),
        "BestEffort" => is_best_effort(pod),
        "NotBestEffort" => !is_best_effort(pod),
        "CrossNamespacePodAffinity" => crosses_namespaces(pod),
        "PriorityClass" => is_selected(text(pod, "spec.priorityClassName"), operator, values),
        _ => false,
    }
}

/// A claim counts for every class it has, had until now, or is on its way to.
fn claim_matches_scope(scope: &str, operator: &str, values: &[&str], claim: &Value) -> bool {
    let mut classes = volume_attributes_classes(claim);
    if classes.is_empty() {
        classes.insert("");
    }
    scope == "VolumeAttributesClass" && classes.into_iter().any(|class| is_selected(class, operator, values))
}

/// The names a claim refers to.
pub fn volume_attributes_classes(claim: &Value) -> BTreeSet<&str> {
    [
        "spec.volumeAttributesClassName",
        "status.currentVolumeAttributesClassName",
        "status.modifyVolumeStatus.targetVolumeAttributesClassName",
    ]
    .into_iter()
    .map(|field| text(claim, field))
    .filter(|class| !class.is_empty())
    .collect()
}

fn is_selected(class: &str, operator: &str, values: &[&str]) -> bool {
    match operator {
        "In" => values.contains(&class),
        "NotIn" => !values.contains(&class),
        "DoesNotExist" => class.is_empty(),
        _ => !class.is_empty(),
    }
}

/// What containers must say because a quota limits it: `must specify limits.cpu for: a,b; …`.
pub fn unsaid(limited: &BTreeSet<&str>, pod: &Value) -> Option<String> {
    const ASKED: [(&str, &str, &str); 6] = [
        ("cpu", "requests", "cpu"),
        ("memory", "requests", "memory"),
        ("requests.cpu", "requests", "cpu"),
        ("requests.memory", "requests", "memory"),
        ("limits.cpu", "limits", "cpu"),
        ("limits.memory", "limits", "memory"),
    ];
    if pod["spec"]["resources"].is_object() {
        return None;
    }
    let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for field in ["spec.containers", "spec.initContainers"] {
        for container in list(pod, field) {
            for (resource, list, name) in ASKED.into_iter().filter(|(r, ..)| limited.contains(r)) {
                if container["resources"][list].get(name).is_none() {
                    missing.entry(resource).or_default().insert(text(container, "name"));
                }
            }
        }
    }
    if missing.is_empty() {
        return None;
    }
    let parts: Vec<String> = missing
        .into_iter()
        .map(|(r, names)| format!("{r} for: {}", names.into_iter().collect::<Vec<_>>().join(",")))
        .collect();
    Some(format!("must specify {}", parts.join("; ")))
}

/// A Pod that ended uses nothing.
fn is_over(pod: &Value) -> bool {
    matches!(text(pod, "status.phase"), "Succeeded" | "Failed")
}

/// Its Node may be lost: nobody should have to pay for that. The time of a deletion has the grace in it already.
fn is_overdue(pod: &Value, now: Wall) -> bool {
    let metadata = &pod["metadata"];
    let at = Moment::parse_lenient(text(metadata, "deletionTimestamp")).map(|at| at.secs);
    let grace = metadata["deletionGracePeriodSeconds"].as_i64();
    at.zip(grace).is_some_and(|(at, grace)| now.secs() > at.saturating_add(grace))
}

fn pod(pod: &Value, out: &mut Amounts) {
    out.insert("pods".to_owned(), Quantity::from_value(1));
    let (mut requests, mut limits) = (requests(pod), limits(pod));
    let overhead = amounts(&pod["spec"]["overhead"]);
    add(&mut requests, &overhead);
    let limited: Amounts = overhead.into_iter().filter(|(name, _)| limits.contains_key(name)).collect();
    add(&mut limits, &limited);
    for (name, amount) in requests {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-") {
            out.insert(name.clone(), amount);
        }
        out.insert(format!("requests.{name}"), amount);
    }
    for (name, amount) in limits {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            out.insert(format!("limits.{name}"), amount);
        }
    }
}

fn service(service: &Value, out: &mut Amounts) {
    out.insert("services".to_owned(), Quantity::from_value(1));
    let ports = i64::try_from(list(service, "spec.ports").len()).unwrap_or(i64::MAX);
    let (balancers, node_ports) = match text(service, "spec.type") {
        "NodePort" => (0, ports),
        "LoadBalancer" => {
            let without = *at(service, "spec.allocateLoadBalancerNodePorts") == Value::Bool(false);
            let said = list(service, "spec.ports")
                .iter()
                .filter(|p| p["nodePort"].as_i64().is_some_and(|port| port != 0))
                .count();
            (1, if without { i64::try_from(said).unwrap_or(i64::MAX) } else { ports })
        }
        _ => (0, 0),
    };
    out.insert("services.loadbalancers".to_owned(), Quantity::from_value(balancers));
    out.insert("services.nodeports".to_owned(), Quantity::from_value(node_ports));
}

fn claim(claim: &Value, out: &mut Amounts) {
    let one = Quantity::from_value(1);
    out.insert("persistentvolumeclaims".to_owned(), one);
    let size = amounts(&claim["spec"]["resources"]["requests"]).get("storage").copied();
    let class = text(claim, "spec.storageClassName");
    if !class.is_empty() {
        out.insert(format!("{class}.storageclass.storage.k8s.io/persistentvolumeclaims"), one);
    }
    if let Some(size) = size {
        out.insert("requests.storage".to_owned(), size);
        if !class.is_empty() {
            out.insert(format!("{class}.storageclass.storage.k8s.io/requests.storage"), size);
        }
    }
}

fn is_best_effort(pod: &Value) -> bool {
    requests(pod)
        .into_iter()
        .chain(limits(pod))
        .all(|(name, amount)| !matches!(name.as_str(), "cpu" | "memory") || amount.is_zero())
}

fn crosses_namespaces(pod: &Value) -> bool {
    ["podAffinity", "podAntiAffinity"].into_iter().any(|kind| {
        let affinity = &pod["spec"]["affinity"][kind];
        let required = list(affinity, "requiredDuringSchedulingIgnoredDuringExecution").iter();
        let preferred = list(affinity, "preferredDuringSchedulingIgnoredDuringExecution").iter();
        required
            .chain(preferred.map(|p| &p["podAffinityTerm"]))
            .any(|term| !list(term, "namespaces").is_empty() || term["namespaceSelector"].is_object())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown(amounts: &Amounts) -> Vec<String> {
        amounts.iter().map(|(k, v)| format!("{k}={v}")).collect()
    }

    #[test]
    fn objects_use_what_upstream_counts() {
        let pod = json!({"spec": {"overhead": {"cpu": "100m"}, "containers": [
            {"resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "2"}, "limits": {"cpu": "2"}}}]}});
        assert_eq!(
            shown(&of("pods", &pod, None)),
            [
                "count/pods=1",
                "cpu=1100m",
                "limits.cpu=2100m",
                "pods=1",
                "requests.cpu=1100m",
                "requests.nvidia.com/gpu=2"
            ]
        );
        let mut ended = pod.clone();
        ended["status"] = json!({"phase": "Succeeded"});
        assert_eq!(shown(&of("pods", &ended, None)), ["count/pods=1"]);
        let service = json!({"spec": {"type": "LoadBalancer", "ports": [{}, {}]}});
        assert_eq!(
            shown(&of("services", &service, None)),
            ["count/services=1", "services=1", "services.loadbalancers=1", "services.nodeports=2"]
        );
        let claim =
            json!({"spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}}});
        assert_eq!(shown(&of("persistentvolumeclaims", &claim, None)).len(), 5);
        assert_eq!(shown(&of("deployments.apps", &json!({}), None)), ["count/deployments.apps=1"]);
        for resource in of("persistentvolumeclaims", &claim, None).keys() {
            assert_eq!(storage_of(resource), "persistentvolumeclaims");
        }
    }

    #[test]
    fn a_scope_chooses_claims_by_their_classes() {
        let scoped = |operator: &str, values: Value, claim: &Value| {
            let expression =
                json!({"scopeName": "VolumeAttributesClass", "operator": operator, "values": values});
            let quota = json!({"spec": {"scopeSelector": {"matchExpressions": [expression]}}});
            is_in_scope(&quota, "persistentvolumeclaims", claim)
        };
        let plain = json!({"spec": {}});
        let gold = json!({"spec": {"volumeAttributesClassName": "gold"}});
        let leaving = json!({"spec": {"volumeAttributesClassName": "gold"}, "status": {
            "currentVolumeAttributesClassName": "silver",
            "modifyVolumeStatus": {"targetVolumeAttributesClassName": "bronze"}}});
        for (operator, values, taken) in [
            ("In", json!(["gold"]), [false, true, true]),
            ("In", json!(["silver"]), [false, false, true]),
            ("In", json!(["bronze"]), [false, false, true]),
            ("NotIn", json!(["gold"]), [true, false, true]),
            ("Exists", json!([]), [false, true, true]),
            ("DoesNotExist", json!([]), [true, false, false]),
        ] {
            let seen = [&plain, &gold, &leaving].map(|claim| scoped(operator, values.clone(), claim));
            assert_eq!(seen, taken, "{operator} {values}");
        }
        let pods = json!({"spec": {"scopes": ["BestEffort"]}});
        assert!(!is_in_scope(&pods, "persistentvolumeclaims", &gold));
        let claims = json!({"spec": {"scopes": ["VolumeAttributesClass"]}});
        assert!(!is_in_scope(&claims, "pods", &json!({"spec": {}})));
    }

    #[test]
    fn scopes_choose_pods() {
        let pod =
            json!({"spec": {"priorityClassName": "high", "activeDeadlineSeconds": 5, "containers": [{}]}});
        let scoped = |spec: Value| is_in_scope(&json!({"spec": spec}), "pods", &pod);
        let class = |operator: &str, values: Value| json!({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": operator, "values": values}]}});
        for (spec, taken) in [
            (json!({}), true),
            (json!({"scopes": ["BestEffort", "Terminating"]}), true),
            (json!({"scopes": ["NotBestEffort"]}), false),
            (json!({"scopes": ["NotTerminating"]}), false),
            (class("In", json!(["high"])), true),
            (class("NotIn", json!(["high"])), false),
            (class("DoesNotExist", json!([])), false),
        ] {
            assert_eq!(scoped(spec.clone()), taken, "{spec}");
        }
        assert!(!is_in_scope(&json!({"spec": {"scopes": ["BestEffort"]}}), "services", &pod));
    }

    #[test]
    fn what_is_limited_must_be_said() {
        let pod = json!({"spec": {"containers": [{"name": "a"}, {"name": "b", "resources": {"limits": {"cpu": "1"}}}]}});
        let limited = ["limits.cpu", "limits.memory", "pods"].into_iter().collect();
        assert_eq!(
            unsaid(&limited, &pod).as_deref(),
            Some("must specify limits.cpu for: a; limits.memory for: a,b")
        );
        assert_eq!(unsaid(&["pods"].into_iter().collect(), &pod), None);
    }
}
