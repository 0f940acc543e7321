//! Volumes: claims and what they are bound to.

mod attach;
mod binder;
mod ephemeral;
mod expand;
mod protection;

pub(crate) use attach::ATTACH_DETACH;
pub(crate) use binder::{BINDER_OF_CLAIMS, BINDER_OF_VOLUMES};
pub(crate) use ephemeral::EPHEMERAL_VOLUME;
pub(crate) use expand::EXPAND;
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

/// A Pod that uses no volume any more: it has ended, or it is being deleted and none of its containers runs.
fn is_over(pod: &Object) -> bool {
    let Some(terms) = pod.pod() else { return false };
    if terms.is_terminal() {
        return true;
    }
    let runs =
        |status: &Value| status["state"]["terminated"].is_null() && status["state"]["waiting"].is_null();
    let is_quiet = || {
        let value = pod.value();
        let lists = ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];
        let statuses = lists.iter().filter_map(|list| value["status"][*list].as_array());
        !statuses.flatten().any(runs)
    };
    terms.is_deleting && is_quiet()
}

/// Writes a field. What stands in its way, written by somebody's hand, gives way to objects.
fn set(value: &mut Value, path: &[&str], to: Value) {
    let mut place = value;
    for key in path {
        if !place.is_object() {
            *place = Value::Object(serde_json::Map::new());
        }
        place = &mut place[*key];
    }
    *place = to;
}

fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|all| all.iter().any(|one| one == finalizer))
}
