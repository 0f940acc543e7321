//! Extended headers: `LENGTH KEY=VALUE\n`, again and again.

use super::header::decimal;
use super::sparse::{Form, Map};
use super::{Entry, TarError, malformed};

const XATTR: &[u8] = b"SCHILY.xattr.";
/// Of one entry; Linux takes no more than 64 KiB of them all on most file systems.
const XATTRS_MAX: usize = 256;

/// What an extended header says of the entry that follows it.
#[derive(Debug, Default)]
pub(super) struct Records(Vec<(Vec<u8>, Vec<u8>)>);

// === impl Records ===

impl Records {
    pub(super) fn parse(mut bytes: &[u8]) -> Result<Records, TarError> {
        let mut records = Vec::new();
        while !bytes.is_empty() {
            let record = record(bytes).ok_or_else(|| malformed("an extended header that is none"))?;
            bytes = &bytes[record.length..];
            records.push((record.key.to_vec(), record.value.to_vec()));
        }
        Ok(Records(records))
    }

    /// Puts what they say into the entry; a map of holes is for the caller. An empty value takes back what was said before.
    pub(super) fn apply(self, entry: &mut Entry) -> Result<Option<Map>, TarError> {
        let mut sparse = Form::default();
        for (key, value) in self.0 {
            if let Some(name) = key.strip_prefix(XATTR) {
                if entry.xattrs.len() >= XATTRS_MAX {
                    return Err(malformed("too many extended attributes"));
                }
                entry.xattrs.push((name.to_vec(), value));
                continue;
            }
            if key.starts_with(b"GNU.sparse.") {
                sparse.take(&key, &value, entry)?;
                continue;
            }
            if value.is_empty() {
                continue;
            }
            match key.as_slice() {
                b"path" => entry.path = without_nul(value)?,
                b"linkpath" => entry.link = without_nul(value)?,
                b"size" => entry.size = decimal(&value)?,
                b"uid" => entry.uid = id(&value)?,
                b"gid" => entry.gid = id(&value)?,
                b"mtime" => entry.mtime = time(&value)?,
                _ => {}
            }
        }
        sparse.map()
    }
}

struct Record<'a> {
    length: usize,
    key: &'a [u8],
    value: &'a [u8],
}

fn record(bytes: &[u8]) -> Option<Record<'_>> {
    let blank = bytes.iter().take(20).position(|b| *b == b' ')?;
    let length = usize::try_from(decimal(&bytes[..blank]).ok()?).ok()?;
    let text = bytes.get(blank + 1..length)?.strip_suffix(b"\n")?;
    let equals = text.iter().position(|b| *b == b'=')?;
    let key = &text[..equals];
    (!key.is_empty() && !key.contains(&0)).then_some(Record { length, key, value: &text[equals + 1..] })
}

fn id(value: &[u8]) -> Result<u32, TarError> {
    u32::try_from(decimal(value)?).map_err(|_| malformed("a user or group id out of range"))
}

fn without_nul(value: Vec<u8>) -> Result<Vec<u8>, TarError> {
    if value.contains(&0) { Err(malformed("a path with a NUL")) } else { Ok(value) }
}

/// Seconds with any number of decimals, before 1970 too.
fn time(value: &[u8]) -> Result<(i64, u32), TarError> {
    let (negative, value) = match value.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, value),
    };
    let (whole, decimals) = match value.iter().position(|b| *b == b'.') {
        Some(dot) => (&value[..dot], &value[dot + 1..]),
        None => (value, &[][..]),
    };
    let seconds = i64::try_from(decimal(whole)?).map_err(|_| malformed("a time out of range"))?;
    let mut nanos = 0;
    for i in 0..9 {
        let digit = decimals.get(i).copied().unwrap_or(b'0');
        if !digit.is_ascii_digit() {
            return Err(malformed("a time that is none"));
        }
        nanos = nanos * 10 + u32::from(digit - b'0');
    }
    Ok(match (negative, nanos) {
        (false, _) => (seconds, nanos),
        (true, 0) => (-seconds, 0),
        (true, _) => (-seconds - 1, 1_000_000_000 - nanos),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_to_their_length_or_refused() {
        let two = b"12 path=a/b\n21 mtime=1700000.25\n";
        assert_eq!(two.len(), 12 + 20);
        let rows: &[(&[u8], bool)] = &[
            (b"12 path=a/b\n", true),
            (b"12 path=a/b\n20 mtime=1700000.25\n", true),
            (b"", true),
            (b"13 path=a/b\n", false),
            (b"11 path=a/b\n", false),
            (b"0 path=a\n", false),
            (b"999999999999999999999 path=a\n", false),
            (b"+9 path=a\n", false),
            (b"5 =a\n", false),
            (b"10 path=a\n", true),
            (b"path=a\n", false),
        ];
        for (bytes, good) in rows {
            assert_eq!(Records::parse(bytes).is_ok(), *good, "{}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn times_have_fractions_and_may_lie_before_1970() {
        let rows = [
            ("1700000000", Some((1_700_000_000, 0))),
            ("1.5", Some((1, 500_000_000))),
            ("1.0000000019", Some((1, 1))),
            ("-1", Some((-1, 0))),
            ("-1.25", Some((-2, 750_000_000))),
            ("1.x", None),
            ("", None),
        ];
        for (text, want) in rows {
            assert_eq!(time(text.as_bytes()).ok(), want, "{text}");
        }
    }
}
