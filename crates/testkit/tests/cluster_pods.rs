//! Pods from an API server on a real containerd, seen through kubectl.
#![allow(clippy::unwrap_used)]

use testkit::cluster::Cluster;
use testkit::harness::{container, container_id, is_ready, phase, restarts};

/// A Pod bound to the node, without a service account's token. `spec` are more lines of its spec.
fn pod(name: &str, spec: &str, script: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{ name: {name} }}\nspec:\n  nodeName: demo\n  \
         automountServiceAccountToken: false\n  terminationGracePeriodSeconds: 1\n{spec}  containers:\n  \
         - {{ name: main, image: localhost/busybox:v1, command: [sh, -c, {script:?}] }}\n"
    )
}

const STAY: &str = "trap exit TERM; while :; do sleep 0.1; done";

#[test]
fn a_pod_runs_is_shown_and_goes() {
    let Some(c) = Cluster::usual() else { return };
    let before = c.node.census();
    c.create(&pod("web", "", STAY));
    let web = c.wait_pod("web", "ready", is_ready);
    let status = web.status.as_ref().unwrap();
    assert_eq!(phase(&web), "Running");
    assert_eq!(status.host_ip.as_deref(), Some(c.node.address().as_str()));
    assert!(status.pod_ip.is_some() && status.start_time.is_some());
    assert_eq!(status.observed_generation, web.metadata.generation);
    assert!(container(&web, "main").unwrap().image_id.contains("sha256:"));
    let line = c.run(&["get", "pod", "web", "--no-headers"]);
    assert!(line.split_whitespace().take(4).eq(["web", "1/1", "Running", "0"]), "{line}");
    c.run(&["delete", "pod", "web", "--timeout=30s"]);
    c.wait_pod_gone("web");
    c.wait_clean(&before);
}

#[test]
fn what_ends_is_told_with_its_exit_code() {
    let Some(c) = Cluster::usual() else { return };
    c.create(&pod("good", "  restartPolicy: Never\n", "exit 0"));
    c.create(&pod("bad", "  restartPolicy: Never\n", "echo why > /dev/termination-log; exit 7"));
    let good = c.wait_pod("good", "succeeded", |p| phase(p) == "Succeeded");
    assert_eq!(
        container(&good, "main").unwrap().state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code,
        0
    );
    let bad = c.wait_pod("bad", "failed", |p| phase(p) == "Failed");
    let ended = container(&bad, "main").unwrap().state.as_ref().unwrap().terminated.clone().unwrap();
    assert_eq!((ended.exit_code, ended.message.as_deref()), (7, Some("why\n")));
    c.run(&["delete", "pod", "good", "bad", "--timeout=30s"]);
}

#[test]
fn a_killed_kubelet_changes_nothing() {
    let Some(mut c) = Cluster::usual() else { return };
    c.create(&pod("web", "", STAY));
    let before = c.wait_pod("web", "ready", is_ready);
    c.restart_agent();
    // A second Pod shows that the new kubelet has caught up.
    c.create(&pod("next", "", STAY));
    c.wait_pod("next", "ready", is_ready);
    let after = c.pod("web").unwrap();
    assert_eq!(container_id(&before, "main"), container_id(&after, "main"));
    assert_eq!(restarts(&after, "main"), 0);
    assert_eq!(before.status, after.status, "the status was touched");
    assert_eq!(before.metadata.resource_version, after.metadata.resource_version);
}

#[test]
fn a_time_that_no_calendar_has_costs_a_pod_nothing() {
    let Some(mut c) = Cluster::usual() else { return };
    const LAST: &str = "9999-12-31T23:59:59Z";
    c.create(&pod("odd", "", STAY));
    let before = c.wait_pod("odd", "ready", is_ready);
    let condition = format!(
        r#"{{"status":{{"conditions":[{{"type":"a.io/b","status":"True","lastTransitionTime":"{LAST}"}}]}}}}"#
    );
    c.run(&["patch", "pod", "odd", "--subresource=status", "-p", &condition]);
    let owned = format!(r#"[{{"op":"replace","path":"/metadata/managedFields/0/time","value":"{LAST}"}}]"#);
    c.run(&["patch", "pod", "odd", "--type=json", "-p", &owned]);
    let text = c.run(&["get", "pod", "odd", "-o", "json", "--show-managed-fields"]);
    assert_eq!(text.matches(LAST).count(), 2, "{text}");
    c.restart_agent();
    // A second Pod shows that the new kubelet has caught up.
    c.create(&pod("next", "", STAY));
    c.wait_pod("next", "ready", is_ready);
    let shown = c.run(&[
        "get",
        "pod",
        "odd",
        "-o",
        "jsonpath={.status.containerStatuses[0].containerID} {.status.phase}",
    ]);
    assert_eq!(shown, format!("{} Running", container_id(&before, "main")));
    let (code, out, err) = c.pods(&["get"]);
    assert!(code == 0 && out.contains("odd"), "{out}{err}");
    c.run(&["delete", "pod", "odd", "--timeout=30s"]);
    c.wait_pod_gone("odd");
}

#[test]
fn an_api_server_that_is_gone_harms_nobody() {
    let Some(mut c) = Cluster::usual() else { return };
    c.create(&pod("web", "", STAY));
    c.create(&pod("job", "  restartPolicy: Never\n", "while [ ! -e /tmp/go ]; do sleep 0.1; done; exit 3"));
    let web = c.wait_pod("web", "ready", is_ready);
    let job = c.wait_pod("job", "ready", is_ready);
    c.stop_server();
    let (code, _, err) = c.pods(&["exec", "job", "--", "touch", "/tmp/go"]);
    assert_eq!(code, 0, "{err}");
    c.until("ended", || {
        let ended = c.get("job").filter(|p| phase(p) == "Failed");
        ended.filter(|p| p.metadata.uid == job.metadata.uid).map(|_| ())
    });
    c.start_server();
    c.wait_pod("job", "failed", |p| phase(p) == "Failed");
    let after = c.pod("web").unwrap();
    assert_eq!(container_id(&web, "main"), container_id(&after, "main"));
    assert!(is_ready(&after));
}

#[test]
fn foreign_edits_of_the_status_are_repaired_and_foreign_conditions_kept() {
    let Some(c) = Cluster::usual() else { return };
    let gate = "  readinessGates: [{ conditionType: gate.io/open }]\n";
    c.create(&pod("gated", gate, STAY));
    let condition = |p: &_, kind: &str| testkit::harness::condition(p, kind).to_owned();
    c.wait_pod("gated", "with ready containers", |p| condition(p, "ContainersReady") == "True");
    assert_eq!(condition(&c.pod("gated").unwrap(), "Ready"), "False");
    let open = r#"{"status":{"conditions":[{"type":"gate.io/open","status":"True"}]}}"#;
    c.run(&["patch", "pod", "gated", "--subresource=status", "-p", open]);
    c.wait_pod("gated", "ready", is_ready);
    let lie = r#"{"status":{"phase":"Pending","podIP":"192.0.2.1","conditions":[{"type":"Ready","status":"False"}]}}"#;
    c.run(&["patch", "pod", "gated", "--subresource=status", "-p", lie]);
    let repaired = c.wait_pod("gated", "repaired", |p| is_ready(p) && phase(p) == "Running");
    assert_ne!(repaired.status.as_ref().unwrap().pod_ip.as_deref(), Some("192.0.2.1"));
    assert_eq!(condition(&repaired, "gate.io/open"), "True");
}

#[test]
fn static_pods_have_mirrors() {
    let Some(mut c) = Cluster::usual() else { return };
    let manifest = |version: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{ name: fixed, labels: {{ version: {version} }} }}\nspec:\n  terminationGracePeriodSeconds: 1\n  \
             containers:\n  - {{ name: main, image: localhost/busybox:v1, command: [sh, -c, {STAY:?}] }}\n"
        )
    };
    c.apply("fixed", &manifest("one"));
    let mirror = c.wait_pod("fixed-demo", "ready", is_ready);
    let meta = &mirror.metadata;
    let annotation = |key: &str| meta.annotations.as_ref().unwrap().get(key).cloned();
    let hash = annotation("kubernetes.io/config.hash").unwrap();
    assert_eq!(annotation("kubernetes.io/config.mirror").as_ref(), Some(&hash));
    assert_eq!(meta.owner_references.as_ref().unwrap()[0].kind, "Node");
    let id = container_id(&mirror, "main").to_owned();

    // Deleted, it comes back, and nothing was restarted.
    c.run(&["delete", "pod", "fixed-demo", "--timeout=30s"]);
    let again = c.wait_pod("fixed-demo", "back", is_ready);
    assert_ne!(again.metadata.uid, mirror.metadata.uid);
    assert_eq!(container_id(&again, "main"), id);

    // A kubelet that is killed finds it again.
    c.restart_agent();
    c.apply("fixed", &manifest("two"));
    let changed = c.wait_pod("fixed-demo", "another", |p| {
        p.metadata.labels.as_ref().is_some_and(|l| l["version"] == "two") && is_ready(p)
    });
    assert_ne!(changed.metadata.annotations.as_ref().unwrap()["kubernetes.io/config.mirror"], hash);
    c.remove("fixed");
    c.wait_pod_gone("fixed-demo");
}

#[test]
fn crashes_and_events_are_shown() {
    let Some(c) = Cluster::usual() else { return };
    c.create(&pod("crash", "", "exit 3"));
    c.wait_pod("crash", "in back-off", |p| {
        testkit::harness::waiting_reason(p, "main") == "CrashLoopBackOff" && restarts(p, "main") > 0
    });
    let described = c.eventually("described", || {
        let text = c.run(&["describe", "pod", "crash"]);
        let all = ["Started", "Back-off restarting failed container main", "Exit Code:    3"];
        all.iter().all(|words| text.contains(words)).then_some(text)
    });
    assert!(described.contains("kubelet"), "{described}");
    let counted = ["get", "events", "--field-selector=reason=Started,involvedObject.name=crash", "-o"];
    let count = c.run(&[&counted[..], &["jsonpath={.items[*].count}"]].concat());
    assert!(count.split_whitespace().any(|n| n.parse::<u32>().is_ok_and(|n| n > 1)), "{count}");
    c.run(&["delete", "pod", "crash", "--timeout=30s"]);
}

#[test]
fn what_may_not_run_here_is_rejected() {
    let Some(c) = Cluster::usual() else { return };
    c.create(&pod("picky", "  nodeSelector: { colour: green }\n", STAY));
    let rejected = c.wait_pod("picky", "rejected", |p| phase(p) == "Failed");
    let status = rejected.status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("NodeAffinity"));
    assert!(status.message.unwrap().starts_with("Pod was rejected: Predicate NodeAffinity failed"));
    let shown = c.run(&["get", "pod", "picky", "--no-headers"]);
    assert!(shown.contains("NodeAffinity"), "the verdict is what people see: {shown}");
    c.run(&["label", "node", "demo", "colour=green"]);
    c.run(&["delete", "pod", "picky", "--timeout=30s"]);
    c.eventually("admitted", || {
        c.create(&pod("picky", "  nodeSelector: { colour: green }\n", STAY));
        let fate = c.wait_pod("picky", "settled", |p| phase(p) == "Failed" || is_ready(p));
        c.run(&["delete", "pod", "picky", "--timeout=30s"]);
        is_ready(&fate).then_some(())
    });
}

#[test]
fn a_critical_pod_takes_the_place_of_another() {
    let Some(c) = Cluster::with_config("maxPods: 1\n") else { return };
    c.create(&pod("web", "", STAY));
    c.wait_pod("web", "ready", is_ready);
    c.create(&pod("late", "", STAY));
    let late = c.wait_pod("late", "rejected", |p| phase(p) == "Failed").status.unwrap();
    assert_eq!(late.reason.as_deref(), Some("OutOfpods"));
    c.create(&pod("vital", "  priorityClassName: system-node-critical\n", STAY));
    c.wait_pod("vital", "ready", is_ready);
    let status = c.wait_pod("web", "preempted", |p| phase(p) == "Failed").status.unwrap();
    let words = "Preempted in order to admit critical pod";
    assert_eq!((status.reason.as_deref(), status.message.as_deref()), (Some("Preempting"), Some(words)));
    let disrupted = status.conditions.unwrap().into_iter().find(|c| c.type_ == "DisruptionTarget").unwrap();
    let words = "Pod was preempted by Kubelet to accommodate a critical pod.";
    assert_eq!(disrupted.reason.as_deref(), Some("TerminationByKubelet"));
    assert_eq!(disrupted.message.as_deref(), Some(words));
    let metrics = String::from_utf8(c.agent.get(&c.node, "/metrics").unwrap()).unwrap();
    for line in [
        "kubelet_preemptions{preemption_signal=\"pods\"} 1",
        "kubelet_admission_rejections_total{reason=\"OutOfpods\"} 1",
        "kubelet_desired_pods{static=\"true\"} 0",
        "kubelet_mirror_pods 0",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    assert!(metrics.contains("rest_client_requests_total{code=\"200\",method=\"GET\",host="), "{metrics}");
}

#[test]
fn containers_may_join_later() {
    let Some(c) = Cluster::usual() else { return };
    c.create(&pod("web", "", STAY));
    let web = c.wait_pod("web", "ready", is_ready);
    let debug = r#"{"spec":{"ephemeralContainers":[{"name":"debug","image":"localhost/busybox:v1",
        "command":["sh","-c","echo here; exit 4"]}]}}"#;
    c.run(&["patch", "pod", "web", "--subresource=ephemeralcontainers", "-p", debug]);
    let joined = c.wait_pod("web", "debugged", |p| {
        container(p, "debug")
            .and_then(|s| s.state.as_ref()?.terminated.as_ref())
            .is_some_and(|t| t.exit_code == 4)
    });
    assert_eq!(container_id(&joined, "main"), container_id(&web, "main"));
}
