//! A real keeper with real processes: the machine's own programs in a copy of its root.
#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use runtime::keeper::{Event, Happened, Keeper, Program};
use runtime_core::message::{Exit, State};
use runtime_core::recipe::{Capabilities, Launch, Op, Slot, Target};
use sys::detached::{self, Change, Propagation};
use tokio::sync::mpsc;

const NEW_NAMESPACES: u64 = (libc_flags::NEWNS | libc_flags::NEWPID) as u64;
const DEADLINE: Duration = Duration::from_secs(60);

mod libc_flags {
    pub(super) const NEWNS: u32 = 0x0002_0000;
    pub(super) const NEWPID: u32 = 0x2000_0000;
}

struct Pod {
    dir: tempfile::TempDir,
    keeper: Keeper,
    events: mpsc::Receiver<Event>,
}

/// What goes along with a recipe.
#[derive(Default)]
struct Slots(Vec<OwnedFd>);

impl Slots {
    fn add(&mut self, fd: impl Into<OwnedFd>) -> Slot {
        self.0.push(fd.into());
        Slot(self.0.len() as u32 - 1)
    }

    fn all(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().map(AsFd::as_fd).collect()
    }
}

impl Pod {
    fn start() -> Pod {
        let dir = tempfile::tempdir().unwrap();
        let at = sys::fd::open_dir(dir.path()).unwrap();
        let (keeper, events) = Keeper::start(&Program::seal().unwrap(), at, OsStr::new("keeper")).unwrap();
        Pod { dir, keeper, events }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn log_file(&self) -> File {
        File::options().append(true).create(true).open(self.dir.path().join("log")).unwrap()
    }

    async fn next(&mut self) -> Event {
        tokio::time::timeout(DEADLINE, self.events.recv()).await.unwrap().unwrap()
    }

    async fn ended(&mut self, job: u32) -> Exit {
        loop {
            let event = self.next().await;
            match event.what {
                Happened::Exited(exit) if event.job == job => return exit,
                Happened::Failed { op, why } => panic!("op {op}: {why}"),
                _ => {}
            }
        }
    }

    /// Runs a shell command until it has ended.
    async fn run(&mut self, job: u32, command: &str, more: Vec<Op>) -> Exit {
        let mut slots = Slots::default();
        let launch = shell(&mut slots, self.log_file(), command, more);
        self.keeper.launch(job, &launch, &slots.all()).await.unwrap();
        let exit = self.ended(job).await;
        self.keeper.acknowledge(job).await.unwrap();
        exit
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let dir = sys::fd::open_dir(self.dir.path()).unwrap();
        if let Ok(socket) = sys::message::connect(dir, OsStr::new("keeper")) {
            let quit = runtime_core::message::encode(runtime_core::message::Ask::Quit, 0, 0);
            let _ = sys::message::send(socket, &quit, &[]);
        }
    }
}

/// A copy of the machine's root that cannot be written to, and mounts of which do not come back.
fn root() -> OwnedFd {
    let root = detached::copy(sys::fd::open_dir(Path::new("/")).unwrap(), true).unwrap();
    let change = Change { propagation: Some(Propagation::Private), ..Change::default() };
    detached::change(&root, change, true).unwrap();
    root
}

fn shell(slots: &mut Slots, log: File, command: &str, more: Vec<Op>) -> Launch {
    let mut ops = vec![Op::Root(slots.add(root()))];
    ops.push(Op::FsMount { kind: "proc", target: "/proc".into(), attributes: 0xe, settings: vec![] });
    ops.extend(more);
    ops.extend([Op::Pivot, Op::ChDir(b"/".to_vec())]);
    ops.push(Op::Exec {
        candidates: vec![b"/nowhere/sh".to_vec(), b"/bin/sh".to_vec()],
        arguments: vec![b"sh".to_vec(), b"-c".to_vec(), command.as_bytes().to_vec()],
        environment: vec![b"PATH=/usr/bin:/bin".to_vec(), b"GREETING=hello".to_vec()],
    });
    let log = Some(slots.add(log));
    Launch { namespaces: NEW_NAMESPACES, log, ops, ..Launch::default() }
}

#[tokio::test]
async fn what_is_printed_is_logged_and_the_exit_code_kept() {
    let mut pod = Pod::start();
    let exit = pod.run(1, "echo $GREETING; echo oops >&2; printf tail; exit 3", vec![]).await;
    assert_eq!((exit.code, exit.killed_for_memory), (3, 0));
    let log = pod.log();
    let lines: Vec<&str> = log.lines().map(|line| line.split_once(' ').unwrap().1).collect();
    assert_eq!(lines.len(), 3, "{log}");
    for want in ["stdout F hello", "stderr F oops", "stdout F tail"] {
        assert!(lines.contains(&want), "{log}");
    }
}

#[tokio::test]
async fn a_program_sees_nothing_of_who_made_it() {
    let mut pod = Pod::start();
    // The last one takes the shell's place: a shell blocks signals while it waits for a child.
    let command = "echo pid $$; for f in /proc/self/fd/*; do echo fd ${f##*/}; done; readlink /proc/1/exe; exec cat /proc/1/status";
    assert_eq!(pod.run(1, command, vec![]).await.code, 0);
    let log = pod.log();
    assert!(log.contains(" pid 1\n"), "{log}");
    // The shell itself opens the directory, and nothing else.
    let fds: Vec<u32> = log.lines().filter_map(|l| l.split_once(" fd ")?.1.parse().ok()).collect();
    assert!(fds.iter().all(|fd| *fd < 4), "{fds:?}");
    for want in ["SigIgn:\t0000000000000000", "SigBlk:\t0000000000000000"] {
        assert!(log.contains(want), "{log}");
    }
    assert!(!log.contains("memfd"), "{log}");
}

#[tokio::test]
async fn what_is_refused_is_told_by_its_op() {
    let mut pod = Pod::start();
    let mut slots = Slots::default();
    let missing = Op::ChDir(b"/this/is/not/there".to_vec());
    let launch = shell(&mut slots, pod.log_file(), "true", vec![missing.clone()]);
    pod.keeper.launch(7, &launch, &slots.all()).await.unwrap();
    let Event { job: 7, what: Happened::Failed { op, why } } = pod.next().await else { panic!() };
    assert_eq!(launch.ops[op as usize], missing);
    assert_eq!(why.kind(), std::io::ErrorKind::NotFound);
    // It is gone, and its number is free.
    assert!(pod.keeper.list().await.unwrap().0.is_empty());
    assert_eq!(pod.run(7, "true", vec![]).await.code, 0);
}

#[tokio::test]
async fn a_daemon_that_comes_back_finds_everything() {
    let mut pod = Pod::start();
    let mut slots = Slots::default();
    let command = "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; exit 9";
    let launch = shell(&mut slots, pod.log_file(), command, vec![]);
    pod.keeper.launch(1, &launch, &slots.all()).await.unwrap();
    drop(slots);
    let at = sys::fd::open_dir(pod.dir.path()).unwrap();
    (pod.keeper, pod.events) = Keeper::connect(at, OsStr::new("keeper")).unwrap();
    let (jobs, exits) = pod.keeper.list().await.unwrap();
    let exit = match jobs[0].state {
        State::Exited => exits[0].1,
        _ => pod.ended(1).await,
    };
    assert_eq!(exit.code, 9);
    assert_eq!(pod.log().lines().count(), 2000);
    // Not acknowledged: the next one hears of it too.
    assert_eq!(pod.keeper.list().await.unwrap().1.len(), 1);
    pod.keeper.acknowledge(1).await.unwrap();
    assert!(pod.keeper.list().await.unwrap().0.is_empty());
}

#[tokio::test]
async fn a_signal_ends_the_process_and_its_namespace() {
    let mut pod = Pod::start();
    let mut slots = Slots::default();
    let launch = shell(&mut slots, pod.log_file(), "sleep 1000 & echo ready; wait", vec![]);
    pod.keeper.launch(1, &launch, &slots.all()).await.unwrap();
    let Happened::Started = pod.next().await.what else { panic!() };
    pod.keeper.signal(1, 9).await.unwrap();
    assert_eq!(pod.ended(1).await.code, 137);
}

#[tokio::test]
async fn capabilities_users_and_limits_are_what_the_recipe_says() {
    let mut pod = Pod::start();
    let net_bind = 1 << 10;
    let sets =
        Capabilities { permitted: net_bind, effective: net_bind, inheritable: net_bind, ambient: net_bind };
    let more = vec![
        Op::Bounding(net_bind),
        Op::Rlimit(7, 123, 456),
        Op::Umask(0o077),
        Op::User { user: 1234, group: 55, groups: vec![55, 66] },
        Op::Capabilities(sets),
        Op::NoNewPrivileges,
    ];
    // Pivoting needs a privilege, so here the program stays in the keeper's mounts until then.
    let mut slots = Slots::default();
    let mut launch =
        shell(&mut slots, pod.log_file(), "id -u; id -G; ulimit -n; umask; cat /proc/self/status", vec![]);
    let exec = launch.ops.pop().unwrap();
    launch.ops.extend(more);
    launch.ops.push(exec);
    pod.keeper.launch(1, &launch, &slots.all()).await.unwrap();
    assert_eq!(pod.ended(1).await.code, 0);
    let log = pod.log();
    for want in [
        "F 1234\n",
        "F 55 66\n",
        "F 123\n",
        "F 0077\n",
        "CapEff:\t0000000000000400",
        "CapBnd:\t0000000000000400",
        "NoNewPrivs:\t1",
    ] {
        assert!(log.contains(want), "{want:?} in {log}");
    }
}

#[tokio::test]
async fn masked_paths_are_hidden_and_read_only_ones_cannot_be_written() {
    let mut pod = Pod::start();
    let more = vec![
        Op::Mask(b"/proc/uptime".to_vec()),
        Op::Mask(b"/proc/scsi".to_vec()),
        Op::Mask(b"/proc/not/there".to_vec()),
        Op::ReadOnly(b"/proc/sys".to_vec()),
    ];
    let command = "cat /proc/uptime | wc -c; ls /proc/scsi 2>/dev/null | wc -l; echo 1 > /proc/sys/kernel/domainname || echo refused";
    pod.run(1, command, more).await;
    let log = pod.log();
    let lines: Vec<&str> = log.lines().filter_map(|l| l.split_once(" F ").map(|(_, t)| t)).collect();
    assert_eq!(lines[..2], ["0", "0"], "{log}");
    assert!(lines.contains(&"refused"), "{log}");
}

#[tokio::test]
async fn a_mask_does_not_trust_the_null_device_of_the_image() {
    let mut pod = Pod::start();
    let mut slots = Slots::default();
    // /dev/null is a directory entry of the image that leads to a file of the host.
    let dev = detached::new("tmpfs", &[("mode", "0755")], 0).unwrap();
    rustix::fs::symlinkat("/etc/passwd", &dev, "null").unwrap();
    let dev = slots.add(dev);
    let more = vec![Op::Attach(dev, Target::Dir, b"/dev".to_vec()), Op::Mask(b"/proc/uptime".to_vec())];
    let launch = shell(&mut slots, pod.log_file(), "true", more);
    pod.keeper.launch(1, &launch, &slots.all()).await.unwrap();
    let Happened::Failed { op, .. } = pod.next().await.what else { panic!() };
    assert_eq!(launch.ops[op as usize], Op::Mask(b"/proc/uptime".to_vec()));
}

#[tokio::test]
async fn a_mount_whose_target_is_a_link_stays_inside_the_root() {
    let mut pod = Pod::start();
    let outside = tempfile::tempdir().unwrap();
    let (tree, volume) =
        (detached::new("tmpfs", &[("mode", "0755")], 0).unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(volume.path().join("secret"), "of the volume").unwrap();
    // As in CVE-2019-16884 and CVE-2021-30465: the image says that its directory is one of the host.
    rustix::fs::symlinkat(outside.path(), &tree, "data").unwrap();
    rustix::fs::symlinkat("../../../../..", &tree, "up").unwrap();
    let mut slots = Slots::default();
    let (tree, out) = (slots.add(tree), File::create(outside.path().join("proof")).unwrap());
    drop(out);
    let bind = |slots: &mut Slots| {
        slots.add(detached::copy(sys::fd::open_dir(volume.path()).unwrap(), true).unwrap())
    };
    let (first, second) = (bind(&mut slots), bind(&mut slots));
    let ops = vec![
        Op::Root(tree),
        Op::Attach(first, Target::Dir, b"/up/made/here".to_vec()),
        Op::Attach(second, Target::Dir, b"/data".to_vec()),
        Op::Pivot,
        Op::Exit(0),
    ];
    let launch = Launch { namespaces: NEW_NAMESPACES, ops, ..Launch::default() };
    pod.keeper.launch(1, &launch, &slots.all()).await.unwrap();
    let event = pod.next().await;
    // Either it is refused or it is attached inside; in no case does the host's directory change.
    assert!(
        matches!(event.what, Happened::Failed { .. } | Happened::Started | Happened::Exited(_)),
        "{event:?}"
    );
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
    assert!(!Path::new("/made").exists());
}

#[tokio::test]
async fn a_shared_pid_namespace_has_a_first_process_that_reaps() {
    let mut pod = Pod::start();
    let init = Launch { namespaces: libc_flags::NEWPID.into(), ops: vec![Op::Reap], ..Launch::default() };
    let init = pod.keeper.launch(1, &init, &[]).await.unwrap();
    let mut slots = Slots::default();
    let command = "echo pid $$; (sleep 0.1 & ); sleep 0.5; cat /proc/[0-9]*/stat | grep -c ' Z ' ; readlink /proc/1/cwd || echo closed";
    let mut launch = shell(&mut slots, pod.log_file(), command, vec![]);
    launch.pid_namespace = Some(slots.add(init.pidfd));
    launch.namespaces = libc_flags::NEWNS.into();
    pod.keeper.launch(2, &launch, &slots.all()).await.unwrap();
    pod.ended(2).await;
    let log = pod.log();
    assert!(log.contains("pid 2\n") && log.contains(" F 0\n"), "{log}");
    pod.keeper.signal(1, 9).await.unwrap();
    assert_eq!(pod.ended(1).await.code, 137);
}

#[tokio::test]
async fn a_held_process_waits_until_it_is_released() {
    let mut pod = Pod::start();
    let launch = Launch { ops: vec![Op::Hold(1), Op::Exit(4)], ..Launch::default() };
    let launched = pod.keeper.launch(1, &launch, &[]).await.unwrap();
    let Happened::Held(None) = pod.next().await.what else { panic!() };
    assert!(Path::new(&format!("/proc/{}/ns/net", launched.pid)).exists());
    pod.keeper.release(1).await.unwrap();
    assert_eq!(pod.ended(1).await.code, 4);
}

#[tokio::test]
async fn who_is_attached_reads_along_and_who_is_slow_holds_up_nobody() {
    let mut pod = Pod::start();
    let mut slots = Slots::default();
    let command = "read x; echo got $x; head -c 3000000 /dev/zero | tr '\\0' 'x'; echo; exit 5";
    let mut launch = shell(&mut slots, pod.log_file(), command, vec![]);
    launch.has_input = true;
    pod.keeper.launch(1, &launch, &slots.all()).await.unwrap();
    let Happened::Started = pod.next().await.what else { panic!() };
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    pod.keeper.tee(1, &[theirs.as_fd()]).await.unwrap();
    drop(theirs);
    let mut input = File::from(pod.keeper.input(1).await.unwrap());
    pod.keeper.close_input(1).await.unwrap();
    std::io::Write::write_all(&mut input, b"word\n").unwrap();
    drop(input);
    assert_eq!(pod.ended(1).await.code, 5);
    let mut seen = Vec::new();
    ours.read_to_end(&mut seen).unwrap();
    assert!(seen.starts_with(b"got word\n"));
    assert!(seen.len() < 3_000_000, "a slow reader loses");
    let text: usize = pod.log().lines().filter_map(|l| Some(l.split_once(" stdout ")?.1.len() - 2)).sum();
    assert_eq!(text, "got word".len() + 3_000_000, "the log does not");
}

#[tokio::test]
async fn a_recipe_of_another_version_is_refused() {
    let pod = Pod::start();
    let mut bytes = runtime_core::recipe::encode(&Launch::default()).unwrap();
    bytes[4] = 99;
    let (dir, len) = (sys::fd::open_dir(pod.dir.path()).unwrap(), bytes.len() as u32);
    let socket = sys::message::connect(dir, OsStr::new("keeper")).unwrap();
    let recipe = sys::sealed::file("test", &bytes, sys::sealed::Use::Data).unwrap();
    let ask = runtime_core::message::encode(runtime_core::message::Ask::Launch { len }, 1, 1);
    sys::message::send(&socket, &ask, &[recipe.as_fd()]).unwrap();
    let mut buffer = [0; 64];
    let limit = std::time::Instant::now() + DEADLINE;
    let n = loop {
        match sys::message::receive(&socket, &mut buffer) {
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock && std::time::Instant::now() < limit => {
                tokio::task::yield_now().await;
            }
            other => break other.unwrap().0,
        }
    };
    let told = runtime_core::message::decode(&buffer[..n]).unwrap();
    assert_eq!(told.what, runtime_core::message::Tell::Refused(22));
}
