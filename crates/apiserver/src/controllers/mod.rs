//! The small controllers that belong to the API itself: without them deletions would never end.

pub mod definitions;
pub mod events;
pub mod garbage;
pub mod namespaces;
mod queue;

use std::sync::Arc;

use crate::registry::Registry;
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
pub fn start(
    registry: &Registry,
    root_ca: String,
    event_ttl: std::time::Duration,
    tasks: &mut tokio::task::JoinSet<()>,
) {
    tasks.spawn(namespaces::run(registry.clone(), root_ca));
    tasks.spawn(garbage::run(registry.clone()));
    tasks.spawn(definitions::run(registry.clone()));
    tasks.spawn(events::run(registry.clone(), event_ttl));
}
