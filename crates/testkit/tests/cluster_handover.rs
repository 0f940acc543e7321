//! Upstream's kubelet takes over our Pods on the same root directory, and we take over its. Nobody in the cluster notices.
//!
//! `LONGSHORE_PEER_KUBELET` is that kubelet; it has to be called `kubelet`.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use testkit::cluster::Cluster;
use testkit::harness::is_ready;
use testkit::witness::Witness;

/// Both read it. Nobody is evicted: the disk of a test machine may be nearly full.
const KUBELET: &str = "syncFrequency: 2s\nimageGCHighThresholdPercent: 100\n\
    evictionHard: {nodefs.available: 0%, imagefs.available: 0%, nodefs.inodesFree: 0%}\n";

const CONFIG: &str = "
apiVersion: v1
kind: ConfigMap
metadata: { name: settings }
data: { color: blue }
---
apiVersion: v1
kind: Secret
metadata: { name: login }
stringData: { password: s3cret }
";

/// Everything that leaves something on disk or in the runtime.
const POD: &str = "
apiVersion: v1
kind: Pod
metadata: { name: NAME, labels: { tier: front } }
spec:
  nodeName: demo
  terminationGracePeriodSeconds: 2
  securityContext: { fsGroup: 2000 }
  initContainers:
  - { name: first, image: localhost/busybox:v1, imagePullPolicy: Never, command: [sh, -c, 'echo made > /scratch/made'], volumeMounts: [{ name: scratch, mountPath: /scratch }] }
  - name: side
    image: localhost/busybox:v1
    imagePullPolicy: Never
    restartPolicy: Always
    command: [sh, -c, STAY]
    startupProbe: { exec: { command: ['true'] }, periodSeconds: 1 }
  containers:
  - name: main
    image: localhost/busybox:v1
    imagePullPolicy: Never
    command: [sh, -c, STAY]
    env:
    - { name: COLOR, valueFrom: { configMapKeyRef: { name: settings, key: color } } }
    - { name: NODE, valueFrom: { fieldRef: { fieldPath: status.hostIP } } }
    ports: [{ name: http, containerPort: 8080 }]
    resources: { requests: { cpu: 10m, memory: 16Mi }, limits: { memory: 64Mi } }
    lifecycle: { postStart: { exec: { command: [sh, -c, 'echo hooked > /scratch/hooked'] } }, preStop: { exec: { command: ['true'] } } }
    startupProbe: { exec: { command: ['true'] }, periodSeconds: 1 }
    readinessProbe: { exec: { command: [cat, /scratch/hooked] }, periodSeconds: 2 }
    livenessProbe: { exec: { command: ['true'] }, periodSeconds: 5 }
    volumeMounts:
    - { name: scratch, mountPath: /scratch }
    - { name: memory, mountPath: /memory }
    - { name: config, mountPath: /config }
    - { name: secret, mountPath: /secret }
    - { name: all, mountPath: /all }
    - { name: scratch, mountPath: /part, subPath: part }
  volumes:
  - { name: scratch, emptyDir: {} }
  - { name: memory, emptyDir: { medium: Memory, sizeLimit: 1Mi } }
  - { name: config, configMap: { name: settings } }
  - { name: secret, secret: { secretName: login } }
  - name: all
    projected:
      sources:
      - downwardAPI: { items: [{ path: labels, fieldRef: { fieldPath: metadata.labels } }] }
      - serviceAccountToken: { path: token, audience: vault, expirationSeconds: 600 }
";

const STAY: &str = "trap exit TERM; echo kept > /memory/kept; while :; do sleep 0.2; done";

fn pod(name: &str) -> String {
    POD.replace("NAME", name).replace("STAY", &format!("{STAY:?}"))
}

fn peer() -> Option<PathBuf> {
    let found = std::env::var_os("LONGSHORE_PEER_KUBELET").map(PathBuf::from);
    if found.is_none() {
        eprintln!("skipped: LONGSHORE_PEER_KUBELET is not set");
    }
    found
}

/// A Pod that is made and runs shows that the kubelet of the moment is at work.
fn prove(c: &Cluster, name: &str) -> Pod {
    c.create(&pod(name));
    c.wait_pod(name, "ready", is_ready)
}

/// What the Pod had when it began is still there, and what it refers to still follows.
fn look_inside(c: &Cluster, name: &str, color: &str) {
    let cat = |path: &str| {
        let ask = || Some(c.kubectl(&["exec", name, "-c", "main", "--", "cat", path]));
        c.eventually(path, || ask().filter(|a| a.code == 0)).out
    };
    c.eventually("followed", || (cat("/config/color") == color).then_some(()));
    let seen = ["/scratch/made", "/scratch/hooked", "/memory/kept", "/secret/password", "/all/labels"];
    let seen = seen.map(cat);
    assert_eq!(seen, ["made\n", "hooked\n", "kept\n", "s3cret", "tier=\"front\""]);
    assert!(cat("/all/token").matches('.').count() == 2);
    assert!(cat("/var/run/secrets/kubernetes.io/serviceaccount/token").matches('.').count() == 2);
}

fn recolor(c: &Cluster, color: &str) {
    let change = format!(r#"{{"data":{{"color":"{color}"}}}}"#);
    c.run(&["patch", "configmap", "settings", "--type=merge", "-p", &change]);
}

#[track_caller]
fn unnoticed(witness: &Witness) {
    let complaints = witness.complaints();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// Upstream's kubelet believes what it is told of a container only if that began ten seconds before it did.
const AGE: Duration = Duration::from_secs(11);

fn hand_over(c: &mut Cluster, to: &Path, others: &[&str], proof: &str, color: &str) {
    std::thread::sleep(AGE);
    c.replace_agent(to);
    prove(c, proof);
    recolor(c, color);
    for name in others {
        look_inside(c, name, color);
        assert!(is_ready(&c.pod(name).unwrap()), "{name} is not ready");
    }
}

/// What a kubelet that is replaced may not change of a static Pod: the mirror's UID, the Pod's own, and the container.
fn static_identity(c: &Cluster) -> [String; 3] {
    let pod = c.wait_pod("static-demo", "ready", is_ready);
    let annotations = pod.metadata.annotations.as_ref().unwrap();
    let id = pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].container_id.clone();
    [pod.metadata.uid.clone().unwrap(), annotations["kubernetes.io/config.hash"].clone(), id.unwrap()]
}

/// A node of kubeadm's: what its kubelet began as static Pods outlives the change to ours and back.
#[test]
fn static_pods_outlive_their_kubelet() {
    let Some(peer) = peer() else { return };
    let Some(mut c) = Cluster::with_config(KUBELET) else { return };
    let ours = c.binary().to_path_buf();
    c.replace_agent(&peer);
    let manifest = |stay: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{ name: static, labels: {{ tier: control }} }}\nspec:\n  \
             hostNetwork: true\n  terminationGracePeriodSeconds: 1\n  containers:\n  - name: main\n    \
             image: localhost/busybox:v1\n    imagePullPolicy: Never\n    command: [sh, -c, {stay:?}]\n"
        )
    };
    c.apply("static", &manifest(STAY));
    let begun = static_identity(&c);
    let witness = Witness::start(&c);
    for (kubelet, proof) in [(&ours, "p1"), (&peer, "p2"), (&ours, "p3"), (&ours, "p4")] {
        c.replace_agent(kubelet);
        c.create(&format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{ name: {proof} }}\nspec: {{ nodeName: demo, containers: [{{ name: c, \
             image: localhost/busybox:v1, imagePullPolicy: Never, command: [sleep, '1000'] }}] }}"
        ));
        c.wait_pod(proof, "ready", is_ready);
        assert_eq!(static_identity(&c), begun, "{proof}: {}", kubelet.display());
    }
    unnoticed(&witness);
    c.agent.stop().unwrap();
    c.apply("static", &manifest("trap exit TERM; while :; do sleep 0.1; done"));
    c.start_agent();
    c.eventually("what was edited meanwhile is another Pod", || {
        let pod = c.pod("static-demo").filter(is_ready)?;
        (pod.metadata.annotations?["kubernetes.io/config.hash"] != begun[1]).then_some(())
    });
}

#[test]
fn kubelets_take_over_each_others_pods() {
    let Some(peer) = peer() else { return };
    let Some(mut c) = Cluster::with_config(KUBELET) else { return };
    let ours = c.binary().to_path_buf();
    c.create(CONFIG);
    prove(&c, "ours");
    look_inside(&c, "ours", "blue");
    let witness = Witness::start(&c);

    hand_over(&mut c, &peer, &["ours"], "theirs", "green");
    unnoticed(&witness);
    look_inside(&c, "theirs", "green");
    hand_over(&mut c, &ours, &["ours", "theirs"], "again", "red");
    unnoticed(&witness);
    hand_over(&mut c, &peer, &["ours", "theirs", "again"], "last", "grey");
    unnoticed(&witness);

    // Each ends what the other began, and leaves nothing.
    c.run(&["delete", "pod", "ours", "theirs", "--timeout=60s"]);
    c.replace_agent(&ours);
    c.run(&["delete", "pod", "again", "last", "--timeout=60s"]);
    c.until("cleaned", || testkit::harness::listing(&c.agent.root().join("pods")).is_empty().then_some(()));
}
