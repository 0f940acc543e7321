//! Which Pods are missing, and which are too many.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::backoff::Backoff;
use base::time::Now;
use serde_json::{Value, json};

use super::fit::{self, Place};
use super::{BURST, ByNode, DaemonSet, FailedAt, HASH, POD_TEMPLATE_GENERATION, Site, Work};
use crate::object::Object;
use crate::plan::{Act, Event, Plan, Step};
use crate::resource::PODS;
use crate::template;
use crate::terms::Phase;

impl DaemonSet {
    pub(super) fn manage(
        &self,
        sites: &[Site],
        by_node: &ByNode,
        hash: &str,
        failed: &mut Backoff<FailedAt>,
        now: Now,
    ) -> Work {
        let mut work = Work::default();
        for site in sites {
            let pods = by_node.get(&site.name);
            match (site.place, pods) {
                (Place::Run, None) => work.create.push(site.name.clone()),
                (Place::Run | Place::Continue, Some(pods)) => {
                    let running = self.living(&site.name, pods, failed, &mut work, now);
                    self.prune(running, hash, &mut work, now);
                }
                (Place::No, Some(pods)) => {
                    work.delete.extend(pods.iter().filter(|pod| !pod.is_deleting()).cloned());
                }
                (_, None) => {}
            }
        }
        // Nobody will bind a Pod to a Node that is not there.
        let known: BTreeSet<&str> = sites.iter().map(|site| &*site.name).collect();
        let lost =
            by_node.iter().filter(|(node, _)| !known.contains(node.as_str())).flat_map(|(_, pods)| pods);
        work.delete.extend(lost.filter(|pod| pod.meta.node.is_empty() && !pod.is_deleting()).cloned());
        work
    }

    /// The Pods of a Node that have not ended. Those that have are deleted, so that others can take their place.
    fn living(
        &self,
        node: &str,
        pods: &[Arc<Object>],
        failed: &mut Backoff<FailedAt>,
        work: &mut Work,
        now: Now,
    ) -> Vec<Arc<Object>> {
        let mut running = Vec::new();
        for pod in pods.iter().filter(|pod| !pod.is_deleting()) {
            let told = format!("daemon pod {}/{} on node {node}", pod.meta.namespace, pod.meta.name);
            match pod.pod().map(|terms| terms.phase).unwrap_or_default() {
                Phase::Failed => {
                    // The kubelet may refuse Pod after Pod. A new generation of the DaemonSet begins anew.
                    let observed = self.status["observedGeneration"].as_i64().unwrap_or(0);
                    let key: FailedAt = (self.object.meta.uid.clone(), observed, node.into());
                    if let Some(at) = failed.blocked_since_failure(&key, now.mono) {
                        let wait = at.since(now.mono);
                        work.wake = Some(work.wake.map_or(wait, |known| known.min(wait)));
                        continue;
                    }
                    failed.fail(key, now.mono);
                    let message = format!("Found failed {told}, will try to kill it");
                    work.events.push(Event::warning(&self.object, "FailedDaemonPod", message));
                    work.delete.push(pod.clone());
                }
                Phase::Succeeded => {
                    let message = format!("Found succeeded {told}, will try to delete it");
                    work.events.push(Event::normal(&self.object, "SucceededDaemonPod", message));
                    work.delete.push(pod.clone());
                }
                _ => running.push(pod.clone()),
            }
        }
        running
    }

    /// One Pod for a Node; with surge, an old one that is ready beside a new one that is not available yet.
    fn prune(&self, mut running: Vec<Arc<Object>>, hash: &str, work: &mut Work, now: Now) {
        if running.len() <= 1 {
            return;
        }
        oldest_first(&mut running);
        if !self.allows_surge() {
            return work.delete.extend(running.drain(1..));
        }
        let (new, old): (Vec<_>, Vec<_>) = running.into_iter().partition(|pod| pod.label(HASH) == Some(hash));
        work.delete.extend(new.iter().skip(1).chain(old.iter().skip(1)).cloned());
        if let (Some(new), Some(old)) = (new.first(), old.first()) {
            let is_ready = old.pod().is_some_and(|terms| terms.is_ready());
            if !is_ready || self.is_available(new, now) {
                work.delete.push(old.clone());
            }
        }
    }

    /// Deletions first: what they free may be what the new ones need.
    pub(super) fn carry_out(&self, work: Work, hash: &str) -> Plan {
        let Work { delete, create, events, wake } = work;
        let delete = Step::at_once(delete.iter().take(BURST).map(|pod| Act::delete(pod)));
        let mut made = Vec::new();
        for node in create.iter().take(BURST) {
            let Some(pod) = self.pod(node, hash) else {
                let error = self.object.unreadable("unable to create pods, no labels");
                return Plan::unreadable(&self.object, &error);
            };
            made.push(Act::create(PODS, &self.object.meta.namespace, pod));
        }
        let plan = Plan::nothing().then(delete).then(Step::slow_start(made)).wake(wake);
        Plan { events, ..plan }
    }

    fn pod(&self, node: &str, hash: &str) -> Option<Value> {
        let mut pod = template::pod(&self.object, &self.template)?;
        pod["metadata"]["labels"][HASH] = json!(hash);
        if let Some(generation) = &self.generation {
            pod["metadata"]["labels"][POD_TEMPLATE_GENERATION] = json!(generation);
        }
        pod["spec"]["tolerations"] = fit::tolerations(&self.template["spec"]);
        fit::pin(&mut pod["spec"], node);
        Some(pod)
    }
}

/// Pods that have a Node come before those that wait for it.
pub(super) fn oldest_first(pods: &mut [Arc<Object>]) {
    let order = |pod: &Object| (pod.meta.node.is_empty(), pod.meta.created, pod.meta.name.clone());
    pods.sort_by_cached_key(|pod| order(pod));
}
