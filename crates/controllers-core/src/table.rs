//! The controllers, one line each.

use std::collections::BTreeSet;

use crate::controller::Row;
use crate::daemon_set;
use crate::deployment;
use crate::endpoints;
use crate::node;
use crate::pod_disruption_budget;
use crate::pod_gc;
use crate::replica_set;
use crate::resource::Resource;
use crate::stateful_set;
use crate::taint_eviction;
use crate::ttl_after_finished;

/// Every controller there is. `--controllers` chooses among them.
pub const CONTROLLERS: &[Row] = &[
    daemon_set::DAEMON_SET,
    deployment::DEPLOYMENT,
    endpoints::ENDPOINT_SLICE_CONTROLLER,
    endpoints::ENDPOINTS_CONTROLLER,
    node::NODE_TAINTS,
    node::NODE_HEALTH,
    pod_disruption_budget::DISRUPTION,
    pod_disruption_budget::STALE_POD_DISRUPTION,
    pod_gc::POD_GC,
    replica_set::REPLICA_SET,
    replica_set::REPLICATION_CONTROLLER,
    stateful_set::STATEFUL_SET,
    taint_eviction::TAINT_EVICTION,
    ttl_after_finished::TTL_AFTER_FINISHED,
];

/// Everything that any of them looks at.
#[must_use]
pub fn resources() -> BTreeSet<Resource> {
    CONTROLLERS.iter().flat_map(Row::resources).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_controllers_share_a_queue_or_a_former_name() {
        let mut queues = BTreeSet::new();
        for row in CONTROLLERS {
            assert!(queues.insert(row.queue), "{} twice", row.queue);
            let same =
                CONTROLLERS.iter().filter(|other| row.aliases.iter().any(|alias| other.answers_to(alias)));
            assert!(same.into_iter().all(|other| other.name == row.name), "{}", row.name);
        }
    }
}
