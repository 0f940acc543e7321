//! Clients that send too much, too little, too slowly or plain nonsense: each gets a proper Status or is cut off, and the
//! next one is served as if nothing had happened.
#![allow(clippy::unwrap_used)]

mod server;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use apiserver::http::limits::{ClientTimeouts, Limits};
use rustls::pki_types::ServerName;
use serde_json::Value;
use server::{Server, request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const LIMIT: usize = 3 * 1024 * 1024;

const USERS: &str = "loud,loud,1,writers\nquiet,quiet,2,writers\n";

async fn start(limits: Limits, timeouts: ClientTimeouts) -> Server {
    Server::with(USERS, |settings, _| (settings.limits, settings.timeouts) = (limits, timeouts)).await
}

async fn usual() -> Server {
    start(Limits::default(), ClientTimeouts::default()).await
}

async fn is_well(server: &Server) {
    let answer = server.ask("root", &format!("GET {MAPS}"), "", b"").await;
    assert_eq!(answer.code, 200);
}

fn nested(open: &str, close: &str) -> Vec<u8> {
    [
        br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"},"data":"#,
        open.repeat(20_000).as_bytes(),
        close.repeat(20_000).as_bytes(),
        b"}",
    ]
    .concat()
}

#[tokio::test]
async fn nonsense_gets_a_status() {
    let server = usual().await;
    let huge =
        format!(r#"{{"metadata":{{"name":"x"}},"data":{{"a":"{}"}}}}"#, "x".repeat(LIMIT)).into_bytes();
    let (post, patch) = ("POST MAPS", "PATCH MAPS/x");
    let json = "application/json";
    let rows: Vec<(&str, &str, &str, Vec<u8>, u16)> = vec![
        ("too large", post, json, huge.clone(), 413),
        ("too large as YAML", post, "application/yaml", huge.clone(), 413),
        ("too large a patch", patch, "application/merge-patch+json", huge, 413),
        ("nothing", post, json, vec![], 400),
        ("cut short", post, json, br#"{"metadata":{"name":"x""#.to_vec(), 400),
        ("lists without end", post, json, nested("[", "]"), 400),
        ("objects without end", post, json, nested("{\"a\":", "1}"), 400),
        ("YAML without end", post, "application/yaml", nested("[", "]"), 400),
        ("not UTF-8", post, json, b"{\"metadata\":{\"name\":\"\xff\xfe\"}}".to_vec(), 400),
        ("not UTF-8 as YAML", post, "application/yaml", b"metadata: {name: \xff}".to_vec(), 400),
        ("a list", post, json, b"[]".to_vec(), 400),
        ("a number", post, json, b"7".to_vec(), 400),
        ("another kind", post, json, br#"{"apiVersion":"v1","kind":"Secret"}"#.to_vec(), 400),
        ("zeroes", post, json, vec![0; 100], 400),
        ("a bomb of aliases", post, "application/yaml", bomb(), 400),
        ("no envelope", post, "application/vnd.kubernetes.protobuf", b"{}".to_vec(), 400),
        (
            "protobuf cut short",
            post,
            "application/vnd.kubernetes.protobuf",
            b"k8s\0\x0a\xff\xff\xff\x7f".to_vec(),
            400,
        ),
        ("unknown type", post, "text/html", b"<p>".to_vec(), 415),
        ("unknown patch", patch, json, b"{}".to_vec(), 415),
        ("a JSON patch that is none", patch, "application/json-patch+json", b"{}".to_vec(), 404),
        ("an apply without end", patch, "application/apply-patch+yaml", nested("[", "]"), 400),
        ("odd query", "GET MAPS?labelSelector=%ff", json, vec![], 400),
        ("odd selector", "GET MAPS?labelSelector=a+in", json, vec![], 400),
        ("odd limit", "GET MAPS?limit=many", json, vec![], 400),
        ("odd revision", "GET MAPS?resourceVersion=abc", json, vec![], 400),
        ("odd token", "GET MAPS?limit=1&continue=!!!", json, vec![], 400),
        ("odd delete", "DELETE MAPS/x", json, b"[1]".to_vec(), 400),
        ("nowhere", "GET /api/v1/nothing", json, vec![], 404),
        ("no such verb", "BREW MAPS", json, vec![], 405),
        ("up and away", "GET /api/v1/namespaces/..%2f..%2fsecrets/configmaps/x", json, vec![], 404),
    ];
    for (name, line, content_type, body, code) in rows {
        let line = line.replace("MAPS", MAPS);
        let answer = server.ask("root", &line, &format!("Content-Type: {content_type}\r\n"), &body).await;
        let text = String::from_utf8_lossy(&answer.body).chars().take(300).collect::<String>();
        assert_eq!(answer.code, code, "{name}: {text}");
        answer.status();
    }
    let answer = server.ask("root", &format!("GET {MAPS}"), "Accept: text/html\r\n", b"").await;
    assert_eq!(answer.status()["reason"], "NotAcceptable");
    let answer = server.ask("nobody", &format!("GET {MAPS}"), "", b"").await;
    assert_eq!(answer.status()["reason"], "Unauthorized");
    is_well(&server).await;
}

fn bomb() -> Vec<u8> {
    let mut text = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for (new, old) in
        [('b', 'a'), ('c', 'b'), ('d', 'c'), ('e', 'd'), ('f', 'e'), ('g', 'f'), ('h', 'g'), ('i', 'h')]
    {
        let list = vec![format!("*{old}"); 9].join(",");
        text.push_str(&format!("{new}: &{new} [{list}]\n"));
    }
    text.into_bytes()
}

#[tokio::test]
async fn broken_requests_harm_nobody() {
    let server = usual().await;
    let head = |length: usize| {
        request("root", &format!("POST {MAPS}"), "Content-Type: application/json\r\n", length)
    };
    // A body that ends before its length: the client is gone, and nothing was created.
    let mut stream = server.connect().await;
    stream.write_all(head(1000).as_bytes()).await.unwrap();
    stream.write_all(br#"{"metadata":{"name":"half"}"#).await.unwrap();
    stream.shutdown().await.unwrap();
    drop(stream);
    // Chunks that lie about their length.
    let chunked = format!(
        "POST {MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer root\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nnonsense\r\n"
    );
    let answer = server.raw(chunked.as_bytes()).await;
    assert!(answer.is_none_or(|a| a.code == 400));
    // No HTTP at all, and a head without end.
    assert!(server.raw(&[0x16; 4096]).await.is_none_or(|a| a.code == 400));
    let endless = format!("GET {MAPS} HTTP/1.1\r\nX: {}", "y".repeat(1 << 20));
    assert!(server.raw(endless.as_bytes()).await.is_none_or(|a| a.code == 431));
    let missing = server.ask("root", &format!("GET {MAPS}/half"), "", b"").await;
    assert_eq!(missing.status()["reason"], "NotFound");
    is_well(&server).await;
}

#[tokio::test]
async fn slow_clients_are_cut_off() {
    let timeouts = ClientTimeouts {
        first: Duration::from_secs(1),
        idle: Duration::from_secs(1),
        body: Duration::from_secs(1),
        ..ClientTimeouts::default()
    };
    let server = start(Limits::default(), timeouts).await;
    // A handshake that never begins.
    let begun = Instant::now();
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(silent.read(&mut [0; 16]).await.unwrap_or(0), 0);
    // A handshake after which nothing is said, or not enough to know in which protocol, or no more than that.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".as_slice();
    for beginning in [b"".as_slice(), b"PRI * HT", preface] {
        let mut stream = server.connect().await;
        stream.write_all(beginning).await.unwrap();
        stream.flush().await.unwrap();
        let cut = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut Vec::new())).await;
        assert!(cut.is_ok(), "after {beginning:?}");
    }
    // A head that never ends.
    let answer = server.raw(b"GET /api HTTP/1.1\r\nHost: x\r\n").await;
    assert!(answer.is_none_or(|a| a.code == 408));
    // A body that never arrives.
    let head = request("root", &format!("POST {MAPS}"), "Content-Type: application/json\r\n", 10);
    let answer = server.raw(head.as_bytes()).await.expect("an answer");
    assert_eq!((answer.code, answer.status()["reason"].as_str()), (408, Some("Timeout")));
    assert!(begun.elapsed() < Duration::from_secs(60));
    is_well(&server).await;
}

/// A TLS end with a certificate of its own making.
fn acceptor() -> tokio_rustls::TlsAcceptor {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    Arc::new(config).into()
}

#[tokio::test]
async fn who_reads_what_comes_from_elsewhere_may_pause() {
    const LARGE: usize = 32 << 20;
    let stall = Duration::from_millis(300);
    let server = start(Limits::default(), ClientTimeouts { stall, ..ClientTimeouts::default() }).await;
    let kubelet = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = kubelet.local_addr().unwrap().port();
    let node = format!(
        r#"{{"metadata":{{"name":"n"}},"status":{{"addresses":[{{"type":"InternalIP","address":"127.0.0.1"}}],"daemonEndpoints":{{"kubeletEndpoint":{{"Port":{port}}}}}}}}}"#
    );
    let json = "Content-Type: application/json\r\n";
    let made = server.ask("root", "POST /api/v1/nodes", json, node.as_bytes()).await;
    assert_eq!(made.code, 201, "{}", String::from_utf8_lossy(&made.body));
    let tls = acceptor();
    tokio::spawn(async move {
        let (stream, _) = kubelet.accept().await.unwrap();
        let mut stream = tls.accept(stream).await.unwrap();
        let _ = stream.read(&mut [0; 4096]).await;
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n");
        let _ = stream.write_all(head.as_bytes()).await;
        let _ = stream.write_all(&vec![b'x'; LARGE]).await;
    });
    let mut stream = server.connect().await;
    let line = "GET /api/v1/nodes/n/proxy/containerLogs/a/b/c?follow=true";
    stream.write_all(request("root", line, "", 0).as_bytes()).await.unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    // Long enough for all buffers to fill, and then for the kernel to give up.
    tokio::time::sleep(stall * 15).await;
    let (mut read, mut buffer) = (0, vec![0; 1 << 20]);
    while read < LARGE {
        match stream.read(&mut buffer).await {
            Ok(n @ 1..) => read += n,
            ended => panic!("cut off after {read} bytes: {ended:?}"),
        }
    }
}

#[tokio::test]
async fn a_flood_is_its_own_users_trouble() {
    let limits = Limits { writes: 4, ..Limits::default() };
    let server = start(limits, ClientTimeouts::default()).await;
    let binding = br#"{"metadata":{"name":"writers"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":"writers"}]}"#;
    let bindings = "POST /apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    let made = server.ask("root", bindings, "Content-Type: application/json\r\n", binding).await;
    assert_eq!(made.code, 201, "{}", String::from_utf8_lossy(&made.body));
    let post = format!("POST {MAPS}?dryRun=All");
    let body = br#"{"metadata":{"name":"x"}}"#;
    let deadline = Instant::now() + Duration::from_secs(10);
    while server.ask("loud", &post, "", body).await.code != 201 {
        assert!(Instant::now() < deadline, "the binding counts");
    }
    // Requests whose bodies do not come yet are under way. One of them may itself be refused, while the place of an answered
    // request is not given back yet: another is sent until the places are taken.
    let mut held = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(10);
    let refused = loop {
        let mut stream = server.connect().await;
        stream.write_all(request("loud", &post, "", 100).as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        held.push(stream);
        let answer = server.ask("loud", &post, "", body).await;
        if answer.code == 429 || Instant::now() > deadline {
            break answer;
        }
    };
    assert_eq!(refused.status()["reason"], "TooManyRequests");
    assert!(refused.head.to_lowercase().contains("retry-after: 1"), "{}", refused.head);
    let other = server.ask("quiet", &post, "", body).await;
    assert_eq!(other.code, 201, "{}", String::from_utf8_lossy(&other.body));
    // The last place is anybody's, even when it is taken: then only the flood ends it.
    let mut last = server.connect().await;
    last.write_all(request("quiet", &post, "", 100).as_bytes()).await.unwrap();
    held.clear();
    let deadline = Instant::now() + Duration::from_secs(10);
    while server.ask("loud", &post, "", body).await.code != 201 {
        assert!(Instant::now() < deadline, "places are given back");
    }
    is_well(&server).await;
}

#[tokio::test]
async fn answers_for_people_are_indented() {
    let server = usual().await;
    let plain = server.ask("root", "GET /api/v1/namespaces/default", "", b"").await;
    let pretty = server.ask("root", "GET /api/v1/namespaces/default", "User-Agent: curl/8\r\n", b"").await;
    assert!(
        pretty.body.starts_with(b"{\n  \"") && !plain.body.contains(&b'\n') || plain.body.ends_with(b"\n")
    );
    let (a, b): (Value, Value) =
        (serde_json::from_slice(&plain.body).unwrap(), serde_json::from_slice(&pretty.body).unwrap());
    assert_eq!(a, b);
}

/// What took every place there was, without a word about who it is.
#[tokio::test]
async fn idle_connections_shut_nobody_out_and_end_no_watch() {
    const SPEAKING: usize = 600;
    const SILENT: usize = 3600;
    serve::raise_open_files();
    let server = usual().await;
    let mut watch = server.connect().await;
    let line = format!("GET {MAPS}?watch=true&resourceVersion=0");
    watch.write_all(request("root", &line, "", 0).as_bytes()).await.unwrap();
    let mut head = [0; 12];
    watch.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    // Half of what strangers of this machine may have speak HTTP/2 and answer pings; the rest say nothing.
    let mut held = Vec::new();
    let mut silent = Vec::new();
    for n in 0..SPEAKING + SILENT {
        if n % (SILENT / SPEAKING + 1) != 0 {
            silent.push(TcpStream::connect(server.address).await.unwrap());
            continue;
        }
        let stream = TcpStream::connect(server.address).await.unwrap();
        let name = ServerName::from(IpAddr::from(Ipv4Addr::LOCALHOST));
        // Others that come may have taken its place.
        let Ok(stream) = server.connector.connect(name, stream).await else { continue };
        let io = hyper_util::rt::TokioIo::new(stream);
        let executor = hyper_util::rt::TokioExecutor::new();
        let begun =
            hyper::client::conn::http2::handshake::<_, _, http_body_util::Empty<bytes::Bytes>>(executor, io);
        let Ok((sender, connection)) = begun.await else { continue };
        tokio::spawn(connection);
        held.push(sender);
    }
    let well = tokio::time::timeout(Duration::from_secs(10), is_well(&server)).await;
    assert!(well.is_ok(), "somebody else is served");
    let body = br#"{"metadata":{"name":"news"}}"#;
    let made = server.ask("root", &format!("POST {MAPS}"), "Content-Type: application/json\r\n", body).await;
    assert_eq!(made.code, 201);
    let mut told = Vec::new();
    let news = async {
        while !told.windows(13).any(|w| w == b"\"name\":\"news\"") {
            told.push(watch.read_u8().await.expect("the watch goes on"));
        }
    };
    tokio::time::timeout(Duration::from_secs(20), news).await.expect("the watch is told");
    let page = server.ask("root", "GET /metrics", "", b"").await;
    let page = String::from_utf8_lossy(&page.body).into_owned();
    assert!(
        page.contains("longshore_connections_evicted_total{listener=\"apiserver\",reason=\"full\"}"),
        "{page}"
    );
}

#[tokio::test]
async fn a_connection_on_which_nothing_is_asked_is_closed_although_pings_are_answered() {
    let timeouts = ClientTimeouts { idle: Duration::from_secs(1), ..ClientTimeouts::default() };
    let server = start(Limits::default(), timeouts).await;
    let io = hyper_util::rt::TokioIo::new(server.connect().await);
    let executor = hyper_util::rt::TokioExecutor::new();
    let begun = hyper::client::conn::http2::Builder::new(executor)
        .timer(hyper_util::rt::TokioTimer::new())
        .keep_alive_interval(Duration::from_millis(100))
        .keep_alive_while_idle(true)
        .handshake::<_, http_body_util::Empty<bytes::Bytes>>(io);
    let (mut sender, connection) = begun.await.unwrap();
    let ended = tokio::spawn(connection);
    let ask = http::Request::get(format!("https://x{MAPS}")).header("authorization", "Bearer root");
    let answer = sender.send_request(ask.body(http_body_util::Empty::new()).unwrap()).await.unwrap();
    assert_eq!(answer.status(), 200);
    drop(answer);
    let closed = tokio::time::timeout(Duration::from_secs(30), ended).await;
    assert!(closed.is_ok(), "it is told to go");
    drop(sender);
}

/// A patch that computes for seconds is one client's business.
#[tokio::test]
async fn a_request_that_takes_long_holds_up_nobody() {
    let server = Server::with("", |_, _| {}).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    server.make(&format!("POST {maps}"), &serde_json::json!({"metadata": {"name": "m"}})).await;
    // Each insertion moves all elements.
    let list = serde_json::Value::from(vec![0; 300_000]);
    let mut operations = vec![serde_json::json!({"op": "add", "path": "/x", "value": list})];
    operations.extend((0..5_000).map(|_| serde_json::json!({"op": "add", "path": "/x/0", "value": 1})));
    let body = serde_json::Value::Array(operations).to_string();
    let kind = "Content-Type: application/json-patch+json\r\n";
    let line = format!("PATCH {maps}/m?dryRun=All");
    let mut stream = server.connect().await;
    stream.write_all(request("root", &line, kind, body.len()).as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    // On every loop, each with a handshake of its own.
    let others = async {
        for _ in 0..4 {
            assert_eq!(server.ask("root", "GET /livez", "", b"").await.code, 200);
        }
        "others"
    };
    let slow = async {
        server::read(&mut stream).await;
        "slow"
    };
    let first = tokio::select! { first = slow => first, first = others => first };
    assert_eq!(first, "others");
}
