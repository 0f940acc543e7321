//! `longshore up`: a whole node in one process with a containerd of its own, as kubectl and a person at the terminal see it.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use testkit::harness::{TIMEOUT, means};
use testkit::node::{Containerd, Node, Options, Tools};

const ADDRESS: &str = "192.0.2.10";
const PARTS: &str = "kube-controller-manager, kube-scheduler, kubelet, kube-proxy, dns";
const WEB: &str = "mkdir -p /w; echo answered >/w/index.html; exec httpd -f -p 8080 -h /w";

/// A machine to run `up` on: a network of its own, and a janitor for what a failing test leaves.
struct Machine {
    up: Child,
    node: Node,
    tools: Tools,
    binary: PathBuf,
    runtime: Containerd,
}

impl Machine {
    fn new(runtime: Containerd) -> Option<Machine> {
        let (tools, binary) = means()?;
        let node = Node::start(&tools, Options::default()).unwrap();
        let ip = |args: &str| {
            let done = node.command("ip").args(args.split(' ')).output().unwrap();
            assert!(done.status.success(), "ip {args}: {}", String::from_utf8_lossy(&done.stderr));
        };
        ip("link add up0 type veth peer name up1");
        ip("link set up1 up");
        ip(&format!("address add {ADDRESS}/24 dev up0"));
        ip("link set up0 up");
        sys::cgroup::Hierarchies::find().unwrap().make(&node.cgroup()).unwrap();
        // In the place of the one that is not started yet.
        let up = Command::new("true").spawn().unwrap();
        Some(Machine { up, node, tools, binary, runtime })
    }

    fn data(&self) -> PathBuf {
        self.node.dir().join("up")
    }

    fn state(&self) -> PathBuf {
        self.node.run_dir().join("up")
    }

    fn start(&mut self) {
        let config = self.node.dir().join("up.yaml");
        let mut text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                        evictionHard: { memory.available: 10Mi }\nimageGCHighThresholdPercent: 100\n"
            .to_owned();
        if !Path::new("/run/systemd/system").is_dir() {
            text += &format!("cgroupRoot: /{}\n", self.node.cgroup());
        }
        fs::write(&config, text).unwrap();
        let log =
            |name: &str| File::options().create(true).append(true).open(self.node.dir().join(name)).unwrap();
        let beside = [self.tools.runc().parent().unwrap().to_owned()];
        let nft = Tools::nft_from_env().map(|nft| nft.parent().unwrap().to_owned());
        let path = std::env::var_os("PATH").unwrap();
        let path = std::env::join_paths(beside.into_iter().chain(nft).chain(std::env::split_paths(&path)));
        let containerd = self.tools.containerd_bin(Containerd::V2).join("containerd");
        let mut command = self.node.command(&self.binary);
        let flag = |name: &str, value: &Path| format!("--{name}={}", value.display());
        command
            .arg("up")
            .arg(flag("data-dir", &self.data()))
            .arg(flag("state-dir", &self.state()))
            .arg(flag("config", &config))
            .arg(match self.runtime {
                Containerd::Embedded => "--embedded-runtime".to_owned(),
                _ => flag("containerd", &containerd),
            })
            .arg(format!("--node-ip={ADDRESS}"))
            .args(["--node-name=demo", "--pause-image=localhost/pause:demo", "--stop-pods"])
            .env("PATH", path.unwrap())
            .stdin(Stdio::null())
            .stdout(log("up.out"))
            .stderr(log("up.log"));
        self.up = command.spawn().unwrap();
    }

    fn said(&self) -> String {
        fs::read_to_string(self.node.dir().join("up.out")).unwrap()
    }

    /// kubectl that has to succeed; its output.
    #[track_caller]
    fn kubectl(&self, args: &[&str]) -> String {
        match self.try_kubectl(args) {
            Ok(said) => said,
            Err(said) => panic!("kubectl {args:?}: {said}\n{}", self.last_words()),
        }
    }

    fn try_kubectl(&self, args: &[&str]) -> Result<String, String> {
        let mut command = self.node.command(self.tools.kubectl());
        let config = self.data().join("admin.kubeconfig");
        command.arg(format!("--kubeconfig={}", config.display())).args(args).env("HOME", self.node.dir());
        let done = command.stdin(Stdio::null()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if done.status.success() { Ok(text(&done.stdout)) } else { Err(text(&done.stderr)) }
    }

    fn last_words(&self) -> String {
        let log = fs::read_to_string(self.node.dir().join("up.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        format!("{}\n{}", self.said(), lines[lines.len().saturating_sub(40)..].join("\n"))
    }

    #[track_caller]
    fn eventually<T>(&mut self, what: &str, ask: impl Fn(&Machine) -> Option<T>) -> T {
        let end = Instant::now() + TIMEOUT;
        loop {
            if let Some(answer) = ask(self) {
                return answer;
            }
            let ended = self.up.try_wait().unwrap();
            assert!(ended.is_none(), "not {what}: up ended with {ended:?}\n{}", self.last_words());
            assert!(Instant::now() < end, "not {what} in time\n{}", self.last_words());
            thread::sleep(Duration::from_millis(100));
        }
    }

    fn wait_until_ready(&mut self, times: usize) {
        self.eventually("ready", |m| {
            (m.said().matches("kubectl get nodes\n").count() == times).then_some(())
        });
    }

    /// The runtime in the program takes archives while it does not run.
    fn import_early(&self) {
        let mut import = self.node.command(&self.binary);
        import.args(["images", "import", "--root-dir"]).arg(self.data().join("runtime"));
        let done = import.arg(self.tools.images()).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    fn import(&self) {
        let mut ctr = self.node.command(self.tools.containerd_bin(Containerd::V2).join("ctr"));
        ctr.arg("--address").arg(self.state().join("containerd.sock"));
        let done =
            ctr.args(["--namespace", "k8s.io", "images", "import", "--local"]).arg(self.tools.images());
        let done = done.output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    /// A line for each Pod: its name, its container and how often that was started again.
    fn containers(&self) -> Vec<String> {
        let each = "jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[0].containerID} \
                    {.status.containerStatuses[0].restartCount}{\"\\n\"}{end}";
        self.kubectl(&["get", "pods", "-l", "app=web", "-o", each]).lines().map(str::to_owned).collect()
    }

    fn rolled_out(&self, name: &str) {
        self.kubectl(&["rollout", "status", &format!("deployment/{name}"), "--timeout=180s"]);
    }

    /// What the Service answers to somebody in this Pod's network.
    fn ask_from(&self, deployment: &str, service: &str) -> Option<String> {
        let own = self.kubectl(&[
            "exec",
            &format!("deployment/{deployment}"),
            "--",
            "readlink",
            "/proc/self/ns/net",
        ]);
        let network = own.trim();
        let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path().join("ns/net"));
        let mut of_pod =
            processes.filter(|path| fs::read_link(path).is_ok_and(|link| link == Path::new(network)));
        let path = of_pod.next()?;
        let ask = format!("exec 3<>/dev/tcp/{service}/80; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3");
        let mut inside = Command::new("nsenter");
        inside.arg(format!("--net={}", path.display())).args(["--", "timeout", "60", "bash", "-c", &ask]);
        Some(String::from_utf8_lossy(&inside.output().unwrap().stdout).into_owned())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.up.kill();
        let _ = self.up.wait();
    }
}

/// What is in use, with nothing installed: for people, for tables, and for autoscalers.
fn figures_are_told(m: &mut Machine) {
    let top = m.kubectl(&["top", "nodes"]);
    let row: Vec<&str> = top.lines().nth(1).unwrap().split_whitespace().collect();
    assert!(row[0] == "demo" && row[1].ends_with('m') && row[3].ends_with("Mi"), "{top}");
    let top = m.kubectl(&["top", "pods", "--containers", "-l", "app=web", "--no-headers"]);
    assert_eq!(top.lines().count(), 2, "{top}");
    assert!(
        top.lines().all(|l| l.starts_with("web-") && l.contains("busybox") && l.ends_with("Mi")),
        "{top}"
    );
    let table = m.kubectl(&["get", "pods.metrics.k8s.io", "-l", "app=guest"]);
    assert!(table.starts_with("NAME") && table.contains("WINDOW") && table.contains("guest-"), "{table}");
    let raw = |path: &str| m.try_kubectl(&["get", "--raw", path]);
    assert!(raw("/apis/metrics.k8s.io/v1beta1/nodes/demo").unwrap().contains("\"kind\":\"NodeMetrics\""));
    assert!(raw("/apis/metrics.k8s.io/v1beta1/nodes/other").unwrap_err().contains("not found"));
    m.kubectl(&["autoscale", "deployment", "web", "--memory=1Gi", "--min=2", "--max=3"]);
    let told = |m: &Machine| {
        let path = "jsonpath={.status.currentMetrics[0].resource.current.averageValue}";
        Some(m.kubectl(&["get", "hpa", "web", "-o", path])).filter(|amount| !amount.is_empty())
    };
    m.eventually("what the autoscaler was told", told);
    m.kubectl(&["delete", "hpa", "web"]);
}

#[test]
fn a_whole_node_in_one_process_serves_kubectl_outlives_its_killing_and_leaves_nothing() {
    a_whole_node(Containerd::V2);
}

#[test]
fn a_whole_node_with_the_embedded_runtime() {
    a_whole_node(Containerd::Embedded);
}

fn a_whole_node(runtime: Containerd) {
    let Some(mut m) = Machine::new(runtime) else { return };
    let before = m.node.census();
    if runtime == Containerd::Embedded {
        m.import_early();
    }
    m.start();
    m.wait_until_ready(1);
    let said = m.said();
    for line in
        [&format!("API server    https://{ADDRESS}:6443"), &format!("node          demo {ADDRESS} is Ready")]
    {
        assert!(said.contains(line), "{said}");
    }
    assert!(m.kubectl(&["get", "--raw", "/readyz?verbose"]).contains("readyz check passed"));
    if runtime != Containerd::Embedded {
        m.import();
    }

    // Controllers, scheduler, kubelet and proxy: each has its share in this.
    m.kubectl(&[
        "create",
        "deployment",
        "web",
        "--image=localhost/busybox:v1",
        "--replicas=2",
        "--",
        "sh",
        "-c",
        WEB,
    ]);
    m.kubectl(&["create", "deployment", "guest", "--image=localhost/busybox:v1", "--", "sleep", "100000"]);
    m.rolled_out("web");
    m.rolled_out("guest");
    m.kubectl(&["expose", "deployment", "web", "--port=80", "--target-port=8080"]);
    let service = m.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]);
    let answers = |m: &Machine| m.ask_from("guest", &service).filter(|said| said.contains("answered"));
    m.eventually("an answer of the Service to another Pod", answers);
    m.eventually("the Service's address by its name", |m| {
        let said =
            m.try_kubectl(&["exec", "deployment/guest", "--", "nslookup", "web.default.svc.cluster.local"]);
        said.is_ok_and(|said| said.contains(&service)).then_some(())
    });
    let containers = m.containers();
    assert_eq!(containers.len(), 2, "{containers:?}");
    figures_are_told(&mut m);

    // Killed without warning: the containers do not notice, and the next one looks after them.
    m.up.kill().unwrap();
    m.up.wait().unwrap();
    m.start();
    m.wait_until_ready(2);
    m.kubectl(&["scale", "deployment/web", "--replicas=3"]);
    m.rolled_out("web");
    let after = m.containers();
    assert_eq!(after.len(), 3, "{after:?}");
    assert!(containers.iter().all(|one| after.contains(one)), "{containers:?} {after:?}");
    m.eventually("an answer after the new start", answers);

    // Told to end, it says what it waits for, and takes everything along.
    kill_process(Pid::from_child(&m.up), Signal::INT).unwrap();
    let end = Instant::now() + TIMEOUT;
    let status = loop {
        if let Some(status) = m.up.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < end, "up does not end\n{}", m.last_words());
        thread::sleep(Duration::from_millis(50));
    };
    assert!(status.success(), "{status}\n{}", m.last_words());
    assert!(m.said().contains(&format!("stopping: waiting for {PARTS}\n")), "{}", m.said());
    let end = Instant::now() + TIMEOUT;
    loop {
        let left = m.node.census().since(&before);
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < end, "left behind:\n{left}\n{}", m.last_words());
        thread::sleep(Duration::from_millis(100));
    }
}
