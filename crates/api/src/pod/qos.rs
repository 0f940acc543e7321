//! The quality-of-service class.

use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::Amount;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QosClass {
    BestEffort,
    Burstable,
    Guaranteed,
}

/// The class from the status if the API server set it there, else computed from the resources.
/// Pod-level resources, where present, decide alone.
#[must_use]
pub fn qos_class(pod: &Pod) -> QosClass {
    let stated = pod.status.as_ref().and_then(|s| s.qos_class.as_deref()).and_then(QosClass::parse);
    if let Some(class) = stated {
        return class;
    }
    let Some(spec) = &pod.spec else { return QosClass::BestEffort };
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    qos_class_of(spec.resources.as_ref(), containers.map(|c| c.resources.as_ref()))
}

/// The class of a Pod with these resources: its own, and those of its containers, init containers among them.
#[must_use]
pub fn qos_class_of<'r>(
    pod: Option<&ResourceRequirements>,
    containers: impl IntoIterator<Item = Option<&'r ResourceRequirements>>,
) -> QosClass {
    if let Some(resources) = pod.filter(|r| names_cpu_memory_or_hugepages(r)) {
        return of_requirements(resources);
    }
    let mut containers = containers.into_iter().map(|r| r.map_or(QosClass::BestEffort, of_requirements));
    let Some(first) = containers.next() else { return QosClass::BestEffort };
    if containers.all(|c| c == first) { first } else { QosClass::Burstable }
}

// === impl QosClass ===

impl QosClass {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            QosClass::BestEffort => "BestEffort",
            QosClass::Burstable => "Burstable",
            QosClass::Guaranteed => "Guaranteed",
        }
    }

    fn parse(text: &str) -> Option<QosClass> {
        [QosClass::BestEffort, QosClass::Burstable, QosClass::Guaranteed]
            .into_iter()
            .find(|c| c.as_str() == text)
    }
}

impl std::fmt::Display for QosClass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

fn names_cpu_memory_or_hugepages(r: &ResourceRequirements) -> bool {
    let counts = |name: &String| name == "cpu" || name == "memory" || name.starts_with("hugepages-");
    r.requests.iter().flatten().chain(r.limits.iter().flatten()).any(|(name, _)| counts(name))
}

fn of_requirements(r: &ResourceRequirements) -> QosClass {
    let (cpu, memory) = (of_resource(r, "cpu"), of_resource(r, "memory"));
    if cpu == memory { cpu } else { QosClass::Burstable }
}

fn of_resource(r: &ResourceRequirements, name: &str) -> QosClass {
    let amount = |list: &Option<std::collections::BTreeMap<String, Quantity>>| {
        let text = list.as_ref().and_then(|l| l.get(name));
        text.and_then(|q| Amount::parse(&q.0).ok()).unwrap_or_default()
    };
    let (request, limit) = (amount(&r.requests), amount(&r.limits));
    if request != limit {
        QosClass::Burstable
    } else if request.is_zero() {
        QosClass::BestEffort
    } else {
        QosClass::Guaranteed
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn class(spec: Value) -> QosClass {
        qos_class(&serde_json::from_value(json!({ "spec": spec })).unwrap())
    }

    #[test]
    fn classes() {
        let full = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1000m", "memory": "1024Mi"}});
        let some = json!({"requests": {"cpu": "1"}});
        let container = |r: &Value| json!({"name": "a", "resources": r});
        for (spec, want) in [
            (json!({"containers": [{"name": "a"}]}), QosClass::BestEffort),
            (json!({"containers": [container(&json!({"requests": {"cpu": "0"}}))]}), QosClass::BestEffort),
            (json!({"containers": [container(&json!({"limits": {"x.y/gpu": "1"}}))]}), QosClass::BestEffort),
            (json!({"containers": [container(&full)]}), QosClass::Guaranteed),
            (json!({"containers": [container(&full), {"name": "b"}]}), QosClass::Burstable),
            (
                json!({"containers": [container(&full)], "initContainers": [container(&some)]}),
                QosClass::Burstable,
            ),
            (json!({"containers": [container(&some)], "resources": full}), QosClass::Guaranteed),
            (json!({"containers": [container(&full)], "resources": some}), QosClass::Burstable),
            (json!({"containers": [container(&full)], "resources": {}}), QosClass::Guaranteed),
        ] {
            assert_eq!(class(spec.clone()), want, "{spec}");
        }
        let stated = json!({"status": {"qosClass": "Burstable"}, "spec": {"containers": []}});
        assert_eq!(qos_class(&serde_json::from_value(stated).unwrap()), QosClass::Burstable);
    }
}
