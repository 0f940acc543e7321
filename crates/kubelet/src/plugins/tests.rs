#![allow(clippy::unwrap_used)]

use std::os::unix::net::UnixListener;

use super::*;

#[test]
fn sockets_are_found_wherever_they_are_and_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("a/b");
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::write(dir.path().join("file.sock"), "").unwrap();
    let plain = dir.path().join("one.sock");
    let _one = UnixListener::bind(&plain).unwrap();
    let _two = UnixListener::bind(deep.join("two.sock")).unwrap();
    let _hidden = UnixListener::bind(dir.path().join(".hidden.sock")).unwrap();
    let before = scan::sockets(dir.path());
    assert_eq!(before.keys().cloned().collect::<Vec<_>>(), [deep.join("two.sock"), plain.clone()]);
    std::fs::set_permissions(&plain, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(scan::sockets(dir.path()), before, "a new mode is no new socket");
    let _other = UnixListener::bind(dir.path().join("other.sock")).unwrap();
    std::fs::rename(dir.path().join("other.sock"), &plain).unwrap();
    assert_ne!(scan::sockets(dir.path()), before, "made anew");
}

#[tokio::test]
async fn a_new_socket_is_heard_of_even_in_a_new_directory() {
    let dir = tempfile::tempdir().unwrap();
    let mut ear = scan::ear();
    scan::listen_below(ear.as_ref().unwrap(), dir.path());
    std::fs::create_dir(dir.path().join("d")).unwrap();
    scan::heard(&mut ear).await;
    scan::listen_below(ear.as_ref().unwrap(), dir.path());
    let _socket = UnixListener::bind(dir.path().join("d/x.sock")).unwrap();
    scan::heard(&mut ear).await;
}
