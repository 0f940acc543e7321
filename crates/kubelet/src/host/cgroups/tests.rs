#![allow(clippy::unwrap_used)]

use fixture::{FakeSystemd, Mood};

use super::*;

fn rules() -> Rules {
    Rules {
        cfs_quota: true,
        cfs_period: Duration::from_millis(100),
        exclusive_cpus: false,
        reserves_memory: false,
        pids: Some(100),
        hugepage_sizes: Vec::new(),
    }
}

fn pod(uid: &str, resources: &str) -> Pod {
    let text = format!(
        r#"{{"metadata":{{"uid":"{uid}"}},"spec":{{"containers":[{{"name":"a","resources":{resources}}}]}}}}"#
    );
    serde_json::from_str(&text).unwrap()
}

/// The real hierarchies, below a cgroup of this test's own; none where we may not make one.
async fn open(root: &str, systemd: Option<Places>) -> Option<NodeCgroups> {
    let hand = Hierarchies::find().ok()?;
    hand.make(root).ok()?;
    let all = cgroup::all_pods(root).unwrap();
    Some(NodeCgroups::open(hand, systemd, all, rules()).await.unwrap())
}

#[tokio::test]
async fn a_pod_is_bounded_remembered_and_taken_away() {
    let root = format!("longshore-kubelet-{}", std::process::id());
    let Some(cgroups) = open(&root, None).await else { return };
    cgroups.enforce(&Limits { memory: Some(8 << 30), ..Limits::default() }).await.unwrap();
    let guaranteed =
        pod("g", r#"{"limits":{"cpu":"1","memory":"64Mi"},"requests":{"cpu":"1","memory":"64Mi"}}"#);
    let burstable = pod("b", r#"{"requests":{"cpu":"500m"}}"#);
    assert_eq!(cgroups.ensure(&guaranteed).await.unwrap(), format!("/{root}/kubepods/podg"));
    assert_eq!(cgroups.ensure(&burstable).await.unwrap(), format!("/{root}/kubepods/burstable/podb"));
    let hand = cgroups.0.hand.clone();
    let v1 = hand.version() == Version::V1;
    let read = |name: &str, controller: &str, old: &str, new: &str| {
        let file = if v1 { old } else { new };
        hand.read(&format!("{root}/kubepods/{name}"), controller, file).unwrap().unwrap()
    };
    assert_eq!(read("podg", "memory", "memory.limit_in_bytes", "memory.max"), (64 << 20).to_string());
    assert_eq!(read("podg", "pids", "pids.max", "pids.max"), "100");
    let quota = read("podg", "cpu", "cpu.cfs_quota_us", "cpu.max");
    assert_eq!(quota, if v1 { "100000" } else { "100000 100000" });
    let shares = |name: &str| read(name, "cpu", "cpu.shares", "cpu.weight");
    let want = |shares: i64| if v1 { shares } else { cgroup::weight(shares) }.to_string();
    assert_eq!((shares("burstable"), shares("besteffort")), (want(512), want(2)));

    // What it is bounded to is read back, and moved while it is there.
    let bounds = cgroups.bounds(&guaranteed).await.unwrap().unwrap();
    assert_eq!((bounds.now.cpu_quota, bounds.now.memory), (Some((100_000, 100_000)), Some(64 << 20)));
    assert_eq!((bounds.now.memory, bounds.now.cpu_quota), (bounds.next.memory, bounds.next.cpu_quota));
    assert_eq!(bounds.memory_used, Some(0));
    let free = cgroups.bounds(&burstable).await.unwrap().unwrap().now;
    assert_eq!((free.cpu_quota, free.memory), (Some((-1, 100_000)), None));
    let more = pod("b", r#"{"requests":{"cpu":"1"},"limits":{"cpu":"2","memory":"1Gi"}}"#);
    let next = cgroups.bounds(&more).await.unwrap().unwrap().next;
    cgroups.bound(&more, &next).await.unwrap();
    assert_eq!((shares("burstable/podb"), shares("burstable")), (want(1024), want(1024)));
    let grown = cgroups.bounds(&more).await.unwrap().unwrap().now;
    assert_eq!((grown.cpu_quota, grown.memory), (Some((200_000, 100_000)), Some(1 << 30)));
    let less = Limits { cpu_shares: Some(512), cpu_quota: Some((-1, 100_000)), ..Limits::default() };
    cgroups.bound(&burstable, &less).await.unwrap();
    assert_eq!((shares("burstable/podb"), shares("burstable")), (want(512), want(512)));

    // Another life of the agent finds them again.
    let again = NodeCgroups::open(hand.clone(), None, cgroups.0.all.clone(), rules()).await.unwrap();
    assert_eq!(again.known().await.unwrap(), [PodUid::from("g"), PodUid::from("b")]);
    again.ensure(&pod("c", r#"{"requests":{"cpu":"1"}}"#)).await.unwrap();
    assert_eq!(shares("burstable"), want(1536));

    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    hand.write(&format!("{root}/kubepods/podg"), "pids", "cgroup.procs", &child.id().to_string()).unwrap();
    let reaper = std::thread::spawn(move || child.wait());
    for uid in ["g", "b", "c"] {
        again.remove(&PodUid::from(uid)).await.unwrap();
    }
    reaper.join().unwrap().unwrap();
    assert_eq!(again.known().await.unwrap(), []);
    assert_eq!(shares("burstable"), want(2));
    hand.remove(&root).unwrap();
}

#[tokio::test]
async fn what_is_kept_back_bounds_a_cgroup_that_is_there() {
    let root = format!("longshore-kept-{}", std::process::id());
    let Some(cgroups) = open(&root, None).await else { return };
    let kept = Limits { cpu_shares: Some(512), memory: Some(1 << 30), ..Limits::default() };
    let error = cgroups.hold_existing(&format!("/{root}/kube"), &kept).await.unwrap_err().to_string();
    assert!(error.contains(&format!("[\"{root}\" \"kube\"]")), "{error}");
    let hand = cgroups.0.hand.clone();
    hand.make(&format!("{root}/kube")).unwrap();
    let nothing = cgroups.hold_existing(&format!("/{root}/kube"), &Limits::default()).await;
    assert!(nothing.unwrap_err().to_string().ends_with("cgroup is not configured properly"));
    cgroups.hold_existing(&format!("/{root}/kube"), &kept).await.unwrap();
    let v1 = hand.version() == Version::V1;
    let file = if v1 { "memory.limit_in_bytes" } else { "memory.max" };
    let memory = hand.read(&format!("{root}/kube"), "memory", file).unwrap();
    assert_eq!(memory, Some((1 << 30).to_string()));
    hand.remove(&root).unwrap();
}

/// systemd is a fake that keeps units and makes no cgroup; the cgroups are the kernel's.
#[tokio::test]
async fn slices_are_asked_for_and_bounded() {
    let root = format!("longshore_slices_{}", std::process::id());
    let dir = tempfile::tempdir().unwrap();
    let fake = FakeSystemd::start(dir.path()).unwrap();
    let places = Places { bus: fake.socket().to_owned(), ..Places::default() };
    let Some(cgroups) = open(&format!("{root}.slice"), Some(places.clone())).await else { return };
    cgroups.enforce(&Limits { memory: Some(8 << 30), ..Limits::default() }).await.unwrap();
    let top = format!("{root}.slice-kubepods");
    let of_all = fake.unit(&format!("{top}.slice")).unwrap();
    assert!(of_all.values().any(|value| *value == (8_i64 << 30).to_string()), "{of_all:?}");

    let burstable = pod("b-1", r#"{"requests":{"cpu":"500m"}}"#);
    let slice = format!("{top}-burstable-podb_1.slice");
    let parent = cgroups.ensure(&burstable).await.unwrap();
    assert_eq!(parent, format!("/{root}.slice.slice/{top}.slice/{top}-burstable.slice/{slice}"));
    let hand = cgroups.0.hand.clone();
    assert!(hand.exists(&parent[1..]));
    assert_eq!(hand.read(&parent[1..], "pids", "pids.max").unwrap().unwrap(), "100");
    let given = fake.unit(&slice).unwrap();
    assert_eq!(given["TasksMax"], "100");
    let v1 = hand.version() == Version::V1;
    let (name, want) = if v1 { ("CPUShares", 512) } else { ("CPUWeight", cgroup::weight(512)) };
    assert_eq!(given[name], want.to_string());
    assert_eq!(fake.unit(&format!("{top}-burstable.slice")).unwrap()[name], want.to_string());

    // One whose limits could not be set is not taken for finished.
    fake.set_mood(Mood::Ends("failed"));
    let other = pod("c", "{}");
    assert!(cgroups.ensure(&other).await.is_err());
    fake.set_mood(Mood::Well);
    cgroups.ensure(&other).await.unwrap();

    // Another life of the agent finds them, and asks for nothing that runs to be stopped.
    let _before = fake.asked();
    let again = NodeCgroups::open(hand.clone(), Some(places), cgroups.0.all.clone(), rules()).await.unwrap();
    assert_eq!(again.known().await.unwrap(), [PodUid::from("b-1"), PodUid::from("c")]);
    assert!(fake.asked().iter().all(|call| !call.starts_with("Stop")));

    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    hand.write(&parent[1..], "pids", "cgroup.procs", &child.id().to_string()).unwrap();
    let reaper = std::thread::spawn(move || child.wait());
    for uid in ["b-1", "c", "unknown"] {
        again.remove(&PodUid::from(uid)).await.unwrap();
    }
    reaper.join().unwrap().unwrap();
    assert_eq!(again.known().await.unwrap(), []);
    assert_eq!(fake.unit(&slice), None);
    assert!(!hand.is_anywhere(&parent[1..]));
    let stops = fake.asked().iter().filter(|call| call.starts_with("Stop")).count();
    assert_eq!(stops, 2, "only what was there is stopped");
    hand.remove(&format!("{root}.slice.slice")).unwrap();
    hand.remove(&format!("{root}.slice")).unwrap();
}

#[tokio::test]
async fn what_a_crash_left_without_limits_gets_them() {
    let root = format!("longshore-kubelet-crash-{}", std::process::id());
    let Some(cgroups) = open(&root, None).await else { return };
    let hand = cgroups.0.hand.clone();
    // As far as an agent came that was killed.
    hand.make(&format!("{root}/kubepods/podg")).unwrap();
    let guaranteed =
        pod("g", r#"{"limits":{"cpu":"1","memory":"64Mi"},"requests":{"cpu":"1","memory":"64Mi"}}"#);
    cgroups.ensure(&guaranteed).await.unwrap();
    let file = if hand.version() == Version::V1 { "memory.limit_in_bytes" } else { "memory.max" };
    let bound = hand.read(&format!("{root}/kubepods/podg"), "memory", file).unwrap().unwrap();
    assert_eq!(bound, (64 << 20).to_string());
    cgroups.remove(&PodUid::from("g")).await.unwrap();
    for name in ["kubepods/burstable", "kubepods/besteffort", "kubepods", ""] {
        hand.remove(format!("{root}/{name}").trim_end_matches('/')).unwrap();
    }
}
