//! What is mounted where: `/proc/thread-self/mountinfo` as data (proc(5)).

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub id: u64,
    pub parent: u64,
    pub major: u32,
    pub minor: u32,
    /// The part of the file system that is mounted.
    pub root: PathBuf,
    pub mount_point: PathBuf,
    pub options: String,
    /// `shared:N`, `master:N`, `propagate_from:N`, `unbindable`.
    pub propagation: Vec<String>,
    pub fs_type: String,
    pub source: OsString,
    pub super_options: String,
}

/// Every mount the calling thread sees, in the order they were made. The thread's own view, not the
/// process's: a thread may have entered another mount namespace.
pub fn read() -> io::Result<Vec<Mount>> {
    parse(&std::fs::read("/proc/thread-self/mountinfo")?)
}

/// Mounts at or below `dir`, the last made first: what covers something comes before it.
pub fn below(dir: &Path) -> io::Result<Vec<Mount>> {
    let mut found: Vec<Mount> = read()?.into_iter().filter(|m| m.mount_point.starts_with(dir)).collect();
    found.reverse();
    Ok(found)
}

/// The mount that `path`, which must be free of symlinks, lies on.
#[must_use]
pub fn containing<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    mounts
        .iter()
        .filter(|m| path.starts_with(&m.mount_point))
        // Of two mounts at one place the later covers the earlier; max_by_key keeps the last.
        .max_by_key(|m| m.mount_point.components().count())
}

pub fn parse(text: &[u8]) -> io::Result<Vec<Mount>> {
    text.split(|b| *b == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| {
            parse_line(line).ok_or_else(|| {
                let line = String::from_utf8_lossy(line);
                io::Error::new(io::ErrorKind::InvalidData, format!("mountinfo line {line:?}"))
            })
        })
        .collect()
}

// === impl Mount ===

impl Mount {
    /// Mounts made here appear in other namespaces too.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.propagation.iter().any(|p| p.starts_with("shared:"))
    }
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ');
    let id = number(fields.next()?)?;
    let parent = number(fields.next()?)?;
    let (major, minor) = std::str::from_utf8(fields.next()?).ok()?.split_once(':')?;
    let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
    let root = path(fields.next()?);
    let mount_point = path(fields.next()?);
    let options = text(fields.next()?);
    let propagation = fields.by_ref().take_while(|f| *f != b"-").map(text).collect();
    Some(Mount {
        id,
        parent,
        major,
        minor,
        root,
        mount_point,
        options,
        propagation,
        fs_type: text(fields.next()?),
        source: OsString::from_vec(unescape(fields.next()?)),
        super_options: fields.next().map(text).unwrap_or_default(),
    })
}

fn number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(&unescape(field)).into_owned()
}

fn path(field: &[u8]) -> PathBuf {
    OsString::from_vec(unescape(field)).into()
}

/// The kernel writes space, tab, newline and backslash as `\ooo`.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        match octal(rest) {
            Some(value) => {
                out.push(value);
                rest = &rest[4..];
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    out
}

fn octal(bytes: &[u8]) -> Option<u8> {
    let [b'\\', digits @ ..] = bytes.get(..4)? else { return None };
    digits.iter().try_fold(0u8, |value, digit| {
        let digit = digit.checked_sub(b'0').filter(|d| *d < 8)?;
        value.checked_mul(8)?.checked_add(digit)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_everything() {
        let line = b"36 35 98:0 /mnt\\0401 /mnt2/a\\134b rw,noatime shared:1 master:7 - ext3 /dev/root rw,errors=continue\n";
        let mounts = parse(line).unwrap();
        let m = &mounts[0];
        assert_eq!((m.id, m.parent, m.major, m.minor), (36, 35, 98, 0));
        assert_eq!(m.root, Path::new("/mnt 1"));
        assert_eq!(m.mount_point, Path::new("/mnt2/a\\b"));
        assert_eq!(m.propagation, ["shared:1", "master:7"]);
        assert!(m.is_shared());
        assert_eq!((m.fs_type.as_str(), m.super_options.as_str()), ("ext3", "rw,errors=continue"));
    }

    #[test]
    fn no_optional_fields_and_an_empty_source() {
        let m = &parse(b"36 35 0:9 / / rw -  tmpfs \n1 1 0:1 / /x rw - tmpfs  rw").unwrap()[1];
        assert_eq!((m.fs_type.as_str(), m.source.to_str()), ("tmpfs", Some("")));
        assert!(!m.is_shared());
    }

    #[test]
    fn nonsense_is_an_error_that_quotes_the_line() {
        let error = parse(b"36 35 nonsense").unwrap_err();
        assert!(error.to_string().contains("36 35 nonsense"), "{error}");
    }

    #[test]
    fn what_is_no_escape_stays() {
        for (raw, want) in [
            (&b"a\\b"[..], &b"a\\b"[..]),
            (b"\\04", b"\\04"),
            (b"\\089", b"\\089"),
            (b"\\777", b"\\777"),
            (b"\\011", b"\t"),
        ] {
            assert_eq!(unescape(raw), want);
        }
    }

    #[test]
    fn our_own_is_readable_and_contains_the_root() {
        let mounts = read().unwrap();
        assert_eq!(containing(&mounts, Path::new("/proc/self")).unwrap().fs_type, "proc");
    }
}
