//! A process that is out of descriptors. Alone in its file: the limit is the whole process's.
#![allow(clippy::unwrap_used)]

use std::fs::File;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::AsyncWriteExt;

mod support;
use support::{Server, heard, soon, until};

#[tokio::test]
async fn who_is_idle_gives_a_descriptor_to_who_comes() {
    let server = Server::usual().await;
    let mut idle = Vec::new();
    for _ in 0..4 {
        idle.push(server.connect().await);
    }
    until(|| server.metrics.accepted.get(["test"]) == 4.0).await;
    let hard = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: hard }).unwrap();
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    // One for the client; the server has none.
    taken.pop();
    let mut client = server.connect().await;
    client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    assert!(soon(heard(&mut client)).await.ends_with("ok"));
    assert!(server.metrics.evicted.get(["test", "descriptors"]) >= 1.0);
    let failed = server.metrics.not_accepted.get(["test"]);
    assert!((1.0..100.0).contains(&failed), "it does not spin: {failed}");
    assert_eq!(serve::raise_open_files(), hard.unwrap_or(u64::MAX));
}
