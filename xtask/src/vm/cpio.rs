//! The archive that a kernel unpacks into memory: `cpio` in the form it calls newc.

use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Writes a directory and everything in it. Links stay links; owners become root.
pub(super) fn write(dir: &Path, out: &mut impl Write) -> io::Result<()> {
    let mut number = 0;
    walk(dir, dir, &mut number, out)?;
    entry(out, b"TRAILER!!!", 0, 0, &[])
}

fn walk(root: &Path, dir: &Path, number: &mut u32, out: &mut impl Write) -> io::Result<()> {
    let mut paths: Vec<_> = fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    paths.sort();
    for path in paths {
        let about = fs::symlink_metadata(&path)?;
        let name = path.strip_prefix(root).map_err(io::Error::other)?.as_os_str().as_bytes().to_vec();
        *number += 1;
        let content = match about.file_type() {
            kind if kind.is_symlink() => fs::read_link(&path)?.as_os_str().as_bytes().to_vec(),
            kind if kind.is_file() => fs::read(&path)?,
            _ => Vec::new(),
        };
        entry(out, &name, *number, about.mode(), &content)?;
        if about.is_dir() {
            walk(root, &path, number, out)?;
        }
    }
    Ok(())
}

/// A head of hexadecimal fields, a name that ends with zero, the content; each part filled up to whole words.
fn entry(out: &mut impl Write, name: &[u8], number: u32, mode: u32, content: &[u8]) -> io::Result<()> {
    let (size, name_size) = (u32::try_from(content.len()).map_err(io::Error::other)?, name.len() + 1);
    let fields = [number, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size as u32, 0];
    let mut head = String::from("070701");
    for field in fields {
        head += &format!("{field:08x}");
    }
    out.write_all(head.as_bytes())?;
    out.write_all(name)?;
    out.write_all(&[0; 4][..1 + padding(head.len() + name_size)])?;
    out.write_all(content)?;
    out.write_all(&[0; 4][..padding(content.len())])
}

fn padding(len: usize) -> usize {
    len.next_multiple_of(4) - len
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_laid_out_in_words() {
        let mut out = Vec::new();
        entry(&mut out, b"init", 7, 0o100_755, b"hello").unwrap();
        let text = String::from_utf8(out).unwrap();
        let head = "07070100000007000081ed0000000000000000000000010000000000000005\
                    00000000000000000000000000000000\u{30}0000005\u{30}0000000";
        assert_eq!(text.len() % 4, 0);
        assert_eq!(&text[..110], head);
        assert_eq!(&text[110..], "init\0\0hello\0\0\0");
    }
}
