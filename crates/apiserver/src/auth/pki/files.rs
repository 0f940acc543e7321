//! Secret files: written whole or not at all, readable by their owner only.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::PkiError;

/// Makes a directory only its owner may enter.
pub(super) fn private_dir(path: &Path) -> Result<(), PkiError> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|cause| PkiError::File { act: "creating", path: path.to_owned(), cause })
}

/// Replaces a file by one with mode 0600, durably, in one step.
pub fn write_private(path: &Path, content: &[u8]) -> Result<(), PkiError> {
    let fail = |cause| PkiError::File { act: "writing", path: path.to_owned(), cause };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let temporary = path.with_file_name(name);
    let attempt = || -> io::Result<()> {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        // A file left by a crash keeps the mode it had.
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        match path.parent() {
            Some(parent) => File::open(parent)?.sync_all(),
            None => Ok(()),
        }
    };
    attempt().map_err(|cause| {
        // A full disk needs the room.
        let _ = fs::remove_file(&temporary);
        fail(cause)
    })
}

pub(super) fn read(path: &Path) -> Result<String, PkiError> {
    fs::read_to_string(path).map_err(|cause| PkiError::File { act: "reading", path: path.to_owned(), cause })
}

/// The content, or None when there is no such file.
pub(super) fn read_if_there(path: &Path) -> Result<Option<String>, PkiError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(PkiError::File { act: "reading", path: path.to_owned(), cause }),
    }
}

/// The first file of a directory, by name, that is none of these.
pub(super) fn first_besides(dir: &Path, names: &[&str]) -> Result<Option<PathBuf>, PkiError> {
    let list = || -> io::Result<Option<PathBuf>> {
        let mut others = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if !names.iter().any(|name| entry.file_name() == *name) {
                others.push(entry.path());
            }
        }
        Ok(others.into_iter().min())
    };
    list().map_err(|cause| PkiError::File { act: "listing", path: dir.to_owned(), cause })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_leaves_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.key");
        // It cannot be given this name.
        fs::create_dir_all(path.join("taken")).unwrap();
        write_private(&path, b"one").unwrap_err();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_secret_is_replaced_whole_and_stays_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.key");
        fs::write(dir.path().join("ca.key.new"), "half").unwrap();
        write_private(&path, b"one").unwrap();
        write_private(&path, b"two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(read_if_there(&dir.path().join("none")).unwrap(), None);
    }
}
