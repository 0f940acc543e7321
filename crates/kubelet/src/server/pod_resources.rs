//! `pod-resources/kubelet.sock`: which devices, CPUs and memory each container has.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::stream;
use k8s_openapi::api::core::v1::Pod;
use kubelet_core::devices::{Allocation, Devices};
use kubelet_core::images::TokenBucket;
use kubelet_core::topology::memory::state::Block;
use kubelet_core::topology::wants::{Lasting, PodWant};
use plugins::pod_resources::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
use plugins::pod_resources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices, ContainerMemory,
    ContainerResources, GetPodResourcesRequest, GetPodResourcesResponse, ListPodResourcesRequest,
    ListPodResourcesResponse, NumaNode, PodResources, TopologyInfo,
};
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::pods::node::Node;
use crate::pods::status_board::Entry;

/// Upstream's: enough for those who ask again and again.
const PER_SECOND: f64 = 100.0;
const BURST: u32 = 10;
/// Calls of one client at a time.
const AT_ONCE: usize = 8;
/// The only version there is.
const VERSION: &str = "v1";

struct Lister {
    node: Arc<Node>,
    bucket: Mutex<TokenBucket>,
}

/// Listens there; what an earlier life left is taken away.
pub fn bind(dir: &Path) -> io::Result<UnixListener> {
    let path = dir.join("kubelet.sock");
    crate::host::files::remove(&path)?;
    UnixListener::bind(path)
}

/// Answers until cancelled.
pub async fn serve(node: Arc<Node>, listener: UnixListener, token: CancellationToken) {
    let bucket = Mutex::new(TokenBucket::new(PER_SECOND, BURST, node.now().mono));
    let incoming = stream::unfold(listener, |listener| async move {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    });
    let served = Server::builder()
        .concurrency_limit_per_connection(AT_ONCE)
        .add_service(PodResourcesListerServer::new(Lister { node, bucket }))
        .serve_with_incoming_shutdown(Box::pin(incoming), token.cancelled())
        .await;
    if let Err(error) = served {
        tracing::error!(%error, "nobody can ask for the resources of Pods any more");
        token.cancelled().await;
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        self.admit()?;
        let metrics = &self.node.metrics;
        metrics.pod_resources_endpoint_requests_total.inc([VERSION]);
        metrics.pod_resources_endpoint_requests_list.inc([VERSION]);
        let active = self.node.board.all().into_iter().filter(is_active);
        let pod_resources = active.map(|entry| self.of_pod(&entry.pod)).collect();
        Ok(Response::new(ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        self.admit()?;
        let metrics = &self.node.metrics;
        metrics.pod_resources_endpoint_requests_total.inc([VERSION]);
        metrics.pod_resources_endpoint_requests_get_allocatable.inc([VERSION]);
        let (cpus, memory) = self.node.places.allocatable();
        let mut devices = Vec::new();
        if let Some(plugins) = self.node.places.devices() {
            plugins.books().resources().for_each(|(name, of)| devices.extend(healthy(name, of)));
        }
        Ok(Response::new(AllocatableResourcesResponse {
            devices,
            cpu_ids: cpus.iter().map(i64::from).collect(),
            memory: memory.into_iter().map(block).collect(),
        }))
    }

    async fn get(
        &self,
        request: Request<GetPodResourcesRequest>,
    ) -> Result<Response<GetPodResourcesResponse>, Status> {
        self.admit()?;
        let metrics = &self.node.metrics;
        metrics.pod_resources_endpoint_requests_total.inc([VERSION]);
        metrics.pod_resources_endpoint_requests_get.inc([VERSION]);
        let GetPodResourcesRequest { pod_name, pod_namespace } = request.into_inner();
        let is_it = |pod: &Pod| {
            let m = &pod.metadata;
            (m.namespace.as_deref(), m.name.as_deref()) == (Some(&*pod_namespace), Some(&*pod_name))
        };
        let Some(entry) = self.node.board.all().into_iter().find(|e| is_it(&e.pod)) else {
            metrics.pod_resources_endpoint_errors_get.inc([VERSION]);
            return Err(Status::unknown(format!("pod {pod_name} in namespace {pod_namespace} not found")));
        };
        Ok(Response::new(GetPodResourcesResponse { pod_resources: Some(self.of_pod(&entry.pod)) }))
    }
}

// === impl Lister ===

impl Lister {
    fn admit(&self) -> Result<(), Status> {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        match bucket.try_take(self.node.now().mono) {
            true => Ok(()),
            false => Err(Status::resource_exhausted("rejected by rate limit")),
        }
    }

    /// Containers that run as long as the Pod.
    fn of_pod(&self, pod: &Pod) -> PodResources {
        let want = PodWant::new(pod);
        let lasting = want.containers.iter().filter(|c| c.lasting != Lasting::Init);
        PodResources {
            name: pod.metadata.name.clone().unwrap_or_default(),
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            containers: lasting.map(|c| self.of_container(&want.uid, &c.name)).collect(),
        }
    }

    fn of_container(&self, uid: &str, name: &str) -> ContainerResources {
        let (cpus, memory) = self.node.places.own(uid, name);
        let mut held = Vec::new();
        if let Some(plugins) = self.node.places.devices() {
            let books = plugins.books();
            let of = books.of_container(uid, name).into_iter().flatten();
            of.for_each(|(resource, allocation)| held.extend(devices(resource, allocation)));
        }
        ContainerResources {
            name: name.to_owned(),
            devices: held,
            cpu_ids: cpus.iter().map(i64::from).collect(),
            memory: memory.into_iter().map(block).collect(),
        }
    }
}

fn is_active(entry: &Entry) -> bool {
    !entry.finished && !matches!(entry.status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

fn on(nodes: impl IntoIterator<Item = i64>) -> TopologyInfo {
    TopologyInfo { nodes: nodes.into_iter().map(|id| NumaNode { id }).collect() }
}

fn block(block: Block) -> ContainerMemory {
    let nodes = block.nodes.into_iter().map(i64::from);
    ContainerMemory { memory_type: block.kind, size: block.size, topology: Some(on(nodes)) }
}

/// One line per device and NUMA node; a device that names no node is named without one.
fn line(resource: &str, id: &str, node: Option<i64>) -> ContainerDevices {
    ContainerDevices {
        resource_name: resource.to_owned(),
        device_ids: vec![id.to_owned()],
        topology: node.map(|n| on([n])),
    }
}

fn devices(resource: &str, allocation: &Allocation) -> Vec<ContainerDevices> {
    let node = |(node, ids): (&i64, &Vec<String>)| {
        let node = Some(*node).filter(|n| *n >= 0);
        ids.iter().map(|id| line(resource, id, node)).collect::<Vec<_>>()
    };
    allocation.by_node.iter().flat_map(node).collect()
}

fn healthy(resource: &str, devices: &Devices) -> Vec<ContainerDevices> {
    let working = devices.iter().filter(|(_, d)| d.healthy);
    let lines = working.flat_map(|(id, d)| match d.nodes.as_slice() {
        [] => vec![line(resource, id, None)],
        nodes => nodes.iter().map(|n| line(resource, id, Some(*n))).collect(),
    });
    lines.collect()
}
