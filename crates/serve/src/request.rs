//! One request: for as long as it is under way its connection is at work.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Response, StatusCode};
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::Sleep;

use crate::connection::Connection;

/// A request that is under way, until it is dropped.
#[derive(Debug)]
pub struct OpenRequest {
    connection: Connection,
    is_answered: bool,
}

/// The body of an answer. The request is under way until it was sent.
#[derive(Debug)]
pub struct Held<B: Body> {
    body: B,
    open: OpenRequest,
}

/// The body of a request that has to arrive in time.
#[derive(Debug)]
pub struct Within<B> {
    body: B,
    limit: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

/// Why a body is not read to its end.
#[derive(Debug)]
pub enum Late<E> {
    /// It did not arrive in time.
    Late,
    Broken(E),
}

// === impl Connection ===

impl Connection {
    /// The head of a request is there. Until what this returns is dropped the connection is at work.
    #[must_use]
    pub fn ask(&self) -> OpenRequest {
        self.begin();
        OpenRequest { connection: self.clone(), is_answered: false }
    }
}

// === impl OpenRequest ===

impl OpenRequest {
    /// The same answer, whose sending belongs to the request. One that changes the protocol makes the connection a
    /// stream, which is at work until it is closed.
    pub fn answer<B: Body + Unpin>(self, answer: Response<B>) -> Response<Held<B>> {
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            self.connection.stream();
        }
        answer.map(|body| Held { body, open: self })
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.connection.end(self.is_answered);
    }
}

// === impl Held ===

impl<B: Body + Unpin> Body for Held<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(polled, Poll::Ready(None)) {
            self.open.is_answered = true;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B: Body> Drop for Held<B> {
    fn drop(&mut self) {
        self.open.is_answered |= self.body.is_end_stream();
    }
}

// === impl Within ===

impl<B> Within<B> {
    /// From the first look at it.
    pub fn new(body: B, limit: Duration) -> Within<B> {
        Within { body, limit, timer: None }
    }
}

impl<B: Body + Unpin> Body for Within<B> {
    type Data = B::Data;
    type Error = Late<B::Error>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, Late<B::Error>>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Late::Broken)));
        }
        let limit = this.limit;
        let timer = this.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        timer.as_mut().poll(cx).map(|()| Some(Err(Late::Late)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

// === impl Late ===

impl<E: fmt::Display> fmt::Display for Late<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Late::Late => f.write_str("the body of the request did not arrive in time"),
            Late::Broken(error) => error.fmt(f),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for Late<E> {}
