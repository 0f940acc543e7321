//! A body over a WebSocket, for clients that cannot read a stream of bytes otherwise (browsers): `pods/log`.
//!
//! Upstream's three protocols: binary messages (also without any name), or text messages in base64. What the client says is
//! not heard, except that it leaves.

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body_util::BodyExt;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::answer::{self, Answer};
use super::outgoing;
use apiserver_core::api_status::ApiStatus;

const BINARY: &str = "binary.k8s.io";
const BASE64: &str = "base64.binary.k8s.io";
/// RFC 6455.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const VERSION: &str = "13";

const TEXT_FRAME: u8 = 1;
const BINARY_FRAME: u8 = 2;
const CLOSE_FRAME: u8 = 8;
const PING_FRAME: u8 = 9;
const PONG_FRAME: u8 = 10;
/// The end of a stream that came to its end.
const NORMAL: [u8; 2] = 1000_u16.to_be_bytes();

/// Bytes in one message; as upstream.
const MESSAGE: usize = 2048;

/// What two sides agreed on.
#[derive(Debug)]
pub(crate) struct Handshake {
    accept: String,
    protocol: &'static str,
}

/// What a client says, as far as it matters.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Ping(Bytes),
    Leaving,
}

/// Takes the frames of a client apart. Keeps no more than one small one.
#[derive(Debug, Default)]
struct FrameReader {
    buffer: BytesMut,
    /// Bytes of a message that are not looked at.
    skip: u64,
}

// === impl Handshake ===

impl Handshake {
    /// What a request asks for; None when it does not ask for a WebSocket.
    pub(crate) fn asked_for(headers: &HeaderMap) -> Option<Result<Handshake, ApiStatus>> {
        let upgrade = outgoing::upgrade(headers)?.to_str().ok()?;
        upgrade.eq_ignore_ascii_case("websocket").then(|| Handshake::new(headers))
    }

    fn new(headers: &HeaderMap) -> Result<Handshake, ApiStatus> {
        let text = |name| headers.get(name).and_then(|v: &HeaderValue| v.to_str().ok()).map(str::trim);
        if text(header::SEC_WEBSOCKET_VERSION) != Some(VERSION) {
            return Err(ApiStatus::bad_request("only version 13 of WebSocket is spoken here"));
        }
        let key =
            text(header::SEC_WEBSOCKET_KEY).filter(|key| STANDARD.decode(key).is_ok_and(|k| k.len() == 16));
        let key = key.ok_or_else(|| ApiStatus::bad_request("the WebSocket request has no proper key"))?;
        let sum = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{GUID}").as_bytes());
        Ok(Handshake { accept: STANDARD.encode(sum), protocol: protocol(headers)? })
    }

    /// Answers, and sends what `source` says once the client has changed over.
    pub(crate) fn answer(self, client: OnUpgrade, source: Answer) -> Answer {
        let mut answer = answer::text(StatusCode::SWITCHING_PROTOCOLS.as_u16(), "");
        let headers = answer.headers_mut();
        headers.clear();
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        if let Ok(accept) = HeaderValue::try_from(self.accept) {
            headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
        }
        if !self.protocol.is_empty() {
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(self.protocol));
        }
        let protocol = self.protocol;
        supervise::spawn("websocket_log", async move {
            let sent = match client.await {
                Ok(upgraded) => send(TokioIo::new(upgraded), source, protocol).await,
                Err(error) => return tracing::debug!(%error, "an upgrade came to nothing"),
            };
            if let Err(error) = sent {
                tracing::trace!(%error, "a WebSocket ended");
            }
        });
        answer
    }
}

/// Takes what is about the WebSocket out of a request, so that the rest can go on as a plain one.
pub(crate) fn strip(headers: &mut HeaderMap) {
    for name in [
        header::CONNECTION,
        header::UPGRADE,
        header::SEC_WEBSOCKET_KEY,
        header::SEC_WEBSOCKET_VERSION,
        header::SEC_WEBSOCKET_PROTOCOL,
        header::SEC_WEBSOCKET_EXTENSIONS,
    ] {
        headers.remove(name);
    }
}

/// The first of the client's protocols that we speak. Whoever names none gets bytes.
fn protocol(headers: &HeaderMap) -> Result<&'static str, ApiStatus> {
    let said = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|v| v.to_str().ok());
    let mut said = said.flat_map(|v| v.split(',')).map(str::trim).filter(|p| !p.is_empty()).peekable();
    if said.peek().is_none() {
        return Ok("");
    }
    let spoken = said.find_map(|p| [BINARY, BASE64].into_iter().find(|ours| *ours == p));
    spoken.ok_or_else(|| {
        let why = format!("requested protocol(s) are not supported; supports {BINARY} and {BASE64}");
        ApiStatus::new(403, "Forbidden", why)
    })
}

/// Sends a body message by message, until it ends or the client leaves.
async fn send(client: impl AsyncRead + AsyncWrite, source: Answer, protocol: &str) -> std::io::Result<()> {
    let (mut reader, mut writer) = tokio::io::split(client);
    let (mut body, mut frames) = (source.into_body(), FrameReader::default());
    // An empty message first, as upstream: the client sees that the stream stands.
    writer.write_all(&message(&[], protocol)).await?;
    loop {
        let said = tokio::select! {
            heard = frames.listen(&mut reader) => match heard? {
                Heard::Ping(said) => {
                    writer.write_all(&frame(PONG_FRAME, &said)).await?;
                    continue;
                }
                Heard::Leaving => break,
            },
            said = body.frame() => said,
        };
        match said {
            Some(Ok(piece)) => {
                let piece = piece.into_data().unwrap_or_default();
                for part in piece.chunks(MESSAGE) {
                    writer.write_all(&message(part, protocol)).await?;
                }
                writer.flush().await?;
            }
            Some(Err(_)) | None => break,
        }
    }
    writer.write_all(&frame(CLOSE_FRAME, &NORMAL)).await?;
    writer.shutdown().await
}

fn message(bytes: &[u8], protocol: &str) -> Bytes {
    if protocol == BASE64 {
        frame(TEXT_FRAME, STANDARD.encode(bytes).as_bytes())
    } else {
        frame(BINARY_FRAME, bytes)
    }
}

/// A whole frame of a server: it is not masked.
fn frame(kind: u8, payload: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(payload.len() + 4);
    out.put_u8(0x80 | kind);
    match u16::try_from(payload.len()) {
        Ok(short @ 0..=125) => out.put_u8(short.to_be_bytes()[1]),
        Ok(long) => {
            out.put_u8(126);
            out.put_u16(long);
        }
        Err(_) => {
            out.put_u8(127);
            out.put_u64(payload.len() as u64);
        }
    }
    out.put_slice(payload);
    out.freeze()
}

// === impl FrameReader ===

impl FrameReader {
    /// Cancel safe: what was read stays in the buffer.
    async fn listen(&mut self, reader: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Heard> {
        loop {
            if let Some(heard) = self.hear() {
                return Ok(heard);
            }
            if reader.read_buf(&mut self.buffer).await? == 0 {
                return Ok(Heard::Leaving);
            }
        }
    }

    fn hear(&mut self) -> Option<Heard> {
        loop {
            let gone = self.skip.min(self.buffer.len() as u64);
            self.buffer.advance(usize::try_from(gone).unwrap_or_default());
            self.skip -= gone;
            if self.skip > 0 {
                return None;
            }
            let head = self.buffer.first_chunk::<2>()?;
            let (kind, masked) = (head[0] & 0x0f, head[1] & 0x80 != 0);
            let (length, mut start) = match head[1] & 0x7f {
                126 => (u64::from(u16::from_be_bytes(*self.buffer.get(2..)?.first_chunk()?)), 4),
                127 => (u64::from_be_bytes(*self.buffer.get(2..)?.first_chunk()?), 10),
                short => (u64::from(short), 2),
            };
            // A client masks, and its control frames are short; whoever does otherwise speaks something else.
            if !masked || (kind >= CLOSE_FRAME && length > 125) || kind == CLOSE_FRAME {
                return Some(Heard::Leaving);
            }
            let mask: [u8; 4] = *self.buffer.get(start..)?.first_chunk()?;
            start += mask.len();
            if kind != PING_FRAME {
                self.buffer.advance(start);
                self.skip = length;
                continue;
            }
            let end = start + usize::try_from(length).ok()?;
            if self.buffer.len() < end {
                return None;
            }
            let frame = self.buffer.split_to(end);
            let said = frame[start..].iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask);
            return Some(Heard::Ping(said.collect()));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn masked(kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = frame(kind, payload).to_vec();
        out[1] |= 0x80;
        let start = out.len() - payload.len();
        let mask = [1, 2, 3, 4];
        out.splice(start..start, mask);
        out[start + 4..].iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
        out
    }

    #[test]
    fn what_a_client_says_is_skipped_but_pings_and_its_leaving() {
        let long = vec![7; 70_000];
        let said = [
            masked(TEXT_FRAME, b"hello"),
            masked(BINARY_FRAME, &long),
            masked(PING_FRAME, b"are you there"),
            masked(BINARY_FRAME, &long[..300]),
            masked(CLOSE_FRAME, &NORMAL),
        ];
        let mut frames = FrameReader::default();
        let mut heard = Vec::new();
        // Byte by byte, as a network may bring it; nothing long is kept.
        for byte in said.concat() {
            frames.buffer.put_u8(byte);
            heard.extend(frames.hear());
            assert!(frames.buffer.len() < 200);
        }
        assert_eq!(heard[0], Heard::Ping(Bytes::from_static(b"are you there")));
        assert_eq!(heard[1], Heard::Leaving);
        let mut frames = FrameReader::default();
        frames.buffer.extend_from_slice(&frame(TEXT_FRAME, b"not masked"));
        assert_eq!(frames.hear(), Some(Heard::Leaving));
    }

    #[test]
    fn a_handshake_is_answered_as_the_rfc_says_and_only_in_a_protocol_we_speak() {
        let ask = |protocols: &[&str]| {
            let mut headers = HeaderMap::new();
            for (name, value) in [
                ("connection", "keep-alive, Upgrade"),
                ("upgrade", "WebSocket"),
                ("sec-websocket-version", "13"),
                ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ] {
                headers.insert(name, HeaderValue::from_static(value));
            }
            for protocol in protocols {
                headers.append(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_str(protocol).unwrap());
            }
            Handshake::asked_for(&headers).unwrap().map(|h| (h.accept, h.protocol)).map_err(|r| r.code)
        };
        let accept = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".to_owned();
        assert_eq!(ask(&[]), Ok((accept.clone(), "")));
        assert_eq!(ask(&["other, base64.binary.k8s.io", "binary.k8s.io"]), Ok((accept.clone(), BASE64)));
        assert_eq!(ask(&["binary.k8s.io"]), Ok((accept, BINARY)));
        assert_eq!(ask(&["channel.k8s.io"]), Err(403));
        assert!(Handshake::asked_for(&HeaderMap::new()).is_none());
    }
}
