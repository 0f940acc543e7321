//! As many connections as the requests under way need.
//!
//! An HTTP/2 server bounds how many requests one connection carries at a time (upstream's API server: 100), and a watch
//! is such a request for as long as it lasts. Whoever has more under way would wait for a watch to end, so they are
//! spread over several connections.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_util::client::legacy::{self, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::connect::{Connector, PING_INTERVAL, PING_TIMEOUT};

/// A connection that nobody asks anything of is given up after this.
const IDLE: Duration = Duration::from_secs(90);

/// One HTTP/2 connection, or as many of HTTP/1 as it takes.
type Pooled = legacy::Client<Connector, Full<Bytes>>;

/// The connections to one server, with one set of certificates.
pub(crate) struct ConnectionPool {
    connector: Connector,
    /// Requests at a time on one connection.
    places: usize,
    /// The first is preferred, so that the others run empty.
    all: Mutex<Vec<Arc<Pooled>>>,
}

/// A place on a connection. Whoever drops it gives it back.
pub(crate) struct Place(Arc<Pooled>);

/// The body of an answer as it comes. Its request is under way until this is dropped.
#[derive(Debug)]
pub struct Content {
    body: Incoming,
    _place: Place,
}

// === impl ConnectionPool ===

impl ConnectionPool {
    pub(crate) fn new(connector: Connector, places: usize) -> ConnectionPool {
        ConnectionPool { connector, places: places.max(1), all: Mutex::default() }
    }

    /// A place on the first connection that has one.
    pub(crate) fn place(&self) -> Place {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        // Every place that is taken holds its connection, and so do we.
        let has_room = |connection: &Arc<Pooled>| Arc::strong_count(connection) <= self.places;
        let at = all.iter().position(has_room).unwrap_or(all.len());
        if at == all.len() {
            all.push(Arc::new(self.open()));
        }
        // One spare connection stays, for a load that goes to and fro; it ends by itself.
        while all.len() > at + 2 && all.last().is_some_and(|connection| Arc::strong_count(connection) == 1) {
            all.pop();
        }
        Place(all[at].clone())
    }

    /// Connects when it is first asked something.
    fn open(&self) -> Pooled {
        legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .http2_keep_alive_interval(PING_INTERVAL)
            .http2_keep_alive_timeout(PING_TIMEOUT)
            .build(self.connector.clone())
    }
}

// === impl Place ===

impl Place {
    pub(crate) fn request(&self, request: Request<Full<Bytes>>) -> ResponseFuture {
        self.0.request(request)
    }

    /// The place is taken until the answer was read.
    pub(crate) fn keep(self, response: Response<Incoming>) -> Response<Content> {
        response.map(|body| Content { body, _place: self })
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Place")
    }
}

// === impl Content ===

impl Body for Content {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
