//! The cluster this node belongs to: the way to its API server, and the parts that keep both in step.
//!
//! Without `--kubeconfig` there is no cluster and nothing in here runs. With one, [`join`] starts what joins
//! the node to it, one line each. No part may do harm while the API server is out of reach: each one keeps
//! what it knows and catches up later.

pub mod api_pods;
pub mod certificates;
mod event_writer;
mod mirrors;
pub mod node;
pub mod objects;
pub mod own_node;
mod status_writer;
mod unread_events;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::config::kubelet::{KubeletConfiguration, Loaded};
use base::time::Wall;
use client::{Client, Options};
use kubelet_core::events::Happened;
use rustls::sign::CertifiedKey;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::agent::{Start, StartError};
use crate::dispatcher::Known;
use crate::facts::Machine;
use crate::metrics::Metrics;
use crate::node::Node;
use crate::pod_files::PodDirs;
use api_pods::ApiPods;
use certificates::{Credentials, Issued};
use node::{CsiNodeOrder, CsiNodeOrders};
use own_node::{OwnNode, OwnNodeView};
use unread_events::UnreadEvents;

/// The way to the API server.
#[derive(Debug)]
pub struct Cluster {
    /// For everything that has no better one; keeps to kubeAPIQPS and kubeAPIBurst.
    pub client: Client,
    /// For leases and the node's status: no queue of other requests may make the node look dead.
    pub heartbeats: Client,
    /// For events, which have their own rate and may never crowd out the rest.
    pub events: Client,
    pub node_name: Arc<str>,
    /// The file all of them were made from.
    pub kubeconfig: PathBuf,
    /// Who the node is to it.
    pub credentials: Credentials,
    /// What it last said of this node's Pods.
    pub api_pods: ApiPods,
    own_node: watch::Sender<OwnNode>,
    serving: watch::Sender<Option<Arc<CertifiedKey>>>,
    event_sink: mpsc::Sender<Happened>,
    /// Until somebody sends them.
    event_queue: Mutex<Option<mpsc::Receiver<Happened>>>,
    csi_node: CsiNodeOrders,
    /// What the node's status says of volumes in use; none until it is known.
    volumes_in_use: watch::Sender<Option<Vec<String>>>,
    /// Until somebody carries them out.
    csi_orders: Mutex<Option<mpsc::Receiver<CsiNodeOrder>>>,
}

/// What the parts that join the node to its cluster may look at.
#[derive(Debug)]
pub struct Wiring<'a> {
    pub cluster: &'a Arc<Cluster>,
    pub node: &'a Arc<Node>,
    /// The Pods that have a task or an owner.
    pub known: watch::Receiver<Arc<Known>>,
    pub loaded: &'a Loaded,
    pub dirs: &'a PodDirs,
    pub machine: &'a Machine,
    /// `v1.36.4`
    pub version: &'a str,
    pub tasks: &'a mut JoinSet<()>,
    pub token: &'a CancellationToken,
}

/// Starts everything that needs the API server and is not asked for by a Pod. One line each.
pub fn join(wiring: &mut Wiring<'_>) -> Result<(), StartError> {
    let cluster = wiring.cluster;
    tell_of_pods(cluster, wiring.node, &wiring.known, wiring.tasks, wiring.token);
    let events = node::start(wiring)?;
    certificates::start(wiring, &cluster.serving, &events);
    Ok(())
}

/// Keeps what the API server knows of Pods in step with what they do.
pub fn tell_of_pods(
    cluster: &Arc<Cluster>,
    node: &Arc<Node>,
    known: &watch::Receiver<Arc<Known>>,
    tasks: &mut JoinSet<()>,
    token: &CancellationToken,
) {
    tasks.spawn(own_node::run(cluster.clone(), node.rng_for("own node"), token.clone()));
    tasks.spawn(status_writer::run(cluster.clone(), node.clone(), token.clone()));
    tasks.spawn(mirrors::run(cluster.clone(), node.clone(), known.clone(), token.clone()));
    if let Some(queue) = cluster.take_events() {
        let (clock, rng) = (node.clock.clone(), node.rng_for("events"));
        tasks.spawn(event_writer::run(cluster.clone(), clock, rng, queue, token.clone()));
    }
}

// === impl Cluster ===

impl Cluster {
    /// Reads the kubeconfig and prepares the clients; none on a standalone node. The server need not answer.
    pub async fn open(
        start: &Start,
        node_name: &str,
        now: Wall,
        metrics: &Arc<Metrics>,
    ) -> Result<Option<Arc<Cluster>>, StartError> {
        let (Loaded { config, flags, .. }, version) = (&start.loaded, start.version.as_str());
        let Some(mut credentials) = certificates::open(&start.loaded, now)? else { return Ok(None) };
        for config in [Some(&mut credentials.config), credentials.bootstrap.as_mut()].into_iter().flatten() {
            if config.proxy.is_none() {
                config.proxy = start.proxies.on_the_way_to(&config.server).map_err(StartError::new)?;
            }
        }
        let fail = |e: client::ClientError| StartError::new(format!("--kubeconfig: {e}"));
        let unread = UnreadEvents::default();
        let (meter, alarm) = (Some(metrics.of_requests()), Some(unread.alarm(metrics.clone(), node_name)));
        let metered = |options: Options| Options { meter: meter.clone(), alarm: alarm.clone(), ..options };
        let options = metered(pods_options(config, version));
        let client = match credentials.rotate {
            // Its certificate may still have to be asked for, or be renewed at any moment.
            true => Client::later(credentials.config.clone(), options),
            false => Client::new(credentials.config.clone(), options).await.map_err(fail)?,
        };
        let kept = config.server_tls_bootstrap.then(|| certificates::kept_serving(&flags.cert_dir)).flatten();
        let cluster = Cluster {
            heartbeats: client.again(metered(heartbeat_options(config, version))),
            events: client.again(metered(event_options(config, version))),
            kubeconfig: PathBuf::from(&flags.kubeconfig),
            serving: watch::channel(kept).0,
            credentials: credentials.clone(),
            ..Cluster::reached_by(client, node_name)
        };
        unread.tell_to(cluster.event_sink());
        tracing::info!(server = cluster.client.server(), node = node_name, "this node belongs to a cluster");
        Ok(Some(Arc::new(cluster)))
    }

    /// One client for everything, and no certificate to look after.
    #[must_use]
    pub fn reached_by(client: Client, node_name: &str) -> Cluster {
        let (event_sink, events) = mpsc::channel(event_writer::QUEUE);
        let (csi_node, csi_orders) = node::csi_node_orders();
        let config = client.config().clone();
        Cluster {
            heartbeats: client.clone(),
            events: client.clone(),
            client,
            node_name: node_name.into(),
            kubeconfig: PathBuf::new(),
            credentials: Credentials { config, bootstrap: None, rotate: false },
            api_pods: ApiPods::default(),
            own_node: watch::channel(OwnNode::default()).0,
            serving: watch::channel(None).0,
            event_sink,
            event_queue: Mutex::new(Some(events)),
            csi_node,
            csi_orders: Mutex::new(Some(csi_orders)),
            volumes_in_use: watch::channel(None).0,
        }
    }

    /// Where events go that the API server shall know of. Who finds it full drops his.
    #[must_use]
    pub fn event_sink(&self) -> mpsc::Sender<Happened> {
        self.event_sink.clone()
    }

    fn take_events(&self) -> Option<mpsc::Receiver<Happened>> {
        self.event_queue.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Where CSI drivers that come and go are told of.
    #[must_use]
    pub fn csi_node(&self) -> CsiNodeOrders {
        self.csi_node.clone()
    }

    fn take_csi_orders(&self) -> Option<mpsc::Receiver<CsiNodeOrder>> {
        self.csi_orders.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// This node's object as the API server has it.
    #[must_use]
    pub fn own_node(&self) -> watch::Receiver<OwnNode> {
        self.own_node.subscribe()
    }

    /// The same for who may have to ask for it.
    #[must_use]
    pub fn own_node_view(&self) -> OwnNodeView {
        OwnNodeView::new(self.own_node.clone(), self.client.clone(), &self.node_name)
    }

    /// The certificate the cluster signed for this node's port, with serverTLSBootstrap; none until there is one.
    #[must_use]
    pub fn serving(&self) -> Issued {
        self.serving.subscribe()
    }
}

fn options(version: &str, qps: i32, burst: i32) -> Options {
    Options {
        user_agent: user_agent(version),
        qps: f64::from(qps),
        burst: u32::try_from(burst).unwrap_or(0),
        ..Options::default()
    }
}

fn user_agent(version: &str) -> String {
    let platform = format!("{}/{}", std::env::consts::OS, crate::facts::go_arch());
    format!("kubelet/{version} ({platform}) longshore/{}", env!("CARGO_PKG_VERSION"))
}

fn pods_options(config: &KubeletConfiguration, version: &str) -> Options {
    options(version, config.kube_api_qps, config.kube_api_burst)
}

/// An answer that comes later than a lease lives is of no use. The next beat is the repetition of one that failed.
fn heartbeat_options(config: &KubeletConfiguration, version: &str) -> Options {
    let lease = u64::try_from(config.node_lease_duration_seconds).unwrap_or(40);
    let timeout = Duration::from_secs(lease).min(config.node_status_update_frequency.to_std());
    Options { timeout: timeout.max(Duration::from_secs(1)), repeats: 0, ..options(version, -1, 0) }
}

fn event_options(config: &KubeletConfiguration, version: &str) -> Options {
    // Zero means no limit, as for the others.
    options(version, config.event_record_qps, config.event_burst)
}
