//! Namespaces: what every one of them holds, and how one ends.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::doc;
use crate::refusal::Refusal;
use crate::registry::options::{DeleteOptions, ListOptions, Propagation};
use crate::registry::selection::{Selection, present};
use crate::registry::watch::Event;
use crate::registry::{Call, Registry, meta};

const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(5);
/// The finalizer that is ours to remove.
const OURS: &str = "kubernetes";

/// Follows all namespaces until the store closes.
pub(crate) async fn run(registry: Registry, root_ca: String) {
    let mut house = House { registry, root_ca, waiting: HashMap::new() };
    loop {
        if let Err(refusal) = house.follow().await {
            tracing::warn!(error = %refusal.message, "following namespaces failed; starting over");
            tokio::time::sleep(LAST_RETRY).await;
        }
    }
}

/// Makes sure that a namespace has its service account and knows the authority of this server.
pub(crate) async fn furnish(registry: &Registry, namespace: &str, root_ca: &str) -> Result<(), Refusal> {
    let accounts = registry.kind("", "v1", "serviceaccounts")?;
    if registry.find(&accounts, namespace, "default").await?.is_none() {
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": namespace},
        });
        let mut call = Call::internal(accounts, "create", namespace, "");
        ignore_race(registry.create(&mut call, account).await.map(drop))?;
    }
    let maps = registry.kind("", "v1", "configmaps")?;
    let name = "kube-root-ca.crt";
    let found = registry.find(&maps, namespace, name).await?;
    match found.map(|d| present(&maps, &d)) {
        Some(map) if map["data"]["ca.crt"] == root_ca => Ok(()),
        Some(_) => registry
            .rewrite(&maps, namespace, name, |map| {
                map["data"] = json!({"ca.crt": root_ca});
                Ok(true)
            })
            .await
            .map(drop),
        None => {
            let about = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.";
            let map = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": name, "namespace": namespace, "annotations": {"kubernetes.io/description": about}},
                "data": {"ca.crt": root_ca},
            });
            let mut call = Call::internal(maps, "create", namespace, "");
            ignore_race(registry.create(&mut call, map).await.map(drop))
        }
    }
}

/// Somebody else made it, or the namespace ends: both are fine.
fn ignore_race(outcome: Result<(), Refusal>) -> Result<(), Refusal> {
    match outcome {
        Err(refusal) if matches!(refusal.reason, "AlreadyExists" | "Forbidden" | "NotFound") => Ok(()),
        outcome => outcome,
    }
}

struct House {
    registry: Registry,
    root_ca: String,
    /// Namespaces that end, and when to look at them again.
    waiting: HashMap<String, (Instant, Duration)>,
}

// === impl House ===

impl House {
    async fn follow(&mut self) -> Result<(), Refusal> {
        let watch = async |plural: &str| {
            let kind = self.registry.kind("", "v1", plural)?;
            self.registry.watch(Selection::all(kind), &ListOptions::default()).await
        };
        let mut namespaces = watch("namespaces").await?;
        let mut accounts = watch("serviceaccounts").await?;
        let mut maps = watch("configmaps").await?;
        loop {
            let due = self.waiting.values().map(|(at, _)| *at).min();
            let due = due.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
            let event = tokio::select! {
                event = namespaces.next() => event,
                event = accounts.next() => event,
                event = maps.next() => event,
                () = tokio::time::sleep_until(due) => {
                    self.end_due().await;
                    continue;
                }
            };
            match event {
                None => return Err(Refusal::unavailable("the watch ended")),
                Some(Event::Failed(refusal)) => return Err(refusal),
                Some(Event::Bookmark { .. }) => {}
                Some(Event::Added(document) | Event::Modified(document)) => {
                    if document.key.starts_with("/registry/namespaces/") {
                        self.see(&document.to_value()).await;
                    }
                }
                Some(Event::Deleted(document)) => self.miss(&document.to_value()).await,
            }
        }
    }

    async fn see(&mut self, namespace: &Value) {
        let name = meta::name(namespace);
        if meta::is_deleting(namespace) {
            self.waiting.entry(name.to_owned()).or_insert((Instant::now(), FIRST_RETRY));
        } else if let Err(refusal) = furnish(&self.registry, name, &self.root_ca).await {
            tracing::warn!(namespace = name, error = %refusal.message, "namespace not furnished");
        }
    }

    /// Something was deleted that every namespace has.
    async fn miss(&mut self, object: &Value) {
        let (kind, name) = (object["kind"].as_str(), meta::name(object));
        match (kind, name) {
            (Some("Namespace"), name) => {
                self.waiting.remove(name);
            }
            (Some("ServiceAccount"), "default") | (Some("ConfigMap"), "kube-root-ca.crt") => {
                let namespace = meta::namespace(object);
                let Ok(kind) = self.registry.kind("", "v1", "namespaces") else { return };
                if let Ok(Some(document)) = self.registry.find(&kind, "", namespace).await {
                    self.see(&document.to_value()).await;
                }
            }
            _ => {}
        }
    }

    async fn end_due(&mut self) {
        let now = Instant::now();
        let due: Vec<String> =
            self.waiting.iter().filter(|(_, (at, _))| *at <= now).map(|(name, _)| name.clone()).collect();
        for name in due {
            match end(&self.registry, &name).await {
                Ok(true) => drop(self.waiting.remove(&name)),
                Ok(false) => self.again(&name),
                Err(refusal) => {
                    tracing::warn!(namespace = name, error = %refusal.message, "namespace not emptied");
                    self.again(&name);
                }
            }
        }
    }

    fn again(&mut self, name: &str) {
        if let Some((at, pause)) = self.waiting.get_mut(name) {
            *at = Instant::now() + *pause;
            *pause = (*pause * 2).min(LAST_RETRY);
        }
    }
}

/// Empties a namespace that ends; removes it when nothing is left. Says whether it is gone.
async fn end(registry: &Registry, name: &str) -> Result<bool, Refusal> {
    let kind = registry.kind("", "v1", "namespaces")?;
    let Some(document) = registry.find(&kind, "", name).await? else { return Ok(true) };
    let namespace = present(&kind, &document);
    if !meta::is_deleting(&namespace) {
        return Ok(true);
    }
    let remaining = empty(registry, name).await?;
    if !remaining.is_empty() {
        tell_remaining(registry, name, &remaining).await?;
        return Ok(false);
    }
    let done = registry
        .rewrite(&kind, "", name, |namespace| {
            let kept: Vec<Value> =
                doc::list(namespace, "spec.finalizers").iter().filter(|f| **f != OURS).cloned().collect();
            let changed = kept.len() != doc::list(namespace, "spec.finalizers").len();
            namespace["spec"]["finalizers"] = kept.into();
            Ok(changed)
        })
        .await?;
    let Some(namespace) = done else { return Ok(true) };
    if !doc::list(&namespace, "spec.finalizers").is_empty() || meta::finalizers(&namespace).next().is_some() {
        return Ok(false);
    }
    let version = meta::text(&namespace, "resourceVersion").parse().unwrap_or_default();
    registry.remove(&kind, "", name, version).await
}

/// Deletes everything in a namespace. Tells what stays for now: resource and count.
async fn empty(registry: &Registry, namespace: &str) -> Result<Vec<(String, usize)>, Refusal> {
    let options = DeleteOptions { propagation: Some(Propagation::Background), ..DeleteOptions::default() };
    let mut remaining = Vec::new();
    let catalog = registry.catalog();
    for kind in catalog.places().filter(|k| k.is_namespaced()) {
        let mut selection = Selection::all(kind.clone());
        namespace.clone_into(&mut selection.namespace);
        let mut lister = registry.list(selection, &ListOptions::default()).await?;
        let mut left = 0;
        while let Some(page) = lister.next_page().await? {
            for document in page {
                let object = present(kind, &document);
                let mut call = Call::internal(kind.clone(), "delete", namespace, meta::name(&object));
                match registry.delete(&mut call, &options).await {
                    Ok(deletion) if deletion.done => {}
                    Ok(_) => left += 1,
                    Err(refusal) if refusal.reason == "NotFound" => {}
                    Err(refusal) => return Err(refusal),
                }
            }
        }
        if left > 0 {
            remaining.push((kind.resource_name(), left));
        }
    }
    Ok(remaining)
}

async fn tell_remaining(
    registry: &Registry,
    name: &str,
    remaining: &[(String, usize)],
) -> Result<(), Refusal> {
    let kind = registry.kind("", "v1", "namespaces")?;
    let what: Vec<String> =
        remaining.iter().map(|(what, n)| format!("{what} has {n} resource instances")).collect();
    let message = format!("Some resources are remaining: {}", what.join(", "));
    let now = meta::timestamp(registry.now());
    let set = |namespace: &mut Value| {
        let told = doc::list(namespace, "status.conditions")
            .iter()
            .find(|c| c["type"] == "NamespaceContentRemaining");
        if told.is_some_and(|c| c["message"] == message.as_str() && c["status"] == "True") {
            return Ok(false);
        }
        let mut conditions: Vec<Value> = doc::list(namespace, "status.conditions")
            .iter()
            .filter(|c| c["type"] != "NamespaceContentRemaining")
            .cloned()
            .collect();
        conditions.push(json!({
            "type": "NamespaceContentRemaining", "status": "True", "reason": "SomeResourcesRemain",
            "message": message, "lastTransitionTime": now,
        }));
        namespace["status"]["conditions"] = conditions.into();
        Ok(true)
    };
    registry.rewrite(&kind, "", name, set).await.map(drop)
}
