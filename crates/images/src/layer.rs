//! A layer's blob becomes a layer of the store.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use crate::decompress::decompressed;
use crate::digest::{DiffId, Digest, Hashing};
use crate::error::{Doing, Error};
use crate::limits::Limits;
use crate::records::LayerRecord;
use crate::store::{Held, Store, make_layer_root};
use crate::unpack::unpack;

const BUFFER: usize = 128 << 10;

/// Unpacks the blob in `file`, unless the store has the layer. It stays as long as what this returns, or an image that has it.
/// `digest` is that of the blob as it lies there, where somebody promised one.
pub fn add(store: &Store, id: &DiffId, file: &Path, digest: Option<&Digest>) -> Result<Held, Error> {
    if let Ok(held) = store.hold(std::slice::from_ref(id)) {
        return Ok(held);
    }
    let scratch = store.scratch()?;
    let record = fill(&scratch, id, file, digest, store.limits());
    if record.is_err() {
        // The error is the news; the sweep at the next start takes what resists.
        let _ = std::fs::remove_dir_all(&scratch);
    }
    store.add_layer(id, &scratch, record?)
}

/// Both digests are known when everything was read, and nothing has a name before that.
fn fill(
    scratch: &Path,
    id: &DiffId,
    file: &Path,
    digest: Option<&Digest>,
    limits: &Limits,
) -> Result<LayerRecord, Error> {
    let root = scratch.join("fs");
    make_layer_root(&root)?;
    let dir = File::open(&root).doing("open", &root)?;
    let blob = File::open(file).doing("open", file)?;
    let mut packed = Hashing::like(digest.unwrap_or(id), BufReader::with_capacity(BUFFER, blob));
    let done = plain(&mut packed, dir, id, limits);
    if done.as_ref().is_err_and(Error::is_disk_full) {
        return done;
    }
    io::copy(&mut packed, &mut io::sink()).map_err(|source| Error::Layer { layer: id.clone(), source })?;
    let (found, _) = packed.finish();
    // A blob that is not the one is told as such, whatever is wrong with its archive.
    match digest.filter(|wanted| found != **wanted) {
        Some(wanted) => Err(Error::Mismatch { what: "the layer", wanted: wanted.clone(), found }),
        None => done,
    }
}

/// Unpacks what was compressed, and proves it.
fn plain(packed: impl Read, dir: File, id: &DiffId, limits: &Limits) -> Result<LayerRecord, Error> {
    let broken = |source| Error::Layer { layer: id.clone(), source };
    let plain = decompressed(BufReader::with_capacity(BUFFER, packed)).map_err(broken)?;
    let plain = Hashing::like(id, plain.take(limits.layer_bytes));
    let (done, mut plain) = unpack(plain, dir.into(), id, limits)?;
    // What stands behind the end of the archive is part of the digest.
    io::copy(&mut plain, &mut io::sink()).map_err(broken)?;
    let (found, bytes) = plain.finish();
    if bytes == limits.layer_bytes {
        return Err(Error::Refused(format!("layer {id} has more than {bytes} bytes")));
    }
    if found != *id {
        return Err(Error::Mismatch { what: "the layer, uncompressed,", wanted: id.clone(), found });
    }
    if done.devices > 0 {
        tracing::info!(layer = %id, devices = done.devices, "device files of a layer are left out");
    }
    Ok(LayerRecord { bytes: done.bytes, entries: done.entries, implied: done.implied })
}
