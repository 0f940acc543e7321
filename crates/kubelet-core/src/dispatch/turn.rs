//! One turn of the dispatcher: an event in, its effects out.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::pod::static_pod::is_static;
use base::ids::PodUid;
use k8s_openapi::api::core::v1::Pod;

use super::{
    Dispatch, Effect, EndOrder, Event, Found, FullName, Known, Note, PREEMPTED, PREEMPTING, Running,
    SourceName, SourceUpdate, Surroundings, Task, Trigger, full_name,
};
use crate::admission::{self, AdmitInput, Rejection};
use crate::pod::{Intent, Kill, KillCause, ORPHAN_GRACE, Stage};
use crate::resize::Pending;

pub(super) struct Turn<'a> {
    pub(super) state: &'a mut Dispatch,
    pub(super) around: Surroundings<'a>,
    pub(super) effects: Vec<Effect>,
}

// === impl Turn ===

impl<'a> Turn<'a> {
    pub(super) fn new(state: &'a mut Dispatch, around: Surroundings<'a>) -> Self {
        Self { state, around, effects: Vec::new() }
    }

    pub(super) fn take(&mut self, event: Event) {
        match event {
            Event::Stock(running) => self.take_stock(running),
            Event::Update(update) => {
                let was_silent = !self.state.silent.is_empty();
                self.merge(update);
                if was_silent {
                    self.search();
                }
            }
            Event::Order(order) => self.obey(&order),
            Event::Ended(uid) => self.ended(uid),
            Event::Died(uid) => {
                if self.state.tasks.contains_key(&uid) {
                    self.effects.push(Effect::Respawn(uid));
                }
            }
            Event::Asked(uid) => self.asked(&uid),
            Event::SearchDue => self.search(),
            Event::Actuated => self.retry_resizes(Trigger::Resized),
            Event::RetryDue => self.retry_resizes(Trigger::Periodic),
            Event::Found(found) => self.found(found),
        }
    }

    fn take_stock(&mut self, running: Vec<Running>) {
        self.state.settled = running.iter().filter(|r| r.alive).map(|r| r.uid.clone()).collect();
        self.state.unclaimed = running.into_iter().map(|r| (r.uid, r.name)).collect();
    }

    fn merge(&mut self, update: SourceUpdate) {
        let SourceUpdate { source, pods, unread } = update;
        self.state.silent.remove(&source);
        self.state.unread.insert(source, unread);
        let mut listed: Vec<(PodUid, Arc<Pod>)> =
            pods.into_iter().filter_map(|p| Some((PodUid::from(p.metadata.uid.as_deref()?), p))).collect();
        let next: BTreeMap<PodUid, Arc<Pod>> = listed.iter().cloned().collect();
        listed.retain(|(uid, pod)| next.get(uid).is_some_and(|kept| Arc::ptr_eq(kept, pod)));
        let last = self.state.wanted.insert(source, next).unwrap_or_default();
        let gone: Vec<&PodUid> = last.keys().filter(|uid| !self.state.is_wanted(uid)).collect();
        for uid in &gone {
            self.remove(uid);
        }
        let freed = !gone.is_empty();
        // Who runs already keeps his place; who was created first is admitted first, and else who is listed first.
        listed.sort_by_key(|(uid, pod)| {
            (!self.state.settled.contains(uid), pod.metadata.creation_timestamp.as_ref().map(|t| t.0))
        });
        for (uid, pod) in listed {
            match last.get(&uid) {
                Some(old) if Arc::ptr_eq(old, &pod) || old == &pod => {}
                _ => self.want(source, uid, pod),
            }
        }
        self.retry_resizes(if freed { Trigger::PodsRemoved } else { Trigger::PodsAdded });
        self.publish();
    }

    /// A Pod is wanted: tell its task, or begin one.
    fn want(&mut self, source: SourceName, uid: PodUid, pod: Arc<Pod>) {
        self.state.unclaimed.remove(&uid);
        let Some(task) = self.state.tasks.get_mut(&uid) else {
            return self.begin(source, uid, pod, false);
        };
        // A deleted Pod stays itself: its updates may shorten the grace.
        let leaving = matches!(
            task.intent.kill.as_ref().map(|k| &k.cause),
            Some(KillCause::Removed | KillCause::Orphaned)
        );
        // An order to end it does not ask for another life, it may only leave this one less time.
        if leaving && pod.metadata.deletion_timestamp.is_none() {
            task.again = Some((source, pod));
        } else {
            let before = task.intent.desired.clone();
            task.intent.update(pod);
            if !self.ask_resize(&uid, &before) {
                self.intend(&uid);
            }
        }
    }

    /// `asked`: the labels that speak against it, should any, are the latest.
    fn begin(&mut self, source: SourceName, uid: PodUid, pod: Arc<Pod>, asked: bool) {
        if self.state.asking.contains(&uid) {
            // What it is now will be looked at then.
            return;
        }
        let name = full_name(&pod);
        // Only a manifest that changed waits for what it was before. Who deletes a Pod of the API server by force wants
        // the next one, whatever holds up the end of the last.
        if self.is_taken(&uid, &name) && is_static(&pod) {
            self.note(Note::Parked(pod.clone()));
            self.unpark_one(&uid);
            self.state.parked.push((source, pod));
            return;
        }
        let mut intent = match self.state.granted.remove(&uid) {
            Some(granted) => Intent::run_with(pod.clone(), granted),
            None => Intent::run(pod.clone()),
        };
        intent.update(pod.clone());
        if intent.wants_resize() {
            intent.pending = pod.status.as_ref().and_then(Pending::of_status);
        }
        self.note(Note::Considered(pod.clone()));
        let (ended, ending) = (has_ended(&pod), intent.stage > Stage::Run);
        if self.state.settled.remove(&uid) || ended || ending {
            // It runs already, or will not run any more: nobody asks whether it may. Until it has ended it holds its place.
            return self.spawn(uid, intent, !ended, Vec::new());
        }
        let holding = self.holding(&uid);
        let others: Vec<&Pod> = holding.iter().map(|p| &**p).collect();
        let input = AdmitInput { pod: &intent.pod.clone(), others: &others, node: self.around.offer };
        match admission::admit(&input) {
            Ok(victims) => {
                for victim in &victims {
                    let shortage = admission::shortage(&input).unwrap_or_default();
                    self.preempt(victim, shortage);
                }
                self.spawn(uid, intent, true, victims);
            }
            Err(rejection) if rejection.by_labels && !asked && self.around.can_ask => {
                // The scheduler may have seen a label that has not come round to here.
                self.state.asking.insert(uid.clone());
                self.effects.push(Effect::Ask(uid));
            }
            Err(rejection) => self.reject(uid, intent, rejection),
        }
    }

    /// Another Pod has the name, or may have.
    fn is_taken(&self, uid: &PodUid, name: &FullName) -> bool {
        self.state.tasks.iter().any(|(u, t)| u != uid && !t.finished && t.name == *name)
            || self.state.unclaimed.iter().any(|(u, n)| u != uid && n == name)
    }

    fn reject(&mut self, uid: PodUid, mut intent: Intent, rejection: Rejection) {
        self.note(Note::Rejected { pod: intent.pod.clone(), rejection: rejection.clone() });
        let message = format!("Pod was rejected: {}", rejection.message);
        let cause = KillCause::Rejected { reason: rejection.reason, message };
        intent.end(Kill { cause, grace: None });
        self.spawn(uid, intent, false, Vec::new());
    }

    /// The labels are the latest now. If the Pod is still wanted, it may come in or not.
    fn asked(&mut self, uid: &PodUid) {
        self.state.asking.remove(uid);
        let wanted =
            self.state.wanted.iter().find_map(|(source, all)| Some((*source, all.get(uid)?.clone())));
        if let Some((source, pod)) = wanted.filter(|_| !self.state.tasks.contains_key(uid)) {
            self.begin(source, uid.clone(), pod, true);
            self.publish();
        }
    }

    /// Ends a Pod to make room for a critical one, which has to wait for it.
    pub(super) fn preempt(&mut self, uid: &PodUid, shortage: String) {
        let Some(task) = self.state.tasks.get_mut(uid) else { return };
        let pod = task.intent.pod.clone();
        let message = PREEMPTED.to_owned();
        let cause = KillCause::Node { reason: PREEMPTING.into(), message, disrupts: true };
        task.intent.end(Kill { cause, grace: None });
        self.note(Note::Preempted { pod, shortage });
        self.intend(uid);
    }

    fn obey(&mut self, order: &EndOrder) {
        let Some(task) = self.state.tasks.get_mut(&order.uid).filter(|t| !t.finished) else { return };
        let cause = KillCause::Node {
            reason: order.reason.to_owned(),
            message: order.message.to_string(),
            disrupts: order.disrupts,
        };
        task.intent.end(Kill { cause, grace: Some(order.grace) });
        self.intend(&order.uid);
    }

    /// Pods that hold their place on the node. One that is ending uses its place still. One that the API server names no
    /// more, because it was deleted by force, does not, nor one that was said to be over and is about to be deleted: the
    /// scheduler has given its place away already, as upstream counts. Each counts with what it was granted, and with what
    /// it still has of more.
    pub(super) fn holding(&self, but: &PodUid) -> Vec<Arc<Pod>> {
        let tasks = self.state.tasks.iter().filter(|(uid, _)| *uid != but);
        let counts = |uid: &PodUid, t: &Task| {
            is_static(&t.intent.pod) || (self.state.is_wanted(uid) && !has_ended(&t.intent.pod))
        };
        let holding = tasks.filter(|(uid, t)| t.admitted && !t.finished && counts(uid, t));
        let raised = holding.map(|(uid, t)| match self.around.actuated.get(uid) {
            Some(actuated) => actuated.raised(&t.intent.pod),
            None => t.intent.pod.clone(),
        });
        raised.collect()
    }

    /// The Pod has its task and its place from now on; the task begins once the victims are gone.
    fn spawn(&mut self, uid: PodUid, intent: Intent, admitted: bool, after: Vec<PodUid>) {
        let name = full_name(&intent.pod);
        let waits = (admitted && intent.wants_resize()).then(|| self.state.next_in_line());
        let task = Task { intent: intent.clone(), name, finished: false, admitted, again: None, waits };
        self.state.tasks.insert(uid.clone(), task);
        self.effects.push(Effect::Begin { uid, intent, after });
    }

    /// A source dropped the Pod.
    fn remove(&mut self, uid: &PodUid) {
        self.unpark_one(uid);
        let Some(task) = self.state.tasks.get_mut(uid) else { return };
        task.again = None;
        let kill = Kill { cause: KillCause::Removed, grace: None };
        if task.finished {
            // Nothing runs, but its dead containers and its record are still there.
            let mut intent = Intent::run(task.intent.pod.clone());
            intent.end(kill);
            self.spawn(uid.clone(), intent, false, Vec::new());
        } else {
            task.intent.end_as_removed(kill);
            self.intend(uid);
        }
    }

    fn ended(&mut self, uid: PodUid) {
        let Some(task) = self.state.tasks.get_mut(&uid) else { return };
        task.finished = true;
        let (again, pod) = (task.again.take(), task.intent.pod.clone());
        self.effects.push(Effect::Over(uid.clone()));
        if again.is_some() {
            self.note(Note::Restarted(pod));
        }
        if !self.state.is_wanted(&uid) || again.is_some() {
            self.state.tasks.remove(&uid);
            self.effects.push(Effect::Forget(uid.clone()));
        }
        self.state.unclaimed.remove(&uid);
        if let Some((source, pod)) = again {
            self.want(source, uid, pod);
        }
        self.unpark();
        self.retry_resizes(Trigger::Terminated);
        self.publish();
    }

    fn unpark_one(&mut self, uid: &PodUid) {
        self.state.parked.retain(|(_, p)| p.metadata.uid.as_deref() != Some(uid.as_str()));
    }

    /// A name may have become free.
    fn unpark(&mut self) {
        for (source, pod) in std::mem::take(&mut self.state.parked) {
            if let Some(uid) = pod.metadata.uid.as_deref().map(PodUid::from) {
                self.want(source, uid, pod);
            }
        }
    }

    /// Begins a search for what nobody wants, unless one is under way or a source is still silent.
    fn search(&mut self) {
        if self.state.silent.is_empty() && !self.state.searching {
            self.state.searching = true;
            self.effects.push(Effect::Search(self.state.known()));
        }
    }

    /// Ends what the search found and nobody wants.
    fn found(&mut self, found: Found) {
        self.state.searching = false;
        self.state.searched |= found.complete;
        let has_nameless = self.state.unread.values().any(|unread| unread.has_nameless);
        for (uid, pod) in found.strangers {
            let pod = Arc::new(pod);
            if has_nameless {
                self.note(Note::Spared(pod));
                continue;
            }
            self.state.unclaimed.remove(&uid);
            self.state.settled.remove(&uid);
            if self.state.tasks.contains_key(&uid) || self.state.is_wanted(&uid) {
                continue;
            }
            self.note(Note::Orphaned(pod.clone()));
            let mut intent = Intent::run(pod);
            intent.end(Kill { cause: KillCause::Orphaned, grace: Some(ORPHAN_GRACE) });
            self.spawn(uid, intent, false, Vec::new());
        }
        if let Some(there) = found.runtime {
            // Somebody else took it away: nobody has to wait for its end.
            self.state.unclaimed.retain(|uid, _| there.contains(uid));
        }
        self.unpark();
        self.publish();
    }

    pub(super) fn intend(&mut self, uid: &PodUid) {
        if let Some(task) = self.state.tasks.get(uid) {
            self.effects.push(Effect::Intend { uid: uid.clone(), intent: task.intent.clone() });
        }
    }

    pub(super) fn note(&mut self, note: Note) {
        self.effects.push(Effect::Note(note));
    }

    fn publish(&mut self) {
        let sources_ready = self.state.silent.is_empty() && self.state.searched;
        self.effects.push(Effect::Publish(Known { pods: self.state.known(), sources_ready }));
    }
}

/// The API server was told that the Pod is over.
fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}
