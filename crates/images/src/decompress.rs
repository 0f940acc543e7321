//! Layers are plain, gzip or zstd; which, their first bytes say, as media types are often wrong.

use std::io::{self, BufRead, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// Frames that carry no data begin so; some tools put one first.
const SKIPPABLE: std::ops::RangeInclusive<u32> = 0x184d_2a50..=0x184d_2a5f;
const OTHERS: &[(&[u8], &str)] = &[(b"BZh", "bzip2"), (&[0xfd, b'7', b'z', b'X', b'Z', 0], "xz")];

/// Reads what was compressed.
pub(crate) fn decompressed<'a, R: BufRead + 'a>(mut from: R) -> io::Result<Box<dyn Read + 'a>> {
    let start = from.fill_buf()?;
    let first = start.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    if start.starts_with(GZIP) {
        return Ok(Box::new(MultiGzDecoder::new(from)));
    }
    if start.starts_with(ZSTD) || first.is_some_and(|magic| SKIPPABLE.contains(&magic)) {
        return Ok(Box::new(Zstd(Frames::Between(from))));
    }
    if let Some((_, name)) = OTHERS.iter().find(|(magic, _)| start.starts_with(magic)) {
        let why = format!("compressed with {name}: plain, gzip and zstd are known");
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    Ok(Box::new(from))
}

/// All frames, one after the other.
struct Zstd<R: BufRead>(Frames<R>);

enum Frames<R: BufRead> {
    Between(R),
    // A decoder has tables of a hundred kilobytes.
    Within(Box<StreamingDecoder<R, ruzstd::decoding::FrameDecoder>>),
    Over,
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            match std::mem::replace(&mut self.0, Frames::Over) {
                Frames::Over => return Ok(0),
                Frames::Between(mut from) => {
                    if from.fill_buf()?.is_empty() {
                        return Ok(0);
                    }
                    if skip(&mut from)? {
                        self.0 = Frames::Between(from);
                        continue;
                    }
                    let decoder = StreamingDecoder::new(from).map_err(wrong)?;
                    self.0 = Frames::Within(Box::new(decoder));
                }
                Frames::Within(mut decoder) => match decoder.read(buffer)? {
                    0 => self.0 = Frames::Between(decoder.into_inner()),
                    n => {
                        self.0 = Frames::Within(decoder);
                        return Ok(n);
                    }
                },
            }
        }
    }
}

/// Passes over a frame without data, if the next one is such.
fn skip(from: &mut impl BufRead) -> io::Result<bool> {
    let Some(magic) = from.fill_buf()?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes)) else {
        return Ok(false);
    };
    if !SKIPPABLE.contains(&magic) {
        return Ok(false);
    }
    let mut head = [0; 8];
    from.read_exact(&mut head)?;
    let length = u64::from(u32::from_le_bytes([head[4], head[5], head[6], head[7]]));
    let skipped = io::copy(&mut from.by_ref().take(length), &mut io::sink())?;
    if skipped < length { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(true) }
}

fn wrong(error: FrameDecoderError) -> io::Error {
    match error {
        FrameDecoderError::ReadFrameHeaderError(
            ReadFrameHeaderError::MagicNumberReadError(e) | ReadFrameHeaderError::FrameDescriptorReadError(e),
        ) => e,
        other => io::Error::new(io::ErrorKind::InvalidData, other.to_string()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use flate2::write::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    use std::io::Write;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        compress_to_vec(bytes, CompressionLevel::Fastest)
    }

    fn plain(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        decompressed(bytes)?.read_to_end(&mut all)?;
        Ok(all)
    }

    #[test]
    fn what_a_layer_is_packed_with_does_not_matter() {
        let text = b"a layer ".repeat(1000);
        let skippable = [&0x184d_2a5au32.to_le_bytes()[..], &3u32.to_le_bytes(), b"xyz"].concat();
        let rows = [
            ("plain", text.clone()),
            ("gzip", gzip(&text)),
            ("gzip in two members", [gzip(&text[..500]), gzip(&text[500..])].concat()),
            ("zstd", zstd(&text)),
            ("zstd in two frames", [zstd(&text[..500]), zstd(&text[500..])].concat()),
            ("zstd with a table behind", [zstd(&text), skippable.clone()].concat()),
            ("zstd with a table before", [skippable, zstd(&text)].concat()),
        ];
        for (what, packed) in rows {
            assert_eq!(plain(&packed).unwrap(), text, "{what}");
        }
        assert_eq!(plain(b"").unwrap(), b"");
    }

    #[test]
    fn what_is_torn_or_unknown_is_an_error() {
        let text = b"a layer ".repeat(1000);
        let (gz, zst) = (gzip(&text), zstd(&text));
        let skippable = [&0x184d_2a50u32.to_le_bytes()[..], &9u32.to_le_bytes(), b"xyz"].concat();
        for torn in [
            &gz[..gz.len() - 9],
            &zst[..zst.len() - 9],
            &[gz.as_slice(), b"rubbish"].concat(),
            &[zst.as_slice(), b"rubbish"].concat(),
            &skippable,
        ] {
            assert!(plain(torn).is_err());
        }
        let error = plain(b"BZh91AY&SY").unwrap_err();
        assert!(error.to_string().contains("bzip2"), "{error}");
    }
}
