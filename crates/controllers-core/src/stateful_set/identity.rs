//! Who a Pod is: its name, labels, host name and volumes; and what is told of it.

use serde_json::{Value, json};

use super::history::Revisions;
use super::{REVISION, StatefulSet, Update};
use crate::object::Object;
use crate::plan::{Act, Event, Outcome, Why};
use crate::resource::{PERSISTENT_VOLUME_CLAIMS, PODS};
use crate::template;

const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

impl StatefulSet {
    pub(super) fn pod_name(&self, ordinal: i32) -> String {
        format!("{}-{ordinal}", self.object.meta.name)
    }

    /// A Pod to be made: of the old template below the partition. None: a template without labels makes no Pods.
    pub(super) fn pod(&self, ordinal: i32, revisions: &Revisions) -> Option<Value> {
        let is_old = match self.update {
            Update::Rolling { partition: Some(partition), .. } => {
                ordinal < self.start.saturating_add(partition)
            }
            Update::Rolling { partition: None, .. } => {
                let current = self.status["currentReplicas"].as_i64().unwrap_or(0);
                i64::from(ordinal) < i64::from(self.start) + current
            }
            Update::OnDelete => false,
        };
        let revision = if is_old { &revisions.current } else { &revisions.update };
        let mut pod = template::pod(&self.object, &revision.template)?;
        pod["metadata"]["labels"][REVISION] = json!(revision.name());
        self.identify(&mut pod, ordinal);
        pod["spec"]["hostname"] = json!(self.pod_name(ordinal));
        if !self.service_name.is_empty() {
            pod["spec"]["subdomain"] = json!(self.service_name);
        }
        self.mount(&mut pod, ordinal);
        Some(pod)
    }

    fn identify(&self, pod: &mut Value, ordinal: i32) {
        let name = self.pod_name(ordinal);
        pod["metadata"]["name"] = json!(name);
        pod["metadata"]["labels"][POD_NAME] = json!(name);
        pod["metadata"]["labels"][POD_INDEX] = json!(ordinal.to_string());
    }

    /// A volume that is named like a claim's template is the claim.
    fn mount(&self, pod: &mut Value, ordinal: i32) {
        if self.claim_templates.is_empty() {
            return;
        }
        let claims = self.claims(ordinal);
        let mut volumes: Vec<Value> = claims
            .iter()
            .map(|(volume, claim)| json!({"name": volume, "persistentVolumeClaim": {"claimName": claim}}))
            .collect();
        let others = pod["spec"]["volumes"].as_array().into_iter().flatten();
        volumes.extend(others.filter(|v| !claims.iter().any(|(name, _)| v["name"] == **name)).cloned());
        pod["spec"]["volumes"] = Value::Array(volumes);
    }

    /// Puts right who a Pod is. None: it is.
    pub(super) fn identified(&self, pod: &Object, ordinal: i32) -> Option<Act> {
        let value = pod.value();
        let volumes = value["spec"]["volumes"].as_array();
        let has = |(name, claim): &(String, String)| {
            let mut volumes = volumes.into_iter().flatten();
            volumes.any(|v| v["name"] == **name && v["persistentVolumeClaim"]["claimName"] == **claim)
        };
        let is_mounted = self.claims(ordinal).iter().all(has);
        if is_mounted && pod.label(POD_NAME) == Some(&pod.meta.name) {
            return None;
        }
        Some(Act::update(pod, |value| {
            self.identify(value, ordinal);
            if !is_mounted {
                self.mount(value, ordinal);
            }
        }))
    }

    /// What is told of an act.
    pub(super) fn event(&self, act: &Act, outcome: &Outcome) -> Option<Event> {
        let made = act.body();
        let name = made["metadata"]["name"].as_str().unwrap_or_default();
        let (verb, what) = match act {
            Act::Create { resource, .. } if *resource == PODS => ("Create", format!("Pod {name}")),
            Act::Create { resource, .. } if *resource == PERSISTENT_VOLUME_CLAIMS => {
                let pod = self.pod_of_claim(name).unwrap_or_default();
                let on = if outcome.is_done() { "" } else { "for " };
                ("Create", format!("Claim {name} {on}Pod {pod}"))
            }
            Act::Update { target, .. } if target.resource == PODS => {
                ("Update", format!("Pod {}", target.name))
            }
            Act::Delete { target, .. } if target.resource == PODS => {
                ("Delete", format!("Pod {}", target.name))
            }
            _ => return None,
        };
        let told = format!("{} {what} in StatefulSet {}", verb.to_lowercase(), self.object.meta.name);
        let well = if what.starts_with("Claim") { "success" } else { "successful" };
        match outcome {
            Outcome::Done(_) => {
                Some(Event::normal(&self.object, format!("Successful{verb}"), format!("{told} {well}")))
            }
            // Somebody was faster, and the next look shows it.
            Outcome::Failed(refusal)
                if !matches!(refusal.why, Why::NamespaceTerminating | Why::AlreadyExists) =>
            {
                let message = format!("{told} failed error: {refusal}");
                Some(Event::warning(&self.object, format!("Failed{verb}"), message))
            }
            _ => None,
        }
    }
}
