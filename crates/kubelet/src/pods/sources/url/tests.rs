#![allow(clippy::unwrap_used)]

use super::*;
use crate::pods::sources::test_context::{context, manifest, pod_names};
use crate::pods::sources::{CHANNEL, MANIFEST_MAX};
use std::sync::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// A server that gives the scripted answers one after the other, the last one for ever, and keeps
/// the requests.
struct Server {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

async fn serve(answers: Vec<String>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/pods", listener.local_addr().unwrap());
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = requests.clone();
    tokio::spawn(async move {
        let mut answers = answers.into_iter().peekable();
        let mut last = String::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            last = answers.next().unwrap_or(last);
            let mut buffer = vec![0; 4096];
            let n = stream.read(&mut buffer).await.unwrap();
            seen.lock().unwrap().push(String::from_utf8_lossy(&buffer[..n]).into_owned());
            let _ = stream.write_all(last.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    Server { url, requests }
}

fn start(url: &str, headers: Vec<(String, String)>) -> (mpsc::Receiver<SourceUpdate>, Context) {
    let (tx, rx) = mpsc::channel(CHANNEL);
    let context = context();
    let config = UrlConfig { url: url.to_owned(), headers, period: Duration::from_millis(20) };
    tokio::spawn(run(config, context.clone(), tx, CancellationToken::new()));
    (rx, context)
}

async fn next(rx: &mut mpsc::Receiver<SourceUpdate>) -> Vec<Arc<Pod>> {
    tokio::time::timeout(Duration::from_secs(10), rx.recv()).await.unwrap().unwrap().pods
}

#[tokio::test]
async fn pods_lists_failures_and_emptiness() {
    let one = manifest("one", "x:1");
    let list = r#"{"apiVersion":"v1","kind":"PodList","items":[
        {"metadata":{"name":"one"},"spec":{"containers":[{"name":"c","image":"x:1"}]}},
        {"metadata":{"name":"two"},"spec":{"containers":[{"name":"c","image":"x:1"}]}}]}"#;
    let server = serve(vec![
        "HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n".to_owned(),
        ok(&one),
        ok(&one),
        "HTTP/1.1 404 Gone\r\ncontent-length: 0\r\n\r\n".to_owned(),
        ok("not: a pod"),
        ok(list),
        ok(""),
    ])
    .await;
    let headers = vec![("X-Token".to_owned(), "t".to_owned()), ("Host".to_owned(), "h".to_owned())];
    let (mut rx, context) = start(&server.url, headers);
    let pods = next(&mut rx).await;
    assert_eq!(pod_names(&pods), ["one-n1"], "a failed first poll is no report");
    let uid = pods[0].metadata.uid.clone();
    let two = next(&mut rx).await;
    assert_eq!(pod_names(&two), ["one-n1", "two-n1"], "failures and nonsense keep the last set");
    assert_eq!(two[0].metadata.uid, uid, "the same Pod alone or in a list");
    assert!(Arc::ptr_eq(&two[0], &pods[0]), "what did not change is no news");
    assert!(next(&mut rx).await.is_empty(), "an empty body is an empty set");
    assert!(context.problems.list()[0].message.starts_with("zero-length data received"));
    let request = server.requests.lock().unwrap()[0].to_lowercase();
    assert!(request.starts_with("get /pods http/1.1\r\n"), "{request}");
    assert!(request.contains("x-token: t\r\n") && request.contains("host: h\r\n"), "{request}");
}

#[tokio::test]
async fn one_bad_pod_keeps_the_last_answer_and_names_the_field() {
    let bad = r#"{"apiVersion":"v1","kind":"PodList","items":[{"metadata":{"name":"a"},"spec":{"containers":[{"name":"c"}]}}]}"#;
    let server = serve(vec![ok(&manifest("one", "x")), ok(bad)]).await;
    let (mut rx, context) = start(&server.url, Vec::new());
    next(&mut rx).await;
    for _ in 0..500 {
        if let Some(problem) = context.problems.list().first() {
            assert_eq!(problem.message, "invalid pod: spec.containers[0].image: Required value");
            assert!(rx.try_recv().is_err());
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no problem reported");
}

#[tokio::test]
async fn redirects_are_followed_without_carrying_secrets_abroad() {
    let target = serve(vec![ok("home")]).await;
    let abroad = target.url.replace("127.0.0.1", "localhost");
    let server = serve(vec![
        format!("HTTP/1.1 302 Found\r\nlocation: /else\r\ncontent-length: 0\r\n\r\n"),
        format!("HTTP/1.1 302 Found\r\nlocation: {abroad}\r\ncontent-length: 0\r\n\r\n"),
    ])
    .await;
    let fetcher = Fetcher::new(vec![("Authorization".to_owned(), "secret".to_owned())]);
    assert_eq!(fetcher.get(&server.url).await.unwrap(), b"home");
    assert!(server.requests.lock().unwrap()[1].starts_with("GET /else "));
    assert!(server.requests.lock().unwrap()[1].contains("secret"));
    assert!(!target.requests.lock().unwrap()[0].contains("secret"));
    let looping =
        serve(vec![format!("HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n")]).await;
    assert!(matches!(fetcher.get(&looping.url).await, Err(FetchError::Redirects { .. })));
}

#[tokio::test]
async fn bodies_are_bounded_and_bad_urls_refused() {
    let server = serve(vec![ok(&"x".repeat(MANIFEST_MAX + 1))]).await;
    let fetcher = Fetcher::new(Vec::new());
    assert!(matches!(fetcher.get(&server.url).await, Err(FetchError::Body { .. })));
    for url in ["", "ftp://x/", "/pods", "http://"] {
        assert!(matches!(fetcher.get(url).await, Err(FetchError::BadUrl { .. })), "{url}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_answers_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let (_rx, context) = start(&url, Vec::new());
    let (_held, _) = listener.accept().await.unwrap();
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(context.problems.list()[0].message, "no answer within 10 seconds");
}

#[tokio::test]
async fn https_is_verified() {
    let cert = CERT.to_vec();
    let key = rustls_pki_types::PrivateKeyDer::try_from(KEY.to_vec()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.clone().into()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(ok("safe").as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    let url = format!("https://localhost:{port}/");
    let trusted = Fetcher::with_roots(Vec::new(), vec![cert.into()]);
    assert_eq!(trusted.get(&url).await.unwrap(), b"safe");
    let wrong_name = trusted.get(&url.replace("localhost", "127.0.0.2")).await;
    assert!(matches!(wrong_name, Err(FetchError::Tls { .. } | FetchError::Connect { .. })), "{wrong_name:?}");
    assert!(matches!(
        Fetcher::new(Vec::new()).get(&url).await,
        Err(FetchError::Tls { .. } | FetchError::NoRoots { .. })
    ));
}

/// Self-signed for `localhost`, for this test only.
const CERT: &[u8] = include_bytes!("testdata/cert.der");
const KEY: &[u8] = include_bytes!("testdata/key.der");
