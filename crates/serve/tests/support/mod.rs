//! A server that answers everything, and clients of it.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use serve::{Connection, Connections, Http1, Limits, Metrics, Plan, Proof, Stream, Times, Within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

pub const LIMITS: Limits = Limits { remote: 8, local: 8, known: 4, per_source: 4, known_takes: 1 };
pub const TIMES: Times = Times { first: Duration::from_secs(60), idle: Duration::from_secs(90), busy: None };
pub const HOW: Http1 = Http1 {
    head: 64 * 1024,
    idle: Duration::from_secs(90),
    body: Duration::from_secs(60),
    stall: Duration::from_secs(60),
};

pub struct Server {
    pub address: SocketAddr,
    pub metrics: Arc<Metrics>,
    pub connections: Connections,
    pub stop: CancellationToken,
    pub running: tokio::task::JoinHandle<()>,
}

impl Server {
    pub async fn start(limits: Limits, times: Times, how: Http1, farewell: Duration) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (metrics, stop) = (Arc::new(Metrics::default()), CancellationToken::new());
        let connections = Connections::new("test", limits, Proof::Answer, times, metrics.clone());
        let plan = Plan { farewell, loops: Vec::new() };
        let converse = move |stream: Stream<TcpStream>, connection: Connection| async move {
            let known = connection.clone();
            let service = service_fn(move |request| answer(known.clone(), request));
            serve::converse(how, stream, connection, service).await;
        };
        let running = tokio::spawn(serve::run(listener, connections.clone(), plan, stop.clone(), converse));
        Server { address, metrics, connections, stop, running }
    }

    pub async fn usual() -> Server {
        Server::start(LIMITS, TIMES, HOW, Duration::from_secs(20)).await
    }

    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// What is answered to a request on a connection of its own.
    pub async fn ask(&self, head: &str) -> String {
        let mut stream = self.connect().await;
        let _ = stream.write_all(format!("{head}\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()).await;
        soon(heard(&mut stream)).await
    }
}

/// Everything until the other end closes.
pub async fn heard(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text).await;
    String::from_utf8_lossy(&text).into_owned()
}

/// Generous: the machine may be busy.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("in time")
}

/// Asks again and again until it is so.
pub async fn until(mut is_so: impl FnMut() -> bool) {
    soon(async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

async fn answer(
    connection: Connection,
    mut request: Request<Within<Incoming>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let text = |code: u16, text: String| {
        let mut answer = Response::new(Full::new(text.into()));
        *answer.status_mut() = StatusCode::from_u16(code).unwrap();
        Ok(answer)
    };
    if request.headers().contains_key("x-known") {
        connection.know();
    }
    match request.uri().path() {
        "/panic" => panic!("as it was told to"),
        "/wait" => std::future::pending().await,
        "/body" => match request.body_mut().collect().await {
            Ok(body) => text(200, format!("{} bytes", body.to_bytes().len())),
            Err(error) => text(408, error.to_string()),
        },
        "/stream" => {
            tokio::spawn(async move {
                let Ok(upgraded) = hyper::upgrade::on(&mut request).await else { return };
                let mut stream = hyper_util::rt::TokioIo::new(upgraded);
                let mut byte = [0];
                while let Ok(1) = stream.read(&mut byte).await {
                    let _ = stream.write_all(&byte).await;
                }
            });
            let mut answer = Response::new(Full::default());
            *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            answer.headers_mut().insert("connection", "upgrade".parse().unwrap());
            answer.headers_mut().insert("upgrade", "echo".parse().unwrap());
            Ok(answer)
        }
        _ => text(200, "ok".to_owned()),
    }
}

/// A stream that is no longer HTTP.
pub async fn upgraded(server: &Server, headers: &str) -> TcpStream {
    let mut stream = server.connect().await;
    let request =
        format!("GET /stream HTTP/1.1\r\nHost: x\r\n{headers}Connection: Upgrade\r\nUpgrade: echo\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(soon(stream.read_u8()).await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    stream
}

pub async fn echoes(stream: &mut TcpStream) -> bool {
    let asked = async {
        stream.write_all(b"x").await?;
        stream.read_u8().await
    };
    soon(asked).await.is_ok_and(|byte| byte == b'x')
}
