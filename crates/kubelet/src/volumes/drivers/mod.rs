//! CSI drivers on this node: who has registered, and how it is spoken to.
//!
//! What is done with them is in [`crate::volumes`]; how they come in is in [`crate::plugins`].

pub mod registration;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::time::{Clock, Mono};
use kubelet_core::volumes::csi::PLUGIN;
use tokio::sync::watch;

use crate::metrics::Metrics;

/// How long a driver may take over one call.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// The drivers that have registered.
#[derive(Debug, Default)]
pub struct Drivers {
    all: watch::Sender<BTreeMap<String, Registered>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// The socket of the driver itself.
    pub endpoint: PathBuf,
    /// The socket it registered by.
    pub socket: PathBuf,
    pub version: Vec<u64>,
}

/// A call to a driver that is measured.
#[derive(Clone)]
pub struct Measured {
    pub metrics: Arc<Metrics>,
    pub clock: Arc<dyn Clock>,
}

// === impl Drivers ===

impl Drivers {
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Registered> {
        self.all.borrow().get(name).cloned()
    }

    /// The driver, if it is there or comes within the given time.
    pub async fn wait_for(&self, name: &str, limit: Duration) -> Result<csi::Driver, String> {
        let mut all = self.all.subscribe();
        let there = all.wait_for(|all| all.contains_key(name));
        let found = tokio::time::timeout(limit, there).await;
        let endpoint = found.ok().and_then(|all| all.ok()?.get(name).map(|d| d.endpoint.clone()));
        let endpoint = endpoint
            .ok_or_else(|| format!("driver name {name} not found in the list of registered CSI drivers"))?;
        Ok(csi::Driver::new(endpoint, DEADLINE))
    }

    /// Tells of every driver that comes or goes.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<BTreeMap<String, Registered>> {
        self.all.subscribe()
    }

    fn set(&self, name: &str, driver: Registered) {
        self.all.send_modify(|all| drop(all.insert(name.to_owned(), driver)));
    }

    /// Forgets the driver that came by this socket; another of the same name stays. True if it was there.
    fn remove(&self, name: &str, socket: &Path) -> bool {
        self.all.send_if_modified(|all| {
            let is_it = all.get(name).is_some_and(|d| d.socket == socket);
            if is_it {
                all.remove(name);
            }
            is_it
        })
    }
}

// === impl Measured ===

impl Measured {
    /// Feeds `csi_operations_seconds`.
    pub async fn call<T>(
        &self,
        driver: &str,
        method: &str,
        call: impl Future<Output = csi::Result<T>>,
    ) -> csi::Result<T> {
        let begun = self.clock.now().mono;
        let answer = call.await;
        let took = self.clock.now().mono.since(begun).as_secs_f64();
        let code = answer.as_ref().map_or_else(|e| format!("{:?}", e.code), |_| "OK".to_owned());
        let method = format!("/csi.v1.Node/{method}");
        self.metrics.csi_operations_seconds.observe([driver, &method, &code, "false"], took);
        answer
    }
}

/// What is done with a volume, as `storage_operation_duration_seconds` calls it.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub name: &'static str,
    pub begun: Mono,
}

impl Measured {
    #[must_use]
    pub fn begin(&self, name: &'static str) -> Operation {
        Operation { name, begun: self.clock.now().mono }
    }

    /// Feeds `storage_operation_duration_seconds`.
    pub fn end(&self, operation: Operation, driver: &str, worked: bool) {
        let took = self.clock.now().mono.since(operation.begun).as_secs_f64();
        let plugin = format!("{PLUGIN}:{driver}");
        let status = if worked { "success" } else { "fail-unknown" };
        let labels = [plugin.as_str(), operation.name, status, "false"];
        self.metrics.storage_operation_duration_seconds.observe(labels, took);
    }
}

impl std::fmt::Debug for Measured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Measured").finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_driver_that_comes_late_is_waited_for() {
        let drivers = Arc::new(Drivers::default());
        let missing = drivers.wait_for("d", Duration::from_secs(1)).await.unwrap_err();
        assert_eq!(missing, "driver name d not found in the list of registered CSI drivers");
        let waiting = tokio::spawn({
            let drivers = drivers.clone();
            async move { drivers.wait_for("d", Duration::from_secs(9)).await }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        let by = |socket: &str| Registered {
            endpoint: "/csi.sock".into(),
            socket: socket.into(),
            version: vec![1],
        };
        drivers.set("d", by("/a"));
        assert_eq!(waiting.await.unwrap().unwrap().socket(), Path::new("/csi.sock"));
        drivers.set("d", by("/b"));
        assert!(!drivers.remove("d", Path::new("/a")), "it came back by another socket");
        assert!(drivers.remove("d", Path::new("/b")) && drivers.get("d").is_none());
    }
}
