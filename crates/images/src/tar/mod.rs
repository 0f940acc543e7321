//! Tar archives, read as a stream: ustar, GNU and PAX, as Go's reader takes them, because what an image holds is what
//! containerd would find in it. Where two readers could disagree about where the next entry begins, the archive is refused.

mod header;
mod pax;
mod sparse;

use std::io::{self, Read};

pub use header::EntryType;
pub use sparse::Hole;

use header::{BLOCK, Header, Raw};
use pax::Records;

/// Of the extended header of an entry, and of a long name.
const EXTENDED_MAX: u64 = 1 << 20;

/// The entries of an archive, one after the other.
#[derive(Debug)]
pub struct Entries<R> {
    reader: R,
    /// Bytes of the entry that were not read yet.
    left: u64,
    /// What fills its last block.
    padding: u64,
    is_over: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    pub path: Vec<u8>,
    pub kind: EntryType,
    /// The twelve bits that `chmod` takes.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Seconds and nanoseconds.
    pub mtime: (i64, u32),
    /// Where a link leads.
    pub link: Vec<u8>,
    /// Of the file as it will be.
    pub size: u64,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where the bytes that follow belong, for a file with holes. They are in order and end within `size`.
    pub data: Option<Vec<Hole>>,
}

#[derive(Debug, thiserror::Error)]
pub enum TarError {
    #[error(transparent)]
    Read(#[from] io::Error),
    #[error("the archive is malformed: {0}")]
    Malformed(String),
}

// === impl Entries ===

impl<R: Read> Entries<R> {
    pub fn new(reader: R) -> Entries<R> {
        Entries { reader, left: 0, padding: 0, is_over: false }
    }

    /// The next entry; what was not read of the one before is passed over.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, TarError> {
        let mut records = Records::default();
        let (mut long_path, mut long_link) = (None, None);
        loop {
            self.pass_over()?;
            let Some(raw) = self.block()? else { return Ok(None) };
            let header = Header::parse(&raw)?;
            match header.flag {
                b'x' => records = Records::parse(&self.extended(header.size)?)?,
                // Go hands these on and containerd ignores them: they change no entry.
                b'g' => {
                    self.extended(header.size)?;
                }
                b'L' => long_path = Some(until_nul(self.extended(header.size)?)),
                b'K' => long_link = Some(until_nul(self.extended(header.size)?)),
                _ => return self.entry(header, &raw, records, long_path, long_link).map(Some),
            }
        }
    }

    /// What stands behind the archive's end. Digests are made of that too.
    pub fn into_inner(self) -> R {
        self.reader
    }

    fn entry(
        &mut self,
        header: Header,
        raw: &Raw,
        records: Records,
        long_path: Option<Vec<u8>>,
        long_link: Option<Vec<u8>>,
    ) -> Result<Entry, TarError> {
        let flag = header.flag;
        let mut entry = Entry {
            path: long_path.unwrap_or(header.path),
            kind: EntryType::Fifo,
            mode: header.mode & 0o7777,
            uid: header.uid,
            gid: header.gid,
            mtime: (header.mtime, 0),
            link: long_link.unwrap_or(header.link),
            size: header.size,
            xattrs: Vec::new(),
            data: None,
        };
        let mut sparse = records.apply(&mut entry)?;
        entry.kind = EntryType::of(flag, &entry.path)?;
        // Such entries have no content, whatever size they give: so does Go read them.
        let in_archive = if entry.kind == EntryType::File { entry.size } else { 0 };
        self.expect(in_archive)?;
        if flag == b'S' {
            sparse = Some(sparse::Map::of_gnu_header(raw, || {
                self.block_of_header()?.ok_or_else(|| malformed("it ends inside a map of holes"))
            })?);
        }
        if let Some(map) = sparse {
            let map = map.read(|buffer| Ok(self.read_exact(buffer)?))?;
            entry.size = map.size;
            entry.data = Some(map.checked(self.left)?);
        }
        if entry.kind != EntryType::File {
            entry.size = 0;
        }
        Ok(entry)
    }

    fn expect(&mut self, size: u64) -> Result<(), TarError> {
        let padded =
            size.checked_next_multiple_of(BLOCK as u64).ok_or_else(|| malformed("an entry has no end"))?;
        self.left = size;
        self.padding = padded - size;
        Ok(())
    }

    fn pass_over(&mut self) -> Result<(), TarError> {
        let rest = self.left + self.padding;
        let passed = io::copy(&mut self.reader.by_ref().take(rest), &mut io::sink())?;
        // Go takes an archive that ends inside the last padding.
        if passed < self.left {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        (self.left, self.padding) = (0, 0);
        Ok(())
    }

    fn extended(&mut self, size: u64) -> Result<Vec<u8>, TarError> {
        if size > EXTENDED_MAX {
            return Err(malformed(&format!("an extended header of {size} bytes")));
        }
        self.expect(size)?;
        let mut bytes =
            vec![0; usize::try_from(size).map_err(|_| malformed("an extended header without an end"))?];
        self.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// The next header block; none at the end, which is two blocks of zeros or nothing at all.
    fn block(&mut self) -> Result<Option<Raw>, TarError> {
        if self.is_over {
            return Ok(None);
        }
        let Some(first) = self.block_of_header()? else {
            self.is_over = true;
            return Ok(None);
        };
        if first.iter().any(|b| *b != 0) {
            return Ok(Some(first));
        }
        self.is_over = true;
        match self.block_of_header()? {
            Some(second) if second.iter().any(|b| *b != 0) => {
                Err(malformed("one block of zeros amid entries"))
            }
            _ => Ok(None),
        }
    }

    fn block_of_header(&mut self) -> Result<Option<Raw>, TarError> {
        let mut raw = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.reader.read(&mut raw[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(Some(raw))
    }
}

/// The content of the entry that came last.
impl<R: Read> Read for Entries<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let n = self.reader.read(&mut buffer[..most])?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= n as u64;
        Ok(n)
    }
}

fn until_nul(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(end) = bytes.iter().position(|b| *b == 0) {
        bytes.truncate(end);
    }
    bytes
}

fn malformed(why: &str) -> TarError {
    TarError::Malformed(why.to_owned())
}

#[cfg(test)]
mod tests;
