//! Layers of one image, stacked. Some tools leave out of a layer the directories its files lie in. Such a directory gets
//! usual rights when the layer is unpacked, and overlayfs would show these instead of what a layer below says: `/tmp` would
//! lose its sticky bit. Layers are shared between images, so they are not changed: a further layer on top, of directories only,
//! says what is right.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use serde::Serialize;

use crate::digest::Digest;
use crate::error::{Doing, Error};

/// A layer as it lies on the disk.
pub(crate) struct Unpacked<'a> {
    pub(crate) dir: PathBuf,
    pub(crate) implied: &'a BTreeSet<PathBuf>,
}

/// Mode and owner of directories that the topmost layer has to say again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Repair(BTreeMap<PathBuf, Rights>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Rights {
    mode: u32,
    uid: u32,
    gid: u32,
}

const USUAL: Rights = Rights { mode: 0o755, uid: 0, gid: 0 };

// === impl Repair ===

impl Repair {
    /// What is wrong in this stack, the lowest layer first. None if nothing is.
    pub(crate) fn of(layers: &[Unpacked<'_>]) -> Result<Option<Repair>, Error> {
        let mut repair = BTreeMap::new();
        for path in layers.iter().flat_map(|layer| layer.implied).collect::<BTreeSet<_>>() {
            if rights(layers, path)?.is_some_and(|rights| rights != USUAL) {
                // Those above it come along, and would be said anew, too.
                for above in path.ancestors().filter(|above| !above.as_os_str().is_empty()) {
                    repair.insert(above.to_owned(), rights(layers, above)?.unwrap_or(USUAL));
                }
            }
        }
        Ok((!repair.is_empty()).then_some(Repair(repair)))
    }

    /// The layer's name: equal repairs are one layer.
    pub(crate) fn digest(&self) -> Result<Digest, Error> {
        let text = serde_json::to_vec(self).map_err(|e| Error::document("repair", e))?;
        Ok(Digest::of(&text))
    }

    /// Makes the directories below `root`, which is empty.
    pub(crate) fn write(&self, root: &Path) -> Result<(), Error> {
        let root_fd = File::open(root).doing("open", root)?;
        for (path, rights) in &self.0 {
            let made = sys::fd::make_dirs(&root_fd, path, Mode::from_raw_mode(rights.mode));
            let owned = made.and_then(|dir| {
                sys::fd::chown(&dir, Some(rights.uid), Some(rights.gid))?;
                sys::fd::chmod(&dir, Mode::from_raw_mode(rights.mode))
            });
            owned.doing("make", &root.join(path))?;
        }
        Ok(())
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.len() as u64
    }
}

/// What the topmost layer that really has this directory says of it. None if it is hidden by something else, or in no archive.
fn rights(layers: &[Unpacked<'_>], path: &Path) -> Result<Option<Rights>, Error> {
    for layer in layers.iter().rev() {
        let at = layer.dir.join(path);
        // No component of it is a link: an archive's links were followed when its paths were written down.
        let found = match std::fs::symlink_metadata(&at) {
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => continue,
            found => found.doing("look at", &at)?,
        };
        if !found.is_dir() {
            return Ok(None);
        }
        if !layer.implied.contains(path) {
            let mode = found.permissions().mode() & 0o7777;
            return Ok(Some(Rights { mode, uid: found.uid(), gid: found.gid() }));
        }
    }
    Ok(None)
}
