//! The claims of a set's Pods, and who owns them.

use serde_json::{Value, json};

use super::{Pods, StatefulSet};
use crate::object::{Object, member};
use crate::plan::{Act, Event, Plan, Step};
use crate::resource::PERSISTENT_VOLUME_CLAIMS;
use crate::view::View;

/// `persistentVolumeClaimRetentionPolicy`: what becomes of claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Retention {
    pub(super) deletes_with_set: bool,
    pub(super) deletes_when_scaled: bool,
}

// === impl Retention ===

impl Retention {
    pub(super) fn read(policy: &Value) -> Retention {
        Retention {
            deletes_with_set: policy["whenDeleted"] == "Delete",
            deletes_when_scaled: policy["whenScaled"] == "Delete",
        }
    }
}

// === impl StatefulSet ===

impl StatefulSet {
    /// Names of volumes and of the claims behind them.
    pub(super) fn claims(&self, ordinal: i32) -> Vec<(String, String)> {
        let templates = self.claim_templates.iter();
        let names = templates.filter_map(|template| template["metadata"]["name"].as_str());
        names.map(|name| (name.to_owned(), format!("{name}-{}", self.pod_name(ordinal)))).collect()
    }

    pub(super) fn pod_of_claim(&self, claim: &str) -> Option<String> {
        let mut names =
            self.claim_templates.iter().filter_map(|template| template["metadata"]["name"].as_str());
        let pod = |template: &str| claim.strip_prefix(template)?.strip_prefix('-').map(str::to_owned);
        names.find_map(|name| pod(name).filter(|pod| self.ordinal(pod).is_some()))
    }

    /// Claims of a Pod that are not there yet. An error names one that is on its way out: the Pod waits until it is gone.
    pub(super) fn missing_claims(&self, view: &dyn View, ordinal: i32) -> Result<Vec<Act>, String> {
        let namespace = &self.object.meta.namespace;
        let mut missing = Vec::new();
        for ((_, name), template) in self.claims(ordinal).iter().zip(&self.claim_templates) {
            match view.get(PERSISTENT_VOLUME_CLAIMS, namespace, name) {
                Some(claim) if claim.is_deleting() => return Err(format!("pvc {name} is being deleted")),
                Some(_) => {}
                None => {
                    let body = self.new_claim(template, name);
                    missing.push(Act::create(PERSISTENT_VOLUME_CLAIMS, namespace, body));
                }
            }
        }
        Ok(missing)
    }

    fn new_claim(&self, template: &Value, name: &str) -> Value {
        let mut claim = template.clone();
        if let Some(claim) = claim.as_object_mut() {
            claim.remove("status");
        }
        let metadata = member(&mut claim, "metadata");
        for (key, value) in self.match_labels.as_object().into_iter().flatten() {
            member(metadata, "labels")[key] = value.clone();
        }
        claim["metadata"]["name"] = json!(name);
        claim["metadata"]["namespace"] = json!(&*self.object.meta.namespace);
        claim
    }

    /// Whether a claim is still that of a former Pod of the name, and will go with it.
    pub(super) fn has_stale_claim(&self, view: &dyn View, ordinal: i32) -> bool {
        let namespace = &self.object.meta.namespace;
        let is_stale = |name: &str| {
            let claim = view.get(PERSISTENT_VOLUME_CLAIMS, namespace, name);
            claim.is_some_and(|claim| owners(&claim).iter().any(|one| is_pod(one, &self.pod_name(ordinal))))
        };
        self.retention.deletes_when_scaled && self.claims(ordinal).iter().any(|(_, name)| is_stale(name))
    }

    /// Sees to it that the claims of all Pods have the owner that the policy gives them.
    pub(super) fn keep_claims(&self, view: &dyn View, pods: &Pods) -> Result<(), Plan> {
        let (mut acts, mut events) = (Vec::new(), Vec::new());
        for pod in &pods.all {
            let claims = self.ordinal(&pod.meta.name).map(|ordinal| self.claims(ordinal));
            for (_, name) in claims.into_iter().flatten() {
                let claim = view.get(PERSISTENT_VOLUME_CLAIMS, &self.object.meta.namespace, &name);
                let Some(claim) = claim.filter(|claim| !claim.is_deleting()) else { continue };
                let Some((wanted, is_foreign)) = self.owners_of(&claim, pod) else { continue };
                acts.push(Act::update(&claim, |value| value["metadata"]["ownerReferences"] = json!(wanted)));
                if is_foreign {
                    // The word is upstream's.
                    let message = format!(
                        "PersistentVolumeClaim {name} has a conflicting OwnerReference that acts as a manging \
                         controller, the retention policy is ignored for this claim"
                    );
                    events.push(Event::warning(&self.object, "ConflictingController", message));
                }
            }
        }
        if acts.is_empty() {
            return Ok(());
        }
        Err(Plan { events, ..Plan::of(Step::at_once(acts)).again() })
    }

    /// The owners that a claim should have, and whether somebody else controls it. None: it has them, or is none of ours.
    fn owners_of(&self, claim: &Object, pod: &Object) -> Option<(Vec<Value>, bool)> {
        let set = &self.object;
        let owners = owners(claim);
        let is_set = |one: &Value| one["kind"] == "StatefulSet" && one["name"] == *set.meta.name;
        let is_pod = |one: &Value| is_pod(one, &pod.meta.name);
        let is_stale = |one: &Value| {
            (is_set(one) && one["uid"] != *set.meta.uid) || (is_pod(one) && one["uid"] != *pod.meta.uid)
        };
        if owners.iter().any(is_stale) {
            return None;
        }
        let Retention { deletes_with_set, deletes_when_scaled } = self.retention;
        let is_policy = deletes_with_set || deletes_when_scaled;
        let is_others = |one: &Value| one["controller"] == true && !is_set(one) && !is_pod(one);
        let is_foreign = is_policy && owners.iter().any(is_others);
        let ours = match (deletes_when_scaled && self.is_condemned(pod), deletes_with_set) {
            _ if is_foreign => None,
            (true, _) => Some(pod.as_controller()),
            (false, true) => Some(set.as_controller()),
            (false, false) => None,
        };
        let mut wanted: Vec<Value> =
            owners.iter().filter(|one| !is_set(one) && !is_pod(one)).cloned().collect();
        wanted.extend(ours);
        let short = |list: &[Value]| -> Vec<(Value, bool)> {
            list.iter().map(|one| (one["uid"].clone(), one["controller"] == true)).collect()
        };
        (short(&wanted) != short(&owners)).then_some((wanted, is_foreign))
    }
}

fn owners(claim: &Object) -> Vec<Value> {
    claim.value()["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default()
}

fn is_pod(owner: &Value, name: &str) -> bool {
    owner["kind"] == "Pod" && owner["name"] == name
}
