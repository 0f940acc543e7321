//! `endpoints.kubernetes.io/last-change-trigger-time`: since when a change waits for its endpoints. kube-proxy's programming latency
//! is measured from it.

use std::collections::HashMap;

use base::time::Wall;

use super::Behind;
use crate::controller::Key;
use crate::object::Object;
use crate::terms::timestamp;

pub(super) const ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// What was seen of each Service at its last sync. Holds no more than there are Services and Pods behind them.
#[derive(Debug, Default)]
pub(super) struct Triggers(HashMap<Key, Seen>);

#[derive(Debug, Default)]
struct Seen {
    pods: HashMap<Box<str>, Wall>,
}

// === impl Triggers ===

impl Triggers {
    /// The earliest Ready transition since the last sync of this Service; at its first one, its creation.
    pub(super) fn since(&mut self, key: &Key, service: &Object, pods: &[Behind]) -> Option<String> {
        let times: HashMap<Box<str>, Wall> = pods
            .iter()
            .filter_map(|pod| Some((pod.object.meta.name.clone(), pod.object.pod()?.ready??)))
            .collect();
        let known = self.0.insert(key.clone(), Seen { pods: times.clone() });
        let earliest = match known {
            None => service.meta.created,
            Some(known) => {
                let is_new = |name: &str, time: Wall| known.pods.get(name).is_none_or(|seen| *seen < time);
                times.iter().filter(|(name, time)| is_new(name, **time)).map(|(_, time)| *time).min()
            }
        };
        earliest.map(timestamp)
    }

    pub(super) fn forget(&mut self, key: &Key) {
        self.0.remove(key);
    }
}
