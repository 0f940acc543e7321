//! Upstream's kubelet as a node of `longshore apiserver`, on a private containerd: it gets its certificate, registers,
//! runs Pods, tells their status, and serves logs and shells through our server.
//!
//! `LONGSHORE_PEER_KUBELET` is that kubelet; where `LONGSHORE_PEER_PROXY` is upstream's kube-proxy, it makes rules of a
//! Service, too. Their configuration says nothing about content types: they speak protobuf.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fixture::{Containerd, Node, Options, Tools};

const TIMEOUT: Duration = Duration::from_secs(90);
const PORT: u16 = 6443;

/// A token to join with. That it may ask for a certificate, and gets it, is our server's own rule.
const BOOTSTRAP: &str = r#"
apiVersion: v1
kind: Secret
metadata: {name: bootstrap-token-abcdef, namespace: kube-system}
type: bootstrap.kubernetes.io/token
stringData:
  token-id: abcdef
  token-secret: 0123456789abcdef
  usage-bootstrap-authentication: "true"
"#;

const PODS: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {greeting: hello}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  nodeName: demo
  terminationGracePeriodSeconds: 1
  containers:
  - name: web
    image: localhost/busybox:v1
    imagePullPolicy: Never
    command: [sh, -c, 'cat /settings/greeting; echo; echo "$ABOUT"; mkdir /www; echo page > /www/index.html; httpd -f -p 8080 -h /www']
    env: [{name: ABOUT, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
    volumeMounts: [{name: settings, mountPath: /settings}]
    readinessProbe: {httpGet: {port: 8080, path: /index.html}, periodSeconds: 1}
  volumes: [{name: settings, configMap: {name: settings}}]
---
apiVersion: v1
kind: Pod
metadata: {name: once}
spec:
  nodeName: demo
  restartPolicy: Never
  containers: [{name: once, image: localhost/busybox:v1, imagePullPolicy: Never, command: [sh, -c, 'exit 3']}]
"#;

struct Cluster {
    node: Node,
    kubectl: PathBuf,
    dir: PathBuf,
    children: Vec<Child>,
}

impl Cluster {
    /// None, with a word about it, where there is nothing to test.
    fn start() -> Option<Cluster> {
        let said = |name: &str| std::env::var_os(name).map(PathBuf::from).ok_or(format!("{name} is not set"));
        let tools = Tools::from_env().map_err(|e| e.to_string());
        let all = (tools, said("LONGSHORE_BINARY"), said("LONGSHORE_PEER_KUBELET"));
        let (tools, binary, kubelet) = match all {
            (Ok(tools), Ok(binary), Ok(kubelet)) => (tools, binary, kubelet),
            (Err(why), ..) | (_, Err(why), _) | (.., Err(why)) => {
                eprintln!("skipped: {why}");
                return None;
            }
        };
        let node =
            Node::start(&tools, Options { containerd: Containerd::default(), ..Options::default() }).unwrap();
        let dir = node.dir().join("cluster");
        fs::create_dir(&dir).unwrap();
        let mut cluster = Cluster { kubectl: tools.kubectl(), node, dir, children: Vec::new() };
        cluster.start_server(&binary);
        cluster.kubectl_with(&["apply", "-f", "-"], BOOTSTRAP);
        cluster.start_kubelet(&kubelet);
        Some(cluster)
    }

    fn spawn(&mut self, mut command: Command, log: &str) {
        let log = File::options().create(true).append(true).open(self.dir.join(log)).unwrap();
        let command = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.children.push(command.spawn().unwrap());
    }

    fn start_server(&mut self, binary: &Path) {
        let mut command = self.node.command(binary);
        command
            .arg("apiserver")
            .arg(format!("--bind-address={}", self.node.address()))
            .arg(format!("--secure-port={PORT}"))
            .arg(format!("--data-dir={}", self.dir.join("data").display()));
        self.spawn(command, "apiserver.log");
        self.until("the server is up", |c| c.try_kubectl(&["get", "--raw", "/readyz"]).is_ok());
    }

    fn start_kubelet(&mut self, kubelet: &Path) {
        let ca = self.dir.join("data/pki/ca.crt");
        let config = format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
             authentication: {{x509: {{clientCAFile: {}}}}}\ncontainerRuntimeEndpoint: {}\npodLogsDir: {}\n\
             failSwapOn: false\nfailCgroupV1: false\ncgroupDriver: cgroupfs\ncgroupsPerQOS: false\n\
             enforceNodeAllocatable: []\nlocalStorageCapacityIsolation: false\nresolvConf: ''\n\
             imageGCHighThresholdPercent: 100\nevictionHard: {{nodefs.available: 0%, imagefs.available: 0%, nodefs.inodesFree: 0%}}\n\
             nodeStatusUpdateFrequency: 2s\nsyncFrequency: 2s\nregisterNode: true\nmaxPods: 20\n",
            ca.display(),
            self.node.endpoint(),
            self.node.dir().join("pod-logs").display(),
        );
        let join = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{{name: x, cluster: {{server: 'https://{}:{PORT}', certificate-authority: {}}}}}]\n\
             users: [{{name: x, user: {{token: abcdef.0123456789abcdef}}}}]\ncontexts: [{{name: x, context: {{cluster: x, user: x}}}}]\n",
            self.node.address(),
            ca.display(),
        );
        let file = |name: &str, text: &str| {
            let path = self.dir.join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let (config, join) = (file("kubelet.yaml", &config), file("bootstrap.kubeconfig", &join));
        let mut command = self.node.command(kubelet);
        command
            .arg("--config")
            .arg(config)
            .arg("--bootstrap-kubeconfig")
            .arg(join)
            .arg("--kubeconfig")
            .arg(self.dir.join("kubelet.kubeconfig"))
            .arg("--root-dir")
            .arg(self.node.dir().join("kubelet"))
            .arg("--cert-dir")
            .arg(self.dir.join("kubelet-pki"))
            .args(["--hostname-override=demo", "--node-ip", &self.node.address(), "--v=2"]);
        self.spawn(command, "kubelet.log");
    }

    fn run(&self, args: &[&str], input: &str) -> Result<String, String> {
        let mut command = self.node.command(&self.kubectl);
        command.arg("--kubeconfig").arg(self.dir.join("data/admin.kubeconfig")).args(args);
        command.env("HOME", &self.dir);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let out = child.wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if out.status.success() { Ok(text(&out.stdout)) } else { Err(text(&out.stderr)) }
    }

    fn try_kubectl(&self, args: &[&str]) -> Result<String, String> {
        self.run(args, "")
    }

    #[track_caller]
    fn kubectl(&self, args: &[&str]) -> String {
        self.kubectl_with(args, "")
    }

    #[track_caller]
    fn kubectl_with(&self, args: &[&str], input: &str) -> String {
        match self.run(args, input) {
            Ok(out) => out,
            Err(why) => panic!("kubectl {args:?}: {why}\n{}", self.last_words()),
        }
    }

    #[track_caller]
    fn until(&self, what: &str, mut is: impl FnMut(&Cluster) -> bool) {
        let end = Instant::now() + TIMEOUT;
        while !is(self) {
            assert!(Instant::now() < end, "in vain: {what}\n{}", self.last_words());
            thread::sleep(Duration::from_millis(200));
        }
    }

    fn last_words(&self) -> String {
        let tail = |name: &str| {
            let text = fs::read_to_string(self.dir.join(name)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            format!("--- {name}\n{}\n", lines[lines.len().saturating_sub(40)..].join("\n"))
        };
        tail("apiserver.log") + &tail("kubelet.log") + &tail("kube-proxy.log")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn joins_runs_pods_and_serves_them() {
    let Some(mut cluster) = Cluster::start() else { return };
    let c = &cluster;
    let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
    c.until("the node is ready", |c| {
        c.try_kubectl(&["get", "node", "demo", "-o", ready]).as_deref() == Ok("True")
    });
    let requests = c.kubectl(&["get", "csr", "-o", "jsonpath={.items[*].status.conditions[*].type}"]);
    assert!(requests.contains("Approved"), "{requests}");
    c.until("it holds its lease", |c| {
        c.try_kubectl(&["get", "lease", "-n", "kube-node-lease", "demo"]).is_ok()
    });
    c.until("it tells of its drivers", |c| c.try_kubectl(&["get", "csinode", "demo"]).is_ok());

    c.kubectl_with(&["apply", "-f", "-"], PODS);
    c.kubectl(&["wait", "pod/web", "--for=condition=Ready", "--timeout=60s"]);
    c.kubectl(&["wait", "pod/once", "--for=jsonpath={.status.phase}=Failed", "--timeout=60s"]);
    let code = "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}";
    assert_eq!(c.kubectl(&["get", "pod", "once", "-o", code]), "3");
    assert_eq!(c.kubectl(&["logs", "web"]), "hello\ndemo\n");
    assert_eq!(c.kubectl(&["exec", "web", "--", "echo", "from inside"]), "from inside\n");
    assert_eq!(c.kubectl_with(&["exec", "-i", "web", "--", "cat"], "through\n"), "through\n");
    let failed = c.try_kubectl(&["exec", "web", "--", "sh", "-c", "exit 7"]).unwrap_err();
    assert!(failed.contains("exit code 7"), "{failed}");
    assert!(
        c.kubectl(&["get", "--raw", "/api/v1/namespaces/default/pods/web:8080/proxy/index.html"])
            .contains("page")
    );
    let seen = c.kubectl(&["get", "--raw", "/api/v1/nodes/demo/proxy/pods"]);
    assert!(seen.contains("\"name\":\"web\""), "{seen}");
    forward(c);
    serve(&mut cluster);
    let c = &cluster;
    c.until("events are told", |c| c.kubectl(&["get", "events"]).contains("Started"));

    c.kubectl(&[
        "patch",
        "configmap",
        "settings",
        "--type=merge",
        "-p",
        r#"{"data":{"greeting":"changed"}}"#,
    ]);
    c.until("the volume follows", |c| {
        c.kubectl(&["exec", "web", "--", "cat", "/settings/greeting"]) == "changed"
    });
    c.kubectl(&["delete", "pod", "web", "once", "--timeout=60s"]);
    assert_eq!(c.kubectl(&["get", "pods", "-o", "name"]), "");
}

/// Upstream's kube-proxy makes rules of a Service that leads to the Pod.
fn serve(cluster: &mut Cluster) {
    let (Some(proxy), Some(nft)) = (std::env::var_os("LONGSHORE_PEER_PROXY"), Tools::nft_from_env()) else {
        eprintln!("left out: LONGSHORE_PEER_PROXY is not set");
        return;
    };
    let pod = cluster.kubectl(&["get", "pod", "web", "-o", "jsonpath={.status.podIP}"]);
    let objects = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: web}}\nspec: {{clusterIP: 10.96.0.77, ports: [{{port: 80, targetPort: 8080}}]}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: web, labels: {{kubernetes.io/service-name: web}}}}\n\
         addressType: IPv4\nports: [{{port: 8080}}]\nendpoints: [{{addresses: ['{pod}'], conditions: {{ready: true}}}}]\n"
    );
    cluster.kubectl_with(&["apply", "-f", "-"], &objects);
    let path = format!("{}:{}", nft.parent().unwrap().display(), std::env::var("PATH").unwrap_or_default());
    let mut command = cluster.node.command(proxy);
    command
        .arg("--kubeconfig")
        .arg(cluster.dir.join("data/admin.kubeconfig"))
        .args(["--proxy-mode=nftables", "--hostname-override=demo", "--conntrack-max-per-core=0"])
        .args(["--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0", "--v=2"])
        .env("PATH", path);
    cluster.spawn(command, "kube-proxy.log");
    // A node in a namespace of its own has no route to send a packet by; the rules tell who understood what.
    cluster.until("the rules lead from the Service to the Pod", |c| {
        let out = c.node.command(&nft).args(["list", "table", "ip", "kube-proxy"]).output().unwrap();
        let rules = String::from_utf8_lossy(&out.stdout).into_owned();
        rules.contains("10.96.0.77") && rules.contains(&pod)
    });
}

/// Whether the page is there.
fn ask(address: &str) -> Option<()> {
    let address = address.parse().unwrap();
    let mut stream = std::net::TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
    stream.write_all(b"GET /index.html HTTP/1.0\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    text.contains("page").then_some(())
}

/// A port forward is a conversation of its own: it is asked while it lasts.
fn forward(c: &Cluster) {
    let mut command = c.node.command(&c.kubectl);
    command.arg("--kubeconfig").arg(c.dir.join("data/admin.kubeconfig"));
    command.args(["port-forward", "pod/web", "18080:8080"]).env("HOME", &c.dir);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let end = Instant::now() + TIMEOUT;
    while c.node.inside(|| ask("127.0.0.1:18080")).unwrap().is_none() {
        assert!(Instant::now() < end, "the port is not forwarded\n{}", c.last_words());
        thread::sleep(Duration::from_millis(200));
    }
    let _ = child.kill();
    let _ = child.wait();
}
