//! What a Pod wants of the machine for itself alone, cut out of its spec.

use std::collections::BTreeMap;

use api::pod::resources::is_huge_pages;
use api::pod::{Amount, QosClass, qos_class};
use k8s_openapi::api::core::v1::{Container, Pod};

use crate::pod_resources::is_pod_level;

/// A Pod, as far as placing goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodWant {
    pub uid: String,
    /// Init containers first, in the order of the spec.
    pub containers: Vec<ContainerWant>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lasting {
    /// Ends before the next one starts; what it held is used again.
    Init,
    /// Started as an init container and runs on.
    Sidecar,
    #[default]
    Regular,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerWant {
    pub name: String,
    pub lasting: Lasting,
    /// CPUs of its own; none for whoever shares.
    pub cpus: usize,
    /// Bytes by kind of memory. None where the Pod is not Guaranteed.
    pub memory: Option<Memory>,
    /// Whole units of resources beyond the machine's own.
    pub devices: BTreeMap<String, u64>,
}

/// Bytes by resource name: `memory`, `hugepages-2Mi`.
pub type Memory = BTreeMap<String, u64>;

// === impl PodWant ===

impl PodWant {
    #[must_use]
    pub fn new(pod: &Pod) -> Self {
        // What a Pod states for all its containers together is not divided among them: upstream's
        // PodLevelResourceManagers, which would, is off unless asked for.
        let exclusive = qos_class(pod) == QosClass::Guaranteed && !is_pod_level(pod);
        let spec = pod.spec.as_ref();
        let inits = spec.iter().flat_map(|s| s.init_containers.iter().flatten());
        let inits = inits.map(|c| match c.restart_policy.as_deref() {
            Some("Always") => (c, Lasting::Sidecar),
            _ => (c, Lasting::Init),
        });
        let regular = spec.iter().flat_map(|s| &s.containers).map(|c| (c, Lasting::Regular));
        let want = |(c, lasting)| ContainerWant::new(c, lasting, exclusive);
        Self {
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            containers: inits.chain(regular).map(want).collect(),
        }
    }

    #[must_use]
    pub fn container(&self, name: &str) -> Option<&ContainerWant> {
        self.containers.iter().find(|c| c.name == name)
    }

    /// CPUs the Pod has at its peak.
    #[must_use]
    pub fn cpus(&self) -> usize {
        let one = |c: &ContainerWant| Memory::from([(String::new(), c.cpus as u64)]);
        let peak = self.peak(one).remove("").unwrap_or(0);
        usize::try_from(peak).unwrap_or(usize::MAX)
    }

    /// Bytes of each kind the Pod has at its peak, of the kinds its regular containers name; none if it has none of its own.
    #[must_use]
    pub fn memory(&self) -> Option<Memory> {
        self.containers.iter().any(|c| c.memory.is_some()).then(|| {
            let mut peak = self.peak(|c| c.memory.clone().unwrap_or_default());
            let regular = |kind: &String| {
                let of = self.containers.iter().filter(|c| c.lasting == Lasting::Regular);
                of.filter_map(|c| c.memory.as_ref()).any(|m| m.contains_key(kind))
            };
            peak.retain(|kind, _| regular(kind));
            peak
        })
    }

    /// Regular containers and sidecars together, or an init container beside the sidecars before it.
    pub(crate) fn peak(&self, of: impl Fn(&ContainerWant) -> Memory) -> Memory {
        let (mut lasting, mut init) = (Memory::new(), Memory::new());
        let mut sidecars = Memory::new();
        for container in &self.containers {
            for (kind, amount) in of(container) {
                let beside = sidecars.get(&kind).copied().unwrap_or(0);
                match container.lasting {
                    Lasting::Init => {
                        let most = init.entry(kind).or_default();
                        *most = (*most).max(beside + amount);
                    }
                    Lasting::Sidecar => {
                        *sidecars.entry(kind.clone()).or_default() += amount;
                        *lasting.entry(kind).or_default() += amount;
                    }
                    Lasting::Regular => *lasting.entry(kind).or_default() += amount,
                }
            }
        }
        for (kind, amount) in init {
            let most = lasting.entry(kind).or_default();
            *most = (*most).max(amount);
        }
        lasting
    }
}

// === impl ContainerWant ===

impl ContainerWant {
    fn new(container: &Container, lasting: Lasting, exclusive: bool) -> Self {
        let resources = container.resources.as_ref();
        let requests = resources.and_then(|r| r.requests.as_ref());
        let amount = |name: &str| Amount::parse(&requests?.get(name)?.0).ok();
        let cpus = amount("cpu").filter(|a| exclusive && a.is_whole()).map_or(0, Amount::value);
        let bytes = |(name, q): (&String, &k8s_openapi::apimachinery::pkg::api::resource::Quantity)| {
            let bytes = Amount::parse(&q.0).ok()?.value();
            Some((name.clone(), u64::try_from(bytes).ok()?))
        };
        let memory = requests.into_iter().flatten();
        let memory = memory.filter(|(name, _)| *name == "memory" || is_huge_pages(name)).filter_map(bytes);
        let limits = resources.and_then(|r| r.limits.as_ref()).into_iter().flatten();
        let devices = limits.filter(|(name, _)| name.contains('/')).filter_map(bytes);
        Self {
            name: container.name.clone(),
            lasting,
            cpus: usize::try_from(cpus).unwrap_or(0),
            memory: exclusive.then(|| memory.collect()),
            devices: devices.filter(|(_, n)| *n > 0).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri_config::testing::pod;

    fn container(name: &str, cpu: &str, more: &str) -> String {
        format!(
            "{{name: {name}, {more} resources: {{requests: {{cpu: {cpu}, memory: 1Mi}}, limits: {{cpu: {cpu}, memory: 1Mi}}}}}}"
        )
    }

    #[test]
    fn only_whole_cpus_of_guaranteed_pods_are_exclusive() {
        let c = |cpu| container("a", cpu, "");
        let cpus = |spec: &str| PodWant::new(&pod(spec)).cpus();
        assert_eq!(cpus(&format!("containers: [{}]", c("2"))), 2);
        assert_eq!(cpus(&format!("containers: [{}]", c("1500m"))), 0);
        assert_eq!(cpus(&format!("containers: [{}, {{name: b}}]", c("2"))), 0, "Burstable");
        let pod_level = "resources: {requests: {cpu: 2, memory: 1Gi}, limits: {cpu: 2, memory: 1Gi}}";
        assert_eq!(cpus(&format!("{{{pod_level}, containers: [{}]}}", c("2"))), 0);
    }

    #[test]
    fn a_pod_wants_its_peak() {
        let side = "restartPolicy: Always,";
        for (init, regular, want) in [
            (vec![], vec![container("a", "1", ""), container("b", "2", "")], 3),
            (vec![container("i", "4", "")], vec![container("a", "1", "")], 4),
            (vec![container("s", "1", side), container("i", "4", "")], vec![container("a", "1", "")], 5),
            (vec![container("i", "2", ""), container("s", "2", side)], vec![container("a", "1", "")], 3),
        ] {
            let spec =
                format!("{{initContainers: [{}], containers: [{}]}}", init.join(","), regular.join(","));
            let wanted = PodWant::new(&pod(&spec));
            assert_eq!(wanted.cpus(), want, "{spec}");
            assert!(wanted.memory().is_some_and(|m| m["memory"] >= 1 << 20));
        }
    }
}
