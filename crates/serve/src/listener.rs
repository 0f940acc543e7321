//! The loop that accepts.

use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::FutureExt;
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connection::{Connection, Stream};
use crate::connections::{Connections, Peer};
use crate::places::{Source, Verdict};

/// Between two attempts when the process is out of descriptors.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(50);
/// The same when somebody went away before he was let in, or whatever else went wrong.
const ERROR_PAUSE: Duration = Duration::from_millis(1);
/// For one who was told that nothing was asked for long to say goodbye.
const FAREWELL: Duration = Duration::from_secs(5);

/// What can be listened on.
pub trait Accept: Send + Sync + 'static {
    /// A connection that belongs to no event loop.
    type Raw: Send + 'static;
    type Io: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Self::Raw, Peer)>>;
    /// Gives it to the event loop this is called on.
    fn settle(raw: Self::Raw) -> io::Result<Self::Io>;
}

/// How a listener is run.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// For requests under way to finish when the server stops.
    pub farewell: Duration,
    /// Event loops that take turns with the one that accepts.
    pub loops: Vec<Handle>,
}

/// Accepts until cancelled, and lets `converse` have those who find a place. Then those under way get their farewell,
/// and whoever is left is cut off; streams that are no longer HTTP are not.
pub async fn run<A, F, W>(
    listener: A,
    connections: Connections,
    plan: Plan,
    stop: CancellationToken,
    converse: F,
) where
    A: Accept,
    F: Fn(Stream<A::Io>, Connection) -> W + Send + Sync + 'static,
    W: Future<Output = ()> + Send + 'static,
{
    let (conversations, cut) = (TaskTracker::new(), CancellationToken::new());
    let converse = Arc::new(converse);
    let mut turn = 0;
    while let Some(accepted) = stop.run_until_cancelled(accept(&listener, &connections)).await {
        let Some((raw, peer)) = accepted else { continue };
        let Some(connection) = Connection::enter(&connections, &peer, &stop) else { continue };
        let place = Stream::new((), connection.clone());
        let (converse, cut) = (converse.clone(), cut.child_token());
        let conversation = async move {
            let stream = match A::settle(raw) {
                Ok(io) => place.put(io),
                Err(error) => return tracing::debug!(%error, "connection not served"),
            };
            tokio::select! {
                () = cut.cancelled() => {}
                () = host(&connection, converse(stream, connection.clone())) => {}
            }
        };
        turn = (turn + 1) % (plan.loops.len() + 1);
        match turn.checked_sub(1).and_then(|turn| plan.loops.get(turn)) {
            Some(other) => conversations.spawn_on(conversation, other),
            None => conversations.spawn(conversation),
        };
    }
    drop(listener);
    conversations.close();
    let _ = tokio::time::timeout(plan.farewell, conversations.wait()).await;
    cut.cancel();
}

/// The next one; none if it went wrong, after a pause that keeps the loop from spinning.
async fn accept<A: Accept>(listener: &A, connections: &Connections) -> Option<(A::Raw, Peer)> {
    connections.settle().await;
    let error = match std::future::poll_fn(|cx| listener.poll_accept(cx)).await {
        Ok(accepted) => return Some(accepted),
        Err(error) => error,
    };
    connections.not_accepted();
    tracing::debug!(listener = connections.name(), %error, "connection not accepted");
    let is_short = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()));
    if is_short {
        connections.relieve();
    }
    tokio::time::sleep(if is_short { SHORTAGE_PAUSE } else { ERROR_PAUSE }).await;
    None
}

/// Runs a conversation until it ends, it is told to go, or the clock ends it. A panic is its own.
async fn host(connection: &Connection, conversation: impl Future<Output = ()>) {
    let conversation = AssertUnwindSafe(conversation).catch_unwind();
    tokio::pin!(conversation);
    let timer = tokio::time::sleep(Duration::ZERO);
    tokio::pin!(timer);
    let mut is_told = false;
    loop {
        tokio::select! {
            biased;
            () = connection.evicted() => return,
            ended = &mut conversation => {
                if ended.is_err() {
                    connection.of().panicked();
                    tracing::error!(listener = connection.of().name(), "the handler of a connection panicked");
                }
                return;
            }
            () = &mut timer => {}
        }
        match connection.verdict() {
            Verdict::Wait(until) => timer.as_mut().reset(connection.of().at(until)),
            Verdict::End(crate::Why::Idle) if !is_told => {
                is_told = true;
                connection.tell_to_finish();
                timer.as_mut().reset(tokio::time::Instant::now() + FAREWELL);
            }
            Verdict::End(why) => return connection.expired(why),
        }
    }
}

// === impl Accept ===

impl Accept for TcpListener {
    type Raw = std::net::TcpStream;
    type Io = TcpStream;

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Self::Raw, Peer)>> {
        let (stream, address) = ready!(TcpListener::poll_accept(self, cx))?;
        let own = stream.local_addr().map_or(address.ip(), |own| own.ip());
        let peer = Peer { source: Source::of(address.ip(), own), address: Some(address) };
        Poll::Ready(stream.into_std().map(|stream| (stream, peer)))
    }

    fn settle(raw: Self::Raw) -> io::Result<TcpStream> {
        TcpStream::from_std(raw)
    }
}

/// A socket in the file system: its mode says who may come.
impl Accept for UnixListener {
    type Raw = std::os::unix::net::UnixStream;
    type Io = UnixStream;

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Self::Raw, Peer)>> {
        let (stream, _) = ready!(UnixListener::poll_accept(self, cx))?;
        let peer = Peer { source: Source::Trusted, address: None };
        Poll::Ready(stream.into_std().map(|stream| (stream, peer)))
    }

    fn settle(raw: Self::Raw) -> io::Result<UnixStream> {
        UnixStream::from_std(raw)
    }
}
