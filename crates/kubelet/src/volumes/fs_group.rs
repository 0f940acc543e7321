//! fsGroup: everything in a volume belongs to a group that may use it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use kubelet_core::volumes::{ChangePolicy, FsGroup};
use rustix::fs::{FileType, Mode, OFlags, openat};
use sys::{fd, tree};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    ReadWrite,
    ReadOnly,
}

/// A walk takes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    Slow,
    /// So many files are done.
    Done(u64),
}

/// When a walk is slow, and how often it says so.
const SLOW: Duration = Duration::from_secs(30);
const AGAIN: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
struct Progress {
    files: u64,
    told: Option<Duration>,
}

impl Progress {
    /// One more file, so long after the beginning.
    fn step(&mut self, elapsed: Duration) -> Option<News> {
        self.files += 1;
        let (due, news) = match self.told {
            None => (SLOW, News::Slow),
            Some(last) => (last + AGAIN, News::Done(self.files)),
        };
        (elapsed >= due).then(|| {
            self.told = Some(elapsed);
            news
        })
    }
}

/// Walks the volume below `root`, children before their directory and the root last: a root that is
/// right means that the walk came to its end once, which is what OnRootMismatch relies on.
pub(super) fn apply(root: OwnedFd, group: FsGroup, access: Access) -> io::Result<()> {
    apply_telling(root, group, access, &mut |_| {})
}

/// The same; a walk that takes long tells how far it has come.
///
/// A file that nobody may change (its server squashes root, it lies in a snapshot, it is immutable) stays as it is and
/// holds up nobody, as upstream has it.
pub(super) fn apply_telling(
    root: OwnedFd,
    group: FsGroup,
    access: Access,
    tell: &mut dyn FnMut(News),
) -> io::Result<()> {
    if group.policy == ChangePolicy::OnRootMismatch && is_right(&root, group.gid, access)? {
        return Ok(());
    }
    let walk = root.try_clone()?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let (began, mut progress, mut kept) = (Instant::now(), Progress::default(), Kept::default());
    tree::visit(walk, &mut |dir: BorrowedFd<'_>, entry| {
        progress.step(began.elapsed()).into_iter().for_each(&mut *tell);
        let file = openat(dir, &entry.name, flags, Mode::empty())?;
        change(file.as_fd(), group.gid, access, &mut |e| kept.note(&entry.name, &e))
    })
    .map_err(io::Error::other)?;
    change(root.as_fd(), group.gid, access, &mut |e| kept.note(OsStr::new("."), &e))?;
    if let Some(first) = kept.first {
        tracing::warn!(
            gid = group.gid,
            failures = kept.failures,
            first,
            "files of a volume keep their group or mode"
        );
    }
    Ok(())
}

/// What nobody may change.
#[derive(Debug, Default)]
struct Kept {
    failures: u64,
    first: Option<String>,
}

impl Kept {
    fn note(&mut self, name: &OsStr, error: &io::Error) -> io::Result<()> {
        self.failures += 1;
        self.first.get_or_insert_with(|| format!("{}: {error}", name.display()));
        Ok(())
    }
}

/// Gives one file, directory or link to the group.
pub(super) fn set(file: impl AsFd, gid: u32, access: Access) -> io::Result<()> {
    change(file.as_fd(), gid, access, &mut Err)
}

/// The same; `failed` decides what becomes of a change that is not allowed. Links have no mode.
fn change(
    file: BorrowedFd<'_>,
    gid: u32,
    access: Access,
    failed: &mut dyn FnMut(io::Error) -> io::Result<()>,
) -> io::Result<()> {
    let st = fd::stat(file)?;
    let kind = FileType::from_raw_mode(st.st_mode);
    let old = st.st_mode & 0o7777;
    let new = old | mask(kind, access);
    let moved = st.st_gid != gid;
    if moved {
        fd::chown(file, None, Some(gid)).or_else(&mut *failed)?;
    }
    // A new group clears the setuid and setgid bits, so the mode is set after it.
    if kind != FileType::Symlink && (moved || new != old) {
        fd::chmod(file, Mode::from_raw_mode(new)).or_else(&mut *failed)?;
    }
    Ok(())
}

/// What the group must be able to do with a file of this type.
pub(super) fn mask(kind: FileType, access: Access) -> u32 {
    let files = match access {
        Access::ReadWrite => 0o660,
        Access::ReadOnly => 0o440,
    };
    if kind == FileType::Directory { files | 0o2110 } else { files }
}

fn is_right(root: &OwnedFd, gid: u32, access: Access) -> io::Result<bool> {
    let st = fd::stat(root)?;
    let mask = mask(FileType::Directory, access);
    Ok(st.st_gid == gid && st.st_mode & mask == mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_that_takes_long_says_so_now_and_then() {
        let mut progress = Progress::default();
        let told =
            [0, 29, 30, 31, 89, 90, 91, 149, 150, 400].map(|at| progress.step(Duration::from_secs(at)));
        let mut wanted = [None; 10];
        wanted[2] = Some(News::Slow);
        wanted[5] = Some(News::Done(6));
        wanted[8] = Some(News::Done(9));
        wanted[9] = Some(News::Done(10));
        assert_eq!(told, wanted);
    }
}
