//! The audit log: who asked for what and what came of it, one JSON document per line.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use serde_json::{Value, json};

use apiserver_core::request::{Attributes, User};

/// Lines that may wait for the disk. More are dropped and counted: an audit log must not stop the server.
const WAITING: usize = 4096;

/// Where the log goes, and when it is turned over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `--audit-log-path`
    pub path: PathBuf,
    /// `--audit-log-maxsize`, in bytes.
    pub max_bytes: u64,
    /// `--audit-log-maxbackup`: older ones are removed.
    pub backups: usize,
}

/// The writing end. Cheap to use: a thread does the work.
#[derive(Debug)]
pub struct Audit {
    lines: SyncSender<String>,
    counts: Arc<Counts>,
}

/// What became of the lines.
#[derive(Debug, Default)]
struct Counts {
    made: AtomicU64,
    /// Not in the log: there was no room to wait in, or the disk refused.
    lost: AtomicU64,
}

// === impl Audit ===

impl Audit {
    /// Opens the log. Blocks.
    pub fn open(settings: Settings) -> io::Result<Audit> {
        let file = open(&settings.path)?;
        let (lines, taken) = sync_channel(WAITING);
        let size = file.metadata()?.len();
        let counts = Arc::new(Counts::default());
        let lost = counts.clone();
        std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || write(&settings, file, size, &taken, &lost))?;
        Ok(Audit { lines, counts })
    }

    /// How many lines were made, and how many of them are not in the log.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.counts.made.load(Ordering::Relaxed), self.counts.lost.load(Ordering::Relaxed))
    }

    pub(crate) fn record(&self, entry: &Value) {
        self.counts.made.fetch_add(1, Ordering::Relaxed);
        match self.lines.try_send(format!("{entry}\n")) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                if self.counts.lost.fetch_add(1, Ordering::Relaxed) == 0 {
                    tracing::error!("audit lines are being dropped: the disk is too slow, or full");
                }
            }
        }
    }
}

/// One line: what audit.k8s.io/v1 tells at the level Metadata. The user is who asked, not whom he acted as.
pub(crate) fn entry(
    attributes: &Attributes,
    impersonated: Option<&User>,
    (method_uri, agent, from): (&str, &str, std::net::IpAddr),
    code: u16,
    (received, now): (String, String),
) -> Value {
    let mut entry = json!({
        "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata",
        "auditID": crate::random::new_uid(), "stage": "ResponseComplete", "requestURI": method_uri,
        "verb": attributes.verb, "user": attributes.user.to_json(), "sourceIPs": [from.to_string()], "userAgent": agent,
        "responseStatus": {"metadata": {}, "code": code},
        "requestReceivedTimestamp": received, "stageTimestamp": now,
    });
    if let Some(user) = impersonated {
        entry["impersonatedUser"] = user.to_json();
    }
    if let Some(resource) = &attributes.resource {
        let mut reference = json!({"resource": resource.plural, "apiVersion": resource.version});
        for (field, value) in [
            ("namespace", &resource.namespace),
            ("name", &resource.name),
            ("apiGroup", &resource.group),
            ("subresource", &resource.subresource),
        ] {
            if !value.is_empty() {
                reference[field] = value.as_str().into();
            }
        }
        entry["objectRef"] = reference;
    }
    entry
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

fn write(settings: &Settings, mut file: File, mut size: u64, lines: &Receiver<String>, counts: &Counts) {
    // A device or a pipe does not grow, and moved away it would be missed by everybody.
    let grows = settings.path.symlink_metadata().is_ok_and(|found| found.is_file());
    for line in lines {
        if grows && settings.max_bytes > 0 && size + line.len() as u64 > settings.max_bytes && size > 0 {
            match turn_over(settings) {
                Ok(fresh) => (file, size) = (fresh, 0),
                Err(error) => tracing::error!(%error, "the audit log cannot be turned over"),
            }
        }
        match file.write_all(line.as_bytes()) {
            Ok(()) => size += line.len() as u64,
            Err(error) => {
                counts.lost.fetch_add(1, Ordering::Relaxed);
                tracing::error!(%error, "an audit line was not written");
            }
        }
    }
}

/// `audit.log` becomes `audit.log.1`, which becomes `audit.log.2`, …
fn turn_over(settings: &Settings) -> io::Result<File> {
    let numbered = |n: usize| {
        let mut name = settings.path.clone().into_os_string();
        name.push(format!(".{n}"));
        PathBuf::from(name)
    };
    let ignore_missing = |outcome: io::Result<()>| match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    };
    let keep = settings.backups.max(1);
    ignore_missing(std::fs::remove_file(numbered(keep)))?;
    for n in (1..keep).rev() {
        ignore_missing(std::fs::rename(numbered(n), numbered(n + 1)))?;
    }
    std::fs::rename(&settings.path, numbered(1))?;
    open(&settings.path)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_turned_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let settings = Settings { path: path.clone(), max_bytes: 25, backups: 2 };
        let (sender, lines) = sync_channel(16);
        for i in 0..7 {
            sender.send(format!("line number {i}\n")).unwrap();
        }
        drop(sender);
        write(&settings, open(&path).unwrap(), 0, &lines, &Counts::default());
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(read("audit.log"), "line number 6\n");
        assert_eq!(read("audit.log.2"), "line number 4\n");
        assert!(!dir.path().join("audit.log.3").exists());
    }

    #[test]
    fn what_is_no_file_is_not_turned_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        let settings = Settings { path: path.clone(), max_bytes: 5, backups: 2 };
        let (sender, lines) = sync_channel(16);
        (0..4).for_each(|i| sender.send(format!("line number {i}\n")).unwrap());
        drop(sender);
        write(&settings, open(&path).unwrap(), 0, &lines, &Counts::default());
        assert!(path.is_symlink());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn lines_that_are_not_in_the_log_are_counted() {
        let counts = Arc::new(Counts::default());
        let (lines, _never_taken) = sync_channel(1);
        let audit = Audit { lines, counts: counts.clone() };
        for _ in 0..3 {
            audit.record(&json!({}));
        }
        assert_eq!(audit.counts(), (3, 2), "one waits");
        // A disk that is full.
        let (sender, lines) = sync_channel(1);
        sender.send("line\n".to_owned()).unwrap();
        drop(sender);
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let settings = Settings { path: PathBuf::from("/dev/full"), max_bytes: 0, backups: 1 };
        write(&settings, full, 0, &lines, &counts);
        assert_eq!(audit.counts(), (3, 3));
    }
}
