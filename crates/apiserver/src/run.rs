//! The whole server: from settings to serving.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::class::{Class, Classify};
use base::time::Clock;
use supervise::{Failure, Supervisor};
use tokio_util::sync::CancellationToken;

use crate::admission::{self, Chain};
use crate::auth::authn::{Anonymous, Authenticator};
use crate::auth::authorizer_informer;
use crate::auth::csr;
use crate::auth::pki::{self, Pki, PkiError};
use crate::auth::service_account::Lifetimes;
use crate::auth::static_tokens::StaticTokens;
use crate::auth::tokens::{KeyError, Tokens};
use crate::clock::SystemClock;
pub use crate::http::ANSWERS_FIRST;
use crate::http::audit::{self, Audit};
use crate::http::limits::{ClientTimeouts, InFlight, Limits};
use crate::http::metrics::Metrics;
use crate::http::{self, App, Connector, InProcess};
use crate::objects::Objects;
use crate::registry::Registry;
use crate::registry::addresses::{Addresses, Ranges};
use crate::tasks::{OnStart, Tasks};
use crate::{controllers, first_objects};
use apiserver_core::api_status::ApiStatus;
use apiserver_core::auth::authz::Authorizer;
use apiserver_core::catalog::Catalog;
use apiserver_core::kinds::RuntimeConfig;
use store::{Health, Lock, OpenError, Retention, Store};

/// What bringing a store of an earlier release into today's order needs on the disk.
const MIGRATION: u64 = 16 << 20;

/// Between two tries to make what could not be made at the start.
const MAKE_UP_PAUSE: Duration = Duration::from_millis(500);

/// How often certificates and the files they come from are looked at.
const PKI_PERIOD: Duration = Duration::from_secs(60);

/// What the server is told from outside.
#[derive(Clone, Debug)]
pub struct Settings {
    pub data_dir: PathBuf,
    /// `--bind-address` and `--secure-port`; port 0 takes any.
    pub bind: SocketAddr,
    /// Where others reach us; found out when it is not said.
    pub advertise: Option<IpAddr>,
    /// `--client-ca-file`
    pub client_ca_file: Option<PathBuf>,
    /// `--kubelet-certificate-authority`
    pub kubelet_ca_file: Option<PathBuf>,
    /// `--tls-cert-file` and `--tls-private-key-file`
    pub tls_files: Option<(PathBuf, PathBuf)>,
    /// More names and addresses for our certificate.
    pub names: Vec<String>,
    pub cluster_domain: String,
    pub ranges: Ranges,
    pub limits: Limits,
    pub timeouts: ClientTimeouts,
    /// `--runtime-config`
    pub kinds: RuntimeConfig,
    /// Off when there is none.
    pub audit: Option<audit::Settings>,
    /// `--etcd-compaction-interval`: how long history is kept.
    pub history: Duration,
    /// `--event-ttl`
    pub event_ttl: Duration,
    /// `--service-account-issuer`
    pub service_account_issuer: String,
    /// `--api-audiences`; the issuer when empty.
    pub api_audiences: Vec<String>,
    /// `--service-account-key-file`: believed besides our own.
    pub service_account_key_files: Vec<PathBuf>,
    /// `--service-account-signing-key-file`; a key of our own when there is none.
    pub service_account_signing_key_file: Option<PathBuf>,
    /// `--service-account-jwks-uri`; our own path when there is none.
    pub service_account_jwks_uri: Option<String>,
    pub token_lifetimes: Lifetimes,
    pub static_tokens: StaticTokens,
    pub anonymous: Anonymous,
    /// `v1.36.4`: the release whose API this is.
    pub version: String,
    /// Where clients inside this process connect, if there are any.
    pub in_process: Option<InProcess>,
}

/// A server that is up.
#[derive(Clone, Debug)]
pub struct Up {
    pub address: SocketAddr,
    pub kubeconfig: PathBuf,
    /// Its authority, for the certificates of parts that run beside it.
    pub pki: Arc<Pki>,
}

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("listen on {address}: {cause}")]
    Bind { address: SocketAddr, cause: io::Error },
    #[error("read {}: {cause}", path.display())]
    File { path: PathBuf, cause: io::Error },
    #[error(transparent)]
    Store(#[from] OpenError),
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error(transparent)]
    Tokens(#[from] KeyError),
    #[error("prepare the cluster: {0}")]
    Prepare(#[from] ApiStatus),
    #[error("the disk of {} is full, and what an earlier release left there has to be rewritten before it is served: \
             free {} KB and start again", dir.display(), MIGRATION >> 10)]
    Full { dir: PathBuf },
    #[error("{0} was cut short")]
    Interrupted(&'static str),
    /// A thread of the store died; a new process may do better.
    #[error("the store closed under the running server")]
    StoreClosed,
    /// The server may not go on without one of its tasks.
    #[error(transparent)]
    Task(Failure),
}

impl Classify for RunError {
    fn class(&self) -> Class {
        Class::Fault
    }
}

/// Runs until cancelled. `ready` is told once requests are served.
pub async fn run(
    settings: Settings,
    ready: impl FnOnce(&Up),
    token: CancellationToken,
) -> Result<(), RunError> {
    run_watched(settings, ready, token, Arc::new(|_| ())).await
}

/// The same, with somebody who hears of every start of a task.
async fn run_watched(
    settings: Settings,
    ready: impl FnOnce(&Up),
    token: CancellationToken,
    on_start: OnStart,
) -> Result<(), RunError> {
    let cannot_bind = |cause| RunError::Bind { address: settings.bind, cause };
    let bound = http::bind(settings.bind).await.map_err(cannot_bind)?;
    let address = bound.address().map_err(cannot_bind)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    // Nothing in the directory is read or written before it is ours.
    let dir = settings.data_dir.clone();
    let locking = tokio::task::spawn_blocking(move || Lock::take(&dir));
    let lock = locking.await.map_err(|_| RunError::Interrupted("locking the data directory"))??;
    // Opening checks every row, and making keys takes a while: both at once, off this thread.
    let retention = Retention { age: settings.history, ..Retention::default() };
    let options = store::Options { retention, ..store::Options::default() };
    let opening = tokio::task::spawn_blocking(move || Store::open_locked(lock, options));
    let (pki, up) = match open_pki(&settings, address, &*clock).await {
        // The store, where there is none yet, says it best.
        Err(RunError::Pki(error)) if error.is_want_of_room() => {
            opening.await.map_err(|_| RunError::Interrupted("opening the store"))??;
            return Err(error.into());
        }
        other => other?,
    };
    let store = opening.await.map_err(|_| RunError::Interrupted("opening the store"))??;

    let catalog = Catalog::new(settings.kinds.built_in().into_iter().map(Arc::new));
    let objects = Objects::new(store.clone());
    let authorizer = Arc::new(Authorizer::default());
    let chain = Chain::new(objects.clone(), authorizer.clone());
    let addresses = Addresses::new(settings.ranges.clone());
    let registry = Registry::new(store.clone(), catalog, clock.clone(), Some(chain), addresses);
    let root_ca = pki.server_ca();
    let full = || RunError::Full { dir: settings.data_dir.clone() };
    let is_full = || matches!(store.health(), Health::Full);
    let prepared = controllers::definitions::prepare(&registry).await;
    prepared.map_err(|api_status| if is_full() { full() } else { api_status.into() })?;
    let bootstrap = BootstrapObjects {
        registry: registry.clone(),
        objects: objects.clone(),
        root_ca: root_ca.clone(),
        client_cas: pki.client_ca_bundle(),
        address: up.address,
    };
    let missing = match bootstrap.ensure().await {
        Ok(()) => None,
        Err(api_status) if is_full() => {
            tracing::error!(error = %api_status.message, "the disk is full: what every cluster has is made when there is room");
            Some(bootstrap)
        }
        Err(api_status) => return Err(api_status.into()),
    };
    authorizer_informer::load(&objects, &authorizer).await?;
    let tokens = Arc::new(tokens(&settings, &pki).await?);
    let authenticator = Authenticator::new(
        pki.client_cas().clone(),
        tokens.clone(),
        settings.static_tokens.clone(),
        objects.clone(),
        settings.anonymous.clone(),
        clock.clone(),
    );

    let stopping = token.child_token();
    let supervisor = Supervisor::new(stopping.clone());
    let tasks = Tasks::new(supervisor.clone(), on_start);
    let app = Arc::new(App {
        registry: registry.clone(),
        pki: pki.clone(),
        authenticator,
        authorizer: authorizer.clone(),
        tokens,
        token_lifetimes: settings.token_lifetimes,
        jwks_uri: settings.service_account_jwks_uri.clone(),
        objects: objects.clone(),
        connector: connector(&settings, &pki).await?,
        in_flight: InFlight::new(settings.limits),
        large: http::Large::default(),
        node_metrics: http::NodeMetrics::default(),
        timeouts: settings.timeouts,
        metrics: Metrics::new(clock.now().wall.0 as f64 / 1e9),
        audit: audit(&settings).await?,
        address: up.address.to_string(),
        version: settings.version.clone(),
        stopping: stopping.clone(),
        tasks: supervisor.clone(),
    });
    tasks.essential("store_health", end_with(store, stopping.clone()));
    // Rights that were taken away must not stay in force: without it the server ends.
    tasks.essential("authorizer_informer", authorizer_informer::follow(objects.clone(), authorizer.clone()));
    if let Some(bootstrap) = missing {
        tasks.restart("first_objects", move || bootstrap.clone().make_up());
    }
    let (keys, time, end) = (pki.clone(), clock.clone(), stopping.clone());
    tasks.restart("certificate_rotation", move || keep_pki(keys.clone(), time.clone(), end.clone()));
    let all = objects.clone();
    tasks.restart("resource_quota", move || admission::follow_quotas(all.clone()));
    let ca = pki.ca().clone();
    tasks.restart("certificate_signing", move || {
        csr::run(objects.clone(), authorizer.clone(), ca.clone(), clock.clone())
    });
    controllers::start(&registry, root_ca, settings.event_ttl, &tasks);
    ready(&up);
    tracing::info!(address = %up.address, kubeconfig = %up.kubeconfig.display(), "serving");
    let within = http::serve_in_process(app.clone(), settings.in_process.as_ref(), stopping.clone());
    tokio::join!(bound.serve(app, pki.server_config()?, stopping), within);
    supervisor.stop(Duration::ZERO).await;
    let is_open = registry.store().is_open();
    registry.store().clone().close().await;
    match supervisor.failure() {
        _ if token.is_cancelled() => Ok(()),
        // What follows the store ends with it; that is then not the cause.
        Some(failure) if is_open => Err(RunError::Task(failure)),
        _ => Err(RunError::StoreClosed),
    }
}

/// What every cluster has.
#[derive(Clone)]
struct BootstrapObjects {
    registry: Registry,
    objects: Objects,
    root_ca: String,
    client_cas: String,
    address: SocketAddr,
}

// === impl Settings ===

impl Settings {
    /// Of a server on any port of this machine that lets nobody in by a token: for tests, which change what they are about.
    #[doc(hidden)]
    #[must_use]
    pub fn for_tests(data_dir: &Path) -> Settings {
        Settings {
            data_dir: data_dir.to_owned(),
            bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            advertise: None,
            client_ca_file: None,
            kubelet_ca_file: None,
            tls_files: None,
            names: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            ranges: Ranges::default(),
            limits: Limits::default(),
            timeouts: ClientTimeouts::default(),
            kinds: RuntimeConfig::default(),
            audit: None,
            history: Duration::from_mins(5),
            event_ttl: Duration::from_hours(1),
            service_account_issuer: "https://kubernetes.default.svc".to_owned(),
            api_audiences: Vec::new(),
            service_account_key_files: Vec::new(),
            service_account_signing_key_file: None,
            service_account_jwks_uri: None,
            token_lifetimes: Lifetimes { max_seconds: None, extend: true },
            static_tokens: StaticTokens::default(),
            anonymous: Anonymous::Probes,
            version: "v1.36.4".to_owned(),
            in_process: None,
        }
    }
}

// === impl BootstrapObjects ===

impl BootstrapObjects {
    async fn ensure(&self) -> Result<(), ApiStatus> {
        first_objects::ensure(&self.registry, &self.root_ca, &self.client_cas, self.address).await?;
        authorizer_informer::reconcile_policy(&self.objects, self.registry.now()).await
    }

    /// Makes what could not be made at the start, as soon as the store takes writes.
    async fn make_up(self) {
        let mut health = self.registry.store().health_changes();
        while let Err(api_status) = self.ensure().await {
            tracing::debug!(error = %api_status.message, "what every cluster has is not there yet");
            // The sender lives in the store that the registry holds.
            let _ = health.wait_for(|health| *health == Health::Good).await;
            tokio::time::sleep(MAKE_UP_PAUSE).await;
        }
    }
}

/// Without its store the server is of no use, and only a new process can open it again.
async fn end_with(store: Store, stopping: CancellationToken) {
    store.closed().await;
    stopping.cancel();
}

async fn tokens(settings: &Settings, pki: &Arc<Pki>) -> Result<Tokens, RunError> {
    let (pki, settings) = (pki.clone(), settings.clone());
    let making = tokio::task::spawn_blocking(move || {
        let signing = match settings.service_account_signing_key_file {
            Some(path) => std::fs::read_to_string(&path).map_err(|cause| RunError::File { path, cause })?,
            None => pki.service_account_key()?,
        };
        let audiences = settings.api_audiences;
        Ok(Tokens::new(
            &settings.service_account_issuer,
            audiences,
            &signing,
            &settings.service_account_key_files,
        )?)
    });
    making.await.map_err(|_| RunError::Interrupted("reading keys"))?
}

async fn connector(settings: &Settings, pki: &Arc<Pki>) -> Result<Connector, RunError> {
    let (pki, authority) = (pki.clone(), settings.kubelet_ca_file.clone());
    let making = tokio::task::spawn_blocking(move || {
        let authority = match authority {
            Some(path) => {
                Some(std::fs::read_to_string(&path).map_err(|cause| RunError::File { path, cause })?)
            }
            None => None,
        };
        Ok(Connector::new(pki.kubelet_client().clone(), authority.as_deref())?)
    });
    making.await.map_err(|_| RunError::Interrupted("making the key for kubelets"))?
}

async fn audit(settings: &Settings) -> Result<Option<Audit>, RunError> {
    let Some(wanted) = settings.audit.clone() else { return Ok(None) };
    let path = wanted.path.clone();
    let opening = tokio::task::spawn_blocking(move || Audit::open(wanted));
    let opened = opening.await.map_err(|_| RunError::Interrupted("opening the audit log"))?;
    opened.map(Some).map_err(|cause| RunError::File { path, cause })
}

async fn open_pki(
    settings: &Settings,
    address: SocketAddr,
    clock: &dyn Clock,
) -> Result<(Arc<Pki>, Up), RunError> {
    let advertised = settings.advertise.unwrap_or_else(|| own_address(address.ip()));
    let local = if address.ip().is_unspecified() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { address.ip() };
    let advertised_at = SocketAddr::new(advertised, address.port());
    let kubeconfig = settings.data_dir.join("admin.kubeconfig");
    let about = pki::Settings {
        dir: settings.data_dir.join("pki"),
        names: settings.names.clone(),
        addresses: [local, advertised].into_iter().chain(settings.ranges.first()).collect(),
        cluster_domain: settings.cluster_domain.clone(),
        client_ca_file: settings.client_ca_file.clone(),
        tls_files: settings.tls_files.clone(),
    };
    let (now, path) = (clock.now().wall, kubeconfig.clone());
    let server = format!("https://{}", SocketAddr::new(local, address.port()));
    let opened = tokio::task::spawn_blocking(move || {
        let pki = Pki::open(about, now)?;
        pki.write_admin_kubeconfig(&path, &server, now)?;
        Ok::<_, PkiError>(pki)
    });
    let pki = Arc::new(opened.await.map_err(|_| RunError::Interrupted("making keys"))??);
    Ok((pki.clone(), Up { address: advertised_at, kubeconfig, pki }))
}

/// The address packets to the world would leave from. Nothing is sent to find out.
fn own_address(bound: IpAddr) -> IpAddr {
    if !bound.is_unspecified() {
        return bound;
    }
    let look = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        // TEST-NET-1: an address nobody has.
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
        socket.local_addr()
    };
    look().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |address: SocketAddr| address.ip())
}

/// Renews certificates, and follows files that others renew.
async fn keep_pki(pki: Arc<Pki>, clock: Arc<dyn Clock>, token: CancellationToken) {
    loop {
        tokio::select! {
            () = token.cancelled() => return,
            () = tokio::time::sleep(PKI_PERIOD) => {}
        }
        let (pki, now) = (pki.clone(), clock.now().wall);
        match tokio::task::spawn_blocking(move || pki.refresh(now)).await {
            Ok(Ok(true)) => tracing::info!("certificates renewed"),
            Ok(Ok(false)) | Err(_) => {}
            Ok(Err(error)) => tracing::warn!(%error, "certificates not renewed"),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use tokio::sync::watch;

    use super::*;

    const RESTARTED: [&str; 7] = [
        "certificate_rotation",
        "resource_quota",
        "certificate_signing",
        "namespaces",
        "garbage_collector",
        "custom_resource_definitions",
        "event_ttl",
    ];
    const ESSENTIAL: [&str; 2] = ["store_health", "authorizer_informer"];

    #[tokio::test]
    async fn a_task_that_panics_is_started_again() {
        let dir = tempfile::tempdir().unwrap();
        let token = CancellationToken::new();
        let starts: watch::Sender<BTreeMap<&str, u32>> = watch::Sender::default();
        let told = starts.clone();
        let on_start: OnStart = Arc::new(move |name| {
            let mut times = 0;
            told.send_modify(|starts| {
                times = *starts.entry(name).and_modify(|n| *n += 1).or_insert(1);
            });
            assert!(times > 1 || ESSENTIAL.contains(&name), "killed by the test");
        });
        let running =
            tokio::spawn(run_watched(Settings::for_tests(dir.path()), |_| (), token.clone(), on_start));
        let again = |starts: &BTreeMap<&str, u32>| RESTARTED.iter().all(|n| starts.get(n) == Some(&2));
        starts.subscribe().wait_for(again).await.unwrap();
        assert_eq!(
            starts.borrow().len(),
            RESTARTED.len() + ESSENTIAL.len(),
            "every task is in one of the lists"
        );
        token.cancel();
        assert!(running.await.unwrap().is_ok());
    }

    #[tokio::test]
    async fn the_server_ends_without_a_task_it_may_not_be_without() {
        for name in ESSENTIAL {
            let dir = tempfile::tempdir().unwrap();
            let seen = Arc::new(Mutex::new(Vec::new()));
            let noted = seen.clone();
            let on_start: OnStart = Arc::new(move |started| {
                noted.lock().unwrap().push(started);
                assert!(started != name, "killed by the test");
            });
            let ended =
                run_watched(Settings::for_tests(dir.path()), |_| (), CancellationToken::new(), on_start)
                    .await;
            assert!(
                matches!(ended, Err(RunError::Task(Failure::Panicked(task))) if task == name),
                "{name}: {ended:?}"
            );
            assert!(seen.lock().unwrap().contains(&name));
        }
    }
}
