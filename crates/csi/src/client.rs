//! The client side: one method per call, each with its deadline.

use std::path::{Path, PathBuf};
use std::time::Duration;

use plugins::call::{connect, finish};
use tonic::transport::Channel;

use crate::v1::node_client::NodeClient;
use crate::v1::node_service_capability::Type as Offer;
use crate::v1::node_service_capability::rpc::Type;
use crate::{Result, v1};

/// A driver's node service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    socket: PathBuf,
    deadline: Duration,
}

/// What a driver's node service can do beyond publishing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    pub stage: bool,
    pub stats: bool,
    pub expand: bool,
    /// Tells one writer on a node from several.
    pub single_node_multi_writer: bool,
    /// Gives the volume to a group by itself.
    pub mount_group: bool,
}

// === impl Driver ===

impl Driver {
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>, deadline: Duration) -> Self {
        Self { socket: socket.into(), deadline }
    }

    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub async fn info(&self) -> Result<v1::NodeGetInfoResponse> {
        let mut node = self.node().await?;
        finish(self.deadline, node.node_get_info(v1::NodeGetInfoRequest {})).await
    }

    pub async fn capabilities(&self) -> Result<Capabilities> {
        let mut node = self.node().await?;
        let request = v1::NodeGetCapabilitiesRequest {};
        let answer = finish(self.deadline, node.node_get_capabilities(request)).await?;
        Ok(Capabilities::of(&answer))
    }

    pub async fn stage(&self, request: v1::NodeStageVolumeRequest) -> Result<()> {
        let mut node = self.node().await?;
        finish(self.deadline, node.node_stage_volume(request)).await.map(drop)
    }

    pub async fn unstage(&self, request: v1::NodeUnstageVolumeRequest) -> Result<()> {
        let mut node = self.node().await?;
        finish(self.deadline, node.node_unstage_volume(request)).await.map(drop)
    }

    pub async fn publish(&self, request: v1::NodePublishVolumeRequest) -> Result<()> {
        let mut node = self.node().await?;
        finish(self.deadline, node.node_publish_volume(request)).await.map(drop)
    }

    pub async fn unpublish(&self, request: v1::NodeUnpublishVolumeRequest) -> Result<()> {
        let mut node = self.node().await?;
        finish(self.deadline, node.node_unpublish_volume(request)).await.map(drop)
    }

    pub async fn stats(
        &self,
        request: v1::NodeGetVolumeStatsRequest,
    ) -> Result<v1::NodeGetVolumeStatsResponse> {
        let mut node = self.node().await?;
        finish(self.deadline, node.node_get_volume_stats(request)).await
    }

    pub async fn expand(&self, request: v1::NodeExpandVolumeRequest) -> Result<v1::NodeExpandVolumeResponse> {
        let mut node = self.node().await?;
        finish(self.deadline, node.node_expand_volume(request)).await
    }

    async fn node(&self) -> Result<NodeClient<Channel>> {
        Ok(NodeClient::new(connect(&self.socket).await?))
    }
}

// === impl Capabilities ===

impl Capabilities {
    fn of(answer: &v1::NodeGetCapabilitiesResponse) -> Self {
        let offers = answer.capabilities.iter().filter_map(|c| c.r#type.as_ref());
        let all: Vec<Type> = offers.map(|Offer::Rpc(rpc)| rpc.r#type()).collect();
        let has = |kind: Type| all.contains(&kind);
        Self {
            stage: has(Type::StageUnstageVolume),
            stats: has(Type::GetVolumeStats),
            expand: has(Type::ExpandVolume),
            single_node_multi_writer: has(Type::SingleNodeMultiWriter),
            mount_group: has(Type::VolumeMountGroup),
        }
    }
}
