//! From one template to the next: step by step, all at once, or in proportion.

use std::time::Duration;

use base::time::Now;

use super::sets::Set;
use super::{Deployment, PROGRESSING, Sets, UNLIMITED, Work};
use crate::conditions;
use crate::plan::Act;
use crate::resource::PODS;
use crate::view::View;

impl Deployment {
    /// What is to be done about the ReplicaSets and the status, and when to look again if nothing happens.
    pub(super) fn decide(&self, sets: &Sets, view: &dyn View, work: &mut Work, now: Now) -> Option<Duration> {
        if self.object.is_deleting() {
            self.count(sets, &mut work.status, now);
            return None;
        }
        self.pause(work, now);
        if let Some(new) = &sets.new {
            work.revision = new.revision().map(str::to_owned);
            if conditions::find(&work.status, PROGRESSING).is_none() {
                let message = format!("Found new replica set \"{}\"", new.name());
                self.progress(&mut work.status, "True", "FoundNewReplicaSet", &message, now);
            }
        }
        if self.is_paused || self.is_scaling(sets) {
            self.scale(sets, work);
            if self.is_paused {
                self.clean_up(sets, work);
            }
            self.count(sets, &mut work.status, now);
            return None;
        }
        match self.is_rolling {
            true => self.roll(sets, work),
            false => self.recreate(sets, view, work),
        }
        self.rollout_status(sets, &mut work.status, now)
    }

    /// A pause is written down, so that its time does not count as lack of progress.
    fn pause(&self, work: &mut Work, now: Now) {
        let reason = conditions::find(&work.status, PROGRESSING).and_then(|c| c["reason"].as_str());
        let is_noted = reason == Some("DeploymentPaused");
        if reason == Some("ProgressDeadlineExceeded") || self.is_paused == is_noted {
            return;
        }
        let (reason, message) = match self.is_paused {
            true => ("DeploymentPaused", "Deployment is paused"),
            false => ("DeploymentResumed", "Deployment is resumed"),
        };
        self.progress(&mut work.status, "Unknown", reason, message, now);
    }

    /// Whether somebody asked for another number since the sets were last sized.
    fn is_scaling(&self, sets: &Sets) -> bool {
        sets.active().any(|set| set.desired().is_some_and(|desired| desired != self.replicas))
    }

    fn roll(&self, sets: &Sets, work: &mut Work) {
        let Some(new) = &sets.new else {
            let size = self.new_size(sets.size(), 0);
            return work.acts.push(self.new_set(size, &sets.old));
        };
        let size = if new.replicas > self.replicas {
            self.replicas
        } else {
            self.new_size(sets.size(), new.replicas)
        };
        if let Some(act) = self.resize(new, size, false) {
            return work.acts.push(act);
        }
        let shrunk = self.shrink(sets, new);
        let is_shrinking = !shrunk.is_empty();
        work.acts.extend(shrunk);
        if !is_shrinking && self.is_complete(&self.status) {
            self.clean_up(sets, work);
        }
    }

    /// The size of the new set, now that all are so large together.
    fn new_size(&self, all: i32, new: i32) -> i32 {
        if !self.is_rolling {
            return self.replicas;
        }
        let most = self.replicas.saturating_add(self.max_surge);
        let room = most.saturating_sub(all);
        if room <= 0 || new >= self.replicas { new } else { new + room.min(self.replicas - new) }
    }

    /// Takes from the old sets what may go: what is not available first, then as much as is not needed.
    fn shrink(&self, sets: &Sets, new: &Set) -> Vec<(Act, Option<crate::plan::Event>)> {
        let least = self.replicas - self.max_unavailable;
        let most = sets.size() - least - (new.replicas - new.lasting());
        let mut sizes: Vec<i32> = sets.old.iter().map(|set| set.replicas).collect();
        if most <= 0 || sizes.iter().all(|size| *size == 0) {
            return Vec::new();
        }
        let mut left = most;
        for (size, set) in sizes.iter_mut().zip(&sets.old) {
            let go = (*size - set.lasting()).clamp(0, left.max(0));
            (*size, left) = (*size - go, left - go);
        }
        // Sets that are of no size have nothing that is available for long.
        let active = sets.old.iter().filter(|set| set.replicas > 0);
        let available: i32 = active.map(Set::lasting).sum::<i32>() + new.lasting();
        let mut left = available - least;
        for size in &mut sizes {
            let go = (*size).min(left.max(0));
            (*size, left) = (*size - go, left - go);
        }
        sets.old.iter().zip(sizes).filter_map(|(set, size)| self.resize(set, size, false)).collect()
    }

    /// No Pod of the new template before the last of the old ones is gone.
    fn recreate(&self, sets: &Sets, view: &dyn View, work: &mut Work) {
        let down: Vec<_> = sets.old.iter().filter_map(|set| self.resize(set, 0, false)).collect();
        if !down.is_empty() {
            return work.acts.extend(down);
        }
        let is_running = |set: &Set| {
            let pods = view.owned_by(PODS, &self.object.meta.namespace, &set.object.meta.uid);
            set.count("replicas") > 0 || pods.iter().any(|pod| pod.pod().is_none_or(|pod| !pod.is_terminal()))
        };
        if sets.old.iter().any(is_running) {
            return;
        }
        match &sets.new {
            None => work.acts.push(self.new_set(self.replicas, &sets.old)),
            Some(new) => work.acts.extend(self.resize(new, self.replicas, false)),
        }
        if self.is_complete(&self.status) {
            self.clean_up(sets, work);
        }
    }

    /// Another number of Pods while a rollout is under way: each set has its share of it.
    fn scale(&self, sets: &Sets, work: &mut Work) {
        let mut active: Vec<&Set> = sets.active().collect();
        if active.len() <= 1 {
            let newest = sets.new.as_ref().or(sets.old.last());
            let only = active.first().copied().or(newest);
            return work.acts.extend(only.and_then(|set| self.resize(set, self.replicas, false)));
        }
        let is_full = |new: &Set| {
            [new.replicas, new.available()] == [self.replicas; 2] && new.desired() == Some(self.replicas)
        };
        if sets.new.as_ref().is_some_and(is_full) {
            return work.acts.extend(sets.old.iter().filter_map(|set| self.resize(set, 0, false)));
        }
        if !self.is_rolling {
            return;
        }
        let allowed = if self.replicas > 0 { self.replicas.saturating_add(self.max_surge) } else { 0 };
        let to_add = allowed - active.iter().map(|set| set.replicas).sum::<i32>();
        active.sort_by(|a, b| {
            let by_age = if to_add > 0 { b.age().cmp(&a.age()) } else { a.age().cmp(&b.age()) };
            b.replicas.cmp(&a.replicas).then(by_age)
        });
        let (mut sizes, mut added) = (Vec::with_capacity(active.len()), 0);
        for set in &active {
            let share = self.share(set, to_add, added);
            added += share;
            sizes.push(set.replicas + share);
        }
        if let Some(first) = sizes.first_mut() {
            *first = (*first + to_add - added).max(0);
        }
        work.acts.extend(active.iter().zip(sizes).filter_map(|(set, size)| self.resize(set, size, true)));
    }

    /// What a set gets of what is added to all, or gives of what is taken.
    fn share(&self, set: &Set, to_add: i32, added: i32) -> i32 {
        let left = to_add - added;
        if left == 0 {
            return 0;
        }
        let share = if self.replicas == 0 {
            -set.replicas
        } else {
            let before = set
                .max()
                .filter(|most| *most != 0)
                .or_else(|| self.status["replicas"].as_i64().and_then(|n| i32::try_from(n).ok()));
            let most = f64::from(self.replicas.saturating_add(self.max_surge));
            match before.filter(|before| *before != 0) {
                Some(before) => {
                    (f64::from(set.replicas) * most / f64::from(before)).round() as i32 - set.replicas
                }
                None => 0,
            }
        };
        if to_add > 0 { share.min(left) } else { share.max(left) }
    }

    /// Old sets beyond those that are kept to go back to.
    fn clean_up(&self, sets: &Sets, work: &mut Work) {
        if self.history_limit == UNLIMITED {
            return;
        }
        let mut old: Vec<&Set> = sets.old.iter().filter(|set| !set.object.is_deleting()).collect();
        let surplus = old.len().saturating_sub(usize::try_from(self.history_limit).unwrap_or(0));
        old.sort_by_key(|set| set.revision_number());
        let is_idle = |set: &&&Set| {
            let observed = set.status["observedGeneration"].as_i64().unwrap_or(0);
            set.replicas == 0 && set.count("replicas") == 0 && set.object.meta.generation <= observed
        };
        let gone = old.iter().take(surplus).filter(is_idle);
        work.acts.extend(gone.map(|set| (Act::delete(&set.object), None)));
    }
}

// === impl Sets ===

impl Sets {
    pub(super) fn all(&self) -> impl Iterator<Item = &Set> {
        self.old.iter().chain(&self.new)
    }

    fn active(&self) -> impl Iterator<Item = &Set> {
        self.all().filter(|set| set.replicas > 0)
    }

    /// How many Pods all of them ask for.
    pub(super) fn size(&self) -> i32 {
        self.all().map(|set| set.replicas).sum()
    }
}
