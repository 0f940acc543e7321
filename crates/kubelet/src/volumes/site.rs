//! The directories volumes live in: `<root>/pods/<uid>/volumes/<plugin>/<name>`.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use base::ids::PodUid;
use kubelet_core::volumes::FsGroup;
use rustix::fs::{Mode, OFlags};
use sys::fd::{self, OWN};
use sys::tree;

/// `<root>/pods`.
#[derive(Debug)]
pub(super) struct Tree {
    /// As the operator calls it. Others are told this one: a driver in a container has it and no other.
    pub(super) path: PathBuf,
    /// Free of symlinks, as the mount table shows it.
    pub(super) real: PathBuf,
}

/// `<root>/pods/<uid>`.
#[derive(Debug)]
pub(super) struct PodDir {
    pub(super) dir: OwnedFd,
    pub(super) path: PathBuf,
    pub(super) real: PathBuf,
}

/// Where one volume goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site<'a> {
    pub(super) pod: &'a PodDir,
    pub(super) volume: &'a str,
    pub(super) fs_group: Option<FsGroup>,
}

pub(super) const OWN_MODE: Mode = Mode::from_raw_mode(0o750);
pub(super) const VOLUMES: &str = "volumes";
const PODS: &str = "pods";

// === impl Tree ===

impl Tree {
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        std::fs::DirBuilder::new().recursive(true).mode(0o750).create(root)?;
        let path = std::path::absolute(root)?.join(PODS);
        let real = match path.is_symlink() {
            true => path.canonicalize()?,
            false => root.canonicalize()?.join(PODS),
        };
        let tree = Self { path, real };
        tree.open_pods()?;
        Ok(tree)
    }

    /// Not held open: the root may be mounted over, by us ([`super::share_root`]) or by the operator.
    pub(super) fn open_pods(&self) -> io::Result<OwnedFd> {
        let parent = self.real.parent().unwrap_or(&self.real);
        let name = self.real.file_name().unwrap_or(OsStr::new(PODS));
        fd::make_dir(fd::open_dir(parent)?, name, OWN_MODE)
    }

    /// The Pod's directory, made when missing.
    pub(super) fn pod(&self, uid: &str) -> io::Result<PodDir> {
        if !is_file_name(uid) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{uid:?} is no Pod UID")));
        }
        let dir = fd::make_dir(self.open_pods()?, OsStr::new(uid), OWN_MODE)?;
        Ok(PodDir { dir, path: self.path.join(uid), real: self.real.join(uid) })
    }

    pub(super) fn pods(&self) -> io::Result<Vec<PodUid>> {
        let names = tree::list(self.open_pods()?)?;
        let dirs = names.into_iter().filter(|n| n.is_dir);
        Ok(dirs.filter_map(|n| n.name.into_string().ok()).map(PodUid::from).collect())
    }
}

// === impl PodDir ===

impl PodDir {
    pub(super) fn open_volume(&self, plugin: &str, volume: &str) -> io::Result<OwnedFd> {
        let rel = Path::new(VOLUMES).join(plugin).join(volume);
        fd::open_beneath(&self.dir, &rel, OFlags::PATH | OFlags::DIRECTORY, OWN)
    }
}

// === impl Site ===

impl Site<'_> {
    /// The directory that holds the volume's own, made when missing.
    pub(super) fn parent(&self, plugin: &str) -> io::Result<OwnedFd> {
        fd::make_dirs(&self.pod.dir, &Path::new(VOLUMES).join(plugin), OWN_MODE)
    }

    pub(super) fn path(&self, plugin: &str) -> PathBuf {
        self.pod.path.join(VOLUMES).join(plugin).join(self.volume)
    }

    /// The same as the mount table shows it.
    pub(super) fn real_path(&self, plugin: &str) -> PathBuf {
        self.pod.real.join(VOLUMES).join(plugin).join(self.volume)
    }

    pub(super) fn name(&self) -> &OsStr {
        OsStr::new(self.volume)
    }

    /// The mark that setting up came to its end. It outlives the agent, so that an interrupted set-up
    /// is done again and a finished one never.
    pub(super) fn is_ready(&self, plugin: &str) -> bool {
        fd::open_beneath(&self.pod.dir, &self.mark(plugin).join(READY), OFlags::PATH, OWN).is_ok()
    }

    pub(super) fn set_ready(&self, plugin: &str) -> io::Result<()> {
        let dir = fd::make_dirs(&self.pod.dir, &self.mark(plugin), OWN_MODE)?;
        let flags = OFlags::WRONLY | OFlags::CREATE;
        fd::create_beneath(dir.as_fd(), Path::new(READY), flags, Mode::from_raw_mode(0o640), OWN)?;
        Ok(())
    }

    /// The place is upstream's.
    fn mark(&self, plugin: &str) -> PathBuf {
        Path::new("plugins").join(plugin).join(self.volume)
    }
}

const READY: &str = "ready";

/// One component of a path, and an honest one.
pub(super) fn is_file_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && name.len() <= 255 && !name.contains(['/', '\0'])
}
