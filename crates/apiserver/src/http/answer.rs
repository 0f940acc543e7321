//! Answers: bodies, forms, headers.

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::stream::Stream;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use schema::protobuf;
use schema::types::At;
use serde_json::Value;

use super::accept::Format;
use apiserver_core::api_status::ApiStatus;

pub(crate) type Body = UnsyncBoxBody<Bytes, Broken>;
pub(crate) type Answer = Response<Body>;

/// A body that cannot be finished: the connection ends, so that nobody takes the part for the whole.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Broken(pub(crate) String);

/// Answers shorter than this are not worth compressing.
pub(crate) const WORTH_GZIP: usize = 128 * 1024;
/// Characters of warnings in one answer; more would burst header limits on the way.
const WARNINGS: usize = 4096;

/// A document in the form the client reads. What has no protobuf form is JSON: whoever reads the one reads the other.
pub(crate) fn document(code: u16, value: &Value, format: Format) -> Answer {
    let packed = (format == Format::Protobuf).then(|| to_protobuf(value)).flatten();
    let (format, bytes) = match (format, packed) {
        (Format::Protobuf, Some(bytes)) => (format, bytes),
        (Format::Yaml, _) => (format, api::yaml::from_value_to_yaml(value).into_bytes()),
        (Format::Json | Format::Protobuf, _) => {
            let mut bytes = serde_json::to_vec(value).unwrap_or_default();
            bytes.push(b'\n');
            (Format::Json, bytes)
        }
    };
    whole(code, format.content_type(), bytes.into())
}

/// An object of a built-in kind in its protobuf form.
pub(crate) fn to_protobuf(value: &Value) -> Option<Vec<u8>> {
    let (version, kind) = (value["apiVersion"].as_str()?, value["kind"].as_str()?);
    let form = if kind == "PartialObjectMetadata" {
        protobuf::Form::Metadata
    } else {
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        protobuf::Form::Whole(At::kind(group, version, kind)?)
    };
    protobuf::encode(value, form).ok()
}

pub(crate) fn whole(code: u16, content_type: &'static str, bytes: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(bytes).map_err(|never| match never {}).boxed_unsync());
    *answer.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    answer
}

pub(crate) fn text(code: u16, text: impl Into<String>) -> Answer {
    let mut answer = whole(code, "text/plain; charset=utf-8", Bytes::from(text.into()));
    let nosniff = HeaderValue::from_static("nosniff");
    answer.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    answer
}

pub(crate) fn stream<S>(content_type: &'static str, chunks: S) -> Answer
where
    S: Stream<Item = Result<Bytes, Broken>> + Send + 'static,
{
    use futures_util::StreamExt;
    let frames = chunks.map(|chunk| chunk.map(Frame::data));
    let mut answer = whole(200, content_type, Bytes::new());
    *answer.body_mut() = StreamBody::new(frames).boxed_unsync();
    answer
}

/// An error status, always in the Status form.
pub(crate) fn refuse(api_status: &ApiStatus) -> Answer {
    let mut answer = document(api_status.code, &api_status.to_status(), Format::Json);
    let after = api_status.details.as_ref().map_or(0, |d| d.retry_after_seconds);
    if after > 0 {
        answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(after));
    }
    answer
}

/// Adds `Warning` headers, each said once.
pub(crate) fn warn(answer: &mut Answer, warnings: &[String]) {
    let mut room = WARNINGS;
    for (i, text) in warnings.iter().enumerate() {
        if warnings[..i].contains(text) {
            continue;
        }
        let clean: String = text.chars().filter(|c| !c.is_control()).take(256).collect();
        let quoted = clean.replace('\\', "\\\\").replace('"', "\\\"");
        let Some(left) = room.checked_sub(quoted.len()) else { return };
        room = left;
        if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{quoted}\"").as_bytes()) {
            answer.headers_mut().append(header::WARNING, value);
        }
    }
}

/// Compresses a body that is at hand.
pub(crate) fn gzip(bytes: &[u8]) -> Option<Bytes> {
    let mut gzip = Gzip::new();
    let mut out = gzip.push(bytes)?.to_vec();
    out.extend_from_slice(&gzip.finish()?);
    Some(out.into())
}

/// Compresses a body piece by piece.
#[derive(Debug)]
pub(crate) struct Gzip(GzEncoder<Vec<u8>>);

// === impl Gzip ===

impl Gzip {
    pub(crate) fn new() -> Gzip {
        // The fastest level, as upstream's: the network is the loopback or near.
        Gzip(GzEncoder::new(Vec::new(), Compression::new(1)))
    }

    /// What can be sent after this piece; may be empty.
    pub(crate) fn push(&mut self, piece: &[u8]) -> Option<Bytes> {
        self.0.write_all(piece).ok()?;
        Some(std::mem::take(self.0.get_mut()).into())
    }

    pub(crate) fn finish(self) -> Option<Bytes> {
        self.0.finish().ok().map(Bytes::from)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn warnings_are_quoted_and_said_once() {
        let mut answer = text(200, "x");
        warn(&mut answer, &["a \"b\"\n".into(), "a \"b\"\n".into(), "c".into()]);
        let seen: Vec<_> = answer.headers().get_all(header::WARNING).iter().collect();
        assert_eq!(seen, ["299 - \"a \\\"b\\\"\"", "299 - \"c\""]);
    }

    #[test]
    fn pieces_make_one_gzip() {
        let mut gzip = Gzip::new();
        let mut packed = gzip.push(b"hello ").unwrap().to_vec();
        packed.extend_from_slice(&gzip.push(&b"x".repeat(300_000)).unwrap());
        packed.extend_from_slice(&gzip.finish().unwrap());
        let mut out = Vec::new();
        flate2::read::GzDecoder::new(&*packed).read_to_end(&mut out).unwrap();
        assert_eq!(out.len(), 300_006);
    }
}
