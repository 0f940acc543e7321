//! The assembly: configuration and machine in, a running kubelet out.
//!
//! | task | input | output |
//! |---|---|---|
//! | sources (file, url, local) | manifests | `mpsc<SourceUpdate>` to the dispatcher |
//! | dispatcher | updates, ended Pod tasks, strangers | `watch<Intent>` per Pod |
//! | Pod tasks, one each | intent, wake, verdicts | effects through the ports, status on the board |
//! | observer | the runtime's events, relists | a wake per Pod |
//! | prober, one task per probe | observed containers | `watch<Verdicts>` per Pod |
//! | health | CRI Status | `watch<RuntimeHealth>` |
//! | collector, log rotation | the runtime, the disk | fewer files |
//! | servers | the board, the metrics | answers |
//! | cluster (with --kubeconfig) | the API server | Pods, and the node as others see it |
//!
//! All of them end when the token is cancelled; containers never do. One that panics is started again, except for those
//! whose loss only a new process can make good: the dispatcher, whose Pod tasks die with it, the servers, whose ports are
//! lost, and the watch on the lock file.

mod cgroups;
pub mod cluster;
mod defence;
mod images;
mod node;
mod placement;
mod pods;
mod port;
mod root;
mod runtime;
mod servers;
mod settings;
mod shutdown_config;
mod system;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::config::kubelet::{HostFacts, KubeletConfiguration, KubeletFlags, Loaded, check_host};
use base::time::Clock;
use base::verbosity::Verbosity;
use kubelet_core::cgroup::Driver;
use kubelet_core::dispatch::Known;
use supervise::Supervisor;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cluster::{Cluster, Opening};
use crate::host::clock::SystemClock;
use crate::host::facts::{self, Machine};
use crate::host::lock_file::{Contention, LockFile};
use crate::host::{iptables, process};
use crate::metrics::{Metrics, ProbeMetrics};
use crate::node::shutdown::Shutdown;
use crate::node::{ClusterDeps, memory_release};
use crate::plugin_watcher::{self, PluginWatcher};
use crate::pods::beat::Beat;
use crate::pods::host_ips;
use crate::pods::node::Node;
use crate::pods::pod_files::PodDirs;
use crate::ports::Runtime;
use crate::runtime::health::{RuntimeHealth, watch_health};
use crate::runtime::observer::watch_runtime;
use crate::server::Ports;
use crate::server::local_api::Forecasts;
use crate::volumes::drivers::Drivers;
use crate::volumes::{NodeVolumes, VolumeFigures};

pub use crate::start_error::StartError;
pub use client::{Proxies, Within};
pub use systemd::{Places, Systemd};

/// How long calls to the runtime that are under way hold up the exit; systemd waits 90 s before it kills.
const EXIT_GRACE: Duration = Duration::from_secs(10);

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
    /// An API server inside this process; its kubeconfig is then not read.
    pub within: Option<Within>,
    /// The version shown in metrics.
    pub version: String,
    /// How much is logged.
    pub verbosity: Verbosity,
}

impl Start {
    fn opening(&self) -> Opening<'_> {
        Opening {
            loaded: &self.loaded,
            version: &self.version,
            proxies: &self.proxies,
            within: self.within.as_ref(),
        }
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
    let machine = facts::read_machine(&dirs.root);
    let machine = machine.map_err(|e| StartError::new(format!("read /proc and /sys: {e}")))?;
    refuse_unfit(config, &machine)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let metrics = Arc::new(Metrics::default());
    let closing = cri::Closing::when(token.clone());
    let runtime = runtime::connect(config, metrics.clone(), closing.clone()).await?;
    let driver = runtime::configure_runtime(config, &*runtime).await?;
    let name = flags.node_name(&machine.hostname);
    let cluster = Cluster::open(start.opening(), &name, clock.now().wall, &metrics).await?;
    let (probe_metrics, drivers, figures) = (Arc::default(), Arc::default(), Arc::default());
    let builder = Builder {
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
        forecasts: Arc::default(),
        host_ips: watch::Sender::default(),
    };
    let tasks = Supervisor::new(token);
    let ready = builder.ready(contention, tasks.token()).await?;
    builder.start(ready, &tasks).await?;
    start.systemd.ready();
    tracing::info!(node = name, "kubelet started");
    wait_for_the_end(&tasks, &closing).await
}

/// The lock file, if one is wanted, and a watch for whoever else wants it.
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

/// No new work is begun after the token was cancelled, and what the runtime was asked to do is waited for, though not for
/// ever.
async fn wait_for_the_end(tasks: &Supervisor, closing: &cri::Closing) -> Result<(), StartError> {
    tasks.token().cancelled().await;
    let deadline = Instant::now() + EXIT_GRACE;
    let left = tasks.stop(EXIT_GRACE).await;
    let finished = tokio::time::timeout_at(deadline, closing.finished()).await;
    if left > 0 || finished.is_err() {
        let calls = closing.unfinished();
        tracing::warn!(tasks = left, calls, "exiting although not everything under way has ended");
    }
    match tasks.failure() {
        Some(failure) => Err(StartError::new(failure.to_string())),
        None => Ok(()),
    }
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

/// What the assembly passes around.
struct Builder<'a> {
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
    /// Who would be evicted, once somebody can tell.
    forecasts: Arc<OnceLock<Arc<dyn Forecasts>>>,
    /// The machine's addresses as last read.
    host_ips: watch::Sender<Vec<IpAddr>>,
}

/// What has to be there before the first task starts.
struct Ready {
    node: Arc<Node>,
    volumes: Arc<NodeVolumes>,
    health: watch::Sender<RuntimeHealth>,
    listeners: servers::Listeners,
    contention: Option<Contention>,
}

impl Builder<'_> {
    async fn ready(
        &self,
        contention: Option<Contention>,
        token: &CancellationToken,
    ) -> Result<Ready, StartError> {
        let (health, healthy) = watch::channel(RuntimeHealth::default());
        let (node, volumes) = self.node(healthy, token).await?;
        // A second kubelet is found out here, before it takes the first one's Pods for orphans.
        let listeners = self.listeners().await?;
        Ok(Ready { node: Arc::new(node), volumes, health, listeners, contention })
    }

    /// Starts every task of the kubelet.
    async fn start(&self, ready: Ready, tasks: &Supervisor) -> Result<(), StartError> {
        let Ready { node, volumes, health, listeners, contention } = ready;
        if let Some(contention) = contention {
            tasks.essential("lock_file", contention.leave(tasks.token().clone()));
        }
        self.start_system(tasks)?;
        self.start_upkeep(&node, health, tasks);
        self.start_volumes(&volumes, tasks);
        self.start_devices(&node, tasks)?;
        let beat = Beat::new(node.clock.clone());
        let (orders, obeyed) = mpsc::channel(64);
        let known = self.start_pods(&node, beat.clone(), (listeners.local, obeyed), tasks).await?;
        let sampler = Arc::new(self.sampler(&node));
        self.start_defence(&node, orders.clone(), known.clone(), sampler.clone(), tasks);
        if let Some(shutdown) = self.shutdown(&node, orders) {
            tasks.lasting("shutdown", shutdown, Shutdown::run);
        }
        self.start_servers(&node, beat, listeners.open, sampler, tasks)?;
        self.join_cluster(&node, known, tasks)?;
        let watcher =
            PluginWatcher::new(self.dirs.root.join(plugin_watcher::DIR), self.plugin_handlers(&node));
        tasks.lasting("plugin_watcher", watcher, PluginWatcher::run);
        self.describe(&node);
        self.check_resolver(&node).await;
        Ok(())
    }

    /// What looks after the machine and its runtime.
    fn start_upkeep(&self, node: &Arc<Node>, health: watch::Sender<RuntimeHealth>, tasks: &Supervisor) {
        tasks.lasting("runtime_health", (node.runtime.clone(), health), |(runtime, health), end| {
            watch_health(runtime, health, end)
        });
        tasks.lasting("observer", node.observer.clone(), watch_runtime);
        tasks.lasting("memory_release", node.board.clone(), memory_release::run);
        let addresses = (self.address_sources(), self.host_ips.clone());
        tasks.lasting("host_addresses", addresses, |(sources, found), end| {
            host_ips::watch_machine(sources, found, end)
        });
        if self.start.loaded.config.make_iptables_util_chains {
            tasks.lasting("iptables_chains", (), |(), end| iptables::keep(end));
        }
    }

    fn start_volumes(&self, volumes: &Arc<NodeVolumes>, tasks: &Supervisor) {
        let period = self.start.loaded.config.volume_stats_agg_period.to_std();
        tasks.lasting("volume_sweep", volumes.clone(), NodeVolumes::sweep);
        tasks.lasting("csi_limits", volumes.clone(), NodeVolumes::refresh);
        tasks.lasting("volume_stats", volumes.clone(), move |volumes, end| volumes.measure(period, end));
    }

    /// What keeps the node and its cluster in step.
    fn join_cluster(
        &self,
        node: &Arc<Node>,
        known: watch::Receiver<Arc<Known>>,
        tasks: &Supervisor,
    ) -> Result<(), StartError> {
        let Some(cluster) = &self.cluster else { return Ok(()) };
        cluster::join(&ClusterDeps {
            cluster,
            node,
            known,
            loaded: &self.start.loaded,
            dirs: &self.dirs,
            machine: &self.machine,
            version: &self.start.version,
            tasks,
        })
    }
}

#[cfg(test)]
mod tests;
