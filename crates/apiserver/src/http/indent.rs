//! JSON for people: whoever asks for `?pretty=true`, or comes with curl or a browser, gets it indented.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use http_body_util::BodyExt;

use super::accept::Format;
use super::answer::Answer;
use super::asking::header_text;
use apiserver_core::asked::Query;

const STEP: &[u8] = b"  ";

/// Lays out JSON that comes piece by piece, without reading it whole.
#[derive(Debug, Default)]
pub(crate) struct Indent {
    depth: usize,
    in_text: bool,
    escaped: bool,
    /// An object or list was opened, and what comes next decides whether it is empty.
    opened: bool,
}

/// Whether a person reads the answer.
pub(crate) fn is_wanted(query: &str, headers: &HeaderMap) -> bool {
    let said = Query::parse(query).ok().and_then(|q| q.get("pretty").map(str::to_owned));
    match said.as_deref() {
        Some("1" | "t" | "T" | "true" | "TRUE" | "True") => true,
        Some(said) if !said.is_empty() => false,
        _ => {
            let agent = header_text(headers, header::USER_AGENT);
            ["curl", "Wget", "Mozilla/5.0"].iter().any(|name| agent.starts_with(name))
        }
    }
}

/// The same answer, indented, if it is plain JSON.
pub(crate) fn indent(mut answer: Answer) -> Answer {
    let headers = answer.headers();
    let is_json = header_text(headers, header::CONTENT_TYPE) == Format::Json.content_type();
    if !is_json || headers.contains_key(header::CONTENT_ENCODING) {
        return answer;
    }
    answer.headers_mut().remove(header::CONTENT_LENGTH);
    let mut state = Indent::default();
    answer.map(|body| body.map_frame(move |frame| frame.map_data(|data| state.push(&data))).boxed_unsync())
}

// === impl Indent ===

impl Indent {
    pub(crate) fn push(&mut self, piece: &[u8]) -> Bytes {
        let mut out = BytesMut::with_capacity(piece.len() * 2);
        for &byte in piece {
            self.byte(byte, &mut out);
        }
        out.freeze()
    }

    fn byte(&mut self, byte: u8, out: &mut BytesMut) {
        if self.in_text {
            out.extend_from_slice(&[byte]);
            self.in_text = byte != b'"' || self.escaped;
            self.escaped = byte == b'\\' && !self.escaped;
            return;
        }
        if byte.is_ascii_whitespace() {
            // Only the end of a document is kept; the rest is made anew.
            if byte == b'\n' && self.depth == 0 {
                out.extend_from_slice(b"\n");
            }
            return;
        }
        let closes = matches!(byte, b'}' | b']');
        if closes {
            self.depth = self.depth.saturating_sub(1);
        }
        if closes != self.opened {
            // Something follows an opening, or something ends that was not empty.
            self.line(out);
        }
        self.opened = matches!(byte, b'{' | b'[');
        out.extend_from_slice(&[byte]);
        match byte {
            b'{' | b'[' => self.depth += 1,
            b',' => self.line(out),
            b':' => out.extend_from_slice(b" "),
            b'"' => self.in_text = true,
            _ => {}
        }
    }

    fn line(&self, out: &mut BytesMut) {
        out.extend_from_slice(b"\n");
        for _ in 0..self.depth {
            out.extend_from_slice(STEP);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn indented(text: &str, at: usize) -> String {
        let mut state = Indent::default();
        let (first, second) = text.as_bytes().split_at(at.min(text.len()));
        String::from_utf8([state.push(first), state.push(second)].concat()).unwrap()
    }

    #[test]
    fn as_people_expect_it() {
        let value = json!({"a": [1, {"b": "x\"{},:[]\\"}], "e": {}, "l": [], "n": null, "t": -1.5e3});
        for at in 0..60 {
            assert_eq!(indented(&value.to_string(), at), serde_json::to_string_pretty(&value).unwrap());
        }
        assert_eq!(indented("{\"a\":1}\n", 3), "{\n  \"a\": 1\n}\n");
        assert_eq!(indented("\"x\"", 0), "\"x\"");
    }

    #[test]
    fn people_are_known_by_their_tools() {
        let with = |agent: &'static str| {
            HeaderMap::from_iter([(header::USER_AGENT, http::HeaderValue::from_static(agent))])
        };
        assert!(is_wanted("", &with("curl/8")) && is_wanted("pretty=true", &with("kubectl/v1")));
        assert!(!is_wanted("pretty=false", &with("curl/8")) && !is_wanted("", &with("kubectl/v1")));
    }

    proptest! {
        #[test]
        fn nothing_is_lost(texts in proptest::collection::vec(".*", 0..6), at in 0usize..200) {
            let value: Value = texts.iter().map(|t| json!({t.as_str(): [t]})).collect();
            let text = value.to_string();
            let mut at = at.min(text.len());
            while !text.is_char_boundary(at) { at -= 1; }
            prop_assert_eq!(serde_json::from_str::<Value>(&indented(&text, at)).unwrap(), value);
        }
    }
}
