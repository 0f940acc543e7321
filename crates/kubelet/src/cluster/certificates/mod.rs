//! Who the node is, and how it stays that: the first certificate, and the next one in time.
//!
//! [`open`] decides at start which credentials there are. [`start`] keeps them fresh: the client certificate where
//! it is ours to renew, and the serving certificate with serverTLSBootstrap. A certificate that could not be renewed
//! in time is counted down in the log and in the node's events.

mod bootstrap;
mod pem;
mod rotation;
mod signing;
mod store;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::config::kubelet::Loaded;
use base::rng::Rng;
use base::time::{Clock, Wall};
use client::{Client, Options};
use kubelet_core::node::certificate::client_names;
use rustls::sign::CertifiedKey;
use supervise::Supervisor;
use tokio::sync::watch;

use super::Cluster;
use super::node_events::NodeEvents;
use crate::metrics::Metrics;
use crate::start_error::StartError;
pub use bootstrap::{BootstrapError, Credentials, Means};
use rotation::{Countdown, Rotation, RotationDeps, Wanted};
use signing::Purpose;
use store::Store;

/// The serving certificate of the moment; none until the cluster signed one.
pub type Issued = watch::Receiver<Option<Arc<CertifiedKey>>>;

/// Which credentials the node starts with; none on a standalone node.
pub fn open(loaded: &Loaded, now: Wall) -> Result<Option<Credentials>, StartError> {
    let Loaded { config, flags, .. } = loaded;
    let means = Means {
        kubeconfig: PathBuf::from(&flags.kubeconfig),
        bootstrap_kubeconfig: PathBuf::from(&flags.bootstrap_kubeconfig),
        cert_dir: PathBuf::from(&flags.cert_dir),
        rotate: config.rotate_certificates,
    };
    bootstrap::open(&means, now).map_err(|e| StartError::new(e.to_string()))
}

/// What the cluster signed for this node's port in an earlier life, if it did.
pub(super) fn kept_serving(cert_dir: &str) -> Option<Arc<CertifiedKey>> {
    let pem = Store::new(Path::new(cert_dir), "kubelet-server").read().ok().flatten()?;
    rotation::certified(&pem).ok()
}

/// What keeping certificates fresh takes.
pub(crate) struct Upkeep<'a> {
    pub cluster: &'a Arc<Cluster>,
    pub loaded: &'a Loaded,
    /// `v1.36.4`
    pub version: &'a str,
    pub clock: &'a Arc<dyn Clock>,
    pub metrics: &'a Arc<Metrics>,
    /// A generator of its own for each certificate.
    pub rng_for: &'a dyn Fn(&str) -> Rng,
    pub events: &'a NodeEvents,
}

/// Keeps the certificates fresh from now on.
pub(crate) fn start(w: &Upkeep<'_>, tasks: &Supervisor) {
    let Loaded { config, flags, .. } = w.loaded;
    let cluster = w.cluster;
    let dir = Path::new(&flags.cert_dir);
    let deps = |purpose, prefix, wanted, label: &str| RotationDeps {
        purpose,
        store: Store::new(dir, prefix),
        wanted,
        client: cluster.client.clone(),
        clock: w.clock.clone(),
        rng: (w.rng_for)(label),
        metrics: w.metrics.clone(),
        events: w.events.clone(),
    };
    if cluster.credentials.rotate {
        let wanted = Wanted::Client(client_names(&cluster.node_name));
        let rotation = Rotation::new(deps(Purpose::Client, "kubelet-client", wanted, "client certificate"));
        let rotation = match &cluster.credentials.bootstrap {
            Some(way) => {
                let options = Options { user_agent: super::user_agent(w.version), ..Options::default() };
                rotation.with_bootstrap(Client::later(way.clone(), options), dir)
            }
            None => rotation,
        };
        tasks.lasting("client_certificate", rotation, Rotation::run);
    }
    if let (false, Some((certificate, _))) =
        (cluster.credentials.rotate, &cluster.credentials.config.identity.certificate)
    {
        let wanted = Wanted::Client(client_names(&cluster.node_name));
        let countdown =
            Countdown::new(&deps(Purpose::Client, "kubelet-client", wanted, "client certificate"));
        tasks.lasting(
            "certificate_expiry",
            (countdown, certificate.clone()),
            |(countdown, certificate), end| countdown.watch(certificate, end),
        );
    }
    if config.server_tls_bootstrap {
        let wanted = Wanted::Serving(cluster.node_name.clone(), cluster.own_node());
        let rotation = Rotation::new(deps(Purpose::Serving, "kubelet-server", wanted, "serving certificate"))
            .publishing(cluster.serving.clone());
        tasks.lasting("serving_certificate", rotation, Rotation::run);
    }
}
