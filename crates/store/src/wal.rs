//! Telling a torn write-ahead log from a damaged one, and keeping it so that one can.
//!
//! After a crash the log may end in a transaction that did not reach the disk whole; the engine drops it, and rightly,
//! since nobody was told of it. But the engine reads on only to the first frame whose checksum is wrong, so a flipped
//! bit in the middle would silently drop everything behind it. A transaction starts only after the one before it was
//! synced, or cut off again. So when a wrong frame is followed by the end of its transaction and by yet another frame of
//! the same generation, that transaction was on the disk once, and acknowledged.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::error::{Corruption, OpenError};

const MAGIC: u32 = 0x377f_0682;
const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;

/// What a look at a log found.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    /// What is wrong, if anything is.
    damage: Option<String>,
    /// Frames behind the last whole transaction.
    torn: u64,
}

/// Refuses a write-ahead log that has lost what was acknowledged.
pub(super) fn check(path: &Path) -> Result<(), OpenError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(OpenError::io("opening", path)(cause)),
    };
    let found =
        scan(&mut BufReader::with_capacity(64 << 10, file)).map_err(OpenError::io("reading", path))?;
    if let Some(what) = found.damage {
        return Err(Corruption::whole(path, what).into());
    }
    if found.torn > 0 {
        tracing::warn!(
            frames = found.torn,
            "the last transaction did not reach the disk whole and is dropped; nobody was told that it was done"
        );
    }
    Ok(())
}

/// Puts a file on the disk as it is read. Its last writer may have died of a sync that failed; then the kernel shows
/// pages that are nowhere else, and takes them for written. Written anew they are not.
pub(super) fn settle(path: &Path) -> Result<(), OpenError> {
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(OpenError::io("opening", path)(cause)),
    };
    let rewrite = || -> io::Result<()> {
        let mut buffer = vec![0; 64 << 10];
        let mut at = 0;
        loop {
            let count = file.read_at(&mut buffer, at)?;
            if count == 0 {
                return file.sync_all();
            }
            file.write_all_at(&buffer[..count], at)?;
            at += count as u64;
        }
    };
    rewrite().map_err(OpenError::io("writing", path))
}

/// Leaves so many frames in the log. The engine knows of no more, and locks other files than this one.
pub(super) fn cut(path: &Path, frames: u64) -> io::Result<()> {
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound && frames == 0 => return Ok(()),
        Err(cause) => return Err(cause),
    };
    let mut length = 0;
    if frames > 0 {
        let mut header = [0; HEADER];
        file.read_exact_at(&mut header, 0)?;
        length = HEADER as u64 + frames * (FRAME_HEADER as u64 + u64::from(word(&header, 8)));
    }
    if file.metadata()?.len() > length {
        file.set_len(length)?;
    }
    file.sync_all()
}

fn scan(input: &mut impl Read) -> io::Result<Found> {
    let mut header = [0; HEADER];
    if !fill(input, &mut header)? || header == [0; HEADER] {
        return Ok(Found::default());
    }
    let magic = word(&header, 0);
    let big_endian = magic & 1 == 1;
    let page = word(&header, 8) as usize;
    let sums = sum(big_endian, (0, 0), &header[..24]);
    let whole = magic & !1 == MAGIC
        && sums == (word(&header, 24), word(&header, 28))
        && (512..=65_536).contains(&page)
        && page.is_power_of_two();
    if !whole {
        // The header is synced before the first frame is written, so no crash leaves frames behind a bad one.
        let mut one = [0; FRAME_HEADER];
        let frames = fill(input, &mut one)?;
        let damage = frames.then(|| "the header of the write-ahead log is damaged".to_owned());
        return Ok(Found { damage, torn: 0 });
    }
    let generation = Generation { big_endian, page, salt: [word(&header, 16), word(&header, 20)] };
    scan_frames(input, &generation, sums)
}

/// What the frames of one filling of the log have in common.
struct Generation {
    big_endian: bool,
    page: usize,
    salt: [u32; 2],
}

fn scan_frames(input: &mut impl Read, generation: &Generation, mut sums: (u32, u32)) -> io::Result<Found> {
    let mut frame = vec![0; FRAME_HEADER + generation.page];
    // The frame now, the last one of a whole transaction, and the last one of this generation.
    let (mut number, mut whole, mut last) = (0, 0, 0);
    let mut wrong: Option<u64> = None;
    let mut ended = false;
    while fill(input, &mut frame)? {
        number += 1;
        let ours = [word(&frame, 8), word(&frame, 12)] == generation.salt;
        let is_end = ours && word(&frame, 4) != 0;
        if ours {
            last = number;
        }
        let Some(wrong) = wrong else {
            let next = sum(generation.big_endian, sums, &frame[..8]);
            let next = sum(generation.big_endian, next, &frame[FRAME_HEADER..]);
            if ours && next == (word(&frame, 16), word(&frame, 20)) {
                sums = next;
                whole = if is_end { number } else { whole };
            } else {
                wrong = Some(number);
                ended = is_end;
            }
            continue;
        };
        if ours && ended {
            let what =
                format!("frame {wrong} of the write-ahead log is damaged, and later ones would be lost");
            return Ok(Found { damage: Some(what), torn: 0 });
        }
        ended |= is_end;
    }
    Ok(Found { damage: None, torn: last - whole })
}

/// The engine's checksum: two sums, each over the words and the other.
fn sum(big_endian: bool, start: (u32, u32), data: &[u8]) -> (u32, u32) {
    let read = |b: &[u8]| match b.first_chunk() {
        Some(four) if big_endian => u32::from_be_bytes(*four),
        Some(four) => u32::from_le_bytes(*four),
        None => 0,
    };
    data.chunks_exact(8).fold(start, |(a, b), pair| {
        let a = a.wrapping_add(read(&pair[..4])).wrapping_add(b);
        (a, b.wrapping_add(read(&pair[4..])).wrapping_add(a))
    })
}

fn word(data: &[u8], at: usize) -> u32 {
    data[at..].first_chunk().map_or(0, |four| u32::from_be_bytes(*four))
}

/// False at the end of the input, also in the middle of the buffer.
fn fill(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match input.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(cause) => Err(cause),
    }
}
