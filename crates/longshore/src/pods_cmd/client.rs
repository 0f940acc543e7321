//! HTTP over the kubelet's unix socket.

use std::io;
use std::path::{Path, PathBuf};

use api::json::FromJson;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kubelet::server::local_api::ErrorBody;
use tokio::net::UnixStream;
use tokio::task::JoinSet;

/// The largest whole answer that is read.
const ANSWER_MAX: usize = 256 * 1024 * 1024;

#[derive(Debug)]
pub(crate) struct Client {
    socket: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    #[error("nobody listens on {}: is the kubelet running on this machine?", .0.display())]
    NotRunning(PathBuf),
    #[error("{} is for root only: run this command as root", .0.display())]
    NotRoot(PathBuf),
    #[error("connect to {}: {error}", .path.display())]
    Connect { path: PathBuf, error: io::Error },
    #[error("{message}")]
    Refused { message: String },
    #[error("the connection to the kubelet broke: {0}")]
    Broken(String),
}

/// A body that arrives piece by piece.
pub(super) struct Pieces {
    body: Incoming,
    _connection: JoinSet<Result<(), hyper::Error>>,
}

impl Client {
    pub(crate) fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// The whole answer as JSON.
    pub(crate) async fn json<T: FromJson>(
        &self,
        method: &str,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<T, ClientError> {
        let (response, _connection) = self.send(method, path, body).await?;
        let bytes = collect(response).await?;
        T::from_json(&bytes).map_err(|e| ClientError::Broken(e.to_string()))
    }

    pub(super) async fn stream(
        &self,
        method: &str,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Pieces, ClientError> {
        let (response, connection) = self.send(method, path, body).await?;
        Ok(Pieces { body: response.into_body(), _connection: connection })
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<(Response<Incoming>, JoinSet<Result<(), hyper::Error>>), ClientError> {
        let broken = |e: hyper::Error| ClientError::Broken(e.to_string());
        let stream = UnixStream::connect(&self.socket).await.map_err(|e| explain(&self.socket, e))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let mut task = JoinSet::new();
        task.spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .map_err(|e| ClientError::Broken(e.to_string()))?;
        let response = sender.send_request(request).await.map_err(broken)?;
        let status = response.status();
        if status.is_success() {
            return Ok((response, task));
        }
        let bytes = collect(response).await?;
        let message = match serde_json::from_slice::<ErrorBody>(&bytes) {
            Ok(body) => body.message,
            Err(_) => format!("{status}: {}", String::from_utf8_lossy(&bytes)),
        };
        Err(ClientError::Refused { message })
    }
}

/// Why nobody answers on the socket.
pub(super) fn explain(socket: &Path, error: io::Error) -> ClientError {
    let path = socket.to_owned();
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ClientError::NotRunning(path),
        io::ErrorKind::PermissionDenied => ClientError::NotRoot(path),
        _ => ClientError::Connect { path, error },
    }
}

impl Pieces {
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        loop {
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            let frame = frame.map_err(|e| ClientError::Broken(e.to_string()))?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
    }
}

async fn collect(response: Response<Incoming>) -> Result<Bytes, ClientError> {
    let body = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
    body.map(|b| b.to_bytes()).map_err(|e| ClientError::Broken(e.to_string()))
}

/// Makes a word fit for a path or a query.
pub(super) fn escape(word: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~');
    let each = |b: u8| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") };
    word.bytes().map(each).collect()
}
