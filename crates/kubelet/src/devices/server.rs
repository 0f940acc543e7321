//! How plugins register: by calling `kubelet.sock`, or by a socket in the directory of registration sockets.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::stream;
use kubelet_core::node::capacity::is_extended;
use plugins::Handler;
use plugins::device::VERSION;
use plugins::device::v1beta1::registration_server::{Registration, RegistrationServer};
use plugins::device::v1beta1::{Empty, RegisterRequest};
use plugins::registration::PluginInfo;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::DevicePlugins;

/// The kubelet's own socket among those of plugins.
const SOCKET: &str = "kubelet.sock";
/// Calls of one plugin at a time.
const AT_ONCE: usize = 8;

/// Lets plugins in that call the kubelet, or that it finds.
#[derive(Clone, Debug)]
pub struct RegistrationService(pub Arc<DevicePlugins>);

impl DevicePlugins {
    /// Makes the directory, takes away the sockets in it, so that plugins see that they have to register again, and listens.
    pub fn listen_for_plugins(&self) -> io::Result<UnixListener> {
        DirBuilder::new().recursive(true).mode(0o750).create(&self.dir)?;
        for entry in fs::read_dir(&self.dir)?.flatten() {
            if entry.file_type().is_ok_and(|t| t.is_socket()) {
                fs::remove_file(entry.path())?;
            }
        }
        UnixListener::bind(self.dir.join(SOCKET))
    }

    /// Takes registrations until cancelled.
    pub async fn serve(self: Arc<Self>, listener: UnixListener, token: CancellationToken) {
        let incoming = stream::unfold(listener, |listener| async move {
            let accepted = listener.accept().await.map(|(stream, _)| stream);
            Some((accepted, listener))
        });
        let served = Server::builder()
            .concurrency_limit_per_connection(AT_ONCE)
            .add_service(RegistrationServer::new(RegistrationService(self.clone())))
            .serve_with_incoming_shutdown(Box::pin(incoming), token.cancelled())
            .await;
        if let Err(error) = served {
            tracing::error!(%error, "device plugins can register no more");
            let words = "device plugin registration gRPC server failed and no device plugins can register";
            let _ = self.broken.set(format!("device registration error: {words}: {error}"));
            token.cancelled().await;
        }
    }

    /// Whether plugins can register; the health check `device-plugin`.
    pub fn check_registration(&self) -> Result<(), String> {
        self.broken.get().map_or(Ok(()), |why| Err(why.clone()))
    }
}

#[tonic::async_trait]
impl Registration for RegistrationService {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let RegisterRequest { version, endpoint, resource_name, .. } = request.into_inner();
        tracing::info!(resource = resource_name, "device plugin asks to register");
        if version != VERSION {
            return Err(Status::unknown(format!(
                "requested API version {version:?} is not supported by kubelet. Supported version is [{VERSION:?}]"
            )));
        }
        if !is_extended(&resource_name) {
            return Err(Status::unknown(format!("the ResourceName {resource_name:?} is invalid")));
        }
        // Counted only now: whoever calls cannot make labels at will.
        self.0.metrics.device_plugin_registration_total.inc([&resource_name]);
        let socket = self.0.dir.join(endpoint.trim_start_matches('/'));
        let connected = self.0.connect(&resource_name, &socket).await;
        connected.map_err(Status::unknown)?;
        Ok(Response::new(Empty {}))
    }
}

#[async_trait]
impl Handler for RegistrationService {
    fn validate(&self, info: &PluginInfo, _: &Path) -> Result<(), String> {
        let versions: Vec<&str> = info.supported_versions.iter().map(String::as_str).collect();
        DevicePlugins::check(&info.name, &versions)
    }

    async fn register(&self, info: &PluginInfo, socket: &Path) -> Result<(), String> {
        let endpoint = match info.endpoint.as_str() {
            "" => socket.to_owned(),
            endpoint => PathBuf::from(endpoint),
        };
        self.0.connect(&info.name, &endpoint).await
    }

    fn deregister(&self, name: &str, _: &Path) {
        if let Some(connected) = self.0.plugins().get(name) {
            connected.over.cancel();
        }
    }
}
