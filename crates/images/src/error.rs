//! What can go wrong with an image.

use std::io;
use std::path::PathBuf;

use api::image::BadName;
use base::class::{Class, Classify};

use crate::digest::{BadDigest, Digest};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Name(#[from] BadName),
    #[error(transparent)]
    Digest(#[from] BadDigest),
    /// A document that is no document, or not what it should be.
    #[error("reading the {what}: {why}")]
    Document { what: &'static str, why: String },
    /// The image asks for what we do not do, or for more than is sound.
    #[error("{0}")]
    Refused(String),
    #[error("{what} has the digest {found}, and {wanted} was promised")]
    Mismatch { what: &'static str, wanted: Digest, found: Digest },
    /// An entry of a layer that would not stay in the layer, or that no archive may have.
    #[error("entry {path:?} of layer {layer}: {why}")]
    Entry { layer: Digest, path: String, why: String },
    #[error("layer {layer}: {source}")]
    Layer { layer: Digest, source: io::Error },
    #[error("{act} {}: {source}", .path.display())]
    Disk { act: &'static str, path: PathBuf, source: io::Error },
    #[error("reading the archive: {0}")]
    Archive(io::Error),
    #[error("the archive names no image for {0}")]
    NoImage(String),
    #[error("layer {0} is not there")]
    NoLayer(Digest),
}

// === impl Error ===

impl Error {
    pub(crate) fn document(what: &'static str, why: impl ToString) -> Error {
        Error::Document { what, why: why.to_string() }
    }

    /// Whether there is no room: pulling again changes nothing until somebody makes some.
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        let (Error::Disk { source, .. } | Error::Layer { source, .. }) = self else { return false };
        matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }
}

impl Classify for Error {
    fn class(&self) -> Class {
        match self {
            Error::Disk { .. } | Error::Layer { .. } | Error::Archive(_) | Error::NoLayer(_) => Class::Retry,
            _ => Class::Reject,
        }
    }
}

/// For errors of files of ours.
pub(crate) trait Doing<T> {
    fn doing(self, act: &'static str, path: &std::path::Path) -> Result<T, Error>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, act: &'static str, path: &std::path::Path) -> Result<T, Error> {
        self.map_err(|e| Error::Disk { act, path: path.to_owned(), source: e.into() })
    }
}
