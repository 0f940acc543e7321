//! Counts and times every call to the runtime, under upstream's operation names.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cri::v1;
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::ports::{EventStream, Runtime};

/// A runtime whose calls show up in `runtime_operations_*`.
#[derive(Clone, Debug)]
pub struct Metered<R> {
    runtime: R,
    metrics: Arc<Metrics>,
}

// === impl Metered ===

impl<R> Metered<R> {
    #[must_use]
    pub fn new(runtime: R, metrics: Arc<Metrics>) -> Self {
        Self { runtime, metrics }
    }

    async fn count<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = cri::Result<T>>,
    ) -> cri::Result<T> {
        let begun = Instant::now();
        let answer = call.await;
        let took = begun.elapsed();
        tracing::trace!(operation, ?took, worked = answer.is_ok(), "runtime asked");
        self.metrics.runtime_operations_total.inc([operation]);
        self.metrics.runtime_operations_duration_seconds.observe_duration([operation], took);
        if answer.is_err() {
            self.metrics.runtime_operations_errors_total.inc([operation]);
        }
        answer
    }
}

#[async_trait]
impl<R: Runtime> Runtime for Metered<R> {
    async fn version(&self) -> cri::Result<v1::VersionResponse> {
        self.count("version", self.runtime.version()).await
    }

    async fn status(&self) -> cri::Result<v1::StatusResponse> {
        self.count("status", self.runtime.status()).await
    }

    async fn runtime_config(&self) -> cri::Result<v1::RuntimeConfigResponse> {
        self.count("runtime_config", self.runtime.runtime_config()).await
    }

    async fn update_runtime_config(&self, pod_cidr: &str) -> cri::Result<()> {
        self.count("update_runtime_config", self.runtime.update_runtime_config(pod_cidr)).await
    }

    async fn run_pod_sandbox(&self, config: v1::PodSandboxConfig, handler: &str) -> cri::Result<String> {
        let begun = Instant::now();
        let answer = self.count("run_podsandbox", self.runtime.run_pod_sandbox(config, handler)).await;
        self.metrics.run_podsandbox_duration_seconds.observe_duration([handler], begun.elapsed());
        if answer.is_err() {
            self.metrics.run_podsandbox_errors_total.inc([handler]);
        }
        answer
    }

    async fn stop_pod_sandbox(&self, id: &str) -> cri::Result<()> {
        self.count("stop_podsandbox", self.runtime.stop_pod_sandbox(id)).await
    }

    async fn remove_pod_sandbox(&self, id: &str) -> cri::Result<()> {
        self.count("remove_podsandbox", self.runtime.remove_pod_sandbox(id)).await
    }

    async fn pod_sandbox_status(&self, id: &str) -> cri::Result<v1::PodSandboxStatusResponse> {
        self.count("podsandbox_status", self.runtime.pod_sandbox_status(id)).await
    }

    async fn list_pod_sandboxes(
        &self,
        filter: Option<v1::PodSandboxFilter>,
    ) -> cri::Result<Vec<v1::PodSandbox>> {
        self.count("list_podsandbox", self.runtime.list_pod_sandboxes(filter)).await
    }

    async fn create_container(
        &self,
        sandbox: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> cri::Result<String> {
        let call = self.runtime.create_container(sandbox, config, sandbox_config);
        self.count("create_container", call).await
    }

    async fn start_container(&self, id: &str) -> cri::Result<()> {
        self.count("start_container", self.runtime.start_container(id)).await
    }

    async fn stop_container(&self, id: &str, grace: i64) -> cri::Result<()> {
        self.count("stop_container", self.runtime.stop_container(id, grace)).await
    }

    async fn remove_container(&self, id: &str) -> cri::Result<()> {
        self.count("remove_container", self.runtime.remove_container(id)).await
    }

    async fn update_container_resources(
        &self,
        id: &str,
        resources: v1::LinuxContainerResources,
    ) -> cri::Result<()> {
        self.count("update_container", self.runtime.update_container_resources(id, resources)).await
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: v1::UpdatePodSandboxResourcesRequest,
    ) -> cri::Result<()> {
        let call = self.runtime.update_pod_sandbox_resources(request);
        self.count("update_podsandbox_resources", call).await
    }

    async fn container_status(&self, id: &str) -> cri::Result<v1::ContainerStatusResponse> {
        self.count("container_status", self.runtime.container_status(id)).await
    }

    async fn list_containers(&self, filter: Option<v1::ContainerFilter>) -> cri::Result<Vec<v1::Container>> {
        self.count("list_containers", self.runtime.list_containers(filter)).await
    }

    async fn reopen_container_log(&self, id: &str) -> cri::Result<()> {
        self.count("reopen_container_log", self.runtime.reopen_container_log(id)).await
    }

    async fn exec_sync(
        &self,
        id: &str,
        command: Vec<String>,
        timeout: Duration,
    ) -> cri::Result<v1::ExecSyncResponse> {
        self.count("exec_sync", self.runtime.exec_sync(id, command, timeout)).await
    }

    async fn exec(&self, request: v1::ExecRequest) -> cri::Result<String> {
        self.count("exec", self.runtime.exec(request)).await
    }

    async fn attach(&self, request: v1::AttachRequest) -> cri::Result<String> {
        self.count("attach", self.runtime.attach(request)).await
    }

    async fn port_forward(&self, request: v1::PortForwardRequest) -> cri::Result<String> {
        self.count("port_forward", self.runtime.port_forward(request)).await
    }

    async fn checkpoint_container(&self, request: v1::CheckpointContainerRequest) -> cri::Result<()> {
        self.count("checkpoint_container", self.runtime.checkpoint_container(request)).await
    }

    async fn list_container_stats(&self) -> cri::Result<Vec<v1::ContainerStats>> {
        self.count("list_container_stats", self.runtime.list_container_stats()).await
    }

    async fn list_images(&self) -> cri::Result<Vec<v1::Image>> {
        self.count("list_images", self.runtime.list_images()).await
    }

    async fn image_status(&self, image: v1::ImageSpec) -> cri::Result<Option<v1::Image>> {
        self.count("image_status", self.runtime.image_status(image)).await
    }

    async fn pull_image(
        &self,
        image: v1::ImageSpec,
        auth: Option<v1::AuthConfig>,
        sandbox: Option<v1::PodSandboxConfig>,
    ) -> cri::Result<String> {
        self.count("pull_image", self.runtime.pull_image(image, auth, sandbox)).await
    }

    async fn remove_image(&self, image: v1::ImageSpec) -> cri::Result<()> {
        self.count("remove_image", self.runtime.remove_image(image)).await
    }

    async fn image_fs_info(&self) -> cri::Result<v1::ImageFsInfoResponse> {
        self.count("image_fs_info", self.runtime.image_fs_info()).await
    }

    async fn events(&self) -> cri::Result<EventStream> {
        self.count("get_container_events", self.runtime.events()).await
    }
}
