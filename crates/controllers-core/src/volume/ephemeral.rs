//! Claims for generic ephemeral volumes: made for a Pod, owned by it, gone with it.

use base::time::Now;
use serde_json::{Value, json};

use super::{claims_of, pod_with_claims};
use crate::cache::Change;
use crate::controller::{Controller, Key, Retry, Row, Wakes, Watch};
use crate::object::Object;
use crate::plan::{Act, Done, Event, Outcome, Plan, Step};
use crate::resource::{PERSISTENT_VOLUME_CLAIMS, PODS};
use crate::view::View;

pub(crate) const EPHEMERAL_VOLUME: Row = Row {
    name: "ephemeral-volume-controller",
    aliases: &["ephemeral-volume"],
    identity: "ephemeral-volume-controller",
    event_source: "ephemeral_volume",
    queue: "ephemeral_volume",
    workers: |tuning| tuning.syncs("ephemeralvolume", 5),
    retry: Retry::DEFAULT,
    is_on_by_default: true,
    watches: &[
        Watch { resource: PODS, keys: new_pods },
        Watch { resource: PERSISTENT_VOLUME_CLAIMS, keys: pods_of_lost_claim },
    ],
    reads: &[],
    is_single: false,
    make: |_| Box::new(Ephemeral),
};

#[derive(Debug)]
struct Ephemeral;

impl Controller for Ephemeral {
    fn reconcile(&mut self, view: &dyn View, key: &Key, _now: Now) -> Plan {
        let Some(pod) = view.get(PODS, &key.namespace, &key.name).filter(|pod| !pod.is_deleting()) else {
            return Plan::nothing();
        };
        let value = pod.value();
        let mut acts = Vec::new();
        for (volume, name, template) in templates(&value) {
            match view.get(PERSISTENT_VOLUME_CLAIMS, &key.namespace, &name) {
                Some(claim) if claim.is_controlled_by(&pod.meta.uid) => {}
                Some(_) => {
                    let Key { namespace, .. } = key;
                    let why =
                        format!("PVC {namespace}/{name} was not created for pod {key} (pod is not owner)");
                    return Plan {
                        failure: Some(failure(key, volume, &why)),
                        ..Plan::of(Step::in_turn(acts))
                    }
                    .event(event(&pod, volume, &why));
                }
                None => acts.push(Act::create(
                    PERSISTENT_VOLUME_CLAIMS,
                    &key.namespace,
                    claim(&pod, &name, template),
                )),
            }
        }
        Plan::nothing().then(Step::in_turn(acts))
    }

    fn settle(&mut self, view: &dyn View, key: &Key, _now: Now, done: &Done) -> Plan {
        let Some(pod) = view.get(PODS, &key.namespace, &key.name) else { return Plan::nothing() };
        let value = pod.value();
        let refused = done.last().iter().find_map(|(act, outcome)| match outcome {
            Outcome::Failed(refusal) => Some((act.body()["metadata"]["name"].as_str()?.to_owned(), refusal)),
            _ => None,
        });
        let Some((name, refusal)) = refused else { return Plan::nothing() };
        let volume =
            templates(&value).into_iter().find(|(_, claim, _)| *claim == name).map(|(volume, ..)| volume);
        let why = format!("create PVC {name}: {refusal}");
        Plan::nothing().event(event(&pod, volume.unwrap_or_default(), &why))
    }
}

/// Volumes of a Pod, the claims behind them, and what the claims are made of.
fn templates(pod: &Value) -> Vec<(&str, String, &Value)> {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let template = |volume: &'_ Value| volume["ephemeral"].is_object();
    volumes
        .filter(|volume| template(volume))
        .filter_map(|volume| {
            let own = volume["name"].as_str()?;
            Some((own, format!("{name}-{own}"), &volume["ephemeral"]["volumeClaimTemplate"]))
        })
        .collect()
}

fn claim(pod: &Object, name: &str, template: &Value) -> Value {
    let mut metadata = json!({"name": name, "ownerReferences": [pod.as_controller()]});
    for field in ["annotations", "labels"] {
        if template["metadata"][field].is_object() {
            metadata[field] = template["metadata"][field].clone();
        }
    }
    json!({"metadata": metadata, "spec": template["spec"]})
}

fn event(pod: &Object, volume: &str, why: &str) -> Event {
    Event::warning(pod, "FailedBinding", format!("ephemeral volume {volume}: {why}"))
}

fn failure(pod: &Key, volume: &str, why: &str) -> String {
    format!("pod {pod}, ephemeral volume {volume}: {why}")
}

fn has_own(pod: &Object) -> bool {
    let claims = pod_with_claims(pod).map(|pod| claims_of(&pod)).unwrap_or_default();
    !pod.is_deleting() && claims.iter().any(|(_, is_own)| *is_own)
}

/// The volumes of a Pod never change.
fn new_pods(change: &Change, _: &dyn View, wakes: &mut Wakes) {
    let new = change.new.as_ref().filter(|pod| change.old.is_none() && has_own(pod));
    wakes.extend(new.map(|pod| Key::of(pod)));
}

/// A claim that was deleted while its Pod lives is made again.
fn pods_of_lost_claim(change: &Change, view: &dyn View, wakes: &mut Wakes) {
    let Some(claim) = change.old.as_ref().filter(|_| change.is_deletion()) else { return };
    let pod = claim.meta.controller.as_ref().filter(|owner| owner.is_a(PODS));
    let pod = pod.and_then(|owner| view.get(PODS, &claim.meta.namespace, &owner.name));
    match pod.filter(|pod| has_own(pod)) {
        Some(pod) => wakes.add(Key::of(&pod)),
        // One that was in the way.
        None => {
            let pods = view.list(PODS, &claim.meta.namespace);
            let is_in_the_way = |pod: &Object| {
                let claims = pod_with_claims(pod).map(|pod| claims_of(&pod)).unwrap_or_default();
                claims.iter().any(|(name, is_own)| *is_own && **name == *claim.meta.name)
            };
            wakes
                .extend(pods.iter().filter(|pod| has_own(pod) && is_in_the_way(pod)).map(|pod| Key::of(pod)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Why;
    use crate::testing::{Draft, World, at, draft, pod, refused, said};

    fn user() -> Draft {
        let template = json!({
            "metadata": {"labels": {"app": "a"}, "annotations": {"x": "y"}},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        });
        let volumes = json!([
            {"name": "tmp", "emptyDir": {}},
            {"name": "own", "ephemeral": {"volumeClaimTemplate": template}},
        ]);
        pod("p").set("/spec/volumes", volumes)
    }

    fn plan(objects: Vec<Draft>) -> Plan {
        World::new(objects).reconcile(&mut Ephemeral, "p", at(1))
    }

    #[test]
    fn a_claim_is_made_from_the_template_and_belongs_to_the_pod() {
        let made = plan(vec![user()]).acts().next().map(Act::body).unwrap_or_default();
        assert_eq!(made["metadata"]["name"], "p-own");
        assert_eq!(made["metadata"]["labels"], json!({"app": "a"}));
        assert_eq!(made["metadata"]["annotations"], json!({"x": "y"}));
        assert_eq!(made["spec"]["accessModes"], json!(["ReadWriteOnce"]));
        let owner = &made["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["uid"], &owner["controller"]), (&json!("u-p"), &json!(true)));
        let own = || draft(PERSISTENT_VOLUME_CLAIMS, "p-own").owned_by(&user());
        assert!(said(&plan(vec![user(), own()])).is_empty());
        assert!(said(&plan(vec![user().deleting(true)])).is_empty());
    }

    #[test]
    fn a_claim_of_somebody_else_is_left_alone_and_told() {
        let foreign = plan(vec![user(), draft(PERSISTENT_VOLUME_CLAIMS, "p-own")]);
        let want = "Warning FailedBinding: ephemeral volume own: PVC ns/p-own was not created for pod ns/p (pod is not owner)";
        assert_eq!(said(&foreign), [want]);
        assert!(foreign.failure.is_some(), "it is tried again");
        let world = World::new([user()]);
        let plan = world.reconcile(&mut Ephemeral, "p", at(1));
        let told = world.settle(&mut Ephemeral, "p", at(1), &plan, &refused(Why::Forbidden, "quota"));
        assert_eq!(said(&told), ["Warning FailedBinding: ephemeral volume own: create PVC p-own: quota"]);
    }

    #[test]
    fn new_pods_and_lost_claims_wake_a_pod() {
        let world = World::new([user()]);
        let watches = EPHEMERAL_VOLUME.watches;
        assert_eq!(world.wakes(watches, None, Some(&user())), ["ns/p"]);
        assert_eq!(world.wakes(watches, Some(&user()), Some(&user().running())), [""; 0]);
        assert_eq!(world.wakes(watches, None, Some(&pod("q"))), [""; 0]);
        let own = draft(PERSISTENT_VOLUME_CLAIMS, "p-own");
        assert_eq!(world.wakes(watches, Some(&own), None), ["ns/p"], "it was in the way");
        assert_eq!(world.wakes(watches, Some(&own.owned_by(&user())), None), ["ns/p"]);
    }
}
