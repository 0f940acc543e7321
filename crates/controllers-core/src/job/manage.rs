//! Which Pods of a Job are missing, and which are too many.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::backoff::Record;
use super::look::Look;
use super::pod::{self, Rule};
use super::{BURST, untrack};
use crate::object::{Object, Unreadable};
use crate::plan::{Act, Plan, Step};
use crate::rank;
use crate::resource::PODS;
use crate::template;
use crate::terms::{COMPLETION_INDEX, JOB_TRACKING};

const INDEX_ENV: &str = "JOB_COMPLETION_INDEX";
/// The API server adds five letters, and a Pod's name stays a DNS label.
const LONGEST_PREFIX: usize = 58;

/// An index, and the Pod of it that has failed.
type Place<'a> = (u32, Option<&'a Arc<Object>>);

impl Look<'_> {
    /// What is to be done about Pods, and when there will be more.
    pub(super) fn work(&self, record: Record) -> Result<Plan, Unreadable> {
        let active = self.active();
        if self.finish().is_some() {
            return Ok(Plan::nothing().then(Step::at_once(active.iter().map(|pod| Act::delete(pod)))));
        }
        if self.job.object.is_deleting() {
            return Ok(Plan::nothing());
        }
        let want = self.want(active.len());
        let surplus = self.surplus(&active, active.len().saturating_sub(want));
        if !surplus.is_empty() {
            // A Pod that we take away is no failure: it is not to be counted.
            let held = surplus.iter().filter(|pod| self.is_held(pod)).map(untrack);
            let delete = surplus.iter().map(|pod| Act::delete(pod));
            return Ok(Plan::nothing().then(Step::at_once(held)).then(Step::at_once(delete)));
        }
        let terminating = if self.job.replaces_ended_only() { self.terminating() } else { 0 };
        let missing = want.saturating_sub(terminating + active.len()).min(BURST);
        if missing == 0 || self.job.is_suspended() {
            return Ok(Plan::nothing());
        }
        self.create(missing, record)
    }

    fn want(&self, active: usize) -> usize {
        let most = self.job.parallelism as usize;
        match self.job.completions {
            _ if self.job.is_suspended() => 0,
            // The first that succeeds says that the work is done. The others may end.
            None if self.succeeded() > 0 => active,
            None => most,
            Some(completions) => (completions as usize).saturating_sub(self.succeeded()).min(most),
        }
    }

    /// Those of no index or of one that another has too, then the usual order.
    fn surplus(&self, active: &[Arc<Object>], at_least: usize) -> Vec<Arc<Object>> {
        let (mut go, mut stay) = (Vec::new(), active.to_vec());
        if self.job.is_indexed() {
            let mut by_index: BTreeMap<Option<u32>, Vec<Arc<Object>>> = BTreeMap::new();
            for pod in active {
                by_index.entry(self.job.index(pod)).or_default().push(pod.clone());
            }
            stay.clear();
            for (index, pods) in by_index {
                let keep = usize::from(index.is_some());
                let first = rank::first_of_job(&pods, pods.len() - keep);
                stay.extend(
                    pods.into_iter().filter(|pod| first.iter().all(|gone| gone.meta.uid != pod.meta.uid)),
                );
                go.extend(first);
            }
        }
        go.extend(rank::first_of_job(&stay, at_least.saturating_sub(go.len())));
        go.truncate(BURST);
        go
    }

    fn create(&self, missing: usize, record: Record) -> Result<Plan, Unreadable> {
        let record = record.after(&self.new_ends(false), &self.new_ends(true));
        if self.job.per_index().is_none()
            && let Some(left) = record.left(self.now)
        {
            return Ok(Plan::nothing().wake(Some(left)));
        }
        let mut waits: Option<Duration> = None;
        let mut places = vec![None; missing];
        if self.job.is_indexed() {
            let last = self.last_failed();
            places.clear();
            for index in self.free_indexes(missing) {
                match last.get(&index).and_then(|pod| pause(pod).left(self.now)) {
                    None => places.push(Some((index, last.get(&index)))),
                    Some(left) => waits = Some(waits.map_or(left, |known| known.min(left))),
                }
            }
            return self.step(&places).map(|step| Plan::nothing().then(step).wake(waits));
        }
        self.step(&places).map(|step| Plan::nothing().then(step))
    }

    fn free_indexes(&self, count: usize) -> Vec<u32> {
        let terminating = |pod: &Object| self.job.replaces_ended_only() && self.is_terminating(pod);
        let busy = self.pods.iter().filter(|pod| self.is_active(pod) || terminating(pod));
        let busy: BTreeSet<u32> = busy.filter_map(|pod| self.job.index(pod)).collect();
        let taken = self.succeeded_indexes().and(&self.failed_indexes()).with(busy);
        taken.missing(self.job.completions.unwrap_or(0), count)
    }

    fn step(&self, places: &[Option<Place<'_>>]) -> Result<Step, Unreadable> {
        let object = &self.job.object;
        let unlabelled = || object.unreadable("unable to create pods, no labels");
        let mut pod = template::pod(object, &self.job.template).ok_or_else(unlabelled)?;
        let mut finalizers = pod["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        if !finalizers.iter().any(|known| known == JOB_TRACKING) {
            finalizers.push(json!(JOB_TRACKING));
        }
        pod["metadata"]["finalizers"] = json!(finalizers);
        let acts = places.iter().map(|place| {
            let mut pod = pod.clone();
            if let Some((index, replaced)) = place {
                self.place(&mut pod, *index, *replaced);
            }
            Act::create(PODS, &object.meta.namespace, pod)
        });
        Ok(Step::slow_start(acts))
    }

    /// Gives a Pod its place: name, host name, label, annotation and environment.
    fn place(&self, pod: &mut Value, index: u32, replaced: Option<&Arc<Object>>) {
        let name = &self.job.object.meta.name;
        let end = format!("-{index}-");
        let kept = name.len().min(LONGEST_PREFIX.saturating_sub(end.len()));
        let metadata = &mut pod["metadata"];
        metadata["generateName"] = json!(format!("{}{end}", &name[..kept]));
        metadata["labels"][COMPLETION_INDEX] = json!(index.to_string());
        metadata["annotations"][COMPLETION_INDEX] = json!(index.to_string());
        if self.job.per_index().is_some() {
            let (mut counted, mut ignored) = replaced.map_or((0, 0), |pod| pod::failures(pod));
            match replaced.map(|pod| self.job.rule(pod)) {
                None => {}
                Some(Rule::Ignore) => ignored += 1,
                Some(_) => counted += 1,
            }
            metadata["annotations"][pod::FAILURES] = json!(counted.to_string());
            if ignored > 0 {
                metadata["annotations"][pod::IGNORED] = json!(ignored.to_string());
            }
        }
        pod["spec"]["hostname"] = json!(format!("{name}-{index}"));
        let path = format!("metadata.labels['{COMPLETION_INDEX}']");
        for list in ["initContainers", "containers"] {
            let containers = pod["spec"][list].as_array_mut().into_iter().flatten();
            for container in containers.filter(|container| container.is_object()) {
                let mut env = container["env"].as_array().cloned().unwrap_or_default();
                if !env.iter().any(|known| known["name"] == INDEX_ENV) {
                    env.push(json!({"name": INDEX_ENV, "valueFrom": {"fieldRef": {"fieldPath": path}}}));
                    container["env"] = json!(env);
                }
            }
        }
    }
}

/// How long an index waits after its Pod has failed.
fn pause(failed: &Object) -> Record {
    let (counted, ignored) = pod::failures(failed);
    Record { failures: counted.saturating_add(ignored).saturating_add(1), last: Some(pod::ended(failed)) }
}
