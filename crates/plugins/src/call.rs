//! One call to a service behind a socket.
//!
//! Every call makes its own connection, as upstream's do: a plugin that was replaced behind its socket is found by the next
//! one.

use std::path::Path;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Uri};
use tonic::{Response, Status};

use crate::{Error, Result};

const CONNECT: Duration = Duration::from_secs(10);

/// Connects to the socket.
pub async fn connect(socket: &Path) -> Result<Channel> {
    let path = socket.to_owned();
    let connector = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // The URI is never resolved; its host becomes the `:authority`.
    let endpoint = Channel::from_static("http://localhost").connect_timeout(CONNECT);
    endpoint.connect_with_connector(connector).await.map_err(|e| {
        let cause = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
        Error::new(tonic::Code::Unavailable, format!("connect to {}: {cause}", socket.display()))
    })
}

/// Waits for the answer until the deadline.
pub async fn finish<T>(
    deadline: Duration,
    call: impl Future<Output = std::result::Result<Response<T>, Status>>,
) -> Result<T> {
    // Dropping the call resets its stream, which is how the plugin learns that we gave up. Boxed: requests are large.
    let answer = tokio::time::timeout(deadline, Box::pin(call)).await.unwrap_or_else(|_| {
        Err(Status::deadline_exceeded(format!("no answer within {}s", deadline.as_secs_f64())))
    });
    Ok(answer?.into_inner())
}
