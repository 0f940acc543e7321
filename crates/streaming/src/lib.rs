//! exec, attach and port-forward: a client on one side, the runtime's streaming server on the other.
//!
//! The runtime speaks SPDY/3.1. A client that speaks it too is joined to it byte by byte. One that speaks WebSocket in the
//! way of `v5.channel.k8s.io` (exec, attach) has its channels [translated](translate) into SPDY streams; one that carries SPDY
//! inside WebSocket messages (port-forward) has it [unwrapped](tunnel). Older WebSocket protocols are the runtime's business.
//!
//! Streams are bounded in number, cut off when nothing has moved for `streamingConnectionIdleTimeout`, and given a moment
//! to finish when the agent stops.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub mod dial;
mod join;
pub mod spdy;
mod translate;
mod tunnel;
pub mod websocket;

use dial::{DialError, Opened};

/// Streams open at once on a node.
const STREAMS: usize = 1024;
/// For a client to take the last that is sent to it.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// For a client to hear that the stream has ended.
const LINGER: Duration = Duration::from_secs(2);
/// Answers to pings that may wait.
const PONGS: usize = 8;

/// The WebSocket protocol of exec and attach in which a client can close its side of stdin.
pub const CHANNELS: &str = "v5.channel.k8s.io";
/// What a WebSocket protocol that carries SPDY begins with.
pub const TUNNEL: &str = "SPDY/3.1+";
const SPDY: HeaderValue = HeaderValue::from_static("SPDY/3.1");
/// The protocol of exec and attach that we speak with the runtime.
const COMMAND_PROTOCOL: &str = "v4.channel.k8s.io";
const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
const WS_PROTOCOL: HeaderName = HeaderName::from_static("sec-websocket-protocol");
const WS_KEY: HeaderName = HeaderName::from_static("sec-websocket-key");
const WS_ACCEPT: HeaderName = HeaderName::from_static("sec-websocket-accept");

/// Every open stream of the node. Clones are the same.
#[derive(Clone, Debug)]
pub struct Streams {
    places: Arc<Semaphore>,
    tasks: TaskTracker,
    idle: Duration,
    /// Cancelled when streams are to end now.
    end: CancellationToken,
}

/// In a request's extensions: something of whoever passed the request on, kept until its stream has ended.
#[derive(Clone)]
pub struct Kept {
    _held: Arc<dyn Send + Sync>,
}

/// Which streams of a command a client wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

/// What is streamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Command(StreamOptions),
    Ports,
}

/// How a client wants to talk.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Speech {
    Channels,
    /// The SPDY protocols it offers inside.
    Tunnel(Vec<String>),
    /// SPDY, or something that only the runtime needs to understand.
    Runtime,
}

/// When something last moved on a stream.
#[derive(Clone, Debug)]
pub struct Activity {
    begun: Instant,
    last: Arc<AtomicU64>,
}

/// Whether the client asks for an upgraded connection.
#[must_use]
pub fn wants_upgrade(headers: &HeaderMap) -> bool {
    let mentioned = headers.get_all(CONNECTION).iter().filter_map(|v| v.to_str().ok());
    headers.contains_key(UPGRADE)
        && mentioned.flat_map(|v| v.split(',')).any(|v| v.trim().eq_ignore_ascii_case("upgrade"))
}

// === impl Kept ===

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Kept")
    }
}

impl Kept {
    pub fn new(held: Arc<dyn Send + Sync>) -> Kept {
        Kept { _held: held }
    }
}

// === impl Streams ===

impl Streams {
    /// A zero `idle` lets streams be idle for ever.
    #[must_use]
    pub fn new(idle: Duration) -> Self {
        Self {
            places: Arc::new(Semaphore::new(STREAMS)),
            tasks: TaskTracker::new(),
            idle,
            end: CancellationToken::new(),
        }
    }

    /// Waits for streams to end by themselves, then ends the rest.
    pub async fn drain(&self, within: Duration) {
        self.tasks.close();
        if tokio::time::timeout(within, self.tasks.wait()).await.is_err() {
            tracing::info!(streams = self.tasks.len(), "streams are cut off");
            self.end.cancel();
            let _ = tokio::time::timeout(Duration::from_secs(1), self.tasks.wait()).await;
        }
    }

    /// Answers a request for an upgrade by joining the client with the runtime's streaming server at `url`.
    pub async fn connect(&self, what: What, url: &str, mut request: Request<Body>) -> Response {
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            return (StatusCode::SERVICE_UNAVAILABLE, "too many streams are open on this node\n")
                .into_response();
        };
        let client = hyper::upgrade::on(&mut request);
        let kept = request.extensions_mut().remove::<Kept>();
        let speech = speech(what, request.headers());
        let (method, headers) = ask(&speech, what, &request);
        let (runtime, answer) = match dial::open(url, method, headers).await {
            Ok(Opened::Upgraded { stream, headers }) => (stream, headers),
            Ok(Opened::Refused { status, text }) => return (status, text).into_response(),
            Err(error) => return failed(&error),
        };
        let Some(response) = accept(&speech, request.headers(), &answer) else {
            return (StatusCode::BAD_REQUEST, "the WebSocket handshake has no key\n").into_response();
        };
        let (idle, activity) = (self.idle, Activity::new());
        let work = async move {
            let client = match client.await {
                Ok(client) => TokioIo::new(client),
                Err(error) => return tracing::debug!(%error, "an upgrade came to nothing"),
            };
            match (speech, what) {
                (Speech::Channels, What::Command(wants)) => {
                    translate::run(client, runtime, wants, &activity, idle).await;
                }
                (Speech::Tunnel(_), _) => tunnel::run(client, runtime, &activity, idle).await,
                _ => join::run(client, runtime, &activity, idle).await,
            }
        };
        self.spawn((place, kept), work);
        response
    }

    /// `held` is dropped when the work has ended.
    fn spawn(&self, held: impl Send + 'static, work: impl Future<Output = ()> + Send + 'static) {
        let end = self.end.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = end.cancelled() => {}
                () = work => {}
            }
            drop(held);
        });
    }
}

fn speech(what: What, headers: &HeaderMap) -> Speech {
    let websocket = headers.get(UPGRADE).is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"websocket"));
    if !websocket {
        return Speech::Runtime;
    }
    let offered = headers.get_all(WS_PROTOCOL).iter().filter_map(|v| v.to_str().ok());
    let offered: Vec<&str> = offered.flat_map(|v| v.split(',')).map(str::trim).collect();
    match what {
        What::Command(_) if offered.contains(&CHANNELS) => Speech::Channels,
        What::Ports => {
            let inside =
                offered.iter().filter(|p| p.ends_with(".k8s.io")).filter_map(|p| p.strip_prefix(TUNNEL));
            match inside.map(str::to_owned).collect::<Vec<_>>() {
                none if none.is_empty() => Speech::Runtime,
                protocols => Speech::Tunnel(protocols),
            }
        }
        What::Command(_) => Speech::Runtime,
    }
}

/// The request that the runtime gets.
fn ask(speech: &Speech, what: What, request: &Request<Body>) -> (Method, HeaderMap) {
    let mut headers = HeaderMap::new();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    let protocols = match (speech, what) {
        (Speech::Runtime, _) => {
            pass_on(request.headers(), &mut headers);
            return (request.method().clone(), headers);
        }
        (Speech::Tunnel(protocols), _) => protocols.clone(),
        (Speech::Channels, _) => vec![COMMAND_PROTOCOL.to_owned()],
    };
    headers.insert(UPGRADE, SPDY);
    for protocol in protocols {
        if let Ok(value) = HeaderValue::try_from(protocol) {
            headers.append(STREAM_PROTOCOL, value);
        }
    }
    (Method::POST, headers)
}

/// The headers that concern the upgrade. What proved who the client is stays here.
fn pass_on(from: &HeaderMap, to: &mut HeaderMap) {
    for (name, value) in from {
        if *name == UPGRADE || *name == STREAM_PROTOCOL || name.as_str().starts_with("sec-websocket-") {
            to.append(name.clone(), value.clone());
        }
    }
    api::bearer::strip(to);
}

/// What tells the client that its connection is upgraded. None when it sent no WebSocket key.
fn accept(speech: &Speech, asked: &HeaderMap, answer: &HeaderMap) -> Option<Response> {
    let mut headers = HeaderMap::new();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    if *speech == Speech::Runtime {
        pass_on(answer, &mut headers);
    } else {
        let key = asked.get(WS_KEY).and_then(|v| v.to_str().ok())?;
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(WS_ACCEPT, HeaderValue::try_from(websocket::accept_key(key)).ok()?);
        let protocol = match speech {
            Speech::Channels => Some(CHANNELS.to_owned()),
            _ => answer
                .get(STREAM_PROTOCOL)
                .and_then(|v| v.to_str().ok())
                .map(|p| format!("{TUNNEL}{}", p.trim())),
        };
        if let Some(protocol) = protocol.and_then(|p| HeaderValue::try_from(p).ok()) {
            headers.insert(WS_PROTOCOL, protocol);
        }
    }
    let mut response = StatusCode::SWITCHING_PROTOCOLS.into_response();
    *response.headers_mut() = headers;
    Some(response)
}

fn failed(error: &DialError) -> Response {
    tracing::warn!(%error, "streaming failed");
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response()
}

/// Takes what the client is still sending until it has heard that this is the end. Closing the connection over unread
/// bytes would throw away what we sent last, on its way or even in the client's hands.
pub async fn linger(from: &mut (impl AsyncRead + Unpin)) {
    let mut buffer = vec![0; 16 << 10];
    let drain = async { while from.read(&mut buffer).await.is_ok_and(|n| n > 0) {} };
    let _ = tokio::time::timeout(LINGER, drain).await;
}

/// Takes SPDY out of the WebSocket messages that carry it, and puts the answers into such, until either end is done.
pub async fn unwrap_spdy(
    client: impl AsyncRead + AsyncWrite,
    inside: impl AsyncRead + AsyncWrite,
    activity: &Activity,
    idle: Duration,
) {
    tunnel::run(client, inside, activity, idle).await;
}

// === impl Activity ===

impl Default for Activity {
    fn default() -> Self {
        Self::new()
    }
}

impl Activity {
    #[must_use]
    pub fn new() -> Self {
        Self { begun: Instant::now(), last: Arc::default() }
    }

    pub fn mark(&self) {
        self.last
            .store(u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Ends when nothing has moved for so long; never if that is zero.
    pub async fn cease(&self, idle: Duration) {
        if idle.is_zero() {
            return std::future::pending().await;
        }
        loop {
            let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
            let until = self.begun + last + idle;
            if until <= Instant::now() {
                return tracing::info!(idle_seconds = idle.as_secs(), "an idle stream is cut off");
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

#[cfg(test)]
mod tests;
