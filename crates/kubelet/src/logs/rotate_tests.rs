#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::io::Read;

use super::*;
use crate::testing::{ScriptedRuntime, clock};

struct World {
    root: tempfile::TempDir,
    runtime: Arc<ScriptedRuntime>,
    metrics: Arc<Metrics>,
    rotator: Rotator,
}

impl World {
    fn new(max_size: i64, max_files: usize) -> Self {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("ns_p_u/c");
        std::fs::create_dir_all(&dir).unwrap();
        let runtime = Arc::new(ScriptedRuntime::default());
        let labels = [("pod.uid", "u"), ("pod.namespace", "ns"), ("pod.name", "p"), ("container.name", "c")];
        let labels: HashMap<_, _> =
            labels.into_iter().map(|(k, v)| (format!("io.kubernetes.{k}"), v.to_owned())).collect();
        runtime.containers.lock().unwrap().push(v1::Container {
            id: "1".into(),
            labels: labels.into_iter().collect(),
            state: v1::ContainerState::ContainerRunning as i32,
            ..Default::default()
        });
        runtime.logs.lock().unwrap().push(("1".into(), dir.join("0.log").to_str().unwrap().into()));
        let metrics = Arc::new(Metrics::default());
        let policy = Policy {
            root: root.path().into(),
            max_size,
            max_files,
            workers: 1,
            interval: Duration::from_secs(10),
        };
        let rotator = Rotator::new(policy, runtime.clone(), clock(), metrics.clone());
        Self { root, runtime, metrics, rotator }
    }

    fn write(&self, text: &str) {
        std::fs::write(self.root.path().join("ns_p_u/c/0.log"), text).unwrap();
    }

    fn files(&self) -> Vec<String> {
        let dir = std::fs::read_dir(self.root.path().join("ns_p_u/c")).unwrap();
        let mut names: Vec<String> = dir.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.root.path().join("ns_p_u/c").join(name)).unwrap()
    }
}

#[tokio::test]
async fn large_logs_are_renamed_packed_and_pruned() {
    let mut w = World::new(10, 4);
    w.write("short");
    w.rotator.pass().await.unwrap();
    assert_eq!(w.files(), ["0.log"]);
    for i in 0..6 {
        w.write(&format!("a long enough line {i}"));
        w.rotator.pass().await.unwrap();
    }
    let files = w.files();
    assert_eq!(files.len(), 4, "{files:?}");
    assert_eq!(files[0], "0.log");
    assert!(
        files[1].ends_with(".gz") && files[2].ends_with(".gz") && !files[3].ends_with(".gz"),
        "{files:?}"
    );
    assert_eq!(w.read(&files[3]), b"a long enough line 5");
    let mut text = String::new();
    flate2::read::GzDecoder::new(w.read(&files[2]).as_slice()).read_to_string(&mut text).unwrap();
    assert_eq!(text, "a long enough line 4");
    assert_eq!(w.runtime.reopened.lock().unwrap().len(), 6);
    assert!(w.metrics.container_log_filesystem_used_bytes.get(["u", "ns", "p", "c"]) > 0.0);
    w.runtime.containers.lock().unwrap().clear();
    w.rotator.pass().await.unwrap();
    assert_eq!(w.metrics.container_log_filesystem_used_bytes.get(["u", "ns", "p", "c"]), 0.0);
}

#[tokio::test]
async fn a_refused_reopening_puts_the_log_back() {
    let mut w = World::new(1, 5);
    w.write("precious");
    let refusal = || Err(cri::Error::new("reopen log", "1", tonic::Code::Internal, "no"));
    w.runtime.reopen.lock().unwrap().push_back(refusal());
    w.rotator.pass().await.unwrap();
    assert_eq!((w.files(), w.read("0.log")), (vec!["0.log".to_owned()], b"precious".to_vec()));
}

#[tokio::test]
async fn a_missing_log_is_asked_for() {
    let mut w = World::new(10, 5);
    w.rotator.pass().await.unwrap();
    assert_eq!((w.files(), w.runtime.reopened.lock().unwrap().len()), (vec!["0.log".to_owned()], 1));
}

#[tokio::test]
async fn a_negative_size_turns_rotation_off() {
    let mut w = World::new(-1, 5);
    w.rotator.pass().await.unwrap();
    w.write("however long it is");
    w.rotator.pass().await.unwrap();
    assert_eq!((w.files(), w.runtime.reopened.lock().unwrap().len()), (vec!["0.log".to_owned()], 0));
}

#[tokio::test]
async fn leftovers_of_a_crash_are_swept_and_logs_elsewhere_left_alone() {
    let mut w = World::new(1, 5);
    w.write("x");
    let dir = w.root.path().join("ns_p_u/c");
    for name in ["0.log.20250101-000000", "0.log.20250101-000000.gz", "0.log.20250102-000000.tmp", "other"] {
        std::fs::write(dir.join(name), "old").unwrap();
    }
    w.rotator.pass().await.unwrap();
    let files = w.files();
    assert_eq!(files.len(), 4, "{files:?}");
    assert!(files.contains(&"0.log.20250101-000000.gz".to_owned()) && files.contains(&"other".to_owned()));
    let outside = tempfile::tempdir().unwrap();
    let path = outside.path().join("0.log");
    std::fs::write(&path, "not ours").unwrap();
    let mut w = World::new(1, 5);
    w.runtime.logs.lock().unwrap()[0].1 = path.to_str().unwrap().into();
    w.rotator.pass().await.unwrap();
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
}
