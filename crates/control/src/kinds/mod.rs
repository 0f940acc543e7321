//! The built-in kinds, one file each.

mod address;
mod check;
mod config_map;
mod endpoint_slice;
mod endpoints;
mod event;
mod lease;
pub mod meta;
pub mod namespace;
mod node;
mod secret;
pub mod selector;
pub mod service;
mod service_account;

use crate::kind::{Kind, Verb};

/// Every built-in kind.
#[must_use]
pub fn all() -> Vec<Kind> {
    vec![
        config_map::kind(),
        endpoints::kind(),
        event::core(),
        namespace::kind(),
        node::kind(),
        secret::kind(),
        service::kind(),
        service_account::kind(),
        lease::kind(),
        endpoint_slice::kind(),
        event::events(),
    ]
}

/// A proxied path takes every method.
const PROXY_VERBS: &[Verb] = &[Verb::Create, Verb::Delete, Verb::Get, Verb::Patch, Verb::Update];
