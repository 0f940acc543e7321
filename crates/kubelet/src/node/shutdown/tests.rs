#![allow(clippy::unwrap_used)]

use fixture::FakeLogind;

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

async fn open(logind: &FakeLogind, dir: &Path, needed: Duration) -> Logind {
    let bus = logind.address().strip_prefix("unix:path=").unwrap().into();
    Logind::open(&Places { bus, settings: dir.join("logind.conf.d"), ..Places::default() }, needed)
        .await
        .unwrap()
}

#[tokio::test]
async fn the_machine_is_held_up_and_let_go() {
    let dir = tempfile::tempdir().unwrap();
    let fake = FakeLogind::start(dir.path(), MINUTE).unwrap();
    let mut logind = open(&fake, dir.path(), MINUTE).await;
    let delay = logind.delay("kubelet", WHY).await.unwrap();
    assert_eq!(fake.asked(), ["Hello", "AddMatch", "Get", "Inhibit"]);
    assert_eq!(fake.held(), 1);
    fake.prepare_for_shutdown(true).unwrap();
    assert!(logind.news().await.unwrap());
    drop(delay);
    assert_eq!(fake.held(), 0);
    fake.prepare_for_shutdown(false).unwrap();
    assert!(!logind.news().await.unwrap());
    let _again = logind.delay("kubelet", WHY).await.unwrap();
    assert_eq!(fake.held(), 1);
}

#[tokio::test]
async fn a_login_manager_that_would_not_wait_long_enough_is_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let fake = FakeLogind::start(dir.path(), Duration::from_secs(5)).unwrap();
    open(&fake, dir.path(), MINUTE).await;
    let written = std::fs::read_to_string(dir.path().join("logind.conf.d/99-kubelet.conf")).unwrap();
    assert_eq!(written, "# Kubelet logind override\n[Login]\nInhibitDelayMaxSec=60\n");
    assert!(fake.asked().contains(&"KillUnit"), "{:?}", fake.asked());
}

#[tokio::test]
async fn without_a_bus_it_says_so() {
    let places = Places { bus: "/nowhere/bus.sock".into(), ..Places::default() };
    assert_eq!(Logind::open(&places, MINUTE).await.unwrap_err().kind(), std::io::ErrorKind::NotFound);
}
