//! kube-proxy as a whole: from a configuration to running tasks.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::config::proxy::{KubeProxyConfiguration, Loaded, Mode};
use base::rng::Rng;
use base::verbosity::Verbosity;
use client::{Client, Config, Options, Within};
use jiff::Timestamp;
use proxy_core::objects::{Cluster, Family};
use proxy_core::rules::{Host, NodeRules, Settings};
use supervise::Supervisor;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::config_warnings::{Scene, primary_family};
pub use crate::error::Error;
use crate::events::{self, Notice};
use crate::metrics::Metrics;
use crate::observed::{HealthChecks, Observed, Triggers};
use crate::ports::Dataplane;
use crate::server::{self, Health, Ports, Status, Watched};
use crate::settings::{self, duration};
use crate::sync::{self, Gap, Periods, Report};
use crate::watch::{Informers, Seen};
use crate::{Update, cleanup, config_file, host, modes};

/// For the Node to have addresses, before we go on without them.
const NODE_TIMEOUT: Duration = Duration::from_secs(30);
/// For the Node to have Pod addresses, where they are needed.
const POD_CIDR_TIMEOUT: Duration = Duration::from_secs(300);
/// News that the loop has not taken yet.
const QUEUE: usize = 1024;

/// For an event that is told before the end.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// What the server on 10256 is for.
const HEALTH: &str = "health";

/// What the binary knows and nobody else asks for.
#[derive(Clone, Debug)]
pub struct Start {
    pub loaded: Loaded,
    pub hostname: String,
    /// `KUBERNETES_SERVICE_HOST` and `KUBERNETES_SERVICE_PORT`.
    pub in_cluster: (Option<String>, Option<String>),
    /// An API server inside this process; no kubeconfig is then read.
    pub within: Option<Within>,
    /// Whether `KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK` says anything.
    pub any_kernel: bool,
    /// Whether a Service whose endpoints are all on this node sees who calls it from outside, whatever its policy. Only where
    /// the network of Pods is ours.
    pub keeps_sources: bool,
    pub version: String,
    /// Spreads the retries of many nodes.
    pub seed: u64,
    /// How much is logged.
    pub verbosity: Verbosity,
}

/// Removes the rules of every mode.
pub fn clean_up() -> Result<(), Error> {
    let errors = cleanup::remove_others(None);
    if errors.is_empty() { Ok(()) } else { Err(Error::Cleanup(errors.join("; "))) }
}

fn set_oom_score_adj(value: i32) {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", value.to_string()) {
        tracing::warn!(value, %error, "own oom_score_adj not set");
    }
}

/// Runs until cancelled, or until something ends that must not. The kernel keeps its rules.
pub async fn run(start: Start, token: CancellationToken) -> Result<(), Error> {
    let config = start.loaded.config.clone();
    let watch = start.loaded.file.as_deref().map(watch_config).transpose()?;
    // First of all: who cannot ask for Services leaves the kernel as it is.
    let metrics = Arc::new(Metrics::default());
    metrics.set_version(&start.version);
    let queue = events::queue();
    let client = connect(&start, &metrics, &queue.0).await?;
    let (chosen, told) = {
        let (config, any_kernel) = (config.clone(), start.any_kernel);
        tokio::task::spawn_blocking(move || modes::choose(&config, any_kernel)).await??
    };
    tracing::info!(mode = chosen.name(), version = start.version, "starting kube-proxy");
    tracing::info!("Using {} Proxier", chosen.name());
    set_oom_score_adj(config.oom_score_adj);
    modes::initialise(&config, chosen)?;
    for error in tokio::task::spawn_blocking(move || cleanup::remove_others(Some(chosen))).await? {
        tracing::warn!(error, "left-overs of another mode stay");
    }
    let file = start.loaded.file.clone();
    let guard = token.child_token();
    let _stop = guard.clone().drop_guard();
    let mut agent = Agent::new(start, client, metrics, chosen, queue, Supervisor::new(guard.clone()));
    if let Some(told) = told {
        tracing::warn!(told, "the usual mode is not possible");
        let _ = agent.events.try_send(Notice::warning("ProxyModeFallback", "StartKubeProxy", told));
    }
    if chosen == Mode::Ipvs {
        tracing::error!("{}", modes::IPVS_DEPRECATION);
        let notice = Notice::warning("IPVSDeprecation", "StartKubeProxy", modes::IPVS_DEPRECATION);
        let _ = agent.events.try_send(notice);
    }
    tokio::select! {
        ended = agent.run(guard) => ended,
        changed = config_change(file.as_deref(), watch) => Err(changed),
        // A change under way in the kernel is made whole or not at all, with or without us.
        () = token.cancelled() => Ok(()),
    }
}

struct Agent {
    start: Start,
    chosen: Mode,
    settings: Settings,
    node_name: String,
    informers: Informers,
    triggers: Triggers,
    news: Option<mpsc::Receiver<Update>>,
    events: mpsc::Sender<Notice>,
    node: Seen,
    ports: Ports,
    rng: Rng,
}

// === impl Agent ===

impl Agent {
    fn new(
        start: Start,
        client: Client,
        metrics: Arc<Metrics>,
        chosen: Mode,
        queue: events::Queue,
        tasks: Supervisor,
    ) -> Self {
        let config = &start.loaded.config;
        let node_name = config.node_name(&start.hostname);
        let (events, notices) = queue;
        events::start(client.clone(), node_name.clone(), notices, &tasks);
        let (sender, news) = mpsc::channel(QUEUE);
        serve::raise_open_files();
        let ports = Ports::new(metrics.connections.clone(), serve::Budget::now());
        let informers = Informers { client, news: sender, metrics, tasks };
        let mut rng = Rng::new(start.seed);
        let node = informers.watch_node(&node_name, rng.child());
        Self {
            settings: Settings { keeps_sources: start.keeps_sources, ..settings::settings(config, chosen) },
            chosen,
            node_name,
            informers,
            triggers: Triggers::default(),
            news: Some(news),
            events,
            node,
            ports,
            rng,
            start,
        }
    }

    async fn run(&mut self, token: CancellationToken) -> Result<(), Error> {
        let config = self.start.loaded.config.clone();
        let metrics = self.informers.metrics.clone();
        let (report, heard) = watch::channel(Report::default());
        let (full, least) = config.periods(self.chosen);
        let tasks = &self.informers.tasks;
        let (shown, told) = ((metrics.clone(), heard.clone()), (heard.clone(), self.events.clone()));
        tasks.restart("metrics of the loop", move || shown.0.clone().follow(shown.1.clone()));
        tasks.restart("events of contested rules", move || tell_contests(told.0.clone(), told.1.clone()));
        let health = Health::new(heard, self.node.clone(), duration(full), metrics.clone());
        let mut servers = self.start_servers(&config, &health, &token);
        let _ = self.events.try_send(Notice::normal("Starting", "StartKubeProxy", ""));
        self.wait_for_node().await?;
        let own = host::addresses();
        let (planes, checks) = self.open_planes(&config)?;
        let families: Vec<Family> = planes.iter().map(|(family, _)| *family).collect();
        self.warn_of_settings(&config, &families)?;
        self.serve_checks(checks, &own, &health, &token);
        // Both queues hold this, so it cannot wait: nobody reads yet.
        let _ = self.informers.news.try_send(Update::Host(own.clone()));
        let news = self.informers.news.clone();
        let watch = move || host::watch_addresses(news.clone(), own.clone());
        self.informers.tasks.restart("watch of the host's addresses", watch);
        let Some(news) = self.news.take() else { return Ok(()) };
        let settings = sync::Config {
            node_name: self.node_name.clone(),
            settings: self.settings.clone(),
            periods: Periods {
                gap: match self.start.loaded.says_min_sync_period(self.chosen) {
                    true => Gap::Said(duration(least)),
                    false => Gap::AtMost(duration(least)),
                },
                verify: modes::look_period(&config, self.chosen),
                retry: duration(full),
            },
            triggers: self.triggers.clone(),
        };
        let mut syncing = Box::pin(sync::run(settings, planes, news, Arc::new(report), token.clone()));
        let starting = self.start_informers();
        tokio::pin!(starting);
        tokio::select! {
            done = &mut syncing => return Ok(done?),
            () = &mut starting => {}
        }
        tokio::select! {
            done = syncing => Ok(done?),
            Some(ended) = servers.join_next() => match ended? {
                Ok(()) => Ok(()),
                Err(error) => Err(self.without_server(error).await),
            },
            moved = self.pod_cidr_change() => Err(moved),
        }
    }

    /// A server that must be there and cannot is the end, which users are told.
    async fn without_server(&self, error: server::BindError) -> Error {
        let reason = match error.what.as_str() {
            HEALTH => "FailedToStartProxierHealthcheck",
            _ => "FailedToStartMetricServer",
        };
        let notice = Notice::warning(reason, "StartKubeProxy", error.to_string());
        let sending = events::send(&self.informers.client, &self.node_name, &notice);
        // The API server may be away as well.
        let _ = tokio::time::timeout(LAST_WORDS, sending).await;
        error.into()
    }

    /// Ranges before Services, so that the first rules are whole.
    async fn start_informers(&self) {
        let mut rng = self.rng.clone();
        self.informers.watch_service_cidrs(rng.child()).await;
        self.informers.watch_services(rng.child());
        self.informers.watch_slices(rng.child());
    }

    fn start_servers(
        &self,
        config: &KubeProxyConfiguration,
        health: &Health,
        token: &CancellationToken,
    ) -> tokio::task::JoinSet<Result<(), server::BindError>> {
        let mut servers = tokio::task::JoinSet::new();
        let hard = config.bind_address_hard_fail;
        let status = Status {
            mode: self.chosen.name(),
            is_profiled: config.enable_profiling,
            verbosity: self.start.verbosity.clone(),
            config: Arc::new(config.in_force(self.chosen).to_v1alpha1()),
            metrics: self.informers.metrics.clone(),
            about: Arc::new(server::About {
                version: self.start.version.clone(),
                started: started(),
                flags: self.start.loaded.flag_values.clone(),
            }),
            checks: Arc::default(),
        };
        let routers = [
            (
                HEALTH,
                &config.healthz_bind_address,
                server::health_router(health.clone()),
                self.ports.healthz(),
            ),
            ("metrics", &config.metrics_bind_address, server::status_router(status), self.ports.metrics()),
        ];
        for (what, address, router, connections) in routers {
            // Validation let only addresses pass, and an empty one for no server.
            if let Ok(address) = address.parse::<SocketAddr>() {
                servers.spawn(server::serve_on(what, address, router, connections, hard, token.clone()));
            }
        }
        servers
    }

    fn serve_checks(
        &self,
        checks: Vec<(Family, watch::Receiver<HealthChecks>)>,
        own: &Host,
        health: &Health,
        token: &CancellationToken,
    ) {
        let mut cluster = Cluster::new(&self.node_name);
        if let Some(node) = self.node.borrow().as_ref() {
            cluster.set_node(node.clone());
        }
        for (family, checks) in checks {
            let addresses = NodeRules::compile(&self.settings, &cluster, own, family).node_port_addresses;
            let (health, events) = (health.clone(), self.events.clone());
            let node_name = self.node_name.clone();
            let connections = self.ports.checks();
            let watched = Watched { node_name, family, checks, addresses, health, events, connections };
            let token = token.clone();
            let serve = move || server::serve_checks(watched.clone(), token.clone());
            self.informers.tasks.restart("health check ports of Services", serve);
        }
    }

    fn warn_of_settings(&self, config: &KubeProxyConfiguration, families: &[Family]) -> Result<(), Error> {
        let node = self.node.borrow();
        let scene = Scene { config, chosen: self.chosen, node: node.as_ref(), families };
        for warning in scene.warnings()? {
            tracing::error!(err = warning, "Kube-proxy configuration may be incomplete or incorrect");
        }
        let family = primary_family(config, node.as_ref()).name();
        match families.len() {
            1 => tracing::info!(ipFamily = family, "kube-proxy running in single-stack mode"),
            _ => tracing::info!(ipFamily = family, "kube-proxy running in dual-stack mode"),
        }
        Ok(())
    }

    #[allow(clippy::type_complexity)]
    fn open_planes(
        &self,
        config: &KubeProxyConfiguration,
    ) -> Result<(Vec<(Family, Box<dyn Dataplane>)>, Vec<(Family, watch::Receiver<HealthChecks>)>), Error>
    {
        let (mut planes, mut checks) = (Vec::new(), Vec::new());
        for family in Family::BOTH {
            if family == Family::V6 && !host::has_ipv6() {
                tracing::info!("the kernel has no IPv6, serving IPv4 alone");
                continue;
            }
            let Some(plane) = modes::open(config, self.chosen, family, &self.informers.metrics)? else {
                continue;
            };
            let is_nftables = self.chosen == Mode::Nftables;
            let (metrics, triggers) = (self.informers.metrics.clone(), self.triggers.clone());
            let (observed, heard) = Observed::new(plane, family, is_nftables, metrics, triggers);
            planes.push((family, Box::new(observed) as Box<dyn Dataplane>));
            checks.push((family, heard));
        }
        Ok((planes, checks))
    }

    /// Rules made without the Node would be wrong where they depend on it; but a Node that never comes must not keep
    /// Services from working.
    async fn wait_for_node(&mut self) -> Result<(), Error> {
        let needs_pods = self.start.loaded.config.detect_local_mode == "NodeCIDR";
        let has_pods = |node: &proxy_core::objects::NodeView| {
            Family::BOTH.into_iter().any(|family| node.pod_cidr(family).is_some())
        };
        // A Node that has just registered has none yet.
        let seen = self.node.wait_for(|node| node.as_ref().is_some_and(|node| node.primary().is_some()));
        if tokio::time::timeout(NODE_TIMEOUT, seen).await.is_err() {
            tracing::warn!(node = self.node_name, "the Node has no addresses, starting without them");
        }
        if !needs_pods {
            return Ok(());
        }
        let ready = self.node.wait_for(|node| node.as_ref().is_some_and(has_pods));
        match tokio::time::timeout(POD_CIDR_TIMEOUT, ready).await {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::NoPodCidr(self.node_name.clone())),
        }
    }

    /// Everything rests on the Pod addresses in that mode: better a new start than half of the rules.
    async fn pod_cidr_change(&self) -> Error {
        let cidrs = |seen: &Seen| {
            let node = seen.borrow();
            node.as_ref().map(|node| Family::BOTH.map(|family| node.pod_cidr(family)))
        };
        let mut seen = self.node.clone();
        let first = cidrs(&seen);
        while self.start.loaded.config.detect_local_mode == "NodeCIDR" && seen.changed().await.is_ok() {
            if cidrs(&seen) != first {
                return Error::NewPodCidr(self.node_name.clone());
            }
        }
        std::future::pending().await
    }
}

/// Warns on the Node, once for each who changes our rules again and again.
async fn tell_contests(mut report: watch::Receiver<Report>, events: mpsc::Sender<Notice>) {
    let mut told: Option<String> = None;
    while report.changed().await.is_ok() {
        let by = report.borrow_and_update().families.iter().find_map(|family| family.contested_by.clone());
        if let Some(by) = by.as_ref().filter(|_| by != told) {
            let note = format!("{by} changes the rules of kube-proxy each time they are put right");
            let _ = events.try_send(Notice::warning("RulesContested", "SyncProxyRules", note));
        }
        told = by;
    }
}

/// When this process began, or now if the kernel does not tell.
fn started() -> Timestamp {
    let told = sys::process::started().and_then(|at| Timestamp::from_second(at as i64).ok());
    told.unwrap_or_else(Timestamp::now)
}

fn watch_config(path: &Path) -> Result<config_file::Watch, Error> {
    let failed = |cause| Error::WatchConfig { path: path.display().to_string(), cause };
    config_file::Watch::begin(path).map_err(failed)
}

async fn config_change(path: Option<&Path>, watch: Option<config_file::Watch>) -> Error {
    let (Some(path), Some(mut watch)) = (path, watch) else { return std::future::pending().await };
    let label = path.display().to_string();
    match watch.changed().await {
        Ok(()) => Error::NewConfig(label),
        Err(cause) => Error::WatchConfig { path: label, cause },
    }
}

async fn connect(
    start: &Start,
    metrics: &Arc<Metrics>,
    events: &mpsc::Sender<Notice>,
) -> Result<Client, Error> {
    let config = &start.loaded.config.client_connection;
    let options = Options {
        user_agent: format!("kube-proxy/{}", start.version),
        qps: config.qps,
        burst: u32::try_from(config.burst).unwrap_or(0),
        meter: Some(metrics.of_requests()),
        on_unreadable: Some(events::of_unreadable(metrics.clone(), events)),
        ..Options::default()
    };
    if let Some(within) = &start.within {
        return Ok(Client::over(within.0.clone(), options));
    }
    let access = Config::of_flags(&config.kubeconfig, &start.loaded.flags.master, &start.in_cluster)?;
    Ok(Client::new(access, options).await?)
}
