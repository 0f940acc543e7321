//! The daemon as a whole: opened, brought together with what there is, and served until it is told to end.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use cri::archives_v1::archives_server::ArchivesServer;
use cri::v1::image_service_server::ImageServiceServer;
use cri::v1::runtime_service_server::RuntimeServiceServer;
use futures_util::stream;
use images::Store;
use registry::Registries;
use runtime_core::resources::Driver;
use supervise::Supervisor;
use sys::cgroup::Hierarchies;
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use crate::attempts::Attempts;
use crate::books::Books;
use crate::daemon::Daemon;
use crate::events::Events;
use crate::image_service::{ImageServer, UsedImages};
use crate::keeper::Program;
use crate::metrics::Metrics;
use crate::network::Networks;
use crate::records::Records;
use crate::samples::Samples;
use crate::service::RuntimeServer;
use crate::streams::Streams;
use crate::{pages, reconcile, trial};

/// How long calls under way may take after the end was ordered.
const GRACE: Duration = Duration::from_secs(5);
const MESSAGE_MAX: usize = cri::MAX_MESSAGE;

/// How the runtime runs on this machine.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The socket of the CRI.
    pub listen: PathBuf,
    /// Images, and what containers write. It outlives a boot.
    pub root_dir: PathBuf,
    /// What is true until the machine stops.
    pub state_dir: PathBuf,
    /// Where clients of exec, attach and port-forward are served.
    pub stream: SocketAddr,
    pub metrics: Option<SocketAddr>,
    pub networks: Networks,
    /// Specs of the Container Device Interface. Later directories win; none for no CDI.
    pub cdi_dirs: Vec<PathBuf>,
    pub registry: registry::Settings,
    /// Names of runtime handlers that mean our own launcher.
    pub handlers: Vec<String>,
    pub version: String,
}

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("{what} {}: {cause}", path.display())]
    Path { what: &'static str, path: PathBuf, cause: io::Error },
    #[error("{0}: {1}")]
    Machine(&'static str, io::Error),
    #[error(transparent)]
    Images(#[from] images::Error),
    #[error("{0}")]
    Found(String),
    #[error("serving the CRI: {0}")]
    Serve(#[from] tonic::transport::Error),
    #[error("a part of the runtime has ended: {0:?}")]
    Ended(supervise::Failure),
}

/// A daemon that has found everything and listens, but does not serve yet.
pub struct Agent {
    daemon: Arc<Daemon>,
    listener: UnixListener,
    socket: PathBuf,
    streams: Streams,
    images: ImageServer,
    pages: Option<pages::Pages>,
}

// === impl Agent ===

impl Agent {
    /// Takes the directories and the socket, and brings together what is there.
    pub async fn open(settings: Settings) -> Result<Agent, RunError> {
        let listen = settings.listen.clone();
        let (stream, metrics) = (settings.stream, settings.metrics);
        let registries = Registries::new(settings.registry.clone());
        let opened = tokio::task::spawn_blocking(move || daemon(settings)).await;
        let daemon = opened.map_err(|e| RunError::Found(e.to_string()))??;
        reconcile::run(&daemon).await.map_err(|error| RunError::Found(error.message().to_owned()))?;
        let tried = trial::user_namespaces(&daemon).await.err().map(|error| error.message().to_owned());
        if let Some(why) = &tried {
            tracing::info!(why, "Pods cannot have user namespaces on this machine");
        }
        let _ = daemon.no_user_namespaces.set(tried);
        let images = ImageServer::new(daemon.store.clone(), registries, Arc::new(Written(daemon.clone())));
        let path = |what, path: &Path| {
            let path = path.to_owned();
            move |cause| RunError::Path { what, path, cause }
        };
        let streams = Streams::bind(stream, Arc::new(daemon.clone())).await;
        let streams = streams.map_err(|e| RunError::Machine("listen for streams", e))?;
        let pages = match metrics {
            Some(address) => Some(
                pages::Pages::bind(address, daemon.clone(), images.clone(), streams.clone())
                    .await
                    .map_err(|e| RunError::Machine("listen for metrics", e))?,
            ),
            None => None,
        };
        let listener = bind(&listen).map_err(path("listen on", &listen))?;
        Ok(Agent { daemon, listener, socket: listen, streams, images, pages })
    }

    /// Serves until the token is cancelled. Pods go on.
    pub async fn serve(self, token: CancellationToken) -> Result<(), RunError> {
        let guard = token.child_token();
        let tasks = Supervisor::new(guard.clone());
        let address = self.streams.address();
        tasks.lasting("streaming server", self.streams.clone(), |streams, token| streams.serve(token));
        if let Some(pages) = self.pages {
            tasks.once("pages", pages.serve(guard.clone()));
        }
        let runtime = RuntimeServiceServer::new(RuntimeServer::new(
            self.daemon.clone(),
            self.streams,
            self.images.clone(),
            guard.clone(),
        ))
        .max_decoding_message_size(MESSAGE_MAX)
        .max_encoding_message_size(MESSAGE_MAX);
        let archives = ArchivesServer::new(self.images.clone());
        let images = ImageServiceServer::new(self.images)
            .max_decoding_message_size(MESSAGE_MAX)
            .max_encoding_message_size(MESSAGE_MAX);
        let router = Server::builder().add_service(runtime).add_service(images).add_service(archives);
        tracing::info!(socket = %self.socket.display(), streams = %address, "Serving the CRI");
        let end = guard.clone();
        let served = router.serve_with_incoming_shutdown(incoming(self.listener), async move {
            end.cancelled().await;
        });
        let late = async {
            guard.cancelled().await;
            tokio::time::sleep(GRACE).await;
        };
        let served = tokio::select! {
            served = served => served,
            () = late => Ok(()),
        };
        let failure = tasks.failure();
        tasks.stop(GRACE).await;
        served?;
        match failure {
            Some(failure) => Err(RunError::Ended(failure)),
            None => Ok(()),
        }
    }
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// Opens, reconciles and serves.
pub async fn run(settings: Settings, token: CancellationToken) -> Result<(), RunError> {
    Agent::open(settings).await?.serve(token).await
}

struct Written(Arc<Daemon>);

impl UsedImages for Written {
    fn written(&self) -> (u64, u64) {
        self.0.samples.written()
    }
}

fn daemon(settings: Settings) -> Result<Arc<Daemon>, RunError> {
    let (root_dir, state_dir) = (settings.root_dir, settings.state_dir);
    for dir in [root_dir.join("containers"), state_dir.join("sandboxes")] {
        make_dir(&dir)?;
    }
    let records = Records::open(state_dir.clone());
    let records = records.map_err(|cause| RunError::Path {
        what: "open the records in",
        path: state_dir.clone(),
        cause,
    })?;
    let hierarchies = Hierarchies::find().map_err(|e| RunError::Machine("find the cgroups", e))?;
    let program = Program::seal().map_err(|e| RunError::Machine("seal the keeper's program", e))?;
    let store = Store::open(&root_dir.join("images"))?;
    Ok(Arc::new(Daemon {
        root_dir,
        state_dir,
        hierarchies,
        driver: Driver::Cgroupfs,
        handlers: settings.handlers,
        version: settings.version,
        networks: settings.networks,
        cdi_dirs: settings.cdi_dirs,
        program,
        store,
        records,
        books: Books::default(),
        attempts: Attempts::default(),
        events: Events::default(),
        metrics: Metrics::new(),
        samples: Samples::default(),
        no_user_namespaces: OnceLock::new(),
        capabilities: capabilities(),
        filters: Mutex::new(HashMap::new()),
    }))
}

/// What is in them is root's alone: an image may hold programs that lend root's rights.
fn make_dir(dir: &Path) -> Result<(), RunError> {
    fs::DirBuilder::new().recursive(true).mode(0o711).create(dir).map_err(|cause| RunError::Path {
        what: "make",
        path: dir.to_owned(),
        cause,
    })
}

/// The bounding set, as far as we know its names.
fn capabilities() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    let own = line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(u64::MAX);
    own & runtime_core::capabilities::all()
}

/// A socket that somebody else listens on stays theirs.
fn bind(path: &Path) -> io::Result<UnixListener> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    let listener = match UnixListener::bind(path) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                return Err(io::Error::new(e.kind(), "another runtime listens there"));
            }
            fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        other => other?,
    };
    fs::set_permissions(path, fs::Permissions::from_mode(0o660))?;
    Ok(listener)
}

fn incoming(listener: UnixListener) -> impl futures_util::Stream<Item = io::Result<UnixStream>> {
    stream::unfold(listener, |listener| async {
        let accepted = loop {
            match listener.accept().await {
                Ok((stream, _)) => break Ok(stream),
                // Out of descriptors, for instance: others will be closed.
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        };
        Some((accepted, listener))
    })
}
