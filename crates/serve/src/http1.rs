//! HTTP/1.1 without encryption, for ports and sockets whose answers are all there is to them.

use std::convert::Infallible;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::connection::{Connection, Stream};
use crate::idle_timeout::{IdleTimeoutStream, Limit};
use crate::request::Within;

/// What is borne of a client.
#[derive(Clone, Copy, Debug)]
pub struct Http1 {
    /// Bytes of a request's head.
    pub head: usize,
    /// For the next request to arrive on a connection that is kept.
    pub idle: Duration,
    /// For the body of a request to arrive.
    pub body: Duration,
    /// For a reader to take more of its answer.
    pub stall: Duration,
}

/// Answers what is asked on a connection, until either end has enough.
pub async fn converse<S, B, I>(how: Http1, stream: Stream<I>, connection: Connection, service: S)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service<Request<Within<Incoming>>, Response = Response<B>, Error = Infallible>,
    B: Body + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    // How long reading may take is judged by requests, not by bytes.
    let stream = IdleTimeoutStream::with(stream, Limit::new(Limit::NEVER), Limit::new(how.stall));
    let asked = connection.clone();
    let counted = service_fn(|request: Request<Incoming>| {
        let open = asked.ask();
        let answer = service.call(request.map(|body| Within::new(body, how.body)));
        async move { Ok::<_, Infallible>(open.answer(answer.await.unwrap_or_else(|never| match never {}))) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(how.idle)
        .max_buf_size(how.head)
        .serve_connection(TokioIo::new(stream), counted)
        .with_upgrades();
    tokio::pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = connection.finish() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::trace!(%error, "connection ended");
    }
}
