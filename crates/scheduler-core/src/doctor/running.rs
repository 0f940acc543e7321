//! The Pod has a node: what keeps its kubelet from running it, or the Pod from being ready.

use k8s_openapi::api::core::v1 as core;

use super::{
    Chart, Facts, condition, describe, first_line, how_it_ended, node_of, said, shown, statuses, target,
    unready,
};

/// What kubelets say when a volume is not there.
const VOLUME_EVENTS: &[&str] =
    &["FailedMount", "FailedAttachVolume", "FailedMapVolume", "VolumeResizeFailed"];
const SANDBOX_EVENTS: &[&str] = &["FailedCreatePodSandBox", "NetworkNotReady", "FailedSync"];
/// Reasons for which a container waits, and which of them are about its image.
const IMAGE: &[&str] = &[
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
];
const CONFIGURATION: &[&str] = &[
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "PreCreateHookError",
    "PreStartHookError",
    "PostStartHookError",
];

pub(super) fn examine(chart: &mut Chart, facts: &Facts, pod: &core::Pod) {
    let name = node_of(pod).unwrap_or_default();
    chart.good(format!("the scheduler has given it to node {name:?}"));
    if !node(chart, facts, pod, name) {
        return;
    }
    for missing in &facts.missing {
        chart.wrong(format!("it needs {missing}, which is not there"), &describe(pod));
    }
    let is_ready = condition(pod, "Ready").is_some_and(|c| c.status == "True");
    if !is_ready {
        sandbox(chart, facts, pod);
    }
    let before = chart.findings.len();
    for status in statuses(pod) {
        container(chart, facts, pod, status);
    }
    if statuses(pod).next().is_none() && chart.is_well() {
        chart.wrong(
            format!("the kubelet of {name:?} has said nothing about Pod {} yet", shown(pod)),
            "its log says what it does; is it running?",
        );
    }
    if is_ready {
        chart.good("it is ready".to_owned());
    } else if chart.findings.len() == before || chart.is_well() {
        gates(chart, pod);
    }
}

/// Whether the node is there and its kubelet answers.
fn node(chart: &mut Chart, facts: &Facts, pod: &core::Pod, name: &str) -> bool {
    let Some(node) = &facts.node else {
        chart.wrong(
            format!("its node {name:?} is not there"),
            &format!("`kubectl get nodes` shows those there are; `kubectl delete pod {}` lets its owner make it elsewhere", target(pod)),
        );
        return false;
    };
    match unready(node) {
        Some(why) => {
            chart.wrong(
                format!("its node {name:?} is not ready: {why}"),
                &format!("look at it with `kubectl describe node {name}`"),
            );
            // What is known of the Pod may be old, but it may also be the node's trouble.
            !why.starts_with("Kubelet stopped") && !why.starts_with("NodeStatusUnknown")
        }
        None => {
            chart.good(format!("node {name:?} is ready"));
            true
        }
    }
}

/// Volumes first, then the sandbox with its network: containers need both.
fn sandbox(chart: &mut Chart, facts: &Facts, pod: &core::Pod) {
    let has_sandbox = condition(pod, "PodReadyToStartContainers").is_some_and(|c| c.status == "True")
        || statuses(pod).any(|s| s.container_id.as_deref().is_some_and(|id| !id.is_empty()));
    if has_sandbox {
        chart.good("its volumes, its sandbox and its network are there".to_owned());
        return;
    }
    let volume = facts.own_event(pod, VOLUME_EVENTS);
    let network = facts.own_event(pod, SANDBOX_EVENTS);
    // Both may be told in turns; the newer one is the one that still holds.
    let newest = [volume, network].into_iter().flatten().max_by_key(|e| super::told_at(e));
    let Some(event) = newest else {
        chart.note("it has no sandbox yet, and its kubelet has not complained".to_owned());
        return;
    };
    let is_volume = volume.is_some_and(|v| std::ptr::eq(v, event));
    match is_volume {
        true => chart.wrong(format!("its volumes are not mounted: {}", said(event)), &describe(pod)),
        false => chart.wrong(
            format!("its sandbox is not made: {}", said(event)),
            "the network plugins on the node and the runtime's log say why; `crictl pods` shows what is there",
        ),
    }
}

fn container(chart: &mut Chart, facts: &Facts, pod: &core::Pod, status: &core::ContainerStatus) {
    let name = &status.name;
    let state = status.state.clone().unwrap_or_default();
    if let Some(waiting) = state.waiting {
        let reason = waiting.reason.unwrap_or_default();
        let message = waiting.message.unwrap_or_default();
        return waits(chart, pod, status, &reason, first_line(message.trim()));
    }
    let logs = format!("read `kubectl logs {} -c {name}`", target(pod));
    if let Some(end) = state.terminated {
        match end.exit_code {
            0 => chart.good(format!("container {name:?} has ended well")),
            _ => chart.wrong(format!("container {name:?} {}", how_it_ended(&end)), &logs),
        }
        return;
    }
    if state.running.is_none() {
        return;
    }
    if status.restart_count > 0 {
        let last = status.last_state.as_ref().and_then(|s| s.terminated.as_ref());
        let why = last.map_or_else(String::new, |end| format!(", last: {}", how_it_ended(end)));
        chart.note(format!("container {name:?} was started {} times again{why}", status.restart_count));
    }
    if status.ready || is_init(pod, name) && status.started == Some(true) {
        chart.good(format!("container {name:?} runs"));
        return;
    }
    let probe = facts.own_event(pod, &["Unhealthy", "ProbeWarning"]);
    let probe = probe.map_or_else(String::new, |event| format!(": {}", first_line(said(event))));
    match (status.started, is_init(pod, name)) {
        (Some(false), _) => chart.wrong(
            format!("container {name:?} runs, but its startup probe has not passed{probe}"),
            &format!("look at the probe with `kubectl describe pod {}`, and {logs}", target(pod)),
        ),
        (_, true) => chart.note(format!("init container {name:?} runs; the others wait until it ends")),
        _ => chart.wrong(
            format!("container {name:?} runs, but is not ready: its readiness probe does not pass{probe}"),
            &format!("look at the probe with `kubectl describe pod {}`, and {logs}", target(pod)),
        ),
    }
}

fn is_init(pod: &core::Pod, name: &str) -> bool {
    let init = pod.spec.as_ref().and_then(|s| s.init_containers.as_ref());
    init.into_iter().flatten().any(|c| c.name == name)
}

fn waits(chart: &mut Chart, pod: &core::Pod, status: &core::ContainerStatus, reason: &str, message: &str) {
    let name = &status.name;
    let told = if message.is_empty() { String::new() } else { format!(": {message}") };
    if IMAGE.contains(&reason) {
        return chart.wrong(
            format!("the image {:?} of container {name:?} is not there, {reason}{told}", status.image),
            &format!(
                "check its name, its registry and imagePullSecrets; `kubectl describe pod {}` shows each try",
                target(pod)
            ),
        );
    }
    if CONFIGURATION.contains(&reason) {
        return chart.wrong(format!("container {name:?} cannot be started, {reason}{told}"), &describe(pod));
    }
    if reason == "CrashLoopBackOff" {
        let last = status.last_state.as_ref().and_then(|s| s.terminated.as_ref());
        let why = last.map_or_else(|| message.to_owned(), how_it_ended);
        let memory = last.is_some_and(|end| end.reason.as_deref() == Some("OOMKilled"));
        let advice = match memory {
            true => format!(
                "it needs more memory than its limit: `kubectl describe pod {}` shows it",
                target(pod)
            ),
            false => format!("read `kubectl logs {} -c {name} --previous`", target(pod)),
        };
        return chart.wrong(
            format!("container {name:?} ends again and again ({} times): {why}", status.restart_count),
            &advice,
        );
    }
    chart.note(format!("container {name:?} waits, {reason}{told}"));
}

/// All containers run, and the Pod is not ready.
fn gates(chart: &mut Chart, pod: &core::Pod) {
    let gates = pod.spec.as_ref().and_then(|s| s.readiness_gates.as_ref());
    let open = |kind: &str| condition(pod, kind).is_some_and(|c| c.status == "True");
    let closed: Vec<&str> =
        gates.into_iter().flatten().map(|g| g.condition_type.as_str()).filter(|kind| !open(kind)).collect();
    if !closed.is_empty() {
        chart.wrong(
            format!("its containers run, but nobody has set its readiness gates: {}", closed.join(", ")),
            &format!("whoever is meant to set them stands in `kubectl get pod {} -o yaml`", target(pod)),
        );
    } else if statuses(pod).next().is_some() {
        chart.note("it is not ready yet, and nothing is wrong so far".to_owned());
    }
}
