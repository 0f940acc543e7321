//! Files that users write.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use api::config::kubelet::load;
use api::config::{DirEntry, ReadFiles};
use api::pod::static_pod::{Origin, prepare};
use api::pod::{Manifest, decode, validate};
use base::time::Wall;

/// Any bytes as a manifest: a valid Pod or an error.
pub fn manifest(bytes: &[u8]) {
    let pods = match decode(bytes, &mut |_| {}) {
        Ok(Manifest::Pod(pod)) => vec![*pod],
        Ok(Manifest::List(pods)) => pods,
        Err(e) => return assert!(!e.to_string().is_empty()),
    };
    for pod in pods {
        match prepare(pod, Origin::File("/m/p.yaml"), "node", Wall(1)) {
            Ok(pod) => assert!(validate(&pod).is_empty()),
            Err(e) => assert!(!e.to_string().is_empty()),
        }
    }
}

/// Any bytes as a KubeletConfiguration: a configuration or a list of mistakes.
pub fn kubelet_config(bytes: &[u8]) {
    let args = [OsString::from("--config=/etc/kubelet.yaml")];
    if let Err(e) = load(&args, &OneFile(bytes)) {
        assert!(!e.to_string().is_empty());
    }
}

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
