//! How archives of images get into the runtime.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::choice::{Chosen, on_the_path};
use super::layout::Layout;
use crate::images_cmd;

/// Who gives archives of images to the runtime.
#[derive(Clone, Debug)]
pub(super) enum Importer {
    /// As `longshore images import` does, for the runtime in this program.
    Ourselves,
    /// containerd's own client, if it is there.
    Ctr(Option<PathBuf>),
}

/// What fits the runtime; containerd's client lies beside it, or on the search path.
pub(super) fn importer(chosen: &Chosen) -> Importer {
    let beside = match chosen {
        Chosen::Embedded => return Importer::Ourselves,
        Chosen::Containerd { program } => program.parent().map(|dir| dir.join("ctr")),
        Chosen::Endpoint { .. } => None,
    };
    let beside = beside.filter(|ctr| ctr.is_file());
    Importer::Ctr(beside.or_else(|| on_the_path(Path::new("ctr"))))
}

// === impl Importer ===

impl Importer {
    /// What was imported, beside the images: what one runtime has the other may not have.
    pub(super) fn record(&self, layout: &Layout) -> PathBuf {
        match self {
            Importer::Ourselves => layout.runtime_root().join("imported.json"),
            Importer::Ctr(_) => layout.data.join("imported.json"),
        }
    }

    pub(super) fn import(&self, socket: &Path, archive: &Path) -> io::Result<()> {
        let says = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        let done = match self {
            Importer::Ourselves => return images_cmd::give(socket, archive),
            Importer::Ctr(None) => {
                return Err(io::Error::other("ctr, which belongs to containerd, is not on the search path"));
            }
            Importer::Ctr(Some(ctr)) => {
                let run = |more: &[&str]| {
                    let mut command = Command::new(ctr);
                    command.arg("--address").arg(socket).args(["--namespace", "k8s.io", "images", "import"]);
                    command.args(more).arg(archive).stdin(Stdio::null()).output()
                };
                let done = run(&["--local"])?;
                // Before containerd 2.0 there was no other way, and no word for it.
                let is_old = !done.status.success() && says(&done.stderr).contains("not defined: -local");
                if is_old { run(&[])? } else { done }
            }
        };
        match done.status.success() {
            true => Ok(()),
            false => Err(io::Error::other(says(&done.stderr))),
        }
    }
}
