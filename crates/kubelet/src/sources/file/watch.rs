//! Hearing of changes at a path by inotify. Deaf ears cost only latency: the periodic re-list
//! finds everything.

use std::io;
use std::path::{Path, PathBuf};

use inotify::{EventMask, Inotify, WatchMask};
use tokio::io::unix::AsyncFd;

/// A watch on a directory, or on the directory that holds a single file.
pub(super) struct Watch {
    inotify: AsyncFd<Inotify>,
    stale: bool,
}

impl Watch {
    /// `None` when the path does not exist or inotify has no room; the caller then looks often.
    pub(super) fn start(path: &Path) -> Option<Watch> {
        let directory = if path.is_dir() { path.to_owned() } else { parent(path) };
        path.exists().then_some(())?;
        match Self::on(&directory) {
            Ok(watch) => Some(watch),
            Err(e) => {
                tracing::warn!(path = %directory.display(), error = %e, "cannot watch the manifest path");
                None
            }
        }
    }

    fn on(directory: &Path) -> io::Result<Watch> {
        let inotify = Inotify::init()?;
        // Names that begin with a dot count too: a link `..data` is how atomic publishers switch.
        let mask = WatchMask::CLOSE_WRITE
            | WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVE
            | WatchMask::ATTRIB
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF;
        inotify.watches().add(directory, mask)?;
        // The successor of `new` is unsafe, for types that may swap their descriptor; `Inotify` owns
        // its one descriptor for life.
        #[allow(deprecated)]
        let inotify = AsyncFd::new(inotify)?;
        Ok(Watch { inotify, stale: false })
    }

    /// The watched directory itself is gone; a new watch is needed.
    pub(super) fn is_stale(&self) -> bool {
        self.stale
    }

    /// Returns when something changed, with everything heard so far swallowed.
    pub(super) async fn changed(&mut self) {
        let mut buffer = [0; 4096];
        let Ok(mut guard) = self.inotify.readable_mut().await else {
            self.stale = true;
            return;
        };
        let mut gone = false;
        let result = guard.try_io(|fd| {
            loop {
                match fd.get_mut().read_events(&mut buffer) {
                    Ok(events) => {
                        let end = EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::IGNORED;
                        gone |= events.into_iter().any(|e| e.mask.intersects(end));
                    }
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                    Err(e) => return Err(e),
                }
            }
        });
        guard.clear_ready();
        self.stale |= gone || matches!(result, Ok(Err(_)));
    }
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p.to_owned(),
        _ => PathBuf::from("."),
    }
}
