//! The images of a runtime that is not running, from its directory.

use std::fs::File;
use std::path::{Path, PathBuf};

use images::Store;

/// What both ways of looking have of an image.
pub(super) fn list(root: &Path) -> Result<Vec<cri::v1::Image>, String> {
    let shown = |image: &std::sync::Arc<images::Image>| cri::v1::Image {
        id: image.id.clone(),
        repo_tags: image.tags.clone(),
        repo_digests: image.digests.clone(),
        size: image.size,
        pinned: image.pinned,
        ..cri::v1::Image::default()
    };
    Ok(open(root)?.list().iter().map(shown).collect())
}

/// Names and id of each image.
pub(super) fn import(
    root: &Path,
    files: &[PathBuf],
    pin: bool,
) -> Result<Vec<(Vec<String>, String)>, String> {
    let store = open(root)?;
    let mut imported = Vec::new();
    for path in files {
        let file = File::open(path).map_err(|e| format!("open {}: {e}", path.display()))?;
        let failed = |e| format!("import {}: {e}", path.display());
        for image in images::import(&store, file).map_err(failed)? {
            if pin {
                store.pin(&image.id, true).map_err(failed)?;
            }
            imported.push((image.tags.clone(), image.id.clone()));
        }
    }
    Ok(imported)
}

/// A runtime that runs has its store for itself, and this says so.
fn open(root: &Path) -> Result<Store, String> {
    Store::open(&root.join("images")).map_err(|e| e.to_string())
}
