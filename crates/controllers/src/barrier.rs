//! Why no key is looked at twice on old knowledge: what was written for it must be in the caches first.
//!
//! Upstream counts expectations, and waits five minutes when the count is wrong. Here the server's answers say at which
//! revision each write was done, and the caches say up to which revision they know everything. Where an answer was lost, the
//! revision of that moment is asked for: what was done before it is seen by whoever has seen that much.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use controllers_core::cache::Cache;
use controllers_core::object::Object;
use controllers_core::plan::{Act, Outcome, Why};
use controllers_core::resource::Resource;
use controllers_core::view::View;
use tokio::time::Instant;

/// A cache that has not come so far by then never will: the server counts otherwise than we think.
const TIMEOUT: Duration = Duration::from_secs(300);

/// What has to be seen before a key is looked at again.
#[derive(Clone, Debug)]
pub(crate) struct Barrier {
    revisions: BTreeMap<Resource, u64>,
    /// Deleted: gone, another, or on its way.
    deleted: Vec<Deleted>,
    /// Written to, perhaps: nobody knows at which revision.
    pub(crate) unknown: BTreeSet<Resource>,
    since: Instant,
    /// Somebody has to be woken once it is met.
    pub(crate) is_awaited: bool,
}

#[derive(Clone, Debug)]
struct Deleted {
    resource: Resource,
    namespace: String,
    name: String,
    uid: Option<String>,
}

// === impl Barrier ===

impl Barrier {
    pub(crate) fn new() -> Barrier {
        Barrier {
            revisions: BTreeMap::new(),
            deleted: Vec::new(),
            unknown: BTreeSet::new(),
            since: Instant::now(),
            is_awaited: false,
        }
    }

    /// Takes in what became of an act.
    pub(crate) fn add(&mut self, act: &Act, outcome: &Outcome) {
        let Some(resource) = act.resource() else { return };
        match (act, outcome) {
            (_, Outcome::Failed(refusal)) if refusal.why == Why::Lost => {
                self.unknown.insert(resource);
            }
            (Act::Delete { target, uid, .. }, Outcome::Done(_)) => self.deleted.push(Deleted {
                resource,
                namespace: target.namespace.clone(),
                name: target.name.clone(),
                uid: uid.clone(),
            }),
            (_, Outcome::Done(answer)) => match Object::new(resource, answer) {
                Some(object) => self.at_least(resource, object.meta.resource_version),
                // `/scale` and the like answer with something else.
                None => _ = self.unknown.insert(resource),
            },
            _ => {}
        }
    }

    pub(crate) fn at_least(&mut self, resource: Resource, revision: u64) {
        let known = self.revisions.entry(resource).or_default();
        *known = revision.max(*known);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.revisions.is_empty() && self.deleted.is_empty() && self.unknown.is_empty()
    }

    /// Until when it is waited for.
    pub(crate) fn until(&self) -> Instant {
        self.since + TIMEOUT
    }

    pub(crate) fn is_met(&self, cache: &Cache) -> bool {
        if Instant::now() >= self.until() {
            return true;
        }
        let is_seen = |(resource, revision): (&Resource, &u64)| {
            !cache.holds(*resource) || cache.revision(*resource) >= *revision
        };
        self.unknown.is_empty()
            && self.revisions.iter().all(is_seen)
            && self.deleted.iter().all(|deleted| deleted.is_seen(cache))
    }
}

// === impl Deleted ===

impl Deleted {
    fn is_seen(&self, cache: &Cache) -> bool {
        let Some(object) = cache.get(self.resource, &self.namespace, &self.name) else { return true };
        object.is_deleting() || self.uid.as_ref().is_some_and(|uid| **uid != *object.meta.uid)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use controllers_core::plan::WriteError;
    use controllers_core::resource::PODS;
    use serde_json::json;

    use super::*;

    fn pod(version: u64, deleting: bool) -> Object {
        let mut doc = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u", "resourceVersion": version.to_string()}});
        if deleting {
            doc["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        Object::new(PODS, doc.to_string().as_bytes()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_is_waited_for_until_the_cache_shows_it() {
        let cache = Cache::new([PODS]);
        cache.replace(PODS, vec![pod(4, false)], 5);
        let mut barrier = Barrier::new();
        let create = Act::create(PODS, "n", json!({}));
        let answer = json!({"metadata": {"name": "q", "resourceVersion": "7"}}).to_string();
        barrier.add(&create, &Outcome::Done(answer.into()));
        assert!(!barrier.is_met(&cache));
        cache.saw(PODS, 7);
        assert!(barrier.is_met(&cache));
        barrier.add(&Act::delete(&pod(4, false)), &Outcome::Done(bytes::Bytes::new()));
        assert!(!barrier.is_met(&cache), "it is still there");
        cache.apply(pod(9, true));
        assert!(barrier.is_met(&cache), "it is on its way");
        barrier.add(&create, &Outcome::Failed(WriteError::new(Why::Lost, "timeout")));
        assert!(!barrier.is_met(&cache), "nobody knows what became of it");
        tokio::time::advance(TIMEOUT).await;
        assert!(barrier.is_met(&cache), "nothing is waited for without end");
    }
}
