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
//! All of them end when the token is cancelled; containers never do.

mod cgroups;
pub mod cluster;
mod images;
mod node;
mod pods;
mod port;
mod root;
mod runtime;
mod servers;
mod settings;
mod shutdown_config;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::config::kubelet::{HostFacts, KubeletConfiguration, KubeletFlags, Loaded, check_host};
use base::time::Clock;
use base::verbosity::Verbosity;
use kubelet_core::cgroup::Driver;
use kubelet_core::dispatch::Known;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cluster::{Cluster, Opening};
use crate::host::clock::SystemClock;
use crate::host::facts::{self, Machine};
use crate::host::lock_file::{Contention, LockFile};
use crate::host::{iptables, process};
use crate::metrics::{Metrics, ProbeMetrics};
use crate::node::{ClusterDeps, memory_release};
use crate::plugins;
use crate::pods::beat::Beat;
use crate::pods::host_ips;
use crate::pods::node::Node;
use crate::pods::pod_files::PodDirs;
use crate::ports::Runtime;
use crate::runtime::health::{RuntimeHealth, watch_health};
use crate::runtime::observer::watch_runtime;
use crate::server::Ports;
use crate::volumes::VolumeFigures;
use crate::volumes::drivers::Drivers;

pub use crate::start_error::StartError;
pub use client::Proxies;
pub use systemd::{Places, Systemd};

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
        host_ips: watch::Sender::default(),
    };
    let (health, healthy) = watch::channel(RuntimeHealth::default());
    let (node, volumes) = builder.node(healthy, &token).await?;
    let node = Arc::new(node);
    // A second kubelet is found out here, before it takes the first one's Pods for orphans.
    let listeners = builder.listeners().await?;
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
    tasks.spawn(host_ips::watch_machine(builder.address_sources(), builder.host_ips.clone(), token.clone()));
    if config.make_iptables_util_chains {
        tasks.spawn(iptables::keep(token.clone()));
    }
    let beat = Beat::new(node.clock.clone());
    let (orders, obeyed) = mpsc::channel(64);
    let known =
        builder.start_pods(&node, beat.clone(), (listeners.local, obeyed), &mut tasks, &token).await?;
    if let Some(shutdown) = builder.shutdown(&node, orders) {
        tasks.spawn(shutdown.run(token.clone()));
    }
    let (open, secure) = ([listeners.healthz, listeners.read_only], listeners.secure);
    builder.start_servers(&node, beat, open, secure, &mut tasks, &token)?;
    builder.join_cluster(&node, known, &mut tasks, &token)?;
    tasks.spawn(plugins::run(builder.dirs.root.join(plugins::DIR), builder.registrar(), token.clone()));
    builder.describe(&node);
    builder.check_resolver(&node).await;
    start.systemd.ready();
    tracing::info!(node = node.facts.cri_config.name, "kubelet started");
    supervise(tasks, token, &closing).await
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
    /// The machine's addresses as last read.
    host_ips: watch::Sender<Vec<IpAddr>>,
}

impl Builder<'_> {
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
}
