//! The configuration file under a running process: when somebody writes it, the process ends, and whoever keeps it
//! running starts it with the new one.

use std::io;
use std::path::Path;

use futures_util::StreamExt;
use inotify::{EventMask, EventStream, Inotify, WatchMask};

/// Large enough for some events of one file, whose names are not told.
const BUFFER: usize = 1024;

/// Somebody who looks at a file, wherever its name leads by now.
pub(crate) struct Watch {
    events: EventStream<Vec<u8>>,
}

// === impl Watch ===

impl Watch {
    /// From now on, whenever somebody asks.
    pub(crate) fn begin(path: &Path) -> io::Result<Self> {
        let inotify = Inotify::init()?;
        inotify.watches().add(path, WatchMask::MODIFY | WatchMask::MOVE_SELF)?;
        Ok(Self { events: inotify.into_event_stream(vec![0; BUFFER])? })
    }

    /// Returns when the file was written or moved away. As upstream, one that is deleted is none of that, nor is another
    /// that takes its name: so ConfigMaps are updated, on all nodes at once.
    pub(crate) async fn changed(&mut self) -> io::Result<()> {
        while let Some(event) = self.events.next().await {
            let mask = event?.mask;
            if mask.intersects(EventMask::MODIFY | EventMask::MOVE_SELF) {
                return Ok(());
            }
            if mask.contains(EventMask::Q_OVERFLOW) {
                return Err(io::Error::other("events were lost"));
            }
            if mask.contains(EventMask::IGNORED) {
                return std::future::pending().await;
            }
        }
        Err(io::Error::other("the watch ended"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    async fn hears(watch: &mut Watch, within: Duration) -> bool {
        tokio::time::timeout(within, watch.changed()).await.map(|heard| heard.unwrap()).is_ok()
    }

    #[tokio::test]
    async fn what_is_done_to_the_file_itself_is_noticed() {
        const SOON: Duration = Duration::from_millis(50);
        const LATE: Duration = Duration::from_secs(10);
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        type Act<'a> = &'a dyn Fn(&Path);
        let rows: [(&str, Act<'_>, bool); 5] = [
            ("a read", &|path| drop(std::fs::read(path).unwrap()), false),
            ("a write", &|path| std::fs::write(path, "b").unwrap(), true),
            ("moved away", &|path| std::fs::rename(path, path.with_extension("old")).unwrap(), true),
            ("deleted", &|path| std::fs::remove_file(path).unwrap(), false),
            (
                "replaced, as sed -i does",
                &|path| {
                    std::fs::write(path.with_extension("new"), "b").unwrap();
                    std::fs::rename(path.with_extension("new"), path).unwrap();
                },
                false,
            ),
        ];
        for (what, act, is_heard) in rows {
            std::fs::write(at("config"), "a").unwrap();
            let mut watch = Watch::begin(&at("config")).unwrap();
            assert!(!hears(&mut watch, SOON).await, "{what}");
            act(&at("config"));
            assert_eq!(hears(&mut watch, if is_heard { LATE } else { SOON }).await, is_heard, "{what}");
        }
        assert!(Watch::begin(&at("none")).is_err());
        // What happens before somebody waits counts.
        let mut watch = Watch::begin(&at("config")).unwrap();
        std::fs::write(at("config"), "c").unwrap();
        assert!(hears(&mut watch, LATE).await);
    }

    #[tokio::test]
    async fn an_update_of_a_config_map_is_left_to_whoever_made_it() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for (version, text) in [("..1", "a"), ("..2", "b")] {
            std::fs::create_dir(at(version)).unwrap();
            std::fs::write(at(version).join("config"), text).unwrap();
        }
        symlink("..1", at("..data")).unwrap();
        symlink("..data/config", at("config")).unwrap();
        let mut watch = Watch::begin(&at("config")).unwrap();
        symlink("..2", at("..tmp")).unwrap();
        std::fs::rename(at("..tmp"), at("..data")).unwrap();
        std::fs::remove_dir_all(at("..1")).unwrap();
        assert!(!hears(&mut watch, Duration::from_millis(100)).await);
    }
}
