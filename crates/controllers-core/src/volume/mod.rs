//! Volumes: claims and what they are bound to.

mod protection;

pub(crate) use protection::{PV_PROTECTION, PVC_PROTECTION};

use serde_json::Value;

use crate::object::Object;

/// The claims that a Pod names, each with whether it was made for a generic ephemeral volume.
fn claims_of(pod: &Value) -> Vec<(String, bool)> {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    volumes
        .filter_map(|volume| match volume["persistentVolumeClaim"]["claimName"].as_str() {
            Some(claim) => Some((claim.to_owned(), false)),
            None if volume["ephemeral"].is_object() => {
                Some((format!("{name}-{}", volume["name"].as_str()?), true))
            }
            None => None,
        })
        .collect()
}

/// The Pod as JSON, if its text says anything of claims. Most Pods are not worth reading.
fn pod_with_claims(pod: &Object) -> Option<Value> {
    let text = std::str::from_utf8(pod.json()).ok()?;
    (text.contains("\"persistentVolumeClaim\"") || text.contains("\"ephemeral\"")).then(|| pod.value())
}

fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|all| all.iter().any(|one| one == finalizer))
}
