//! Request bodies, bounded in size and time.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};

use apiserver_core::api_status::ApiStatus;
use apiserver_core::body::Language;

/// The largest body taken, upstream's figure.
pub(crate) const LIMIT: usize = 3 * 1024 * 1024;

/// The body of a request: as it comes, or all of it.
#[derive(Debug)]
pub(crate) enum Body {
    Incoming(Incoming),
    /// One whose beginning was read.
    Begun(BytesMut, Incoming),
    Whole(Bytes),
}

// === impl Body ===

impl Body {
    /// How large it is, or may be where the client does not say.
    pub(super) fn most(&self) -> u64 {
        match self {
            Body::Incoming(body) => body.size_hint().upper().unwrap_or(LIMIT as u64),
            Body::Begun(..) => LIMIT as u64,
            Body::Whole(bytes) => bytes.len() as u64,
        }
    }

    /// Whether the client says how large it is.
    pub(super) fn says_size(&self) -> bool {
        !matches!(self, Body::Incoming(body) if body.size_hint().upper().is_none())
    }

    /// Reads until it ends, or until there is as much.
    pub(super) async fn begin(self, enough: usize, timeout: Duration) -> Result<Body, ApiStatus> {
        let Body::Incoming(mut body) = self else { return Ok(self) };
        let mut begun = BytesMut::new();
        let is_whole = in_time(timeout, gather(&mut begun, &mut body, enough)).await?;
        Ok(if is_whole { Body::Whole(begun.freeze()) } else { Body::Begun(begun, body) })
    }

    /// For those who take it as it comes.
    pub(super) fn into_incoming(self) -> Result<Incoming, ApiStatus> {
        match self {
            Body::Incoming(body) => Ok(body),
            _ => Err(ApiStatus::internal("the body was read before it was passed on")),
        }
    }
}

/// The whole body, if it arrives in time.
pub(crate) async fn read(body: Body, timeout: Duration) -> Result<Bytes, ApiStatus> {
    let (mut read, mut body) = match body {
        Body::Incoming(body) => (BytesMut::new(), body),
        Body::Begun(begun, body) => (begun, body),
        Body::Whole(bytes) => return Ok(bytes),
    };
    if !in_time(timeout, gather(&mut read, &mut body, LIMIT + 1)).await? {
        return Err(ApiStatus::too_large(format!("Request entity too large: limit is {LIMIT}")));
    }
    Ok(read.freeze())
}

/// Copies what arrives, until it ends (true) or there is as much. Frames that were kept would cost more than they hold where
/// there is a byte in each.
async fn gather(read: &mut BytesMut, body: &mut Incoming, enough: usize) -> Result<bool, ApiStatus> {
    while read.len() < enough {
        match body.frame().await {
            None => return Ok(true),
            Some(Ok(frame)) => {
                let data = frame.into_data().unwrap_or_default();
                if read.is_empty() {
                    // What is announced and never sent is reserved and never touched.
                    let more = usize::try_from(body.size_hint().upper().unwrap_or_default()).unwrap_or(LIMIT);
                    read.reserve((data.len() + more).min(LIMIT));
                }
                read.extend_from_slice(&data);
            }
            Some(Err(error)) => return Err(unreadable(&error)),
        }
    }
    Ok(false)
}

async fn in_time<T>(
    timeout: Duration,
    reading: impl Future<Output = Result<T, ApiStatus>>,
) -> Result<T, ApiStatus> {
    tokio::time::timeout(timeout, reading).await.unwrap_or_else(|_| Err(late()))
}

fn late() -> ApiStatus {
    ApiStatus::new(408, "Timeout", "the body of the request did not arrive in time")
}

fn unreadable(error: &dyn std::error::Error) -> ApiStatus {
    ApiStatus::bad_request(format!("reading the body: {error}"))
}

/// The media type of the body, without parameters.
pub(crate) fn media_type(headers: &HeaderMap) -> &str {
    let value = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim()
}

/// The language of an object in a body. Nothing said is JSON.
pub(crate) fn language(headers: &HeaderMap) -> Result<Language, ApiStatus> {
    match media_type(headers) {
        "" | "application/json" => Ok(Language::Json),
        "application/yaml" | "application/x-yaml" | "text/yaml" => Ok(Language::Yaml),
        "application/vnd.kubernetes.protobuf" => Ok(Language::Protobuf),
        _ => Err(ApiStatus::unsupported_media_type(super::accept::OFFERED)),
    }
}
