//! `longshore up`: a whole node in one process, as kubectl and a person at the terminal see it: with the runtime in the program, which is
//! what one gets, and with a containerd of its own.
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
const WEB: &str = "mkdir -p /w; echo answered >/w/index.html; exec httpd -f -p 8080 -h /w";

/// A machine to run `up` on: a network of its own, and a janitor for what a failing test leaves.
struct Machine {
    up: Child,
    node: Node,
    tools: Tools,
    binary: PathBuf,
}

impl Machine {
    fn new() -> Option<Machine> {
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
        Some(Machine { up, node, tools, binary })
    }

    fn data(&self) -> PathBuf {
        self.node.dir().join("up")
    }

    fn state(&self) -> PathBuf {
        self.node.run_dir().join("up")
    }

    /// With what is said of the runtime.
    fn start(&mut self, runtime: &[&str]) {
        let config = self.node.dir().join("up.yaml");
        let mut text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                        evictionHard: { memory.available: 10Mi, nodefs.available: 10Mi, imagefs.available: 10Mi }\nimageGCHighThresholdPercent: 100\n"
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
        let mut command = self.node.command(&self.binary);
        let flag = |name: &str, value: &Path| format!("--{name}={}", value.display());
        command
            .arg("up")
            .arg(flag("data-dir", &self.data()))
            .arg(flag("state-dir", &self.state()))
            .arg(flag("config", &config))
            .args(runtime)
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

    /// Killed without warning.
    fn kill(&mut self) {
        self.up.kill().unwrap();
        self.up.wait().unwrap();
    }

    /// Programs of the node besides `up` itself.
    fn has_process(&self, name: &str) -> bool {
        self.node
            .census()
            .processes
            .iter()
            .any(|process| process.split_once(' ').is_some_and(|(_, n)| n == name))
    }

    /// Puts a file where `up` looks for it.
    fn put(&self, name: &str, content: &[u8]) {
        let path = self.data().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Another command of ours, for this node.
    fn longshore(&self, args: &[&str]) -> String {
        let done = self.node.command(&self.binary).args(args).stdin(Stdio::null()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        text(&done.stdout) + &text(&done.stderr)
    }

    /// What the node's own address answers to somebody on the machine.
    fn ask_node(&self, port: u16) -> Option<String> {
        let ask =
            format!("exec 3<>/dev/tcp/{ADDRESS}/{port}; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3");
        let done = self.node.command("timeout").args(["20", "bash", "-c", &ask]).output().unwrap();
        Some(String::from_utf8_lossy(&done.stdout).into_owned()).filter(|said| said.contains("200 OK"))
    }

    /// A line for each Pod: its name, its container and how often that was started again.
    fn containers(&self) -> Vec<String> {
        let each = "jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[0].containerID} \
                    {.status.containerStatuses[0].restartCount}{\"\\n\"}{end}";
        self.kubectl(&["get", "pods", "-l", "app=web", "-o", each]).lines().map(str::to_owned).collect()
    }

    /// The same for what does not exist yet.
    fn rolled_out_at_last(&mut self, name: &str) {
        let object = format!("deployment/{name}");
        self.eventually("there", |m| m.try_kubectl(&["get", &object]).ok());
        self.rolled_out(name);
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
        top.lines().all(|l| l.starts_with("web-") && l.contains("busybox") && l.trim_end().ends_with("Mi")),
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

/// The page of the manifest in the directory; a second Service that wants the same port is told why it waits.
fn a_load_balancer_has_the_nodes_address(m: &mut Machine) {
    let address = |m: &Machine, name: &str| {
        let each = "jsonpath={.status.loadBalancer.ingress[*].ip}";
        m.kubectl(&["get", "service", name, "-o", each])
    };
    m.eventually("given an address", |m| (address(m, "hello") == ADDRESS).then_some(()));
    m.eventually("a page", |m| m.ask_node(8088));
    m.kubectl(&["create", "service", "loadbalancer", "late", "--tcp=8088:8080"]);
    m.kubectl(&["create", "service", "loadbalancer", "api", "--tcp=6443:8080"]);
    for (name, why) in [
        ("late", "port 8088/TCP of the node is taken by Service default/hello"),
        ("api", "port 6443/TCP of the node is taken by a program that listens on the node"),
    ] {
        let field = format!("involvedObject.name={name}");
        m.eventually("told", |m| {
            m.kubectl(&["get", "events", "--field-selector", &field, "-o", "jsonpath={.items[*].message}"])
                .contains(why)
                .then_some(())
        });
        assert_eq!(address(m, name), "");
        m.kubectl(&["delete", "service", name]);
    }
}

/// Made when its Pod has a node, and gone with the claim.
fn a_claim_gets_a_directory(m: &mut Machine) {
    let text = include_str!("../../../examples/volume.yaml").replace("busybox:1.37", "localhost/busybox:v1");
    let path = m.node.dir().join("volume.yaml");
    fs::write(&path, text).unwrap();
    let file = path.display().to_string();
    m.kubectl(&["apply", "-f", &file]);
    m.kubectl(&["wait", "--for=condition=Ready", "pod/diary", "--timeout=120s"]);
    let storage = m.data().join("storage");
    let volumes = || fs::read_dir(&storage).unwrap().flatten().map(|e| e.path()).collect::<Vec<_>>();
    let made = volumes();
    assert_eq!(made.len(), 1, "{made:?}");
    m.eventually("written", |_| {
        fs::read_to_string(made[0].join("diary")).ok().filter(|text| !text.is_empty())
    });
    m.kubectl(&["delete", "-f", &file]);
    m.eventually("removed", |_| volumes().is_empty().then_some(()));
    m.eventually("gone", |m| m.kubectl(&["get", "pv", "-o", "name"]).is_empty().then_some(()));
}

/// Taken while it runs; the same objects and keys elsewhere.
fn a_backup_is_a_node(m: &Machine) {
    let (file, copy) = (m.node.dir().join("node.backup"), m.node.dir().join("copy"));
    let (file, data) = (file.display().to_string(), format!("--data-dir={}", m.data().display()));
    let said = m.longshore(&["backup", &data, &file]);
    assert!(said.contains(" objects at revision "), "{said}");
    let copied = format!("--data-dir={}", copy.display());
    let said = m.longshore(&["restore", &copied, &file]);
    assert!(said.contains("longshore up"), "{said}");
    for name in ["pki/ca.crt", "pki/ca.key", "admin.kubeconfig", "deploy/hello.yaml"] {
        assert_eq!(fs::read(copy.join(name)).unwrap(), fs::read(m.data().join(name)).unwrap(), "{name}");
    }
    // Not over another one.
    let said = m.longshore(&["restore", &copied, &file]);
    assert!(said.contains("--replace"), "{said}");
}

fn other_commands_find_the_node(m: &Machine, runtime: &str) {
    let state = format!("--state-dir={}", m.state().display());
    let status = m.longshore(&["status", &state]);
    for line in [
        format!("runtime       {runtime}: unix://{}/", m.state().display()),
        format!("node          demo {ADDRESS} is Ready"),
        format!("Service       default/hello at {ADDRESS}:8088"),
        "Pods          2 Running".to_owned(),
        "certificates  ".to_owned(),
    ] {
        assert!(status.contains(&line), "{line:?} is not in\n{status}");
    }
    assert!(!status.contains("WRONG"), "{status}");
    let config = m.longshore(&["kubectl-config", &state]);
    assert_eq!(config, format!("export KUBECONFIG={}\n", m.data().join("admin.kubeconfig").display()));
    let printed = m.longshore(&["kubectl-config", "--print", "--server=https://node.example:6443", &state]);
    assert!(printed.contains("https://node.example:6443"), "{printed}");
    let socket = format!("--socket={}", m.data().join("kubelet/pods.sock").display());
    let pods = m.longshore(&["ps", &socket]);
    assert_eq!(
        pods.lines().filter(|line| line.contains("hello-") && line.contains("Running")).count(),
        2,
        "{pods}"
    );
    let checked = m.longshore(&["check", &state]);
    assert!(checked.contains("a node runs here already"), "{checked}");
    let data = format!("--data-dir={}", m.data().display());
    let checked = m.longshore(&["check", &data]);
    assert!(checked.contains(&format!("the container runtime is {runtime}")), "{checked}");
}

#[test]
fn a_whole_node_in_one_process_serves_kubectl_outlives_its_killing_and_leaves_nothing() {
    let Some(mut m) = Machine::new() else { return };
    a_whole_node(&mut m, &[], "in this program", |_| ());
}

#[test]
fn a_whole_node_stays_on_its_containerd_until_it_is_told_to_change() {
    let Some(mut m) = Machine::new() else { return };
    let containerd = m.tools.containerd_bin(Containerd::V2).join("containerd");
    let (flag, runtime) = (
        format!("--containerd={}", containerd.display()),
        format!("{}, run by this program", containerd.display()),
    );
    a_whole_node(&mut m, &[&flag], &runtime, |m| {
        let said = m.said();
        assert!(said.contains("--embedded-runtime changes to the one in this program"), "{said}");
        assert!(m.has_process("containerd-shim"), "{:?}", m.node.census().processes);
        // An order to change: no Pod runs twice, and each runs again.
        m.kill();
        m.start(&["--embedded-runtime"]);
        m.wait_until_ready(3);
        let said = m.said();
        let changes = format!("runtime       was {runtime}: the Pods that run there end, and start again\n");
        assert!(said.contains(&changes), "{said}");
        assert!(!m.has_process("containerd-shim"), "{:?}", m.node.census().processes);
        m.eventually("the page on the other runtime", |m| m.ask_node(8088));
        m.rolled_out("web");
        m.kubectl(&["exec", "deployment/web", "--", "true"]);
    });
}

fn a_whole_node(m: &mut Machine, flags: &[&str], runtime: &str, then: impl FnOnce(&mut Machine)) {
    let before = m.node.census();
    // In a directory before the start, they are there without a word.
    m.put("images/demo.tar", &fs::read(m.tools.images()).unwrap());
    m.put("deploy/hello.yaml", include_bytes!("../../../examples/demo/hello.yaml"));
    m.start(flags);
    m.wait_until_ready(1);
    let said = m.said();
    for line in [
        &format!("API server    https://{ADDRESS}:6443"),
        &format!("runtime       {runtime}\n"),
        &format!("node          demo {ADDRESS} is Ready"),
    ] {
        assert!(said.contains(line), "{said}");
    }
    assert!(m.kubectl(&["get", "--raw", "/readyz?verbose"]).contains("readyz check passed"));
    m.rolled_out_at_last("hello");
    a_load_balancer_has_the_nodes_address(m);
    a_claim_gets_a_directory(m);
    other_commands_find_the_node(m, runtime);

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
    figures_are_told(m);

    // Killed without warning: the containers do not notice, and the next one looks after them. Nothing has to be said of the runtime again.
    m.kill();
    m.start(&[]);
    m.wait_until_ready(2);
    m.kubectl(&["scale", "deployment/web", "--replicas=3"]);
    m.rolled_out("web");
    let after = m.containers();
    assert_eq!(after.len(), 3, "{after:?}");
    assert!(containers.iter().all(|one| after.contains(one)), "{containers:?} {after:?}");
    m.eventually("an answer after the new start", answers);
    m.eventually("the page after the new start", |m| m.ask_node(8088));

    then(m);
    a_backup_is_a_node(m);

    // What is no more in the directory goes.
    fs::remove_file(m.data().join("deploy/hello.yaml")).unwrap();
    m.eventually("pruned", |m| m.try_kubectl(&["get", "deployment", "hello"]).err());
    m.eventually("pruned", |m| m.try_kubectl(&["get", "service", "hello"]).err());

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
    let said = m.said();
    let waits = said.lines().find(|line| line.starts_with("stopping: waiting for ")).unwrap();
    assert!(waits.contains("kubelet"), "{said}");
    let end = Instant::now() + TIMEOUT;
    loop {
        let left = m.node.census().since(&before);
        if left.is_empty() {
            break;
        }
        assert!(Instant::now() < end, "left behind:\n{left}\n{}", m.last_words());
        thread::sleep(Duration::from_millis(100));
    }
    let links = fs::read_dir("/var/log/containers").into_iter().flatten().flatten();
    let ours: Vec<_> =
        links.filter(|link| fs::read_link(link.path()).is_ok_and(|to| to.starts_with(m.data()))).collect();
    assert!(ours.is_empty(), "{ours:?}");
}
