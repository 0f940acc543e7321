//! Giving memory back: pages of our own program and free pages of the heap.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

/// A piece of the address space, as the kernel describes it.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    start: usize,
    end: usize,
    inode: u64,
    /// Neither writable now nor holding pages that were written: the file has all of it.
    is_pristine: bool,
}

/// Hands the heap's free pages and the program's own code back to the kernel. What is still needed comes
/// back from the page cache when it is next touched. Returns the bytes of code let go, resident or not.
pub fn release() -> io::Result<usize> {
    trim_heap();
    let own = fs::metadata("/proc/self/exe")?.ino();
    let mut released = 0;
    for piece in mappings(&fs::read_to_string("/proc/self/smaps")?) {
        if piece.inode == own && piece.is_pristine {
            forget(piece.start, piece.end - piece.start)?;
            released += piece.end - piece.start;
        }
    }
    Ok(released)
}

/// From here on every thread allocates from one heap, and its free pages stay in it until [`release`]. By default each gets
/// its own, and what lives long pins pages in all of them; and whoever happens to free the last piece of many gives all
/// of them back, for tens of milliseconds in which nobody else can allocate. For programs whose threads seldom work at
/// the same time, and which call [`release`] now and then; to be called before there is a second thread.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
pub fn keep_one_heap() {
    // SAFETY: mallopt takes no pointer; the settings say where later allocations come from and where free memory goes, and
    // change no present allocation.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX);
    }
}

#[cfg(not(target_env = "gnu"))]
pub fn keep_one_heap() {}

#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
fn trim_heap() {
    // SAFETY: malloc_trim takes no pointer and keeps every allocation.
    unsafe { libc::malloc_trim(0) };
    // After many pieces were freed, each of the next requests for a large one has to put ten thousand of them in order,
    // which takes milliseconds. Nobody waits for these requests.
    for _ in 0..64 {
        drop(std::hint::black_box(Vec::<u8>::with_capacity(1 << 16)));
    }
}

#[cfg(not(target_env = "gnu"))]
fn trim_heap() {}

#[allow(unsafe_code)]
fn forget(start: usize, length: usize) -> io::Result<()> {
    // SAFETY: the range is a private, unwritable mapping of our executable without modified pages, so
    // dropping its pages loses nothing: the next access reads the same bytes from the file.
    match unsafe { libc::madvise(start as *mut libc::c_void, length, libc::MADV_DONTNEED) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads `/proc/<pid>/smaps`. A piece whose description is not understood counts as modified.
fn mappings(smaps: &str) -> Vec<Mapping> {
    let mut all: Vec<(Mapping, bool)> = Vec::new();
    for line in smaps.lines() {
        if let Some(head) = heading(line) {
            all.push(head);
        } else if let (Some(amount), Some((last, unwritable))) =
            (line.strip_prefix("Anonymous:"), all.last_mut())
        {
            last.is_pristine = *unwritable && amount.trim() == "0 kB";
        }
    }
    all.into_iter().map(|(mapping, _)| mapping).collect()
}

/// `start-end perms offset device inode path`, and whether the permissions exclude writing.
fn heading(line: &str) -> Option<(Mapping, bool)> {
    let mut words = line.split_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let (start, end) = (address(start)?, address(end)?);
    let permissions = words.next()?;
    let inode = words.nth(2)?.parse().ok()?;
    let unwritable = permissions.ends_with('p') && !permissions.contains('w');
    Some((Mapping { start, end, inode, is_pristine: false }, unwritable))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_unmodified_pieces_are_pristine() {
        let smaps = "\
00400000-00500000 r-xp 00001000 08:01 77                         /bin/program
Size:               1024 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
00600000-00700000 r--p 00101000 08:01 77                         /bin/program
Anonymous:            12 kB
00700000-00800000 rw-p 00201000 08:01 77                         /bin/program
Anonymous:             0 kB
00800000-00900000 r--s 00000000 08:01 78                         /some/file
Anonymous:             0 kB
00900000-00a00000 r-xp 00000000 00:00 0
Size:               1024 kB
";
        let found: Vec<(usize, u64, bool)> =
            mappings(smaps).iter().map(|m| (m.start, m.inode, m.is_pristine)).collect();
        assert_eq!(
            found,
            [
                (0x40_0000, 77, true),
                (0x60_0000, 77, false),
                (0x70_0000, 77, false),
                (0x80_0000, 78, false),
                (0x90_0000, 0, false)
            ]
        );
    }

    #[test]
    fn what_is_let_go_comes_back() {
        let text = "relocated and plain data".repeat(1000);
        let before = base_of(&text);
        assert!(release().unwrap() > 0, "no code of our own was found");
        assert_eq!(base_of(&text), before);
    }

    fn base_of(text: &str) -> usize {
        text.bytes().map(usize::from).sum()
    }
}
