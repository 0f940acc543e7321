//! From which NUMA nodes devices could come.

use std::collections::{BTreeMap, BTreeSet};

use super::{DeviceBooks, Ids};
use crate::topology::admit::Provider;
use crate::topology::mask::{Hint, NumaMask, Wish};
use crate::topology::wants::{ContainerWant, PodWant};

impl Provider for DeviceBooks {
    fn hints(&self, pod: &PodWant, container: &ContainerWant) -> BTreeMap<String, Wish> {
        let ours = container.devices.iter().filter(|(name, _)| self.is_ours(name));
        let wish = |(resource, count): (&String, &u64)| {
            let has = self.allocation(&pod.uid, &container.name, resource).map(super::Allocation::ids);
            let reusable = self.reusable_by(&pod.uid, resource);
            (resource.clone(), self.wish(resource, *count, has.unwrap_or_default(), reusable))
        };
        ours.map(wish).collect()
    }

    fn pod_hints(&self, pod: &PodWant) -> BTreeMap<String, Wish> {
        let wanted = pod.peak(|c| c.devices.clone());
        let ours = wanted.iter().filter(|(name, _)| self.is_ours(name));
        let wish = |(resource, count): (&String, &u64)| {
            let of = |c: &ContainerWant| Some(self.allocation(&pod.uid, &c.name, resource)?.ids());
            let has: Ids = pod.containers.iter().filter_map(of).flatten().collect();
            (resource.clone(), self.wish(resource, *count, has, Ids::new()))
        };
        ours.map(wish).collect()
    }
}

impl DeviceBooks {
    fn wish(&self, resource: &str, count: u64, has: Ids, reusable: Ids) -> Wish {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let known = self.resources.get(resource);
        if !known.is_some_and(|r| r.devices.values().any(|d| !d.nodes.is_empty())) {
            return Wish::Any;
        }
        if !has.is_empty() {
            return match has.len() == count {
                true => Wish::OneOf(self.hints_for(resource, &has, &Ids::new(), count)),
                false => Wish::OneOf(Vec::new()),
            };
        }
        let available = self.available(resource);
        if available.union(&reusable).count() < count {
            return Wish::OneOf(Vec::new());
        }
        Wish::OneOf(self.hints_for(resource, &available, &reusable, count))
    }

    fn hints_for(&self, resource: &str, available: &Ids, reusable: &Ids, count: usize) -> Vec<Hint> {
        let Some(known) = self.resources.get(resource) else { return Vec::new() };
        let mask_of = |id: &String| {
            let nodes = known.devices.get(id).map(|d| d.nodes.as_slice()).unwrap_or_default();
            NumaMask::new(nodes.iter().filter_map(|n| u32::try_from(*n).ok()))
        };
        let touches = |mask: NumaMask, id: &String| mask.and(mask_of(id)).count() > 0;
        let with: BTreeSet<u32> = known.devices.keys().flat_map(|id| mask_of(id).nodes()).collect();
        let mut nodes: Vec<u32> = self.nodes.iter().copied().filter(|n| with.contains(n)).collect();
        if nodes.is_empty() {
            nodes.clone_from(&self.nodes);
        }
        let mut least = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        let mut masks = Vec::new();
        for mask in NumaMask::subsets(&nodes) {
            if known.devices.keys().filter(|id| touches(mask, id)).count() >= count {
                least = least.min(mask.count());
            }
            let bound = |id: &&String| mask_of(id).count() > 0;
            if reusable.iter().filter(bound).any(|id| !touches(mask, id)) {
                continue;
            }
            let here = available.iter().filter(|id| touches(mask, id)).count();
            if here + reusable.iter().filter(bound).count() >= count {
                masks.push(mask);
            }
        }
        masks.into_iter().map(|m| Hint { nodes: Some(m), preferred: m.count() == least }).collect()
    }
}
