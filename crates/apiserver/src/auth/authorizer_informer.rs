//! Keeps the rights in memory in step with the store: default roles at start, then every change as it happens.

use std::sync::Arc;

use base::time::Wall;
use serde_json::Value;

use crate::objects::{Objects, Place, Stored, decode_bytes, places};
use crate::random::new_uid;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::auth::authz::Authorizer;
use apiserver_core::auth::node::{Graph, Watched};
use apiserver_core::auth::rbac::{Index, RbacKind, Rule, policy};
use apiserver_core::doc;
use store::{Change, ChangeKind, Expect, WatchError};

/// What a place in the store means for the rights.
#[derive(Clone, Copy, Debug)]
enum Meaning {
    Rbac(RbacKind),
    Node(Watched),
}

const FED: [(Place, Meaning); 8] = [
    (places::CLUSTER_ROLES, Meaning::Rbac(RbacKind::ClusterRole)),
    (places::ROLES, Meaning::Rbac(RbacKind::Role)),
    (places::CLUSTER_ROLE_BINDINGS, Meaning::Rbac(RbacKind::ClusterRoleBinding)),
    (places::ROLE_BINDINGS, Meaning::Rbac(RbacKind::RoleBinding)),
    (places::PODS, Meaning::Node(Watched::Pod)),
    (places::VOLUMES, Meaning::Node(Watched::PersistentVolume)),
    (places::VOLUME_ATTACHMENTS, Meaning::Node(Watched::VolumeAttachment)),
    (places::RESOURCE_SLICES, Meaning::Node(Watched::ResourceSlice)),
];

/// Writes the default roles and bindings that are missing or lack something. Before anything is served.
pub async fn reconcile_policy(objects: &Objects, now: Wall) -> Result<(), ApiStatus> {
    let mut writes = Vec::new();
    for (kind, default) in policy::defaults() {
        let place = place_of(kind);
        let (namespace, name) =
            (doc::text(&default, "metadata.namespace"), doc::text(&default, "metadata.name"));
        match objects.find(place, namespace, name).await? {
            None => writes.push((place, stamped(default, now), Expect::Absent)),
            Some(Stored { object, rev }) => {
                if let Some(next) = policy::reconcile(kind, &object, &default) {
                    writes.push((place, next, Expect::Rev(rev)));
                }
            }
        }
    }
    if objects.put_all(writes).await? {
        Ok(())
    } else {
        Err(ApiStatus::internal("the default roles changed while they were written"))
    }
}

/// Reads everything once and then follows; ends only with the store. Aggregated roles are written from here.
pub async fn follow(objects: Objects, authorizer: Arc<Authorizer>) {
    loop {
        match follow_once(&objects, &authorizer).await {
            Ok(()) => return,
            Err(Lost::Behind) => tracing::warn!("the watch for rights fell behind; reading them again"),
            Err(Lost::Failed(api_status)) => {
                tracing::warn!(error = %api_status.message, "reading rights failed; trying again");
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            }
        }
    }
}

/// Reads everything once; for the start, so that the first request already finds its rights. Answers the revision.
pub async fn load(objects: &Objects, authorizer: &Authorizer) -> Result<u64, ApiStatus> {
    // Taken before the reads: what changes meanwhile is seen again by the watch, and applying it twice is harmless.
    let revision = objects.store().revision();
    let (mut index, mut graph) = (Index::default(), Graph::default());
    for (place, meaning) in FED {
        for Stored { object, .. } in objects.list(place, "").await? {
            match meaning {
                Meaning::Rbac(kind) => index.put(kind, &object),
                Meaning::Node(kind) => graph.put(kind, &object),
            }
        }
    }
    authorizer.rbac().replace(index);
    authorizer.nodes().replace(graph);
    Ok(revision)
}

enum Lost {
    Behind,
    Failed(ApiStatus),
}

async fn follow_once(objects: &Objects, authorizer: &Authorizer) -> Result<(), Lost> {
    let revision = load(objects, authorizer).await.map_err(Lost::Failed)?;
    aggregate_roles(objects).await.map_err(Lost::Failed)?;
    let mut watch = objects.store().watch("/registry/", revision).map_err(|_| Lost::Behind)?;
    loop {
        let change = match watch.next().await {
            Ok(change) => change,
            Err(WatchError::Compacted(_)) => return Err(Lost::Behind),
            Err(WatchError::Fault(_)) => return Ok(()),
        };
        let Some((place, meaning)) = FED.iter().find(|(place, _)| is_below(&change.key, place.storage))
        else {
            continue;
        };
        apply(authorizer, *place, *meaning, &change);
        if place.storage == places::CLUSTER_ROLES.storage {
            aggregate_roles(objects).await.map_err(Lost::Failed)?;
        }
    }
}

fn is_below(key: &str, storage: &str) -> bool {
    key.strip_prefix("/registry/").and_then(|k| k.strip_prefix(storage)).is_some_and(|k| k.starts_with('/'))
}

fn apply(authorizer: &Authorizer, place: Place, meaning: Meaning, change: &Change) {
    let (namespace, name) = place.split(&change.key);
    // A Pod that is on no node gives no node any rights.
    let is_unplaced = matches!(meaning, Meaning::Node(Watched::Pod)) && !change.mentions("\"nodeName\"");
    if change.kind == ChangeKind::Deleted || is_unplaced {
        match meaning {
            Meaning::Rbac(kind) => authorizer.rbac().remove(kind, namespace, name),
            Meaning::Node(kind) => authorizer.nodes().remove(kind, namespace, name),
        }
        return;
    }
    match (decode_bytes(&change.value), meaning) {
        (Ok(object), Meaning::Rbac(kind)) => authorizer.rbac().put(kind, &object),
        (Ok(object), Meaning::Node(kind)) => authorizer.nodes().put(kind, &object),
        (Err(error), _) => tracing::error!(key = &*change.key, %error, "an object in the store is no JSON"),
    }
}

/// Brings the rules of every aggregated ClusterRole up to date. A lost race is settled by the change that won it.
async fn aggregate_roles(objects: &Objects) -> Result<(), ApiStatus> {
    let roles = objects.list(places::CLUSTER_ROLES, "").await?;
    for Stored { object, rev } in &roles {
        let Some(rules) = policy::aggregate(object, roles.iter().map(|r| &*r.object)) else { continue };
        if Rule::all_of(object) != rules {
            let mut next = Value::clone(object);
            next["rules"] = rules.iter().map(Rule::to_json).collect();
            objects.put(places::CLUSTER_ROLES, &next, Expect::Rev(*rev)).await?;
        }
    }
    Ok(())
}

fn place_of(kind: RbacKind) -> Place {
    match kind {
        RbacKind::Role => places::ROLES,
        RbacKind::ClusterRole => places::CLUSTER_ROLES,
        RbacKind::RoleBinding => places::ROLE_BINDINGS,
        RbacKind::ClusterRoleBinding => places::CLUSTER_ROLE_BINDINGS,
    }
}

/// What the registry would give a new object.
fn stamped(mut object: Value, now: Wall) -> Value {
    object["metadata"]["uid"] = new_uid().into();
    let at = jiff::Timestamp::from_second(now.secs()).unwrap_or_default();
    object["metadata"]["creationTimestamp"] = at.to_string().into();
    object
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::objects::testing::Scratch;
    use apiserver_core::request::{Attributes, Resource, User};
    use serde_json::json;

    const NOW: Wall = Wall(1_800_000_000_000_000_000);

    fn may(authorizer: &Authorizer, user: &str, verb: &'static str, group: &str, plural: &str) -> bool {
        let resource = Resource {
            group: group.into(),
            plural: plural.into(),
            namespace: "web".into(),
            ..Resource::default()
        };
        let user = Arc::new(User::new(user, &[]));
        let attributes =
            Attributes { user, verb: verb.into(), resource: Some(resource), ..Attributes::default() };
        authorizer.authorize(&attributes).is_allowed()
    }

    #[tokio::test]
    async fn a_second_start_writes_nothing() {
        let scratch = Scratch::new();
        reconcile_policy(&scratch.objects, NOW).await.unwrap();
        let revision = scratch.objects.store().revision();
        reconcile_policy(&scratch.objects, NOW).await.unwrap();
        assert_eq!(scratch.objects.store().revision(), revision);
        let view = scratch.objects.find(places::CLUSTER_ROLES, "", "view").await.unwrap().unwrap();
        assert!(view.object["rules"].as_array().unwrap().len() > 5);
        assert_eq!(view.object["metadata"]["creationTimestamp"], "2027-01-15T08:00:00Z");
    }

    #[tokio::test]
    async fn rights_follow_the_store_and_aggregates_follow_their_parts() {
        let scratch = Scratch::new();
        let objects = scratch.objects.clone();
        reconcile_policy(&objects, NOW).await.unwrap();
        let authorizer = Arc::new(Authorizer::default());
        let task = tokio::spawn(follow(objects.clone(), authorizer.clone()));
        let bind = json!({"metadata": {"name": "b", "namespace": "web"}, "roleRef": {"kind": "ClusterRole", "name": "view"},
            "subjects": [{"kind": "User", "name": "jane"}]});
        objects.put(places::ROLE_BINDINGS, &bind, Expect::Absent).await.unwrap();
        let part = json!({"metadata": {"name": "crd-view", "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
            "rules": [{"verbs": ["get"], "apiGroups": ["example.com"], "resources": ["widgets"]}]});
        objects.put(places::CLUSTER_ROLES, &part, Expect::Absent).await.unwrap();
        let within = std::time::Duration::from_secs(20);
        tokio::time::timeout(within, async {
            while !may(&authorizer, "jane", "get", "example.com", "widgets") {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
        assert!(
            may(&authorizer, "jane", "list", "", "pods") && !may(&authorizer, "jane", "create", "", "pods")
        );
        objects.delete(places::ROLE_BINDINGS, "web", "b", Expect::Any).await.unwrap();
        tokio::time::timeout(within, async {
            while may(&authorizer, "jane", "list", "", "pods") {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
        task.abort();
    }
}
