//! Real containers: a keeper, an overlay over the machine's own root, cgroups, namespaces, a filter.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use runtime::keeper::{Event, Happened, Keeper, Launched, Program};
use runtime::open::{Bind, Grounds, open};
use runtime_core::capabilities::{Wanted, all};
use runtime_core::container::{self, Cgroup, Command, Container, Exec, Image, Mount, Plan, Scope, namespace};
use runtime_core::message::Exit;
use runtime_core::recipe::Target;
use runtime_core::resources::{self, Resources};
use runtime_core::sandbox::{self, Sandbox};
use runtime_core::seccomp::{Arch, compile, default_profile};
use runtime_core::users::User;
use sys::cgroup::{Hierarchies, Version};
use sys::detached::Propagation;
use tokio::sync::mpsc;

const DEADLINE: Duration = Duration::from_secs(60);
const DEFAULT_CAPABILITIES: u64 = 0xa804_25fb;
#[cfg(target_arch = "x86_64")]
const ARCH: Arch = Arch::X86_64;
#[cfg(target_arch = "aarch64")]
const ARCH: Arch = Arch::Aarch64;

/// A Pod with one cgroup for all of its containers.
struct Pod {
    dir: tempfile::TempDir,
    keeper: Keeper,
    events: mpsc::Receiver<Event>,
    hierarchies: Hierarchies,
    cgroup: String,
    namespaces: BTreeMap<u32, OwnedFd>,
    init: Option<OwnedFd>,
    binds: Vec<Bind>,
}

impl Pod {
    fn start() -> Pod {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Not on the file system of the layer, which overlayfs would refuse.
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let at = sys::fd::open_dir(dir.path()).unwrap();
        let (keeper, events) = Keeper::start(&Program::seal().unwrap(), at, OsStr::new("keeper")).unwrap();
        let hierarchies = Hierarchies::find().unwrap();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let cgroup = format!("longshore-test-runtime-{}-{number}", std::process::id());
        hierarchies.make(&cgroup).unwrap();
        let namespaces = BTreeMap::new();
        Pod { dir, keeper, events, hierarchies, cgroup, namespaces, init: None, binds: vec![] }
    }

    fn limit(&self, resources: &Resources) {
        let version = match self.hierarchies.version() {
            Version::V1 => resources::Version::V1,
            Version::V2 => resources::Version::V2,
        };
        for setting in resources::settings(resources, version).unwrap() {
            let written =
                self.hierarchies.write(&self.cgroup, &setting.controller, &setting.file, &setting.value);
            assert!(written.unwrap() || setting.is_optional, "{setting:?}");
        }
    }

    fn grounds<'a>(&'a self, log: &'a Path, root: &'a OwnedFd) -> Grounds<'a> {
        Grounds {
            hierarchies: &self.hierarchies,
            cgroup: &self.cgroup,
            root: Some(root),
            namespaces: &self.namespaces,
            pid_namespace: self.init.as_ref(),
            mounts: &self.binds,
            devices: &[],
            user_root: 0,
            log,
            target: None,
            stdio: [None; 3],
        }
    }

    /// Of one container: what it changes is not for the next.
    fn paths(&self, job: u32) -> (PathBuf, PathBuf, PathBuf) {
        let path = |name: &str| self.dir.path().join(name);
        let both = [path(&format!("upper-{job}")), path(&format!("work-{job}"))];
        for dir in &both {
            fs::create_dir(dir).unwrap();
        }
        let [upper, work] = both;
        (upper, work, path("log"))
    }

    fn cgroup_kind(&self) -> Cgroup {
        match self.hierarchies.version() {
            Version::V1 => Cgroup::V1(
                self.hierarchies.directories(&self.cgroup).into_iter().map(|(name, _)| name).collect(),
            ),
            Version::V2 => Cgroup::V2,
        }
    }

    /// A shell command as containerd would run it that is asked for nothing special.
    fn container(&self, script: &str) -> Container {
        let user = User { uid: 0, gid: 0, groups: vec![0], home: "/root".into() };
        let words = ["/bin/sh".to_owned(), "-c".to_owned(), script.to_owned()];
        let command = Command::new(&Image::default(), (&words, &[]), &[], "", ("pod", false, &user)).unwrap();
        let own = |paths: &[&str]| paths.iter().map(ToString::to_string).collect();
        Container {
            command,
            user,
            user_root: None,
            capabilities: Wanted::default(),
            network: Scope::Node,
            pid: Scope::Container,
            ipc: Scope::Node,
            cgroup: self.cgroup_kind(),
            mounts: vec![],
            masked_paths: own(&["/proc/kcore", "/proc/keys", "/sys/firmware"]),
            readonly_paths: own(&["/proc/sys", "/proc/bus"]),
            is_root_readonly: false,
            no_new_privileges: false,
            seccomp: Some((compile(&default_profile(ARCH, DEFAULT_CAPABILITIES)).unwrap(), 0)),
            rlimits: vec![],
            oom_score: Some(1000),
            has_input: false,
            has_terminal: false,
        }
    }

    async fn launch(&self, job: u32, plan: &Plan, beside: Option<(&OwnedFd, &OwnedFd)>) -> Launched {
        let (upper, work, log) = self.paths(job);
        let root = sys::detached::overlay(&[Path::new("/")], &upper, &work).unwrap();
        let mut grounds = self.grounds(&log, &root);
        if let Some((target, output)) = beside {
            (grounds.target, grounds.stdio) = (Some(target), [None, Some(output), None]);
        }
        let fds = open(&plan.sources, &grounds).unwrap();
        let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        self.keeper.launch(job, &plan.launch, &borrowed).await.unwrap()
    }

    async fn start_container(&mut self, job: u32, container: &Container) -> Launched {
        let plan = container::plan(container, all()).unwrap();
        let launched = self.launch(job, &plan, None).await;
        match self.next().await.what {
            Happened::Started => launched,
            Happened::Failed { op, why } => panic!("{}: {why}", plan.launch.ops[op as usize].describe()),
            other => panic!("{other:?}"),
        }
    }

    async fn run(&mut self, job: u32, script: &str) -> (Exit, Vec<String>) {
        let container = self.container(script);
        self.start_container(job, &container).await;
        let exit = self.ended(job).await;
        self.keeper.acknowledge(job).await.unwrap();
        (exit, self.printed())
    }

    fn printed(&self) -> Vec<String> {
        let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        log.lines().filter_map(|line| line.splitn(4, ' ').nth(3).map(str::to_owned)).collect()
    }

    async fn next(&mut self) -> Event {
        tokio::time::timeout(DEADLINE, self.events.recv()).await.unwrap().unwrap()
    }

    async fn ended(&mut self, job: u32) -> Exit {
        loop {
            let event = self.next().await;
            match event.what {
                Happened::Exited(exit) if event.job == job => return exit,
                Happened::Failed { op, why } => panic!("job {} op {op}: {why}", event.job),
                _ => {}
            }
        }
    }

    /// Makes the namespaces of a Pod and keeps them open.
    async fn make_sandbox(&mut self, sandbox: &Sandbox) {
        let launch = sandbox::plan(sandbox).unwrap();
        let launched = self.keeper.launch(100, &launch, &[]).await.unwrap();
        let event = self.next().await;
        let Happened::Held(None) = event.what else { panic!("{event:?}") };
        for (kind, name) in [(namespace::NETWORK, "net"), (namespace::UTS, "uts"), (namespace::IPC, "ipc")] {
            let path = format!("/proc/{}/ns/{name}", launched.pid);
            self.namespaces.insert(kind, fs::File::open(path).unwrap().into());
        }
        self.keeper.release(100).await.unwrap();
        self.ended(100).await;
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let dir = sys::fd::open_dir(self.dir.path()).unwrap();
        if let Ok(socket) = sys::message::connect(dir, OsStr::new("keeper")) {
            let quit = runtime_core::message::encode(runtime_core::message::Ask::Quit, 0, 0);
            let _ = sys::message::send(socket, &quit, &[]);
        }
        let _ = self.hierarchies.kill(&self.cgroup);
        let until = std::time::Instant::now() + DEADLINE;
        while self.hierarchies.remove(&self.cgroup).is_err() && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
    }
}

#[tokio::test]
async fn a_container_sees_its_own_machine() {
    let mut pod = Pod::start();
    let marker = format!("/etc/made-by-{}", pod.cgroup);
    let script = format!(
        "grep -c {cgroup} /proc/self/cgroup; echo self $$; touch {marker} && echo written; \
         (echo x > /proc/sys/kernel/domainname) 2>/dev/null || echo sys refused; \
         (head -c1 /proc/kcore 2>/dev/null) | wc -c; ls /dev | tr '\\n' ' '; echo; \
         grep -E '^(CapBnd|CapEff|Seccomp|NoNewPrivs):' /proc/self/status; \
         mount -t tmpfs none /mnt 2>/dev/null || echo mount refused; cat /proc/self/oom_score_adj; \
         ls /proc/self/fd | wc -w; readlink /proc/1/exe | grep -c memfd",
        cgroup = pod.cgroup
    );
    let (_, lines) = pod.run(1, &script).await;
    let all = lines.join("\n");
    assert!(lines[0].parse::<u32>().unwrap() > 0 || pod.hierarchies.version() == Version::V2, "{all}");
    for want in [
        "self 1",
        "written",
        "sys refused",
        "fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero ",
        "CapBnd:\t00000000a80425fb",
        "CapEff:\t00000000a80425fb",
        "Seccomp:\t2",
        "mount refused",
        "1000",
    ] {
        assert!(lines.iter().any(|line| line == want), "{want:?} in\n{all}");
    }
    assert_eq!(lines.last().unwrap(), "0", "no program of ours is there to be written to:\n{all}");
    assert!(!Path::new(&marker).exists(), "what it writes is its own");
    let marker = Path::new(&marker).strip_prefix("/").unwrap();
    assert!(pod.dir.path().join("upper-1").join(marker).exists());
}

#[tokio::test]
async fn who_is_killed_for_memory_is_known_to_be() {
    let mut pod = Pod::start();
    let limit = 30 << 20;
    pod.limit(&Resources { memory_limit: limit, memory_swap_limit: limit, ..Resources::default() });
    let (exit, lines) = pod.run(1, "exec tail /dev/zero").await;
    assert_eq!(exit.code, 137, "{lines:?}");
    assert!(exit.killed_for_memory > 0, "{exit:?}");
    let (exit, _) = pod.run(2, "exit 7").await;
    assert_eq!(exit.code, 7);
}

#[tokio::test]
async fn a_terminal_is_the_containers_own() {
    let mut pod = Pod::start();
    let mut container = pod.container("tty; echo to errors >&2; [ -t 0 ] && echo typed");
    container.has_terminal = true;
    pod.start_container(1, &container).await;
    assert_eq!(pod.ended(1).await.code, 0);
    let lines: Vec<String> = pod.printed().iter().map(|line| line.trim_end().to_owned()).collect();
    assert_eq!(lines, ["/dev/pts/0", "to errors", "typed"]);
}

#[tokio::test]
async fn something_more_can_be_run_in_it() {
    let mut pod = Pod::start();
    let container = pod.container("echo ready > /tmp/ready; exec sleep 1000");
    let launched = pod.start_container(1, &container).await;
    let words: Vec<String> = ["/bin/sh", "-c", "until [ -e /tmp/ready ]; do :; done; cat /proc/1/comm; grep Cap /proc/self/status; cat /proc/self/oom_score_adj; ulimit -n; cat /tmp/ready; exit 4"]
        .map(str::to_owned).into();
    let exec = Exec {
        command: container.command.beside(&words, false).unwrap(),
        user: container.user.clone(),
        has_user_namespace: false,
        capabilities: Wanted::default(),
        cgroup: container.cgroup.clone(),
        no_new_privileges: false,
        seccomp: container.seccomp.clone(),
        rlimits: vec![(7, 321, 654)],
        oom_score: Some(77),
        has_terminal: false,
        stdio: [false, true, false],
    };
    let plan = container::plan_exec(&exec, all()).unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let writer: OwnedFd = writer.into();
    pod.launch(2, &plan, Some((&launched.pidfd, &writer))).await;
    drop(writer);
    assert_eq!(pod.ended(2).await.code, 4);
    let mut text = String::new();
    std::io::Read::read_to_string(&mut reader, &mut text).unwrap();
    assert!(text.contains("CapBnd:\t00000000a80425fb") && text.ends_with("77\n321\nready\n"), "{text}");
    pod.keeper.signal(1, 9).await.unwrap();
    assert_eq!(pod.ended(1).await.code, 137);
}

#[tokio::test]
async fn containers_of_a_pod_share_its_namespaces() {
    let mut pod = Pod::start();
    let sysctls = BTreeMap::from([("kernel.shm_rmid_forced".to_owned(), "1".to_owned())]);
    let sandbox = Sandbox { hostname: "web-0".into(), sysctls, ..Sandbox::default() };
    pod.make_sandbox(&sandbox).await;
    let init = pod.keeper.launch(50, &sandbox::init(None), &[]).await.unwrap();
    pod.init = Some(init.pidfd);
    let event = pod.next().await;
    assert!(matches!(event.what, Happened::Started), "{event:?}");
    let script = "hostname; cat /proc/sys/kernel/shm_rmid_forced /proc/sys/net/ipv4/ip_unprivileged_port_start; \
        ls /sys/class/net; cat /sys/class/net/lo/flags; echo self $$; cat /proc/1/status | grep -E '^(Uid|CapBnd)'; ls -l /proc/1/fd | wc -l";
    let mut container = pod.container(script);
    (container.network, container.ipc, container.pid) = (Scope::Pod, Scope::Pod, Scope::Pod);
    pod.start_container(1, &container).await;
    pod.ended(1).await;
    let lines = pod.printed();
    let all = lines.join("\n");
    assert_eq!(lines[..4], ["web-0", "1", "0", "lo"], "{all}");
    assert_eq!(lines[4], "0x9", "lo is up:\n{all}");
    assert!(lines.iter().any(|line| line == "self 2"), "{all}");
    assert!(all.contains("CapBnd:\t0000000000000000") && all.contains("Uid:\t65535"), "{all}");
    pod.keeper.signal(50, 9).await.unwrap();
    pod.ended(50).await;
}

#[tokio::test]
async fn volumes_are_as_writable_as_they_were_given() {
    let mut pod = Pod::start();
    let volume = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::write(volume.path().join("file"), "text").unwrap();
    let bind = |is_read_only| Bind {
        source: volume.path().to_owned(),
        layers: None,
        is_mapped: false,
        is_read_only,
        flags: 0,
        is_recursively_read_only: is_read_only,
        propagation: Propagation::Private,
    };
    let file = Bind { source: volume.path().join("file"), ..bind(true) };
    pod.binds = vec![bind(false), bind(true), file];
    let mut container = pod.container("cat /made/here/file; echo x > /made/here/new && echo ok; (echo x > /ro/new) 2>/dev/null || echo refused; cat /one/file");
    container.mounts = [("/made/here", Target::Dir), ("/ro", Target::Dir), ("/one/file", Target::File)]
        .map(|(path, target)| Mount { path: path.into(), target })
        .into();
    container.is_root_readonly = true;
    pod.start_container(1, &container).await;
    pod.ended(1).await;
    assert_eq!(pod.printed().join(" "), "textok refused text");
    assert_eq!(fs::read_to_string(volume.path().join("new")).unwrap(), "x\n");
}

#[tokio::test]
async fn a_port_of_the_pod_is_reached_from_inside() {
    let mut pod = Pod::start();
    pod.make_sandbox(&Sandbox::default()).await;
    let network = pod.namespaces.remove(&namespace::NETWORK).unwrap();
    // Nobody listens in the Pod, but the namespace is not ours: what we listen on is not found.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let dial = sandbox::dial(Some(runtime_core::recipe::Slot(0)), port);
    pod.keeper.launch(1, &dial, &[network.as_fd()]).await.unwrap();
    let event = pod.next().await;
    let Happened::Failed { why, .. } = event.what else { panic!("{event:?}") };
    assert_eq!(why.kind(), std::io::ErrorKind::ConnectionRefused);
    let dial = sandbox::dial(None, port);
    pod.keeper.launch(2, &dial, &[]).await.unwrap();
    let event = pod.next().await;
    let Happened::Held(Some(socket)) = event.what else { panic!("{event:?}") };
    let (mut server, _) = listener.accept().unwrap();
    std::io::Write::write_all(&mut server, b"hello").unwrap();
    let mut buffer = [0; 5];
    std::io::Read::read_exact(&mut std::net::TcpStream::from(socket), &mut buffer).unwrap();
    assert_eq!(&buffer, b"hello");
}
