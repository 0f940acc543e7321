//! Pods of different machines, with real packets: network namespaces are machines and Pods, `longshore overlay` runs on each
//! machine, and `longshore apiserver` has the Nodes. Two machines are next to each other, a third is behind a router.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use client::{Client, Config, Options, Request};
use fixture::{ApiServer, Netns};
use serde_json::{Value, json};

/// Within which everything that is to happen happens.
const TIMEOUT: Duration = Duration::from_secs(60);
/// What is not to arrive is waited for so long.
const NEVER: Duration = Duration::from_millis(300);
const ECHO: u16 = 7777;
const BULK: usize = 300_000;

/// The cluster: a router with the API server on it, and machines around it.
struct World {
    machines: Vec<Machine>,
    hub: Netns,
    server: ApiServer,
    dir: tempfile::TempDir,
    binary: PathBuf,
}

struct Machine {
    number: usize,
    ns: Netns,
    pods: Vec<Pod>,
    agent: Option<Child>,
}

struct Pod {
    ns: Netns,
    addresses: [IpAddr; 2],
}

// === impl World ===

impl World {
    /// None, with a word on stderr, where this machine cannot.
    fn new(machines: usize) -> Option<World> {
        let binary = std::env::var_os("LONGSHORE_BINARY").map(PathBuf::from);
        let (Ok(()), Some(binary)) = (Netns::available(), binary) else {
            eprintln!("skipped: it needs root and LONGSHORE_BINARY");
            return None;
        };
        let (hub, dir) = (Netns::new().unwrap(), tempfile::tempdir().unwrap());
        hub.ip("link add wire type bridge\naddr add 192.0.2.254/24 dev wire\n\
             addr add 2001:db8:1::254/64 dev wire nodad\nlink set wire up\n")
            .unwrap();
        forward(&hub);
        let flags = ["--bind-address=0.0.0.0", "--advertise-address=192.0.2.254"];
        let server = ApiServer::start_in(&hub, &binary, dir.path(), &flags).unwrap();
        let mut world = World { machines: Vec::new(), hub, server, dir, binary };
        for number in 1..=machines {
            let machine = Machine::new(number, &world.hub);
            world.machines.push(machine);
            world.add_node(number, number);
        }
        serve_echo(&world.hub);
        let config = fs::read_to_string(world.server.kubeconfig()).unwrap();
        fs::write(world.kubeconfig(), config.replace("127.0.0.1", "192.0.2.254")).unwrap();
        Some(world)
    }

    fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("from-machines.kubeconfig")
    }

    fn try_api(&self, request: Request) -> Result<Value, String> {
        self.hub.within(|| {
            let config = Config::load(&self.server.kubeconfig()).map_err(|e| e.to_string())?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let client = Client::new(config, Options::default()).await.map_err(|e| e.to_string())?;
                let answer = client.ask_bytes(request).await.map_err(|e| e.to_string())?;
                serde_json::from_slice(&answer).map_err(|e| e.to_string())
            })
        })
    }

    #[track_caller]
    fn api(&self, request: Request) -> Value {
        self.try_api(request).unwrap()
    }

    /// A Node as the controllers and a kubelet would have made it.
    fn add_node(&self, number: usize, subnet: usize) {
        let cidrs = [format!("10.244.{subnet}.0/24"), format!("fd00:10:0:{subnet}::/64")];
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("n{number}")},
                          "spec": {"podCIDR": cidrs[0], "podCIDRs": cidrs}});
        self.api(Request::post("/api/v1/nodes", node.to_string()));
        let [v4, v6] = place(number);
        let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": v4.to_string()},
                                                     {"type": "InternalIP", "address": v6.to_string()}]}});
        let path = format!("/api/v1/nodes/n{number}/status");
        self.api(Request::strategic_patch(path, status.to_string()));
    }

    fn node(&self, number: usize) -> Value {
        self.api(Request::get(format!("/api/v1/nodes/n{number}")))
    }

    /// Starts the agents of these machines with this backend.
    fn start(&mut self, machines: &[usize], backend: &Value) {
        let conf = json!({"Network": "10.244.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:10::/48",
                          "Backend": backend});
        fs::write(self.dir.path().join("net-conf.json"), conf.to_string()).unwrap();
        for number in machines {
            self.start_agent(*number);
        }
    }

    fn start_agent(&mut self, number: usize) {
        let dir = self.dir.path();
        let log = |end: &str| {
            let path = dir.join(format!("n{number}.{end}"));
            File::options().create(true).append(true).open(path).unwrap()
        };
        let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let machine = &mut self.machines[number - 1];
        let mut command = machine.ns.command(&self.binary.display().to_string());
        command
            .args(["overlay", "--ip-masq", &format!("--node-name=n{number}")])
            .arg(flag("kubeconfig-file", &dir.join("from-machines.kubeconfig")))
            .arg(flag("net-config-path", &dir.join("net-conf.json")))
            .arg(flag("subnet-file", &dir.join(format!("n{number}.env"))))
            .arg(flag("cni-conf-file", &dir.join(format!("n{number}.conflist"))))
            .stdin(Stdio::null())
            .stdout(log("log"))
            .stderr(log("log"));
        machine.agent = Some(command.spawn().unwrap());
    }

    fn kill(&mut self, number: usize) {
        let mut agent = self.machines[number - 1].agent.take().unwrap();
        agent.kill().unwrap();
        agent.wait().unwrap();
    }

    fn log(&self, number: usize) -> String {
        fs::read_to_string(self.dir.path().join(format!("n{number}.log"))).unwrap_or_default()
    }

    #[track_caller]
    fn eventually(&self, what: &str, is: impl Fn() -> bool) {
        let end = Instant::now() + TIMEOUT;
        while !is() {
            let logs: Vec<String> = (1..=self.machines.len()).map(|number| self.log(number)).collect();
            assert!(Instant::now() < end, "not {what} in time\n{}", logs.join("\n"));
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// All Pods of these machines reach each other in both families, and see each other's own address.
    #[track_caller]
    fn expect_all_pairs(&self, machines: &[usize]) {
        let pods: Vec<&Pod> = machines.iter().flat_map(|n| &self.machines[n - 1].pods).collect();
        for from in &pods {
            for to in &pods {
                for family in 0..2 {
                    let (own, other) = (from.addresses[family], to.addresses[family]);
                    let what = format!("{own} at {other}, known as itself");
                    self.eventually(&what, || seen_as(&from.ns, own, other) == Some(own));
                }
            }
        }
    }

    fn pod(&self, machine: usize, pod: usize) -> &Pod {
        &self.machines[machine - 1].pods[pod]
    }

    fn ip(&self, machine: usize, args: &str) -> String {
        said(self.machines[machine - 1].ns.command("ip").args(args.split(' ')))
    }

    /// What a machine has of ways to the Pods of others, without what only tells how long it is there.
    fn ways(&self, machine: usize) -> String {
        [
            "link show type vxlan",
            "route show",
            "-6 route show",
            "neigh show nud permanent",
            "-6 neigh show nud permanent",
        ]
        .map(|args| self.ip(machine, args))
        .concat()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for machine in &mut self.machines {
            if let Some(mut agent) = machine.agent.take() {
                let _ = agent.kill();
                let _ = agent.wait();
            }
        }
    }
}

// === impl Machine ===

impl Machine {
    /// The first two are on one wire; the others are each behind the router.
    fn new(number: usize, hub: &Netns) -> Machine {
        let ns = Netns::new().unwrap();
        let port = format!("port{number}");
        hub.ip(&format!("link add {port} type veth peer name eth0 netns {}\nlink set {port} up\n", ns.pid()))
            .unwrap();
        let [v4, v6] = place(number);
        let [router4, router6] = match number {
            1 | 2 => {
                hub.ip(&format!("link set {port} master wire\n")).unwrap();
                ["192.0.2.254".to_owned(), "2001:db8:1::254".to_owned()]
            }
            _ => {
                let router = [format!("198.51.{number}.254"), format!("2001:db8:{number}::254")];
                let [v4, v6] = &router;
                hub.ip(&format!("addr add {v4}/24 dev {port}\naddr add {v6}/64 dev {port} nodad\n")).unwrap();
                router
            }
        };
        forward(&ns);
        ns.ip(&format!(
            "addr add {v4}/24 dev eth0\naddr add {v6}/64 dev eth0 nodad\nlink set eth0 up\n\
             route add default via {router4}\nroute add default via {router6}\n\
             link add cni0 type bridge\naddr add 10.244.{number}.1/24 dev cni0\n\
             addr add fd00:10:0:{number}::1/64 dev cni0 nodad\nlink set cni0 up\n"
        ))
        .unwrap();
        let pods = (2..4).map(|host| Pod::new(&ns, number, host)).collect();
        Machine { number, ns, pods, agent: None }
    }
}

// === impl Pod ===

impl Pod {
    fn new(machine: &Netns, number: usize, host: usize) -> Pod {
        let ns = Netns::new().unwrap();
        let at = ns.pid();
        machine
            .ip(&format!(
                "link add pod{host} type veth peer name eth0 netns {at}\nlink set pod{host} master cni0 up\n"
            ))
            .unwrap();
        let (v4, v6) = (format!("10.244.{number}.{host}"), format!("fd00:10:0:{number}::{host}"));
        ns.ip(&format!(
            "addr add {v4}/24 dev eth0\naddr add {v6}/64 dev eth0 nodad\nlink set eth0 up\n\
             route add default via 10.244.{number}.1\nroute add default via fd00:10:0:{number}::1\n"
        ))
        .unwrap();
        serve_echo(&ns);
        Pod { ns, addresses: [v4.parse().unwrap(), v6.parse().unwrap()] }
    }
}

/// Where a machine is.
fn place(number: usize) -> [IpAddr; 2] {
    match number {
        1 | 2 => [format!("192.0.2.{number}"), format!("2001:db8:1::{number}")],
        _ => [format!("198.51.{number}.{number}"), format!("2001:db8:{number}::{number}")],
    }
    .map(|text| text.parse().unwrap())
}

fn forward(ns: &Netns) {
    ns.sysctl("net/ipv4/ip_forward", "1").unwrap();
    ns.sysctl("net/ipv6/conf/all/forwarding", "1").unwrap();
}

/// Answers every packet with the address that it came from, and takes what is sent over TCP.
fn serve_echo(ns: &Netns) {
    let (udp, tcp) = ns.within(|| {
        let any: SocketAddr = format!("[::]:{ECHO}").parse().unwrap();
        (UdpSocket::bind(any).unwrap(), TcpListener::bind(any).unwrap())
    });
    thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, from)) = udp.recv_from(&mut buffer) {
            let _ = udp.send_to(from.ip().to_canonical().to_string().as_bytes(), from);
        }
    });
    thread::spawn(move || {
        for stream in tcp.incoming().map_while(Result::ok) {
            thread::spawn(move || count(stream));
        }
    });
}

fn count(mut stream: TcpStream) {
    let mut buffer = vec![0; 1 << 16];
    let mut left = BULK;
    while left > 0 {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(n) => left = left.saturating_sub(n),
        }
    }
    let _ = stream.write_all(b"all");
}

/// As whom the other end sees us; none if nothing comes back.
fn seen_as(ns: &Netns, from: IpAddr, to: IpAddr) -> Option<IpAddr> {
    ns.within(|| {
        let socket = UdpSocket::bind(SocketAddr::new(from, 0)).unwrap();
        socket.set_read_timeout(Some(NEVER)).unwrap();
        socket.send_to(b"who am I", (to, ECHO)).ok()?;
        let mut buffer = [0; 64];
        let (n, _) = socket.recv_from(&mut buffer).ok()?;
        String::from_utf8_lossy(&buffer[..n]).parse().ok()
    })
}

/// Sends more than fits into any packet; says whether all of it was taken.
fn sends_bulk(ns: &Netns, to: IpAddr) -> bool {
    ns.within(|| {
        let Ok(mut stream) = TcpStream::connect_timeout(&SocketAddr::new(to, ECHO), TIMEOUT) else {
            return false;
        };
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut answer = Vec::new();
        stream.write_all(&vec![7; BULK]).is_ok()
            && stream.take(3).read_to_end(&mut answer).is_ok()
            && answer == b"all"
    })
}

fn said(command: &mut Command) -> String {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// Sends and counts while something is done: how many were sent, and how many came back.
fn losses(from: &Pod, to: &Pod, meanwhile: impl FnOnce()) -> (usize, usize) {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let sending = scope.spawn(|| {
            from.ns.within(|| {
                let socket = UdpSocket::bind(SocketAddr::new(from.addresses[0], 0)).unwrap();
                socket.set_read_timeout(Some(NEVER)).unwrap();
                let (mut sent, mut back, mut buffer) = (0, 0, [0; 64]);
                while !over.load(Ordering::Relaxed) {
                    socket.send_to(b"there?", (to.addresses[0], ECHO)).unwrap();
                    sent += 1;
                    back += usize::from(socket.recv_from(&mut buffer).is_ok());
                    thread::sleep(Duration::from_millis(1));
                }
                (sent, back)
            })
        });
        meanwhile();
        over.store(true, Ordering::Relaxed);
        sending.join().unwrap()
    })
}

#[test]
fn pods_of_three_machines_reach_each_other_by_vxlan_whatever_becomes_of_the_agents() {
    let Some(mut world) = World::new(3) else { return };
    world.start(&[1], &json!({"Type": "vxlan"}));
    let env = world.dir.path().join("n1.env");
    world.eventually("its subnet written", || env.exists());
    world.eventually("its place told", || {
        world.node(1)["metadata"]["annotations"]["flannel.alpha.coreos.com/public-ip"] == "192.0.2.1"
    });
    assert_eq!(world.ip(1, "link show type vxlan"), "", "alone there is nothing to tunnel to");
    let text = fs::read_to_string(&env).unwrap();
    assert_eq!(
        text,
        "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_IPV6_NETWORK=fd00:10::/48\n\
         FLANNEL_IPV6_SUBNET=fd00:10:0:1::1/64\nFLANNEL_MTU=1430\nFLANNEL_IPMASQ=true\n"
    );
    let conflist = fs::read_to_string(world.dir.path().join("n1.conflist")).unwrap();
    assert!(conflist.contains("\"mtu\": 1430") && conflist.contains("10.244.1.0/24"), "{conflist}");
    let conditions = world.node(1)["status"]["conditions"].clone();
    assert_eq!(conditions[0]["reason"], "FlannelIsUp", "{conditions}");

    world.start(&[2], &json!({"Type": "vxlan"}));
    world.expect_all_pairs(&[1, 2]);
    world.start(&[3], &json!({"Type": "vxlan"}));
    world.expect_all_pairs(&[1, 2, 3]);
    for to in world.pod(3, 0).addresses {
        assert!(sends_bulk(&world.pod(1, 0).ns, to), "packets of any length arrive at {to}");
    }

    // To the world a Pod looks like its machine; to a Pod it never does.
    for (to, machine) in ["192.0.2.254", "2001:db8:1::254"].into_iter().zip(place(1)) {
        let own = world.pod(1, 0).addresses.into_iter().find(|ip| ip.is_ipv4() == machine.is_ipv4()).unwrap();
        let what = format!("{own} known as {machine} at {to}");
        world.eventually(&what, || seen_as(&world.pod(1, 0).ns, own, to.parse().unwrap()) == Some(machine));
    }

    // Killed and started again, between any two packets: nothing is lost and nothing is done again.
    let before = world.ways(1);
    let mut ways = Vec::new();
    let (from, to) = (world.machines[0].pods.remove(1), world.machines[1].pods.remove(1));
    let (sent, back) = losses(&from, &to, || {
        for round in 0..6 {
            world.kill(1);
            world.start_agent(1);
            let times = 2 + round;
            world.eventually("up again", || {
                world.log(1).matches("the network of Pods is up").count() == times
            });
            ways.push(world.ways(1));
            world.kill(2);
            world.start_agent(2);
        }
    });
    assert!(sent > 100, "{sent}");
    assert_eq!(sent, back, "packets were lost");
    assert!(ways.iter().all(|after| *after == before), "{before}\n{ways:#?}");

    // A Node leaves: its ways go, and no other's.
    world.kill(3);
    world.api(Request::delete("/api/v1/nodes/n3", ""));
    world.eventually("forgotten", || {
        !world.ways(1).contains("10.244.3") && !world.ways(2).contains("fd00:10:0:3:")
    });
    world.expect_all_pairs(&[1, 2]);

    // It comes back with another subnet and another place.
    world.add_node(3, 9);
    world.start_agent(3);
    world.eventually("found again", || world.ways(1).contains("10.244.9.0/24 via 10.244.9.0 dev flannel.1"));
    let moved = json!({"metadata": {"annotations": {"flannel.alpha.coreos.com/public-ip": "198.51.3.77"}}});
    world.kill(3);
    world.api(Request::strategic_patch("/api/v1/nodes/n3", moved.to_string()));
    let fdb = || said(world.machines[0].ns.command("bridge").args(["fdb", "show", "dev", "flannel.1"]));
    world.eventually("followed", || fdb().contains("198.51.3.77") && !fdb().contains("198.51.3.3 "));

    // The last of the others leaves, and with it the tunnel.
    for number in [2, 3] {
        world.api(Request::delete(format!("/api/v1/nodes/n{number}"), ""));
    }
    world.eventually("alone", || world.ip(1, "link show type vxlan").is_empty());
    assert_eq!(world.machines[2].number, 3);
}

#[test]
fn machines_next_to_each_other_need_a_route_and_no_tunnel() {
    let Some(mut world) = World::new(3) else { return };
    world.start(&[1, 2, 3], &json!({"Type": "host-gw"}));
    world.expect_all_pairs(&[1, 2]);
    assert_eq!(world.ip(1, "link show type vxlan"), "");
    assert!(world.ways(1).contains("10.244.2.0/24 via 192.0.2.2 dev eth0"), "{}", world.ways(1));
    let why = "host-gw needs it next to this machine, and 198.51.3.3 is behind a router";
    world.eventually("told", || world.log(1).contains(why));

    // The same nodes with another backend: only the one behind the router needs the tunnel.
    for number in 1..=3 {
        world.kill(number);
    }
    world.start(&[1, 2, 3], &json!({"Type": "vxlan", "DirectRouting": true}));
    world.expect_all_pairs(&[1, 2, 3]);
    let ways = world.ways(1);
    assert!(ways.contains("10.244.2.0/24 via 192.0.2.2 dev eth0"), "{ways}");
    assert!(ways.contains("10.244.3.0/24 via 10.244.3.0 dev flannel.1"), "{ways}");
    assert!(ways.contains("fd00:10:0:3::/64 via fd00:10:0:3:: dev flannel-v6.1"), "{ways}");
    for to in world.pod(3, 1).addresses {
        assert!(sends_bulk(&world.pod(1, 0).ns, to), "packets of any length arrive at {to}");
    }

    // What is taken away by hand comes back.
    world.ip(1, "link del flannel.1");
    world.ip(2, "route del 10.244.1.0/24");
    world.expect_all_pairs(&[1, 2, 3]);
}
