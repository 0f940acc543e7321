//! The program itself: `longshore kube-proxy` beside `longshore apiserver`, with kubectl's hands, in a network namespace.
//! What people do to a node, and what must not be noticed: restarts, kills, somebody else's nft, an API server that goes.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use fixture::{ApiServer, Netns, Tools};
use serde_json::{Value, json};

const WEB: &str = "10.96.77.1:80";
const OBJECTS: &str = r#"
{"apiVersion": "v1", "kind": "List", "items": [
  {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "here"},
   "status": {"addresses": [{"type": "InternalIP", "address": "192.168.0.1"}]}},
  {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
   "spec": {"clusterIP": "10.96.77.1", "ports": [{"name": "http", "port": 80}]}},
  {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
   "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}}, "addressType": "IPv4",
   "ports": [{"name": "http", "port": 8080}], "endpoints": [{"addresses": ["192.168.0.1"], "nodeName": "here"}]}
]}"#;

struct Stage {
    ns: Netns,
    dir: tempfile::TempDir,
    binary: PathBuf,
    tools: Tools,
    nft: PathBuf,
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Stage {
    /// A namespace with an address, and somebody who answers on it. `None` where there is nothing to play with.
    fn set() -> Option<Self> {
        let binary = std::env::var_os("LONGSHORE_BINARY").map(PathBuf::from);
        let (tools, Some(nft), Some(binary)) = (Tools::from_env(), Tools::nft_from_env(), binary) else {
            #[allow(clippy::print_stderr)]
            {
                eprintln!("skipped: needs root, the tools and the program; `cargo xtask test` has them");
            }
            return None;
        };
        let ns = Netns::new().unwrap();
        ns.ip("link add veth0 type veth peer name veth1\nlink set veth0 up\nlink set veth1 up\n\
               addr add 192.168.0.1/24 dev veth0\nroute add default via 192.168.0.9\n")
            .unwrap();
        let endpoint = ns.within(|| TcpListener::bind("192.168.0.1:8080")).unwrap();
        std::thread::spawn(move || {
            endpoint.incoming().flatten().for_each(|mut s| drop(s.write_all(b"hello")))
        });
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("data")).unwrap();
        Some(Self { ns, dir, binary, tools: tools.unwrap(), nft })
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn api_server(&self) -> ApiServer {
        ApiServer::start_in(&self.ns, &self.binary, &self.data(), &[]).unwrap()
    }

    fn kubectl(&self, args: &[&str], input: &str) -> Output {
        let mut kubectl = self
            .ns
            .command(&self.tools.kubectl().display().to_string())
            .arg("--kubeconfig")
            .arg(self.data().join("admin.kubeconfig"))
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        kubectl.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let out = kubectl.wait_with_output().unwrap();
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        out
    }

    fn program(&self, args: &[&str]) -> Command {
        let mut program = self.ns.command(&self.binary.display().to_string());
        program.args(args);
        program
    }

    fn proxy(&self, args: &[&str]) -> Running {
        let log =
            std::fs::File::options().create(true).append(true).open(self.dir.path().join("log")).unwrap();
        let mut program = self.program(&["kube-proxy", "--conntrack-max-per-core=0", "--oom-score-adj=0"]);
        program.arg("--kubeconfig").arg(self.data().join("admin.kubeconfig")).args(args);
        Running(program.arg("--hostname-override=here").stderr(log).stdout(Stdio::null()).spawn().unwrap())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// What the doctor names first as wrong; empty if nothing is.
    fn doctor(&self, name: &str) -> String {
        let mut doctor =
            self.program(&["doctor", "service", name, "--hostname-override=here", "--kubeconfig"]);
        let out = doctor.arg(self.data().join("admin.kubeconfig")).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let wrong = text.lines().find_map(|line| line.trim_start().strip_prefix("WRONG"));
        assert_eq!(wrong.is_none(), out.status.success(), "{text}");
        wrong.unwrap_or_default().trim().to_owned()
    }

    fn until_told(&self, name: &str, wanted: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let told = self.doctor(name);
            if told == wanted {
                return;
            }
            assert!(Instant::now() < deadline, "{name}: {told}\nwanted: {wanted}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The table with the numbers that the kernel gives to what is written.
    fn table(&self) -> Option<String> {
        let mut nft = self.ns.command(&self.nft.display().to_string());
        let out = nft.args(["-a", "list", "table", "ip", "kube-proxy"]).output().unwrap();
        out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
    }

    fn nft(&self, args: &[&str]) {
        let out = self.ns.command(&self.nft.display().to_string()).args(args).output().unwrap();
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    }

    fn answers(&self, address: &str) -> bool {
        let address: SocketAddr = address.parse().unwrap();
        self.ns.within(|| TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok())
    }

    fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn is_settled(&self) -> bool {
        self.log().matches("the kernel has our rules").count() >= 2
    }
}

#[test]
fn nothing_that_happens_to_the_program_happens_to_services() {
    let Some(stage) = Stage::set() else { return };
    let mut server = stage.api_server();
    stage.kubectl(&["apply", "-f", "-"], OBJECTS);
    let mut proxy = stage.proxy(&[]);
    stage.until("the Service answers", || stage.answers(WEB) && stage.is_settled());

    // Killed and started again, it writes nothing that is right.
    let before = stage.table().unwrap();
    proxy.0.kill().unwrap();
    proxy.0.wait().unwrap();
    assert!(stage.answers(WEB), "rules outlive the program");
    std::fs::remove_file(stage.dir.path().join("log")).unwrap();
    let _proxy = stage.proxy(&[]);
    stage.until("it is back", || stage.is_settled());
    assert_eq!(stage.table().unwrap(), before);
    assert!(stage.log().contains("found=0"), "{}", stage.log());

    // Others' hands in our table.
    stage.nft(&["delete", "table", "ip", "kube-proxy"]);
    stage.until("the table heals", || stage.table().is_some() && stage.answers(WEB));
    stage.nft(&["flush", "chain", "ip", "kube-proxy", "services"]);
    stage.until("the chain heals", || {
        stage.answers(WEB) && stage.log().contains("chain services has other rules")
    });

    // Without an API server nothing changes, and with a new one changes arrive.
    server.kill();
    assert!(stage.answers(WEB));
    server = stage.api_server();
    let second = OBJECTS.replace("web", "other").replace("10.96.77.1", "10.96.77.2");
    stage.kubectl(&["apply", "-f", "-"], &second);
    stage.until("a change arrives after the outage", || stage.answers("10.96.77.2:80"));
    assert!(stage.answers(WEB));

    let events = stage.kubectl(&["get", "events", "-o", "jsonpath={.items[*].reason}"], "");
    assert!(String::from_utf8_lossy(&events.stdout).contains("Starting"));
    drop(server);
}

#[test]
fn a_service_with_a_time_that_no_calendar_has_is_served_and_changed() {
    let Some(stage) = Stage::set() else { return };
    let _server = stage.api_server();
    stage.kubectl(&["apply", "-f", "-"], OBJECTS);
    let proxy = stage.proxy(&[]);
    stage.until("the Service answers", || stage.answers(WEB) && stage.is_settled());
    let odd = json!({"status": {"conditions": [{
        "type": "A", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "9999-12-31T23:59:59Z",
    }]}});
    stage.kubectl(&["patch", "service", "web", "--subresource=status", "-p", &odd.to_string()], "");
    let port = json!([{"op": "replace", "path": "/spec/ports/0/port", "value": 81}]).to_string();
    stage.kubectl(&["patch", "service", "web", "--type=json", "-p", &port], "");
    stage.until("its new port answers", || stage.answers("10.96.77.1:81"));
    drop(proxy);
    std::fs::remove_file(stage.dir.path().join("log")).unwrap();
    let _proxy = stage.proxy(&[]);
    stage.until("a new program has begun", || stage.is_settled());
    assert!(stage.answers("10.96.77.1:81"), "{}", stage.log());
}

/// Service `name` at 10.96.77.`number`:80, and a slice of it, each with these fields over what is usual.
fn ailing(name: &str, number: u8, spec: Value, slice: Option<Value>) -> String {
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"clusterIP": format!("10.96.77.{number}"), "ports": [{"name": "http", "port": 80}]},
    });
    service["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let slice = slice.map(|over| {
        let mut slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": format!("{name}-1"), "labels": {"kubernetes.io/service-name": name}},
            "ports": [{"name": "http", "port": 8080}],
            "endpoints": [{"addresses": ["192.168.0.1"], "nodeName": "here"}],
        });
        slice.as_object_mut().unwrap().extend(over.as_object().unwrap().clone());
        slice
    });
    let items: Vec<Value> = [Some(service), slice].into_iter().flatten().collect();
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

#[test]
fn the_doctor_names_what_is_wrong_on_a_live_node() {
    let Some(stage) = Stage::set() else { return };
    let _server = stage.api_server();
    stage.kubectl(&["apply", "-f", "-"], OBJECTS);
    let sick = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "sick", "labels": {"app": "sick"}},
        "spec": {"nodeName": "here", "containers": [{"name": "c", "image": "x"}]},
    });
    stage.kubectl(&["apply", "-f", "-"], &sick.to_string());
    let proxy = stage.proxy(&["--proxy-mode=nftables"]);
    stage.until("the Service answers", || stage.answers(WEB) && stage.is_settled());
    assert_eq!(stage.doctor("web"), "");
    assert_eq!(stage.doctor("nobody"), "there is no Service default/nobody");
    let unready = json!({"endpoints": [{"addresses": ["192.168.0.1"], "conditions": {"ready": false}}]});
    let elsewhere = json!({"endpoints": [{"addresses": ["192.168.0.1"], "nodeName": "elsewhere"}]});
    // As network policies do.
    stage.nft(&["add", "table", "ip", "wall"]);
    stage.nft(&["add", "chain", "ip", "wall", "in", "{ type filter hook input priority 0 ; }"]);
    stage.nft(&["add", "rule", "ip", "wall", "in", "tcp dport 7 drop"]);
    let silent = json!({"ports": [{"name": "http", "port": 7}]});
    let rows = [
        (
            "lonely",
            json!({"selector": {"app": "none"}}),
            Some(json!({})),
            "no Pod has the labels that it selects, app=none; Pod sick has app=sick",
        ),
        (
            "unready",
            json!({"selector": {"app": "sick"}}),
            Some(json!({})),
            "0 of 1 Pods that it selects are ready: sick is Pending",
        ),
        ("bare", json!({}), None, "it selects no Pods, and nobody made an EndpointSlice for it"),
        ("idle", json!({}), Some(unready), "its EndpointSlices name 1 endpoints and none is ready"),
        (
            "misnamed",
            json!({}),
            Some(json!({"ports": [{"name": "other", "port": 8080}]})),
            "no EndpointSlice says where port \"http\" (80/TCP) leads",
        ),
        (
            "misled",
            json!({}),
            Some(json!({"ports": [{"name": "http", "port": 9}]})),
            "a connection to 10.96.77.15:80/tcp was refused; called directly, 192.168.0.1:9 was refused",
        ),
        (
            "walled",
            json!({}),
            Some(silent),
            "a connection to 10.96.77.16:80/tcp met silence; called directly, 192.168.0.1:7 met silence",
        ),
        (
            "local",
            json!({"internalTrafficPolicy": "Local"}),
            Some(elsewhere),
            "a connection to 10.96.77.17:80/tcp met silence: its policy keeps traffic on the node, and no endpoint is here",
        ),
    ];
    for (number, (name, spec, slice, wanted)) in (10..).zip(rows) {
        stage.kubectl(&["apply", "-f", "-"], &ailing(name, number, spec, slice));
        stage.until_told(name, wanted);
    }
    stale_flows_are_told(&stage);
    // Without kube-proxy: what it did not hear of, and what somebody took away.
    drop(proxy);
    stage.kubectl(&["apply", "-f", "-"], &ailing("late", 30, json!({}), Some(json!({}))));
    let told = stage.doctor("late");
    assert!(
        told.starts_with("the kernel ") && told.ends_with("but should send them to 192.168.0.1:8080"),
        "{told}"
    );
    for family in ["ip", "ip6"] {
        stage.nft(&["delete", "table", family, "kube-proxy"]);
    }
    let told = stage.doctor("web");
    let wanted = "no rules of a kube-proxy are in this machine's kernel, and none answers on port 10256";
    assert_eq!(told, wanted);
}

/// A flow from a time when other rules sent it elsewhere, which the right rules do not end.
fn stale_flows_are_told(stage: &Stage) {
    const DNS: &str = "10.96.77.29:53";
    let answers = stage.ns.within(|| UdpSocket::bind("192.168.0.1:5353")).unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((_, from)) = answers.recv_from(&mut buffer) {
            let _ = answers.send_to(b"!", from);
        }
    });
    let ports = json!([{"name": "dns", "port": 53, "protocol": "UDP"}]);
    let targets = json!([{"name": "dns", "port": 5353, "protocol": "UDP"}]);
    let objects = ailing("dns", 29, json!({"ports": ports}), Some(json!({"ports": targets})));
    stage.kubectl(&["apply", "-f", "-"], &objects);
    stage.until("the name server answers", || stage.doctor("dns").is_empty());
    stage.nft(&["add", "table", "ip", "elder"]);
    stage.nft(&["add", "chain", "ip", "elder", "out", "{ type nat hook output priority -150 ; }"]);
    let rule = "ip daddr 10.96.77.29 udp dport 53 dnat to 192.168.0.1:5354";
    stage.nft(&["add", "rule", "ip", "elder", "out", rule]);
    let client = stage.ns.within(|| UdpSocket::bind("192.168.0.1:0")).unwrap();
    client.send_to(b"?", DNS).unwrap();
    stage.nft(&["delete", "table", "ip", "elder"]);
    assert_eq!(stage.doctor("dns"), "1 flows still lead to endpoints that are gone");
}

#[test]
fn errands_are_run_and_a_new_configuration_ends_it() {
    let Some(stage) = Stage::set() else { return };
    let Some(iptables) = Tools::iptables_from_env("nft") else { return };
    let path = |dir: &Path| format!("{}:{}", dir.display(), std::env::var("PATH").unwrap_or_default());
    let _server = stage.api_server();
    stage.kubectl(&["apply", "-f", "-"], OBJECTS);
    stage.nft(&["add", "table", "ip", "foreign"]);
    {
        let _proxy = stage.proxy(&["--proxy-mode=nftables"]);
        stage.until("nftables serves", || stage.answers(WEB) && stage.is_settled());
    }
    // Into iptables: the other mode's table goes.
    let config = stage.dir.path().join("config.yaml");
    let text = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: iptables\n\
         iptables:\n  syncPeriod: 1s\nclientConnection:\n  kubeconfig: {}\nconntrack:\n  maxPerCore: 0\noomScoreAdj: 0\nunknown: field\n",
        stage.data().join("admin.kubeconfig").display()
    );
    std::fs::write(&config, &text).unwrap();
    let log = std::fs::File::create(stage.dir.path().join("log")).unwrap();
    let mut program = stage.program(&["kube-proxy", "--hostname-override=here", "--config"]);
    program.arg(&config).env("PATH", path(&iptables)).stderr(log);
    let mut proxy = Running(program.spawn().unwrap());
    stage.until("iptables serves", || stage.answers(WEB) && stage.is_settled());
    assert_eq!(stage.table(), None);
    // Somebody flushes everything: the canary is missed.
    for what in ["-F", "-X"] {
        let mut flush = stage.ns.command(&iptables.join("iptables").display().to_string());
        assert!(flush.args(["-w", "-t", "nat", what]).status().unwrap().success());
    }
    assert!(!stage.answers(WEB));
    stage.until("the rules are back", || stage.answers(WEB));
    assert!(stage.log().contains("somebody else changed our rules"), "{}", stage.log());
    // A file that takes its place, and one that goes, are for whoever put it there to make known.
    std::fs::write(config.with_extension("new"), &text).unwrap();
    std::fs::rename(config.with_extension("new"), &config).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(proxy.0.try_wait().unwrap(), None, "{}", stage.log());
    drop(proxy);
    let log = std::fs::File::create(stage.dir.path().join("log")).unwrap();
    let mut program = stage.program(&["kube-proxy", "--hostname-override=here", "--config"]);
    program.arg(&config).env("PATH", path(&iptables)).stderr(log);
    proxy = Running(program.spawn().unwrap());
    stage.until("it begins", || stage.log().contains("starting kube-proxy"));
    // Not only when it has come to rest.
    std::fs::write(&config, text + "# changed\n").unwrap();
    let mut ended = None;
    stage.until("it ends", || {
        ended = proxy.0.try_wait().unwrap();
        ended.is_some()
    });
    assert!(!ended.unwrap().success() && stage.log().contains("changed"), "{}", stage.log());
    assert!(stage.answers(WEB), "rules outlive the program");
    what_cannot_be_removed_is_told(&stage);
    // And everything of ours goes, and nothing of others.
    let clean = stage.program(&["kube-proxy", "--cleanup"]).env("PATH", path(&iptables)).status().unwrap();
    assert!(clean.success() && !stage.answers(WEB) && stage.table().is_none());
    stage.nft(&["list", "table", "ip", "foreign"]);
    let written = stage.dir.path().join("written.yaml");
    let mut write = stage.program(&["kube-proxy", "--proxy-mode=ipvs", "--write-config-to"]);
    assert!(write.arg(&written).status().unwrap().success());
    assert!(std::fs::read_to_string(&written).unwrap().contains("mode: ipvs"));
}

/// Without the right to, which is as good a reason as any.
fn what_cannot_be_removed_is_told(stage: &Stage) {
    stage.nft(&["add", "table", "ip", "kube-proxy"]);
    let mut bound = stage.ns.command("setpriv");
    bound.arg("--bounding-set=-net_admin").arg(&stage.binary).args(["kube-proxy", "--cleanup"]);
    let out = bound.output().unwrap();
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && told.contains("removing the nftables rules for IPv4"), "{told}");
    assert!(stage.table().is_some());
}
