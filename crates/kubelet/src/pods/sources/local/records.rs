//! The files that Pods given by command are kept in: each with a checksum, so that what a failing disk made of it is not
//! believed, and with a copy beside it. A Pod whose only record was lost would be ended as nobody's.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base::fnv::fnv1a32;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::super::MANIFEST_MAX;

/// Files that are looked at.
const FILES_MAX: usize = 20_000;
const COPY: &str = "copy";

/// What a file holds: the manifest as it was given, and when. The Pod, its UID included, follows
/// from the two.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    pub(super) submitted_at_nanos: i64,
    pub(super) manifest: Value,
}

/// A record that was read back, or what became of it.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) path: PathBuf,
    pub(super) record: Result<Record, String>,
    /// Why the copy had to be taken, where it was.
    pub(super) mended: Option<String>,
}

#[derive(Deserialize)]
struct Checked<'a> {
    checksum: u32,
    #[serde(borrow)]
    record: &'a RawValue,
}

/// Every record of a directory, which is made if it is not there.
pub(super) fn read_all(directory: &Path) -> io::Result<Vec<Found>> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let mut paths = BTreeSet::new();
    for entry in std::fs::read_dir(directory)?.take(FILES_MAX) {
        let path = entry?.path();
        match path.extension().and_then(|e| e.to_str()) {
            Some("json" | COPY) => drop(paths.insert(path.with_extension("json"))),
            // What a crash left half written was never acknowledged.
            Some("tmp") => drop(std::fs::remove_file(&path)),
            _ => {}
        }
    }
    Ok(paths.into_iter().map(read_one).collect())
}

/// Puts a record and its copy on disk.
pub(super) fn write(path: &Path, record: &Record) -> io::Result<()> {
    let text = encode(record)?;
    write_durably(path, text.as_bytes())?;
    write_durably(&path.with_extension(COPY), text.as_bytes())
}

/// Removes both; the copy first, so that a copy alone is always one whose record was lost.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    for path in [&path.with_extension(COPY), path] {
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    sync_parent(path)
}

fn read_one(path: PathBuf) -> Found {
    let copy = path.with_extension(COPY);
    let (own, copied) = (read(&path), read(&copy));
    let is_corrupt = matches!(own, Ok(Err(_)));
    let own = own.map_err(|e| e.to_string()).and_then(|own| own);
    if is_corrupt {
        set_aside(&path);
    }
    let (record, mended) = match (own, copied) {
        (Ok(record), Ok(Ok(copied))) if copied == record => (Ok(record), None),
        (Ok(record), _) => {
            // Written before there were copies, or cut short by a crash.
            rewrite(&copy, &record);
            (Ok(record), None)
        }
        (Err(error), Ok(Ok(record))) => {
            rewrite(&path, &record);
            (Ok(record), Some(error))
        }
        (Err(error), _) => (Err(error), None),
    };
    Found { path, record, mended }
}

fn set_aside(path: &Path) {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".corrupt");
    if let Err(error) = std::fs::rename(path, &aside) {
        tracing::warn!(path = %path.display(), %error, "a corrupt record stays where it is");
    }
}

fn rewrite(path: &Path, record: &Record) {
    let written = encode(record).and_then(|text| write_durably(path, text.as_bytes()));
    if let Err(error) = written {
        tracing::warn!(path = %path.display(), %error, "a record of a Pod given by command is not written");
    }
}

fn encode(record: &Record) -> io::Result<String> {
    let json = serde_json::to_string(record)?;
    Ok(format!("{{\"checksum\":{},\"record\":{json}}}", fnv1a32(json.as_bytes())))
}

/// Records of the time before checksums are the record and nothing else.
fn decode(bytes: &[u8]) -> Result<Record, String> {
    let Ok(Checked { checksum, record }) = serde_json::from_slice(bytes) else {
        return serde_json::from_slice(bytes).map_err(|e| e.to_string());
    };
    if fnv1a32(record.get().as_bytes()) != checksum {
        return Err("the checksum is wrong".to_owned());
    }
    serde_json::from_str(record.get()).map_err(|e| e.to_string())
}

fn read(path: &Path) -> io::Result<Result<Record, String>> {
    let mut bytes = Vec::new();
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path)?;
    file.take(2 * MANIFEST_MAX as u64).read_to_end(&mut bytes)?;
    Ok(decode(&bytes))
}

fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    sync_parent(path)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_or_cut_record_is_not_believed_and_an_old_one_is() {
        let manifest = serde_json::json!({"kind": "Pod", "metadata": {"name": "web"}});
        let record = Record { submitted_at_nanos: 17, manifest };
        let text = encode(&record).unwrap();
        assert_eq!(decode(text.as_bytes()).unwrap(), record);
        assert!(decode(text.replace("web", "wfb").as_bytes()).unwrap_err().contains("checksum"));
        for at in 0..text.len() {
            assert!(decode(&text.as_bytes()[..at]).is_err(), "{at} bytes of it");
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            assert!(decode(&bytes).is_err(), "{}", String::from_utf8_lossy(&bytes));
        }
        let old = br#"{"submittedAtNanos":17,"manifest":{"kind":"Pod","metadata":{"name":"web"}}}"#;
        assert_eq!(decode(old).unwrap(), record);
    }
}
