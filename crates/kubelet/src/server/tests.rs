#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::ids::PodUid;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::metrics::Metrics;
use crate::pods::beat::Beat;
use crate::pods::status_board::StatusBoard;
use crate::testing::{ScriptedRuntime, clock};

pub(super) fn views() -> (Views, Arc<AtomicBool>) {
    let sick = Arc::new(AtomicBool::new(false));
    let asked = sick.clone();
    let check = Check::new("syncloop", move || match asked.load(Ordering::Relaxed) {
        true => Err("stuck".to_owned()),
        false => Ok(()),
    });
    let views = Views {
        checks: Checks::new(vec![Check::ping(), Check::log(), check]),
        pods: Arc::new(StatusBoard::default()),
        metrics: Arc::new(Metrics::default()),
        probe_metrics: Arc::default(),
        connections: Arc::default(),
        runtime: Arc::new(ScriptedRuntime::default()),
        config: Arc::new(serde_json::json!({ "port": 10250 })),
        stats: stats::tests::sources(),
    };
    (views, sick)
}

async fn start(router: Router) -> SocketAddr {
    let bound = bind("test", "127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = bound.address().unwrap();
    tokio::spawn(bound.serve(router, Ports::for_tests().healthz(), CancellationToken::new()));
    address
}

/// Status line, head and body of one exchange.
async fn ask(address: SocketAddr, method: &str, path: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), head.to_owned(), body.to_owned())
}

#[tokio::test]
async fn health_names_the_sick_check_and_withholds_why() {
    let (views, sick) = views();
    let at = start(readonly_router(views)).await;
    assert_eq!(ask(at, "GET", "/healthz").await.2, "ok");
    let verbose = ask(at, "GET", "/healthz?verbose&exclude=log&exclude=nope").await;
    assert_eq!(
        verbose.2,
        "[+]ping ok\n[+]log excluded: ok\n[+]syncloop ok\n\
         warn: some health checks cannot be excluded: no matches for \"nope\"\nhealthz check passed\n"
    );
    sick.store(true, Ordering::Relaxed);
    let (status, _, body) = ask(at, "GET", "/healthz").await;
    assert_eq!(status, 500);
    assert_eq!(body, "[+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n");
    assert_eq!(ask(at, "GET", "/healthz?exclude=syncloop").await.0, 200);
    assert_eq!(ask(at, "GET", "/healthz/syncloop").await.2, "internal server error: stuck\n");
    assert_eq!(ask(at, "GET", "/healthz/ping").await.2, "ok");
    let indicators = ask(at, "GET", "/metrics/slis").await.2;
    assert!(
        indicators.contains("kubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1\n"),
        "{indicators}"
    );
    assert!(
        indicators.contains("kubernetes_healthcheck{name=\"syncloop\",type=\"healthz\"} 0\n"),
        "{indicators}"
    );
    for line in [
        "kubernetes_healthchecks_total{name=\"log\",status=\"success\",type=\"healthz\"} 3\n",
        "kubernetes_healthchecks_total{name=\"syncloop\",status=\"error\",type=\"healthz\"} 1\n",
        "kubernetes_healthchecks_total{name=\"syncloop\",status=\"success\",type=\"healthz\"} 2\n",
    ] {
        assert!(indicators.contains(line), "{indicators}");
    }
    assert_eq!(ask(at, "GET", "/healthz/other").await.0, 404);
}

#[tokio::test]
async fn a_request_is_under_way_until_its_answer_or_its_stream_has_ended() {
    use futures_util::StreamExt;
    let (views, _) = views();
    let metrics = views.metrics.clone();
    let (piece, pieces) = tokio::sync::mpsc::channel::<bytes::Bytes>(1);
    let pieces = Arc::new(std::sync::Mutex::new(Some(pieces)));
    let follow = move || async move {
        let pieces = pieces.lock().unwrap().take().unwrap();
        let stream = futures_util::stream::unfold(pieces, |mut p| async { Some((p.recv().await?, p)) });
        axum::body::Body::from_stream(stream.map(Ok::<_, io::Error>))
    };
    // What Streams does with it.
    let held: Arc<std::sync::Mutex<Option<streaming::Kept>>> = Arc::default();
    let hold = held.clone();
    let stream = move |mut request: axum::extract::Request| async move {
        *hold.lock().unwrap() = request.extensions_mut().remove();
    };
    let router = Router::new()
        .route("/containerLogs/a/b/c", axum::routing::get(follow))
        .route("/exec/a/b/c", axum::routing::get(stream));
    let at = start(readonly::metered(router, views, "readonly")).await;
    let labels = |path, long| ["GET", path, "readonly", long];
    let under_way = |path, long| metrics.http_inflight_requests.get(labels(path, long));

    let mut client = TcpStream::connect(at).await.unwrap();
    let request = "GET /containerLogs/a/b/c HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    client.write_all(request.as_bytes()).await.unwrap();
    piece.send("first".into()).await.unwrap();
    let mut text = Vec::new();
    while !String::from_utf8_lossy(&text).contains("first") {
        assert!(client.read_buf(&mut text).await.unwrap() > 0);
    }
    assert_eq!(under_way("containerLogs", "false"), 1.0);
    drop(piece);
    client.read_to_end(&mut text).await.unwrap();
    assert_eq!(under_way("containerLogs", "false"), 0.0);
    assert_eq!(metrics.http_requests_duration_seconds.count(labels("containerLogs", "false")), 1);

    assert_eq!(ask(at, "GET", "/exec/a/b/c").await.0, 200);
    assert_eq!(under_way("exec", "true"), 1.0);
    held.lock().unwrap().take();
    assert_eq!(under_way("exec", "true"), 0.0);
}

#[tokio::test]
async fn pods_metrics_and_what_is_off() {
    let (views, _) = views();
    for name in ["b", "a"] {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.into());
        let status = PodStatus { phase: Some("Running".into()), ..Default::default() };
        views.pods.publish(&PodUid::from(name), &Arc::new(pod), status, None);
    }
    let at = start(readonly_router(views)).await;
    let (status, head, body) = ask(at, "GET", "/pods").await;
    assert!(status == 200 && head.to_lowercase().contains("content-type: application/json"), "{head}");
    // Chunked: the JSON is found between the sizes.
    assert!(body.contains("\"kind\":\"PodList\"") && body.contains("\"phase\":\"Running\""), "{body}");
    assert_eq!(ask(at, "POST", "/pods").await.0, 405);
    for path in ["/runningpods/", "/exec/ns/p/c", "/containerLogs/ns/p/c", "/debug/pprof/heap", "/logs/"] {
        let (status, _, body) = ask(at, "GET", path).await;
        assert_eq!((status, body.as_str()), (405, "Debug endpoints are disabled.\n"), "{path}");
    }
    for path in ["/configz", "/spec", "/"] {
        assert_eq!(ask(at, "GET", path).await.0, 404, "{path}");
    }
    let (_, head, body) = ask(at, "GET", "/metrics").await;
    assert!(head.contains("version=0.0.4"), "{head}");
    let counted = "kubelet_http_requests_total{method=\"GET\",path=\"other\",server_type=\"readonly\",long_running=\"false\"}";
    assert!(body.contains(counted) && body.contains("path=\"pods\""), "{body}");
    assert_eq!(ask(at, "GET", "/metrics/probes").await.0, 200);
}

/// CVE-2025-0426: whoever reached the port filled the disk.
#[tokio::test]
async fn the_open_port_writes_no_checkpoint() {
    let (views, _) = views();
    let at = start(readonly_router(views)).await;
    for method in ["POST", "GET", "PUT"] {
        let (status, _, body) = ask(at, method, "/checkpoint/ns/p/c").await;
        assert!(matches!(status, 404 | 405) && !body.contains("items"), "{method}: {status} {body}");
    }
}

#[tokio::test]
async fn the_configuration_is_for_privileged_callers() {
    let (views, _) = views();
    let at = start(debug_router(views)).await;
    assert_eq!(ask(at, "GET", "/configz").await.2, "{\"kubeletconfig\":{\"port\":10250}}");
    // The scripted runtime lists no sandboxes.
    assert_eq!(ask(at, "GET", "/runningpods/").await.0, 500);
}

#[tokio::test]
async fn a_taken_port_is_a_clear_error() {
    let first = bind("health checks", "127.0.0.1:0".parse().unwrap()).await.unwrap();
    let error = bind("health checks", first.address().unwrap()).await.unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("listen on 127.0.0.1:") && text.contains("for health checks: Address"),
        "{text}"
    );
}

#[test]
fn a_loop_that_stops_turning_is_noticed() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let beat = Beat::new(clock());
        let check = Checks::new(vec![sync_loop(beat.clone(), Duration::from_secs(60))]);
        tokio::time::sleep(Duration::from_secs(299)).await;
        assert!(check.verdict().is_ok());
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(check.verdict().unwrap_err().starts_with("checker syncloop failed"));
        beat.turn();
        assert!(check.verdict().is_ok());
    });
}

/// As many of them as an adversary needed to shut everybody out of 10248.
#[tokio::test]
async fn nobody_is_shut_out_of_the_health_port_by_idle_or_half_finished_requests() {
    let ports = Ports::for_tests();
    for (connections, router) in [
        (ports.healthz(), healthz_router(Checks::new(vec![Check::ping()]))),
        (ports.read_only(), readonly_router(views().0)),
    ] {
        let bound = bind("test", "127.0.0.1:0".parse().unwrap()).await.unwrap();
        let at = bound.address().unwrap();
        tokio::spawn(bound.serve(router, connections, CancellationToken::new()));
        for (count, beginning) in [(600, b"".as_slice()), (400, b"GET /healthz HTTP/1.1\r\nHost:")] {
            let mut held = Vec::new();
            for _ in 0..count {
                let mut stream = TcpStream::connect(at).await.unwrap();
                // It may have lost its place already.
                let _ = stream.write_all(beginning).await;
                held.push(stream);
            }
            let answer = tokio::time::timeout(Duration::from_secs(10), ask(at, "GET", "/healthz")).await;
            assert_eq!(answer.expect("an answer").2, "ok", "after {beginning:?}");
        }
    }
    assert!(ports.metrics.evicted.get(["healthz", "full"]) > 0.0);
    let mut page = String::new();
    ports.metrics.write(&mut page).unwrap();
    assert!(
        page.contains("longshore_connections_evicted_total{listener=\"read-only\",reason=\"full\"}"),
        "{page}"
    );
}

/// Everything else needs descriptors, too: a kubelet that has none turns Pods unready.
#[tokio::test]
async fn with_few_descriptors_clients_take_half_of_them_and_nobody_is_shut_out() {
    let ports = Ports { metrics: Arc::default(), budget: serve::Budget::of(256) };
    let bound = bind("test", "127.0.0.1:0".parse().unwrap()).await.unwrap();
    let at = bound.address().unwrap();
    let router = healthz_router(Checks::new(vec![Check::ping()]));
    tokio::spawn(bound.serve(router, ports.healthz(), CancellationToken::new()));
    let mut held = Vec::new();
    for _ in 0..236 {
        held.push(TcpStream::connect(at).await.unwrap());
    }
    assert_eq!(ask(at, "GET", "/healthz").await.2, "ok");
    assert!(ports.metrics.open.get(["healthz", "local"]) <= 19.0);
}
