//! A Pod's life on a real containerd: it starts, is restarted, probed, edited and removed.
#![allow(clippy::unwrap_used)]

use testkit::harness::{Harness, container_id, is_ready, phase, restarts};
use testkit::node::{AgentOptions, Containerd};

fn busybox(name: &str, command: &str, more: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{ name: {name} }}
spec:
  terminationGracePeriodSeconds: 2
  containers:
    - name: main
      image: localhost/busybox:v1
      imagePullPolicy: Never
      command: [sh, -c, {command:?}]
{more}
"#
    )
}

fn a_pod_comes_and_goes(containerd: Containerd) {
    let Some(h) = Harness::start(containerd, AgentOptions::default()) else { return };
    let before = h.node.census();
    h.apply("one", &busybox("one", "trap exit TERM; while :; do sleep 0.1; done", ""));
    let pod = h.wait_ready("one");
    assert_eq!(phase(&pod), "Running");
    assert!(pod.status.as_ref().unwrap().pod_ip.is_some());
    h.remove("one");
    h.wait_gone("one");
    h.until("clean", || h.node.census().since(&before).is_empty().then_some(()));
}

#[test]
fn a_pod_comes_and_goes_on_containerd_2() {
    a_pod_comes_and_goes(Containerd::default());
}

#[test]
fn a_killed_agent_finds_its_pods_again() {
    let Some(mut h) = Harness::usual() else { return };
    h.apply("one", &busybox("one", "trap exit TERM; while :; do sleep 0.1; done", ""));
    let pod = h.wait_ready("one");
    let id = container_id(&pod, "main").to_owned();
    h.restart_agent();
    let pod = h.wait("one", "found again", is_ready);
    assert_eq!(container_id(&pod, "main"), id, "the container was not restarted");
    assert_eq!(restarts(&pod, "main"), 0);
}
