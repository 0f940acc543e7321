//! Configuration kinds: how flags, files and defaults become one effective configuration.
//!
//! Nothing here touches the machine: the binary hands in the arguments and a [`ReadFiles`].

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use base::class::{Class, Classify};
use base::flags::FlagError;

pub mod apiserver;
mod check;
mod compatibility;
pub mod controllers;
pub mod dns;
pub mod doc;
mod file;
pub mod flag;
pub mod gates;
pub mod join;
pub mod kubelet;
mod logging;
pub mod overlay;
pub mod page;
pub mod proxy;
pub mod runtime;
pub mod scheduler;
pub mod serving;
pub mod up;

pub use compatibility::compatibility;
pub use logging::{Logging, LoggingOptions, OutputRouting, VModule};

/// What a command line asks for.
#[derive(Debug)]
pub enum Outcome<Loaded> {
    Run(Box<Loaded>),
    Help(String),
    Version,
}

/// The loader's only view of the file system.
pub trait ReadFiles {
    /// A whole file. Implementations refuse files beyond [`MAX_FILE`].
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// The entries of a directory, in any order, symbolic links not followed.
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>>;
    /// What relative paths start from.
    fn current_dir(&self) -> io::Result<PathBuf>;
}

/// No configuration file is read beyond this size.
pub const MAX_FILE: u64 = 10 * 1024 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    pub name: String,
    pub is_dir: bool,
}

/// One mistake in one field, named by its path in the document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    pub path: String,
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("{0}")]
    Flag(#[from] FlagError),
    #[error("read {path}: {reason}")]
    Read { path: String, reason: String },
    #[error("decode {path}: {reason}")]
    Decode { path: String, reason: String },
    #[error("{path}: {error}")]
    InFile { path: String, error: FieldError },
    #[error("invalid configuration: {0}")]
    Field(FieldError),
}

/// Every mistake found, in the order found. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError(pub Vec<ConfigError>);

// === impl FieldError ===

impl FieldError {
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }

    /// Whether it is about this field, or names it as what another one needs.
    pub(crate) fn concerns(&self, field: &str) -> bool {
        let path = self.path.split('[').next().unwrap_or_default();
        let mut words = self.message.split(|c: char| !c.is_alphanumeric() && c != '.');
        path == field || words.any(|word| word == field)
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

// === impl LoadError ===

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for LoadError {}

impl Classify for LoadError {
    fn class(&self) -> Class {
        Class::Fault
    }
}
