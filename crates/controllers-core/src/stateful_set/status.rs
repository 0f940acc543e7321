//! What a StatefulSet says of itself.

use base::time::Now;
use serde_json::{Value, json};

use super::history::Revisions;
use super::{Pods, REVISION, StatefulSet, Update};
use crate::object::Object;
use crate::plan::{Act, Plan, Step};
use crate::terms::Phase;

impl StatefulSet {
    /// The status, if it is to be written, and when the next Pod becomes available.
    pub(super) fn status_plan(&self, pods: &Pods, revisions: &Revisions, now: Now) -> Plan {
        let status = self.new_status(pods, revisions, now);
        // Conditions are nobody's, and no reason to write.
        let mut known = self.status.clone();
        if let Some(known) = known.as_object_mut() {
            known.remove("conditions");
        }
        let mut plan = Plan::nothing();
        if status != known {
            plan = plan.then(Step::in_turn([Act::update_status(&self.object, status)]));
        }
        let waits = pods.all.iter().filter_map(|pod| pod.pod()?.available_in(self.min_ready_seconds, now));
        plan.wake(waits.filter(|wait| !wait.is_zero()).min())
    }

    fn new_status(&self, pods: &Pods, revisions: &Revisions, now: Now) -> Value {
        let count = |what: &dyn Fn(&Object) -> bool| pods.all.iter().filter(|pod| what(pod)).count();
        let is_ready =
            |pod: &Object| pod.pod().is_some_and(|terms| terms.phase == Phase::Running && terms.is_ready());
        let is_long = |pod: &Object| {
            is_ready(pod) && pod.pod().is_some_and(|terms| terms.is_available(self.min_ready_seconds, now))
        };
        let is_of = |pod: &Object, name: &str| pod.label(REVISION) == Some(name) && !pod.is_deleting();
        let (replicas, ready) = (pods.all.len(), count(&is_ready));
        let (mut current, updated) = (
            count(&|pod| is_of(pod, revisions.current.name())),
            count(&|pod| is_of(pod, revisions.update.name())),
        );
        let mut current_revision = revisions.current.name();
        let wanted = usize::try_from(self.replicas).unwrap_or(0);
        let is_rolling = matches!(self.update, Update::Rolling { .. });
        if is_rolling && [updated, ready, replicas].iter().all(|number| *number == wanted) {
            (current, current_revision) = (updated, revisions.update.name());
        }
        let mut status = json!({"observedGeneration": self.object.meta.generation, "replicas": replicas,
            "availableReplicas": count(&is_long), "currentRevision": current_revision,
            "updateRevision": revisions.update.name(),
            "collisionCount": self.status["collisionCount"].as_i64().unwrap_or(0)});
        for (key, number) in
            [("readyReplicas", ready), ("currentReplicas", current), ("updatedReplicas", updated)]
        {
            // A zero is not written, as upstream leaves it out.
            if number > 0 {
                status[key] = json!(number);
            }
        }
        status
    }
}
