//! Header blocks of a client: all of them are one zlib stream, which begins with the dictionary of SPDY/3 if the client likes.

use std::sync::LazyLock;

use flate2::{Decompress, FlushDecompress};

use super::Broken;

/// Of one block, unpacked. Names of streams and ports take a hundred bytes.
const BLOCK_MAX: usize = 16 << 10;
const HEADERS_MAX: u32 = 64;
const STEP: usize = 1 << 10;
const SHORT: Broken = Broken("a header block is too short");

/// What the dictionary has names of, each behind its length.
const NAMES: &str = "options head post put delete trace accept accept-charset accept-encoding accept-language \
    accept-ranges age allow authorization cache-control connection content-base content-encoding content-language \
    content-length content-location content-md5 content-range content-type date etag expect expires from host if-match \
    if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma \
    proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade user-agent \
    vary via warning www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie keep-alive origin";
/// What it has without lengths: codes, and words of answers.
const CODES: &str =
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505";
const WORDS: &str = "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized\
    403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable\
    Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT\
    chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,public\
    privatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

/// Section 2.6.10.1 of the draft of SPDY/3.
static DICTIONARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut bytes = Vec::with_capacity(1500);
    for name in NAMES.split(' ') {
        bytes.extend_from_slice(&(name.len() as u32).to_be_bytes());
        bytes.extend_from_slice(name.replace('_', " ").as_bytes());
    }
    bytes.extend_from_slice(CODES.as_bytes());
    bytes.extend_from_slice(WORDS.as_bytes());
    bytes
});

/// Header blocks out of their compressed stream. It keeps what came before: every block has to pass through it.
#[derive(Debug)]
pub(super) struct Unpacker(Decompress);

// === impl Unpacker ===

impl Unpacker {
    pub(super) fn new() -> Unpacker {
        Unpacker(Decompress::new(true))
    }

    pub(super) fn block(&mut self, packed: &[u8]) -> Result<Vec<(String, String)>, Broken> {
        parse(&self.unpack(packed)?)
    }

    fn unpack(&mut self, mut packed: &[u8]) -> Result<Vec<u8>, Broken> {
        let mut plain = Vec::with_capacity(STEP);
        loop {
            let before = self.0.total_in();
            let result = self.0.decompress_vec(packed, &mut plain, FlushDecompress::Sync);
            let taken = usize::try_from(self.0.total_in() - before).unwrap_or(usize::MAX);
            packed = packed.get(taken..).unwrap_or_default();
            match result {
                Err(error) if error.needs_dictionary().is_some() => {
                    let known = self.0.set_dictionary(&DICTIONARY);
                    known.map_err(|_| Broken("a header block wants another dictionary"))?;
                }
                Err(_) => return Err(Broken("a header block is not compressed as it should be")),
                // There was room for more: this is all.
                Ok(_) if plain.len() < plain.capacity() => return Ok(plain),
                Ok(_) if plain.len() >= BLOCK_MAX => return Err(Broken("a header block is too large")),
                Ok(_) => plain.reserve(STEP),
            }
        }
    }
}

fn parse(plain: &[u8]) -> Result<Vec<(String, String)>, Broken> {
    let mut rest = plain;
    let count = word(&mut rest)?;
    if count > HEADERS_MAX {
        return Err(Broken("a header block has too many headers"));
    }
    let mut headers = Vec::new();
    for _ in 0..count {
        let name = text(&mut rest)?.to_ascii_lowercase();
        headers.push((name, text(&mut rest)?));
    }
    Ok(headers)
}

fn word(rest: &mut &[u8]) -> Result<u32, Broken> {
    let (word, behind) = rest.split_first_chunk::<4>().ok_or(SHORT)?;
    *rest = behind;
    Ok(u32::from_be_bytes(*word))
}

fn text(rest: &mut &[u8]) -> Result<String, Broken> {
    let len = usize::try_from(word(rest)?).unwrap_or(usize::MAX);
    let (text, behind) = rest.split_at_checked(len).ok_or(SHORT)?;
    *rest = behind;
    String::from_utf8(text.to_vec()).map_err(|_| Broken("a header is no text"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use flate2::{Compress, Compression, FlushCompress};

    use super::*;

    /// As Go's client packs them.
    fn pack(packer: &mut Compress, headers: &[(&str, &str)]) -> Vec<u8> {
        let mut plain = (headers.len() as u32).to_be_bytes().to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            plain.extend_from_slice(&(text.len() as u32).to_be_bytes());
            plain.extend_from_slice(text.as_bytes());
        }
        let mut packed = Vec::with_capacity(plain.len() + 100);
        packer.compress_vec(&plain, &mut packed, FlushCompress::Sync).unwrap();
        packed
    }

    #[test]
    fn the_dictionary_is_the_one_that_everybody_has() {
        let (mut a, mut b) = (1u32, 0u32);
        for byte in DICTIONARY.iter() {
            a = (a + u32::from(*byte)) % 65521;
            b = (b + a) % 65521;
        }
        assert_eq!((DICTIONARY.len(), b << 16 | a), (1423, 0xe3c6_a7c2));
    }

    #[test]
    fn blocks_with_and_without_the_dictionary_are_read_one_after_the_other() {
        for with_dictionary in [true, false] {
            let mut packer = Compress::new(Compression::best(), true);
            if with_dictionary {
                packer.set_dictionary(&DICTIONARY).unwrap();
            }
            let mut unpacker = Unpacker::new();
            let long = "x".repeat(5000);
            for (name, value) in [("streamType", "error"), ("streamType", "stdin"), ("n", &long)] {
                let block = pack(&mut packer, &[(name, value), ("port", "80")]);
                let want = [(name.to_lowercase(), value.to_owned()), ("port".into(), "80".into())];
                assert_eq!(unpacker.block(&block).unwrap(), want);
            }
        }
    }

    #[test]
    fn a_block_that_grows_without_end_is_refused() {
        let mut packer = Compress::new(Compression::best(), true);
        let block = pack(&mut packer, &[("x", &"y".repeat(1 << 20))]);
        assert!(block.len() < 4096);
        assert_eq!(Unpacker::new().block(&block), Err(Broken("a header block is too large")));
    }

    #[test]
    fn what_is_no_block_is_refused() {
        for bytes in [&b""[..], b"\x78", b"nonsense", &[0x78, 0xbb, 1, 2, 3, 4]] {
            assert!(Unpacker::new().block(bytes).is_err(), "{bytes:x?}");
        }
        for plain in [&[0, 0, 0, 1][..], &[0, 0, 0, 1, 0, 0, 0, 9, 1], &[0xff; 8]] {
            assert!(parse(plain).is_err(), "{plain:x?}");
        }
    }
}
