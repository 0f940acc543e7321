//! The Pod is to go and does not.

use k8s_openapi::api::core::v1 as core;

use super::{Chart, Facts, describe, node_of, shown, statuses, target, unready};

pub(super) fn examine(chart: &mut Chart, facts: &Facts, pod: &core::Pod) {
    let meta = &pod.metadata;
    let Some(deadline) = &meta.deletion_timestamp else { return };
    let late = facts.seconds_since(deadline);
    match late > 0 {
        true => chart.note(format!("it is to be deleted, and its grace ended {late} s ago")),
        false => chart.note(format!("it is being deleted, and its grace lasts {} s more", -late)),
    }
    let finalizers = meta.finalizers.clone().unwrap_or_default();
    let running: Vec<&str> = statuses(pod)
        .filter(|s| s.state.as_ref().is_some_and(|s| s.running.is_some()))
        .map(|s| s.name.as_str())
        .collect();
    if let Some(node) = node_of(pod) {
        // Whether it still runs is known only while its kubelet is there.
        if !reports(chart, facts, node, pod) {
            return;
        }
    }
    if !running.is_empty() {
        let text = format!("its containers still run: {}", running.join(", "));
        match late > 0 {
            true => chart.wrong(
                format!("{text}, though they should have been killed {late} s ago"),
                &format!(
                    "the kubelet's log says what it waits for; events do, too: `kubectl describe pod {}`",
                    target(pod)
                ),
            ),
            false => chart.note(text),
        }
        return;
    }
    if !finalizers.is_empty() {
        chart.wrong(
            format!("nothing of {} runs any more, but its finalizers hold it: {}", shown(pod), finalizers.join(", ")),
            &format!(
                "whoever set them has to take them away; they stand in `kubectl get pod {} -o jsonpath={{.metadata.finalizers}}`",
                target(pod)
            ),
        );
        return;
    }
    match late > 0 {
        true => chart.wrong(
            format!("nothing holds {} any more, and its kubelet has not let it go", shown(pod)),
            &describe(pod),
        ),
        false => chart.good("nothing holds it any more".to_owned()),
    }
}

/// Whether the node's kubelet can be believed.
fn reports(chart: &mut Chart, facts: &Facts, name: &str, pod: &core::Pod) -> bool {
    let force = format!(
        "if the machine is really off, `kubectl delete pod {} --grace-period=0 --force` forgets the Pod",
        target(pod)
    );
    let Some(node) = &facts.node else {
        chart.wrong(format!("its node {name:?} is gone: nobody is there to end it"), &force);
        return false;
    };
    match unready(node) {
        Some(why) => {
            chart.wrong(format!("its node {name:?} does not answer, so nobody ends it: {why}"), &force);
            false
        }
        None => true,
    }
}
