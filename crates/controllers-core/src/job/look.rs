//! What is there of a Job: its Pods, what they come to, and whether it ends.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use base::time::{Now, Wall};

use super::indexes::Indexes;
use super::pod::{self, Rule};
use super::spec::{self, Job};
use crate::conditions;
use crate::object::{Object, wall};
use crate::plan::{Act, Done};
use crate::resource::PODS;
use crate::terms::{Phase, PodTerms};

/// A Job and its Pods at one moment.
#[derive(Debug)]
pub(super) struct Look<'a> {
    pub(super) job: &'a Job,
    pub(super) pods: Vec<Arc<Object>>,
    /// Deleted in this sync: whom we take away has not failed.
    deleted: HashSet<Box<str>>,
    /// Without finalizer since this sync.
    freed: HashSet<Box<str>>,
    pub(super) now: Now,
}

/// That a Job ends, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finish {
    pub(super) is_success: bool,
    pub(super) reason: String,
    pub(super) message: String,
    /// The status says so already.
    pub(super) is_known: bool,
}

impl<'a> Look<'a> {
    pub(super) fn new(job: &'a Job, pods: Vec<Arc<Object>>, now: Now) -> Look<'a> {
        Look { job, pods, deleted: HashSet::new(), freed: HashSet::new(), now }
    }

    /// What was done to Pods in this sync, whether the cache shows it or not.
    pub(super) fn take_in(&mut self, done: &Done) {
        for (act, outcome) in done.last().iter().filter(|(_, outcome)| outcome.is_done()) {
            let uid = |name: &str| {
                self.pods.iter().find(|pod| *pod.meta.name == *name).map(|pod| pod.meta.uid.clone())
            };
            match act {
                Act::Create { .. } => {
                    let made = outcome.object(PODS).map(Arc::new);
                    let is_new =
                        |made: &Arc<Object>| self.pods.iter().all(|pod| pod.meta.uid != made.meta.uid);
                    self.pods.extend(made.filter(is_new));
                }
                Act::Delete { target, .. } => self.deleted.extend(uid(&target.name)),
                Act::Patch { target, .. } => self.freed.extend(uid(&target.name)),
                _ => {}
            }
        }
    }

    pub(super) fn is_held(&self, pod: &Object) -> bool {
        pod::is_tracked(pod) && !self.freed.contains(&pod.meta.uid)
    }

    pub(super) fn is_active(&self, pod: &Object) -> bool {
        pod::is_active(pod) && !self.deleted.contains(&pod.meta.uid)
    }

    pub(super) fn active(&self) -> Vec<Arc<Object>> {
        self.pods.iter().filter(|pod| self.is_active(pod)).cloned().collect()
    }

    pub(super) fn is_terminating(&self, pod: &Object) -> bool {
        let terms = pod.pod();
        let is_deleted = self.deleted.contains(&pod.meta.uid) && !terms.is_some_and(PodTerms::is_terminal);
        is_deleted || terms.is_some_and(PodTerms::is_terminating)
    }

    pub(super) fn terminating(&self) -> usize {
        self.pods.iter().filter(|pod| self.is_terminating(pod)).count()
    }

    pub(super) fn is_failed(&self, pod: &Object) -> bool {
        let phase = pod::phase(pod);
        let is_lost =
            || pod.is_deleting() && phase != Phase::Succeeded && !self.deleted.contains(&pod.meta.uid);
        phase == Phase::Failed || (!self.job.replaces_ended_only() && is_lost())
    }

    /// Whether a Pod has a place in the Job at all.
    pub(super) fn is_placed(&self, pod: &Object) -> bool {
        !self.job.is_indexed() || self.job.index(pod).is_some()
    }

    /// Pods that have ended so or so, and of whom nothing is written down yet.
    pub(super) fn new_finished(&self, failed: bool) -> impl Iterator<Item = &Arc<Object>> {
        let known = self.job.uncounted(if failed { "failed" } else { "succeeded" });
        self.pods.iter().filter(move |pod| {
            let has_ended = if failed { self.is_failed(pod) } else { pod::phase(pod) == Phase::Succeeded };
            has_ended
                && self.is_held(pod)
                && !known.iter().any(|uid| **uid == *pod.meta.uid)
                && self.is_placed(pod)
        })
    }

    pub(super) fn new_ends(&self, failed: bool) -> Vec<Wall> {
        self.new_finished(failed).map(|pod| pod::ended(pod)).collect()
    }

    pub(super) fn succeeded(&self) -> usize {
        if self.job.is_indexed() {
            return self.succeeded_indexes().total();
        }
        let uncounted = self.job.uncounted("succeeded").len();
        self.job.number("succeeded") + self.new_finished(false).count() + uncounted
    }

    fn failed(&self) -> usize {
        let new = self.new_finished(true).filter(|pod| self.job.rule(pod) != Rule::Ignore);
        self.job.number("failed") + new.count() + self.job.uncounted("failed").len()
    }

    pub(super) fn succeeded_indexes(&self) -> Indexes {
        let new = self.pods.iter().filter(|pod| pod::phase(pod) == Phase::Succeeded && self.is_held(pod));
        self.known_indexes("completedIndexes").with(new.filter_map(|pod| self.job.index(pod)))
    }

    pub(super) fn failed_indexes(&self) -> Indexes {
        let known = self.known_indexes("failedIndexes");
        let Some(limit) = self.job.per_index() else { return known };
        let has_failed = |pod: &&Arc<Object>| {
            self.is_failed(pod)
                && self.is_held(pod)
                && match self.job.rule(pod) {
                    Rule::FailIndex => true,
                    Rule::Ignore => false,
                    _ => i64::from(pod::failures(pod).0) >= i64::from(limit),
                }
        };
        known.with(self.pods.iter().filter(has_failed).filter_map(|pod| self.job.index(pod)))
    }

    pub(super) fn known_indexes(&self, what: &str) -> Indexes {
        Indexes::read(self.job.status[what].as_str().unwrap_or_default(), self.job.completions.unwrap_or(0))
    }

    /// The last failed Pod of each index that is to be tried again: it carries the count until there is another.
    pub(super) fn last_failed(&self) -> BTreeMap<u32, Arc<Object>> {
        let mut last: BTreeMap<u32, Arc<Object>> = BTreeMap::new();
        if self.job.per_index().is_none() {
            return last;
        }
        let active: HashSet<u32> = self.active().iter().filter_map(|pod| self.job.index(pod)).collect();
        let over = self.succeeded_indexes().and(&self.failed_indexes());
        let order = |pod: &Object| {
            let (counted, ignored) = pod::failures(pod);
            (counted + ignored, pod::ended(pod))
        };
        for pod in self.pods.iter().filter(|pod| self.is_failed(pod) && self.is_held(pod)) {
            let Some(index) = self.job.index(pod) else { continue };
            let is_later = last.get(&index).is_none_or(|known| order(known) <= order(pod));
            if is_later && !active.contains(&index) && !over.has(index) {
                last.insert(index, pod.clone());
            }
        }
        last
    }

    /// Whether the Job ends; the first reason counts.
    pub(super) fn finish(&self) -> Option<Finish> {
        let known = ["SuccessCriteriaMet", "FailureTarget"];
        if let Some(kind) = known.into_iter().find(|kind| spec::is_true(&self.job.status, kind)) {
            let condition = conditions::find(&self.job.status, kind).cloned().unwrap_or_default();
            let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
            let (reason, message) = (text("reason"), text("message"));
            return Some(Finish { is_success: kind == known[0], reason, message, is_known: true });
        }
        let end = |is_success, reason: &str, message: String| {
            Some(Finish { is_success, reason: reason.to_owned(), message, is_known: false })
        };
        if let Some((reason, message)) = self.failure() {
            return end(false, reason, message);
        }
        if let Some(index) = self.success_rule() {
            return end(true, "SuccessPolicy", format!("Matched rules at index {index}"));
        }
        let enough = self.job.completions.map_or(1, |completions| completions as usize);
        if self.succeeded() >= enough && self.active().is_empty() {
            let message = "Reached expected number of succeeded pods";
            return end(true, "CompletionsReached", message.to_owned());
        }
        None
    }

    fn failure(&self) -> Option<(&'static str, String)> {
        let failed = self.pods.iter().filter(|pod| self.is_failed(pod));
        let fatal = failed.into_iter().find_map(|pod| match self.job.rule(pod) {
            Rule::FailJob(message) => Some(message),
            _ => None,
        });
        if let Some(message) = fatal {
            return Some(("PodFailurePolicy", message));
        }
        let limit = i64::from(self.job.backoff_limit);
        if i64::try_from(self.failed()).unwrap_or(i64::MAX) > limit || self.restarted_too_often(limit) {
            return Some(("BackoffLimitExceeded", "Job has reached the specified backoff limit".to_owned()));
        }
        if self.deadline() == Some(Duration::ZERO) {
            let message = "Job was active longer than specified deadline";
            return Some(("DeadlineExceeded", message.to_owned()));
        }
        self.job.per_index()?;
        let failed = self.failed_indexes().total();
        let most = self.job.spec.max_failed_indexes.and_then(|most| usize::try_from(most).ok());
        if most.is_some_and(|most| failed > most) {
            let message = "Job has exceeded the specified maximal number of failed indexes";
            return Some(("MaxFailedIndexesExceeded", message.to_owned()));
        }
        let all = self.job.completions.unwrap_or(0) as usize;
        let is_over = failed > 0 && failed + self.succeeded_indexes().total() >= all;
        is_over.then(|| ("FailedIndexes", "Job has failed indexes".to_owned()))
    }

    /// Containers that the kubelet starts again count too, while their Pod lives.
    fn restarted_too_often(&self, limit: i64) -> bool {
        if self.job.template["spec"]["restartPolicy"] != "OnFailure" {
            return false;
        }
        let living =
            self.pods.iter().filter(|pod| matches!(pod::phase(pod), Phase::Running | Phase::Pending));
        living.map(|pod| pod::restarts(pod)).sum::<i64>() >= limit.max(1)
    }

    /// The first rule of the successPolicy that is satisfied.
    fn success_rule(&self) -> Option<usize> {
        let policy = self.job.spec.success_policy.as_ref().filter(|_| self.job.is_indexed())?;
        let done = self.succeeded_indexes();
        policy.rules.iter().position(|rule| {
            let wanted = rule.succeeded_indexes.as_deref();
            let wanted = wanted.map(|text| Indexes::read(text, self.job.completions.unwrap_or(0)));
            // How many of those that count have succeeded: all together, less those that are in neither.
            let have = wanted.as_ref().map_or(done.total(), |wanted| {
                (wanted.total() + done.total()).saturating_sub(wanted.and(&done).total())
            });
            match (rule.succeeded_count, &wanted) {
                (Some(count), _) => i64::try_from(have).unwrap_or(i64::MAX) >= i64::from(count),
                (None, Some(wanted)) => have == wanted.total(),
                (None, None) => false,
            }
        })
    }

    /// How long it may still be active. None: without end, or it is not.
    fn deadline(&self) -> Option<Duration> {
        let seconds = self.job.spec.active_deadline_seconds.filter(|_| !self.job.is_suspended())?;
        let start = self.job.status["startTime"].as_str().and_then(wall).unwrap_or(self.now.wall);
        Some(Wall(start.0.saturating_add(seconds.saturating_mul(1_000_000_000))).since(self.now.wall))
    }

    pub(super) fn deadline_in(&self) -> Option<Duration> {
        self.deadline().filter(|left| !left.is_zero())
    }
}
