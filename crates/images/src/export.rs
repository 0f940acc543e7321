//! Images as an archive in OCI's layout.
//!
//! What a registry sent is not kept, only what came out of it: layers are archived anew. The same image always makes the same
//! archive, but its layers have other digests than those it came with, and so has the image.

mod layer;
mod writer;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use serde_json::{Value, json};

use crate::digest::{DiffId, Digest, Hashing};
use crate::documents::Platform;
use crate::error::{Doing, Error};
use crate::store::{Image, Store};
use writer::Head;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const BUFFER: usize = 128 << 10;

/// A blob that lies on the disk, or in memory.
enum Content {
    File(PathBuf, u64),
    Bytes(Vec<u8>),
}

/// Half of an archive: goes when it is dropped.
struct Scratch(PathBuf);

/// Writes the images of these names. What they share is written once.
pub fn export(store: &Store, references: &[String], out: impl Write) -> Result<(), Error> {
    let scratch = Scratch(store.scratch()?);
    let (mut blobs, mut layers, mut manifests) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    for reference in references {
        let image = store.find(reference);
        let image = image.ok_or_else(|| Error::Refused(format!("there is no image {reference:?}")))?;
        // They stay until they are written, whatever becomes of the image.
        let _held = store.hold(&image.layers)?;
        for id in &image.layers {
            if !layers.contains_key(id) {
                let (digest, size, file) = archived(store, id, &scratch.0)?;
                blobs.insert(digest.clone(), Content::File(file, size));
                layers.insert(id.clone(), (digest, size));
            }
        }
        let parts: Vec<_> = image.layers.iter().filter_map(|id| layers.get(id)).collect();
        let config = config(store, &image, &parts)?;
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": descriptor(CONFIG, &Digest::of(&config), config.len() as u64),
            "layers": parts.iter().map(|(digest, size)| descriptor(LAYER, digest, *size)).collect::<Vec<_>>(),
        });
        let manifest = manifest.to_string().into_bytes();
        manifests.extend(entries(&image, reference, &Digest::of(&manifest), manifest.len() as u64));
        for bytes in [config, manifest] {
            blobs.insert(Digest::of(&bytes), Content::Bytes(bytes));
        }
    }
    let index = json!({ "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests });
    write(out, &index, &blobs).map_err(Error::Archive)
}

fn write(out: impl Write, index: &Value, blobs: &BTreeMap<Digest, Content>) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(BUFFER, out);
    let head = |path: &str, size| Head { path: path.into(), mode: 0o644, size, ..Head::default() };
    for (path, text) in
        [("oci-layout", json!({ "imageLayoutVersion": "1.0.0" })), ("index.json", index.clone())]
    {
        let text = text.to_string();
        writer::put_file(&mut out, &head(path, text.len() as u64), text.as_bytes())?;
    }
    for (digest, content) in blobs {
        let path = format!("blobs/{}", digest.as_str().replace(':', "/"));
        match content {
            Content::File(file, size) => writer::put_file(
                &mut out,
                &head(&path, *size),
                BufReader::with_capacity(BUFFER, File::open(file)?),
            )?,
            Content::Bytes(bytes) => {
                writer::put_file(&mut out, &head(&path, bytes.len() as u64), bytes.as_slice())?
            }
        }
    }
    writer::end(&mut out)?;
    out.flush()
}

/// The layer as an archive in a file: its digest and size are said before it comes.
fn archived(store: &Store, id: &DiffId, scratch: &Path) -> Result<(Digest, u64, PathBuf), Error> {
    let (dir, path) = (store.layer_dir(id), scratch.join(id.file_name()));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(&dir, flags, Mode::empty()).doing("open", &dir)?;
    let mut out = BufWriter::with_capacity(BUFFER, File::create(&path).doing("create", &path)?);
    layer::write(root, &mut out).doing("archive", &dir)?;
    out.flush().doing("write", &path)?;
    drop(out);
    let written = File::open(&path).doing("open", &path)?;
    let mut reader = Hashing::like(&Digest::of(b""), BufReader::with_capacity(BUFFER, written));
    io::copy(&mut reader, &mut io::sink()).doing("read", &path)?;
    let (digest, size) = reader.finish();
    Ok((digest, size, path))
}

/// As it came, with the layers as they are now.
fn config(store: &Store, image: &Image, layers: &[&(Digest, u64)]) -> Result<Vec<u8>, Error> {
    let text =
        store.config(&image.id).ok_or_else(|| Error::Refused(format!("image {} is gone", image.id)))?;
    let mut config: Value =
        serde_json::from_str(&text).map_err(|e| Error::document("configuration of the image", e))?;
    let before = config.pointer("/rootfs/diff_ids").and_then(Value::as_array).map_or(0, Vec::len);
    let ids: Vec<&str> = layers.iter().map(|(digest, _)| digest.as_str()).collect();
    config["rootfs"] = json!({ "type": "layers", "diff_ids": ids });
    if before != layers.len()
        && let Some(history) = config.get_mut("history").and_then(Value::as_array_mut)
    {
        history.push(json!({ "comment": "rights of directories that layers above only imply" }));
    }
    Ok(config.to_string().into_bytes())
}

/// One for each of its tags, or for the name it was asked by.
fn entries(image: &Image, reference: &str, digest: &Digest, size: u64) -> Vec<Value> {
    let here = Platform::of_this_machine();
    let entry = |name: Option<&str>| {
        let mut entry = descriptor(MANIFEST, digest, size);
        entry["platform"] = json!({ "os": here.os, "architecture": here.architecture });
        if let Some(name) = name {
            entry["annotations"] = json!({ "io.containerd.image.name": name });
        }
        entry
    };
    match image.tags.iter().find(|tag| tag.as_str() == reference) {
        Some(tag) => vec![entry(Some(tag))],
        None if image.tags.is_empty() => vec![entry(None)],
        None => image.tags.iter().map(|tag| entry(Some(tag))).collect(),
    }
}

fn descriptor(kind: &str, digest: &Digest, size: u64) -> Value {
    json!({ "mediaType": kind, "digest": digest.as_str(), "size": size })
}

// === impl Scratch ===

impl Drop for Scratch {
    fn drop(&mut self) {
        // What resists is swept at the next start.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
