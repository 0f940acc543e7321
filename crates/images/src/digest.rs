//! Digests: what a blob is called, and proof that it is the one.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use aws_lc_rs::digest;
use serde::{Deserialize, Serialize};

/// `sha256:…` or `sha512:…` in lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

/// The digest of a layer's uncompressed bytes: what a layer is called on disk, whichever image brought it.
pub type DiffId = Digest;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no digest: sha256 or sha512, a colon and lower-case hexadecimal digits are wanted")]
pub struct BadDigest(pub String);

/// Reads through, and knows the digest of what went by.
pub struct Hashing<R> {
    inner: R,
    context: digest::Context,
    algorithm: Algorithm,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Sha256,
    Sha512,
}

// === impl Digest ===

impl Digest {
    #[must_use]
    pub fn of(bytes: &[u8]) -> Digest {
        Digest::written(Algorithm::Sha256, digest::digest(&digest::SHA256, bytes).as_ref())
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Without the algorithm.
    #[must_use]
    pub fn hex(&self) -> &str {
        self.0.split_once(':').map_or("", |(_, hex)| hex)
    }

    /// A name for a file: no character of it means anything to a file system.
    #[must_use]
    pub fn file_name(&self) -> String {
        self.0.replace(':', "-")
    }

    fn written(algorithm: Algorithm, bytes: &[u8]) -> Digest {
        use fmt::Write as _;
        let mut text = format!("{}:", algorithm.name());
        for byte in bytes {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        Digest(text)
    }

    fn algorithm(&self) -> Algorithm {
        if self.0.starts_with("sha512:") { Algorithm::Sha512 } else { Algorithm::Sha256 }
    }
}

impl FromStr for Digest {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Digest, BadDigest> {
        let is_hex = |hex: &str| hex.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'a'..=b'f'));
        let good = match text.split_once(':') {
            Some(("sha256", hex)) => hex.len() == 64 && is_hex(hex),
            Some(("sha512", hex)) => hex.len() == 128 && is_hex(hex),
            _ => false,
        };
        if good { Ok(Digest(text.to_owned())) } else { Err(BadDigest(shortened(text))) }
    }
}

impl TryFrom<String> for Digest {
    type Error = BadDigest;

    fn try_from(text: String) -> Result<Digest, BadDigest> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A stranger wrote it, and it goes into a message.
fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

// === impl Algorithm ===

impl Algorithm {
    fn name(self) -> &'static str {
        match self {
            Algorithm::Sha256 => "sha256",
            Algorithm::Sha512 => "sha512",
        }
    }

    fn implementation(self) -> &'static digest::Algorithm {
        match self {
            Algorithm::Sha256 => &digest::SHA256,
            Algorithm::Sha512 => &digest::SHA512,
        }
    }
}

// === impl Hashing ===

impl<R: Read> Hashing<R> {
    /// With the algorithm of the digest that is hoped for.
    pub fn like(hoped: &Digest, inner: R) -> Hashing<R> {
        let algorithm = hoped.algorithm();
        Hashing { inner, context: digest::Context::new(algorithm.implementation()), algorithm, bytes: 0 }
    }

    /// The digest of all that was read, and how much that was.
    pub fn finish(self) -> (Digest, u64) {
        (Digest::written(self.algorithm, self.context.finish().as_ref()), self.bytes)
    }

    pub fn inner_mut(&mut self) -> &mut R {
        &mut self.inner
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.context.update(&buffer[..n]);
        self.bytes += n as u64;
        Ok(n)
    }
}

impl<R> fmt::Debug for Hashing<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hashing").field("algorithm", &self.algorithm).field("bytes", &self.bytes).finish()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_its_algorithm_and_all_its_digits() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").as_str(), empty);
        assert_eq!(empty.parse::<Digest>().unwrap().hex().len(), 64);
        let long = format!("sha512:{}", "0".repeat(128));
        assert!(long.parse::<Digest>().is_ok());
        let upper = empty.to_uppercase();
        let path = format!("sha256:{}", "../".repeat(21) + "a");
        for bad in ["", "sha256:", "md5:00", &empty[7..], upper.as_str(), path.as_str(), &empty[..70]] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_read_is_what_is_counted() {
        let hoped = Digest::of(b"some bytes");
        let mut reader = Hashing::like(&hoped, &b"some bytes"[..]);
        io::copy(&mut reader, &mut io::sink()).unwrap();
        assert_eq!(reader.finish(), (hoped, 10));
    }
}
