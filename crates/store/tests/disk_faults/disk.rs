//! What is on the disk when the power goes: worked out from the log that `shadow.c` wrote.
//!
//! A file is what the kernel shows (its cache) and what the disk holds. A sync copies the one to the other, page by page, as
//! far as pages were written since the last one. A sync that fails writes some sectors of them, and from then on the
//! kernel takes all of them for written. Names are like that too: they are on the disk when their directory was synced.
//! When the power goes, every sector and every name that was not synced may or may not have made it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use base::rng::Rng;

const SECTOR: usize = 512;
const PAGE: usize = 4096;

/// One line of the log.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    kind: RecordType,
    path: String,
    offset: usize,
    data: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordType {
    Write,
    Truncate,
    Sync,
    SyncFailed,
    Create,
    Rename,
    Unlink,
    MakeDirectory,
}

/// The disk and the cache in front of it.
#[derive(Debug)]
pub(crate) struct Disk {
    rng: Rng,
    files: Vec<File>,
    /// As the kernel shows them, and as they are on the disk.
    shown: BTreeMap<String, usize>,
    held: BTreeMap<String, usize>,
    directories: BTreeSet<String>,
    /// Changes of names that are not on the disk, in order.
    pending: Vec<Naming>,
}

/// A file loses a name, gets one, or both.
#[derive(Clone, Debug)]
struct Naming {
    from: Option<String>,
    to: Option<(String, usize)>,
}

#[derive(Debug, Default)]
struct File {
    cache: Vec<u8>,
    held: Vec<u8>,
    dirty: BTreeSet<usize>,
}

/// Reads the log.
pub(crate) fn records(log: &[u8]) -> Vec<Record> {
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0_usize, |n, b| n << 8 | usize::from(*b));
    let (mut out, mut rest) = (Vec::new(), log);
    while rest.len() >= 24 {
        let (head, tail) = rest.split_at(24);
        let (name, length) = (number(&head[4..8]), number(&head[16..24]));
        let kind = match number(&head[..4]) {
            1 => RecordType::Write,
            2 => RecordType::Truncate,
            3 => RecordType::Sync,
            4 => RecordType::SyncFailed,
            5 => RecordType::Create,
            6 => RecordType::Rename,
            7 => RecordType::Unlink,
            8 => RecordType::MakeDirectory,
            other => panic!("record of kind {other}"),
        };
        let path = String::from_utf8(tail[..name].to_vec()).unwrap();
        let data = tail[name..name + length].to_vec();
        out.push(Record { kind, path, offset: number(&head[8..16]), data });
        rest = &tail[name + length..];
    }
    out
}

// === impl Disk ===

impl Disk {
    pub(crate) fn new(seed: u64) -> Disk {
        Disk {
            rng: Rng::new(seed),
            files: Vec::new(),
            shown: BTreeMap::new(),
            held: BTreeMap::new(),
            directories: BTreeSet::new(),
            pending: Vec::new(),
        }
    }

    pub(crate) fn play(&mut self, record: &Record) {
        match record.kind {
            RecordType::Create => {
                self.files.push(File::default());
                self.name(Naming { from: None, to: Some((record.path.clone(), self.files.len() - 1)) });
            }
            RecordType::Rename => {
                let index = self.shown[&record.path];
                let target = String::from_utf8(record.data.clone()).unwrap();
                self.name(Naming { from: Some(record.path.clone()), to: Some((target, index)) });
            }
            RecordType::Unlink => self.name(Naming { from: Some(record.path.clone()), to: None }),
            // Those of these tests are made once, at the start; that they last is not what is asked.
            RecordType::MakeDirectory => drop(self.directories.insert(record.path.clone())),
            RecordType::Write => {
                let chance = self.rng.chance(0.02);
                let mut rng = self.rng.child();
                let file = self.file(&record.path);
                file.write(record.offset, &record.data);
                if chance {
                    // The kernel writes back when it likes to.
                    file.write_back(&mut rng, 0.5);
                }
            }
            RecordType::Truncate => self.file(&record.path).truncate(record.offset),
            RecordType::Sync if self.is_directory(&record.path) => self.settle_names(&record.path, true),
            RecordType::SyncFailed if self.is_directory(&record.path) => {
                self.settle_names(&record.path, false)
            }
            RecordType::Sync => self.file(&record.path).sync(),
            RecordType::SyncFailed => {
                let mut rng = self.rng.child();
                let file = self.file(&record.path);
                file.write_back(&mut rng, 0.5);
                file.dirty.clear();
            }
        }
    }

    /// Cuts the power and writes what is left to a directory.
    pub(crate) fn cut(&mut self, root: &str, to: &Path) {
        for naming in std::mem::take(&mut self.pending) {
            // In order, up to some point: file systems keep a journal of names.
            if self.rng.chance(0.3) {
                break;
            }
            naming.apply(&mut self.held);
        }
        for directory in &self.directories {
            fs::create_dir_all(to.join(below(directory, root))).unwrap();
        }
        let held = self.held.clone();
        for (path, index) in held {
            let mut rng = self.rng.child();
            let share = [0.0, 0.5, 0.9, 1.0][rng.below(4) as usize];
            let file = &mut self.files[index];
            file.write_back(&mut rng, share);
            let place = to.join(below(&path, root));
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::write(place, &file.held).unwrap();
        }
    }

    fn file(&mut self, path: &str) -> &mut File {
        let index = *self.shown.get(path).unwrap_or_else(|| panic!("{path} was never made"));
        &mut self.files[index]
    }

    fn is_directory(&self, path: &str) -> bool {
        !self.shown.contains_key(path)
    }

    fn name(&mut self, naming: Naming) {
        naming.apply(&mut self.shown);
        self.pending.push(naming);
    }

    /// Brings the names in a directory to the disk; some of them when that fails. The others are not forgotten: they
    /// are the file system's own, and it writes nothing more at all when it has lost track of them.
    fn settle_names(&mut self, directory: &str, all: bool) {
        let mut failed = false;
        for naming in std::mem::take(&mut self.pending) {
            failed |= !all && self.rng.chance(0.5);
            if naming.concerns(directory) && !failed {
                naming.apply(&mut self.held);
            } else {
                self.pending.push(naming);
            }
        }
    }
}

// === impl Naming ===

impl Naming {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        if let Some(from) = &self.from {
            names.remove(from);
        }
        if let Some((to, index)) = &self.to {
            names.insert(to.clone(), *index);
        }
    }

    fn concerns(&self, directory: &str) -> bool {
        let names = self.from.iter().chain(self.to.iter().map(|(to, _)| to));
        names.into_iter().any(|name| parent(name) == directory)
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

fn below<'p>(path: &'p str, root: &str) -> &'p str {
    path.strip_prefix(root).unwrap_or(path).trim_start_matches('/')
}

// === impl Record ===

impl Record {
    /// For the text of a failure.
    pub(crate) fn describe(&self) -> String {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        format!("{:?} {name} at {} ({} bytes)", self.kind, self.offset, self.data.len())
    }
}

// === impl File ===

impl File {
    fn write(&mut self, offset: usize, data: &[u8]) {
        let end = offset + data.len();
        if self.cache.len() < end {
            // The page where the file ended grows with it.
            self.dirty.insert(self.cache.len() / PAGE);
            self.cache.resize(end, 0);
        }
        self.cache[offset..end].copy_from_slice(data);
        self.dirty.extend(offset / PAGE..=(end - 1) / PAGE);
    }

    fn truncate(&mut self, length: usize) {
        self.cache.resize(length, 0);
        self.dirty.retain(|page| page * PAGE < length);
        // The page that is cut and the length itself.
        self.dirty.insert(length / PAGE);
    }

    fn sync(&mut self) {
        for page in std::mem::take(&mut self.dirty) {
            self.copy(page * PAGE, PAGE);
        }
        self.held.resize(self.cache.len(), 0);
    }

    /// Brings some of the unsynced sectors to the disk.
    fn write_back(&mut self, rng: &mut Rng, share: f64) {
        if self.dirty.is_empty() {
            return;
        }
        for page in self.dirty.clone() {
            for sector in 0..PAGE / SECTOR {
                if rng.chance(share) {
                    self.copy(page * PAGE + sector * SECTOR, SECTOR);
                }
            }
        }
        if self.held.len() > self.cache.len() && rng.chance(share) {
            self.held.truncate(self.cache.len());
        }
    }

    fn copy(&mut self, at: usize, length: usize) {
        let end = (at + length).min(self.cache.len());
        if at >= end {
            return;
        }
        if self.held.len() < end {
            self.held.resize(end, 0);
        }
        self.held[at..end].copy_from_slice(&self.cache[at..end]);
    }
}
