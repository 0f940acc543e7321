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
use base::time::Wall;
use client::{Client, Options};
use kubelet_core::node::certificate::client_names;
use rustls::sign::CertifiedKey;
use tokio::sync::watch;

use super::Wiring;
use super::node::NodeEvents;
use crate::agent::StartError;
pub use bootstrap::{BootstrapError, Credentials, Means};
use rotation::{Countdown, Parts, Rotation, Wanted};
use signing::Purpose;
use store::Store;
pub(crate) use store::write_whole;

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

/// Keeps the certificates fresh from now on.
pub(super) fn start(
    w: &mut Wiring<'_>,
    issued: &watch::Sender<Option<Arc<CertifiedKey>>>,
    events: &NodeEvents,
) {
    let Loaded { config, flags, .. } = w.loaded;
    let (cluster, node) = (w.cluster, w.node);
    let dir = Path::new(&flags.cert_dir);
    let parts = |purpose, prefix, wanted, label: &str| Parts {
        purpose,
        store: Store::new(dir, prefix),
        wanted,
        client: cluster.client.clone(),
        clock: node.clock.clone(),
        rng: node.rng_for(label),
        metrics: node.metrics.clone(),
        events: events.clone(),
    };
    if cluster.credentials.rotate {
        let wanted = Wanted::Client(client_names(&cluster.node_name));
        let rotation = Rotation::new(parts(Purpose::Client, "kubelet-client", wanted, "client certificate"));
        let rotation = match &cluster.credentials.bootstrap {
            Some(way) => {
                let options = Options { user_agent: super::user_agent(w.version), ..Options::default() };
                rotation.with_bootstrap(Client::later(way.clone(), options), dir)
            }
            None => rotation,
        };
        w.tasks.spawn(rotation.run(w.token.clone()));
    }
    if let (false, Some((certificate, _))) =
        (cluster.credentials.rotate, &cluster.credentials.config.identity.certificate)
    {
        let wanted = Wanted::Client(client_names(&cluster.node_name));
        let countdown =
            Countdown::new(&parts(Purpose::Client, "kubelet-client", wanted, "client certificate"));
        w.tasks.spawn(countdown.watch(certificate.clone(), w.token.clone()));
    }
    if config.server_tls_bootstrap {
        let wanted = Wanted::Serving(cluster.node_name.clone(), cluster.own_node());
        let rotation =
            Rotation::new(parts(Purpose::Serving, "kubelet-server", wanted, "serving certificate"))
                .publishing(issued.clone());
        w.tasks.spawn(rotation.run(w.token.clone()));
    }
}
