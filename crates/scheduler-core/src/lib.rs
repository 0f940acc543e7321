//! The decisions of kube-scheduler: which Pod is next, which nodes it fits on, which of them is best, and who has to make way.
//!
//! Objects come in as compact records, made once when they change. Time, chance and the answers of others are arguments.
//!
//! * [`cluster`]: everything the decisions look at.
//! * [`plugins`]: one file for each plugin, and the table of them.
//! * [`cycle`]: from a Pod to a node, or to the sentence that says why not.
//! * [`preemption`]: who makes way for a Pod that fits nowhere.
//! * [`queue`]: who waits, for what, and who is next.
//! * [`doctor`]: why a Pod does not run, or does not end.
//! * [`profile`]: which plugins run for whom, from the configuration.

pub mod classes;
pub mod cluster;
pub mod cycle;
pub mod doctor;
pub mod event;
pub mod extender;
pub mod framework;
pub mod labels;
pub mod migration;
pub mod node;
pub mod objects;
pub mod plugin;
pub mod plugins;
pub mod pod;
pub mod preemption;
pub mod profile;
pub mod queue;
pub mod resources;
pub mod status;
pub mod topology;

#[cfg(test)]
mod testing;

use std::sync::Arc;

/// A name or a label's value: shared, never changed.
pub type Name = Arc<str>;

/// A namespaced name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub namespace: Name,
    pub name: Name,
}

// === impl Key ===

impl Key {
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Key {
        Key { namespace: namespace.into(), name: name.into() }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
