//! What is wanted of a Pod. Intent only moves Run -> Terminating -> Terminated, and grace only shrinks.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::resize::{Pending, PodResources};

/// Where a Pod is on its one-way road.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    #[default]
    Run,
    /// Its containers are to be stopped.
    Terminating,
    /// Nothing runs any more; volumes, cgroup and directories go.
    Terminated,
}

/// What is wanted of one Pod, merged from every update its sources and the node ever sent.
#[derive(Clone, Debug)]
pub struct Intent {
    /// The Pod with the resources it was granted: what its task works by.
    pub pod: Arc<Pod>,
    /// The Pod as its source has it. Only its resources may be others.
    pub desired: Arc<Pod>,
    /// The resources it was granted.
    pub allocated: Arc<PodResources>,
    /// Why it was not granted what it asks for.
    pub pending: Option<Pending>,
    pub stage: Stage,
    /// Why it ends, once it ends.
    pub kill: Option<Kill>,
}

/// An order to end a Pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Kill {
    pub cause: KillCause,
    /// Seconds that override the Pod's own grace period.
    pub grace: Option<i64>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum KillCause {
    /// deletionTimestamp is set.
    Deleted,
    /// Its source no longer lists it.
    Removed,
    /// Found on the node, listed by no source.
    Orphaned,
    /// Every container finished for good.
    Completed,
    /// activeDeadlineSeconds ran out.
    DeadlineExceeded,
    /// The node would not have it: phase Failed with this reason and message, before anything was made for it.
    Rejected { reason: String, message: String },
    /// The node ended it: phase Failed with this reason and message. `disrupts`: for its own sake, not for the Pod's fault.
    Node { reason: String, message: String, disrupts: bool },
}

// === impl Intent ===

impl Intent {
    #[must_use]
    pub fn run(pod: Arc<Pod>) -> Self {
        let allocated = Arc::new(PodResources::of(&pod));
        Self { desired: pod.clone(), pod, allocated, pending: None, stage: Stage::Run, kill: None }
    }

    /// The same for a Pod that was granted something before.
    #[must_use]
    pub fn run_with(desired: Arc<Pod>, allocated: PodResources) -> Self {
        let pod = allocated.applied(&desired);
        Self { desired, pod, allocated: Arc::new(allocated), pending: None, stage: Stage::Run, kill: None }
    }

    /// It is granted what it asks for.
    pub fn allocate(&mut self) {
        self.allocated = Arc::new(PodResources::of(&self.desired));
        self.pod = self.desired.clone();
        self.pending = None;
    }

    /// Whether it asks for other resources than it was granted.
    #[must_use]
    pub fn wants_resize(&self) -> bool {
        !self.allocated.are_of(&self.desired)
    }

    /// A new version of the object. A deletion timestamp is an order to end it.
    pub fn update(&mut self, pod: Arc<Pod>) {
        self.pod = self.allocated.applied(&pod);
        self.desired = pod;
        if self.pod.metadata.deletion_timestamp.is_some() {
            // Kept in the order as well: a later version of the object cannot make it longer again.
            let grace = self.pod.metadata.deletion_grace_period_seconds;
            self.end(Kill { cause: KillCause::Deleted, grace });
        }
    }

    /// Moves towards the end. The first cause stays; a shorter grace wins over a longer one.
    pub fn end(&mut self, kill: Kill) {
        self.stage = self.stage.max(Stage::Terminating);
        match &mut self.kill {
            None => self.kill = Some(kill),
            Some(old) => {
                old.grace = match (old.grace, kill.grace) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                }
            }
        }
    }

    /// Its own task ended it. That its deadline ran out is told also when it is deleted while it stops.
    pub fn end_by_itself(&mut self, kill: Kill) {
        self.end(kill.clone());
        if let Some(old) = &mut self.kill
            && (&old.cause, &kill.cause) == (&KillCause::Deleted, &KillCause::DeadlineExceeded)
        {
            old.cause = kill.cause;
        }
    }

    /// Its source dropped it. That outranks whatever end it had come to: what is left of it goes too.
    pub fn end_as_removed(&mut self, kill: Kill) {
        self.end(kill.clone());
        if let Some(old) = &mut self.kill {
            old.cause = kill.cause;
        }
    }

    /// The grace period in force, in seconds: the smallest of the override and the API's, else the
    /// Pod's own; never below one second.
    #[must_use]
    pub fn grace(&self) -> i64 {
        let spec = self.pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
        let api = self.pod.metadata.deletion_grace_period_seconds;
        let order = self.kill.as_ref().and_then(|k| k.grace);
        match (order, api) {
            (Some(a), Some(b)) => a.min(b),
            (Some(a), None) | (None, Some(a)) => a,
            (None, None) => spec.unwrap_or(30),
        }
        .max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intent() -> Intent {
        Intent::run(Arc::new(Pod::default()))
    }

    #[test]
    fn grace_only_shrinks_and_never_below_one() {
        let mut i = intent();
        assert_eq!(i.grace(), 30);
        i.end(Kill { cause: KillCause::Removed, grace: Some(20) });
        i.end(Kill { cause: KillCause::Deleted, grace: Some(40) });
        assert_eq!(i.grace(), 20);
        i.end(Kill { cause: KillCause::Deleted, grace: Some(0) });
        assert_eq!(i.grace(), 1);
        assert_eq!(i.kill.map(|k| k.cause), Some(KillCause::Removed));
    }

    #[test]
    fn a_deadline_that_ran_out_is_told_unless_something_graver_came() {
        let table = [
            (KillCause::Deleted, KillCause::DeadlineExceeded, KillCause::DeadlineExceeded),
            (KillCause::Removed, KillCause::DeadlineExceeded, KillCause::Removed),
            (KillCause::Deleted, KillCause::Completed, KillCause::Deleted),
        ];
        for (order, own, want) in table {
            let mut i = intent();
            i.end(Kill { cause: order.clone(), grace: Some(7) });
            i.end_by_itself(Kill { cause: own.clone(), grace: None });
            assert_eq!(i.grace(), 7);
            assert_eq!(i.kill.map(|k| k.cause), Some(want), "{order:?} {own:?}");
        }
    }

    #[test]
    fn a_deletion_with_less_time_shortens_the_grace_and_one_with_more_does_not() {
        let mut i = intent();
        for (seconds, want) in [(600, 600), (900, 600), (5, 5), (30, 5)] {
            let mut gone = Pod::default();
            gone.metadata.deletion_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Default::default()));
            gone.metadata.deletion_grace_period_seconds = Some(seconds);
            i.update(Arc::new(gone));
            assert_eq!(i.grace(), want, "after {seconds}");
        }
    }

    #[test]
    fn a_deletion_timestamp_ends_it_and_nothing_brings_it_back() {
        let mut i = intent();
        let mut gone = Pod::default();
        gone.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Default::default()));
        i.update(Arc::new(gone));
        assert_eq!(i.stage, Stage::Terminating);
        i.update(Arc::new(Pod::default()));
        assert_eq!(i.stage, Stage::Terminating);
    }
}
