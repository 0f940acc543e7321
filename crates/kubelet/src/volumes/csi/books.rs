//! `vol_data.json`: what is mounted beside it, for whoever has to take it away.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use kubelet_core::volumes::csi::{PLUGIN_DIR, key, unique_name};

use crate::host::files::write_whole;

pub(super) const FILE: &str = "vol_data.json";
/// What a file becomes that cannot be understood.
const CORRUPT: &str = "vol_data.json.corrupt";
pub(super) const MOUNT: &str = "mount";
pub(super) const GLOBAL_MOUNT: &str = "globalmount";
/// Below `plugins/kubernetes.io/csi`; no driver may be called so.
pub(super) const DEVICES: &str = "volumeDevices";
/// More than any honest file of this kind holds.
const LARGEST: u64 = 64 * 1024;

/// What the file tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) driver: String,
    pub(super) handle: String,
    /// Dies with its Pod, and is never staged.
    pub(super) ephemeral: bool,
}

/// A volume that a Pod has, or may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// The directory's name.
    pub(super) name: String,
    /// The directory the file is in.
    pub(super) dir: PathBuf,
    pub(super) entry: Entry,
}

// === impl Entry ===

impl Entry {
    pub(super) fn unique_name(&self) -> String {
        unique_name(&self.driver, &self.handle)
    }
}

/// Writes the file in `dir`, which is made when missing.
pub(super) fn write(dir: &Path, data: &BTreeMap<String, String>) -> io::Result<()> {
    make_dir(dir)?;
    let text = format!("{}\n", serde_json::json!(data));
    write_whole(&dir.join(FILE), text.as_bytes(), 0o644)
}

pub(super) fn make_dir(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o750).create(dir)
}

/// Makes a directory for a driver to mount something on. What may be mounted there already is not looked at: its server
/// may be dead.
pub(super) fn make_mount_point(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), make_dir)?;
    match fs::DirBuilder::new().mode(0o750).create(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// What the file in `dir` says; none if there is none. One that cannot be understood is set aside, and named.
pub(super) fn read(dir: &Path) -> Option<Entry> {
    match parse(dir) {
        Ok(entry) => entry,
        Err(error) => {
            let path = dir.join(FILE);
            let kept = fs::rename(&path, dir.join(CORRUPT));
            tracing::error!(path = %path.display(), %error, set_aside = kept.is_ok(), "record of a volume is corrupt");
            None
        }
    }
}

/// Whether there was a file in `dir` that nobody understands: then nobody knows whose volume is mounted beside it.
pub(super) fn is_corrupt(dir: &Path) -> bool {
    let is_there = |name: &str| dir.join(name).symlink_metadata().is_ok();
    read(dir).is_none() && (is_there(CORRUPT) || is_there(FILE))
}

fn parse(dir: &Path) -> io::Result<Option<Entry>> {
    let path = dir.join(FILE);
    let meta = match fs::symlink_metadata(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    if !meta.is_file() || meta.len() > LARGEST {
        return Err(io::Error::other("no file of a few lines"));
    }
    let mut data: BTreeMap<String, String> = serde_json::from_str(&fs::read_to_string(&path)?)?;
    let mut take = |name: &str| data.remove(name).filter(|v| !v.is_empty());
    let (Some(driver), Some(handle)) = (take(key::DRIVER), take(key::HANDLE)) else {
        return Err(io::Error::other("it names no driver, or no volume"));
    };
    Ok(Some(Entry { driver, handle, ephemeral: take(key::LIFECYCLE).as_deref() == Some("Ephemeral") }))
}

/// Removes the file, also one that was set aside.
pub(super) fn forget(dir: &Path) -> io::Result<()> {
    remove_empty(&dir.join(CORRUPT))?;
    remove_empty(&dir.join(FILE))
}

/// The volumes in the directories below `dir`.
pub(super) fn list(dir: &Path) -> Vec<Kept> {
    let kept = |(name, dir): (String, PathBuf)| Some(Kept { entry: read(&dir)?, name, dir });
    names(dir).into_iter().filter_map(kept).collect()
}

/// Directories below `dir`, with their paths.
pub(super) fn names(dir: &Path) -> Vec<(String, PathBuf)> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let dirs = entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    dirs.filter_map(|e| Some((e.file_name().into_string().ok()?, e.path()))).collect()
}

/// Where a Pod's published volumes are.
pub(super) fn of_pod(root: &Path, uid: &str) -> PathBuf {
    root.join("pods").join(uid).join("volumes").join(PLUGIN_DIR)
}

/// Where a Pod's devices are.
pub(super) fn devices_of_pod(root: &Path, uid: &str) -> PathBuf {
    root.join("pods").join(uid).join(DEVICES).join(PLUGIN_DIR)
}

/// Where volumes are staged.
pub(super) fn staging(root: &Path) -> PathBuf {
    root.join("plugins").join("kubernetes.io").join("csi")
}

/// Whether something is mounted exactly there. The mount table is asked, never the mount: its server may be dead. The
/// table knows no symlinks; those above the mount point are the operator's.
pub(super) fn is_mounted(path: &Path) -> bool {
    let real = path.parent().and_then(|dir| Some(dir.canonicalize().ok()?.join(path.file_name()?)));
    let real = real.as_deref().unwrap_or(path);
    let mounts = sys::mountinfo::read().unwrap_or_default();
    mounts.iter().any(|m| m.mount_point == real)
}

/// Removes an empty directory or file, and is content if there is none.
pub(super) fn remove_empty(path: &Path) -> io::Result<()> {
    let gone = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir(path),
        Ok(_) => fs::remove_file(path),
        Err(e) => Err(e),
    };
    match gone {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Removes `<dir>/<mount>`, the file and `dir` itself, once nothing is mounted there. Nothing that holds data goes.
pub(super) fn close(dir: &Path, mount: &str) -> io::Result<()> {
    let target = dir.join(mount);
    if is_mounted(&target) {
        return Err(io::Error::other(format!("{} is still mounted", target.display())));
    }
    remove_empty(&target)?;
    forget(dir)?;
    remove_empty(dir)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_found_and_closed() {
        let root = tempfile::tempdir().unwrap();
        let dir = of_pod(root.path(), "u").join("pv-1");
        let data = [(key::DRIVER, "d"), (key::HANDLE, "h"), (key::LIFECYCLE, "Ephemeral")];
        write(&dir, &data.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()).unwrap();
        make_dir(&dir.join(MOUNT)).unwrap();
        let found = list(&of_pod(root.path(), "u"));
        let entry = Entry { driver: "d".into(), handle: "h".into(), ephemeral: true };
        assert_eq!(found, [Kept { name: "pv-1".into(), dir: dir.clone(), entry }]);
        std::fs::write(dir.join("mount/data"), "precious").unwrap();
        assert!(close(&dir, MOUNT).is_err());
        assert!(read(&dir).is_some(), "as long as there is data, it is known whose");
        std::fs::remove_file(dir.join("mount/data")).unwrap();
        close(&dir, MOUNT).unwrap();
        close(&dir, MOUNT).unwrap();
        assert!(!dir.exists());
    }

    #[test]
    fn a_mount_is_found_behind_a_link() {
        sys::scratch::run(|dir| {
            let (real, named) = (dir.join("real"), dir.join("named"));
            make_mount_point(&real.join("a/m")).unwrap();
            make_mount_point(&real.join("a/m")).unwrap();
            std::os::unix::fs::symlink(&real, &named).unwrap();
            assert!(!is_mounted(&named.join("a/m")) && !is_mounted(&named.join("none/m")));
            let open = |path: &Path| crate::volumes::host_path::open(path).unwrap();
            sys::mount::bind(open(dir), open(&real.join("a/m")), false).unwrap();
            assert!(is_mounted(&named.join("a/m")) && is_mounted(&real.join("a/m")));
            assert!(!is_mounted(&named.join("a")));
        });
    }

    #[test]
    fn nonsense_is_set_aside_and_what_is_missing_is_not_corrupt() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("pv-1");
        assert!(!is_corrupt(&dir), "there is none");
        let data = [(key::DRIVER, "d"), (key::HANDLE, "h")];
        let good = data.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        for text in ["", "{", "{}", r#"{"driverName":"d"}"#, "[1]"] {
            write(&dir, &good).unwrap();
            assert!(!is_corrupt(&dir), "what was set aside before {text:?} no longer counts");
            std::fs::write(dir.join(FILE), text).unwrap();
            assert_eq!(read(&dir), None, "{text}");
            assert!(is_corrupt(&dir) && !dir.join(FILE).exists(), "{text}");
            assert_eq!(std::fs::read_to_string(dir.join(CORRUPT)).unwrap(), text);
        }
        close(&dir, MOUNT).unwrap();
        assert!(!dir.exists());
    }
}
