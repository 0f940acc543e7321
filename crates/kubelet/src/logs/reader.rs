//! Reads a container's log: the end of it, a piece of it, or all that is still to come.
//!
//! [`Cursor`] is the part without waiting: it moves through the log and the files it was rotated into, every
//! line once and in order. [`follow`] drives it from a task and wakes when the directory changes.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};

use bytes::Bytes;
use cri::log::{self, Decoder, Wanted};
use flate2::read::MultiGzDecoder;
use kubelet_core::log_rotation::{COMPRESSED, rotated_since, stem};

use crate::logs::{LogDir, LogPath};

mod follow;

pub use follow::{read, stream};

/// Raw bytes taken from the file in one step.
const STEP: usize = 32 * 1024;

/// Bytes by which a packed file is recognised.
const BEGINNING: u64 = 4 * 1024;

/// What of a log is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Go on when the end is reached, until the container has ended.
    pub follow: bool,
    /// Only the last lines.
    pub tail: Option<u64>,
    /// At most so many bytes.
    pub limit_bytes: Option<u64>,
    pub wanted: Wanted,
}

/// A place in a log.
#[derive(Debug)]
pub struct Cursor {
    dir: LogDir,
    log: String,
    file: Source,
    decoder: Decoder,
    /// Bytes that may still be given out.
    left: u64,
    /// Where the file ended when its last lines were counted: who asked for three gets three, however much is written
    /// meanwhile.
    end: u64,
    /// The newest rotation that lies behind us.
    passed: Option<String>,
    out: Vec<u8>,
}

#[derive(Debug)]
enum Source {
    /// `live` is the log itself; it stays so after a rotation, until it has been read to its end.
    Plain {
        file: File,
        inode: u64,
        offset: u64,
        live: bool,
    },
    Packed(Box<MultiGzDecoder<File>>),
}

/// What a step brought.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    Text(Bytes),
    /// Everything there is has been read.
    CaughtUp,
    /// Everything there is has been read, and a newer file waits. What was last written to the old
    /// one may not be visible yet: wait a moment, then call [`Cursor::advance`].
    Rotated,
    /// All that was asked for was given.
    Done,
}

// === impl Cursor ===

impl Cursor {
    pub fn open(path: &LogPath, options: &Options) -> io::Result<Self> {
        let dir = path.open_dir()?;
        let (mut file, passed) = open_live(&dir, &path.file)?;
        let found = file.metadata()?;
        let (inode, size) = (found.ino(), found.len());
        let (offset, end) = match options.tail {
            Some(lines) => (tail_offset(&file, size, lines)?, if options.follow { u64::MAX } else { size }),
            None => (0, u64::MAX),
        };
        file.seek(SeekFrom::Start(offset))?;
        Ok(Self {
            dir,
            log: path.file.clone(),
            file: Source::Plain { file, inode, offset, live: true },
            decoder: Decoder::new(options.wanted),
            left: options.limit_bytes.unwrap_or(u64::MAX),
            end,
            passed,
            out: Vec::new(),
        })
    }

    /// The next piece of text.
    pub fn step(&mut self) -> io::Result<Step> {
        let mut raw = [0; STEP];
        loop {
            let most = self.file.most(self.end);
            if self.left == 0 || most == 0 {
                return Ok(Step::Done);
            }
            let n = self.file.read(&mut raw[..most])?;
            if n == 0 {
                return self.at_end();
            }
            self.out.clear();
            self.decoder.decode(&raw[..n], &mut self.out);
            if !self.out.is_empty() {
                let give = usize::try_from(self.left).unwrap_or(usize::MAX).min(self.out.len());
                self.left -= give as u64;
                return Ok(Step::Text(Bytes::copy_from_slice(&self.out[..give])));
            }
        }
    }

    /// Leaves the file that has been read to its end for the one that follows it.
    pub fn advance(&mut self) -> io::Result<()> {
        self.decoder.end_of_file();
        if matches!(self.file, Source::Plain { live: true, .. }) {
            self.pass_own_rotation()?;
        }
        loop {
            if let Some((stem, name)) = self.rotated()?.into_iter().next() {
                let opened = self.open_rotated(&name);
                self.passed = Some(stem);
                match opened {
                    Ok(file) => self.file = file,
                    // Pruned between the listing and the opening: what follows is still there.
                    Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                    Err(e) => return Err(e),
                }
                return Ok(());
            }
            let (file, newest) = match open_live(&self.dir, &self.log) {
                // Renamed just now: then it is to be found under its new name.
                Err(e) if e.kind() == io::ErrorKind::NotFound && !self.rotated()?.is_empty() => continue,
                opened => opened?,
            };
            // Otherwise it was rotated once more just now, and that file comes first.
            if newest <= self.passed {
                let inode = file.metadata()?.ino();
                self.file = Source::Plain { file, inode, offset: 0, live: true };
                return Ok(());
            }
        }
    }

    /// The file we just read is the oldest rotation that is not behind us, unless it was pruned: then that is another
    /// one, which is still to be read.
    fn pass_own_rotation(&mut self) -> io::Result<()> {
        if let Some((stem, name)) = self.rotated()?.into_iter().next()
            && self.is_own(&name)?
        {
            self.passed = Some(stem);
        }
        Ok(())
    }

    /// Whether this is the file that we hold, under the name it has now. A packed one is another file, with the same
    /// beginning; lines carry times, so that no two files begin alike.
    fn is_own(&self, name: &str) -> io::Result<bool> {
        let Source::Plain { file, inode, .. } = &self.file else { return Ok(false) };
        if !name.ends_with(COMPRESSED) {
            match self.dir.stat(name) {
                Ok(found) => return Ok(found.st_ino == *inode),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        let packed = match name.ends_with(COMPRESSED) {
            true => self.dir.open(name),
            false => self.dir.open(&format!("{name}{COMPRESSED}")),
        };
        let packed = match packed {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            packed => packed?,
        };
        let mut beginning = Vec::new();
        // One that cannot be unpacked is compared as far as it goes.
        let _ = MultiGzDecoder::new(packed).take(BEGINNING).read_to_end(&mut beginning);
        let mut own = vec![0; beginning.len()];
        match file.read_exact_at(&mut own, 0) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            read => read.map(|()| own == beginning),
        }
    }

    fn rotated(&self) -> io::Result<Vec<(String, String)>> {
        Ok(rotated_since(&self.log, &self.dir.names(&self.log)?, self.passed.as_deref()))
    }

    fn open_rotated(&self, name: &str) -> io::Result<Source> {
        match self.dir.open(name) {
            Ok(file) if name.ends_with(COMPRESSED) => Ok(Source::Packed(Box::new(MultiGzDecoder::new(file)))),
            Ok(file) => {
                let inode = file.metadata()?.ino();
                Ok(Source::Plain { file, inode, offset: 0, live: false })
            }
            // Packed between the listing and the opening.
            Err(e) if e.kind() == io::ErrorKind::NotFound && !name.ends_with(COMPRESSED) => {
                self.open_rotated(&format!("{name}{COMPRESSED}"))
            }
            Err(e) => Err(e),
        }
    }

    fn at_end(&mut self) -> io::Result<Step> {
        let live = match self.dir.stat(&self.log) {
            Ok(stat) => stat,
            // Renamed, and the runtime has not made the new one yet.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Step::CaughtUp),
            Err(e) => return Err(e),
        };
        let Source::Plain { file, inode, offset, .. } = &mut self.file else { return Ok(Step::Rotated) };
        if live.st_ino != *inode {
            return Ok(Step::Rotated);
        }
        if u64::try_from(live.st_size).unwrap_or_default() < *offset {
            // Somebody emptied it.
            file.seek(SeekFrom::Start(0))?;
            *offset = 0;
            self.decoder.end_of_file();
        }
        Ok(Step::CaughtUp)
    }

    /// The directory, for a watch on it.
    fn watch_path(&self) -> String {
        self.dir.proc_path()
    }
}

impl Source {
    /// How much may be read in one step if nothing from `end` on is wanted.
    fn most(&self, end: u64) -> usize {
        match self {
            Source::Plain { offset, .. } => {
                usize::try_from(end.saturating_sub(*offset)).unwrap_or(STEP).min(STEP)
            }
            Source::Packed(_) => STEP,
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Source::Plain { file, offset, .. } => {
                let n = file.read(buffer)?;
                *offset += n as u64;
                Ok(n)
            }
            Source::Packed(decoder) => decoder.read(buffer),
        }
    }
}

/// Opens the log together with the newest rotation that precedes it. A rotation in between is noticed
/// and the attempt repeated.
fn open_live(dir: &LogDir, log: &str) -> io::Result<(File, Option<String>)> {
    let newest = || -> io::Result<Option<String>> {
        Ok(dir.names(log)?.iter().filter_map(|n| stem(log, n)).max().map(str::to_owned))
    };
    let mut before = newest()?;
    loop {
        let file = dir.open(log)?;
        let after = newest()?;
        if before == after {
            return Ok((file, after));
        }
        before = after;
    }
}

/// Where the last `lines` lines of the first `size` bytes begin. Pieces of one line count as one.
fn tail_offset(file: &File, size: u64, lines: u64) -> io::Result<u64> {
    const BLOCK: u64 = 16 * 1024;
    let mut block = vec![0; BLOCK as usize];
    let (mut end, mut found) = (size, 0);
    while end > 0 {
        let begin = end.saturating_sub(BLOCK);
        let slice = &mut block[..(end - begin) as usize];
        file.read_exact_at(slice, begin)?;
        for at in (0..slice.len()).rev().filter(|i| slice[*i] == b'\n') {
            let line = begin + at as u64 + 1;
            if lines == 0 {
                return Ok(line);
            }
            // A line begins where the one before it was whole.
            found += u64::from(line < size && whole_before(file, line)?);
            if found == lines {
                return Ok(line);
            }
        }
        end = begin;
    }
    Ok(0)
}

/// Whether the raw line that ends before `end` closes its line.
fn whole_before(file: &File, end: u64) -> io::Result<bool> {
    const BLOCK: u64 = 4 * 1024;
    let mut stop = end - 1;
    let mut block = vec![0; BLOCK as usize];
    let begin = loop {
        let from = stop.saturating_sub(BLOCK);
        let slice = &mut block[..(stop - from) as usize];
        file.read_exact_at(slice, from)?;
        match slice.iter().rposition(|b| *b == b'\n') {
            Some(at) => break from + at as u64 + 1,
            None if from == 0 => break 0,
            None => stop = from,
        }
    };
    let mut head = [0; 256];
    let len = usize::try_from(end - 1 - begin).unwrap_or(usize::MAX).min(head.len());
    file.read_exact_at(&mut head[..len], begin)?;
    Ok(log::parse_header(&head[..len]).is_none_or(|h| h.full))
}

#[cfg(test)]
#[path = "reader/tests.rs"]
mod tests;
