//! Where a request carries a bearer token, and how it is taken out before the request goes on.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, CONNECTION, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{HeaderMap, HeaderValue};

/// A token in the list of WebSocket protocols: browsers cannot set headers.
const PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// A token is shown in a way that no server accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("multiple bearer tokens among the WebSocket protocols")]
    Several,
    #[error("the bearer token among the WebSocket protocols is not encoded properly")]
    Encoding,
    /// The answer must name a protocol, and it shall not be the token.
    #[error("no WebSocket protocol beside the bearer token")]
    Alone,
}

/// The token of `Authorization: Bearer`, or of the protocol that a WebSocket client may name instead.
pub fn token(headers: &HeaderMap) -> Result<Option<String>, Malformed> {
    let from_header = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.to_str().ok()?.trim().split_once(' ')?;
        let token = token.trim();
        (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| token.to_owned())
    });
    match from_header {
        Some(token) => Ok(Some(token)),
        None if is_websocket(headers) => among_protocols(headers),
        None => Ok(None),
    }
}

/// Takes every token out of the headers. Whoever the request is passed on to has no business with it.
pub fn strip(headers: &mut HeaderMap) {
    headers.remove(AUTHORIZATION);
    if !protocols(headers).any(|p| p.starts_with(PROTOCOL)) {
        return;
    }
    let others: Vec<&str> = protocols(headers).filter(|p| !p.starts_with(PROTOCOL)).collect();
    let kept = HeaderValue::try_from(others.join(", ")).ok().filter(|v| !v.is_empty());
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    if let Some(kept) = kept {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, kept);
    }
}

fn among_protocols(headers: &HeaderMap) -> Result<Option<String>, Malformed> {
    let mut encoded = protocols(headers).filter_map(|p| p.strip_prefix(PROTOCOL));
    let Some(first) = encoded.next() else { return Ok(None) };
    if encoded.next().is_some() {
        return Err(Malformed::Several);
    }
    let decoded = URL_SAFE_NO_PAD.decode(first).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let token = decoded.ok_or(Malformed::Encoding)?;
    if token.is_empty() {
        return Ok(None);
    }
    match protocols(headers).all(|p| p.starts_with(PROTOCOL)) {
        true => Err(Malformed::Alone),
        false => Ok(Some(token)),
    }
}

/// The protocols that a WebSocket client offers, in one header or in several.
fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).into_iter();
    // Each is read by itself: bytes that are no text do not hide a token beside them.
    let each = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    each.map(|bytes| std::str::from_utf8(bytes).unwrap_or_default().trim()).filter(|p| !p.is_empty())
}

fn is_websocket(headers: &HeaderMap) -> bool {
    let wanted = headers.get(UPGRADE).is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"websocket"));
    let mut mentioned = headers.get_all(CONNECTION).into_iter().filter_map(|v| v.to_str().ok());
    wanted && mentioned.any(|v| v.to_ascii_lowercase().contains("upgrade"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn offered(protocols: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(CONNECTION, "keep-alive, Upgrade".parse().unwrap());
        headers.insert(UPGRADE, "WebSocket".parse().unwrap());
        for protocol in protocols {
            headers.append(SEC_WEBSOCKET_PROTOCOL, protocol.parse().unwrap());
        }
        headers
    }

    fn encoded(token: &str) -> String {
        format!("{PROTOCOL}{}", URL_SAFE_NO_PAD.encode(token))
    }

    #[test]
    fn tokens_are_found_where_clients_put_them() {
        let header = |value: &str| token(&HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]));
        assert_eq!(header("bearer  abc"), Ok(Some("abc".to_owned())));
        assert_eq!(header("Basic abc"), Ok(None));
        assert_eq!(header("Bearer "), Ok(None));
        let (one, two) = (encoded("one"), encoded("two"));
        let found = Ok(Some("one".to_owned()));
        assert_eq!(token(&offered(&[&format!("v5.channel.k8s.io, {one}")])), found);
        assert_eq!(token(&offered(&[&one, "v4.channel.k8s.io"])), found);
        assert_eq!(token(&offered(&["v4.channel.k8s.io"])), Ok(None));
        assert_eq!(token(&offered(&[&one, &two, "v4.channel.k8s.io"])), Err(Malformed::Several));
        assert_eq!(token(&offered(&[&one])), Err(Malformed::Alone));
        assert_eq!(token(&offered(&[&format!("{PROTOCOL}%%"), "x"])), Err(Malformed::Encoding));
        let mut plain = offered(&[&one, "v4.channel.k8s.io"]);
        plain.remove(UPGRADE);
        assert_eq!(token(&plain), Ok(None), "only WebSocket clients may");
    }

    #[test]
    fn no_token_is_left_and_everything_else_is() {
        let (one, two) = (encoded("one"), encoded("two"));
        let rows: &[(&[&str], Option<&str>)] = &[
            (&["a, b", "c"], Some("a, b")),
            (&[&format!("a,{one}"), "c"], Some("a, c")),
            (&[&one, &two, "c"], Some("c")),
            (&[&format!("\u{e4}, {one}, c")], Some("\u{e4}, c")),
            (&[&one], None),
            (&[], None),
        ];
        for (protocols, left) in rows {
            let mut headers = offered(protocols);
            headers.insert(AUTHORIZATION, "Bearer one".parse().unwrap());
            strip(&mut headers);
            assert!(!headers.contains_key(AUTHORIZATION));
            let seen = headers.get(SEC_WEBSOCKET_PROTOCOL).map(HeaderValue::as_bytes);
            assert_eq!(seen, left.map(str::as_bytes), "{protocols:?}");
        }
    }
}
