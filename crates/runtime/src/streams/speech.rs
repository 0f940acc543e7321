//! How a client wants to talk, and the answer that lets it.

use bytes::Bytes;
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use streaming::{TUNNEL, websocket};

const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
const WS_PROTOCOL: HeaderName = HeaderName::from_static("sec-websocket-protocol");
const WS_KEY: HeaderName = HeaderName::from_static("sec-websocket-key");
const WS_ACCEPT: HeaderName = HeaderName::from_static("sec-websocket-accept");
const WS_VERSION: HeaderName = HeaderName::from_static("sec-websocket-version");
/// What we speak, the best first.
const COMMAND_SPDY: &[&str] = &["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io"];
const COMMAND_CHANNELS: &[&str] = &["v5.channel.k8s.io", "v4.channel.k8s.io"];
const PORTS: &str = "portforward.k8s.io";

/// What a connection is once it is upgraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speech {
    /// SPDY streams of a command.
    Streams {
        /// The end of a command is told as a Status, not as words.
        has_status: bool,
        has_resize: bool,
    },
    /// WebSocket messages that begin with the number of a channel.
    Channels,
    /// SPDY streams for connections; in WebSocket messages, or not.
    Ports { is_wrapped: bool },
}

pub(super) type Answer = Response<Full<Bytes>>;

#[must_use]
pub(super) fn plain(status: StatusCode, text: impl Into<String>) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(format!("{}\n", text.into()))));
    *answer.status_mut() = status;
    answer
}

/// What the client will speak, and what tells it so; or why not.
pub(super) fn agree(kind: &str, headers: &HeaderMap) -> Result<(Speech, Answer), Answer> {
    if !streaming::wants_upgrade(headers) {
        return Err(plain(StatusCode::BAD_REQUEST, "an upgrade to SPDY/3.1 or WebSocket is wanted here"));
    }
    let is =
        |what: &str| headers.get(UPGRADE).is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(what.as_bytes()));
    if is("websocket") {
        websocket(kind, headers)
    } else if is("SPDY/3.1") {
        spdy(kind, headers)
    } else {
        Err(plain(StatusCode::BAD_REQUEST, "an upgrade to SPDY/3.1 or WebSocket is wanted here"))
    }
}

fn spdy(kind: &str, headers: &HeaderMap) -> Result<(Speech, Answer), Answer> {
    let offered = words(headers, &STREAM_PROTOCOL);
    let known: &[&str] = if kind == "portforward" { &[PORTS] } else { COMMAND_SPDY };
    let protocol = choose(known, &offered)?;
    let speech = match protocol {
        PORTS => Speech::Ports { is_wrapped: false },
        other => {
            Speech::Streams { has_status: other == COMMAND_SPDY[0], has_resize: other != COMMAND_SPDY[2] }
        }
    };
    let fields = [(UPGRADE, "SPDY/3.1"), (STREAM_PROTOCOL, protocol)];
    Ok((speech, switching(fields.map(|(name, value)| (name, value.to_owned())))))
}

fn websocket(kind: &str, headers: &HeaderMap) -> Result<(Speech, Answer), Answer> {
    let wrong = |why: &str| Err(plain(StatusCode::BAD_REQUEST, format!("the WebSocket handshake {why}")));
    let Some(key) = headers.get(WS_KEY).and_then(|v| v.to_str().ok()) else { return wrong("has no key") };
    if headers.get(WS_VERSION).is_none_or(|v| v.as_bytes() != b"13") {
        return wrong("is not of version 13");
    }
    let offered = words(headers, &WS_PROTOCOL);
    let tunnel = format!("{TUNNEL}{PORTS}");
    let known: &[&str] = if kind == "portforward" { &[&tunnel] } else { COMMAND_CHANNELS };
    let protocol = choose(known, &offered)?;
    let speech = if kind == "portforward" { Speech::Ports { is_wrapped: true } } else { Speech::Channels };
    let fields = [
        (UPGRADE, "websocket".to_owned()),
        (WS_ACCEPT, websocket::accept_key(key)),
        (WS_PROTOCOL, protocol.to_owned()),
    ];
    Ok((speech, switching(fields)))
}

fn choose<'a>(known: &[&'a str], offered: &[&str]) -> Result<&'a str, Answer> {
    known.iter().find(|protocol| offered.contains(protocol)).copied().ok_or_else(|| {
        let text = format!(
            "unable to upgrade: unable to negotiate protocol: client supports {offered:?}, server accepts {known:?}"
        );
        plain(StatusCode::FORBIDDEN, text)
    })
}

/// A list may be one header or several.
fn words<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Vec<&'a str> {
    let all = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|value| value.split(',')).map(str::trim).collect()
}

fn switching<const N: usize>(fields: [(HeaderName, String); N]) -> Answer {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    for (name, value) in fields {
        // None of them has a character that a header may not have.
        if let Ok(value) = HeaderValue::try_from(value) {
            answer.headers_mut().insert(name, value);
        }
    }
    answer
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn headers(rows: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in rows {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn the_best_protocol_that_both_know_is_spoken() {
        let up = ("connection", "Upgrade");
        let spdy = ("upgrade", "SPDY/3.1");
        let protocol = "x-stream-protocol-version";
        let rows = [
            ("exec", vec![(protocol, "v3.channel.k8s.io"), (protocol, "v4.channel.k8s.io")], (true, true)),
            ("exec", vec![(protocol, "v2.channel.k8s.io, v3.channel.k8s.io")], (false, true)),
            ("attach", vec![(protocol, "v2.channel.k8s.io")], (false, false)),
        ];
        for (kind, fields, (has_status, has_resize)) in rows {
            let (speech, answer) = agree(kind, &headers(&[&[up, spdy], &fields[..]].concat())).unwrap();
            assert_eq!(speech, Speech::Streams { has_status, has_resize });
            assert_eq!(answer.status(), StatusCode::SWITCHING_PROTOCOLS);
        }
        let (speech, answer) =
            agree("portforward", &headers(&[up, spdy, (protocol, "portforward.k8s.io")])).unwrap();
        assert_eq!(speech, Speech::Ports { is_wrapped: false });
        assert_eq!(answer.headers()[STREAM_PROTOCOL], "portforward.k8s.io");
    }

    #[test]
    fn websockets_get_their_accept_key() {
        let base = [
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        let with = |protocol| headers(&[&base[..], &[("sec-websocket-protocol", protocol)]].concat());
        let (speech, answer) = agree("exec", &with("v4.channel.k8s.io, v5.channel.k8s.io")).unwrap();
        assert_eq!(speech, Speech::Channels);
        assert_eq!(answer.headers()[WS_PROTOCOL], "v5.channel.k8s.io");
        assert_eq!(answer.headers()[WS_ACCEPT], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        let (speech, _) = agree("portforward", &with("SPDY/3.1+portforward.k8s.io")).unwrap();
        assert_eq!(speech, Speech::Ports { is_wrapped: true });
        for (kind, headers, status) in [
            ("exec", with("channel.k8s.io"), StatusCode::FORBIDDEN),
            ("exec", headers(&base[..3]), StatusCode::BAD_REQUEST),
            ("exec", headers(&[]), StatusCode::BAD_REQUEST),
            ("exec", headers(&[("connection", "upgrade"), ("upgrade", "h2c")]), StatusCode::BAD_REQUEST),
        ] {
            assert_eq!(agree(kind, &headers).unwrap_err().status(), status);
        }
    }
}
