//! Namespaces: what every one of them holds, and how one ends.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::registry::Registry;
use crate::registry::watch::Event;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::call::Call;
use apiserver_core::doc;
use apiserver_core::kind::Kind;
use apiserver_core::meta;
use apiserver_core::options::{DeleteOptions, ListOptions, Propagation};
use apiserver_core::selection::{Selection, present};

const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(5);
/// So many repairs of one ConfigMap are made at once in such a time.
const REPAIRS: u32 = 5;
const REPAIR_TIME: Duration = Duration::from_secs(60);
/// The ConfigMap that every namespace has.
const ROOT_CA: &str = "kube-root-ca.crt";
const DESCRIPTION: &str = "kubernetes.io/description";
const ABOUT_ROOT_CA: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal \
                             endpoints such as the internal service IP or kubernetes.default.svc. No other usage is \
                             guaranteed across distributions of Kubernetes clusters.";
/// The finalizer that is ours to remove.
const OURS: &str = "kubernetes";

/// Follows all namespaces until the store closes.
pub(crate) async fn run(registry: Registry, root_ca: String) {
    let mut controller =
        NamespaceController { registry, root_ca, waiting: HashMap::new(), repaired: HashMap::new() };
    loop {
        if let Err(api_status) = controller.follow().await {
            tracing::warn!(error = %api_status.message, "following namespaces failed; starting over");
            tokio::time::sleep(LAST_RETRY).await;
        }
    }
}

/// Makes sure that a namespace has its service account and knows the authority of this server.
pub(crate) async fn furnish(registry: &Registry, namespace: &str, root_ca: &str) -> Result<(), ApiStatus> {
    let accounts = registry.kind("", "v1", "serviceaccounts")?;
    if registry.find(&accounts, namespace, "default").await?.is_none() {
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": namespace},
        });
        let mut call = Call::internal(accounts, "create", namespace, "");
        ignore_race(registry.create(&mut call, account).await.map(drop))?;
    }
    let maps = registry.kind("", "v1", "configmaps")?;
    let restored = registry.rewrite(&maps, namespace, ROOT_CA, |map| {
        let wrong = !is_in_order(map, root_ca);
        if wrong {
            map["data"] = json!({"ca.crt": root_ca});
            map["metadata"]["annotations"][DESCRIPTION] = ABOUT_ROOT_CA.into();
        }
        Ok(wrong)
    });
    if restored.await?.is_some() {
        return Ok(());
    }
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": ROOT_CA, "namespace": namespace, "annotations": {DESCRIPTION: ABOUT_ROOT_CA}},
        "data": {"ca.crt": root_ca},
    });
    let mut call = Call::internal(maps, "create", namespace, "");
    ignore_race(registry.create(&mut call, map).await.map(drop))
}

/// Whether the map still says what upstream's publisher puts there, and no more.
fn is_in_order(map: &Value, root_ca: &str) -> bool {
    map["data"] == json!({"ca.crt": root_ca})
        && map["metadata"]["annotations"][DESCRIPTION].as_str().is_some_and(|text| !text.is_empty())
}

/// Somebody else made it, or the namespace ends: both are fine.
fn ignore_race(outcome: Result<(), ApiStatus>) -> Result<(), ApiStatus> {
    match outcome {
        Err(api_status) if matches!(api_status.reason, "AlreadyExists" | "Forbidden" | "NotFound") => Ok(()),
        outcome => outcome,
    }
}

struct NamespaceController {
    registry: Registry,
    root_ca: String,
    /// Namespaces that end, and when to look at them again.
    waiting: HashMap<String, (Instant, Duration)>,
    /// Namespaces whose ConfigMap was put right of late.
    repaired: HashMap<String, Repairs>,
}

/// Repairs of one ConfigMap. Another publisher may put its own authority there each time: two of them would write for ever.
struct Repairs {
    since: Instant,
    count: u32,
    /// It was changed again and stays so until the time is over.
    waits: bool,
}

// === impl Repairs ===

impl Repairs {
    fn since(since: Instant) -> Repairs {
        Repairs { since, count: 0, waits: false }
    }

    /// Whether it is repaired at once.
    fn ask(&mut self, now: Instant) -> bool {
        if self.is_over(now) {
            *self = Repairs::since(now);
        }
        self.count += 1;
        self.waits = self.count > REPAIRS;
        !self.waits
    }

    fn is_over(&self, now: Instant) -> bool {
        now >= self.since + REPAIR_TIME
    }
}

// === impl NamespaceController ===

impl NamespaceController {
    async fn follow(&mut self) -> Result<(), ApiStatus> {
        let watch = async |plural: &str| {
            let kind = self.registry.kind("", "v1", plural)?;
            self.registry.watch(Selection::all(kind), &ListOptions::default()).await
        };
        let mut namespaces = watch("namespaces").await?;
        let mut accounts = watch("serviceaccounts").await?;
        let mut maps = watch("configmaps").await?;
        loop {
            let repairs = self.repaired.values().filter(|r| r.waits).map(|r| r.since + REPAIR_TIME);
            let due = self.waiting.values().map(|(at, _)| *at).chain(repairs).min();
            let due = due.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
            let event = tokio::select! {
                event = namespaces.next() => event,
                event = accounts.next() => event,
                event = maps.next() => event,
                () = tokio::time::sleep_until(due) => {
                    self.end_due().await;
                    self.repair_due().await;
                    continue;
                }
            };
            match event {
                None => return Err(ApiStatus::unavailable("the watch ended")),
                Some(Event::Failed(api_status)) => return Err(api_status),
                Some(Event::Bookmark { .. }) => {}
                Some(Event::Added(document) | Event::Modified(document)) => {
                    if document.key.starts_with("/registry/namespaces/") {
                        self.see(&document.to_value()).await;
                    } else if document.key.ends_with("/kube-root-ca.crt") {
                        self.guard(&document.to_value()).await;
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
        } else if let Err(api_status) = furnish(&self.registry, name, &self.root_ca).await {
            tracing::warn!(namespace = name, error = %api_status.message, "namespace not furnished");
        }
    }

    /// Somebody wrote the ConfigMap that says whom to trust.
    async fn guard(&mut self, map: &Value) {
        if map["kind"] != "ConfigMap" || is_in_order(map, &self.root_ca) {
            return;
        }
        let (namespace, now) = (meta::namespace(map), Instant::now());
        if self.repaired.entry(namespace.to_owned()).or_insert_with(|| Repairs::since(now)).ask(now) {
            self.look_into(namespace).await;
        }
    }

    async fn repair_due(&mut self) {
        let now = Instant::now();
        let due = self.repaired.extract_if(|_, repairs| repairs.is_over(now));
        let due: Vec<String> = due.filter(|(_, repairs)| repairs.waits).map(|(name, _)| name).collect();
        for namespace in due {
            self.look_into(&namespace).await;
        }
    }

    async fn look_into(&mut self, namespace: &str) {
        let Ok(kind) = self.registry.kind("", "v1", "namespaces") else { return };
        if let Ok(Some(document)) = self.registry.find(&kind, "", namespace).await {
            self.see(&document.to_value()).await;
        }
    }

    /// Something was deleted that every namespace has.
    async fn miss(&mut self, object: &Value) {
        let (kind, name) = (object["kind"].as_str(), meta::name(object));
        match (kind, name) {
            (Some("Namespace"), name) => {
                self.waiting.remove(name);
                self.repaired.remove(name);
            }
            (Some("ServiceAccount"), "default") | (Some("ConfigMap"), ROOT_CA) => {
                self.look_into(meta::namespace(object)).await;
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
                Err(api_status) => {
                    tracing::warn!(namespace = name, error = %api_status.message, "namespace not emptied");
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
async fn end(registry: &Registry, name: &str) -> Result<bool, ApiStatus> {
    let kind = registry.kind("", "v1", "namespaces")?;
    let Some(document) = registry.find(&kind, "", name).await? else { return Ok(true) };
    let namespace = present(&kind, &document);
    if !meta::is_deleting(&namespace) {
        return Ok(true);
    }
    let remaining = empty(registry, name).await?;
    // Who never had to wait need not be told that the wait is over.
    if !remaining.is_nothing() || namespace["status"]["conditions"].is_array() {
        let now = meta::timestamp(registry.now());
        registry.rewrite(&kind, "", name, |namespace| Ok(remaining.tell(namespace, &now))).await?;
    }
    if !remaining.is_nothing() {
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
    /// Why something could not be deleted, per kind.
    failures: Vec<String>,
}

/// Deletes everything in a namespace, Pods first: they may need the rest (a NetworkPolicy, a Secret) until their end.
/// Tells what stays for now.
async fn empty(registry: &Registry, namespace: &str) -> Result<Remaining, ApiStatus> {
    let mut remaining = Remaining::default();
    let catalog = registry.catalog();
    let pods = registry.kind("", "v1", "pods")?;
    remaining.remove_all(registry, &pods, namespace).await;
    if !remaining.is_nothing() {
        return Ok(remaining);
    }
    for kind in catalog.places().filter(|k| k.is_namespaced() && k.storage != pods.storage) {
        remaining.remove_all(registry, kind, namespace).await;
    }
    Ok(remaining)
}

async fn remove_kind(
    registry: &Registry,
    kind: &Arc<Kind>,
    namespace: &str,
    remaining: &mut Remaining,
) -> Result<(), ApiStatus> {
    let options = DeleteOptions { propagation: Some(Propagation::Background), ..DeleteOptions::default() };
    let mut selection = Selection::all(kind.clone());
    namespace.clone_into(&mut selection.namespace);
    let mut lister = registry.list(selection, &ListOptions::default()).await?;
    let mut failure = None;
    while let Some(page) = lister.next_page().await? {
        for document in page {
            let object = present(kind, &document);
            let mut call = Call::internal(kind.clone(), "delete", namespace, meta::name(&object));
            match registry.delete(&mut call, &options).await {
                Ok(deletion) if deletion.done => {}
                Ok(deletion) => remaining.add(kind, &deletion.object),
                Err(api_status) if api_status.is_not_found() => {}
                Err(api_status) => {
                    remaining.add(kind, &object);
                    failure.get_or_insert(api_status);
                }
            }
        }
    }
    failure.map_or(Ok(()), Err)
}

// === impl Remaining ===

impl Remaining {
    fn is_nothing(&self) -> bool {
        self.by_resource.is_empty() && self.failures.is_empty()
    }

    /// What cannot be deleted does not keep the rest.
    async fn remove_all(&mut self, registry: &Registry, kind: &Arc<Kind>, namespace: &str) {
        if let Err(api_status) = remove_kind(registry, kind, namespace, self).await {
            self.failures.push(api_status.message);
        }
    }

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
        let failure = match &*self.failures {
            [] => {
                let message = "All content successfully deleted, may be waiting on finalization";
                ("False", "ContentDeleted", message.to_owned())
            }
            failures => {
                let (count, mut all) = (failures.len(), failures.to_vec());
                all.sort();
                let message =
                    format!("Failed to delete all resource types, {count} remaining: {}", all.join(", "));
                ("True", "ContentDeletionFailed", message)
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
            ("NamespaceDeletionContentFailure", failure),
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
        let kind = apiserver_core::kinds::all().into_iter().find(|k| k.plural == "configmaps").unwrap();
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
        remaining.failures = vec!["b".into(), "a".into()];
        assert!(remaining.tell(&mut namespace, "2026-01-02T00:00:00Z"));
        let failed = &namespace["status"]["conditions"][2];
        assert_eq!(
            (&failed["status"], &failed["reason"], &failed["message"]),
            (
                &json!("True"),
                &json!("ContentDeletionFailed"),
                &json!("Failed to delete all resource types, 2 remaining: a, b")
            )
        );
        assert!(Remaining::default().tell(&mut namespace, "2026-01-03T00:00:00Z"));
        assert_eq!(messages(&namespace)[3], "All content successfully removed");
        assert_eq!(namespace["status"]["conditions"][0]["lastTransitionTime"], "2026-01-01T00:00:00Z");
        assert_eq!(namespace["status"]["conditions"][4]["lastTransitionTime"], "2026-01-03T00:00:00Z");
    }

    fn registry(dir: &std::path::Path) -> Registry {
        use crate::registry::addresses::{Addresses, Ranges};
        let store = store::Store::open(dir, store::Options::default()).unwrap();
        let catalog =
            apiserver_core::catalog::Catalog::new(apiserver_core::kinds::all().into_iter().map(Arc::new));
        let clock = Arc::new(crate::clock::SystemClock::default());
        Registry::new(store, catalog, clock, None, Addresses::new(Ranges::default()))
    }

    async fn create(registry: &Registry, plural: &str, object: Value) {
        let kind = registry.kind("", "v1", plural).unwrap();
        let mut call = Call::internal(kind, "create", "ns", "");
        registry.create(&mut call, object).await.unwrap();
    }

    async fn find(registry: &Registry, plural: &str, name: &str) -> Option<Value> {
        let kind = registry.kind("", "v1", plural).unwrap();
        let namespace = if kind.is_namespaced() { "ns" } else { "" };
        registry.find(&kind, namespace, name).await.unwrap().map(|d| present(&kind, &d))
    }

    #[tokio::test]
    async fn a_namespace_ends_with_its_pods_first() {
        let dir = tempfile::tempdir().unwrap();
        let registry = registry(dir.path());
        create(
            &registry,
            "namespaces",
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ns"}}),
        )
        .await;
        create(
            &registry,
            "configmaps",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}),
        )
        .await;
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "finalizers": ["example.com/hold"]},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        });
        create(&registry, "pods", pod).await;
        let kind = registry.kind("", "v1", "namespaces").unwrap();
        let mut call = Call::internal(kind, "delete", "", "ns");
        registry.delete(&mut call, &DeleteOptions::default()).await.unwrap();
        assert!(!end(&registry, "ns").await.unwrap());
        assert!(find(&registry, "configmaps", "a").await.is_some(), "touched before the Pods are gone");
        assert!(meta::is_deleting(&find(&registry, "pods", "p").await.unwrap()));
        let namespace = find(&registry, "namespaces", "ns").await.unwrap();
        let told = doc::list(&namespace, "status.conditions");
        assert_eq!(told.len(), 5);
        assert!(doc::text(&told[3], "message").contains("pods. has 1 resource instances"));
        let pods = registry.kind("", "v1", "pods").unwrap();
        let release = |pod: &mut Value| {
            meta::set_finalizer(pod, "example.com/hold", false);
            Ok(true)
        };
        assert_eq!(registry.rewrite(&pods, "ns", "p", release).await.unwrap(), None);
        assert!(end(&registry, "ns").await.unwrap());
        assert!(find(&registry, "namespaces", "ns").await.is_none());
        assert!(find(&registry, "configmaps", "a").await.is_none());
    }

    #[test]
    fn two_publishers_do_not_write_for_ever() {
        let start = Instant::now();
        let mut repairs = Repairs::since(start);
        let within_an_hour =
            (0..36_000).filter(|n| repairs.ask(start + Duration::from_millis(n * 100))).count();
        assert_eq!(within_an_hour, 60 * REPAIRS as usize);
        assert!(repairs.waits && repairs.is_over(start + Duration::from_hours(1) + REPAIR_TIME));
    }

    #[tokio::test]
    async fn an_edited_root_certificate_is_restored() {
        let dir = tempfile::tempdir().unwrap();
        let registry = registry(dir.path());
        let running = tokio::spawn(run(registry.clone(), "the CA".to_owned()));
        let maps = registry.kind("", "v1", "configmaps").unwrap();
        let mut watch = registry.watch(Selection::all(maps.clone()), &ListOptions::default()).await.unwrap();
        create(
            &registry,
            "namespaces",
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ns"}}),
        )
        .await;
        let mut next = async || loop {
            if let Some(Event::Added(document) | Event::Modified(document)) = watch.next().await {
                break document.to_value();
            }
        };
        assert_eq!(next().await["data"], json!({"ca.crt": "the CA"}));
        for edited in [json!({"ca.crt": "another"}), json!({"ca.crt": "the CA", "more": "x"}), Value::Null] {
            let edit = |map: &mut Value| {
                map["data"] = edited.clone();
                Ok(true)
            };
            registry.rewrite(&maps, "ns", ROOT_CA, edit).await.unwrap();
            assert_eq!(next().await["data"], edited);
            assert_eq!(next().await["data"], json!({"ca.crt": "the CA"}));
        }
        running.abort();
    }
}
