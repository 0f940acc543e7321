#![allow(clippy::unwrap_used)]

use std::path::Path;

use super::*;
use crate::pods::sources::CHANNEL;
use crate::pods::sources::test_context::{context, manifest, pod_names};
use base::time::{Clock, Now};
use std::sync::atomic::{AtomicI64, Ordering};

/// Every reading is a second later.
struct Ticking(AtomicI64);
impl Clock for Ticking {
    fn now(&self) -> Now {
        Now { wall: Wall::from_secs(self.0.fetch_add(1, Ordering::Relaxed)), ..Now::default() }
    }
}

async fn open(directory: &Path, start: i64) -> (Arc<LocalPods>, mpsc::Receiver<SourceUpdate>, Context) {
    let context = Context { clock: Arc::new(Ticking(AtomicI64::new(start))), ..context() };
    let (local, sets) = LocalPods::open(context.clone(), directory.join("pods")).await.unwrap();
    let (tx, rx) = mpsc::channel(CHANNEL);
    tokio::spawn(run(sets, context.clone(), tx, CancellationToken::new()));
    (local, rx, context)
}

fn pod(name: &str, image: &str) -> Pod {
    match api::pod::decode(manifest(name, image).as_bytes(), &mut |_| {}).unwrap() {
        api::pod::Manifest::Pod(pod) => *pod,
        api::pod::Manifest::List(_) => unreachable!(),
    }
}

#[tokio::test]
async fn apply_is_idempotent_and_a_change_replaces() {
    let directory = tempfile::tempdir().unwrap();
    let (local, mut rx, _) = open(directory.path(), 1_700_000_000).await;
    assert!(rx.recv().await.unwrap().pods.is_empty(), "ready at once");
    let (first, outcome) = local.apply(pod("web", "x:1")).await.unwrap();
    assert_eq!(outcome, Outcome::Created);
    assert_eq!(pod_names(&rx.recv().await.unwrap().pods), ["web"]);
    let (same, outcome) = local.apply(pod("web", "x:1")).await.unwrap();
    assert!(outcome == Outcome::Unchanged && Arc::ptr_eq(&first, &same));
    let (second, outcome) = local.apply(pod("web", "x:2")).await.unwrap();
    assert_eq!(outcome, Outcome::Configured);
    assert_ne!(first.metadata.uid, second.metadata.uid);
    let set = rx.recv().await.unwrap().pods;
    assert_eq!(set.len(), 1);
    assert_eq!(set[0].metadata.uid, second.metadata.uid);
    let error = local.apply(pod("Web", "x")).await.unwrap_err().to_string();
    assert!(error.starts_with("invalid pod: metadata.name: Invalid value: \"Web\""), "{error}");
}

#[tokio::test]
async fn deletion_first_gives_the_grace_and_then_the_absence() {
    let directory = tempfile::tempdir().unwrap();
    let (local, mut rx, _) = open(directory.path(), 1).await;
    local.apply(pod("web", "x:1")).await.unwrap();
    assert!(local.delete("default", "other", None).await.unwrap().is_none());
    local.delete("default", "web", Some(3)).await.unwrap().unwrap();
    rx.recv().await.unwrap();
    rx.recv().await.unwrap();
    let marked = rx.recv().await.unwrap().pods;
    assert!(marked[0].metadata.deletion_timestamp.is_some());
    assert_eq!(marked[0].metadata.deletion_grace_period_seconds, Some(3));
    assert!(rx.recv().await.unwrap().pods.is_empty());
    assert_eq!(std::fs::read_dir(directory.path().join("pods")).unwrap().count(), 0);
    let (again, outcome) = local.apply(pod("web", "x:1")).await.unwrap();
    assert_eq!(outcome, Outcome::Created);
    assert_ne!(again.metadata.uid, marked[0].metadata.uid, "another submission is another Pod");
}

#[tokio::test]
async fn pods_survive_a_crash_with_their_identity() {
    let directory = tempfile::tempdir().unwrap();
    let long = "a".repeat(63);
    let long = [&*long, &*long, &*long, &long[..50]].join(".");
    let (uid, other) = {
        let (local, _rx, _) = open(directory.path(), 1_700_000_000).await;
        let (pod1, _) = local.apply(pod("web", "x:1")).await.unwrap();
        let (pod2, _) = local.apply(pod(&long, "x:1")).await.unwrap();
        (pod1.metadata.uid.clone(), pod2.metadata.uid.clone())
    };
    let store = directory.path().join("pods");
    std::fs::write(store.join("half.tmp"), "{").unwrap();
    std::fs::write(store.join("broken.json"), "{").unwrap();
    std::fs::write(
        store.join("bad.json"),
        r#"{"submittedAtNanos":1,"manifest":{"apiVersion":"v1","kind":"Pod"}}"#,
    )
    .unwrap();
    let (local, mut rx, context) = open(directory.path(), 1_800_000_000).await;
    let set = rx.recv().await.unwrap().pods;
    assert_eq!(set.len(), 2);
    assert!(set.iter().any(|p| p.metadata.uid == uid) && set.iter().any(|p| p.metadata.uid == other));
    assert!(!store.join("half.tmp").exists());
    assert_eq!(context.problems.list().len(), 2, "{:?}", context.problems.list());
    assert_eq!(local.apply(pod("web", "x:1")).await.unwrap().1, Outcome::Unchanged);
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(store.join("default_web.json")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn a_pod_outlives_what_a_disk_made_of_its_record() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("pods");
    let (json, copy) = (store.join("default_web.json"), store.join("default_web.copy"));
    let (uid, good) = {
        let (local, _rx, _) = open(directory.path(), 1_700_000_000).await;
        let (pod, _) = local.apply(pod("web", "x:1")).await.unwrap();
        (pod.metadata.uid.clone(), std::fs::read(&json).unwrap())
    };
    // One bit, a cut, nothing left, gone; and the same with the copy.
    let mut bit = good.clone();
    bit[good.len() / 2] ^= 1;
    let damages = [Some(bit), Some(good[..good.len() / 2].to_vec()), Some(Vec::new()), None];
    for path in [&json, &copy] {
        for damage in &damages {
            match damage {
                Some(bytes) => std::fs::write(path, bytes).unwrap(),
                None => std::fs::remove_file(path).unwrap(),
            }
            let (_, mut rx, context) = open(directory.path(), 1_800_000_000).await;
            let set = rx.recv().await.unwrap().pods;
            assert_eq!(set.first().and_then(|p| p.metadata.uid.clone()), uid, "{damage:?}");
            assert!(context.problems.list().is_empty());
            assert_eq!(
                (std::fs::read(&json).unwrap(), std::fs::read(&copy).unwrap()),
                (good.clone(), good.clone())
            );
        }
    }
    assert_eq!(std::fs::read(store.join("default_web.json.corrupt")).unwrap(), b"", "set aside");
    for path in [&json, &copy] {
        std::fs::write(path, "{").unwrap();
    }
    let (_, mut rx, context) = open(directory.path(), 1_800_000_000).await;
    assert!(rx.recv().await.unwrap().pods.is_empty() && context.problems.list().len() == 1);
}

#[tokio::test]
async fn a_pod_that_cannot_be_written_is_not_accepted() {
    let directory = tempfile::tempdir().unwrap();
    let (local, mut rx, _) = open(directory.path(), 1).await;
    rx.recv().await.unwrap();
    std::fs::remove_dir_all(directory.path().join("pods")).unwrap();
    assert!(matches!(local.apply(pod("web", "x")).await, Err(LocalError::Disk { .. })));
    assert!(rx.try_recv().is_err() && local.list().await.is_empty());
}
