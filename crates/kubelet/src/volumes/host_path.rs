//! hostPath: nothing is made ours; the path is checked, or made where the type says so.

use std::fs::{self, FileType};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use kubelet_core::volumes::HostPathKind;
use rustix::fs::{Mode, OFlags};

use super::kind::{NoRoot, Tools, VolumeKind};
use super::site::Site;
use crate::ports::MountedVolume;

pub(super) struct HostPath<'a> {
    pub(super) path: &'a Path,
    pub(super) kind: HostPathKind,
    pub(super) read_only: bool,
}

// === impl HostPath ===

impl HostPath<'_> {
    fn here(&self) -> MountedVolume {
        MountedVolume::Host { path: self.path.to_owned(), read_only: self.read_only }
    }
}

impl VolumeKind for HostPath<'_> {
    fn set_up(&self, _: &Site<'_>, _: &Tools<'_>) -> io::Result<MountedVolume> {
        check(self.path, self.kind).map(|()| self.here())
    }

    fn standing(&self, _: &Site<'_>, is_known: bool) -> Option<MountedVolume> {
        is_known.then(|| self.here())
    }

    fn open(&self, _: &Site<'_>) -> Result<OwnedFd, NoRoot> {
        Ok(open(self.path)?)
    }

    fn is_set_up_once(&self) -> bool {
        true
    }
}

/// The root of the volume. Links on the way are the node's own and are followed.
pub(super) fn open(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// The messages are upstream's.
fn check(path: &Path, kind: HostPathKind) -> io::Result<()> {
    // Then nobody looks.
    if kind == HostPathKind::Unset {
        return Ok(());
    }
    let found = match fs::metadata(path) {
        Ok(found) => Some(found.file_type()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(e),
    };
    let is = |like: fn(&FileType) -> bool| found.as_ref().is_some_and(like);
    let (fits, wanted) = match kind {
        HostPathKind::Unset => return Ok(()),
        HostPathKind::DirectoryOrCreate if found.is_none() => return make_directory(path),
        HostPathKind::FileOrCreate if found.is_none() => return make_file(path),
        HostPathKind::DirectoryOrCreate | HostPathKind::Directory => (is(FileType::is_dir), "directory"),
        HostPathKind::FileOrCreate | HostPathKind::File => (is(FileType::is_file), "file"),
        HostPathKind::Socket => (is(FileType::is_socket), "socket file"),
        HostPathKind::CharDevice => (is(FileType::is_char_device), "character device"),
        HostPathKind::BlockDevice => (is(FileType::is_block_device), "block device"),
    };
    if fits {
        return Ok(());
    }
    Err(io::Error::other(format!("hostPath type check failed: {} is not a {wanted}", path.display())))
}

fn make_directory(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(path)
}

fn make_file(path: &Path) -> io::Result<()> {
    // Not truncated: somebody may have made it meanwhile.
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o644).open(path).map(drop)
}
