//! Real kubectl against our API server: transcripts of what people type and what they must see.
//!
//! The same transcripts play against any other server: `LONGSHORE_PEER_KUBECONFIG=<kubeconfig> cargo test -p testkit --test
//! kubectl`. That is how they were made: what upstream's kube-apiserver answers is right.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::path::{Path, PathBuf};

use testkit::node::{ApiServer, Tools};
use testkit::transcript;

const PEER: &str = "LONGSHORE_PEER_KUBECONFIG";

/// Plays one transcript in a directory of its own, on a server of its own.
fn play(name: &str) {
    let Some(kubectl) = kubectl() else { return };
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kubectl");
    let text = std::fs::read_to_string(here.join(format!("{name}.txt"))).unwrap();
    let steps = transcript::parse(&text);
    assert!(steps.len() > 20, "{name} holds only {} steps", steps.len());

    let dir = tempfile::tempdir().unwrap();
    let (server, kubeconfig) = match std::env::var_os(PEER) {
        Some(peer) => (None, PathBuf::from(peer)),
        None => {
            let data = dir.path().join("data");
            std::fs::create_dir(&data).unwrap();
            let server = ApiServer::start(&binary(), &data, &[]).unwrap();
            let kubeconfig = server.kubeconfig();
            (Some(server), kubeconfig)
        }
    };
    // The steps change their context: they get a copy.
    let own = dir.path().join("kubeconfig");
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    std::fs::write(&own, &text).unwrap();
    let url =
        text.lines().find_map(|l| l.trim().strip_prefix("server: ")).unwrap().trim_matches('"').to_owned();
    let path =
        format!("{}:{}", kubectl.parent().unwrap().display(), std::env::var("PATH").unwrap_or_default());
    let environment = [
        ("PATH", path),
        ("KUBECONFIG", own.display().to_string()),
        ("HOME", dir.path().display().to_string()),
        ("SERVER", url),
    ];
    let report = transcript::play(name, &steps, dir.path(), &environment, server.is_some());
    let wrong = report.lines().filter(|l| !l.starts_with("    ")).count();
    assert!(report.is_empty(), "{wrong} of {} steps:\n{report}", steps.len());
}

fn binary() -> PathBuf {
    std::env::var_os("LONGSHORE_BINARY").map(PathBuf::from).unwrap()
}

fn kubectl() -> Option<PathBuf> {
    match Tools::from_env() {
        Ok(tools) => Some(tools.kubectl()),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

#[test]
fn objects() {
    play("01-objects");
}

#[test]
fn workloads() {
    play("02-workloads");
}

#[test]
fn apply() {
    play("03-apply");
}

#[test]
fn services_and_storage() {
    play("04-services-storage");
}

#[test]
fn access() {
    play("05-access");
}

#[test]
fn discovery_and_custom_kinds() {
    play("06-discovery-crd");
}

#[test]
fn deletion() {
    play("07-deletion");
}
