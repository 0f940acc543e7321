//! Connections inside the process: for clients that run beside the server, as controllers and the scheduler do.
//!
//! A connection is a pipe in memory, served by the same HTTP stack as one from the network. Who is at its other end was said by
//! the part of this process that made the connector: no certificate is asked for, and no header changes it. Authorization,
//! impersonation, limits and audit are as for everybody.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use client::Dial;
use serve::{Accept, Peer, Source};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::mpsc;

use apiserver_core::request::User;

/// Connections that wait to be served.
const BACKLOG: usize = 256;
/// Bytes under way in each direction.
const PIPE: usize = 64 * 1024;
/// At once; each watch is one by itself.
pub(super) const CONNECTIONS: serve::Limits =
    serve::Limits { remote: 0, local: 0, known: 4096, per_source: 0, known_takes: 0 };

/// Where clients inside the process reach the server. Given to it in its settings, and asked for connectors; clones are the
/// same place. Connections wait until the server runs, and are refused when it has ended.
#[derive(Clone)]
pub struct InProcess(Arc<Pipes>);

struct Pipes {
    opened: mpsc::Sender<Pipe>,
    /// Until a server takes it.
    listener: Mutex<Option<PipeListener>>,
}

/// The server's end of all connections.
#[derive(Debug)]
pub(crate) struct PipeListener(Mutex<mpsc::Receiver<Pipe>>);

/// The server's end of a connection, and who is at the other.
#[derive(Debug)]
pub(crate) struct Pipe {
    stream: DuplexStream,
    pub(super) user: Arc<User>,
}

// === impl InProcess ===

impl InProcess {
    #[must_use]
    pub fn new() -> InProcess {
        let (opened, waiting) = mpsc::channel(BACKLOG);
        let listener = Mutex::new(Some(PipeListener(Mutex::new(waiting))));
        InProcess(Arc::new(Pipes { opened, listener }))
    }

    /// Connections whose requests are this user's.
    #[must_use]
    pub fn dial(&self, user: User) -> Dial {
        let (opened, user) = (self.0.opened.clone(), Arc::new(user.authenticated()));
        Arc::new(move || {
            let (near, stream) = tokio::io::duplex(PIPE);
            let told = opened.try_send(Pipe { stream, user: user.clone() });
            told.map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))?;
            Ok(Box::new(near))
        })
    }

    /// The server's side; none when a server has it.
    pub(crate) fn listener(&self) -> Option<PipeListener> {
        self.0.listener.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Default for InProcess {
    fn default() -> InProcess {
        InProcess::new()
    }
}

impl fmt::Debug for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InProcess(..)")
    }
}

// === impl PipeListener ===

impl Accept for PipeListener {
    type Raw = Pipe;
    type Io = Pipe;

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Pipe, Peer)>> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match waiting.poll_recv(cx) {
            Poll::Ready(Some(pipe)) => {
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
                Poll::Ready(Ok((pipe, Peer { source: Source::Trusted, address: Some(address) })))
            }
            // Nobody is left who could connect.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    fn settle(raw: Pipe) -> io::Result<Pipe> {
        Ok(raw)
    }
}

// === impl Pipe ===

impl AsyncRead for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
