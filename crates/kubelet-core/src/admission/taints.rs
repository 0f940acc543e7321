//! Taints that keep Pods away from this node.

use api::pod::static_pod::SOURCE_ANNOTATION;
use k8s_openapi::api::core::v1::{Pod, Taint, Toleration};

/// Whether the Pod stands every taint that would drive it out again. A static Pod has nowhere else to go.
pub(super) fn are_tolerated(pod: &Pod, taints: &[Taint]) -> bool {
    let source = pod.metadata.annotations.as_ref().and_then(|a| a.get(SOURCE_ANNOTATION));
    if source.is_some_and(|s| s != "api") {
        return true;
    }
    let tolerations = pod.spec.as_ref().and_then(|s| s.tolerations.as_deref()).unwrap_or_default();
    let mut expelling = taints.iter().filter(|t| t.effect == "NoExecute");
    expelling.all(|taint| tolerations.iter().any(|t| tolerates(t, taint)))
}

pub(super) fn is_tolerated(pod: &Pod, taint: &Taint) -> bool {
    let tolerations = pod.spec.as_ref().and_then(|s| s.tolerations.as_deref()).unwrap_or_default();
    tolerations.iter().any(|t| tolerates(t, taint))
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    let (effect, key, value) = (text(&toleration.effect), text(&toleration.key), text(&toleration.value));
    let taint_value = taint.value.as_deref().unwrap_or_default();
    let numbers = || Some((taint_value.parse::<i64>().ok()?, value.parse::<i64>().ok()?));
    (effect.is_empty() || effect == taint.effect)
        && (key.is_empty() || key == taint.key)
        && match text(&toleration.operator).as_str() {
            "Exists" => true,
            "" | "Equal" => value == taint_value,
            "Lt" => numbers().is_some_and(|(taint, limit)| taint < limit),
            "Gt" => numbers().is_some_and(|(taint, limit)| taint > limit),
            _ => false,
        }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::cri_config::testing::pod;

    #[test]
    fn only_what_expels_matters() {
        let taint = |json| serde_json::from_value::<Taint>(json).unwrap();
        let expels = taint(serde_json::json!({"key": "k", "value": "v", "effect": "NoExecute"}));
        let repels = taint(serde_json::json!({"key": "k", "value": "v", "effect": "NoSchedule"}));
        for (tolerations, want) in [
            ("[]", false),
            ("[{operator: Exists}]", true),
            ("[{key: k, operator: Exists, effect: NoExecute}]", true),
            ("[{key: k, operator: Exists, effect: NoSchedule}]", false),
            ("[{key: k, value: v}]", true),
            ("[{key: k, value: w}]", false),
            ("[{key: other, operator: Exists}]", false),
        ] {
            let mut p = pod(&format!("{{containers: [], tolerations: {tolerations}}}"));
            assert_eq!(are_tolerated(&p, std::slice::from_ref(&expels)), want, "{tolerations}");
            assert!(are_tolerated(&p, std::slice::from_ref(&repels)));
            let annotations = p.metadata.annotations.get_or_insert_default();
            annotations.insert(SOURCE_ANNOTATION.into(), "file".into());
            assert!(are_tolerated(&p, std::slice::from_ref(&expels)));
        }
    }
}
