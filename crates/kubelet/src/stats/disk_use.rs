//! What Pods have on the node's disk: their local volumes, their logs, and what the kubelet made for them.
//!
//! A Pod decides how many files it has, so no look may take as long as it likes: each walks so many files and goes on
//! where it stopped at the next one. What was counted last stands until a walk has ended.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base::ids::PodUid;
use base::time::{Mono, Now, Wall};
use k8s_openapi::api::core::v1::{Pod, Volume};
use kubelet_core::cri_config::metadata;
use kubelet_core::stats::{Disk, Usage, VolumeStats};
use rustix::fs::OFlags;
use sys::fd::OWN;
use sys::usage::Walk;

use crate::metrics::Metrics;
use crate::pods::status_board::Entry;

/// So many files are looked at for one Pod before the next has its turn, and for all of them at one time.
const PER_POD: u64 = 20_000;
const AT_ONCE: u64 = 100_000;
/// Walks that are under way at most; each holds a descriptor.
const WALKS_MAX: usize = 64;

/// See the module.
pub(super) struct DiskUse {
    state: Arc<Mutex<State>>,
    one: tokio::sync::Mutex<()>,
    root: PathBuf,
    pod_logs: PathBuf,
    metrics: Arc<Metrics>,
}

/// What a Pod has on disk.
#[derive(Clone, Debug, Default)]
pub(super) struct PodDisk {
    pub(super) volumes: BTreeMap<String, VolumeStats>,
    /// By container.
    pub(super) logs: BTreeMap<String, Usage>,
    /// /etc/hosts, termination messages, what the kubelet keeps.
    pub(super) others: Usage,
}

#[derive(Debug, Default)]
struct State {
    known: BTreeMap<PodUid, (Mono, Arc<PodDisk>)>,
    walks: BTreeMap<PodUid, PodWalk>,
}

/// One Pod being measured.
#[derive(Debug)]
struct PodWalk {
    parts: VecDeque<Part>,
    current: Option<(Part, Walk)>,
    found: PodDisk,
    begun: Mono,
}

/// One place of a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Volume {
        name: String,
        plugin: &'static str,
        in_memory: bool,
    },
    Logs {
        directory: String,
        container: String,
    },
    /// Below the Pod's own directory.
    Other(&'static str),
}

// === impl DiskUse ===

impl DiskUse {
    pub(super) fn new(root: PathBuf, pod_logs: PathBuf, metrics: Arc<Metrics>) -> DiskUse {
        DiskUse { state: Arc::default(), one: Default::default(), root, pod_logs, metrics }
    }

    /// What is known by now.
    pub(super) fn known(&self) -> BTreeMap<PodUid, Arc<PodDisk>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.known.iter().map(|(uid, (_, disk))| (uid.clone(), disk.clone())).collect()
    }

    /// Measures those of these Pods anew of which is known only what is older than `age`, as far as one look goes.
    pub(super) async fn measure(&self, pods: &[Entry], age: Duration, now: Now) {
        let _one = self.one.lock().await;
        let due = self.state.lock().unwrap_or_else(PoisonError::into_inner).due(pods, age, now.mono);
        if due.is_empty() {
            return;
        }
        let (state, metrics) = (self.state.clone(), self.metrics.clone());
        let (root, logs) = (self.root.clone(), self.pod_logs.clone());
        let work = move || {
            let begun = Instant::now();
            let looked = look(&state, due, &root, &logs, now);
            metrics.disk_usage_seconds.observe_duration([], begun.elapsed());
            metrics.disk_usage_files_total.add([], looked as f64);
        };
        if let Err(error) = tokio::task::spawn_blocking(work).await {
            tracing::error!(%error, "measuring the disk use of Pods died");
        }
    }
}

// === impl State ===

impl State {
    /// Who is to be measured, the one measured longest ago first. Forgets who is gone.
    fn due(&mut self, pods: &[Entry], age: Duration, now: Mono) -> Vec<Entry> {
        let uids: BTreeSet<PodUid> = pods.iter().map(uid).collect();
        // Somebody may have asked for a few only: what is known of the others stays for a while.
        self.known.retain(|uid, (at, _)| uids.contains(uid) || now.since(*at) < Duration::from_secs(600));
        self.walks.retain(|uid, walk| uids.contains(uid) || now.since(walk.begun) < Duration::from_secs(600));
        let at = |e: &Entry| self.known.get(&uid(e)).map(|(at, _)| *at);
        let is_due = |e: &&Entry| at(e).is_none_or(|at| now.since(at) >= age);
        let mut due: Vec<Entry> = pods.iter().filter(is_due).cloned().collect();
        due.sort_by_key(|e| at(e));
        due
    }
}

/// Walks on; how many files were looked at.
fn look(state: &Mutex<State>, due: Vec<Entry>, root: &Path, pod_logs: &Path, now: Now) -> u64 {
    let mut left = AT_ONCE;
    for entry in due {
        if left == 0 {
            break;
        }
        let uid = uid(&entry);
        let (under_way, walks) = {
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            (state.walks.remove(&uid), state.walks.len())
        };
        if under_way.is_none() && walks >= WALKS_MAX {
            continue;
        }
        let mut walk = under_way.unwrap_or_else(|| PodWalk::of(&entry.pod, now.mono));
        let allowed = PER_POD.min(left);
        let mut budget = allowed;
        let is_done = walk.go_on(root, pod_logs, &uid, now.wall, &mut budget);
        // Even an empty Pod takes a few calls.
        left = left.saturating_sub((allowed - budget).max(4));
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        match is_done {
            true => _ = state.known.insert(uid, (now.mono, Arc::new(walk.found))),
            false => _ = state.walks.insert(uid, walk),
        }
    }
    AT_ONCE - left
}

// === impl PodWalk ===

impl PodWalk {
    fn of(pod: &Pod, begun: Mono) -> PodWalk {
        PodWalk { parts: parts(pod), current: None, found: PodDisk::default(), begun }
    }

    /// True once everything was walked.
    fn go_on(&mut self, root: &Path, logs: &Path, uid: &PodUid, now: Wall, budget: &mut u64) -> bool {
        loop {
            if let Some((part, mut walk)) = self.current.take() {
                match walk.go_on(budget) {
                    Ok(None) => {
                        self.current = Some((part, walk));
                        return false;
                    }
                    Ok(Some(_)) => {}
                    // Somebody moves directories about while they are walked: no less than this is there.
                    Err(error) => tracing::debug!(pod_uid = %uid, %error, "not all of it could be measured"),
                }
                self.note(part, usage(walk.so_far()), None, now);
                continue;
            }
            let Some(part) = self.parts.pop_front() else { return true };
            *budget = budget.saturating_sub(1);
            match open(&part, root, logs, uid).and_then(|fd| self.begin(part, fd, now)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::debug!(pod_uid = %uid, %error, "a place of the Pod could not be measured");
                }
                _ => {}
            }
        }
    }

    fn begin(&mut self, part: Part, fd: OwnedFd, now: Wall) -> io::Result<()> {
        let disk = fs_of(&fd)?;
        if let Part::Volume { in_memory: true, .. } = part {
            let used = Usage { bytes: disk.used, inodes: disk.inodes.saturating_sub(disk.inodes_free) };
            self.note(part, used, Some(disk), now);
            return Ok(());
        }
        let stat = sys::fd::stat(&fd)?;
        if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::Directory {
            let used = usage(sys::usage::of_file(&fd)?);
            self.note(part, used, None, now);
            return Ok(());
        }
        if let Part::Volume { name, .. } = &part {
            self.found.volumes.entry(name.clone()).or_default().disk = Some(disk);
        }
        self.current = Some((part, Walk::of(fd)?));
        Ok(())
    }

    fn note(&mut self, part: Part, used: Usage, disk: Option<Disk>, at: Wall) {
        match part {
            Part::Volume { name, .. } => {
                let slot = self.found.volumes.entry(name).or_default();
                let disk = disk.or(slot.disk);
                *slot = VolumeStats { at, used, disk };
            }
            Part::Logs { container, .. } => _ = self.found.logs.insert(container, used),
            Part::Other(_) => self.found.others = self.found.others + used,
        }
    }
}

fn parts(pod: &Pod) -> VecDeque<Part> {
    let Some(spec) = &pod.spec else { return VecDeque::new() };
    let volumes = spec.volumes.iter().flatten().filter_map(of_volume);
    let directory = metadata::log_directory(Path::new(""), pod).to_string_lossy().into_owned();
    let names = api::pod::containers(pod).map(|c| c.name().to_owned());
    let logs = names.map(|container| Part::Logs { directory: directory.clone(), container });
    let others = ["etc-hosts", "containers"].map(Part::Other);
    others.into_iter().chain(volumes).chain(logs).collect()
}

/// Those that the kubelet keeps itself; what is on a server or on a device of its own is not on the node's disk.
fn of_volume(volume: &Volume) -> Option<Part> {
    let name = volume.name.clone();
    if let Some(dir) = &volume.empty_dir {
        let in_memory = dir.medium.as_deref().is_some_and(|m| !m.is_empty());
        return Some(Part::Volume { name, plugin: "kubernetes.io~empty-dir", in_memory });
    }
    let (plugin, in_memory) = match volume {
        v if v.config_map.is_some() => ("kubernetes.io~configmap", false),
        v if v.secret.is_some() => ("kubernetes.io~secret", true),
        v if v.projected.is_some() => ("kubernetes.io~projected", true),
        v if v.downward_api.is_some() => ("kubernetes.io~downward-api", true),
        _ => return None,
    };
    Some(Part::Volume { name, plugin, in_memory })
}

fn open(part: &Part, root: &Path, logs: &Path, uid: &PodUid) -> io::Result<OwnedFd> {
    let pod = Path::new("pods").join(uid.as_str());
    let (base, relative) = match part {
        Part::Volume { name, plugin, .. } => (root, pod.join("volumes").join(plugin).join(name)),
        Part::Other(name) => (root, pod.join(name)),
        Part::Logs { directory, container } => (logs, Path::new(directory).join(container)),
    };
    sys::fd::open_beneath(sys::fd::open_dir(base)?, &relative, OFlags::PATH | OFlags::NOFOLLOW, OWN)
}

fn fs_of(fd: &OwnedFd) -> io::Result<Disk> {
    let s = rustix::fs::fstatvfs(fd)?;
    Ok(Disk {
        capacity: s.f_blocks.saturating_mul(s.f_frsize),
        available: s.f_bavail.saturating_mul(s.f_frsize),
        used: s.f_blocks.saturating_sub(s.f_bfree).saturating_mul(s.f_frsize),
        inodes: s.f_files,
        inodes_free: s.f_ffree,
        device: sys::fd::stat(fd)?.st_dev,
    })
}

fn usage(of: sys::usage::Usage) -> Usage {
    Usage { bytes: of.bytes, inodes: of.inodes }
}

fn uid(entry: &Entry) -> PodUid {
    PodUid::from(entry.pod.metadata.uid.as_deref().unwrap_or_default())
}

#[cfg(test)]
#[path = "disk_use_tests.rs"]
mod tests;
