//! How output and exit code share one stream: frames of a channel byte, a length and the bytes.

use bytes::{BufMut, Bytes, BytesMut};

pub const STDOUT: u8 = 1;
pub const STDERR: u8 = 2;
/// Four bytes, big endian: the exit code. The last frame.
pub const EXIT: u8 = 3;
/// Text: why the command could not be run. The last frame.
pub const FAILURE: u8 = 4;

/// The largest frame a reader accepts.
pub const FRAME_MAX: usize = 16 * 1024 * 1024;

/// One frame of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub channel: u8,
    pub bytes: Bytes,
}

/// Puts frames together again, however the stream was cut.
#[derive(Debug, Default)]
pub struct FrameReader {
    buffer: BytesMut,
}

#[must_use]
pub fn encode(channel: u8, bytes: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(bytes.len() + 5);
    out.put_u8(channel);
    out.put_u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    out.put_slice(bytes);
    out.freeze()
}

impl FrameReader {
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame; an error when its length is out of bounds.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, &'static str> {
        let Some(&[channel, a, b, c, d]) = self.buffer.first_chunk::<5>() else { return Ok(None) };
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if length > FRAME_MAX {
            return Err("a frame is too large");
        }
        if self.buffer.len() < 5 + length {
            return Ok(None);
        }
        let mut frame = self.buffer.split_to(5 + length).freeze();
        let bytes = frame.split_off(5);
        Ok(Some(Frame { channel, bytes }))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_any_cut() {
        let stream =
            [encode(STDOUT, b"hello"), encode(STDERR, b""), encode(EXIT, &7i32.to_be_bytes())].concat();
        for cut in 1..stream.len() {
            let mut reader = FrameReader::default();
            let mut frames = Vec::new();
            for piece in stream.chunks(cut) {
                reader.push(piece);
                while let Some(frame) = reader.next_frame().unwrap() {
                    frames.push((frame.channel, frame.bytes.to_vec()));
                }
            }
            assert_eq!(frames, [(STDOUT, b"hello".to_vec()), (STDERR, vec![]), (EXIT, vec![0, 0, 0, 7])]);
        }
        let mut reader = FrameReader::default();
        reader.push(&[1, 255, 255, 255, 255]);
        assert!(reader.next_frame().is_err());
    }
}
