//! Request bodies, bounded in size and time.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;

use apiserver_core::body::Language;
use apiserver_core::refusal::Refusal;

/// The largest body taken, upstream's figure.
pub(crate) const LIMIT: usize = 3 * 1024 * 1024;

/// The whole body, if it arrives in time.
pub(crate) async fn read(body: Incoming, patience: Duration) -> Result<Bytes, Refusal> {
    let collected = tokio::time::timeout(patience, Limited::new(body, LIMIT).collect()).await;
    match collected {
        Err(_) => Err(Refusal::new(408, "Timeout", "the body of the request did not arrive in time")),
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(Refusal::too_large(format!("Request entity too large: limit is {LIMIT}")))
        }
        Ok(Err(error)) => Err(Refusal::bad_request(format!("reading the body: {error}"))),
    }
}

/// The media type of the body, without parameters.
pub(crate) fn media_type(headers: &HeaderMap) -> &str {
    let value = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim()
}

/// The language of an object in a body. Nothing said is JSON.
pub(crate) fn language(headers: &HeaderMap) -> Result<Language, Refusal> {
    match media_type(headers) {
        "" | "application/json" => Ok(Language::Json),
        "application/yaml" | "application/x-yaml" | "text/yaml" => Ok(Language::Yaml),
        "application/vnd.kubernetes.protobuf" => Ok(Language::Protobuf),
        _ => Err(Refusal::unsupported_media_type(super::accept::OFFERED)),
    }
}
