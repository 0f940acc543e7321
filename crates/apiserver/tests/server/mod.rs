//! A server of our own for tests, and the plainest of clients.
#![allow(dead_code, reason = "each suite uses what it needs")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use apiserver::auth::authn::Anonymous;
use apiserver::auth::static_tokens::StaticTokens;
use apiserver::run::{Settings, run};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) connector: TlsConnector,
    token: CancellationToken,
    running: JoinHandle<()>,
    pub(crate) dir: tempfile::TempDir,
}

pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Server {
    /// Runs with what `change` makes of the usual settings.
    pub(crate) async fn with(users: &str, change: impl FnOnce(&mut Settings, &Path)) -> Server {
        let dir = tempfile::tempdir().unwrap();
        let tokens = dir.path().join("tokens.csv");
        std::fs::write(&tokens, format!("root,root,0,system:masters\n{users}")).unwrap();
        let mut settings = settings(dir.path(), &tokens);
        change(&mut settings, dir.path());
        let token = CancellationToken::new();
        let (up, told) = oneshot::channel();
        let running = run(settings, move |it| up.send(it.clone()).unwrap(), token.clone());
        let running = tokio::spawn(async move { running.await.unwrap() });
        let address = told.await.unwrap().address;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, address.port()));
        let connector = connector(&dir.path().join("data/pki/ca.crt"));
        Server { address, connector, token, running, dir }
    }

    /// Ends it, and waits until its files are closed.
    pub(crate) async fn stop(mut self) {
        self.token.cancel();
        (&mut self.running).await.unwrap();
    }

    pub(crate) async fn connect(&self) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::from(IpAddr::from(Ipv4Addr::LOCALHOST));
        self.connector.connect(name, stream).await.unwrap()
    }

    /// Sends these bytes, whatever they are, and reads what comes back.
    pub(crate) async fn raw(&self, bytes: &[u8]) -> Option<Answer> {
        let mut stream = self.connect().await;
        // The server may have heard enough before we are through.
        let _ = stream.write_all(bytes).await;
        let _ = stream.flush().await;
        read(&mut stream).await
    }

    pub(crate) async fn ask(&self, user: &str, line: &str, headers: &str, body: &[u8]) -> Answer {
        let bytes = [request(user, line, headers, body.len()).as_bytes(), body].concat();
        self.raw(&bytes).await.expect("an answer")
    }

    /// Asks as the administrator with a JSON body; it must succeed.
    pub(crate) async fn make(&self, line: &str, object: &Value) -> Value {
        let body = object.to_string();
        let answer = self.ask("root", line, "Content-Type: application/json\r\n", body.as_bytes()).await;
        assert!(matches!(answer.code, 200 | 201), "{line}: {}", String::from_utf8_lossy(&answer.body));
        serde_json::from_slice(&answer.body).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.token.cancel();
    }
}

impl Answer {
    pub(crate) fn status(&self) -> Value {
        let value: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        assert_eq!(value["kind"], "Status", "{} {}", self.head, String::from_utf8_lossy(&self.body));
        assert_eq!(value["code"], self.code, "{value}");
        value
    }
}

/// A client that believes servers of this authority.
pub(crate) fn connector(ca: &Path) -> TlsConnector {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

/// The usual settings of a server with its data in `<dir>/data`.
pub(crate) fn settings(dir: &Path, tokens: &Path) -> Settings {
    Settings {
        static_tokens: StaticTokens::read(tokens).unwrap(),
        anonymous: Anonymous::Nowhere,
        ..Settings::for_tests(&dir.join("data"))
    }
}

pub(crate) fn request(user: &str, line: &str, headers: &str, length: usize) -> String {
    format!(
        "{line} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {user}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
    )
}

pub(crate) async fn read(stream: &mut TlsStream<TcpStream>) -> Option<Answer> {
    let mut all = Vec::new();
    let reading = async {
        let mut piece = vec![0; 65536];
        while let Ok(n @ 1..) = stream.read(&mut piece).await {
            all.extend_from_slice(&piece[..n]);
        }
    };
    tokio::time::timeout(Duration::from_secs(20), reading).await.expect("the server ends the conversation");
    let end = all.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&all[..end]).into_owned();
    let code = head.split(' ').nth(1)?.parse().ok()?;
    let mut body = all[end + 4..].to_vec();
    if head.to_lowercase().contains("transfer-encoding: chunked") {
        body = unchunk(&body);
    }
    Some(Answer { code, head, body })
}

fn unchunk(mut rest: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(end) = rest.windows(2).position(|w| w == b"\r\n") {
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        out.extend_from_slice(&rest[end + 2..end + 2 + length]);
        rest = &rest[end + 4 + length..];
    }
    out
}
