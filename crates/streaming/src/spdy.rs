//! SPDY/3.1 as far as a runtime's streaming server and its clients speak it: streams that the client opens, and their bytes.
//! Those servers know no flow control; TCP alone holds back who sends too fast.

mod headers;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use headers::Unpacker;

/// The largest frame taken. Servers send pieces of 32 kB.
pub const FRAME_MAX: usize = 4 << 20;
/// What we put into one frame.
pub const PIECE: usize = 32 << 10;
/// Why a stream is reset: it is not wanted; it is over.
pub const REFUSED: u32 = 3;
pub const CANCELLED: u32 = 5;

const VERSION: u16 = 3;
const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;
const FIN: u8 = 1;
const HEAD: usize = 8;

/// What the other side says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A client opens a stream; `last` when it will send nothing. Names of headers are in lower case.
    Open {
        stream: u32,
        last: bool,
        headers: Vec<(String, String)>,
    },
    Data {
        stream: u32,
        bytes: Bytes,
        last: bool,
    },
    /// A stream we opened is accepted; `last` when it will send nothing.
    Reply {
        stream: u32,
        last: bool,
    },
    Reset {
        stream: u32,
        status: u32,
    },
    Ping {
        id: u32,
    },
    GoAway,
    /// Settings, windows, headers: nothing we act on.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other side of the stream broke the protocol: {0}")]
pub struct Broken(&'static str);

/// Frames out of bytes, however they were cut.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
    /// Of a server: only clients open streams.
    unpacker: Option<Unpacker>,
}

/// Bytes out of frames. Header blocks share one compressed stream, so all of them come from one encoder.
#[derive(Debug, Default)]
pub struct Encoder {
    begun: bool,
}

// === impl Decoder ===

impl Decoder {
    /// For what a client says.
    #[must_use]
    pub fn of_server() -> Self {
        Self { buffer: BytesMut::new(), unpacker: Some(Unpacker::new()) }
    }

    /// Where the next bytes go.
    pub fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    pub fn next_frame(&mut self) -> Result<Option<Frame>, Broken> {
        let Some(&[a, b, c, d, flags, x, y, z]) = self.buffer.first_chunk::<HEAD>() else { return Ok(None) };
        let size = u32::from_be_bytes([0, x, y, z]) as usize;
        if size > FRAME_MAX {
            return Err(Broken("a frame is too large"));
        }
        if self.buffer.len() < HEAD + size {
            return Ok(None);
        }
        self.buffer.advance(HEAD);
        let payload = self.buffer.split_to(size).freeze();
        let last = flags & FIN != 0;
        if a & 0x80 == 0 {
            return Ok(Some(Frame::Data { stream: u32::from_be_bytes([a, b, c, d]), bytes: payload, last }));
        }
        if u16::from_be_bytes([a & 0x7f, b]) != VERSION {
            return Err(Broken("a frame is of another version"));
        }
        let kind = u16::from_be_bytes([c, d]);
        match &mut self.unpacker {
            Some(unpacker) if matches!(kind, SYN_STREAM | HEADERS | SYN_REPLY) => {
                opened(unpacker, kind, last, &payload).map(Some)
            }
            _ => control(kind, last, &payload).map(Some),
        }
    }
}

/// A frame of a client that has a header block.
fn opened(unpacker: &mut Unpacker, kind: u16, last: bool, payload: &[u8]) -> Result<Frame, Broken> {
    let short = Broken("a control frame is too short");
    let (stream, rest) = payload.split_first_chunk::<4>().ok_or(short)?;
    // Behind the stream: the one it belongs to, a priority and a slot.
    let block = if kind == SYN_STREAM { rest.get(6..).ok_or(short)? } else { rest };
    let headers = unpacker.block(block)?;
    let stream = u32::from_be_bytes(*stream) & 0x7fff_ffff;
    match kind {
        SYN_STREAM if stream % 2 == 0 => Err(Broken("a client's stream has an even number")),
        SYN_STREAM => Ok(Frame::Open { stream, last, headers }),
        HEADERS => Ok(Frame::Other),
        _ => Err(Broken("it accepts a stream that nobody opened")),
    }
}

fn control(kind: u16, last: bool, payload: &[u8]) -> Result<Frame, Broken> {
    let word = |at: usize| {
        let bytes = payload.get(at..).and_then(|b| b.first_chunk::<4>());
        bytes.map(|b| u32::from_be_bytes(*b)).ok_or(Broken("a control frame is too short"))
    };
    Ok(match kind {
        SYN_REPLY => Frame::Reply { stream: word(0)? & 0x7fff_ffff, last },
        RST_STREAM => Frame::Reset { stream: word(0)? & 0x7fff_ffff, status: word(4)? },
        PING => Frame::Ping { id: word(0)? },
        GOAWAY => Frame::GoAway,
        SYN_STREAM => return Err(Broken("it opened a stream")),
        _ => Frame::Other,
    })
}

// === impl Encoder ===

impl Encoder {
    /// Opens a stream. Ids are odd and rise.
    pub fn open(&mut self, out: &mut BytesMut, stream: u32, headers: &[(&str, &str)]) {
        let mut plain = BytesMut::new();
        plain.put_u32(headers.len() as u32);
        for (name, value) in headers {
            plain.put_u32(name.len() as u32);
            plain.put_slice(name.as_bytes());
            plain.put_u32(value.len() as u32);
            plain.put_slice(value.as_bytes());
        }
        let block = self.pack(&plain);
        let mut payload = BytesMut::with_capacity(10 + block.len());
        payload.put_u32(stream);
        // No associated stream, the highest priority.
        payload.put_u32(0);
        payload.put_u16(0);
        payload.put_slice(&block);
        put_control(out, SYN_STREAM, &payload);
    }

    /// Accepts a stream that the client opened.
    pub fn accept(&mut self, out: &mut BytesMut, stream: u32) {
        let block = self.pack(&0u32.to_be_bytes());
        let mut payload = BytesMut::with_capacity(4 + block.len());
        payload.put_u32(stream);
        payload.put_slice(&block);
        put_control(out, SYN_REPLY, &payload);
    }

    /// The header block as a piece of the connection's zlib stream: stored, not packed, which saves the memory of a
    /// compressor for a hundred bytes. Without the preset dictionary, as the zlib header says. The empty block at the
    /// end is what makes the reader give out what it has.
    fn pack(&mut self, plain: &[u8]) -> BytesMut {
        let mut out = BytesMut::with_capacity(plain.len() + 12);
        if !self.begun {
            out.put_slice(&[0x78, 0x01]);
            self.begun = true;
        }
        let len = plain.len() as u16;
        for (len, bytes) in [(len, plain), (0, &[][..])] {
            out.put_u8(0);
            out.put_u16_le(len);
            out.put_u16_le(!len);
            out.put_slice(bytes);
        }
        out
    }
}

/// Appends data; `last` closes our side of the stream.
pub fn put_data(out: &mut BytesMut, stream: u32, bytes: &[u8], last: bool) {
    let mut pieces = bytes.chunks(PIECE).peekable();
    if pieces.peek().is_none() && last {
        return put_piece(out, stream, &[], true);
    }
    while let Some(piece) = pieces.next() {
        put_piece(out, stream, piece, last && pieces.peek().is_none());
    }
}

pub fn put_ping(out: &mut BytesMut, id: u32) {
    put_control(out, PING, &id.to_be_bytes());
}

/// Ends a stream at once, both ways.
pub fn put_reset(out: &mut BytesMut, stream: u32, status: u32) {
    let mut payload = BytesMut::with_capacity(8);
    payload.put_u32(stream);
    payload.put_u32(status);
    put_control(out, RST_STREAM, &payload);
}

fn put_piece(out: &mut BytesMut, stream: u32, bytes: &[u8], last: bool) {
    out.put_u32(stream & 0x7fff_ffff);
    out.put_u32(u32::from(if last { FIN } else { 0 }) << 24 | bytes.len() as u32);
    out.put_slice(bytes);
}

fn put_control(out: &mut BytesMut, kind: u16, payload: &[u8]) {
    out.put_u16(0x8000 | VERSION);
    out.put_u16(kind);
    out.put_u32(payload.len() as u32);
    out.put_slice(payload);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Read;

    fn decode(bytes: &[u8], cut: usize) -> Result<Vec<Frame>, Broken> {
        let mut decoder = Decoder::default();
        let mut out = Vec::new();
        for piece in bytes.chunks(cut.max(1)) {
            decoder.buffer().extend_from_slice(piece);
            while let Some(frame) = decoder.next_frame()? {
                out.push(frame);
            }
        }
        Ok(out)
    }

    #[test]
    fn header_blocks_are_one_zlib_stream() {
        let mut encoder = Encoder::default();
        let (mut frames, mut packed) = (BytesMut::new(), Vec::new());
        for (id, kind) in [(1, "error"), (3, "stdin")] {
            encoder.open(&mut frames, id, &[("streamtype", kind)]);
        }
        let mut rest = &frames[..];
        while !rest.is_empty() {
            assert_eq!(rest[..4], [0x80, 3, 0, 1]);
            let size = u32::from_be_bytes([0, rest[5], rest[6], rest[7]]) as usize;
            packed.extend_from_slice(&rest[HEAD + 10..HEAD + size]);
            rest = &rest[HEAD + size..];
        }
        let mut plain = [0; 2 * (4 + 4 + 10 + 4 + 5)];
        flate2::read::ZlibDecoder::new(&packed[..]).read_exact(&mut plain).unwrap();
        let text = String::from_utf8_lossy(&plain);
        assert!(text.contains("streamtype\0\0\0\x05error") && text.ends_with("stdin"), "{text:?}");
    }

    #[test]
    fn control_frames_are_told_apart() {
        let rows: &[(&[u8], Frame)] = &[
            (&[0x80, 3, 0, 2, 1, 0, 0, 4, 0, 0, 0, 5], Frame::Reply { stream: 5, last: true }),
            (&[0x80, 3, 0, 3, 0, 0, 0, 8, 0, 0, 0, 5, 0, 0, 0, 1], Frame::Reset { stream: 5, status: 1 }),
            (&[0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 2], Frame::Ping { id: 2 }),
            (&[0x80, 3, 0, 7, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0], Frame::GoAway),
            (&[0x80, 3, 0, 4, 0, 0, 0, 4, 0, 0, 0, 0], Frame::Other),
        ];
        for (bytes, frame) in rows {
            assert_eq!(decode(bytes, 5).unwrap(), std::slice::from_ref(frame));
        }
        let bad: &[&[u8]] = &[
            &[0x80, 2, 0, 6, 0, 0, 0, 0],
            &[0x80, 3, 0, 6, 0, 0, 0, 1, 0],
            &[0x80, 3, 0, 1, 0, 0, 0, 0],
            &[0, 0, 0, 1, 0, 0xff, 0xff, 0xff],
        ];
        for bytes in bad {
            assert!(decode(bytes, 5).is_err(), "{bytes:x?}");
        }
    }

    #[test]
    fn what_a_client_opens_a_server_hears() {
        let (mut encoder, mut bytes, mut decoder) =
            (Encoder::default(), BytesMut::new(), Decoder::of_server());
        encoder.open(&mut bytes, 1, &[("streamtype", "error")]);
        encoder.open(&mut bytes, 3, &[("streamtype", "data"), ("Port", "80")]);
        put_reset(&mut bytes, 3, CANCELLED);
        decoder.buffer().extend_from_slice(&bytes);
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let want = [
            Frame::Open { stream: 1, last: false, headers: vec![header("streamtype", "error")] },
            Frame::Open {
                stream: 3,
                last: false,
                headers: vec![header("streamtype", "data"), header("port", "80")],
            },
            Frame::Reset { stream: 3, status: CANCELLED },
        ];
        for frame in want {
            assert_eq!(decoder.next_frame().unwrap(), Some(frame));
        }
        let mut answer = BytesMut::new();
        encoder.accept(&mut answer, 3);
        assert_eq!(decode(&answer, 7).unwrap(), [Frame::Reply { stream: 3, last: false }]);
        for bad in [&[0x80, 3, 0, 1, 0, 0, 0, 4, 0, 0, 0, 1][..], &[0x80, 3, 0, 2, 1, 0, 0, 4, 0, 0, 0, 5]] {
            decoder = Decoder::of_server();
            decoder.buffer().extend_from_slice(bad);
            assert!(decoder.next_frame().is_err());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_of_a_client_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
            let mut decoder = Decoder::of_server();
            decoder.buffer().extend_from_slice(&bytes);
            while let Ok(Some(_)) = decoder.next_frame() {}
        }

        #[test]
        fn data_survives_any_cut(bytes in prop::collection::vec(any::<u8>(), 0..100_000), cut in 1usize..5000) {
            let mut out = BytesMut::new();
            put_data(&mut out, 3, &bytes, true);
            let frames = decode(&out, cut).unwrap();
            let mut whole = Vec::new();
            for (i, frame) in frames.iter().enumerate() {
                let Frame::Data { stream: 3, bytes, last } = frame else { panic!("{frame:?}") };
                prop_assert_eq!(*last, i + 1 == frames.len());
                whole.extend_from_slice(bytes);
            }
            prop_assert_eq!(whole, bytes);
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..500), cut in 1usize..50) {
            let _ = decode(&bytes, cut);
        }
    }
}
