//! Which devices a container gets. The plugin is asked in between which ones it would rather give.

use super::{DeviceBooks, Ids};
use crate::topology::mask::{Hint, NumaMask};

/// What has been decided, and what the plugin may be asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// These it gets in any case.
    sure: Ids,
    /// How many it gets in all.
    required: usize,
    /// From where the rest comes, the best first.
    rest: Vec<Ids>,
    /// The first question to the plugin; none if nothing is left to choose.
    pub ask: Option<Ask>,
}

/// GetPreferredAllocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    pub available: Ids,
    pub must_include: Ids,
    pub size: usize,
}

impl DeviceBooks {
    /// What `container` still has to get of the resource, or why it cannot. None: it has all it asks for. `sources_ready`: who
    /// listed nothing yet may be about to list a container that runs already.
    pub fn plan(
        &self,
        uid: &str,
        container: &str,
        resource: &str,
        required: usize,
        hint: Hint,
        runs_already: bool,
    ) -> Result<Option<Plan>, String> {
        let has = self.allocation(uid, container, resource).map(super::Allocation::ids);
        if let Some(has) = &has
            && has.len() != required
        {
            return Err(format!(
                "pod {uid:?} container {container:?} changed request for resource {resource:?} from {} to {required}",
                has.len()
            ));
        }
        if runs_already {
            return Ok(None);
        }
        if !self.resources.contains_key(resource) {
            return Err(format!("cannot allocate unregistered device {resource}"));
        }
        let healthy = self.healthy(resource);
        if healthy.is_empty() {
            return Err(format!("no healthy devices present; cannot allocate unhealthy devices {resource}"));
        }
        if let Some(has) = has {
            if !has.is_subset(&healthy) {
                return Err(format!(
                    "previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
                ));
            }
            return Ok(None);
        }
        self.fresh(uid, resource, required, hint).map(Some)
    }

    fn fresh(&self, uid: &str, resource: &str, required: usize, hint: Hint) -> Result<Plan, String> {
        let again: Ids = self.reusable_by(uid, resource).into_iter().take(required).collect();
        let needed = required - again.len();
        let mut plan = Plan { sure: again, required, ..Plan::default() };
        if needed == 0 {
            return Ok(plan);
        }
        let available = self.available(resource);
        if available.len() < needed {
            return Err(format!(
                "requested number of devices unavailable for {resource}. Requested: {needed}, Available: {}",
                available.len()
            ));
        }
        let [near, far, nowhere] = self.by_nearness(resource, &available, hint);
        if needed < near.len() {
            let all = near.union(&plan.sure).cloned().collect();
            plan.ask = Some(Ask { available: all, must_include: plan.sure.clone(), size: required });
            plan.rest = vec![near];
            return Ok(plan);
        }
        plan.sure.extend(near);
        if plan.sure.len() < required {
            let all = available.union(&plan.sure).cloned().collect();
            plan.ask = Some(Ask { available: all, must_include: plan.sure.clone(), size: required });
            plan.rest = vec![far, nowhere];
        }
        Ok(plan)
    }

    /// Devices on the hint's nodes, on others, and on none. Where nobody cares, all are on none.
    fn by_nearness(&self, resource: &str, available: &Ids, hint: Hint) -> [Ids; 3] {
        let mut sorted: [Ids; 3] = Default::default();
        let devices = self.resources.get(resource).map(|r| &r.devices);
        let nodes =
            |id: &String| devices.and_then(|d| d.get(id)).map(|d| d.nodes.as_slice()).unwrap_or_default();
        let cares = devices.is_some_and(|d| d.values().any(|d| !d.nodes.is_empty()));
        let wanted = hint.nodes.filter(|_| cares);
        let is_near = |wanted: NumaMask, n: &i64| u32::try_from(*n).is_ok_and(|n| wanted.has(n));
        for id in available {
            let place = match (wanted, nodes(id)) {
                (None, _) | (_, []) => 2,
                (Some(wanted), nodes) if nodes.iter().any(|n| is_near(wanted, n)) => 0,
                _ => 1,
            };
            sorted[place].insert(id.clone());
        }
        sorted
    }

    /// Settles on devices, those the plugin prefers first. They are nobody else's from here on. What has been taken
    /// meanwhile is passed over.
    pub fn choose(&mut self, resource: &str, plan: &Plan, preferred: &Ids) -> Result<Ids, String> {
        let mut ids = plan.sure.clone();
        let used = self.in_use(resource);
        let liked: Ids = plan.rest.iter().flatten().filter(|id| preferred.contains(*id)).cloned().collect();
        let others = plan.rest.iter().flatten().cloned();
        for id in liked.into_iter().chain(others) {
            if ids.len() == plan.required {
                break;
            }
            if !used.contains(&id) {
                ids.insert(id);
            }
        }
        if ids.len() < plan.required {
            return Err(format!(
                "unexpectedly allocated less resources than required. Requested: {}, Got: {}",
                plan.required,
                ids.len()
            ));
        }
        self.chosen.entry(resource.to_owned()).or_default().extend(ids.clone());
        Ok(ids)
    }
}
