//! Resources of the API, by the names under which they are served.

use std::fmt;

use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Endpoints, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod,
    ReplicationController, ResourceQuota, Secret, Service, ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass, VolumeAttachment, VolumeAttributesClass};
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};

pub const CERTIFICATE_SIGNING_REQUESTS: Resource = Resource::of::<CertificateSigningRequest>();
pub const CLUSTER_ROLES: Resource = Resource::of::<ClusterRole>();
pub const CONFIG_MAPS: Resource = Resource::of::<ConfigMap>();
pub const CONTROLLER_REVISIONS: Resource = Resource::of::<ControllerRevision>();
pub const CSI_DRIVERS: Resource = Resource::of::<CSIDriver>();
pub const CRON_JOBS: Resource = Resource::of::<CronJob>();
pub const DAEMON_SETS: Resource = Resource::of::<DaemonSet>();
pub const DEPLOYMENTS: Resource = Resource::of::<Deployment>();
pub const ENDPOINTS: Resource = Resource::of::<Endpoints>();
pub const ENDPOINT_SLICES: Resource = Resource::of::<EndpointSlice>();
pub const HORIZONTAL_POD_AUTOSCALERS: Resource = Resource::of::<HorizontalPodAutoscaler>();
pub const IP_ADDRESSES: Resource = Resource::of::<IPAddress>();
pub const JOBS: Resource = Resource::of::<Job>();
pub const LEASES: Resource = Resource::of::<Lease>();
pub const NAMESPACES: Resource = Resource::of::<Namespace>();
pub const NODES: Resource = Resource::of::<Node>();
pub const PERSISTENT_VOLUMES: Resource = Resource::of::<PersistentVolume>();
pub const PERSISTENT_VOLUME_CLAIMS: Resource = Resource::of::<PersistentVolumeClaim>();
pub const PODS: Resource = Resource::of::<Pod>();
pub const POD_DISRUPTION_BUDGETS: Resource = Resource::of::<PodDisruptionBudget>();
pub const REPLICATION_CONTROLLERS: Resource = Resource::of::<ReplicationController>();
pub const REPLICA_SETS: Resource = Resource::of::<ReplicaSet>();
pub const RESOURCE_QUOTAS: Resource = Resource::of::<ResourceQuota>();
pub const SECRETS: Resource = Resource::of::<Secret>();
pub const SERVICES: Resource = Resource::of::<Service>();
pub const SERVICE_CIDRS: Resource = Resource::of::<ServiceCIDR>();
pub const SERVICE_ACCOUNTS: Resource = Resource::of::<ServiceAccount>();
pub const STATEFUL_SETS: Resource = Resource::of::<StatefulSet>();
pub const VOLUME_ATTRIBUTES_CLASSES: Resource = Resource::of::<VolumeAttributesClass>();
pub const STORAGE_CLASSES: Resource = Resource::of::<StorageClass>();
pub const VOLUME_ATTACHMENTS: Resource = Resource::of::<VolumeAttachment>();

/// One resource: `apps/v1`, `replicasets`, `ReplicaSet`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource {
    /// Empty for the core group.
    pub group: &'static str,
    pub version: &'static str,
    pub plural: &'static str,
    pub kind: &'static str,
    pub is_namespaced: bool,
}

/// Whether objects of a type live in a namespace.
pub trait Scope {
    const IS_NAMESPACED: bool;
}

impl Scope for NamespaceResourceScope {
    const IS_NAMESPACED: bool = true;
}

impl Scope for ClusterResourceScope {
    const IS_NAMESPACED: bool = false;
}

// === impl Resource ===

impl Resource {
    /// The resource of a Kubernetes type.
    #[must_use]
    pub const fn of<T>() -> Resource
    where
        T: k8s_openapi::Resource,
        T::Scope: Scope,
    {
        Resource {
            group: T::GROUP,
            version: T::VERSION,
            plural: T::URL_PATH_SEGMENT,
            kind: T::KIND,
            is_namespaced: <T::Scope as Scope>::IS_NAMESPACED,
        }
    }

    /// `apps/v1`, or `v1`.
    #[must_use]
    pub fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// Its name among the schemas: `io.k8s.api.apps.v1.ReplicaSet`.
    #[must_use]
    pub fn schema_name(&self) -> String {
        let group = match self.group.split('.').next() {
            None | Some("") => "core",
            Some(group) => group,
        };
        format!("io.k8s.api.{group}.{}.{}", self.version, self.kind)
    }

    /// Where all of them are served, in one namespace or (with an empty one) in all.
    #[must_use]
    pub fn path(&self, namespace: &str) -> String {
        let root = match self.group {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        };
        match namespace {
            "" => format!("{root}/{}", self.plural),
            namespace => format!("{root}/namespaces/{namespace}/{}", self.plural),
        }
    }

    /// Where one of them is served.
    #[must_use]
    pub fn object_path(&self, namespace: &str, name: &str) -> String {
        format!("{}/{name}", self.path(namespace))
    }
}

/// `replicasets.apps`, as messages of the API name them.
impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.group {
            "" => f.write_str(self.plural),
            group => write!(f, "{}.{group}", self.plural),
        }
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_knows_its_paths() {
        assert_eq!(PODS.path("a"), "/api/v1/namespaces/a/pods");
        assert_eq!(REPLICA_SETS.path(""), "/apis/apps/v1/replicasets");
        assert_eq!(NODES.object_path("", "n"), "/api/v1/nodes/n");
        assert_eq!((REPLICA_SETS.to_string(), PODS.to_string()), ("replicasets.apps".into(), "pods".into()));
        assert_eq!(ENDPOINT_SLICES.schema_name(), "io.k8s.api.discovery.v1.EndpointSlice");
        assert_eq!(PODS.schema_name(), "io.k8s.api.core.v1.Pod");
        assert_eq!((PODS.is_namespaced, NODES.is_namespaced), (true, false));
    }
}
