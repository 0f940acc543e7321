//! The Pods that name a claim.

use crate::object::Object;
use crate::resource::PODS;
use crate::view::View;
use crate::volume::{claims_of, pod_with_claims};

/// Names of the Pods that have not ended and have no Node yet.
pub(super) fn waiting(view: &dyn View, claim: &Object) -> Vec<String> {
    let meta = &claim.meta;
    let pods = of(view, &meta.namespace, &meta.name);
    pods.iter().filter(|pod| pod.meta.node.is_empty()).map(|pod| pod.meta.name.to_string()).collect()
}

/// `namespace/name` of the Pods that have not ended.
pub(super) fn all(view: &dyn View, namespace: &str, claim: &str) -> Vec<String> {
    of(view, namespace, claim).iter().map(|pod| format!("{namespace}/{}", pod.meta.name)).collect()
}

fn of(view: &dyn View, namespace: &str, claim: &str) -> Vec<std::sync::Arc<Object>> {
    let mut pods = view.list(PODS, namespace);
    pods.retain(|pod| {
        pod_with_claims(pod).is_some_and(|value| claims_of(&value).iter().any(|(name, _)| name == claim))
            && !super::super::is_over(pod)
    });
    pods
}
