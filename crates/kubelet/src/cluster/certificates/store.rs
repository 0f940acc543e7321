//! Certificates on disk, in upstream's layout, so that either kubelet finds what the other left:
//! `kubelet-client-<time>.pem` holds certificate and key, `kubelet-client-current.pem` points at the newest.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use base::time::Wall;
use jiff::Timestamp;

use crate::host::files::{remove, write_whole};

/// Where one kind of certificate is kept.
#[derive(Clone, Debug)]
pub(super) struct Store {
    dir: PathBuf,
    /// `kubelet-client` or `kubelet-server`
    prefix: &'static str,
}

// === impl Store ===

impl Store {
    pub(super) fn new(dir: &Path, prefix: &'static str) -> Store {
        Store { dir: dir.to_owned(), prefix }
    }

    /// The link that always leads to the newest.
    pub(super) fn current_path(&self) -> PathBuf {
        self.dir.join(format!("{}-current.pem", self.prefix))
    }

    /// Certificate and key as they are now, PEM; none if there are none.
    pub(super) fn read(&self) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.current_path()) {
            Ok(pem) => Ok(Some(pem)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Named by the second; a pair that comes in the same one as its predecessor must not overwrite it.
    fn free_path(&self, now: Wall) -> PathBuf {
        let named = |secs| self.dir.join(format!("{}-{}.pem", self.prefix, stamp(Wall::from_secs(secs))));
        let taken = |path: &PathBuf| fs::symlink_metadata(path).is_ok();
        (now.secs()..).map(named).find(|path| !taken(path)).unwrap_or_else(|| named(now.secs()))
    }

    /// Keeps a new pair and makes it the current one. There is no moment without a current one.
    pub(super) fn write(&self, certificate: &str, key: &str, now: Wall) -> io::Result<PathBuf> {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(&self.dir)?;
        let path = self.free_path(now);
        let mut text = certificate.trim_end().to_owned();
        text.push('\n');
        text.push_str(key.trim_end());
        text.push('\n');
        write_private(&path, text.as_bytes())?;
        let (current, updated) = (self.current_path(), self.dir.join(format!("{}-updated.pem", self.prefix)));
        if fs::symlink_metadata(&current).is_ok_and(|m| !m.is_symlink()) {
            let text = format!("{} is a file, not a link to one", current.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        remove(&updated)?;
        symlink(fs::canonicalize(&path)?, &updated)?;
        fs::rename(&updated, &current)?;
        Ok(path)
    }
}

/// Writes a file that only root may read, whole or not at all.
pub(super) fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_whole(path, bytes, 0o600)
}

/// `2026-01-31-23-59-59`
fn stamp(now: Wall) -> String {
    let at = Timestamp::from_second(now.secs()).unwrap_or(Timestamp::UNIX_EPOCH);
    at.strftime("%Y-%m-%d-%H-%M-%S").to_string()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_current_pair_is_a_link_to_a_private_file() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(&dir.path().join("pki"), "kubelet-client");
        assert_eq!(store.read().unwrap(), None);
        let first = store.write("CERT 1\n\n", "KEY 1", Wall::from_secs(1_700_000_000)).unwrap();
        assert_eq!(first.file_name().unwrap(), "kubelet-client-2023-11-14-22-13-20.pem");
        assert_eq!(fs::metadata(&first).unwrap().mode() & 0o777, 0o600);
        assert_eq!(store.read().unwrap().unwrap(), b"CERT 1\nKEY 1\n");
        // What a crash between link and rename left is no obstacle.
        symlink("nowhere", dir.path().join("pki/kubelet-client-updated.pem")).unwrap();
        store.write("CERT 2", "KEY 2", Wall::from_secs(1_700_000_100)).unwrap();
        assert_eq!(store.read().unwrap().unwrap(), b"CERT 2\nKEY 2\n");
        assert!(first.exists(), "the old one stays, as upstream has it");
        let third = store.write("CERT 3", "KEY 3", Wall::from_secs(1_700_000_100)).unwrap();
        assert_eq!(third.file_name().unwrap(), "kubelet-client-2023-11-14-22-15-01.pem");
        assert_eq!(store.read().unwrap().unwrap(), b"CERT 3\nKEY 3\n");
    }

    #[test]
    fn a_file_in_the_links_place_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path(), "kubelet-client");
        fs::write(store.current_path(), "mine").unwrap();
        let error = store.write("C", "K", Wall(0)).unwrap_err();
        assert!(error.to_string().contains("not a link"), "{error}");
        assert_eq!(store.read().unwrap().unwrap(), b"mine");
    }
}
