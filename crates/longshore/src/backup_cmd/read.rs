//! A file becomes a node. It may be cut off at any moment: then the directory has what it had, or nobody takes it but the next
//! `restore`, which puts aside what is there.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use store::Restore;

use super::{DIRECTORIES, FILES, LARGEST, MOST, STORE, archive, sync_dir};

/// Where a backup is unpacked, in the data directory.
const SCRATCH: &str = "restore";

pub(super) fn read(file: &Path, data: &Path, replace: bool) -> Result<String, String> {
    let within = |e: io::Error| format!("read {}: {e}", file.display());
    let mut from = BufReader::new(File::open(file).map_err(within)?);
    DirBuilder::new().recursive(true).mode(0o700).create(data).map_err(|e| {
        format!("make {}: {e}; run as root, or choose another with --data-dir", data.display())
    })?;
    // Nobody else may be here, not even another restore.
    let restore = Restore::of(data, replace).map_err(|e| e.to_string())?;
    if restore.aside().is_none() {
        refuse_what_is_there(data)?;
    }
    let scratch = data.join(SCRATCH);
    _ = remove(data, SCRATCH);
    let unpacked = unpack(&mut from, &scratch).map_err(within);
    let done = unpacked.and_then(|files| {
        let copy = scratch.join(STORE);
        if !copy.is_file() {
            return Err(format!("{} is no backup of a node: it has no store", file.display()));
        }
        let report = restore.build(&copy).map_err(|e| e.to_string())?;
        // All of it is good. From here on the directory is neither what it was nor what it will be.
        let within = |e: io::Error| format!("write {}: {e}; run it again with --replace", data.display());
        restore.begin().map_err(|e| e.to_string())?;
        take(&scratch, data, restore.aside()).map_err(within)?;
        restore.settle(report).map_err(|e| e.to_string())?;
        restore.finish().map_err(|e| e.to_string())?;
        Ok(format!("{} objects at revision {}, {} files", report.keys, report.revision, files - 1))
    });
    _ = remove(data, SCRATCH);
    done
}

/// Keys of another node would be gone for ever.
fn refuse_what_is_there(data: &Path) -> Result<(), String> {
    let is_there = |name: &&str| match fs::read_dir(data.join(name)) {
        Ok(mut entries) => entries.next().is_some(),
        Err(_) => data.join(name).symlink_metadata().is_ok(),
    };
    match ["store.db", "store.db-wal"].into_iter().chain(FILES).chain(DIRECTORIES).find(is_there) {
        Some(name) => {
            Err(format!("{} is there already; --replace puts what is there aside", data.join(name).display()))
        }
        None => Ok(()),
    }
}

fn unpack(from: &mut impl Read, scratch: &Path) -> io::Result<usize> {
    let mut files = 0;
    DirBuilder::new().mode(0o700).create(scratch)?;
    archive::each(from, |entry, content| {
        let is_known = entry.name == STORE
            || FILES.contains(&entry.name.as_str())
            || entry
                .name
                .split_once('/')
                .is_some_and(|(dir, name)| DIRECTORIES.contains(&dir) && !name.contains('/'));
        if !is_known {
            return Err(io::Error::other(format!("{:?} is no file of a node", entry.name)));
        }
        if entry.name != STORE && entry.size > LARGEST {
            return Err(io::Error::other(format!("{:?} has more than {LARGEST} bytes", entry.name)));
        }
        files += 1;
        if files > MOST {
            return Err(io::Error::other(format!("it has more than {MOST} files")));
        }
        let path = scratch.join(&entry.name);
        DirBuilder::new().recursive(true).mode(0o700).create(path.parent().unwrap_or(scratch))?;
        // Whatever mode it had there: it is the node's alone here.
        let out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let mut out = out.map_err(|e| io::Error::new(e.kind(), format!("{:?}: {e}", entry.name)))?;
        io::copy(content, &mut out)?;
        out.sync_all()
    })?;
    for dir in DIRECTORIES.map(|dir| scratch.join(dir)).iter().filter(|dir| dir.is_dir()) {
        sync_dir(dir)?;
    }
    Ok(files)
}

/// What is there goes aside as a whole, what was unpacked takes its place. One name at a time, each by one rename.
fn take(scratch: &Path, data: &Path, aside: Option<&Path>) -> io::Result<()> {
    let all = || FILES.into_iter().chain(DIRECTORIES);
    let mut there = all().filter(|name| data.join(name).symlink_metadata().is_ok()).peekable();
    if let Some(aside) = aside.filter(|_| there.peek().is_some()) {
        DirBuilder::new().mode(0o700).create(aside)?;
        for name in there {
            fs::rename(data.join(name), aside.join(name))?;
        }
        sync_dir(aside)?;
    }
    for name in all().filter(|name| scratch.join(name).exists()) {
        // An empty directory gives way.
        fs::rename(scratch.join(name), data.join(name))?;
    }
    sync_dir(data)
}

fn remove(dir: &Path, name: &str) -> Result<(), String> {
    let parent = sys::fd::open_dir(dir).map_err(|e| e.to_string())?;
    sys::tree::remove(parent, std::ffi::OsStr::new(name)).map_err(|e| e.to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
