//! Device plugins: the client of one, and what it says.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::Streaming;

use crate::Result;
use crate::call::{connect, finish};
pub use crate::generated::deviceplugin as v1beta1;
use v1beta1::device_plugin_client::DevicePluginClient;

/// The only version there is.
pub const VERSION: &str = "v1beta1";
/// What a device that works says of its health.
pub const HEALTHY: &str = "Healthy";

const OPTIONS: Duration = Duration::from_secs(10);
/// Upstream waits for ever. A plugin that has not answered by then does not hold up its Pod any longer.
const ALLOCATE: Duration = Duration::from_secs(120);
const PRE_START: Duration = Duration::from_secs(30);

/// A device plugin behind a socket.
#[derive(Clone, Debug)]
pub struct DevicePlugin {
    socket: PathBuf,
}

// === impl DevicePlugin ===

impl DevicePlugin {
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into() }
    }

    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub async fn options(&self) -> Result<v1beta1::DevicePluginOptions> {
        let mut plugin = DevicePluginClient::new(connect(&self.socket).await?);
        finish(OPTIONS, plugin.get_device_plugin_options(v1beta1::Empty {})).await
    }

    /// Its devices, again whenever something changes. The stream ends with the plugin.
    pub async fn list_and_watch(&self) -> Result<Streaming<v1beta1::ListAndWatchResponse>> {
        let mut plugin = DevicePluginClient::new(connect(&self.socket).await?);
        finish(OPTIONS, plugin.list_and_watch(v1beta1::Empty {})).await
    }

    /// Which of these it would rather give.
    pub async fn preferred(
        &self,
        available: Vec<String>,
        must_include: Vec<String>,
        size: usize,
    ) -> Result<Vec<String>> {
        let mut plugin = DevicePluginClient::new(connect(&self.socket).await?);
        let request = v1beta1::ContainerPreferredAllocationRequest {
            available_device_i_ds: available,
            must_include_device_i_ds: must_include,
            allocation_size: i32::try_from(size).unwrap_or(i32::MAX),
        };
        let request = v1beta1::PreferredAllocationRequest { container_requests: vec![request] };
        let answer = finish(ALLOCATE, plugin.get_preferred_allocation(request)).await?;
        let first = answer.container_responses.into_iter().next();
        Ok(first.map(|r| r.device_i_ds).unwrap_or_default())
    }

    /// What a container needs to use these; none if the plugin answered for no container.
    pub async fn allocate(&self, ids: Vec<String>) -> Result<Option<v1beta1::ContainerAllocateResponse>> {
        let mut plugin = DevicePluginClient::new(connect(&self.socket).await?);
        let request = v1beta1::ContainerAllocateRequest { devices_ids: ids };
        let request = v1beta1::AllocateRequest { container_requests: vec![request] };
        let answer = finish(ALLOCATE, plugin.allocate(request)).await?;
        Ok(answer.container_responses.into_iter().next())
    }

    /// A container that has these is about to start.
    pub async fn pre_start(&self, ids: Vec<String>) -> Result<()> {
        let mut plugin = DevicePluginClient::new(connect(&self.socket).await?);
        let request = v1beta1::PreStartContainerRequest { devices_ids: ids };
        finish(PRE_START, plugin.pre_start_container(request)).await.map(drop)
    }
}
