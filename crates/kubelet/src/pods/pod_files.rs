//! The small files of a Pod, on disk. Below the directories the operator named, everything is opened
//! relative to a descriptor and no symlink is followed: a Pod that plants one gets an error.

mod saved;
mod tail;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use base::ids::PodUid;
use base::rng::Rng;
use cri::v1;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kubelet_core::cri_config::metadata;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use sys::fd::{Mounts, OWN, Reach, Symlinks};

use crate::logs::LogPath;
use crate::ports::PodFiles;

/// [`PodFiles`] on the machine's own file system.
#[derive(Clone, Debug)]
pub struct DiskPodFiles {
    inner: Arc<Inner>,
}

/// The directories the operator named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodDirs {
    /// `--root-dir`.
    pub root: PathBuf,
    /// `podLogsDir`.
    pub pod_logs: PathBuf,
    /// Where symlinks to the logs gather: `/var/log/containers`.
    pub container_logs: PathBuf,
    /// The node's own hosts file.
    pub node_hosts: PathBuf,
    /// `resolvConf`; none if Pods shall inherit no resolver.
    pub resolv_conf: Option<PathBuf>,
}

#[derive(Debug)]
struct Inner {
    dirs: PodDirs,
    /// Names termination-message files.
    rng: Mutex<Rng>,
}

/// A Pod named without surprises: each part is one path component.
#[derive(Clone, Debug)]
struct PodPaths {
    uid: String,
    logs: String,
}

const STATUS: &str = "status.json";
const STATUS_TMP: &str = "status.json.tmp";
/// Where a status goes that cannot be believed, for whoever wants to know why.
const STATUS_ASIDE: &str = "status.json.corrupt";
const MAX_STATUS: u64 = 1 << 20;
const MAX_MESSAGE: usize = 4096;
/// Ad blockers fill hosts files with whole dictionaries.
const MAX_HOSTS: u64 = 64 << 20;
/// Enough for the last 80 lines of which 2048 bytes are kept, one line being at most 16 KiB.
const LOG_WINDOW: u64 = 64 << 10;
/// The longest file name of the usual file systems.
const MAX_NAME: usize = 255;

/// Reads a file a Pod wrote into a volume (environment files): links may lead around inside the
/// volume, never out of it; only a regular file of at most `max` bytes is read.
pub async fn read_in_volume(volume: PathBuf, path: PathBuf, max: u64) -> io::Result<String> {
    blocking(move || {
        let root = sys::fd::open_dir(&volume)?;
        let reach = Reach { symlinks: Symlinks::Beneath, mounts: Mounts::Cross };
        let mut file = open_regular(&root, &path, OFlags::RDONLY, reach)?;
        read_bounded(&mut file, max)
    })
    .await
}

// === impl DiskPodFiles ===

impl DiskPodFiles {
    #[must_use]
    pub fn new(dirs: PodDirs, rng: Rng) -> Self {
        Self { inner: Arc::new(Inner { dirs, rng: Mutex::new(rng) }) }
    }

    async fn run<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Inner) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let inner = Arc::clone(&self.inner);
        blocking(move || act(&inner)).await
    }
}

#[async_trait]
impl PodFiles for DiskPodFiles {
    async fn prepare(&self, pod: &Pod) -> io::Result<()> {
        let paths = PodPaths::of(pod)?;
        self.run(move |i| {
            let dir = i.pod_dir(&paths)?;
            sys::fd::make_dir(&dir, OsStr::new("volumes"), mode(0o750))?;
            sys::fd::make_dir(&dir, OsStr::new("plugins"), mode(0o750))?;
            i.log_dir(&paths).map(drop)
        })
        .await
    }

    async fn write_hosts(&self, pod: &Pod, content: &str) -> io::Result<PathBuf> {
        let (paths, content) = (PodPaths::of(pod)?, content.to_owned());
        self.run(move |i| {
            // In place: containers that already run have this very file mounted.
            let dir = i.pod_dir(&paths)?;
            let flags = OFlags::WRONLY | OFlags::CREATE;
            let mut file = open_regular(&dir, Path::new("etc-hosts"), flags, OWN)?;
            sys::fd::chmod(&file, mode(0o644))?;
            file.set_len(0)?;
            file.write_all(content.as_bytes())?;
            Ok(i.pod_path(&paths).join("etc-hosts"))
        })
        .await
    }

    async fn node_hosts(&self) -> io::Result<String> {
        self.run(|i| read_bounded(&mut File::open(&i.dirs.node_hosts)?, MAX_HOSTS)).await
    }

    async fn node_resolver(&self) -> io::Result<Option<String>> {
        self.run(|i| {
            let Some(path) = &i.dirs.resolv_conf else { return Ok(None) };
            let text = File::open(path).and_then(|mut file| read_bounded(&mut file, MAX_HOSTS));
            let named = |e: io::Error| io::Error::new(e.kind(), format!("open {}: {e}", path.display()));
            text.map(Some).map_err(named)
        })
        .await
    }

    async fn prepare_container(&self, pod: &Pod, container: &str) -> io::Result<PathBuf> {
        let (paths, container) = (PodPaths::of(pod)?, component(container)?);
        self.run(move |i| {
            sys::fd::make_dir(i.log_dir(&paths)?, OsStr::new(&container), mode(0o755))?;
            let rel = Path::new("containers").join(&container);
            let dir = sys::fd::make_dirs(i.pod_dir(&paths)?, &rel, mode(0o750))?;
            let name = i.fresh_file(&dir)?;
            Ok(i.pod_path(&paths).join(rel).join(name))
        })
        .await
    }

    async fn restart_count_from_logs(&self, pod: &Pod, container: &str) -> io::Result<Option<u32>> {
        let (paths, container) = (PodPaths::of(pod)?, component(container)?);
        self.run(move |i| {
            let rel = Path::new(&paths.logs).join(container);
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let dir = match sys::fd::open_dir(&i.dirs.pod_logs)
                .and_then(|logs| sys::fd::open_beneath(logs, &rel, flags, OWN))
            {
                Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
                other => other?,
            };
            let names = sys::tree::list(&dir)?;
            let numbers = names.iter().filter(|n| !n.is_dir).filter_map(|n| log_number(n.name.as_bytes()));
            Ok(numbers.max().map(|n| n.saturating_add(1)))
        })
        .await
    }

    fn log_directory(&self, pod: &Pod) -> PathBuf {
        metadata::log_directory(&self.inner.dirs.pod_logs, pod)
    }

    async fn termination_message(&self, path: &str) -> io::Result<String> {
        let path = PathBuf::from(path);
        self.run(move |i| {
            let (bytes, _) = read_end(&i.pods(), &path, MAX_MESSAGE as u64)?;
            Ok(tail::last_bytes(&String::from_utf8_lossy(&bytes), MAX_MESSAGE).to_owned())
        })
        .await
    }

    async fn log_tail(&self, path: &str) -> io::Result<String> {
        let path = PathBuf::from(path);
        self.run(move |i| {
            let (bytes, whole) = read_end(&i.dirs.pod_logs, &path, LOG_WINDOW)?;
            Ok(tail::log_text(&bytes, whole))
        })
        .await
    }

    async fn save_status(&self, uid: &PodUid, status: &PodStatus) -> io::Result<()> {
        let (uid, json) = (component(uid.as_str())?, saved::encode(status)?);
        self.run(move |i| {
            let Some(dir) = i.existing_pod_dir(&uid)? else { return Ok(()) };
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
            let fresh = sys::fd::create_beneath(&dir, Path::new(STATUS_TMP), flags, mode(0o600), OWN)?;
            File::from(fresh).write_all(json.as_bytes())?;
            Ok(rustix::fs::renameat(&dir, STATUS_TMP, &dir, STATUS)?)
        })
        .await
    }

    async fn save_checkpoint(&self, name: &'static str, text: String) -> io::Result<()> {
        self.run(move |i| crate::host::files::write_whole(&i.dirs.root.join(name), text.as_bytes(), 0o600))
            .await
    }

    async fn load_checkpoint(&self, name: &'static str) -> io::Result<Option<String>> {
        self.run(move |i| match std::fs::read_to_string(i.dirs.root.join(name)) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        })
        .await
    }

    async fn load_status(&self, uid: &PodUid) -> io::Result<Option<PodStatus>> {
        let uid = component(uid.as_str())?;
        self.run(move |i| {
            let Some(dir) = i.existing_pod_dir(&uid)? else { return Ok(None) };
            let mut file = match open_regular(&dir, Path::new(STATUS), OFlags::RDONLY, OWN) {
                Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
                other => other?,
            };
            let decoded = read_bounded(&mut file, MAX_STATUS).and_then(|text| saved::decode(&text));
            if let Err(error) = &decoded {
                // It is no memory; the runtime and the API server still know the truth.
                let path = i.pods().join(&uid).join(STATUS_ASIDE);
                tracing::warn!(path = %path.display(), %error, "a Pod's last status is corrupt and was set aside");
                rustix::fs::renameat(&dir, STATUS, &dir, STATUS_ASIDE)?;
            }
            Ok(decoded.ok())
        })
        .await
    }

    async fn link_log(&self, pod: &Pod, container: &str, id: &str, log_path: &str) -> io::Result<()> {
        let (name, namespace) = (pod.metadata.name.as_deref(), pod.metadata.namespace.as_deref());
        let name = link_name(name.unwrap_or_default(), namespace.unwrap_or_default(), container, id);
        component(&name)?;
        let log_path = PathBuf::from(log_path);
        self.run(move |i| {
            // A runtime that logs elsewhere leaves no file; a dangling link would help nobody.
            if !log_path.try_exists()? {
                return Ok(());
            }
            let dir = open_or_make(&i.dirs.container_logs, 0o755)?;
            match rustix::fs::symlinkat(&log_path, &dir, &name) {
                Err(Errno::EXIST) => {
                    rustix::fs::unlinkat(&dir, &name, rustix::fs::AtFlags::empty())?;
                    Ok(rustix::fs::symlinkat(&log_path, &dir, &name)?)
                }
                other => Ok(other?),
            }
        })
        .await
    }

    async fn remove_logs(&self, dead: &v1::ContainerStatus) -> io::Result<()> {
        let label = |key: &str| dead.labels.get(key).map(String::as_str).unwrap_or_default();
        let (pod, namespace) = (label(metadata::POD_NAME), label(metadata::POD_NAMESPACE));
        let link = component(&link_name(pod, namespace, label(metadata::CONTAINER_NAME), &dead.id))?;
        let path = PathBuf::from(&dead.log_path);
        self.run(move |i| {
            i.remove_log_files(&path)?;
            let dir = match sys::fd::open_dir(&i.dirs.container_logs) {
                Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
                other => other?,
            };
            match rustix::fs::unlinkat(&dir, &link, rustix::fs::AtFlags::empty()) {
                Err(Errno::NOENT) => Ok(()),
                other => Ok(other?),
            }
        })
        .await
    }
}

// === impl Inner ===

impl Inner {
    /// A symlink up to here is the operator's.
    fn pods(&self) -> PathBuf {
        self.dirs.root.join("pods")
    }

    fn pod_path(&self, paths: &PodPaths) -> PathBuf {
        self.pods().join(&paths.uid)
    }

    fn pod_dir(&self, paths: &PodPaths) -> io::Result<OwnedFd> {
        let pods = open_or_make(&self.pods(), 0o750)?;
        sys::fd::make_dirs(pods, Path::new(&paths.uid), mode(0o750))
    }

    fn existing_pod_dir(&self, uid: &str) -> io::Result<Option<OwnedFd>> {
        let (rel, flags) = (Path::new(uid), OFlags::RDONLY | OFlags::DIRECTORY);
        match sys::fd::open_dir(&self.pods()).and_then(|pods| sys::fd::open_beneath(pods, rel, flags, OWN)) {
            Ok(dir) => Ok(Some(dir)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn log_dir(&self, paths: &PodPaths) -> io::Result<OwnedFd> {
        let logs = open_or_make(&self.dirs.pod_logs, 0o755)?;
        sys::fd::make_dir(logs, OsStr::new(&paths.logs), mode(0o755))
    }

    /// A log and what was rotated away of it. A log that is not below our directory is not ours.
    fn remove_log_files(&self, path: &Path) -> io::Result<()> {
        let Some(log) = LogPath::below(&self.dirs.pod_logs, path) else { return Ok(()) };
        let dir = match log.open_dir() {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        dir.names(&log.file)?.iter().try_for_each(|name| dir.remove(name))
    }

    /// An empty file with a new name that everybody may write.
    fn fresh_file(&self, dir: &OwnedFd) -> io::Result<String> {
        loop {
            let bits = self.rng.lock().unwrap_or_else(PoisonError::into_inner).next_u64() >> 32;
            let name = format!("{bits:08x}");
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
            match sys::fd::create_beneath(dir, Path::new(&name), flags, mode(0o666), OWN) {
                Ok(file) => {
                    sys::fd::chmod(&file, mode(0o666))?;
                    return Ok(name);
                }
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
    }
}

// === impl PodPaths ===

impl PodPaths {
    fn of(pod: &Pod) -> io::Result<Self> {
        let uid = component(pod.metadata.uid.as_deref().unwrap_or_default())?;
        let logs = metadata::log_directory(Path::new(""), pod);
        Ok(Self { uid, logs: component(&logs.to_string_lossy())? })
    }
}

/// Refuses a name that is not exactly one component of a path.
fn component(name: &str) -> io::Result<String> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(only)), None) if only == name => Ok(name.to_owned()),
        _ => Err(io::Error::new(ErrorKind::InvalidInput, format!("{name:?} cannot be the name of a file"))),
    }
}

/// `<pod>_<namespace>_<container>-<id>.log`, cut to what a file system can hold.
fn link_name(pod: &str, namespace: &str, container: &str, id: &str) -> String {
    let mut stem = format!("{pod}_{namespace}_{container}-{id}");
    let mut end = stem.len().min(MAX_NAME - ".log".len());
    while !stem.is_char_boundary(end) {
        end -= 1;
    }
    stem.truncate(end);
    stem + ".log"
}

/// `12` of `12.log` and `12.log.20260101-000000.gz`.
fn log_number(name: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(name).ok()?;
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, rest) = text.split_at(digits);
    rest.strip_prefix(".log")?;
    number.parse().ok()
}

/// The last `max` bytes of a file below `base`, and whether that is all of it. A missing file is empty.
fn read_end(base: &Path, path: &Path, max: u64) -> io::Result<(Vec<u8>, bool)> {
    let rel = path.strip_prefix(base).map_err(|_| {
        io::Error::new(ErrorKind::InvalidInput, format!("{} is not below {}", path.display(), base.display()))
    })?;
    let opened = sys::fd::open_dir(base).and_then(|dir| open_regular(&dir, rel, OFlags::RDONLY, OWN));
    let mut file = match opened {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok((Vec::new(), true)),
        other => other?,
    };
    let start = file.metadata()?.len().saturating_sub(max);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(max).read_to_end(&mut bytes)?;
    Ok((bytes, start == 0))
}

/// Opens a regular file; anything else (a FIFO would hang us) is refused.
fn open_regular(dir: &impl AsFd, rel: &Path, flags: OFlags, reach: Reach) -> io::Result<File> {
    let flags = flags | OFlags::NONBLOCK;
    let created = if flags.contains(OFlags::CREATE) { mode(0o644) } else { Mode::empty() };
    let file = File::from(sys::fd::create_beneath(dir, rel, flags, created, reach)?);
    if !file.metadata()?.is_file() {
        let message = format!("{} is not a regular file", rel.display());
        return Err(io::Error::new(ErrorKind::InvalidInput, message));
    }
    Ok(file)
}

fn read_bounded(file: &mut File, max: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(io::Error::new(ErrorKind::FileTooLarge, format!("the file is larger than {max} bytes")));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Opens a directory the operator named, making it if it is missing.
fn open_or_make(path: &Path, bits: u32) -> io::Result<OwnedFd> {
    match sys::fd::open_dir(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            use std::os::unix::fs::DirBuilderExt;
            std::fs::DirBuilder::new().recursive(true).mode(bits).create(path)?;
            sys::fd::open_dir(path)
        }
        other => other,
    }
}

fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits)
}

async fn blocking<T: Send + 'static>(act: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(act).await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests;
