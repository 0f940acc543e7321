//! The sockets below a directory, and a watch on changes among them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use inotify::{WatchMask, Watches};

use crate::host::inotify::InotifyStream;

/// Tells a socket from one that was made anew at its place. A change of its mode or owner does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Birth {
    inode: u64,
    at: (i64, i64),
}

/// Nobody nests deeper, and a loop of links ends here.
const DEPTH: usize = 8;
/// More sockets than any node has.
const MOST: usize = 1024;

/// Every socket below the directory, which is made where it is missing. It is watched before it is looked at, so that no
/// change falls between the two. Blocks.
pub(super) fn look(dir: &Path, watches: Option<&mut Watches>) -> BTreeMap<PathBuf, Birth> {
    if let Err(error) = fs::create_dir_all(dir) {
        tracing::warn!(dir = %dir.display(), %error, "no directory for plugins to register in");
    }
    if let Some(watches) = watches {
        watch_below(watches, dir);
    }
    sockets(dir)
}

/// Every socket below `dir`. Names that begin with a dot are not for us.
pub(super) fn sockets(dir: &Path) -> BTreeMap<PathBuf, Birth> {
    let mut found = BTreeMap::new();
    walk(dir, DEPTH, &mut |path, meta| {
        if meta.file_type().is_socket() && found.len() < MOST {
            found.insert(path, Birth { inode: meta.ino(), at: (meta.mtime(), meta.mtime_nsec()) });
        }
    });
    found
}

fn walk(dir: &Path, depth: usize, visit: &mut dyn FnMut(PathBuf, &fs::Metadata)) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let Ok(meta) = entry.metadata() else { continue };
        visit(entry.path(), &meta);
        if meta.is_dir() && depth > 0 {
            walk(&entry.path(), depth - 1, visit);
        }
    }
}

/// A watch on sockets and directories that come and go; none where inotify has no room.
pub(super) fn open_inotify() -> Option<InotifyStream> {
    InotifyStream::new().map_err(|error| tracing::warn!(%error, "plugins are looked for every second")).ok()
}

/// Listens to the directory and all below it; those it listens to already stay as they are.
pub(super) fn watch_below(watches: &mut Watches, dir: &Path) {
    let mut dirs = vec![dir.to_owned()];
    walk(dir, DEPTH, &mut |path, meta| {
        if meta.is_dir() {
            dirs.push(path);
        }
    });
    let mask = WatchMask::CREATE | WatchMask::DELETE | WatchMask::MOVE | WatchMask::ONLYDIR;
    for dir in dirs {
        if let Err(error) = watches.add(&dir, mask) {
            tracing::debug!(dir = %dir.display(), %error, "directory of plugins not watched");
        }
    }
}

/// Returns when something changed; never without inotify.
pub(super) async fn changed(inotify: &mut Option<InotifyStream>) {
    let Some(inotify) = inotify else { return std::future::pending().await };
    if let Err(error) = inotify.read_events(|_| ()).await {
        tracing::debug!(%error, "inotify fell silent");
        // The slow look remains.
        std::future::pending().await
    }
}
