//! The configuration file under a running process: when somebody writes it, the process ends, and whoever keeps it
//! running starts it with the new one.

use std::io;
use std::path::Path;

use futures_util::StreamExt;
use inotify::{Inotify, WatchMask};

/// Large enough for some events of one file, whose names are not told.
const BUFFER: usize = 1024;

/// Returns when the file was written or moved away.
pub(crate) async fn changed(path: &Path) -> io::Result<()> {
    let inotify = Inotify::init()?;
    inotify.watches().add(path, WatchMask::MODIFY | WatchMask::MOVE_SELF)?;
    let mut events = inotify.into_event_stream(vec![0; BUFFER])?;
    match events.next().await {
        Some(event) => event.map(drop),
        None => Err(io::Error::other("the watch ended")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn a_write_is_noticed_and_a_read_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        std::fs::write(&path, "a").unwrap();
        let mut waiting = Box::pin(changed(&path));
        let soon = Duration::from_millis(20);
        assert!(tokio::time::timeout(soon, &mut waiting).await.is_err());
        std::fs::read(&path).unwrap();
        assert!(tokio::time::timeout(soon, &mut waiting).await.is_err());
        std::fs::write(&path, "b").unwrap();
        tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap().unwrap();
        assert!(changed(&dir.path().join("none")).await.is_err());
    }
}
