//! The client against a real gRPC server on a unix socket.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use base::class::{Class, Classify};
use cri::v1::image_service_server::{ImageService, ImageServiceServer};
use cri::v1::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use cri::{Client, Endpoint, MAX_MESSAGE, v1};
use futures_util::{Stream, StreamExt, stream};
use tokio::net::UnixListener;
use tokio::sync::{broadcast, oneshot, watch};
use tonic::transport::server::{Router, Server};
use tonic::{Code, Request, Response, Status};

/// A runtime that does as little as a test needs.
#[derive(Clone)]
struct Tiny {
    name: &'static str,
    events: Option<broadcast::Sender<v1::ContainerEventResponse>>,
    /// Set when a stop was abandoned by its caller.
    abandoned: Arc<watch::Sender<bool>>,
    sandboxes: Arc<watch::Sender<Sandboxes>>,
    authority: Arc<std::sync::Mutex<String>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sandboxes {
    begun: u32,
    made: u32,
}

/// A server with a thread and a tokio runtime of its own, so that killing it cuts its connections.
struct Running {
    stop: oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
    socket: PathBuf,
}

struct Dir(PathBuf);

struct Flag(Arc<watch::Sender<bool>>);

type Events = std::pin::Pin<Box<dyn Stream<Item = Result<v1::ContainerEventResponse, Status>> + Send>>;

#[tokio::test]
async fn a_restarted_runtime_is_found_again() {
    let dir = Dir::new();
    let client = client(&dir.socket(), Duration::from_secs(5));
    let error = client.version().await.unwrap_err();
    assert_eq!((error.code, error.class()), (Code::Unavailable, Class::Retry), "{error}");

    let first = serve(&dir.socket(), Tiny::named("one"));
    assert_eq!(client.check_version().await.unwrap().runtime_name, "one");
    first.kill().await;
    let error = client.version().await.unwrap_err();
    assert_eq!(error.code, Code::Unavailable, "{error}");

    let second = serve(&dir.socket(), Tiny::named("two"));
    assert_eq!(client.version().await.unwrap().runtime_name, "two");
    second.kill().await;
}

#[tokio::test]
async fn a_call_that_dies_with_the_runtime_is_unavailable() {
    let dir = Dir::new();
    let server = serve(&dir.socket(), Tiny::named("x"));
    let client = client(&dir.socket(), Duration::from_secs(5));
    client.version().await.unwrap();
    let hanging = tokio::spawn({
        let client = client.clone();
        async move { client.stop_container("hang", 60).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.kill().await;
    let error = hanging.await.unwrap().unwrap_err();
    assert_eq!(error.code, Code::Unavailable, "{error}");
    assert_eq!((error.op, error.object.as_str()), ("stop container", "hang"));
}

#[tokio::test]
async fn deadlines_are_kept_and_the_runtime_hears_of_it() {
    let dir = Dir::new();
    let tiny = Tiny::named("slow");
    let mut abandoned = tiny.abandoned.subscribe();
    let server = serve(&dir.socket(), tiny);
    let client = client(&dir.socket(), Duration::from_millis(400));

    let begun = Instant::now();
    let error = client.stop_container("hang", 1).await.unwrap_err();
    assert_eq!(error.code, Code::DeadlineExceeded);
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(1400) && took < Duration::from_secs(10), "{took:?}");
    tokio::time::timeout(Duration::from_secs(5), abandoned.wait_for(|gone| *gone)).await.unwrap().unwrap();

    // A sandbox has twice the usual time, a pull and an exec without timeout all the time they need.
    assert_eq!(client.run_pod_sandbox(sleepy(500), "").await.unwrap(), "sandbox");
    assert_eq!(client.run_pod_sandbox(sleepy(3000), "").await.unwrap_err().code, Code::DeadlineExceeded);
    assert_eq!(client.pull_image(spec("slow"), None, None).await.unwrap(), "sha256:slow");
    let exec = |timeout| client.exec_sync("c", vec!["sleep".into()], timeout);
    assert_eq!(exec(Duration::ZERO).await.unwrap().stdout, b"0");
    assert_eq!(exec(Duration::from_millis(1200)).await.unwrap().stdout, b"2", "rounded up");
    assert_eq!(client.container_status("hang").await.unwrap_err().code, Code::DeadlineExceeded);
    server.kill().await;
}

#[tokio::test]
async fn a_sandbox_that_nobody_waits_for_any_more_is_made_to_its_end() {
    let dir = Dir::new();
    let tiny = Tiny::named("slow");
    let mut sandboxes = tiny.sandboxes.subscribe();
    let server = serve(&dir.socket(), tiny);
    let client = client(&dir.socket(), Duration::from_secs(60));
    let call = tokio::spawn(async move { client.run_pod_sandbox(sleepy(300), "").await });
    sandboxes.wait_for(|n| n.begun == 1).await.unwrap();
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    let made = sandboxes.wait_for(|n| n.made == 1);
    tokio::time::timeout(Duration::from_secs(30), made).await.unwrap().unwrap();
    server.kill().await;
}

#[tokio::test]
async fn sixteen_mebibytes_pass_and_not_more() {
    let dir = Dir::new();
    let server = serve(&dir.socket(), Tiny::named("big"));
    let client = client(&dir.socket(), Duration::from_secs(20));
    let images = |n: usize| client.image_status(spec(&n.to_string()));
    let fits = MAX_MESSAGE - 1024;
    assert_eq!(images(fits).await.unwrap().unwrap().username.len(), fits);
    let error = images(MAX_MESSAGE + 1).await.unwrap_err();
    assert_eq!(error.code, Code::OutOfRange, "{error}");
    // The connection has survived both, and the same holds on the way out.
    let echo = |n| client.exec_sync("echo", vec!["x".repeat(n)], Duration::ZERO);
    assert_eq!(echo(fits).await.unwrap().exit_code as usize, fits);
    assert!(echo(MAX_MESSAGE + 1).await.is_err());
    assert_eq!(client.version().await.unwrap().runtime_name, "big");
    server.kill().await;
}

#[tokio::test]
async fn events_stream_until_the_connection_breaks() {
    let dir = Dir::new();
    let (events, _) = broadcast::channel(16);
    let tiny = Tiny { events: Some(events.clone()), ..Tiny::named("eventful") };
    let server = serve(&dir.socket(), tiny);
    let client = client(&dir.socket(), Duration::from_secs(5));
    // Nothing has happened yet, so the server has sent no byte on this stream; we are not kept waiting.
    let mut stream = client.events().await.unwrap();
    for id in ["a", "b"] {
        let event = v1::ContainerEventResponse { container_id: id.into(), ..Default::default() };
        events.send(event).unwrap();
        assert_eq!(stream.next().await.unwrap().unwrap().container_id, id);
    }
    server.kill().await;
    let last = tokio::time::timeout(Duration::from_secs(5), stream.next()).await.unwrap();
    assert!(last.is_none_or(|item| item.is_err_and(|e| e.code == Code::Unavailable)));
}

#[tokio::test]
async fn a_runtime_without_events_or_without_v1_says_so() {
    let dir = Dir::new();
    let server = serve(&dir.socket(), Tiny::named("old"));
    let client = client(&dir.socket(), Duration::from_secs(5));
    let error = client.events().await.err().unwrap();
    assert!(error.is_unimplemented() && error.class() == Class::Wait, "{error}");
    server.kill().await;

    let server = run(&dir.socket(), Server::builder().add_service(ImageServiceServer::new(Images)));
    // The first call may still meet the dead connection; the next ones find the new server.
    let mut error = client.check_version().await.unwrap_err();
    while error.code == Code::Unavailable {
        error = client.check_version().await.unwrap_err();
    }
    assert!(error.is_unimplemented(), "{error}");
    assert!(error.message.contains("CRI v1"), "{error}");
    server.kill().await;
}

#[tokio::test]
async fn the_authority_is_localhost_and_errors_keep_their_words() {
    let dir = Dir::new();
    let tiny = Tiny::named("x");
    let authority = tiny.authority.clone();
    let server = serve(&dir.socket(), tiny);
    let client = client(&dir.socket(), Duration::from_secs(5));
    client.version().await.unwrap();
    assert_eq!(*authority.lock().unwrap(), "localhost");
    let error = client.container_status("gone").await.unwrap_err();
    assert_eq!(error.to_string(), "get status of container \"gone\": NotFound: no such container");
    assert_eq!(error.grpc_text(), "rpc error: code = NotFound desc = no such container");
    server.kill().await;
}

// === the server ===

impl Tiny {
    fn named(name: &'static str) -> Self {
        Self {
            name,
            events: None,
            abandoned: Arc::new(watch::Sender::new(false)),
            sandboxes: Arc::default(),
            authority: Arc::default(),
        }
    }
}

#[tonic::async_trait]
impl RuntimeService for Tiny {
    async fn version(
        &self,
        request: Request<v1::VersionRequest>,
    ) -> Result<Response<v1::VersionResponse>, Status> {
        if let Some(authority) = request.extensions().get::<Authority>() {
            *self.authority.lock().unwrap() = authority.0.clone();
        }
        Ok(Response::new(v1::VersionResponse {
            runtime_name: self.name.into(),
            runtime_version: "1".into(),
            ..Default::default()
        }))
    }

    async fn stop_container(
        &self,
        _: Request<v1::StopContainerRequest>,
    ) -> Result<Response<v1::StopContainerResponse>, Status> {
        let _flag = Flag(self.abandoned.clone());
        std::future::pending().await
    }

    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> Result<Response<v1::ContainerStatusResponse>, Status> {
        match request.get_ref().container_id.as_str() {
            "gone" => Err(Status::not_found("no such container")),
            _ => std::future::pending().await,
        }
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<v1::RunPodSandboxRequest>,
    ) -> Result<Response<v1::RunPodSandboxResponse>, Status> {
        let name = request.into_inner().config.unwrap().metadata.unwrap().name;
        self.sandboxes.send_modify(|n| n.begun += 1);
        tokio::time::sleep(Duration::from_millis(name.parse().unwrap())).await;
        self.sandboxes.send_modify(|n| n.made += 1);
        Ok(Response::new(v1::RunPodSandboxResponse { pod_sandbox_id: "sandbox".into() }))
    }

    async fn exec_sync(
        &self,
        request: Request<v1::ExecSyncRequest>,
    ) -> Result<Response<v1::ExecSyncResponse>, Status> {
        let request = request.into_inner();
        if request.container_id != "echo" {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Ok(Response::new(v1::ExecSyncResponse {
            stdout: request.timeout.to_string().into_bytes(),
            exit_code: i32::try_from(request.cmd[0].len()).unwrap(),
            ..Default::default()
        }))
    }

    async fn get_container_events(
        &self,
        _: Request<v1::GetEventsRequest>,
    ) -> Result<Response<Events>, Status> {
        let Some(events) = &self.events else { return Err(Status::unimplemented("not here")) };
        let mut receiver = events.subscribe();
        // Like a Go server, say nothing before there is something to say.
        let first = receiver.recv().await.map_err(|_| Status::unavailable("over"))?;
        let rest = stream::unfold(receiver, |mut receiver| async {
            receiver.recv().await.ok().map(|event| (Ok(event), receiver))
        });
        Ok(Response::new(Box::pin(stream::iter([Ok(first)]).chain(rest))))
    }
}

struct Images;

#[tonic::async_trait]
impl ImageService for Images {
    async fn pull_image(
        &self,
        _: Request<v1::PullImageRequest>,
    ) -> Result<Response<v1::PullImageResponse>, Status> {
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok(Response::new(v1::PullImageResponse { image_ref: "sha256:slow".into() }))
    }

    /// An image with a user name as long as the image's name says.
    async fn image_status(
        &self,
        request: Request<v1::ImageStatusRequest>,
    ) -> Result<Response<v1::ImageStatusResponse>, Status> {
        let size: usize = request.into_inner().image.unwrap().image.parse().unwrap();
        let image = v1::Image { username: "x".repeat(size), ..Default::default() };
        Ok(Response::new(v1::ImageStatusResponse { image: Some(image), ..Default::default() }))
    }
}

#[derive(Clone)]
struct Authority(String);

fn serve(socket: &Path, tiny: Tiny) -> Running {
    let runtime = RuntimeServiceServer::new(tiny)
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(2 * MAX_MESSAGE);
    let images = ImageServiceServer::new(Images).max_encoding_message_size(2 * MAX_MESSAGE);
    let services = tonic::service::Routes::new(runtime).add_service(images).into_axum_router();
    let services = services.layer(tower::util::MapRequestLayer::new(note_authority));
    run(socket, Server::builder().add_routes(services.into()))
}

fn note_authority<B>(mut request: http::Request<B>) -> http::Request<B> {
    let authority = request.uri().authority().map(ToString::to_string).unwrap_or_default();
    request.extensions_mut().insert(Authority(authority));
    request
}

fn run(socket: &Path, router: Router) -> Running {
    let _ = std::fs::remove_file(socket);
    let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    let (stop, stopped) = oneshot::channel();
    let thread = std::thread::spawn(move || {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio.block_on(async move {
            let listener = UnixListener::from_std(listener).unwrap();
            let incoming = stream::unfold(listener, |listener| async {
                let accepted = listener.accept().await.map(|(stream, _)| stream);
                Some((accepted, listener))
            });
            tokio::select! {
                _ = stopped => {}
                served = router.serve_with_incoming(incoming) => served.unwrap(),
            }
        });
    });
    Running { stop, thread, socket: socket.to_owned() }
}

fn client(socket: &Path, timeout: Duration) -> Client {
    Client::new(Endpoint::parse(&format!("unix://{}", socket.display())).unwrap(), None, timeout)
}

fn sleepy(millis: u32) -> v1::PodSandboxConfig {
    let metadata = v1::PodSandboxMetadata { name: millis.to_string(), ..Default::default() };
    v1::PodSandboxConfig { metadata: Some(metadata), ..Default::default() }
}

fn spec(image: &str) -> v1::ImageSpec {
    v1::ImageSpec { image: image.into(), ..Default::default() }
}

impl Running {
    async fn kill(self) {
        let _ = self.stop.send(());
        tokio::task::spawn_blocking(|| self.thread.join().unwrap()).await.unwrap();
        let _ = std::fs::remove_file(self.socket);
    }
}

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

impl Dir {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("cri-client-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("runtime.sock")
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
