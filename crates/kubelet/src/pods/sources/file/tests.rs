#![allow(clippy::unwrap_used)]

use super::*;
use crate::pods::sources::CHANNEL;
use crate::pods::sources::test_context::{context, manifest, pod_names};
use api::pod::static_pod;
use kubelet_core::cri_config::metadata::{POD_NAME, POD_NAMESPACE, POD_UID};
use kubelet_core::handover::Running;
use std::fs;

struct Bench {
    dir: PathBuf,
    context: Context,
    rx: mpsc::Receiver<SourceUpdate>,
    token: CancellationToken,
}

impl Bench {
    fn new(name: &str) -> Self {
        Self::at(name, |dir| dir.to_owned())
    }

    fn at(name: &str, path: impl Fn(&Path) -> PathBuf) -> Self {
        let dir = std::env::temp_dir().join(format!("longshore-file-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        let (tx, rx) = mpsc::channel(CHANNEL);
        let (context, token) = (context(), CancellationToken::new());
        let config = FileConfig { path: path(&dir), period: Duration::from_secs(3600) };
        tokio::spawn(run(config, context.clone(), Handover::default(), tx, token.clone()));
        Self { dir, context, rx, token }
    }

    async fn next(&mut self) -> Vec<Arc<Pod>> {
        let wait = tokio::time::timeout(Duration::from_secs(10), self.rx.recv());
        wait.await.expect("no update").expect("source ended").pods
    }

    /// The set after `act`, which must change it.
    async fn after(&mut self, act: impl FnOnce(&Path)) -> Vec<Arc<Pod>> {
        act(&self.dir);
        self.next().await
    }

    /// Waits until the problems are as expected; no update may come meanwhile.
    async fn problem(&mut self, act: impl FnOnce(&Path), place: &str, text: &str) {
        act(&self.dir);
        for _ in 0..500 {
            let found = self.context.problems.list();
            if found.iter().any(|p| p.place.ends_with(place) && p.message.contains(text)) {
                assert!(self.rx.try_recv().is_err(), "the set must not change");
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no problem about {place}: {:?}", self.context.problems.list());
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.token.cancel();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn put(dir: &Path, name: &str, text: &str) {
    fs::write(dir.join(name), text).unwrap();
}

fn replace(dir: &Path, name: &str, text: &str) {
    fs::write(dir.join(".new"), text).unwrap();
    fs::rename(dir.join(".new"), dir.join(name)).unwrap();
}

#[tokio::test]
async fn a_manifest_is_edited_broken_repaired_and_removed() {
    let mut b = Bench::new("life");
    assert!(b.next().await.is_empty(), "an empty directory is ready at once");
    let pods = b.after(|d| put(d, "b.yaml", &manifest("b", "x:1"))).await;
    assert_eq!(pod_names(&pods), ["b-n1"]);
    let first = pods[0].metadata.uid.clone().unwrap();
    let pods = b.after(|d| replace(d, "a.json", &manifest("a", "x:1"))).await;
    assert_eq!(pod_names(&pods), ["a-n1", "b-n1"]);
    assert_eq!(pods[1].metadata.uid.as_ref(), Some(&first));

    let pods = b.after(|d| put(d, "b.yaml", &manifest("b", "x:2"))).await;
    let edited = pods[1].metadata.uid.clone().unwrap();
    assert_ne!(edited, first, "an edit is a new Pod");

    b.problem(
        |d| put(d, "b.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: b}\nspec: {containers: 3}"),
        "b.yaml",
        "spec.containers",
    )
    .await;
    b.problem(|d| put(d, "b.yaml", ""), "b.yaml", "empty").await;
    let pods = b.after(|d| put(d, "b.yaml", &manifest("b", "x:1"))).await;
    assert_eq!(pods[1].metadata.uid.as_ref(), Some(&first), "the same text is the same Pod");
    assert!(b.context.problems.list().is_empty());

    b.problem(|d| put(d, "b.yaml", ": ["), "b.yaml", "").await;
    let pods = b.after(|d| fs::remove_file(d.join("b.yaml")).unwrap()).await;
    assert_eq!(pod_names(&pods), ["a-n1"]);
    assert!(b.context.problems.list().is_empty(), "a removed file has no problem");
    let pods = b.after(|d| fs::rename(d.join("a.json"), d.join("c.json")).unwrap()).await;
    assert_eq!(pod_names(&pods), ["a-n1"]);
}

#[tokio::test]
async fn broken_from_the_start_harms_nobody() {
    let mut b = Bench::new("start");
    assert!(b.next().await.is_empty());
    let pods = b
        .after(|d| {
            put(d, "a.yaml", "hello: [");
            put(d, "big.yaml", &"#".repeat(MANIFEST_MAX + 1));
            put(d, ".hidden.yaml", &manifest("hidden", "x"));
            fs::create_dir(d.join("sub")).unwrap();
            put(d, "sub/in.yaml", &manifest("in", "x"));
            put(d, "list.yaml", "apiVersion: v1\nkind: PodList\nitems: []");
            put(d, "z.yaml", &manifest("z", "x"));
        })
        .await;
    assert_eq!(pod_names(&pods), ["z-n1"]);
    b.problem(|_| {}, "a.yaml", "couldn't read").await;
    b.problem(|_| {}, "big.yaml", "larger than 10485760 bytes").await;
    b.problem(|_| {}, "sub", "is a directory").await;
    b.problem(|_| {}, "list.yaml", "PodList").await;
}

#[tokio::test]
async fn duplicate_names_are_dropped_with_an_event() {
    let mut b = Bench::new("dup");
    b.next().await;
    b.after(|d| put(d, "1.yaml", &manifest("same", "x:1"))).await;
    let pods = b.after(|d| put(d, "2.yaml", &manifest("same", "x:2"))).await;
    assert_eq!(pods.len(), 1);
    assert_eq!(pods[0].spec.as_ref().unwrap().containers[0].image.as_deref(), Some("x:1"));
    let (second, place) = (text(manifest("same", "x:2").into_bytes()), b.dir.join("2.yaml"));
    let dropped = parse(&b.context, &Handover::default(), &second, &place.to_string_lossy());
    let events = b.context.events.of(dropped.unwrap().metadata.uid.as_deref().unwrap());
    assert_eq!(events[0].reason, "FailedValidation");
    assert!(
        events[0].message.contains("from file due to duplicate pod name \"same-n1\", ignoring"),
        "{events:?}"
    );
    let told = b.context.problems.list();
    assert!(told[0].place.ends_with("/2.yaml") && told[0].message.contains("/1.yaml has it"), "{told:?}");
    b.after(|d| fs::remove_file(d.join("1.yaml")).unwrap()).await;
    assert_eq!(b.context.problems.list(), [], "the second has the name for itself now");
}

#[tokio::test]
async fn links_are_followed_and_atomic_publishers_are_seen() {
    let mut b = Bench::new("links");
    b.next().await;
    let pods = b
        .after(|d| {
            fs::create_dir(d.join("..1")).unwrap();
            put(d, "..1/web.yaml", &manifest("web", "x:1"));
            std::os::unix::fs::symlink("..1", d.join("..data")).unwrap();
            std::os::unix::fs::symlink("..data/web.yaml", d.join("web.yaml")).unwrap();
        })
        .await;
    assert_eq!(pod_names(&pods), ["web-n1"]);
    let pods = b
        .after(|d| {
            fs::create_dir(d.join("..2")).unwrap();
            put(d, "..2/web.yaml", &manifest("web", "x:2"));
            std::os::unix::fs::symlink("..2", d.join("..tmp")).unwrap();
            fs::rename(d.join("..tmp"), d.join("..data")).unwrap();
        })
        .await;
    assert_eq!(pods[0].spec.as_ref().unwrap().containers[0].image.as_deref(), Some("x:2"));
    let pods = b.after(|d| fs::remove_file(d.join("..data")).unwrap()).await;
    assert!(pods.is_empty(), "a dangling link is no file");
}

#[tokio::test]
async fn a_single_file_may_come_later_and_be_replaced() {
    let mut b = Bench::at("single", |d| d.join("pod.yaml"));
    assert!(b.next().await.is_empty(), "a missing path is an empty source");
    assert_eq!(b.context.problems.list()[0].message, "path does not exist, ignoring");
    let pods = b.after(|d| put(d, "pod.yaml", &manifest("one", "x:1"))).await;
    assert_eq!(pod_names(&pods), ["one-n1"]);
    let pods = b.after(|d| replace(d, "pod.yaml", &manifest("two", "x:1"))).await;
    assert_eq!(pod_names(&pods), ["two-n1"]);
    let pods = b.after(|d| fs::remove_file(d.join("pod.yaml")).unwrap()).await;
    assert!(pods.is_empty());
}

#[tokio::test]
async fn a_directory_may_go_and_come_back() {
    let mut b = Bench::at("dir", |d| d.join("m"));
    assert!(b.next().await.is_empty());
    let pods = b
        .after(|d| {
            fs::create_dir(d.join("m")).unwrap();
            put(d, "m/a.yaml", &manifest("a", "x"));
        })
        .await;
    assert_eq!(pod_names(&pods), ["a-n1"]);
    let pods = b.after(|d| fs::remove_dir_all(d.join("m")).unwrap()).await;
    assert!(pods.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_is_whole_is_read_at_once_and_what_left_may_be_replaced() {
    let mut b = Bench::new("prompt");
    b.next().await;
    tokio::time::sleep(2 * SETTLE).await;
    let begun = Instant::now();
    let pods = b.after(|d| replace(d, "a.yaml", &manifest("a", "x:1"))).await;
    assert_eq!(pod_names(&pods), ["a-n1"]);
    assert!(begun.elapsed() < SETTLE, "{:?}", begun.elapsed());

    tokio::time::sleep(2 * SETTLE).await;
    let begun = Instant::now();
    fs::rename(b.dir.join("a.yaml"), b.dir.join("a.yaml~")).unwrap();
    // The source hears of the first half before the second is done.
    tokio::time::sleep(SETTLE / 4).await;
    put(&b.dir, "a.yaml", &manifest("a", "x:2"));
    fs::remove_file(b.dir.join("a.yaml~")).unwrap();
    let pods = b.next().await;
    assert!(begun.elapsed() >= SETTLE, "{:?}", begun.elapsed());
    assert_eq!(pod_names(&pods), ["a-n1"]);
    assert_eq!(pods[0].spec.as_ref().unwrap().containers[0].image.as_deref(), Some("x:2"));
}

#[tokio::test]
async fn a_file_that_was_deleted_is_another_one_when_it_is_back() {
    let mut b = Bench::new("again");
    b.next().await;
    b.after(|d| put(d, "other.yaml", &manifest("other", "x"))).await;
    let text = manifest("a", "x");
    assert_eq!(pod_names(&b.after(|d| replace(d, "a.yaml", &text)).await), ["a-n1", "other-n1"]);
    let again = |d: &Path| {
        fs::remove_file(d.join("a.yaml")).unwrap();
        replace(d, "a.yaml", &text);
    };
    assert_eq!(pod_names(&b.after(again).await), ["other-n1"]);
    assert_eq!(pod_names(&b.next().await), ["a-n1", "other-n1"]);
}

#[tokio::test]
async fn a_fifo_does_not_hold_us_up() {
    let mut b = Bench::new("fifo");
    b.next().await;
    b.problem(
        |d| {
            rustix::fs::mknodat(rustix::fs::CWD, d.join("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
                .unwrap()
        },
        "pipe",
        "neither a file nor a directory",
    )
    .await;
}

fn manifests() -> Manifests {
    let (files, handover) = (BTreeMap::new(), Handover::default());
    Manifests { context: context(), path: "/m".into(), files, handover }
}

fn text(bytes: Vec<u8>) -> Text {
    Text { bytes, touched: None }
}

/// A Pod of the manifest `name` that another kubelet runs since the given time.
fn theirs(name: &str, seen: &str) -> Running {
    let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    Running {
        uid: "theirs".into(),
        labels: map(&[(POD_NAME, name), (POD_NAMESPACE, "default"), (POD_UID, "theirs")]),
        annotations: map(&[
            (static_pod::HASH_ANNOTATION, "theirs"),
            (static_pod::SOURCE_ANNOTATION, "file"),
            (static_pod::SEEN_ANNOTATION, seen),
        ]),
        containers: Vec::new(),
        noted: None,
    }
}

#[test]
fn a_pod_that_runs_keeps_its_uid_and_a_note_says_whose_it_is() {
    let dir = std::env::temp_dir().join(format!("longshore-heir-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(dir.join("pods/theirs")).unwrap();
    put(&dir, "a.yaml", &manifest("a", "x:1"));
    std::os::unix::fs::symlink(dir.join("a.yaml"), dir.join("link.yaml")).unwrap();
    let uid = |seen: &str, file: &str, more: &str| {
        put(&dir, "explicit.yaml", &manifest("a", "x:1").replace("name: a", "name: a\n  uid: mine"));
        let mut manifests = manifests();
        manifests.handover =
            Handover { pods: dir.join("pods"), running: vec![theirs("a-n1", seen), theirs(more, seen)] };
        let pod = manifests.take_file(dir.join(file), read(&dir.join(file))).unwrap();
        assert_eq!(pod.metadata.annotations.as_ref().unwrap()[static_pod::HASH_ANNOTATION], uid_of(&pod));
        uid_of(&pod).to_owned()
    };
    let (later, earlier) = ("2199-01-01T00:00:00Z", "2001-01-01T00:00:00Z");
    let own = uid(earlier, "a.yaml", "b");
    assert_ne!(own, "theirs", "changed since");
    assert!(!dir.join("pods/theirs/manifest-uid").exists());
    assert_ne!(uid(later, "link.yaml", "b"), "theirs", "a link may have led elsewhere");
    assert_eq!(uid(later, "explicit.yaml", "b"), "mine");
    assert_ne!(uid(later, "a.yaml", "a-n1"), "theirs", "two of them");
    assert_eq!(uid(later, "a.yaml", "b"), "theirs");
    assert_eq!(fs::read_to_string(dir.join("pods/theirs/manifest-uid")).unwrap(), format!("{own}\n"));
    fs::remove_dir_all(&dir).unwrap();
}

fn uid_of(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap()
}

#[test]
fn whatever_one_file_holds_the_others_live_on() {
    use proptest::prelude::*;
    let good = manifest("good", "x:1").into_bytes();
    let victim = manifest("victim", "x:1").into_bytes();
    let mut manifests = manifests();
    let found = |bad: Vec<u8>| {
        Found::Files(vec![
            ("/m/a.yaml".into(), Ok(text(good.clone()))),
            ("/m/b.yaml".into(), Ok(text(bad))),
            ("/m/c.yaml".into(), Ok(text(manifest("last", "x:1").into_bytes()))),
        ])
    };
    let first = manifests.take_in(found(victim.clone())).unwrap();
    let manifests = std::cell::RefCell::new(manifests);
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0usize..30), 1..6);
    let config =
        proptest::test_runner::Config { cases: 1000, failure_persistence: None, ..Default::default() };
    proptest::test_runner::TestRunner::new(config)
        .run(&damage, |damage| {
            let mut bytes = victim.clone();
            for (at, byte, remove) in damage {
                let at = at.index(bytes.len());
                let end = (at + remove).min(bytes.len());
                bytes.splice(at..end, [byte]);
            }
            let mut manifests = manifests.borrow_mut();
            let pods = manifests.take_in(found(bytes)).unwrap();
            prop_assert!(pods.len() == 3, "a file that was good once always yields a Pod");
            prop_assert!(Arc::ptr_eq(&pods[0], &first[0]) && Arc::ptr_eq(&pods[2], &first[2]));
            let problems = manifests.context.problems.list();
            prop_assert!(problems.len() <= 1 && problems.iter().all(|p| p.place == "/m/b.yaml"));
            Ok(())
        })
        .unwrap();
}
