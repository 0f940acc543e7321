//! The Service `kube-dns`, for control planes where nobody else makes it.

use std::net::IpAddr;
use std::time::Duration;

use client::{Client, ClientError, Request};
use serde_json::{Value, json};

/// Between two attempts.
const PAUSE: Duration = Duration::from_secs(5);
const OWNER: &str = "longshore-dns";

/// What the Service says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// By custom the tenth address of the range.
    pub cluster_ip: IpAddr,
    /// Where we listen, as Pods reach it.
    pub endpoint: IpAddr,
    pub port: u16,
    /// Where metrics are, if anywhere.
    pub metrics_port: Option<u16>,
}

/// Applies the Service and its slice, until that is done.
pub(crate) async fn keep(client: Client, published: Published) {
    loop {
        let applied = async {
            apply(&client, "/api/v1/namespaces/kube-system/services", service(&published)).await?;
            let slices = "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices";
            apply(&client, slices, slice(&published)).await
        };
        match applied.await {
            Ok(()) => {
                return tracing::info!(cluster_ip = %published.cluster_ip, "Service kube-system/kube-dns is there");
            }
            Err(error) => tracing::warn!(%error, "applying Service kube-system/kube-dns; trying again"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn apply(client: &Client, path: &str, object: Value) -> Result<(), ClientError> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let path = format!("{path}/{name}?fieldManager={OWNER}&force=true");
    client.ask_bytes(Request::patch(path, "application/apply-patch+yaml", object.to_string())).await.map(drop)
}

fn service(published: &Published) -> Value {
    let mut ports = vec![
        json!({"name": "dns", "port": 53, "protocol": "UDP", "targetPort": published.port}),
        json!({"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": published.port}),
    ];
    if let Some(port) = published.metrics_port {
        ports.push(json!({"name": "metrics", "port": 9153, "protocol": "TCP", "targetPort": port}));
    }
    let ip = published.cluster_ip.to_string();
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": labels()},
        "spec": {"type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip], "ports": ports},
    })
}

fn slice(published: &Published) -> Value {
    let mut ports = vec![
        json!({"name": "dns", "port": published.port, "protocol": "UDP"}),
        json!({"name": "dns-tcp", "port": published.port, "protocol": "TCP"}),
    ];
    if let Some(port) = published.metrics_port {
        ports.push(json!({"name": "metrics", "port": port, "protocol": "TCP"}));
    }
    let mut labels = labels();
    labels["kubernetes.io/service-name"] = json!("kube-dns");
    labels["endpointslice.kubernetes.io/managed-by"] = json!(OWNER);
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "kube-dns-longshore", "namespace": "kube-system", "labels": labels},
        "addressType": if published.endpoint.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [{"addresses": [published.endpoint.to_string()], "conditions": {"ready": true}}],
        "ports": ports,
    })
}

fn labels() -> Value {
    json!({"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS"})
}
