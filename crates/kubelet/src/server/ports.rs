//! How many connections each of the kubelet's listeners has, and how long they are borne with (docs/decisions/014.md).

use std::sync::Arc;
use std::time::Duration;

use serve::{Budget, Connections, Limits, Metrics, Proof, Times};

/// For the head of the first request, the handshake included.
const FIRST: Duration = Duration::from_secs(10);
/// For a kept connection to ask again, upstream's figure.
pub(super) const IDLE: Duration = Duration::from_secs(90);

/// What all listeners share: what is counted, and the descriptors they may take together.
#[derive(Clone, Debug)]
pub struct Ports {
    pub metrics: Arc<Metrics>,
    pub budget: Budget,
}

// === impl Ports ===

impl Ports {
    /// Port 10250: a stream has another end at the runtime, and often a third at its container.
    #[must_use]
    pub fn secure(&self) -> Connections {
        let limits = Limits { remote: 512, local: 256, known: 2048, per_source: 128, known_takes: 2 };
        self.open("kubelet", limits, 60, Proof::Identity, None)
    }

    /// Port 10248: answers are one word.
    #[must_use]
    pub fn healthz(&self) -> Connections {
        self.open("healthz", PLAIN, 10, Proof::Answer, Some(Duration::from_secs(60)))
    }

    /// Port 10255: what is said of a thousand Pods may take its time.
    #[must_use]
    pub fn read_only(&self) -> Connections {
        self.open("read-only", PLAIN, 15, Proof::Answer, Some(Duration::from_mins(10)))
    }

    /// The page of the node. A browser has several connections, and few people look at once.
    #[must_use]
    pub fn node_page(&self) -> Connections {
        let limits = Limits { remote: 48, local: 48, known: 64, per_source: 24, known_takes: 1 };
        self.open("node-page", limits, 5, Proof::Answer, Some(Duration::from_secs(60)))
    }

    /// The socket of the local API: only root gets there, and a watcher holds a place for as long as it watches.
    #[must_use]
    pub fn local(&self) -> Connections {
        let limits = Limits { remote: 0, local: 0, known: 128, per_source: 0, known_takes: 2 };
        self.open("local", limits, 10, Proof::Identity, None)
    }

    #[cfg(test)]
    pub(crate) fn for_tests() -> Ports {
        Ports { metrics: Arc::default(), budget: Budget::of(1_000_000) }
    }

    fn open(
        &self,
        name: &'static str,
        limits: Limits,
        percent: usize,
        proof: Proof,
        busy: Option<Duration>,
    ) -> Connections {
        let limits = limits.within(self.budget.share(percent));
        let times = Times { first: FIRST, idle: IDLE, busy };
        Connections::new(name, limits, proof, times, self.metrics.clone())
    }
}

/// Where nobody says who he is.
const PLAIN: Limits = Limits { remote: 256, local: 128, known: 0, per_source: 64, known_takes: 1 };
