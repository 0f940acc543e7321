//! Entries of an archive, written. Whatever an old header has no room for stands in an extended one before it.

use std::io::{self, Read, Write};

use crate::tar::EntryType;

const BLOCK: usize = 512;
/// What eleven octal digits can say.
const SIZE_MAX: u64 = 0o77_777_777_777;
const ID_MAX: u32 = 0o7_777_777;

/// One entry, without its content.
#[derive(Clone, Debug, Default)]
pub(super) struct Head {
    pub(super) kind: EntryType,
    pub(super) path: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) size: u64,
    /// Seconds and nanoseconds.
    pub(super) mtime: (i64, u32),
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// An entry with nothing in it.
pub(super) fn put(out: &mut impl Write, head: &Head) -> io::Result<()> {
    let extended = head.extended();
    if !extended.is_empty() {
        let of = Head { size: extended.len() as u64, mode: 0o644, path: b"pax".to_vec(), ..Head::default() };
        out.write_all(&of.block(b'x'))?;
        out.write_all(&extended)?;
        pad(out, of.size)?;
    }
    out.write_all(&head.block(flag(head.kind)))
}

/// An entry with all that is read.
pub(super) fn put_file(out: &mut impl Write, head: &Head, content: impl Read) -> io::Result<()> {
    put(out, head)?;
    let copied = io::copy(&mut content.take(head.size), out)?;
    if copied != head.size {
        return Err(io::Error::other("a file of the layer became shorter while it was read"));
    }
    pad(out, head.size)
}

/// Two empty blocks.
pub(super) fn end(out: &mut impl Write) -> io::Result<()> {
    out.write_all(&[0; 2 * BLOCK])
}

fn pad(out: &mut impl Write, size: u64) -> io::Result<()> {
    let over = (size % BLOCK as u64) as usize;
    out.write_all(&[0; BLOCK][..(BLOCK - over) % BLOCK])
}

fn flag(kind: EntryType) -> u8 {
    match kind {
        EntryType::File => b'0',
        EntryType::HardLink => b'1',
        EntryType::Symlink => b'2',
        EntryType::CharDevice => b'3',
        EntryType::BlockDevice => b'4',
        EntryType::Directory => b'5',
        EntryType::Fifo => b'6',
    }
}

// === impl Head ===

impl Head {
    fn block(&self, flag: u8) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        let mut text = |at: usize, bytes: &[u8], room: usize| {
            let n = bytes.len().min(room);
            block[at..at + n].copy_from_slice(&bytes[..n]);
        };
        text(0, &self.path, 100);
        text(100, format!("{:07o}", self.mode & 0o7777).as_bytes(), 8);
        text(108, format!("{:07o}", self.uid.min(ID_MAX)).as_bytes(), 8);
        text(116, format!("{:07o}", self.gid.min(ID_MAX)).as_bytes(), 8);
        text(124, format!("{:011o}", self.size.min(SIZE_MAX)).as_bytes(), 12);
        text(136, format!("{:011o}", self.mtime.0.clamp(0, SIZE_MAX as i64)).as_bytes(), 12);
        text(148, b"        ", 8);
        text(156, &[flag], 1);
        text(157, &self.link, 100);
        text(257, b"ustar\x0000", 8);
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        block
    }

    /// Records for what does not fit.
    fn extended(&self) -> Vec<u8> {
        let mut all = Vec::new();
        let mut record = |key: &[u8], value: &[u8]| {
            // Its length counts itself, with its digits.
            let rest = key.len() + value.len() + 3;
            let mut len = rest + 1;
            while len != rest + len.to_string().len() {
                len = rest + len.to_string().len();
            }
            all.extend_from_slice(format!("{len} ").as_bytes());
            all.extend_from_slice(&[key, b"=", value, b"\n"].concat());
        };
        if self.path.len() > 100 {
            record(b"path", &self.path);
        }
        if self.link.len() > 100 {
            record(b"linkpath", &self.link);
        }
        let numbers = [
            (&b"uid"[..], u64::from(self.uid), u64::from(ID_MAX)),
            (b"gid", u64::from(self.gid), u64::from(ID_MAX)),
            (b"size", self.size, SIZE_MAX),
        ];
        for (key, value, most) in numbers {
            if value > most {
                record(key, value.to_string().as_bytes());
            }
        }
        let (seconds, nanos) = self.mtime;
        if nanos != 0 || !(0..=SIZE_MAX as i64).contains(&seconds) {
            record(b"mtime", decimal(seconds, nanos).as_bytes());
        }
        for (name, value) in &self.xattrs {
            record(&[b"SCHILY.xattr.", name.as_slice()].concat(), value);
        }
        all
    }
}

/// Nanoseconds count upwards, also before 1970.
fn decimal(seconds: i64, nanos: u32) -> String {
    match (seconds, nanos) {
        (_, 0) => seconds.to_string(),
        (0.., _) => format!("{seconds}.{nanos:09}"),
        (_, _) => format!("-{}.{:09}", (seconds + 1).unsigned_abs(), 1_000_000_000 - nanos),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::tar::Entries;

    #[test]
    fn what_is_written_is_read() {
        let heads = [
            Head {
                path: b"short".to_vec(),
                mode: 0o4755,
                uid: 7,
                size: 5,
                mtime: (12, 0),
                ..Head::default()
            },
            Head {
                path: [b"d/".as_slice(), &[b'x'; 300]].concat(),
                uid: u32::MAX - 1,
                gid: 3_000_000,
                size: 513,
                mtime: (1_700_000_000, 123_456_789),
                xattrs: vec![(b"user.a".to_vec(), b"1\n=2".to_vec())],
                ..Head::default()
            },
            Head {
                kind: EntryType::Symlink,
                path: b"link".to_vec(),
                link: vec![b'y'; 200],
                mtime: (-5, 250_000_000),
                ..Head::default()
            },
        ];
        let mut archive = Vec::new();
        for head in &heads {
            put_file(&mut archive, head, io::repeat(b'z')).unwrap();
        }
        end(&mut archive).unwrap();
        let mut entries = Entries::new(archive.as_slice());
        for head in &heads {
            let entry = entries.next_entry().unwrap().unwrap();
            assert_eq!((entry.kind, &entry.path, &entry.link), (head.kind, &head.path, &head.link));
            assert_eq!((entry.uid, entry.gid, entry.size), (head.uid, head.gid, head.size));
            assert_eq!((entry.mtime, &entry.xattrs[..]), (head.mtime, &head.xattrs[..]));
            assert_eq!(entry.mode & 0o7777, head.mode);
            let mut content = Vec::new();
            entries.read_to_end(&mut content).unwrap();
            assert_eq!(content, vec![b'z'; head.size as usize]);
        }
        assert!(entries.next_entry().unwrap().is_none());
    }
}
