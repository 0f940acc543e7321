//! A second machine: `longshore up` in one network namespace, `longshore join` in another, and a Deployment over both.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testkit::harness::{TIMEOUT, means};
use testkit::node::{Containerd, Node, Options, Tools};

const ADDRESSES: [&str; 2] = ["192.0.2.10", "192.0.2.11"];
const WEB: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: { name: web }
spec:
  replicas: 4
  selector: { matchLabels: { app: web } }
  template:
    metadata: { labels: { app: web } }
    spec:
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: DoNotSchedule
          labelSelector: { matchLabels: { app: web } }
      containers:
        - name: web
          image: localhost/busybox:v1
          command: [sh, -c, 'mkdir -p /w; hostname >/w/index.html; echo serving; exec httpd -f -p 8080 -h /w']
---
apiVersion: v1
kind: Service
metadata: { name: web }
spec: { selector: { app: web }, ports: [{ port: 80, targetPort: 8080 }] }
";

/// A machine with one of our commands on it.
struct Machine {
    node: Node,
    name: &'static str,
    address: &'static str,
    child: Option<Child>,
    binary: PathBuf,
}

struct World {
    first: Machine,
    second: Machine,
    tools: Tools,
    /// Holds the way between both open.
    _link: Child,
}

// === impl Machine ===

impl Machine {
    fn new(tools: &Tools, binary: &Path, name: &'static str, address: &'static str) -> Machine {
        let options = Options { containerd: Containerd::Embedded, ..Options::default() };
        let node = Node::start(tools, options).unwrap();
        sys::cgroup::Hierarchies::find().unwrap().make(&node.cgroup()).unwrap();
        let machine = Machine { node, name, address, child: None, binary: binary.to_owned() };
        let mut import = machine.node.command(binary);
        import.args(["images", "import", "--root-dir"]).arg(machine.data().join("runtime"));
        let done = import.arg(tools.images()).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        machine
    }

    fn data(&self) -> PathBuf {
        self.node.dir().join(self.name)
    }

    fn ip(&self, args: &str) -> String {
        let done = self.node.command("ip").args(args.split(' ')).output().unwrap();
        assert!(done.status.success(), "ip {args}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// `up` or `join` with these arguments, and with what is this machine's.
    fn command(&self, args: &[&str]) -> Command {
        let config = self.node.dir().join("kubelet.yaml");
        let mut text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                        evictionHard: { memory.available: 10Mi, nodefs.available: 10Mi, imagefs.available: 10Mi }\nimageGCHighThresholdPercent: 100\n"
            .to_owned();
        if !Path::new("/run/systemd/system").is_dir() {
            text += &format!("cgroupRoot: /{}\n", self.node.cgroup());
        }
        fs::write(&config, text).unwrap();
        let flag = |name: &str, value: &Path| format!("--{name}={}", value.display());
        let mut command = self.node.command(&self.binary);
        command
            .args(args)
            .arg(flag("data-dir", &self.data()))
            .arg(flag("state-dir", &self.node.run_dir().join(self.name)))
            .arg(flag("config", &config))
            .args(["--embedded-runtime", "--stop-pods"])
            .args([format!("--node-ip={}", self.address), format!("--node-name={}", self.name)])
            .stdin(Stdio::null());
        command
    }

    fn start(&mut self, args: &[&str]) {
        let log =
            |name: &str| File::options().create(true).append(true).open(self.node.dir().join(name)).unwrap();
        let child = self.command(args).stdout(log("out")).stderr(log("log")).spawn().unwrap();
        self.child = Some(child);
    }

    /// What it said when it ended at once.
    fn fails(&self, args: &[&str]) -> String {
        let done = self.command(args).output().unwrap();
        assert!(!done.status.success());
        String::from_utf8_lossy(&done.stderr).into_owned()
    }

    fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn said(&self) -> String {
        fs::read_to_string(self.node.dir().join("out")).unwrap_or_default()
    }

    fn last_words(&self) -> String {
        let log = fs::read_to_string(self.node.dir().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        format!("{}: {}\n{}", self.name, self.said(), lines[lines.len().saturating_sub(40)..].join("\n"))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

// === impl World ===

impl World {
    fn new() -> Option<World> {
        let (tools, binary) = means()?;
        let first = Machine::new(&tools, &binary, "one", ADDRESSES[0]);
        let second = Machine::new(&tools, &binary, "two", ADDRESSES[1]);
        let link = second.node.command("sleep").arg("100000").spawn().unwrap();
        first.ip(&format!("link add up0 type veth peer name up0 netns {}", link.id()));
        for machine in [&first, &second] {
            machine.ip(&format!("address add {}/24 dev up0", machine.address));
            machine.ip("link set up0 up");
        }
        Some(World { first, second, tools, _link: link })
    }

    #[track_caller]
    fn eventually<T>(&self, what: &str, ask: impl Fn() -> Option<T>) -> T {
        let end = Instant::now() + TIMEOUT;
        loop {
            if let Some(answer) = ask() {
                return answer;
            }
            let words = || format!("{}\n{}", self.first.last_words(), self.second.last_words());
            assert!(Instant::now() < end, "not {what} in time\n{}", words());
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn try_kubectl(&self, args: &[&str]) -> Result<String, String> {
        let mut command = self.first.node.command(self.tools.kubectl());
        let config = self.first.data().join("admin.kubeconfig");
        command.arg(format!("--kubeconfig={}", config.display())).args(args);
        let done = command.env("HOME", self.first.node.dir()).stdin(Stdio::null()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if done.status.success() { Ok(text(&done.stdout)) } else { Err(text(&done.stderr)) }
    }

    #[track_caller]
    fn kubectl(&self, args: &[&str]) -> String {
        self.try_kubectl(args).unwrap_or_else(|said| {
            let words = format!("{}\n{}", self.first.last_words(), self.second.last_words());
            panic!("kubectl {args:?}: {said}\n{words}")
        })
    }

    fn token(&self, args: &[&str]) -> String {
        let mut command = self.first.node.command(&self.first.binary);
        let config = self.first.data().join("admin.kubeconfig");
        let done = command.arg("token").args(args).arg("--kubeconfig").arg(config).output().unwrap();
        assert!(done.status.success(), "token {args:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// Name, Node and container of each Pod of the Deployment.
    fn pods(&self) -> Vec<[String; 3]> {
        let list = self.kubectl(&["get", "pods", "-l", "app=web", "-o", "json"]);
        let list: Value = serde_json::from_str(&list).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let row = |pod: &Value| {
            let container = &pod["status"]["containerStatuses"][0]["containerID"];
            [text(&pod["metadata"]["name"]), text(&pod["spec"]["nodeName"]), text(container)]
        };
        let mut rows: Vec<[String; 3]> = list["items"].as_array().unwrap().iter().map(row).collect();
        rows.sort();
        rows
    }

    fn ready(&self, machine: &Machine, times: usize) {
        let line = format!("node          {} {} is Ready", machine.name, machine.address);
        self.eventually("ready", || (machine.said().matches(&line).count() == times).then_some(()));
    }
}

#[test]
fn a_second_machine_joins_and_pods_of_both_work_together() {
    let Some(mut w) = World::new() else { return };
    w.first.start(&["up"]);
    w.ready(&w.first, 1);
    assert_eq!(w.first.ip("link show type vxlan"), "", "alone there is no tunnel");

    // The line that is printed is the one to run; a cluster that is not the one meant is refused.
    let line = w.eventually("a line", || Some(w.token(&["create", "--description", "the cellar"])));
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!((words[0], words[1], words[2]), ("longshore", "join", "https://192.0.2.10:6443"), "{line}");
    let listed = w.token(&["list"]);
    assert!(listed.contains("signing,authentication") && listed.contains("the cellar"), "{listed}");
    let (pin, other) = (words[6], format!("sha256:{}", "0".repeat(64)));
    let mut wrong = words[1..].to_vec();
    wrong[5] = &other;
    let said = w.second.fails(&wrong);
    assert!(said.contains("is another cluster") && said.contains(pin), "{said}");
    let said = w.second.fails(&["join"]);
    assert!(said.contains("has not joined a cluster"), "{said}");
    w.second.start(&words[1..]);
    w.ready(&w.second, 1);
    assert!(!w.second.data().join("bootstrap.kubeconfig").exists(), "the token is not kept");

    // A Deployment over both; each of its Pods reaches the Service and its name, wherever the others are.
    let file = w.first.node.dir().join("web.yaml");
    fs::write(&file, WEB).unwrap();
    w.kubectl(&["apply", "-f", &file.display().to_string()]);
    w.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"]);
    let pods = w.pods();
    for name in ["one", "two"] {
        assert_eq!(pods.iter().filter(|[_, node, _]| node == name).count(), 2, "{pods:?}");
    }
    let service = w.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]);
    let all: BTreeSet<String> = pods.iter().map(|[name, ..]| name.clone()).collect();
    for [pod, node, _] in &pods {
        let once = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {service} 80 | tail -n 1");
        let ask = format!("for i in $(seq 20); do {once}; done");
        w.eventually(&format!("answered by all Pods, asked on {node}"), || {
            let said = w.try_kubectl(&["exec", pod, "--", "sh", "-c", &ask]).ok()?;
            (said.lines().map(str::to_owned).collect::<BTreeSet<_>>() == all).then_some(())
        });
        w.eventually(&format!("a name on {node}"), || {
            let said =
                w.try_kubectl(&["exec", pod, "--", "nslookup", "web.default.svc.cluster.local"]).ok()?;
            said.contains(&service).then_some(())
        });
        assert_eq!(w.kubectl(&["logs", pod]), "serving\n");
    }
    let status = w.kubectl(&["get", "nodes"]);
    assert_eq!(status.matches(" Ready ").count(), 2, "{status}");
    assert!(w.second.ip("route show").contains("dev flannel.1"));

    // Killed and started again without a token: the containers do not notice.
    w.second.kill();
    w.second.start(&["join"]);
    w.ready(&w.second, 2);
    assert_eq!(w.pods(), pods);
    let twin = w.second.data().join("twin");
    let mut again = words[1..].to_vec();
    let data = format!("--data-dir={}", twin.display());
    let state = format!("--state-dir={}", twin.join("state").display());
    again.extend([data.as_str(), &state]);
    let mut command = w.second.node.command(&w.second.binary);
    let done = command.args(&again).args(["--node-name=one", "--node-ip=192.0.2.11"]).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(said.contains("the cluster has a Node one and it is Ready"), "{said}");

    // A token that was taken away lets nobody in.
    let id = words[4].split('.').next().unwrap();
    assert_eq!(w.token(&["delete", id]), format!("deleted {id}\n"));
    assert!(!w.token(&["list"]).contains(id));

    // Told to end, the second machine takes everything along; the first goes on.
    kill_process(Pid::from_child(w.second.child.as_ref().unwrap()), Signal::INT).unwrap();
    let status = w.second.child.take().unwrap().wait().unwrap();
    assert!(status.success(), "{status}\n{}", w.second.last_words());
    let links = w.second.ip("link show");
    assert!(!links.contains("flannel") && !links.contains("longshore0"), "{links}");
    w.kubectl(&["delete", "node", "two"]);
    w.eventually("alone again", || w.first.ip("link show type vxlan").is_empty().then_some(()));
}
