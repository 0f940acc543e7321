//! Escapes in paths and queries.

use std::borrow::Cow;

/// None when the bytes are no UTF-8 or an escape is cut short.
pub fn decode(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('%') {
        return Some(Cow::Borrowed(text));
    }
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(b) = bytes.next() {
        if b != b'%' {
            out.push(b);
            continue;
        }
        let digit = |b: Option<u8>| b.and_then(|b| char::from(b).to_digit(16));
        let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
        out.push(u8::try_from(high * 16 + low).ok()?);
    }
    String::from_utf8(out).ok().map(Cow::Owned)
}

/// The same where a plus sign is a space.
pub(super) fn decode_query(text: &str) -> Option<String> {
    decode(&text.replace('+', " ")).map(Cow::into_owned)
}
