//! The controllers, one line each.

use std::collections::BTreeSet;

use crate::cluster_role_aggregation;
use crate::controller::Row;
use crate::csr_cleaner;
use crate::daemon_set;
use crate::deployment;
use crate::endpoints;
use crate::job;
use crate::node;
use crate::pod_disruption_budget;
use crate::pod_gc;
use crate::replica_set;
use crate::resource::Resource;
use crate::service_account;
use crate::stateful_set;
use crate::taint_eviction;
use crate::ttl_after_finished;
use crate::volume;

/// Every controller there is. `--controllers` chooses among them.
pub const CONTROLLERS: &[Row] = &[
    cluster_role_aggregation::CLUSTER_ROLE_AGGREGATION,
    csr_cleaner::CSR_CLEANER,
    daemon_set::DAEMON_SET,
    deployment::DEPLOYMENT,
    endpoints::ENDPOINT_SLICE_CONTROLLER,
    endpoints::ENDPOINTS_CONTROLLER,
    job::JOB,
    job::JOB_ORPHANS,
    node::NODE_TAINTS,
    node::NODE_HEALTH,
    pod_disruption_budget::DISRUPTION,
    pod_disruption_budget::STALE_POD_DISRUPTION,
    node::NODE_IPAM,
    node::NODE_TTL,
    pod_gc::POD_GC,
    replica_set::REPLICA_SET,
    replica_set::REPLICATION_CONTROLLER,
    service_account::SERVICE_ACCOUNT,
    stateful_set::STATEFUL_SET,
    taint_eviction::TAINT_EVICTION,
    ttl_after_finished::TTL_AFTER_FINISHED,
    volume::ATTACH_DETACH,
    volume::BINDER_OF_CLAIMS,
    volume::BINDER_OF_VOLUMES,
    volume::EPHEMERAL_VOLUME,
    volume::EXPAND,
    volume::PVC_PROTECTION,
    volume::PV_PROTECTION,
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
