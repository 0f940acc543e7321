//! The client of a registration socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Result;
use crate::call::{connect, finish};
use crate::registration::registration_client::RegistrationClient;
use crate::registration::{InfoRequest, PluginInfo, RegistrationStatus};

/// A registration socket.
#[derive(Clone, Debug)]
pub struct Plugin {
    socket: PathBuf,
}

const GET_INFO: Duration = Duration::from_secs(1);
const NOTIFY: Duration = Duration::from_secs(5);

// === impl Plugin ===

impl Plugin {
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into() }
    }

    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub async fn info(&self) -> Result<PluginInfo> {
        let mut plugin = RegistrationClient::new(connect(&self.socket).await?);
        finish(GET_INFO, plugin.get_info(InfoRequest {})).await
    }

    /// Tells the plugin what came of its registration; an empty error means that it is registered.
    pub async fn notify(&self, error: &str) -> Result<()> {
        let mut plugin = RegistrationClient::new(connect(&self.socket).await?);
        let status = RegistrationStatus { plugin_registered: error.is_empty(), error: error.to_owned() };
        finish(NOTIFY, plugin.notify_registration_status(status)).await.map(drop)
    }
}
