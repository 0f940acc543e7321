//! A plan's descriptors: each is opened here, by the daemon, where paths of the machine mean something.
//!
//! Everything of this module may block on a file system; it belongs on a thread of its own.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use runtime_core::container::Source;
use sys::cgroup::{Hierarchies, Version};
use sys::detached::{self, Change, Propagation, READ_ONLY};

use crate::devices;
pub use crate::devices::Device;

/// What a container stands on.
#[derive(Debug)]
pub struct Grounds<'a> {
    pub hierarchies: &'a Hierarchies,
    /// Below the roots of the hierarchies; it is there already.
    pub cgroup: &'a str,
    /// The lowest first.
    pub layers: &'a [PathBuf],
    pub upper: &'a Path,
    pub work: &'a Path,
    /// Of the Pod, by flag of clone.
    pub namespaces: &'a BTreeMap<u32, OwnedFd>,
    pub pid_namespace: Option<&'a OwnedFd>,
    pub mounts: &'a [Bind],
    pub devices: &'a [Device],
    pub log: &'a Path,
    /// The first process, for what is executed beside it.
    pub target: Option<&'a OwnedFd>,
    pub stdio: [Option<&'a OwnedFd>; 3],
}

/// A file or directory of the machine that a container sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    pub source: PathBuf,
    pub is_read_only: bool,
    /// What is mounted below it is read-only too.
    pub is_recursively_read_only: bool,
    pub propagation: Propagation,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{what} {}: {cause}", path.display())]
    Path { what: &'static str, path: PathBuf, cause: io::Error },
    #[error("making {0}: {1}")]
    Make(&'static str, io::Error),
    #[error("the plan asks for {0:?}, which this container does not have")]
    Missing(Source),
}

/// One descriptor for each source, in that order.
pub fn open(sources: &[Source], grounds: &Grounds<'_>) -> Result<Vec<OwnedFd>, OpenError> {
    sources.iter().map(|source| one(source, grounds)).collect()
}

fn one(source: &Source, grounds: &Grounds<'_>) -> Result<OwnedFd, OpenError> {
    let missing = || OpenError::Missing(source.clone());
    let again = |fd: Option<&OwnedFd>| {
        fd.ok_or_else(missing)?.try_clone().map_err(|cause| OpenError::Make("a copy of a descriptor", cause))
    };
    match source {
        Source::Root => {
            let layers: Vec<&Path> = grounds.layers.iter().map(PathBuf::as_path).collect();
            detached::overlay(&layers, grounds.upper, grounds.work)
                .map_err(|cause| OpenError::Make("the overlay of the image's layers", cause))
        }
        Source::Dev => {
            devices::directory(grounds.devices).map_err(|cause| OpenError::Make("the devices", cause))
        }
        Source::Mount(at) => bind(grounds.mounts.get(*at).ok_or_else(missing)?),
        Source::Namespace(kind) => again(grounds.namespaces.get(kind)),
        Source::PidNamespace => again(grounds.pid_namespace),
        Source::Target => again(grounds.target),
        Source::Stdio(at) => again(grounds.stdio.get(*at).copied().flatten()),
        Source::Tasks(hierarchy) => write(cgroup_dir(hierarchy, grounds).ok_or_else(missing)?.join("tasks")),
        Source::CgroupDir => dir(cgroup_dir("", grounds).ok_or_else(missing)?),
        Source::CgroupTree(hierarchy) => {
            let dir = dir(cgroup_dir(hierarchy, grounds).ok_or_else(missing)?)?;
            detached::copy(dir, false)
                .map_err(|cause| OpenError::Make("the container's view of its cgroup", cause))
        }
        Source::Log => {
            let path = grounds.log.to_owned();
            let file = File::options().append(true).create(true).open(&path);
            file.map(Into::into).map_err(|cause| OpenError::Path { what: "opening the log", path, cause })
        }
        Source::MemoryEvents => {
            let file = match grounds.hierarchies.version() {
                Version::V1 => "memory.oom_control",
                Version::V2 => "memory.events",
            };
            let dir = grounds.hierarchies.directory(grounds.cgroup, "memory").ok_or_else(missing)?;
            let path = dir.join(file);
            let file = File::open(&path);
            file.map(Into::into).map_err(|cause| OpenError::Path { what: "opening", path, cause })
        }
    }
}

/// By the name that [`Hierarchies::directories`] gives.
fn cgroup_dir(hierarchy: &str, grounds: &Grounds<'_>) -> Option<PathBuf> {
    let all = grounds.hierarchies.directories(grounds.cgroup);
    all.into_iter().find(|(name, _)| name == hierarchy).map(|(_, path)| path)
}

/// A mount of its own, with its own attributes, of which the machine's mount knows nothing.
fn bind(bind: &Bind) -> Result<OwnedFd, OpenError> {
    let path = &bind.source;
    let error = |what| move |cause| OpenError::Path { what, path: path.clone(), cause };
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    // The kubelet has guarded this path; links of the machine are followed as with any runtime.
    let source = rustix::fs::open(path, flags, rustix::fs::Mode::empty())
        .map_err(|errno| error("opening the volume")(errno.into()))?;
    let mount = detached::copy(&source, true).map_err(error("mounting"))?;
    let private = Change { propagation: Some(bind.propagation), ..Change::default() };
    detached::change(&mount, private, true).map_err(error("setting the propagation of"))?;
    if bind.is_read_only {
        let change = Change { set: READ_ONLY, ..Change::default() };
        detached::change(&mount, change, bind.is_recursively_read_only).map_err(error("making read-only"))?;
    }
    Ok(mount)
}

fn write(path: PathBuf) -> Result<OwnedFd, OpenError> {
    let file = File::options().write(true).open(&path);
    file.map(Into::into).map_err(|cause| OpenError::Path { what: "opening", path, cause })
}

fn dir(path: PathBuf) -> Result<OwnedFd, OpenError> {
    let fd = sys::fd::open_dir(&path);
    fd.map_err(|cause| OpenError::Path { what: "opening", path, cause })
}

impl Bind {
    /// Whether what is mounted is a directory, so that its place can be made alike.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.source.is_dir()
    }
}
