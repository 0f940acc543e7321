//! ResourceQuota: a namespace does not use more than it was given. What is used stands in the quota's status: a write
//! reserves its part there first, in one transaction over all quotas it falls under; what was given back is counted
//! again when something ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::quota::amounts::{Amounts, amounts};
use api::quota::usage;
use apiserver_core::admission::{Operation, Review};
use base::quantity::Quantity;
use serde_json::{Value, json};

use super::Chain;
use crate::objects::{Objects, Stored, decode_bytes, places};
use crate::store_errors;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::doc;
use apiserver_core::kind::Kind;
use store::{Change, ChangeKind, Expect, ListOptions, WatchError};

/// Lost races before a write is sent back.
const TRIES: usize = 16;
/// All quotas are counted again this often, whatever happened.
const RECOUNT: Duration = Duration::from_secs(300);

pub(super) async fn validate(chain: &Chain, review: &Review<'_>, object: &Value) -> Result<(), ApiStatus> {
    let resize = review.is_at("", "pods") && review.subresource() == "resize";
    if review.namespace().is_empty() || !(review.subresource().is_empty() || resize) {
        return Ok(());
    }
    let storage = review.kind.storage.as_ref();
    let new = usage::of(storage, object, None);
    let old = review.old.map(|old| usage::of(storage, old, None)).unwrap_or_default();
    if !counts_differently(review, object) {
        return Ok(());
    }
    for _ in 0..TRIES {
        let quotas = chain.objects.list(places::RESOURCE_QUOTAS, review.namespace()).await?;
        let mut writes = Vec::new();
        for Stored { object: quota, rev } in quotas {
            if let Some(next) = charge(chain, review, object, &quota, (&new, &old)).await? {
                writes.push((places::RESOURCE_QUOTAS, next, Expect::Rev(rev)));
            }
        }
        if review.operation == Operation::Create && !writes.is_empty() {
            refuse_existing(chain, review, object).await?;
        }
        if review.dry_run || chain.objects.put_all(writes).await? {
            return Ok(());
        }
    }
    Err(ApiStatus::conflict(
        review.kind,
        review.name(object),
        "the resource quotas of the namespace keep changing",
    ))
}

/// What was charged for a write that did not come about is given back.
pub(super) async fn give_back(chain: &Chain, review: &Review<'_>, object: &Value) {
    let namespace = review.namespace();
    if namespace.is_empty() || review.dry_run || !counts_differently(review, object) {
        return;
    }
    if let Err(api_status) = recount(&chain.objects, namespace).await {
        tracing::warn!(namespace, error = %api_status.message, "counting for resource quotas failed");
    }
}

/// Whether a write changes what quotas count: more, less, or under others.
fn counts_differently(review: &Review<'_>, object: &Value) -> bool {
    let storage = review.kind.storage.as_ref();
    let Some(old) = review.old.filter(|_| review.operation == Operation::Update) else { return true };
    usage::of(storage, object, None) != usage::of(storage, old, None)
        || (storage == "pods" && usage::scopes(object) != usage::scopes(old))
        || (storage == "persistentvolumeclaims"
            && usage::volume_attributes_classes(object) != usage::volume_attributes_classes(old))
}

/// What is there already cannot be created; it must not be charged again for the attempt.
async fn refuse_existing(chain: &Chain, review: &Review<'_>, object: &Value) -> Result<(), ApiStatus> {
    let name = doc::text(object, "metadata.name");
    let key = format!("{}{}/{name}", review.kind.place(), review.namespace());
    match chain.objects.store().get(&key).await.map_err(|e| store_errors::of_read(&e))? {
        Some(_) => Err(ApiStatus::already_exists(review.kind, name)),
        None => Ok(()),
    }
}

/// The quota with the object's part in it; None when the object is none of its business.
async fn charge(
    chain: &Chain,
    review: &Review<'_>,
    object: &Value,
    quota: &Value,
    (new, old): (&Amounts, &Amounts),
) -> Result<Option<Value>, ApiStatus> {
    let storage = review.kind.storage.as_ref();
    let hard = amounts(&quota["spec"]["hard"]);
    let limited: BTreeSet<&str> =
        hard.keys().map(String::as_str).filter(|r| usage::storage_of(r) == storage).collect();
    if limited.is_empty() {
        return Ok(None);
    }
    let now_in = usage::is_in_scope(quota, storage, object);
    let was_in = review.old.is_some_and(|old| usage::is_in_scope(quota, storage, old));
    if !now_in && !was_in {
        return Ok(None);
    }
    let name = doc::text(quota, "metadata.name");
    if storage == "pods"
        && now_in
        && let Some(why) = usage::unsaid(&limited, object)
    {
        return Err(review.forbid(object, &format!("failed quota: {name}: {why}")));
    }
    let counted = amounts(&quota["status"]["hard"]) == hard;
    let mut used =
        if counted { amounts(&quota["status"]["used"]) } else { count(&chain.objects, quota).await? };
    let nothing = Amounts::new();
    let (new, old) = (if now_in { new } else { &nothing }, if was_in { old } else { &nothing });
    let zero = Quantity::ZERO;
    let (mut asked, mut had, mut over) = (Amounts::new(), Amounts::new(), Amounts::new());
    for resource in limited {
        let part = |of: &Amounts| of.get(resource).copied().unwrap_or(zero);
        let change = part(new).minus(part(old));
        let before = part(&used);
        let after = before.plus(change);
        if change > zero && after > part(&hard) {
            asked.insert(resource.to_owned(), change);
            had.insert(resource.to_owned(), before);
            over.insert(resource.to_owned(), part(&hard));
        }
        used.insert(resource.to_owned(), after.max(zero));
    }
    if !asked.is_empty() {
        let why = format!(
            "exceeded quota: {name}, requested: {}, used: {}, limited: {}",
            listed(&asked),
            listed(&had),
            listed(&over)
        );
        return Err(review.forbid(object, &why));
    }
    let next = with_status(quota, &hard, &used);
    Ok((next["status"] != quota["status"]).then_some(next))
}

/// Keeps the counts true: runs until the store closes.
pub async fn follow(objects: Objects) {
    loop {
        let revision = objects.store().revision();
        if let Err(api_status) = recount_all(&objects).await {
            tracing::warn!(error = %api_status.message, "counting for resource quotas failed");
        }
        let until = tokio::time::Instant::now() + RECOUNT;
        match tokio::time::timeout_at(until, watch(&objects, revision)).await {
            Err(_) | Ok(WatchError::Compacted(_)) => {}
            Ok(WatchError::Fault(_)) => return,
        }
    }
}

/// Counts a namespace's quotas again and writes what differs.
pub async fn recount(objects: &Objects, namespace: &str) -> Result<(), ApiStatus> {
    for Stored { object: quota, rev } in objects.list(places::RESOURCE_QUOTAS, namespace).await? {
        let hard = amounts(&quota["spec"]["hard"]);
        let next = with_status(&quota, &hard, &count(objects, &quota).await?);
        if next["status"] != quota["status"] {
            // A lost race means that somebody wrote a newer count; their change brings us here again.
            objects.put(places::RESOURCE_QUOTAS, &next, Expect::Rev(rev)).await?;
        }
    }
    Ok(())
}

async fn recount_all(objects: &Objects) -> Result<(), ApiStatus> {
    for namespace in with_quotas(objects).await? {
        recount(objects, &namespace).await?;
    }
    Ok(())
}

async fn with_quotas(objects: &Objects) -> Result<BTreeSet<String>, ApiStatus> {
    let all = objects.list(places::RESOURCE_QUOTAS, "").await?;
    Ok(all.iter().map(|q| doc::text(&q.object, "metadata.namespace").to_owned()).collect())
}

async fn watch(objects: &Objects, revision: u64) -> WatchError {
    let mut watch = match objects.store().watch("/", revision) {
        Ok(watch) => watch,
        Err(compacted) => return WatchError::Compacted(compacted),
    };
    let Ok(mut limited) = with_quotas(objects).await else {
        return WatchError::Compacted(store::Compacted { requested: revision, compacted: revision });
    };
    loop {
        let mut dirty = BTreeSet::new();
        let mut next = match watch.next().await {
            Ok(change) => Some(change),
            Err(error) => return error,
        };
        // Whatever is at hand is counted once.
        while let Some(change) = next {
            dirty.extend(touched(&change, &mut limited));
            next = watch.try_next();
        }
        for namespace in dirty {
            if let Err(api_status) = recount(objects, &namespace).await {
                tracing::warn!(namespace, error = %api_status.message, "counting for resource quotas failed");
            }
        }
    }
}

/// The namespace whose counts a change makes wrong: something ended there, or its quota changed.
fn touched(change: &Change, limited: &mut BTreeSet<String>) -> Option<String> {
    let (is_custom, storage, rest) = Kind::split_place(&change.key)?;
    let (namespace, _name) = rest.split_once('/')?;
    if !is_custom && storage == places::RESOURCE_QUOTAS.storage {
        limited.insert(namespace.to_owned());
        let spec = |bytes: &bytes::Bytes| decode_bytes(bytes).map(|o| o["spec"].clone()).unwrap_or_default();
        let same = change.previous.as_ref().is_some_and(|p| spec(p) == spec(&change.value));
        return (change.kind != ChangeKind::Updated || !same).then(|| namespace.to_owned());
    }
    if !limited.contains(namespace) {
        return None;
    }
    let ended = match change.kind {
        ChangeKind::Deleted => true,
        ChangeKind::Created => false,
        ChangeKind::Updated => {
            let used = |bytes: &bytes::Bytes| decode_bytes(bytes).map(|o| usage::of(storage, &o, None)).ok();
            change.previous.as_ref().is_some_and(|p| used(p) != used(&change.value))
        }
    };
    ended.then(|| namespace.to_owned())
}

/// What is used of everything the quota limits, by looking at all objects.
async fn count(objects: &Objects, quota: &Value) -> Result<Amounts, ApiStatus> {
    let namespace = doc::text(quota, "metadata.namespace");
    let hard = amounts(&quota["spec"]["hard"]);
    let mut used: Amounts = hard.keys().map(|r| (r.clone(), Quantity::ZERO)).collect();
    let mut by_storage: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for resource in hard.keys() {
        by_storage.entry(usage::storage_of(resource)).or_default().push(resource);
    }
    // A resource is the server's or a definition's; the place that is not its own is empty.
    let mut places = Vec::new();
    for (storage, limited) in &by_storage {
        for root in Kind::ROOTS {
            places.push((format!("{root}{storage}/{namespace}/"), *storage, limited));
        }
    }
    for (prefix, storage, limited) in places {
        let mut options = ListOptions { prefix: prefix.into(), limit: 500, ..ListOptions::default() };
        loop {
            let page = objects.store().list(options.clone()).await.map_err(|e| store_errors::of_read(&e))?;
            for entry in &page.entries {
                let Ok(object) = decode_bytes(&entry.value) else { continue };
                if !usage::is_in_scope(quota, storage, &object) {
                    continue;
                }
                let uses = usage::of(storage, &object, None);
                for resource in limited {
                    if let (Some(slot), Some(part)) = (used.get_mut(*resource), uses.get(*resource)) {
                        *slot = slot.plus(*part);
                    }
                }
            }
            match page.entries.last() {
                Some(last) if page.more => {
                    options.after = Some(last.key.clone());
                    options.at = Some(page.revision);
                }
                _ => break,
            }
        }
    }
    Ok(used)
}

fn with_status(quota: &Value, hard: &Amounts, used: &Amounts) -> Value {
    let list = |amounts: &Amounts| -> Value {
        amounts.iter().map(|(k, v)| (k.clone(), Value::from(v.to_string()))).collect()
    };
    let used: Amounts =
        used.iter().filter(|(k, _)| hard.contains_key(*k)).map(|(k, v)| (k.clone(), *v)).collect();
    let mut next = quota.clone();
    next["status"] = json!({"hard": list(hard), "used": list(&used)});
    next
}

/// `cpu=1,pods=2`
fn listed(amounts: &Amounts) -> String {
    let parts: Vec<String> = amounts.iter().map(|(k, v)| format!("{k}={v}")).collect();
    parts.join(",")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::testing::{Ask, Bench};
    use super::*;

    async fn bench(hard: Value) -> Bench {
        let quota = json!({"metadata": {"name": "q", "namespace": "web"}, "spec": {"hard": hard}});
        Bench::with(&[(places::RESOURCE_QUOTAS, quota)]).await
    }

    fn pod(name: &str, cpu: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "web"},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}})
    }

    async fn used(bench: &Bench) -> Value {
        bench.scratch.objects.find(places::RESOURCE_QUOTAS, "web", "q").await.unwrap().unwrap().object["status"]["used"].clone()
    }

    async fn create(bench: &Bench, pod: &Value) -> Result<(), ApiStatus> {
        validate(&bench.chain, &Ask::create("", "pods", "web").review(), pod).await?;
        bench.scratch.objects.put(places::PODS, pod, Expect::Absent).await.map(drop)
    }

    #[tokio::test]
    async fn a_namespace_gets_no_more_than_its_quota() {
        let bench = bench(json!({"requests.cpu": "2", "pods": "10"})).await;
        create(&bench, &pod("a", "1500m")).await.unwrap();
        assert_eq!(used(&bench).await, json!({"pods": "1", "requests.cpu": "1500m"}));
        let api_status = create(&bench, &pod("b", "1")).await.unwrap_err();
        assert_eq!(
            api_status.message,
            "pods \"b\" is forbidden: exceeded quota: q, requested: requests.cpu=1, used: requests.cpu=1500m, \
             limited: requests.cpu=2"
        );
        let mut silent = pod("c", "1");
        silent["spec"]["containers"][0]["resources"] = json!({});
        let api_status = create(&bench, &silent).await.unwrap_err();
        assert!(api_status.message.ends_with("failed quota: q: must specify requests.cpu for: c"));
        create(&bench, &pod("d", "500m")).await.unwrap();
        bench.scratch.objects.delete(places::PODS, "web", "a", Expect::Any).await.unwrap();
        recount(&bench.scratch.objects, "web").await.unwrap();
        assert_eq!(used(&bench).await, json!({"pods": "1", "requests.cpu": "500m"}));
        create(&bench, &pod("e", "1")).await.unwrap();
    }

    #[tokio::test]
    async fn writers_at_once_cannot_share_the_last_place() {
        let bench = bench(json!({"pods": "3"})).await;
        let pods: Vec<Value> = (0..8).map(|i| pod(&format!("p{i}"), "1")).collect();
        let asks: Vec<Ask> = pods.iter().map(|_| Ask::create("", "pods", "web")).collect();
        let reviews: Vec<Review<'_>> = asks.iter().map(Ask::review).collect();
        let all = reviews.iter().zip(&pods).map(|(review, pod)| validate(&bench.chain, review, pod));
        let outcomes = futures_util::future::join_all(all).await;
        assert_eq!(outcomes.iter().filter(|o| o.is_ok()).count(), 3);
        assert_eq!(used(&bench).await, json!({"pods": "3"}));
    }

    #[tokio::test]
    async fn a_dry_run_reserves_nothing_and_an_unchanged_update_costs_nothing() {
        let bench = bench(json!({"pods": "1"})).await;
        let ask = Ask::create("", "pods", "web");
        let review = Review { dry_run: true, ..ask.review() };
        validate(&bench.chain, &review, &pod("a", "1")).await.unwrap();
        assert_eq!(used(&bench).await, Value::Null);
        create(&bench, &pod("a", "1")).await.unwrap();
        let ask = Ask::create("", "pods", "web").update(pod("a", "1"));
        validate(&bench.chain, &ask.review(), &pod("a", "1")).await.unwrap();
        assert_eq!(used(&bench).await, json!({"pods": "1"}));
    }

    #[tokio::test]
    async fn an_update_that_moves_a_pod_into_a_scope_is_charged_and_one_that_moves_it_out_is_not() {
        let quota = |name: &str, scope: &str| json!({"metadata": {"name": name, "namespace": "web"}, "spec": {"hard": {"pods": "1"}, "scopes": [scope]}});
        let quotas = [quota("q", "Terminating"), quota("r", "NotTerminating")];
        let bench = Bench::with(&quotas.map(|q| (places::RESOURCE_QUOTAS, q))).await;
        let used = async |name: &str| {
            let found = bench.scratch.objects.find(places::RESOURCE_QUOTAS, "web", name).await.unwrap();
            found.unwrap().object["status"]["used"]["pods"].clone()
        };
        let with_deadline = |mut pod: Value| {
            pod["spec"]["activeDeadlineSeconds"] = 60.into();
            pod
        };
        create(&bench, &pod("a", "1")).await.unwrap();
        assert_eq!(used("r").await, "1");
        let ask = Ask::create("", "pods", "web").update(pod("a", "1"));
        validate(&bench.chain, &ask.review(), &with_deadline(pod("a", "1"))).await.unwrap();
        assert_eq!((used("q").await, used("r").await), (json!("1"), json!("0")));
        // The scope is full now: nobody else may move into it.
        create(&bench, &pod("b", "1")).await.unwrap();
        let ask = Ask::create("", "pods", "web").update(pod("b", "1"));
        let api_status =
            validate(&bench.chain, &ask.review(), &with_deadline(pod("b", "1"))).await.unwrap_err();
        assert!(
            api_status
                .message
                .contains("exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1")
        );
    }

    #[tokio::test]
    async fn a_create_that_meets_an_object_of_its_name_costs_nothing() {
        let bench = bench(json!({"pods": "5"})).await;
        create(&bench, &pod("a", "1")).await.unwrap();
        let api_status = create(&bench, &pod("a", "1")).await.unwrap_err();
        assert_eq!(api_status.reason, "AlreadyExists");
        assert_eq!(used(&bench).await, json!({"pods": "1"}));
        // Two at once: both are charged before one of them is late.
        let (ask, late) = (Ask::create("", "pods", "web"), pod("b", "1"));
        validate(&bench.chain, &ask.review(), &late).await.unwrap();
        create(&bench, &late).await.unwrap();
        assert_eq!(used(&bench).await, json!({"pods": "3"}));
        give_back(&bench.chain, &ask.review(), &late).await;
        assert_eq!(used(&bench).await, json!({"pods": "2"}));
    }
}
