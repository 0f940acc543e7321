//! Archives of images in a directory are given to the runtime: in the background, one after the other, and each content once.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::changes::Changes;

const ENDS: [&str; 4] = [".tar", ".tar.gz", ".tgz", ".tar.zst"];
/// An archive that is written in pieces is read when it is whole.
const TOGETHER: Duration = Duration::from_millis(200);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The directory is looked at this often even where nobody tells of changes.
const LOOK: Duration = Duration::from_secs(60);
/// Files that are remembered.
const MOST: usize = 1000;

/// Gives one archive to the runtime; it may take its time.
pub type Import = Arc<dyn Fn(&Path) -> io::Result<()> + Send + Sync>;

/// Where archives come from and where they go.
#[derive(Clone)]
pub struct Archives {
    pub directory: PathBuf,
    /// What was imported, remembered beside the runtime's own files: where those are gone, so is this.
    pub record: PathBuf,
    pub import: Import,
    /// True after all that was there at the start was looked at once.
    pub has_looked: watch::Sender<bool>,
}

/// What is known of the files that were imported, by name.
type Record = BTreeMap<String, Known>;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    /// Size, modification in nanoseconds, inode: who has the same is not read again.
    looks: (u64, i64, u64),
    sha256: String,
}

pub(crate) async fn keep(archives: Archives, token: CancellationToken) {
    let mut changes = Changes::default();
    let mut pause = FIRST_PAUSE;
    let all = async {
        loop {
            changes.listen(&archives.directory);
            let round = archives.clone();
            let is_whole = tokio::task::spawn_blocking(move || round.look()).await.unwrap_or(false);
            archives.has_looked.send_replace(true);
            let wait = if is_whole { LOOK } else { pause };
            pause = if is_whole { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
            if tokio::time::timeout(wait, changes.next()).await.is_ok() {
                tokio::time::sleep(TOGETHER).await;
            }
        }
    };
    token.run_until_cancelled(all).await.unwrap_or(())
}

// === impl Archives ===

impl Archives {
    /// Imports what is new; true when nothing is left to do.
    fn look(&self) -> bool {
        let mut record: Record = fs::read(&self.record)
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default();
        let names = match names(&self.directory) {
            Ok(names) => names,
            Err(error) => {
                tracing::warn!(directory = %self.directory.display(), %error, "images are not looked for");
                return false;
            }
        };
        let before = record.len();
        record.retain(|name, _| names.contains(name));
        let mut is_whole = true;
        let mut has_changed = record.len() != before;
        for name in names.into_iter().take(MOST) {
            let path = self.directory.join(&name);
            match self.one(&path, record.get(&name), &record) {
                Ok(None) => {}
                Ok(Some(known)) => {
                    record.insert(name, known);
                    has_changed = true;
                }
                Err(error) => {
                    is_whole = false;
                    tracing::warn!(file = %path.display(), %error, "images are not imported; trying again");
                }
            }
        }
        if has_changed && let Err(error) = self.remember(&record) {
            tracing::warn!(file = %self.record.display(), %error, "what was imported is not remembered");
        }
        is_whole
    }

    /// What is to be remembered, where that is new.
    fn one(&self, path: &Path, known: Option<&Known>, all: &Record) -> io::Result<Option<Known>> {
        let looks = looks(path)?;
        if known.is_some_and(|known| known.looks == looks) {
            return Ok(None);
        }
        let sha256 = digest(path)?;
        if !all.values().any(|known| known.sha256 == sha256) {
            (self.import)(path)?;
            tracing::info!(file = %path.display(), sha256, "images imported");
        }
        Ok(Some(Known { looks, sha256 }))
    }

    fn remember(&self, record: &Record) -> io::Result<()> {
        let half = self.record.with_extension("half");
        fs::write(&half, serde_json::to_vec(record)?)?;
        fs::rename(&half, &self.record)
    }
}

impl fmt::Debug for Archives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Archives({})", self.directory.display())
    }
}

fn names(directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name().into_string().unwrap_or_default();
        if ENDS.iter().any(|end| name.ends_with(end)) && !name.starts_with('.') {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn looks(path: &Path) -> io::Result<(u64, i64, u64)> {
    let meta = fs::metadata(path)?;
    if !meta.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    Ok((
        meta.size(),
        meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec()),
        meta.ino(),
    ))
}

fn digest(path: &Path) -> io::Result<String> {
    let (mut file, mut sum, mut buffer) = (File::open(path)?, Sha256::new(), vec![0; 64 * 1024]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect()),
            n => sum.update(&buffer[..n]),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn each_content_is_imported_once_and_what_fails_is_tried_again() {
        let scratch = tempfile::tempdir().unwrap();
        let (directory, record) = (scratch.path().join("images"), scratch.path().join("imported.json"));
        fs::create_dir(&directory).unwrap();
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let (told, refuses) = (seen.clone(), Arc::new(Mutex::new(true)));
        let refused = refuses.clone();
        let import: Import = Arc::new(move |path: &Path| {
            if *refused.lock().unwrap() {
                return Err(io::Error::other("no"));
            }
            told.lock().unwrap().push(path.file_name().unwrap().to_string_lossy().into_owned());
            Ok(())
        });
        let archives = Archives {
            directory: directory.clone(),
            record: record.clone(),
            import,
            has_looked: watch::Sender::new(false),
        };
        fs::write(directory.join("a.tar"), "one").unwrap();
        fs::write(directory.join("notes.txt"), "no").unwrap();
        assert!(!archives.look());
        *refuses.lock().unwrap() = false;
        assert!(archives.look());
        // The same under another name and time; something new under an old name.
        fs::write(directory.join("b.tar.gz"), "one").unwrap();
        assert!(archives.look());
        assert_eq!(*seen.lock().unwrap(), ["a.tar"]);
        fs::write(directory.join("a.tar"), "longer").unwrap();
        assert!(archives.look() && archives.look());
        assert_eq!(*seen.lock().unwrap(), ["a.tar", "a.tar"]);
        // The runtime's files are gone, and all is needed again.
        fs::remove_file(&record).unwrap();
        assert!(archives.look());
        assert_eq!(*seen.lock().unwrap(), ["a.tar", "a.tar", "a.tar", "b.tar.gz"]);
        // A directory of that name is no archive, and keeps nothing else from being imported.
        fs::create_dir(directory.join("c.tar")).unwrap();
        fs::write(directory.join("d.tgz"), "more").unwrap();
        assert!(!archives.look());
        assert_eq!(seen.lock().unwrap().last().map(String::as_str), Some("d.tgz"));
    }
}
