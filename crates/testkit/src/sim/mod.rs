//! The real kubelet tasks in a simulated world, under paused time, from one seed.
//!
//! The world (runtime, disk, clock) outlives the agent. An agent is dropped at any moment, as kill -9
//! would do it, and a new one is started on the same world. At the end the faults stop, and what is
//! left must be exactly what is wanted.

pub mod api;
mod check;
mod cluster_story;
mod ends;
mod fakes;
mod merge;
pub mod pods;
mod resize_story;
mod story;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use ::api::config::gates::Gates;
use ::api::config::kubelet::{KubeletConfiguration, KubeletFlags, Loaded};
use base::rng::Rng;
use base::time::Clock;
use client::Client;
use k8s_openapi::api::core::v1::Pod;
use kubelet::agent::cluster::{join, tell_of_pods};
use kubelet::cluster::Cluster;
use kubelet::events::Recorder;
use kubelet::host::facts::Machine;
use kubelet::images::{Credentials, ImagePuller, Settings};
use kubelet::metrics::Metrics;
use kubelet::node::ClusterDeps;
use kubelet::pods::beat::Beat;
use kubelet::pods::dispatcher::Dispatcher;
use kubelet::pods::host_ips::HostIps;
use kubelet::pods::node::{Node, NodeFacts, PodSettings};
use kubelet::pods::pod_files::PodDirs;
use kubelet::pods::prober::Prober;
use kubelet::pods::records::ResourceRecords;
use kubelet::pods::sources::{self, Context, Problems, SourceName, SourceUpdate, Unread};
use kubelet::pods::status_board::StatusBoard;
use kubelet::runtime::health::{RuntimeHealth, watch_health};
use kubelet::runtime::observer::{Observer, watch_runtime};
use kubelet_core::admission::NodeOffer;
use kubelet_core::downward::Allocatable;
use kubelet_core::resize::checkpoint;
use supervise::Supervisor;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::fake_runtime::FakeRuntime;
pub use api::{FakeApi, Weather};
pub use check::{Flip, check};
pub use cluster_story::run_cluster_seed;
pub use fakes::{FakeDisk, OpenNet, SimClock};
pub use resize_story::{
    killed_at_any_moment_of_a_resize, resized_while_nothing_is_written, run_resize_seed, shrunk_while_in_use,
};
pub use story::{Outcome, crash_at_every_effect, run_seed};

/// The machine's own address, until its object has others.
const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// What survives an agent.
#[derive(Clone, Debug)]
pub struct World {
    pub seed: u64,
    pub clock: Arc<SimClock>,
    pub runtime: FakeRuntime,
    pub disk: FakeDisk,
    pub api: FakeApi,
}

/// One life of the kubelet.
#[derive(Debug)]
pub struct Agent {
    pub board: Arc<StatusBoard>,
    pub recorder: Recorder,
    pub node: Arc<Node>,
    updates: mpsc::Sender<SourceUpdate>,
    /// Dropping the set drops every task where it stands.
    _tasks: Supervisor,
}

// === impl World ===

impl World {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let clock = SimClock::start();
        let runtime = FakeRuntime::new(seed, clock.clone());
        runtime.add_image(pods::IMAGE);
        let disk = FakeDisk::new(Rng::new(seed ^ 0x00d1_5c00));
        disk.lock().runtime = Some(runtime.clone());
        let api = FakeApi::new(seed ^ 0x0a91, clock.clone());
        Self { seed, clock, runtime, disk, api }
    }

    /// Starts a kubelet on this world. It has one source, which has not reported yet.
    #[must_use]
    pub fn boot(&self) -> Agent {
        self.start(None, false)
    }

    /// The same, and it reports these Pods.
    pub async fn boot_with(&self, pods: &[Arc<Pod>]) -> Agent {
        let agent = self.boot();
        agent.want(pods).await;
        agent
    }

    /// Starts a kubelet whose Pods come from the API server, which hears of them.
    #[must_use]
    pub fn boot_in_cluster(&self) -> Agent {
        self.boot_in_cluster_by(self.api.client())
    }

    /// The same with a client that was made otherwise.
    #[must_use]
    pub fn boot_in_cluster_by(&self, client: Client) -> Agent {
        self.start(Some(Arc::new(Cluster::reached_by(client, api::NODE))), false)
    }

    /// The same with all that keeps the node's own object true.
    #[must_use]
    pub fn boot_as_node(&self) -> Agent {
        self.start(Some(Arc::new(Cluster::reached_by(self.api.client(), api::NODE))), true)
    }

    fn start(&self, cluster: Option<Arc<Cluster>>, reports: bool) -> Agent {
        let token = CancellationToken::new();
        let tasks = Supervisor::new(token.clone());
        let (health, healthy) = watch::channel(RuntimeHealth::default());
        let node = Arc::new(self.node(healthy, cluster.as_deref()));
        let (updates, receiver) = mpsc::channel(16);
        let source = if cluster.is_some() { SourceName::Api } else { SourceName::File };
        let dispatcher = Dispatcher::new(node.clone(), receiver, [source], Beat::new(self.clock.clone()));
        if let Some(cluster) = &cluster {
            let context = Context {
                node: api::NODE.into(),
                clock: self.clock.clone(),
                events: node.recorder.clone(),
                problems: Problems::default(),
            };
            let (rng, updates) = (node.rng_for("Pods"), updates.clone());
            tasks.essential(
                "source_api",
                sources::api::run(cluster.clone(), context, rng, updates, token.clone()),
            );
            match reports {
                false => tell_of_pods(cluster, &node, &dispatcher.known(), &tasks),
                true => join_as_node(cluster, &node, &dispatcher, &tasks),
            }
        }
        tasks.essential("runtime_health", watch_health(node.runtime.clone(), health, token.clone()));
        tasks.essential("observer", watch_runtime(node.observer.clone(), token.clone()));
        tasks.essential("dispatcher", dispatcher.run(token));
        Agent { board: node.board.clone(), recorder: node.recorder.clone(), node, updates, _tasks: tasks }
    }

    /// As the disk has them. A file that is corrupt is the end of the simulation.
    fn records(&self, disk: Arc<FakeDisk>) -> ResourceRecords {
        let read = |name: &'static str| {
            let text = self.disk.checkpoint(name)?;
            Some(checkpoint::decode(&text).unwrap_or_else(|e| panic!("{name} is corrupt: {e}: {text}")))
        };
        let [allocated, actuated] =
            [checkpoint::ALLOCATED, checkpoint::ACTUATED].map(|name| read(name).unwrap_or_default());
        ResourceRecords::with(disk, allocated, actuated)
    }

    fn node(&self, health: watch::Receiver<RuntimeHealth>, cluster: Option<&Cluster>) -> Node {
        let clock: Arc<dyn Clock> = self.clock.clone();
        let runtime = Arc::new(self.runtime.clone());
        let disk = Arc::new(self.disk.clone());
        let metrics = Arc::new(Metrics::default());
        let recorder = Recorder::new(clock.clone()).with_sink(cluster.map(Cluster::event_sink));
        let observer = Observer::new(runtime.clone(), disk.clone(), clock.clone(), metrics.clone());
        Node {
            images: Arc::new(ImagePuller::new(
                Settings::default(),
                runtime.clone(),
                recorder.clone(),
                clock.clone(),
                Credentials::new(clock.clone(), None, Vec::new()),
                None,
                None,
            )),
            prober: Arc::new(Prober::for_test(
                runtime.clone(),
                Arc::new(OpenNet),
                clock.clone(),
                recorder.clone(),
            )),
            userns: None,
            own: cluster.map(Cluster::own_node_view),
            host_ips: HostIps::new(cluster.map(Cluster::own_node_view), watch::channel(vec![HOST]).1),
            shutting_down: tokio::sync::watch::Sender::default(),
            pressures: tokio::sync::watch::Sender::default(),
            places: Arc::default(),
            objects: Arc::new(kubelet::ports::NoObjects),
            board: Arc::default(),
            offer: NodeOffer {
                name: api::NODE.into(),
                allocatable: Allocatable {
                    milli_cpu: 4000,
                    memory: 1 << 32,
                    pods: 110,
                    ..Default::default()
                },
                ..Default::default()
            },
            facts: NodeFacts { runtime_name: "fake".into(), ..NodeFacts::default() },
            settings: PodSettings { seed: self.seed, ..PodSettings::default() },
            health,
            observer: Arc::new(observer),
            runtime,
            volumes: disk.clone(),
            files: disk.clone(),
            cgroups: disk.clone(),
            records: Arc::new(self.records(disk)),
            net: Arc::new(OpenNet),
            clock,
            recorder,
            metrics,
        }
    }
}

// === impl Agent ===

impl Agent {
    /// The source reports its whole set.
    pub async fn want(&self, pods: &[Arc<Pod>]) {
        let update =
            SourceUpdate { source: SourceName::File, pods: pods.to_vec(), unread: Unread::default() };
        // A send fails only when the agent is gone, and then nobody cares.
        let _ = self.updates.send(update).await;
    }

    /// Kill -9.
    pub fn crash(self) {
        drop(self);
    }

    /// Whether the board says that the Pod is ready.
    #[must_use]
    pub fn is_ready(&self, uid: &str) -> bool {
        let entry = self.board.get(uid);
        let conditions = entry.iter().flat_map(|e| e.status.conditions.iter().flatten());
        conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
    }

    #[must_use]
    pub fn phase(&self, uid: &str) -> String {
        self.board.get(uid).and_then(|e| e.status.phase.clone()).unwrap_or_default()
    }
}

/// Joins the node to its cluster with the usual configuration, on a machine without files.
fn join_as_node(cluster: &Arc<Cluster>, node: &Arc<Node>, dispatcher: &Dispatcher, tasks: &Supervisor) {
    let loaded = Loaded {
        config: KubeletConfiguration::default(),
        flags: KubeletFlags::default(),
        gates: Gates::default(),
        warnings: Vec::new(),
        not_honoured: Vec::new(),
        skipped: Vec::new(),
    };
    let dirs = PodDirs {
        root: "/none".into(),
        pod_logs: "/none".into(),
        container_logs: "/none".into(),
        node_hosts: "/none".into(),
        resolv_conf: None,
    };
    let known = dispatcher.known();
    let (machine, version) = (Machine::default(), "v0.0.0");
    let deps =
        ClusterDeps { cluster, node, known, loaded: &loaded, dirs: &dirs, machine: &machine, version, tasks };
    if let Err(error) = join(&deps) {
        tracing::error!(%error, "the node does not join");
    }
}

/// Lets simulated time pass.
pub async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}
