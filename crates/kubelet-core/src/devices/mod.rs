//! Devices that plugins bring to the node: which there are, which of them work, and which container has which.
//! Upstream's device manager.

pub mod checkpoint;
mod choose;
mod hints;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::time::Mono;

use crate::topology::wants::{Lasting, PodWant};

pub use choose::{Ask, Plan};

/// How long a resource stays on the node after its plugin went, with no device that works.
const GRACE: Duration = Duration::from_secs(300);
/// The NUMA node of devices that name none.
const NOWHERE: i64 = -1;

/// Ids of devices.
pub type Ids = BTreeSet<String>;

/// A device as its plugin describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    pub healthy: bool,
    /// The NUMA nodes it is near to.
    pub nodes: Vec<i64>,
}

/// Devices of one kind, by id.
pub type Devices = BTreeMap<String, Device>;

/// Whether somebody answers for a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plugin {
    Here,
    Gone(Mono),
    /// Known from before this life only.
    Forgotten,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Resource {
    plugin: Plugin,
    /// All that were ever told of by this plugin; those that are not healthy any more among them.
    devices: Devices,
}

/// What a container has of one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    pub by_node: BTreeMap<i64, Vec<String>>,
    /// What the plugin answered, as it was on the wire.
    pub answer: Vec<u8>,
}

/// Allocations by resource, by container, by Pod UID.
pub type Entries = BTreeMap<String, BTreeMap<String, BTreeMap<String, Allocation>>>;

/// How many devices of a resource there are, and how many of them work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub capacity: BTreeMap<String, u64>,
    pub allocatable: BTreeMap<String, u64>,
}

/// Who has which device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceBooks {
    resources: BTreeMap<String, Resource>,
    entries: Entries,
    /// Chosen, and not yet answered for by the plugin.
    chosen: BTreeMap<String, Ids>,
    /// What the last Pod's init containers had.
    reusable: (String, BTreeMap<String, Ids>),
    /// The machine's NUMA nodes.
    nodes: Vec<u32>,
}

// === impl Allocation ===

impl Allocation {
    #[must_use]
    pub fn ids(&self) -> Ids {
        self.by_node.values().flatten().cloned().collect()
    }
}

// === impl DeviceBooks ===

impl DeviceBooks {
    /// Goes on from what an earlier life left. Until their plugins come, none of the devices works.
    #[must_use]
    pub fn new(nodes: Vec<u32>, entries: Entries, resources: impl IntoIterator<Item = String>) -> Self {
        let forgotten = |name| (name, Resource { plugin: Plugin::Forgotten, devices: Devices::new() });
        Self { nodes, entries, resources: resources.into_iter().map(forgotten).collect(), ..Self::default() }
    }

    /// A plugin is there; what it has, it says next.
    pub fn connected(&mut self, resource: &str) {
        let known = self.resources.entry(resource.to_owned());
        known
            .and_modify(|r| r.plugin = Plugin::Here)
            .or_insert(Resource { plugin: Plugin::Here, devices: Devices::new() });
    }

    /// A plugin says what it has. Returns the Pods that have a device whose health is news.
    pub fn heard(&mut self, resource: &str, devices: Devices) -> BTreeSet<String> {
        self.connected(resource);
        let Some(known) = self.resources.get_mut(resource) else { return BTreeSet::new() };
        let before = std::mem::replace(&mut known.devices, devices.clone());
        let is_news = |id: &String, now: &Device| before.get(id).map(|d| d.healthy) != Some(now.healthy);
        let news: Ids = devices.iter().filter(|(id, d)| is_news(id, d)).map(|(id, _)| id.clone()).collect();
        let touched = |(uid, containers): (&String, &BTreeMap<String, BTreeMap<String, Allocation>>)| {
            let mut all = containers.values().filter_map(|of| of.get(resource));
            all.any(|a| !a.ids().is_disjoint(&news)).then(|| uid.clone())
        };
        self.entries.iter().filter_map(touched).collect()
    }

    /// The plugin is gone: nothing of it works until it comes again.
    pub fn disconnected(&mut self, resource: &str, now: Mono) {
        if let Some(known) = self.resources.get_mut(resource) {
            known.devices.values_mut().for_each(|d| d.healthy = false);
            known.plugin = Plugin::Gone(now);
        }
    }

    /// What the node has. Resources whose plugin has been away for long are forgotten with this, and named second.
    pub fn counts(&mut self, now: Mono) -> (Counts, Vec<String>) {
        let expired = |r: &Resource| match r.plugin {
            Plugin::Here => false,
            Plugin::Gone(since) => now.since(since) > GRACE,
            Plugin::Forgotten => false,
        };
        let gone: Vec<String> =
            self.resources.iter().filter(|(_, r)| expired(r)).map(|(n, _)| n.clone()).collect();
        gone.iter().for_each(|name| _ = self.resources.remove(name));
        let mut counts = Counts::default();
        for (name, resource) in &self.resources {
            let healthy = resource.devices.values().filter(|d| d.healthy).count();
            counts.capacity.insert(name.clone(), resource.devices.len() as u64);
            counts.allocatable.insert(name.clone(), healthy as u64);
        }
        (counts, gone)
    }

    /// Whether devices of this name come from a plugin: now, or for some Pod.
    #[must_use]
    pub fn is_ours(&self, resource: &str) -> bool {
        let allocated = || self.entries.values().flat_map(BTreeMap::values).any(|c| c.contains_key(resource));
        self.resources.contains_key(resource) || allocated()
    }

    #[must_use]
    pub fn allocation(&self, uid: &str, container: &str, resource: &str) -> Option<&Allocation> {
        self.entries.get(uid)?.get(container)?.get(resource)
    }

    /// What the container has, by resource.
    #[must_use]
    pub fn of_container(&self, uid: &str, container: &str) -> Option<&BTreeMap<String, Allocation>> {
        self.entries.get(uid)?.get(container)
    }

    #[must_use]
    pub fn entries(&self) -> &Entries {
        &self.entries
    }

    /// Every resource with its devices.
    pub fn resources(&self) -> impl Iterator<Item = (&str, &Devices)> {
        self.resources.iter().map(|(name, r)| (name.as_str(), &r.devices))
    }

    /// Whether the device works, as far as anybody knows.
    #[must_use]
    pub fn is_healthy(&self, resource: &str, id: &str) -> bool {
        let known = self.resources.get(resource).and_then(|r| r.devices.get(id));
        known.is_none_or(|d| d.healthy)
    }

    /// The plugin has answered: the devices are the container's.
    pub fn insert(&mut self, uid: &str, container: &str, resource: &str, ids: &Ids, answer: Vec<u8>) {
        self.unchoose(resource, ids);
        let mut by_node: BTreeMap<i64, Vec<String>> = BTreeMap::new();
        let devices = self.resources.get(resource).map(|r| &r.devices);
        for id in ids {
            let nodes = devices.and_then(|d| d.get(id)).map(|d| d.nodes.clone()).unwrap_or_default();
            let nodes = if nodes.is_empty() { vec![NOWHERE] } else { nodes };
            nodes.into_iter().for_each(|node| by_node.entry(node).or_default().push(id.clone()));
        }
        let of_pod = self.entries.entry(uid.to_owned()).or_default();
        of_pod
            .entry(container.to_owned())
            .or_default()
            .insert(resource.to_owned(), Allocation { by_node, answer });
    }

    /// The plugin did not give them.
    pub fn unchoose(&mut self, resource: &str, ids: &Ids) {
        if let Some(chosen) = self.chosen.get_mut(resource) {
            chosen.retain(|id| !ids.contains(id));
        }
    }

    /// What an init container had, the next containers of its Pod may have; what others have, they keep.
    pub fn remember(&mut self, pod: &PodWant, container: &str) {
        if self.reusable.0 != pod.uid {
            self.reusable = (pod.uid.clone(), BTreeMap::new());
        }
        let lasting = pod.container(container).map_or(Lasting::Regular, |c| c.lasting);
        let held: Vec<(String, Ids)> = self
            .of_container(&pod.uid, container)
            .into_iter()
            .flatten()
            .map(|(name, a)| (name.clone(), a.ids()))
            .collect();
        for (resource, ids) in held {
            let here = self.reusable.1.entry(resource).or_default();
            match lasting {
                Lasting::Init => here.extend(ids),
                Lasting::Sidecar | Lasting::Regular => here.retain(|id| !ids.contains(id)),
            }
        }
    }

    /// Takes back everything that these Pods do not have any more.
    pub fn keep_only(&mut self, lives: impl Fn(&str) -> bool) {
        self.entries.retain(|uid, _| lives(uid));
    }

    fn reusable_by(&self, uid: &str, resource: &str) -> Ids {
        let (of, by_resource) = &self.reusable;
        let mine = by_resource.get(resource).filter(|_| of == uid);
        mine.cloned().unwrap_or_default()
    }

    /// Devices of the resource that somebody has, or is about to have.
    fn in_use(&self, resource: &str) -> Ids {
        let mut used: Ids = self.chosen.get(resource).cloned().unwrap_or_default();
        let all = self.entries.values().flat_map(BTreeMap::values).filter_map(|c| c.get(resource));
        all.for_each(|a| used.extend(a.ids()));
        used
    }

    fn healthy(&self, resource: &str) -> Ids {
        let devices = self.resources.get(resource).into_iter().flat_map(|r| &r.devices);
        devices.filter(|(_, d)| d.healthy).map(|(id, _)| id.clone()).collect()
    }

    fn available(&self, resource: &str) -> Ids {
        let used = self.in_use(resource);
        self.healthy(resource).into_iter().filter(|id| !used.contains(id)).collect()
    }
}

#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod tests;
