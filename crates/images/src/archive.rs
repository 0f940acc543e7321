//! Archives with images: OCI's layout, and what `docker save` writes. Their files come in any order, so each is put on the disk
//! first; the layers are unpacked from there.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::image::Reference;
use serde::Deserialize;

use crate::decompress::decompressed;
use crate::digest::{DiffId, Digest, Hashing};
use crate::documents::{Descriptor, Document, ImageConfig, Index, Platform};
use crate::error::{Doing, Error};
use crate::layer;
use crate::limits::Limits;
use crate::store::{Arrived, Held, Image, Store};
use crate::tar::{Entries, EntryType, TarError};

const INDEX: &str = "index.json";
const DOCKER: &str = "manifest.json";
/// Who says what an image of a layout is called: containerd and Docker.
const NAMES: [&str; 2] = ["io.containerd.image.name", "com.docker.distribution.image.ref.name"];
/// OCI's own, which may be a tag alone; that names nothing.
const OCI_NAME: &str = "org.opencontainers.image.ref.name";

/// One image of `docker save`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// The files of an archive, on the disk.
struct Files {
    dir: PathBuf,
    /// By their path in the archive.
    by_path: BTreeMap<String, PathBuf>,
    limits: Limits,
}

/// A layer's blob and what it should be.
struct Blob<'a> {
    file: &'a Path,
    /// Of the blob as it is, where the archive says it.
    digest: Option<&'a Digest>,
}

/// Reads an archive of OCI's layout or of `docker save` into the store, packed or not, and returns its images.
pub fn import(store: &Store, from: impl Read) -> Result<Vec<Arc<Image>>, Error> {
    let from = decompressed(BufReader::with_capacity(128 << 10, from)).map_err(Error::Archive)?;
    let files = Files::read(store, from)?;
    let imported = files.import(store);
    // Whatever became of it, the files have served.
    if let Err(error) = std::fs::remove_dir_all(&files.dir) {
        tracing::warn!(%error, "files of an archive stay until the next start");
    }
    imported
}

// === impl Files ===

impl Files {
    fn read(store: &Store, from: impl Read) -> Result<Files, Error> {
        let mut files = Files { dir: store.scratch()?, by_path: BTreeMap::new(), limits: *store.limits() };
        let read = files.read_all(from);
        if read.is_err() {
            // The error is the news; the sweep at the next start takes what resists.
            let _ = std::fs::remove_dir_all(&files.dir);
        }
        read.map(|()| files)
    }

    fn read_all(&mut self, from: impl Read) -> Result<(), Error> {
        let mut links = Vec::new();
        let mut bytes = 0u64;
        let mut entries = Entries::new(from);
        while let Some(entry) = entries.next_entry().map_err(broken)? {
            let Some(path) = plain(&entry.path) else { continue };
            if self.by_path.len() + links.len() >= self.limits.archive_entries {
                return Err(Error::Refused(format!(
                    "the archive has more than {} files",
                    self.limits.archive_entries
                )));
            }
            match entry.kind {
                // Old versions of Docker say so that a layer is the same as another.
                EntryType::Symlink => links.push((path, String::from_utf8_lossy(&entry.link).into_owned())),
                EntryType::File => {
                    let file = self.dir.join(self.by_path.len().to_string());
                    let mut out = File::create(&file).doing("create", &file)?;
                    let room = self.limits.archive_bytes - bytes;
                    let copied = io::copy(&mut entries.by_ref().take(room + 1), &mut out);
                    bytes += copied.map_err(Error::Archive)?;
                    if bytes > self.limits.archive_bytes {
                        let most = self.limits.archive_bytes;
                        return Err(Error::Refused(format!("the archive has more than {most} bytes")));
                    }
                    self.by_path.insert(path, file);
                }
                _ => {}
            }
        }
        for (path, to) in links {
            let there = Path::new(&path).parent().and_then(|parent| resolve(parent, &to));
            if let Some(file) = there.and_then(|there| self.by_path.get(&there).cloned()) {
                self.by_path.insert(path, file);
            }
        }
        Ok(())
    }

    fn import(&self, store: &Store) -> Result<Vec<Arc<Image>>, Error> {
        // Newer versions of Docker write both; its own file has the names as people know them.
        let saved = self.saved()?;
        if let Some(index) = self.by_path.get(INDEX) {
            let index = self.document(index, "index of the archive")?;
            return self.import_layout(store, &index, &saved);
        }
        if saved.is_empty() {
            return Err(Error::Refused(
                "the archive has neither index.json nor manifest.json: it is no image".into(),
            ));
        }
        saved.iter().map(|saved| self.import_saved(store, saved)).collect()
    }

    fn import_layout(&self, store: &Store, index: &[u8], saved: &[Saved]) -> Result<Vec<Arc<Image>>, Error> {
        let index: Index =
            serde_json::from_slice(index).map_err(|e| Error::document("index of the archive", e))?;
        // One image may be there under several names; it is imported for each, its layers once.
        let mut all = Vec::new();
        for entry in &index.manifests {
            let names = named(entry)?;
            match self.manifest(entry)? {
                Some((digest, manifest)) => {
                    all.push(self.import_manifest(store, names, digest, &manifest, saved)?)
                }
                // For another machine.
                None => continue,
            }
        }
        if all.is_empty() {
            let here = Platform::of_this_machine();
            return Err(Error::NoImage(format!("{}/{}", here.os, here.architecture)));
        }
        Ok(all)
    }

    /// The manifest an entry leads to, by way of an index or not, and the digest that the entry itself has.
    fn manifest(&self, entry: &Descriptor) -> Result<Option<(Digest, crate::documents::Manifest)>, Error> {
        match self.blob_document(entry, "manifest")? {
            Some(Document::Manifest(manifest)) => Ok(Some((entry.digest.clone(), manifest))),
            Some(Document::Index(index)) => {
                // Only the images of one machine may be in the archive.
                let there = |d: &&Descriptor| self.by_path.contains_key(&blob_path(&d.digest));
                let index = Index { manifests: index.manifests.iter().filter(there).cloned().collect() };
                let Some(chosen) = index.choose(&Platform::of_this_machine()) else { return Ok(None) };
                match self.blob_document(chosen, "manifest")? {
                    Some(Document::Manifest(manifest)) => Ok(Some((entry.digest.clone(), manifest))),
                    _ => Err(Error::document("manifest", "an index within an index")),
                }
            }
            None => Ok(None),
        }
    }

    fn import_manifest(
        &self,
        store: &Store,
        mut names: Vec<Reference>,
        digest: Digest,
        manifest: &crate::documents::Manifest,
        saved: &[Saved],
    ) -> Result<Arc<Image>, Error> {
        let config_path = blob_path(&manifest.config.digest);
        let config = self.proven(&manifest.config, "configuration of the image")?;
        for tag in saved
            .iter()
            .filter(|saved| saved.config == config_path)
            .flat_map(|s| s.repo_tags.iter().flatten())
        {
            names.push(Reference::parse(tag)?);
        }
        let parsed = ImageConfig::parse(&config, &self.limits)?;
        if parsed.diff_ids.len() != manifest.layers.len() {
            return Err(Error::document(
                "manifest",
                "it has another number of layers than the configuration",
            ));
        }
        let blobs = manifest.layers.iter().map(|layer| {
            let file = self.by_path.get(&blob_path(&layer.digest));
            file.map(|file| Blob { file, digest: Some(&layer.digest) })
                .ok_or_else(|| Error::NoLayer(layer.digest.clone()))
        });
        let blobs: Vec<Blob<'_>> = blobs.collect::<Result<_, _>>()?;
        // Held until the image has a record.
        let _held = Files::layers(store, &parsed.diff_ids, &blobs)?;
        let size = manifest.layers.iter().map(|layer| layer.size).sum::<u64>() + manifest.config.size;
        let id = manifest.config.digest.clone();
        store.add_image(Arrived { id, config, names, manifest: Some(digest), size }, &parsed)
    }

    fn import_saved(&self, store: &Store, saved: &Saved) -> Result<Arc<Image>, Error> {
        let missing =
            |path: &str| Error::document("manifest of the archive", format!("{path} is not in the archive"));
        let file = |path: &String| self.by_path.get(path).ok_or_else(|| missing(path));
        let config = self.document(file(&saved.config)?, "configuration of the image")?;
        let parsed = ImageConfig::parse(&config, &self.limits)?;
        if parsed.diff_ids.len() != saved.layers.len() {
            return Err(Error::document(
                "manifest of the archive",
                "it has another number of layers than the configuration",
            ));
        }
        let blobs = saved.layers.iter().map(|path| Ok(Blob { file: file(path)?, digest: None }));
        let blobs: Vec<Blob<'_>> = blobs.collect::<Result<_, Error>>()?;
        let _held = Files::layers(store, &parsed.diff_ids, &blobs)?;
        let names = saved.repo_tags.iter().flatten().map(|tag| Ok(Reference::parse(tag)?));
        let names: Vec<Reference> = names.collect::<Result<_, Error>>()?;
        let mut size = config.len() as u64;
        for blob in &blobs {
            size += blob.file.metadata().doing("look at", blob.file)?.len();
        }
        store.add_image(Arrived { id: Digest::of(&config), config, names, manifest: None, size }, &parsed)
    }

    /// Unpacks what the store does not have, two at a time.
    fn layers(store: &Store, ids: &[DiffId], blobs: &[Blob<'_>]) -> Result<Vec<Held>, Error> {
        let next = std::sync::atomic::AtomicUsize::new(0);
        let work = || -> Result<Vec<Held>, Error> {
            let mut held = Vec::new();
            loop {
                let i = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let (Some(id), Some(blob)) = (ids.get(i), blobs.get(i)) else { return Ok(held) };
                held.push(layer::add(store, id, blob.file, blob.digest)?);
            }
        };
        std::thread::scope(|scope| {
            let other = (ids.len() > 1).then(|| scope.spawn(work));
            let mut held = work()?;
            if let Some(other) = other {
                let theirs = other.join().map_err(|_| Error::Refused("unpacking a layer panicked".into()))?;
                held.extend(theirs?);
            }
            Ok(held)
        })
    }

    fn saved(&self) -> Result<Vec<Saved>, Error> {
        let Some(file) = self.by_path.get(DOCKER) else { return Ok(Vec::new()) };
        let text = self.document(file, "manifest of the archive")?;
        serde_json::from_slice(&text).map_err(|e| Error::document("manifest of the archive", e))
    }

    fn blob_document(&self, descriptor: &Descriptor, what: &'static str) -> Result<Option<Document>, Error> {
        if !self.by_path.contains_key(&blob_path(&descriptor.digest)) {
            return Ok(None);
        }
        Document::parse(&self.proven(descriptor, what)?, &self.limits).map(Some)
    }

    /// A document that is what its descriptor promises.
    fn proven(&self, descriptor: &Descriptor, what: &'static str) -> Result<Vec<u8>, Error> {
        let path = blob_path(&descriptor.digest);
        let file = self
            .by_path
            .get(&path)
            .ok_or_else(|| Error::document(what, format!("{path} is not in the archive")))?;
        let bytes = self.document(file, what)?;
        let mut reader = Hashing::like(&descriptor.digest, bytes.as_slice());
        io::copy(&mut reader, &mut io::sink()).map_err(Error::Archive)?;
        let (found, _) = reader.finish();
        if found != descriptor.digest {
            return Err(Error::Mismatch { what, wanted: descriptor.digest.clone(), found });
        }
        Ok(bytes)
    }

    fn document(&self, file: &Path, what: &'static str) -> Result<Vec<u8>, Error> {
        let most = self.limits.document;
        let mut bytes = Vec::new();
        let opened = File::open(file).doing("open", file)?;
        opened.take(most + 1).read_to_end(&mut bytes).doing("read", file)?;
        if bytes.len() as u64 > most {
            return Err(Error::document(what, format!("it has more than {most} bytes")));
        }
        Ok(bytes)
    }
}

fn named(entry: &Descriptor) -> Result<Vec<Reference>, Error> {
    let Some(annotations) = &entry.annotations else { return Ok(Vec::new()) };
    let whole = NAMES.iter().filter_map(|key| annotations.get(*key));
    let oci = annotations.get(OCI_NAME).filter(|name| name.contains([':', '/']));
    let mut names = Vec::new();
    for name in whole.chain(oci) {
        let reference = Reference::parse(name)?;
        if !names.contains(&reference) {
            names.push(reference);
        }
    }
    Ok(names)
}

fn blob_path(digest: &Digest) -> String {
    format!("blobs/{}", digest.as_str().replace(':', "/"))
}

/// The path of an entry as it is spelled in documents; none for what cannot be meant.
fn plain(path: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(path).ok()?;
    resolve(Path::new(""), text)
}

/// Where `to` leads from a directory of the archive.
fn resolve(from: &Path, to: &str) -> Option<String> {
    let mut path: Vec<&str> = from.to_str()?.split('/').filter(|name| !name.is_empty()).collect();
    for name in to.split('/') {
        match name {
            "" | "." => {}
            ".." => {
                path.pop()?;
            }
            name => path.push(name),
        }
    }
    Some(path.join("/"))
}

fn broken(error: TarError) -> Error {
    match error {
        TarError::Read(e) => Error::Archive(e),
        TarError::Malformed(why) => Error::Refused(format!("the archive is malformed: {why}")),
    }
}
