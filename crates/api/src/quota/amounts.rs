//! What a Pod asks for, in numbers.

use std::collections::BTreeMap;

use base::quantity::Quantity;
use serde_json::Value;

use super::list;

pub type Amounts = BTreeMap<String, Quantity>;

/// A resource list; what is no quantity is no resource.
pub fn amounts(entries: &Value) -> Amounts {
    let entries = entries.as_object().into_iter().flatten();
    entries.filter_map(|(name, value)| Some((name.clone(), quantity(value)?))).collect()
}

pub fn quantity(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.to_string().parse().ok(),
        _ => None,
    }
}

/// The requests of the whole Pod at the moment it needs most; what the Pod says of itself comes first.
pub fn requests(pod: &Value) -> Amounts {
    whole(pod, "requests")
}

/// The same for limits.
pub fn limits(pod: &Value) -> Amounts {
    whole(pod, "limits")
}

fn whole(pod: &Value, field: &str) -> Amounts {
    let of = |container: &Value| amounts(&container["resources"][field]);
    let mut total = Amounts::new();
    list(pod, "spec.containers").iter().for_each(|c| add(&mut total, &of(c)));
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for init in list(pod, "spec.initContainers") {
        let mut now = sidecars.clone();
        add(&mut now, &of(init));
        if init["restartPolicy"] == "Always" {
            add(&mut total, &of(init));
            sidecars.clone_from(&now);
        }
        raise(&mut peak, now);
    }
    raise(&mut total, peak);
    for (name, amount) in amounts(&pod["spec"]["resources"][field]) {
        if matches!(name.as_str(), "cpu" | "memory") {
            total.insert(name, amount);
        }
    }
    total
}

pub fn add(to: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let slot = to.entry(name.clone()).or_insert(Quantity::ZERO);
        *slot = slot.plus(*amount);
    }
}

fn raise(to: &mut Amounts, other: Amounts) {
    for (name, amount) in other {
        let slot = to.entry(name).or_insert(amount);
        *slot = (*slot).max(amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_asks_for_its_peak() {
        let c = |cpu: &str, policy: &str| json!({"restartPolicy": policy, "resources": {"requests": {"cpu": cpu}}});
        let cpu = |spec: Value| requests(&json!({"spec": spec})).get("cpu").map(ToString::to_string);
        assert_eq!(cpu(json!({"containers": [c("1", ""), c("500m", "")]})).as_deref(), Some("1500m"));
        assert_eq!(
            cpu(json!({"containers": [c("1", "")], "initContainers": [c("1", "Always"), c("2", "")]}))
                .as_deref(),
            Some("3")
        );
        assert_eq!(
            cpu(json!({"containers": [c("1", "")], "resources": {"requests": {"cpu": "4"}}})).as_deref(),
            Some("4")
        );
    }
}
