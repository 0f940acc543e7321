//! exec, attach and port-forward: the server that the URLs in the CRI's answers lead to.
//!
//! A URL has a token that works once, within a minute. Who comes with it speaks SPDY/3.1 or WebSocket ([`speech`]); a
//! [`command`] and the connections to [`ports`] are the same then. Processes and Pods are somebody else's ([`Processes`]).

mod client;
mod command;
mod metrics;
mod outcome;
mod pipes;
mod ports;
mod processes;
// A refusal is the answer that the client gets.
#[allow(clippy::result_large_err)]
mod speech;
#[cfg(test)]
mod tests;
mod tokens;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cri::v1::{AttachRequest, ExecRequest, PortForwardRequest};
use http::{Method, Request, StatusCode};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serve::{Budget, Connections, Http1, Limits, Plan, Proof, Stream, Times};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;

pub(crate) use metrics::Metrics;
pub(crate) use processes::{Processes, Session, Wanted};

use speech::{Answer, Speech, agree, plain};
use tokens::{Promise, Tokens};

/// Streams at once.
const STREAMS: usize = 1024;
/// Nothing moves on a stream for so long: as upstream.
const IDLE: Duration = Duration::from_secs(4 * 60 * 60);
/// For streams to end by themselves when the daemon does.
const FAREWELL: Duration = Duration::from_secs(2);
const HOW: Http1 = Http1 {
    head: 64 << 10,
    idle: Duration::from_secs(30),
    body: Duration::from_secs(30),
    stall: serve::Limit::NEVER,
};
const TIMES: Times = Times { first: Duration::from_secs(10), idle: HOW.idle, busy: None };
const LIMITS: Limits =
    Limits { remote: STREAMS, local: STREAMS, known: 0, per_source: STREAMS, known_takes: 1 };
/// What two halves of a connection may have under way.
const INSIDE: usize = 64 << 10;

/// The streaming server. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Streams(Arc<Inner>);

struct Inner {
    address: SocketAddr,
    listener: Mutex<Option<TcpListener>>,
    processes: Arc<dyn Processes>,
    tokens: Mutex<Tokens>,
    places: Arc<Semaphore>,
    tasks: TaskTracker,
    metrics: Metrics,
}

// === impl Streams ===

impl Streams {
    /// Takes the port; [`Streams::serve`] answers there.
    pub(crate) async fn bind(address: SocketAddr, processes: Arc<dyn Processes>) -> io::Result<Streams> {
        let listener = TcpListener::bind(address).await?;
        Ok(Streams(Arc::new(Inner {
            address: listener.local_addr()?,
            listener: Mutex::new(Some(listener)),
            processes,
            tokens: Mutex::default(),
            places: Arc::new(Semaphore::new(STREAMS)),
            tasks: TaskTracker::new(),
            metrics: Metrics::default(),
        })))
    }

    #[must_use]
    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address
    }

    #[must_use]
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Where the streams of this command can be had.
    pub(crate) fn exec(&self, request: ExecRequest) -> Result<String, Status> {
        named(&request.container_id, "container_id")?;
        if request.cmd.is_empty() {
            return Err(Status::invalid_argument("cmd must not be empty"));
        }
        some([request.stdin, request.stdout, request.stderr], request.tty)?;
        self.promise(Promise::Exec(request))
    }

    /// Where the streams of this container can be had.
    pub(crate) fn attach(&self, request: AttachRequest) -> Result<String, Status> {
        named(&request.container_id, "container_id")?;
        some([request.stdin, request.stdout, request.stderr], request.tty)?;
        self.promise(Promise::Attach(request))
    }

    /// Where connections to the Pod can be had. The client names the ports there, as with every runtime.
    pub(crate) fn port_forward(&self, request: PortForwardRequest) -> Result<String, Status> {
        named(&request.pod_sandbox_id, "pod_sandbox_id")?;
        self.promise(Promise::Ports { sandbox: request.pod_sandbox_id })
    }

    /// Answers until cancelled. Streams then have a moment to end, and are cut off. Only the first call answers.
    pub(crate) async fn serve(self, token: CancellationToken) {
        let listener = self.0.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(listener) = listener else { return };
        let limits = LIMITS.within(Budget::now().share(40));
        let connections = Connections::new("streaming", limits, Proof::Answer, TIMES, Arc::default());
        let cut = CancellationToken::new();
        let converse = {
            let (streams, cut) = (self.clone(), cut.clone());
            move |stream: Stream<TcpStream>, connection| {
                let (streams, cut) = (streams.clone(), cut.clone());
                let service = service_fn(move |request| {
                    let (streams, cut) = (streams.clone(), cut.clone());
                    async move { Ok::<_, Infallible>(streams.answer(request, cut)) }
                });
                serve::converse(HOW, stream, connection, service)
            }
        };
        serve::run(listener, connections, Plan::default(), token, converse).await;
        self.0.tasks.close();
        if tokio::time::timeout(FAREWELL, self.0.tasks.wait()).await.is_err() {
            tracing::info!(streams = self.0.tasks.len(), "streams are cut off");
            cut.cancel();
            self.0.tasks.wait().await;
        }
    }

    fn promise(&self, promise: Promise) -> Result<String, Status> {
        let token = tokens::token().map_err(|_| Status::internal("the kernel gives no random numbers"))?;
        let kind = promise.kind();
        let put = self.tokens().promise(&token, promise, Instant::now());
        put.map_err(|full| Status::resource_exhausted(full.to_string()))?;
        Ok(format!("http://{}/{kind}/{token}", self.0.address))
    }

    fn tokens(&self) -> std::sync::MutexGuard<'_, Tokens> {
        self.0.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer<B>(&self, mut request: Request<B>, cut: CancellationToken) -> Answer {
        let (kind, token) = match place(request.uri().path()) {
            Some((kind, token)) => (kind.to_owned(), token.to_owned()),
            None => return plain(StatusCode::NOT_FOUND, "there is nothing here"),
        };
        if !matches!(*request.method(), Method::GET | Method::POST) {
            return plain(StatusCode::METHOD_NOT_ALLOWED, "GET or POST is wanted here");
        }
        let (speech, answer) = match agree(&kind, request.headers()) {
            Ok(both) => both,
            Err(refusal) => return refusal,
        };
        let Ok(place) = self.0.places.clone().try_acquire_owned() else {
            return plain(StatusCode::SERVICE_UNAVAILABLE, "too many streams are open");
        };
        let Some(promise) = self.tokens().redeem(&token, &kind, Instant::now()) else {
            return plain(StatusCode::NOT_FOUND, "the token is unknown, was used before, or is too old");
        };
        let upgrade = hyper::upgrade::on(&mut request);
        let inner = self.0.clone();
        let work = async move {
            let _open = inner.metrics.opened(promise.kind());
            match upgrade.await {
                Ok(client) => converse(TokioIo::new(client), speech, promise, &inner.processes).await,
                Err(error) => tracing::debug!(%error, "an upgrade came to nothing"),
            }
            drop(place);
        };
        let work = async move {
            tokio::select! {
                () = cut.cancelled() => {}
                () = work => {}
            }
        };
        supervise::spawn("runtime_stream", self.0.tasks.track_future(work));
        answer
    }
}

async fn converse(
    client: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Send,
    speech: Speech,
    promise: Promise,
    processes: &Arc<dyn Processes>,
) {
    let (sandbox, is_wrapped) = match (promise, speech) {
        (Promise::Ports { sandbox }, Speech::Ports { is_wrapped }) => (sandbox, is_wrapped),
        (promise, speech) => return command::run(client, speech, promise, &**processes).await,
    };
    if !is_wrapped {
        return ports::run(client, sandbox, processes.clone()).await;
    }
    let (inside, ours) = tokio::io::duplex(INSIDE);
    let activity = streaming::Activity::new();
    tokio::join!(
        streaming::unwrap_spdy(client, inside, &activity, IDLE),
        ports::run(ours, sandbox, processes.clone())
    );
}

/// Kind and token of a path.
fn place(path: &str) -> Option<(&str, &str)> {
    let (kind, token) = path.strip_prefix('/')?.split_once('/')?;
    let is_known = matches!(kind, "exec" | "attach" | "portforward");
    (is_known && !token.is_empty() && !token.contains('/')).then_some((kind, token))
}

fn named(id: &str, field: &str) -> Result<(), Status> {
    if id.is_empty() { Err(Status::invalid_argument(format!("{field} must not be empty"))) } else { Ok(()) }
}

fn some([stdin, stdout, stderr]: [bool; 3], tty: bool) -> Result<(), Status> {
    if !stdin && !stdout && !stderr {
        return Err(Status::invalid_argument("one of stdin, stdout and stderr must be set"));
    }
    if tty && stderr {
        return Err(Status::invalid_argument(
            "tty and stderr must not both be set: a terminal has one output",
        ));
    }
    Ok(())
}

// === impl Inner ===

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Streams").field("address", &self.address).finish_non_exhaustive()
    }
}
