//! A file server that dies, for real: the kernel's own NFS server and client, with Debian's programs. It takes a machine
//! that nobody misses afterwards: `cargo xtask vm` has one.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::class::Class;
use base::ids::PodUid;
use base::rng::Rng;
use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kubelet::host::clock::SystemClock;
use kubelet::ports::{MountedVolume, VolumeAct, VolumeError, Volumes};
use kubelet::volumes::{NodeVolumes, Timeouts};
use kubelet_core::downward::Allocatable;
use serde_json::{Value, json};
use sys::mountinfo;
use tokio::task::JoinHandle;

/// A node's, made shorter. What counts is the order: who waits speaks long before anybody gives up.
const TIMEOUT: Timeouts = Timeouts {
    set_up: Duration::from_secs(20),
    unmount: Duration::from_secs(5),
    program: Duration::from_secs(30),
    gently: Duration::from_secs(12),
    by_force: Duration::from_secs(4),
    pause: Duration::from_millis(500),
};

/// An emulated processor is slow, and others may use the one that emulates it.
const SLACK: Duration = Duration::from_secs(10);

/// After which a Pod that is to go does not.
const NEVER: Duration = Duration::from_secs(80);

/// More Pods than may begin at once.
const MANY: usize = 20;

/// What makes a process of this program an agent with that root.
const AGENT: &str = "DEAD_SHARE_AGENT";
const NAME: &str = "a_dead_file_server_hurts_its_own_pods_only";

const SHARE: &str = "127.0.0.1:/box";

/// The kernel's server, with an export in memory.
struct Server {
    export: PathBuf,
    mountd: Child,
}

/// A node's volumes, below one root.
struct Node {
    root: PathBuf,
    volumes: Arc<NodeVolumes>,
}

#[tokio::test]
async fn a_dead_file_server_hurts_its_own_pods_only() {
    if !is_machine_of_ours() {
        return;
    }
    if let Some(root) = std::env::var_os(AGENT) {
        Node::open(Path::new(&root)).delete("only").await;
        return;
    }
    // Not one that is deleted in the end with whatever is mounted in it.
    let dir = Path::new("/tmp/dead-share");
    fs::create_dir(dir).unwrap();
    let server = Server::start(&dir.join("export"));
    let before = server.content();
    let node = Node::open(&dir.join("root"));
    many_pods_hurt_nobody_else(&node, &server).await;
    assert_eq!(server.content(), before);
    the_only_pod_goes_too(&node, &server).await;
    a_killed_agent_goes_too(&node, &server).await;
    assert_eq!(server.content(), before);
}

/// Some use the share, some ask for it, and one looks for a part of it.
async fn many_pods_hurt_nobody_else(node: &Node, server: &Server) {
    let mut paths = BTreeMap::new();
    for uid in ["busy", "idle", "looked-after", "in-part", "left"] {
        let path = node.mount(uid).await.unwrap();
        assert_eq!(fs::read_to_string(path.join("note")).unwrap(), "precious");
        paths.insert(uid, path);
    }
    server.die();
    let hung = ["busy", "left"].map(|uid| hang_in(&paths[uid]));
    let names: Vec<String> = (0..MANY).map(|n| format!("asks-{n}")).collect();
    let mut asking: Vec<JoinHandle<VolumeError>> = names.iter().map(|uid| node.ask(uid)).collect();
    asking.push(node.ask_for_part("in-part"));
    others_come_and_go(node).await;
    // What stands is looked after from time to time, and that asks no server.
    assert_eq!(node.mount("looked-after").await.unwrap(), paths["looked-after"]);

    // One goes by another agent, which knows what the disk and the mount table say.
    let next = Node::open(&node.root);
    let (busy, left, in_part, asks, ..) = tokio::join!(
        node.delete("busy"),
        next.delete("left"),
        node.delete("in-part"),
        join_all(names.iter().map(|uid| node.delete(uid))),
        node.delete("idle"),
        node.delete("looked-after"),
    );
    names_its_blocker(&busy, &format!("unmount {} ", paths["busy"].display()));
    names_its_blocker(&left, &format!("unmount {} ", paths["left"].display()));
    names_its_blocker(&in_part, "look for subPath \"deep\" ");
    asks.iter().for_each(|named| names_its_blocker(named, "mount "));
    // All while the server is dead. Nobody is left who could mount anything when it no longer is.
    until("programs that mount are gone", || !is_any(PROCESSES, "mount.nfs", ""));
    nothing_is_left(node).await;

    server.come_back();
    whoever_hung_goes_on(hung);
    a_new_pod_is_served(node, server).await;
    for error in join_all(asking).await {
        assert_eq!(error.unwrap().class, Class::Wait);
    }
}

/// Volumes that have nothing to do with the server are made and taken away before any of the others has given up.
async fn others_come_and_go(node: &Node) {
    let volumes = json!([
        {"name": "v", "emptyDir": {}},
        {"name": "m", "emptyDir": {"medium": "Memory"}},
        {"name": "d", "downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
    ]);
    let begun = Instant::now();
    for uid in ["other-1", "other-2"] {
        let mounted = node.volumes.mount(&pod(uid, &volumes)).await.unwrap();
        let MountedVolume::Host { path, .. } = &mounted.places["d"] else { panic!("{mounted:?}") };
        assert_eq!(fs::read_to_string(path.join("n")).unwrap(), uid);
        let named = node.delete(uid).await;
        assert!(named.is_empty(), "{named:?}");
    }
    assert!(begun.elapsed() < TIMEOUT.set_up / 4 * 3, "{:?}", begun.elapsed());
}

/// With the volume and the share, before it was gone.
fn names_its_blocker(named: &[VolumeError], what: &str) {
    let first = named.first().unwrap_or_else(|| panic!("nobody was named who would {what}"));
    assert_eq!(
        (first.class, first.act, first.volume.as_str()),
        (Class::Wait, VolumeAct::Unmount, "v"),
        "{first}"
    );
    assert!(first.message.contains(what) && first.message.contains(SHARE), "{first}");
}

async fn nothing_is_left(node: &Node) {
    assert_eq!(node.volumes.known().await.unwrap(), []);
    assert_eq!(mountinfo::below(&node.root).unwrap(), []);
}

/// Nobody was forced, so that nobody who waits loses anything.
fn whoever_hung_goes_on(hung: [Child; 2]) {
    for process in hung {
        let out = process.wait_with_output().unwrap();
        assert_eq!((out.status.success(), &*out.stdout), (true, "precious too".as_bytes()), "{}", out.status);
    }
    until("threads are back", || ["volumes", "unmount"].iter().all(|name| !is_any(THREADS, name, "")));
}

async fn a_new_pod_is_served(node: &Node, server: &Server) {
    let path = node.mount("new").await.unwrap();
    assert_eq!(fs::read_to_string(path.join("note")).unwrap(), "precious");
    fs::write(path.join("reply"), "new").unwrap();
    node.delete("new").await;
    let reply = server.export.join("box/reply");
    assert_eq!(fs::read_to_string(&reply).unwrap(), "new");
    fs::remove_file(reply).unwrap();
    nothing_is_left(node).await;
}

/// The last one to go takes leave of the server, for which the kernel waits in vain. The volume is gone by then.
async fn the_only_pod_goes_too(node: &Node, server: &Server) {
    let path = node.mount("only").await.unwrap();
    server.die();
    let named = node.delete("only").await;
    names_its_blocker(&named, &format!("unmount {} ", path.display()));
    nothing_is_left(node).await;
    server.come_back();
    a_new_pod_is_served(node, server).await;
}

/// Though the kernel waits for the server on its behalf, with whatever it has open. The next one does the rest.
async fn a_killed_agent_goes_too(node: &Node, server: &Server) {
    node.mount("only").await.unwrap();
    server.die();
    let mut agent = Command::new(std::env::current_exe().unwrap());
    agent.args(["--exact", NAME]).env(AGENT, &node.root).stdout(Stdio::null());
    let mut agent = agent.spawn().unwrap();
    let threads = format!("/proc/{}/task", agent.id());
    until("the kernel waits", || is_any(&threads, "unmount", HANGS));
    agent.kill().unwrap();
    until("a killed agent is gone", || agent.try_wait().unwrap().is_some());
    node.delete("only").await;
    nothing_is_left(node).await;
    server.come_back();
    a_new_pod_is_served(node, server).await;
}

// === impl Server ===

impl Server {
    fn start(export: &Path) -> Self {
        fs::create_dir(export).unwrap();
        run("mount", &["-t", "tmpfs", "export", &export.display().to_string()]);
        fs::create_dir(export.join("box")).unwrap();
        fs::write(export.join("box/note"), "precious").unwrap();
        fs::write(export.join("box/unread"), "precious too").unwrap();
        let options = "rw,fsid=0,no_root_squash,no_subtree_check,insecure";
        fs::write("/etc/exports", format!("{} *({options})\n", export.display())).unwrap();
        // A client that trusts what it knows for a second only is soon one that has to ask.
        fs::write("/etc/nfsmount.conf", "[ NFSMount_Global_Options ]\nactimeo=1\n").unwrap();
        // Where the server notes its clients; one that cannot does not end its grace.
        fs::create_dir_all("/var/lib/nfs/v4recovery").unwrap();
        run("mount", &["-t", "nfsd", "nfsd", "/proc/fs/nfsd"]);
        for time in ["nfsv4gracetime", "nfsv4leasetime"] {
            fs::write(Path::new("/proc/fs/nfsd").join(time), "10").unwrap();
        }
        run("exportfs", &["-a"]);
        let only_4 = ["--no-udp", "--no-nfs-version", "3"];
        let mountd = ["--foreground", "--no-nfs-version", "2"];
        let mountd =
            Command::new("rpc.mountd").args(mountd).args(only_4).stderr(Stdio::null()).spawn().unwrap();
        run("rpc.nfsd", &[&only_4[..], &["--port", "2049", "4"]].concat());
        // There were no clients before, so none is waited for.
        fs::write("/proc/fs/nfsd/v4_end_grace", "Y").unwrap();
        Self { export: export.to_owned(), mountd }
    }

    /// Silently: whoever asks hears nothing, not even that nobody is there.
    fn die(&self) {
        run("iptables", &["-I", "INPUT", "-p", "tcp", "--dport", "2049", "-j", "DROP"]);
    }

    fn come_back(&self) {
        run("iptables", &["-D", "INPUT", "-p", "tcp", "--dport", "2049", "-j", "DROP"]);
    }

    /// All that it has, by name.
    fn content(&self) -> BTreeMap<PathBuf, String> {
        let files = fs::read_dir(self.export.join("box")).unwrap().map(|entry| entry.unwrap().path());
        files.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Whoever still hangs would not let a test end that failed.
        let _ = Command::new("iptables").args(["-F", "INPUT"]).status();
        let _ = self.mountd.kill();
        let _ = self.mountd.wait();
    }
}

// === impl Node ===

impl Node {
    fn open(root: &Path) -> Self {
        let (node, clock) = (Allocatable::default(), Arc::new(SystemClock::new()));
        let volumes = NodeVolumes::open_with(root, node, clock, Rng::new(1), TIMEOUT).unwrap();
        Self { root: root.to_owned(), volumes: Arc::new(volumes) }
    }

    async fn mount(&self, uid: &str) -> Result<PathBuf, VolumeError> {
        match self.volumes.mount(&share_pod(uid)).await?.places.remove("v").unwrap() {
            MountedVolume::Host { path, .. } => Ok(path),
            other => panic!("{other:?}"),
        }
    }

    /// Asks for a volume from a server that does not answer.
    fn ask(&self, uid: &str) -> JoinHandle<VolumeError> {
        let (volumes, pod) = (self.volumes.clone(), share_pod(uid));
        tokio::spawn(async move { volumes.mount(&pod).await.unwrap_err() })
    }

    /// Asks for a directory in a volume that stands, from a server that does not answer.
    fn ask_for_part(&self, uid: &str) -> JoinHandle<VolumeError> {
        let (volumes, pod) = (self.volumes.clone(), share_pod(uid));
        tokio::spawn(async move { volumes.sub_path(&pod, "c", 0, "v", "deep").await.unwrap_err() })
    }

    /// Asks until it is done, as a Pod's task does. The blockers that were named meanwhile.
    async fn delete(&self, uid: &str) -> Vec<VolumeError> {
        let (begun, pod) = (Instant::now(), PodUid::from(uid));
        let mut named = Vec::new();
        loop {
            let asked = Instant::now();
            let done = self.volumes.unmount(&pod).await;
            assert!(asked.elapsed() < TIMEOUT.unmount + SLACK, "{uid}: {:?}", asked.elapsed());
            let Err(error) = done else { break };
            named.push(error);
            assert!(begun.elapsed() < NEVER, "{uid} does not go: {named:?}");
        }
        self.volumes.remove(&pod).await.unwrap();
        assert!(!self.root.join("pods").join(uid).exists());
        named
    }
}

fn pod(uid: &str, volumes: &Value) -> Pod {
    let names = volumes.as_array().unwrap().iter().map(|volume| volume["name"].clone());
    let mounts: Vec<Value> = names.map(|name| json!({"name": name, "mountPath": "/m"})).collect();
    let pod = json!({
        "metadata": {"name": uid, "namespace": "shop", "uid": uid},
        "spec": {"volumes": volumes, "containers": [{"name": "c", "volumeMounts": mounts}]},
    });
    serde_json::from_value(pod).unwrap()
}

fn share_pod(uid: &str) -> Pod {
    let (server, path) = SHARE.split_once(':').unwrap();
    pod(uid, &json!([{"name": "v", "nfs": {"server": server, "path": path}}]))
}

/// The test changes what a machine has but once: its exports, its packet filter.
fn is_machine_of_ours() -> bool {
    let fit = std::env::var_os("LONGSHORE_MACHINE").is_some_and(|what| what == "emulated");
    let needs = std::env::var_os("LONGSHORE_SKIPS_NOTHING").is_some();
    assert!(fit || !needs, "an emulated machine with an NFS server is needed");
    fit
}

/// A process of a container, at a file that the server no longer gives.
fn hang_in(dir: &Path) -> Child {
    let child = Command::new("cat").arg(dir.join("unread")).stdout(Stdio::piped()).spawn().unwrap();
    let stat = format!("/proc/{}/stat", child.id());
    until("cat hangs", || fs::read_to_string(&stat).is_ok_and(|text| text.contains(HANGS)));
    child
}

const PROCESSES: &str = "/proc";
const THREADS: &str = "/proc/self/task";
const HANGS: &str = ") D ";

/// Whether any process or thread there has the name, and the state.
fn is_any(of: &str, name: &str, state: &str) -> bool {
    let all = fs::read_dir(of).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let mut stats = all.filter_map(|path| fs::read_to_string(path.join("stat")).ok());
    stats.any(|stat| stat.contains(&format!("({name})")) && stat.contains(state))
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < NEVER / 2, "{what}: not within {:?}", NEVER / 2);
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn run(program: &str, args: &[&str]) {
    let out = Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(out.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
}
