//! One connection: the handle its handler speaks through, and the stream that holds its place.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::connections::{Connections, Exit, Peer};
use crate::places::{Id, Verdict, Why};

/// What a handler says of its connection. Clones are the same; none holds its place.
#[derive(Clone, Debug)]
pub struct Connection {
    of: Connections,
    id: Id,
    address: Option<SocketAddr>,
    exit: Arc<Exit>,
    /// Requests under way may end, and no other begin.
    finish: CancellationToken,
}

/// What is said and heard on a connection. Its place is given back when this is dropped, so a stream that outlives
/// HTTP keeps it.
#[derive(Debug)]
pub struct Stream<S> {
    inner: S,
    place: Place,
    evicted: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

#[derive(Debug)]
struct Place(Connection);

// === impl Connection ===

impl Connection {
    /// Takes a place for a newcomer; none if everybody is at work.
    pub(crate) fn enter(of: &Connections, peer: &Peer, stop: &CancellationToken) -> Option<Connection> {
        let (id, exit) = of.enter(peer)?;
        Some(Connection { of: of.clone(), id, address: peer.address, exit, finish: stop.child_token() })
    }

    /// Where it comes from; none for one that has no address.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The other end proved who it is.
    pub fn know(&self) {
        self.of.know(self.id);
    }

    /// Ends when requests under way should be finished, and no others begun: the server stops, or nothing was asked for
    /// long.
    pub async fn finish(&self) {
        self.finish.cancelled().await;
    }

    pub(crate) fn begin(&self) {
        self.of.ask(self.id);
    }

    pub(crate) fn end(&self, is_answered: bool) {
        self.of.end(self.id, is_answered);
    }

    pub(crate) fn stream(&self) {
        self.of.stream(self.id);
    }

    pub(crate) fn tell_to_finish(&self) {
        self.finish.cancel();
    }

    pub(crate) async fn evicted(&self) {
        self.exit.evicted.cancelled().await;
    }

    pub(crate) fn verdict(&self) -> Verdict {
        self.of.verdict(self.id)
    }

    pub(crate) fn expired(&self, why: Why) {
        self.of.expired(why);
    }

    pub(crate) fn of(&self) -> &Connections {
        &self.of
    }
}

// === impl Place ===

impl Drop for Place {
    fn drop(&mut self) {
        self.0.of.leave(self.0.id);
    }
}

// === impl Stream ===

impl<S> Stream<S> {
    pub(crate) fn new(inner: S, connection: Connection) -> Stream<S> {
        Stream { inner, place: Place(connection), evicted: None }
    }

    /// The same place with something else in it.
    pub(crate) fn put<T>(self, inner: T) -> Stream<T> {
        Stream { inner, place: self.place, evicted: self.evicted }
    }

    /// The socket.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Before HTTP is over its task is ended instead.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let exit = &self.place.0.exit;
        if !exit.streams.load(Ordering::Relaxed) {
            return Ok(());
        }
        let evicted = self.evicted.get_or_insert_with(|| Box::pin(exit.evicted.clone().cancelled_owned()));
        match evicted.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
