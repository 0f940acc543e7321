//! The container runtime, as the kubelet sees it.

use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use cri::v1;
use futures_util::Stream;

/// CRI v1, as far as the kubelet uses it. Deadlines are the adapter's business.
#[async_trait]
pub trait Runtime: Send + Sync + 'static {
    async fn version(&self) -> cri::Result<v1::VersionResponse>;
    async fn status(&self) -> cri::Result<v1::StatusResponse>;
    async fn runtime_config(&self) -> cri::Result<v1::RuntimeConfigResponse>;
    /// Tells the runtime the node's Pod network.
    async fn update_runtime_config(&self, pod_cidr: &str) -> cri::Result<()>;

    async fn run_pod_sandbox(&self, config: v1::PodSandboxConfig, handler: &str) -> cri::Result<String>;
    async fn stop_pod_sandbox(&self, id: &str) -> cri::Result<()>;
    async fn remove_pod_sandbox(&self, id: &str) -> cri::Result<()>;
    async fn pod_sandbox_status(&self, id: &str) -> cri::Result<v1::PodSandboxStatusResponse>;
    async fn list_pod_sandboxes(
        &self,
        filter: Option<v1::PodSandboxFilter>,
    ) -> cri::Result<Vec<v1::PodSandbox>>;

    async fn create_container(
        &self,
        sandbox: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> cri::Result<String>;
    async fn start_container(&self, id: &str) -> cri::Result<()>;
    /// `grace` is what StopContainer gets as timeout, in seconds.
    async fn stop_container(&self, id: &str, grace: i64) -> cri::Result<()>;
    async fn remove_container(&self, id: &str) -> cri::Result<()>;
    /// Changes what a container may use, while it runs.
    async fn update_container_resources(
        &self,
        id: &str,
        resources: v1::LinuxContainerResources,
    ) -> cri::Result<()>;
    /// Tells the runtime what a whole Pod gets; `Unimplemented` where it does not want to know.
    async fn update_pod_sandbox_resources(
        &self,
        request: v1::UpdatePodSandboxResourcesRequest,
    ) -> cri::Result<()>;
    async fn container_status(&self, id: &str) -> cri::Result<v1::ContainerStatusResponse>;
    async fn list_containers(&self, filter: Option<v1::ContainerFilter>) -> cri::Result<Vec<v1::Container>>;
    async fn reopen_container_log(&self, id: &str) -> cri::Result<()>;
    /// A zero `timeout` means none.
    async fn exec_sync(
        &self,
        id: &str,
        command: Vec<String>,
        timeout: Duration,
    ) -> cri::Result<v1::ExecSyncResponse>;
    /// The URL of the runtime's streaming server.
    async fn exec(&self, request: v1::ExecRequest) -> cri::Result<String>;
    /// The URL of the runtime's streaming server.
    async fn attach(&self, request: v1::AttachRequest) -> cri::Result<String>;
    /// The URL of the runtime's streaming server.
    async fn port_forward(&self, request: v1::PortForwardRequest) -> cri::Result<String>;
    async fn checkpoint_container(&self, request: v1::CheckpointContainerRequest) -> cri::Result<()>;
    async fn list_container_stats(&self) -> cri::Result<Vec<v1::ContainerStats>>;

    async fn list_images(&self) -> cri::Result<Vec<v1::Image>>;
    async fn image_status(&self, image: v1::ImageSpec) -> cri::Result<Option<v1::Image>>;
    async fn pull_image(
        &self,
        image: v1::ImageSpec,
        auth: Option<v1::AuthConfig>,
        sandbox: Option<v1::PodSandboxConfig>,
    ) -> cri::Result<String>;
    async fn remove_image(&self, image: v1::ImageSpec) -> cri::Result<()>;
    async fn image_fs_info(&self) -> cri::Result<v1::ImageFsInfoResponse>;

    /// The runtime's event stream; `Unimplemented` where it has none (containerd 1.6).
    async fn events(&self) -> cri::Result<EventStream>;
}

/// Container events until the connection breaks.
pub type EventStream = Pin<Box<dyn Stream<Item = cri::Result<v1::ContainerEventResponse>> + Send>>;
