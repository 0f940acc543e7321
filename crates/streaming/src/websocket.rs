//! WebSocket (RFC 6455): messages out of bytes, bytes out of messages, and the handshake's headers.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The largest message taken. Clients send pieces of some ten kilobytes.
pub const MESSAGE_MAX: usize = 4 << 20;
/// Control frames are short by definition.
const CONTROL_MAX: usize = 125;
/// What every server adds to the client's key.
const MAGIC: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Why a connection is closed.
pub const NORMAL: u16 = 1000;
pub const GOING_AWAY: u16 = 1001;
pub const PROTOCOL_ERROR: u16 = 1002;
pub const TOO_BIG: u16 = 1009;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Server,
    /// Masks what it sends, so that no proxy takes it for something else.
    Client,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Binary(Bytes),
    Text(Bytes),
    Ping(Bytes),
    Pong,
    /// With the peer's reason, if it gave one.
    Close(Option<u16>),
}

/// The peer broke the protocol; the code is for the close frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Broken {
    pub code: u16,
    pub why: &'static str,
}

/// Puts messages together, however the bytes were cut.
#[derive(Debug)]
pub struct Decoder {
    role: Role,
    buffer: BytesMut,
    /// The beginning of a message that comes in several frames, and its kind.
    partial: Option<(u8, BytesMut)>,
}

/// A frame's head.
struct Head {
    last: bool,
    kind: u8,
    mask: Option<[u8; 4]>,
    /// Bytes of the head itself.
    len: usize,
    payload: usize,
}

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

// === impl Decoder ===

impl Decoder {
    /// `role` is who we are.
    #[must_use]
    pub fn new(role: Role) -> Self {
        Self { role, buffer: BytesMut::new(), partial: None }
    }

    /// Where the next bytes go.
    pub fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// The next whole message, if it has arrived.
    pub fn next_message(&mut self) -> Result<Option<Message>, Broken> {
        loop {
            let Some(head) = self.head()? else { return Ok(None) };
            if self.buffer.len() < head.len + head.payload {
                return Ok(None);
            }
            self.buffer.advance(head.len);
            let mut payload = self.buffer.split_to(head.payload);
            if let Some(mask) = head.mask {
                unmask(&mut payload, mask);
            }
            if let Some(message) = self.accept(&head, payload)? {
                return Ok(Some(message));
            }
        }
    }

    fn head(&self) -> Result<Option<Head>, Broken> {
        let Some(&[first, second]) = self.buffer.first_chunk::<2>() else { return Ok(None) };
        let rest = &self.buffer[2..];
        let (extended, size) = match second & 0x7f {
            126 => match rest.first_chunk::<2>() {
                Some(n) => (2, u64::from(u16::from_be_bytes(*n))),
                None => return Ok(None),
            },
            127 => match rest.first_chunk::<8>() {
                Some(n) => (8, u64::from_be_bytes(*n)),
                None => return Ok(None),
            },
            n => (0, u64::from(n)),
        };
        let masked = second & 0x80 != 0;
        if masked != (self.role == Role::Server) {
            return Err(Broken { code: PROTOCOL_ERROR, why: "a frame is masked by the wrong side" });
        }
        if first & 0x70 != 0 {
            return Err(Broken { code: PROTOCOL_ERROR, why: "a frame uses an extension nobody agreed on" });
        }
        let payload = usize::try_from(size).unwrap_or(usize::MAX);
        let so_far = self.partial.as_ref().map_or(0, |(_, b)| b.len());
        if payload.saturating_add(so_far) > MESSAGE_MAX {
            return Err(Broken { code: TOO_BIG, why: "a message is too large" });
        }
        let mut len = 2 + extended;
        let mut mask = None;
        if masked {
            match self.buffer.get(len..).and_then(|b| b.first_chunk::<4>()) {
                Some(key) => mask = Some(*key),
                None => return Ok(None),
            }
            len += 4;
        }
        Ok(Some(Head { last: first & 0x80 != 0, kind: first & 0x0f, mask, len, payload }))
    }

    fn accept(&mut self, head: &Head, payload: BytesMut) -> Result<Option<Message>, Broken> {
        let broken = |why| Err(Broken { code: PROTOCOL_ERROR, why });
        if head.kind >= CLOSE {
            if !head.last || payload.len() > CONTROL_MAX {
                return broken("a control frame is cut or too long");
            }
            return match head.kind {
                CLOSE => Ok(Some(Message::Close(payload.first_chunk::<2>().map(|c| u16::from_be_bytes(*c))))),
                PING => Ok(Some(Message::Ping(payload.freeze()))),
                PONG => Ok(Some(Message::Pong)),
                _ => broken("a frame is of an unknown kind"),
            };
        }
        let (kind, whole) = match (head.kind, self.partial.take()) {
            (CONTINUATION, Some((kind, mut begun))) => {
                begun.extend_from_slice(&payload);
                (kind, begun)
            }
            (TEXT | BINARY, None) => (head.kind, payload),
            _ => return broken("a frame does not continue what was begun"),
        };
        if !head.last {
            self.partial = Some((kind, whole));
            return Ok(None);
        }
        let bytes = whole.freeze();
        Ok(Some(if kind == TEXT { Message::Text(bytes) } else { Message::Binary(bytes) }))
    }
}

/// Appends a binary message whose payload is given in pieces.
pub fn put_binary(out: &mut BytesMut, mask: Option<[u8; 4]>, pieces: &[&[u8]]) {
    put(out, BINARY, mask, pieces);
}

pub fn put_ping(out: &mut BytesMut, mask: Option<[u8; 4]>) {
    put(out, PING, mask, &[]);
}

pub fn put_pong(out: &mut BytesMut, mask: Option<[u8; 4]>, payload: &[u8]) {
    put(out, PONG, mask, &[payload]);
}

pub fn put_close(out: &mut BytesMut, mask: Option<[u8; 4]>, code: u16) {
    put(out, CLOSE, mask, &[&code.to_be_bytes()]);
}

fn put(out: &mut BytesMut, kind: u8, mask: Option<[u8; 4]>, pieces: &[&[u8]]) {
    let size: usize = pieces.iter().map(|p| p.len()).sum();
    out.reserve(size + 14);
    out.put_u8(0x80 | kind);
    let masked = if mask.is_some() { 0x80 } else { 0 };
    match size {
        0..126 => out.put_u8(masked | size as u8),
        126..0x1_0000 => {
            out.put_u8(masked | 126);
            out.put_u16(size as u16);
        }
        _ => {
            out.put_u8(masked | 127);
            out.put_u64(size as u64);
        }
    }
    if let Some(mask) = mask {
        out.put_slice(&mask);
    }
    let begin = out.len();
    pieces.iter().for_each(|piece| out.put_slice(piece));
    if let Some(mask) = mask {
        unmask(&mut out[begin..], mask);
    }
}

fn unmask(bytes: &mut [u8], mask: [u8; 4]) {
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte ^= mask[i % 4];
    }
}

/// The answer to a client's `Sec-WebSocket-Key`.
#[must_use]
pub fn accept_key(key: &str) -> String {
    let digest = digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{MAGIC}").as_bytes());
    STANDARD.encode(digest.as_ref())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(role: Role, bytes: &[u8], cut: usize) -> Result<Vec<Message>, Broken> {
        let mut decoder = Decoder::new(role);
        let mut out = Vec::new();
        for piece in bytes.chunks(cut.max(1)) {
            decoder.buffer().extend_from_slice(piece);
            while let Some(message) = decoder.next_message()? {
                out.push(message);
            }
        }
        Ok(out)
    }

    #[test]
    fn the_key_of_the_rfc_is_answered() {
        assert_eq!(accept_key("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn what_the_rfc_shows_is_read() {
        // Section 5.7.
        let hello = [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
        assert_eq!(decode(Role::Server, &hello, 3).unwrap(), [Message::Text(Bytes::from_static(b"Hello"))]);
        let cut = [0x01, 0x03, 0x48, 0x65, 0x6c, 0x89, 0x00, 0x80, 0x02, 0x6c, 0x6f];
        assert_eq!(
            decode(Role::Client, &cut, 1).unwrap(),
            [Message::Ping(Bytes::new()), Message::Text(Bytes::from_static(b"Hello"))]
        );
    }

    #[test]
    fn who_breaks_the_rules_is_told() {
        let rows: &[(&[u8], u16)] = &[
            (&[0x82, 0x01, 0], PROTOCOL_ERROR),
            (&[0xf2, 0x80, 0, 0, 0, 0], PROTOCOL_ERROR),
            (&[0x80, 0x80, 0, 0, 0, 0], PROTOCOL_ERROR),
            (&[0x09, 0x80, 0, 0, 0, 0], PROTOCOL_ERROR),
            (&[0x8b, 0x80, 0, 0, 0, 0], PROTOCOL_ERROR),
            (&[0x82, 0xff, 0, 0, 0, 0, 1, 0, 0, 0], TOO_BIG),
            (&[0x82, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], TOO_BIG),
        ];
        for (bytes, code) in rows {
            assert_eq!(decode(Role::Server, bytes, 100).unwrap_err().code, *code, "{bytes:x?}");
        }
    }

    proptest! {
        #[test]
        fn messages_survive_any_cut(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..70_000), 0..4),
            cut in 1usize..5000,
            mask: Option<[u8; 4]>,
        ) {
            let mut bytes = BytesMut::new();
            for payload in &payloads {
                let (a, b) = payload.split_at(payload.len() / 2);
                put_binary(&mut bytes, mask, &[a, b]);
            }
            put_close(&mut bytes, mask, NORMAL);
            let role = if mask.is_some() { Role::Server } else { Role::Client };
            let mut expected: Vec<Message> = payloads.into_iter().map(|p| Message::Binary(p.into())).collect();
            expected.push(Message::Close(Some(NORMAL)));
            prop_assert_eq!(decode(role, &bytes, cut).unwrap(), expected);
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..2000), cut in 1usize..50) {
            let _ = decode(Role::Server, &bytes, cut);
        }
    }
}
