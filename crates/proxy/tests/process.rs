//! The program itself: `longshore kube-proxy` beside `longshore apiserver`, with kubectl's hands, in a network namespace.
//! What people do to a node, and what must not be noticed: restarts, kills, somebody else's nft, an API server that goes.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use fixture::{ApiServer, Netns, Tools};

const WEB: &str = "10.96.77.1:80";
const OBJECTS: &str = r#"
{"apiVersion": "v1", "kind": "List", "items": [
  {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "here"}},
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

    // What everybody can ask.
    let doctor = |name: &str| {
        let mut doctor =
            stage.program(&["doctor", "service", name, "--hostname-override=here", "--kubeconfig"]);
        let out = doctor.arg(stage.data().join("admin.kubeconfig")).output().unwrap();
        (out.status.success(), String::from_utf8_lossy(&out.stdout).into_owned())
    };
    let (is_well, text) = doctor("web");
    assert!(is_well, "{text}");
    let (is_well, text) = doctor("nobody");
    assert!(!is_well && text.contains("there is no Service default/nobody"), "{text}");
    let events = stage.kubectl(&["get", "events", "-o", "jsonpath={.items[*].reason}"], "");
    assert!(String::from_utf8_lossy(&events.stdout).contains("Starting"));
    drop(server);
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
         clientConnection:\n  kubeconfig: {}\nconntrack:\n  maxPerCore: 0\noomScoreAdj: 0\nunknown: field\n",
        stage.data().join("admin.kubeconfig").display()
    );
    std::fs::write(&config, &text).unwrap();
    let log = std::fs::File::create(stage.dir.path().join("log")).unwrap();
    let mut program = stage.program(&["kube-proxy", "--hostname-override=here", "--config"]);
    program.arg(&config).env("PATH", path(&iptables)).stderr(log);
    let mut proxy = Running(program.spawn().unwrap());
    stage.until("iptables serves", || stage.answers(WEB) && stage.is_settled());
    assert_eq!(stage.table(), None);
    std::fs::write(&config, text + "# changed\n").unwrap();
    let mut ended = None;
    stage.until("it ends", || {
        ended = proxy.0.try_wait().unwrap();
        ended.is_some()
    });
    assert!(!ended.unwrap().success() && stage.log().contains("changed"), "{}", stage.log());
    assert!(stage.answers(WEB), "rules outlive the program");
    // And everything of ours goes, and nothing of others.
    let clean = stage.program(&["kube-proxy", "--cleanup"]).env("PATH", path(&iptables)).status().unwrap();
    assert!(clean.success() && !stage.answers(WEB));
    stage.nft(&["list", "table", "ip", "foreign"]);
    let written = stage.dir.path().join("written.yaml");
    let mut write = stage.program(&["kube-proxy", "--proxy-mode=ipvs", "--write-config-to"]);
    assert!(write.arg(&written).status().unwrap().success());
    assert!(std::fs::read_to_string(&written).unwrap().contains("mode: ipvs"));
}
