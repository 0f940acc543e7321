//! Plugins of the kubelet: whoever puts a socket below `plugins_registry` is asked who he is and let in.
//!
//! The directory is the truth. A change in it, heard by inotify or found by the slow look, sets off a comparison: a
//! socket that is gone or was made anew ends what it stood for, a new one gets a task of its own that asks until it has
//! an answer. A plugin that hangs holds up nobody.

mod scan;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use csi::Plugin;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::volumes::drivers::registration::Registrar;
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
struct Caller {
    birth: Birth,
    name: Name,
    task: JoinHandle<Option<()>>,
}

/// The driver that a socket stands for, as it said last. It may call itself otherwise each time it is asked.
#[derive(Clone, Debug, Default)]
struct Name(Arc<Mutex<Option<String>>>);

// === impl Name ===

impl Name {
    fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, name: &str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(name.to_owned());
    }
}

/// Lets plugins in and out until cancelled.
pub async fn run(dir: PathBuf, registrar: Registrar, token: CancellationToken) {
    if let Err(error) = std::fs::create_dir_all(&dir) {
        tracing::warn!(dir = %dir.display(), %error, "no directory for plugins to register in");
    }
    let mut callers = BTreeMap::new();
    let mut inotify = scan::open_inotify();
    loop {
        if let Some(inotify) = &inotify {
            scan::watch_below(inotify, &dir);
        }
        compare(&dir, &mut callers, &registrar).await;
        let look = if inotify.is_some() { SLOW_LOOK } else { FAST_LOOK };
        tokio::select! {
            () = token.cancelled() => break,
            () = tokio::time::sleep(look) => {}
            () = scan::changed(&mut inotify) => {}
        }
    }
    callers.values().for_each(|caller: &Caller| caller.task.abort());
}

/// Brings the callers in line with the sockets that are there.
async fn compare(dir: &Path, callers: &mut BTreeMap<PathBuf, Caller>, registrar: &Registrar) {
    let found = scan::sockets(dir);
    let gone: Vec<PathBuf> = callers
        .iter()
        .filter(|(socket, caller)| found.get(*socket) != Some(&caller.birth))
        .map(|(socket, _)| socket.clone())
        .collect();
    for socket in gone {
        let Some(caller) = callers.remove(&socket) else { continue };
        caller.task.abort();
        // Whatever it was doing has ended before its driver is taken out.
        let _ = caller.task.await;
        if let Some(name) = caller.name.get() {
            tracing::info!(driver = name, socket = %socket.display(), "plugin is gone");
            registrar.deregister(&name, &socket);
        }
    }
    for (socket, birth) in found {
        if callers.contains_key(&socket) {
            continue;
        }
        let name = Name::default();
        let task = supervise::spawn("plugin", attend(socket.clone(), registrar.clone(), name.clone()));
        callers.insert(socket, Caller { birth, name, task });
    }
}

/// Asks until the plugin is registered; refusals are repeated too, because what was wrong may be put right.
async fn attend(socket: PathBuf, registrar: Registrar, name: Name) {
    let mut pause = RETRY_MIN;
    while let Err(error) = greet(&socket, &registrar, &name).await {
        tracing::warn!(socket = %socket.display(), %error, "plugin not registered");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
}

async fn greet(socket: &Path, registrar: &Registrar, name: &Name) -> Result<(), String> {
    let plugin = Plugin::new(socket);
    let at = socket.display();
    let info = plugin.info().await.map_err(|e| {
        format!(
            "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {at}, err: {e}"
        )
    })?;
    let refuse = async |why: String| {
        // The plugin learns why; if it does not listen, the log still tells.
        let _ = plugin.notify(&why).await;
        Err(why)
    };
    if info.r#type != "CSIPlugin" {
        let kind = &info.r#type;
        return refuse(format!(
            "RegisterPlugin error -- no handler registered for plugin type: {kind} at socket {at}"
        ))
        .await;
    }
    let version = match registrar.validate(&info, socket) {
        Ok(version) => version,
        Err(e) => {
            return refuse(format!("RegisterPlugin error -- plugin validation failed with err: {e}")).await;
        }
    };
    // Known before it is registered: a socket that goes meanwhile takes back whatever was done.
    name.set(&info.name);
    if let Err(e) = registrar.register(&info, socket, version).await {
        return refuse(format!("RegisterPlugin error -- plugin registration failed with err: {e}")).await;
    }
    if let Err(e) = plugin.notify("").await {
        registrar.deregister(&info.name, socket);
        return Err(format!(
            "RegisterPlugin error -- failed to send registration status at socket {at}, err: {e}"
        ));
    }
    tracing::info!(driver = info.name, socket = %at, "CSI driver registered");
    Ok(())
}

#[cfg(test)]
mod tests;
