//! One block of an archive as a header.

use super::{TarError, malformed};

pub(super) const BLOCK: usize = 512;

pub(super) type Raw = [u8; BLOCK];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EntryType {
    #[default]
    File,
    Directory,
    Symlink,
    HardLink,
    CharDevice,
    BlockDevice,
    Fifo,
}

#[derive(Debug)]
pub(super) struct Header {
    pub(super) flag: u8,
    pub(super) path: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) size: u64,
    pub(super) mtime: i64,
}

// === impl Header ===

impl Header {
    pub(super) fn parse(raw: &Raw) -> Result<Header, TarError> {
        check_sum(raw)?;
        let id = |field: &[u8], what: &str| {
            u32::try_from(number(field)?).map_err(|_| malformed(&format!("{what} out of range")))
        };
        let mut path = text(&raw[..100]);
        if let Some(prefix) = prefix(raw).filter(|p| !p.is_empty()) {
            path = [prefix.as_slice(), b"/", &path].concat();
        }
        Ok(Header {
            flag: raw[156],
            path,
            link: text(&raw[157..257]),
            // Old programs put the kind of the file in there too, GNU's up to 64 bits of nothing.
            mode: (number(&raw[100..108])? & 0o7777) as u32,
            uid: id(&raw[108..116], "a user id")?,
            gid: id(&raw[116..124], "a group id")?,
            size: u64::try_from(number(&raw[124..136])?).map_err(|_| malformed("a negative size"))?,
            mtime: number(&raw[136..148])?,
        })
    }
}

// === impl EntryType ===

impl EntryType {
    pub(super) fn of(flag: u8, path: &[u8]) -> Result<EntryType, TarError> {
        Ok(match flag {
            b'0' | 0 | b'7' | b'S' if !path.ends_with(b"/") => EntryType::File,
            b'0' | 0 | b'5' => EntryType::Directory,
            b'1' => EntryType::HardLink,
            b'2' => EntryType::Symlink,
            b'3' => EntryType::CharDevice,
            b'4' => EntryType::BlockDevice,
            b'6' => EntryType::Fifo,
            other => return Err(malformed(&format!("an entry of kind {:?}", char::from(other)))),
        })
    }
}

/// Where the front of a long path stands. GNU has other things there.
fn prefix(raw: &Raw) -> Option<Vec<u8>> {
    if &raw[257..263] != b"ustar\0" {
        return None;
    }
    let is_star = &raw[508..512] == b"tar\0";
    Some(text(if is_star { &raw[345..476] } else { &raw[345..500] }))
}

/// Over all bytes, those of the sum taken for blanks. Some programs add signed bytes.
fn check_sum(raw: &Raw) -> Result<(), TarError> {
    let (mut plain, mut signed) = (0i64, 0i64);
    for (i, byte) in raw.iter().enumerate() {
        let byte = if (148..156).contains(&i) { b' ' } else { *byte };
        plain += i64::from(byte);
        signed += i64::from(byte.cast_signed());
    }
    let told = number(&raw[148..156])?;
    if told == plain || told == signed { Ok(()) } else { Err(malformed("a header has a wrong checksum")) }
}

fn text(field: &[u8]) -> Vec<u8> {
    field.split(|b| *b == 0).next().unwrap_or_default().to_vec()
}

/// Octal digits amid blanks, or a large number in binary, marked by its first bit.
pub(super) fn number(field: &[u8]) -> Result<i64, TarError> {
    let Some(first) = field.first().copied() else { return Ok(0) };
    if first & 0x80 != 0 {
        return binary(field, first);
    }
    let is_blank = |b: &u8| *b == b' ' || *b == 0;
    let start = field.iter().position(|b| !is_blank(b)).unwrap_or(field.len());
    let digits = field[start..].split(is_blank).next().unwrap_or_default();
    digits
        .iter()
        .try_fold(0i64, |sum, digit| match digit {
            b'0'..=b'7' => sum.checked_mul(8).and_then(|s| s.checked_add(i64::from(digit - b'0'))),
            _ => None,
        })
        .ok_or_else(|| malformed("a number that is none"))
}

fn binary(field: &[u8], first: u8) -> Result<i64, TarError> {
    let negative = first & 0x40 != 0;
    let fill = if negative { 0xff } else { 0 };
    let mut sum: i128 = if negative { -1 } else { 0 };
    for (i, byte) in field.iter().enumerate() {
        let byte = if i == 0 { (byte & 0x7f) | (fill & 0x80) } else { *byte };
        sum = sum.checked_mul(256).ok_or_else(|| malformed("a number that is too large"))?;
        sum += i128::from(byte);
        if i == 0 && negative {
            // The first byte is a sign already.
            sum = i128::from(byte.cast_signed());
        }
    }
    i64::try_from(sum).map_err(|_| malformed("a number that is too large"))
}

/// Digits, as extended headers have them.
pub(super) fn decimal(digits: &[u8]) -> Result<u64, TarError> {
    let bad = || malformed("a number in an extended header that is none");
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(bad());
    }
    std::str::from_utf8(digits)
        .ok()
        .and_then(|d| d.parse().ok())
        .filter(|n| *n <= i64::MAX as u64)
        .ok_or_else(bad)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        let large = [0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0];
        let minus_one = [0xff; 12];
        let too_large = [0xbf; 12];
        let rows: &[(&[u8], Option<i64>)] = &[
            (b"0000644\0", Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"77777777777\0", Some(0o77_777_777_777)),
            (b"\0\0\0\0", Some(0)),
            (b"12x\0", None),
            (b"9\0", None),
            (b"-1\0", None),
            (&large, Some(2 << 32)),
            (&minus_one, Some(-1)),
            (&too_large, None),
        ];
        for (field, want) in rows {
            assert_eq!(number(field).ok(), *want, "{field:?}");
        }
    }
}
