//! The cluster's Services, as far as environment variables tell of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::pod::static_pod::SOURCE_ANNOTATION;
use base::rng::Rng;
use client::{Client, Event, Resource, Watcher};
use k8s_openapi::api::core::v1::{self as core, Pod};
use kubelet_core::services::{Port, Service, service_env};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How long the first container of a node waits for the list.
const FIRST_LIST: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Services {
    known: Arc<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Held for map operations only.
    services: Mutex<BTreeMap<(String, String), Service>>,
    listed: watch::Sender<bool>,
}

/// The few fields that matter; a cluster may have many Services.
#[derive(Deserialize)]
struct Read {
    metadata: Named,
    #[serde(default)]
    spec: Spec,
}

#[derive(Deserialize)]
struct Named {
    namespace: String,
    name: String,
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
    pub(super) fn new(client: Client, rng: Rng, token: CancellationToken) -> Self {
        let known = Arc::new(Known::default());
        let resource = Resource {
            label_selector: "!service.kubernetes.io/headless".to_owned(),
            ..Resource::new("/api/v1/services")
        };
        let mut watcher = Watcher::new(client.clone(), resource, rng);
        let writer = known.clone();
        supervise::spawn("watch of Services", async move {
            while let Some(event) = token.run_until_cancelled(watcher.next()).await {
                writer.take(event, &client);
            }
        });
        Self { known }
    }

    /// The variables for a Pod. Only a static Pod starts without having heard of Services.
    pub(super) async fn env(&self, pod: &Pod) -> Result<BTreeMap<String, String>, String> {
        let source = pod.metadata.annotations.as_ref().and_then(|a| a.get(SOURCE_ANNOTATION));
        let mut listed = self.known.listed.subscribe();
        if source.is_some_and(|s| s == "api") {
            let first = listed.wait_for(|listed| *listed);
            if !matches!(tokio::time::timeout(FIRST_LIST, first).await, Ok(Ok(_))) {
                return Err("services have not yet been read at least once, cannot construct envvars".into());
            }
        }
        let services = self.known.services.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(service_env(pod, services.values()))
    }
}

// === impl Known ===

impl Known {
    fn take(&self, event: Event, client: &Client) {
        let mut services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        let decode = |raw: &RawValue| {
            let few = serde_json::from_str::<Read>(raw.get()).ok();
            few.or_else(|| client.read::<core::Service>(raw).any().map(Read::of))
        };
        match event {
            Event::Listed(all) => {
                let all = all.iter().filter_map(|raw| decode(raw)).filter_map(Read::into_service);
                *services = all.map(|s| ((s.namespace.clone(), s.name.clone()), s)).collect();
                self.listed.send_replace(true);
            }
            Event::Applied(raw) => {
                let Some(read) = decode(&raw) else { return };
                let key = (read.metadata.namespace.clone(), read.metadata.name.clone());
                match read.into_service() {
                    Some(service) => _ = services.insert(key, service),
                    None => _ = services.remove(&key),
                }
            }
            Event::Deleted(raw) => {
                if let Some(read) = decode(&raw) {
                    services.remove(&(read.metadata.namespace, read.metadata.name));
                }
            }
        }
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
