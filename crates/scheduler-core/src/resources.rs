//! What a Pod asks for and what a node has, in whole numbers.

use std::collections::BTreeMap;

use api::pod::Amount;
use api::pod::resources::{Amounts, ResourceList, is_pod_level};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};

use crate::Name;

/// What a container that says nothing is taken to need, where nodes are scored.
pub const DEFAULT_MILLI_CPU: i64 = 100;
pub const DEFAULT_MEMORY: i64 = 200 << 20;

/// More than any node has, and so little that a thousand of them still add up: what is added is taken away again to the byte.
const MOST: i64 = i64::MAX >> 10;

/// Amounts by resource. Processors are counted in thousandths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    pub milli_cpu: i64,
    pub memory: i64,
    pub ephemeral_storage: i64,
    /// Everything else that is counted, sorted by name.
    scalars: Vec<(Name, i64)>,
}

/// The resources the scores look at by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resource {
    Cpu,
    Memory,
    EphemeralStorage,
    Scalar(Name),
}

// === impl Resources ===

impl Resources {
    /// Reads a list such as a node's allocatable.
    #[must_use]
    pub fn read(list: Option<&ResourceList>) -> Resources {
        let mut amounts = Amounts::new();
        add(&mut amounts, list);
        Resources::from_amounts(&amounts)
    }

    fn from_amounts(amounts: &Amounts) -> Resources {
        let mut out = Resources::default();
        let bounded = |n: i64| n.clamp(-MOST, MOST);
        for (name, amount) in amounts {
            match name.as_str() {
                "cpu" => out.milli_cpu = bounded(amount.milli()),
                "memory" => out.memory = bounded(amount.value()),
                "ephemeral-storage" => out.ephemeral_storage = bounded(amount.value()),
                name if is_scalar(name) => out.scalars.push((name.into(), bounded(amount.value()))),
                _ => {}
            }
        }
        out
    }

    #[must_use]
    pub fn scalar(&self, name: &str) -> i64 {
        let at = self.scalars.binary_search_by(|(known, _)| known.as_ref().cmp(name));
        at.ok().and_then(|at| self.scalars.get(at)).map_or(0, |(_, amount)| *amount)
    }

    #[must_use]
    pub fn scalars(&self) -> &[(Name, i64)] {
        &self.scalars
    }

    #[must_use]
    pub fn of(&self, resource: &Resource) -> i64 {
        match resource {
            Resource::Cpu => self.milli_cpu,
            Resource::Memory => self.memory,
            Resource::EphemeralStorage => self.ephemeral_storage,
            Resource::Scalar(name) => self.scalar(name),
        }
    }

    /// Whether nothing at all is asked for.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.milli_cpu == 0 && self.memory == 0 && self.ephemeral_storage == 0 && self.scalars.is_empty()
    }

    pub fn add(&mut self, other: &Resources) {
        self.change(other, 1);
    }

    pub fn subtract(&mut self, other: &Resources) {
        self.change(other, -1);
    }

    fn change(&mut self, other: &Resources, by: i64) {
        let moved = |own: i64, amount: i64| own.saturating_add(amount.saturating_mul(by));
        self.milli_cpu = moved(self.milli_cpu, other.milli_cpu);
        self.memory = moved(self.memory, other.memory);
        self.ephemeral_storage = moved(self.ephemeral_storage, other.ephemeral_storage);
        for (name, amount) in &other.scalars {
            match self.scalars.binary_search_by(|(known, _)| known.cmp(name)) {
                Ok(at) => self.scalars[at].1 = moved(self.scalars[at].1, *amount),
                Err(at) => self.scalars.insert(at, (name.clone(), moved(0, *amount))),
            }
        }
    }
}

// === impl Resource ===

impl Resource {
    #[must_use]
    pub fn named(name: &str) -> Resource {
        match name {
            "cpu" => Resource::Cpu,
            "memory" => Resource::Memory,
            "ephemeral-storage" => Resource::EphemeralStorage,
            other => Resource::Scalar(other.into()),
        }
    }
}

/// What is counted beside processors, memory and local storage.
#[must_use]
pub fn is_scalar(name: &str) -> bool {
    is_extended(name)
        || name.contains("kubernetes.io/")
        || name.starts_with("hugepages-")
        || name.starts_with("attachable-volumes-")
}

/// A vendor's resource.
#[must_use]
pub fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}

/// What a Pod asks for, and the same for the scores: processors and memory of which nothing is said count a little.
#[must_use]
pub fn requests(pod: &Pod) -> (Resources, Resources) {
    let real = Resources::from_amounts(&pod_requests(pod, false));
    let assumed = Resources::from_amounts(&pod_requests(pod, true));
    (real, assumed)
}

fn pod_requests(pod: &Pod, fills_gaps: bool) -> Amounts {
    let Some(spec) = &pod.spec else { return Amounts::new() };
    let of = |container: &Container, statuses: Option<&Vec<ContainerStatus>>| {
        let mut own = container_requests(pod, container, statuses);
        if fills_gaps {
            own.entry("cpu".to_owned()).or_insert_with(|| amount("100m"));
            own.entry("memory".to_owned()).or_insert_with(|| amount("200Mi"));
        }
        own
    };
    let status = pod.status.as_ref();
    let mut total = Amounts::new();
    for container in &spec.containers {
        sum(&mut total, &of(container, status.and_then(|s| s.container_statuses.as_ref())));
    }
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for container in spec.init_containers.iter().flatten() {
        let is_sidecar = container.restart_policy.as_deref() == Some("Always");
        let statuses = status.and_then(|s| s.init_container_statuses.as_ref()).filter(|_| is_sidecar);
        let own = of(container, statuses);
        let mut now = sidecars.clone();
        sum(&mut now, &own);
        if is_sidecar {
            sum(&mut total, &own);
            sidecars.clone_from(&now);
        }
        raise(&mut peak, &now);
    }
    raise(&mut total, &peak);
    let pod_level = spec.resources.as_ref().and_then(|r| r.requests.as_ref());
    for (name, quantity) in pod_level.into_iter().flatten().filter(|(name, _)| is_pod_level(name)) {
        total.insert(name.clone(), amount(&quantity.0));
    }
    add(&mut total, spec.overhead.as_ref());
    total
}

/// What is asked for, what was granted and what is in use: of each resource the most. An increase that the node refused for
/// good does not count.
fn container_requests(pod: &Pod, container: &Container, statuses: Option<&Vec<ContainerStatus>>) -> Amounts {
    let mut asked = Amounts::new();
    add(&mut asked, container.resources.as_ref().and_then(|r| r.requests.as_ref()));
    let Some(status) = statuses.into_iter().flatten().find(|s| s.name == container.name) else {
        return asked;
    };
    let used = status.resources.as_ref().and_then(|r| r.requests.as_ref());
    if used.is_none() && status.allocated_resources.is_none() {
        return asked;
    }
    let mut known = if is_resize_infeasible(pod) { Amounts::new() } else { asked };
    for list in [used, status.allocated_resources.as_ref()] {
        let mut other = Amounts::new();
        add(&mut other, list);
        raise(&mut known, &other);
    }
    known
}

fn is_resize_infeasible(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|c| c.type_ == "PodResizePending" && c.reason.as_deref() == Some("Infeasible"))
}

fn amount(text: &str) -> Amount {
    Amount::parse(text).unwrap_or_default()
}

fn add(to: &mut Amounts, list: Option<&ResourceList>) {
    for (name, quantity) in list.into_iter().flatten() {
        let slot = to.entry(name.clone()).or_default();
        *slot = *slot + amount(&quantity.0);
    }
}

fn sum(to: &mut Amounts, other: &BTreeMap<String, Amount>) {
    for (name, amount) in other {
        let slot = to.entry(name.clone()).or_default();
        *slot = *slot + *amount;
    }
}

fn raise(to: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let slot = to.entry(name.clone()).or_default();
        *slot = (*slot).max(*amount);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(spec: Value, status: Value) -> (Resources, Resources) {
        requests(&serde_json::from_value(json!({"metadata": {}, "spec": spec, "status": status})).unwrap())
    }

    fn container(name: &str, cpu: &str, policy: Option<&str>) -> Value {
        json!({"name": name, "restartPolicy": policy, "resources": {"requests": {"cpu": cpu}}})
    }

    #[test]
    fn sidecars_add_and_init_containers_count_at_their_peak() {
        let cpu = |init: Value| {
            let spec = json!({"containers": [container("a", "1", None)], "initContainers": init});
            of(spec, json!({})).0.milli_cpu
        };
        assert_eq!(cpu(json!([])), 1000);
        assert_eq!(cpu(json!([container("i", "3", None)])), 3000);
        assert_eq!(cpu(json!([container("s", "1", Some("Always")), container("i", "1500m", None)])), 2500);
        assert_eq!(cpu(json!([container("i", "1500m", None), container("s", "1", Some("Always"))])), 2000);
    }

    #[test]
    fn overhead_pod_level_and_vendors_resources_count() {
        let spec = json!({
            "containers": [
                {"name": "a", "resources": {"requests": {"cpu": "1", "memory": "1Gi", "example.com/foo": "2", "storage": "9"}}},
                {"name": "b", "resources": {"requests": {"ephemeral-storage": "1Ki", "hugepages-2Mi": "4Mi"}}},
            ],
            "overhead": {"cpu": "250m"},
            "resources": {"requests": {"cpu": "4"}},
        });
        let (real, assumed) = of(spec, json!({}));
        assert_eq!((real.milli_cpu, real.memory, real.ephemeral_storage), (4250, 1 << 30, 1024));
        assert_eq!((real.scalar("example.com/foo"), real.scalar("hugepages-2Mi")), (2, 4 << 20));
        assert_eq!(real.scalars().len(), 2);
        assert_eq!((assumed.milli_cpu, assumed.memory), (4250, (1 << 30) + DEFAULT_MEMORY));
    }

    #[test]
    fn a_container_that_asks_for_nothing_counts_a_little_where_nodes_are_scored() {
        let (real, assumed) = of(json!({"containers": [{"name": "a"}, {"name": "b"}]}), json!({}));
        assert!(real.is_zero());
        assert_eq!((assumed.milli_cpu, assumed.memory), (2 * DEFAULT_MILLI_CPU, 2 * DEFAULT_MEMORY));
    }

    #[test]
    fn a_resize_counts_its_larger_side_until_it_is_refused_for_good() {
        let spec = json!({"containers": [container("a", "2", None)]});
        let mut status = json!({"containerStatuses": [{"name": "a", "ready": true, "restartCount": 0, "image": "", "imageID": "",
            "allocatedResources": {"cpu": "1"}, "resources": {"requests": {"cpu": "500m"}}}]});
        assert_eq!(of(spec.clone(), status.clone()).0.milli_cpu, 2000);
        status["conditions"] =
            json!([{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]);
        assert_eq!(of(spec, status).0.milli_cpu, 1000);
    }

    #[test]
    fn what_is_added_and_taken_away_again_leaves_nothing() {
        let (one, _) = of(
            json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "1", "a.b/c": "3"}}}]}),
            json!({}),
        );
        let mut total = Resources::default();
        total.add(&one);
        total.add(&one);
        assert_eq!(total.scalar("a.b/c"), 6);
        total.subtract(&one);
        total.subtract(&one);
        assert_eq!((total.milli_cpu, total.scalar("a.b/c")), (0, 0));
    }
}
