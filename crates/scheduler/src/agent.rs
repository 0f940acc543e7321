//! kube-scheduler as a whole: from a configuration to running tasks.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use api::config::scheduler::{Loaded, Profile as ProfileConfig};
use base::class::{Class, Classify};
use base::rng::Rng;
use base::time::{Clock, Mono, Now, Wall};
use client::leader_election::{LeaderElection, Terms};
use client::{Client, Config, Meter, Options};
use scheduler_core::cluster::Cluster;
use scheduler_core::cycle::Sampling;
use scheduler_core::extender::Objects;
use scheduler_core::profile::{Profile, Profiles};
use scheduler_core::queue::{Pauses, Queue};
use supervise::Supervisor;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::bind::Outcome;
use crate::events::Recorder;
use crate::extenders::Extenders;
use crate::informers::{Informers, News};
use crate::seen::Seen;
use crate::state::Scheduler;

/// News that the loop has not taken yet, and ends of what it began.
const QUEUE: usize = 1024;
/// News taken before the next Pod has its turn.
const NEWS_AT_ONCE: usize = 256;
/// Bindings under way; the next Pod waits for one to end.
const MOST_BINDINGS: usize = 256;

/// What the binary knows and nobody else asks for.
#[derive(Clone, Debug)]
pub struct Start {
    pub loaded: Loaded,
    pub hostname: String,
    /// `KUBERNETES_SERVICE_HOST` and `KUBERNETES_SERVICE_PORT`.
    pub in_cluster: (Option<String>, Option<String>),
    pub version: String,
    /// Chooses among equal nodes, and spreads retries.
    pub seed: u64,
    pub seen: Seen,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Client(#[from] client::ClientError),
    #[error(transparent)]
    Kubeconfig(#[from] client::ConfigError),
    #[error("leaderelection lost")]
    LeaseLost,
    #[error("initializing extenders: {0}")]
    Extender(client::ClientError),
    #[error("initializing profiles: {0}")]
    Profile(String),
    #[error("{0}")]
    Task(supervise::Failure),
}

impl Classify for Error {
    fn class(&self) -> Class {
        Class::Fault
    }
}

/// Runs until cancelled.
pub async fn run(start: Start, token: CancellationToken) -> Result<(), Error> {
    let connection = &start.loaded.config.client_connection;
    let meter = start.seen.metrics();
    let options = Options {
        meter: Some(Meter::new(move |asked| meter.asked(asked))),
        user_agent: format!("kube-scheduler/{}", start.version),
        qps: connection.qps,
        burst: u32::try_from(connection.burst).unwrap_or(0),
        ..Options::default()
    };
    let access = Config::of_flags(&connection.kubeconfig, &start.loaded.flags.master, &start.in_cluster)?;
    let client = Client::new(access, options).await?;
    run_with(start, client, token).await
}

/// The same with a client of the caller's: holds the Lease where it is asked to, and ends when the Lease is lost.
pub async fn run_with(start: Start, client: Client, token: CancellationToken) -> Result<(), Error> {
    if !start.loaded.config.leader_election.leader_elect {
        return work(start, client, token).await;
    }
    let mut election = election(&start, &client);
    let (metrics, name) = (start.seen.metrics(), ["kube-scheduler"]);
    metrics.leader.set(name, 0.0);
    if token.run_until_cancelled(election.acquire()).await.is_none() {
        return Ok(());
    }
    metrics.leader.set(name, 1.0);
    let guard = token.child_token();
    let ended = tokio::select! {
        ended = work(start, client, guard.clone()) => ended,
        () = election.hold() => return Err(Error::LeaseLost),
    };
    metrics.leader.set(name, 0.0);
    election.release().await;
    ended
}

fn election(start: &Start, client: &Client) -> LeaderElection {
    let config = &start.loaded.config.leader_election;
    let mut rng = Rng::new(start.seed ^ 0x6c65_6164);
    let terms = Terms {
        namespace: config.resource_namespace.clone(),
        name: config.resource_name.clone(),
        identity: format!("{}_{:016x}{:016x}", start.hostname, rng.next_u64(), rng.next_u64()),
        lease_duration: config.lease_duration.to_std(),
        renew_deadline: config.renew_deadline.to_std(),
        retry_period: config.retry_period.to_std(),
    };
    // Its own connections: a busy loop must not cost the Lease.
    let options = Options { user_agent: "leader-election".to_owned(), ..Options::default() };
    LeaderElection::new(client.again(options), terms, Arc::new(SystemClock(Instant::now())), rng)
}

/// The clock of the machine; tokio's for what is measured, so that a paused one is obeyed.
#[derive(Debug)]
struct SystemClock(Instant);

impl Clock for SystemClock {
    fn now(&self) -> Now {
        let wall = i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX);
        Now { mono: Mono(self.0.elapsed()), wall: Wall(wall) }
    }
}

async fn work(start: Start, client: Client, token: CancellationToken) -> Result<(), Error> {
    start.seen.begin();
    let guard = token.child_token();
    let _stop = guard.clone().drop_guard();
    let tasks = Supervisor::new(guard.clone());
    let (news, heard) = mpsc::channel(QUEUE);
    let (outcomes, ended) = mpsc::channel(QUEUE);
    let mut rng = Rng::new(start.seed);
    let config = &start.loaded.config;
    let extenders = Extenders::connect(&config.extenders, &start.version).await.map_err(Error::Extender)?;
    let mut informers = Informers {
        client: client.clone(),
        news,
        tasks: tasks.clone(),
        rng: rng.child(),
        resources: BTreeSet::new(),
        keeps_objects: !extenders.is_empty(),
    };
    informers.start();
    let unsynced = informers.resources.clone();
    drop(informers);
    let profiles = config.profiles.iter().map(profile).collect::<Result<Vec<_>, _>>()?;
    let profiles: Arc<Profiles> = Arc::new(profiles.into_iter().collect());
    let pauses = Pauses {
        first: Duration::from_secs(u64::try_from(config.pod_initial_backoff_seconds).unwrap_or(1)),
        most: Duration::from_secs(u64::try_from(config.pod_max_backoff_seconds).unwrap_or(10)),
        max_unschedulable: start.loaded.flags.max_unschedulable(),
    };
    let scheduler = Scheduler {
        queue: Queue::new(profiles.clone(), pauses),
        recorder: Recorder::start(client.clone(), start.hostname.clone(), &tasks),
        client,
        profiles,
        cluster: Cluster::default(),
        pods: HashMap::new(),
        sampling: Sampling {
            percentage: config.percentage_of_nodes_to_score,
            extenders_filter: extenders.has_filter(),
            extenders_score: extenders.has_scores(),
            ..Sampling::default()
        },
        extenders,
        objects: Objects::default(),
        rng,
        metrics: start.seen.metrics(),
        seen: start.seen.clone(),
        outcomes,
        binding: 0,
        pre_binding: HashMap::new(),
        unsynced,
        began: Instant::now(),
    };
    tracing::info!(version = start.version, "starting kube-scheduler");
    tasks.essential("scheduling", schedule(scheduler, heard, ended));
    guard.cancelled().await;
    match tasks.failure() {
        Some(failure) if !token.is_cancelled() => Err(Error::Task(failure)),
        _ => Ok(()),
    }
}

/// The loop: news first, then a Pod.
async fn schedule(
    mut scheduler: Scheduler,
    mut news: mpsc::Receiver<News>,
    mut ended: mpsc::Receiver<Outcome>,
) {
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        for _ in 0..NEWS_AT_ONCE {
            let Ok(told) = news.try_recv() else { break };
            scheduler.hear(told);
        }
        while let Ok(outcome) = ended.try_recv() {
            scheduler.settle(outcome);
        }
        let may_turn = scheduler.unsynced.is_empty() && scheduler.binding < MOST_BINDINGS;
        if may_turn && scheduler.take_turn().await {
            tokio::task::yield_now().await;
            // A second may pass while there is always somebody.
            if futures_ready(&mut tick) {
                scheduler.tick();
            }
            continue;
        }
        tokio::select! {
            told = news.recv() => match told {
                Some(told) => scheduler.hear(told),
                None => return,
            },
            Some(outcome) = ended.recv() => scheduler.settle(outcome),
            _ = tick.tick() => scheduler.tick(),
        }
    }
}

/// Whether a second is over, without waiting for it.
fn futures_ready(tick: &mut tokio::time::Interval) -> bool {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    tick.poll_tick(&mut context).is_ready()
}

impl Scheduler {
    fn tick(&mut self) {
        let now = self.now();
        self.queue.tick(now);
        let profile = self.profiles.iter().next().map(|p| p.scheduler.clone()).unwrap_or_default();
        self.metrics.look(&mut self.queue, &self.cluster, &profile);
    }
}

fn profile(config: &ProfileConfig) -> Result<Profile, Error> {
    let points = scheduler_core::profile::points(&config.plugins).map_err(Error::Profile)?;
    Ok(Profile::new(&config.scheduler_name, points, config.args.clone(), config.percentage_of_nodes_to_score))
}
