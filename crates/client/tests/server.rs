//! The client against a small server of our own: what it asks, and what it makes of every kind of answer.
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use base::rng::Rng;
use bytes::Bytes;
use client::{Client, ClientError, Config, Event, Options, Piece, Request, Resource, Watcher};
use http_body_util::{Either, Full};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::PrivateKeyDer;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Answers in the order given and remembers what was asked.
#[derive(Clone, Default)]
struct Script {
    answers: Arc<Mutex<VecDeque<(u16, String)>>>,
    asked: Arc<Mutex<Vec<String>>>,
    /// What refusals ask for, in seconds.
    retry_after: Option<u64>,
}

impl Script {
    fn new(answers: &[(u16, &str)]) -> Script {
        let answers = answers.iter().map(|(code, body)| (*code, (*body).to_owned())).collect();
        Script { answers: Arc::new(Mutex::new(answers)), asked: Arc::default(), retry_after: None }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    fn answer(
        &self,
        request: &http::Request<hyper::body::Incoming>,
        who: &str,
    ) -> http::Response<Full<Bytes>> {
        let token = request.headers().get("authorization").map_or("-", |v| v.to_str().unwrap());
        let mut line =
            format!("{} {} {token} {who}", request.method(), request.uri().path_and_query().unwrap());
        if let Some(form) = request.headers()["accept"].to_str().unwrap().strip_prefix("application/json;") {
            line = format!("{line} {form}");
        }
        self.asked.lock().unwrap().push(line);
        let (code, body) =
            self.answers.lock().unwrap().pop_front().unwrap_or((503, "nothing left".to_owned()));
        let mut response = http::Response::new(Full::new(Bytes::from(body)));
        *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
        if let Some(seconds) = self.retry_after.filter(|_| code >= 400) {
            response.headers_mut().insert("retry-after", seconds.into());
        }
        response
    }

    async fn serve_plain(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let script = self.clone();
        tokio::spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let script = script.clone();
                let service = service_fn(move |request| {
                    let answer = script.answer(&request, "-");
                    async move { Ok::<_, std::convert::Infallible>(answer) }
                });
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(tcp), service),
                );
            }
        });
        address
    }

    /// Tells the common name of the certificate it was shown by the serial bytes of the certificate itself.
    async fn serve_tls(&self, tls: rustls::ServerConfig) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("https://{}", listener.local_addr().unwrap());
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let script = self.clone();
        tokio::spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let (acceptor, script) = (acceptor.clone(), script.clone());
                tokio::spawn(async move {
                    let Ok(tls) = acceptor.accept(tcp).await else { return };
                    let shown = tls.get_ref().1.peer_certificates().map_or(0, |c| c[0].len());
                    let service = service_fn(move |request| {
                        let answer = script.answer(&request, &shown.to_string());
                        async move { Ok::<_, std::convert::Infallible>(answer) }
                    });
                    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection(TokioIo::new(tls), service).await;
                });
            }
        });
        address
    }
}

fn config(server: String) -> Config {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    let text = format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: ''}}}}]\nclusters: [{{name: k, cluster: {{server: '{server}'}}}}]\n"
    );
    std::fs::write(&path, text).unwrap();
    Config::load(&path).unwrap()
}

fn names(items: &[Box<serde_json::value::RawValue>]) -> Vec<String> {
    items.iter().map(|i| name(i)).collect()
}

fn name(item: &serde_json::value::RawValue) -> String {
    serde_json::from_str::<serde_json::Value>(item.get()).unwrap()["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[tokio::test]
async fn a_watcher_may_ask_for_metadata_alone() {
    let list = r#"{"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "a"}}]}"#;
    let script = Script::new(&[(200, list), (200, "")]);
    let client = Client::new(config(script.serve_plain().await), Options::default()).await.unwrap();
    let resource = Resource::new("/api/v1/secrets");
    let mut watcher = Watcher::new(client, resource, Rng::new(1)).from_store().metadata_only();
    assert!(matches!(watcher.next().await, Event::Listed(all) if all.len() == 1));
    let _ends = tokio::time::timeout(Duration::from_millis(200), watcher.next()).await;
    let asked = script.asked();
    let form = |kind: &str| format!(" as={kind};g=meta.k8s.io;v=v1,application/json");
    assert!(asked[0].ends_with(&form("PartialObjectMetadataList")), "{asked:?}");
    assert!(
        asked[1].contains("watch=true") && asked[1].ends_with(&form("PartialObjectMetadata")),
        "{asked:?}"
    );
}

#[tokio::test]
async fn a_watch_goes_on_where_it_was_cut() {
    let script = Script::new(&[
        (
            200,
            r#"{"metadata":{"resourceVersion":"5","continue":"more&"},"items":[{"metadata":{"name":"a"}}]}"#,
        ),
        (200, r#"{"metadata":{"resourceVersion":"5"},"items":[{"metadata":{"name":"b"}}]}"#),
        (
            200,
            concat!(
                r#"{"type":"ADDED","object":{"metadata":{"name":"c","resourceVersion":"6"}}}"#,
                "\n\n",
                r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}"#,
                "\n"
            ),
        ),
        (503, "busy"),
        (
            200,
            "{\"type\":\"DELETED\",\"object\":{\"metadata\":{\"name\":\"a\",\"resourceVersion\":\"10\"}}}\n",
        ),
        (
            200,
            "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410,\"reason\":\"Expired\",\"message\":\"too old\"}}\n",
        ),
        (200, r#"{"metadata":{"resourceVersion":"20"},"items":null}"#),
    ]);
    let server = script.serve_plain().await;
    let client = Client::new(config(server), Options::default()).await.unwrap();
    let mut resource = Resource::new("/api/v1/pods");
    resource.field_selector = "spec.nodeName=n1".to_owned();
    let mut watcher = Watcher::new(client, resource, Rng::new(1));

    assert!(matches!(watcher.next().await, Event::Listed(items) if names(&items) == ["a", "b"]));
    assert!(matches!(watcher.next().await, Event::Applied(item) if name(&item) == "c"));
    assert!(matches!(watcher.next().await, Event::Deleted(item) if name(&item) == "a"));
    assert!(matches!(watcher.next().await, Event::Listed(items) if items.is_empty()));

    let asked: Vec<String> = script.asked().iter().map(|a| without_timeout(a)).collect();
    let watch = "GET /api/v1/pods?watch=true&allowWatchBookmarks=true&resourceVersion";
    assert_eq!(
        asked,
        [
            "GET /api/v1/pods?limit=10000&fieldSelector=spec.nodeName%3Dn1&resourceVersion=0 - -".to_owned(),
            "GET /api/v1/pods?limit=10000&fieldSelector=spec.nodeName%3Dn1&continue=more%26 - -".to_owned(),
            format!("{watch}=5&fieldSelector=spec.nodeName%3Dn1 - -"),
            format!("{watch}=9&fieldSelector=spec.nodeName%3Dn1 - -"),
            format!("{watch}=9&fieldSelector=spec.nodeName%3Dn1 - -"),
            format!("{watch}=10&fieldSelector=spec.nodeName%3Dn1 - -"),
            "GET /api/v1/pods?limit=10000&fieldSelector=spec.nodeName%3Dn1 - -".to_owned(),
        ]
    );
}

#[tokio::test]
async fn a_list_comes_in_pieces_and_begins_again_when_it_breaks_off() {
    let script = Script::new(&[
        (200, r#"{"metadata":{"resourceVersion":"5"},"items":[{"metadata":{"name":"a"}},{"metadata":{"na"#),
        (200, r#"{"metadata":{"resourceVersion":"6"},"items":[{"metadata":{"name":"b"}}]}"#),
    ]);
    let server = script.serve_plain().await;
    let client = Client::new(config(server), Options::default()).await.unwrap();
    let mut watcher = Watcher::new(client, Resource::new("/api/v1/pods"), Rng::new(1));
    let mut seen = Vec::new();
    while seen.last().is_none_or(|last| last != "end") {
        seen.push(match watcher.next_piece().await {
            Piece::Begin => "begin".to_owned(),
            Piece::Item(item) => name(&item),
            Piece::End => "end".to_owned(),
            Piece::Applied(_) | Piece::Deleted(_) | Piece::Bookmark => "event".to_owned(),
        });
    }
    assert_eq!(seen, ["begin", "a", "begin", "b", "end"]);
}

fn without_timeout(asked: &str) -> String {
    match asked.split_once("timeoutSeconds=") {
        Some((head, tail)) => format!("{head}{}", tail.split_once('&').unwrap().1),
        None => asked.to_owned(),
    }
}

#[tokio::test]
async fn a_caller_in_a_hurry_neither_loses_events_nor_hammers_the_server() {
    let script = Script::new(&[(200, r#"{"metadata":{"resourceVersion":"5"},"items":[]}"#)]);
    let server = script.serve_plain().await;
    let client = Client::new(config(server), Options::default()).await.unwrap();
    let mut watcher = Watcher::new(client, Resource::new("/api/v1/nodes"), Rng::new(1));
    assert!(matches!(watcher.next().await, Event::Listed(_)));
    // From here on the server answers 503. The caller gives up on `next` every millisecond, as a select does.
    for _ in 0..300 {
        let _ = tokio::time::timeout(Duration::from_millis(1), watcher.next()).await;
    }
    assert!(watcher.out_of_reach().is_some());
    let watches = script.asked().len() - 1;
    assert!((1..=6).contains(&watches), "{watches} attempts in 300 ms");
}

#[tokio::test]
async fn refusals_keep_their_words() {
    let script = Script::new(&[
        (
            409,
            r#"{"kind":"Status","status":"Failure","reason":"AlreadyExists","code":409,"message":"pods \"a\" already exists"}"#,
        ),
        (500, "<html>"),
        (200, "{"),
    ]);
    let server = script.serve_plain().await;
    let client = Client::new(config(server), Options::default()).await.unwrap();
    let path = "/api/v1/namespaces/default/pods?dryRun=All";
    let error = client.ask::<Value>(Request::post(path, "{}")).await.unwrap_err();
    assert!(error.is_already_exists() && !error.is_conflict());
    let told = "POST /api/v1/namespaces/default/pods: pods \"a\" already exists (409 AlreadyExists)";
    assert_eq!(error.to_string(), told);
    let error = client.ask::<Value>(Request::get("/x")).await.unwrap_err();
    assert_eq!(error.to_string(), "GET /x: <html> (500 )");
    let error = client.ask::<Value>(Request::get("/x")).await.unwrap_err();
    assert!(matches!(error, ClientError::Decode { .. }), "{error}");
}

#[tokio::test]
async fn a_server_that_says_when_to_come_back_is_asked_again() {
    let busy = [(429, "busy"), (503, "starting"), (200, "1")];
    let script = Script { retry_after: Some(1), ..Script::new(&busy) };
    let client = Client::new(config(script.serve_plain().await), Options::default()).await.unwrap();
    let begun = std::time::Instant::now();
    assert_eq!(client.ask::<Value>(Request::post("/x", "{}")).await.unwrap(), 1);
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(script.asked().len(), 3);
}

#[tokio::test]
async fn nobody_waits_who_has_no_time_or_rules_of_his_own() {
    let refusals = [(429, "busy"); 20];
    let ask = async |retry_after: Option<u64>, options: Options, request: Request| {
        let script = Script { retry_after, ..Script::new(&refusals) };
        let client = Client::new(config(script.serve_plain().await), options).await.unwrap();
        let error = client.ask_bytes(request).await.unwrap_err();
        assert_eq!(error.code(), Some(429), "{error}");
        script.asked().len()
    };
    let get = || Request::get("/x");
    let hurried = Options { timeout: Duration::from_secs(20), ..Options::default() };
    assert_eq!(ask(Some(60), hurried, get()).await, 1, "the pause is longer than the timeout");
    assert_eq!(ask(Some(0), Options { repeats: 0, ..Options::default() }, get()).await, 1);
    assert_eq!(ask(Some(0), Options::default(), get().once()).await, 1);
    assert_eq!(ask(None, Options::default(), get()).await, 1, "nothing was said of when");
    assert_eq!(ask(Some(0), Options::default(), get()).await, 11, "and not for ever");
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_not_read() {
    let script = Script::new(&[(200, &format!("\"{}\"", "x".repeat(10_000)))]);
    let server = script.serve_plain().await;
    let options = Options { answer_max: 1000, ..Options::default() };
    let client = Client::new(config(server), options).await.unwrap();
    let error = client.ask::<Value>(Request::get("/x")).await.unwrap_err();
    assert_eq!(error.to_string(), "GET /x: the answer is larger than 1000 bytes");
}

#[tokio::test]
async fn nobody_home_is_said_plainly() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let client = Client::new(config(server.clone()), Options::default()).await.unwrap();
    let error = client.ask::<Value>(Request::get("/x")).await.unwrap_err();
    let told = error.to_string();
    assert!(told.starts_with(&format!("connecting to {server}: Connection refused")), "{told}");
}

/// A CA, the server's certificate by it, and client certificates on request.
struct Authority {
    issuer: rcgen::CertifiedIssuer<'static, rcgen::KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        Authority { issuer: rcgen::CertifiedIssuer::self_signed(params, key).unwrap() }
    }

    fn issue(&self, name: &str) -> (rcgen::Certificate, rcgen::KeyPair) {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    fn server(&self) -> rustls::ServerConfig {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let verifier =
            rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .allow_unauthenticated()
                .build()
                .unwrap();
        let (certificate, key) = self.issue("server");
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        config
    }
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_and_a_broken_one_is_not() {
    let authority = Authority::new();
    let script = Script::new(&[(200, "1"), (200, "2"), (200, "3")]);
    let server = script.serve_tls(authority.server()).await;
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("ca.crt", &authority.issuer.pem());
    let show = |name: &str| {
        let (certificate, key) = authority.issue(name);
        write("client.crt", &certificate.pem());
        write("client.key", &key.serialize_pem());
        certificate.der().len().to_string()
    };
    let first = show("a");
    write(
        "kubeconfig",
        &format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: '{server}', certificate-authority: ca.crt}}}}]\n\
             users: [{{name: u, user: {{client-certificate: client.crt, client-key: client.key, token: t}}}}]\n"
        ),
    );
    let client =
        Client::new(Config::load(&dir.path().join("kubeconfig")).unwrap(), Options::default()).await.unwrap();
    assert_eq!(client.ask::<Value>(Request::get("/1")).await.unwrap(), 1);

    tokio::time::pause();
    let second = show("a much longer name");
    tokio::time::advance(Duration::from_secs(11)).await;
    tokio::time::resume();
    assert_eq!(client.ask::<Value>(Request::get("/2")).await.unwrap(), 2);

    tokio::time::pause();
    write("client.crt", "half");
    tokio::time::advance(Duration::from_secs(11)).await;
    tokio::time::resume();
    assert_eq!(client.ask::<Value>(Request::get("/3")).await.unwrap(), 3);
    assert_eq!(
        script.asked(),
        [
            format!("GET /1 Bearer t {first}"),
            format!("GET /2 Bearer t {second}"),
            format!("GET /3 Bearer t {second}")
        ]
    );
}

#[tokio::test]
async fn a_server_of_another_authority_is_refused() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let script = Script::new(&[(200, "1")]);
    let server = script.serve_tls(theirs.server()).await;
    let mut config = config(server);
    config.ca = Some(client::kubeconfig::Source::Inline(ours.issuer.pem().into_bytes()));
    let client = Client::new(config, Options::default()).await.unwrap();
    let error = client.ask::<Value>(Request::get("/1")).await.unwrap_err().to_string();
    assert!(error.contains("invalid peer certificate"), "{error}");
    assert!(script.asked().is_empty());
}

/// A plugin that counts how often it is asked, and does something first.
fn plugin(count: &std::path::Path, first: &str) -> client::kubeconfig::Exec {
    let answer = r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"from-plugin"}}"#;
    let program = format!("echo x >> {}; {first}\necho '{answer}'", count.display());
    client::kubeconfig::Exec {
        api_version: "client.authentication.k8s.io/v1".to_owned(),
        command: "/bin/sh".to_owned(),
        args: vec!["-c".to_owned(), program],
        env: Vec::new(),
        install_hint: String::new(),
        provide_cluster_info: true,
        interactive_mode: "Never".to_owned(),
        cluster: client::kubeconfig::ExecCluster::default(),
    }
}

#[tokio::test]
async fn a_plugin_that_is_slower_than_a_request_is_heard_all_the_same() {
    let script = Script::new(&[(200, "1"), (200, "2")]);
    let mut config = config(script.serve_plain().await);
    let dir = tempfile::tempdir().unwrap();
    let (count, go) = (dir.path().join("count"), dir.path().join("go"));
    let wait = format!("while [ ! -e {} ]; do sleep 0.05; done", go.display());
    config.identity.exec = Some(plugin(&count, &wait));
    let hurried =
        Client::later(config, Options { timeout: Duration::from_millis(300), ..Options::default() });
    for _ in 0..2 {
        let error = hurried.ask::<Value>(Request::get("/0")).await.unwrap_err();
        assert!(matches!(error, ClientError::Timeout { .. }), "{error}");
    }
    std::fs::write(go, "").unwrap();
    let patient = hurried.again(Options::default());
    assert_eq!(patient.ask::<Value>(Request::get("/1")).await.unwrap(), 1);
    assert_eq!(patient.again(Options::default()).ask::<Value>(Request::get("/2")).await.unwrap(), 2);
    assert_eq!(script.asked(), ["GET /1 Bearer from-plugin -", "GET /2 Bearer from-plugin -"]);
    assert_eq!(std::fs::read_to_string(count).unwrap(), "x\n", "one answer is enough for all");
}

#[tokio::test]
async fn a_plugin_hands_out_tokens_and_is_not_asked_twice() {
    let script = Script::new(&[(200, "1"), (200, "2")]);
    let mut config = config(script.serve_plain().await);
    let dir = tempfile::tempdir().unwrap();
    let count = dir.path().join("count");
    config.identity.exec = Some(plugin(&count, ""));
    let client = Client::new(config, Options::default()).await.unwrap();
    client.ask::<Value>(Request::get("/1")).await.unwrap();
    client.ask::<Value>(Request::get("/2")).await.unwrap();
    assert_eq!(script.asked(), ["GET /1 Bearer from-plugin -", "GET /2 Bearer from-plugin -"]);
    assert_eq!(std::fs::read_to_string(count).unwrap(), "x\n");
}

/// A server in memory that lists, and then answers nothing, or begins a watch in which nothing ever comes.
fn mute(begins: bool) -> (Client, Arc<Mutex<Vec<String>>>) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = asked.clone();
    let dial: client::Dial = Arc::new(move || {
        let (ours, mut theirs) = tokio::io::duplex(64 << 10);
        let seen = seen.clone();
        tokio::spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = theirs.read(&mut buffer).await {
                let request = String::from_utf8_lossy(&buffer[..n]).into_owned();
                let is_watch = request.contains("watch=true");
                seen.lock().unwrap().push(request);
                let list = r#"{"metadata":{"resourceVersion":"5"},"items":[]}"#;
                let answer = match is_watch {
                    false => format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{list}", list.len()),
                    true if begins => "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_owned(),
                    true => continue,
                };
                theirs.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        Ok(Box::new(ours) as Box<dyn client::Wire>)
    });
    (Client::over(dial, Options::default()), asked)
}

#[tokio::test(start_paused = true)]
async fn a_watch_on_a_dead_connection_is_left() {
    for begins in [false, true] {
        let (client, asked) = mute(begins);
        let mut watcher = Watcher::new(client, Resource::new("/api/v1/pods"), Rng::new(1));
        assert!(matches!(watcher.next().await, Event::Listed(_)));
        // Longer than the longest watch that is asked for.
        let quiet = tokio::time::timeout(Duration::from_secs(700), watcher.next()).await;
        assert!(quiet.is_err());
        let watches = asked.lock().unwrap().iter().filter(|r| r.contains("watch=true")).count();
        assert!(watches >= 2, "{watches} watches, begun: {begins}");
    }
}

/// Answers that never end at `/watch`, short ones elsewhere, and three at a time on a connection.
async fn crowded(tls: rustls::ServerConfig) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("https://{}", listener.local_addr().unwrap());
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let connections: Arc<AtomicUsize> = Arc::default();
    let count = connections.clone();
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let Ok(tls) = acceptor.accept(tcp).await else { continue };
            count.fetch_add(1, Relaxed);
            let service = service_fn(|request: http::Request<hyper::body::Incoming>| async move {
                Ok::<_, std::convert::Infallible>(http::Response::new(match request.uri().path() {
                    "/watch" => Either::Left(Endless),
                    _ => Either::Right(Full::new(Bytes::from_static(b"1"))),
                }))
            });
            tokio::spawn(async move {
                let mut builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                builder.http2().max_concurrent_streams(3);
                let _ = builder.serve_connection(TokioIo::new(tls), service).await;
            });
        }
    });
    (address, connections)
}

struct Endless;

impl hyper::body::Body for Endless {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
        Poll::Pending
    }
}

#[tokio::test]
async fn many_watches_leave_room_for_a_question() {
    let authority = Authority::new();
    let (server, connections) = crowded(authority.server()).await;
    let mut config = config(server);
    config.ca = Some(client::kubeconfig::Source::Inline(authority.issuer.pem().into_bytes()));
    let options = Options { per_connection: 2, timeout: Duration::from_secs(20), ..Options::default() };
    let client = Client::new(config, options).await.unwrap();
    let watch = async || client.stream(Request::get("/watch")).await.unwrap();
    let mut watches = Vec::new();
    for _ in 0..5 {
        watches.push(watch().await);
    }
    assert_eq!(client.ask::<Value>(Request::get("/x")).await.unwrap(), 1);
    assert_eq!(connections.load(Relaxed), 3);
    // Those that end give their places back.
    watches.drain(..2);
    for _ in 0..2 {
        watches.push(watch().await);
    }
    assert_eq!(client.ask::<Value>(Request::get("/x")).await.unwrap(), 1);
    assert_eq!(connections.load(Relaxed), 3);
}
