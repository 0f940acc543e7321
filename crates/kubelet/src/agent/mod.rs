//! The assembly: configuration and machine in, a running kubelet out.
//!
//! | task | input | output |
//! |---|---|---|
//! | sources (file, url, local) | manifests | `mpsc<SourceUpdate>` to the dispatcher |
//! | dispatcher | updates, ended Pod tasks, strangers | `watch<Intent>` per Pod |
//! | Pod tasks, one each | intent, bell, verdicts | effects through the ports, status on the board |
//! | observer | the runtime's events, relists | a bell per Pod |
//! | prober, one task per probe | observed containers | `watch<Verdicts>` per Pod |
//! | health | CRI Status | `watch<RuntimeHealth>` |
//! | collector, log rotation | the runtime, the disk | fewer files |
//! | servers | the board, the metrics | answers |
//! | cluster (with --kubeconfig) | the API server | Pods, and the node as others see it |
//!
//! All of them end when the token is cancelled; containers never do.

mod cgroups;
pub mod cluster;
mod images;
mod parting;
mod port;
mod root;
mod settings;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::config::gates::{GATES, Stage};
use api::config::kubelet::{HostFacts, KubeletConfiguration, KubeletFlags, Loaded, check_host};
use base::rng::Rng;
use base::time::Clock;
use base::verbosity::Verbosity;
use kubelet_core::admission::NodeOffer;
use kubelet_core::cgroup::Driver;
use kubelet_core::dispatch::Known;
use kubelet_core::node::addresses::Sources;
use kubelet_core::recipe;
use kubelet_core::sysctl::Allowlist;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cluster::objects::ApiObjects;
use crate::cluster::own_node::OwnNodeView;
use crate::cluster::{Cluster, Opening};
use crate::events::{Kind, Recorder};
use crate::host::clock::SystemClock;
use crate::host::facts::{self, Machine, go_arch};
use crate::host::lock_file::{Contention, LockFile};
use crate::host::net::SocketNet;
use crate::host::userns::{self, StoreError, UsernsStore};
use crate::host::{iptables, process};
use crate::logs::Rotator;
use crate::metrics::{Metrics, ProbeMetrics};
use crate::node::{ClusterDeps, memory_release};
use crate::plugins;
use crate::pods::beat::Beat;
use crate::pods::dispatcher::{Dispatcher, EndOrder};
use crate::pods::gc;
use crate::pods::host_ips::{self, HostIps};
use crate::pods::node::{Node, NodeFacts};
use crate::pods::pod_files::{DiskPodFiles, PodDirs};
use crate::pods::prober::{Hands, Prober};
use crate::pods::sources::file::Heritage;
use crate::pods::sources::local::LocalPods;
use crate::pods::sources::{self, Context, Problems, SourceName, SourceUpdate};
use crate::ports::{Accounts, NoObjects, NoStorage, Objects, Runtime, Storage};
use crate::runtime::Metered;
use crate::runtime::health::{RuntimeHealth, watch_health};
use crate::runtime::observer::{Observer, watch_runtime};
use crate::server::local_api::{self, BoardView, LocalApi};
use crate::server::secure::{self, ServerState};
use crate::server::{self, Check, Checks, Ports, Views, stats};
use crate::volumes::drivers::registration::Registrar;
use crate::volumes::drivers::{Drivers, Measured};
use crate::volumes::{CsiParts, NodeVolumes, VolumeFigures};
use streaming::Streams;

pub use crate::start_error::StartError;
pub use client::Proxies;
pub use systemd::{Places, Systemd};

/// How long the runtime may take to answer for the first time.
const RUNTIME_PATIENCE: Duration = Duration::from_secs(20);
/// How long calls to the runtime that are under way hold up the exit; systemd waits 90 s before it kills.
const PARTING: Duration = Duration::from_secs(10);

/// What the binary hands in: the configuration and the few things only it may read.
#[derive(Debug)]
pub struct Start {
    pub loaded: Loaded,
    pub systemd: Systemd,
    /// The home directory, where registry logins may be.
    pub home: Option<PathBuf>,
    pub working_dir: PathBuf,
    /// The system bus, and where the login manager has its settings.
    pub places: Places,
    /// Proxies on the way to the API server, where the kubeconfig names none.
    pub proxies: Proxies,
    /// The version shown in metrics.
    pub version: String,
    /// How much is logged.
    pub verbosity: Verbosity,
}

impl Start {
    fn opening(&self) -> Opening<'_> {
        Opening { loaded: &self.loaded, version: &self.version, proxies: &self.proxies }
    }
}

/// Starts everything and runs until the token is cancelled or something the node cannot do without ends.
pub async fn run(start: Start, token: CancellationToken) -> Result<(), StartError> {
    let Loaded { config, flags, .. } = &start.loaded;
    let dirs = settings::dirs(config, flags);
    process::settle(config.oom_score_adj, u64::try_from(config.max_open_files).unwrap_or(0));
    let (_lock, contention) = hold_lock(flags).await?;
    tune_kernel(config)?;
    root::prepare(&dirs)?;
    root::check_managers(&dirs.root, config)?;
    let machine = facts::read_machine(&dirs.root);
    let machine = machine.map_err(|e| StartError::new(format!("read /proc and /sys: {e}")))?;
    refuse_unfit(config, &machine)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let metrics = Arc::new(Metrics::default());
    let closing = cri::Closing::when(token.clone());
    let runtime = connect(config, metrics.clone(), closing.clone()).await?;
    let driver = configure_runtime(config, &*runtime).await?;
    let name = flags.node_name(&machine.hostname);
    let cluster = Cluster::open(start.opening(), &name, clock.now().wall, &metrics).await?;
    let (probe_metrics, drivers, figures) = (Arc::default(), Arc::default(), Arc::default());
    let parts = Parts {
        start: &start,
        dirs,
        machine,
        clock,
        metrics,
        probe_metrics,
        // After the limit of open files was settled.
        ports: Ports { metrics: Arc::default(), budget: serve::Budget::now() },
        runtime,
        driver,
        cluster,
        drivers,
        figures,
        host_ips: watch::Sender::default(),
    };
    let (health, healthy) = watch::channel(RuntimeHealth::default());
    let (node, volumes) = parts.node(healthy, &token).await?;
    let node = Arc::new(node);
    // A second kubelet is found out here, before it takes the first one's Pods for orphans.
    let doors = parts.doors().await?;
    let mut tasks = JoinSet::new();
    if let Some(contention) = contention {
        tasks.spawn(contention.leave(token.clone()));
    }
    tasks.spawn(volumes.sweep(token.clone()));
    tasks.spawn(volumes.refresh(token.clone()));
    tasks.spawn(volumes.measure(config.volume_stats_agg_period.to_std(), token.clone()));
    tasks.spawn(watch_health(node.runtime.clone(), health, token.clone()));
    tasks.spawn(watch_runtime(node.observer.clone(), token.clone()));
    tasks.spawn(memory_release::run(node.board.clone(), token.clone()));
    tasks.spawn(host_ips::watch_machine(parts.address_sources(), parts.host_ips.clone(), token.clone()));
    if config.make_iptables_util_chains {
        tasks.spawn(iptables::keep(token.clone()));
    }
    let beat = Beat::new(node.clock.clone());
    let (orders, obeyed) = mpsc::channel(64);
    let known = parts.start_pods(&node, beat.clone(), (doors.local, obeyed), &mut tasks, &token).await?;
    if let Some(shutdown) = parts.shutdown(&node, orders) {
        tasks.spawn(shutdown.run(token.clone()));
    }
    let (open, secure) = ([doors.healthz, doors.read_only], doors.secure);
    parts.start_servers(&node, beat, open, secure, &mut tasks, &token)?;
    parts.join_cluster(&node, known, &mut tasks, &token)?;
    tasks.spawn(plugins::run(parts.dirs.root.join(plugins::DIR), parts.registrar(), token.clone()));
    parts.describe(&node);
    parts.check_resolver(&node).await;
    start.systemd.ready();
    tracing::info!(node = node.facts.recipe.name, "kubelet started");
    supervise(tasks, token, &closing).await
}

/// The lock file, if one is wanted, and an ear for whoever else wants it.
async fn hold_lock(flags: &KubeletFlags) -> Result<(Option<LockFile>, Option<Contention>), StartError> {
    if flags.lock_file.is_empty() {
        return Ok((None, None));
    }
    let path = Path::new(&flags.lock_file);
    let failed = |e| StartError::new(format!("unable to acquire file lock on {:?}: {e}", flags.lock_file));
    let lock = LockFile::hold(path).await.map_err(failed)?;
    let contention = flags.exit_on_lock_contention.then(|| lock.listen()).transpose().map_err(failed)?;
    Ok((Some(lock), contention))
}

fn tune_kernel(config: &KubeletConfiguration) -> Result<(), StartError> {
    let wrong = process::tune_kernel(config.protect_kernel_defaults);
    if config.protect_kernel_defaults && !wrong.is_empty() {
        let all: Vec<String> = wrong.iter().map(ToString::to_string).collect();
        return Err(StartError::new(all.join("; ")));
    }
    wrong.iter().for_each(|error| tracing::warn!(%error, "kernel setting not brought in line"));
    Ok(())
}

/// Every task runs until cancelled; one that ends earlier takes the node down with a message. No new work
/// is begun after that, and what the runtime was asked to do is waited for, though not for ever.
async fn supervise(
    mut tasks: JoinSet<()>,
    token: CancellationToken,
    closing: &cri::Closing,
) -> Result<(), StartError> {
    let ended = tasks.join_next().await;
    let ordered = token.is_cancelled();
    token.cancel();
    let all = async {
        while tasks.join_next().await.is_some() {}
        closing.finished().await;
    };
    if tokio::time::timeout(PARTING, all).await.is_err() {
        let (tasks, calls) = (tasks.len(), closing.unfinished());
        tracing::warn!(tasks, calls, "exiting although not everything under way has ended");
    }
    if ordered {
        return Ok(());
    }
    Err(StartError::new(match ended {
        Some(Err(e)) => format!("a task of the agent died: {e}"),
        _ => "a task of the agent ended early".to_owned(),
    }))
}

/// What upstream refuses at start although the configuration is valid.
fn refuse_unfit(config: &KubeletConfiguration, machine: &Machine) -> Result<(), StartError> {
    let host = HostFacts {
        cgroup_v2: machine.cgroup_v2,
        swap_on: machine.memory.swap > 0,
        numa_nodes: machine.numa_nodes,
    };
    let mistakes = check_host(config, host);
    if mistakes.is_empty() {
        return Ok(());
    }
    let all: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
    Err(StartError::new(all.join("; ")))
}

/// Reaches the runtime, or says that it cannot be reached.
async fn connect(
    config: &KubeletConfiguration,
    metrics: Arc<Metrics>,
    closing: cri::Closing,
) -> Result<Arc<dyn Runtime>, StartError> {
    let endpoint = |text: &str| cri::Endpoint::parse(text).map_err(|e| StartError::new(e.to_string()));
    let runtime = endpoint(&config.container_runtime_endpoint)?;
    let images = match config.image_service_endpoint.as_str() {
        "" => None,
        text => Some(endpoint(text)?),
    };
    let client = cri::Client::new(runtime, images, config.runtime_request_timeout.to_std());
    let client = client.with_closing(closing);
    let deadline = tokio::time::Instant::now() + RUNTIME_PATIENCE;
    loop {
        match client.check_version().await {
            Ok(version) => {
                tracing::info!(
                    runtime = version.runtime_name,
                    version = version.runtime_version,
                    "runtime found"
                );
                return Ok(Arc::new(Metered::new(client, metrics)));
            }
            Err(error) if tokio::time::Instant::now() >= deadline => {
                return Err(StartError::new(error.to_string()));
            }
            Err(error) => {
                tracing::warn!(%error, "waiting for the runtime");
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        }
    }
}

/// Every address the kubelet answers on, taken but not served yet.
struct Doors {
    healthz: Option<server::Bound>,
    read_only: Option<server::Bound>,
    secure: Option<secure::Open>,
    local: local_api::Bound,
}

/// Asks the runtime for its cgroup driver, which outranks ours, and tells it the Pod network.
async fn configure_runtime(
    config: &KubeletConfiguration,
    runtime: &dyn Runtime,
) -> Result<Driver, StartError> {
    let mut tries = 0;
    let driver = loop {
        match runtime.runtime_config().await {
            Ok(answer) => {
                let driver = answer.linux.map(|l| l.cgroup_driver());
                break if driver == Some(cri::v1::CgroupDriver::Cgroupfs) { "cgroupfs" } else { "systemd" };
            }
            Err(e) if e.is_unimplemented() => break config.cgroup_driver.as_str(),
            Err(e) if tries >= 2 => return Err(StartError::new(e.to_string())),
            Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
        }
        tries += 1;
    };
    tracing::info!(driver, configured = config.cgroup_driver, "cgroup driver");
    if !config.pod_cidr.is_empty() {
        let told = runtime.update_runtime_config(&config.pod_cidr).await;
        told.map_err(|e| StartError::new(format!("podCIDR {}: {e}", config.pod_cidr)))?;
    }
    Ok(if driver == "systemd" { Driver::Systemd } else { Driver::Cgroupfs })
}

/// What the assembly passes around.
struct Parts<'a> {
    start: &'a Start,
    dirs: PodDirs,
    machine: Machine,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    probe_metrics: Arc<ProbeMetrics>,
    ports: Ports,
    runtime: Arc<dyn Runtime>,
    driver: Driver,
    /// None on a standalone node.
    cluster: Option<Arc<Cluster>>,
    drivers: Arc<Drivers>,
    figures: Arc<VolumeFigures>,
    /// The machine's addresses as last read.
    host_ips: watch::Sender<Vec<IpAddr>>,
}

/// What Pods and volumes refer to beyond their own object.
struct References {
    objects: Arc<dyn Objects>,
    storage: Arc<dyn Storage>,
    accounts: Option<Arc<dyn Accounts>>,
}

impl Parts<'_> {
    async fn node(
        &self,
        health: watch::Receiver<RuntimeHealth>,
        token: &CancellationToken,
    ) -> Result<(Node, Arc<NodeVolumes>), StartError> {
        let wall = self.clock.now().wall.0;
        let mut rng = Rng::new(wall.unsigned_abs());
        let facts = self.facts().await?;
        let io = |what: &'static str| move |e: std::io::Error| StartError::new(format!("{what}: {e}"));
        let sink = self.cluster.as_ref().map(|c| c.event_sink());
        let recorder = Recorder::new(self.clock.clone()).with_sink(sink);
        let files = Arc::new(DiskPodFiles::new(self.dirs.clone(), rng.child()));
        let References { objects, storage, accounts } = self.references(&mut rng, token);
        let volumes = NodeVolumes::open(
            &self.dirs.root,
            facts.recipe.allocatable.clone(),
            self.clock.clone(),
            rng.child(),
        )
        .map_err(io("open the directory of Pods"))?
        .with_objects(objects.clone())
        .with_metrics(self.metrics.clone())
        .with_csi(CsiParts {
            drivers: self.drivers.clone(),
            registrar: self.registrar(),
            storage,
            measured: self.measured(),
            recorder: recorder.clone(),
            figures: self.figures.clone(),
        });
        let volumes = Arc::new(volumes);
        let observer =
            Observer::new(self.runtime.clone(), files.clone(), self.clock.clone(), self.metrics.clone());
        let net = Arc::new(SocketNet);
        let host_ips = HostIps::new(self.own_node(), self.host_ips.subscribe());
        let prober = Prober::new(Hands {
            runtime: self.runtime.clone(),
            net: net.clone(),
            clock: self.clock.clone(),
            recorder: recorder.clone(),
            metrics: self.probe_metrics.clone(),
            host_ips: host_ips.clone(),
            seed: rng.next_u64(),
            started: self.clock.now(),
        });
        let node = Node {
            images: Arc::new(self.images(&recorder, accounts).await?),
            prober: Arc::new(prober),
            userns: self.userns()?,
            board: Arc::default(),
            offer: self.offer(&facts)?,
            own: self.own_node(),
            host_ips,
            shutting_down: watch::Sender::default(),
            settings: settings::pods(&self.start.loaded, rng.next_u64()),
            facts,
            health,
            observer: Arc::new(observer),
            runtime: self.runtime.clone(),
            volumes: volumes.clone(),
            objects,
            files,
            cgroups: self.cgroups(&recorder, token).await?,
            net,
            clock: self.clock.clone(),
            recorder,
            metrics: self.metrics.clone(),
        };
        Ok((node, volumes))
    }

    /// What Pods and volumes refer to, if there is an API server to have it.
    fn references(&self, rng: &mut Rng, token: &CancellationToken) -> References {
        let Some(cluster) = &self.cluster else {
            return References { objects: Arc::new(NoObjects), storage: Arc::new(NoStorage), accounts: None };
        };
        let strategy = settings::strategy(&self.start.loaded.config);
        let clock = self.clock.clone();
        let mut objects = ApiObjects::new(cluster.clone(), strategy, clock, rng.child(), token.clone());
        if self.start.loaded.gates.enabled("ClusterTrustBundleProjection") {
            objects = objects.with_trust_bundles(rng.child());
        }
        let storage = objects.storage();
        let objects = Arc::new(objects);
        References { objects: objects.clone(), storage, accounts: Some(objects) }
    }

    async fn facts(&self) -> Result<NodeFacts, StartError> {
        let Loaded { config, flags, .. } = &self.start.loaded;
        let name = flags.node_name(&self.machine.hostname);
        self.find_host_ips();
        let version = self.runtime.version().await.map_err(|e| StartError::new(e.to_string()))?;
        let status = self.runtime.status().await.map_err(|e| StartError::new(e.to_string()))?;
        Ok(NodeFacts {
            runtime_name: version.runtime_name,
            handlers: status.runtime_handlers,
            strict_groups: status.features.is_some_and(|f| f.supplemental_groups_policy),
            recipe: recipe::NodeFacts {
                name,
                // Asked anew for every recipe, as the resolver below: the machine's network may change.
                host_ips: Vec::new(),
                allocatable: settings::allocatable(config, flags, &self.machine)?,
                memory_capacity: self.machine.memory.total,
                swap_capacity: self.machine.memory.swap,
                swap_controller: self.machine.swap_controller,
                cgroup_v2: self.machine.cgroup_v2,
                hugepage_sizes: self.machine.hugepage_sizes.clone(),
                selinux: self.machine.selinux,
                cluster_dns: settings::cluster_dns(config),
                cluster_domain: config.cluster_domain.clone(),
                resolv_conf: None,
                thermal_paths: self.machine.thermal_paths.clone(),
            },
        })
    }

    fn own_node(&self) -> Option<OwnNodeView> {
        self.cluster.as_ref().map(|c| c.own_node_view())
    }

    /// Where the machine's own addresses may come from.
    fn address_sources(&self) -> Sources {
        let flags = &self.start.loaded.flags;
        Sources {
            given: flags.node_ips(),
            hostname: flags.node_name(&self.machine.hostname),
            external_cloud: flags.cloud_provider == "external",
            ..Sources::default()
        }
    }

    /// A machine without an address may get one later.
    fn find_host_ips(&self) {
        match host_ips::find(&self.address_sources()) {
            Ok(ips) => _ = self.host_ips.send_replace(ips),
            Err(error) => tracing::warn!(%error, "the node's addresses are not known"),
        }
    }

    fn offer(&self, facts: &NodeFacts) -> Result<NodeOffer, StartError> {
        let config = &self.start.loaded.config;
        let sysctls = Allowlist::new(&self.machine.kernel, &config.allowed_unsafe_sysctls);
        let name = &facts.recipe.name;
        let labels = [("hostname", name.as_str()), ("os", "linux"), ("arch", go_arch())];
        let labels = labels.iter().map(|(k, v)| (format!("kubernetes.io/{k}"), (*v).to_owned()));
        Ok(NodeOffer {
            name: name.clone(),
            labels: labels.chain(self.start.loaded.flags.node_labels.clone()).collect(),
            taints: Vec::new(),
            allocatable: facts.recipe.allocatable.clone(),
            extended: std::collections::BTreeMap::new(),
            sysctls: sysctls.map_err(|e| StartError::new(format!("allowedUnsafeSysctls: {e}")))?,
            app_armor: self.machine.app_armor,
            strict_groups: facts.strict_groups,
            no_pod_resources: !self.start.loaded.gates.enabled("PodLevelResources"),
            declared: crate::node::declared_features(&self.start.loaded.gates),
            shutting_down: false,
        })
    }

    /// Id ranges for user namespaces; a node without them runs all other Pods. A record that contradicts the
    /// configuration is another matter: the Pod it speaks of may run.
    fn userns(&self) -> Result<Option<Arc<UsernsStore>>, StartError> {
        let config = &self.start.loaded.config;
        let per_pod = config.user_namespaces.ids_per_pod.and_then(|n| u32::try_from(n).ok()).unwrap_or(65536);
        let max_pods = u32::try_from(config.max_pods).unwrap_or(110);
        match userns::grant(per_pod, max_pods).and_then(|g| UsernsStore::open(&self.dirs.root, g)) {
            Ok(store) => Ok(Some(Arc::new(store))),
            Err(error @ StoreError::Unfit { .. }) => Err(StartError::new(error.to_string())),
            Err(error) => {
                tracing::warn!(%error, "no id ranges for user namespaces");
                Ok(None)
            }
        }
    }

    async fn doors(&self) -> Result<Doors, StartError> {
        let config = &self.start.loaded.config;
        let bind = async |what, address: Option<SocketAddr>| match address {
            Some(address) => {
                server::bind(what, address).await.map(Some).map_err(|e| StartError::new(e.to_string()))
            }
            None => Ok(None),
        };
        let local = local_api::bind(&settings::socket(&self.dirs.root));
        Ok(Doors {
            healthz: bind("healthz", settings::listen(&config.healthz_bind_address, config.healthz_port)?)
                .await?,
            read_only: bind("read-only API", settings::listen(&config.address, config.read_only_port)?)
                .await?,
            secure: self.secure_door().await?,
            local: local.map_err(|e| StartError::new(e.to_string()))?,
        })
    }

    /// Port 10250, where the API server says who may come in.
    async fn secure_door(&self) -> Result<Option<secure::Open>, StartError> {
        let Loaded { config, flags, .. } = &self.start.loaded;
        let name = flags.node_name(&self.machine.hostname);
        let issued = self.cluster.as_ref().filter(|_| config.server_tls_bootstrap).map(|c| c.serving());
        let Some(rules) = port::rules(&self.start.loaded, &name, issued)? else { return Ok(None) };
        let reviews = self.cluster.as_ref().map(|cluster| {
            Arc::new(secure::ApiReviews { client: cluster.client.clone(), node: name })
                as Arc<dyn secure::Reviews>
        });
        let open = secure::open(rules, reviews, self.clock.clone()).await;
        open.map(Some).map_err(|e| StartError::new(e.to_string()))
    }

    /// Sources, dispatcher, collector, log rotation.
    async fn start_pods(
        &self,
        node: &Arc<Node>,
        beat: Beat,
        (local, orders): (local_api::Bound, mpsc::Receiver<EndOrder>),
        tasks: &mut JoinSet<()>,
        token: &CancellationToken,
    ) -> Result<watch::Receiver<Arc<Known>>, StartError> {
        let Loaded { config, flags, .. } = &self.start.loaded;
        let (updates, receiver) = mpsc::channel(sources::CHANNEL);
        let context = Context {
            node: node.facts.recipe.name.as_str().into(),
            clock: node.clock.clone(),
            events: node.recorder.clone(),
            problems: Problems::default(),
        };
        let mut names = Vec::new();
        if let Some(file) = settings::file_source(config) {
            names.push(SourceName::File);
            let (runtime, root) = (node.runtime.clone(), self.dirs.root.clone());
            let (context, updates, token) = (context.clone(), updates.clone(), token.clone());
            tasks.spawn(async move {
                let heritage = token.run_until_cancelled(Heritage::find(runtime, &root)).await;
                if let Some(heritage) = heritage {
                    sources::file::run(file, context, heritage, updates, token).await;
                }
            });
        }
        if let Some(url) = settings::url_source(config) {
            names.push(SourceName::Url);
            tasks.spawn(sources::url::run(url, context.clone(), updates.clone(), token.clone()));
        }
        if let Some(cluster) = &self.cluster {
            names.push(SourceName::Api);
            let (rng, updates) = (node.rng_for("Pods"), updates.clone());
            tasks.spawn(sources::api::run(cluster.clone(), context.clone(), rng, updates, token.clone()));
        }
        names.push(SourceName::Local);
        self.start_local(node, &context, local, updates, tasks, token).await?;
        let dispatcher = Dispatcher::new(node.clone(), receiver, names, beat).with_orders(orders);
        let known = dispatcher.known();
        let collection = settings::gc(config, flags, &self.dirs);
        tasks.spawn(gc::run(node.clone(), known.clone(), collection, token.clone()));
        tasks.spawn(dispatcher.run(token.clone()));
        let rotation = settings::rotation(config)?;
        let rotator = Rotator::new(rotation, node.runtime.clone(), node.clock.clone(), node.metrics.clone());
        tasks.spawn(rotator.run(token.clone()));
        Ok(known)
    }

    /// Pods given by command, over a socket only root can reach.
    async fn start_local(
        &self,
        node: &Arc<Node>,
        context: &Context,
        door: local_api::Bound,
        updates: mpsc::Sender<SourceUpdate>,
        tasks: &mut JoinSet<()>,
        token: &CancellationToken,
    ) -> Result<(), StartError> {
        let opened = LocalPods::open(context.clone(), self.dirs.root.join("local-pods")).await;
        let (local, sets) = opened.map_err(|e| StartError::new(e.to_string()))?;
        tasks.spawn(sources::local::run(sets, context.clone(), updates, token.clone()));
        let view = Arc::new(BoardView {
            board: node.board.clone(),
            recorder: node.recorder.clone(),
            log_root: self.dirs.pod_logs.clone(),
        });
        let streams = Streams::new(Duration::ZERO);
        let api = LocalApi { local, view, runtime: node.runtime.clone(), context: context.clone(), streams };
        tasks.spawn(door.serve(api, self.ports.local(), token.clone()));
        Ok(())
    }

    /// Who lets CSI drivers in.
    fn registrar(&self) -> Registrar {
        let csi_node = self.cluster.as_ref().map(|c| c.csi_node());
        Registrar { drivers: self.drivers.clone(), csi_node, measured: self.measured() }
    }

    fn measured(&self) -> Measured {
        Measured { metrics: self.metrics.clone(), clock: self.clock.clone() }
    }

    /// What keeps the node and its cluster in step.
    fn join_cluster(
        &self,
        node: &Arc<Node>,
        known: watch::Receiver<Arc<Known>>,
        tasks: &mut JoinSet<()>,
        token: &CancellationToken,
    ) -> Result<(), StartError> {
        let Some(cluster) = &self.cluster else { return Ok(()) };
        cluster::join(&mut ClusterDeps {
            cluster,
            node,
            known,
            loaded: &self.start.loaded,
            dirs: &self.dirs,
            machine: &self.machine,
            version: &self.start.version,
            tasks,
            token,
        })
    }

    /// Health, the read-only API, the watchdog.
    fn start_servers(
        &self,
        node: &Arc<Node>,
        beat: Beat,
        [healthz, read_only]: [Option<server::Bound>; 2],
        secure: Option<secure::Open>,
        tasks: &mut JoinSet<()>,
        token: &CancellationToken,
    ) -> Result<(), StartError> {
        let config = &self.start.loaded.config;
        if let Some(bound) = healthz {
            let router = server::healthz_router(Checks::new(vec![Check::ping()]));
            tasks.spawn(bound.serve(router, self.ports.healthz(), token.clone()));
        }
        let checks = Checks::new(vec![
            Check::ping(),
            Check::log(),
            Check::sync_loop(beat, config.sync_frequency.to_std()),
        ]);
        let views = Views {
            checks: checks.clone(),
            pods: node.board.clone(),
            metrics: node.metrics.clone(),
            probe_metrics: self.probe_metrics.clone(),
            connections: self.ports.metrics.clone(),
            runtime: node.runtime.clone(),
            config: Arc::new(config.to_v1beta1()),
            stats: stats::Sources {
                runtime: node.runtime.clone(),
                pods: node.board.clone(),
                clock: node.clock.clone(),
                node_name: node.facts.recipe.name.as_str().into(),
                root: self.dirs.root.clone(),
                meter: Arc::default(),
                volumes: self.figures.clone(),
            },
        };
        if let Some(bound) = read_only {
            let router = server::readonly_router(views.clone());
            tasks.spawn(bound.serve(router, self.ports.read_only(), token.clone()));
        }
        if let Some(open) = secure {
            let streams = Streams::new(config.streaming_connection_idle_timeout.to_std());
            let state = self.server_state(views, streams.clone());
            let (router, connections) = (secure::router(state), self.ports.secure());
            tasks.spawn(open.serve(router, streams, connections, token.clone()));
        }
        self.start_watchdog(checks, tasks, token)
    }

    /// What is behind port 10250.
    fn server_state(&self, views: Views, streams: Streams) -> ServerState {
        let (loaded, cluster) = (&self.start.loaded, self.cluster.clone());
        ServerState {
            views,
            streams,
            mirrors: Arc::new(move |uid| cluster.as_ref()?.api_pods.get(uid)?.mirrors),
            clock: self.clock.clone(),
            switches: port::switches(loaded),
            pod_logs: self.dirs.pod_logs.clone(),
            root: self.dirs.root.clone(),
            verbosity: self.start.verbosity.clone(),
            about: port::about(loaded, &self.start.version, self.clock.now().wall.secs()),
        }
    }

    /// A resolver file that Pods cannot inherit whole is told once, on the node: it is no single Pod's matter.
    async fn check_resolver(&self, node: &Node) {
        let Some(path) = &self.dirs.resolv_conf else { return };
        let domain = &node.facts.recipe.cluster_domain;
        let told = match node.files.node_resolver().await {
            Ok(text) => {
                recipe::check_resolver(&path.display().to_string(), &text.unwrap_or_default(), domain)
            }
            Err(error) => Err(error.to_string()),
        };
        if let Err(message) = told {
            let name = &node.facts.recipe.name;
            node.recorder.node(name, Kind::Warning, "CheckLimitsForResolvConf", message);
        }
    }

    /// The metrics that never change.
    fn describe(&self, node: &Node) {
        let metrics = &self.metrics;
        metrics.node_name.set([&node.facts.recipe.name], 1.0);
        metrics.cgroup_version.set([], if self.machine.cgroup_v2 { 2.0 } else { 1.0 });
        for gate in GATES {
            let stage = match gate.stage {
                Stage::Alpha => "ALPHA",
                Stage::Beta => "BETA",
                Stage::Ga => "",
                Stage::Deprecated => "DEPRECATED",
            };
            let on = self.start.loaded.gates.enabled(gate.name);
            metrics.kubernetes_feature_enabled.set([gate.name, stage], f64::from(u8::from(on)));
        }
        let version = self.start.version.as_str();
        let mut numbers = version.trim_start_matches('v').split('.');
        let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
        let platform = format!("{}/{}", std::env::consts::OS, go_arch());
        let labels = [major, minor, version, "", "", "", "", "rustc", &platform];
        metrics.kubernetes_build_info.set(labels, 1.0);
    }

    fn start_watchdog(
        &self,
        checks: Checks,
        tasks: &mut JoinSet<()>,
        token: &CancellationToken,
    ) -> Result<(), StartError> {
        let systemd = self.start.systemd.clone();
        let limit = systemd.watchdog(std::process::id()).map_err(|e| StartError::new(e.to_string()))?;
        if let Some(limit) = limit {
            let token = token.clone();
            tasks.spawn(async move { systemd.watch(limit, || checks.verdict(), token).await });
        }
        Ok(())
    }
}
