//! Percent-encoding of paths.

/// Undoes it; none when it is broken.
pub(super) fn decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let (hex, after) = rest.split_at_checked(2)?;
        if !hex.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        out.push(u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()?);
        rest = after;
    }
    String::from_utf8(out).ok().filter(|t| !t.contains('\0'))
}

/// As a link in a page: everything but letters, digits and a few signs is encoded.
pub(super) fn encode(text: &str) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                out.push(char::from(byte))
            }
            byte => drop(write!(out, "%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        for text in ["", "a b", "ä/%25", "<&>\"'"] {
            assert_eq!(decode(&encode(text)).as_deref(), Some(text));
        }
        for broken in ["%", "%4", "%zz", "%ff", "%00", "%+1"] {
            assert_eq!(decode(broken), None, "{broken}");
        }
    }
}
