//! Changes at a path, told by inotify. Without it only latency suffers: the periodic re-list
//! finds everything.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::BitOrAssign;
use std::path::{Path, PathBuf};

use inotify::{EventMask, WatchMask};

use crate::host::inotify::InotifyStream;

/// A watch on a directory, or on the directory that holds a single file.
pub(super) struct Watch {
    inotify: InotifyStream,
    stale: bool,
}

/// What was heard, as far as it says whether more is to come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// A file is there whole: written and closed, or moved in.
    pub(super) arrived: bool,
    /// A file that was read is gone, perhaps to be replaced the next moment.
    pub(super) left: bool,
    /// Names that were deleted, and not only moved aside.
    pub(super) deleted: BTreeSet<OsString>,
}

// === impl Watch ===

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
        let inotify = InotifyStream::new()?;
        // Names that begin with a dot count too: a link `..data` is how atomic publishers switch.
        let mask = WatchMask::CLOSE_WRITE
            | WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVE
            | WatchMask::ATTRIB
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF;
        inotify.watches().add(directory, mask)?;
        Ok(Watch { inotify, stale: false })
    }

    /// The watched directory itself is gone; a new watch is needed.
    pub(super) fn is_stale(&self) -> bool {
        self.stale
    }

    /// Returns when something changed, with everything heard so far swallowed.
    pub(super) async fn changed(&mut self) -> News {
        let end = EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::IGNORED;
        let (mut news, mut gone) = (News::default(), false);
        let heard = self.inotify.read_events(|event| {
            gone |= event.mask.intersects(end);
            news |= News::of(event.mask, event.name.unwrap_or_default());
        });
        let heard = heard.await;
        self.stale |= gone || heard.is_err();
        news
    }
}

// === impl News ===

impl News {
    fn of(mask: EventMask, name: &OsStr) -> Self {
        // Files that begin with a dot are not read; a link of such a name may lead to those that are.
        let hidden = name.as_encoded_bytes().starts_with(b".");
        let whole = if hidden { EventMask::MOVED_TO } else { EventMask::MOVED_TO | EventMask::CLOSE_WRITE };
        Self {
            arrived: mask.intersects(whole),
            left: !hidden && mask.intersects(EventMask::MOVED_FROM | EventMask::DELETE),
            deleted: (!hidden && mask.contains(EventMask::DELETE))
                .then(|| name.to_owned())
                .into_iter()
                .collect(),
        }
    }
}

impl BitOrAssign for News {
    fn bitor_assign(&mut self, other: Self) {
        self.arrived |= other.arrived;
        self.left |= other.left;
        self.deleted.extend(other.deleted);
    }
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p.to_owned(),
        _ => PathBuf::from("."),
    }
}
