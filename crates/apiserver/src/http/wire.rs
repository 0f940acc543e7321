//! One write for all that a connection has to say at a time.
//!
//! HTTP/2 asks for a flush after every frame that is not tiny. A change that fifty watches of one connection are told
//! of would be fifty records and fifty system calls at each end. So what a connection writes is gathered while it is
//! polled, and sent when it has no more to say.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes gathered at most: a record's worth, of which a client that never reads costs two, here and in TLS.
pub(super) const ROOM: usize = 16 * 1024;

/// The end of a connection that is given to whoever speaks on it.
#[derive(Debug)]
pub(super) struct Wire<S>(Arc<Mutex<State<S>>>);

/// The end that says when to send.
#[derive(Debug)]
pub(super) struct Sending<S>(Arc<Mutex<State<S>>>);

#[derive(Debug)]
struct State<S> {
    stream: S,
    gathered: BytesMut,
    /// Whether the stream may hold what it has not sent yet.
    unsent: bool,
    /// Whether somebody drives the connection and will send.
    driven: bool,
    broken: Option<io::Error>,
}

/// Both ends of a stream.
pub(super) fn gather<S>(stream: S) -> (Wire<S>, Sending<S>) {
    let state = State { stream, gathered: BytesMut::new(), unsent: false, driven: true, broken: None };
    let state = Arc::new(Mutex::new(state));
    (Wire(state.clone()), Sending(state))
}

// === impl Sending ===

impl<S: AsyncRead + AsyncWrite + Unpin> Sending<S> {
    /// Runs what speaks on the other end, and sends whenever it pauses.
    pub(super) async fn drive<F: Future>(&self, mut speaker: Pin<&mut F>) -> F::Output {
        let mut ended = None;
        std::future::poll_fn(move |cx| {
            if ended.is_none()
                && let Poll::Ready(output) = speaker.as_mut().poll(cx)
            {
                ended = Some(output);
            }
            let mut state = lock(&self.0);
            let sent = state.poll_send(cx);
            if let Poll::Ready(Err(error)) = sent {
                // Told to the speaker, whose business it is.
                state.broken = Some(error);
                state.gathered = BytesMut::new();
                state.unsent = false;
                cx.waker().wake_by_ref();
            } else if ended.is_some() {
                ready!(sent).ok();
            }
            ended.take().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl<S> Sending<S> {
    /// Shows the stream below.
    pub(super) fn look(&self, at: impl FnOnce(&S)) {
        at(&lock(&self.0).stream);
    }
}

/// An upgraded connection lives on, and is nobody's to drive.
impl<S> Drop for Sending<S> {
    fn drop(&mut self) {
        lock(&self.0).driven = false;
    }
}

// === impl State ===

impl<S: AsyncRead + AsyncWrite + Unpin> State<S> {
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.gathered.is_empty() {
            self.unsent = true;
            let sent = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.gathered))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.gathered.advance(sent);
        }
        if self.unsent {
            self.gathered = BytesMut::new();
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.unsent = false;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if let Some(error) = self.broken.take() {
            return Poll::Ready(Err(error));
        }
        if self.gathered.len() >= ROOM {
            ready!(self.poll_send(cx))?;
        }
        Poll::Ready(Ok(ROOM - self.gathered.len().min(ROOM)))
    }
}

fn lock<S>(state: &Mutex<State<S>>) -> MutexGuard<'_, State<S>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Wire ===

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Wire<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut lock(&self.0).stream).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut state = lock(&self.0);
        let room = ready!(state.poll_room(cx))?;
        let mut taken = 0;
        for buf in bufs {
            let part = &buf[..buf.len().min(room - taken)];
            state.gathered.extend_from_slice(part);
            taken += part.len();
        }
        Poll::Ready(Ok(taken))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = lock(&self.0);
        match state.broken.take() {
            Some(error) => Poll::Ready(Err(error)),
            None if state.driven => Poll::Ready(Ok(())),
            None => state.poll_send(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = lock(&self.0);
        ready!(state.poll_send(cx))?;
        Pin::new(&mut state.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn what_is_said_at_a_time_is_sent_at_a_time() {
        let (mut far, near) = tokio::io::duplex(1 << 20);
        let (mut wire, sending) = gather(near);
        let speaker = async {
            for word in ["a", "b", "c"] {
                wire.write_all(word.as_bytes()).await.unwrap();
                wire.flush().await.unwrap();
            }
            let mut early = [0; 1];
            assert!(far.read(&mut early).now_or_never().is_none(), "not before the speaker pauses");
            tokio::task::yield_now().await;
            let mut heard = [0; 3];
            far.read_exact(&mut heard).await.unwrap();
            assert_eq!(&heard, b"abc");
            // The last words are sent although nobody waits for them.
            wire.write_all(b"bye").await.unwrap();
            far
        };
        tokio::pin!(speaker);
        let mut far = sending.drive(speaker.as_mut()).await;
        let mut heard = [0; 3];
        far.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"bye");
    }

    #[tokio::test]
    async fn a_slow_reader_holds_the_speaker_and_nothing_is_lost() {
        let (mut far, near) = tokio::io::duplex(1000);
        let (mut wire, sending) = gather(near);
        let said: Vec<u8> = (0..300_000_u32).map(|i| i as u8).collect();
        let expected = said.clone();
        let speaker = async move {
            wire.write_all(&said).await.unwrap();
            wire.shutdown().await.unwrap();
        };
        tokio::pin!(speaker);
        let reading = async {
            let mut heard = Vec::new();
            far.read_to_end(&mut heard).await.unwrap();
            heard
        };
        let ((), heard) = tokio::join!(sending.drive(speaker.as_mut()), reading);
        assert!(heard == expected);
    }

    /// A peer of TLS that shakes hands and never reads again: what we keep for it is two rooms.
    #[tokio::test]
    async fn who_never_reads_costs_two_rooms() {
        let made = rcgen::generate_simple_self_signed(vec!["x".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let server = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let client = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(tls::AnyPeer::new(provider))
            .with_no_client_auth();
        const PIPE: usize = 4096;
        let (far, near) = tokio::io::duplex(PIPE);
        let name = rustls::pki_types::ServerName::try_from("x").unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server));
        let (far, near) =
            tokio::join!(connector.connect(name, far), super::super::server::shake_hands(&acceptor, near));
        let (_far, near) = (far.unwrap(), near.unwrap());
        let (mut wire, sending) = gather(near);
        let mut taken = 0;
        let speaker = async {
            loop {
                taken += wire.write(&[7; 1000]).await.unwrap();
            }
        };
        tokio::pin!(speaker);
        for _ in 0..100 {
            assert!(sending.drive(speaker.as_mut()).now_or_never().is_none());
        }
        assert!(taken > ROOM && taken <= 2 * ROOM + PIPE, "{taken}");
    }

    #[tokio::test]
    async fn a_connection_that_nobody_drives_sends_at_once_and_a_broken_one_says_so() {
        let (mut far, near) = tokio::io::duplex(100);
        let (mut wire, sending) = gather(near);
        drop(sending);
        wire.write_all(b"on").await.unwrap();
        wire.flush().await.unwrap();
        let mut heard = [0; 2];
        far.read_exact(&mut heard).await.unwrap();
        drop(far);

        let (far, near) = tokio::io::duplex(100);
        let (mut wire, sending) = gather(near);
        drop(far);
        let speaker = async move {
            wire.write_all(b"lost").await.unwrap();
            tokio::task::yield_now().await;
            wire.flush().await
        };
        tokio::pin!(speaker);
        assert!(sending.drive(speaker.as_mut()).await.is_err());
    }
}
