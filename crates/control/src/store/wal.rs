//! Telling a torn write-ahead log from a damaged one.
//!
//! After a crash the log may end in a transaction that did not reach the disk whole; the engine drops it, and rightly,
//! since nobody was told of it. But the engine reads on only to the first frame whose checksum is wrong, so a flipped
//! bit in the middle would silently drop everything behind it. A transaction starts only after the one before it was
//! synced. So when a wrong frame is followed by the end of its transaction and by yet another frame of the same
//! generation, that transaction was on the disk once, and acknowledged.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use super::error::{Corruption, OpenError};

const MAGIC: u32 = 0x377f_0682;
const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;

/// Refuses a write-ahead log that has lost what was acknowledged.
pub(super) fn check(path: &Path) -> Result<(), OpenError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(OpenError::io("opening", path)(cause)),
    };
    match scan(&mut BufReader::with_capacity(64 << 10, file)) {
        Ok(None) => Ok(()),
        Ok(Some(what)) => Err(Corruption::whole(path, what).into()),
        Err(cause) => Err(OpenError::io("reading", path)(cause)),
    }
}

/// What is wrong, if anything is.
fn scan(input: &mut impl Read) -> io::Result<Option<String>> {
    let mut header = [0; HEADER];
    if !fill(input, &mut header)? || header == [0; HEADER] {
        return Ok(None);
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
        return Ok(frames.then(|| "the header of the write-ahead log is damaged".to_owned()));
    }
    let generation = Generation { big_endian, page, salt: [word(&header, 16), word(&header, 20)] };
    let damaged = scan_frames(input, &generation, sums)?;
    Ok(damaged.map(|frame| {
        format!("frame {frame} of the write-ahead log is damaged, and later ones would be lost")
    }))
}

/// What the frames of one filling of the log have in common.
struct Generation {
    big_endian: bool,
    page: usize,
    salt: [u32; 2],
}

/// The number of the frame that hides acknowledged ones.
fn scan_frames(
    input: &mut impl Read,
    generation: &Generation,
    mut sums: (u32, u32),
) -> io::Result<Option<u64>> {
    let mut frame = vec![0; FRAME_HEADER + generation.page];
    let mut number = 0;
    let mut wrong = None;
    let mut ended = false;
    while fill(input, &mut frame)? {
        number += 1;
        let ours = [word(&frame, 8), word(&frame, 12)] == generation.salt;
        let Some(wrong) = wrong else {
            let next = sum(generation.big_endian, sums, &frame[..8]);
            let next = sum(generation.big_endian, next, &frame[FRAME_HEADER..]);
            if ours && next == (word(&frame, 16), word(&frame, 20)) {
                sums = next;
            } else {
                wrong = Some(number);
                ended = ours && word(&frame, 4) != 0;
            }
            continue;
        };
        if ours && ended {
            return Ok(Some(wrong));
        }
        ended |= ours && word(&frame, 4) != 0;
    }
    Ok(None)
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
