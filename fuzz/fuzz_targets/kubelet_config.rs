//! Any bytes as a KubeletConfiguration: a configuration or a list of mistakes, never a panic.
#![no_main]

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use api::config::kubelet::load;
use api::config::{DirEntry, ReadFiles};
use libfuzzer_sys::fuzz_target;

struct OneFile<'a>(&'a [u8]);

impl ReadFiles for OneFile<'_> {
    fn read(&self, _: &Path) -> io::Result<Vec<u8>> {
        Ok(self.0.to_vec())
    }

    fn list(&self, _: &Path) -> io::Result<Vec<DirEntry>> {
        Ok(Vec::new())
    }

    fn current_dir(&self) -> io::Result<PathBuf> {
        Ok("/".into())
    }
}

fuzz_target!(|bytes: &[u8]| {
    let args = [OsString::from("--config=/etc/kubelet.yaml")];
    if let Err(e) = load(&args, &OneFile(bytes)) {
        assert!(!e.to_string().is_empty());
    }
});
