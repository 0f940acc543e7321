//! From what is in force to what was granted.

use std::collections::BTreeMap;

use base::ids::ContainerId;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{PodResources, Resource, Sizes, all};
use crate::cgroup::Limits;
use crate::observed::{self, ContainerState, Observed};

/// What has to be resized.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Due {
    /// Containers whose memory changes while they run; who gives back comes first.
    pub memory: Vec<Update>,
    pub cpu: Vec<Update>,
    /// A container starts with other resources than it had.
    pub restarts: bool,
    /// What is stated for all containers together has changed.
    pub whole: bool,
}

/// One container that runs on with other resources.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    pub container: String,
    pub id: ContainerId,
    pub current: Sizes,
    pub desired: Sizes,
}

/// One step. They are made in order, and the first that fails is the last.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// The Pod's cgroup gets its new limit.
    PodLimit(Resource),
    /// The Pod's cgroup gets its new shares of the CPU.
    PodShares,
    /// The runtime gives a container these, and the record says so.
    Container { id: ContainerId, name: String, sizes: Sizes },
    /// What is stated for all containers together is in force as far as this resource goes.
    Whole(Resource),
}

/// What has to be done for containers that run in the current sandbox, and for those that are about to start. `leaving`
/// are stopped anyway.
#[must_use]
pub fn due(
    pod: &Pod,
    observed: &Observed,
    actuated: &PodResources,
    leaving: impl Fn(&ContainerId) -> bool,
    starting: impl Fn(&str) -> bool,
) -> Option<Due> {
    let spec = pod.spec.as_ref()?;
    let mut due = Due { whole: is_whole_changed(spec, actuated), ..Due::default() };
    for c in all(spec) {
        let (current, desired) = (in_force(actuated, &c.name).unwrap_or_default(), wanted(spec, c));
        if current == desired {
            continue;
        }
        let running = running(observed, &c.name).filter(|i| !leaving(&i.id));
        match running {
            Some(i) => due.add(Update { container: c.name.clone(), id: i.id.clone(), current, desired }),
            None => due.restarts |= starting(&c.name),
        }
    }
    due.memory.sort_by_key(|u| grows(u, Resource::Memory));
    due.cpu.sort_by_key(|u| grows(u, Resource::Cpu));
    let is_any = !due.memory.is_empty() || !due.cpu.is_empty() || due.restarts || due.whole;
    is_any.then_some(due)
}

/// Whether this running container has to be started again to get what it was granted. One whose resources nobody wrote
/// down is not: it is told what it should have, and runs on.
#[must_use]
pub fn restarts(spec: &PodSpec, c: &Container, actuated: &PodResources) -> bool {
    let Some(current) = in_force(actuated, &c.name) else { return false };
    let desired = wanted(spec, c);
    [Resource::Memory, Resource::Cpu].into_iter().any(|resource| {
        let differs = current.limit(resource) != desired.limit(resource)
            || current.request(resource) != desired.request(resource);
        differs && policy(c, resource) == "RestartContainer"
    })
}

/// Whether something that was granted is not in force yet.
#[must_use]
pub fn is_in_progress(pod: &Pod, observed: &Observed, actuated: &PodResources) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let differs = |c: &Container| in_force(actuated, &c.name).unwrap_or_default() != wanted(spec, c);
    let of_containers = all(spec).any(|c| running(observed, &c.name).is_some() && differs(c));
    of_containers || (actuated.pod.is_some() && is_whole_changed(spec, actuated))
}

/// The steps from the Pod's limits as they are to those it should have, containers between them: a Pod grows before its
/// containers and shrinks after them, memory before CPU, and shares never exceed the limit.
#[must_use]
pub fn acts(due: &Due, now: &Limits, next: &Limits) -> Vec<Act> {
    let unlimited = i64::MAX;
    let memory = |l: &Limits| l.memory.unwrap_or(unlimited);
    let quota = |l: &Limits| l.cpu_quota.map(|(quota, _)| quota).filter(|q| *q >= 0).unwrap_or(unlimited);
    let shares = |l: &Limits| l.cpu_shares.unwrap_or(0);
    let touches_pod = due.restarts || due.whole;
    let mut acts = Vec::new();
    if touches_pod || !due.memory.is_empty() {
        // A limit that is not stated stays as it is.
        let target = next.memory.map_or(memory(now), |_| memory(next));
        let updates = due.memory.iter().map(|u| u.act(Resource::Memory));
        step(&mut acts, (memory(now), target), (0, 0), Resource::Memory, updates, due.whole);
    }
    if touches_pod || !due.cpu.is_empty() {
        let target = next.cpu_quota.map_or(quota(now), |_| quota(next));
        let updates = due.cpu.iter().map(|u| u.act(Resource::Cpu));
        let (old, new) = (shares(now), shares(next));
        step(&mut acts, (quota(now), target), (old, new), Resource::Cpu, updates, due.whole);
    }
    acts
}

/// What the record says of a container with these sizes. Amounts are spelled as the Pod spells them where they agree.
#[must_use]
pub fn recorded(spec: &PodSpec, c: &Container, sizes: Sizes) -> ResourceRequirements {
    let mut out = c.resources.clone().unwrap_or_default();
    let own = Sizes::of(c.resources.as_ref());
    let cpu = |milli: i64| format!("{milli}m");
    let set = |list: &mut Option<BTreeMap<String, Quantity>>, name: &str, own: i64, is: i64, text: String| {
        if is == 0 {
            list.as_mut().map(|l| l.remove(name));
        } else if own != is {
            list.get_or_insert_default().insert(name.to_owned(), Quantity(text));
        }
    };
    set(
        &mut out.requests,
        "memory",
        own.memory_request,
        sizes.memory_request,
        sizes.memory_request.to_string(),
    );
    set(&mut out.requests, "cpu", own.cpu_request, sizes.cpu_request, cpu(sizes.cpu_request));
    let whole = spec.resources.as_ref().and_then(|r| r.limits.as_ref());
    for (name, own, is, text) in [
        ("memory", own.memory_limit, sizes.memory_limit, sizes.memory_limit.to_string()),
        ("cpu", own.cpu_limit, sizes.cpu_limit, cpu(sizes.cpu_limit)),
    ] {
        let of_pod = Sizes::of(spec.resources.as_ref());
        let of_pod = if name == "cpu" { of_pod.cpu_limit } else { of_pod.memory_limit };
        let spelled = whole.and_then(|l| l.get(name)).filter(|_| of_pod == is).map(|q| q.0.clone());
        set(&mut out.limits, name, own, is, spelled.unwrap_or(text));
    }
    out.requests = out.requests.filter(|l| !l.is_empty());
    out.limits = out.limits.filter(|l| !l.is_empty());
    out
}

/// What the record says of a container that is about to start with what it was granted.
#[must_use]
pub fn recorded_at_start(spec: &PodSpec, c: &Container) -> ResourceRequirements {
    recorded(spec, c, wanted(spec, c))
}

/// What is stated for all containers together, once this resource is in force.
#[must_use]
pub fn recorded_whole(
    spec: &PodSpec,
    old: Option<&ResourceRequirements>,
    resource: Resource,
) -> Option<ResourceRequirements> {
    let stated = spec.resources.as_ref()?;
    let mut out = old.cloned().unwrap_or_default();
    let name = resource.name();
    for (to, from) in [(&mut out.requests, &stated.requests), (&mut out.limits, &stated.limits)] {
        match from.as_ref().and_then(|l| l.get(name)) {
            Some(amount) => _ = to.get_or_insert_default().insert(name.to_owned(), amount.clone()),
            None => _ = to.as_mut().map(|l| l.remove(name)),
        }
    }
    Some(out)
}

/// One resource: what grows is moved before the containers, what shrinks after them; of the Pod's own, the limit outside.
fn step(
    acts: &mut Vec<Act>,
    limit: (i64, i64),
    shares: (i64, i64),
    resource: Resource,
    updates: impl Iterator<Item = Act>,
    whole: bool,
) {
    if limit.1 > limit.0 {
        acts.push(Act::PodLimit(resource));
    }
    if shares.1 > shares.0 {
        acts.push(Act::PodShares);
    }
    acts.extend(updates);
    if shares.1 < shares.0 {
        acts.push(Act::PodShares);
    }
    if limit.1 < limit.0 {
        acts.push(Act::PodLimit(resource));
    }
    if whole {
        acts.push(Act::Whole(resource));
    }
}

fn is_whole_changed(spec: &PodSpec, actuated: &PodResources) -> bool {
    Sizes::of(spec.resources.as_ref()) != Sizes::of(actuated.pod.as_ref())
}

/// What the container was last told; none if nobody wrote it down.
fn in_force(actuated: &PodResources, name: &str) -> Option<Sizes> {
    let own = actuated.containers.get(name)?;
    Some(Sizes::of_container(actuated.pod.as_ref(), Some(own)))
}

fn wanted(spec: &PodSpec, c: &Container) -> Sizes {
    Sizes::of_container(spec.resources.as_ref(), c.resources.as_ref())
}

fn running<'a>(observed: &'a Observed, name: &str) -> Option<&'a observed::Container> {
    let sandbox = observed.sandboxes.first().filter(|s| s.ready)?;
    let newest = observed.newest(name)?;
    (newest.state == ContainerState::Running && newest.sandbox == sandbox.id).then_some(newest)
}

fn policy(c: &Container, resource: Resource) -> &str {
    let mut all = c.resize_policy.iter().flatten();
    all.find(|p| p.resource_name == resource.name()).map_or("NotRequired", |p| p.restart_policy.as_str())
}

fn grows(update: &Update, resource: Resource) -> bool {
    let (now, next) = (update.current, update.desired);
    match now.limit(resource) == next.limit(resource) {
        true => next.request(resource) > now.request(resource),
        false => next.limit(resource) > now.limit(resource),
    }
}

// === impl Due ===

impl Due {
    fn add(&mut self, update: Update) {
        let differs = |resource| {
            update.current.limit(resource) != update.desired.limit(resource)
                || update.current.request(resource) != update.desired.request(resource)
        };
        if differs(Resource::Memory) {
            self.memory.push(update.clone());
        }
        if differs(Resource::Cpu) {
            self.cpu.push(update);
        }
    }
}

// === impl Update ===

impl Update {
    /// Memory comes first: what is said of it with the CPU is what it has by then.
    fn act(&self, resource: Resource) -> Act {
        let sizes = match resource {
            Resource::Memory => self.current.with(Resource::Memory, self.desired),
            Resource::Cpu => self.desired,
        };
        Act::Container { id: self.id.clone(), name: self.container.clone(), sizes }
    }
}
