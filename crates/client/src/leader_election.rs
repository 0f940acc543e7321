//! Who of several alike may act: the one that holds a Lease, by client-go's rules.
//!
//! The clocks of two machines are never compared. A Lease is another's for as long as it was seen to change within its
//! duration, on the watcher's own clock.

use std::time::Duration;

use base::rfc3339::Moment;
use base::rng::Rng;
use base::time::{Clock, Wall};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::time::Instant;

use crate::error::ClientError;
use crate::request::{Client, Request};

/// What is held, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    pub namespace: String,
    pub name: String,
    /// Who we are: unlike anybody else.
    pub identity: String,
    pub lease_duration: Duration,
    pub renew_deadline: Duration,
    pub retry_period: Duration,
}

/// Owned by the task that holds the Lease.
pub struct LeaderElection {
    client: Client,
    terms: Terms,
    clock: Arc<dyn Clock>,
    rng: Rng,
    /// The Lease as it was last seen, and when it was seen to change.
    seen: Option<(Value, Instant)>,
}

// === impl LeaderElection ===

impl LeaderElection {
    #[must_use]
    pub fn new(client: Client, terms: Terms, clock: Arc<dyn Clock>, rng: Rng) -> LeaderElection {
        LeaderElection { client, terms, clock, rng, seen: None }
    }

    /// Waits until the Lease is ours.
    pub async fn acquire(&mut self) {
        tracing::info!(lease = self.path(), "Attempting to acquire leader lease...");
        loop {
            match self.try_once().await {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "Error retrieving lease lock"),
            }
            let jitter = self.rng.up_to(self.terms.retry_period.mul_f64(1.2));
            tokio::time::sleep(self.terms.retry_period + jitter).await;
        }
        tracing::info!(lease = self.path(), "Successfully acquired lease");
    }

    /// Renews it, and returns when it could not be renewed in time: somebody else may have it by now.
    pub async fn hold(&mut self) {
        let mut renewed = Instant::now();
        loop {
            tokio::time::sleep(self.terms.retry_period).await;
            let deadline = renewed + self.terms.renew_deadline;
            match tokio::time::timeout_at(deadline, self.try_once()).await {
                Ok(Ok(true)) => renewed = Instant::now(),
                Ok(Ok(false)) => return tracing::error!("Lost the lease: somebody else holds it"),
                Ok(Err(error)) => tracing::warn!(%error, "Failed to update lease"),
                Err(_) => {}
            }
            if Instant::now() >= deadline {
                return tracing::error!("Failed to renew lease in time");
            }
        }
    }

    /// Lets it go, so that another need not wait.
    pub async fn release(&mut self) {
        let Some((lease, _)) = &self.seen else { return };
        if lease["spec"]["holderIdentity"] != self.terms.identity.as_str() {
            return;
        }
        let mut lease = lease.clone();
        lease["spec"]["holderIdentity"] = json!("");
        lease["spec"]["leaseDurationSeconds"] = json!(1);
        let request = Request::put(self.path(), lease.to_string());
        let released = tokio::time::timeout(self.terms.retry_period, self.client.ask::<Value>(request)).await;
        if !matches!(released, Ok(Ok(_))) {
            tracing::warn!("the lease was not released; it ends by itself");
        }
    }

    /// Whether it is ours now.
    async fn try_once(&mut self) -> Result<bool, ClientError> {
        let lease = match self.client.ask::<Value>(Request::get(self.path()).once()).await {
            Ok(lease) => lease,
            Err(error) if error.is_not_found() => return self.create().await,
            Err(error) => return Err(error),
        };
        self.see(lease.clone());
        if !self.is_free() {
            return Ok(false);
        }
        let fresh = self.next(&lease);
        match self.client.ask::<Value>(Request::put(self.path(), fresh.to_string()).once()).await {
            Ok(lease) => {
                self.see(lease);
                Ok(true)
            }
            Err(error) if error.is_conflict() => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn create(&mut self) -> Result<bool, ClientError> {
        let Terms { namespace, name, .. } = &self.terms;
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": name, "namespace": namespace}, "spec": {}});
        let fresh = self.next(&lease);
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
        match self.client.ask::<Value>(Request::post(path, fresh.to_string()).once()).await {
            Ok(lease) => {
                self.see(lease);
                Ok(true)
            }
            Err(error) if error.is_already_exists() => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn see(&mut self, lease: Value) {
        let is_same = self.seen.as_ref().is_some_and(|(known, _)| known["spec"] == lease["spec"]);
        match &mut self.seen {
            Some((known, _)) if is_same => *known = lease,
            seen => *seen = Some((lease, Instant::now())),
        }
    }

    /// Nobody's, ours, or not renewed for as long as its holder promised.
    fn is_free(&self) -> bool {
        let Some((lease, changed)) = &self.seen else { return true };
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
        let promised = lease["spec"]["leaseDurationSeconds"].as_u64().unwrap_or(0);
        holder.is_empty()
            || holder == self.terms.identity
            || changed.elapsed() > Duration::from_secs(promised)
    }

    /// The Lease as ours, at this moment.
    fn next(&self, lease: &Value) -> Value {
        let (mut fresh, now) = (lease.clone(), micro_time(self.clock.now().wall));
        let spec = &lease["spec"];
        let is_ours = spec["holderIdentity"] == self.terms.identity.as_str();
        let transitions = spec["leaseTransitions"].as_i64();
        let acquired = spec["acquireTime"].as_str().filter(|_| is_ours).unwrap_or(&now);
        fresh["spec"]["acquireTime"] = json!(acquired);
        fresh["spec"]["leaseTransitions"] = match (is_ours, transitions) {
            (true, known) => json!(known.unwrap_or(0)),
            (false, Some(known)) => json!(known + 1),
            (false, None) => json!(0),
        };
        fresh["spec"]["holderIdentity"] = json!(self.terms.identity);
        fresh["spec"]["leaseDurationSeconds"] = json!(self.terms.lease_duration.as_secs());
        fresh["spec"]["renewTime"] = json!(now);
        fresh
    }

    fn path(&self) -> String {
        let Terms { namespace, name, .. } = &self.terms;
        format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}")
    }
}

impl std::fmt::Debug for LeaderElection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaderElection").field("terms", &self.terms).finish_non_exhaustive()
    }
}

fn micro_time(at: Wall) -> String {
    let nanos = u32::try_from(at.0.rem_euclid(1_000_000_000)).unwrap_or(0);
    Moment { secs: at.secs(), nanos }.to_micros()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use base::time::{Mono, Now};

    use super::*;
    use crate::request::Options;

    struct Fixed;

    impl Clock for Fixed {
        fn now(&self) -> Now {
            Now { mono: Mono::default(), wall: Wall::from_secs(60) }
        }
    }

    fn election() -> LeaderElection {
        let dial: crate::Dial = Arc::new(|| Err(std::io::ErrorKind::ConnectionRefused.into()));
        let terms = Terms {
            namespace: "kube-system".into(),
            name: "x".into(),
            identity: "me".into(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        };
        LeaderElection::new(Client::over(dial, Options::default()), terms, Arc::new(Fixed), Rng::new(1))
    }

    fn lease(holder: &str, renewed: &str) -> Value {
        json!({"metadata": {"resourceVersion": renewed}, "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15,
            "leaseTransitions": 3, "acquireTime": "a", "renewTime": renewed}})
    }

    #[tokio::test(start_paused = true)]
    async fn anothers_lease_is_free_once_it_was_not_seen_to_change_for_its_duration() {
        let mut election = election();
        assert!(election.is_free());
        election.see(lease("other", "1"));
        assert!(!election.is_free());
        tokio::time::advance(Duration::from_secs(10)).await;
        election.see(lease("other", "2"));
        tokio::time::advance(Duration::from_secs(10)).await;
        election.see(lease("other", "2"));
        assert!(!election.is_free(), "it changed ten seconds ago");
        tokio::time::advance(Duration::from_secs(6)).await;
        assert!(election.is_free());
        election.see(lease("", "3"));
        assert!(election.is_free());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_counts_its_holders() {
        let election = election();
        let taken = election.next(&lease("other", "1"));
        assert_eq!(
            taken["spec"],
            json!({"holderIdentity": "me", "leaseDurationSeconds": 15, "leaseTransitions": 4,
            "acquireTime": "1970-01-01T00:01:00.000000Z", "renewTime": "1970-01-01T00:01:00.000000Z"})
        );
        assert_eq!(taken["metadata"], lease("other", "1")["metadata"]);
        let kept = election.next(&lease("me", "1"));
        assert_eq!(
            (&kept["spec"]["leaseTransitions"], &kept["spec"]["acquireTime"]),
            (&json!(3), &json!("a"))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn who_cannot_renew_gives_up_in_time() {
        let mut election = election();
        election.see(lease("me", "1"));
        let begun = Instant::now();
        election.hold().await;
        assert!((10..=12).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    }
}
