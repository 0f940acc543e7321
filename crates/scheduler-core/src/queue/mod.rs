//! Who waits: for a turn, for a pause to end, or for something to happen.
//!
//! A Pod is in exactly one place: active, backoff, unschedulable (gated ones among them), or in flight between [`Queue::pop`]
//! and the answer to it. Who calls tells the time.

mod entry;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use base::time::Mono;

use crate::Name;
use crate::cluster::Cluster;
use crate::event::Event;
use crate::plugins::priority_sort::Rank;
use crate::plugins::{PluginId, Point};
use crate::pod::Pod;
use crate::profile::Profiles;
use crate::status::PluginSet;
use entry::{Entry, Place};

/// Pods that nothing woke are tried again after this.
pub const MAX_UNSCHEDULABLE: Duration = Duration::from_secs(300);
/// How often that is looked at.
const LEFTOVERS: Duration = Duration::from_secs(30);
/// Events remembered for a Pod in flight; with more than that it is tried again anyway.
const MOST_EVENTS: usize = 1000;

#[derive(Clone, Copy, Debug)]
pub struct Pauses {
    pub first: Duration,
    pub most: Duration,
    /// How long a Pod stays unschedulable though nothing happens.
    pub max_unschedulable: Duration,
}

/// A Pod whose turn it is.
#[derive(Clone, Debug)]
pub struct Turn {
    pub pod: Arc<Pod>,
    pub history: History,
}

/// What a Pod has gone through. It is kept while the Pod is bound, for the case that the binding fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Turns it had, this one included.
    pub attempts: u32,
    /// Turns in which somebody said no.
    pub rejections: u32,
    /// Turns in a row that ended with an error.
    pub errors: u32,
    /// When it first came to the active queue.
    pub entered: Option<Mono>,
}

/// How an attempt ended that did not end on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// These plugins said no; none: anything that happens may help.
    Rejected(PluginSet),
    Error,
}

#[derive(Debug)]
pub struct Queue {
    profiles: Arc<Profiles>,
    pauses: Pauses,
    entries: HashMap<Name, Entry>,
    active: BTreeMap<Rank, Name>,
    /// By the second in which the pause ends; it is over when that second is.
    backoff: BTreeMap<(u64, Rank), Name>,
    error_backoff: BTreeMap<(u64, Rank), Name>,
    /// Unschedulable and gated Pods by the plugins that said no.
    waiting: HashMap<PluginId, HashSet<Name>>,
    /// Pods for which others make way right now.
    preempting: HashSet<Name>,
    joined: u64,
    looked_at_leftovers: Mono,
    /// How many Pods came to a queue, and why, since this was last taken.
    incoming: BTreeMap<(&'static str, &'static str), u64>,
}

/// How many Pods are where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub active: usize,
    pub backoff: usize,
    pub unschedulable: usize,
    pub gated: usize,
    pub in_flight: usize,
}

// === impl Queue ===

impl Queue {
    #[must_use]
    pub fn new(profiles: Arc<Profiles>, pauses: Pauses) -> Queue {
        Queue {
            profiles,
            pauses,
            entries: HashMap::new(),
            active: BTreeMap::new(),
            backoff: BTreeMap::new(),
            error_backoff: BTreeMap::new(),
            waiting: HashMap::new(),
            preempting: HashSet::new(),
            joined: 0,
            looked_at_leftovers: Mono::default(),
            incoming: BTreeMap::new(),
        }
    }

    /// A Pod that is new, or has changed.
    pub fn set(&mut self, pod: Arc<Pod>, cluster: &Cluster, now: Mono) {
        let Some(entry) = self.entries.get_mut(&pod.uid) else {
            let uid = pod.uid.clone();
            self.entries.insert(uid.clone(), Entry::new(pod, now));
            self.enter(&uid, "UnschedulablePodAdd", now);
            return;
        };
        let old = std::mem::replace(&mut entry.pod, pod.clone());
        let event = Event::of_pod(Some(old.clone()), Some(pod.clone()));
        let place = entry.place;
        if place == Place::InFlight {
            entry.remember(&event);
            return;
        }
        let waits = matches!(place, Place::Gated | Place::Unschedulable);
        if waits && self.is_worth(&pod.uid, cluster, &event) {
            self.leave(&pod.uid);
            self.enter(&pod.uid, event.label(), now);
        } else if old.priority != pod.priority {
            self.leave(&pod.uid);
            self.put(&pod.uid, place, now);
        }
    }

    pub fn remove(&mut self, uid: &Name) -> Option<Arc<Pod>> {
        self.leave(uid);
        self.preempting.remove(uid);
        self.entries.remove(uid).map(|entry| entry.pod)
    }

    #[must_use]
    pub fn pod(&self, uid: &Name) -> Option<&Arc<Pod>> {
        self.entries.get(uid).map(|entry| &entry.pod)
    }

    /// Whose turn it is. Where nobody is left, whoever only pauses is taken early: but not after an error.
    pub fn pop(&mut self, now: Mono) -> Option<Turn> {
        let first = |queue: &BTreeMap<Rank, Name>| queue.values().next().cloned();
        let (uid, is_early) = match first(&self.active) {
            Some(uid) => (uid, false),
            None => (self.backoff.values().next().cloned()?, true),
        };
        if is_early {
            self.count("active", "PopFromBackoffQ");
        }
        self.leave(&uid);
        let entry = self.entries.get_mut(&uid)?;
        entry.place = Place::InFlight;
        entry.history.attempts += 1;
        entry.history.entered.get_or_insert(now);
        Some(Turn { pod: entry.pod.clone(), history: entry.history })
    }

    /// A Pod whose binding has failed is in flight again, until [`Queue::fail`] says where it goes.
    pub fn set_in_flight(&mut self, pod: Arc<Pod>, history: History, now: Mono) {
        let mut entry = Entry::new(pod, now);
        entry.history = history;
        self.remove(&entry.pod.uid.clone());
        self.entries.insert(entry.pod.uid.clone(), entry);
    }

    /// An attempt has failed. What happened meanwhile counts.
    pub fn fail(&mut self, uid: &Name, failure: Failure, cluster: &Cluster, now: Mono) {
        let Some(entry) = self.entries.get_mut(uid).filter(|e| e.place == Place::InFlight) else { return };
        entry.since = now;
        self.joined += 1;
        entry.rank.since = self.joined;
        let (events, was_too_much) = entry.take_events();
        match failure {
            Failure::Error => {
                entry.history.errors += 1;
                entry.rejected_by = PluginSet::default();
                let window = entry.window(&self.pauses);
                self.put(uid, Place::ErrorBackoff(window), now);
                self.count("backoff", "ScheduleAttemptFailure");
            }
            Failure::Rejected(by) => {
                entry.history.errors = 0;
                entry.history.rejections += 1;
                entry.rejected_by = by;
                if was_too_much || events.iter().any(|event| self.is_worth(uid, cluster, event)) {
                    self.enter(uid, "ScheduleAttemptFailure", now);
                } else {
                    self.put(uid, Place::Unschedulable, now);
                    self.count("unschedulable", "ScheduleAttemptFailure");
                }
            }
        }
    }

    /// Something happened: Pods that it may help get another turn.
    pub fn happened(&mut self, event: &Event, cluster: &Cluster, now: Mono) {
        self.happened_to(event, cluster, now, |_| true);
    }

    /// The same, but only some of the waiting Pods may look at it.
    pub fn happened_to(
        &mut self,
        event: &Event,
        cluster: &Cluster,
        now: Mono,
        may_look: impl Fn(&Pod) -> bool,
    ) {
        for entry in self.entries.values_mut().filter(|e| e.place == Place::InFlight) {
            entry.remember(event);
        }
        if self.waiting.is_empty() {
            return;
        }
        let mut concerned = PluginSet::default().with(PluginId::Extender);
        for profile in self.profiles.iter() {
            concerned = concerned.union(profile.concerned(event));
        }
        let all = concerned.iter().filter_map(|id| self.waiting.get(&id)).flatten();
        let uids: HashSet<Name> = all.cloned().collect();
        for uid in uids {
            let may = self.pod(&uid).is_some_and(|pod| may_look(pod));
            if may && self.is_worth(&uid, cluster, event) {
                self.leave(&uid);
                self.enter(&uid, event.label(), now);
            }
        }
    }

    /// Ends pauses that are over, and tries Pods again that nothing woke for too long. To be called every second.
    pub fn tick(&mut self, now: Mono) {
        let window = now.0.as_secs();
        let is_over = |queue: &BTreeMap<(u64, Rank), Name>| {
            queue.iter().next().filter(|((ends, _), _)| *ends < window).map(|(_, uid)| uid.clone())
        };
        while let Some(uid) = is_over(&self.backoff).or_else(|| is_over(&self.error_backoff)) {
            self.leave(&uid);
            self.enter(&uid, "BackoffComplete", now);
        }
        if now.since(self.looked_at_leftovers) < LEFTOVERS {
            return;
        }
        self.looked_at_leftovers = now;
        let max_unschedulable = self.pauses.max_unschedulable;
        let is_late = |e: &&Entry| e.place == Place::Unschedulable && now.since(e.since) > max_unschedulable;
        let late: Vec<Name> = self.entries.values().filter(is_late).map(|e| e.pod.uid.clone()).collect();
        for uid in late {
            self.leave(&uid);
            self.enter(&uid, "UnschedulableTimeout", now);
        }
    }

    /// Others make way for the Pod from now on: it does not get a turn before they have been told to.
    pub fn begin_preemption(&mut self, uid: &Name) {
        self.preempting.insert(uid.clone());
    }

    /// They have been told. What they leave behind wakes it; where that failed, it is tried again.
    pub fn end_preemption(&mut self, uid: &Name, failed: bool, now: Mono) {
        self.preempting.remove(uid);
        let Some(entry) = self.entries.get_mut(uid) else { return };
        let was_held = entry.place == Place::Gated && entry.rejected_by.has(PluginId::DefaultPreemption);
        if was_held || (failed && entry.place == Place::Unschedulable) {
            self.leave(uid);
            self.enter(uid, "ForceActivate", now);
        }
    }

    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for entry in self.entries.values() {
            *match entry.place {
                Place::Active => &mut counts.active,
                Place::Backoff(_) | Place::ErrorBackoff(_) => &mut counts.backoff,
                Place::Unschedulable => &mut counts.unschedulable,
                Place::Gated => &mut counts.gated,
                Place::InFlight => &mut counts.in_flight,
            } += 1;
        }
        counts
    }

    /// How many waiting Pods each plugin has refused.
    #[must_use]
    pub fn refused_by(&self) -> BTreeMap<&'static str, usize> {
        self.waiting.iter().map(|(id, pods)| (id.name(), pods.len())).collect()
    }

    pub fn take_incoming(&mut self) -> BTreeMap<(&'static str, &'static str), u64> {
        std::mem::take(&mut self.incoming)
    }

    /// Whether there is anybody to pop.
    #[must_use]
    pub fn has_turn(&self) -> bool {
        !self.active.is_empty() || !self.backoff.is_empty()
    }

    // --- places ---

    /// To the active or backoff queue, unless a gate holds it.
    fn enter(&mut self, uid: &Name, event: &'static str, now: Mono) {
        if let Some(gate) = self.gate(uid) {
            if let Some(entry) = self.entries.get_mut(uid) {
                entry.rejected_by = PluginSet::default().with(gate);
            }
            self.put(uid, Place::Gated, now);
            self.count("gated", event);
            return;
        }
        let Some(entry) = self.entries.get(uid) else { return };
        let window = entry.window(&self.pauses);
        let pauses = entry.history.rejections + entry.history.errors > 0 && window >= now.0.as_secs();
        self.put(uid, if pauses { Place::Backoff(window) } else { Place::Active }, now);
        self.count(if pauses { "backoff" } else { "active" }, event);
    }

    fn gate(&self, uid: &Name) -> Option<PluginId> {
        let entry = self.entries.get(uid)?;
        if self.preempting.contains(uid) {
            return Some(PluginId::DefaultPreemption);
        }
        let profile = self.profiles.get(&entry.pod.scheduler)?;
        profile.at(Point::PreEnqueue).find(|(_, _, p)| p.pre_enqueue(&entry.pod).is_err()).map(|(id, ..)| id)
    }

    fn put(&mut self, uid: &Name, place: Place, now: Mono) {
        let Some(entry) = self.entries.get_mut(uid) else { return };
        if matches!(place, Place::Active) && entry.rank.since == 0 {
            self.joined += 1;
            entry.rank.since = self.joined;
            entry.since = now;
        }
        if matches!(place, Place::Active) {
            entry.history.entered.get_or_insert(now);
        }
        entry.place = place;
        entry.rank.priority = entry.pod.priority;
        if entry.rank.since == 0 {
            self.joined += 1;
            entry.rank.since = self.joined;
        }
        match place {
            Place::Active => _ = self.active.insert(entry.rank, uid.clone()),
            Place::Backoff(window) => _ = self.backoff.insert((window, entry.rank), uid.clone()),
            Place::ErrorBackoff(window) => _ = self.error_backoff.insert((window, entry.rank), uid.clone()),
            Place::Unschedulable | Place::Gated => {
                for plugin in entry.waits_for() {
                    self.waiting.entry(plugin).or_default().insert(uid.clone());
                }
            }
            Place::InFlight => {}
        }
    }

    fn leave(&mut self, uid: &Name) {
        let Some(entry) = self.entries.get(uid) else { return };
        match entry.place {
            Place::Active => _ = self.active.remove(&entry.rank),
            Place::Backoff(window) => _ = self.backoff.remove(&(window, entry.rank)),
            Place::ErrorBackoff(window) => _ = self.error_backoff.remove(&(window, entry.rank)),
            Place::Unschedulable | Place::Gated => {
                for plugin in entry.waits_for() {
                    if let Some(pods) = self.waiting.get_mut(&plugin) {
                        pods.remove(uid);
                        if pods.is_empty() {
                            self.waiting.remove(&plugin);
                        }
                    }
                }
            }
            Place::InFlight => {}
        }
    }

    /// Whether an event may make the Pod fit that these plugins refused.
    fn is_worth(&self, uid: &Name, cluster: &Cluster, event: &Event) -> bool {
        let Some(entry) = self.entries.get(uid) else { return false };
        let by = entry.rejected_by;
        if by.is_empty() || by.has(PluginId::Extender) {
            return true;
        }
        let Some(profile) = self.profiles.get(&entry.pod.scheduler) else { return false };
        let concerned = profile.concerned(event);
        let asked = by.iter().filter(|id| concerned.has(*id)).filter_map(|id| profile.plugin(id));
        asked.into_iter().any(|plugin| plugin.wakes(cluster, &entry.pod, event))
    }

    fn count(&mut self, queue: &'static str, event: &'static str) {
        *self.incoming.entry((queue, event)).or_default() += 1;
    }
}

#[cfg(test)]
mod tests;
