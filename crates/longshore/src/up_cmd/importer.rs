//! How archives of images get into the runtime.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use api::config::up::Up;

use super::containerd;

/// Who gives archives of images to the runtime.
#[derive(Clone, Debug)]
pub(super) enum Importer {
    /// `longshore images import`, for the runtime of our own.
    Ourselves,
    /// containerd's own client, if it is there.
    Ctr(Option<PathBuf>),
}

/// What fits the runtime that is wanted; containerd's client lies beside it, or on the search path.
pub(super) fn importer(up: &Up, containerd: Option<&Path>) -> Importer {
    if up.embedded_runtime {
        return Importer::Ourselves;
    }
    let beside = containerd.and_then(Path::parent).map(|dir| dir.join("ctr")).filter(|ctr| ctr.is_file());
    Importer::Ctr(beside.or_else(|| containerd::on_the_path("ctr")))
}

// === impl Importer ===

impl Importer {
    /// What one runtime has the other may not have.
    pub(super) fn record(&self) -> &'static str {
        match self {
            Importer::Ourselves => "imported-embedded.json",
            Importer::Ctr(_) => "imported.json",
        }
    }

    pub(super) fn import(&self, socket: &Path, archive: &Path) -> io::Result<()> {
        let says = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        let done = match self {
            Importer::Ourselves => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["images", "import", "--runtime"]).arg(format!("unix://{}", socket.display()));
                command.arg(archive).stdin(Stdio::null()).output()?
            }
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
