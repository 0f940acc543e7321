//! Finalizers that keep a claim while a Pod uses it, and a volume while it is bound.

use base::time::Now;
use serde_json::{Value, json};

use super::{claims_of, has_finalizer, pod_with_claims};
use crate::cache::Change;
use crate::controller::{Controller, Key, Retry, Row, Wakes, Watch};
use crate::object::Object;
use crate::plan::{Act, Done, Outcome, Plan, Step};
use crate::resource::{PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS};
use crate::view::View;

pub(crate) const PVC_PROTECTION: Row = Row {
    name: "persistentvolumeclaim-protection-controller",
    aliases: &["pvc-protection"],
    identity: "pvc-protection-controller",
    event_source: "persistentvolumeclaim-protection-controller",
    queue: "pvcprotection",
    workers: |_| 1,
    retry: Retry::DEFAULT,
    is_on_by_default: true,
    watches: &[Watch::itself(PERSISTENT_VOLUME_CLAIMS), Watch { resource: PODS, keys: freed }],
    reads: &[],
    is_single: false,
    make: |_| Box::new(Claims),
};

pub(crate) const PV_PROTECTION: Row = Row {
    name: "persistentvolume-protection-controller",
    aliases: &["pv-protection"],
    identity: "pv-protection-controller",
    event_source: "persistentvolume-protection-controller",
    queue: "pvprotection",
    watches: &[Watch::itself(PERSISTENT_VOLUMES)],
    make: |_| Box::new(Volumes),
    ..PVC_PROTECTION
};

const OF_CLAIM: &str = "kubernetes.io/pvc-protection";
const OF_VOLUME: &str = "kubernetes.io/pv-protection";

#[derive(Debug)]
struct Claims;

#[derive(Debug)]
struct Volumes;

// === impl Claims ===

impl Controller for Claims {
    fn reconcile(&mut self, view: &dyn View, key: &Key, _now: Now) -> Plan {
        let Some(claim) = view.get(PERSISTENT_VOLUME_CLAIMS, &key.namespace, &key.name) else {
            return Plan::nothing();
        };
        match (claim.is_deleting(), has_finalizer(&claim.value(), OF_CLAIM)) {
            (false, false) => Plan::of(Step::in_turn([put(&claim, OF_CLAIM)])),
            (true, true) => {
                let pods = view.list(PODS, &key.namespace);
                let mut pods = pods.iter().filter_map(|pod| pod_with_claims(pod));
                if pods.any(|pod| uses(&pod, &claim)) {
                    return Plan::nothing();
                }
                // A Pod that was bound a moment ago may not be here yet: only the API server knows that there is none.
                Plan::of(Step::in_turn([Act::Get { path: PODS.path(&key.namespace) }]))
            }
            _ => Plan::nothing(),
        }
    }

    fn settle(&mut self, view: &dyn View, key: &Key, _now: Now, done: &Done) -> Plan {
        let pods = match done.answer(&PODS.path(&key.namespace)) {
            Some(Outcome::Done(list)) if done.rounds == 1 => list,
            Some(Outcome::Failed(refusal)) => return Plan::failed(refusal.message.clone()),
            _ => return Plan::nothing(),
        };
        let Some(claim) = view.get(PERSISTENT_VOLUME_CLAIMS, &key.namespace, &key.name) else {
            return Plan::nothing();
        };
        let Ok(list) = serde_json::from_slice::<Value>(pods) else {
            return Plan::failed("the list of Pods cannot be read");
        };
        let mut pods = list["items"].as_array().into_iter().flatten();
        match pods.any(|pod| uses(pod, &claim)) {
            true => Plan::nothing(),
            false => Plan::of(Step::in_turn([take(&claim, OF_CLAIM)])),
        }
    }
}

// === impl Volumes ===

impl Controller for Volumes {
    fn reconcile(&mut self, view: &dyn View, key: &Key, _now: Now) -> Plan {
        let Some(volume) = view.get(PERSISTENT_VOLUMES, "", &key.name) else { return Plan::nothing() };
        let value = volume.value();
        match (volume.is_deleting(), has_finalizer(&value, OF_VOLUME)) {
            (false, false) => Plan::of(Step::in_turn([put(&volume, OF_VOLUME)])),
            (true, true) if value["status"]["phase"] != "Bound" => {
                Plan::of(Step::in_turn([take(&volume, OF_VOLUME)]))
            }
            _ => Plan::nothing(),
        }
    }
}

fn put(object: &Object, finalizer: &str) -> Act {
    Act::update(object, |value| match value["metadata"]["finalizers"].as_array_mut() {
        Some(all) => all.push(json!(finalizer)),
        None => value["metadata"]["finalizers"] = json!([finalizer]),
    })
}

fn take(object: &Object, finalizer: &str) -> Act {
    Act::update(object, |value| {
        if let Some(all) = value["metadata"]["finalizers"].as_array_mut() {
            all.retain(|one| one != finalizer);
        }
    })
}

/// A Pod with a Node uses its claims until it is gone: its volumes may be mounted whatever its phase. One that is shut down
/// needs no ephemeral one any more: its claim could never go otherwise.
fn uses(pod: &Value, claim: &Object) -> bool {
    let is_placed = pod["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty());
    let is_own = || pod["metadata"]["uid"].as_str().is_some_and(|uid| claim.is_controlled_by(uid));
    is_placed
        && claims_of(pod).iter().any(|(name, is_ephemeral)| {
            **name == *claim.meta.name && (!is_ephemeral || (is_own() && !is_shut_down(pod)))
        })
}

fn is_shut_down(pod: &Value) -> bool {
    !pod["metadata"]["deletionTimestamp"].is_null() && pod["metadata"]["deletionGracePeriodSeconds"] == 0
}

/// Claims that a Pod may not need any more.
fn freed(change: &Change, _: &dyn View, wakes: &mut Wakes) {
    let Some(pod) = change.object().filter(|pod| change.new.is_none() || pod.is_deleting()) else { return };
    let claims = pod_with_claims(pod).map(|pod| claims_of(&pod)).unwrap_or_default();
    wakes.extend(claims.iter().map(|(claim, _)| Key::new(&pod.meta.namespace, claim)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Draft, World, at, draft, pod, refused, said};

    fn claim(is_deleting: bool, finalizers: &[&str]) -> Draft {
        draft(PERSISTENT_VOLUME_CLAIMS, "c")
            .deleting(is_deleting)
            .set("/metadata/finalizers", json!(finalizers))
    }

    fn user(name: &str) -> Draft {
        pod(name).set("/spec/volumes", json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]))
    }

    #[test]
    fn a_claim_stays_while_a_pod_on_a_node_names_it() {
        let kept = || claim(true, &[OF_CLAIM, "other"]);
        for (objects, want) in [
            (vec![claim(false, &[])], "update persistentvolumeclaims ns/c"),
            (vec![claim(false, &[OF_CLAIM])], ""),
            (vec![claim(true, &[])], ""),
            (vec![kept()], "get /api/v1/namespaces/ns/pods"),
            (vec![kept(), user("p")], "get /api/v1/namespaces/ns/pods"),
            (vec![kept(), user("p").on("n").running()], ""),
            (vec![kept(), user("p").on("n").phase("Succeeded")], ""),
            (vec![kept(), user("p").on("n").deleting(true)], ""),
        ] {
            let plan = World::new(objects).reconcile(&mut Claims, "c", at(1));
            assert_eq!(said(&plan).join(" "), want);
        }
    }

    #[test]
    fn the_api_server_has_the_last_word_on_who_uses_a_claim() {
        let world = World::new([claim(true, &["other", OF_CLAIM])]);
        let plan = world.reconcile(&mut Claims, "c", at(1));
        let settled = |outcome: &Outcome| world.settle(&mut Claims, "c", at(1), &plan, outcome);
        let list = |pods: Vec<Value>| Outcome::Done(json!({ "items": pods }).to_string().into_bytes().into());
        assert!(!settled(&list(vec![user("p").on("n").value])).has_acts());
        let gone = settled(&list(vec![user("p").value]));
        let body = gone.acts().next().map(Act::body).unwrap_or_default();
        assert_eq!(body["metadata"]["finalizers"], json!(["other"]));
        let refusal = refused(crate::plan::Why::Other, "no");
        assert!(settled(&refusal).failure.is_some(), "nobody knows: it stays");
    }

    #[test]
    fn a_pod_that_is_shut_down_needs_no_ephemeral_volume() {
        let owner = pod("p").on("n").set("/spec/volumes", json!([{"name": "v", "ephemeral": {}}]));
        let claim = draft(PERSISTENT_VOLUME_CLAIMS, "p-v").owned_by(&owner).object();
        assert!(uses(&owner.value, &claim));
        let ending = owner.clone().deleting(true).set("/metadata/deletionGracePeriodSeconds", json!(30));
        assert!(uses(&ending.value, &claim));
        assert!(!uses(&ending.set("/metadata/deletionGracePeriodSeconds", json!(0)).value, &claim));
        assert!(!uses(&owner.uid("another").value, &claim), "a claim of its name that is not its own");
    }

    #[test]
    fn pods_that_go_wake_their_claims() {
        let world = World::new([]);
        let wakes = |old: Option<&Draft>, new: Option<&Draft>| world.wakes(PVC_PROTECTION.watches, old, new);
        assert_eq!(wakes(Some(&user("p")), None), ["ns/c"]);
        assert_eq!(wakes(None, Some(&user("p").deleting(true))), ["ns/c"]);
        assert_eq!(wakes(None, Some(&user("p"))), [""; 0]);
    }

    #[test]
    fn a_volume_stays_while_it_is_bound() {
        let volume = |is_deleting: bool, finalizers: Value, phase: &str| {
            draft(PERSISTENT_VOLUMES, "v")
                .deleting(is_deleting)
                .set("/metadata/finalizers", finalizers)
                .phase(phase)
        };
        for (draft, acts) in [
            (volume(false, Value::Null, "Available"), true),
            (volume(false, json!([OF_VOLUME]), "Bound"), false),
            (volume(true, json!([OF_VOLUME]), "Bound"), false),
            (volume(true, json!([OF_VOLUME]), "Released"), true),
            (volume(true, json!(["other"]), "Released"), false),
        ] {
            let world = World::new([draft.clone()]);
            let plan = Volumes.reconcile(&world.cache, &Key::new("", "v"), at(1));
            assert_eq!(plan.has_acts(), acts, "{:?}", draft.value);
        }
    }
}
