//! The garbage collector: objects whose owners are gone go too, of every kind that the API server has.
//!
//! The graph, fed by watches of all metadata, tells whom to look at. What is done follows from the live objects alone, and each
//! write names the revision it was decided at.

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use base::time::Now;
use serde_json::{Value, json};

use crate::controller::{Controller, Key, Retry, Row};
use crate::ownership::{FOREGROUND, Graph, Node, ORPHAN};
use crate::plan::{Act, Done, Outcome, Plan, Propagation, Step, Why};
use crate::view::View;

pub(crate) const GARBAGE_COLLECTOR: Row = Row {
    name: "garbage-collector-controller",
    aliases: &["garbagecollector"],
    identity: "generic-garbage-collector",
    event_source: "garbage-collector-controller",
    queue: "garbage_collector_attempt_to_delete",
    workers: |tuning| tuning.syncs("gc", 20),
    retry: Retry::DEFAULT,
    is_on_by_default: true,
    watches: &[],
    reads: &[],
    is_single: false,
    make: |_| Box::new(Collector::default()),
};

#[derive(Debug, Default)]
struct Collector {
    graph: Graph,
}

/// What an owner reference leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Solid,
    /// It is there and ends after its dependents.
    Waiting,
    Absent,
}

/// Why nothing can be decided yet.
enum Undecided {
    /// These have to be asked first.
    Ask(Vec<Act>),
    Failed(String),
}

// === impl Collector ===

impl Controller for Collector {
    fn reconcile(&mut self, _: &dyn View, key: &Key, _: Now) -> Plan {
        match self.graph.node(&key.name) {
            Some(node) if node.known.waits || node.known.orphans || self.graph.is_doubtful(node) => {
                Plan::of(Step::at_once([Act::Get { path: node.path() }]))
            }
            _ => Plan::nothing(),
        }
    }

    fn settle(&mut self, _: &dyn View, key: &Key, _: Now, done: &Done) -> Plan {
        let has_written = done.acts.iter().any(|(act, _)| !matches!(act, Act::Get { .. }));
        let Some(node) = self.graph.node(&key.name).filter(|_| !has_written) else { return Plan::nothing() };
        let live = match object(done, &node.path()) {
            Ok(live) => live.filter(|live| live["metadata"]["uid"] == *node.known.uid),
            Err(why) => return Plan::failed(why),
        };
        // Gone, or another one of its name: the watch says so too.
        let Some(live) = live else { return Plan::nothing() };
        let is_deleting = live["metadata"]["deletionTimestamp"].is_string();
        let decided = if is_deleting && has_finalizer(&live, ORPHAN) {
            self.orphan(node, &live, done)
        } else if is_deleting && has_finalizer(&live, FOREGROUND) {
            Ok(self.foreground(node, &live))
        } else {
            self.judge(node, &live, is_deleting, done)
        };
        match decided {
            Ok(plan) => plan,
            Err(Undecided::Ask(acts)) => Plan::of(Step::at_once(acts)),
            Err(Undecided::Failed(why)) => Plan::failed(why),
        }
    }

    fn graph(&mut self) -> Option<&mut Graph> {
        Some(&mut self.graph)
    }
}

impl Collector {
    /// Does it still have an owner?
    fn judge(&self, node: &Node, live: &Value, is_deleting: bool, done: &Done) -> Result<Plan, Undecided> {
        let references = references(live);
        if references.is_empty() {
            return Ok(Plan::nothing());
        }
        let states = self.states(node, references, done)?;
        let kept: Vec<Value> = references
            .iter()
            .zip(&states)
            .filter(|(_, state)| **state == Owner::Solid)
            .map(|(reference, _)| reference.clone())
            .collect();
        if kept.len() == references.len() {
            return Ok(Plan::nothing());
        }
        if !kept.is_empty() {
            return Ok(written(node.owned_by(live, kept)));
        }
        if is_deleting {
            return Ok(Plan::nothing());
        }
        let has_dependents = self.graph.dependents(&node.known.uid).next().is_some();
        let how = if states.contains(&Owner::Waiting) && has_dependents {
            Propagation::Foreground
        } else if has_finalizer(live, ORPHAN) {
            Propagation::Orphan
        } else if has_finalizer(live, FOREGROUND) {
            Propagation::Foreground
        } else {
            Propagation::Background
        };
        Ok(written(node.deletion(live, how)))
    }

    fn states(&self, node: &Node, references: &[Value], done: &Done) -> Result<Vec<Owner>, Undecided> {
        let (mut states, mut ask) = (Vec::new(), Vec::new());
        for reference in references {
            let (api_version, kind) = (text(reference, "apiVersion"), text(reference, "kind"));
            // A kind that is not served may come back: nothing is deleted on its account.
            let Some(served) = self.graph.resource(api_version, kind) else {
                let name = &node.known.name;
                return Err(Undecided::Failed(format!(
                    "owner of {name}: no matches for kind {kind} in {api_version}"
                )));
            };
            // What is in no namespace cannot belong to what is in one: upstream complains, and deletes nothing.
            if served.is_namespaced && node.known.namespace.is_empty() {
                states.push(Owner::Solid);
                continue;
            }
            let namespace = if served.is_namespaced { &*node.known.namespace } else { "" };
            let path = served.object_path(namespace, text(reference, "name"));
            if done.answer(&path).is_none() {
                ask.push(Act::Get { path });
                continue;
            }
            let owner = object(done, &path).map_err(Undecided::Failed)?;
            let owner = owner.filter(|owner| owner["metadata"]["uid"] == reference["uid"]);
            states.push(match owner {
                None => Owner::Absent,
                Some(owner)
                    if owner["metadata"]["deletionTimestamp"].is_string()
                        && has_finalizer(&owner, FOREGROUND) =>
                {
                    Owner::Waiting
                }
                Some(_) => Owner::Solid,
            });
        }
        if ask.is_empty() { Ok(states) } else { Err(Undecided::Ask(ask)) }
    }

    /// Its dependents go before it.
    fn foreground(&self, node: &Node, live: &Value) -> Plan {
        let uid = &node.known.uid;
        if !self.graph.is_held_back(uid) {
            return written(node.without_finalizer(live, FOREGROUND));
        }
        // Objects that wait for each other would do so for ever: one of them lets its owners go first.
        if self.graph.is_in_circle(uid) && references(live).iter().any(|r| r["blockOwnerDeletion"] == true) {
            let freed = references(live).iter().cloned().map(|mut reference| {
                reference["blockOwnerDeletion"] = false.into();
                reference
            });
            return written(node.owned_by(live, freed.collect()));
        }
        let alive = self.graph.dependents(uid).filter(|dependent| !dependent.known.is_deleting);
        let others = alive.map(|dependent| Key::new("", &dependent.known.uid)).collect();
        Plan { others, ..Plan::nothing() }
    }

    /// Its dependents lose it and stay.
    fn orphan(&self, node: &Node, live: &Value, done: &Done) -> Result<Plan, Undecided> {
        let uid = &node.known.uid;
        let ask: Vec<Act> = self
            .graph
            .dependents(uid)
            .map(Node::path)
            .filter(|path| done.answer(path).is_none())
            .map(|path| Act::Get { path })
            .collect();
        if !ask.is_empty() {
            return Err(Undecided::Ask(ask));
        }
        let mut freed = Vec::new();
        for dependent in self.graph.dependents(uid) {
            let Some(found) = object(done, &dependent.path()).map_err(Undecided::Failed)? else { continue };
            let is_other = |reference: &&Value| reference["uid"] != **uid;
            let kept: Vec<Value> = references(&found).iter().filter(is_other).cloned().collect();
            if kept.len() < references(&found).len() {
                freed.push(dependent.owned_by(&found, kept));
            }
        }
        let last = Step::in_turn([node.without_finalizer(live, ORPHAN)]);
        Ok(Plan::nothing().then(Step::at_once(freed)).then(last))
    }
}

fn written(act: Act) -> Plan {
    Plan::of(Step::in_turn([act]))
}

/// The answer to a question: None if there is no such object.
fn object(done: &Done, path: &str) -> Result<Option<Value>, String> {
    match done.answer(path) {
        Some(Outcome::Done(json)) => {
            serde_json::from_slice(json).map(Some).map_err(|e| format!("{path}: {e}"))
        }
        Some(Outcome::Failed(refusal)) if refusal.why == Why::NotFound => Ok(None),
        Some(Outcome::Failed(refusal)) => Err(format!("{path}: {refusal}")),
        Some(Outcome::Skipped) | None => Err(format!("{path}: not asked")),
    }
}

fn references(object: &Value) -> &[Value] {
    object["metadata"]["ownerReferences"].as_array().map_or(&[], Vec::as_slice)
}

fn has_finalizer(object: &Value, name: &str) -> bool {
    finalizers(object).any(|finalizer| finalizer == name)
}

fn finalizers(object: &Value) -> impl Iterator<Item = &Value> {
    object["metadata"]["finalizers"].as_array().into_iter().flatten()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

// === impl Node ===

impl Node {
    fn path(&self) -> String {
        self.served.object_path(&self.known.namespace, &self.known.name)
    }

    fn owned_by(&self, live: &Value, references: Vec<Value>) -> Act {
        self.changed(live, "ownerReferences", references)
    }

    fn without_finalizer(&self, live: &Value, name: &str) -> Act {
        let kept = finalizers(live).filter(|finalizer| *finalizer != name).cloned().collect();
        self.changed(live, "finalizers", kept)
    }

    /// Of this object as it was read, and no other.
    fn changed(&self, live: &Value, field: &str, list: Vec<Value>) -> Act {
        let mut metadata =
            json!({"uid": live["metadata"]["uid"], "resourceVersion": live["metadata"]["resourceVersion"]});
        metadata[field] = if list.is_empty() { Value::Null } else { list.into() };
        Act::Merge { path: self.path(), body: json!({ "metadata": metadata }).to_string().into() }
    }

    fn deletion(&self, live: &Value, how: Propagation) -> Act {
        let metadata = &live["metadata"];
        let options = json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": how.text(),
            "preconditions": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        });
        Act::DeleteIf { path: self.path(), options: options.to_string().into() }
    }
}
