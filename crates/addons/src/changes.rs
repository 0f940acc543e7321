//! Changes in a directory, told by inotify.

use std::io;
use std::path::Path;

use futures_util::StreamExt;
use inotify::{EventMask, EventStream, Inotify, WatchMask};

/// Large enough for some events with the longest names.
const BUFFER: usize = 4096;

/// Hears of files that are written, moved or removed.
#[derive(Default)]
pub(crate) struct Changes {
    /// None where the kernel has no room for it, or the directory is gone: then one looks from time to time.
    events: Option<EventStream<Vec<u8>>>,
}

// === impl Changes ===

impl Changes {
    /// What happens from here on is told, if it was not already.
    pub(crate) fn listen(&mut self, directory: &Path) {
        if self.events.is_none() {
            self.events = watch(directory).ok();
        }
    }

    /// Returns when something changed; never, where nobody tells.
    pub(crate) async fn next(&mut self) {
        let Some(events) = &mut self.events else { return std::future::pending().await };
        let event = events.next().await;
        if !matches!(event, Some(Ok(event)) if !event.mask.contains(EventMask::IGNORED)) {
            // The directory was moved or removed: there may be another under its name.
            self.events = None;
        }
    }
}

fn watch(path: &Path) -> io::Result<EventStream<Vec<u8>>> {
    let inotify = Inotify::init()?;
    let mask = WatchMask::CLOSE_WRITE
        | WatchMask::DELETE
        | WatchMask::MOVE
        | WatchMask::MOVE_SELF
        | WatchMask::DELETE_SELF;
    inotify.watches().add(path, mask)?;
    inotify.into_event_stream(vec![0; BUFFER])
}
