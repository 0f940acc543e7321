//! A tar archive of plain files: whoever has only the backup left can open it with what every machine has.

use std::io::{self, Read, Write};

const BLOCK: usize = 512;
/// A file that is larger is none of a node's, except its store.
const LARGEST: u64 = 64 << 30;

/// A file in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Relative, of plain names.
    pub(super) name: String,
    pub(super) mode: u32,
    pub(super) size: u64,
}

/// Writes a file; `content` has to have as many bytes as the entry says.
pub(super) fn put(out: &mut impl Write, entry: &Entry, content: &mut impl Read) -> io::Result<()> {
    out.write_all(&header(entry)?)?;
    let copied = io::copy(&mut content.take(entry.size), out)?;
    if copied != entry.size {
        return Err(io::Error::other(format!("{} became shorter while it was copied", entry.name)));
    }
    out.write_all(&[0; BLOCK][..padding(entry.size)])
}

/// The end of an archive.
pub(super) fn finish(out: &mut impl Write) -> io::Result<()> {
    out.write_all(&[0; 2 * BLOCK])
}

/// Calls `take` for each file. Anything but a plain file below the place where one unpacks is refused.
pub(super) fn each(
    from: &mut impl Read,
    mut take: impl FnMut(&Entry, &mut dyn Read) -> io::Result<()>,
) -> io::Result<()> {
    loop {
        let mut block = [0; BLOCK];
        from.read_exact(&mut block).map_err(cut)?;
        if block.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let entry = parse(&block)?;
        let mut content = from.by_ref().take(entry.size);
        take(&entry, &mut content)?;
        io::copy(&mut content, &mut io::sink())?;
        if content.limit() > 0 {
            return Err(cut(io::ErrorKind::UnexpectedEof.into()));
        }
        from.read_exact(&mut [0; BLOCK][..padding(entry.size)]).map_err(cut)?;
    }
}

fn cut(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            io::Error::new(error.kind(), "it ends early: this is only part of a backup")
        }
        _ => error,
    }
}

fn padding(size: u64) -> usize {
    usize::try_from(size.wrapping_neg() % BLOCK as u64).unwrap_or(0)
}

fn header(entry: &Entry) -> io::Result<[u8; BLOCK]> {
    let mut block = [0; BLOCK];
    if entry.name.len() > 100 || entry.size > LARGEST {
        return Err(io::Error::other(format!("{}: the name or the file is too long", entry.name)));
    }
    let mut field = |at: usize, text: &[u8]| block[at..at + text.len()].copy_from_slice(text);
    field(0, entry.name.as_bytes());
    field(100, format!("{:07o}", entry.mode & 0o777).as_bytes());
    field(108, b"0000000");
    field(116, b"0000000");
    if entry.size < 1 << 33 {
        field(124, format!("{:011o}", entry.size).as_bytes());
    } else {
        // What does not fit into eleven digits is written in binary, as GNU tar does it.
        field(124, &[0x80, 0, 0, 0]);
        field(128, &entry.size.to_be_bytes());
    }
    field(136, b"00000000000");
    field(148, b"        ");
    field(156, b"0");
    field(257, b"ustar\x0000");
    let sum = checksum(&block);
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(block)
}

fn checksum(block: &[u8; BLOCK]) -> u32 {
    let counted = |(at, byte): (usize, &u8)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) };
    block.iter().enumerate().map(counted).sum()
}

fn parse(block: &[u8; BLOCK]) -> io::Result<Entry> {
    let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("this is no backup: {what}"));
    let text = |range: std::ops::Range<usize>| {
        let bytes = &block[range];
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        std::str::from_utf8(&bytes[..end]).map(str::trim).ok()
    };
    let octal = |range| text(range).and_then(|text| u64::from_str_radix(text, 8).ok());
    if octal(148..156) != Some(u64::from(checksum(block))) {
        return Err(bad("a checksum is wrong"));
    }
    let size = match block[124] {
        0x80 => Some(u64::from_be_bytes(block[128..136].try_into().unwrap_or_default())),
        _ => octal(124..136),
    };
    let name = text(0..100).unwrap_or_default().to_owned();
    let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    if !matches!(block[156], b'0' | 0) || block[345] != 0 || !name.split('/').all(is_plain) {
        return Err(bad(&format!("{name:?} is no plain file below it")));
    }
    let size = size.filter(|size| *size <= LARGEST).ok_or_else(|| bad("a size is wrong"))?;
    let mode = octal(100..108).and_then(|mode| u32::try_from(mode & 0o777).ok()).unwrap_or(0o600);
    Ok(Entry { name, mode, size })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        for (name, content) in files {
            let entry = Entry { name: (*name).to_owned(), mode: 0o640, size: content.len() as u64 };
            put(&mut out, &entry, &mut &content[..]).unwrap();
        }
        finish(&mut out).unwrap();
        out
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<(Entry, Vec<u8>)>> {
        let mut found = Vec::new();
        each(&mut &bytes[..], |entry, content| {
            let mut bytes = Vec::new();
            content.read_to_end(&mut bytes)?;
            found.push((entry.clone(), bytes));
            Ok(())
        })?;
        Ok(found)
    }

    #[test]
    fn what_goes_in_comes_out() {
        let long = vec![7; 1300];
        let files: [(&str, &[u8]); 3] = [("a", b""), ("pki/ca.key", b"key"), ("store", &long)];
        let found = read(&archive(&files)).unwrap();
        assert_eq!(found.len(), 3);
        for ((name, content), (entry, bytes)) in files.iter().zip(&found) {
            assert_eq!((entry.name.as_str(), entry.mode, &bytes[..]), (*name, 0o640, *content));
        }
        let large = Entry { name: "store".to_owned(), mode: 0o600, size: 9 << 33 >> 1 };
        assert_eq!(parse(&header(&large).unwrap()).unwrap(), large);
    }

    #[test]
    fn no_file_lands_elsewhere() {
        for name in ["../x", "/etc/passwd", "a/../../b", "a//b", ""] {
            let entry = Entry { name: name.to_owned(), mode: 0, size: 0 };
            assert!(parse(&header(&entry).unwrap()).is_err(), "{name:?}");
        }
        let mut link = archive(&[("a", b"x")]);
        link[156] = b'2';
        assert!(read(&link).is_err());
        let whole = archive(&[("a", b"some text")]);
        for cut in [0, 100, 600, 1024] {
            assert!(read(&whole[..cut]).is_err(), "{cut}");
        }
        assert!(read(&[1; 2048]).unwrap_err().to_string().contains("no backup"));
    }

    #[test]
    fn tar_reads_it() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("a.tar");
        std::fs::write(&path, archive(&[("pki/ca.key", b"key"), ("b", b"")])).unwrap();
        let done = std::process::Command::new("tar").arg("-tf").arg(&path).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&done.stdout), "pki/ca.key\nb\n");
    }
}
