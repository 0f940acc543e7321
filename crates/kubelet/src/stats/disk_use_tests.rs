#![allow(clippy::unwrap_used)]

use std::fs::{create_dir_all, write};
use std::os::unix::fs::symlink;

use serde_json::json;

use super::*;
use crate::pods::status_board::StatusBoard;

fn entry(uid: &str) -> Entry {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": uid},
        "spec": {"containers": [{"name": "c"}], "volumes": [{"name": "v", "emptyDir": {}}]},
    }))
    .unwrap();
    let board = StatusBoard::default();
    board.publish(&PodUid::from(uid), &Arc::new(pod), Default::default(), None);
    board.get(uid).unwrap()
}

fn at(s: u64) -> Now {
    Now { mono: Mono(Duration::from_secs(s)), wall: Wall::default() }
}

struct Place {
    dir: tempfile::TempDir,
    disk: DiskUse,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let (root, logs) = (dir.path().join("root"), dir.path().join("logs"));
        Place { disk: DiskUse::new(root, logs, Arc::default()), dir }
    }

    fn write(&self, path: &str, bytes: usize) {
        let path = self.dir.path().join(path);
        create_dir_all(path.parent().unwrap()).unwrap();
        write(path, vec![1; bytes]).unwrap();
    }

    async fn of(&self, entry: &Entry, s: u64) -> Option<Arc<PodDisk>> {
        self.disk.measure(std::slice::from_ref(entry), Duration::from_secs(10), at(s)).await;
        self.disk.known().get(&uid(entry)).cloned()
    }
}

const MB: u64 = 1 << 20;

#[tokio::test]
async fn volumes_logs_and_what_the_kubelet_made_are_told_apart() {
    let place = Place::new();
    place.write("root/pods/u/volumes/kubernetes.io~empty-dir/v/data", 3 << 20);
    place.write("logs/ns_p_u/c/0.log", 2 << 20);
    place.write("root/pods/u/containers/c/message", 1 << 20);
    place.write("root/pods/u/etc-hosts", 1 << 20);
    let found = place.of(&entry("u"), 0).await.unwrap();
    let about = |bytes: u64, want: u64| (want..want + MB / 4).contains(&bytes);
    assert!(about(found.volumes["v"].used.bytes, 3 * MB), "{found:?}");
    assert!(about(found.logs["c"].bytes, 2 * MB), "{found:?}");
    assert!(about(found.others.bytes, 2 * MB), "{found:?}");
}

#[tokio::test]
async fn cve_2020_8557_what_a_pod_writes_to_its_hosts_file_is_counted() {
    let place = Place::new();
    place.write("root/pods/u/etc-hosts", 100);
    let before = place.of(&entry("u"), 0).await.unwrap().others.bytes;
    place.write("root/pods/u/etc-hosts", 8 << 20);
    let after = place.of(&entry("u"), 60).await.unwrap().others.bytes;
    assert!(after - before >= 7 * MB, "{before} {after}");
}

#[tokio::test]
async fn a_link_in_the_place_of_a_file_counts_nothing_elsewhere() {
    let place = Place::new();
    place.write("elsewhere/data", 4 << 20);
    create_dir_all(place.dir.path().join("root/pods/u/volumes/kubernetes.io~empty-dir")).unwrap();
    for link in ["etc-hosts", "containers", "volumes/kubernetes.io~empty-dir/v"] {
        let at = place.dir.path().join("root/pods/u").join(link);
        symlink(place.dir.path().join("elsewhere"), at).unwrap();
    }
    let found = place.of(&entry("u"), 0).await.unwrap();
    let volumes: u64 = found.volumes.values().map(|v| v.used.bytes).sum();
    assert!(found.others.bytes + volumes < MB, "{found:?}");
}

#[tokio::test]
async fn what_is_young_enough_is_not_measured_again() {
    let place = Place::new();
    place.write("root/pods/u/etc-hosts", 100);
    let first = place.of(&entry("u"), 0).await.unwrap();
    place.write("root/pods/u/etc-hosts", 8 << 20);
    assert!(Arc::ptr_eq(&first, &place.of(&entry("u"), 9).await.unwrap()));
    assert!(!Arc::ptr_eq(&first, &place.of(&entry("u"), 10).await.unwrap()));
}

#[test]
fn a_large_pod_takes_several_looks_and_keeps_no_small_one_waiting() {
    let place = Place::new();
    let many = usize::try_from(PER_POD).unwrap() + 2000;
    let dir = place.dir.path().join("root/pods/large/volumes/kubernetes.io~empty-dir/v");
    create_dir_all(&dir).unwrap();
    for i in 0..many {
        write(dir.join(i.to_string()), "").unwrap();
    }
    place.write("root/pods/small/etc-hosts", 100);
    let (state, all) = (&place.disk.state, vec![entry("large"), entry("small")]);
    let known = || state.lock().unwrap().known.keys().map(ToString::to_string).collect::<Vec<_>>();
    look(state, all.clone(), &place.disk.root, &place.disk.pod_logs, at(0));
    assert_eq!(known(), ["small"]);
    look(state, all, &place.disk.root, &place.disk.pod_logs, at(10));
    assert_eq!(known(), ["large", "small"]);
    let inodes = state.lock().unwrap().known[&PodUid::from("large")].1.volumes["v"].used.inodes;
    assert_eq!(inodes, many as u64 + 1);
}
