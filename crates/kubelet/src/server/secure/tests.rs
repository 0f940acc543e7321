#![allow(clippy::unwrap_used)]

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use base::verbosity::Verbosity;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use secure_serving::{Access, ReviewError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::host::clock::SystemClock;
use crate::metrics::Metrics;
use crate::pods::status_board::StatusBoard;
use crate::server::{Check, Checks, Ports, Views};
use crate::testing::{ScriptedRuntime, clock};

mod matrix;

/// Says yes to those it knows, and keeps what it was asked.
#[derive(Default)]
struct Scripted {
    asked: Mutex<Vec<String>>,
}

#[async_trait]
impl Reviews for Scripted {
    async fn token(&self, token: &str) -> Result<Option<User>, ReviewError> {
        self.asked.lock().unwrap().push(format!("token {token}"));
        match token {
            "broken" => Err(ReviewError { why: "no answer".to_owned(), retry: false }),
            "admin" | "reader" | "monitor" => Ok(Some(User { name: token.to_owned(), ..User::default() })),
            _ => Ok(None),
        }
    }

    async fn access(&self, user: &User, asked: &Access) -> Result<bool, ReviewError> {
        let Access::Resource { verb, subresource, .. } = asked else { panic!("no resource: {asked:?}") };
        let subresource = *subresource;
        self.asked.lock().unwrap().push(format!("{} {verb} {subresource}", user.name));
        match user.name.as_str() {
            "admin" | "apiserver" => Ok(true),
            "reader" => Ok(verb == "get" && subresource == "proxy"),
            "monitor" => Ok(subresource == "metrics"),
            _ if subresource == "stats" => Err(ReviewError { why: "no answer".to_owned(), retry: false }),
            _ => Ok(false),
        }
    }
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    fn client(&self, name: &str, group: &str) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, group);
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        (vec![cert.der().clone()], PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap())
    }
}

struct Bench {
    address: SocketAddr,
    dir: tempfile::TempDir,
    reviews: Arc<Scripted>,
    token: CancellationToken,
    metrics: Arc<serve::Metrics>,
}

/// One static Pod, `ns/manifest`.
fn board() -> Arc<StatusBoard> {
    let board = StatusBoard::default();
    let pod = serde_json::json!({"metadata": {"name": "manifest", "namespace": "ns", "uid": "static"}});
    let pod = Arc::new(serde_json::from_value(pod).unwrap());
    board.publish(&"static".into(), &pod, Default::default(), None);
    Arc::new(board)
}

fn switches(debugging: bool) -> Switches {
    Switches {
        debugging,
        system_logs: true,
        system_log_query: true,
        profiling: true,
        debug_flags: true,
        checkpoint: true,
        split_streams: false,
        flagz: debugging,
        statusz: debugging,
    }
}

impl Bench {
    async fn new(ca: Option<&Authority>, guard: GuardRules) -> Self {
        Self::with(ca, guard, true).await
    }

    async fn with(ca: Option<&Authority>, mut guard: GuardRules, debugging: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        if let Some(ca) = ca {
            std::fs::write(dir.path().join("ca.crt"), &ca.pem).unwrap();
            guard.client_ca = ClientCa::File(dir.path().join("ca.crt"));
        }
        let reviews = Arc::new(Scripted::default());
        let rules = Rules {
            what: WHAT,
            address: "127.0.0.1:0".parse().unwrap(),
            certificate: CertSource::SelfSigned {
                dir: dir.path().join("pki"),
                name: "kubelet",
                host: "node".to_owned(),
            },
            tls: TlsRules::default(),
            guard,
        };
        let open = open(rules, Some(reviews.clone()), Arc::new(SystemClock::new())).await.unwrap();
        let (address, token) = (open.address().unwrap(), CancellationToken::new());
        let (streams, ports) = (Streams::new(Duration::ZERO), Ports::for_tests());
        let state = ServerState {
            mirrors: Arc::new(|uid| (uid == "mirror").then(|| "static".to_owned())),
            views: Views {
                checks: Checks::new(vec![Check::ping()]),
                pods: board(),
                metrics: Arc::new(Metrics::default()),
                probe_metrics: Arc::default(),
                connections: ports.metrics.clone(),
                runtime: Arc::new(ScriptedRuntime::default()),
                config: Arc::new(serde_json::json!({})),
                stats: crate::server::stats::tests::sources(),
            },
            clock: clock(),
            streams: streams.clone(),
            switches: switches(debugging),
            pod_logs: dir.path().join("pods"),
            root: dir.path().to_owned(),
            about: Arc::new(About { version: "v1".to_owned(), ..About::default() }),
            verbosity: Verbosity::default(),
        };
        tokio::spawn(serve(open, router(state), streams, ports.secure(), token.clone()));
        Self { address, dir, reviews, token, metrics: ports.metrics }
    }

    async fn ask(&self, client: &Client, method: &str, path: &str, token: &str) -> (u16, String) {
        let auth =
            if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
        self.send(client, method, path, &auth).await
    }

    async fn send(&self, client: &Client, method: &str, path: &str, auth: &str) -> (u16, String) {
        let mut stream = client.connect(self.address).await;
        let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{auth}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let text = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}"));
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }
}

/// Believes anybody, as API servers do without a CA for kubelets.
struct Client(Arc<rustls::ClientConfig>);

impl Client {
    fn new(identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>) -> Self {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(::tls::unverified::AcceptAll::default()));
        let config = match identity {
            Some((chain, key)) => {
                let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).unwrap();
                let pair = rustls::sign::CertifiedKey::new(chain, key);
                builder.with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(pair)))
            }
            None => builder.with_no_client_auth(),
        };
        Self(Arc::new(config))
    }

    async fn connect(&self, address: SocketAddr) -> tokio_rustls::client::TlsStream<TcpStream> {
        let stream = TcpStream::connect(address).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(self.0.clone());
        connector.connect(ServerName::try_from("node").unwrap(), stream).await.unwrap()
    }
}

/// What lies in the room of handshakes.
macro_rules! testdata {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../tls/testdata/", $name))
    };
}

#[tokio::test]
async fn certificates_of_the_first_version_are_believed_as_upstream_does() {
    let key = testdata!("first-version.pem").as_bytes();
    let shown = |pem: &str| {
        let chain = vec![CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()];
        Client::new(Some((chain, PrivateKeyDer::from_pem_slice(key).unwrap())))
    };
    let bench = Bench::new(None, GuardRules::default()).await;
    let path = bench.dir.path().join("ca.crt");
    std::fs::write(&path, testdata!("authority.pem")).unwrap();
    let bench = Bench::new(None, GuardRules { client_ca: ClientCa::File(path), ..reviewed() }).await;
    let good = shown(testdata!("first-version.pem"));
    assert_eq!(bench.ask(&good, "GET", "/healthz/ping", "").await, (200, "ok".to_owned()));
    let expired = shown(testdata!("first-version-expired.pem"));
    assert_eq!(bench.ask(&expired, "GET", "/healthz/ping", "").await.0, 401);
}

fn reviewed() -> GuardRules {
    let minute = Duration::from_secs(60);
    GuardRules {
        tokens: Some(minute),
        access: Some(AccessRules { allowed_for: minute, denied_for: minute }),
        ..GuardRules::default()
    }
}

#[tokio::test]
async fn nobody_is_answered_who_is_not_known_and_allowed() {
    let bench = Bench::new(None, reviewed()).await;
    let nobody = Client::new(None);
    let many = format!("/exec/ns/p/c?output=1{}", "&command=x".repeat(5000));
    let rows: &[(&str, &str, &str, u16, &str)] = &[
        ("GET", "/healthz", "", 401, "Unauthorized"),
        ("GET", "/healthz", "stranger", 401, "Unauthorized"),
        ("GET", "/healthz", "broken", 401, "Unauthorized"),
        ("GET", "/healthz", "admin", 200, "ok"),
        ("GET", "/healthz", "reader", 200, "ok"),
        (
            "GET",
            "/healthz",
            "monitor",
            403,
            "Forbidden (user=monitor, verb=get, resource=nodes, subresource(s)=[healthz proxy])\n",
        ),
        (
            "GET",
            "/exec/ns/p/c?command=id&output=1",
            "reader",
            403,
            "Forbidden (user=reader, verb=create, resource=nodes, subresource(s)=[proxy])\n",
        ),
        ("GET", "/exec/ns/p/c?command=id&output=1", "admin", 404, "pod does not exist"),
        ("GET", "/exec/ns/manifest/other/c?command=id&output=1", "admin", 404, "pod not found"),
        // By its own uid, and by that of its mirror.
        (
            "GET",
            "/exec/ns/manifest/static/c?command=id&output=1",
            "admin",
            500,
            "container not found (\"c\")",
        ),
        (
            "GET",
            "/exec/ns/manifest/mirror/c?command=id&output=1",
            "admin",
            500,
            "container not found (\"c\")",
        ),
        ("GET", "/nowhere", "admin", 404, "404 page not found\n"),
        ("GET", "/containerLogs/ns/p/c", "reader", 404, "pod \"p\" does not exist"),
        ("GET", "/containerLogs/ns/p/c?tailLines=-1", "reader", 422, "{\"message\": \"Invalid request.\"}"),
        ("POST", "/checkpoint/ns/p/c?timeout=x", "admin", 404, "pod does not exist"),
        // A command of which a word is missing is another command.
        ("POST", &many, "admin", 400, "more than 4096 query parameters"),
        (
            "POST",
            "/exec/ns/p/c?output=1&command=%ff",
            "admin",
            400,
            "query parameter \"command=%ff\" is no text",
        ),
        ("POST", "/attach/ns/p/c?output=1&x=%00", "admin", 400, "query parameter \"x=%00\" is no text"),
        ("POST", "/run/ns/manifest/c?cmd=ls+%ff", "admin", 400, "query parameter \"cmd=ls+%ff\" is no text"),
    ];
    for (method, path, token, status, text) in rows {
        let answer = bench.ask(&nobody, method, path, token).await;
        assert_eq!(answer, (*status, (*text).to_owned()), "{method} {path} as {token}");
    }
    let (status, _) = bench.ask(&nobody, "GET", "/metrics", "monitor").await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn a_browser_shows_its_token_among_its_protocols() {
    let bench = Bench::new(None, GuardRules { anonymous: true, ..reviewed() }).await;
    let token = "Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.YWRtaW4";
    let rows = [
        (format!("Upgrade: websocket\r\n{token}, v4.channel.k8s.io\r\n"), 200),
        (format!("Upgrade: websocket\r\n{token}\r\n"), 401),
        (format!("Upgrade: websocket\r\n{token}\r\n{token}, x\r\n"), 401),
        // Nobody else may.
        (format!("{token}, v4.channel.k8s.io\r\n"), 403),
    ];
    for (headers, status) in rows {
        let headers = format!("Connection: Upgrade\r\n{headers}");
        let answer = bench.send(&Client::new(None), "GET", "/healthz", &headers).await;
        assert_eq!(answer.0, status, "{headers}");
    }
}

#[test]
fn who_comes_too_often_is_told_when_to_come_again() {
    let error = cri::Error::new("exec", "c", tonic::Code::ResourceExhausted, "too many");
    let answer = axum::response::IntoResponse::into_response(state::HttpError::of(&error));
    assert_eq!((answer.status().as_u16(), &answer.headers()["retry-after"]), (429, &"60".parse().unwrap()));
    let other = axum::response::IntoResponse::into_response(state::HttpError::bad(""));
    assert!(!other.headers().contains_key("retry-after"));
}

/// A listener with short timeouts, and behind it what is larger than all buffers.
async fn hurried(times: secure_serving::Times, first: Duration) -> (Client, SocketAddr, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let rules = Rules {
        what: WHAT,
        address: "127.0.0.1:0".parse().unwrap(),
        certificate: CertSource::SelfSigned {
            dir: dir.path().to_owned(),
            name: "kubelet",
            host: "node".to_owned(),
        },
        tls: TlsRules::default(),
        guard: GuardRules { anonymous: true, ..GuardRules::default() },
    };
    let mut open = open(rules, None, Arc::new(SystemClock::new())).await.unwrap();
    open.times = times;
    let address = open.address().unwrap();
    let large = || async {
        let pieces = std::iter::repeat_n(bytes::Bytes::from_static(&[b'x'; 1 << 16]), LARGE >> 16);
        axum::body::Body::from_stream(futures_util::stream::iter(pieces.map(Ok::<_, io::Error>)))
    };
    let upgrade = |mut request: http::Request<axum::body::Body>| async move {
        let client = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut client = hyper_util::rt::TokioIo::new(client.await.unwrap());
            let _ = client.write_all(&vec![b'x'; LARGE]).await;
            let _ = client.shutdown().await;
        });
        (http::StatusCode::SWITCHING_PROTOCOLS, [("connection", "upgrade"), ("upgrade", "SPDY/3.1")])
    };
    let router = Router::new()
        .route("/exec/a/b/c", axum::routing::get(upgrade))
        .route("/containerLogs/a/b/c", axum::routing::get(large));
    let times = serve::Times { first, idle: Duration::from_secs(90), busy: None };
    let limits = serve::Limits { remote: 9, local: 9, known: 9, per_source: 9, known_takes: 1 };
    let connections =
        serve::Connections::new("hurried", limits, serve::Proof::Identity, times, Arc::default());
    let streams = Streams::new(Duration::ZERO);
    tokio::spawn(serve(open, router, streams, connections, CancellationToken::new()));
    (Client::new(None), address, dir)
}

const LARGE: usize = 32 << 20;

#[tokio::test]
async fn who_says_nothing_after_the_handshake_loses_the_place() {
    let (client, address, _dir) = hurried(secure_serving::Times::default(), Duration::from_millis(500)).await;
    for beginning in [b"".as_slice(), b"PRI * HT", b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
    {
        let mut stream = client.connect(address).await;
        stream.write_all(beginning).await.unwrap();
        let mut heard = Vec::new();
        let cut = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut heard)).await;
        assert!(cut.is_ok(), "after {beginning:?}");
        assert!(heard.is_empty() || heard.starts_with(b"HTTP/1.1 4"), "HTTP/2 is not spoken: {heard:?}");
    }
}

#[tokio::test]
async fn a_reader_of_a_stream_may_pause_and_a_reader_of_an_answer_may_not() {
    let stall = Duration::from_millis(200);
    let (client, address, _dir) =
        hurried(secure_serving::Times { stall, ..secure_serving::Times::default() }, Duration::from_secs(60))
            .await;
    let rows = [
        ("/exec/a/b/c", "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n", true),
        ("/containerLogs/a/b/c?follow=true", "Connection: close\r\n", true),
        ("/containerLogs/a/b/c?follow=false", "Connection: close\r\n", false),
    ];
    for (path, headers, may) in rows {
        let mut stream = client.connect(address).await;
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.unwrap();
        // Long enough for all buffers to fill, and then for the limit to pass.
        tokio::time::sleep(stall * 15).await;
        let (mut read, mut buffer) = (0, vec![0; 1 << 20]);
        while let Ok(n @ 1..) = stream.read(&mut buffer).await {
            read += n;
        }
        assert_eq!(read >= LARGE, may, "{path}: {read} bytes");
    }
}

#[tokio::test]
async fn answers_of_the_api_server_are_remembered() {
    let bench = Bench::new(None, reviewed()).await;
    for _ in 0..3 {
        assert_eq!(bench.ask(&Client::new(None), "GET", "/pods", "reader").await.0, 200);
        assert_eq!(bench.ask(&Client::new(None), "GET", "/pods", "stranger").await.0, 401);
    }
    let asked = bench.reviews.asked.lock().unwrap().clone();
    assert_eq!(asked, ["token reader", "reader get pods", "reader get proxy", "token stranger"]);
}

#[tokio::test]
async fn a_certificate_names_its_user_and_a_changed_ca_counts_at_once() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let bench = Bench::new(Some(&ours), GuardRules { anonymous: true, ..reviewed() }).await;
    let (good, bad) =
        (Client::new(Some(ours.client("apiserver", "system:masters"))), theirs.client("apiserver", "g"));
    let bad = Client::new(Some(bad));
    assert_eq!(bench.ask(&good, "GET", "/healthz", "").await, (200, "ok".to_owned()));
    // A bad proof is not as good as none, even where none is enough.
    assert_eq!(bench.ask(&bad, "GET", "/healthz", "").await.0, 401);
    assert_eq!(bench.ask(&bad, "GET", "/healthz", "admin").await.0, 200, "another proof may be good");
    let (status, text) = bench.ask(&Client::new(None), "GET", "/healthz", "").await;
    assert!(status == 403 && text.contains("user=system:anonymous"), "{text}");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    std::fs::write(bench.dir.path().join("ca.crt"), &theirs.pem).unwrap();
    assert_eq!(bench.ask(&good, "GET", "/healthz", "").await.0, 401);
    assert_eq!(bench.ask(&bad, "GET", "/healthz", "").await.0, 200);
    bench.token.cancel();
}

#[tokio::test]
async fn a_review_that_fails_is_not_a_refusal() {
    let rules = GuardRules { anonymous: true, ..reviewed() };
    let bench = Bench::new(None, rules).await;
    let answer = bench.ask(&Client::new(None), "GET", "/stats/summary", "").await;
    let text = "Authorization error (user=system:anonymous, verb=get, resource=nodes, subresource=stats)";
    assert_eq!(answer, (500, text.to_owned()));
}

#[tokio::test]
async fn without_debugging_handlers_only_the_open_paths_are_left() {
    let rules = GuardRules { anonymous: true, ..GuardRules::default() };
    let bench = Bench::with(None, rules, false).await;
    let nobody = Client::new(None);
    for path in
        ["/exec/ns/p/c", "/run/ns/p/c", "/containerLogs/ns/p/c", "/logs/x", "/runningpods/", "/debug/pprof/"]
    {
        let answer = bench.ask(&nobody, "GET", path, "").await;
        assert_eq!(answer, (405, "Debug endpoints are disabled.\n".to_owned()), "{path}");
    }
    for path in ["/configz", "/checkpoint/ns/p/c", "/statusz", "/flagz"] {
        assert_eq!(bench.ask(&nobody, "GET", path, "").await.0, 404, "{path}");
    }
    assert_eq!(bench.ask(&nobody, "GET", "/healthz/ping", "").await.0, 200);
}

#[tokio::test]
async fn nonsense_gets_an_answer_and_the_server_stays() {
    let rules = GuardRules { anonymous: true, ..GuardRules::default() };
    let bench = Bench::new(None, rules).await;
    let nobody = Client::new(None);
    let long = format!("/{}", "x".repeat(100_000));
    let paths = [
        "/exec/ns/p/%ff",
        "/exec////",
        "/containerLogs/%2e%2e/%2e%2e/%2e%2e",
        "/containerLogs/ns/p/c?sinceTime=%",
        "/logs/..%2f..%2fetc/shadow",
        "/logs/%00",
        "/portForward/ns/p?port=-1",
        "/run/ns/p/c?cmd=%zz",
        "/checkpoint/a/b/c?timeout=99999999999999999999999",
        "/debug/flags/v",
        &long,
        "/?%%%=%%%&&&===",
    ];
    for path in paths {
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "NONSENSE"] {
            let (status, text) = bench.ask(&nobody, method, path, "").await;
            assert!((400..=501).contains(&status), "{method} {path}: {status} {text}");
        }
    }
    // Those who speak no TLS, or nothing at all, do not keep others from being served.
    let mut silent = Vec::new();
    for bytes in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), &[0x16, 3, 1, 0xff, 0xff], &[]] {
        let mut stream = TcpStream::connect(bench.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        silent.push(stream);
    }
    assert_eq!(bench.ask(&nobody, "GET", "/healthz", "").await.0, 200);
}

#[test]
fn files_and_rules_of_tls() {
    let dir = tempfile::tempdir().unwrap();
    let source =
        || CertSource::SelfSigned { dir: dir.path().to_owned(), name: "kubelet", host: "node".to_owned() };
    let identity = Arc::new(secure_serving::Identity::open(source()).unwrap());
    let first = std::fs::read(dir.path().join("kubelet.crt")).unwrap();
    secure_serving::Identity::open(source()).unwrap();
    assert_eq!(std::fs::read(dir.path().join("kubelet.crt")).unwrap(), first, "it is kept");
    let mode = |name: &str| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o777
    };
    assert_eq!((mode("kubelet.key"), mode("kubelet.crt")), (0o600, 0o644));
    let rules = |min: &str, suites: &[&str]| TlsRules {
        min_version: min.to_owned(),
        suites: suites.iter().map(|s| (*s).to_owned()).collect(),
        ..TlsRules::default()
    };
    for (min, suites) in [
        ("", &[][..]),
        ("VersionTLS10", &[]),
        ("VersionTLS13", &["TLS_AES_128_GCM_SHA256"]),
        ("VersionTLS12", &["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_RSA_WITH_AES_128_CBC_SHA"]),
    ] {
        assert!(
            secure_serving::server_config(identity.clone(), &rules(min, suites)).is_ok(),
            "{min} {suites:?}"
        );
    }
    let files =
        |cert: &str, key: &str| CertSource::Files { cert: dir.path().join(cert), key: dir.path().join(key) };
    let wrong = |source| secure_serving::Identity::open(source).unwrap_err().to_string();
    assert!(wrong(files("none", "kubelet.key")).contains("none: No such file"), "names the file");
    assert!(wrong(files("kubelet.key", "kubelet.key")).contains("it holds no certificate"));
    let other = rcgen::generate_simple_self_signed(vec!["x".to_owned()]).unwrap();
    std::fs::write(dir.path().join("other.key"), other.signing_key.serialize_pem()).unwrap();
    assert!(wrong(files("kubelet.crt", "other.key")).contains("do not belong together"));
    assert!(certified_key(b"", b"").is_err());
}

#[tokio::test(start_paused = true)]
async fn a_replaced_certificate_is_shown_and_a_broken_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["c", "k"].map(|name| dir.path().join(name));
    let put = |text: (&str, &str)| {
        for (path, text) in paths.iter().zip([text.0, text.1]) {
            std::fs::write(path, text).unwrap();
        }
    };
    let make = || rcgen::generate_simple_self_signed(vec!["x".to_owned()]).unwrap();
    let (one, two) = (make(), make());
    put((&one.cert.pem(), &one.signing_key.serialize_pem()));
    let identity =
        secure_serving::Identity::open(CertSource::Files { cert: paths[0].clone(), key: paths[1].clone() })
            .unwrap();
    assert_eq!(identity.leaf().unwrap(), *one.cert.der());
    put(("", "broken"));
    tokio::time::advance(Duration::from_secs(2)).await;
    identity.refresh().await;
    assert_eq!(identity.leaf().unwrap(), *one.cert.der());
    put((&two.cert.pem(), &two.signing_key.serialize_pem()));
    tokio::time::advance(Duration::from_secs(2)).await;
    identity.refresh().await;
    assert_eq!(identity.leaf().unwrap(), *two.cert.der());
}

/// As many as an adversary needed to stop `kubectl logs` for eighty seconds.
#[tokio::test]
async fn idle_handshakes_shut_nobody_out_and_end_no_stream() {
    let bench = Bench::new(None, reviewed()).await;
    let client = Client::new(None);
    // Known and idle: kept, and asked again later.
    let mut kept = client.connect(bench.address).await;
    let ask = "GET /healthz/ping HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer admin\r\n\r\n";
    let mut answered = async || {
        kept.write_all(ask.as_bytes()).await.unwrap();
        let mut text = Vec::new();
        while !text.ends_with(b"\r\n\r\nok") {
            text.push(kept.read_u8().await.unwrap());
        }
        assert!(text.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&text));
    };
    answered().await;
    let mut held = Vec::new();
    for n in 0..2400 {
        let mut stream = TcpStream::connect(bench.address).await.unwrap();
        // Half of them begin a handshake, and say no more.
        if n % 2 == 0 {
            let _ = stream.write_all(&[0x16, 3, 1, 2, 0, 1, 0]).await;
        }
        held.push(stream);
    }
    let answer = bench.ask(&client, "GET", "/healthz/ping", "admin");
    let answer = tokio::time::timeout(Duration::from_secs(10), answer).await.expect("an answer");
    assert_eq!(answer, (200, "ok".to_owned()));
    answered().await;
    assert!(bench.metrics.evicted.get(["kubelet", "full"]) > 1000.0);
    assert_eq!(bench.metrics.open.get(["kubelet", "known"]), 1.0);
}
