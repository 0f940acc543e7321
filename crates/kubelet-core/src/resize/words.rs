//! What people and metrics are told.

use api::pod::Amount;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use serde::Serialize;

use super::{List, all, amount_of};

/// The resources of the Pod's containers, as upstream shows them in events.
#[derive(Serialize)]
struct Summary<'a> {
    #[serde(rename = "initContainers", skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<One<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    containers: Vec<One<'a>>,
    generation: i64,
    #[serde(skip_serializing_if = "str::is_empty")]
    error: &'a str,
}

#[derive(Serialize)]
struct One<'a> {
    name: &'a str,
    resources: Lists<'a>,
}

#[derive(Serialize)]
struct Lists<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<&'a List>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<&'a List>,
}

/// The text of an event about a resize.
#[must_use]
pub fn message(what: &str, pod: &Pod, generation: Option<i64>, error: &str) -> String {
    let Some(spec) = &pod.spec else { return what.to_owned() };
    let summary = Summary {
        init_containers: spec.init_containers.iter().flatten().map(one).collect(),
        containers: spec.containers.iter().map(one).collect(),
        generation: generation.unwrap_or(0),
        error,
    };
    match serde_json::to_string(&summary) {
        Ok(summary) => format!("{what}: {summary}"),
        Err(_) => what.to_owned(),
    }
}

fn one(c: &Container) -> One<'_> {
    let some = |list: fn(&ResourceRequirements) -> Option<&List>| {
        c.resources.as_ref().and_then(list).filter(|l| !l.is_empty())
    };
    let lists = Lists { limits: some(|r| r.limits.as_ref()), requests: some(|r| r.requests.as_ref()) };
    One { name: &c.name, resources: lists }
}

/// What was asked for, by the labels of `container_requested_resizes_total`: resource, requirement, operation.
#[must_use]
pub fn operations(old: &Pod, new: &Pod) -> Vec<[&'static str; 3]> {
    let mut found = Vec::new();
    let (Some(before), Some(after)) = (&old.spec, &new.spec) else { return found };
    for was in all(before) {
        let Some(is) = all(after).find(|c| c.name == was.name) else { continue };
        for resource in ["memory", "cpu"] {
            for requirement in ["requests", "limits"] {
                let amount = |c: &Container| {
                    let lists = c.resources.as_ref();
                    let list = match requirement {
                        "requests" => lists.and_then(|r| r.requests.as_ref()),
                        _ => lists.and_then(|r| r.limits.as_ref()),
                    };
                    amount_of(list, resource)
                };
                if let Some(operation) = operation(amount(was), amount(is)) {
                    found.push([resource, requirement, operation]);
                }
            }
        }
    }
    found
}

fn operation(old: Amount, new: Amount) -> Option<&'static str> {
    let none = Amount::default();
    match (old == none, new == none) {
        _ if old == new => None,
        (true, _) => Some("add"),
        (_, true) => Some("remove"),
        _ if new < old => Some("decrease"),
        _ => Some("increase"),
    }
}
