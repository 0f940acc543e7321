//! A connection to the API server: TCP, TLS, and whichever HTTP the server speaks. A caller with a network of its own
//! brings its own wire.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustix::net::sockopt;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::proxy::Proxy;

/// Address, TCP and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A silent connection is asked whether it lives this often, and given up this much later: a dead API server is noticed
/// in seconds, not when TCP gives up after a quarter of an hour.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(15);
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// The kernel's questions may be lost on their way; so may what was sent.
const PINGS: u32 = 3;
const SILENCE: Duration = Duration::from_secs(30);

/// What bytes travel on.
pub trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// Another way to the server than TCP; each call is a new connection.
pub type Dial = Arc<dyn Fn() -> io::Result<Box<dyn Wire>> + Send + Sync>;

/// A way to an API server inside this process, for settings that are shown in logs.
#[derive(Clone)]
pub struct Within(pub Dial);

impl std::fmt::Debug for Within {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Within(..)")
    }
}

#[derive(Clone)]
pub(crate) struct Connector {
    pub(crate) tls: Option<Arc<ClientConfig>>,
    pub(crate) server_name: Option<String>,
    pub(crate) proxy: Option<Proxy>,
    pub(crate) dial: Option<Dial>,
}

pub(crate) enum Stream {
    Given(TokioIo<Box<dyn Wire>>),
    Plain(TokioIo<TcpStream>),
    Tls(Box<TokioIo<TlsStream<TcpStream>>>),
}

// === impl Connector ===

impl Connector {
    async fn connect(self, uri: Uri) -> io::Result<Stream> {
        if let Some(dial) = self.dial {
            return Ok(Stream::Given(TokioIo::new(dial()?)));
        }
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("http") { 80 } else { 443 });
        let tcp = match &self.proxy {
            Some(proxy) => proxy.connect(&host, port).await?,
            None => TcpStream::connect((host.as_str(), port)).await?,
        };
        watch_over(&tcp)?;
        let Some(config) = self.tls else { return Ok(Stream::Plain(TokioIo::new(tcp))) };
        let name = self.server_name.unwrap_or(host);
        let name = ServerName::try_from(name).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        let tls = TlsConnector::from(config).connect(name, tcp).await?;
        Ok(Stream::Tls(Box::new(TokioIo::new(tls))))
    }
}

/// A server that is gone without a word is noticed by the kernel, whatever is spoken over the connection: when there is
/// something to send, and when there is not, by asking.
fn watch_over(tcp: &TcpStream) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    let silence = u32::try_from(SILENCE.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(tcp, silence)?;
    sockopt::set_socket_keepalive(tcp, true)?;
    sockopt::set_tcp_keepidle(tcp, PING_INTERVAL)?;
    sockopt::set_tcp_keepintvl(tcp, PING_TIMEOUT)?;
    sockopt::set_tcp_keepcnt(tcp, PINGS)?;
    Ok(())
}

impl tower_service::Service<Uri> for Connector {
    type Response = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            match tokio::time::timeout(CONNECT_TIMEOUT, this.connect(uri)).await {
                Ok(result) => result,
                Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "no connection within 10 s")),
            }
        })
    }
}

// === impl Stream ===

impl Connection for Stream {
    fn connected(&self) -> Connected {
        match self {
            Stream::Tls(io) if io.inner().get_ref().1.alpn_protocol() == Some(b"h2") => {
                Connected::new().negotiated_h2()
            }
            _ => Connected::new(),
        }
    }
}

impl Read for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Given(io) => Pin::new(io).poll_read(cx, buf),
            Stream::Plain(io) => Pin::new(io).poll_read(cx, buf),
            Stream::Tls(io) => Pin::new(io.as_mut()).poll_read(cx, buf),
        }
    }
}

impl Write for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Given(io) => Pin::new(io).poll_write(cx, buf),
            Stream::Plain(io) => Pin::new(io).poll_write(cx, buf),
            Stream::Tls(io) => Pin::new(io.as_mut()).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Given(io) => Pin::new(io).poll_flush(cx),
            Stream::Plain(io) => Pin::new(io).poll_flush(cx),
            Stream::Tls(io) => Pin::new(io.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Given(io) => Pin::new(io).poll_shutdown(cx),
            Stream::Plain(io) => Pin::new(io).poll_shutdown(cx),
            Stream::Tls(io) => Pin::new(io.as_mut()).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_kernel_watches_over_every_connection() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let connector = Connector { tls: None, server_name: None, proxy: None, dial: None };
        let Stream::Plain(io) = connector.connect(uri).await.unwrap() else { panic!("not TCP") };
        let tcp = io.inner();
        assert!(sockopt::socket_keepalive(tcp).unwrap());
        assert_eq!(sockopt::tcp_keepidle(tcp).unwrap(), PING_INTERVAL);
        assert_eq!(sockopt::tcp_user_timeout(tcp).unwrap(), 30_000);
    }
}
