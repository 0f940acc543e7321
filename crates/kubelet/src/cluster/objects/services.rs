//! The cluster's Services, as far as environment variables tell of them.

use std::collections::BTreeMap;
use std::time::Duration;

use api::pod::static_pod::SOURCE_ANNOTATION;
use base::rng::Rng;
use client::reflector::{Cache, Identity, Key, Reader, Reflector};
use client::{Client, Resource};
use k8s_openapi::api::core::v1::{self as core, Pod};
use kubelet_core::services::{Port, Service, service_env};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

/// How long the first container of a node waits for the list.
const FIRST_LIST: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Services {
    /// Those without an address of their own are known and not told of.
    known: Cache<Option<Service>>,
}

/// Reads few fields of each Service.
#[derive(Debug)]
struct FewFields(Client);

/// The few fields that matter; a cluster may have many Services.
#[derive(Deserialize)]
struct Read {
    metadata: Named,
    #[serde(default)]
    spec: Spec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Named {
    namespace: String,
    name: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    resource_version: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    #[serde(rename = "clusterIP")]
    cluster_ip: String,
    ports: Vec<SpecPort>,
}

#[derive(Deserialize)]
struct SpecPort {
    #[serde(default)]
    name: String,
    port: i32,
    #[serde(default = "tcp")]
    protocol: String,
}

// === impl Services ===

impl Services {
    /// Watches until cancelled. Headless Services have no address to tell and are not asked for.
    pub(super) fn new(client: Client, mut rng: Rng, token: CancellationToken) -> Self {
        let known = Cache::new(Vec::new());
        let resource = Resource {
            label_selector: "!service.kubernetes.io/headless".to_owned(),
            ..Resource::new("/api/v1/services")
        };
        let writer = known.clone();
        supervise::spawn_restarting("watch_of_services", token, move || {
            let (reader, cache) = (FewFields(client.clone()), writer.clone());
            let (client, resource) = (client.clone(), resource.clone());
            let mut reflector = Reflector::with_cache(client, resource, rng.child(), reader, cache);
            async move {
                loop {
                    reflector.next().await;
                }
            }
        });
        Self { known }
    }

    /// The variables for a Pod. Only a static Pod starts without having heard of Services.
    pub(super) async fn env(&self, pod: &Pod) -> Result<BTreeMap<String, String>, String> {
        let source = pod.metadata.annotations.as_ref().and_then(|a| a.get(SOURCE_ANNOTATION));
        if source.is_some_and(|s| s == "api")
            && tokio::time::timeout(FIRST_LIST, self.known.synced()).await.is_err()
        {
            return Err("services have not yet been read at least once, cannot construct envvars".into());
        }
        Ok(self.known.with_all(|all| service_env(pod, all.filter_map(|(_, service)| service.as_ref()))))
    }
}

// === impl FewFields ===

impl Reader for FewFields {
    type Object = Option<Service>;
    type Kept = Option<Service>;

    fn read(&self, raw: Box<RawValue>) -> client::Read<(Identity, Option<Service>)> {
        let few = serde_json::from_str::<Read>(raw.get()).ok();
        let Some(few) = few.or_else(|| self.0.read::<core::Service>(&raw).any().map(Read::of)) else {
            return client::Read::Nothing;
        };
        let Named { namespace, name, uid, resource_version } = &few.metadata;
        let identity = Identity {
            key: Key::new(namespace, name),
            uid: uid.clone(),
            revision: resource_version.parse().unwrap_or_default(),
        };
        client::Read::Whole((identity, few.into_service()))
    }

    fn keep(&self, service: &Option<Service>) -> Option<Service> {
        service.clone()
    }
}

// === impl Read ===

impl Read {
    /// The same of one that is odd somewhere.
    fn of(service: core::Service) -> Read {
        let (meta, spec) = (service.metadata, service.spec.unwrap_or_default());
        let port = |p: core::ServicePort| SpecPort {
            name: p.name.unwrap_or_default(),
            port: p.port,
            protocol: p.protocol.unwrap_or_else(tcp),
        };
        Read {
            metadata: Named {
                namespace: meta.namespace.unwrap_or_default(),
                name: meta.name.unwrap_or_default(),
                uid: meta.uid.unwrap_or_default(),
                resource_version: meta.resource_version.unwrap_or_default(),
            },
            spec: Spec {
                cluster_ip: spec.cluster_ip.unwrap_or_default(),
                ports: spec.ports.into_iter().flatten().map(port).collect(),
            },
        }
    }

    /// None without an address of its own.
    fn into_service(self) -> Option<Service> {
        let Read { metadata, spec } = self;
        let port = |p: SpecPort| Port { name: p.name, port: p.port, protocol: p.protocol };
        let has_address = !spec.cluster_ip.is_empty() && spec.cluster_ip != "None";
        has_address.then(|| Service {
            namespace: metadata.namespace,
            name: metadata.name,
            cluster_ip: spec.cluster_ip,
            ports: spec.ports.into_iter().map(port).collect(),
        })
    }
}

fn tcp() -> String {
    "TCP".to_owned()
}
