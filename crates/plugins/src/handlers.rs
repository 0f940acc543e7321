//! Who takes plugins of which type.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use crate::Plugin;
use crate::registration::PluginInfo;

/// The types of plugins that upstream's kubelet knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PluginType {
    Csi,
    Device,
    Dra,
}

/// What the kubelet does about plugins of one type. Errors are told to the plugin, which may be registered anew at any
/// time.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Checks what a plugin says of itself before anything is done about it.
    fn validate(&self, info: &PluginInfo, socket: &Path) -> Result<(), String>;

    /// Makes a plugin known that was found valid. One that fails leaves nothing behind.
    async fn register(&self, info: &PluginInfo, socket: &Path) -> Result<(), String>;

    /// The plugin that came by this socket is gone.
    fn deregister(&self, name: &str, socket: &Path);
}

/// The table of handlers.
#[derive(Clone, Default)]
pub struct Handlers(BTreeMap<&'static str, Arc<dyn Handler>>);

/// The plugin that a socket stands for, as it said last. It may call itself otherwise each time it is asked.
#[derive(Clone, Debug, Default)]
pub struct Known(Arc<Mutex<Option<(String, String)>>>);

// === impl PluginType ===

impl PluginType {
    /// As plugins say it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            PluginType::Csi => "CSIPlugin",
            PluginType::Device => "DevicePlugin",
            PluginType::Dra => "DRAPlugin",
        }
    }
}

// === impl Handlers ===

impl Handlers {
    /// The table with one line more.
    #[must_use]
    pub fn with(mut self, kind: PluginType, handler: Arc<dyn Handler>) -> Handlers {
        self.0.insert(kind.name(), handler);
        self
    }

    /// Asks the plugin at a socket who it is and registers it; it is told what came of that. Errors are in upstream's
    /// words.
    pub async fn register(&self, socket: &Path, known: &Known) -> Result<PluginInfo, String> {
        let (plugin, at) = (Plugin::new(socket), socket.display());
        let info = plugin.info().await.map_err(|e| {
            format!(
                "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {at}, err: {e}"
            )
        })?;
        let handler = match self.admit(&info, socket, known).await {
            Ok(handler) => handler,
            Err(why) => {
                // The plugin learns why; if it does not listen, the log still tells.
                let _ = plugin.notify(&why).await;
                return Err(why);
            }
        };
        if let Err(e) = plugin.notify("").await {
            handler.deregister(&info.name, socket);
            return Err(format!(
                "RegisterPlugin error -- failed to send registration status at socket {at}, err: {e}"
            ));
        }
        Ok(info)
    }

    async fn admit(
        &self,
        info: &PluginInfo,
        socket: &Path,
        known: &Known,
    ) -> Result<&Arc<dyn Handler>, String> {
        let handler = self.0.get(info.r#type.as_str()).ok_or_else(|| {
            let (kind, at) = (&info.r#type, socket.display());
            format!("RegisterPlugin error -- no handler registered for plugin type: {kind} at socket {at}")
        })?;
        handler
            .validate(info, socket)
            .map_err(|e| format!("RegisterPlugin error -- plugin validation failed with err: {e}"))?;
        // Known before it is registered: a socket that goes meanwhile takes back whatever was done.
        known.set(info);
        let registered = handler.register(info, socket).await;
        registered
            .map_err(|e| format!("RegisterPlugin error -- plugin registration failed with err: {e}"))?;
        Ok(handler)
    }

    /// The socket is gone, and with it the plugin. Says who that was, if anybody.
    pub fn deregister(&self, socket: &Path, known: &Known) -> Option<String> {
        let (kind, name) = known.get()?;
        self.0.get(kind.as_str())?.deregister(&name, socket);
        Some(name)
    }
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

// === impl Known ===

impl Known {
    fn get(&self) -> Option<(String, String)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, info: &PluginInfo) {
        let known = (info.r#type.clone(), info.name.clone());
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
    }
}
