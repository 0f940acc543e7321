//! The built-in kinds, one file each.

mod address;
mod check;
mod config_map;
mod controller_revision;
mod daemon_set;
mod deployment;
mod endpoint_slice;
mod endpoints;
mod event;
mod lease;
pub mod meta;
pub mod namespace;
mod node;
mod persistent_volume_claim;
pub mod pod;
mod pod_template;
mod pod_template_kind;
mod quantity;
mod replica_set;
mod replicas;
mod replication_controller;
mod secret;
pub mod selector;
pub mod service;
mod service_account;
mod stateful_set;

use crate::kind::{Kind, Verb};

/// Every built-in kind.
#[must_use]
pub fn all() -> Vec<Kind> {
    vec![
        pod::binding(),
        config_map::kind(),
        endpoints::kind(),
        event::core(),
        namespace::kind(),
        node::kind(),
        persistent_volume_claim::kind(),
        pod::kind(),
        pod_template_kind::kind(),
        replication_controller::kind(),
        secret::kind(),
        service::kind(),
        service_account::kind(),
        controller_revision::kind(),
        daemon_set::kind(),
        deployment::kind(),
        replica_set::kind(),
        stateful_set::kind(),
        lease::kind(),
        endpoint_slice::kind(),
        event::events(),
    ]
}

/// A proxied path takes every method.
const PROXY_VERBS: &[Verb] = &[Verb::Create, Verb::Delete, Verb::Get, Verb::Patch, Verb::Update];
