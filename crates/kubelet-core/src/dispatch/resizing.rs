//! Other resources for Pods that run: granted, put off, or refused.

use base::ids::PodUid;
use k8s_openapi::api::core::v1::Pod;

use super::turn::Turn;
use super::{Dispatch, Note, Task, Trigger};
use crate::admission::{self, AdmitInput};
use crate::pod::Stage;
use crate::resize::{self, Pending, PendingReason, queue};

/// What became of a resize that was looked at.
enum Verdict {
    Granted { victims: Vec<(PodUid, String)> },
    NotGranted(Pending),
}

impl Turn<'_> {
    /// The Pod has a new version: if it asks for other resources, they are looked at. True if its task was told.
    pub(super) fn ask_resize(&mut self, uid: &PodUid, before: &Pod) -> bool {
        let Some(task) = self.state.tasks.get_mut(uid) else { return false };
        let desired = task.intent.desired.clone();
        if !may_resize(task) || !resize::is_resize(before, &desired) {
            return false;
        }
        let (wants, has_place) = (task.intent.wants_resize(), task.waits.is_some());
        self.note(Note::ResizeAsked(resize::operations(before, &desired)));
        if wants && !has_place {
            let place = self.state.next_in_line();
            if let Some(task) = self.state.tasks.get_mut(uid) {
                task.waits = Some(place);
            }
        } else if !wants && let Some(task) = self.state.tasks.get_mut(uid) {
            // It was taken back.
            (task.waits, task.intent.pending) = (None, None);
        }
        self.intend(uid);
        self.retry_resizes(Trigger::PodUpdated);
        true
    }

    /// Looks at every resize that waits, in their order. Not before all Pods are known: what looks free may be taken.
    pub(super) fn retry_resizes(&mut self, trigger: Trigger) {
        if !self.state.silent.is_empty() {
            return;
        }
        for uid in self.state.resizes_in_order() {
            let Some(verdict) = self.judge_resize(&uid) else { continue };
            match verdict {
                Verdict::Granted { victims } => self.grant(&uid, victims, trigger),
                Verdict::NotGranted(pending) => self.put_off(&uid, pending),
            }
        }
    }

    fn judge_resize(&mut self, uid: &PodUid) -> Option<Verdict> {
        let task = self.state.tasks.get(uid)?;
        let desired = task.intent.desired.clone();
        let generation = desired.metadata.generation;
        let pending = |reason, message| Some(Verdict::NotGranted(Pending { reason, message, generation }));
        if let Err(never) = resize::judge(&desired, &task.intent.allocated, self.around.offer) {
            self.note(Note::ResizeInfeasible(never.detail));
            return pending(PendingReason::Infeasible, never.message);
        }
        let holding = self.holding(uid);
        let others: Vec<&Pod> = holding.iter().map(|p| &**p).collect();
        let input = AdmitInput { pod: &desired, others: &others, node: self.around.offer };
        match admission::admit(&input) {
            Ok(victims) => {
                let shortage = admission::shortage(&input).unwrap_or_default();
                let victims = victims.into_iter().map(|uid| (uid, shortage.clone())).collect();
                Some(Verdict::Granted { victims })
            }
            Err(rejection) => pending(PendingReason::Deferred, rejection.message),
        }
    }

    fn grant(&mut self, uid: &PodUid, victims: Vec<(PodUid, String)>, trigger: Trigger) {
        for (victim, shortage) in victims {
            self.preempt(&victim, shortage);
        }
        let Some(task) = self.state.tasks.get_mut(uid) else { return };
        let was_deferred = task.intent.pending.as_ref().is_some_and(|p| p.reason == PendingReason::Deferred);
        task.waits = None;
        task.intent.allocate();
        if was_deferred {
            self.note(Note::ResizeAccepted(trigger));
        }
        self.intend(uid);
    }

    fn put_off(&mut self, uid: &PodUid, pending: Pending) {
        let Some(task) = self.state.tasks.get_mut(uid) else { return };
        if pending.reason == PendingReason::Infeasible {
            // Nothing but another version of the Pod can change that.
            task.waits = None;
        }
        let old = task.intent.pending.replace(pending.clone());
        if old.as_ref() == Some(&pending) {
            return;
        }
        let is_known = old.is_some_and(|o| (o.reason, o.generation) == (pending.reason, pending.generation));
        let pod = task.intent.desired.clone();
        if !is_known {
            self.note(Note::ResizePending { pod, pending });
        }
        self.intend(uid);
    }
}

impl Dispatch {
    /// Whether anybody waits for room.
    #[must_use]
    pub fn has_waiting_resizes(&self) -> bool {
        self.tasks.values().any(|t| t.waits.is_some())
    }

    pub(super) fn next_in_line(&mut self) -> u64 {
        self.waited += 1;
        self.waited
    }

    fn resizes_in_order(&mut self) -> Vec<PodUid> {
        for task in self.tasks.values_mut().filter(|t| t.waits.is_some() && !may_resize(t)) {
            task.waits = None;
        }
        let waiting = self.tasks.iter().filter_map(|(uid, t)| {
            let since = t.waits?;
            Some((uid, queue::Waiting { desired: &t.intent.desired, allocated: &t.intent.pod, since }))
        });
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort_by(|(_, a), (_, b)| queue::order(a, b));
        waiting.into_iter().map(|(uid, _)| uid.clone()).collect()
    }
}

/// A Pod that ends keeps what it has.
fn may_resize(task: &Task) -> bool {
    task.admitted && !task.finished && task.intent.stage == Stage::Run
}
