//! The directory of one container's logs, held by descriptor.
//!
//! A Pod that mounts the host's log directory can put symlinks there. Everything below the root is
//! therefore opened relative to a descriptor, with symlinks refused.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat};

/// A container's log directory.
#[derive(Debug)]
pub struct LogDir {
    fd: OwnedFd,
}

/// Where a log is: a file of a [`LogDir`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPath {
    /// The directory of all Pods' logs.
    pub root: PathBuf,
    /// Below the root, down to the container's directory.
    pub directory: PathBuf,
    /// `<restart>.log`.
    pub file: String,
}

// === impl LogPath ===

impl LogPath {
    /// Splits an absolute path; `None` when it is not below `root`.
    #[must_use]
    pub fn below(root: &Path, path: &Path) -> Option<Self> {
        let relative = path.strip_prefix(root).ok()?;
        let file = relative.file_name()?.to_str()?.to_owned();
        Some(Self { root: root.to_owned(), directory: relative.parent()?.to_owned(), file })
    }

    pub fn open_dir(&self) -> io::Result<LogDir> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&self.root, flags, Mode::empty())?;
        let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let directory = if self.directory.as_os_str().is_empty() { Path::new(".") } else { &self.directory };
        let fd = rustix::fs::openat2(root, directory, flags, Mode::empty(), inside)?;
        Ok(LogDir { fd })
    }
}

// === impl LogDir ===

impl LogDir {
    /// Opens a regular file for reading; a fifo, device or symlink is an error, and never waited for.
    pub fn open(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::empty())?;
        if FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) != FileType::RegularFile {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name} is not a regular file")));
        }
        Ok(File::from(fd))
    }

    /// Creates a file that must not exist yet.
    pub fn create(&self, name: &str, mode: u32) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(File::from(rustix::fs::openat(&self.fd, name, flags, Mode::from_raw_mode(mode))?))
    }

    pub fn stat(&self, name: &str) -> io::Result<Stat> {
        Ok(rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Renames unless something already has that name.
    pub fn rename_back(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat_with(&self.fd, from, &self.fd, to, RenameFlags::NOREPLACE)?)
    }

    /// Removes a file; one that is gone already is fine.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Err(rustix::io::Errno::NOENT) => Ok(()),
            other => Ok(other?),
        }
    }

    /// The names in the directory that begin with `prefix`.
    pub fn names(&self, prefix: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().to_str()
                && name.starts_with(prefix)
            {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// For inotify, which wants a path.
    pub(crate) fn proc_path(&self) -> String {
        use std::os::fd::AsRawFd;
        format!("/proc/self/fd/{}", self.fd.as_raw_fd())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn symlinks_are_refused_at_every_step() {
        let root = tempfile::tempdir().unwrap();
        let secret = root.path().join("secret");
        std::fs::create_dir(&secret).unwrap();
        std::fs::write(secret.join("0.log"), "s").unwrap();
        let logs = root.path().join("logs");
        std::fs::create_dir_all(logs.join("pod/c")).unwrap();
        symlink(secret.join("0.log"), logs.join("pod/c/0.log")).unwrap();
        symlink(&secret, logs.join("pod/d")).unwrap();
        let path = |d: &str| LogPath::below(&logs, &logs.join(d)).unwrap();
        assert!(path("pod/c/0.log").open_dir().unwrap().open("0.log").is_err());
        assert!(path("pod/d/0.log").open_dir().is_err());
        assert!(path("../secret/0.log").open_dir().is_err());
        assert_eq!(LogPath::below(&logs, &secret), None);
    }

    #[test]
    fn a_fifo_is_not_waited_for() {
        let root = tempfile::tempdir().unwrap();
        let fifo = root.path().join("0.log");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let dir = LogPath::below(root.path(), &fifo).unwrap().open_dir().unwrap();
        assert!(dir.open("0.log").is_err());
    }
}
