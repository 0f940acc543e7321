//! Containers come and go while daemon and keepers are killed: every exit code and every line is right, and nothing stays.
//!
//! A bounded number in the normal run; `LONGSHORE_CHURN=10000` for more.
#![allow(clippy::unwrap_used)]

mod support;

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cri::v1::{self, ContainerState};
use cri::{Client, Endpoint};
use support::{DEADLINE, Place, container, exited, kill_keeper};

/// Set for the process that is a daemon: the directory of its place.
const DAEMON: &str = "LONGSHORE_TEST_DAEMON";

fn wanted(usual: usize) -> usize {
    std::env::var("LONGSHORE_CHURN").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

#[tokio::test]
async fn many_that_end_at_once_are_all_told_as_they_were() {
    let mut place = Place::new();
    let client = place.start();
    let config = place.sandbox("fast");
    let sandbox = client.run_pod_sandbox(config.clone(), "").await.unwrap();
    let (next, total) = (AtomicUsize::new(0), wanted(120));
    let one = async || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= total {
                return;
            }
            let (name, code) = (format!("c{at}"), i32::try_from(at % 256).unwrap());
            let script = format!("echo of {at}; exit {code}");
            let id =
                client.create_container(&sandbox, container(&name, &script), config.clone()).await.unwrap();
            client.start_container(&id).await.unwrap();
            let status = exited(&client, &id).await;
            assert_eq!(status.exit_code, code, "{at}: {status:?}");
            assert_eq!(place.log("fast", &name), format!("of {at}"));
            client.remove_container(&id).await.unwrap();
        }
    };
    tokio::join!(one(), one(), one(), one());
    client.remove_pod_sandbox(&sandbox).await.unwrap();
    place.assert_clean().await;
}

/// Not a test: the process that [`DAEMON`] names a place for, killed by who started it.
#[test]
fn a_daemon_to_be_killed() {
    let Ok(dir) = std::env::var(DAEMON) else { return };
    let settings = support::settings_in(dir.as_ref());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let agent = runtime::Agent::open(settings).await.unwrap();
        agent.serve(tokio_util::sync::CancellationToken::new()).await.unwrap();
    });
}

/// Killed at the latest when the test ends.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(place: &Place) -> Daemon {
    let own = std::env::current_exe().unwrap();
    let child = Command::new(own)
        .args(["--exact", "a_daemon_to_be_killed", "--nocapture"])
        .env(DAEMON, place.dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Daemon(child)
}

async fn ready(place: &Place) -> Client {
    let until = Instant::now() + DEADLINE;
    loop {
        let client = Client::new(Endpoint::from(place.path("runtime.sock").as_path()), None, DEADLINE);
        if client.version().await.is_ok() {
            return client;
        }
        assert!(Instant::now() < until, "the daemon does not come back");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Containers that print and end with a code of their own, whatever happens to those who look after it.
async fn live(place: &Place, at: usize, count: usize) {
    let (mut done, pod) = (0, format!("pod{at}"));
    while done < count {
        let (config, name) = (place.sandbox(&format!("{pod}-{done}")), format!("c{done}"));
        let client = ready(place).await;
        // A call that was under way when the daemon was killed is made again, as a kubelet does it.
        let Ok(sandbox) = client.run_pod_sandbox(config.clone(), "").await else {
            remove(place, &config.metadata.unwrap().name).await;
            continue;
        };
        let code = i32::try_from((at * 50 + done) % 250 + 1).unwrap();
        let script =
            format!("n=0; while [ $n -lt 40 ]; do echo line $n; n=$((n+1)); sleep 0.01; done; exit {code}");
        let created = client.create_container(&sandbox, container(&name, &script), config.clone()).await;
        if let Ok(id) = created
            && (client.start_container(&id).await.is_ok() || has_started(place, &id).await)
        {
            let status = ended(place, &id).await;
            assert_eq!(status.exit_code, code, "{status:?}");
            check_log(&place.log(&format!("{pod}-{done}"), &name));
            done += 1;
        }
        remove(place, &config.metadata.unwrap().name).await;
    }
}

/// Whoever was killed before it could say that it had made it.
async fn remove(place: &Place, name: &str) {
    loop {
        let client = ready(place).await;
        let Ok(all) = client.list_pod_sandboxes(None).await else { continue };
        let ours = all.into_iter().filter(|s| s.metadata.as_ref().is_some_and(|m| m.name == name));
        let mut is_gone = true;
        for sandbox in ours {
            is_gone &= client.remove_pod_sandbox(&sandbox.id).await.is_ok();
        }
        if is_gone {
            return;
        }
    }
}

/// In order, none twice and none torn. A keeper that is killed may hold what it has read and not yet written.
fn check_log(log: &str) {
    let numbers: Vec<u32> =
        log.lines().map(|line| line.strip_prefix("line ").unwrap().parse().unwrap()).collect();
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{log}");
    assert!(numbers.len() >= 38, "{} lines:\n{log}", numbers.len());
}

async fn has_started(place: &Place, id: &str) -> bool {
    match ready(place).await.container_status(id).await {
        Ok(told) => told.status.is_some_and(|s| {
            s.state() == ContainerState::ContainerRunning
                || (s.state() == ContainerState::ContainerExited
                    && s.reason != "StartError"
                    && s.started_at > 0)
        }),
        Err(_) => false,
    }
}

async fn ended(place: &Place, id: &str) -> v1::ContainerStatus {
    let until = Instant::now() + DEADLINE;
    loop {
        if let Ok(told) = ready(place).await.container_status(id).await
            && let Some(status) = told.status.filter(|s| s.state() == ContainerState::ContainerExited)
        {
            return status;
        }
        assert!(Instant::now() < until, "{id} does not end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn nothing_is_lost_when_the_daemon_is_killed_again_and_again() {
    let mut place = Place::new();
    let mut daemon = Some(start(&place));
    let (each, kills, is_over) = (wanted(9).div_ceil(3), AtomicUsize::new(0), AtomicBool::new(false));
    {
        let place = &place;
        let killing = async {
            while !is_over.load(Ordering::Relaxed) {
                ready(place).await;
                // More slowly with time: a slow machine is to get somewhere, too.
                let at = kills.fetch_add(1, Ordering::Relaxed) as u64;
                tokio::time::sleep(Duration::from_millis(30 + at * 11 % 160 + at)).await;
                drop(daemon.take());
                daemon = Some(start(place));
            }
        };
        let living = async {
            tokio::join!(live(place, 0, each), live(place, 1, each), live(place, 2, each));
            is_over.store(true, Ordering::Relaxed);
        };
        tokio::join!(killing, living);
    }
    assert!(kills.into_inner() > each, "too few kills to say anything");
    drop(daemon);
    place.assert_clean().await;
}

#[tokio::test]
async fn no_exit_and_no_line_is_lost_when_keepers_are_killed() {
    let mut place = Place::new();
    let client = place.start();
    for at in 0..wanted(6).div_ceil(2) {
        let (pod, code) = (format!("k{at}"), 7 + i32::try_from(at % 200).unwrap());
        let config = place.sandbox(&pod);
        let sandbox = client.run_pod_sandbox(config.clone(), "").await.unwrap();
        // It goes on until it is told: to look for its keeper takes a moment.
        let script = format!(
            "n=0; while [ ! -e /dev/shm/go ] || [ $n -lt 40 ]; do echo line $n; n=$((n+1)); sleep 0.01; done; exit {code}"
        );
        let id = client.create_container(&sandbox, container("one", &script), config.clone()).await.unwrap();
        client.start_container(&id).await.unwrap();
        let until = Instant::now() + DEADLINE;
        while place.log(&pod, "one").lines().count() < 5 && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        kill_keeper(&place);
        std::fs::write(place.path("state/sandboxes").join(&sandbox).join("shm/go"), "").unwrap();
        let status = exited(&client, &id).await;
        assert_eq!(status.exit_code, code, "{status:?}");
        check_log(&place.log(&pod, "one"));
        client.remove_pod_sandbox(&sandbox).await.unwrap();
    }
    place.assert_clean().await;
}
