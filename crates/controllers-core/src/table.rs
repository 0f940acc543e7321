//! The controllers, one line each.

use std::collections::BTreeSet;

use crate::bootstrap;
use crate::certificates;
use crate::cluster_role_aggregation;
use crate::controller::Row;
use crate::cron_job;
use crate::csr_cleaner;
use crate::daemon_set;
use crate::deployment;
use crate::endpoints;
use crate::garbage;
use crate::horizontal_pod_autoscaler;
use crate::job;
use crate::legacy_token_cleaner;
use crate::namespace;
use crate::node;
use crate::pod_disruption_budget;
use crate::pod_gc;
use crate::replica_set;
use crate::resource::Resource;
use crate::resource_quota;
use crate::root_ca_publisher;
use crate::service_account;
use crate::service_account_tokens;
use crate::service_cidr;
use crate::stateful_set;
use crate::taint_eviction;
use crate::ttl_after_finished;
use crate::volume;
use crate::volume_attributes_class_protection;

/// Every controller there is. `--controllers` chooses among them.
pub const CONTROLLERS: &[Row] = &[
    bootstrap::BOOTSTRAP_SIGNER,
    bootstrap::TOKEN_CLEANER,
    certificates::APPROVING,
    certificates::SIGNING,
    cluster_role_aggregation::CLUSTER_ROLE_AGGREGATION,
    csr_cleaner::CSR_CLEANER,
    cron_job::CRON_JOB,
    daemon_set::DAEMON_SET,
    deployment::DEPLOYMENT,
    endpoints::ENDPOINT_SLICE_CONTROLLER,
    endpoints::ENDPOINTS_CONTROLLER,
    endpoints::ENDPOINT_SLICE_MIRRORING,
    garbage::GARBAGE_COLLECTOR,
    horizontal_pod_autoscaler::HORIZONTAL_POD_AUTOSCALER,
    job::JOB,
    job::JOB_ORPHANS,
    legacy_token_cleaner::LEGACY_TOKEN_CLEANER,
    namespace::NAMESPACE,
    node::NODE_TAINTS,
    node::NODE_HEALTH,
    pod_disruption_budget::DISRUPTION,
    pod_disruption_budget::STALE_POD_DISRUPTION,
    node::NODE_IPAM,
    node::NODE_TTL,
    pod_gc::POD_GC,
    replica_set::REPLICA_SET,
    replica_set::REPLICATION_CONTROLLER,
    resource_quota::RESOURCE_QUOTA,
    root_ca_publisher::ROOT_CA_PUBLISHER,
    service_account::SERVICE_ACCOUNT,
    service_account_tokens::SERVICE_ACCOUNT_TOKENS,
    service_cidr::SERVICE_CIDR,
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
    volume_attributes_class_protection::VOLUME_ATTRIBUTES_CLASS_PROTECTION,
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
