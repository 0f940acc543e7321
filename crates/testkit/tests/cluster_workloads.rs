//! Deployments on a whole cluster: our API server, our controllers, our kubelet, a containerd, and kubectl's words for it all.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::process::{Child, Stdio};

use serde_json::Value;
use testkit::cluster::Cluster;

/// The controllers, as a process of their own. Killed without warning when dropped.
struct Controllers(Child);

impl Controllers {
    fn start(c: &Cluster) -> Controllers {
        let log =
            File::options().create(true).append(true).open(c.node.dir().join("controllers.log")).unwrap();
        let mut command = c.node.command(c.binary());
        command
            .arg("kube-controller-manager")
            .arg(format!("--kubeconfig={}", c.server.kubeconfig().display()))
            .args(["--leader-elect=false", "--bind-address=127.0.0.1", "--v=4"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        Controllers(command.spawn().unwrap())
    }
}

impl Drop for Controllers {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A Deployment of Pods on the one node; there is no scheduler here.
fn deployment(name: &str, replicas: u32, strategy: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{ name: {name} }}\nspec:\n  replicas: {replicas}\n  \
         selector: {{ matchLabels: {{ app: {name} }} }}\n  strategy: {strategy}\n  template:\n    \
         metadata: {{ labels: {{ app: {name} }} }}\n    spec:\n      nodeName: demo\n      \
         automountServiceAccountToken: false\n      dnsPolicy: Default\n      terminationGracePeriodSeconds: 1\n      \
         containers:\n      - name: c\n        image: localhost/busybox:v1\n        imagePullPolicy: Never\n        \
         command: [sh, -c, 'trap exit TERM; while :; do sleep 0.2; done']\n"
    )
}

const ROLLING: &str = "{ type: RollingUpdate, rollingUpdate: { maxSurge: 1, maxUnavailable: 0 } }";

fn items(c: &Cluster, what: &str, app: &str) -> Vec<Value> {
    let text = c.run(&["get", what, "-l", &format!("app={app}"), "-o", "json"]);
    let list: Value = serde_json::from_str(&text).unwrap();
    list["items"].as_array().cloned().unwrap_or_default()
}

/// Waits until kubectl says that the rollout is done.
fn rolled_out(c: &Cluster, name: &str) {
    let said = rollout(c, "status", &format!("deployment/{name}"));
    assert!(said.contains("successfully rolled out"), "{said}");
}

fn rollout(c: &Cluster, what: &str, target: &str) -> String {
    match what {
        "status" => c.run(&["rollout", "status", target, "--timeout=180s"]),
        what => c.run(&["rollout", what, target]),
    }
}

/// The manifest of a Deployment as another kind.
fn as_kind(kind: &str, name: &str, more: &str) -> String {
    let manifest = deployment(name, 1, "x").replace("kind: Deployment", &format!("kind: {kind}"));
    manifest.replace("  replicas: 1\n", more).replace("  strategy: x\n", "")
}

/// The names of those that are there.
fn names(c: &Cluster, what: &str, app: &str) -> Vec<String> {
    let name = |item: &Value| item["metadata"]["name"].as_str().unwrap().to_owned();
    items(c, what, app).iter().map(name).collect()
}

fn counts(c: &Cluster, name: &str) -> Vec<Option<i64>> {
    let text = c.run(&["get", "deployment", name, "-o", "json"]);
    let object: Value = serde_json::from_str(&text).unwrap();
    let count = |what: &&str| object["status"][what].as_i64();
    ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas", "unavailableReplicas"]
        .iter()
        .map(count)
        .collect()
}

fn settled(c: &Cluster, name: &str, replicas: i64) {
    let want = vec![Some(replicas), Some(replicas), Some(replicas), Some(replicas), None];
    c.eventually("the counts to be exact", || (counts(c, name) == want).then_some(()));
}

/// How many Pods of it are there and not on their way out.
fn living(c: &Cluster, app: &str) -> usize {
    items(c, "pods", app).iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).count()
}

#[test]
fn a_deployment_lives_through_all_that_kubectl_does_to_it() {
    let Some(c) = Cluster::usual() else { return };
    let controllers = Controllers::start(&c);
    c.create(&deployment("web", 2, ROLLING));
    rolled_out(&c, "web");
    settled(&c, "web", 2);

    // Killed in the middle of a scale: the next one goes on where it was.
    c.run(&["scale", "deployment/web", "--replicas=6"]);
    drop(controllers);
    let _controllers = Controllers::start(&c);
    settled(&c, "web", 6);
    assert_eq!(living(&c, "web"), 6);
    c.run(&["scale", "deployment/web", "--replicas=3"]);
    settled(&c, "web", 3);
    c.eventually("the others to be gone", || (items(&c, "pods", "web").len() == 3).then_some(()));

    // A new template, step by step.
    c.run(&["set", "env", "deployment/web", "COLOUR=blue"]);
    rolled_out(&c, "web");
    settled(&c, "web", 3);
    let sets = items(&c, "replicasets", "web");
    assert_eq!(sets.len(), 2, "{sets:?}");
    let history = c.run(&["rollout", "history", "deployment/web"]);
    assert!(history.contains("\n1 ") && history.contains("\n2 "), "{history}");

    // And back: the old set gets a new revision, and no third one is made.
    c.run(&["rollout", "undo", "deployment/web"]);
    rolled_out(&c, "web");
    settled(&c, "web", 3);
    let history = c.run(&["rollout", "history", "deployment/web"]);
    assert!(!history.contains("\n1 ") && history.contains("\n2 ") && history.contains("\n3 "), "{history}");
    assert_eq!(items(&c, "replicasets", "web").len(), 2);

    // A pause holds a change back until it ends.
    c.run(&["rollout", "pause", "deployment/web"]);
    c.run(&["set", "env", "deployment/web", "COLOUR=red"]);
    c.eventually("the pause to be noted", || {
        c.run(&["get", "deployment", "web", "-o", "json"]).contains("DeploymentPaused").then_some(())
    });
    c.run(&["scale", "deployment/web", "--replicas=4"]);
    c.eventually("the old set to be scaled", || (living(&c, "web") == 4).then_some(()));
    assert_eq!(items(&c, "replicasets", "web").len(), 2, "nothing was rolled out");
    c.run(&["rollout", "resume", "deployment/web"]);
    rolled_out(&c, "web");
    settled(&c, "web", 4);

    let events = c.run(&["get", "events", "--field-selector", "reason=ScalingReplicaSet"]);
    assert!(
        events.contains("Scaled up replica set web-") && events.contains("Scaled down replica set web-"),
        "{events}"
    );

    c.run(&["delete", "deployment", "web"]);
    c.eventually("everything of it to be gone", || {
        (items(&c, "replicasets", "web").is_empty() && items(&c, "pods", "web").is_empty()).then_some(())
    });
}

#[test]
fn who_recreates_never_runs_two_templates_at_once() {
    let Some(c) = Cluster::usual() else { return };
    let _controllers = Controllers::start(&c);
    c.create(&deployment("solo", 2, "{ type: Recreate }"));
    rolled_out(&c, "solo");
    let hashes = || {
        let pods = items(&c, "pods", "solo");
        let hash = |pod: &Value| pod["metadata"]["labels"]["pod-template-hash"].as_str().unwrap().to_owned();
        let hashes: std::collections::BTreeSet<String> = pods.iter().map(hash).collect();
        (hashes.len(), pods.len())
    };
    c.run(&["set", "env", "deployment/solo", "COLOUR=blue"]);
    c.eventually("the new ones to run", || {
        let (templates, _) = hashes();
        assert!(templates <= 1, "two templates at once");
        (counts(&c, "solo")[..2] == [Some(2), Some(2)]).then_some(())
    });
    rolled_out(&c, "solo");
    settled(&c, "solo", 2);
}

#[test]
fn a_daemon_set_follows_its_node_and_its_template() {
    let Some(c) = Cluster::usual() else { return };
    let _controllers = Controllers::start(&c);
    c.create(&as_kind("DaemonSet", "agent", ""));
    let said = rollout(&c, "status", "daemonset/agent");
    assert!(said.contains("successfully rolled out"), "{said}");
    let first = names(&c, "pods", "agent");
    assert_eq!(first.len(), 1, "{first:?}");

    // A new template replaces the Pod, and the old one comes back under a new number.
    c.run(&["set", "env", "daemonset/agent", "COLOUR=blue"]);
    rollout(&c, "status", "daemonset/agent");
    let second = names(&c, "pods", "agent");
    assert!(second.len() == 1 && second != first, "{first:?} {second:?}");
    let history = rollout(&c, "history", "daemonset/agent");
    assert!(history.contains("\n1 ") && history.contains("\n2 "), "{history}");
    rollout(&c, "undo", "daemonset/agent");
    rollout(&c, "status", "daemonset/agent");
    let history = rollout(&c, "history", "daemonset/agent");
    assert!(!history.contains("\n1 ") && history.contains("\n2 ") && history.contains("\n3 "), "{history}");
    assert_eq!(items(&c, "controllerrevisions", "agent").len(), 2);

    // A taint that drives it out, and its end.
    c.run(&["taint", "node", "demo", "example.com/out=:NoExecute"]);
    c.eventually("the Pod to leave", || names(&c, "pods", "agent").is_empty().then_some(()));
    c.run(&["taint", "node", "demo", "example.com/out:NoExecute-"]);
    rollout(&c, "status", "daemonset/agent");
    c.eventually("a Pod to come back", || (living(&c, "agent") == 1).then_some(()));

    c.run(&["delete", "daemonset", "agent"]);
    c.eventually("everything of it to be gone", || {
        (names(&c, "pods", "agent").is_empty() && names(&c, "controllerrevisions", "agent").is_empty())
            .then_some(())
    });
}

#[test]
fn a_stateful_set_keeps_its_order() {
    let Some(c) = Cluster::usual() else { return };
    let _controllers = Controllers::start(&c);
    c.create(&as_kind("StatefulSet", "db", "  replicas: 3\n  serviceName: db\n"));
    let said = rollout(&c, "status", "statefulset/db");
    assert!(said.contains("complete"), "{said}");
    let pods = items(&c, "pods", "db");
    assert_eq!(names(&c, "pods", "db"), ["db-0", "db-1", "db-2"]);
    let ready = |pod: &Value| {
        let conditions = pod["status"]["conditions"].as_array().unwrap();
        let ready = conditions.iter().find(|one| one["type"] == "Ready").unwrap();
        ready["lastTransitionTime"].as_str().unwrap().to_owned()
    };
    for pair in pods.windows(2) {
        let (before, after) = (ready(&pair[0]), pair[1]["metadata"]["creationTimestamp"].as_str().unwrap());
        assert!(before.as_str() <= after, "made at {after}, before the one before was ready at {before}");
    }

    // A new template comes from the last Pod to the first.
    let revision =
        |pod: &Value| pod["metadata"]["labels"]["controller-revision-hash"].as_str().unwrap().to_owned();
    let first = revision(&pods[0]);
    c.run(&["set", "env", "statefulset/db", "COLOUR=blue"]);
    c.eventually("the new template to be everywhere", || {
        let is_old: Vec<bool> = items(&c, "pods", "db").iter().map(|pod| revision(pod) == first).collect();
        assert!(is_old.windows(2).all(|pair| pair[0] || !pair[1]), "an old one above a new one: {is_old:?}");
        (is_old == [false; 3]).then_some(())
    });
    rollout(&c, "status", "statefulset/db");
    let history = rollout(&c, "history", "statefulset/db");
    assert!(history.contains("\n1 ") && history.contains("\n2 "), "{history}");

    // The way back uses the old revision under its old name.
    rollout(&c, "undo", "statefulset/db");
    rollout(&c, "status", "statefulset/db");
    c.eventually("the old template to be back", || {
        let pods = items(&c, "pods", "db");
        (pods.len() == 3 && pods.iter().all(|pod| revision(pod) == first)).then_some(())
    });
    assert_eq!(items(&c, "controllerrevisions", "db").len(), 2);

    // Down, the last one first.
    c.run(&["scale", "statefulset/db", "--replicas=1"]);
    let all = ["db-0", "db-1", "db-2"];
    c.eventually("one to be left", || {
        let left = names(&c, "pods", "db");
        assert_eq!(left, all[..left.len()], "not from the last");
        (left.len() == 1).then_some(())
    });
    c.run(&["delete", "statefulset", "db"]);
    c.eventually("everything of it to be gone", || {
        (names(&c, "pods", "db").is_empty() && names(&c, "controllerrevisions", "db").is_empty())
            .then_some(())
    });
}

fn field(c: &Cluster, what: &str, name: &str, path: &str) -> String {
    c.run(&["get", what, name, "-o", &format!("jsonpath={{{path}}}")])
}

fn is_phase(c: &Cluster, what: &str, name: &str, phase: &str) {
    c.eventually(&format!("{what}/{name} to be {phase}"), || {
        (field(c, what, name, ".status.phase") == phase).then_some(())
    });
}

fn reasons(c: &Cluster, name: &str) -> String {
    let field = format!("involvedObject.name={name}");
    c.run(&["get", "events", "--field-selector", &field, "-o", "jsonpath={.items[*].reason}"])
}

fn volume(c: &Cluster, name: &str, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{ name: {name} }}\nspec:\n  accessModes: [ReadWriteOnce]\n  \
         capacity: {{ storage: 1Gi }}\n  hostPath: {{ path: {}, type: DirectoryOrCreate }}\n{more}",
        c.node.dir().join(name).display()
    )
}

#[test]
fn a_stateful_set_keeps_its_volumes() {
    let Some(c) = Cluster::usual() else { return };
    let _controllers = Controllers::start(&c);
    let set = as_kind("StatefulSet", "db", "  replicas: 2\n  serviceName: db\n")
        + "        volumeMounts: [{ name: data, mountPath: /data }]\n  volumeClaimTemplates:\n  - metadata: { name: data }\n    \
           spec: { accessModes: [ReadWriteOnce], storageClassName: '', resources: { requests: { storage: 500Mi } } }\n";
    c.create(&set);
    c.eventually("the claim to say that nothing fits", || {
        reasons(&c, "data-db-0").contains("FailedBinding").then_some(())
    });
    assert_eq!(field(&c, "pvc", "data-db-0", ".status.phase"), "Pending");

    // Volumes that come later are taken at once, and the Pods start.
    c.create(&volume(&c, "one", ""));
    c.create(&volume(&c, "two", ""));
    let said = rollout(&c, "status", "statefulset/db");
    assert!(said.contains("complete"), "{said}");
    let of = |claim: &str| field(&c, "pvc", claim, ".spec.volumeName");
    let (first, second) = (of("data-db-0"), of("data-db-1"));
    assert_ne!(first, second);
    assert_eq!(field(&c, "pvc", "data-db-0", ".status.capacity.storage"), "1Gi");
    assert_eq!(field(&c, "pv", &first, ".status.phase"), "Bound");
    assert_eq!(field(&c, "pv", &first, ".spec.claimRef.name"), "data-db-0");

    // A new Pod finds what the old one wrote.
    c.run(&["exec", "db-0", "--", "sh", "-c", "echo kept >/data/file"]);
    let uid = field(&c, "pod", "db-0", ".metadata.uid");
    c.run(&["delete", "pod", "db-0"]);
    c.eventually("a new Pod to be there", || {
        let pod = c.pod("db-0")?;
        (pod.metadata.uid.as_ref() != Some(&uid)).then_some(())
    });
    rollout(&c, "status", "statefulset/db");
    assert_eq!(c.run(&["exec", "db-0", "--", "cat", "/data/file"]).trim(), "kept");

    // Claims outlive the set. A claim in use stays until its Pod is gone, its volume is kept and offered again by hand.
    c.run(&["delete", "pvc", "data-db-0", "--wait=false"]);
    assert_ne!(field(&c, "pvc", "data-db-0", ".metadata.deletionTimestamp"), "");
    c.run(&["delete", "statefulset", "db"]);
    is_phase(&c, "pv", &first, "Released");
    c.eventually("the claim to go", || (c.kubectl(&["get", "pvc", "data-db-0"]).code != 0).then_some(()));
    assert_eq!(field(&c, "pvc", "data-db-1", ".status.phase"), "Bound");
    c.run(&["patch", "pv", &first, "--type=json", "-p", r#"[{"op":"remove","path":"/spec/claimRef"}]"#]);
    is_phase(&c, "pv", &first, "Available");
    c.run(&["delete", "pvc", "data-db-1"]);
    c.run(&["delete", "pv", "one", "two"]);
}

#[test]
fn a_provisioner_of_somebody_else_is_told_when_and_what_to_make() {
    let Some(c) = Cluster::usual() else { return };
    let _controllers = Controllers::start(&c);
    let unsaid = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: { name: c }\nspec:\n  accessModes: [ReadWriteOnce]\n  \
                  resources: { requests: { storage: 1Gi } }\n";
    c.create(unsaid);
    is_phase(&c, "pvc", "c", "Pending");

    // The class is made default later; the claim gets it, and waits for a Pod.
    c.create(
        "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata:\n  name: local-path\n  annotations: { \
         storageclass.kubernetes.io/is-default-class: 'true' }\nprovisioner: example.com/local\nvolumeBindingMode: \
         WaitForFirstConsumer\nreclaimPolicy: Delete\n",
    );
    c.eventually("the claim to have the class", || {
        (field(&c, "pvc", "c", ".spec.storageClassName") == "local-path").then_some(())
    });
    c.eventually("the claim to wait", || reasons(&c, "c").contains("WaitForFirstConsumer").then_some(()));
    let provisioner = ".metadata.annotations.volume\\.kubernetes\\.io/storage-provisioner";
    assert_eq!(field(&c, "pvc", "c", provisioner), "");

    // What the scheduler says of the Pod's Node is the sign.
    c.run(&["annotate", "pvc", "c", "volume.kubernetes.io/selected-node=demo"]);
    c.eventually("the provisioner to be named", || {
        (field(&c, "pvc", "c", provisioner) == "example.com/local").then_some(())
    });
    c.eventually("it to be told", || reasons(&c, "c").contains("ExternalProvisioning").then_some(()));
    let uid = field(&c, "pvc", "c", ".metadata.uid");
    let name = format!("pvc-{uid}");
    let made = format!(
        "  storageClassName: local-path\n  persistentVolumeReclaimPolicy: Delete\n  claimRef: {{ namespace: default, name: \
         c, uid: {uid} }}\n"
    );
    let made = volume(&c, &name, &made).replace(
        &format!("metadata: {{ name: {name} }}"),
        &format!(
            "metadata: {{ name: {name}, annotations: {{ pv.kubernetes.io/provisioned-by: example.com/local }} }}"
        ),
    );
    c.create(&made);
    is_phase(&c, "pvc", "c", "Bound");
    is_phase(&c, "pv", &name, "Bound");

    // Its deletion is the provisioner's affair.
    c.run(&["delete", "pvc", "c"]);
    is_phase(&c, "pv", &name, "Released");
    c.run(&["delete", "pv", &name]);
    assert_ne!(c.kubectl(&["get", "pv", &name]).code, 0);
}

const MIRRORED: &str = "apiVersion: v1\nkind: Service\nmetadata: { name: ext }\nspec: { ports: [{ name: http, port: 80 }] }\n\
    ---\napiVersion: v1\nkind: Endpoints\nmetadata: { name: ext }\nsubsets:\n- addresses: [{ ip: 192.0.2.7 }]\n  \
    ports: [{ name: http, port: 8080 }]\n";

/// Small ones on one cluster: a mirror, a Job by the clock, the root certificate, the end of a namespace.
#[test]
fn controllers_without_pods_do_what_kubectl_asks_of_them() {
    let Some(c) = Cluster::usual() else { return };
    let _controllers = Controllers::start(&c);
    c.run(&[
        "create",
        "cronjob",
        "tick",
        "--image=localhost/busybox:v1",
        "--schedule=* * * * *",
        "--",
        "true",
    ]);

    // Endpoints that somebody writes are mirrored, followed and taken away.
    c.create(MIRRORED);
    let addresses = || {
        let path = "jsonpath={.items[*].endpoints[*].addresses[*]} {.items[*].ports[*].port}";
        c.run(&["get", "endpointslices", "-l", "kubernetes.io/service-name=ext", "-o", path])
    };
    c.eventually("a mirror", || (addresses() == "192.0.2.7 8080").then_some(()));
    let patch =
        r#"{"subsets": [{"addresses": [{"ip": "192.0.2.8"}], "ports": [{"name": "http", "port": 81}]}]}"#;
    c.run(&["patch", "endpoints", "ext", "--type=merge", "-p", patch]);
    c.eventually("the mirror to follow", || (addresses() == "192.0.2.8 81").then_some(()));
    c.run(&["delete", "endpoints", "ext"]);
    c.eventually("the mirror to go", || addresses().trim().is_empty().then_some(()));

    // Whom to believe is put right.
    c.run(&[
        "patch",
        "configmap",
        "kube-root-ca.crt",
        "--type=merge",
        "-p",
        r#"{"data": {"ca.crt": "nonsense"}}"#,
    ]);
    let ca = || c.run(&["get", "configmap", "kube-root-ca.crt", "-o", r"jsonpath={.data.ca\.crt}"]);
    c.eventually("the certificate to be back", || ca().starts_with("-----BEGIN").then_some(()));

    // A namespace ends with all that is in it.
    c.run(&["create", "namespace", "short"]);
    c.run(&["-n", "short", "create", "configmap", "a", "--from-literal=b=c"]);
    c.run(&["delete", "namespace", "short", "--timeout=120s"]);

    // By the next minute there is a Job, with the minute in its name.
    let active = || c.run(&["get", "cronjob", "tick", "-o", "jsonpath={.status.active[0].name}"]);
    let job = c.eventually("a Job by the clock", || Some(active()).filter(|name| !name.is_empty()));
    let minute: i64 = job.strip_prefix("tick-").and_then(|minute| minute.parse().ok()).unwrap();
    let due = c.run(&[
        "get",
        "job",
        &job,
        "-o",
        r"jsonpath={.metadata.annotations.batch\.kubernetes\.io/cronjob-scheduled-timestamp}",
    ]);
    let due: jiff::Timestamp = due.parse().unwrap();
    assert_eq!((due.as_second().rem_euclid(60), due.as_second() / 60), (0, minute));
    let owner = c.run(&["get", "job", &job, "-o", "jsonpath={.metadata.ownerReferences[0].name}"]);
    assert_eq!(owner, "tick");
}
