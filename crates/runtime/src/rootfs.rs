//! A container's own layer above those of its image.
//!
//! ```text
//! containers/<id>/fs      what it writes
//! containers/<id>/work    overlayfs' own; new for every mount
//! ```

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use images::{DiffId, Store};
use runtime_core::users::FILE_MAX;
use rustix::fs::OFlags;
use tonic::Status;

use crate::books::Container;
use crate::daemon::failed;

const UPPER: &str = "fs";
const WORK: &str = "work";

/// The overlay, mounted nowhere.
pub(crate) fn mount(store: &Store, container: &Container) -> Result<OwnedFd, Status> {
    let mut dirs = layer_dirs(store, &container.image.layers)?;
    let upper = upper(container);
    let work = container.dir.join(WORK);
    let mut make = || {
        fs::create_dir_all(&upper)?;
        // What a mount without syncing leaves there forbids the next one.
        remove(&container.dir, WORK)?;
        fs::create_dir(&work)?;
        // An image may have nothing in it; overlayfs wants something below.
        if dirs.is_empty() {
            let empty = container.dir.join("empty");
            fs::create_dir_all(&empty)?;
            dirs.push(empty);
        }
        let stack: Vec<&Path> = dirs.iter().map(PathBuf::as_path).collect();
        let Some(mapping) = container.sandbox.mapping() else {
            return sys::detached::overlay(&stack, &upper, &work);
        };
        let users = container.sandbox.user_namespace()?.ok_or(io::ErrorKind::NotFound)?;
        // What the root directory is owned by, and what is made in it.
        std::os::unix::fs::lchown(&upper, Some(mapping.host), Some(mapping.host))?;
        sys::detached::overlay_for(users, &stack, &upper, &work)
    };
    make().map_err(failed(format!("mount the root of container {}", container.id)))
}

pub(crate) fn upper(container: &Container) -> PathBuf {
    container.dir.join(UPPER)
}

pub(crate) fn layer_dirs(store: &Store, layers: &[String]) -> Result<Vec<PathBuf>, Status> {
    let dir = |layer: &String| {
        let id: DiffId = layer.parse().map_err(failed(format!("layer {layer:?}")))?;
        Ok(store.layer_dir(&id))
    };
    layers.iter().map(dir).collect()
}

/// A file of the image, if it has it. Its author may have made it a link, which leads nowhere but into the image.
pub(crate) fn text(root: &OwnedFd, path: &str) -> String {
    let mut bytes = Vec::new();
    let read = sys::fd::open_inside(root, Path::new(path), OFlags::PATH).and_then(|found| {
        // Not a device, which does something when it is opened; not a pipe that never ends.
        if !fs::File::from(found.try_clone()?).metadata()?.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let file = fs::File::open(sys::fd::proc_path(&found))?;
        file.take(FILE_MAX as u64).read_to_end(&mut bytes)
    });
    if read.is_err() {
        return String::new();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Removes what is called so, with all that is in it.
pub(crate) fn remove(dir: &Path, name: &str) -> io::Result<()> {
    let dir = match sys::fd::open_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    sys::tree::remove(&dir, OsStr::new(name)).map_err(io::Error::other)
}
