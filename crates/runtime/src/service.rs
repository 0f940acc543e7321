//! RuntimeService of the CRI: each call, from its request to its answer.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use cri::v1;
use cri::v1::runtime_service_server::RuntimeService;
use futures_util::{Stream, StreamExt, stream};
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::daemon::{Daemon, blocking, invalid};
use crate::image_service::ImageServer;
use crate::streams::Streams;
use crate::{containers, exec, sandboxes, stats, status};

type Answer<T> = Result<Response<T>, Status>;
type Many<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Items in one message of a list that is streamed.
const PAGE: usize = 200;

#[derive(Clone)]
pub(crate) struct RuntimeServer {
    daemon: Arc<Daemon>,
    streams: Streams,
    images: ImageServer,
    /// Answers that never end by themselves end then.
    end: CancellationToken,
}

// === impl RuntimeServer ===

impl RuntimeServer {
    pub(crate) fn new(
        daemon: Arc<Daemon>,
        streams: Streams,
        images: ImageServer,
        end: CancellationToken,
    ) -> RuntimeServer {
        RuntimeServer { daemon, streams, images, end }
    }

    /// Counts and times a call.
    async fn call<T>(
        &self,
        method: &'static str,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Answer<T> {
        let began = Instant::now();
        let done = work.await;
        let code = done.as_ref().err().map(|error| format!("{:?}", error.code()));
        self.daemon.metrics.called("RuntimeService", method, began.elapsed(), code.as_deref());
        if let Err(error) = &done {
            tracing::debug!(method, %error, "a call failed");
        }
        done.map(Response::new)
    }

    fn sandboxes(&self, filter: Option<v1::PodSandboxFilter>) -> Vec<v1::PodSandbox> {
        let filter = filter.unwrap_or_default();
        let is_wanted = |item: &v1::PodSandbox| {
            item.id.starts_with(&filter.id)
                && filter.state.as_ref().is_none_or(|state| state.state == item.state)
                && has_labels(&filter.label_selector, &item.labels)
        };
        let all = self.daemon.books.sandboxes();
        all.iter().map(|sandbox| status::sandbox_item(sandbox)).filter(is_wanted).collect()
    }

    fn containers(&self, filter: Option<v1::ContainerFilter>) -> Vec<v1::Container> {
        let filter = filter.unwrap_or_default();
        let is_wanted = |item: &v1::Container| {
            item.id.starts_with(&filter.id)
                && item.pod_sandbox_id.starts_with(&filter.pod_sandbox_id)
                && filter.state.as_ref().is_none_or(|state| state.state == item.state)
                && has_labels(&filter.label_selector, &item.labels)
        };
        let all = self.daemon.books.containers();
        all.iter().map(|container| status::container_item(container)).filter(is_wanted).collect()
    }

    async fn network_problem(&self) -> Option<String> {
        let networks = self.daemon.networks.clone();
        let loaded = blocking(move || Ok(networks.load())).await;
        match loaded {
            Ok(Ok((network, _))) => self.daemon.networks.status(&network).await.err().map(|e| e.to_string()),
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(error.message().to_owned()),
        }
    }

    fn status(&self, verbose: bool, network: Option<String>) -> v1::StatusResponse {
        let condition = |kind: &str, problem: Option<(&str, String)>| {
            let (reason, message) = problem.clone().unwrap_or_default();
            v1::RuntimeCondition {
                r#type: kind.to_owned(),
                status: problem.is_none(),
                reason: reason.to_owned(),
                message,
            }
        };
        let network = network.map(|error| ("NetworkPluginNotReady", error));
        let conditions = vec![condition("RuntimeReady", None), condition("NetworkReady", network)];
        let user_namespaces = self.daemon.no_user_namespaces.get().is_some_and(Option::is_none);
        let features = v1::RuntimeHandlerFeatures { recursive_read_only_mounts: true, user_namespaces };
        let handlers = std::iter::once(String::new()).chain(self.daemon.handlers.iter().cloned());
        let runtime_handlers =
            handlers.map(|name| v1::RuntimeHandler { name, features: Some(features) }).collect();
        let mut info = std::collections::BTreeMap::new();
        if verbose {
            let config = serde_json::json!({
                "rootDir": self.daemon.root_dir,
                "stateDir": self.daemon.state_dir,
                "cniConfDir": self.daemon.networks.conf_dir,
                "cniBinDirs": self.daemon.networks.bin_dirs,
                "nri": "not supported",
            });
            info.insert("config".to_owned(), config.to_string());
        }
        let features =
            v1::RuntimeFeatures { supplemental_groups_policy: true, user_namespaces_host_network: false };
        v1::StatusResponse {
            status: Some(v1::RuntimeStatus { conditions }),
            info,
            runtime_handlers,
            features: Some(features),
        }
    }
}

fn has_labels(
    selector: &std::collections::BTreeMap<String, String>,
    labels: &std::collections::BTreeMap<String, String>,
) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// A list in pieces; one that is empty is one empty piece.
fn pages<T: Send + 'static, M: Send + 'static>(items: Vec<T>, page: fn(Vec<T>) -> M) -> Many<M> {
    let mut items = items.into_iter();
    let mut pages = Vec::new();
    loop {
        let piece: Vec<T> = items.by_ref().take(PAGE).collect();
        if piece.is_empty() && !pages.is_empty() {
            break;
        }
        let is_last = piece.len() < PAGE;
        pages.push(Ok(page(piece)));
        if is_last {
            break;
        }
    }
    Box::pin(stream::iter(pages))
}

#[tonic::async_trait]
impl RuntimeService for RuntimeServer {
    async fn version(&self, _: Request<v1::VersionRequest>) -> Answer<v1::VersionResponse> {
        let work = async {
            Ok(v1::VersionResponse {
                version: "0.1.0".into(),
                runtime_name: "longshore".into(),
                runtime_version: self.daemon.version.clone(),
                runtime_api_version: "v1".into(),
            })
        };
        self.call("Version", work).await
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<v1::RunPodSandboxRequest>,
    ) -> Answer<v1::RunPodSandboxResponse> {
        let request = request.into_inner();
        let work = async {
            let config = request.config.ok_or_else(|| invalid("sandbox config is missing"))?;
            let pod_sandbox_id = sandboxes::run(&self.daemon, config, request.runtime_handler).await?;
            Ok(v1::RunPodSandboxResponse { pod_sandbox_id })
        };
        self.call("RunPodSandbox", work).await
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<v1::StopPodSandboxRequest>,
    ) -> Answer<v1::StopPodSandboxResponse> {
        let id = request.into_inner().pod_sandbox_id;
        let work = async {
            sandboxes::stop(&self.daemon, &id).await?;
            Ok(v1::StopPodSandboxResponse {})
        };
        self.call("StopPodSandbox", work).await
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<v1::RemovePodSandboxRequest>,
    ) -> Answer<v1::RemovePodSandboxResponse> {
        let id = request.into_inner().pod_sandbox_id;
        let work = async {
            sandboxes::remove(&self.daemon, &id).await?;
            self.images.collect_soon();
            Ok(v1::RemovePodSandboxResponse {})
        };
        self.call("RemovePodSandbox", work).await
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<v1::PodSandboxStatusRequest>,
    ) -> Answer<v1::PodSandboxStatusResponse> {
        let request = request.into_inner();
        let work = async {
            let sandbox = self.daemon.books.sandbox(&request.pod_sandbox_id)?;
            let containers = self.daemon.books.containers_of(&sandbox.id);
            let mut info = std::collections::BTreeMap::new();
            if request.verbose {
                let about =
                    serde_json::json!({"runtimeHandler": sandbox.handler, "netns": sandbox.network_path()});
                info.insert("info".to_owned(), about.to_string());
            }
            Ok(v1::PodSandboxStatusResponse {
                status: Some(status::sandbox(&sandbox)),
                info,
                containers_statuses: containers.iter().map(|c| status::container(c)).collect(),
                timestamp: crate::ids::now(),
            })
        };
        self.call("PodSandboxStatus", work).await
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<v1::ListPodSandboxRequest>,
    ) -> Answer<v1::ListPodSandboxResponse> {
        let filter = request.into_inner().filter;
        let work = async { Ok(v1::ListPodSandboxResponse { items: self.sandboxes(filter) }) };
        self.call("ListPodSandbox", work).await
    }

    async fn stream_pod_sandboxes(
        &self,
        request: Request<v1::StreamPodSandboxesRequest>,
    ) -> Answer<Many<v1::StreamPodSandboxesResponse>> {
        let filter = request.into_inner().filter;
        let page = |pod_sandboxes| v1::StreamPodSandboxesResponse { pod_sandboxes };
        self.call("StreamPodSandboxes", async { Ok(pages(self.sandboxes(filter), page)) }).await
    }

    async fn create_container(
        &self,
        request: Request<v1::CreateContainerRequest>,
    ) -> Answer<v1::CreateContainerResponse> {
        let request = request.into_inner();
        let work = async {
            let config = request.config.ok_or_else(|| invalid("container config is missing"))?;
            let container_id = containers::create(&self.daemon, &request.pod_sandbox_id, config).await?;
            Ok(v1::CreateContainerResponse { container_id })
        };
        self.call("CreateContainer", work).await
    }

    async fn start_container(
        &self,
        request: Request<v1::StartContainerRequest>,
    ) -> Answer<v1::StartContainerResponse> {
        let id = request.into_inner().container_id;
        let work = async {
            containers::start(&self.daemon, &id).await?;
            Ok(v1::StartContainerResponse {})
        };
        self.call("StartContainer", work).await
    }

    async fn stop_container(
        &self,
        request: Request<v1::StopContainerRequest>,
    ) -> Answer<v1::StopContainerResponse> {
        let request = request.into_inner();
        let work = async {
            containers::stop(&self.daemon, &request.container_id, request.timeout).await?;
            Ok(v1::StopContainerResponse {})
        };
        self.call("StopContainer", work).await
    }

    async fn remove_container(
        &self,
        request: Request<v1::RemoveContainerRequest>,
    ) -> Answer<v1::RemoveContainerResponse> {
        let id = request.into_inner().container_id;
        let work = async {
            containers::remove(&self.daemon, &id).await?;
            self.images.collect_soon();
            Ok(v1::RemoveContainerResponse {})
        };
        self.call("RemoveContainer", work).await
    }

    async fn list_containers(
        &self,
        request: Request<v1::ListContainersRequest>,
    ) -> Answer<v1::ListContainersResponse> {
        let filter = request.into_inner().filter;
        let work = async { Ok(v1::ListContainersResponse { containers: self.containers(filter) }) };
        self.call("ListContainers", work).await
    }

    async fn stream_containers(
        &self,
        request: Request<v1::StreamContainersRequest>,
    ) -> Answer<Many<v1::StreamContainersResponse>> {
        let filter = request.into_inner().filter;
        let page = |containers| v1::StreamContainersResponse { containers };
        self.call("StreamContainers", async { Ok(pages(self.containers(filter), page)) }).await
    }

    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> Answer<v1::ContainerStatusResponse> {
        let request = request.into_inner();
        let work = async {
            let container = self.daemon.books.container(&request.container_id)?;
            let mut info = std::collections::BTreeMap::new();
            if request.verbose {
                let about = serde_json::json!({"sandboxID": container.sandbox.id, "pid": container.pid(), "cgroup": container.cgroup});
                info.insert("info".to_owned(), about.to_string());
            }
            Ok(v1::ContainerStatusResponse { status: Some(status::container(&container)), info })
        };
        self.call("ContainerStatus", work).await
    }

    async fn update_container_resources(
        &self,
        request: Request<v1::UpdateContainerResourcesRequest>,
    ) -> Answer<v1::UpdateContainerResourcesResponse> {
        let request = request.into_inner();
        let work = async {
            containers::update(&self.daemon, &request.container_id, request.linux).await?;
            Ok(v1::UpdateContainerResourcesResponse {})
        };
        self.call("UpdateContainerResources", work).await
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: Request<v1::UpdatePodSandboxResourcesRequest>,
    ) -> Answer<v1::UpdatePodSandboxResourcesResponse> {
        let id = request.into_inner().pod_sandbox_id;
        // The Pod's cgroup is the kubelet's, which has changed it; no process of the sandbox has limits of its own.
        let work = async {
            self.daemon.books.sandbox(&id)?;
            Ok(v1::UpdatePodSandboxResourcesResponse {})
        };
        self.call("UpdatePodSandboxResources", work).await
    }

    async fn reopen_container_log(
        &self,
        request: Request<v1::ReopenContainerLogRequest>,
    ) -> Answer<v1::ReopenContainerLogResponse> {
        let id = request.into_inner().container_id;
        let work = async {
            containers::reopen_log(&self.daemon, &id).await?;
            Ok(v1::ReopenContainerLogResponse {})
        };
        self.call("ReopenContainerLog", work).await
    }

    async fn exec_sync(&self, request: Request<v1::ExecSyncRequest>) -> Answer<v1::ExecSyncResponse> {
        let v1::ExecSyncRequest { container_id, cmd, timeout } = request.into_inner();
        self.call("ExecSync", exec::sync(&self.daemon, &container_id, cmd, timeout)).await
    }

    async fn exec(&self, request: Request<v1::ExecRequest>) -> Answer<v1::ExecResponse> {
        let request = request.into_inner();
        let work = async {
            exec::running(&self.daemon, &request.container_id)?;
            Ok(v1::ExecResponse { url: self.streams.exec(request)? })
        };
        self.call("Exec", work).await
    }

    async fn attach(&self, request: Request<v1::AttachRequest>) -> Answer<v1::AttachResponse> {
        let request = request.into_inner();
        let work = async {
            exec::running(&self.daemon, &request.container_id)?;
            Ok(v1::AttachResponse { url: self.streams.attach(request)? })
        };
        self.call("Attach", work).await
    }

    async fn port_forward(
        &self,
        request: Request<v1::PortForwardRequest>,
    ) -> Answer<v1::PortForwardResponse> {
        let request = request.into_inner();
        let work = async {
            self.daemon.books.sandbox(&request.pod_sandbox_id)?;
            Ok(v1::PortForwardResponse { url: self.streams.port_forward(request)? })
        };
        self.call("PortForward", work).await
    }

    async fn container_stats(
        &self,
        request: Request<v1::ContainerStatsRequest>,
    ) -> Answer<v1::ContainerStatsResponse> {
        let id = request.into_inner().container_id;
        let work = async {
            let container = self.daemon.books.container(&id)?;
            let stats = stats::containers(&self.daemon, vec![container]).await?.pop();
            Ok(v1::ContainerStatsResponse { stats })
        };
        self.call("ContainerStats", work).await
    }

    async fn list_container_stats(
        &self,
        request: Request<v1::ListContainerStatsRequest>,
    ) -> Answer<v1::ListContainerStatsResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let work =
            async { Ok(v1::ListContainerStatsResponse { stats: stats::list(&self.daemon, &filter).await? }) };
        self.call("ListContainerStats", work).await
    }

    async fn stream_container_stats(
        &self,
        request: Request<v1::StreamContainerStatsRequest>,
    ) -> Answer<Many<v1::StreamContainerStatsResponse>> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let page = |container_stats| v1::StreamContainerStatsResponse { container_stats };
        let work = async { Ok(pages(stats::list(&self.daemon, &filter).await?, page)) };
        self.call("StreamContainerStats", work).await
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<v1::PodSandboxStatsRequest>,
    ) -> Answer<v1::PodSandboxStatsResponse> {
        let id = request.into_inner().pod_sandbox_id;
        let work = async {
            let sandbox = self.daemon.books.sandbox(&id)?;
            let stats = stats::sandboxes(&self.daemon, vec![sandbox]).await?.pop();
            Ok(v1::PodSandboxStatsResponse { stats })
        };
        self.call("PodSandboxStats", work).await
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<v1::ListPodSandboxStatsRequest>,
    ) -> Answer<v1::ListPodSandboxStatsResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let work = async {
            Ok(v1::ListPodSandboxStatsResponse { stats: stats::list_sandboxes(&self.daemon, &filter).await? })
        };
        self.call("ListPodSandboxStats", work).await
    }

    async fn stream_pod_sandbox_stats(
        &self,
        request: Request<v1::StreamPodSandboxStatsRequest>,
    ) -> Answer<Many<v1::StreamPodSandboxStatsResponse>> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let page = |pod_sandbox_stats| v1::StreamPodSandboxStatsResponse { pod_sandbox_stats };
        let work = async { Ok(pages(stats::list_sandboxes(&self.daemon, &filter).await?, page)) };
        self.call("StreamPodSandboxStats", work).await
    }

    async fn update_runtime_config(
        &self,
        request: Request<v1::UpdateRuntimeConfigRequest>,
    ) -> Answer<v1::UpdateRuntimeConfigResponse> {
        let network = request.into_inner().runtime_config.and_then(|config| config.network_config);
        let cidr = network.unwrap_or_default().pod_cidr;
        // Without a template for network configurations nothing depends on it, as with containerd by default.
        tracing::debug!(cidr, "the kubelet has a range of addresses for Pods");
        self.call("UpdateRuntimeConfig", async { Ok(v1::UpdateRuntimeConfigResponse {}) }).await
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        let (server, verbose) = (self.clone(), request.into_inner().verbose);
        let work = async move {
            let network = server.network_problem().await;
            blocking(move || Ok(server.status(verbose, network))).await
        };
        self.call("Status", work).await
    }

    async fn checkpoint_container(
        &self,
        request: Request<v1::CheckpointContainerRequest>,
    ) -> Answer<v1::CheckpointContainerResponse> {
        let id = request.into_inner().container_id;
        let work = async {
            Err(Status::unimplemented(format!("container {id}: this runtime does not make checkpoints")))
        };
        self.call("CheckpointContainer", work).await
    }

    async fn get_container_events(
        &self,
        _: Request<v1::GetEventsRequest>,
    ) -> Answer<Many<v1::ContainerEventResponse>> {
        let (late, live) = self.daemon.events.subscribe();
        let late = stream::iter(late.into_iter().map(Ok));
        let live = stream::unfold(Some(live), |live| async {
            let mut live = live?;
            match live.recv().await {
                Ok(event) => Some((Ok(event), Some(live))),
                // Who reads too slowly has to come again, and lists everything.
                Err(RecvError::Lagged(missed)) => {
                    Some((Err(Status::data_loss(format!("{missed} events were not read in time"))), None))
                }
                Err(RecvError::Closed) => None,
            }
        });
        let all: Many<v1::ContainerEventResponse> =
            Box::pin(late.chain(live).take_until(self.end.clone().cancelled_owned()));
        self.call("GetContainerEvents", async { Ok(all) }).await
    }

    async fn list_metric_descriptors(
        &self,
        _: Request<v1::ListMetricDescriptorsRequest>,
    ) -> Answer<v1::ListMetricDescriptorsResponse> {
        let work = async { Ok(v1::ListMetricDescriptorsResponse { descriptors: stats::descriptors() }) };
        self.call("ListMetricDescriptors", work).await
    }

    async fn list_pod_sandbox_metrics(
        &self,
        _: Request<v1::ListPodSandboxMetricsRequest>,
    ) -> Answer<v1::ListPodSandboxMetricsResponse> {
        let work = async {
            Ok(v1::ListPodSandboxMetricsResponse { pod_metrics: stats::metrics(&self.daemon).await? })
        };
        self.call("ListPodSandboxMetrics", work).await
    }

    async fn stream_pod_sandbox_metrics(
        &self,
        _: Request<v1::StreamPodSandboxMetricsRequest>,
    ) -> Answer<Many<v1::StreamPodSandboxMetricsResponse>> {
        let page = |pod_sandbox_metrics| v1::StreamPodSandboxMetricsResponse { pod_sandbox_metrics };
        let work = async { Ok(pages(stats::metrics(&self.daemon).await?, page)) };
        self.call("StreamPodSandboxMetrics", work).await
    }

    async fn runtime_config(
        &self,
        _: Request<v1::RuntimeConfigRequest>,
    ) -> Answer<v1::RuntimeConfigResponse> {
        let driver = match self.daemon.driver {
            runtime_core::resources::Driver::Cgroupfs => v1::CgroupDriver::Cgroupfs,
            runtime_core::resources::Driver::Systemd => v1::CgroupDriver::Systemd,
        };
        let linux = Some(v1::LinuxRuntimeConfiguration { cgroup_driver: driver.into() });
        self.call("RuntimeConfig", async { Ok(v1::RuntimeConfigResponse { linux }) }).await
    }
}
