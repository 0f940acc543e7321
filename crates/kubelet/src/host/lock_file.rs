//! The file that says that a kubelet is running: a second one waits for it, or makes the first one leave.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use inotify::WatchMask;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tokio_util::sync::CancellationToken;

use crate::host::inotify::InotifyStream;

/// How often a lock that somebody else has is asked for again.
const AGAIN: Duration = Duration::from_millis(100);

/// A lock that is held until this is dropped.
#[derive(Debug)]
pub(crate) struct LockFile {
    path: PathBuf,
    _file: File,
}

// === impl LockFile ===

impl LockFile {
    /// Waits until nobody else has the lock.
    pub(crate) async fn hold(path: &Path) -> io::Result<Self> {
        let place = path.to_owned();
        let opening = tokio::task::spawn_blocking(move || {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600).open(place)
        });
        let file = opening.await.map_err(io::Error::other)??;
        let mut told = false;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { path: path.to_owned(), _file: file }),
                Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            if !std::mem::replace(&mut told, true) {
                tracing::info!(path = %path.display(), "waiting for the lock that another kubelet holds");
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Hears of anybody who opens or removes the file: they want this kubelet to leave.
    pub(crate) fn listen(&self) -> io::Result<Contention> {
        let inotify = InotifyStream::new()?;
        inotify.watches().add(&self.path, WatchMask::OPEN | WatchMask::DELETE_SELF)?;
        Ok(Contention(inotify))
    }
}

/// A watch on the lock file.
#[derive(Debug)]
pub(crate) struct Contention(InotifyStream);

// === impl Contention ===

impl Contention {
    /// Ends everything that the token ends when somebody else wants the lock.
    pub(crate) async fn leave(mut self, token: CancellationToken) {
        tokio::select! {
            () = token.cancelled() => {}
            _ = self.0.read_events(|_| {}) => {
                tracing::info!("somebody else wants the lock file; leaving");
                token.cancel();
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_second_waits_and_the_first_hears_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubelet.lock");
        let first = LockFile::hold(&path).await.unwrap();
        let token = CancellationToken::new();
        let leaving = tokio::spawn(first.listen().unwrap().leave(token.clone()));
        assert!(!token.is_cancelled());
        let mut second = Box::pin(LockFile::hold(&path));
        tokio::select! {
            _ = &mut second => panic!("two have the lock"),
            left = leaving => left.unwrap(),
        }
        assert!(token.is_cancelled());
        drop(first);
        second.await.unwrap();
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_made_is_an_error() {
        assert!(LockFile::hold(Path::new("/proc/no/such/lock")).await.is_err());
    }
}
