//! The heartbeat task.

use std::sync::Arc;
use std::time::Duration;

use api::json::ToJson;
use base::rng::Rng;
use base::time::Clock;
use client::{ClientError, Request};
use k8s_openapi::api::coordination::v1::Lease;
use kubelet_core::node::lease::{NAMESPACE, PAUSE_MAX, RENEW_TRIES, period, renewed};
use kubelet_core::node::report::jittered;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::Complaint;
use crate::cluster::Cluster;

const PAUSE_MIN: Duration = Duration::from_millis(200);

/// Renews the node's lease.
#[derive(Clone)]
pub(super) struct Renewal {
    cluster: Arc<Cluster>,
    clock: Arc<dyn Clock>,
    seconds: i32,
    rng: Rng,
    /// As it was last written: renewing needs no question first.
    latest: Option<Lease>,
    complaint: Complaint,
}

// === impl Renewal ===

impl Renewal {
    pub(super) fn new(cluster: Arc<Cluster>, clock: Arc<dyn Clock>, seconds: i32, rng: Rng) -> Renewal {
        Renewal { cluster, clock, seconds, rng, latest: None, complaint: Complaint::default() }
    }

    pub(super) async fn run(mut self, token: CancellationToken) {
        let work = async {
            loop {
                self.beat().await;
                sleep(jittered(period(self.seconds), &mut self.rng)).await;
            }
        };
        token.run_until_cancelled(work).await;
    }

    /// One heartbeat, however long it takes to be heard.
    async fn beat(&mut self) {
        if self.latest.is_some() && self.renew().await.is_ok() {
            self.complaint.clear("lease");
            return;
        }
        let mut pause = PAUSE_MIN;
        let mut own = self.cluster.own_node();
        loop {
            own.mark_unchanged();
            match self.ensure().await {
                Ok(true) => break,
                Ok(false) => tracing::debug!("the lease waits for its node"),
                Err(error) => self.complaint.log(&error, "lease"),
            }
            // A node that appears is reason enough to try at once.
            let wait = sleep(pause * 4 / 5 + self.rng.up_to(pause * 2 / 5));
            tokio::select! {
                () = wait => {}
                Ok(()) = own.changed() => {}
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
        self.complaint.clear("lease");
    }

    /// Finds or makes the lease, and renews one that was there. False while nobody could own it.
    async fn ensure(&mut self) -> Result<bool, ClientError> {
        let found: Result<Lease, _> = self.cluster.heartbeats.ask(Request::get(self.path())).await;
        match found {
            Ok(lease) => {
                self.latest = Some(lease);
                self.renew().await.map(|()| true)
            }
            Err(e) if e.is_not_found() => {
                let Some(lease) = self.next(None) else { return Ok(false) };
                let path = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases");
                self.latest = Some(self.cluster.heartbeats.ask(Request::post(path, lease.to_json())).await?);
                Ok(true)
            }
            Err(e) => Err(e),
        }
    }

    /// Writes a new renewal time over the lease that was seen last.
    async fn renew(&mut self) -> Result<(), ClientError> {
        let mut tries = 0;
        loop {
            let Some(lease) = self.next(self.latest.as_ref()) else { return Ok(()) };
            let error = match self.cluster.heartbeats.ask(Request::put(self.path(), lease.to_json())).await {
                Ok(written) => {
                    self.latest = Some(written);
                    return Ok(());
                }
                Err(error) => error,
            };
            tries += 1;
            self.complaint.log(&error, "lease");
            if error.is_not_found() {
                self.latest = None;
            }
            // Somebody wrote it in between: read it, and write over what is there now.
            if !error.is_conflict() || tries >= RENEW_TRIES {
                return Err(error);
            }
            self.latest = Some(self.cluster.heartbeats.ask(Request::get(self.path())).await?);
        }
    }

    fn next(&self, base: Option<&Lease>) -> Option<Lease> {
        let own = self.cluster.own_node().borrow().object.clone();
        let uid = own.as_ref().and_then(|node| node.metadata.uid.as_deref());
        renewed(base, &self.cluster.node_name, uid, self.seconds, self.clock.now().wall)
    }

    fn path(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{}", self.cluster.node_name)
    }
}
