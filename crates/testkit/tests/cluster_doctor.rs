//! `longshore doctor pod` beside Pods that really have the trouble: our API server, scheduler and kubelet, and a containerd.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::process::{Child, Stdio};

use serde_json::Value;
use testkit::cluster::Cluster;

/// The scheduler, as a process of its own. Killed without warning when dropped.
struct Scheduler(Child);

impl Scheduler {
    fn start(c: &Cluster) -> Scheduler {
        let log = File::options().create(true).append(true).open(c.node.dir().join("scheduler.log")).unwrap();
        let mut command = c.node.command(c.binary());
        command
            .arg("kube-scheduler")
            .arg(format!("--kubeconfig={}", c.server.kubeconfig().display()))
            .args(["--leader-elect=false", "--v=4"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        Scheduler(command.spawn().unwrap())
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A Pod for the scheduler. `spec` are more lines of its spec, `main` more fields of its container.
fn pod(name: &str, spec: &str, image: &str, main: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{ name: {name} }}\nspec:\n  automountServiceAccountToken: false\n  \
         terminationGracePeriodSeconds: 1\n  tolerations: [{{ operator: Exists }}]\n{spec}  containers:\n  - {{ name: main, image: \"localhost/{image}\", \
         imagePullPolicy: Never, {main} }}\n"
    )
}

const STAY: &str = "command: [sh, -c, 'trap exit TERM; while :; do sleep 0.1; done']";

/// The first thing that is wrong, with its advice; and whether the doctor says so with its exit code.
fn ask(c: &Cluster, name: &str) -> Option<(String, String)> {
    let kubeconfig = c.server.kubeconfig();
    let answer = c
        .node
        .command(c.binary())
        .args(["doctor", "pod", name, "-o", "json", "--kubeconfig"])
        .arg(&kubeconfig)
        .output()
        .unwrap();
    let said: Value = serde_json::from_slice(&answer.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&answer.stderr)));
    assert_eq!(answer.status.success(), said["first"].is_null(), "{said}");
    let text = |field: &str| said["first"][field].as_str().unwrap_or_default().to_owned();
    (!said["first"].is_null()).then(|| (text("text"), text("advice")))
}

#[track_caller]
fn is_told(c: &Cluster, name: &str, text: &str, advice: &str) {
    c.eventually(&format!("the doctor says of {name}: {text}"), || {
        ask(c, name).filter(|(told, what)| told.contains(text) && what.contains(advice))
    });
}

#[test]
fn the_doctor_names_what_keeps_a_pod_from_running_and_from_going() {
    let Some(c) = Cluster::usual() else { return };
    c.create(&pod("early", "", "busybox:v1", STAY));
    is_told(&c, "early", "no scheduler has looked at Pod default/early yet", "kubectl get leases");
    let _scheduler = Scheduler::start(&c);
    let gates = "  schedulingGates: [{ name: example.com/wait }]\n";
    c.create(&pod("gated", gates, "busybox:v1", STAY));
    c.create(&pod("picky", "  nodeSelector: { none: such }\n", "busybox:v1", STAY));
    let claim = "  volumes: [{ name: v, persistentVolumeClaim: { claimName: data } }]\n";
    c.create(&pod("claimless", claim, "busybox:v1", STAY));
    c.create(&pod("imageless", "", "nothing:v1", STAY));
    let needs = "envFrom: [{ configMapRef: { name: settings } }]";
    c.create(&pod("settingless", "", "busybox:v1", &format!("{STAY}, {needs}")));
    c.create(&pod("crashing", "", "busybox:v1", "command: [sh, -c, 'exit 3']"));
    let probe = "readinessProbe: { exec: { command: ['false'] }, periodSeconds: 1 }";
    c.create(&pod("unready", "", "busybox:v1", &format!("{STAY}, {probe}")));
    is_told(&c, "gated", "waits for its scheduling gates: example.com/wait", ".spec.schedulingGates");
    is_told(&c, "picky", "1 node(s) didn't match Pod's node affinity/selector", "NodeAffinity says no");
    is_told(&c, "claimless", "its claim \"data\" is not there", "kubectl describe pvc -n default data");
    is_told(&c, "imageless", "ErrImageNeverPull", "kubectl describe pod -n default imageless");
    is_told(&c, "settingless", "it needs ConfigMap \"settings\", which is not there", "kubectl describe pod");
    is_told(&c, "crashing", "exit code 3", "kubectl logs -n default crashing -c main");
    is_told(&c, "unready", "its readiness probe does not pass", "kubectl describe pod -n default unready");
    is_told(&c, "nobody", "there is no Pod default/nobody", "kubectl get pods -A");
    c.eventually("early is well", || ask(&c, "early").is_none().then_some(()));
    c.run(&[
        "patch",
        "pod",
        "early",
        "--type=merge",
        "-p",
        "{\"metadata\":{\"finalizers\":[\"example.com/keep\"]}}",
    ]);
    c.run(&["delete", "pod", "early", "--wait=false"]);
    is_told(&c, "early", "its finalizers hold it: example.com/keep", ".metadata.finalizers");
    c.run(&["patch", "pod", "early", "--type=merge", "-p", "{\"metadata\":{\"finalizers\":null}}"]);
    c.wait_pod_gone("early");
    c.run(&["delete", "pods", "--all", "--timeout=60s"]);
}
