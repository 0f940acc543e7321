//! A place for a Pod: the resources that know about NUMA nodes are asked, one answer is found, and each gives its part.

use std::collections::BTreeMap;

use super::admission_error::AdmissionError;
use super::cpu::StaticCpus;
use super::mask::{Hint, Wish};
use super::memory::StaticMemory;
use super::policy::{Policy, Scope};
use super::wants::{ContainerWant, PodWant};

/// CPUs and memory by container, and what chooses among the nodes.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    pub policy: Policy,
    /// None with policy `none`.
    pub cpus: Option<StaticCpus>,
    /// None with policy `None`.
    pub memory: Option<StaticMemory>,
    pub figures: TopologyFigures,
}

/// What the metrics tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopologyFigures {
    pub requests: u64,
    pub errors: u64,
    /// Containers and Pods that were promised one node, and those that could not be.
    pub aligned: [u64; 2],
    pub unaligned: [u64; 2],
}

/// A resource of others that knows about NUMA nodes: devices.
pub trait Provider {
    /// By resource; nothing for whoever asks for nothing.
    fn hints(&self, pod: &PodWant, container: &ContainerWant) -> BTreeMap<String, Wish>;
    fn pod_hints(&self, pod: &PodWant) -> BTreeMap<String, Wish>;
}

/// Nobody.
#[derive(Clone, Copy, Debug)]
pub struct NoProvider;

// === impl NoProvider ===

impl Provider for NoProvider {
    fn hints(&self, _: &PodWant, _: &ContainerWant) -> BTreeMap<String, Wish> {
        BTreeMap::new()
    }

    fn pod_hints(&self, _: &PodWant) -> BTreeMap<String, Wish> {
        BTreeMap::new()
    }
}

// === impl Placement ===

impl Placement {
    /// The nodes each container should have everything from, if the whole Pod is judged at once.
    pub fn begin(&mut self, pod: &PodWant, others: &impl Provider) -> Result<Option<Hint>, AdmissionError> {
        self.figures.requests += 1;
        if self.policy.scope == Scope::Container {
            return Ok(None);
        }
        let wishes = [
            named("cpu", self.cpus.as_ref().and_then(|c| c.pod_hints(pod))),
            self.memory.as_ref().map(|m| m.pod_hints(pod)).unwrap_or_default(),
            others.pod_hints(pod),
        ];
        self.judge(&wishes, Scope::Pod).map(Some)
    }

    /// CPUs and memory for one container. Returns the nodes its devices should come from.
    pub fn place(
        &mut self,
        pod: &PodWant,
        container: &ContainerWant,
        of_pod: Option<Hint>,
        others: &impl Provider,
    ) -> Result<Hint, AdmissionError> {
        let hint = match of_pod {
            Some(hint) => hint,
            None => {
                let wishes = [
                    named("cpu", self.cpus.as_ref().and_then(|c| c.hints(pod, container))),
                    self.memory.as_ref().map(|m| m.hints(pod, container)).unwrap_or_default(),
                    others.hints(pod, container),
                ];
                self.judge(&wishes, Scope::Container)?
            }
        };
        let given = self.give(pod, container, hint);
        self.figures.errors += u64::from(given.is_err());
        given.map(|()| hint)
    }

    fn give(&mut self, pod: &PodWant, container: &ContainerWant, hint: Hint) -> Result<(), AdmissionError> {
        if let Some(cpus) = &mut self.cpus {
            cpus.allocate(pod, container, hint)?;
        }
        if let Some(memory) = &mut self.memory {
            memory.allocate(pod, container, hint)?;
        }
        Ok(())
    }

    fn judge(&mut self, wishes: &[BTreeMap<String, Wish>], scope: Scope) -> Result<Hint, AdmissionError> {
        let (hint, may) = self.policy.merge(wishes);
        let counted = u64::from(self.policy.guarantees_alignment());
        let of = usize::from(scope == Scope::Pod);
        if may {
            self.figures.aligned[of] += counted;
            return Ok(hint);
        }
        self.figures.unaligned[of] += counted;
        self.figures.errors += 1;
        Err(AdmissionError::affinity())
    }

    /// The container starts: what ended before it is given back.
    pub fn started(&mut self, pod: &PodWant, container: &str) {
        if let Some(memory) = &mut self.memory {
            memory.started(pod, container);
        }
    }

    /// Takes back what these Pods do not have any more. `lives` says which containers are still somebody's.
    pub fn keep_only(&mut self, lives: impl Fn(&str, &str) -> bool) {
        let mut gone = Vec::new();
        let mut note = |uid: &String, container: &String| {
            if !lives(uid, container) {
                gone.push((uid.clone(), container.clone()));
            }
        };
        let of_cpus = self.cpus.iter().flat_map(|c| &c.state.entries);
        of_cpus.for_each(|(uid, all)| all.keys().for_each(|c| note(uid, c)));
        let of_memory = self.memory.iter().flat_map(|m| &m.state.entries);
        of_memory.for_each(|(uid, all)| all.keys().for_each(|c| note(uid, c)));
        for (uid, container) in gone {
            if let Some(cpus) = &mut self.cpus {
                cpus.release(&uid, &container);
            }
            if let Some(memory) = &mut self.memory {
                memory.release(&uid, &container);
            }
        }
    }
}

fn named(name: &str, wish: Option<Wish>) -> BTreeMap<String, Wish> {
    wish.into_iter().map(|w| (name.to_owned(), w)).collect()
}

#[cfg(test)]
mod tests;
