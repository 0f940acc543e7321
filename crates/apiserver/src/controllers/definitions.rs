//! CustomResourceDefinitions: the kinds they bring are served while they are there, and go with them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::registry::Registry;
use crate::registry::relocate;
use crate::registry::watch::Event;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::call::Call;
use apiserver_core::catalog::Catalog;
use apiserver_core::custom;
use apiserver_core::doc;
use apiserver_core::kind::Kind;
use apiserver_core::kinds::custom_resource_definition as definition;
use apiserver_core::kinds::definition_names::Taken;
use apiserver_core::meta;
use apiserver_core::options::{DeleteOptions, ListOptions, Propagation};
use apiserver_core::selection::{Selection, present};

/// Holds a definition until the objects of its kind are gone.
const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";
const RETRY: Duration = Duration::from_secs(1);
/// How often objects that are to go are looked for again: finalizers of others take their time.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Follows definitions until the store closes.
pub(crate) async fn run(registry: Registry) {
    loop {
        if let Err(api_status) = follow(&registry).await {
            tracing::warn!(error = %api_status.message, "following custom kinds failed; starting over");
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Brings a store of an earlier release into today's order and serves the custom kinds. At start, before the first
/// request.
pub(crate) async fn prepare(registry: &Registry) -> Result<(), ApiStatus> {
    for object in all(registry).await? {
        relocate::relocate(registry, &object).await?;
    }
    settle(registry, None).await
}

/// Gives the definitions of these groups, or of all, the names they can have, and serves what is established.
async fn settle(registry: &Registry, groups: Option<&BTreeSet<String>>) -> Result<(), ApiStatus> {
    let mut definitions = all(registry).await?;
    // One after the other: a name that somebody gave up may be what another waits for.
    for i in 0..definitions.len() {
        let object = &definitions[i];
        let is_wanted = groups.is_none_or(|groups| groups.contains(doc::text(object, "spec.group")));
        if !is_wanted || meta::is_deleting(object) {
            continue;
        }
        let was_served = definition::is_established(object);
        let Some(object) = begin(registry, object, &definitions).await? else { continue };
        if was_served && !definition::is_established(&object) {
            tracing::error!(
                definition = meta::name(&object),
                "a definition has names of the server's own kinds; its kind is served no more"
            );
        }
        definitions[i] = object;
    }
    let mut served: Vec<Arc<Kind>> = registry.catalog().kinds().filter(|k| !k.is_custom()).cloned().collect();
    let established = definitions.iter().filter(|object| definition::is_established(object));
    served.extend(established.flat_map(custom::kinds).map(Arc::new));
    let catalog = Catalog::new(served);
    for kind in catalog.left_out() {
        tracing::warn!(resource = kind.resource_name(), "not served: what it is called is another's");
    }
    registry.set_catalog(catalog);
    Ok(())
}

async fn all(registry: &Registry) -> Result<Vec<Value>, ApiStatus> {
    let kind = definitions(registry)?;
    let (documents, _) = registry.list_all(Selection::all(kind.clone())).await?;
    Ok(documents.iter().map(|d| present(&kind, d)).collect())
}

fn definitions(registry: &Registry) -> Result<Arc<Kind>, ApiStatus> {
    registry.kind("apiextensions.k8s.io", "v1", "customresourcedefinitions")
}

async fn follow(registry: &Registry) -> Result<(), ApiStatus> {
    let selection = Selection::all(definitions(registry)?);
    let mut watch = registry.watch(selection, &ListOptions::default()).await?;
    // Definitions that wait for their objects to go, and when to look again.
    let mut ending: BTreeMap<String, Instant> = BTreeMap::new();
    loop {
        let due = ending.values().min().copied();
        let due = due.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
        let mut event = tokio::select! {
            event = watch.next() => event,
            () = tokio::time::sleep_until(due) => {
                look_again(registry, &mut ending).await?;
                continue;
            }
        };
        if event.is_none() {
            return Err(ApiStatus::unavailable("the watch ended"));
        }
        // Whatever is at hand is settled at once.
        let mut groups = BTreeSet::new();
        while let Some(told) = event {
            let object = match told {
                Event::Added(document) | Event::Modified(document) => {
                    let object = document.to_value();
                    if meta::is_deleting(&object) {
                        ending.entry(meta::name(&object).to_owned()).or_insert_with(Instant::now);
                    }
                    object
                }
                Event::Deleted(document) => {
                    let object = document.to_value();
                    ending.remove(meta::name(&object));
                    object
                }
                Event::Bookmark { .. } => Value::Null,
                Event::Failed(api_status) => return Err(api_status),
            };
            groups.insert(doc::text(&object, "spec.group").to_owned());
            event = watch.try_next();
        }
        settle(registry, Some(&groups)).await?;
    }
}

async fn look_again(registry: &Registry, ending: &mut BTreeMap<String, Instant>) -> Result<(), ApiStatus> {
    let now = Instant::now();
    let due: Vec<String> =
        ending.iter().filter(|(_, at)| **at <= now).map(|(name, _)| name.clone()).collect();
    for name in due {
        if end(registry, &name).await? {
            ending.remove(&name);
        } else {
            ending.insert(name, Instant::now() + LOOK_AGAIN);
        }
    }
    Ok(())
}

/// Gives a definition the names it can have. None when it is gone.
async fn begin(
    registry: &Registry,
    object: &Value,
    definitions: &[Value],
) -> Result<Option<Value>, ApiStatus> {
    let catalog = registry.catalog();
    let taken = Taken::new(object, catalog.kinds().map(|kind| &**kind), definitions);
    let (kind, now) = (self::definitions(registry)?, registry.now());
    registry
        .rewrite(&kind, "", meta::name(object), |object| {
            if meta::is_deleting(object) {
                return Ok(false);
            }
            let held = meta::finalizers(object).any(|f| f == CLEANUP);
            let verdict = taken.judge(object);
            let changed = definition::establish(object, &verdict, now);
            meta::set_finalizer(object, CLEANUP, true);
            Ok(changed || !held)
        })
        .await
}

/// Deletes the objects of a kind that goes; when there are none left, lets the definition go. Whether it was let go.
async fn end(registry: &Registry, name: &str) -> Result<bool, ApiStatus> {
    let options = DeleteOptions { propagation: Some(Propagation::Background), ..DeleteOptions::default() };
    let kind = definitions(registry)?;
    let Some(document) = registry.find(&kind, "", name).await? else { return Ok(true) };
    let object = present(&kind, &document);
    if let Some(objects) = custom::stored_kind(&object).map(Arc::new) {
        let (documents, _) = registry.list_all(Selection::all(objects.clone())).await?;
        let mut is_empty = true;
        for document in documents {
            let value = present(&objects, &document);
            let mut call =
                Call::internal(objects.clone(), "delete", meta::namespace(&value), meta::name(&value));
            match registry.delete(&mut call, &options).await {
                Ok(deletion) => is_empty &= deletion.done,
                Err(api_status) if api_status.is_not_found() => {}
                Err(api_status) => return Err(api_status),
            }
        }
        if !is_empty {
            return Ok(false);
        }
    }
    let left = registry
        .rewrite(&kind, "", name, |object| {
            let held = meta::finalizers(object).any(|f| f == CLEANUP);
            meta::set_finalizer(object, CLEANUP, false);
            Ok(held)
        })
        .await?;
    if let Some(object) = left
        && meta::finalizers(&object).next().is_none()
    {
        let version = meta::text(&object, "resourceVersion").parse().unwrap_or_default();
        registry.remove(&kind, "", name, version).await?;
    }
    Ok(true)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
