//! How many Pods the controllers behind some Pods want. Kinds that are not known here are asked for `/scale`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::kinds::{self, Kind, Missing};
use crate::object::{Object, Owner};
use crate::plan::{Act, Done, Outcome, Why};
use crate::resource::{DEPLOYMENTS, REPLICA_SETS, REPLICATION_CONTROLLERS, STATEFUL_SETS};
use crate::view::View;

/// The sum over all controllers, and whether there are Pods that nobody controls.
pub(super) fn expected(view: &dyn View, pods: &[Arc<Object>], done: &Done) -> Result<(i32, bool), Missing> {
    let mut scales: BTreeMap<Box<str>, i32> = BTreeMap::new();
    let mut seen: Vec<&str> = Vec::new();
    let (mut questions, mut has_unmanaged) = (Vec::new(), false);
    for pod in pods {
        let Some(owner) = &pod.meta.controller else {
            has_unmanaged = true;
            continue;
        };
        if seen.contains(&&*owner.uid) {
            continue;
        }
        seen.push(&owner.uid);
        match scale(view, pod, owner, done) {
            Ok((uid, replicas)) => drop(scales.insert(uid, replicas)),
            Err(Missing::Answers(more)) => {
                questions.extend(more.into_iter().filter(|act| !questions.contains(act)).collect::<Vec<_>>());
            }
            Err(why) => return Err(why),
        }
    }
    if questions.is_empty() {
        let sum = scales.values().fold(0i32, |sum, replicas| sum.saturating_add(*replicas));
        return Ok((sum, has_unmanaged));
    }
    Err(Missing::Answers(questions))
}

/// The controller that has the number, and the number.
fn scale(view: &dyn View, pod: &Object, owner: &Owner, done: &Done) -> Result<(Box<str>, i32), Missing> {
    let nobody = || Missing::Nothing(format!("found no controllers for pod {:?}", pod.meta.name));
    let replicas = |object: &Object| {
        let said = object.value()["spec"]["replicas"].as_i64().unwrap_or(1);
        (object.meta.uid.clone(), i32::try_from(said).unwrap_or(i32::MAX))
    };
    if owner.is_a(REPLICA_SETS) {
        let set = view.controller_of(pod, REPLICA_SETS).ok_or_else(nobody)?;
        let is_deployed = set.meta.controller.as_ref().is_some_and(|owner| owner.is_a(DEPLOYMENTS));
        let who = if is_deployed { view.controller_of(&set, DEPLOYMENTS).ok_or_else(nobody)? } else { set };
        return Ok(replicas(&who));
    }
    if let Some(known) = [REPLICATION_CONTROLLERS, STATEFUL_SETS].into_iter().find(|one| owner.is_a(*one)) {
        return Ok(replicas(&*view.controller_of(pod, known).ok_or_else(nobody)?));
    }
    let at = Kind { api_version: &owner.api_version, kind: &owner.kind };
    let path = kinds::scale_path(at, &pod.meta.namespace, &owner.name, done)?;
    let answer = match done.answer(&path) {
        None => return Err(Missing::Answers(vec![Act::Get { path }])),
        Some(Outcome::Failed(refusal)) if refusal.why != Why::NotFound => {
            return Err(Missing::Nothing(refusal.message.clone()));
        }
        Some(Outcome::Done(answer)) => serde_json::from_slice::<Value>(answer).unwrap_or_default(),
        Some(_) => return Err(nobody()),
    };
    if answer["metadata"]["uid"] != *owner.uid {
        return Err(nobody());
    }
    let said = answer["spec"]["replicas"].as_i64().unwrap_or(0);
    Ok((owner.uid.clone(), i32::try_from(said).unwrap_or(i32::MAX)))
}
