//! inotify on the event loop.

use std::ffi::OsStr;
use std::io;

use inotify::{Event, Inotify, Watches};
use tokio::io::unix::AsyncFd;

/// Tells of changes to what it watches.
#[derive(Debug)]
pub(crate) struct InotifyStream(AsyncFd<Inotify>);

// === impl InotifyStream ===

impl InotifyStream {
    /// Fails where inotify has no room.
    pub(crate) fn new() -> io::Result<Self> {
        // The successor of `new` is unsafe, for types that may swap their descriptor; `Inotify` owns its one
        // descriptor for life.
        #[allow(deprecated)]
        AsyncFd::new(Inotify::init()?).map(Self)
    }

    pub(crate) fn watches(&self) -> Watches {
        self.0.get_ref().watches()
    }

    /// Waits until something changed, and passes on everything heard so far.
    pub(crate) async fn read_events(&mut self, mut each: impl FnMut(Event<&OsStr>)) -> io::Result<()> {
        let mut buffer = [0; 4096];
        let mut guard = self.0.readable_mut().await?;
        let heard = guard.try_io(|fd| {
            loop {
                match fd.get_mut().read_events(&mut buffer) {
                    Ok(events) => events.for_each(&mut each),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                    Err(e) => return Err(e),
                }
            }
        });
        guard.clear_ready();
        heard.unwrap_or(Ok(()))
    }
}
