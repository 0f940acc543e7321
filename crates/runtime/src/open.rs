//! A plan's descriptors: each is opened here, by the daemon, where paths of the machine mean something.
//!
//! Everything of this module may block on a file system; it belongs on a thread of its own.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use runtime_core::container::{Source, namespace};
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
    /// The overlay of the image's layers, mounted nowhere yet.
    pub root: Option<&'a OwnedFd>,
    /// Of the Pod, by flag of clone.
    pub namespaces: &'a BTreeMap<u32, OwnedFd>,
    pub pid_namespace: Option<&'a OwnedFd>,
    pub mounts: &'a [Bind],
    pub devices: &'a [Device],
    /// Who is root in the container, outside of it.
    pub user_root: u32,
    pub log: &'a Path,
    /// The first process, for what is executed beside it.
    pub target: Option<&'a OwnedFd>,
    pub stdio: [Option<&'a OwnedFd>; 3],
}

/// A file or directory of the machine, or of an image, that a container sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// Of an image: the path in it, empty for all of it.
    pub source: PathBuf,
    /// The image's layers, the lowest first.
    pub layers: Option<Vec<PathBuf>>,
    pub is_read_only: bool,
    /// What else is forbidden (`MOUNT_ATTR_…`).
    pub flags: u64,
    /// Its owners are seen as the Pod's user namespace maps them.
    pub is_mapped: bool,
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
        Source::Root => again(grounds.root),
        Source::Dev => devices::directory(grounds.devices, grounds.user_root)
            .map_err(|cause| OpenError::Make("the devices", cause)),
        Source::Mount(at) => {
            let mount = grounds.mounts.get(*at).ok_or_else(missing)?;
            let users = grounds.namespaces.get(&namespace::USER);
            bind(mount, if mount.is_mapped { Some(users.ok_or_else(missing)?) } else { None })
        }
        Source::Kernel(kind) => {
            detached::new(kind, &[], detached::NO_SUID | detached::NO_DEV | detached::NO_EXEC)
                .map_err(|cause| OpenError::Make("a file system of the kernel", cause))
        }
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
        Source::Log => log(grounds.log),
        Source::MemoryEvents => memory_events(grounds.hierarchies, grounds.cgroup).ok_or_else(missing),
    }
}

/// Where the kernel counts who was killed for memory.
pub(crate) fn memory_events(hierarchies: &Hierarchies, cgroup: &str) -> Option<OwnedFd> {
    let file = match hierarchies.version() {
        Version::V1 => "memory.oom_control",
        Version::V2 => "memory.events",
    };
    let dir = hierarchies.directory(cgroup, "memory")?;
    File::open(dir.join(file)).ok().map(Into::into)
}

/// Made where it is missing.
pub(crate) fn log(path: &Path) -> Result<OwnedFd, OpenError> {
    // A link in its place would lead the log to a file of the machine.
    let flags = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let file = File::options().append(true).create(true).custom_flags(flags).open(path);
    file.map(Into::into).map_err(|cause| OpenError::Path {
        what: "opening the log",
        path: path.to_owned(),
        cause,
    })
}

/// By the name that [`Hierarchies::directories`] gives.
fn cgroup_dir(hierarchy: &str, grounds: &Grounds<'_>) -> Option<PathBuf> {
    let all = grounds.hierarchies.directories(grounds.cgroup);
    all.into_iter().find(|(name, _)| name == hierarchy).map(|(_, path)| path)
}

/// A mount of its own, with its own attributes, of which the machine's mount knows nothing.
fn bind(bind: &Bind, users: Option<&OwnedFd>) -> Result<OwnedFd, OpenError> {
    if let Some(layers) = &bind.layers {
        return image(layers, &bind.source, users);
    }
    let path = &bind.source;
    let error = |what| move |cause| OpenError::Path { what, path: path.clone(), cause };
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    // The kubelet has guarded this path; links of the machine are followed as with any runtime.
    let source = rustix::fs::open(path, flags, rustix::fs::Mode::empty())
        .map_err(|errno| error("opening the volume")(errno.into()))?;
    let mount = detached::copy(&source, true).map_err(error("mounting"))?;
    if let Some(users) = users {
        detached::map(&mount, users).map_err(error("mapping ids, as its file system has to allow, of"))?;
    }
    let private = Change { propagation: Some(bind.propagation), ..Change::default() };
    detached::change(&mount, private, true).map_err(error("setting the propagation of"))?;
    if bind.flags != 0 {
        let change = Change { set: bind.flags, ..Change::default() };
        detached::change(&mount, change, true).map_err(error("restricting"))?;
    }
    if bind.is_read_only {
        let change = Change { set: READ_ONLY, ..Change::default() };
        detached::change(&mount, change, bind.is_recursively_read_only).map_err(error("making read-only"))?;
    }
    Ok(mount)
}

/// All layers as one tree that nobody can write, or a part of it. Links in the image lead nowhere but into the image.
fn image(layers: &[PathBuf], part: &Path, users: Option<&OwnedFd>) -> Result<OwnedFd, OpenError> {
    let error = |cause| OpenError::Make("the mount of the image's layers", cause);
    let stack: Vec<&Path> = layers.iter().map(PathBuf::as_path).collect();
    let whole = match users {
        Some(users) => detached::layers_for(users, &stack).map_err(error)?,
        None => detached::layers(&stack).map_err(error)?,
    };
    let part = match part.as_os_str().is_empty() {
        true => whole,
        false => {
            let named =
                |cause| OpenError::Path { what: "opening in the image", path: part.to_owned(), cause };
            let inside = sys::fd::open_inside(&whole, part, rustix::fs::OFlags::PATH).map_err(named)?;
            detached::copy(inside, false).map_err(named)?
        }
    };
    let change = Change { set: READ_ONLY | detached::NO_DEV, ..Change::default() };
    detached::change(&part, change, false).map_err(error)?;
    Ok(part)
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
