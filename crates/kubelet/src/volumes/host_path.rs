//! hostPath: nothing is made ours; the path is checked, or made where the type says so.

use std::fs::{self, FileType};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use kubelet_core::volumes::HostPathKind;
use rustix::fs::{Mode, OFlags};

pub(super) fn set_up(path: &Path, kind: HostPathKind) -> io::Result<PathBuf> {
    if kind != HostPathKind::Unset {
        check(path, kind)?;
    }
    Ok(path.to_owned())
}

/// The root of the volume. Links on the way are the node's own and are followed.
pub(super) fn open(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// The messages are upstream's.
fn check(path: &Path, kind: HostPathKind) -> io::Result<()> {
    let found = match fs::metadata(path) {
        Ok(found) => found.file_type(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return make(path, kind),
        Err(e) => return Err(e),
    };
    let (fits, wanted) = match kind {
        HostPathKind::Unset => return Ok(()),
        HostPathKind::DirectoryOrCreate | HostPathKind::Directory => (found.is_dir(), "directory"),
        HostPathKind::FileOrCreate | HostPathKind::File => (found.is_file(), "file"),
        HostPathKind::Socket => (found.is_socket(), "socket file"),
        HostPathKind::CharDevice => (found.is_char_device(), "character device"),
        HostPathKind::BlockDevice => (found.is_block_device(), "block device"),
    };
    if fits {
        return Ok(());
    }
    let (path, is) = (path.display(), name(found));
    Err(io::Error::other(format!("hostPath type check failed: {path} is not a {wanted}, it's a {is}")))
}

fn make(path: &Path, kind: HostPathKind) -> io::Result<()> {
    match kind {
        HostPathKind::DirectoryOrCreate => fs::DirBuilder::new().recursive(true).mode(0o755).create(path),
        HostPathKind::FileOrCreate => {
            // Not truncated: somebody may have made it meanwhile.
            let mut options = fs::OpenOptions::new();
            options.write(true).create(true).truncate(false).mode(0o644).open(path).map(drop)
        }
        _ => {
            let message = format!("hostPath type check failed: hostPath {} doesn't exist", path.display());
            Err(io::Error::new(io::ErrorKind::NotFound, message))
        }
    }
}

fn name(found: FileType) -> &'static str {
    match found {
        f if f.is_dir() => "Directory",
        f if f.is_file() => "File",
        f if f.is_socket() => "Socket",
        f if f.is_char_device() => "CharDevice",
        f if f.is_block_device() => "BlockDevice",
        f if f.is_fifo() => "FIFO",
        _ => "special file",
    }
}
