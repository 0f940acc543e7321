//! One ReplicaSet of a Deployment, its revision and its annotations.

use std::sync::Arc;

use base::fnv::fnv1a32;
use base::time::Wall;
use serde_json::{Map, Value, json};

use super::Deployment;
use crate::claim::owned_metadata;
use crate::names;
use crate::object::{Object, Unreadable, member};
use crate::plan::{Act, Event};
use crate::resource::REPLICA_SETS;
use crate::template::{self, POD_TEMPLATE_HASH};

pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";
/// What a Deployment does not hand on.
const OWN: &[&str] = &[
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    REVISION_HISTORY,
    DESIRED_REPLICAS,
    MAX_REPLICAS,
    "deprecated.deployment.rollback.to",
];
/// Characters of a history; the oldest revisions give way.
const HISTORY: usize = 2000;
/// Of a name.
const NAME: usize = 253;

#[derive(Debug)]
pub(super) struct Set {
    pub(super) object: Arc<Object>,
    pub(super) replicas: i32,
    pub(super) template: Value,
    pub(super) status: Value,
    annotations: Value,
    min_ready_seconds: i64,
}

// === impl Set ===

impl Set {
    pub(super) fn read(object: Arc<Object>) -> Result<Set, Unreadable> {
        let mut value = object.value();
        let spec = &mut value["spec"];
        let replicas = match &spec["replicas"] {
            Value::Null => Some(1),
            said => said.as_i64().and_then(|n| i32::try_from(n).ok()),
        };
        let replicas = replicas.ok_or_else(|| object.unreadable("spec.replicas is no number"))?;
        let min_ready_seconds = spec["minReadySeconds"].as_i64().unwrap_or(0);
        let template = spec["template"].take();
        let (annotations, status) = (value["metadata"]["annotations"].take(), value["status"].take());
        Ok(Set { object, replicas, template, status, annotations, min_ready_seconds })
    }

    pub(super) fn name(&self) -> &str {
        &self.object.meta.name
    }

    /// Creation, then name.
    pub(super) fn age(&self) -> (Option<Wall>, &str) {
        (self.object.meta.created, self.name())
    }

    pub(super) fn count(&self, what: &str) -> i32 {
        self.status[what].as_i64().and_then(|n| i32::try_from(n).ok()).unwrap_or(0)
    }

    pub(super) fn available(&self) -> i32 {
        self.count("availableReplicas")
    }

    /// How many of its available Pods will stay: a set that was made smaller may not have said so in its status yet.
    pub(super) fn lasting(&self) -> i32 {
        self.available().min(self.replicas)
    }

    pub(super) fn desired(&self) -> Option<i32> {
        self.annotations[DESIRED_REPLICAS].as_str()?.parse().ok()
    }

    pub(super) fn max(&self) -> Option<i32> {
        self.annotations[MAX_REPLICAS].as_str()?.parse().ok()
    }

    pub(super) fn revision(&self) -> Option<&str> {
        self.annotations[REVISION].as_str()
    }

    pub(super) fn revision_number(&self) -> i64 {
        self.revision().and_then(|text| text.parse().ok()).unwrap_or(0)
    }
}

// === impl Deployment ===

impl Deployment {
    fn size_annotations(&self) -> [(&'static str, String); 2] {
        let most = self.replicas.saturating_add(self.max_surge);
        [(DESIRED_REPLICAS, self.replicas.to_string()), (MAX_REPLICAS, most.to_string())]
    }

    /// Gives a set this size, and says so. None: it has it, and (unless it is forced) that is all that counts.
    pub(super) fn resize(&self, set: &Set, to: i32, force: bool) -> Option<(Act, Option<Event>)> {
        let annotations = self.size_annotations();
        let is_annotated = annotations.iter().all(|(key, value)| set.annotations[*key] == value.as_str());
        if set.replicas == to && (!force || is_annotated) {
            return None;
        }
        let act = Act::update(&set.object, |value| {
            value["spec"]["replicas"] = json!(to);
            for (key, text) in annotations {
                value["metadata"]["annotations"][key] = json!(text);
            }
        });
        let event = (set.replicas != to).then(|| {
            let way = if set.replicas < to { "up" } else { "down" };
            let message = format!("Scaled {way} replica set {} from {} to {to}", set.name(), set.replicas);
            Event::normal(&self.object, "ScalingReplicaSet", message)
        });
        Some((act, event))
    }

    /// What the new set has to carry: the Deployment's annotations, its revision, and what it was before; and the time a Pod
    /// has to be ready. None: it does.
    pub(super) fn keep_annotations(&self, new: &Set, old: &[Set]) -> Option<Act> {
        let mut wanted = new.annotations.as_object().cloned().unwrap_or_default();
        self.hand_on(&mut wanted);
        // A revision that is no number is left alone.
        let present = new.revision();
        let number = present.map_or(Some(0), |text| text.parse::<i64>().ok());
        let next = next_revision(old);
        if let Some(number) = number.filter(|number| *number < next) {
            wanted.insert(REVISION.into(), json!(next.to_string()));
            if present.is_some() {
                let history = wanted.get(REVISION_HISTORY).and_then(Value::as_str).unwrap_or_default();
                if let Some(history) = history_with(history, number) {
                    wanted.insert(REVISION_HISTORY.into(), json!(history));
                }
            }
        }
        let is_kept = new.annotations.as_object().is_some_and(|known| *known == wanted)
            || (new.annotations.is_null() && wanted.is_empty());
        if is_kept && new.min_ready_seconds == i64::from(self.min_ready_seconds) {
            return None;
        }
        Some(Act::update(&new.object, |value| {
            value["metadata"]["annotations"] = Value::Object(wanted);
            value["spec"]["minReadySeconds"] = json!(self.min_ready_seconds);
        }))
    }

    /// The set for the present template, of this size.
    pub(super) fn new_set(&self, replicas: i32, old: &[Set]) -> (Act, Option<Event>) {
        let hash = self.hash();
        let meta = &self.object.meta;
        let room = NAME - 1 - hash.len();
        let name = format!("{}-{hash}", meta.name.get(..room).unwrap_or(&meta.name));
        let mut template = self.template.clone();
        member(member(&mut template, "metadata"), "labels")[POD_TEMPLATE_HASH] = json!(hash);
        let mut selector = self.selector.clone();
        member(&mut selector, "matchLabels")[POD_TEMPLATE_HASH] = json!(hash);
        let mut annotations = Map::new();
        self.hand_on(&mut annotations);
        annotations.insert(REVISION.into(), json!(next_revision(old).to_string()));
        for (key, text) in self.size_annotations() {
            annotations.insert(key.into(), json!(text));
        }
        let metadata =
            json!({"name": name, "labels": template["metadata"]["labels"], "annotations": annotations});
        let set = json!({"metadata": owned_metadata(&self.object, metadata), "spec": {
            "replicas": replicas, "minReadySeconds": self.min_ready_seconds, "selector": selector, "template": template,
        }});
        let event = (replicas > 0).then(|| {
            let message = format!("Scaled up replica set {name} from 0 to {replicas}");
            Event::normal(&self.object, "ScalingReplicaSet", message)
        });
        (Act::create(REPLICA_SETS, &meta.namespace, set), event)
    }

    fn hash(&self) -> String {
        let mut text = template::plain(&self.template).to_string().into_bytes();
        if let Some(collisions) = self.status["collisionCount"].as_i64() {
            text.extend_from_slice(&collisions.to_le_bytes());
        }
        names::letters(fnv1a32(&text))
    }

    fn hand_on(&self, annotations: &mut Map<String, Value>) {
        for (key, value) in self.annotations.as_object().into_iter().flatten() {
            if !OWN.contains(&key.as_str()) {
                annotations.insert(key.clone(), value.clone());
            }
        }
    }
}

fn next_revision(old: &[Set]) -> i64 {
    old.iter().map(Set::revision_number).max().unwrap_or(0).saturating_add(1)
}

/// The history with one revision more. None: there is no room for it at all.
fn history_with(history: &str, revision: i64) -> Option<String> {
    let revision = revision.to_string();
    let mut all: Vec<&str> = history.split(',').filter(|text| !text.is_empty()).collect();
    all.push(&revision);
    let mut rest = all.as_slice();
    while rest.join(",").len() > HISTORY {
        rest = rest.get(1..)?;
    }
    Some(rest.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_drops_its_oldest() {
        assert_eq!(history_with("", 3).as_deref(), Some("3"));
        assert_eq!(history_with("1,3", 5).as_deref(), Some("1,3,5"));
        let long = vec!["1234567890"; 190].join(",");
        let longer = history_with(&long, 7).unwrap_or_default();
        assert!(longer.len() <= HISTORY && longer.ends_with(",7") && longer.len() > 1900);
    }
}
