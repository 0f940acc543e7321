//! How many connections each of kube-proxy's listeners has, and how long they are borne with (docs/decisions/014.md).

use std::sync::Arc;
use std::time::Duration;

use serve::{Budget, Connections, Limits, Metrics, Proof, Times};

/// For a kept connection to ask again.
pub(super) const IDLE: Duration = Duration::from_secs(90);
/// Answers are short; a profile is the longest.
const TIMES: Times =
    Times { first: Duration::from_secs(10), idle: IDLE, busy: Some(Duration::from_secs(120)) };
const PLAIN: Limits = Limits { remote: 256, local: 128, known: 0, per_source: 64, known_takes: 1 };

/// What all listeners share: what is counted, and the descriptors they may take together.
#[derive(Clone, Debug)]
pub struct Ports {
    metrics: Arc<Metrics>,
    budget: Budget,
    /// One for all Services: their number is not ours to decide.
    checks: Connections,
}

// === impl Ports ===

impl Ports {
    #[must_use]
    pub fn new(metrics: Arc<Metrics>, budget: Budget) -> Ports {
        let limits = Limits { remote: 512, ..PLAIN }.within(budget.share(40));
        let checks = Connections::new("healthCheckNodePort", limits, Proof::Answer, TIMES, metrics.clone());
        Ports { metrics, budget, checks }
    }

    /// Port 10256.
    #[must_use]
    pub fn healthz(&self) -> Connections {
        self.open("healthz")
    }

    /// Port 10249.
    #[must_use]
    pub fn metrics(&self) -> Connections {
        self.open("metrics")
    }

    /// The ports a load balancer asks about Services.
    #[must_use]
    pub fn checks(&self) -> Connections {
        self.checks.clone()
    }

    fn open(&self, name: &'static str) -> Connections {
        let limits = PLAIN.within(self.budget.share(30));
        Connections::new(name, limits, Proof::Answer, TIMES, self.metrics.clone())
    }
}
