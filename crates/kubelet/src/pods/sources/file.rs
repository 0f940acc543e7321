//! Manifests in a file or a directory.
//!
//! The directory is read whole, once per period and whenever something in it changes. A file that
//! exists but is broken keeps the Pod of its last good version running: a slip of the editor must
//! not stop a service (docs/decisions/006.md).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::pod::static_pod::Origin;
use api::pod::{Manifest, ManifestError};
use base::fnv::fnv1a128;
use base::time::Wall;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Context, MANIFEST_MAX, SourceName, SourceSender, SourceUpdate};

mod handover;
mod watch;
pub use handover::Handover;
use watch::Watch;

/// Manifests read from one directory.
const FILES_MAX: usize = 4096;
/// After a change, the wait for the rest of it: editors and tools touch several names at once.
const SETTLE: Duration = Duration::from_millis(20);
/// How often a path that does not exist is looked for.
const MISSING: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct FileConfig {
    /// A file or a directory.
    pub path: PathBuf,
    /// fileCheckFrequency.
    pub period: Duration,
}

/// Runs until the token is cancelled or nobody listens. What a kubelet before us made of the same files is in `handover`.
pub async fn run(
    config: FileConfig,
    context: Context,
    handover: Handover,
    tx: mpsc::Sender<SourceUpdate>,
    token: CancellationToken,
) {
    let mut sender = SourceSender::new(SourceName::File, &context, tx, &token);
    let mut manifests = Manifests { context, path: config.path.clone(), files: BTreeMap::new(), handover };
    let mut watch: Option<Watch> = None;
    let mut deleted = BTreeSet::new();
    loop {
        // Watching starts before reading, so no change falls between the two.
        if watch.as_ref().is_none_or(Watch::is_stale) {
            watch = Watch::start(&config.path);
        }
        let found = match tokio::task::spawn_blocking({
            let path = config.path.clone();
            move || look(&path)
        })
        .await
        {
            Ok(found) => found,
            Err(_) => return,
        };
        // As upstream: a file that was deleted is another one when it is back, whatever it says.
        if let Some(rest) = manifests.forget(&std::mem::take(&mut deleted))
            && !sender.emit(rest).await
        {
            return;
        }
        if let Some(pods) = manifests.take_in(found) {
            if !sender.emit(pods).await {
                return;
            }
            // What is written from now on is ours.
            manifests.handover = Handover::default();
        }
        let read = Instant::now();
        let pause = if watch.is_some() { config.period } else { config.period.min(MISSING) };
        tokio::select! {
            () = token.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
            names = changed(&mut watch, read) => deleted = names,
        }
    }
}

/// Returns when something changed and it is time to read. What arrived whole is read at once, though
/// not twice within [`SETTLE`]; otherwise the rest is waited for. A name that went away always means
/// waiting: editors move the old file aside before the new one takes its place. Names that were deleted are returned.
async fn changed(watch: &mut Option<Watch>, read: Instant) -> BTreeSet<OsString> {
    let Some(watch) = watch else { return std::future::pending().await };
    let mut news = watch.changed().await;
    let heard = Instant::now();
    loop {
        let at = if news.arrived && !news.left { read + SETTLE } else { heard + SETTLE };
        if at <= Instant::now() {
            return news.deleted;
        }
        tokio::select! {
            () = tokio::time::sleep_until(at) => return news.deleted,
            more = watch.changed() => news |= more,
        }
    }
}

/// What was found at the path.
enum Found {
    Missing,
    Files(Vec<(PathBuf, io::Result<Text>)>),
    Unreadable(io::Error),
}

/// The content of a file.
struct Text {
    bytes: Vec<u8>,
    /// When it was last changed in any way; none where a link may lead elsewhere than it did before.
    touched: Option<Wall>,
}

/// Reads everything, following symbolic links as upstream does: the directory belongs to the
/// administrator, and tools that publish files atomically use links.
fn look(path: &Path) -> Found {
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Found::Missing,
        Err(e) => return Found::Unreadable(e),
    };
    if !meta.is_dir() {
        return Found::Files(vec![(path.to_owned(), read(path))]);
    }
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(e) => return Found::Unreadable(e),
    };
    let mut paths: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .filter(|e| !e.file_name().as_encoded_bytes().starts_with(b"."))
        .map(|e| e.path())
        .collect();
    paths.sort();
    let extra = paths.split_off(paths.len().min(FILES_MAX));
    let mut files: Vec<_> = paths.into_iter().map(|p| (p.clone(), read(&p))).collect();
    if let Some(first) = extra.into_iter().next() {
        let e = io::Error::other(format!("more than {FILES_MAX} files; this one and later ones are ignored"));
        files.push((first, Err(e)));
    }
    // A file may vanish between listing and reading.
    files.retain(|(_, r)| !matches!(r, Err(e) if e.kind() == io::ErrorKind::NotFound));
    Found::Files(files)
}

fn read(path: &Path) -> io::Result<Text> {
    // Non-blocking, so that a FIFO cannot hold us up.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let meta = file.metadata()?;
    if meta.is_dir() {
        return Err(io::Error::other("is a directory; manifests are not looked for in it"));
    }
    if !meta.is_file() {
        return Err(io::Error::other("is neither a file nor a directory"));
    }
    let mut bytes = Vec::new();
    (&file).take(MANIFEST_MAX as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > MANIFEST_MAX {
        return Err(io::Error::other(ManifestError::TooLarge { limit: MANIFEST_MAX }));
    }
    // Asked after reading: a change meanwhile counts as one.
    let is_link = std::fs::symlink_metadata(path)?.is_symlink();
    let touched = (!is_link).then(|| file.metadata()).transpose()?.map(|meta| changed_at(&meta));
    Ok(Text { bytes, touched })
}

/// The later of the two times of change. A move into the directory counts, which leaves the content's time alone.
fn changed_at(meta: &Metadata) -> Wall {
    let nanos = |secs: i64, nanos: i64| secs.saturating_mul(1_000_000_000).saturating_add(nanos);
    Wall(nanos(meta.ctime(), meta.ctime_nsec()).max(nanos(meta.mtime(), meta.mtime_nsec())))
}

/// The files as last read, each with the Pod of its last good version.
struct Manifests {
    context: Context,
    path: PathBuf,
    files: BTreeMap<PathBuf, Known>,
    handover: Handover,
}

#[derive(Default)]
struct Known {
    content: Option<u128>,
    pod: Option<Arc<Pod>>,
    /// An earlier file has a Pod of the same name.
    shadowed: bool,
}

impl Manifests {
    /// Forgets the files of these names and returns the Pods of the others; `None` when there are none to forget.
    fn forget(&mut self, names: &BTreeSet<OsString>) -> Option<Vec<Arc<Pod>>> {
        let before = self.files.len();
        self.files.retain(|path, _| !path.file_name().is_some_and(|name| names.contains(name)));
        let rest = self.files.values().filter_map(|known| known.pod.clone());
        (self.files.len() < before).then(|| rest.collect())
    }

    /// Takes in what was found and returns the Pods, in the order of their files; `None` when the
    /// path could not be read, which says nothing about its Pods.
    fn take_in(&mut self, found: Found) -> Option<Vec<Arc<Pod>>> {
        let problems = self.context.problems.clone();
        let whole = self.path.to_string_lossy().into_owned();
        let files = match found {
            Found::Missing => {
                self.files.clear();
                problems.retain(SourceName::File, |place| place == whole);
                if problems.set(SourceName::File, &whole, "path does not exist, ignoring") {
                    tracing::warn!(path = whole, "the manifest path does not exist");
                }
                return Some(Vec::new());
            }
            Found::Unreadable(e) => {
                if problems.set(SourceName::File, &whole, &e.to_string()) {
                    tracing::error!(path = whole, error = %e, "could not read the manifest path");
                }
                return None;
            }
            Found::Files(files) => files,
        };
        problems.retain(SourceName::File, |place| files.iter().any(|(p, _)| p.to_string_lossy() == place));
        self.files.retain(|path, _| files.iter().any(|(p, _)| p == path));
        let mut pods = Vec::new();
        for (path, content) in files {
            if let Some(pod) = self.take_file(path.clone(), content) {
                pods.push((path, pod));
            }
        }
        self.tell_duplicates(&pods);
        Some(pods.into_iter().map(|(_, pod)| pod).collect())
    }

    /// Names the files whose Pod an earlier file has already; the earlier one counts.
    fn tell_duplicates(&mut self, pods: &[(PathBuf, Arc<Pod>)]) {
        let mut first: BTreeMap<(&str, &str), &Path> = BTreeMap::new();
        for (path, pod) in pods {
            let (namespace, name) = super::names(pod);
            let earlier = *first.entry((namespace, name)).or_insert(path);
            let Some(known) = self.files.get_mut(path) else { continue };
            let place = path.to_string_lossy();
            let shadowed = earlier != path.as_path();
            if shadowed {
                let message = format!(
                    "duplicate pod name {name:?} in namespace {namespace:?}, ignoring: {} has it already",
                    earlier.display()
                );
                report(&self.context, &place, &message, false);
            } else if known.shadowed {
                self.context.problems.clear(SourceName::File, &place);
            }
            known.shadowed = shadowed;
        }
    }

    fn take_file(&mut self, path: PathBuf, content: io::Result<Text>) -> Option<Arc<Pod>> {
        let place = path.to_string_lossy().into_owned();
        let known = self.files.entry(path).or_default();
        let text = match content {
            Ok(text) => text,
            Err(e) => {
                known.content = None;
                report(&self.context, &place, &e.to_string(), known.pod.is_some());
                return known.pod.clone();
            }
        };
        let hash = fnv1a128(&text.bytes);
        if known.content == Some(hash) {
            return known.pod.clone();
        }
        known.content = Some(hash);
        match parse(&self.context, &self.handover, &text, &place) {
            Ok(pod) => {
                known.pod = Some(pod);
                if self.context.problems.clear(SourceName::File, &place) {
                    tracing::info!(path = place, "the manifest is in order again");
                }
            }
            Err(e) => report(&self.context, &place, &e.to_string(), known.pod.is_some()),
        }
        known.pod.clone()
    }
}

fn parse(
    context: &Context,
    handover: &Handover,
    text: &Text,
    place: &str,
) -> Result<Arc<Pod>, ManifestError> {
    match context.decode(&text.bytes, place)? {
        Manifest::Pod(pod) => {
            let names_its_uid = pod.metadata.uid.as_deref().is_some_and(|uid| !uid.is_empty());
            let mut pod = context.prepare(*pod, Origin::File(place))?;
            if !names_its_uid {
                handover.pass_on(Arc::make_mut(&mut pod), text.touched);
            }
            Ok(pod)
        }
        // A file holds one Pod; lists are for URLs.
        Manifest::List(_) => {
            Err(ManifestError::WrongKind { api_version: "v1".to_owned(), kind: "PodList".to_owned() })
        }
    }
}

fn report(context: &Context, place: &str, message: &str, kept: bool) {
    if context.problems.set(SourceName::File, place, message) {
        tracing::error!(
            path = place,
            error = message,
            last_good_kept = kept,
            "could not process a manifest file"
        );
    }
}

#[cfg(test)]
mod tests;
