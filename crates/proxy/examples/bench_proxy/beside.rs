//! A whole kube-proxy, ours or upstream's, seen from outside: when packets arrive, and what the process weighs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fixture::{Netns, Tools};
use serde_json::json;

use crate::object_server::{NODES, ObjectServer, Objects, SERVICES, SLICES};
use crate::objects::{service, slice, slice_to};

/// Both leave a second between two changes, which is not what is measured.
const PAUSE: Duration = Duration::from_millis(1200);
/// Enough for a spread, and not an hour with upstream.
const CHANGES: usize = 12;
const PACKETS: usize = 2_000;
/// Services among which the first packet is measured, evenly spread.
const CALLED: u32 = 50;
/// Between two calls before there is an answer. The kernel keeps the way of each call for ten seconds: who calls without a
/// break runs out of ports, and meets the ways of old calls when the rules have long changed.
const BREATH: Duration = Duration::from_millis(5);
const TIMEOUT: Duration = Duration::from_secs(900);

/// A program to be measured.
pub(crate) struct Program {
    path: PathBuf,
    first: &'static [&'static str],
}

/// What was seen of it.
pub(crate) struct Figures {
    /// From the start of the process until a Service answered.
    pub(crate) first: Duration,
    pub(crate) processor: Duration,
    /// From the moment in which an event is sent until a packet goes where it says.
    pub(crate) change: Duration,
    pub(crate) slowest: Duration,
    pub(crate) resident: u64,
    /// The most it ever had.
    pub(crate) peak: u64,
    /// A connection to a Service, in which the first packet is the one that is looked up.
    pub(crate) packet: Duration,
}

/// A node with a Pod network behind it, in which two endpoints say which of them they are.
struct Stage {
    node: Netns,
    _pods: Netns,
}

struct Running(Child);

const ENDPOINTS: [(&str, u8); 2] = [("10.244.0.5", b'a'), ("10.244.0.6", b'b')];

pub(crate) fn measure(program: &Program, mode: &str, count: u32) -> Figures {
    let stage = Stage::new();
    let last = count - 1;
    let api = ObjectServer::start(&stage.node, objects(count));
    let began = Instant::now();
    let running = program.start(&stage.node, mode, api.address);
    let vip = address(last);
    let call = || stage.node.within(|| call(vip));
    while call() != Some(b'a') {
        assert!(began.elapsed() < TIMEOUT, "{} does not serve", program.path.display());
        thread::sleep(BREATH);
    }
    let (first, processor) = (began.elapsed(), running.processor());
    let mut changes = Vec::new();
    for turn in 1..=CHANGES {
        thread::sleep(PAUSE + changes.last().copied().unwrap_or_default());
        let (ip, name) = ENDPOINTS[turn % 2];
        let object = serde_json::to_string(&slice_to(last, &[ip.to_owned()])).unwrap();
        changes.push(stage.node.within(|| {
            let told = Instant::now();
            api.tell(SLICES, &object);
            while self::call(vip) != Some(name) {
                assert!(told.elapsed() < TIMEOUT, "{} does not change", program.path.display());
            }
            told.elapsed()
        }));
    }
    thread::sleep(PAUSE);
    let all: Vec<SocketAddr> = called(count).map(address).collect();
    let packet = stage.node.within(|| packet(&all));
    changes.sort_unstable();
    Figures {
        first,
        processor,
        change: changes[changes.len() / 2],
        slowest: changes[changes.len() - 1],
        resident: running.memory("VmRSS:"),
        peak: running.memory("VmHWM:"),
        packet,
    }
}

/// Who answers.
fn call(to: SocketAddr) -> Option<u8> {
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_millis(20)).ok()?;
    let mut name = [0];
    stream.set_read_timeout(Some(Duration::from_millis(200))).ok()?;
    stream.read_exact(&mut name).ok()?;
    Some(name[0])
}

/// Services that are called for the first packet: with iptables it goes past the rules of all Services before its own, whose
/// order is by name or by chance, so that one of them alone would say nothing.
fn called(count: u32) -> impl Iterator<Item = u32> {
    (0..CALLED.min(count)).map(move |n| n * (count / CALLED).max(1))
}

fn address(number: u32) -> SocketAddr {
    SocketAddr::new(service(number).spec.unwrap().cluster_ip.unwrap().parse().unwrap(), 80)
}

/// The mean of the medians of connections to each.
fn packet(all: &[SocketAddr]) -> Duration {
    let each = |to: &SocketAddr| first_packet(*to, PACKETS / all.len());
    all.iter().map(each).sum::<Duration>() / u32::try_from(all.len()).unwrap()
}

/// The median of many connections.
fn first_packet(to: SocketAddr, times: usize) -> Duration {
    let mut took: Vec<Duration> = (0..times)
        .filter_map(|_| {
            let start = Instant::now();
            let stream = TcpStream::connect_timeout(&to, Duration::from_secs(1)).ok()?;
            let took = start.elapsed();
            drop(stream);
            Some(took)
        })
        .collect();
    assert!(took.len() > times / 2, "{to} does not answer any more");
    took.sort_unstable();
    took[took.len() / 2]
}

fn objects(count: u32) -> BTreeMap<&'static str, Objects> {
    let text = |object: serde_json::Result<String>| object.unwrap();
    let services = (0..count).map(|n| text(serde_json::to_string(&service(n)))).collect();
    let real = [ENDPOINTS[0].0.to_owned()];
    let is_called: BTreeSet<u32> = called(count).collect();
    let others = (0..count - 1).map(|n| match is_called.contains(&n) {
        true => text(serde_json::to_string(&slice_to(n, &real))),
        false => text(serde_json::to_string(&slice(n, 2, 0))),
    });
    let own = text(serde_json::to_string(&slice_to(count - 1, &real)));
    let node = json!({
        "metadata": {"name": "here", "resourceVersion": "1"}, "spec": {"podCIDR": "10.244.0.0/16"},
        "status": {"addresses": [{"type": "InternalIP", "address": "10.244.0.1"}]},
    });
    let kind = |version, kind, items| Objects { version, kind, items };
    BTreeMap::from([
        (SERVICES, kind("v1", "Service", services)),
        (SLICES, kind("discovery.k8s.io/v1", "EndpointSlice", others.chain([own]).collect())),
        (NODES, kind("v1", "Node", vec![node.to_string()])),
        ("/apis/networking.k8s.io/v1/servicecidrs", kind("networking.k8s.io/v1", "ServiceCIDR", Vec::new())),
    ])
}

impl Stage {
    fn new() -> Self {
        let (node, pods) = (Netns::new().unwrap(), Netns::new().unwrap());
        let peer = pods.pid();
        node.ip(&format!(
            "link add pods type veth peer name eth0 netns {peer}\nlink set pods up\n\
             addr add 10.244.0.1/16 dev pods\nroute add default via 10.244.0.2\n"
        ))
        .unwrap();
        pods.ip("link set eth0 up\naddr add 10.244.0.2/16 dev eth0\naddr add 10.244.0.5/16 dev eth0\n\
                 addr add 10.244.0.6/16 dev eth0\n")
            .unwrap();
        for (ip, name) in ENDPOINTS {
            let listener = pods.within(|| TcpListener::bind((ip, 8080))).unwrap();
            thread::spawn(move || {
                for mut stream in listener.incoming().flatten() {
                    let _ = stream.write_all(&[name]);
                }
            });
        }
        Self { node, _pods: pods }
    }
}

impl Program {
    pub(crate) fn ours(path: &Path) -> Self {
        Self { path: path.to_owned(), first: &["kube-proxy"] }
    }

    pub(crate) fn upstream(path: &Path) -> Self {
        Self { path: path.to_owned(), first: &[] }
    }

    fn start(&self, node: &Netns, mode: &str, api: SocketAddr) -> Running {
        let mut command = node.command(&self.path.display().to_string());
        command.args(self.first).args([
            &format!("--master=http://{api}"),
            "--hostname-override=here",
            &format!("--proxy-mode={mode}"),
            "--cluster-cidr=10.128.0.0/9",
            "--oom-score-adj=0",
            "--conntrack-max-per-core=0",
            "--conntrack-min=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
        ]);
        let tools = [
            Tools::iptables_from_env("nft"),
            Tools::nft_from_env().and_then(|nft| Some(nft.parent()?.to_owned())),
        ];
        let path = std::env::var("PATH").unwrap_or_default();
        let dirs = tools.into_iter().flatten().chain(std::env::split_paths(&path));
        command.env("PATH", std::env::join_paths(dirs).unwrap());
        let log = fs::File::create(std::env::temp_dir().join(format!("bench-proxy-{mode}.log"))).unwrap();
        Running(command.stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }
}

impl Running {
    /// What it has in memory, in bytes, or had at most.
    fn memory(&self, which: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(which));
        let kib: u64 = line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0);
        kib * 1024
    }

    /// The processor time of it and of the programs that it called.
    fn processor(&self) -> Duration {
        const TICKS: u64 = 100;
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap_or_default();
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let ticks: u64 =
            after_name.split_whitespace().skip(11).take(4).filter_map(|n| n.parse::<u64>().ok()).sum();
        Duration::from_millis(ticks * 1000 / TICKS)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
