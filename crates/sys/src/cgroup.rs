//! Control groups, both versions: making them, writing their files, finding their processes, taking them away.
//!
//! A cgroup is named by its path below the mount points, the same in every hierarchy of version 1. The names come
//! from the node, not from Pods, and every directory is owned by root.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};

use crate::mountinfo::{self, Mount};

mod files;

pub use files::Files;

/// Controllers that children are given in version 2, where the parent has them.
const DELEGATED: [&str; 5] = ["cpu", "cpuset", "memory", "pids", "hugetlb"];
/// Directories deeper than this below a cgroup belong to nobody we know.
const DEPTH_MAX: usize = 16;
/// How long, and how often, it is looked whether a frozen cgroup has come to a halt.
const FREEZING: std::time::Duration = std::time::Duration::from_millis(2);
const FREEZING_LOOKS: usize = 10;

/// The hierarchies of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchies {
    version: Version,
    mounts: Vec<Hierarchy>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// One hierarchy per controller, or per few.
    V1,
    V2,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    /// Named in the mount's options; none for the only hierarchy of version 2.
    controllers: Vec<String>,
    root: PathBuf,
}

// === impl Hierarchies ===

impl Hierarchies {
    /// Those mounted here.
    pub fn find() -> io::Result<Self> {
        Self::of(&mountinfo::read()?).ok_or_else(|| io::Error::other("no cgroup hierarchy is mounted"))
    }

    /// A machine of version 2 only has one; one with any controller in version 1 is used as such.
    fn of(mounts: &[Mount]) -> Option<Self> {
        let whole = |m: &&Mount| m.root == Path::new("/");
        let old: Vec<Hierarchy> = mounts
            .iter()
            .filter(|m| m.fs_type == "cgroup")
            .filter(whole)
            .map(|m| Hierarchy { controllers: controllers(m), root: m.mount_point.clone() })
            .collect();
        if old.iter().any(|h| h.controllers.iter().any(|c| c == "memory" || c == "cpu")) {
            // Runtimes keep a place for each container in the new hierarchy beside the old ones, too.
            let beside = mounts.iter().filter(|m| m.fs_type == "cgroup2").filter(whole);
            let beside = beside.map(|m| Hierarchy { controllers: Vec::new(), root: m.mount_point.clone() });
            let mounts = old.into_iter().chain(beside).collect();
            return Some(Self { version: Version::V1, mounts });
        }
        let new = mounts.iter().filter(|m| m.fs_type == "cgroup2").find(whole)?;
        let only = Hierarchy { controllers: Vec::new(), root: new.mount_point.clone() };
        Some(Self { version: Version::V2, mounts: vec![only] })
    }

    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Whether the cgroup is there, in every hierarchy.
    #[must_use]
    pub fn exists(&self, name: &str) -> bool {
        self.mounts.iter().all(|h| h.root.join(name).is_dir())
    }

    /// Whether something of the cgroup is there, in any hierarchy.
    #[must_use]
    pub fn is_anywhere(&self, name: &str) -> bool {
        self.mounts.iter().any(|h| h.root.join(name).is_dir())
    }

    /// Makes the cgroup and those above it. Idempotent.
    pub fn make(&self, name: &str) -> io::Result<()> {
        for hierarchy in &self.mounts {
            let mut dir = hierarchy.root.clone();
            for word in Path::new(name).components() {
                if self.version == Version::V2 {
                    delegate(&dir)?;
                }
                dir.push(word);
                match fs::create_dir(&dir) {
                    Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                    made => made.map_err(|e| named("make", &dir, &e))?,
                }
                if hierarchy.controllers.iter().any(|c| c == "cpuset") {
                    inherit_cpuset(&dir)?;
                }
            }
        }
        Ok(())
    }

    /// Writes a file of a controller. False if this machine has no such controller or file.
    pub fn write(&self, name: &str, controller: &str, file: &str, value: &str) -> io::Result<bool> {
        let Some(path) = self.file(name, controller, file) else { return Ok(false) };
        match fs::write(&path, value) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound && !path.exists() => Ok(false),
            Err(e) => Err(named(&format!("write {value:?} to"), &path, &e)),
        }
    }

    /// Puts a process with all its threads into the cgroup, in every hierarchy that has it.
    pub fn adopt(&self, name: &str, pid: i32) -> io::Result<()> {
        for (_, dir) in self.directories(name) {
            let file = dir.join("cgroup.procs");
            match fs::write(&file, pid.to_string()) {
                Err(e) if e.kind() == io::ErrorKind::NotFound && !file.exists() => {}
                written => written.map_err(|e| named(&format!("move process {pid} to"), &dir, &e))?,
            }
        }
        Ok(())
    }

    /// Reads a file of a controller. None if this machine has no such controller or file.
    pub fn read(&self, name: &str, controller: &str, file: &str) -> io::Result<Option<String>> {
        let Some(path) = self.file(name, controller, file) else { return Ok(None) };
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(named("read", &path, &e)),
        }
    }

    /// The directory of a cgroup in the hierarchy of a controller.
    #[must_use]
    pub fn directory(&self, name: &str, controller: &str) -> Option<PathBuf> {
        self.file(name, controller, "").filter(|dir| dir.is_dir())
    }

    fn file(&self, name: &str, controller: &str, file: &str) -> Option<PathBuf> {
        let hierarchy = match self.version {
            Version::V2 => self.mounts.first(),
            Version::V1 => self.mounts.iter().find(|h| h.controllers.iter().any(|c| c == controller)),
        };
        hierarchy.map(|h| h.root.join(name).join(file))
    }

    /// The directories of a cgroup that have controllers, by what they have: `memory`, `cpu,cpuacct`; of version 2, the one
    /// directory, without a name.
    #[must_use]
    pub fn directories(&self, name: &str) -> Vec<(String, PathBuf)> {
        let own = |h: &&Hierarchy| self.version == Version::V2 || !h.controllers.is_empty();
        let all = self.mounts.iter().filter(own);
        all.map(|h| (h.controllers.join(","), h.root.join(name))).collect()
    }

    /// The cgroups directly below one, in any hierarchy.
    pub fn children(&self, name: &str) -> io::Result<BTreeSet<String>> {
        let mut found = BTreeSet::new();
        for hierarchy in &self.mounts {
            for dir in subdirectories(&hierarchy.root.join(name))? {
                found.extend(dir.file_name().and_then(|n| n.to_str()).map(str::to_owned));
            }
        }
        Ok(found)
    }

    /// The processes in the cgroup and below it.
    pub fn processes(&self, name: &str) -> io::Result<BTreeSet<i32>> {
        let mut found = BTreeSet::new();
        for dir in self.tree(name)? {
            match fs::read_to_string(dir.join("cgroup.procs")) {
                Ok(text) => found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok())),
                // Gone before it was opened, or between that and being read.
                Err(e) if e.kind() == io::ErrorKind::NotFound || is_gone(&e) => {}
                Err(e) => return Err(named("list the processes of", &dir, &e)),
            }
        }
        Ok(found)
    }

    /// Kills every process in the cgroup and below it. Returns how many there were. Where the kernel can, none of them
    /// gets away by forking faster than it is counted: version 2 kills them all at once, version 1 holds them still.
    pub fn kill(&self, name: &str) -> io::Result<usize> {
        let held = self.hold(name);
        let killed = self.kill_each(name);
        if held {
            self.write(name, "freezer", "freezer.state", "THAWED")?;
        }
        killed
    }

    /// Stops all of them where they are. False where that cannot be done, or need not be.
    fn hold(&self, name: &str) -> bool {
        if self.version == Version::V2 {
            return false;
        }
        // Some may never come to a halt, in a call to a server that is gone.
        let frozen = |_| matches!(self.read(name, "freezer", "freezer.state"), Ok(Some(s)) if s == "FROZEN");
        let asked = self.write(name, "freezer", "freezer.state", "FROZEN");
        let asked = matches!(asked, Ok(true));
        let pause = || std::thread::sleep(FREEZING);
        let _ = asked
            && (0..FREEZING_LOOKS)
                .inspect(|look| {
                    if *look > 0 {
                        pause()
                    }
                })
                .any(frozen);
        asked
    }

    fn kill_each(&self, name: &str) -> io::Result<usize> {
        let processes = self.processes(name)?;
        if self.version == Version::V2 && matches!(self.write(name, "", "cgroup.kill", "1"), Ok(true)) {
            return Ok(processes.len());
        }
        for pid in processes.iter().filter_map(|pid| Pid::from_raw(*pid)) {
            // One that is gone already is what was wanted.
            let _ = kill_process(pid, Signal::KILL);
        }
        Ok(processes.len())
    }

    /// Removes the cgroup and all below it, in every hierarchy. Fails while a process is in one of them.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        for dir in self.tree(name)?.iter().rev() {
            match fs::remove_dir(dir) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                removed => removed.map_err(|e| named("remove", dir, &e))?,
            }
        }
        Ok(())
    }

    /// The directories of the cgroup, outer ones first.
    fn tree(&self, name: &str) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for hierarchy in &self.mounts {
            let top = hierarchy.root.join(name);
            if top.is_dir() {
                walk(top, DEPTH_MAX, &mut found)?;
            }
        }
        Ok(found)
    }
}

fn walk(dir: PathBuf, depth: usize, found: &mut Vec<PathBuf>) -> io::Result<()> {
    let below = subdirectories(&dir)?;
    found.push(dir);
    if depth == 0 && !below.is_empty() {
        return Err(io::Error::other("cgroups are nested too deeply"));
    }
    below.into_iter().try_for_each(|child| walk(child, depth - 1, found))
}

fn subdirectories(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|e| named("list", dir, &e))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Lets children of a version 2 cgroup have the controllers it has itself.
fn delegate(dir: &Path) -> io::Result<()> {
    let read =
        |file: &str| fs::read_to_string(dir.join(file)).map_err(|e| named("read", &dir.join(file), &e));
    let (available, enabled) = (read("cgroup.controllers")?, read("cgroup.subtree_control")?);
    let has = |text: &str, what: &str| text.split_whitespace().any(|word| word == what);
    let missing: Vec<String> = DELEGATED
        .iter()
        .filter(|c| has(&available, c) && !has(&enabled, c))
        .map(|c| format!("+{c}"))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let file = dir.join("cgroup.subtree_control");
    if fs::write(&file, missing.join(" ")).is_ok() {
        return Ok(());
    }
    // Somebody who owns the tree too, as systemd does, may have taken one away meanwhile, which is no reason not to have
    // the others.
    for controller in &missing {
        match fs::write(&file, controller) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && file.exists() => {}
            written => written.map_err(|e| named("enable controllers in", &file, &e))?,
        }
    }
    Ok(())
}

/// A new cpuset has no processors and no memory, and takes no process before it has both.
fn inherit_cpuset(dir: &Path) -> io::Result<()> {
    let Some(parent) = dir.parent() else { return Ok(()) };
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let own = dir.join(file);
        match fs::read_to_string(&own) {
            Ok(text) if text.trim().is_empty() => {
                let inherited = fs::read_to_string(parent.join(file)).map_err(|e| named("read", &own, &e))?;
                fs::write(&own, inherited.trim()).map_err(|e| named("write", &own, &e))?;
            }
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(named("read", &own, &e)),
        }
    }
    Ok(())
}

/// The controllers of a version 1 mount are among its options.
fn controllers(mount: &Mount) -> Vec<String> {
    let general = ["rw", "ro", "xattr", "clone_children", "release_agent"];
    let words = mount.super_options.split(',').filter(|word| !general.contains(word));
    words.map(str::to_owned).collect()
}

/// What the kernel says of a cgroup that was removed while its file was open.
fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENODEV)
}

fn named(act: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{act} {}: {error}", path.display()))
}

#[cfg(test)]
#[path = "cgroup_tests.rs"]
mod tests;
