#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::ids::PodUid;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::events::EventType;
use crate::server::{Ports, bind};
use crate::testing::clock;

fn page() -> Page {
    let (views, _) = crate::server::tests::views();
    Page::new(views, Recorder::new(clock()), watch::channel(Pressures::default()).1, "v1.2.3")
}

async fn start(page: Page, local: bool) -> SocketAddr {
    let bound = bind("test", "127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = bound.address().unwrap();
    let connections = Ports::for_tests().node_page();
    tokio::spawn(bound.serve(router(page, local), connections, CancellationToken::new()));
    address
}

/// Status, head and body of one exchange.
async fn ask(at: SocketAddr, method: &str, path: &str, headers: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(at).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), head.to_lowercase(), body.to_owned())
}

#[tokio::test]
async fn every_answer_carries_the_rules_and_nothing_comes_from_elsewhere() {
    let at = start(page(), true).await;
    for (path, kind) in [
        ("/", "text/html"),
        ("/page.css", "text/css"),
        ("/page.js", "text/javascript"),
        ("/words.js", "text/javascript"),
        ("/icon.svg", "image/svg+xml"),
        ("/look", "application/json"),
        ("/nothing", ""),
    ] {
        let (status, head, body) = ask(at, "GET", path, "Host: localhost\r\n").await;
        assert_eq!(status, if kind.is_empty() { 404 } else { 200 }, "{path}");
        assert!(head.contains(&format!("content-type: {kind}")), "{head}");
        for rule in [
            "content-security-policy: default-src 'none'; script-src 'self'",
            "nosniff",
            "no-store",
            "x-frame-options: deny",
        ] {
            assert!(head.contains(rule), "{path}: {head}");
        }
        // Names of XML are no addresses that anybody asks.
        let body = body.replace("http://www.w3.org/2000/svg", "");
        for other in ["http://", "https://", "//cdn", "<style", "style=", "onclick=\"", "innerHTML", "eval("]
        {
            assert!(path == "/look" || !body.contains(other), "{path} has {other}");
        }
    }
}

#[tokio::test]
async fn other_sites_and_other_names_get_nothing() {
    let at = start(page(), true).await;
    let rows = [
        ("GET", "/look", "Host: evil.example\r\n", 421),
        ("GET", "/", "Host: 10.0.0.1:4194\r\n", 421),
        ("GET", "/", "Host: localhost.evil.example\r\n", 421),
        ("GET", "/look", "Host: localhost:4194\r\n", 200),
        ("GET", "/look", "Host: 127.0.0.9\r\n", 200),
        ("GET", "/look", "Host: [::1]:4194\r\n", 200),
        ("GET", "/look", "Host: localhost\r\nSec-Fetch-Site: cross-site\r\n", 403),
        ("GET", "/look", "Host: localhost\r\nSec-Fetch-Site: same-origin\r\n", 200),
        ("GET", "/", "Host: localhost\r\nSec-Fetch-Site: cross-site\r\n", 200),
        ("POST", "/look", "Host: localhost\r\nContent-Length: 0\r\n", 405),
    ];
    for (method, path, headers, want) in rows {
        assert_eq!(ask(at, method, path, headers).await.0, want, "{method} {path} {headers}");
    }
    // Where everybody says who he is, the name is whatever the node is called.
    let guarded = start(page(), false).await;
    assert_eq!(ask(guarded, "GET", "/look", "Host: node-1.example\r\n").await.0, 200);
}

/// What others wrote reaches the page as text, cut where it is long.
#[tokio::test]
async fn the_look_tells_of_pods_what_they_wait_for_and_what_happened() {
    let page = page();
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "<b>", "namespace": "ns", "uid": "w"}, "spec": {"containers": [{"name": "c"}]},
    }))
    .unwrap();
    let status: PodStatus = serde_json::from_value(json!({
        "phase": "Pending",
        "containerStatuses": [{
            "name": "c", "ready": false, "restartCount": 3, "image": "i", "imageID": "",
            "state": {"waiting": {"reason": "ErrImagePull", "message": "é".repeat(4000)}},
        }],
    }))
    .unwrap();
    let pod = Arc::new(pod);
    page.views.pods.publish(&PodUid::from("w"), &pod, status, None);
    page.recorder.eviction(&pod, "Evicted", "low on \"memory\"</script>", Default::default());
    let told: Value = serde_json::from_slice(&page.look().await).unwrap();
    let shown = &told["pods"][0];
    assert_eq!(shown["name"], "<b>");
    assert_eq!(
        (&shown["status"], &shown["restarts"], &shown["total"]),
        (&json!("ErrImagePull"), &json!(3), &json!(1))
    );
    let message = shown["why"]["message"].as_str().unwrap();
    assert!(message.ends_with('…') && message.len() < 1100, "{}", message.len());
    let event = &told["events"][0];
    assert_eq!(
        (&event["reason"], &event["warning"], &event["name"]),
        (&json!("Evicted"), &json!(true), &json!("<b>"))
    );
    assert_eq!(event["message"], "low on \"memory\"</script>");
    assert_eq!(told["node"]["name"], "n1");
    assert!(told["node"]["memoryTotal"].as_u64() > Some(0) && told["node"]["processors"].as_u64() > Some(0));
}

/// A status without a word about why is completed by the last thing that went wrong.
#[tokio::test]
async fn a_pod_that_waits_in_silence_is_explained_by_its_last_warning() {
    let page = page();
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "w"}, "spec": {"containers": [{"name": "c"}]},
    }))
    .unwrap();
    let pod = Arc::new(pod);
    let status = PodStatus { phase: Some("Pending".into()), ..PodStatus::default() };
    page.views.pods.publish(&PodUid::from("w"), &pod, status, None);
    page.recorder.pod(&pod, EventType::Warning, "FailedMount", "no such volume");
    page.recorder.pod(&pod, EventType::Normal, "Scheduled", "here");
    let told: Value = serde_json::from_slice(&page.look().await).unwrap();
    assert_eq!(
        told["pods"][0]["why"],
        json!({"container": "", "reason": "FailedMount", "message": "no such volume"})
    );
}

#[tokio::test(start_paused = true)]
async fn those_who_look_at_once_share_one_look() {
    let page = page();
    let different = AtomicUsize::new(0);
    let first = page.look().await;
    for _ in 0..20 {
        let again = page.look().await;
        different.fetch_add(usize::from(again.as_ptr() != first.as_ptr()), Ordering::Relaxed);
    }
    assert_eq!(different.load(Ordering::Relaxed), 0);
    tokio::time::advance(SHARED).await;
    assert_ne!(page.look().await.as_ptr(), first.as_ptr());
}
