//! A node becomes a file.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, OFlags, RenameFlags, flock, renameat_with};
use rustix::io::Errno;

use super::archive::{self, Entry};
use super::{LARGEST, MOST, STORE, names, sync_dir};

/// Whole or not at all.
pub(super) fn write(data: &Path, file: &Path) -> Result<String, String> {
    if file.symlink_metadata().is_ok() {
        return Err(format!("{} is there already", file.display()));
    }
    let half = Half::make(file)?;
    let (report, files) = half.fill(data)?;
    half.settle(file).map_err(|e| format!("write {}: {e}", file.display()))?;
    Ok(format!("{} objects at revision {}, {files} files", report.keys, report.revision))
}

/// A directory beside the file that is to be, for what is not whole yet. Nobody else sees into it, and it goes with this value.
struct Half {
    dir: PathBuf,
    /// Locked as long as somebody works here.
    _held: File,
}

// === impl Half ===

impl Half {
    fn make(file: &Path) -> Result<Half, String> {
        let mut name = file.file_name().unwrap_or_default().to_owned();
        name.push(".half");
        let dir = file.with_file_name(name);
        let within = |e: io::Error| format!("make {}: {e}", dir.display());
        match DirBuilder::new().mode(0o700).create(&dir) {
            // What a backup left that was killed, unless it is somebody's who waits for us to write there.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.map_err(within)?,
        }
        let flags = (OFlags::DIRECTORY | OFlags::NOFOLLOW).bits().cast_signed();
        let held = OpenOptions::new().read(true).custom_flags(flags).open(&dir).map_err(within)?;
        let found = held.metadata().map_err(within)?;
        if found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o077 != 0 {
            return Err(format!("{} is not ours: remove it", dir.display()));
        }
        if flock(&held, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(format!("another backup to {} is under way", file.display()));
        }
        let half = Half { dir, _held: held };
        half.clear();
        Ok(half)
    }

    fn archive(&self) -> PathBuf {
        self.dir.join("archive")
    }

    fn store(&self) -> PathBuf {
        self.dir.join("store")
    }

    fn fill(&self, data: &Path) -> Result<(store::Report, usize), String> {
        let report = store::backup(data, &self.store()).map_err(|e| e.to_string())?;
        let names = names(data).map_err(|e| format!("read {}: {e}", data.display()))?;
        if names.len() >= MOST {
            return Err(format!("{} has more than {MOST} files", data.display()));
        }
        let path = self.archive();
        let writing = |e: io::Error| format!("write {}: {e}", path.display());
        let out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let mut out = BufWriter::new(out.map_err(writing)?);
        let mut files = 0;
        for name in &names {
            files += usize::from(put_small(&mut out, name, &data.join(name))?);
        }
        // Last: who finds it has everything before it.
        let put_store = || -> io::Result<()> {
            let mut file = File::open(self.store())?;
            let size = file.metadata()?.len();
            archive::put(&mut out, &Entry { name: STORE.to_owned(), mode: 0o600, size }, &mut file)?;
            archive::finish(&mut out)?;
            out.into_inner().map_err(|e| e.into_error())?.sync_all()
        };
        put_store().map_err(writing)?;
        Ok((report, files))
    }

    /// Gives what is whole its name, if nobody has it yet.
    fn settle(self, file: &Path) -> io::Result<()> {
        match renameat_with(CWD, self.archive(), CWD, file, RenameFlags::NOREPLACE) {
            // A file system that cannot do that.
            Err(Errno::INVAL | Errno::NOSYS) if file.symlink_metadata().is_err() => {
                fs::rename(self.archive(), file)?;
            }
            done => done?,
        }
        let parent = file.parent().filter(|dir| !dir.as_os_str().is_empty());
        sync_dir(parent.unwrap_or(Path::new(".")))
    }

    fn clear(&self) {
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            _ = fs::remove_file(entry.path());
        }
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        self.clear();
        _ = fs::remove_dir(&self.dir);
    }
}

/// Whether it was there: one that is gone by now is left out.
fn put_small(out: &mut impl Write, name: &str, path: &Path) -> Result<bool, String> {
    let within = |e: io::Error| format!("{}: {e}", path.display());
    let file = match File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened.map_err(within)?,
    };
    let mode = file.metadata().map_err(within)?.mode() & 0o777;
    // As a whole first: who writes it meanwhile may make it longer.
    let mut content = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut content).map_err(within)?;
    if content.len() as u64 > LARGEST {
        return Err(format!("{} has more than {LARGEST} bytes", path.display()));
    }
    let entry = Entry { name: name.to_owned(), mode, size: content.len() as u64 };
    archive::put(out, &entry, &mut &content[..]).map_err(within)?;
    Ok(true)
}
