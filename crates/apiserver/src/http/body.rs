//! Request bodies, bounded in size and time.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};

use apiserver_core::api_status::ApiStatus;
use apiserver_core::body::Language;

/// The largest body taken, upstream's figure.
pub(crate) const LIMIT: usize = 3 * 1024 * 1024;

/// The body of a request: as it comes, or all of it.
#[derive(Debug)]
pub(crate) enum Body {
    Incoming(Incoming),
    Whole(Bytes),
}

// === impl Body ===

impl Body {
    /// How large it is, or may be where the client does not say.
    pub(super) fn most(&self) -> u64 {
        match self {
            Body::Incoming(body) => body.size_hint().upper().unwrap_or(LIMIT as u64),
            Body::Whole(bytes) => bytes.len() as u64,
        }
    }

    /// For those who take it as it comes.
    pub(super) fn into_incoming(self) -> Result<Incoming, ApiStatus> {
        match self {
            Body::Incoming(body) => Ok(body),
            Body::Whole(_) => Err(ApiStatus::internal("the body was read before it was passed on")),
        }
    }
}

/// The whole body, if it arrives in time.
pub(crate) async fn read(body: Body, timeout: Duration) -> Result<Bytes, ApiStatus> {
    let body = match body {
        Body::Incoming(body) => body,
        Body::Whole(bytes) => return Ok(bytes),
    };
    let collected = tokio::time::timeout(timeout, Limited::new(body, LIMIT).collect()).await;
    match collected {
        Err(_) => Err(ApiStatus::new(408, "Timeout", "the body of the request did not arrive in time")),
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(ApiStatus::too_large(format!("Request entity too large: limit is {LIMIT}")))
        }
        Ok(Err(error)) => Err(ApiStatus::bad_request(format!("reading the body: {error}"))),
    }
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
