//! Watched objects become records, one task for each resource, and go to the loop in the order in which they came.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::json::FromJson;
use base::rng::Rng;
use client::reflector::{Cache, Change, Events, Reflector};
use client::{Client, Resource};
use k8s_openapi::Metadata;
use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1 as storage;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use scheduler_core::labels::Labels;
use scheduler_core::node::Node;
use scheduler_core::objects::{
    Attachment, Budget, Capacity, Claim, CsiDriver, CsiNode, Selecting, StorageClass, Volume,
};
use scheduler_core::pod::Pod;
use scheduler_core::{Key, Name};
use serde::Serialize;
use serde_json::value::RawValue;
use supervise::Supervisor;
use tokio::sync::mpsc;

/// Pods that have ended hold nothing.
const PODS: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// What the loop is told.
#[derive(Debug)]
pub(crate) enum News {
    /// With the object itself where extenders want to see it.
    Pod(Box<Pod>, Option<Arc<RawValue>>),
    PodGone(Key),
    Node(Box<Node>, Option<Arc<RawValue>>),
    NodeGone(Name),
    Claim(Claim),
    ClaimGone(Key),
    Volume(Volume),
    VolumeGone(Name),
    Class(StorageClass),
    ClassGone(Name),
    CsiNode(CsiNode),
    CsiNodeGone(Name),
    Driver(CsiDriver),
    DriverGone(Name),
    Capacity(Capacity),
    CapacityGone(Key),
    Attachment(Attachment),
    AttachmentGone(Name),
    Budget(Budget),
    BudgetGone(Key),
    Namespace(Name, Labels),
    NamespaceGone(Name),
    Workload(Workload, Selecting),
    WorkloadGone(Workload, Key),
    /// A resource was told whole.
    Synced(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    Service,
    ReplicationController,
    ReplicaSet,
    StatefulSet,
}

/// Starts the watches.
#[derive(Debug)]
pub(crate) struct Informers {
    pub(crate) client: Client,
    pub(crate) news: mpsc::Sender<News>,
    pub(crate) tasks: Supervisor,
    pub(crate) rng: Rng,
    /// Pods and nodes are handed on as they are, too.
    pub(crate) keeps_objects: bool,
    /// What was started.
    pub(crate) resources: BTreeSet<&'static str>,
}

/// The object as it is sent to others.
fn raw<O: Serialize>(object: &O) -> Option<Arc<RawValue>> {
    serde_json::value::to_raw_value(object).ok().map(Arc::from)
}

// === impl Informers ===

impl Informers {
    pub(crate) fn start(&mut self) {
        if self.keeps_objects {
            self.watch::<core::Pod>(
                "/api/v1/pods",
                |o| News::Pod(Box::new(Pod::read(o)), raw(o)),
                News::PodGone,
            );
            self.watch::<core::Node>(
                "/api/v1/nodes",
                |o| News::Node(Box::new(Node::read(o)), raw(o)),
                |k| News::NodeGone(k.name),
            );
        } else {
            self.watch::<core::Pod>(
                "/api/v1/pods",
                |o| News::Pod(Box::new(Pod::read(o)), None),
                News::PodGone,
            );
            self.watch::<core::Node>(
                "/api/v1/nodes",
                |o| News::Node(Box::new(Node::read(o)), None),
                |k| News::NodeGone(k.name),
            );
        }
        self.watch::<core::PersistentVolumeClaim>(
            "/api/v1/persistentvolumeclaims",
            |o| News::Claim(Claim::read(o)),
            News::ClaimGone,
        );
        self.watch::<core::PersistentVolume>(
            "/api/v1/persistentvolumes",
            |o| News::Volume(Volume::read(o)),
            |k| News::VolumeGone(k.name),
        );
        self.watch::<core::Namespace>(
            "/api/v1/namespaces",
            |o| {
                let name = o.metadata.name.as_deref().unwrap_or_default().into();
                News::Namespace(name, Labels::from(o.metadata.labels.as_ref()))
            },
            |k| News::NamespaceGone(k.name),
        );
        self.watch::<PodDisruptionBudget>(
            "/apis/policy/v1/poddisruptionbudgets",
            |o| News::Budget(Budget::read(o)),
            News::BudgetGone,
        );
        self.start_storage();
        self.start_workloads();
    }

    fn start_storage(&mut self) {
        self.watch::<storage::StorageClass>(
            "/apis/storage.k8s.io/v1/storageclasses",
            |o| News::Class(StorageClass::read(o)),
            |k| News::ClassGone(k.name),
        );
        self.watch::<storage::CSINode>(
            "/apis/storage.k8s.io/v1/csinodes",
            |o| News::CsiNode(CsiNode::read(o)),
            |k| News::CsiNodeGone(k.name),
        );
        self.watch::<storage::CSIDriver>(
            "/apis/storage.k8s.io/v1/csidrivers",
            |o| News::Driver(CsiDriver::read(o)),
            |k| News::DriverGone(k.name),
        );
        self.watch::<storage::CSIStorageCapacity>(
            "/apis/storage.k8s.io/v1/csistoragecapacities",
            |o| News::Capacity(Capacity::read(o)),
            News::CapacityGone,
        );
        self.watch::<storage::VolumeAttachment>(
            "/apis/storage.k8s.io/v1/volumeattachments",
            |o| News::Attachment(Attachment::read(o)),
            |k| News::AttachmentGone(k.name),
        );
    }

    fn start_workloads(&mut self) {
        self.watch::<core::Service>(
            "/api/v1/services",
            |o| {
                let selector = o.spec.as_ref().and_then(|s| s.selector.as_ref());
                News::Workload(Workload::Service, Selecting::by_map(&o.metadata, selector))
            },
            |k| News::WorkloadGone(Workload::Service, k),
        );
        self.watch::<core::ReplicationController>(
            "/api/v1/replicationcontrollers",
            |o| {
                let selector = o.spec.as_ref().and_then(|s| s.selector.as_ref());
                News::Workload(Workload::ReplicationController, Selecting::by_map(&o.metadata, selector))
            },
            |k| News::WorkloadGone(Workload::ReplicationController, k),
        );
        self.watch::<ReplicaSet>(
            "/apis/apps/v1/replicasets",
            |o| {
                let selector = o.spec.as_ref().map(|s| &s.selector);
                News::Workload(Workload::ReplicaSet, Selecting::by_selector(&o.metadata, selector))
            },
            |k| News::WorkloadGone(Workload::ReplicaSet, k),
        );
        self.watch::<StatefulSet>(
            "/apis/apps/v1/statefulsets",
            |o| {
                let selector = o.spec.as_ref().map(|s| &s.selector);
                News::Workload(Workload::StatefulSet, Selecting::by_selector(&o.metadata, selector))
            },
            |k| News::WorkloadGone(Workload::StatefulSet, k),
        );
    }

    fn watch<O>(&mut self, path: &'static str, read: fn(&O) -> News, gone: fn(Key) -> News)
    where
        O: FromJson + k8s_openapi::Resource + Metadata<Ty = ObjectMeta> + Send + 'static,
    {
        self.resources.insert(path);
        let (client, news, rng) = (self.client.clone(), self.news.clone(), self.rng.child());
        // Outlives a panic of the task, so that what is gone meanwhile is told.
        let cache = Cache::new(Vec::new());
        self.tasks.restart(path, move || {
            let mut resource = Resource::new(path);
            if path == "/api/v1/pods" {
                resource.field_selector = PODS.to_owned();
            }
            let reader = Events::<O>::new(client.clone());
            let mut reflector =
                Reflector::with_cache(client.clone(), resource, rng.clone(), reader, cache.clone());
            let news = news.clone();
            async move {
                loop {
                    let told = match reflector.next().await {
                        Change::Added { new, .. } | Change::Updated { new, .. } => read(&new),
                        Change::Deleted { key, .. } => gone(Key::new(&key.namespace, &key.name)),
                        Change::Synced => News::Synced(path),
                        Change::Unnamed => continue,
                    };
                    // The loop is gone: so are we.
                    if news.send(told).await.is_err() {
                        return;
                    }
                }
            }
        });
    }
}
