//! Mounts that are nowhere yet: made aside, passed on as descriptors, attached by somebody else.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::mount::{self as m, FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags};

/// What changes for a mount, and for those below it if asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// `MOUNT_ATTR_…`, as the kernel numbers them.
    pub set: u64,
    pub clear: u64,
    pub propagation: Option<Propagation>,
}

/// How mounts travel between this mount and its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Private,
    Slave,
    Shared,
}

/// `MOUNT_ATTR_RDONLY`
pub const READ_ONLY: u64 = 1;
pub const NO_SUID: u64 = 2;
pub const NO_DEV: u64 = 4;
pub const NO_EXEC: u64 = 8;

/// A second mount of what `source` is, with all that is mounted below it if asked.
pub fn copy(source: impl AsFd, recursive: bool) -> io::Result<OwnedFd> {
    let mut flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    Ok(m::open_tree(source, "", flags)?)
}

/// A new file system of this kind with these settings; a setting without a value is a flag.
pub fn new(kind: &str, settings: &[(&str, &str)], attributes: u64) -> io::Result<OwnedFd> {
    let context = m::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in settings {
        if value.is_empty() {
            m::fsconfig_set_flag(&context, *key)?;
        } else {
            m::fsconfig_set_string(&context, *key, *value)?;
        }
    }
    mount(&context, attributes)
}

/// Layers, the lowest first, under one directory that takes the changes. `volatile`: nothing of it is to survive the machine,
/// so nothing is synced when it goes.
pub fn overlay(layers: &[&Path], upper: &Path, work: &Path) -> io::Result<OwnedFd> {
    let context = m::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for layer in layers.iter().rev() {
        m::fsconfig_set_string(&context, "lowerdir+", *layer)?;
    }
    m::fsconfig_set_string(&context, "upperdir", upper)?;
    m::fsconfig_set_string(&context, "workdir", work)?;
    m::fsconfig_set_flag(&context, "volatile")?;
    mount(&context, 0)
}

/// As [`overlay`], for those who live in that user namespace: they own what the layers' owners own.
pub fn overlay_for(users: impl AsFd, layers: &[&Path], upper: &Path, work: &Path) -> io::Result<OwnedFd> {
    let context = m::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let _open = add_mapped(&context, users, layers)?;
    m::fsconfig_set_string(&context, "upperdir", upper)?;
    m::fsconfig_set_string(&context, "workdir", work)?;
    m::fsconfig_set_flag(&context, "volatile")?;
    mount(&context, 0)
}

/// As [`layers`], for those who live in that user namespace.
pub fn layers_for(users: impl AsFd, layers: &[&Path]) -> io::Result<OwnedFd> {
    if let [only] = layers {
        let copy = copy(crate::fd::open_dir(only)?, false)?;
        map(&copy, users)?;
        return Ok(copy);
    }
    let context = m::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let _open = add_mapped(&context, users, layers)?;
    mount(&context, READ_ONLY)
}

/// By descriptor: these mounts are nowhere, and must be open until the whole is made. Kernels before 6.15 want them somewhere.
fn add_mapped(context: &OwnedFd, users: impl AsFd, layers: &[&Path]) -> io::Result<Vec<OwnedFd>> {
    let add = |layer: &&Path| {
        let copy = copy(crate::fd::open_dir(layer)?, false)?;
        map(&copy, &users)?;
        m::fsconfig_set_fd(context, "lowerdir+", &copy)?;
        Ok(copy)
    };
    layers.iter().rev().map(add).collect()
}

/// Layers, the lowest first, as one tree that nobody changes.
pub fn layers(layers: &[&Path]) -> io::Result<OwnedFd> {
    if let [only] = layers {
        return copy(crate::fd::open_dir(only)?, false);
    }
    let context = m::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for layer in layers.iter().rev() {
        m::fsconfig_set_string(&context, "lowerdir+", *layer)?;
    }
    mount(&context, READ_ONLY)
}

fn mount(context: &OwnedFd, attributes: u64) -> io::Result<OwnedFd> {
    m::fsconfig_create(context)?;
    let attributes = MountAttrFlags::from_bits_retain(u32::try_from(attributes).map_err(io::Error::other)?);
    Ok(m::fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

#[repr(C)]
struct Attr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns: u64,
}

/// Changes a mount before anybody can use it.
pub fn change(mount: impl AsFd, change: Change, recursive: bool) -> io::Result<()> {
    let propagation = match change.propagation {
        None => 0,
        Some(Propagation::Private) => libc::MS_PRIVATE,
        Some(Propagation::Slave) => libc::MS_SLAVE,
        Some(Propagation::Shared) => libc::MS_SHARED,
    };
    let attr = Attr { set: change.set, clear: change.clear, propagation, userns: 0 };
    set(mount, &attr, recursive)
}

/// Owners of files are seen through this mount, which nobody uses yet, as the user namespace maps them. Not of file systems
/// that cannot do that.
pub fn map(mount: impl AsFd, users: impl AsFd) -> io::Result<()> {
    let userns = users.as_fd().as_raw_fd().cast_unsigned().into();
    set(mount, &Attr { set: libc::MOUNT_ATTR_IDMAP, clear: 0, propagation: 0, userns }, false)
}

fn set(mount: impl AsFd, attr: &Attr, recursive: bool) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a string that ends with NUL, the structure is the kernel's of that size, and both live until
    // the call returns.
    #[allow(unsafe_code)]
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            core::ptr::from_ref(attr),
            size_of::<Attr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
