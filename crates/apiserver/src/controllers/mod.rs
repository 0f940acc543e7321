//! The small controllers that belong to the API itself: without them deletions would never end.

pub mod definitions;
pub mod events;
pub mod garbage;
pub mod namespaces;

use std::sync::Arc;

use crate::registry::Registry;
use crate::tasks::Tasks;
use apiserver_core::catalog::Catalog;
use apiserver_core::kind::Kind;

/// Namespace and name of an object, and its kind, from its key.
#[derive(Clone, Debug)]
pub(crate) struct Located {
    pub(crate) kind: Arc<Kind>,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// Finds out what a key of the store is; None for kinds that are not served.
pub(crate) fn locate(catalog: &Catalog, key: &str) -> Option<Located> {
    let (kind, rest) = catalog.by_key(key)?;
    let kind = kind.clone();
    let (namespace, name) = match (kind.is_namespaced(), rest.split_once('/')) {
        (true, Some((namespace, name))) => (namespace, name),
        (false, None) => ("", rest),
        _ => return None,
    };
    Some(Located { namespace: namespace.to_owned(), name: name.to_owned(), kind })
}

/// Starts all of them; they end with the store.
pub(crate) fn start(registry: &Registry, root_ca: String, event_ttl: std::time::Duration, tasks: &Tasks) {
    let all = registry.clone();
    tasks.restart("namespaces", move || namespaces::run(all.clone(), root_ca.clone()));
    let all = registry.clone();
    tasks.restart("garbage_collector", move || garbage::run(all.clone()));
    let all = registry.clone();
    tasks.restart("custom_resource_definitions", move || definitions::run(all.clone()));
    let all = registry.clone();
    tasks.restart("event_ttl", move || events::run(all.clone(), event_ttl));
}
