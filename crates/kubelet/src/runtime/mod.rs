//! The container runtime: the port over CRI and its measure, what it does ([`observer`], upstream's PLEG), how it is
//! ([`health`]), and its words and ours.

pub mod from_cri;
pub mod health;
mod metered;
pub mod observer;
pub mod to_cri;

pub use metered::Metered;

use std::time::Duration;

use async_trait::async_trait;
use cri::v1;

use crate::ports::{EventStream, Runtime};

#[async_trait]
impl Runtime for cri::Client {
    async fn version(&self) -> cri::Result<v1::VersionResponse> {
        self.version().await
    }

    async fn status(&self) -> cri::Result<v1::StatusResponse> {
        self.status().await
    }

    async fn runtime_config(&self) -> cri::Result<v1::RuntimeConfigResponse> {
        self.runtime_config().await
    }

    async fn update_runtime_config(&self, pod_cidr: &str) -> cri::Result<()> {
        self.update_runtime_config(pod_cidr).await
    }

    async fn run_pod_sandbox(&self, config: v1::PodSandboxConfig, handler: &str) -> cri::Result<String> {
        self.run_pod_sandbox(config, handler).await
    }

    async fn stop_pod_sandbox(&self, id: &str) -> cri::Result<()> {
        self.stop_pod_sandbox(id).await
    }

    async fn remove_pod_sandbox(&self, id: &str) -> cri::Result<()> {
        self.remove_pod_sandbox(id).await
    }

    async fn pod_sandbox_status(&self, id: &str) -> cri::Result<v1::PodSandboxStatusResponse> {
        self.pod_sandbox_status(id).await
    }

    async fn list_pod_sandboxes(
        &self,
        filter: Option<v1::PodSandboxFilter>,
    ) -> cri::Result<Vec<v1::PodSandbox>> {
        self.list_pod_sandboxes(filter).await
    }

    async fn create_container(
        &self,
        sandbox: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> cri::Result<String> {
        self.create_container(sandbox, config, sandbox_config).await
    }

    async fn start_container(&self, id: &str) -> cri::Result<()> {
        self.start_container(id).await
    }

    async fn stop_container(&self, id: &str, grace: i64) -> cri::Result<()> {
        self.stop_container(id, grace).await
    }

    async fn remove_container(&self, id: &str) -> cri::Result<()> {
        self.remove_container(id).await
    }

    async fn update_container_resources(
        &self,
        id: &str,
        resources: v1::LinuxContainerResources,
    ) -> cri::Result<()> {
        let request = v1::UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(resources),
            ..Default::default()
        };
        self.update_container_resources(request).await
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: v1::UpdatePodSandboxResourcesRequest,
    ) -> cri::Result<()> {
        self.update_pod_sandbox_resources(request).await
    }

    async fn container_status(&self, id: &str) -> cri::Result<v1::ContainerStatusResponse> {
        self.container_status(id).await
    }

    async fn list_containers(&self, filter: Option<v1::ContainerFilter>) -> cri::Result<Vec<v1::Container>> {
        self.list_containers(filter).await
    }

    async fn reopen_container_log(&self, id: &str) -> cri::Result<()> {
        self.reopen_container_log(id).await
    }

    async fn exec_sync(
        &self,
        id: &str,
        command: Vec<String>,
        timeout: Duration,
    ) -> cri::Result<v1::ExecSyncResponse> {
        self.exec_sync(id, command, timeout).await
    }

    async fn exec(&self, request: v1::ExecRequest) -> cri::Result<String> {
        self.exec(request).await
    }

    async fn attach(&self, request: v1::AttachRequest) -> cri::Result<String> {
        self.attach(request).await
    }

    async fn port_forward(&self, request: v1::PortForwardRequest) -> cri::Result<String> {
        self.port_forward(request).await
    }

    async fn checkpoint_container(&self, request: v1::CheckpointContainerRequest) -> cri::Result<()> {
        self.checkpoint_container(request).await
    }

    async fn list_container_stats(&self) -> cri::Result<Vec<v1::ContainerStats>> {
        self.list_container_stats(None).await
    }

    async fn list_images(&self) -> cri::Result<Vec<v1::Image>> {
        self.list_images().await
    }

    async fn image_status(&self, image: v1::ImageSpec) -> cri::Result<Option<v1::Image>> {
        self.image_status(image).await
    }

    async fn pull_image(
        &self,
        image: v1::ImageSpec,
        auth: Option<v1::AuthConfig>,
        sandbox: Option<v1::PodSandboxConfig>,
    ) -> cri::Result<String> {
        self.pull_image(image, auth, sandbox).await
    }

    async fn remove_image(&self, image: v1::ImageSpec) -> cri::Result<()> {
        self.remove_image(image).await
    }

    async fn image_fs_info(&self) -> cri::Result<v1::ImageFsInfoResponse> {
        self.image_fs_info().await
    }

    async fn events(&self) -> cri::Result<EventStream> {
        self.events().await
    }
}
