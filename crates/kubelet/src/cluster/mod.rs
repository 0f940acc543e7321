//! The cluster this node belongs to: the way to its API server, and the parts that keep both in step.
//!
//! Without `--kubeconfig` there is no cluster and nothing in here runs. No part may do harm while the API server is out of reach: each one keeps
//! what it knows and catches up later.

pub mod api_pods;
pub mod certificates;
pub mod csi_orders;
pub(crate) mod event_writer;
pub mod node_events;
pub mod objects;
pub mod own_node;
mod unread_events;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::config::kubelet::{KubeletConfiguration, Loaded};
use base::time::Wall;
use client::{Client, Config, Options, Proxies, Within};
use kubelet_core::events::Happened;
use rustls::sign::CertifiedKey;
use tokio::sync::{mpsc, watch};

use crate::metrics::Metrics;
use crate::start_error::StartError;
use api_pods::ApiPods;
use certificates::{Credentials, Issued};
use csi_orders::{CsiNodeOrders, Order};
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
    pub(crate) volumes_in_use: watch::Sender<Option<Vec<String>>>,
    /// Until somebody carries them out.
    csi_orders: Mutex<Option<mpsc::Receiver<Order>>>,
}

/// What a cluster is opened with.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'a> {
    pub loaded: &'a Loaded,
    /// `v1.36.4`
    pub version: &'a str,
    /// On the way to the API server, where the kubeconfig names none.
    pub proxies: &'a Proxies,
    /// The API server of this process, which knows who we are.
    pub within: Option<&'a Within>,
}

// === impl Opening ===

impl Opening<'_> {
    /// Who the node is; none on a standalone one.
    fn credentials(&self, now: Wall) -> Result<Option<Credentials>, StartError> {
        if self.within.is_some() {
            let config = Config::plain("http://localhost");
            return Ok(Some(Credentials { config, bootstrap: None, rotate: false }));
        }
        let Some(mut credentials) = certificates::open(self.loaded, now)? else { return Ok(None) };
        for config in [Some(&mut credentials.config), credentials.bootstrap.as_mut()].into_iter().flatten() {
            if config.proxy.is_none() {
                config.proxy = self.proxies.on_the_way_to(&config.server).map_err(StartError::new)?;
            }
        }
        Ok(Some(credentials))
    }
}

// === impl Cluster ===

impl Cluster {
    /// Reads the kubeconfig and prepares the clients; none on a standalone node. The server need not answer.
    pub async fn open(
        opening: Opening<'_>,
        node_name: &str,
        now: Wall,
        metrics: &Arc<Metrics>,
    ) -> Result<Option<Arc<Cluster>>, StartError> {
        let (Loaded { config, flags, .. }, version) = (opening.loaded, opening.version);
        let Some(credentials) = opening.credentials(now)? else { return Ok(None) };
        let fail = |e: client::ClientError| StartError::new(format!("--kubeconfig: {e}"));
        let unread = UnreadEvents::default();
        let (meter, on_unreadable) =
            (Some(metrics.of_requests()), Some(unread.handler(metrics.clone(), node_name)));
        let metered = |options: Options| Options {
            meter: meter.clone(),
            on_unreadable: on_unreadable.clone(),
            ..options
        };
        let options = metered(pods_options(config, version));
        let client = match (opening.within, credentials.rotate) {
            (Some(within), _) => Client::over(within.0.clone(), options),
            // Its certificate may still have to be asked for, or be renewed at any moment.
            (None, true) => Client::later(credentials.config.clone(), options),
            (None, false) => Client::new(credentials.config.clone(), options).await.map_err(fail)?,
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
        let (csi_node, csi_orders) = csi_orders::orders();
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

    pub(crate) fn take_events(&self) -> Option<mpsc::Receiver<Happened>> {
        self.event_queue.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Where CSI drivers that come and go are told of.
    #[must_use]
    pub fn csi_node(&self) -> CsiNodeOrders {
        self.csi_node.clone()
    }

    pub(crate) fn take_csi_orders(&self) -> Option<mpsc::Receiver<Order>> {
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
    let platform = format!("{}/{}", std::env::consts::OS, crate::host::facts::go_arch());
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

/// The path of an object below the API root.
pub(crate) fn node_path(name: &str) -> String {
    format!("/api/v1/nodes/{name}")
}
