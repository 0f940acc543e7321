//! Which Pod is next: made, put right, taken away or replaced.

use std::sync::Arc;

use base::time::Now;

use super::history::Revisions;
use super::{Pods, REVISION, StatefulSet, Update, Work};
use crate::object::Object;
use crate::plan::{Act, Event, Plan};
use crate::resource::PODS;
use crate::terms::{Phase, PodTerms};
use crate::view::View;

/// Whether what comes after it has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Go,
    Stop,
}

impl StatefulSet {
    pub(super) fn work(
        &self,
        view: &dyn View,
        pods: &Pods,
        revisions: &Revisions,
        now: Now,
    ) -> Result<Work, Plan> {
        let mut work = Work::default();
        for (ordinal, pod) in &pods.replicas {
            let next = match pod {
                Some(pod) => self.keep(view, *ordinal, pod, &mut work, now),
                None => self.make(view, *ordinal, revisions, &mut work)?,
            };
            if next == Then::Stop && self.is_ordered {
                return Ok(work);
            }
        }
        // In parallel nobody waits for anybody; an error ends the sync all the same.
        if work.failure.is_some() || self.condemn(pods, &mut work, now) == Then::Stop {
            return Ok(work);
        }
        self.roll(pods, revisions, &mut work, now);
        Ok(work)
    }

    /// A Pod that is missing, after its claims.
    fn make(
        &self,
        view: &dyn View,
        ordinal: i32,
        revisions: &Revisions,
        work: &mut Work,
    ) -> Result<Then, Plan> {
        if self.has_stale_claim(view, ordinal) {
            return Ok(Then::Stop);
        }
        match self.missing_claims(view, ordinal) {
            Ok(claims) => work.claims.extend(claims),
            Err(why) => {
                let told = format!(
                    "create Pod {} in StatefulSet {} failed error: {why}",
                    self.pod_name(ordinal),
                    self.object.meta.name
                );
                work.events.push(Event::warning(&self.object, "FailedCreate", told));
                work.failure = Some(why);
                return Ok(Then::Stop);
            }
        }
        let pod = self.pod(ordinal, revisions).ok_or_else(|| {
            let error = self.object.unreadable("unable to create pods, no labels");
            Plan::unreadable(&self.object, &error)
        })?;
        work.create.push(Act::create(PODS, &self.object.meta.namespace, pod));
        Ok(if self.is_ordered { Then::Stop } else { Then::Go })
    }

    /// A Pod that is there.
    fn keep(&self, view: &dyn View, ordinal: i32, pod: &Object, work: &mut Work, now: Now) -> Then {
        let phase = pod.pod().map(|terms| terms.phase).unwrap_or_default();
        if matches!(phase, Phase::Failed | Phase::Succeeded) {
            // Its name is free when it is gone.
            if !pod.is_deleting() {
                work.change.push(Act::delete(pod));
            }
            return Then::Stop;
        }
        if phase == Phase::Pending
            && let Ok(claims) = self.missing_claims(view, ordinal)
        {
            work.claims.extend(claims);
        }
        if self.is_ordered && !self.is_available(pod, now) {
            return Then::Stop;
        }
        if !pod.is_deleting() {
            work.change.extend(self.identified(pod, ordinal));
        }
        Then::Go
    }

    /// Pods outside of the range go, the highest first.
    fn condemn(&self, pods: &Pods, work: &mut Work, now: Now) -> Then {
        if !self.is_ordered {
            let go = pods.condemned.iter().filter(|pod| !pod.is_deleting());
            work.change.extend(go.map(|pod| Act::delete(pod)));
            return Then::Go;
        }
        let Some(pod) = pods.condemned.first() else { return Then::Go };
        let lowest_first = pods.condemned.iter().rev();
        let first_unhealthy = lowest_first.into_iter().find(|pod| !is_healthy(pod));
        let is_first = first_unhealthy.is_some_and(|first| first.meta.uid == pod.meta.uid);
        if !pod.is_deleting() && (self.is_available(pod, now) || is_first) {
            work.change.push(Act::delete(pod));
        }
        Then::Stop
    }

    /// Pods of another template go, the highest first: one at a time, or as many as may be unavailable.
    fn roll(&self, pods: &Pods, revisions: &Revisions, work: &mut Work, now: Now) {
        let Update::Rolling { partition, max_unavailable } = self.update else { return };
        let from = usize::try_from(partition.unwrap_or(0)).unwrap_or(0);
        // One that has ended goes anyway.
        let is_old = |pod: &Object| {
            let is_other = pod.label(REVISION) != Some(revisions.update.name());
            is_other && !pod.is_deleting() && !pod.pod().is_some_and(PodTerms::is_terminal)
        };
        let is_here = |pod: &Option<Arc<Object>>| pod.as_ref().is_some_and(|pod| self.is_available(pod, now));
        let targets = pods.replicas.iter().skip(from).rev().map(|(_, pod)| pod);
        if let Some(most) = max_unavailable {
            let without = pods.replicas.iter().filter(|(_, pod)| !is_here(pod)).count();
            let room = usize::try_from(most).unwrap_or(1).saturating_sub(without);
            let old = targets.flatten().filter(|pod| is_old(pod));
            return work.change.extend(old.take(room).map(|pod| Act::delete(pod)));
        }
        for target in targets {
            if let Some(pod) = target.as_ref().filter(|pod| is_old(pod)) {
                return work.change.push(Act::delete(pod));
            }
            if !is_here(target) {
                return;
            }
        }
    }

    /// Runs, is ready for long enough, and stays.
    pub(super) fn is_available(&self, pod: &Object, now: Now) -> bool {
        let is_long = |terms: &PodTerms| terms.is_available(self.min_ready_seconds, now);
        is_healthy(pod) && pod.pod().is_some_and(is_long)
    }
}

/// Runs, is ready, and stays.
fn is_healthy(pod: &Object) -> bool {
    pod.pod().is_some_and(|terms| terms.phase == Phase::Running && terms.is_ready()) && !pod.is_deleting()
}
