//! The images of a node, on the disk and in memory.
//!
//! ```text
//! images/<id>             a record each; written last, when everything it names is on the disk
//! layers/<diff id>/fs     what overlayfs stacks;  layers/<diff id>/record
//! tmp/                    half of something; trash/: nothing any more
//! ```
//!
//! Reads are answered from memory. Whatever a process that was killed left half made is swept at the next start.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::image::Reference;
use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::compose::{Repair, Unpacked};
use crate::digest::{DiffId, Digest};
use crate::documents::{Config, ImageConfig};
use crate::error::{Doing, Error};
use crate::limits::Limits;
use crate::records::{self, ImageRecord, LayerRecord};

/// The images of a node. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store(Arc<Inner>);

/// One image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The digest of its configuration.
    pub id: String,
    /// `host/path:tag`.
    pub tags: Vec<String>,
    /// `host/path@sha256:…`.
    pub digests: Vec<String>,
    /// As it was brought, mostly compressed.
    pub size: u64,
    /// It is not to be collected.
    pub pinned: bool,
    /// The lowest first.
    pub layers: Vec<DiffId>,
    pub config: Config,
}

/// Layers that stay while this lives, whatever becomes of their images.
pub struct Held {
    store: Store,
    layers: Vec<DiffId>,
}

/// What the store takes on its file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub bytes: u64,
    pub inodes: u64,
}

/// An image whose layers are all unpacked, on its way into the store.
#[derive(Debug)]
pub struct Arrived {
    pub id: Digest,
    /// As it came.
    pub config: Vec<u8>,
    pub names: Vec<Reference>,
    /// Of its manifest, for the names with a digest.
    pub manifest: Option<Digest>,
    pub size: u64,
}

struct Inner {
    root: PathBuf,
    limits: Limits,
    state: Mutex<State>,
    next: AtomicU64,
    /// Nobody else works on this directory.
    _lock: File,
}

#[derive(Debug, Default)]
struct State {
    images: BTreeMap<Digest, (ImageRecord, Arc<Image>)>,
    layers: BTreeMap<DiffId, LayerRecord>,
    held: BTreeMap<DiffId, usize>,
    age: u64,
}

const LOCK: &str = "lock";
const IMAGES: &str = "images";
const LAYERS: &str = "layers";
const TMP: &str = "tmp";
const TRASH: &str = "trash";
const FS: &str = "fs";
const RECORD: &str = "record";
/// Fewer digits of an id are no name for it.
const SHORT_ID: usize = 4;

// === impl Store ===

impl Store {
    /// Reads what is there, and sweeps what was left half made.
    pub fn open(root: &Path) -> Result<Store, Error> {
        Store::with_limits(root, Limits::default())
    }

    pub fn with_limits(root: &Path, limits: Limits) -> Result<Store, Error> {
        for dir in [IMAGES, LAYERS, TMP, TRASH] {
            make_dir(&root.join(dir))?;
        }
        let path = root.join(LOCK);
        let lock = File::create(&path).doing("open", &path)?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .doing("another process has the image store; lock", &path)?;
        let inner = Inner {
            root: root.to_owned(),
            limits,
            state: Mutex::default(),
            next: AtomicU64::new(0),
            _lock: lock,
        };
        let store = Store(Arc::new(inner));
        store.read()?;
        store.sweep()?;
        store.collect()?;
        Ok(store)
    }

    /// All images, by id.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<Image>> {
        self.state().images.values().map(|(_, image)| image.clone()).collect()
    }

    /// By name, by name and digest, by id, or by the first digits of an id if they are those of one image only.
    #[must_use]
    pub fn find(&self, reference: &str) -> Option<Arc<Image>> {
        let state = self.state();
        state.find(reference).and_then(|id| Some(state.images.get(&id)?.1.clone()))
    }

    /// Forgets the image this leads to, under all its names. One that is not there is forgotten already.
    pub fn remove(&self, reference: &str) -> Result<(), Error> {
        let mut state = self.state();
        let Some(id) = state.find(reference) else { return Ok(()) };
        records::remove(&self.dir(IMAGES), &id.file_name())?;
        state.images.remove(&id);
        Ok(())
    }

    /// Keeps these layers until what this returns is dropped.
    pub fn hold(&self, layers: &[DiffId]) -> Result<Held, Error> {
        let mut state = self.state();
        if let Some(missing) = layers.iter().find(|layer| !state.layers.contains_key(layer)) {
            return Err(Error::NoLayer(missing.clone()));
        }
        for layer in layers {
            *state.held.entry(layer.clone()).or_default() += 1;
        }
        Ok(Held { store: self.clone(), layers: layers.to_vec() })
    }

    /// Where a layer lies, for overlayfs.
    #[must_use]
    pub fn layer_dir(&self, layer: &DiffId) -> PathBuf {
        self.dir(LAYERS).join(layer.file_name()).join(FS)
    }

    /// The configuration of an image as it came; its digest is the image's id.
    #[must_use]
    pub fn config(&self, id: &str) -> Option<String> {
        let id = id.parse::<Digest>().ok()?;
        self.state().images.get(&id).map(|(record, _)| record.config.clone())
    }

    /// Whether the image is spared by those who make room. It says so itself, for them to see.
    pub fn pin(&self, reference: &str, is_pinned: bool) -> Result<Option<Arc<Image>>, Error> {
        let mut state = self.state();
        let Some(id) = state.find(reference) else { return Ok(None) };
        let Some((record, image)) = state.images.get_mut(&id) else { return Ok(None) };
        if record.pinned != is_pinned {
            let changed = ImageRecord { pinned: is_pinned, ..record.clone() };
            records::write(&self.dir(IMAGES), &id.file_name(), &changed)?;
            *record = changed;
            *image = Arc::new(Image { pinned: is_pinned, ..(**image).clone() });
        }
        Ok(Some(image.clone()))
    }

    /// Where it lies.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.0.root
    }

    #[must_use]
    pub fn usage(&self) -> Usage {
        let state = self.state();
        let layers = state.layers.values().map(|layer| Usage { bytes: layer.bytes, inodes: layer.entries });
        layers.fold(Usage::default(), |sum, one| Usage {
            bytes: sum.bytes + one.bytes,
            inodes: sum.inodes + one.inodes,
        })
    }

    /// Deletes the layers that no image has and nobody holds. It may take its time: call it where that hurts nobody.
    pub fn collect(&self) -> Result<(), Error> {
        let unused = {
            let mut state = self.state();
            let used: BTreeSet<&DiffId> = state
                .images
                .values()
                .flat_map(|(record, _)| &record.layers)
                .chain(state.held.keys())
                .collect();
            let unused: Vec<DiffId> =
                state.layers.keys().filter(|layer| !used.contains(layer)).cloned().collect();
            for layer in &unused {
                // Under the lock, so that nobody finds a layer that is on its way out.
                self.to_trash(&self.dir(LAYERS).join(layer.file_name()))?;
                state.layers.remove(layer);
            }
            unused
        };
        if !unused.is_empty() {
            tracing::debug!(layers = unused.len(), "layers that nobody uses are deleted");
        }
        self.empty_trash()
    }

    /// An empty place for something half made; it is the caller's to move or to leave to the sweep.
    pub fn scratch(&self) -> Result<PathBuf, Error> {
        let path = self.dir(TMP).join(self.0.next.fetch_add(1, Ordering::Relaxed).to_string());
        make_dir(&path)?;
        Ok(path)
    }

    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    fn has_layer(&self, layer: &DiffId) -> bool {
        self.state().layers.contains_key(layer)
    }

    /// Gives a layer its name: `scratch` has `fs` in it. It is held, as no image has it yet.
    pub(crate) fn add_layer(
        &self,
        layer: &DiffId,
        scratch: &Path,
        record: LayerRecord,
    ) -> Result<Held, Error> {
        records::write(scratch, RECORD, &record)?;
        let place = self.dir(LAYERS).join(layer.file_name());
        {
            let mut state = self.state();
            if state.layers.contains_key(layer) {
                // Another image has brought it meanwhile.
                self.to_trash(scratch)?;
            } else {
                std::fs::rename(scratch, &place).doing("name", &place)?;
                state.layers.insert(layer.clone(), record);
            }
        }
        self.hold(std::slice::from_ref(layer))
    }

    /// Writes an image down, once its layers are safe. Its names are taken from whoever had them.
    pub fn add_image(&self, arrived: Arrived, config: &ImageConfig) -> Result<Arc<Image>, Error> {
        let mut layers = config.diff_ids.clone();
        // Kept until the record names it.
        let repair = self.repair(&layers)?;
        layers.extend(repair.iter().flat_map(|held| held.layers.iter().cloned()));
        self.sync()?;
        let mut state = self.state();
        if let Some(missing) = layers.iter().find(|layer| !state.layers.contains_key(layer)) {
            return Err(Error::NoLayer(missing.clone()));
        }
        state.age += 1;
        let mut record = match state.images.get(&arrived.id) {
            Some((before, _)) => ImageRecord { age: state.age, ..before.clone() },
            None => ImageRecord {
                age: state.age,
                id: arrived.id.clone(),
                tags: BTreeSet::new(),
                digests: BTreeSet::new(),
                size: arrived.size,
                pinned: false,
                layers,
                config: String::from_utf8(arrived.config)
                    .map_err(|e| Error::document("configuration of the image", e))?,
            },
        };
        record.tags.extend(arrived.names.iter().filter_map(Reference::tagged));
        let with_digest = arrived.manifest.iter();
        record.digests.extend(
            with_digest.flat_map(|manifest| arrived.names.iter().map(|name| name.at(manifest.as_str()))),
        );
        // First the new, then the old: a name that two claim belongs to the younger.
        records::write(&self.dir(IMAGES), &arrived.id.file_name(), &record)?;
        let image = state.put(record)?;
        for id in state.lose_names(&arrived.id, &image) {
            if let Some((record, _)) = state.images.get(&id) {
                records::write(&self.dir(IMAGES), &id.file_name(), record)?;
            }
        }
        Ok(image)
    }

    /// The layer on top that puts directories right, where one is needed.
    fn repair(&self, layers: &[DiffId]) -> Result<Option<Held>, Error> {
        let implied: Vec<BTreeSet<PathBuf>> = {
            let state = self.state();
            layers
                .iter()
                .map(|l| state.layers.get(l).map(|r| r.implied.clone()).unwrap_or_default())
                .collect()
        };
        let stack: Vec<Unpacked<'_>> = layers
            .iter()
            .zip(&implied)
            .map(|(layer, implied)| Unpacked { dir: self.layer_dir(layer), implied })
            .collect();
        let Some(repair) = Repair::of(&stack)? else { return Ok(None) };
        let id = repair.digest()?;
        if self.has_layer(&id) {
            return self.hold(&[id]).map(Some);
        }
        let scratch = self.scratch()?;
        let root = scratch.join(FS);
        make_layer_root(&root)?;
        repair.write(&root)?;
        let record = LayerRecord { entries: repair.len(), ..LayerRecord::default() };
        self.add_layer(&id, &scratch, record).map(Some)
    }

    fn read(&self) -> Result<(), Error> {
        let mut state = self.state();
        for name in names(&self.dir(LAYERS))? {
            let path = self.dir(LAYERS).join(&name).join(RECORD);
            if let (Some(layer), Ok(record)) = (from_file_name(&name), records::read(&path)) {
                state.layers.insert(layer, record);
            }
        }
        let mut found = Vec::new();
        for name in names(&self.dir(IMAGES))? {
            let path = self.dir(IMAGES).join(&name);
            match records::read::<ImageRecord>(&path) {
                Ok(record) if record.layers.iter().all(|layer| state.layers.contains_key(layer)) => {
                    found.push(record)
                }
                // It can be had again from where it came. What it was is in the log.
                Ok(record) => {
                    tracing::warn!(image = %record.id, tags = ?record.tags, "an image has lost a layer and is forgotten")
                }
                Err(error) => {
                    tracing::warn!(%error, "the record of an image cannot be read and is forgotten")
                }
            }
        }
        found.sort_by_key(|record| record.age);
        for record in found {
            state.age = state.age.max(record.age);
            let id = record.id.clone();
            let image = state.put(record)?;
            state.lose_names(&id, &image);
        }
        Ok(())
    }

    /// Takes away whatever has no name: halves, and records and layers that could not be read.
    fn sweep(&self) -> Result<(), Error> {
        for name in names(&self.dir(TMP))? {
            self.to_trash(&self.dir(TMP).join(name))?;
        }
        let state = self.state();
        for name in names(&self.dir(IMAGES))? {
            if from_file_name(&name).is_none_or(|id| !state.images.contains_key(&id)) {
                self.to_trash(&self.dir(IMAGES).join(name))?;
            }
        }
        for name in names(&self.dir(LAYERS))? {
            if from_file_name(&name).is_none_or(|id| !state.layers.contains_key(&id)) {
                self.to_trash(&self.dir(LAYERS).join(name))?;
            }
        }
        Ok(())
    }

    fn to_trash(&self, path: &Path) -> Result<(), Error> {
        let trash = self.dir(TRASH);
        loop {
            let place = trash.join(self.0.next.fetch_add(1, Ordering::Relaxed).to_string());
            // What an earlier process threw away may have that number.
            if place.symlink_metadata().is_err() {
                return std::fs::rename(path, &place).doing("throw away", path);
            }
        }
    }

    fn empty_trash(&self) -> Result<(), Error> {
        let trash = self.dir(TRASH);
        let dir = sys::fd::open_dir(&trash).doing("open", &trash)?;
        for name in names(&trash)? {
            sys::tree::remove(&dir, OsStr::new(&name))
                .map_err(std::io::Error::other)
                .doing("empty", &trash)?;
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), Error> {
        let dir = self.dir(LAYERS);
        let opened =
            rustix::fs::open(&dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        opened.and_then(rustix::fs::syncfs).doing("sync", &dir)
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.0.root.join(name)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl State ===

impl State {
    fn find(&self, reference: &str) -> Option<Digest> {
        let bare = reference.strip_prefix("sha256:").unwrap_or(reference);
        if let Ok(id) = format!("sha256:{bare}").parse::<Digest>() {
            return self.images.contains_key(&id).then_some(id);
        }
        if let Ok(name) = Reference::parse(reference) {
            let key = match &name.digest {
                Some(digest) => name.at(digest),
                None => name.tagged()?,
            };
            let has = |image: &Image| image.tags.contains(&key) || image.digests.contains(&key);
            if let Some((id, _)) = self.images.iter().find(|(_, (_, image))| has(image)) {
                return Some(id.clone());
            }
        }
        self.by_short_id(bare)
    }

    fn by_short_id(&self, digits: &str) -> Option<Digest> {
        if digits.len() < SHORT_ID || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let mut all = self.images.keys().filter(|id| id.hex().starts_with(digits));
        match (all.next(), all.next()) {
            (Some(id), None) => Some(id.clone()),
            _ => None,
        }
    }

    fn put(&mut self, record: ImageRecord) -> Result<Arc<Image>, Error> {
        let config = ImageConfig::parse(record.config.as_bytes(), &Limits::default())?;
        let image = Arc::new(Image {
            id: record.id.to_string(),
            tags: record.tags.iter().cloned().collect(),
            digests: record.digests.iter().cloned().collect(),
            size: record.size,
            pinned: record.pinned,
            layers: record.layers.clone(),
            config: config.config,
        });
        self.images.insert(record.id.clone(), (record, image.clone()));
        Ok(image)
    }

    /// A tag leads to one image: the others lose it. Returns who lost something.
    fn lose_names(&mut self, keeper: &Digest, image: &Image) -> Vec<Digest> {
        let mut changed = Vec::new();
        for (id, (record, known)) in self.images.iter_mut().filter(|(id, _)| *id != keeper) {
            let before = record.tags.len();
            record.tags.retain(|tag| !image.tags.contains(tag));
            if record.tags.len() != before {
                *known = Arc::new(Image { tags: record.tags.iter().cloned().collect(), ..(**known).clone() });
                changed.push(id.clone());
            }
        }
        changed
    }
}

// === impl Held ===

impl Held {
    #[must_use]
    pub fn layers(&self) -> &[DiffId] {
        &self.layers
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.store.state();
        for layer in &self.layers {
            if let Some(count) = state.held.get_mut(layer) {
                *count -= 1;
                if *count == 0 {
                    state.held.remove(layer);
                }
            }
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("layers", &self.layers).finish()
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("root", &self.root).finish()
    }
}

/// Where a layer is unpacked to. Everybody may look through it: it becomes the root of containers.
pub(crate) fn make_layer_root(path: &Path) -> Result<(), Error> {
    make_dir(path)?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(path, mode).doing("give rights to", path)
}

/// Nobody but us looks in here: an image may hold programs that lend root's rights.
fn make_dir(path: &Path) -> Result<(), Error> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).doing("make", path)
}

fn names(dir: &Path) -> Result<Vec<String>, Error> {
    let entries = std::fs::read_dir(dir).doing("list", dir)?;
    entries.map(|entry| Ok(entry.doing("list", dir)?.file_name().to_string_lossy().into_owned())).collect()
}

fn from_file_name(name: &str) -> Option<Digest> {
    name.replacen('-', ":", 1).parse().ok()
}
