//! One Pod's turn, from the queue to a node or back.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use scheduler_core::Name;
use scheduler_core::cycle::{Cycle, Found, NO_NODES};
use scheduler_core::event::Event;
use scheduler_core::plugins::{PluginId, Point, volume_binding};
use scheduler_core::pod::Pod;
use scheduler_core::preemption::{self, Candidate, Preemption};
use scheduler_core::profile::Profile;
use scheduler_core::queue::{Failure, Turn};
use scheduler_core::status::{Diagnosis, PluginSet};
use tokio::time::Instant;

use crate::bind::{self, Binding, Outcome, PreBind};
use crate::events::Notice;
use crate::evict::{self, Eviction};
use crate::state::Scheduler;
use crate::status::{self, Nomination, Verdict};

/// What is said where the extenders left no candidate for preemption.
const NO_CANDIDATE: &str = "no new claims to deallocate, preemption: no candidate node for preemption";

/// Why an attempt came to nothing, and what is to be done about it.
struct Setback {
    failure: Failure,
    verdict: Verdict,
    nomination: Nomination,
}

// === impl Scheduler ===

impl Scheduler {
    /// Gives the next Pod its turn; false if nobody waits for one.
    pub(crate) async fn take_turn(&mut self) -> bool {
        let now = self.now();
        let Some(turn) = self.queue.pop(now) else { return false };
        let begun = Instant::now();
        let pod = turn.pod.clone();
        if pod.is_terminating {
            self.skip(&pod);
            return true;
        }
        if self.cluster.is_assumed(&pod.uid) {
            self.queue.remove(&pod.uid);
            return true;
        }
        let Some(profile) = self.profiles.get(&pod.scheduler).cloned() else {
            self.queue.remove(&pod.uid);
            return true;
        };
        let (cycle, found) = self.find(&profile, &pod).await;
        let setback = match found {
            Found::NoNodes => Setback {
                failure: Failure::Rejected(PluginSet::default()),
                verdict: Verdict { reason: "Unschedulable", message: NO_NODES.to_owned() },
                nomination: Nomination::Set(Name::default()),
            },
            Found::Error(error) => Setback::error(error),
            Found::Nodes { feasible, diagnosis, .. } if feasible.is_empty() => {
                self.cope(&cycle, diagnosis).await
            }
            Found::Nodes { feasible, .. } => {
                let extra = match feasible.len() {
                    1 => HashMap::new(),
                    _ => self.extenders.prioritize(&self.objects, &self.cluster, &pod, &feasible).await,
                };
                match cycle.choose(&self.cluster, &feasible, &extra, &mut self.rng) {
                    Ok(Some(choice)) => {
                        self.metrics.algorithm(begun.elapsed());
                        self.begin_binding(&turn, &cycle, choice.node, begun);
                        return true;
                    }
                    Ok(None) => Setback::error("empty priorityList".to_owned()),
                    Err(error) => Setback::error(error),
                }
            }
        };
        self.set_back(&pod, setback, begun.elapsed());
        true
    }

    /// The nodes that the plugins leave, and then the extenders. One that was promised to the Pod is looked at alone first.
    async fn find(&mut self, profile: &Arc<Profile>, pod: &Arc<Pod>) -> (Cycle, Found) {
        let mut sampling = self.sampling.clone();
        loop {
            let (cycle, found) = Cycle::find(profile, &mut self.cluster, pod, &mut sampling);
            self.sampling.start = sampling.start;
            let Found::Nodes { feasible, evaluated, mut diagnosis } = found else { return (cycle, found) };
            if feasible.is_empty() || self.extenders.is_empty() {
                return (cycle, Found::Nodes { feasible, evaluated, diagnosis });
            }
            let before = feasible.clone();
            let left =
                self.extenders.filter(&self.objects, &self.cluster, pod, feasible, &mut diagnosis).await;
            let was_promised = before.len() == 1 && *self.cluster.info(before[0]).name() == *pod.nominated;
            match left {
                Ok(feasible) if feasible.is_empty() && was_promised && !sampling.ignores_nomination => {
                    sampling.ignores_nomination = true;
                }
                Ok(feasible) => return (cycle, Found::Nodes { feasible, evaluated, diagnosis }),
                Err(error) => return (cycle, Found::Error(error)),
            }
        }
    }

    fn skip(&mut self, pod: &Arc<Pod>) {
        self.queue.remove(&pod.uid);
        let note = format!("skip schedule deleting pod: {}", pod.key);
        self.recorder.tell(Notice::failed(pod, note));
    }

    /// Nothing fits: perhaps others make way.
    async fn cope(&mut self, cycle: &Cycle, mut diagnosis: Diagnosis) -> Setback {
        let mut nomination = Nomination::Keep;
        if cycle.profile.has(Point::PostFilter, PluginId::DefaultPreemption) {
            self.metrics.preemption_attempts.inc([]);
        }
        match preemption::post_filter(cycle, &self.cluster, &diagnosis, &mut self.rng) {
            Preemption::Candidates(all) => {
                match self.extenders.preempt(&self.objects, &self.cluster, &cycle.pod, all).await {
                    Ok(left) => match preemption::select(&left) {
                        Some(best) => nomination = Nomination::Set(self.make_way(&cycle.pod, best)),
                        None => diagnosis.post_filter = NO_CANDIDATE.to_owned(),
                    },
                    Err(error) => diagnosis.post_filter = format!("preemption: {error}"),
                }
            }
            Preemption::Nothing { message, keeps_nomination } => {
                diagnosis.post_filter = message;
                if !keeps_nomination {
                    nomination = Nomination::Set(Name::default());
                }
            }
        }
        let verdict = Verdict { reason: "Unschedulable", message: diagnosis.message() };
        Setback { failure: Failure::Rejected(diagnosis.plugins), verdict, nomination }
    }

    /// Begins to tell the victims. Returns the node's name.
    fn make_way(&mut self, pod: &Arc<Pod>, candidate: &Candidate) -> Name {
        let node: Name = self.cluster.info(candidate.node).name().into();
        // Who goes already has been told.
        let staying: Vec<Arc<Pod>> =
            candidate.victims.iter().filter(|p| !p.is_terminating).cloned().collect();
        if staying.is_empty() {
            return node;
        }
        self.metrics.preemption_victims.observe([], candidate.victims.len() as f64);
        // Less important Pods that were promised the node are to look elsewhere.
        let promised = self.cluster.nominations.on(&node).iter();
        let lower: Vec<Arc<Pod>> = promised.filter(|p| p.priority < pod.priority).cloned().collect();
        for other in lower {
            self.cluster.nominations.remove(&other.uid);
            if let Some(patch) =
                status::patch(&other, None, &Nomination::Set(Name::default()), Timestamp::now())
            {
                self.send_status(other, patch);
            }
        }
        self.queue.begin_preemption(&pod.uid);
        // A Pod whose volumes are still being bound is not on the node yet: its binding ends, and nobody deletes it.
        let is_cancelled = |p: &Arc<Pod>| self.pre_binding.get(&p.uid).is_some_and(|b| b.cancel());
        let (cancelled, victims): (Vec<_>, Vec<_>) = staying.into_iter().partition(is_cancelled);
        let eviction = Eviction {
            client: self.client.clone(),
            recorder: self.recorder.clone(),
            preemptor: pod.clone(),
            node: node.clone(),
        };
        cancelled.iter().for_each(|victim| eviction.tell(victim, true));
        let (outcomes, uid) = (self.outcomes.clone(), pod.uid.clone());
        supervise::spawn("preemption", async move {
            let told = evict::evict(&eviction, victims).await;
            if let Err(error) = &told {
                tracing::warn!(pod = %eviction.preemptor.key, %error, "Pods could not be told to make way");
            }
            let _ = outcomes.send(Outcome::Preempted { uid, failed: told.is_err() }).await;
        });
        node
    }

    fn set_back(&mut self, pod: &Arc<Pod>, setback: Setback, took: Duration) {
        let Setback { failure, verdict, nomination } = setback;
        let result = if matches!(failure, Failure::Rejected(_)) { "unschedulable" } else { "error" };
        self.metrics.attempt(result, &pod.scheduler, took);
        // It may be gone, bound or another one by now.
        let Some(fresh) = self.fresh(&pod.key, &pod.uid).filter(|p| !p.is_bound()).cloned() else {
            self.queue.remove(&pod.uid);
            return;
        };
        let now = self.now();
        self.queue.fail(&pod.uid, failure, &self.cluster, now);
        if let Nomination::Set(node) = &nomination {
            self.cluster.nominations.set(fresh.clone(), node);
        }
        self.recorder.tell(Notice::failed(&fresh, verdict.message.clone()));
        if let Some(patch) = status::patch(&fresh, Some(&verdict), &nomination, Timestamp::now()) {
            self.send_status(fresh, patch);
        }
    }

    fn send_status(&self, pod: Arc<Pod>, patch: serde_json::Value) {
        let client = self.client.clone();
        supervise::spawn("status of a Pod", async move {
            match status::send(&client, &pod, &patch).await {
                Err(error) if !error.is_not_found() => {
                    tracing::warn!(pod = %pod.key, %error, "the status of a Pod is not written");
                }
                _ => {}
            }
        });
    }

    /// The Pod is taken for placed from now on; the API server hears of it meanwhile.
    fn begin_binding(&mut self, turn: &Turn, cycle: &Cycle, node: usize, begun: Instant) {
        let Some(chosen) = self.cluster.info(node).node.clone() else { return };
        let pod = turn.pod.clone();
        let volumes = match cycle.profile.has(Point::PreBind, PluginId::VolumeBinding) {
            true => volume_binding::plan(&self.cluster, &pod, &chosen),
            false => volume_binding::VolumePlan::default(),
        };
        for (volume, claim) in &volumes.bindings {
            if let Some(claim) = self.cluster.storage.claim(claim).cloned() {
                self.cluster.storage.assume_volume(volume, &claim);
            }
        }
        for claim in &volumes.provisions {
            self.cluster.storage.assume_claim(claim, &chosen.name);
        }
        self.cluster.nominations.remove(&pod.uid);
        self.cluster.assume(pod.on(&chosen.name));
        self.queue.remove(&pod.uid);
        self.binding += 1;
        let seconds = cycle.profile.args.volume_binding.bind_timeout_seconds;
        let timeout = Duration::from_secs(u64::try_from(seconds).unwrap_or(600));
        let pre_bind = (volumes != volume_binding::VolumePlan::default()).then(Arc::<PreBind>::default);
        if let Some(pre_bind) = &pre_bind {
            self.pre_binding.insert(pod.uid.clone(), pre_bind.clone());
        }
        let history = turn.history;
        let binding = Binding { pod, node: chosen.name.clone(), volumes, pre_bind, timeout, history };
        let (client, outcomes, extenders) =
            (self.client.clone(), self.outcomes.clone(), self.extenders.clone());
        supervise::spawn("binding", async move {
            let outcome = match bind::bind(&client, &extenders, &binding).await {
                Ok(()) => Outcome::Bound { binding, took: begun.elapsed() },
                Err(error) => Outcome::Failed { binding, error },
            };
            let _ = outcomes.send(outcome).await;
        });
    }

    /// The end of what was begun for a Pod.
    pub(crate) fn settle(&mut self, outcome: Outcome) {
        let now = self.now();
        match outcome {
            Outcome::Bound { binding: Binding { pod, node, history, .. }, took } => {
                self.binding -= 1;
                self.pre_binding.remove(&pod.uid);
                self.metrics.attempt("scheduled", &pod.scheduler, took);
                self.metrics.scheduled(history.attempts, now.since(history.entered.unwrap_or(now)));
                self.recorder.tell(Notice {
                    is_warning: false,
                    reason: "Scheduled",
                    action: "Binding",
                    note: format!("Successfully assigned {} to {node}", pod.key),
                    scheduler: pod.scheduler.to_string(),
                    about: pod,
                    related: None,
                });
            }
            Outcome::Failed { binding, error } => {
                self.binding -= 1;
                self.pre_binding.remove(&binding.pod.uid);
                self.unbind(&binding, error);
            }
            Outcome::Preempted { uid, failed } => self.queue.end_preemption(&uid, failed, now),
        }
    }

    fn unbind(&mut self, binding: &Binding, error: String) {
        let pod = &binding.pod;
        tracing::warn!(pod = %pod.key, node = %binding.node, error, "a Pod is not bound");
        for (volume, _) in &binding.volumes.bindings {
            self.cluster.storage.forget_volume(volume);
        }
        for claim in &binding.volumes.provisions {
            self.cluster.storage.forget_claim(claim);
        }
        if let Some(gone) = self.cluster.forget(&pod.uid) {
            self.happened(&Event::of_pod(Some(gone), None));
        }
        let Some(mut fresh) = self.fresh(&pod.key, &pod.uid).filter(|p| !p.is_bound()).cloned() else {
            return;
        };
        if binding.pre_bind.is_some() {
            // It was told its node already, though we may not have heard of that yet.
            fresh = Arc::new(Pod { nominated: binding.node.clone(), ..(*fresh).clone() });
        }
        // Back to the queue, as if its turn had just ended.
        let now = self.now();
        self.queue.set_in_flight(fresh.clone(), binding.history, now);
        self.set_back(&fresh, Setback::error(error), Duration::ZERO);
    }
}

// === impl Setback ===

impl Setback {
    fn error(message: String) -> Setback {
        Setback {
            failure: Failure::Error,
            verdict: Verdict { reason: "SchedulerError", message },
            nomination: Nomination::Set(Name::default()),
        }
    }
}

// === impl Notice ===

impl Notice {
    fn failed(pod: &Arc<Pod>, note: String) -> Notice {
        Notice {
            is_warning: true,
            reason: "FailedScheduling",
            action: "Scheduling",
            note,
            about: pod.clone(),
            related: None,
            scheduler: pod.scheduler.to_string(),
        }
    }
}
