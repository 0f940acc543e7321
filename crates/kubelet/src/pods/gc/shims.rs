//! Ends shims that the runtime has forgotten; which they are, `kubelet_core::gc::shims` says.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use kubelet_core::gc::shims::{Process, forgotten_shims, may_be_shim};
use kubelet_core::observed::FoundPod;
use sys::processes;

/// Shims that were forgotten when it was last looked: pid and start.
#[derive(Debug, Default)]
pub(super) struct Suspects(BTreeSet<(i32, u64)>);

// === impl Suspects ===

impl Suspects {
    /// Ends those that were forgotten already the last time.
    pub(super) async fn look(&mut self, socket: &Path, found: &[FoundPod]) {
        let looked = tokio::task::spawn_blocking(shims).await.map_err(io::Error::other).flatten();
        let (shims, all) = match looked {
            Ok(looked) => looked,
            Err(error) => return tracing::debug!(%error, "shims could not be looked for"),
        };
        let socket = socket.to_string_lossy();
        let now = forgotten_shims(&shims, &socket, found);
        for shim in now.iter().filter(|shim| self.0.contains(&(shim.pid, shim.started))) {
            end(shim, &all);
        }
        self.0 = now.iter().map(|shim| (shim.pid, shim.started)).collect();
    }
}

/// Those that see what we see: a directory that is gone in there may be a mount of another machine's. With them all
/// processes.
fn shims() -> io::Result<(Vec<Process>, Vec<processes::Process>)> {
    let proc = Path::new("/proc");
    let all = processes::list(proc)?;
    let mut shims = Vec::new();
    for process in all.iter().filter(|p| may_be_shim(&p.args)) {
        let Ok(directory) = processes::directory(proc, process.pid) else { continue };
        if processes::shares_mounts(proc, process.pid).unwrap_or(false) {
            shims.push(Process {
                pid: process.pid,
                started: process.started,
                args: process.args.clone(),
                directory: directory.to_string_lossy().into_owned(),
            });
        }
    }
    Ok((shims, all))
}

/// What it started first: those would go on without anybody who waits for them.
fn end(shim: &Process, all: &[processes::Process]) {
    let children = all.iter().filter(|p| p.parent == shim.pid);
    let itself = all.iter().filter(|p| (p.pid, p.started) == (shim.pid, shim.started));
    for process in children.chain(itself) {
        match processes::kill(process) {
            Ok(killed) => tracing::warn!(
                pid = process.pid,
                program = process.args.first().map(String::as_str).unwrap_or_default(),
                killed,
                "ended what the runtime had forgotten"
            ),
            Err(error) => {
                tracing::warn!(pid = process.pid, %error, "forgotten by the runtime, and not ended")
            }
        }
    }
}
