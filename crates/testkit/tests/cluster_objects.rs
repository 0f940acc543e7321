//! ConfigMaps, Secrets, tokens and Services, as containers see them.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use k8s_openapi::api::core::v1::Pod;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use testkit::cluster::{Cluster, ClusterOptions};
use testkit::harness::{container, container_id, is_ready, uid, waiting_reason};
use testkit::node::AgentOptions;

const STAY: &str = "trap exit TERM; while :; do sleep 0.1; done";

const CONFIG: &str = "
apiVersion: v1
kind: ConfigMap
metadata: { name: settings }
data: { color: blue, size: big }
binaryData: { raw: AAEC }
---
apiVersion: v1
kind: Secret
metadata: { name: login }
stringData: { user: ann, password: s3cret }
---
apiVersion: v1
kind: Service
metadata: { name: my-db }
spec: { ports: [{ port: 5432, name: sql }] }
---
apiVersion: v1
kind: Pod
metadata: { name: reader, labels: { tier: front } }
spec:
  nodeName: demo
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: localhost/busybox:v1
    command: [sh, -c, STAY]
    env:
    - { name: COLOR, valueFrom: { configMapKeyRef: { name: settings, key: color } } }
    - { name: USER_NAME, valueFrom: { secretKeyRef: { name: login, key: user } } }
    - { name: NONE, valueFrom: { secretKeyRef: { name: absent, key: x, optional: true } } }
    envFrom: [{ prefix: CM_, configMapRef: { name: settings } }]
    volumeMounts:
    - { name: config, mountPath: /config }
    - { name: secret, mountPath: /secret }
    - { name: all, mountPath: /all }
  volumes:
  - { name: config, configMap: { name: settings, defaultMode: 0440 } }
  - { name: secret, secret: { secretName: login, items: [{ key: password, path: deep/pw, mode: 0400 }] } }
  - name: all
    projected:
      sources:
      - configMap: { name: settings, items: [{ key: size, path: size }] }
      - secret: { name: absent, optional: true }
      - downwardAPI: { items: [{ path: labels, fieldRef: { fieldPath: metadata.labels } }] }
      - serviceAccountToken: { path: vault-token, audience: vault, expirationSeconds: 600 }
";

#[test]
fn containers_see_what_their_pod_names() {
    let Some(c) = Cluster::usual() else { return };
    c.create(&CONFIG.replace("STAY", &format!("{STAY:?}")));
    c.wait_pod("reader", "ready", is_ready);
    let sh = |script: &str| c.exec("reader", "main", &["sh", "-c", script]);
    assert_eq!(sh("echo $COLOR $USER_NAME $CM_size ${NONE-unset}"), "blue ann big unset\n");
    assert_eq!(sh("cat /config/color /secret/deep/pw /all/size"), "blues3cretbig");
    assert_eq!(sh("wc -c < /config/raw").trim(), "3");
    assert_eq!(sh("stat -Lc %a /config/color /secret/deep/pw"), "440\n400\n");
    assert_eq!(sh("cat /all/labels"), "tier=\"front\"");
    assert!(sh("env").contains("MY_DB_SERVICE_PORT_SQL=5432"));
    assert!(sh("env").contains("KUBERNETES_SERVICE_HOST=10.96.0.1"));
    let account = "/var/run/secrets/kubernetes.io/serviceaccount";
    assert_eq!(sh(&format!("cat {account}/namespace")), "default");
    assert!(sh(&format!("cat {account}/ca.crt")).contains("BEGIN CERTIFICATE"));
    let token = sh(&format!("cat {account}/token"));
    let who = c.run(&["--token", &token, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"]);
    // kubectl shows its certificate as well as the token, and the certificate wins.
    assert!(!who.is_empty() && token.split('.').count() == 3, "{who}");
    assert_ne!(sh("cat /all/vault-token"), token);

    // What changes follows into the running container, and removed keys go.
    c.run(&["patch", "configmap", "settings", "-p", r#"{"data":{"color":"red"},"binaryData":null}"#]);
    c.eventually("red", || (sh("cat /config/color") == "red").then_some(()));
    c.eventually("gone", || sh("ls /config").lines().eq(["color", "size"]).then_some(()));
    c.run(&["label", "pod", "reader", "tier=back", "--overwrite"]);
    c.eventually("relabelled", || (sh("cat /all/labels") == "tier=\"back\"").then_some(()));
    assert_eq!(sh("echo $COLOR"), "blue\n", "the environment of a process does not change");

    // A volume that cannot follow keeps what it has, and keeps no other from following.
    c.run(&["patch", "configmap", "settings", "-p", r#"{"data":{"color":"green","size":null}}"#]);
    c.eventually("green", || (sh("cat /config/color") == "green").then_some(()));
    assert_eq!(sh("cat /all/size"), "big");
    let why = "configmap references non-existent config key: size";
    c.eventually("told why", || c.run(&["describe", "pod", "reader"]).contains(why).then_some(()));
}

#[test]
fn what_is_missing_is_named_and_waited_for() {
    let Some(c) = Cluster::usual() else { return };
    let pod = |name: &str, more: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{ name: {name} }}\nspec:\n  nodeName: demo\n  \
             automountServiceAccountToken: false\n  terminationGracePeriodSeconds: 1\n  {more}\n"
        )
    };
    let image = format!("name: main, image: localhost/busybox:v1, command: [sh, -c, {STAY:?}]");
    let env = "env: [{ name: X, valueFrom: { configMapKeyRef: { name: later, key: x } } }]";
    c.create(&pod("wants-env", &format!("containers: [{{ {image}, {env} }}]")));
    let mount = "volumeMounts: [{ name: v, mountPath: /v }]";
    let volume = "volumes: [{ name: v, secret: { secretName: later } }]";
    c.create(&pod("wants-volume", &format!("{volume}\n  containers: [{{ {image}, {mount} }}]")));
    let refused =
        c.wait_pod("wants-env", "refused", |p| waiting_reason(p, "main") == "CreateContainerConfigError");
    let state = container(&refused, "main").unwrap().state.as_ref().unwrap();
    assert_eq!(state.waiting.as_ref().unwrap().message.as_deref(), Some("configmap \"later\" not found"));
    c.run(&["create", "configmap", "later", "--from-literal=x=1"]);
    c.wait_pod("wants-env", "ready", is_ready);
    c.run(&["create", "secret", "generic", "later", "--from-literal=x=1"]);
    c.wait_pod("wants-volume", "ready", is_ready);
    assert_eq!(c.exec("wants-volume", "main", &["cat", "/v/x"]), "1");
}

/// The certificate of a new authority.
fn authority() -> String {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
}

fn bundle(name: &str, signer: &str, ring: &str, pem: &str) -> String {
    let pem = pem.replace("\r", "").replace('\n', "\n    ");
    format!(
        "apiVersion: certificates.k8s.io/v1beta1\nkind: ClusterTrustBundle\nmetadata: {{ name: {name:?}, labels: \
         {{ ring: {ring} }} }}\nspec:\n  signerName: {signer:?}\n  trustBundle: |\n    {pem}\n"
    )
}

/// A Pod that has these bundles as files below /t.
fn believing(name: &str, sources: &[&str]) -> String {
    let sources: String = sources.iter().map(|s| format!("    - clusterTrustBundle: {{ {s} }}\n")).collect();
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{ name: {name} }}\nspec:\n  nodeName: demo\n  \
         automountServiceAccountToken: false\n  terminationGracePeriodSeconds: 1\n  containers: [{{ name: main, image: \
         localhost/busybox:v1, command: [sh, -c, {STAY:?}], volumeMounts: [{{ name: t, mountPath: /t }}] }}]\n  \
         volumes:\n  - name: t\n    projected:\n      sources:\n{}",
        sources.replace("    - ", "      - ")
    )
}

#[test]
fn pods_believe_the_bundles_they_name() {
    let gates = "featureGates: { ClusterTrustBundle: true, ClusterTrustBundleProjection: true }";
    let agent = AgentOptions { config: format!("syncFrequency: 1s\n{gates}\n"), ..AgentOptions::default() };
    let server = vec!["--runtime-config=certificates.k8s.io/v1beta1=true".to_owned()];
    let Some(c) = Cluster::start(ClusterOptions { agent, server, ..ClusterOptions::default() }) else {
        return;
    };
    let pems: Vec<String> = (0..4).map(|_| authority()).collect();
    c.create(&bundle("plain", "", "none", &pems[0]));
    c.create(&bundle("k.test:web:one", "k.test/web", "live", &pems[1]));
    c.create(&bundle("k.test:web:two", "k.test/web", "test", &pems[2]));
    assert!(c.run(&["get", "clustertrustbundles"]).contains("k.test/web"));
    c.create(&believing(
        "all",
        &[
            "name: plain, path: plain.pem",
            "signerName: k.test/web, labelSelector: { matchLabels: { ring: live } }, path: live.pem",
            "signerName: k.test/web, labelSelector: {}, path: web.pem",
            "name: missing, optional: true, path: missing.pem",
        ],
    ));
    c.wait_pod("all", "ready", is_ready);
    let file = |name: &str| c.exec("all", "main", &["cat", &format!("/t/{name}")]).replace('\r', "");
    let clean = |pem: &str| pem.replace('\r', "");
    assert_eq!(file("plain.pem").trim(), clean(&pems[0]).trim());
    assert_eq!(file("live.pem").trim(), clean(&pems[1]).trim());
    let web = file("web.pem");
    assert!(web.contains(clean(&pems[1]).trim()) && web.contains(clean(&pems[2]).trim()), "{web}");
    assert_eq!(web.matches("BEGIN").count(), 2);
    assert_eq!(file("missing.pem"), "");

    // What changes reaches those who run.
    c.create(&bundle("k.test:web:three", "k.test/web", "live", &pems[3]));
    c.create(&bundle("missing", "", "none", &pems[0]));
    c.eventually("one more", || (file("live.pem").matches("BEGIN").count() == 2).then_some(()));
    c.eventually("there now", || (!file("missing.pem").is_empty()).then_some(()));
    c.run(&["delete", "clustertrustbundle", "k.test:web:two"]);
    c.eventually("one less", || (!file("web.pem").contains(clean(&pems[2]).trim())).then_some(()));

    // Who cannot do without waits and says for what.
    c.create(&believing("waits", &["name: later, path: later.pem"]));
    let why = "clustertrustbundle.certificates.k8s.io \"later\" not found";
    c.eventually("told why", || c.run(&["describe", "pod", "waits"]).contains(why).then_some(()));
    c.create(&bundle("later", "", "none", &pems[2]));
    c.wait_pod("waits", "ready", is_ready);
}

/// A local volume on this node, and the claim that is to have it.
fn local_volume(c: &Cluster, path: &Path, mode: &str) {
    c.create(&format!(
        "
apiVersion: v1
kind: PersistentVolume
metadata: {{ name: disk }}
spec:
  capacity: {{ storage: 1Gi }}
  accessModes: [ReadWriteOnce]
  storageClassName: \"\"
  volumeMode: {mode}
  claimRef: {{ namespace: default, name: data }}
  local: {{ path: {} }}
  nodeAffinity:
    required:
      nodeSelectorTerms: [{{ matchFields: [{{ key: metadata.name, operator: In, values: [demo] }}] }}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{ name: data }}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: \"\"
  volumeMode: {mode}
  volumeName: disk
  resources: {{ requests: {{ storage: 1Gi }} }}
",
        path.display()
    ));
}

/// What a controller would do.
fn bind_claim(c: &Cluster) {
    let uid = c.run(&["get", "pvc", "data", "-o", "jsonpath={.metadata.uid}"]);
    c.run(&["patch", "pv", "disk", "-p", &format!(r#"{{"spec":{{"claimRef":{{"uid":"{uid}"}}}}}}"#)]);
    c.run(&["patch", "pvc", "data", "--subresource=status", "-p", r#"{"status":{"phase":"Bound"}}"#]);
}

/// A Pod with the claim; `container` is more of its container, as flow YAML.
fn claiming(name: &str, script: &str, container: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{ name: {name} }}
spec:
  nodeName: demo
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 1
  containers: [{{ name: main, image: localhost/busybox:v1, command: [sh, -c, {script:?}], {container} }}]
  volumes: [{{ name: data, persistentVolumeClaim: {{ claimName: data }} }}]
"
    )
}

const MOUNTED: &str = "volumeMounts: [{ name: data, mountPath: /data }]";

#[test]
fn a_claim_is_what_it_is_bound_to() {
    let Some(c) = Cluster::usual() else { return };
    let dir = c.node.dir().join("volume");
    std::fs::create_dir(&dir).unwrap();
    local_volume(&c, &dir, "Filesystem");
    c.create(&claiming("writer", "echo kept > /data/file; exec sleep 1000", MOUNTED));
    c.eventually("told why it waits", || {
        let why = "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], failed to process volumes=[data]: error processing PVC default/data: PVC is not bound";
        c.run(&["describe", "pod", "writer"]).contains(why).then_some(())
    });
    bind_claim(&c);
    c.wait_pod("writer", "ready", is_ready);
    c.eventually("written", || (std::fs::read_to_string(dir.join("file")).ok()? == "kept\n").then_some(()));
    c.run(&["delete", "pod", "writer", "--timeout=30s"]);
    assert!(dir.join("file").exists(), "the volume outlives the Pod");
}

/// Ends when it is told to; the next instance is not told yet.
const UNTIL_TOLD: &str = "trap exit TERM; while [ ! -e /tmp/go ]; do sleep 0.1; done";

/// Lets the Pod's container end, and waits until it runs again. The API server is not needed for that.
fn end_container(c: &Cluster, name: &str) {
    let count = |p: &Pod| container(p, "main").map_or(0, |s| s.restart_count);
    let before = count(&c.get(name).unwrap());
    let (code, _, err) = c.pods(&["exec", name, "--", "touch", "/tmp/go"]);
    assert_eq!(code, 0, "{err}");
    c.until("running again", || c.get(name).filter(|p| count(p) > before && is_ready(p)).map(|_| ()));
}

#[test]
fn what_was_mounted_once_does_not_keep_a_container_from_starting() {
    let Some(mut c) = Cluster::usual() else { return };
    let dir = c.node.dir().join("volume");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("file"), "kept").unwrap();
    local_volume(&c, &dir, "Filesystem");
    bind_claim(&c);
    let protect = r#"{"metadata":{"finalizers":["kubernetes.io/pvc-protection"]}}"#;
    c.run(&["patch", "pvc", "data", "-p", protect]);
    c.run(&["annotate", "pv", "disk", "pv.beta.kubernetes.io/gid=4321"]);
    c.run(&["create", "secret", "generic", "login", "--from-literal=password=s3cret"]);
    let mounts = "volumeMounts: [{ name: data, mountPath: /data }, { name: login, mountPath: /login }]";
    let pod = claiming("web", UNTIL_TOLD, mounts)
        .replace("volumes: [", "volumes: [{ name: login, secret: { secretName: login } }, ");
    c.create(&pod);
    c.wait_pod("web", "ready", is_ready);

    // The claim ends after its last Pod; until then it is good, for others too.
    c.run(&["delete", "pvc", "data", "--wait=false"]);
    c.run(&["delete", "secret", "login"]);
    assert!(!c.run(&["get", "pvc", "data", "-o", "jsonpath={.metadata.deletionTimestamp}"]).is_empty());
    end_container(&c, "web");
    let sees = |c: &Cluster| c.exec("web", "main", &["sh", "-c", "cat /data/file /login/password; id -G"]);
    assert!(sees(&c).starts_with("kepts3cret"), "{}", sees(&c));
    assert!(sees(&c).split_whitespace().any(|gid| gid == "4321"), "{}", sees(&c));
    let why = "MountVolume.SetUp failed for volume \"login\" : secret \"login\" not found";
    c.eventually("told", || c.run(&["describe", "pod", "web"]).contains(why).then_some(()));
    c.create(&claiming("late", STAY, MOUNTED));
    c.wait_pod("late", "ready", is_ready);

    c.stop_server();
    end_container(&c, "web");
    c.start_server();
    c.wait_pod("web", "ready again", |p| is_ready(p) && container(p, "main").unwrap().restart_count == 2);
    assert!(sees(&c).starts_with("kepts3cret"), "{}", sees(&c));
}

/// A block device that lies in a file, for as long as this lives.
struct Disk(String);

impl Disk {
    fn make(file: &Path) -> Self {
        std::fs::File::create(file).unwrap().set_len(1 << 20).unwrap();
        let out = Command::new("losetup").args(["--find", "--show"]).arg(file).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        Self(String::from_utf8(out.stdout).unwrap().trim().to_owned())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn a_local_device_is_passed_into_the_container() {
    if !Path::new("/dev/loop-control").exists() {
        return;
    }
    let Some(c) = Cluster::usual() else { return };
    let file = c.node.dir().join("disk.img");
    let disk = Disk::make(&file);
    local_volume(&c, Path::new(&disk.0), "Block");
    bind_claim(&c);
    let device = "volumeDevices: [{ name: data, devicePath: /dev/xvda }]";
    c.create(&claiming("raw", STAY, device));
    c.wait_pod("raw", "ready", is_ready);
    let script = "test -b /dev/xvda && printf data > /dev/xvda && sync && head -c 4 /dev/xvda";
    assert_eq!(c.exec("raw", "main", &["sh", "-c", script]), "data");
    c.run(&["delete", "pod", "raw", "--timeout=30s"]);
    // What was written is on the device, which nobody holds any more.
    drop(disk);
    assert_eq!(std::fs::read(&file).unwrap()[..4], *b"data");

    // As a directory it is not to be had, and the Pod is told so.
    c.create(&claiming("wrong", STAY, MOUNTED));
    let words = "volume data has volumeMode Block, but is specified in volumeMounts";
    c.eventually("refused", || c.run(&["describe", "pod", "wrong"]).contains(words).then_some(()));
}

#[test]
fn the_other_strategies_see_changes_at_the_next_sync() {
    for strategy in ["Get", "Cache"] {
        let config = format!("configMapAndSecretChangeDetectionStrategy: {strategy}\nsyncFrequency: 1s\n");
        let Some(c) = Cluster::with_config(&config) else { return };
        c.run(&["annotate", "node", "demo", "node.alpha.kubernetes.io/ttl=0", "--overwrite"]);
        c.run(&["create", "configmap", "settings", "--from-literal=color=blue"]);
        c.create(&format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{ name: reader }}\nspec:\n  nodeName: demo\n  \
             terminationGracePeriodSeconds: 1\n  \
             volumes: [{{ name: v, configMap: {{ name: settings }} }}]\n  containers:\n  \
             - {{ name: main, image: localhost/busybox:v1, command: [sh, -c, {STAY:?}],\n      \
             volumeMounts: [{{ name: v, mountPath: /v }}] }}\n"
        ));
        c.wait_pod("reader", "ready", is_ready);
        let color = || c.exec("reader", "main", &["cat", "/v/color"]);
        assert_eq!(color(), "blue", "{strategy}");
        c.run(&["patch", "configmap", "settings", "-p", r#"{"data":{"color":"red"}}"#]);
        c.eventually("red", || (color() == "red").then_some(()));
    }
}

#[test]
fn a_runtime_class_names_the_handler_also_while_the_server_is_away() {
    let Some(mut c) = Cluster::usual() else { return };
    let class = |name: &str, handler: &str| {
        format!(
            "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {{ name: {name} }}\nhandler: {handler}\n"
        )
    };
    let pod = |name: &str, class: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{ name: {name} }}\nspec:\n  nodeName: demo\n  runtimeClassName: {class}\n  \
             terminationGracePeriodSeconds: 1\n  containers: [{{ name: main, image: localhost/busybox:v1, \
             command: [sh, -c, {STAY:?}] }}]\n"
        )
    };
    c.create(&class("plain", "runc"));
    c.create(&class("odd", "nowhere"));
    c.create(&pod("one", "plain"));
    c.create(&pod("none", "odd"));
    let one = c.wait_pod("one", "ready", is_ready);
    let words = "no runtime for \"nowhere\" is configured";
    c.eventually("refused by the runtime", || {
        let told = c.run(&["describe", "pod", "none"]);
        (told.contains("FailedCreatePodSandBox") && told.contains(words)).then_some(())
    });

    // Its sandbox dies while nobody can be asked.
    c.stop_server();
    let before = container_id(&one, "main").to_owned();
    let sandboxes = sandboxes_of(&c, &one);
    let [sandbox] = &sandboxes[..] else { panic!("one sandbox: {sandboxes:?}") };
    let killed = c.node.ctr().args(["tasks", "kill", "--signal", "KILL", sandbox]).output().unwrap();
    assert!(killed.status.success(), "{killed:?}");
    c.until("up in a new sandbox", || {
        let now = c.get("one").filter(is_ready)?;
        let is_new = sandboxes_of(&c, &now).iter().any(|other| other != sandbox);
        (container_id(&now, "main") != before && is_new).then_some(())
    });
}

/// Every sandbox of a Pod, dead ones too, in no order.
fn sandboxes_of(c: &Cluster, pod: &Pod) -> Vec<String> {
    let label = format!("labels.\"io.kubernetes.pod.uid\"=={}", uid(pod));
    let kind = "labels.\"io.cri-containerd.kind\"==sandbox";
    let out = c.node.ctr().args(["containers", "ls", "-q", &format!("{label},{kind}")]).output().unwrap();
    String::from_utf8(out.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn pull_secrets_that_are_missing_are_told_of_and_hold_up_nobody() {
    let Some(c) = Cluster::usual() else { return };
    c.create(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{ name: one }}\nspec:\n  nodeName: demo\n  \
         imagePullSecrets: [{{ name: nowhere }}, {{ name: lost }}]\n  terminationGracePeriodSeconds: 1\n  \
         containers: [{{ name: main, image: localhost/busybox:v1, command: [sh, -c, {STAY:?}] }}]\n"
    ));
    c.wait_pod("one", "ready", is_ready);
    let words = "Unable to retrieve some image pull secrets (nowhere, lost); attempting to pull the image may not succeed.";
    c.eventually("told", || {
        let told = c.run(&["describe", "pod", "one"]);
        (told.contains("FailedToRetrieveImagePullSecret") && told.contains(words)).then_some(())
    });
}
