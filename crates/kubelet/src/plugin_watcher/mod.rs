//! PluginWatcher of the kubelet: whoever puts a socket below `plugins_registry` is asked who he is and let in.
//!
//! The directory is the truth. A change in it, heard by inotify or found by the slow look, sets off a comparison: a
//! socket that is gone or was made anew ends what it stood for, a new one gets a task of its own that asks until it has
//! an answer. A plugin that hangs holds up nobody.

mod scan;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use plugins::{Handlers, Known};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::host::inotify::InotifyStream;
use scan::Birth;

/// Below the kubelet's root.
pub const DIR: &str = "plugins_registry";

/// How often the directory is looked at although nothing was heard.
const SLOW_LOOK: Duration = Duration::from_secs(60);
/// Without inotify there is nothing but looking.
const FAST_LOOK: Duration = Duration::from_secs(1);
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(122);

/// A socket that somebody stands behind.
#[derive(Debug)]
struct Caller {
    birth: Birth,
    known: Known,
    task: JoinHandle<Option<()>>,
}

/// Lets plugins in and out.
#[derive(Clone, Debug)]
pub struct PluginWatcher {
    dir: PathBuf,
    handlers: Handlers,
    /// Locked by the task that runs: a new one goes on where the last one panicked.
    callers: Arc<Mutex<BTreeMap<PathBuf, Caller>>>,
}

// === impl PluginWatcher ===

impl PluginWatcher {
    #[must_use]
    pub fn new(dir: PathBuf, handlers: Handlers) -> PluginWatcher {
        PluginWatcher { dir, handlers, callers: Arc::default() }
    }

    /// Runs until cancelled.
    pub async fn run(self, token: CancellationToken) {
        let mut callers = self.callers.lock().await;
        let mut inotify = scan::open_inotify();
        loop {
            let mut watches = inotify.as_ref().map(InotifyStream::watches);
            let dir = self.dir.clone();
            let looked = tokio::task::spawn_blocking(move || scan::look(&dir, watches.as_mut()));
            match looked.await {
                Ok(found) => self.compare(found, &mut callers).await,
                Err(error) => tracing::error!(%error, "the directory of plugins was not looked at"),
            }
            let look = if inotify.is_some() { SLOW_LOOK } else { FAST_LOOK };
            tokio::select! {
                () = token.cancelled() => break,
                () = tokio::time::sleep(look) => {}
                () = scan::changed(&mut inotify) => {}
            }
        }
        callers.values().for_each(|caller| caller.task.abort());
    }

    /// Brings the callers in line with the sockets that are there.
    async fn compare(&self, found: BTreeMap<PathBuf, Birth>, callers: &mut BTreeMap<PathBuf, Caller>) {
        let gone: Vec<PathBuf> = callers
            .iter()
            .filter(|(socket, caller)| found.get(*socket) != Some(&caller.birth))
            .map(|(socket, _)| socket.clone())
            .collect();
        for socket in gone {
            let Some(caller) = callers.remove(&socket) else { continue };
            caller.task.abort();
            // Whatever it was doing has ended before its plugin is taken out.
            let _ = caller.task.await;
            if let Some(name) = self.handlers.deregister(&socket, &caller.known) {
                tracing::info!(plugin = name, socket = %socket.display(), "plugin is gone");
            }
        }
        for (socket, birth) in found {
            if callers.contains_key(&socket) {
                continue;
            }
            let known = Known::default();
            let task = attend(socket.clone(), self.handlers.clone(), known.clone());
            let task = supervise::spawn("plugin", task);
            callers.insert(socket, Caller { birth, known, task });
        }
    }
}

/// Asks until the plugin is registered; refusals are repeated too, because what was wrong may be put right.
async fn attend(socket: PathBuf, handlers: Handlers, known: Known) {
    let mut pause = RETRY_MIN;
    loop {
        match handlers.register(&socket, &known).await {
            Ok(info) => {
                let (kind, name) = (info.r#type, info.name);
                return tracing::info!(kind, plugin = name, socket = %socket.display(), "plugin registered");
            }
            Err(error) => tracing::warn!(socket = %socket.display(), %error, "plugin not registered"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
}

#[cfg(test)]
mod tests;
