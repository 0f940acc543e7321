//! The addresses this machine is known by: as its object says, which a cloud may have filled in; before there is one,
//! as they are found here.

use std::net::IpAddr;
use std::time::Duration;

use kubelet_core::node::addresses::{AddressError, Sources, describe, host_ips};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::cluster::own_node::OwnNodeView;
use crate::host::facts;

/// How often the machine's own addresses are read again.
const PERIOD: Duration = Duration::from_secs(10);

/// Asked at every use: an address may come, or change, after the start.
#[derive(Clone, Debug)]
pub struct HostIps {
    own: Option<OwnNodeView>,
    found: watch::Receiver<Vec<IpAddr>>,
}

// === impl HostIps ===

impl HostIps {
    #[must_use]
    pub fn new(own: Option<OwnNodeView>, found: watch::Receiver<Vec<IpAddr>>) -> HostIps {
        HostIps { own, found }
    }

    /// Addresses that do not change, of a node without an object.
    #[must_use]
    pub fn fixed(ips: Vec<IpAddr>) -> HostIps {
        HostIps::new(None, watch::channel(ips).1)
    }

    /// Primary first, at most one of each family; empty on a machine that has none.
    #[must_use]
    pub fn now(&self) -> Vec<IpAddr> {
        let object = self.own.as_ref().and_then(OwnNodeView::object);
        let told = object.and_then(|node| node.status.as_ref()?.addresses.as_deref().map(host_ips));
        told.filter(|ips| !ips.is_empty()).unwrap_or_else(|| self.found.borrow().clone())
    }
}

/// What the machine says of itself. Reads files and asks the resolver.
pub fn find(sources: &Sources) -> Result<Vec<IpAddr>, AddressError> {
    let specified = sources.given.first().is_some_and(|ip| !ip.is_unspecified());
    let found = Sources {
        by_name: if specified { Vec::new() } else { facts::resolve(&sources.hostname) },
        default_v4: facts::towards_default_route(false),
        default_v6: facts::towards_default_route(true),
        local: facts::local_addresses(),
        ..sources.clone()
    };
    describe(&found, &[]).map(|all| host_ips(&all))
}

/// Reads them again and again until cancelled. A machine that lost its addresses keeps the last ones.
pub async fn watch_machine(sources: Sources, found: watch::Sender<Vec<IpAddr>>, token: CancellationToken) {
    while token.run_until_cancelled(tokio::time::sleep(PERIOD)).await.is_some() {
        let sources = sources.clone();
        let Ok(Ok(ips)) = tokio::task::spawn_blocking(move || find(&sources)).await else { continue };
        found.send_if_modified(|old| {
            let changed = *old != ips;
            *old = ips;
            changed
        });
    }
}
