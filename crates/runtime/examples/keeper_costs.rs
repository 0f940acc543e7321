//! What a keeper costs, on this machine, now: memory of one that is idle, time of a launch, processor time of logs.
//!
//! Run as root: `cargo run -p runtime --example keeper_costs`. Only ratios between figures of one run mean anything.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use runtime::keeper::{Event, Happened, Keeper, Program};
use runtime_core::recipe::{Launch, Op, Slot};
use sys::detached::{self, Change, Propagation};
use tokio::sync::mpsc;

const NEW_NAMESPACES: u64 = 0x2002_0000;
const LAUNCHES: u32 = 200;
const LINES: u32 = 1_000_000;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let dir = tempfile::tempdir().unwrap();
    let at = sys::fd::open_dir(dir.path()).unwrap();
    let begun = Instant::now();
    let (keeper, mut events) = Keeper::start(&Program::seal().unwrap(), at, OsStr::new("keeper")).unwrap();
    keeper.list().await.unwrap();
    println!("sealed, started and answering: {:?}", begun.elapsed());
    let pid = keeper_of(&keeper, &mut events, dir.path()).await;
    println!("idle: {} kB of its own (PSS {} kB)", memory(pid, "Private_Dirty:"), memory(pid, "Pss:"));
    launches(&keeper, &mut events, dir.path()).await;
    let line = "x".repeat(99);
    let each = format!("awk 'BEGIN {{ for (i = 0; i < {LINES}; i++) {{ print \"{line}\"; fflush() }} }}'");
    logs("a write per line", &each, pid, &keeper, &mut events, dir.path()).await;
    let blocks = format!("yes {line} | head -n {LINES}");
    logs("writes of blocks", &blocks, pid, &keeper, &mut events, dir.path()).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    println!("idle again: {} kB of its own (PSS {} kB)", memory(pid, "Private_Dirty:"), memory(pid, "Pss:"));
    keeper.quit().await.unwrap();
}

/// Its process id, by the parent of what it launches.
async fn keeper_of(keeper: &Keeper, events: &mut mpsc::Receiver<Event>, dir: &Path) -> i32 {
    let launched = launch(keeper, 1, "sleep 0.2", dir).await;
    let stat = fs::read_to_string(format!("/proc/{launched}/stat")).unwrap();
    ended(events).await;
    keeper.acknowledge(1).await.unwrap();
    stat.rsplit(") ").next().unwrap().split(' ').nth(1).unwrap().parse().unwrap()
}

async fn launches(keeper: &Keeper, events: &mut mpsc::Receiver<Event>, dir: &Path) {
    let mut times = Vec::new();
    for job in 0..LAUNCHES {
        let begun = Instant::now();
        launch(keeper, 10 + job, "exit 0", dir).await;
        ended(events).await;
        keeper.acknowledge(10 + job).await.unwrap();
        times.push(begun.elapsed());
    }
    times.sort();
    let at = |percent: usize| times[times.len() * percent / 100];
    println!("launch of sh until its exit is known: min {:?}, p50 {:?}, p90 {:?}", times[0], at(50), at(90));
}

async fn logs(
    what: &str,
    script: &str,
    pid: i32,
    keeper: &Keeper,
    events: &mut mpsc::Receiver<Event>,
    dir: &Path,
) {
    let (before, begun) = (processor_time(pid), Instant::now());
    launch(keeper, 2, script, dir).await;
    ended(events).await;
    let (spent, wall) = (processor_time(pid) - before, begun.elapsed());
    keeper.acknowledge(2).await.unwrap();
    let text = fs::read(dir.join("log")).unwrap();
    let lines = text.iter().filter(|b| **b == b'\n').count();
    println!("{lines} lines of 100 bytes, {what}: {spent:.2} s of processor, {wall:?}");
    fs::remove_file(dir.join("log")).unwrap();
}

async fn launch(keeper: &Keeper, job: u32, script: &str, dir: &Path) -> i32 {
    let root = detached::copy(sys::fd::open_dir(Path::new("/")).unwrap(), true).unwrap();
    let private = Change { propagation: Some(Propagation::Private), ..Change::default() };
    detached::change(&root, private, true).unwrap();
    let log = File::options().append(true).create(true).open(dir.join("log")).unwrap();
    let fds: [OwnedFd; 2] = [root, log.into()];
    let exec = Op::Exec {
        candidates: vec![b"/bin/sh".to_vec()],
        arguments: vec![b"sh".to_vec(), b"-c".to_vec(), script.as_bytes().to_vec()],
        environment: vec![b"PATH=/usr/bin:/bin".to_vec()],
    };
    let ops = vec![Op::Root(Slot(0)), Op::Pivot, Op::ChDir(b"/".to_vec()), exec];
    let launch = Launch { namespaces: NEW_NAMESPACES, log: Some(Slot(1)), ops, ..Launch::default() };
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    keeper.launch(job, &launch, &borrowed).await.unwrap().pid
}

async fn ended(events: &mut mpsc::Receiver<Event>) {
    loop {
        match events.recv().await.unwrap().what {
            Happened::Exited(exit) if exit.code == 0 => return,
            Happened::Started => {}
            other => panic!("{other:?}"),
        }
    }
}

fn memory(pid: i32, what: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(what)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Seconds, to a hundredth, of the process alone.
fn processor_time(pid: i32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}
