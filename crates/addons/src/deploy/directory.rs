//! The directory of manifests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::changes::Changes;
use crate::core::manifest::wanted;

/// A file that is larger is no manifest.
const LARGEST: u64 = 8 << 20;
/// More files than this are no directory of manifests.
const MOST: usize = 1000;

/// The text of a file, or why it cannot be had.
pub(super) type Content = Result<String, String>;

pub(super) struct Directory {
    path: PathBuf,
    changes: Changes,
}

// === impl Directory ===

impl Directory {
    pub(super) fn new(path: PathBuf) -> Directory {
        Directory { path, changes: Changes::default() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The files that count, each with what is in it. Changes from here on are heard of.
    pub(super) async fn read(&mut self) -> io::Result<BTreeMap<String, Content>> {
        self.changes.listen(&self.path);
        let path = self.path.clone();
        tokio::task::spawn_blocking(move || read_all(&path))
            .await
            .unwrap_or_else(|e| Err(io::Error::other(e)))
    }

    /// Returns when something changed; never, where nobody tells.
    pub(super) async fn changed(&mut self) {
        self.changes.next().await;
    }
}

fn read_all(path: &Path) -> io::Result<BTreeMap<String, Content>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(path)? {
        // A name that is no text is none of a manifest.
        names.extend(entry?.file_name().into_string());
    }
    if names.len() > MOST {
        return Err(io::Error::other(format!("more than {MOST} files")));
    }
    Ok(wanted(&names).map(|name| (name.to_owned(), read_one(&path.join(name)))).collect())
}

fn read_one(path: &Path) -> Content {
    let read = || {
        let file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is no file"));
        }
        let mut bytes = Vec::new();
        file.take(LARGEST + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes: Vec<u8> = read().map_err(|error: io::Error| error.to_string())?;
    if bytes.len() as u64 > LARGEST {
        return Err(format!("it is larger than {LARGEST} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "not valid UTF-8 text".to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn changes_are_heard_and_odd_files_are_told() {
        let scratch = tempfile::tempdir().unwrap();
        let mut directory = Directory::new(scratch.path().to_owned());
        assert!(directory.read().await.unwrap().is_empty());
        fs::write(scratch.path().join("a.yaml"), "kind: X\n").unwrap();
        directory.changed().await;
        fs::create_dir(scratch.path().join("b.yaml")).unwrap();
        fs::write(scratch.path().join("c.json"), [0xff]).unwrap();
        let files = directory.read().await.unwrap();
        assert_eq!(files["a.yaml"].as_deref(), Ok("kind: X\n"));
        assert_eq!(files["b.yaml"], Err("it is no file".to_owned()));
        assert_eq!(files["c.json"], Err("not valid UTF-8 text".to_owned()));
        fs::remove_file(scratch.path().join("a.yaml")).unwrap();
        directory.changed().await;
        assert_eq!(directory.read().await.unwrap().len(), 2);
    }

    #[tokio::test]
    async fn a_directory_that_is_gone_is_an_error_and_not_empty() {
        let scratch = tempfile::tempdir().unwrap();
        let mut directory = Directory::new(scratch.path().join("none"));
        assert!(directory.read().await.is_err());
    }
}
