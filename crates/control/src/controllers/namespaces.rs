//! Namespaces: what every one of them holds, and how one ends.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::doc;
use crate::kind::Kind;
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
    if !remaining.by_resource.is_empty() {
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

/// What a namespace still holds, in the words of its conditions.
#[derive(Debug, Default, PartialEq, Eq)]
struct Remaining {
    by_resource: BTreeMap<String, usize>,
    by_finalizer: BTreeMap<String, usize>,
}

/// Deletes everything in a namespace. Tells what stays for now.
async fn empty(registry: &Registry, namespace: &str) -> Result<Remaining, Refusal> {
    let options = DeleteOptions { propagation: Some(Propagation::Background), ..DeleteOptions::default() };
    let mut remaining = Remaining::default();
    let catalog = registry.catalog();
    for kind in catalog.places().filter(|k| k.is_namespaced()) {
        let mut selection = Selection::all(kind.clone());
        namespace.clone_into(&mut selection.namespace);
        let mut lister = registry.list(selection, &ListOptions::default()).await?;
        while let Some(page) = lister.next_page().await? {
            for document in page {
                let object = present(kind, &document);
                let mut call = Call::internal(kind.clone(), "delete", namespace, meta::name(&object));
                match registry.delete(&mut call, &options).await {
                    Ok(deletion) if deletion.done => {}
                    Ok(deletion) => remaining.add(kind, &deletion.object),
                    Err(refusal) if refusal.reason == "NotFound" => {}
                    Err(refusal) => return Err(refusal),
                }
            }
        }
    }
    Ok(remaining)
}

async fn tell_remaining(registry: &Registry, name: &str, remaining: &Remaining) -> Result<(), Refusal> {
    let kind = registry.kind("", "v1", "namespaces")?;
    let now = meta::timestamp(registry.now());
    registry.rewrite(&kind, "", name, |namespace| Ok(remaining.tell(namespace, &now))).await.map(drop)
}

// === impl Remaining ===

impl Remaining {
    fn add(&mut self, kind: &Kind, object: &Value) {
        *self.by_resource.entry(format!("{}.{}", kind.plural, kind.group)).or_default() += 1;
        for finalizer in meta::finalizers(object) {
            *self.by_finalizer.entry(finalizer.to_owned()).or_default() += 1;
        }
    }

    /// Writes upstream's conditions; says whether one of them is new.
    fn tell(&self, namespace: &mut Value, now: &str) -> bool {
        let counted = |what: &BTreeMap<String, usize>, between: &str| {
            let parts: Vec<String> =
                what.iter().map(|(name, n)| format!("{name} {between} {n} resource instances")).collect();
            (!parts.is_empty()).then(|| parts.join(", "))
        };
        let content = match counted(&self.by_resource, "has") {
            Some(what) => ("True", "SomeResourcesRemain", format!("Some resources are remaining: {what}")),
            None => ("False", "ContentRemoved", "All content successfully removed".to_owned()),
        };
        let finalizers = match counted(&self.by_finalizer, "in") {
            Some(what) => {
                let message = format!("Some content in the namespace has finalizers remaining: {what}");
                ("True", "SomeFinalizersRemain", message)
            }
            None => {
                ("False", "ContentHasNoFinalizers", "All content-preserving finalizers finished".to_owned())
            }
        };
        let fine = |reason, message: &str| ("False", reason, message.to_owned());
        let told = [
            (
                "NamespaceDeletionDiscoveryFailure",
                fine("ResourcesDiscovered", "All resources successfully discovered"),
            ),
            (
                "NamespaceDeletionGroupVersionParsingFailure",
                fine("ParsedGroupVersions", "All legacy kube types successfully parsed"),
            ),
            (
                "NamespaceDeletionContentFailure",
                fine("ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
            ),
            ("NamespaceContentRemaining", content),
            ("NamespaceFinalizersRemaining", finalizers),
        ];
        let mut conditions = doc::list(namespace, "status.conditions").to_vec();
        let mut changed = false;
        for (kind, (status, reason, message)) in told {
            let old = conditions.iter_mut().find(|c| c["type"] == kind);
            let since = match &old {
                Some(old) if old["status"] == status => old["lastTransitionTime"].clone(),
                _ => now.into(),
            };
            let new = json!({
                "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
            });
            match old {
                Some(old) if *old == new => continue,
                Some(old) => *old = new,
                None => conditions.push(new),
            }
            changed = true;
        }
        namespace["status"]["conditions"] = conditions.into();
        changed
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_remains_is_told_once_and_taken_back() {
        let kind = crate::kinds::all().into_iter().find(|k| k.plural == "configmaps").unwrap();
        let mut remaining = Remaining::default();
        remaining.add(&kind, &json!({"metadata": {"finalizers": ["example.com/hold"]}}));
        remaining.add(&kind, &json!({"metadata": {}}));
        let mut namespace = json!({"status": {"phase": "Terminating"}});
        assert!(remaining.tell(&mut namespace, "2026-01-01T00:00:00Z"));
        assert!(!remaining.tell(&mut namespace, "2026-01-02T00:00:00Z"), "nothing new");
        let messages = |namespace: &Value| -> Vec<String> {
            doc::list(namespace, "status.conditions")
                .iter()
                .map(|c| doc::text(c, "message").to_owned())
                .collect()
        };
        assert_eq!(
            messages(&namespace)[3..],
            [
                "Some resources are remaining: configmaps. has 2 resource instances",
                "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances",
            ]
        );
        assert!(Remaining::default().tell(&mut namespace, "2026-01-03T00:00:00Z"));
        assert_eq!(messages(&namespace)[3], "All content successfully removed");
        assert_eq!(namespace["status"]["conditions"][0]["lastTransitionTime"], "2026-01-01T00:00:00Z");
        assert_eq!(namespace["status"]["conditions"][4]["lastTransitionTime"], "2026-01-03T00:00:00Z");
    }
}
