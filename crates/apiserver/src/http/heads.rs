//! Heads of HTTP/1 requests, looked at before they are parsed.
//!
//! The parser takes a LF alone for the end of a line. Somebody before us may not, and then the two do not agree on
//! where a request ends. So requests are followed from head to head, and in a head a lone LF is turned into a byte
//! that the parser refuses: the client gets its 400. HTTP/2 and upgraded connections have no such lines.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of a line that are kept: those that are understood are short.
const LINE: usize = 256;
/// What no head may hold.
const REFUSED: u8 = 0;

/// A connection whose heads are looked at.
#[derive(Debug)]
pub(super) struct Strict<S> {
    stream: S,
    heads: Heads,
    /// Whether a spoiled head was given its end.
    ended: bool,
}

/// Where in a conversation we are.
#[derive(Debug, Default)]
struct Heads {
    state: State,
    line: Vec<u8>,
    /// The line is longer than what is kept of it.
    cut: bool,
    carriage_return: bool,
    /// Whether a request has been seen whole.
    began: bool,
    framing: Framing,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Head,
    /// This many bytes of a body.
    Body(u64),
    ChunkSize,
    /// This many bytes of a chunk, with the end of its line.
    Chunk(u64),
    Trailers,
    /// Nothing is looked at any more.
    Through,
    /// The same, since it was spoiled.
    Spoiled,
}

/// What the lines of a head say about what follows it.
#[derive(Clone, Copy, Debug, Default)]
struct Framing {
    lines: usize,
    length: u64,
    chunked: bool,
    upgrades: bool,
    preface: bool,
}

// === impl Strict ===

impl<S> Strict<S> {
    pub(super) fn new(stream: S) -> Strict<S> {
        Strict { stream, heads: Heads::default(), ended: false }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Strict<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.heads.state == State::Spoiled {
            // Nothing more is heard of it. The parser looks at a head when it has its end.
            if !std::mem::replace(&mut self.ended, true) {
                buf.put_slice(&b"\r\n\r\n"[..buf.remaining().min(4)]);
            }
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        self.heads.look(&mut buf.filled_mut()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Strict<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

// === impl Heads ===

impl Heads {
    /// Looks at what came, and spoils a head that no parser should take.
    fn look(&mut self, bytes: &mut [u8]) {
        let mut at = 0;
        while at < bytes.len() {
            match self.state {
                State::Through | State::Spoiled => return,
                State::Body(left) | State::Chunk(left) => {
                    let here = left.min((bytes.len() - at) as u64);
                    at += usize::try_from(here).unwrap_or(usize::MAX);
                    self.state = match (self.state, left - here) {
                        (State::Chunk(_), 0) => State::ChunkSize,
                        (State::Chunk(_), left) => State::Chunk(left),
                        (_, 0) => State::Head,
                        (_, left) => State::Body(left),
                    };
                }
                State::Head | State::ChunkSize | State::Trailers => {
                    self.take(&mut bytes[at]);
                    at += 1;
                }
            }
        }
    }

    /// One byte of a line.
    fn take(&mut self, byte: &mut u8) {
        let after_return = std::mem::replace(&mut self.carriage_return, *byte == b'\r');
        match *byte {
            b'\n' if after_return => {
                let line = std::mem::take(&mut self.line);
                self.state = self.end_of_line(&line);
                self.cut = false;
            }
            b'\n' => {
                *byte = REFUSED;
                self.state = State::Spoiled;
            }
            b'\r' => {}
            other if self.line.len() < LINE => self.line.push(other),
            _ => self.cut = true,
        }
    }

    fn end_of_line(&mut self, line: &[u8]) -> State {
        match self.state {
            State::Head if line.is_empty() && self.framing.lines == 0 => State::Head,
            State::Head if line.is_empty() => {
                self.began = true;
                std::mem::take(&mut self.framing).follows()
            }
            State::Head => {
                self.framing.lines += 1;
                self.framing.preface |= !self.began && self.framing.lines == 1 && line == b"PRI * HTTP/2.0";
                self.framing.read(line, self.cut);
                State::Head
            }
            State::ChunkSize => {
                let size = line.split(|b| *b == b';').next().unwrap_or_default();
                let size =
                    std::str::from_utf8(size).ok().and_then(|s| u64::from_str_radix(s.trim(), 16).ok());
                match size {
                    Some(0) => State::Trailers,
                    // With the end of line after it.
                    Some(size) => State::Chunk(size.saturating_add(2)),
                    // The parser knows what to do with it.
                    None => State::Through,
                }
            }
            State::Trailers if line.is_empty() => State::Head,
            other => other,
        }
    }
}

// === impl Framing ===

impl Framing {
    fn read(&mut self, line: &[u8], cut: bool) {
        let Some(colon) = line.iter().position(|b| *b == b':') else { return };
        let (name, value) = (&line[..colon], String::from_utf8_lossy(&line[colon + 1..]));
        if name.eq_ignore_ascii_case(b"content-length") {
            // What the parser refuses, or cannot mean, needs no following.
            self.length = if cut { 0 } else { value.trim().parse().unwrap_or_default() };
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.chunked |= value.to_ascii_lowercase().contains("chunked");
        } else if name.eq_ignore_ascii_case(b"upgrade") {
            self.upgrades = true;
        }
    }

    /// What comes after the head.
    fn follows(self) -> State {
        match self {
            Framing { preface: true, .. } | Framing { upgrades: true, .. } => State::Through,
            Framing { chunked: true, .. } => State::ChunkSize,
            Framing { length: 0, .. } => State::Head,
            Framing { length, .. } => State::Body(length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a conversation becomes, whichever way it is cut into reads.
    fn seen(conversation: &str) -> String {
        let mut all: Vec<String> = Vec::new();
        for piece in [1, 3, 10_000] {
            let (mut heads, mut bytes) = (Heads::default(), conversation.as_bytes().to_vec());
            bytes.chunks_mut(piece).for_each(|part| heads.look(part));
            all.push(String::from_utf8_lossy(&bytes).into_owned());
        }
        assert!(all.windows(2).all(|w| w[0] == w[1]), "{all:?}");
        all.swap_remove(0)
    }

    #[test]
    fn a_line_feed_alone_ends_no_line_of_a_head() {
        let get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        let post = "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n\na\nb\n";
        let chunked =
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\n\n\n\n\r\n0\r\nA: b\r\n\r\n";
        let fine = [
            get.to_owned(),
            format!("{get}{get}"),
            format!("{post}{get}"),
            format!("{chunked}{get}"),
            format!("\r\n{get}"),
            format!("{}GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n\n\nframes\n", post),
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\n\n".to_owned(),
        ];
        for conversation in fine {
            assert_eq!(seen(&conversation), conversation);
        }
        for before in ["", get, post, chunked] {
            for bad in [
                "\nGET / HTTP/1.1\r\n\r\n",
                "GET / HTTP/1.1\nHost: x\r\n\r\n",
                "GET / HTTP/1.1\r\nA: b\n\r\n",
            ] {
                let conversation = format!("{before}{bad}");
                let spoiled = seen(&conversation);
                assert!(
                    spoiled.starts_with(before) && spoiled[before.len()..].contains('\0'),
                    "{conversation:?}"
                );
            }
        }
        let smuggled = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\n\r\n";
        assert!(seen(smuggled).contains('\0'));
    }
}
