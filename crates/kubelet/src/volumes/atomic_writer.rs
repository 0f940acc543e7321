//! Carries out [`kubelet_core::volumes::atomic`]: the files of a volume change all at once.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use kubelet_core::volumes::atomic::{self, DATA, DATA_TMP, Present};
use kubelet_core::volumes::{File, Payload};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use sys::fd::{self, OWN};
use sys::tree;

use super::fs_group::{self, Access};

/// Makes the directory show exactly `payload`, owned by `gid` where there is one. `stamp` gives names
/// for new directories. Nothing is written when nothing changed.
pub(super) fn write(
    dir: BorrowedFd<'_>,
    payload: &Payload,
    gid: Option<u32>,
    stamp: &mut dyn FnMut() -> String,
) -> io::Result<()> {
    let mut wanted = payload.clone();
    if gid.is_some() {
        for file in wanted.values_mut() {
            file.mode |= fs_group::mask(FileType::RegularFile, Access::ReadOnly);
        }
    }
    let present = look(dir, gid)?;
    let steps = atomic::plan(&present, &wanted);
    if steps.write {
        swap(dir, &wanted, gid, stamp)?;
    }
    for name in &steps.link {
        remove(dir, name)?;
        link(dir, &format!("{DATA}/{name}"), name, gid)?;
    }
    for name in &steps.remove {
        remove(dir, name)?;
    }
    Ok(())
}

/// More than this is not ours, and is replaced without being read to its end.
const MAX_FILE: u64 = 4 << 20;
const MAX_DEPTH: usize = 64;
const DIR_MODE: u32 = 0o755;

fn look(dir: BorrowedFd<'_>, gid: Option<u32>) -> io::Result<Present> {
    let mut present = Present { data_dir: data_dir(dir)?, ..Present::default() };
    if let Some(name) = &present.data_dir {
        let inner = fd::open_beneath(dir, Path::new(name), OFlags::DIRECTORY, OWN)?;
        let mut payload = Payload::new();
        let known = load(inner.as_fd(), "", gid, MAX_DEPTH, &mut payload)?;
        present.payload = known.then_some(payload);
    }
    for entry in tree::list(dir)? {
        let Some(name) = entry.name.to_str() else {
            tree::remove(dir, &entry.name).map_err(io::Error::other)?;
            continue;
        };
        if name == DATA || present.data_dir.as_deref() == Some(name) {
            continue;
        }
        let is_ours = target(dir, name)?.is_some_and(|t| t == format!("{DATA}/{name}"));
        let set = match is_ours {
            true => &mut present.links,
            false if entry.is_dir && !name.starts_with("..") => &mut present.dirs,
            false => &mut present.strange,
        };
        set.insert(name.to_owned());
    }
    Ok(present)
}

/// Where `..data` leads, if to a directory of ours.
fn data_dir(dir: BorrowedFd<'_>) -> io::Result<Option<String>> {
    let Some(name) = target(dir, DATA)?.filter(|n| n.starts_with("..") && !n.contains('/') && n.len() > 2)
    else {
        return Ok(None);
    };
    let found = fd::open_beneath(dir, Path::new(&name), OFlags::PATH | OFlags::DIRECTORY, OWN);
    Ok(found.is_ok().then_some(name))
}

fn target(dir: BorrowedFd<'_>, name: &str) -> io::Result<Option<String>> {
    match rustix::fs::readlinkat(dir, name, Vec::new()) {
        Ok(target) => Ok(target.into_string().ok()),
        Err(Errno::NOENT | Errno::INVAL) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Reads what is there. `false` when something is not the way we write it.
fn load(
    dir: BorrowedFd<'_>,
    prefix: &str,
    gid: Option<u32>,
    depth: usize,
    payload: &mut Payload,
) -> io::Result<bool> {
    if depth == 0 {
        return Ok(false);
    }
    for entry in tree::list(dir)? {
        let Some(name) = entry.name.to_str() else { return Ok(false) };
        let path = format!("{prefix}{name}");
        if entry.is_dir {
            let inner = fd::open_beneath(dir, Path::new(name), OFlags::DIRECTORY, OWN)?;
            if !load(inner.as_fd(), &format!("{path}/"), gid, depth - 1, payload)? {
                return Ok(false);
            }
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let Ok(file) = fd::open_beneath(dir, Path::new(name), flags, OWN) else { return Ok(false) };
        let st = fd::stat(&file)?;
        let ours =
            FileType::from_raw_mode(st.st_mode) == FileType::RegularFile && st.st_gid == gid.unwrap_or(0);
        if !ours || st.st_size.unsigned_abs() > MAX_FILE {
            return Ok(false);
        }
        let mut data = Vec::new();
        std::fs::File::from(file).take(MAX_FILE).read_to_end(&mut data)?;
        payload.insert(path, File { data, mode: st.st_mode & 0o7777, uid: st.st_uid });
    }
    Ok(true)
}

/// Writes a new directory and makes `..data` lead to it.
fn swap(
    dir: BorrowedFd<'_>,
    payload: &Payload,
    gid: Option<u32>,
    stamp: &mut dyn FnMut() -> String,
) -> io::Result<()> {
    let name = fresh(dir, stamp)?;
    let written = fill(dir, &name, payload, gid).and_then(|()| {
        remove(dir, DATA_TMP)?;
        link(dir, &name, DATA_TMP, gid)?;
        Ok(rustix::fs::renameat(dir, DATA_TMP, dir, DATA)?)
    });
    if written.is_err() {
        // A full tmpfs stays full if the half that was written stays too.
        let _ = remove(dir, &name);
    }
    written
}

fn fresh(dir: BorrowedFd<'_>, stamp: &mut dyn FnMut() -> String) -> io::Result<String> {
    for _ in 0..16 {
        let name = stamp();
        match rustix::fs::mkdirat(dir, &name, Mode::from_raw_mode(0o700)) {
            Ok(()) => return Ok(name),
            Err(Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Err(Errno::EXIST.into())
}

fn fill(dir: BorrowedFd<'_>, name: &str, payload: &Payload, gid: Option<u32>) -> io::Result<()> {
    let top = fd::open_beneath(dir, Path::new(name), OFlags::PATH | OFlags::DIRECTORY, OWN)?;
    fd::chmod(&top, Mode::from_raw_mode(DIR_MODE))?;
    own(&top, gid)?;
    for (path, file) in payload {
        let mut here = top.try_clone()?;
        let mut names = fd::names(Path::new(path))?;
        let Some(last) = names.pop() else { return Err(Errno::INVAL.into()) };
        for name in names {
            here = fd::make_dir(&here, name, Mode::from_raw_mode(DIR_MODE))?;
            own(&here, gid)?;
        }
        write_file(here.as_fd(), last, file, gid)?;
    }
    Ok(())
}

fn write_file(dir: BorrowedFd<'_>, name: &OsStr, file: &File, gid: Option<u32>) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let opened = fd::create_beneath(dir, Path::new(name), flags, Mode::from_raw_mode(0o600), OWN)?;
    let mut out = std::fs::File::from(opened);
    out.write_all(&file.data)?;
    if gid.is_some() || file.uid != 0 {
        fd::chown(&out, Some(file.uid), gid)?;
    }
    fd::chmod(&out, Mode::from_raw_mode(file.mode))
}

fn own(dir: impl AsFd, gid: Option<u32>) -> io::Result<()> {
    gid.map_or(Ok(()), |gid| fs_group::set(dir, gid, Access::ReadOnly))
}

fn link(dir: BorrowedFd<'_>, target: &str, name: &str, gid: Option<u32>) -> io::Result<()> {
    rustix::fs::symlinkat(target, dir, name)?;
    let gid = gid.map(rustix::fs::Gid::from_raw);
    Ok(rustix::fs::chownat(dir, name, None, gid, AtFlags::SYMLINK_NOFOLLOW)?)
}

fn remove(dir: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    tree::remove(dir, OsStr::new(name)).map_err(io::Error::other)
}
