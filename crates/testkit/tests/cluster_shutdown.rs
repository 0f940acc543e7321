//! The machine goes down: Pods end first, in order, and everybody hears of it.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use testkit::cluster::{Cluster, ClusterOptions};
use testkit::node::{AgentOptions, FakeLogind};

const CONFIG: &str = "shutdownGracePeriod: 40s\nshutdownGracePeriodCriticalPods: 20s\n";

/// Says goodbye after so many seconds.
fn pod(name: &str, priority: &str, seconds: u32) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{ name: {name} }}\n\
         spec:\n  nodeName: demo\n  {priority}\n  terminationGracePeriodSeconds: 15\n  containers:\n  - name: c\n    \
         image: localhost/busybox:v1\n    imagePullPolicy: Never\n    \
         command: [sh, -c, \"trap 'sleep {seconds}; exit 0' TERM; while true; do sleep 0.1; done\"]\n"
    )
}

fn ready(c: &Cluster) -> (String, String) {
    let node: Option<Node> = c.object(&["node", "demo"]);
    let conditions = node.and_then(|n| n.status?.conditions).unwrap_or_default();
    let ready = conditions.into_iter().find(|c| c.type_ == "Ready").unwrap_or_default();
    (ready.status, ready.message.unwrap_or_default())
}

fn is_running(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running")
}

fn reason(pod: &Pod) -> String {
    pod.status.as_ref().and_then(|s| s.reason.clone()).unwrap_or_default()
}

fn finished(pod: &Pod) -> Option<i64> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    Some(status.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()?.0.as_second())
}

#[test]
fn pods_end_by_priority_before_the_machine_does() {
    let dir = std::env::temp_dir().join(format!("longshore-bus-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap_or_else(|e| panic!("{e}"));
    let fake = FakeLogind::start(&dir, Duration::from_secs(3600)).unwrap_or_else(|e| panic!("{e}"));
    let agent = AgentOptions {
        config: CONFIG.into(),
        env: vec![("DBUS_SYSTEM_BUS_ADDRESS".into(), fake.address())],
        ..AgentOptions::default()
    };
    let Some(c) = Cluster::start(ClusterOptions { agent, ..ClusterOptions::default() }) else { return };
    c.eventually("ready", || (ready(&c).0 == "True").then_some(()));
    c.eventually("the machine held up", || (fake.held() == 1).then_some(()));
    c.create(&pod("low", "priority: 0", 1));
    c.create(&pod("high", "priorityClassName: system-node-critical", 0));
    for name in ["low", "high"] {
        c.wait_pod(name, "running", is_running);
    }

    fake.prepare_for_shutdown(true).unwrap_or_else(|e| panic!("{e}"));
    c.eventually("not ready", || {
        (ready(&c) == ("False".into(), "node is shutting down".into())).then_some(())
    });
    c.create(&pod("late", "priority: 0", 0));
    let late = c.wait_pod("late", "rejected", |p| reason(p) == "NodeShutdown");
    let message = late.status.and_then(|s| s.message).unwrap_or_default();
    assert_eq!(message, "Pod was rejected: Pod was rejected as the node is shutting down.");
    c.eventually("let go", || (fake.held() == 0).then_some(()));
    // The API server knows all of it by now.
    let [low, high] = ["low", "high"].map(|name| c.pod(name).unwrap_or_default());
    for pod in [&low, &high] {
        let status = pod.status.clone().unwrap_or_default();
        assert_eq!(
            (status.phase.as_deref(), reason(pod).as_str()),
            (Some("Failed"), "Terminated"),
            "{status:?}"
        );
        let conditions = status.conditions.unwrap_or_default();
        let disrupted = conditions.iter().find(|c| c.type_ == "DisruptionTarget");
        let words = "Pod was terminated in response to imminent node shutdown.";
        assert_eq!(disrupted.and_then(|c| c.message.as_deref()), Some(words), "{conditions:?}");
    }
    assert!(finished(&low).is_some() && finished(&low) <= finished(&high), "{low:?}\n{high:?}");
    let events = c.run(&["get", "events", "-A"]);
    assert!(events.contains("Shutdown manager detected shutdown event"), "{events}");

    fake.prepare_for_shutdown(false).unwrap_or_else(|e| panic!("{e}"));
    c.eventually("held up again", || (fake.held() == 1).then_some(()));
    c.eventually("ready again", || (ready(&c).0 == "True").then_some(()));
    let _ = std::fs::remove_dir_all(&dir);
}
