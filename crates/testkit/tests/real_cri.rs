//! The private containerds run Pods: over CRI, with a network, and without leaving anything of a Pod behind.
#![allow(clippy::print_stderr, clippy::unwrap_used)]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use cri::{Client, Endpoint};
use futures_util::StreamExt as _;
use testkit::direct::Direct;
use testkit::node::{Census, Containerd, Node, Options, Tools, http};

fn start(containerd: Containerd) -> Option<(Node, Direct)> {
    let tools = Tools::from_env().map_err(|why| eprintln!("skipped: {why}")).ok()?;
    let node = Node::start(&tools, Options { containerd, ..Options::default() }).unwrap();
    let client = Client::new(Endpoint::parse(&node.endpoint()).unwrap(), None, Duration::from_secs(60));
    let direct = Direct::new(client, node.dir().join("pod-logs"));
    Some((node, direct))
}

/// The kernel lets go of cgroups and namespaces a moment after it was asked to.
async fn settled(node: &Node, before: &Census) -> Census {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let left = node.census().since(before);
        if left.is_empty() || Instant::now() > until {
            return left;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn a_pod_runs_answers_and_goes(containerd: Containerd) {
    let Some((mut node, direct)) = start(containerd) else { return };
    let version = direct.client().check_version().await.unwrap();
    let is_new = |version: &str| version.starts_with('2') || version.starts_with("v2");
    let has_events = is_new(&version.runtime_version) || version.runtime_name == "longshore";
    let events = direct.client().events().await;
    assert_eq!(events.is_ok(), has_events, "{} and events", version.runtime_version);
    let before = node.census();
    let pod = direct.run("web", "localhost/demo:v1", &["serve"]).await.unwrap();
    if let Ok(mut events) = events {
        assert!(events.next().await.unwrap().is_ok(), "the first event comes");
    }
    let ip = direct.address(&pod).await.unwrap();
    let address: SocketAddr = format!("{ip}:8080").parse().unwrap();
    // A container that has started is not yet a program that listens.
    let until = Instant::now() + Duration::from_secs(20);
    let body = loop {
        match node.inside(|| http::get(address, "/hostname")).unwrap() {
            Ok(body) => break body,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(String::from_utf8_lossy(&body), "web\n");
    let env = vec!["/demo".to_owned(), "env".to_owned()];
    let out = direct.client().exec_sync(&pod.container, env, Duration::from_secs(10)).await.unwrap();
    assert!(String::from_utf8_lossy(&out.stdout).contains("VERSION=v1"));
    // The Pod outlives the runtime's death, and the runtime finds it again.
    node.kill9_containerd().unwrap();
    node.start_containerd().unwrap();
    assert!(node.inside(|| http::get(address, "/healthz")).unwrap().is_ok());
    let until = Instant::now() + Duration::from_secs(20);
    while direct.remove(&pod, 5).await.is_err() {
        assert!(Instant::now() < until, "the runtime does not come back");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let left = settled(&node, &before).await;
    // The runtime itself is a new process.
    let is_runtime = |p: &String| p.ends_with(" containerd") || p.ends_with(" longshore");
    let left = Census { processes: left.processes.into_iter().filter(|p| !is_runtime(p)).collect(), ..left };
    assert!(left.is_empty(), "left behind:\n{left}");
    node.stop().unwrap();
}

#[tokio::test]
async fn a_pod_on_containerd_2() {
    a_pod_runs_answers_and_goes(Containerd::V2).await;
}

#[tokio::test]
async fn a_pod_on_containerd_1_6() {
    a_pod_runs_answers_and_goes(Containerd::V1_6).await;
}

#[tokio::test]
async fn a_pod_on_the_embedded_runtime() {
    a_pod_runs_answers_and_goes(Containerd::Embedded).await;
}
