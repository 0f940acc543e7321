//! Slices of a real systemd, read back from the kernel. It takes a machine whose first process is systemd, with cgroups
//! of version 2: `cargo xtask vm` has one.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use base::ids::PodUid;
use k8s_openapi::api::core::v1::Pod;
use kubelet::agent::Places;
use kubelet::host::cgroups::NodeCgroups;
use kubelet::ports::Cgroups;
use kubelet_core::cgroup::{Limits, Rules, all_pods};
use sys::cgroup::{Hierarchies, Version};

/// The hierarchy, on a machine of systemd's.
fn hierarchy() -> Option<Hierarchies> {
    let first = std::fs::read_to_string("/proc/1/comm").unwrap_or_default();
    let hand = Hierarchies::find().ok().filter(|hand| hand.version() == Version::V2);
    let fit = hand.filter(|_| first.trim() == "systemd" && Path::new("/run/systemd/private").exists());
    if fit.is_none() {
        let needs = std::env::var_os("LONGSHORE_SKIPS_NOTHING").is_some();
        assert!(!needs, "the first process is {first:?}, and cgroups of version 2 are needed");
    }
    fit
}

fn rules() -> Rules {
    Rules {
        cfs_quota: true,
        cfs_period: Duration::from_millis(100),
        exclusive_cpus: false,
        reserves_memory: false,
        pids: Some(100),
        hugepage_sizes: vec!["2MB".to_owned()],
    }
}

async fn open(hand: &Hierarchies, root: &str) -> NodeCgroups {
    let all = all_pods(root).unwrap();
    NodeCgroups::open(hand.clone(), Some(Places::default()), all, rules()).await.unwrap()
}

fn pod(uid: &str, resources: &str) -> Pod {
    let text = format!(
        r#"{{"metadata":{{"uid":"{uid}"}},"spec":{{"containers":[{{"name":"a","resources":{resources}}}]}}}}"#
    );
    serde_json::from_str(&text).unwrap()
}

const SMALL: &str = r#"{"limits":{"cpu":"125m","memory":"64Mi"},"requests":{"cpu":"125m","memory":"64Mi"}}"#;

/// A process where a runtime would put a container.
fn inhabit(hand: &Hierarchies, parent: &str) -> Child {
    let inner = format!("{}/cri-test.scope", parent.trim_start_matches('/'));
    hand.make(&inner).unwrap();
    let child = Command::new("sleep").arg("600").spawn().unwrap();
    assert!(hand.write(&inner, "pids", "cgroup.procs", &child.id().to_string()).unwrap());
    child
}

/// systemd reads its units again, and writes what it knows of them to the kernel.
fn reload() {
    assert!(Command::new("sh").args(["-c", "kill -HUP 1"]).status().unwrap().success());
}

/// systemd goes on as a new process, and everybody's connection to it breaks.
fn restart() {
    assert!(Command::new("sh").args(["-c", "kill -TERM 1"]).status().unwrap().success());
}

#[tokio::test]
async fn limits_reach_the_kernel_and_systemd_keeps_them() {
    let Some(hand) = hierarchy() else { return };
    let cgroups = open(&hand, "one").await;
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap().trim().to_owned();
    let whole = Limits {
        cpu_shares: Some(2048),
        memory: Some(1 << 30),
        pids: Some(900),
        cpus: Some(online.clone()),
        ..Limits::default()
    };
    cgroups.enforce(&whole).await.unwrap();
    let guaranteed = cgroups.ensure(&pod("g-1", SMALL)).await.unwrap();
    let burstable = cgroups.ensure(&pod("b-1", r#"{"requests":{"cpu":"500m"}}"#)).await.unwrap();
    let besteffort = cgroups.ensure(&pod("e-1", "{}")).await.unwrap();
    let top = "one.slice/one-kubepods.slice";
    assert_eq!(guaranteed, format!("/{top}/one-kubepods-podg_1.slice"));
    assert!(burstable.ends_with("/one-kubepods-burstable.slice/one-kubepods-burstable-podb_1.slice"));
    let held = |step: &str, sum: &str| {
        let (class, lowest) = (format!("/{top}/one-kubepods-burstable.slice"), "1");
        for (cgroup, file, want) in [
            (&*format!("/{top}"), "memory.max", "1073741824"),
            (&format!("/{top}"), "cpu.weight", "79"),
            (&format!("/{top}"), "pids.max", "900"),
            (&format!("/{top}"), "cpuset.cpus", &online),
            (&class, "cpu.weight", sum),
            (&format!("/{top}/one-kubepods-besteffort.slice"), "cpu.weight", lowest),
            // 12.5 hundredths are 13.
            (&guaranteed, "cpu.max", "13000 100000"),
            (&guaranteed, "memory.max", "67108864"),
            (&guaranteed, "pids.max", "100"),
            (&guaranteed, "cpu.weight", "5"),
            (&guaranteed, "hugetlb.2MB.max", "0"),
            (&burstable, "cpu.max", "max 100000"),
            (&burstable, "cpu.weight", "20"),
            (&burstable, "memory.max", "max"),
            (&besteffort, "cpu.weight", lowest),
        ] {
            let found = hand.read(&cgroup[1..], "", file).unwrap();
            assert_eq!(found.as_deref(), Some(want), "{step}: {file} of {cgroup}");
        }
    };
    held("made", "20");
    // systemd knows them, and does not take them back for what it thinks it knows.
    reload();
    let more = cgroups.ensure(&pod("b-2", r#"{"requests":{"cpu":"1"}}"#)).await.unwrap();
    held("read again", "59");
    assert_eq!(hand.read(&more[1..], "", "pids.max").unwrap().as_deref(), Some("100"));
    restart();
    cgroups.remove(&PodUid::from("b-2")).await.unwrap();
    held("restarted", "20");
    for uid in ["g-1", "b-1", "e-1"] {
        cgroups.remove(&PodUid::from(uid)).await.unwrap();
    }
    assert_eq!(cgroups.known().await.unwrap(), []);
}

#[tokio::test]
async fn what_runs_goes_on_running_until_its_pod_goes() {
    let Some(hand) = hierarchy() else { return };
    let first = open(&hand, "two").await;
    let parent = first.ensure(&pod("g-1", SMALL)).await.unwrap();
    let unit = Path::new("/run/systemd/transient/two-kubepods-podg_1.slice");
    assert!(unit.exists(), "the slice is no unit of systemd's");
    let mut child = inhabit(&hand, &parent);
    drop(first);
    // The next life of the agent, and a Pod of upstream's kubelet, look the same.
    let next = open(&hand, "two").await;
    assert_eq!(next.known().await.unwrap(), [PodUid::from("g-1")]);
    next.ensure(&pod("g-1", SMALL)).await.unwrap();
    assert!(child.try_wait().unwrap().is_none(), "a Pod did not survive a restart of the agent");

    let reaper = std::thread::spawn(move || child.wait());
    next.remove(&PodUid::from("g-1")).await.unwrap();
    reaper.join().unwrap().unwrap();
    assert!(!hand.is_anywhere(&parent[1..]));
    // systemd forgets units when it has nothing better to do.
    let until = Instant::now() + Duration::from_secs(30);
    while unit.exists() {
        assert!(Instant::now() < until, "systemd still knows the slice");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // A unit that is there without its cgroup, and a cgroup without its unit, do not stand in the way.
    let again = next.ensure(&pod("g-1", SMALL)).await.unwrap();
    assert_eq!(hand.read(&again[1..], "", "memory.max").unwrap().as_deref(), Some("67108864"));
    next.remove(&PodUid::from("g-1")).await.unwrap();
    hand.make(&parent[1..]).unwrap();
    assert_eq!(next.known().await.unwrap(), [PodUid::from("g-1")]);
    next.remove(&PodUid::from("g-1")).await.unwrap();
    assert_eq!(next.known().await.unwrap(), []);
}
