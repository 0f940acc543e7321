//! Services of type LoadBalancer get the addresses of Nodes. The way to the Pods is kube-proxy's.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use api::events::About;
use base::rng::Rng;
use client::reflector::Cache;
use client::{Client, ClientError, Request};
use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize;
use serde_json::json;
use supervise::Supervisor;
use tokio::sync::Mutex;

use crate::core::load_balancer::{Holder, Node, Port, Service, Verdict, decide};
use crate::events::{Grade, Recorder};
use crate::follow::{Follow, Round, rounds};
use crate::sockets;

const COMPONENT: &str = "service-lb-controller";

/// Pods that are listed at a time.
const PAGE: usize = 500;

/// Reconciles all Services.
struct Balancer {
    client: Client,
    services: Cache<Service>,
    nodes: Cache<Node>,
    local: Vec<IpAddr>,
    recorder: Recorder,
    /// What was said of which Service, by UID: said once.
    told: BTreeMap<String, String>,
}

pub(crate) fn start((client, rng): (Client, Rng), local: Vec<IpAddr>, tasks: &Supervisor) {
    let mut follow = Follow::new((&client, rng), tasks);
    let services = follow.resource("watch of Services", "/api/v1/services", Service::of);
    let nodes = follow.resource("watch of Nodes", "/api/v1/nodes", Node::of);
    let changed = follow.changed.clone();
    let recorder = Recorder::new(client.clone(), COMPONENT);
    let all = Balancer { client, services, nodes, local, recorder, told: BTreeMap::new() };
    tasks.lasting(COMPONENT, Arc::new(Mutex::new(all)), move |all, token| {
        let changed = changed.clone();
        rounds(changed, token, move || {
            let all = all.clone();
            async move { all.lock().await.round().await }
        })
    });
}

// === impl Balancer ===

impl Balancer {
    async fn round(&mut self) -> Round {
        if !self.services.has_synced() || !self.nodes.has_synced() {
            return Round::Done;
        }
        let (services, nodes) = (self.services.all(), self.nodes.all());
        self.told.retain(|uid, _| services.iter().any(|service| service.uid == *uid));
        // Nobody tells when a program on the machine lets a port go; and only who has none yet has to know.
        let held = match services.iter().any(Service::is_new) {
            true => match self.held().await {
                Ok(held) => held,
                Err(error) => {
                    tracing::warn!(%error, "the hostPorts of Pods are not known; trying again");
                    return Round::Again;
                }
            },
            false => BTreeMap::new(),
        };
        let mut round = Round::Done;
        for (service, verdict) in decide(&services, &nodes, &held) {
            if self.carry_out(service, verdict).await == Round::Again {
                round = Round::Again;
            }
        }
        round
    }

    async fn carry_out(&mut self, service: &Service, verdict: Verdict) -> Round {
        let (addresses, why) = match verdict {
            Verdict::Give(addresses) => (addresses.iter().map(ToString::to_string).collect(), None),
            Verdict::Clear => (Vec::new(), None),
            Verdict::NoAddress => {
                (Vec::new(), Some("no Node has an address of a family that it asks for".to_owned()))
            }
            Verdict::Taken(port, holder) => {
                (Vec::new(), Some(format!("port {port} of the node is taken by {holder}")))
            }
        };
        if service.addresses != addresses {
            let before = service.addresses.join(" ");
            if let Err(error) = self.write(service, &addresses).await {
                // Gone, or changed meanwhile: its next state comes by itself.
                let is_news = !error.is_not_found() && !error.is_conflict();
                if is_news {
                    tracing::warn!(%error, service = service.name, "status of a Service not written; trying again");
                }
                return if is_news { Round::Again } else { Round::Done };
            }
            let message =
                format!("Updated LoadBalancer with new IPs: [{before}] -> [{}]", addresses.join(" "));
            self.recorder.tell(about(service), Grade::Normal, "UpdatedLoadBalancer", message).await;
        }
        let Some(why) = why else {
            self.told.remove(&service.uid);
            return Round::Done;
        };
        if self.told.get(&service.uid) != Some(&why) {
            let message = format!("Error syncing load balancer: {why}");
            self.recorder.tell(about(service), Grade::Warning, "SyncLoadBalancerFailed", message).await;
            self.told.insert(service.uid.clone(), why);
        }
        Round::Again
    }

    async fn write(&self, service: &Service, addresses: &[String]) -> Result<(), ClientError> {
        let Service { namespace, name, .. } = service;
        let all: Vec<_> = addresses.iter().map(|ip| json!({"ip": ip, "ipMode": "VIP"})).collect();
        let balancer = if all.is_empty() { json!(null) } else { json!({"ingress": all}) };
        let change = json!({
            "metadata": {"resourceVersion": service.resource_version},
            "status": {"loadBalancer": balancer},
        });
        let path = format!("/api/v1/namespaces/{namespace}/services/{name}/status?fieldManager={COMPONENT}");
        let request = Request::patch(path, "application/merge-patch+json", change.to_string());
        self.client.ask_bytes(request).await.map(drop)
    }

    /// The ports that others than Services have.
    async fn held(&self) -> Result<BTreeMap<Port, Holder>, ClientError> {
        let local = self.local.clone();
        let sockets =
            tokio::task::spawn_blocking(move || sockets::listening(&local)).await.unwrap_or_default();
        let mut held: BTreeMap<Port, Holder> = BTreeMap::new();
        let mut after = String::new();
        loop {
            let path = format!("/api/v1/pods?limit={PAGE}&continue={after}");
            let page = self.client.ask_bytes(Request::get(path)).await?;
            // A list that makes no sense is none: it is our own server's, or a stranger's.
            let page: Page = serde_json::from_slice(&page).unwrap_or_default();
            for pod in page.items {
                let holder = Holder::Pod {
                    namespace: pod.metadata.namespace.clone().unwrap_or_default(),
                    name: pod.metadata.name.clone().unwrap_or_default(),
                };
                held.extend(host_ports(&pod).map(|port| (port, holder.clone())));
            }
            after = page.metadata.next;
            if after.is_empty() {
                break;
            }
        }
        for port in sockets {
            held.entry(port).or_insert(Holder::Socket);
        }
        Ok(held)
    }
}

#[derive(Default, Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMeta,
    #[serde(default)]
    items: Vec<Pod>,
}

#[derive(Default, Deserialize)]
struct PageMeta {
    #[serde(default, rename = "continue")]
    next: String,
}

/// What a Pod that is not at its end has of the node's ports.
fn host_ports(pod: &Pod) -> impl Iterator<Item = Port> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let is_over = matches!(phase, Some("Succeeded" | "Failed"));
    let containers = pod.spec.iter().filter(move |_| !is_over).flat_map(|spec| &spec.containers);
    containers.flat_map(|container| container.ports.iter().flatten()).filter_map(|port| {
        let number = u16::try_from(port.host_port?).ok()?;
        Some(Port { protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()), number })
    })
}

fn about(service: &Service) -> About {
    About {
        kind: "Service",
        namespace: service.namespace.clone(),
        name: service.name.clone(),
        uid: service.uid.clone(),
        resource_version: service.resource_version.clone(),
    }
}
