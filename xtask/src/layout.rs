//! Where things are in the repository and under target/.

use std::path::{Path, PathBuf};

use fixture::{Failure, Result};

#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) root: PathBuf,
    pub(crate) target: PathBuf,
    /// Unpacked packages and built images; survives between runs, may be deleted at any time.
    pub(crate) cache: PathBuf,
}

// === impl Layout ===

impl Layout {
    /// Cargo tells a program it runs where its package is; the workspace is one level up.
    pub(crate) fn find() -> Result<Self> {
        let package = std::env::var_os("CARGO_MANIFEST_DIR")
            .map(PathBuf::from)
            .ok_or_else(|| Failure::new("run me as `cargo xtask`, inside the repository"))?;
        let root = package.parent().unwrap_or(Path::new("/")).to_path_buf();
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
        let cache = target.join("cache");
        Ok(Self { root, target, cache })
    }

    /// A path as a person in the repository's root would type it.
    pub(crate) fn shown(&self, path: &Path) -> String {
        let is_in_root = std::env::current_dir().is_ok_and(|dir| dir == self.root);
        let short = path.strip_prefix(&self.root).ok().filter(|_| is_in_root);
        short.unwrap_or(path).display().to_string()
    }
}
