//! The client side: one method per call, each with its deadline.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use futures_util::{FutureExt, Stream, StreamExt, stream};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Uri};
use tonic::{Code, Response, Status, Streaming};

use crate::v1::image_service_client::ImageServiceClient;
use crate::v1::runtime_service_client::RuntimeServiceClient;
use crate::{Closing, Endpoint, Error, Result, v1};

/// Largest message either way.
pub const MAX_MESSAGE: usize = 16 << 20;
/// The default of `runtimeRequestTimeout`.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long [`Client::events`] waits for a refusal. A runtime that accepts the stream may send
/// nothing, not even headers, until the first event.
const EVENTS_PROBE: Duration = Duration::from_millis(250);

/// A handle on a runtime; cheap to clone. It connects on first use, and again whenever the
/// connection was lost: calls made meanwhile fail with `Unavailable`.
#[derive(Clone, Debug)]
pub struct Client {
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
    timeout: Duration,
    endpoint: Endpoint,
    closing: Closing,
}

/// Container events until the connection breaks.
pub type Events = Pin<Box<dyn Stream<Item = Result<v1::ContainerEventResponse>> + Send>>;

/// Makes one call on a service and waits for it as long as `deadline` allows.
macro_rules! call {
    ($self:ident.$service:ident.$method:ident($request:expr), $op:literal, $object:expr, $deadline:expr) => {{
        let mut service = $self.$service.clone();
        let call = service.$method($request);
        finish($op, $object, $deadline, Box::pin(call)).await
    }};
}

/// The same for a call that changes something: it is finished even if the program ends meanwhile.
macro_rules! change {
    ($self:ident.$service:ident.$method:ident($request:expr), $op:literal, $object:expr, $deadline:expr) => {{
        let mut service = $self.$service.clone();
        let request = $request;
        let call = async move { service.$method(request).await };
        finish($op, $object, $deadline, $self.closing.keep(call)).await
    }};
}

/// The same for a call that starts something: up to its deadline it is also finished when nobody waits for it any more.
macro_rules! start {
    ($self:ident.$service:ident.$method:ident($request:expr), $op:literal, $object:expr, $deadline:expr) => {{
        let mut service = $self.$service.clone();
        let (request, deadline) = ($request, $deadline);
        let call = async move { service.$method(request).await };
        finish($op, $object, None, $self.closing.see_through(within(deadline, call))).await
    }};
}

// === impl Client ===

impl Client {
    /// A client for the runtime at `runtime`, and for its images at `images` where that is another
    /// socket. Must be called inside a tokio runtime; nothing is sent yet.
    #[must_use]
    pub fn new(runtime: Endpoint, images: Option<Endpoint>, timeout: Duration) -> Self {
        let channel = channel(&runtime);
        let image_channel = images.as_ref().map_or_else(|| channel.clone(), self::channel);
        Self {
            runtime: RuntimeServiceClient::new(channel)
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE),
            images: ImageServiceClient::new(image_channel)
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE),
            timeout,
            endpoint: runtime,
            closing: Closing::default(),
        }
    }

    /// Finishes what is under way when the end is ordered, instead of giving it up.
    #[must_use]
    pub fn with_closing(mut self, closing: Closing) -> Self {
        self.closing = closing;
        self
    }

    /// Asks for the version and makes sure it is one we speak.
    pub async fn check_version(&self) -> Result<v1::VersionResponse> {
        const OP: &str = "check version of runtime";
        let object = self.endpoint.to_string();
        let version = self.version().await.map_err(|e| match e.code {
            Code::Unimplemented => {
                Error::new(OP, &object, e.code, "the CRI v1 runtime API is not implemented there")
            }
            _ => Error { op: OP, object: object.clone(), ..e },
        })?;
        if version.runtime_name.is_empty() || version.runtime_version.is_empty() {
            return Err(Error::new(OP, &object, Code::Internal, "it tells neither name nor version"));
        }
        Ok(version)
    }

    pub async fn version(&self) -> Result<v1::VersionResponse> {
        let request = v1::VersionRequest { version: "0.1.0".into() };
        call!(self.runtime.version(request), "get version of", "runtime", self.usual())
    }

    pub async fn status(&self) -> Result<v1::StatusResponse> {
        let request = v1::StatusRequest { verbose: false };
        call!(self.runtime.status(request), "get status of", "runtime", self.usual())
    }

    pub async fn runtime_config(&self) -> Result<v1::RuntimeConfigResponse> {
        let request = v1::RuntimeConfigRequest {};
        call!(self.runtime.runtime_config(request), "get configuration of", "runtime", self.usual())
    }

    pub async fn update_runtime_config(&self, pod_cidr: &str) -> Result<()> {
        let network_config = Some(v1::NetworkConfig { pod_cidr: pod_cidr.to_owned() });
        let runtime_config = Some(v1::RuntimeConfig { network_config });
        let request = v1::UpdateRuntimeConfigRequest { runtime_config };
        call!(self.runtime.update_runtime_config(request), "set pod CIDR", pod_cidr, self.usual()).map(drop)
    }

    /// The runtime's events. `Unimplemented` where it has none.
    pub async fn events(&self) -> Result<Events> {
        const OP: &str = "stream events of";
        let mut service = self.runtime.clone();
        let call = async move { service.get_container_events(v1::GetEventsRequest {}).await };
        let mut call = Box::pin(call.map(|r| flatten(OP, "runtime", r)));
        match tokio::time::timeout(EVENTS_PROBE, &mut call).await {
            Ok(answer) => answer,
            // Silence is consent: the stream goes on waiting for the first event.
            Err(_) => Ok(Box::pin(call.into_stream().flat_map(|answer| match answer {
                Ok(events) => events,
                Err(error) => Box::pin(stream::iter([Err(error)])),
            }))),
        }
    }

    fn usual(&self) -> Option<Duration> {
        Some(self.timeout)
    }
}

/// Sandboxes.
impl Client {
    /// Gets twice the usual time, as it waits for the network plugins.
    pub async fn run_pod_sandbox(&self, config: v1::PodSandboxConfig, handler: &str) -> Result<String> {
        let object = config.metadata.as_ref().map(|m| format!("{}/{}", m.namespace, m.name));
        let request = v1::RunPodSandboxRequest { config: Some(config), runtime_handler: handler.to_owned() };
        let deadline = Some(self.timeout * 2);
        let object = object.as_deref().unwrap_or_default();
        let answer = start!(self.runtime.run_pod_sandbox(request), "run sandbox of pod", object, deadline)?;
        named("run sandbox of pod", object, answer.pod_sandbox_id)
    }

    pub async fn stop_pod_sandbox(&self, id: &str) -> Result<()> {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        change!(self.runtime.stop_pod_sandbox(request), "stop sandbox", id, self.usual()).map(drop)
    }

    pub async fn remove_pod_sandbox(&self, id: &str) -> Result<()> {
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        change!(self.runtime.remove_pod_sandbox(request), "remove sandbox", id, self.usual()).map(drop)
    }

    pub async fn pod_sandbox_status(&self, id: &str) -> Result<v1::PodSandboxStatusResponse> {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: false };
        call!(self.runtime.pod_sandbox_status(request), "get status of sandbox", id, self.usual())
    }

    pub async fn list_pod_sandboxes(
        &self,
        filter: Option<v1::PodSandboxFilter>,
    ) -> Result<Vec<v1::PodSandbox>> {
        let request = v1::ListPodSandboxRequest { filter };
        call!(self.runtime.list_pod_sandbox(request), "list", "sandboxes", self.usual()).map(|r| r.items)
    }

    pub async fn update_pod_sandbox_resources(
        &self,
        request: v1::UpdatePodSandboxResourcesRequest,
    ) -> Result<()> {
        let id = request.pod_sandbox_id.clone();
        let deadline = self.usual();
        change!(self.runtime.update_pod_sandbox_resources(request), "resize sandbox", &id, deadline).map(drop)
    }

    /// The URL of the runtime's streaming server.
    pub async fn port_forward(&self, request: v1::PortForwardRequest) -> Result<String> {
        let id = request.pod_sandbox_id.clone();
        call!(self.runtime.port_forward(request), "forward ports of sandbox", &id, self.usual())
            .map(|r| r.url)
    }
}

/// Containers.
impl Client {
    pub async fn create_container(
        &self,
        sandbox: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<String> {
        let object = config.metadata.as_ref().map(|m| m.name.clone()).unwrap_or_default();
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        let answer =
            start!(self.runtime.create_container(request), "create container", &object, self.usual())?;
        named("create container", &object, answer.container_id)
    }

    pub async fn start_container(&self, id: &str) -> Result<()> {
        let request = v1::StartContainerRequest { container_id: id.to_owned() };
        start!(self.runtime.start_container(request), "start container", id, self.usual()).map(drop)
    }

    /// The runtime gets `grace` seconds on top of the usual time.
    pub async fn stop_container(&self, id: &str, grace: i64) -> Result<()> {
        let request = v1::StopContainerRequest { container_id: id.to_owned(), timeout: grace };
        let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        let deadline = Some(self.timeout.saturating_add(grace));
        call!(self.runtime.stop_container(request), "stop container", id, deadline).map(drop)
    }

    pub async fn remove_container(&self, id: &str) -> Result<()> {
        let request = v1::RemoveContainerRequest { container_id: id.to_owned() };
        change!(self.runtime.remove_container(request), "remove container", id, self.usual()).map(drop)
    }

    pub async fn container_status(&self, id: &str) -> Result<v1::ContainerStatusResponse> {
        let request = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        call!(self.runtime.container_status(request), "get status of container", id, self.usual())
    }

    pub async fn list_containers(&self, filter: Option<v1::ContainerFilter>) -> Result<Vec<v1::Container>> {
        let request = v1::ListContainersRequest { filter };
        call!(self.runtime.list_containers(request), "list", "containers", self.usual()).map(|r| r.containers)
    }

    pub async fn update_container_resources(
        &self,
        request: v1::UpdateContainerResourcesRequest,
    ) -> Result<()> {
        let id = request.container_id.clone();
        let deadline = self.usual();
        change!(self.runtime.update_container_resources(request), "resize container", &id, deadline).map(drop)
    }

    pub async fn reopen_container_log(&self, id: &str) -> Result<()> {
        let request = v1::ReopenContainerLogRequest { container_id: id.to_owned() };
        change!(self.runtime.reopen_container_log(request), "reopen log of container", id, self.usual())
            .map(drop)
    }

    /// Runs a command. With a zero `timeout` neither the runtime nor we put an end to it.
    pub async fn exec_sync(
        &self,
        id: &str,
        command: Vec<String>,
        timeout: Duration,
    ) -> Result<v1::ExecSyncResponse> {
        // Whole seconds on the wire, and zero means forever there: round up.
        let seconds = timeout.as_secs() + u64::from(timeout.subsec_nanos() > 0);
        let request = v1::ExecSyncRequest {
            container_id: id.to_owned(),
            cmd: command,
            timeout: i64::try_from(seconds).unwrap_or(i64::MAX),
        };
        let deadline = (!timeout.is_zero()).then(|| self.timeout.saturating_add(timeout));
        call!(self.runtime.exec_sync(request), "run command in container", id, deadline)
    }

    /// The URL of the runtime's streaming server.
    pub async fn exec(&self, request: v1::ExecRequest) -> Result<String> {
        let id = request.container_id.clone();
        call!(self.runtime.exec(request), "open exec in container", &id, self.usual()).map(|r| r.url)
    }

    /// The URL of the runtime's streaming server.
    pub async fn attach(&self, request: v1::AttachRequest) -> Result<String> {
        let id = request.container_id.clone();
        call!(self.runtime.attach(request), "attach to container", &id, self.usual()).map(|r| r.url)
    }

    pub async fn list_container_stats(
        &self,
        filter: Option<v1::ContainerStatsFilter>,
    ) -> Result<Vec<v1::ContainerStats>> {
        let request = v1::ListContainerStatsRequest { filter };
        call!(self.runtime.list_container_stats(request), "list", "container stats", self.usual())
            .map(|r| r.stats)
    }

    /// `request.timeout` seconds, when given, bound both sides.
    pub async fn checkpoint_container(&self, request: v1::CheckpointContainerRequest) -> Result<()> {
        let id = request.container_id.clone();
        let deadline = match u64::try_from(request.timeout) {
            Ok(seconds @ 1..) => Some(Duration::from_secs(seconds)),
            _ => self.usual(),
        };
        call!(self.runtime.checkpoint_container(request), "checkpoint container", &id, deadline).map(drop)
    }
}

/// Images.
impl Client {
    pub async fn list_images(&self) -> Result<Vec<v1::Image>> {
        let request = v1::ListImagesRequest { filter: None };
        call!(self.images.list_images(request), "list", "images", self.usual()).map(|r| r.images)
    }

    /// The image, if the runtime has it.
    pub async fn image_status(&self, image: v1::ImageSpec) -> Result<Option<v1::Image>> {
        let name = image.image.clone();
        let request = v1::ImageStatusRequest { image: Some(image), verbose: false };
        call!(self.images.image_status(request), "get status of image", &name, self.usual()).map(|r| r.image)
    }

    /// Pulls for as long as it takes; drop the future to give up. Returns the image's reference.
    pub async fn pull_image(
        &self,
        image: v1::ImageSpec,
        auth: Option<v1::AuthConfig>,
        sandbox_config: Option<v1::PodSandboxConfig>,
    ) -> Result<String> {
        let name = image.image.clone();
        let request = v1::PullImageRequest { image: Some(image), auth, sandbox_config };
        let answer = call!(self.images.pull_image(request), "pull image", &name, None)?;
        named("pull image", &name, answer.image_ref)
    }

    pub async fn remove_image(&self, image: v1::ImageSpec) -> Result<()> {
        let name = image.image.clone();
        let request = v1::RemoveImageRequest { image: Some(image) };
        call!(self.images.remove_image(request), "remove image", &name, self.usual()).map(drop)
    }

    pub async fn image_fs_info(&self) -> Result<v1::ImageFsInfoResponse> {
        let request = v1::ImageFsInfoRequest {};
        call!(self.images.image_fs_info(request), "get usage of", "image filesystem", self.usual())
    }
}

async fn finish<T>(
    op: &'static str,
    object: &str,
    deadline: Option<Duration>,
    call: impl Future<Output = std::result::Result<Response<T>, Status>>,
) -> Result<T> {
    let answer = within(deadline, call).await;
    answer.map(Response::into_inner).map_err(|status| Error::from_status(op, object, &status))
}

async fn within<T>(
    deadline: Option<Duration>,
    call: impl Future<Output = std::result::Result<Response<T>, Status>>,
) -> std::result::Result<Response<T>, Status> {
    // Dropping the call resets its stream, which is how the runtime learns that we gave up.
    match deadline {
        None => call.await,
        Some(deadline) => tokio::time::timeout(deadline, call).await.unwrap_or_else(|_| {
            Err(Status::deadline_exceeded(format!("no answer within {}s", deadline.as_secs_f64())))
        }),
    }
}

fn flatten(
    op: &'static str,
    object: &'static str,
    answer: std::result::Result<Response<Streaming<v1::ContainerEventResponse>>, Status>,
) -> Result<Events> {
    let fail = move |status: Status| Error::from_status(op, object, &status);
    Ok(Box::pin(answer.map_err(fail)?.into_inner().map(move |item| item.map_err(fail))))
}

/// An id the runtime must not leave out.
fn named(op: &'static str, object: &str, id: String) -> Result<String> {
    if id.is_empty() {
        return Err(Error::new(op, object, Code::Internal, "the runtime answered without an id"));
    }
    Ok(id)
}

pub(crate) fn channel(endpoint: &Endpoint) -> Channel {
    let address = endpoint.address();
    // The URI is never resolved; its host becomes the `:authority` that runtimes expect.
    let connector = tower::service_fn(move |_: Uri| {
        let address = address.clone();
        async move { UnixStream::connect(address).await.map(TokioIo::new) }
    });
    Channel::from_static("http://localhost")
        .connect_timeout(CONNECT_TIMEOUT)
        .connect_with_connector_lazy(connector)
}
