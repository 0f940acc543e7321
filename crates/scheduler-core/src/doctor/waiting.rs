//! The Pod has no node yet: what the scheduler says of every node, worked out here anew.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::rng::Rng;
use k8s_openapi::api::core::v1 as core;

use super::{Chart, Facts, condition, counted, said, shown, target};
use crate::Key;
use crate::cycle::{Cycle, Found, Sampling};
use crate::pod::{DEFAULT_SCHEDULER, Pod};
use crate::preemption::{Preemption, post_filter};
use crate::profile::Profile;
use crate::status::Diagnosis;

/// With more nodes than this they are counted, not listed.
const MOST_LISTED: usize = 20;

pub(super) fn examine(chart: &mut Chart, facts: &mut Facts, object: &core::Pod) {
    let spec = object.spec.clone().unwrap_or_default();
    let gates: Vec<String> = spec.scheduling_gates.into_iter().flatten().map(|g| g.name).collect();
    if !gates.is_empty() {
        chart.wrong(
            format!("Pod {} waits for its scheduling gates: {}", shown(object), gates.join(", ")),
            &format!(
                "whoever set them has to take them away; they stand in `kubectl get pod {} -o jsonpath={{.spec.schedulingGates}}`",
                target(object)
            ),
        );
        return;
    }
    let scheduler = spec.scheduler_name.as_deref().unwrap_or(DEFAULT_SCHEDULER);
    if scheduler != DEFAULT_SCHEDULER {
        chart.note(format!(
            "it is for scheduler {scheduler:?}; what follows is what kube-scheduler would say"
        ));
    }
    volumes(chart, facts, object);
    let pod = Arc::new(Pod::read(object));
    let told = condition(object, "PodScheduled").filter(|c| c.status == "False");
    verdicts(chart, facts, object, &pod, told.is_some());
    match told.and_then(|c| c.message.as_deref()) {
        Some(message) => chart.note(format!("the scheduler has said: {message}")),
        None => chart.wrong(
            format!("no scheduler has looked at Pod {} yet", shown(object)),
            &format!(
                "is one running that serves {scheduler:?}? `kubectl get leases -n kube-system` and \
                 `kubectl get events -A --field-selector reason=FailedScheduling` tell"
            ),
        ),
    }
}

/// What every node would say now.
fn verdicts(chart: &mut Chart, facts: &mut Facts, object: &core::Pod, pod: &Arc<Pod>, was_tried: bool) {
    let profile = Arc::new(Profile::default());
    let mut sampling = Sampling { percentage: 100, ..Sampling::default() };
    let (cycle, found) = Cycle::find(&profile, &mut facts.cluster, pod, &mut sampling);
    match found {
        Found::NoNodes => chart.wrong(
            "there are no nodes".to_owned(),
            "is a kubelet running? `kubectl get nodes` shows those that have registered",
        ),
        Found::Error(error) => {
            chart.wrong(format!("it cannot be scheduled: {error}"), &super::describe(object));
        }
        Found::Nodes { feasible, .. } if !feasible.is_empty() => {
            let names: Vec<&str> =
                feasible.iter().take(MOST_LISTED).map(|n| facts.cluster.info(*n).name()).collect();
            let text = format!("{} would take it: {}", counted(feasible.len(), "node"), names.join(", "));
            match was_tried {
                true => chart.note(format!("{text}; the scheduler tries it again soon")),
                false => chart.good(text),
            }
        }
        Found::Nodes { mut diagnosis, .. } => {
            list(chart, facts, &diagnosis);
            if let Preemption::Nothing { message, .. } =
                post_filter(&cycle, &facts.cluster, &diagnosis, &mut Rng::new(0))
            {
                diagnosis.post_filter = message;
            } else {
                chart.note("less important Pods can make way for it".to_owned());
            }
            let by: Vec<&str> = diagnosis.plugins.iter().map(|p| p.name()).collect();
            chart.wrong(
                format!("no node takes Pod {}: {}", shown(object), diagnosis.message().trim_end_matches('.')),
                &format!(
                    "{} {} no; compare `kubectl describe pod {}` with `kubectl describe nodes`",
                    by.join(" and "),
                    if by.len() == 1 { "says" } else { "say" },
                    target(object)
                ),
            );
        }
    }
}

/// Each node with the plugin that refuses it and why.
fn list(chart: &mut Chart, facts: &Facts, diagnosis: &Diagnosis) {
    if diagnosis.pre_filter.is_some() {
        return;
    }
    let node = |index: usize| facts.cluster.info(index).name().to_owned();
    let mut by_reason: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for status in &diagnosis.statuses {
        let reason = format!("{}: {}", status.plugin.name(), status.rejection.message());
        by_reason.entry(reason).or_default().push(node(status.node));
    }
    for (reason, mut nodes) in by_reason {
        nodes.sort();
        match nodes.len() > MOST_LISTED {
            true => chart.note(format!("{} refuse it, {reason}", counted(nodes.len(), "node"))),
            false => nodes.iter().for_each(|node| chart.note(format!("node {node} refuses it, {reason}"))),
        }
    }
}

/// Claims that keep it waiting, and what their makers say.
fn volumes(chart: &mut Chart, facts: &Facts, object: &core::Pod) {
    let pod = Pod::read(object);
    for (name, _) in pod.claim_names() {
        let key = Key { namespace: pod.key.namespace.clone(), name: name.clone() };
        let look = format!("look at it with `kubectl describe pvc -n {} {name}`", key.namespace);
        let Some(claim) = facts.cluster.storage.claim(&key) else {
            chart.wrong(format!("its claim {name:?} is not there"), &look);
            continue;
        };
        if claim.is_fully_bound() {
            chart.good(format!("its claim {name:?} is bound to volume {:?}", &*claim.volume));
            continue;
        }
        let class = claim.class.as_ref().filter(|c| !c.is_empty());
        let known = class.and_then(|c| facts.cluster.storage.classes.get(c));
        let failed = facts.event("PersistentVolumeClaim", name, &["ProvisioningFailed", "FailedBinding"]);
        match (class, known) {
            (_, Some(class)) if class.waits_for_consumer && failed.is_none() => {
                chart.note(format!("its claim {name:?} waits until the Pod has a node"));
            }
            (Some(class), None) => {
                chart.wrong(
                    format!("its claim {name:?} wants class {:?}, which does not exist", &**class),
                    &look,
                );
            }
            _ => {
                let why = failed.map_or_else(String::new, |event| format!(": {}", said(event)));
                chart.wrong(format!("its claim {name:?} has no volume{why}"), &look);
            }
        }
    }
}
