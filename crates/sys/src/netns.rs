//! Work in another network namespace, on a thread that goes there and does not come back.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::thread;

use rustix::fs::{FsWord, fstatfs};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// `NSFS_MAGIC`: where namespaces look like files.
const NSFS: FsWord = 0x6e73_6673;

/// A network namespace by what keeps it open.
#[derive(Debug)]
pub struct Netns {
    file: File,
}

// === impl Netns ===

impl Netns {
    /// A path that leads to no namespace is `NotFound`, as one that leads nowhere: somebody unmounted it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        if fstatfs(&file)?.f_type != NSFS {
            return Err(io::Error::new(io::ErrorKind::NotFound, "it is no network namespace"));
        }
        Ok(Self { file })
    }

    /// The one that the calling thread is in.
    pub fn current() -> io::Result<Self> {
        Self::open(Path::new("/proc/thread-self/ns/net"))
    }

    /// On a thread of its own: sockets opened there stay inside, and `/proc/sys/net` is that of the namespace.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        thread::scope(|scope| {
            let entered = scope.spawn(|| {
                move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(work())
            });
            entered.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Whether both are the same.
    pub fn is(&self, other: &Netns) -> io::Result<bool> {
        Ok(self.id()? == other.id()?)
    }

    /// By which the kernel tells it from others, as long as somebody keeps it open.
    pub fn id(&self) -> io::Result<(u64, u64)> {
        let stat = rustix::fs::fstat(&self.file)?;
        Ok((stat.st_dev, stat.st_ino))
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
