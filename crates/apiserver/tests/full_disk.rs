//! A server on a disk without room, a real one: it starts, tells, serves reads, and writes again without a restart.
#![allow(clippy::unwrap_used)]

mod server;

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use server::Server;
use tokio_util::sync::CancellationToken;

/// For what takes a moment on an idle machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A file system with little room.
struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    fn new(size: &str) -> SmallDisk {
        let dir = tempfile::tempdir().unwrap();
        let options = format!("size={size}");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &options, "small"]).arg(dir.path()).status();
        assert!(mounted.unwrap().success(), "this test mounts a file system: run it as root");
        SmallDisk { dir }
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Leaves not one byte.
    fn fill(&self) {
        let mut file =
            File::options().append(true).create(true).open(self.dir.path().join("filler")).unwrap();
        loop {
            match file.write_all(&[7; 4096]) {
                Ok(()) => {}
                Err(error) => return assert_eq!(error.kind(), ErrorKind::StorageFull),
            }
        }
    }

    fn free(&self) {
        fs::remove_file(self.dir.path().join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.dir.path()).status();
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else if !entry.path().to_string_lossy().ends_with("-shm") {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

async fn server_on(disk: &SmallDisk) -> Server {
    let data = disk.data();
    Server::with("", move |_, dir| std::os::unix::fs::symlink(data, dir.join("data")).unwrap()).await
}

async fn code_of(server: &Server, line: &str, body: &str) -> (u16, String) {
    let answer = server.ask("root", line, "Content-Type: application/json\r\n", body.as_bytes()).await;
    (answer.code, String::from_utf8_lossy(&answer.body).into_owned())
}

/// Asks until the answer has this code.
async fn until(server: &Server, line: &str, body: &str, code: u16) {
    let asking = async { while code_of(server, line, body).await.0 != code {} };
    if tokio::time::timeout(TIMEOUT, asking).await.is_err() {
        panic!("{line} does not answer {code}, but {:?}", code_of(server, line, body).await);
    }
}

/// What a server that crashed left on a small disk.
async fn left_behind() -> SmallDisk {
    let disk = SmallDisk::new("24m");
    let server = Server::with("", |_, _| {}).await;
    for i in 0..20 {
        let map = json!({"metadata": {"name": format!("map-{i}")}, "data": {"text": "x".repeat(3000)}});
        server.make("POST /api/v1/namespaces/default/configmaps", &map).await;
    }
    // Something every cluster has, which a start makes again.
    let role = "DELETE /apis/rbac.authorization.k8s.io/v1/clusterroles/system:basic-user";
    assert_eq!(code_of(&server, role, "").await.0, 200);
    copy(&server.dir.path().join("data"), &disk.data());
    // As a release left it that kept no room for deletions.
    fs::remove_file(disk.data().join("store.reserve")).unwrap();
    assert!(fs::metadata(disk.data().join("store.db-wal")).unwrap().len() > 0);
    disk
}

#[tokio::test]
async fn a_server_on_a_full_disk_starts_and_serves_reads_and_writes_again_without_a_restart() {
    let disk = left_behind().await;
    disk.fill();
    let server = server_on(&disk).await;
    let maps = "GET /api/v1/namespaces/default/configmaps";
    let (code, list) = code_of(&server, maps, "").await;
    assert!(code == 200 && list.contains("map-19"), "{code} {list}");
    assert_eq!(code_of(&server, "GET /livez", "").await.0, 200);
    let (code, why) = code_of(&server, "GET /readyz?verbose", "").await;
    assert!(code == 500 && why.contains("[-]etcd-readiness failed"), "{code} {why}");
    let new = json!({"metadata": {"name": "new"}}).to_string();
    let (code, why) = code_of(&server, "POST /api/v1/namespaces/default/configmaps", &new).await;
    assert!(code == 503 && why.contains("the disk is full"), "{code} {why}");
    assert!(!why.contains(&*disk.dir.path().to_string_lossy()), "{why}");
    let role = "GET /apis/rbac.authorization.k8s.io/v1/clusterroles/system:basic-user";
    assert_eq!(code_of(&server, role, "").await.0, 404);
    disk.free();
    until(&server, "GET /readyz", "", 200).await;
    assert_eq!(code_of(&server, "POST /api/v1/namespaces/default/configmaps", &new).await.0, 201);
    assert_eq!(code_of(&server, "GET /api/v1/namespaces/default/configmaps/map-7", "").await.0, 200);
    // What the start could not make comes by itself.
    until(&server, role, "", 200).await;
    server.stop().await;
}

/// Deletes everything on a disk without room: at once, by steps, and what nearly fills what is kept for deletions.
async fn delete_all(server: &Server, names: impl IntoIterator<Item = String>) {
    for name in names {
        let line = format!("DELETE /api/v1/namespaces/default/configmaps/{name}");
        let (code, why) = code_of(server, &line, "").await;
        assert_eq!(code, 200, "{name}: {why}");
    }
}

#[tokio::test]
async fn a_full_disk_takes_deletions_and_gets_room_by_them() {
    let disk = SmallDisk::new("24m");
    fs::create_dir(disk.data()).unwrap();
    let server = server_on(&disk).await;
    let maps = "POST /api/v1/namespaces/default/configmaps";
    let map =
        |name: &str, size: usize| json!({"metadata": {"name": name}, "data": {"text": "x".repeat(size)}});
    for i in 0..20 {
        server.make(maps, &map(&format!("map-{i}"), 3000)).await;
    }
    for i in 0..3 {
        let mut large = map(&format!("large-{i}"), 1_000_000);
        large["metadata"]["finalizers"] = json!(["example.com/wait"]);
        server.make(maps, &large).await;
    }
    disk.fill();
    // What room the store has of its own is soon used up.
    let mut made = 0;
    while code_of(&server, maps, &map(&format!("more-{made}"), 100_000).to_string()).await.0 == 201 {
        made += 1;
        disk.fill();
    }
    delete_all(&server, (0..10).map(|i| format!("map-{i}"))).await;
    disk.fill();
    for i in 0..3 {
        // It waits for its finalizer, which is then taken off.
        delete_all(&server, [format!("large-{i}")]).await;
        let line = format!("PATCH /api/v1/namespaces/default/configmaps/large-{i}");
        let patch = br#"{"metadata": {"finalizers": null}}"#;
        let answer = server.ask("root", &line, "Content-Type: application/merge-patch+json\r\n", patch).await;
        assert_eq!(answer.code, 200, "{}", String::from_utf8_lossy(&answer.body));
        disk.fill();
    }
    server.stop().await;
    // A server that starts on a full disk can do as much, and what was deleted makes room for others.
    let server = server_on(&disk).await;
    delete_all(&server, (10..20).map(|i| format!("map-{i}")).chain((0..made).map(|i| format!("more-{i}"))))
        .await;
    until(&server, maps, &map("new", 100_000).to_string(), 201).await;
    let (_, list) = code_of(&server, "GET /api/v1/namespaces/default/configmaps", "").await;
    assert!(
        list.contains("\"new\"") && !list.contains("map-1") && !list.contains("large"),
        "{}",
        &list[..1000]
    );
    server.stop().await;
}

#[tokio::test]
async fn a_new_cluster_on_a_full_disk_says_which_and_how_much_to_free() {
    let disk = SmallDisk::new("1m");
    fs::create_dir(disk.data()).unwrap();
    disk.fill();
    let tokens = tempfile::NamedTempFile::new().unwrap();
    let settings = server::settings(disk.dir.path(), tokens.path());
    let refused = apiserver::run::run(settings, |_| panic!("it cannot"), CancellationToken::new()).await;
    let told = refused.unwrap_err().to_string();
    assert!(told.contains(&*disk.data().to_string_lossy()) && told.contains("KB"), "{told}");
    assert!(told.contains("is full") && !told.contains("corrupt"), "{told}");
}
