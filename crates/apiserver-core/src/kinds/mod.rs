//! The built-in kinds, one file each.

mod address;
pub mod certificate_signing_request;
mod check;
mod cluster_trust_bundle;
pub mod component_status;
mod config_map;
mod controller_revision;
mod cron_job;
pub mod custom_resource_definition;
mod daemon_set;
pub mod definition_names;
mod deployment;
pub mod device;
mod endpoint_slice;
mod endpoints;
mod event;
mod horizontal_pod_autoscaler;
mod ingress;
mod ingress_class;
mod ip_address;
mod job;
mod lease;
mod limit_range;
pub mod meta;
pub mod namespace;
mod network_policy;
mod node;
pub mod node_metrics;
mod persistent_volume;
mod persistent_volume_claim;
pub mod pod;
mod pod_disruption_budget;
mod pod_template;
mod pod_template_kind;
pub mod priority_class;
mod quantity;
mod rbac;
mod replica_set;
mod replicas;
mod replication_controller;
mod resource_quota;
mod reviews;
mod runtime_class;
mod runtime_config;
pub mod scale;
mod secret;
pub mod selector;
pub mod service;
mod service_account;
mod service_cidr;
mod stateful_set;
mod storage;
mod unserved;

use crate::kind::{Kind, Verb};
pub use runtime_config::RuntimeConfig;

/// Every built-in kind that is always served.
#[must_use]
pub fn all() -> Vec<Kind> {
    let mut kinds = vec![
        pod::binding(),
        component_status::kind(),
        config_map::kind(),
        endpoints::kind(),
        event::core(),
        limit_range::kind(),
        namespace::kind(),
        node::kind(),
        persistent_volume::kind(),
        persistent_volume_claim::kind(),
        pod::kind(),
        pod_template_kind::kind(),
        replication_controller::kind(),
        resource_quota::kind(),
        secret::kind(),
        service::kind(),
        service_account::kind(),
        custom_resource_definition::kind(),
        controller_revision::kind(),
        daemon_set::kind(),
        deployment::kind(),
        replica_set::kind(),
        stateful_set::kind(),
        horizontal_pod_autoscaler::kind(),
        horizontal_pod_autoscaler::v1(),
        cron_job::kind(),
        job::kind(),
        certificate_signing_request::kind(),
        lease::kind(),
        endpoint_slice::kind(),
        event::events(),
        ingress::kind(),
        ingress_class::kind(),
        ip_address::kind(),
        network_policy::kind(),
        service_cidr::kind(),
        runtime_class::kind(),
        pod_disruption_budget::kind(),
        rbac::cluster_role_bindings(),
        rbac::cluster_roles(),
        rbac::role_bindings(),
        rbac::roles(),
        device::device_class(),
        device::resource_claim(),
        device::resource_claim_template(),
        device::resource_slice(),
        priority_class::kind(),
        storage::csi_driver(),
        storage::csi_node(),
        storage::csi_storage_capacity(),
        storage::storage_class(),
        storage::volume_attachment(),
        storage::volume_attributes_class(),
    ];
    kinds.extend(reviews::kinds());
    kinds.extend(unserved::kinds());
    kinds
}

/// A proxied path takes every method.
const PROXY_VERBS: &[Verb] = &[Verb::Create, Verb::Delete, Verb::Get, Verb::Patch, Verb::Update];

#[cfg(test)]
mod tests;
