//! A device plugin for tests: its devices are copies of /dev/null, and it does what files tell it.
//!
//! `device_plugin <directory> <resource> <socket directory> [word...]`
//!
//! | file in `<directory>` | what |
//! |---|---|
//! | `devices` | one device per line: id, `Healthy` or `Unhealthy`, and a NUMA node if it has one; read again when it changes |
//! | `calls` | one line per call: its name and the ids |
//! | `fail-allocate` | while it exists, Allocate fails |
//!
//! Words: `prefer` (it answers GetPreferredAllocation, with the last ids), `pre-start` (it wants to be told of starts),
//! `registry=<dir>` (it registers by a socket there, and does not call the kubelet).
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{BoxStream, StreamExt, unfold};
use plugins::device::v1beta1::device_plugin_server::{DevicePlugin, DevicePluginServer};
use plugins::device::v1beta1::registration_client::RegistrationClient;
use plugins::device::v1beta1::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse, ContainerPreferredAllocationResponse,
    Device, DevicePluginOptions, DeviceSpec, Empty, ListAndWatchResponse, Mount, NumaNode,
    PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse, RegisterRequest, TopologyInfo,
};
use plugins::registration::registration_server::{Registration, RegistrationServer};
use plugins::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use tokio::net::UnixListener;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

#[derive(Clone)]
struct Plugin(Arc<Settings>);

struct Settings {
    dir: PathBuf,
    resource: String,
    sockets: PathBuf,
    words: Vec<String>,
}

const AGAIN: Duration = Duration::from_millis(50);

fn main() {
    let mut args = std::env::args().skip(1);
    let mut next = || args.next().expect("directory, resource, socket directory");
    let (dir, resource, sockets) = (PathBuf::from(next()), next(), PathBuf::from(next()));
    let plugin = Plugin(Arc::new(Settings { dir, resource, sockets, words: args.collect() }));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async move {
        match plugin.word("registry") {
            Some(registry) => plugin.be_found(&registry).await,
            None => plugin.call().await,
        }
    });
}

fn listen(
    socket: &Path,
) -> impl futures_util::Stream<Item = std::io::Result<tokio::net::UnixStream>> + use<> {
    let _ = fs::remove_file(socket);
    let listener = UnixListener::bind(socket).unwrap();
    unfold(listener, |listener| async move {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    })
}

// === impl Plugin ===

impl Plugin {
    fn word(&self, key: &str) -> Option<String> {
        self.0.words.iter().find_map(|w| w.strip_prefix(key)?.strip_prefix('=')).map(str::to_owned)
    }

    fn has(&self, word: &str) -> bool {
        self.0.words.iter().any(|w| w == word)
    }

    fn note(&self, line: &str) {
        let mut file =
            fs::OpenOptions::new().append(true).create(true).open(self.0.dir.join("calls")).unwrap();
        writeln!(file, "{line}").unwrap();
    }

    /// Serves, and registers again whenever its socket is taken away: so plugins notice a new kubelet.
    async fn call(self) {
        let socket = self.0.sockets.join("test.sock");
        loop {
            if !self.0.sockets.join("kubelet.sock").exists() {
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            let served = Server::builder().add_service(DevicePluginServer::new(self.clone()));
            let served = served.serve_with_incoming(Box::pin(listen(&socket)));
            tokio::select! {
                served = served => served.unwrap(),
                () = self.register_and_watch(&socket) => {}
            }
        }
    }

    async fn register_and_watch(&self, socket: &Path) {
        let request = RegisterRequest {
            version: "v1beta1".into(),
            endpoint: "test.sock".into(),
            resource_name: self.0.resource.clone(),
            options: None,
        };
        while let Err(error) = self.register(request.clone()).await {
            self.note(&format!("register failed: {error}"));
            tokio::time::sleep(AGAIN).await;
        }
        self.note("registered");
        while socket.exists() {
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn register(&self, request: RegisterRequest) -> Result<(), String> {
        let channel = plugins::call::connect(&self.0.sockets.join("kubelet.sock")).await;
        let mut kubelet = RegistrationClient::new(channel.map_err(|e| e.to_string())?);
        kubelet.register(request).await.map(drop).map_err(|e| e.message().to_owned())
    }

    async fn be_found(self, registry: &str) {
        let socket = self.0.dir.join("plugin.sock");
        let found = Path::new(registry).join("test-device-reg.sock");
        let served = Server::builder().add_service(DevicePluginServer::new(self.clone()));
        let served = served.serve_with_incoming(Box::pin(listen(&socket)));
        let registration = Server::builder().add_service(RegistrationServer::new(self));
        let registration = registration.serve_with_incoming(Box::pin(listen(&found)));
        let (served, registration) = tokio::join!(served, registration);
        served.and(registration).unwrap();
    }

    fn devices(&self) -> Vec<Device> {
        let text = fs::read_to_string(self.0.dir.join("devices")).unwrap_or_default();
        let device = |line: &str| {
            let mut words = line.split_whitespace();
            let (id, health) = (words.next()?.to_owned(), words.next()?.to_owned());
            let node = words.next().and_then(|n| n.parse().ok()).map(|id| NumaNode { id });
            let topology = node.map(|n| TopologyInfo { nodes: vec![n] });
            Some(Device { id, health, topology })
        };
        text.lines().filter_map(device).collect()
    }
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions {
            pre_start_required: self.has("pre-start"),
            get_preferred_allocation_available: self.has("prefer"),
        }))
    }

    type ListAndWatchStream = BoxStream<'static, Result<ListAndWatchResponse, Status>>;

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let stream = unfold((self.clone(), None), |(plugin, last)| async move {
            loop {
                let devices = plugin.devices();
                if last.as_ref() != Some(&devices) {
                    return Some((
                        Ok(ListAndWatchResponse { devices: devices.clone() }),
                        (plugin, Some(devices)),
                    ));
                }
                tokio::time::sleep(AGAIN).await;
            }
        });
        Ok(Response::new(stream.boxed()))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let answer = |r: plugins::device::v1beta1::ContainerPreferredAllocationRequest| {
            let size = usize::try_from(r.allocation_size).unwrap_or(0);
            let mut ids = r.available_device_i_ds;
            ids.sort();
            ContainerPreferredAllocationResponse {
                device_i_ds: ids.split_off(ids.len().saturating_sub(size)),
            }
        };
        let container_responses = request.into_inner().container_requests.into_iter().map(answer).collect();
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        if self.0.dir.join("fail-allocate").exists() {
            return Err(Status::internal("told to fail"));
        }
        let answer = |ids: Vec<String>| {
            self.note(&format!("allocate {}", ids.join(",")));
            let device = |id: &String| DeviceSpec {
                container_path: format!("/dev/test-{id}"),
                host_path: "/dev/null".into(),
                permissions: "rw".into(),
            };
            let mount = Mount {
                container_path: "/test-devices".into(),
                host_path: self.0.dir.display().to_string(),
                read_only: true,
            };
            ContainerAllocateResponse {
                envs: HashMap::from([("TEST_DEVICES".to_owned(), ids.join(","))]),
                mounts: vec![mount],
                devices: ids.iter().map(device).collect(),
                annotations: HashMap::from([("test.example.com/devices".to_owned(), ids.join(","))]),
                ..Default::default()
            }
        };
        let requests = request.into_inner().container_requests.into_iter();
        let container_responses = requests.map(|r| answer(r.devices_ids)).collect();
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        self.note(&format!("pre-start {}", request.into_inner().devices_ids.join(",")));
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

#[tonic::async_trait]
impl Registration for Plugin {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "DevicePlugin".into(),
            name: self.0.resource.clone(),
            endpoint: self.0.dir.join("plugin.sock").display().to_string(),
            supported_versions: vec!["v1beta1".into()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        self.note(if status.plugin_registered { "registered" } else { "refused" });
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
