//! What the configuration says of the end of the machine.

use std::sync::Arc;

use api::config::kubelet::Loaded;
use kubelet_core::shutdown::{Period, periods};
use tokio::sync::mpsc;

use super::Builder;
use crate::node::shutdown::Shutdown;
use crate::pods::dispatcher::EndOrder;
use crate::pods::node::Node;

impl Builder<'_> {
    /// What ends Pods before the machine goes down; none where it is not to wait for them.
    pub(super) fn shutdown(&self, node: &Arc<Node>, orders: mpsc::Sender<EndOrder>) -> Option<Shutdown> {
        let Loaded { config, gates, .. } = &self.start.loaded;
        let by_priority = match gates.enabled("GracefulNodeShutdownBasedOnPodPriority") {
            true => config.shutdown_grace_period_by_pod_priority.as_slice(),
            false => &[],
        };
        let period = |seconds, priority| Period { priority, seconds };
        let given = by_priority.iter().map(|p| period(p.shutdown_grace_period_seconds, p.priority));
        let (total, critical) = (config.shutdown_grace_period, config.shutdown_grace_period_critical_pods);
        let periods = periods(total.to_std(), critical.to_std(), given.collect());
        let wanted = gates.enabled("GracefulNodeShutdown") && !periods.is_empty();
        wanted.then(|| Shutdown {
            node: node.clone(),
            cluster: self.cluster.clone(),
            orders,
            periods,
            places: self.start.places.clone(),
            root: self.dirs.root.clone(),
        })
    }
}
