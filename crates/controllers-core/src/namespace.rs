//! The end of a namespace: everything in it is deleted, Pods first, and then it may go.
//!
//! A look asks the API server what kinds there are, lists them, deletes what is found, and lists that again. What stays is told in
//! upstream's conditions. Nothing is cached of all these kinds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::time::{Now, Wall};
use serde_json::{Value, json};

use crate::cache::Change;
use crate::conditions;
use crate::controller::{Controller, Key, Retry, Row, Wakes, Watch};
use crate::object::Object;
use crate::plan::{Act, Done, Outcome, Plan, Step, Target, Why};
use crate::resource::{NAMESPACES, PODS};
use crate::terms::timestamp;
use crate::view::View;

pub(crate) const NAMESPACE: Row = Row {
    name: "namespace-controller",
    aliases: &["namespace"],
    identity: "namespace-controller",
    event_source: "namespace-controller",
    queue: "namespace",
    workers: |tuning| tuning.syncs("namespace", 10),
    retry: Retry { first: Duration::from_secs(5), last: Duration::from_secs(60), gives_up_after: None },
    is_on_by_default: true,
    watches: &[Watch { resource: NAMESPACES, keys: ending }, Watch { resource: PODS, keys: last_pods }],
    reads: &[],
    is_single: false,
    make: |_| Box::new(Ends),
};

/// For all API servers of a cluster to hear that the namespace ends, and to take nothing new.
const GRACE: Duration = Duration::from_secs(5);
/// What stays for others to let go is looked at again after this.
const AGAIN: Duration = Duration::from_secs(8);
/// The finalizer that is ours to take.
const OURS: &str = "kubernetes";
/// Objects of one kind at a time. More are counted by what the server says of the rest.
const PAGE: &str = "?limit=500";

#[derive(Debug)]
struct Ends;

/// A kind of objects that live in namespaces and can be deleted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    /// Where they are in the namespace.
    path: String,
    group: String,
    plural: String,
    by_collection: bool,
}

/// What is known so far.
#[derive(Debug, Default)]
struct Found {
    kinds: BTreeSet<Kind>,
    /// Groups that could not be asked.
    unknown: Vec<String>,
}

/// What stays for now.
#[derive(Debug, Default)]
struct Remaining {
    by_resource: BTreeMap<String, u64>,
    by_finalizer: BTreeMap<String, usize>,
    failures: Vec<String>,
}

// === impl Ends ===

impl Controller for Ends {
    fn reconcile(&mut self, view: &dyn View, key: &Key, now: Now) -> Plan {
        step(view, key, now, &Done::default())
    }

    fn settle(&mut self, view: &dyn View, key: &Key, now: Now, done: &Done) -> Plan {
        step(view, key, now, done)
    }
}

fn step(view: &dyn View, key: &Key, now: Now, done: &Done) -> Plan {
    let Some(namespace) = view.get(NAMESPACES, "", &key.name).filter(|namespace| namespace.is_deleting())
    else {
        return Plan::nothing();
    };
    let value = namespace.value();
    let finalizers = value["spec"]["finalizers"].as_array().cloned().unwrap_or_default();
    if !finalizers.iter().any(|finalizer| finalizer == OURS) {
        return Plan::nothing();
    }
    let found = match discovered(&key.name, done) {
        Ok(found) => found,
        Err(questions) => return Plan::of(Step::at_once(questions)),
    };
    let mut remaining = Remaining::default();
    // Pods may need the rest until their end.
    let (pods, others): (Vec<&Kind>, Vec<&Kind>) =
        found.kinds.iter().partition(|kind| kind.group.is_empty() && kind.plural == "pods");
    for kinds in [pods, others] {
        let acts = emptied(&kinds, done, &mut remaining);
        if !acts.is_empty() {
            return Plan::nothing().then(Step::at_once(acts));
        }
        if !remaining.by_resource.is_empty() && kinds.iter().any(|kind| kind.plural == "pods") {
            break;
        }
    }
    ended(&namespace, &value, finalizers, &found, &remaining, now, done)
}

/// Conditions first, then the finalizer.
fn ended(
    namespace: &Object,
    value: &Value,
    finalizers: Vec<Value>,
    found: &Found,
    remaining: &Remaining,
    now: Now,
    done: &Done,
) -> Plan {
    let is_empty =
        remaining.by_resource.is_empty() && remaining.failures.is_empty() && found.unknown.is_empty();
    let written = done.acts.iter().find(|(act, _)| matches!(act, Act::Update { .. }));
    let has_finalized = done.acts.iter().any(|(act, _)| matches!(act, Act::Put { .. }));
    let mut status = if value["status"].is_object() { value["status"].clone() } else { json!({}) };
    // Who never had to wait need not be told that the wait is over.
    let has_news =
        (!is_empty || status["conditions"].is_array()) && remaining.tell(&mut status, found, now.wall);
    if has_news && written.is_none() {
        status["phase"] = "Terminating".into();
        return Plan::of(Step::in_turn([Act::update_status(namespace, status)]));
    }
    if !is_empty {
        let failures = remaining.failures.iter().chain(&found.unknown).cloned().collect::<Vec<_>>();
        if failures.is_empty() {
            return Plan::nothing().wake(Some(AGAIN));
        }
        return Plan::failed(format!("emptying namespace {}: {}", namespace.meta.name, failures.join(", ")));
    }
    if has_finalized {
        return Plan::nothing();
    }
    let live = written.and_then(|(_, outcome)| outcome.object(NAMESPACES));
    let live = live.map(|live| live.value()).filter(|live| live["spec"].is_object());
    let mut body = live.unwrap_or_else(|| value.clone());
    let kept: Vec<Value> = finalizers.into_iter().filter(|finalizer| finalizer != OURS).collect();
    body["spec"]["finalizers"] = json!(kept);
    let path = Target::at(namespace, "finalize").path();
    Plan::of(Step::in_turn([Act::Put { path, body: body.to_string().into() }]))
}

/// What there is in the API. Err: questions.
fn discovered(namespace: &str, done: &Done) -> Result<Found, Vec<Act>> {
    let ask = |paths: Vec<String>| paths.into_iter().map(|path| Act::Get { path }).collect::<Vec<_>>();
    let Some(groups) = done.answer("/apis") else { return Err(ask(vec!["/api/v1".into(), "/apis".into()])) };
    let groups = match groups {
        Outcome::Done(groups) => serde_json::from_slice::<Value>(groups).unwrap_or_default(),
        _ => return Ok(Found { unknown: vec![said("the groups of the API", groups)], ..Found::default() }),
    };
    let preferred =
        |group: &Value| Some(format!("/apis/{}", group["preferredVersion"]["groupVersion"].as_str()?));
    let groups = groups["groups"].as_array().cloned().unwrap_or_default();
    let roots: Vec<String> =
        std::iter::once("/api/v1".to_owned()).chain(groups.iter().filter_map(preferred)).collect();
    let missing: Vec<String> = roots.iter().filter(|root| done.answer(root).is_none()).cloned().collect();
    if !missing.is_empty() {
        return Err(ask(missing));
    }
    let mut found = Found::default();
    for root in roots {
        match done.answer(&root) {
            Some(Outcome::Done(list)) => found.kinds.extend(kinds(&root, namespace, list)),
            Some(other) => found.unknown.push(said(root.trim_start_matches("/apis/"), other)),
            None => {}
        }
    }
    Ok(found)
}

fn kinds(root: &str, namespace: &str, list: &[u8]) -> Vec<Kind> {
    let list: Value = serde_json::from_slice(list).unwrap_or_default();
    let group =
        root.strip_prefix("/apis/").and_then(|rest| rest.split_once('/')).map_or("", |(group, _)| group);
    let resources = list["resources"].as_array().into_iter().flatten();
    let kind = |resource: &Value| {
        let name = resource["name"].as_str().filter(|name| !name.contains('/'))?;
        let verbs = resource["verbs"].as_array()?;
        let has = |verb: &str| verbs.iter().any(|known| known == verb);
        // Events are many, and go by themselves; they are deleted as everything else.
        let is_ours = resource["namespaced"] == true && has("delete") && has("list");
        is_ours.then(|| Kind {
            path: format!("{root}/namespaces/{namespace}/{name}"),
            group: group.to_owned(),
            plural: name.to_owned(),
            by_collection: has("deletecollection"),
        })
    };
    resources.filter_map(kind).collect()
}

/// The acts that come next; none: these kinds are done with, and what stays of them is in `remaining`.
fn emptied(kinds: &[&Kind], done: &Done, remaining: &mut Remaining) -> Vec<Act> {
    let list = |kind: &Kind| format!("{}{PAGE}", kind.path);
    let asked = |kind: &Kind| {
        let path = list(kind);
        done.acts.iter().filter(|(act, _)| matches!(act, Act::Get { path: asked } if *asked == path)).count()
    };
    let unasked: Vec<Act> =
        kinds.iter().filter(|kind| asked(kind) == 0).map(|kind| Act::Get { path: list(kind) }).collect();
    if !unasked.is_empty() {
        return unasked;
    }
    let (mut delete, mut again) = (Vec::new(), Vec::new());
    for kind in kinds {
        let answer = done.answer(&list(kind));
        let items = match answer {
            Some(Outcome::Done(list)) => serde_json::from_slice::<Value>(list).unwrap_or_default(),
            // A kind that is not served any more has no objects.
            Some(Outcome::Failed(refusal)) if refusal.why == Why::NotFound => continue,
            Some(other) => {
                remaining.failures.push(said(&kind.path, other));
                continue;
            }
            None => continue,
        };
        let all = items["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        let deletions: Vec<&(Act, Outcome)> = done.acts.iter().filter(|(act, _)| kind.deletes(act)).collect();
        if all.is_empty() {
            continue;
        }
        if deletions.is_empty() {
            delete.extend(kind.deletion(all));
            continue;
        }
        if asked(kind) == 1 {
            again.push(Act::Get { path: list(kind) });
            continue;
        }
        let is_failure =
            |outcome: &Outcome| outcome.error().is_some_and(|refusal| refusal.why != Why::NotFound);
        remaining.failures.extend(
            deletions.iter().find(|(_, outcome)| is_failure(outcome)).map(|(_, o)| said(&kind.path, o)),
        );
        let more = items["metadata"]["remainingItemCount"].as_u64().unwrap_or(0);
        *remaining.by_resource.entry(format!("{}.{}", kind.plural, kind.group)).or_default() +=
            all.len() as u64 + more;
        for item in all {
            for finalizer in item["metadata"]["finalizers"].as_array().into_iter().flatten() {
                let name = finalizer.as_str().unwrap_or_default().to_owned();
                *remaining.by_finalizer.entry(name).or_default() += 1;
            }
        }
    }
    if delete.is_empty() { again } else { delete }
}

fn said(what: &str, outcome: &Outcome) -> String {
    outcome.error().map_or_else(|| format!("{what}: not asked"), |refusal| format!("{what}: {refusal}"))
}

// === impl Kind ===

impl Kind {
    /// All at once where the API server can, else one by one.
    fn deletion(&self, items: &[Value]) -> Vec<Act> {
        if self.by_collection {
            return vec![Act::DeleteAt { path: self.path.clone() }];
        }
        let names = items.iter().filter_map(|item| item["metadata"]["name"].as_str());
        names.map(|name| Act::DeleteAt { path: format!("{}/{name}", self.path) }).collect()
    }

    fn deletes(&self, act: &Act) -> bool {
        let Act::DeleteAt { path } = act else { return false };
        path.strip_prefix(&self.path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

// === impl Remaining ===

impl Remaining {
    /// Writes upstream's conditions; says whether one of them is new.
    fn tell(&self, status: &mut Value, found: &Found, now: Wall) -> bool {
        let resources: Vec<String> =
            self.by_resource.iter().map(|(name, n)| format!("{name} has {n} resource instances")).collect();
        let finalizers: Vec<String> =
            self.by_finalizer.iter().map(|(name, n)| format!("{name} in {n} resource instances")).collect();
        let mut failures = self.failures.clone();
        failures.sort();
        let either = |is_bad: bool, bad: (&'static str, String), good: (&'static str, &str)| {
            if is_bad { ("True", bad.0, bad.1) } else { ("False", good.0, good.1.to_owned()) }
        };
        let unknown = found.unknown.join(", ");
        let told = [
            (
                "NamespaceDeletionDiscoveryFailure",
                either(
                    !found.unknown.is_empty(),
                    (
                        "DiscoveryFailed",
                        format!(
                            "Discovery failed for some groups, {} failing: unable to retrieve the complete list of server APIs: {unknown}",
                            found.unknown.len()
                        ),
                    ),
                    ("ResourcesDiscovered", "All resources successfully discovered"),
                ),
            ),
            (
                "NamespaceDeletionGroupVersionParsingFailure",
                ("False", "ParsedGroupVersions", "All legacy kube types successfully parsed".to_owned()),
            ),
            (
                "NamespaceDeletionContentFailure",
                either(
                    !failures.is_empty(),
                    (
                        "ContentDeletionFailed",
                        format!(
                            "Failed to delete all resource types, {} remaining: {}",
                            failures.len(),
                            failures.join(", ")
                        ),
                    ),
                    ("ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
                ),
            ),
            (
                "NamespaceContentRemaining",
                either(
                    !resources.is_empty(),
                    (
                        "SomeResourcesRemain",
                        format!("Some resources are remaining: {}", resources.join(", ")),
                    ),
                    ("ContentRemoved", "All content successfully removed"),
                ),
            ),
            (
                "NamespaceFinalizersRemaining",
                either(
                    !finalizers.is_empty(),
                    (
                        "SomeFinalizersRemain",
                        format!(
                            "Some content in the namespace has finalizers remaining: {}",
                            finalizers.join(", ")
                        ),
                    ),
                    ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
                ),
            ),
        ];
        let mut is_news = false;
        for (kind, (value, reason, message)) in told {
            let known = conditions::find(status, kind);
            let is_same = known
                .is_some_and(|c| c["status"] == value && c["reason"] == reason && c["message"] == *message);
            if is_same {
                continue;
            }
            is_news = true;
            let since = known.filter(|c| c["status"] == value).map(|c| c["lastTransitionTime"].clone());
            let since = since.unwrap_or_else(|| timestamp(now).into());
            let new = json!({"type": kind, "status": value, "reason": reason, "message": message, "lastTransitionTime": since});
            if !status["conditions"].is_array() {
                status["conditions"] = json!([]);
            }
            let Some(all) = status["conditions"].as_array_mut() else { continue };
            match all.iter_mut().find(|c| c["type"] == kind) {
                Some(known) => *known = new,
                None => all.push(new),
            }
        }
        is_news
    }
}

fn ending(change: &Change, _: &dyn View, wakes: &mut Wakes) {
    if let Some(namespace) = change.new.as_ref().filter(|namespace| namespace.is_deleting()) {
        wakes.add_after(Key::of(namespace), GRACE);
    }
}

/// Nothing else goes while a Pod is there.
fn last_pods(change: &Change, view: &dyn View, wakes: &mut Wakes) {
    let Some(pod) = change.old.as_ref().filter(|_| change.is_deletion()) else { return };
    let namespace = view.get(NAMESPACES, "", &pod.meta.namespace).filter(|namespace| namespace.is_deleting());
    let is_last = view.list(PODS, &pod.meta.namespace).is_empty();
    wakes.extend(namespace.filter(|_| is_last).map(|namespace| Key::of(&namespace)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Draft, World, at, draft};

    const POD_LIST: &str = "/api/v1/namespaces/ns/pods?limit=500";
    const MAP_LIST: &str = "/api/v1/namespaces/ns/configmaps?limit=500";

    fn namespace() -> Draft {
        draft(NAMESPACES, "ns").deleting(true).set("/spec/finalizers", json!([OURS])).phase("Terminating")
    }

    fn list(items: &[Value]) -> Value {
        json!({"items": items})
    }

    fn world(pods: Value, maps: Value) -> World {
        let verbs = json!(["delete", "deletecollection", "list"]);
        let mut world = World::new(namespace());
        for (path, answer) in [
            (
                "/api/v1",
                json!({"resources": [
                    {"name": "pods", "namespaced": true, "verbs": verbs},
                    {"name": "pods/log", "namespaced": true, "verbs": ["get"]},
                    {"name": "configmaps", "namespaced": true, "verbs": ["delete", "list"]},
                    {"name": "bindings", "namespaced": true, "verbs": ["create"]},
                    {"name": "nodes", "namespaced": false, "verbs": verbs}]}),
            ),
            ("/apis", json!({"groups": [{"name": "x", "preferredVersion": {"groupVersion": "x/v1"}}]})),
            ("/apis/x/v1", json!({"resources": []})),
            (POD_LIST, pods),
            (MAP_LIST, maps),
        ] {
            world.answers.insert(path.into(), answer);
        }
        world
    }

    fn said(world: &mut World) -> (Vec<String>, Option<Duration>) {
        let ran = world.sync_key(&mut Ends, &Key::new("", "ns"), at(100));
        let words = ran.said.into_iter().filter(|line| !line.starts_with("get /api"));
        (words.collect(), ran.wake)
    }

    fn condition(world: &World, kind: &str) -> String {
        let status = world.get(NAMESPACES, "ns").value()["status"].take();
        conditions::find(&status, kind)
            .map(|c| c["message"].as_str().unwrap_or_default().to_owned())
            .unwrap_or_default()
    }

    #[test]
    fn an_empty_namespace_goes_without_a_word() {
        let mut world = world(list(&[]), list(&[]));
        assert_eq!(said(&mut world).0, ["put /api/v1/namespaces/ns/finalize"]);
        assert_eq!(world.answers["/api/v1/namespaces/ns/finalize"]["spec"]["finalizers"], json!([]));
        let mut other = World::new(namespace().set("/spec/finalizers", json!(["example.com/mine"])));
        assert!(said(&mut other).0.is_empty(), "ours is taken already");
        assert!(
            said(&mut World::new(
                namespace().deleting(false).set("/metadata/deletionTimestamp", json!(null))
            ))
            .0
            .is_empty()
        );
    }

    #[test]
    fn nothing_else_goes_while_a_pod_is_there() {
        let pod = json!({"metadata": {"name": "p", "finalizers": ["example.com/hold"]}});
        let mut world = world(list(&[pod]), list(&[json!({"metadata": {"name": "m"}})]));
        let (words, wake) = said(&mut world);
        assert_eq!(words, ["delete /api/v1/namespaces/ns/pods", "update namespaces/status ns"]);
        assert_eq!(wake, Some(AGAIN));
        assert_eq!(
            condition(&world, "NamespaceContentRemaining"),
            "Some resources are remaining: pods. has 1 resource instances"
        );
        assert_eq!(
            condition(&world, "NamespaceFinalizersRemaining"),
            "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances"
        );
        assert_eq!(
            said(&mut world).0,
            ["delete /api/v1/namespaces/ns/pods"],
            "what is told is not told again"
        );
    }

    #[test]
    fn what_has_no_collection_goes_one_by_one() {
        let map = json!({"metadata": {"name": "m"}});
        let mut world = world(list(&[]), list(&[map]));
        assert_eq!(said(&mut world).0[0], "delete /api/v1/namespaces/ns/configmaps/m");
        world.answers.insert(MAP_LIST.into(), list(&[]));
        assert_eq!(said(&mut world).0, ["update namespaces/status ns", "put /api/v1/namespaces/ns/finalize"]);
        assert_eq!(condition(&world, "NamespaceContentRemaining"), "All content successfully removed");
    }

    #[test]
    fn a_group_that_cannot_be_asked_holds_it() {
        let mut world = world(list(&[]), list(&[]));
        world.answers.remove("/apis/x/v1");
        let ran = world.sync_key(&mut Ends, &Key::new("", "ns"), at(100));
        assert!(ran.failure.is_some_and(|why| why.contains("x/v1: not found")));
        assert!(
            condition(&world, "NamespaceDeletionDiscoveryFailure")
                .starts_with("Discovery failed for some groups, 1 failing: ")
        );
    }
}
