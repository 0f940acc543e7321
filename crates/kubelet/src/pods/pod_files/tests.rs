#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// A directory of our own, gone at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("longshore-files-{}-{n}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Self(dir.canonicalize().unwrap())
    }

    fn files(&self) -> DiskPodFiles {
        let dirs = PodDirs {
            root: self.0.join("root"),
            pod_logs: self.0.join("logs"),
            container_logs: self.0.join("links"),
            node_hosts: self.0.join("hosts"),
            resolv_conf: Some(self.0.join("resolv.conf")),
        };
        DiskPodFiles::new(dirs, Rng::new(1))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn pod() -> Pod {
    serde_json::from_value(
        serde_json::json!({"metadata": {"name": "web", "namespace": "shop", "uid": "u-1"}}),
    )
    .unwrap()
}

fn bits(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[tokio::test]
async fn layout_and_modes() {
    let s = Scratch::new();
    let f = s.files();
    f.prepare(&pod()).await.unwrap();
    let hosts = f.write_hosts(&pod(), "first and long\n").await.unwrap();
    assert_eq!(f.write_hosts(&pod(), "x\n").await.unwrap(), hosts);
    assert_eq!(fs::read_to_string(&hosts).unwrap(), "x\n");
    let message = f.prepare_container(&pod(), "main").await.unwrap();
    let other = f.prepare_container(&pod(), "main").await.unwrap();
    assert_ne!(message, other);
    let pod_dir = s.0.join("root/pods/u-1");
    assert_eq!(message.parent().unwrap(), pod_dir.join("containers/main"));
    assert_eq!(message.file_name().unwrap().len(), 8);
    for (path, want) in [
        (pod_dir.clone(), 0o750),
        (pod_dir.join("volumes"), 0o750),
        (pod_dir.join("containers/main"), 0o750),
        (hosts, 0o644),
        (message, 0o666),
        (s.0.join("logs/shop_web_u-1"), 0o755),
        (s.0.join("logs/shop_web_u-1/main"), 0o755),
    ] {
        assert_eq!(bits(&path), want, "{}", path.display());
    }
    assert_eq!(f.log_directory(&pod()), s.0.join("logs/shop_web_u-1"));
}

#[tokio::test]
async fn the_directory_of_pods_may_be_a_link_of_the_operators() {
    let s = Scratch::new();
    let f = s.files();
    for dir in ["root", "data"] {
        fs::create_dir(s.0.join(dir)).unwrap();
    }
    symlink("../data", s.0.join("root/pods")).unwrap();
    f.prepare(&pod()).await.unwrap();
    let message = f.prepare_container(&pod(), "main").await.unwrap();
    assert!(message.starts_with(s.0.join("root/pods/u-1")), "{}", message.display());
    fs::write(&message, "last words").unwrap();
    assert_eq!(f.termination_message(message.to_str().unwrap()).await.unwrap(), "last words");
    let uid = base::ids::PodUid::from("u-1");
    f.save_status(&uid, &k8s_openapi::api::core::v1::PodStatus::default()).await.unwrap();
    assert!(f.load_status(&uid).await.unwrap().is_some());
    assert!(s.0.join("data/u-1/status.json").exists());
}

#[tokio::test]
async fn a_hosts_file_may_be_long() {
    let s = Scratch::new();
    fs::write(s.0.join("hosts"), vec![b'#'; 4 << 20]).unwrap();
    assert_eq!(s.files().node_hosts().await.unwrap().len(), 4 << 20);
}

#[tokio::test]
async fn a_planted_symlink_is_refused() {
    let s = Scratch::new();
    let f = s.files();
    f.prepare(&pod()).await.unwrap();
    let (pod_dir, secret) = (s.0.join("root/pods/u-1"), s.0.join("secret"));
    fs::write(&secret, "secret").unwrap();

    symlink(&secret, pod_dir.join("etc-hosts")).unwrap();
    assert!(f.write_hosts(&pod(), "x").await.is_err());
    assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");

    fs::create_dir(s.0.join("elsewhere")).unwrap();
    symlink(s.0.join("elsewhere"), pod_dir.join("containers")).unwrap();
    assert!(f.prepare_container(&pod(), "main").await.is_err());
    assert_eq!(fs::read_dir(s.0.join("elsewhere")).unwrap().count(), 0);

    symlink(&secret, pod_dir.join("message")).unwrap();
    let planted = pod_dir.join("message");
    assert!(f.termination_message(planted.to_str().unwrap()).await.is_err());
    assert!(f.termination_message(secret.to_str().unwrap()).await.is_err());
    let around = pod_dir.join("../../../secret");
    assert!(f.termination_message(around.to_str().unwrap()).await.is_err());

    symlink(&secret, s.0.join("logs/shop_web_u-1/0.log")).unwrap();
    let log = s.0.join("logs/shop_web_u-1/0.log");
    assert!(f.log_tail(log.to_str().unwrap()).await.is_err());
}

#[tokio::test]
async fn a_planted_fifo_hangs_nobody() {
    let s = Scratch::new();
    let f = s.files();
    f.prepare(&pod()).await.unwrap();
    let fifo = s.0.join("root/pods/u-1/fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o666), 0)
        .unwrap();
    assert!(f.termination_message(fifo.to_str().unwrap()).await.is_err());
}

#[tokio::test]
async fn of_a_message_of_a_terabyte_only_the_end_is_read() {
    let s = Scratch::new();
    let f = s.files();
    f.prepare(&pod()).await.unwrap();
    let path = s.0.join("root/pods/u-1/message");
    let mut file = fs::File::create(&path).unwrap();
    // A hole: no disk is filled for it.
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(1 << 40)).unwrap();
    std::io::Write::write_all(&mut file, b"the end").unwrap();
    let message = f.termination_message(path.to_str().unwrap()).await.unwrap();
    assert!(message.ends_with("the end") && message.len() == 4096, "{}", message.len());
}

#[tokio::test]
async fn names_that_are_paths_are_refused() {
    let s = Scratch::new();
    let f = s.files();
    for uid in ["", ".", "..", "a/b", "/abs", "a/"] {
        let mut p = pod();
        p.metadata.uid = Some(uid.into());
        assert!(f.prepare(&p).await.is_err(), "{uid:?}");
    }
    assert!(f.prepare_container(&pod(), "../x").await.is_err());
}

#[tokio::test]
async fn messages_and_logs() {
    let s = Scratch::new();
    let f = s.files();
    let message = f.prepare_container(&pod(), "main").await.unwrap();
    let read = async |p: &Path| f.termination_message(p.to_str().unwrap()).await.unwrap();
    assert_eq!(read(&message).await, "");
    fs::write(&message, format!("{}END", "x".repeat(5000))).unwrap();
    let got = read(&message).await;
    assert_eq!((got.len(), got.ends_with("xEND")), (4096, true));
    fs::write(&message, b"\xff\xfeok").unwrap();
    assert_eq!(read(&message).await, "\u{fffd}\u{fffd}ok");
    assert_eq!(read(&message.with_file_name("gone")).await, "");

    let dir = f.log_directory(&pod()).join("main");
    assert_eq!(f.restart_count_from_logs(&pod(), "main").await.unwrap(), None);
    assert_eq!(f.restart_count_from_logs(&pod(), "other").await.unwrap(), None);
    for name in ["0.log", "3.log", "10.log.20260101-000000.gz", "x.log", "99.txt"] {
        fs::write(dir.join(name), "").unwrap();
    }
    fs::create_dir(dir.join("500.log")).unwrap();
    assert_eq!(f.restart_count_from_logs(&pod(), "main").await.unwrap(), Some(11));
    let log = dir.join("3.log");
    fs::write(&log, "2026-01-01T00:00:00Z stderr F boom\n").unwrap();
    assert_eq!(f.log_tail(log.to_str().unwrap()).await.unwrap(), "boom\n");
}

#[tokio::test]
async fn links_to_logs() {
    let s = Scratch::new();
    let f = s.files();
    f.prepare_container(&pod(), "main").await.unwrap();
    let log = f.log_directory(&pod()).join("main/0.log");
    f.link_log(&pod(), "main", "c1", log.to_str().unwrap()).await.unwrap();
    assert!(!s.0.join("links").exists(), "no log, no link");
    fs::write(&log, "").unwrap();
    for _ in 0..2 {
        f.link_log(&pod(), "main", "c1", log.to_str().unwrap()).await.unwrap();
    }
    assert_eq!(fs::read_link(s.0.join("links/web_shop_main-c1.log")).unwrap(), log);
    let name = link_name(&"n".repeat(253), "shop", "main", &"c".repeat(64));
    assert_eq!((name.len(), name.ends_with("_.log")), (255, false));
    assert!(name.ends_with(".log"));
}

#[tokio::test]
async fn the_logs_of_one_life_go_with_it() {
    let s = Scratch::new();
    let f = s.files();
    f.prepare_container(&pod(), "main").await.unwrap();
    let dir = f.log_directory(&pod()).join("main");
    let kept = ["0.log", "11.log", "11.log.20260101-000000.gz"];
    let gone = ["1.log", "1.log.20260101-000000", "1.log.20260101-000000.gz", "1.log.20260101-000001.tmp"];
    for name in kept.iter().chain(&gone) {
        fs::write(dir.join(name), "").unwrap();
    }
    for (id, number) in [("c0", 0), ("c1", 1)] {
        let log = dir.join(format!("{number}.log"));
        f.link_log(&pod(), "main", id, log.to_str().unwrap()).await.unwrap();
    }
    let dead = |log: &Path| v1::ContainerStatus {
        id: "c1".into(),
        log_path: log.to_str().unwrap().into(),
        labels: [
            (metadata::POD_NAME, "web"),
            (metadata::POD_NAMESPACE, "shop"),
            (metadata::CONTAINER_NAME, "main"),
        ]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into(),
        ..Default::default()
    };
    for _ in 0..2 {
        f.remove_logs(&dead(&dir.join("1.log"))).await.unwrap();
    }
    let list = |dir: &Path| {
        let mut all: Vec<_> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        all.sort();
        all
    };
    assert_eq!(list(&dir), kept);
    assert_eq!(list(&s.0.join("links")), ["web_shop_main-c0.log"]);

    // A log elsewhere is not ours, and a Pod that mounts the logs leads us nowhere.
    let elsewhere = s.0.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("1.log"), "").unwrap();
    f.remove_logs(&dead(&elsewhere.join("1.log"))).await.unwrap();
    f.remove_logs(&dead(Path::new(""))).await.unwrap();
    symlink(&elsewhere, dir.with_file_name("evil")).unwrap();
    assert!(f.remove_logs(&dead(&dir.with_file_name("evil").join("1.log"))).await.is_err());
    assert_eq!(list(&elsewhere), ["1.log"]);
}

#[tokio::test]
async fn files_in_volumes() {
    let s = Scratch::new();
    let volume = s.0.join("vol");
    fs::create_dir(&volume).unwrap();
    fs::write(volume.join("a.env"), "A='1'\n").unwrap();
    symlink("a.env", volume.join("inside")).unwrap();
    fs::write(s.0.join("secret"), "s").unwrap();
    symlink("../secret", volume.join("out")).unwrap();
    symlink(s.0.join("secret"), volume.join("abs")).unwrap();
    let read = async |p: &str| read_in_volume(volume.clone(), p.into(), 100).await;
    assert_eq!(read("a.env").await.unwrap(), "A='1'\n");
    assert_eq!(read("inside").await.unwrap(), "A='1'\n");
    for bad in ["out", "abs", "../secret", "none", "."] {
        assert!(read(bad).await.is_err(), "{bad}");
    }
    fs::write(volume.join("big"), "x".repeat(101)).unwrap();
    assert!(read("big").await.is_err());
}

#[tokio::test]
async fn the_resolver_file_is_read_as_it_is_now() {
    let scratch = Scratch::new();
    let files = scratch.files();
    let path = scratch.0.join("resolv.conf");
    let error = files.node_resolver().await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("open {}: ", path.display())), "{error}");
    for text in ["nameserver 192.0.2.1\n", "nameserver 192.0.2.2\n"] {
        fs::write(&path, text).unwrap();
        assert_eq!(files.node_resolver().await.unwrap().as_deref(), Some(text));
    }
}
