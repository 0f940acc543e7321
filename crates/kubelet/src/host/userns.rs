//! User-namespace ranges, kept in each Pod's directory so that they survive the agent.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use base::class::{Class, Classify};
use base::ids::PodUid;
use kubelet_core::cri_config::UserNamespace;
use kubelet_core::userns::{Ranges, Record, UsernsError, parse_getsubids};
use rustix::fs::{AtFlags, Mode, OFlags};
use sys::fd::OWN;

/// The ranges of this node's Pods.
#[derive(Clone, Debug)]
pub struct UsernsStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// `<root>/pods`.
    pods: PathBuf,
    ranges: Mutex<Ranges>,
}

/// What the node grants: configuration and, where user `kubelet` exists, its subordinate ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    pub ids_per_pod: u32,
    pub first_id: u32,
    pub length: u32,
    pub max_pods: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("user namespace: {0}")]
    Ranges(#[from] UsernsError),
    /// Somebody may run with these ids, so that giving them, or what lies under them, to another is no way out.
    #[error(
        "{path}: {source}; it belongs to the Pod of that directory, remove it once nothing of that Pod runs"
    )]
    Unfit { path: String, source: UsernsError },
    #[error("{act} user namespace of pod {uid}: {source}")]
    Io { act: &'static str, uid: PodUid, source: io::Error },
    #[error("list pods for user namespaces: {0}")]
    List(io::Error),
    #[error("ask getsubids: {0}")]
    Subids(io::Error),
    #[error("mismatched subuids and subgids for user \"kubelet\"")]
    Mismatch,
}

const FILE: &str = "userns";
/// A record is some two hundred bytes.
const MAX_RECORD: u64 = 64 << 10;

/// What this machine grants: everything above the first range, unless there is a user `kubelet`
/// with subordinate ids. Blocks; called once at start.
pub fn grant(ids_per_pod: u32, max_pods: u32) -> Result<Grant, StoreError> {
    let (first_id, length) = match subordinate_ids()? {
        Some(text) => parse_getsubids(&text)?,
        None => Ranges::unrestricted(ids_per_pod),
    };
    Ok(Grant { ids_per_pod, first_id, length, max_pods })
}

// === impl UsernsStore ===

impl UsernsStore {
    /// Finds the ranges of Pods from earlier lives again. A record that cannot be read as one is set aside: it costs its
    /// own Pod the protection of a range nobody else has, but no other Pod anything. One that can be read and does not
    /// fit the node is refused, as upstream does. Blocks; called once at start.
    pub fn open(root: &Path, grant: Grant) -> Result<Self, StoreError> {
        let mut ranges = Ranges::new(grant.ids_per_pod, grant.first_id, grant.length, grant.max_pods)?;
        let pods = root.join("pods");
        for uid in known_pods(&pods).map_err(StoreError::List)? {
            let record = match read(&pods, &uid) {
                Err(StoreError::Ranges(error)) => {
                    set_aside(&pods, &uid, &error)?;
                    continue;
                }
                other => other?,
            };
            let path = || pods.join(uid.as_str()).join(FILE).display().to_string();
            let adopted = record.map(|record| ranges.adopt(&uid, &record)).transpose();
            adopted.map_err(|source| StoreError::Unfit { path: path(), source })?;
        }
        Ok(Self { inner: Arc::new(Inner { pods, ranges: Mutex::new(ranges) }) })
    }

    /// The range of a Pod, found or made, and on disk before it is used.
    pub async fn ensure(&self, uid: &PodUid) -> Result<UserNamespace, StoreError> {
        let (inner, uid) = (Arc::clone(&self.inner), uid.clone());
        let task = tokio::task::spawn_blocking(move || inner.ensure(&uid));
        task.await.unwrap_or_else(|e| Err(StoreError::List(io::Error::other(e))))
    }

    /// Nothing of the Pod runs any more. Its directory may stay for long, so its record goes first: found by a later
    /// life, it would speak for a range that somebody else has by then.
    pub async fn release(&self, uid: &PodUid) -> Result<(), StoreError> {
        let (inner, uid) = (Arc::clone(&self.inner), uid.clone());
        let task = tokio::task::spawn_blocking(move || inner.release(&uid));
        task.await.unwrap_or_else(|e| Err(StoreError::List(io::Error::other(e))))
    }
}

// === impl Inner ===

impl Inner {
    fn ensure(&self, uid: &PodUid) -> Result<UserNamespace, StoreError> {
        let mut ranges = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(record) = read(&self.pods, uid)? {
            return Ok(ranges.adopt(uid, &record)?);
        }
        let namespace = ranges.allocate(uid)?;
        match write(&self.pods, uid, &Record::from(&namespace)) {
            Ok(()) => Ok(namespace),
            Err(source) => {
                ranges.release(uid);
                Err(StoreError::Io { act: "write", uid: uid.clone(), source })
            }
        }
    }

    fn release(&self, uid: &PodUid) -> Result<(), StoreError> {
        let mut ranges = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        match unlink(&self.pods, uid) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                Err(StoreError::Io { act: "remove", uid: uid.clone(), source: e })
            }
            _ => {
                ranges.release(uid);
                Ok(())
            }
        }
    }
}

// === impl StoreError ===

impl Classify for StoreError {
    fn class(&self) -> Class {
        match self {
            Self::Io { .. } | Self::List(_) | Self::Subids(_) => Class::Retry,
            Self::Ranges(_) | Self::Unfit { .. } | Self::Mismatch => Class::Fault,
        }
    }
}

fn known_pods(pods: &Path) -> io::Result<Vec<PodUid>> {
    let entries = match std::fs::read_dir(pods) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.extend(entry.file_name().to_str().map(PodUid::from));
        }
    }
    Ok(found)
}

fn read(pods: &Path, uid: &PodUid) -> Result<Option<Record>, StoreError> {
    let failed = |source| StoreError::Io { act: "read", uid: uid.clone(), source };
    let rel = Path::new(uid.as_str()).join(FILE);
    let opened = sys::fd::open_dir(pods)
        .and_then(|dir| sys::fd::open_beneath(dir, &rel, OFlags::RDONLY | OFlags::NONBLOCK, OWN));
    let file = match opened {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        other => File::from(other.map_err(failed)?),
    };
    let mut bytes = Vec::new();
    file.take(MAX_RECORD).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let record = serde_json::from_slice(&bytes)
        .map_err(|e| UsernsError(format!("invalid user namespace mappings file: {e}")))?;
    Ok(Some(record))
}

fn set_aside(pods: &Path, uid: &PodUid, error: &UsernsError) -> Result<(), StoreError> {
    let failed = |source| StoreError::Io { act: "set aside", uid: uid.clone(), source };
    let dir = pods.join(uid.as_str());
    let aside = dir.join(format!("{FILE}.corrupt"));
    tracing::error!(pod_uid = %uid, path = %aside.display(), %error, "a record of user ids is corrupt and was set aside");
    std::fs::rename(dir.join(FILE), aside).map_err(failed)
}

/// Whole or not at all, and durable: a container may run with these ids the next moment.
fn write(pods: &Path, uid: &PodUid, record: &Record) -> io::Result<()> {
    let bytes = serde_json::to_vec(record).map_err(io::Error::other)?;
    let dir = open_pod(pods, uid)?;
    let temporary = format!(".{FILE}.new");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
    let mode = Mode::from_raw_mode(0o600);
    let mut file = File::from(sys::fd::create_beneath(&dir, Path::new(&temporary), flags, mode, OWN)?);
    file.write_all(&bytes)?;
    file.sync_all()?;
    rustix::fs::renameat(&dir, &temporary, &dir, FILE)?;
    Ok(rustix::fs::fsync(&dir)?)
}

/// Durable too: after a crash of the machine a record that is back would keep the node from starting.
fn unlink(pods: &Path, uid: &PodUid) -> io::Result<()> {
    let dir = open_pod(pods, uid)?;
    rustix::fs::unlinkat(&dir, FILE, AtFlags::empty())?;
    Ok(rustix::fs::fsync(&dir)?)
}

fn open_pod(pods: &Path, uid: &PodUid) -> io::Result<OwnedFd> {
    let root = sys::fd::open_dir(pods)?;
    sys::fd::open_beneath(root, Path::new(uid.as_str()), OFlags::RDONLY | OFlags::DIRECTORY, OWN)
}

/// What getsubids says of user `kubelet`; none if there is no such user or no such tool. If the user
/// exists, silence is an error: the answer may come from a directory service that is down.
fn subordinate_ids() -> Result<Option<String>, StoreError> {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    if !passwd.lines().any(|l| l.starts_with("kubelet:")) {
        return Ok(None);
    }
    let ask = |args: &[&str]| -> Result<Option<String>, StoreError> {
        let output = match std::process::Command::new("getsubids").args(args).output() {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            other => other.map_err(StoreError::Subids)?,
        };
        if !output.status.success() {
            return Err(StoreError::Subids(io::Error::other(output.status.to_string())));
        }
        Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()))
    };
    match (ask(&["kubelet"])?, ask(&["-g", "kubelet"])?) {
        (Some(uids), Some(gids)) if uids == gids => Ok(Some(uids)),
        (Some(_), Some(_)) => Err(StoreError::Mismatch),
        _ => Ok(None),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use kubelet_core::userns::UNIT;

    use super::*;

    struct Root(PathBuf);

    impl Root {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("longshore-userns-{}-{name}", std::process::id()));
            std::fs::create_dir_all(dir.join("pods")).unwrap();
            Self(dir.canonicalize().unwrap())
        }

        fn pod(&self, uid: &str) -> PathBuf {
            let dir = self.0.join("pods").join(uid);
            std::fs::create_dir_all(&dir).unwrap();
            dir
        }

        fn open(&self) -> Result<UsernsStore, StoreError> {
            let (first_id, length) = Ranges::unrestricted(UNIT);
            UsernsStore::open(&self.0, Grant { ids_per_pod: UNIT, first_id, length, max_pods: 110 })
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[tokio::test]
    async fn a_range_survives_the_agent() {
        let root = Root::new("survives");
        root.pod("a");
        root.pod("b");
        let (a, b) = (PodUid::from("a"), PodUid::from("b"));
        let store = root.open().unwrap();
        let range_a = store.ensure(&a).await.unwrap();
        let range_b = store.ensure(&b).await.unwrap();
        assert_ne!(range_a, range_b);
        let again = root.open().unwrap();
        assert_eq!(again.ensure(&b).await.unwrap(), range_b);
        assert_eq!(again.ensure(&a).await.unwrap(), range_a);
        std::fs::remove_dir_all(root.0.join("pods/a")).unwrap();
        again.release(&a).await.unwrap();
        root.pod("c");
        assert_eq!(again.ensure(&PodUid::from("c")).await.unwrap(), range_a, "the free range is used again");
    }

    #[tokio::test]
    async fn nothing_is_given_that_cannot_be_kept() {
        let root = Root::new("kept");
        let store = root.open().unwrap();
        assert!(store.ensure(&PodUid::from("no-directory")).await.is_err());
        let dir = root.pod("linked");
        std::fs::write(root.0.join("elsewhere"), "x").unwrap();
        std::os::unix::fs::symlink(root.0.join("elsewhere"), dir.join(FILE)).unwrap();
        assert!(store.ensure(&PodUid::from("linked")).await.is_err(), "a symlink is refused");
        assert_eq!(std::fs::read_to_string(root.0.join("elsewhere")).unwrap(), "x");
    }

    #[tokio::test]
    async fn a_broken_record_is_set_aside_and_harms_nobody_else() {
        let root = Root::new("broken");
        let (bad, good) = (root.pod("bad"), PodUid::from("good"));
        root.pod("good");
        let range = root.open().unwrap().ensure(&good).await.unwrap();
        std::fs::write(bad.join(FILE), "{nonsense").unwrap();
        let again = root.open().unwrap();
        assert_eq!(again.ensure(&good).await.unwrap(), range);
        assert_eq!(std::fs::read_to_string(bad.join("userns.corrupt")).unwrap(), "{nonsense");
        assert_ne!(again.ensure(&PodUid::from("bad")).await.unwrap(), range);
    }

    /// A Pod that ended may lie there for weeks: an object of a Job, its directory, its status.
    #[tokio::test]
    async fn a_released_range_leaves_no_record_behind() {
        for [ended, running] in [["a", "b"], ["b", "a"]] {
            let root = Root::new(&format!("released-{ended}"));
            let (ended, running) = (PodUid::from(ended), PodUid::from(running));
            root.pod(ended.as_str());
            root.pod(running.as_str());
            let store = root.open().unwrap();
            let range = store.ensure(&ended).await.unwrap();
            store.release(&ended).await.unwrap();
            store.release(&ended).await.unwrap();
            assert_eq!(store.ensure(&running).await.unwrap(), range, "the free range is used again");

            let again = root.open().unwrap();
            root.pod("c");
            assert_ne!(again.ensure(&PodUid::from("c")).await.unwrap(), range, "{running} runs with it");
            assert_eq!(again.ensure(&running).await.unwrap(), range);
        }
    }

    #[tokio::test]
    async fn a_range_whose_record_stays_is_not_free() {
        let root = Root::new("stays");
        let a = PodUid::from("a");
        let store = root.open().unwrap();
        let dir = root.pod("a");
        let range = store.ensure(&a).await.unwrap();
        std::fs::remove_file(dir.join(FILE)).unwrap();
        std::fs::create_dir(dir.join(FILE)).unwrap();
        assert!(store.release(&a).await.is_err());
        root.pod("b");
        assert_ne!(store.ensure(&PodUid::from("b")).await.unwrap(), range);
        std::fs::remove_dir(dir.join(FILE)).unwrap();
        store.release(&a).await.unwrap();
        root.pod("c");
        assert_eq!(store.ensure(&PodUid::from("c")).await.unwrap(), range);
    }

    #[tokio::test]
    async fn a_record_that_does_not_fit_the_node_is_refused_by_name() {
        let root = Root::new("unfit");
        let dir = root.pod("a");
        root.open().unwrap().ensure(&PodUid::from("a")).await.unwrap();
        let grant = Grant { ids_per_pod: UNIT, first_id: UNIT * 512, length: UNIT * 256, max_pods: 110 };
        let error = UsernsStore::open(&root.0, grant).unwrap_err();
        assert!(matches!(error, StoreError::Unfit { .. }));
        assert!(error.to_string().starts_with(dir.join(FILE).to_str().unwrap()), "{error}");
        assert!(dir.join(FILE).exists(), "and stays where it is");

        std::fs::copy(dir.join(FILE), root.pod("b").join(FILE)).unwrap();
        assert!(matches!(root.open(), Err(StoreError::Unfit { .. })), "two Pods with one range");
    }
}
