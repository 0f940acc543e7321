//! What is written down of images and layers, each in a file of its own.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::digest::{DiffId, Digest};
use crate::error::{Doing, Error};

/// Of one record; a manifest and a configuration are within it.
const RECORD_MAX: u64 = 64 << 20;

/// An image: written when all its layers are on the disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageRecord {
    /// Where two records claim one name, the younger has it.
    pub(crate) age: u64,
    pub(crate) id: Digest,
    pub(crate) tags: BTreeSet<String>,
    pub(crate) digests: BTreeSet<String>,
    pub(crate) size: u64,
    #[serde(default)]
    pub(crate) pinned: bool,
    /// The lowest first, with the one that puts directories right, if it takes one.
    pub(crate) layers: Vec<DiffId>,
    /// As it came: its digest is the image's id.
    pub(crate) config: String,
}

/// A layer: lies beside its files, and is written before the layer gets its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayerRecord {
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) implied: BTreeSet<PathBuf>,
}

/// Writes a record beside its place and moves it there: it is whole or not there at all.
pub(crate) fn write<T: Serialize>(dir: &Path, name: &str, record: &T) -> Result<(), Error> {
    let path = dir.join(name);
    let text = serde_json::to_vec(record).map_err(|e| Error::document("record", e))?;
    let half = dir.join(format!(".{name}"));
    let written = File::create(&half).and_then(|mut file| {
        file.write_all(&text)?;
        file.sync_all()
    });
    written.doing("write", &half)?;
    std::fs::rename(&half, &path).doing("name", &path)?;
    sync_dir(dir)
}

pub(crate) fn remove(dir: &Path, name: &str) -> Result<(), Error> {
    let path = dir.join(name);
    match std::fs::remove_file(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other.doing("remove", &path),
    }?;
    sync_dir(dir)
}

pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<T, Error> {
    let mut text = Vec::new();
    let file = File::open(path).doing("open", path)?;
    file.take(RECORD_MAX).read_to_end(&mut text).doing("read", path)?;
    serde_json::from_slice(&text).map_err(|e| Error::document("record", format!("{}: {e}", path.display())))
}

fn sync_dir(dir: &Path) -> Result<(), Error> {
    let opened = rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    opened.and_then(rustix::fs::fsync).doing("sync", dir)
}
