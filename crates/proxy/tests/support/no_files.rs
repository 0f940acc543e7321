//! A command line that names no files.

use std::io;
use std::path::{Path, PathBuf};

use api::config::{DirEntry, ReadFiles};

pub(crate) struct NoFiles;

impl ReadFiles for NoFiles {
    fn read(&self, _: &Path) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn list(&self, _: &Path) -> io::Result<Vec<DirEntry>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn current_dir(&self) -> io::Result<PathBuf> {
        Ok("/".into())
    }
}
