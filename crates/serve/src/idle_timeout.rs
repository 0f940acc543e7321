//! A stream that gives up on a peer which does nothing.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Fails a read or a write that has been waiting for longer than its limit.
#[derive(Debug)]
pub struct IdleTimeoutStream<S> {
    stream: S,
    reads: Limit,
    writes: Limit,
    read: Wait,
    write: Wait,
}

/// How long is waited, in milliseconds. Clones are the same: who knows what is being sent can change it.
#[derive(Clone, Debug)]
pub struct Limit(Arc<AtomicU64>);

/// Since when something is waited for, and what wakes us.
#[derive(Debug, Default)]
struct Wait(Option<(Instant, Pin<Box<Sleep>>)>);

// === impl Limit ===

impl Limit {
    pub const NEVER: Duration = Duration::MAX;

    pub fn new(limit: Duration) -> Self {
        let new = Self(Arc::default());
        new.set(limit);
        new
    }

    /// Holds from now on, also for what is waited for already.
    pub fn set(&self, limit: Duration) {
        self.0.store(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn get(&self) -> Option<Duration> {
        Some(self.0.load(Ordering::Relaxed)).filter(|l| *l != u64::MAX).map(Duration::from_millis)
    }
}

// === impl IdleTimeoutStream ===

impl<S> IdleTimeoutStream<S> {
    pub fn new(stream: S, limit: Duration) -> Self {
        Self::with(stream, Limit::new(limit), Limit::new(limit))
    }

    /// With a limit for each direction.
    pub fn with(stream: S, reads: Limit, writes: Limit) -> Self {
        Self { stream, reads, writes, read: Wait::default(), write: Wait::default() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for IdleTimeoutStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let polled = Pin::new(&mut this.stream).poll_read(cx, buf);
        this.read.judge(polled, &this.reads, cx)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for IdleTimeoutStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let polled = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.write.judge(polled, &this.writes, cx)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let polled = Pin::new(&mut this.stream).poll_flush(cx);
        this.write.judge(polled, &this.writes, cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let polled = Pin::new(&mut this.stream).poll_shutdown(cx);
        this.write.judge(polled, &this.writes, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let polled = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.write.judge(polled, &this.writes, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

// === impl Wait ===

impl Wait {
    fn judge<T>(
        &mut self,
        polled: Poll<io::Result<T>>,
        limit: &Limit,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.0 = None;
            return polled;
        }
        let Some(limit) = limit.get() else {
            self.0 = None;
            return Poll::Pending;
        };
        let (since, sleep) = self.0.get_or_insert_with(|| {
            let now = Instant::now();
            (now, Box::pin(tokio::time::sleep_until(now + limit)))
        });
        // The limit may have been moved since.
        let until = *since + limit;
        if sleep.deadline() != until {
            sleep.as_mut().reset(until);
        }
        ready!(sleep.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn who_reads_nothing_or_says_nothing_is_cut_off() {
        let (near, far) = tokio::io::duplex(64);
        let mut near = IdleTimeoutStream::new(near, Duration::from_millis(20));
        let error = near.write_all(&[0; 1024]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(near.read(&mut [0; 8]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(far);
    }
}
