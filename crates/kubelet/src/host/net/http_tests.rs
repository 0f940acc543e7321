#![allow(clippy::unwrap_used)]

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

/// Answers each connection with what `script` makes of the request text.
async fn serve(script: impl Fn(&str) -> String + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut text = Vec::new();
            let mut chunk = [0; 4096];
            while !text.ends_with(b"\r\n\r\n") {
                match stream.read(&mut chunk).await {
                    Ok(n) if n > 0 => text.extend_from_slice(&chunk[..n]),
                    _ => break,
                }
            }
            let _ = stream.write_all(script(&String::from_utf8_lossy(&text)).as_bytes()).await;
        }
    });
    port
}

fn request(port: u16, path: &str) -> HttpGet {
    HttpGet {
        tls: false,
        host: "127.0.0.1".into(),
        port,
        path: path.into(),
        headers: vec![],
        timeout: Duration::from_secs(5),
        follow_redirects: true,
    }
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn moved(to: &str) -> String {
    format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 4\r\n\r\nmove")
}

#[tokio::test]
async fn the_request_looks_like_upstreams() {
    let port = serve(ok).await;
    let text = get(request(port, "/a b?c=d")).await.unwrap().body;
    let mut lines: Vec<&str> = text.trim_end().split("\r\n").collect();
    assert_eq!(lines.remove(0), "GET /a%20b?c=d HTTP/1.1");
    lines.sort_unstable();
    let host = format!("Host: 127.0.0.1:{port}");
    assert_eq!(lines, ["Accept: */*", "Connection: close", host.as_str(), "User-Agent: kube-probe/1.36"]);
}

#[tokio::test]
async fn the_users_headers_win() {
    let port = serve(ok).await;
    let mut r = request(port, "/");
    let pairs =
        [("host", "example.test"), ("x-twice", "1"), ("X-Twice", "2"), ("user-agent", "me"), ("accept", "")];
    r.headers = pairs.map(|(n, v)| (n.to_owned(), v.to_owned())).to_vec();
    let text = get(r).await.unwrap().body;
    for line in ["Host: example.test\r\n", "X-Twice: 1\r\n", "X-Twice: 2\r\n", "User-Agent: me\r\n"] {
        assert!(text.contains(line), "{text}");
    }
    assert!(!text.contains("Accept") && !text.contains("127.0.0.1"), "{text}");
}

#[tokio::test]
async fn redirects_stay_on_the_host() {
    let port = serve(|text| match text.split(' ').nth(1).unwrap() {
        "/start" => moved("/middle?x=1"),
        "/middle?x=1" => moved("end"),
        "/end" => ok("there"),
        "/away" => moved("http://other.test/"),
        "/loop" => moved("/loop"),
        path => ok(path),
    })
    .await;
    let answer = get(request(port, "/start")).await.unwrap();
    assert_eq!((answer.status, answer.body.as_str(), answer.foreign_redirect), (200, "there", false));
    let answer = get(request(port, "/away")).await.unwrap();
    assert_eq!((answer.status, answer.body.as_str(), answer.foreign_redirect), (302, "move", true));
    let error = get(request(port, "/loop")).await.unwrap_err().0;
    assert_eq!(error, format!("Get \"http://127.0.0.1:{port}/loop\": stopped after 10 redirects"));
    let mut plain = request(port, "/start");
    plain.follow_redirects = false;
    assert_eq!(get(plain).await.unwrap().status, 302);
}

#[tokio::test]
async fn a_long_body_is_cut_and_not_awaited() {
    // Promises more than it sends: only the bound lets the call return before its deadline.
    let port =
        serve(|_| format!("HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n{}", "x".repeat(20_000))).await;
    assert_eq!(get(request(port, "/")).await.unwrap().body.len(), BODY_LIMIT);
}

#[tokio::test]
async fn failures_read_like_upstreams() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut hung = request(port, "/");
    hung.timeout = Duration::from_millis(100);
    let error = get(hung).await.unwrap_err().0;
    let url = format!("Get \"http://127.0.0.1:{port}/\": ");
    let late = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
    assert_eq!(error, format!("{url}{late}"));
    drop(listener);
    let error = get(request(port, "/")).await.unwrap_err().0;
    assert_eq!(error, format!("{url}dial tcp 127.0.0.1:{port}: connect: connection refused"));
}

#[tokio::test]
async fn https_against_plain_http_is_told_apart() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n").await;
            let _ = stream.read(&mut [0; 1024]).await;
        }
    });
    let error = get(HttpGet { tls: true, ..request(port, "/") }).await.unwrap_err().0;
    assert!(error.ends_with(PLAIN_HTTP_ANSWER), "{error}");
}

#[tokio::test]
async fn any_certificate_will_do() {
    // Self-signed, for another name, and long expired by the time this runs.
    let certificate = include_bytes!("testdata/cert.der").as_slice().into();
    let key = rustls_pki_types::PrivatePkcs8KeyDer::from(include_bytes!("testdata/key.der").as_slice());
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key.into())
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut stream = acceptor.accept(stream).await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(ok("safe").as_bytes()).await;
        }
    });
    assert_eq!(get(HttpGet { tls: true, ..request(port, "/") }).await.unwrap().body, "safe");
}

#[tokio::test]
async fn a_bad_header_is_named_without_its_value() {
    let mut r = request(1, "/");
    r.headers = vec![("ok".into(), "v".into()), ("bad name".into(), "secret".into())];
    let error = get(r).await.unwrap_err().0;
    assert!(error.contains("bad name") && !error.contains("secret"), "{error}");
}

#[test]
fn locations_resolve_like_urls() {
    let base = Target { tls: false, host: "h".into(), port: 8080, path: "/a/b?q".into() };
    let join = |l| base.join(l).unwrap().url();
    assert_eq!(join("/x"), "http://h:8080/x");
    assert_eq!(join("x?y"), "http://h:8080/a/x?y");
    assert_eq!(join("?y"), "http://h:8080/a/b?y");
    assert_eq!(join("https://h/z#frag"), "https://h:443/z");
    assert_eq!(join("//other:1"), "http://other:1/");
    assert_eq!(join("http://[::1]:9/"), "http://[::1]:9/");
    assert!(base.join("ftp://h/").is_err());
}
