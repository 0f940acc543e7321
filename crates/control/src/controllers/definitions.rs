//! CustomResourceDefinitions: the kinds they bring are served while they are there, and go with them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::custom;
use crate::doc;
use crate::kind::Kind;
use crate::kinds::custom_resource_definition as definition;
use crate::refusal::Refusal;
use crate::registry::catalog::Catalog;
use crate::registry::options::{DeleteOptions, ListOptions, Propagation};
use crate::registry::selection::{Selection, present};
use crate::registry::watch::Event;
use crate::registry::{Call, Registry, meta};

/// Holds a definition until the objects of its kind are gone.
const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";
const RETRY: Duration = Duration::from_secs(1);

/// Follows definitions until the store closes.
pub(crate) async fn run(registry: Registry) {
    loop {
        if let Err(refusal) = follow(&registry).await {
            tracing::warn!(error = %refusal.message, "following custom kinds failed; starting over");
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Serves, besides the built-in kinds, those of all definitions that are established. At start, before the first request.
pub(crate) async fn load(registry: &Registry) -> Result<(), Refusal> {
    let is_built_in = |kind: &&Arc<Kind>| kind.type_name.is_some();
    let mut served: Vec<Arc<Kind>> = registry.catalog().kinds().filter(is_built_in).cloned().collect();
    for object in all(registry).await? {
        if definition::is_established(&object) {
            served.extend(custom::kinds(&object).into_iter().map(Arc::new));
        }
    }
    registry.set_catalog(Catalog::new(served));
    Ok(())
}

async fn all(registry: &Registry) -> Result<Vec<Value>, Refusal> {
    let kind = definitions(registry)?;
    let (documents, _) = registry.list_all(Selection::all(kind.clone())).await?;
    Ok(documents.iter().map(|d| present(&kind, d)).collect())
}

fn definitions(registry: &Registry) -> Result<Arc<Kind>, Refusal> {
    registry.kind("apiextensions.k8s.io", "v1", "customresourcedefinitions")
}

async fn follow(registry: &Registry) -> Result<(), Refusal> {
    let selection = Selection::all(definitions(registry)?);
    let mut watch = registry.watch(selection, &ListOptions::default()).await?;
    while let Some(event) = watch.next().await {
        match event {
            Event::Added(document) | Event::Modified(document) => {
                let object = document.to_value();
                if meta::is_deleting(&object) {
                    end(registry, &object).await?;
                } else {
                    begin(registry, meta::name(&object)).await?;
                    load(registry).await?;
                }
            }
            Event::Deleted(_) => load(registry).await?,
            Event::Bookmark { .. } => {}
            Event::Failed(refusal) => return Err(refusal),
        }
    }
    Err(Refusal::unavailable("the watch ended"))
}

/// Accepts the names of a definition, if nobody else has them.
async fn begin(registry: &Registry, name: &str) -> Result<(), Refusal> {
    let others = all(registry).await?;
    let (kind, now) = (definitions(registry)?, registry.now());
    registry
        .rewrite(&kind, "", name, |object| {
            let conflict = conflict(object, &others);
            let held = meta::finalizers(object).any(|f| f == CLEANUP);
            let changed = definition::establish(object, conflict.as_deref(), now);
            meta::set_finalizer(object, CLEANUP, true);
            Ok(changed || !held)
        })
        .await
        .map(drop)
}

/// Why its names cannot be taken.
fn conflict(object: &Value, others: &[Value]) -> Option<String> {
    let group = doc::text(object, "spec.group");
    let rivals = others.iter().filter(|o| {
        doc::text(o, "spec.group") == group
            && meta::name(o) != meta::name(object)
            && definition::is_established(o)
    });
    for rival in rivals {
        for field in ["kind", "listKind"] {
            let path = format!("spec.names.{field}");
            if doc::text(rival, &path) == doc::text(object, &path) {
                return Some(format!("{:?} is already in use", doc::text(object, &path)));
            }
        }
    }
    None
}

/// Deletes the objects of a kind that goes; when there are none left, lets the definition go.
async fn end(registry: &Registry, object: &Value) -> Result<(), Refusal> {
    let options = DeleteOptions { propagation: Some(Propagation::Background), ..DeleteOptions::default() };
    let catalog = registry.catalog();
    let storage = meta::name(object);
    if let Some(kind) = catalog.by_storage(storage).cloned() {
        loop {
            let (documents, _) = registry.list_all(Selection::all(kind.clone())).await?;
            if documents.is_empty() {
                break;
            }
            for document in documents {
                let value = present(&kind, &document);
                let mut call =
                    Call::internal(kind.clone(), "delete", meta::namespace(&value), meta::name(&value));
                match registry.delete(&mut call, &options).await {
                    Ok(_) => {}
                    Err(refusal) if refusal.reason == "NotFound" => {}
                    Err(refusal) => return Err(refusal),
                }
            }
            // Finalizers of others take their time.
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    let (kind, name) = (definitions(registry)?, meta::name(object));
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
    Ok(())
}
