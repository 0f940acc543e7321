//! Finding out what there is to know about a Pod, from the API server alone.

use std::path::Path;
use std::sync::Arc;

use api::json::{FromJson, List};
use base::time::Wall;
use client::{Client, ClientError, Config, Options, Request};
use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1 as storage;
use scheduler_core::cluster::Cluster;
use scheduler_core::doctor::{Facts, examine};
pub use scheduler_core::doctor::{Finding, Grade, verdict};
use scheduler_core::labels::Labels;
use scheduler_core::node::Node;
use scheduler_core::objects::{
    Attachment, Budget, Capacity, Claim, CsiDriver, CsiNode, Selecting, StorageClass, Volume,
};
use scheduler_core::pod::Pod;
use serde::Deserialize;
use serde_json::Value;

/// Pods that have ended hold nothing.
const PODS: &str = "/api/v1/pods?fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Kubeconfig(#[from] client::ConfigError),
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// The findings about one Pod.
pub async fn diagnose(
    kubeconfig: &Path,
    namespace: &str,
    name: &str,
    now: Wall,
) -> Result<Vec<Finding>, Error> {
    let client = Client::new(Config::load(kubeconfig)?, Options::default()).await?;
    let mut facts = gather(&client, namespace, name, now).await?;
    Ok(examine(&mut facts))
}

/// Asks the API server. What its user may not see is left out; only a server that cannot be asked is an error.
async fn gather(client: &Client, namespace: &str, name: &str, now: Wall) -> Result<Facts, ClientError> {
    let within = |rest: &str| format!("/api/v1/namespaces/{namespace}/{rest}");
    let pod: Option<core::Pod> = one(client, within(&format!("pods/{name}"))).await?;
    let place: Option<core::Namespace> = one(client, format!("/api/v1/namespaces/{namespace}")).await?;
    let phase = place.map(|n| n.status.and_then(|s| s.phase).unwrap_or_default());
    let mut facts = Facts {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        namespace_phase: phase,
        events: events(client, within("events")).await?,
        quotas: list(client, within("resourcequotas")).await?,
        now: now.0,
        ..Facts::default()
    };
    if let Some(pod) = &pod {
        facts.missing = missing(client, namespace, pod).await?;
        match pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).filter(|n| !n.is_empty()) {
            Some(node) => facts.node = one(client, format!("/api/v1/nodes/{node}")).await?,
            None => facts.cluster = cluster(client).await?,
        }
    }
    facts.pod = pod;
    Ok(facts)
}

/// None where there is no such object, or where we may not see it.
async fn one<T: FromJson>(client: &Client, path: String) -> Result<Option<T>, ClientError> {
    match client.ask::<T>(Request::get(path)).await {
        Ok(object) => Ok(Some(object)),
        Err(error) if matches!(error.code(), Some(403 | 404)) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn list<T>(client: &Client, path: impl Into<String>) -> Result<Vec<T>, ClientError>
where
    List<T>: FromJson,
{
    match client.ask::<List<T>>(Request::get(path)).await {
        Ok(list) => Ok(list.items),
        Err(error) if matches!(error.code(), Some(403 | 404)) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Events are told by many, so that one which cannot be read is left out.
async fn events(client: &Client, path: String) -> Result<Vec<core::Event>, ClientError> {
    let answer: Option<Value> = one(client, path).await?;
    let items = answer.as_ref().and_then(|list| list["items"].as_array());
    Ok(items.into_iter().flatten().filter_map(|item| core::Event::deserialize(item).ok()).collect())
}

/// ConfigMaps, Secrets and claims that the Pod cannot do without and that are not there.
async fn missing(client: &Client, namespace: &str, pod: &core::Pod) -> Result<Vec<String>, ClientError> {
    let mut out = Vec::new();
    for (kind, path, name) in references(pod) {
        let answer =
            client.ask_bytes(Request::get(format!("/api/v1/namespaces/{namespace}/{path}/{name}"))).await;
        match answer {
            Err(error) if error.is_not_found() => out.push(format!("{kind} {name:?}")),
            Err(error) if error.code() != Some(403) => return Err(error),
            _ => {}
        }
    }
    Ok(out)
}

/// What it names and does not call optional: kind, plural and name, each once.
fn references(pod: &core::Pod) -> Vec<(&'static str, &'static str, String)> {
    const CONFIG_MAP: (&str, &str) = ("ConfigMap", "configmaps");
    const SECRET: (&str, &str) = ("Secret", "secrets");
    const CLAIM: (&str, &str) = ("PersistentVolumeClaim", "persistentvolumeclaims");
    let mut out: Vec<(&str, &str, String)> = Vec::new();
    let mut add = |kind: (&'static str, &'static str), name: &str, optional: Option<bool>| {
        let reference = (kind.0, kind.1, name.to_owned());
        if optional != Some(true) && !name.is_empty() && !out.contains(&reference) {
            out.push(reference);
        }
    };
    let Some(spec) = &pod.spec else { return out };
    for volume in spec.volumes.iter().flatten() {
        if let Some(v) = &volume.config_map {
            add(CONFIG_MAP, &v.name, v.optional);
        }
        if let Some(v) = &volume.secret {
            add(SECRET, v.secret_name.as_deref().unwrap_or_default(), v.optional);
        }
        if let Some(v) = &volume.persistent_volume_claim {
            add(CLAIM, &v.claim_name, None);
        }
        for source in volume.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
            if let Some(v) = &source.config_map {
                add(CONFIG_MAP, &v.name, v.optional);
            }
            if let Some(v) = &source.secret {
                add(SECRET, &v.name, v.optional);
            }
        }
    }
    for container in spec.init_containers.iter().flatten().chain(&spec.containers) {
        for from in container.env_from.iter().flatten() {
            if let Some(v) = &from.config_map_ref {
                add(CONFIG_MAP, &v.name, v.optional);
            }
            if let Some(v) = &from.secret_ref {
                add(SECRET, &v.name, v.optional);
            }
        }
        for from in container.env.iter().flatten().filter_map(|e| e.value_from.as_ref()) {
            if let Some(v) = &from.config_map_key_ref {
                add(CONFIG_MAP, &v.name, v.optional);
            }
            if let Some(v) = &from.secret_key_ref {
                add(SECRET, &v.name, v.optional);
            }
        }
    }
    out
}

/// All that the scheduler looks at.
async fn cluster(client: &Client) -> Result<Cluster, ClientError> {
    let mut cluster = Cluster::default();
    for node in list::<core::Node>(client, "/api/v1/nodes").await? {
        cluster.set_node(Node::read(&node));
    }
    for pod in list::<core::Pod>(client, PODS).await?.iter().map(Pod::read) {
        match pod.is_bound() {
            true => _ = cluster.set_pod(pod),
            false => {
                let node = pod.nominated.clone();
                cluster.nominations.set(Arc::new(pod), &node);
            }
        }
    }
    for namespace in list::<core::Namespace>(client, "/api/v1/namespaces").await? {
        let name = namespace.metadata.name.as_deref().unwrap_or_default().into();
        cluster.namespaces.insert(name, Labels::from(namespace.metadata.labels.as_ref()));
    }
    for budget in list::<PodDisruptionBudget>(client, "/apis/policy/v1/poddisruptionbudgets").await? {
        let budget = Budget::read(&budget);
        cluster.budgets.insert(budget.key.clone(), budget);
    }
    look_at_storage(client, &mut cluster).await?;
    look_at_workloads(client, &mut cluster).await?;
    Ok(cluster)
}

async fn look_at_storage(client: &Client, cluster: &mut Cluster) -> Result<(), ClientError> {
    let all = &mut cluster.storage;
    for claim in list::<core::PersistentVolumeClaim>(client, "/api/v1/persistentvolumeclaims").await? {
        all.set_claim(Claim::read(&claim));
    }
    for volume in list::<core::PersistentVolume>(client, "/api/v1/persistentvolumes").await? {
        all.set_volume(Volume::read(&volume));
    }
    for class in list::<storage::StorageClass>(client, "/apis/storage.k8s.io/v1/storageclasses").await? {
        let class = StorageClass::read(&class);
        all.classes.insert(class.name.clone(), Arc::new(class));
    }
    for node in list::<storage::CSINode>(client, "/apis/storage.k8s.io/v1/csinodes").await? {
        let node = CsiNode::read(&node);
        all.csi_nodes.insert(node.name.clone(), Arc::new(node));
    }
    for driver in list::<storage::CSIDriver>(client, "/apis/storage.k8s.io/v1/csidrivers").await? {
        let driver = CsiDriver::read(&driver);
        all.drivers.insert(driver.name.clone(), Arc::new(driver));
    }
    for capacity in
        list::<storage::CSIStorageCapacity>(client, "/apis/storage.k8s.io/v1/csistoragecapacities").await?
    {
        let capacity = Capacity::read(&capacity);
        all.capacities.insert(capacity.key.clone(), Arc::new(capacity));
    }
    for attachment in
        list::<storage::VolumeAttachment>(client, "/apis/storage.k8s.io/v1/volumeattachments").await?
    {
        let attachment = Attachment::read(&attachment);
        all.attachments.insert(attachment.name.clone(), Arc::new(attachment));
    }
    Ok(())
}

async fn look_at_workloads(client: &Client, cluster: &mut Cluster) -> Result<(), ClientError> {
    let all = &mut cluster.workloads;
    for object in list::<core::Service>(client, "/api/v1/services").await? {
        let selector = object.spec.as_ref().and_then(|s| s.selector.as_ref());
        let known = Selecting::by_map(&object.metadata, selector);
        all.services.insert(known.key.clone(), known);
    }
    for object in list::<core::ReplicationController>(client, "/api/v1/replicationcontrollers").await? {
        let selector = object.spec.as_ref().and_then(|s| s.selector.as_ref());
        let known = Selecting::by_map(&object.metadata, selector);
        all.replication_controllers.insert(known.key.clone(), known);
    }
    for object in list::<ReplicaSet>(client, "/apis/apps/v1/replicasets").await? {
        let known = Selecting::by_selector(&object.metadata, object.spec.as_ref().map(|s| &s.selector));
        all.replica_sets.insert(known.key.clone(), known);
    }
    for object in list::<StatefulSet>(client, "/apis/apps/v1/statefulsets").await? {
        let known = Selecting::by_selector(&object.metadata, object.spec.as_ref().map(|s| &s.selector));
        all.stateful_sets.insert(known.key.clone(), known);
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_a_pod_cannot_do_without_is_looked_for() {
        let pod: core::Pod = serde_json::from_value(json!({"metadata": {}, "spec": {
            "volumes": [
                {"name": "a", "configMap": {"name": "c1"}},
                {"name": "b", "secret": {"secretName": "s1", "optional": true}},
                {"name": "c", "persistentVolumeClaim": {"claimName": "v"}},
                {"name": "d", "projected": {"sources": [{"secret": {"name": "s2"}}, {"configMap": {"name": "c1"}}]}},
            ],
            "containers": [{"name": "x",
                "envFrom": [{"configMapRef": {"name": "c2"}}, {"secretRef": {"name": "s3", "optional": true}}],
                "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "s4", "key": "k"}}}]}],
        }}))
        .unwrap();
        let names: Vec<String> =
            references(&pod).into_iter().map(|(kind, _, name)| format!("{kind} {name}")).collect();
        assert_eq!(
            names,
            ["ConfigMap c1", "PersistentVolumeClaim v", "Secret s2", "ConfigMap c2", "Secret s4"]
        );
    }
}
