//! ResourceQuota: what a namespace uses of what it was given, counted from what is there.
//!
//! The API server adds what is new as it lets it in; here is counted anew what ended, what a quota that was changed limits, and
//! everything now and then. Kinds that no cache holds are asked of the API server.

use std::collections::BTreeMap;
use std::time::Duration;

use api::config::controllers::Tuning;
use api::quota::amounts::{Amounts, amounts};
use api::quota::usage;
use base::quantity::Quantity;
use base::time::Now;
use serde_json::{Value, json};

use crate::cache::Change;
use crate::controller::{Controller, Key, Retry, Row, Wakes, Watch};
use crate::object::Object;
use crate::plan::{Act, Done, Outcome, Plan, Step, Why};
use crate::resource::{
    CONFIG_MAPS, CONTROLLER_REVISIONS, CRON_JOBS, DAEMON_SETS, DEPLOYMENTS, ENDPOINT_SLICES, ENDPOINTS,
    HORIZONTAL_POD_AUTOSCALERS, JOBS, PERSISTENT_VOLUME_CLAIMS, POD_DISRUPTION_BUDGETS, PODS, REPLICA_SETS,
    REPLICATION_CONTROLLERS, RESOURCE_QUOTAS, Resource, SECRETS, SERVICE_ACCOUNTS, SERVICES, STATEFUL_SETS,
};
use crate::view::View;

pub(crate) const RESOURCE_QUOTA: Row = Row {
    name: "resourcequota-controller",
    aliases: &["resourcequota"],
    identity: "resourcequota-controller",
    event_source: "resourcequota-controller",
    queue: "resourcequota_primary",
    workers: |tuning| tuning.syncs("resource-quota", 5),
    retry: Retry::DEFAULT,
    is_on_by_default: true,
    watches: &[
        Watch { resource: RESOURCE_QUOTAS, keys: quotas },
        Watch { resource: PODS, keys: ended },
        Watch { resource: SERVICES, keys: ended },
        Watch { resource: PERSISTENT_VOLUME_CLAIMS, keys: ended },
        Watch { resource: CONFIG_MAPS, keys: gone },
        Watch { resource: SECRETS, keys: gone },
        Watch { resource: REPLICATION_CONTROLLERS, keys: gone },
        Watch { resource: SERVICE_ACCOUNTS, keys: gone },
        Watch { resource: ENDPOINTS, keys: gone },
        Watch { resource: ENDPOINT_SLICES, keys: gone },
        Watch { resource: DEPLOYMENTS, keys: gone },
        Watch { resource: REPLICA_SETS, keys: gone },
        Watch { resource: STATEFUL_SETS, keys: gone },
        Watch { resource: DAEMON_SETS, keys: gone },
        Watch { resource: CONTROLLER_REVISIONS, keys: gone },
        Watch { resource: JOBS, keys: gone },
        Watch { resource: CRON_JOBS, keys: gone },
        Watch { resource: HORIZONTAL_POD_AUTOSCALERS, keys: gone },
        Watch { resource: POD_DISRUPTION_BUDGETS, keys: gone },
    ],
    reads: &[],
    is_single: false,
    make: |tuning| Box::new(Quotas { period: period(tuning) }),
};

/// Nobody tells when objects go of which no cache is kept: they are counted again after this.
const UNTOLD: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct Quotas {
    /// `--resource-quota-sync-period`; None: never.
    period: Option<Duration>,
}

/// What was counted.
#[derive(Debug, Default)]
struct Count {
    used: Amounts,
    /// What has to be asked first.
    questions: Vec<Act>,
    has_untold: bool,
    failures: Vec<String>,
}

fn period(tuning: &Tuning) -> Option<Duration> {
    Some(tuning.resource_quota_sync_period).filter(|period| !period.is_zero())
}

// === impl Quotas ===

impl Controller for Quotas {
    fn reconcile(&mut self, view: &dyn View, key: &Key, now: Now) -> Plan {
        self.step(view, key, now, &Done::default())
    }

    fn settle(&mut self, view: &dyn View, key: &Key, now: Now, done: &Done) -> Plan {
        // The status was written, or was not: that is the end.
        if done.last().iter().any(|(act, _)| matches!(act, Act::Update { .. })) {
            return Plan::nothing();
        }
        self.step(view, key, now, done)
    }
}

impl Quotas {
    fn step(&self, view: &dyn View, key: &Key, now: Now, done: &Done) -> Plan {
        let found = view.get(RESOURCE_QUOTAS, &key.namespace, &key.name);
        let Some(quota) = found.filter(|quota| !quota.is_deleting()) else { return Plan::nothing() };
        let value = quota.value();
        let count = Count::of(view, &value, &key.namespace, now, done);
        if !count.questions.is_empty() {
            return Plan::of(Step::at_once(count.questions));
        }
        let hard = amounts(&value["spec"]["hard"]);
        let mut used = amounts(&value["status"]["used"]);
        used.extend(count.used);
        used.retain(|resource, _| hard.contains_key(resource));
        let status = json!({"hard": list(&hard), "used": list(&used)});
        let is_known = amounts(&value["status"]["hard"]) == hard
            && amounts(&value["status"]["used"]) == used
            && value["status"]["hard"].is_object()
            && value["status"]["used"].is_object();
        let mut plan = Plan::nothing().wake(self.period).wake(count.has_untold.then_some(UNTOLD));
        if !is_known {
            plan = plan.then(Step::in_turn([Act::update_status(&quota, status)]));
        }
        plan.failure = (!count.failures.is_empty()).then(|| count.failures.join("; "));
        plan
    }
}

// === impl Count ===

impl Count {
    fn of(view: &dyn View, quota: &Value, namespace: &str, now: Now, done: &Done) -> Count {
        let hard = amounts(&quota["spec"]["hard"]);
        let mut by_storage: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for resource in hard.keys() {
            by_storage.entry(usage::storage_of(resource)).or_default().push(resource);
        }
        let mut count = Count::default();
        for (storage, limited) in by_storage {
            match cached(storage) {
                Some(resource) => count.add_cached(view, quota, namespace, resource, &limited, now),
                None => count.add_asked(quota, namespace, storage, &limited, done),
            }
        }
        count
    }

    fn add_cached(
        &mut self,
        view: &dyn View,
        quota: &Value,
        namespace: &str,
        resource: Resource,
        limited: &[&str],
        now: Now,
    ) {
        let storage = resource.to_string();
        self.used.extend(limited.iter().map(|resource| ((*resource).to_owned(), Quantity::ZERO)));
        for object in view.list(resource, namespace) {
            let object = object.value();
            if !usage::is_in_scope(quota, &storage, &object) {
                continue;
            }
            let uses = usage::of(&storage, &object, Some(now.wall));
            for resource in limited {
                if let (Some(sum), Some(part)) = (self.used.get_mut(*resource), uses.get(*resource)) {
                    *sum = sum.plus(*part);
                }
            }
        }
    }

    /// Only their number counts: one is asked for, and how many are left.
    fn add_asked(&mut self, quota: &Value, namespace: &str, storage: &str, limited: &[&str], done: &Done) {
        self.has_untold = true;
        // Scopes are about Pods and claims.
        if !usage::is_in_scope(quota, storage, &Value::Null) {
            self.put(limited, 0);
            return;
        }
        let Some(path) = self.path(namespace, storage, done) else { return };
        match self.ask(&path, done) {
            Some(Ok(list)) => {
                let items = list["items"].as_array().map_or(0, Vec::len);
                let rest = list["metadata"]["remainingItemCount"].as_i64();
                let is_whole = list["metadata"]["continue"].as_str().is_none_or(str::is_empty);
                match (rest, is_whole) {
                    (None, false) => self.failures.push(format!("{path}: nobody says how many there are")),
                    (rest, _) => {
                        let items = i64::try_from(items).unwrap_or(i64::MAX);
                        self.put(limited, items.saturating_add(rest.unwrap_or(0)));
                    }
                }
            }
            Some(Err(None)) | None => {}
            Some(Err(Some(why))) => self.failures.push(format!("{path}: {why}")),
        }
    }

    /// Where the objects are. None: that has to be asked first, or nobody serves them.
    fn path(&mut self, namespace: &str, storage: &str, done: &Done) -> Option<String> {
        let Some((plural, group)) = storage.split_once('.') else {
            return Some(format!("/api/v1/namespaces/{namespace}/{storage}?limit=1"));
        };
        let asked = format!("/apis/{group}");
        match self.ask(&asked, done)? {
            Ok(answer) => {
                let version = answer["preferredVersion"]["groupVersion"].as_str()?;
                Some(format!("/apis/{version}/namespaces/{namespace}/{plural}?limit=1"))
            }
            Err(None) => None,
            Err(Some(why)) => {
                self.failures.push(format!("{asked}: {why}"));
                None
            }
        }
    }

    /// The answer to a question, which is asked if it was not yet. Err without a word: there is no such thing.
    fn ask(&mut self, path: &str, done: &Done) -> Option<Result<Value, Option<String>>> {
        match done.answer(path) {
            None => {
                self.questions.push(Act::Get { path: path.to_owned() });
                None
            }
            Some(Outcome::Done(answer)) => Some(Ok(serde_json::from_slice(answer).unwrap_or_default())),
            Some(Outcome::Failed(refusal)) if refusal.why == Why::NotFound => Some(Err(None)),
            Some(Outcome::Failed(refusal)) => Some(Err(Some(refusal.to_string()))),
            Some(Outcome::Skipped) => Some(Err(Some("not asked".to_owned()))),
        }
    }

    fn put(&mut self, limited: &[&str], number: i64) {
        self.used
            .extend(limited.iter().map(|resource| ((*resource).to_owned(), Quantity::from_value(number))));
    }
}

/// The cache that holds objects of this storage.
fn cached(storage: &str) -> Option<Resource> {
    let mut all = RESOURCE_QUOTA.watches.iter().map(|watch| watch.resource);
    all.find(|resource| resource.to_string() == storage)
}

fn list(amounts: &Amounts) -> Value {
    amounts.iter().map(|(name, amount)| (name.clone(), Value::from(amount.to_string()))).collect()
}

/// A quota that is new, or limits something else now. What the API server adds to its status wakes nobody.
fn quotas(change: &Change, _: &dyn View, wakes: &mut Wakes) {
    let Some(new) = &change.new else { return };
    let spec = |quota: &Object| quota.value()["spec"].take();
    if change.old.as_ref().is_none_or(|old| spec(old) != spec(new)) {
        wakes.add(Key::of(new));
    }
}

/// Something is gone: whatever limits its kind is counted again.
fn gone(change: &Change, view: &dyn View, wakes: &mut Wakes) {
    if let Some(old) = change.old.as_ref().filter(|_| change.is_deletion()) {
        wake_limits(old, view, wakes);
    }
}

/// Something is gone, or does not use any more what it did.
fn ended(change: &Change, view: &dyn View, wakes: &mut Wakes) {
    let (Some(old), Some(new)) = (&change.old, &change.new) else { return gone(change, view, wakes) };
    if view.list(RESOURCE_QUOTAS, &old.meta.namespace).is_empty() {
        return;
    }
    let storage = old.meta.resource.to_string();
    let (before, after) = (old.value(), new.value());
    let is_same = usage::of(&storage, &before, None) == usage::of(&storage, &after, None)
        && (storage != "pods" || usage::scopes(&before) == usage::scopes(&after));
    if !is_same {
        wake_limits(old, view, wakes);
    }
}

fn wake_limits(object: &Object, view: &dyn View, wakes: &mut Wakes) {
    let storage = object.meta.resource.to_string();
    for quota in view.list(RESOURCE_QUOTAS, &object.meta.namespace) {
        let value = quota.value();
        let hard = value["spec"]["hard"].as_object();
        if hard.is_some_and(|hard| hard.keys().any(|resource| usage::storage_of(resource) == storage)) {
            wakes.add(Key::of(&quota));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Draft, NAMESPACE, World, at, draft, pod};

    fn quota(hard: Value) -> Draft {
        draft(RESOURCE_QUOTAS, "q").set("/spec/hard", hard)
    }

    fn controller() -> Quotas {
        Quotas { period: Some(Duration::from_secs(300)) }
    }

    fn asks(name: &str, cpu: &str) -> Draft {
        pod(name).set("/spec/containers", json!([{"name": "c", "resources": {"requests": {"cpu": cpu}}}]))
    }

    fn status(world: &World) -> Value {
        world.get(RESOURCE_QUOTAS, "q").value()["status"].take()
    }

    #[test]
    fn what_is_there_is_counted_and_written_once() {
        let service = draft(SERVICES, "s").set("/spec", json!({"type": "NodePort", "ports": [{}, {}]}));
        let claim = draft(PERSISTENT_VOLUME_CLAIMS, "c")
            .set("/spec", json!({"storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}}));
        let hard = json!({"pods": "5", "requests.cpu": "3", "count/pods": "9", "services.nodeports": "2",
            "requests.storage": "2Gi", "fast.storageclass.storage.k8s.io/persistentvolumeclaims": "1",
            "slow.storageclass.storage.k8s.io/requests.storage": "1Gi", "count/deployments.apps": "4",
            "configmaps": "7"});
        let mut world = World::new([
            quota(hard.clone()),
            asks("a", "500m").running(),
            asks("b", "1"),
            asks("over", "8").phase("Succeeded"),
            service,
            claim,
            draft(DEPLOYMENTS, "d"),
        ]);
        let ran = world.sync(&mut controller(), "q", at(10));
        assert_eq!(ran.said, ["update resourcequotas/status ns/q"]);
        assert_eq!(ran.wake, Some(Duration::from_secs(300)));
        let status = status(&world);
        assert_eq!(status["hard"], hard);
        assert_eq!(
            status["used"],
            json!({"pods": "2", "requests.cpu": "1500m", "count/pods": "3", "services.nodeports": "2",
                "requests.storage": "1Gi", "fast.storageclass.storage.k8s.io/persistentvolumeclaims": "1",
                "slow.storageclass.storage.k8s.io/requests.storage": "0", "count/deployments.apps": "1",
                "configmaps": "0"})
        );
        assert!(world.sync(&mut controller(), "q", at(11)).said.is_empty(), "nothing has changed");
    }

    #[test]
    fn a_pod_that_should_be_gone_long_ago_uses_nothing() {
        let stuck = asks("a", "1").deleting(true).set("/metadata/deletionGracePeriodSeconds", json!(30));
        for (now, used) in [(20, "1"), (40, "0")] {
            let mut world = World::new([quota(json!({"requests.cpu": "3"})), stuck.clone()]);
            world.sync(&mut controller(), "q", at(now));
            assert_eq!(status(&world)["used"]["requests.cpu"], used);
        }
    }

    #[test]
    fn scopes_choose_what_is_counted() {
        let best_effort = pod("a").set("/spec/containers", json!([{"name": "c"}]));
        let limited = quota(json!({"pods": "3"})).set("/spec/scopes", json!(["BestEffort"]));
        let mut world = World::new([limited, best_effort, asks("b", "1")]);
        world.sync(&mut controller(), "q", at(1));
        assert_eq!(status(&world)["used"], json!({"pods": "1"}));
    }

    #[test]
    fn kinds_without_a_cache_are_asked_for() {
        const GROUP: &str = "/apis/example.com";
        const LIST: &str = "/apis/example.com/v2/namespaces/ns/widgets?limit=1";
        let group = json!({"preferredVersion": {"groupVersion": "example.com/v2"}});
        let many = json!({"metadata": {"continue": "x", "remainingItemCount": 6}, "items": [{}]});
        let hard = json!({"count/widgets.example.com": "9", "count/ingresses.networking.k8s.io": "1"});
        let mut world = World::new([quota(hard.clone())]);
        world.answers.insert(GROUP.into(), group.clone());
        world.answers.insert(LIST.into(), many);
        let ran = world.sync(&mut controller(), "q", at(1));
        assert_eq!(ran.wake, Some(UNTOLD));
        assert_eq!(ran.said.last().map(String::as_str), Some("update resourcequotas/status ns/q"));
        // A kind that nobody serves is not counted, and is no failure.
        assert_eq!(
            (ran.failure, &status(&world)["used"]),
            (None, &json!({"count/widgets.example.com": "7"}))
        );
        world.answers.insert(LIST.into(), json!({"metadata": {}, "items": []}));
        world.sync(&mut controller(), "q", at(2));
        assert_eq!(status(&world)["used"], json!({"count/widgets.example.com": "0"}));
        // Who says that there is more and not how much leaves the count as it was.
        world.answers.insert(LIST.into(), json!({"metadata": {"continue": "x"}, "items": [{}]}));
        let ran = world.sync(&mut controller(), "q", at(3));
        assert!(ran.failure.is_some_and(|why| why.contains("how many")));
        assert_eq!(status(&world)["used"], json!({"count/widgets.example.com": "0"}));
    }

    #[test]
    fn only_what_makes_a_count_wrong_wakes_a_quota() {
        let hard = json!({"pods": "5", "services": "1"});
        let world = World::new([quota(hard.clone())]);
        let wakes = |old: Option<&Draft>, new: Option<&Draft>| {
            !world.wakes(RESOURCE_QUOTA.watches, old, new).is_empty()
        };
        let running = asks("a", "1").running();
        for (row, old, new, wakes_it) in [
            ("a new quota", None, Some(quota(hard.clone())), true),
            ("another limit", Some(quota(hard.clone())), Some(quota(json!({"pods": "6"}))), true),
            (
                "a status",
                Some(quota(hard.clone())),
                Some(quota(hard.clone()).set("/status/used", json!({"pods": "1"}))),
                false,
            ),
            ("a new Pod", None, Some(running.clone()), false),
            ("a Pod that runs on", Some(asks("a", "1")), Some(running.clone()), false),
            ("a Pod that ended", Some(running.clone()), Some(asks("a", "1").phase("Failed")), true),
            ("a Pod that was resized", Some(running.clone()), Some(asks("a", "2").running()), true),
            (
                "a deadline",
                Some(running.clone()),
                Some(running.clone().set("/spec/activeDeadlineSeconds", json!(5))),
                true,
            ),
            ("a Pod that is gone", Some(running.clone()), None, true),
            ("a kind that is not limited", Some(draft(CONFIG_MAPS, "m")), None, false),
            (
                "another type of Service",
                Some(draft(SERVICES, "s").set("/spec", json!({"type": "ClusterIP", "ports": [{}]}))),
                Some(draft(SERVICES, "s").set("/spec", json!({"type": "NodePort", "ports": [{}]}))),
                true,
            ),
        ] {
            assert_eq!(wakes(old.as_ref(), new.as_ref()), wakes_it, "{row}");
        }
        let elsewhere = running.set("/metadata/namespace", json!("other"));
        assert!(!wakes(Some(&elsewhere), None), "another namespace than {NAMESPACE}");
    }
}
