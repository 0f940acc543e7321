//! What every cluster has from its first second.

use std::net::{IpAddr, SocketAddr};

use futures_util::future::try_join_all;
use serde_json::{Value, json};

use crate::admission::system_classes;
use crate::controllers::namespaces::furnish;
use crate::registry::Registry;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::call::Call;
use apiserver_core::meta;
use apiserver_core::selection::{Selection, present};

const NAMESPACES: &[&str] = &["kube-system", "kube-public", "kube-node-lease", "default"];

/// Makes what is missing, and corrects what is ours. `address` is where others reach this server, `client_cas` whom
/// it believes.
pub(crate) async fn ensure(
    registry: &Registry,
    root_ca: &str,
    client_cas: &str,
    address: SocketAddr,
) -> Result<(), ApiStatus> {
    note_addresses(registry).await?;
    // What does not depend on each other is written at once: one wait for the disk instead of many.
    let namespace = |name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let place = ("", "v1", "namespaces");
    try_join_all(NAMESPACES.iter().map(|name| create(registry, place, namespace(name)))).await?;
    let networks: Vec<String> =
        registry.addresses().ranges().networks.iter().map(ToString::to_string).collect();
    let cidr = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": networks},
    });
    let place = ("scheduling.k8s.io", "v1", "priorityclasses");
    tokio::try_join!(
        try_join_all(NAMESPACES.iter().map(|name| furnish(registry, name, root_ca))),
        try_join_all(system_classes().into_iter().map(|class| create(registry, place, class))),
        create(registry, ("networking.k8s.io", "v1", "servicecidrs"), cidr),
        tell_extensions(registry, client_cas),
        kubernetes_service(registry, address),
    )?;
    Ok(())
}

/// Services from before the start keep what they have.
async fn note_addresses(registry: &Registry) -> Result<(), ApiStatus> {
    let kind = registry.kind("", "v1", "services")?;
    let (documents, _) = registry.list_all(Selection::all(kind.clone())).await?;
    let services: Vec<Value> = documents.iter().map(|document| present(&kind, document)).collect();
    for service in &services {
        registry.addresses().note(service);
    }
    registry.settle_address_objects(&services).await
}

/// How other API servers and controllers learn whose certificates are believed here.
async fn tell_extensions(registry: &Registry, client_cas: &str) -> Result<(), ApiStatus> {
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"},
        "data": {"client-ca-file": client_cas},
    });
    ensure_same(registry, ("", "v1", "configmaps"), map, "data").await
}

async fn create(
    registry: &Registry,
    (group, version, plural): (&str, &str, &str),
    object: Value,
) -> Result<(), ApiStatus> {
    let kind = registry.kind(group, version, plural)?;
    let (namespace, name) = (meta::namespace(&object).to_owned(), meta::name(&object).to_owned());
    if registry.find(&kind, &namespace, &name).await?.is_some() {
        return Ok(());
    }
    let mut call = Call::internal(kind, "create", &namespace, "");
    registry.create(&mut call, object).await.map(drop)
}

/// How Pods find this server.
async fn kubernetes_service(registry: &Registry, address: SocketAddr) -> Result<(), ApiStatus> {
    let labels = json!({"component": "apiserver", "provider": "kubernetes"});
    let metadata = json!({"name": "kubernetes", "namespace": "default", "labels": labels});
    let port = json!({"name": "https", "protocol": "TCP", "port": 443, "targetPort": address.port()});
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata,
        "spec": {"type": "ClusterIP", "sessionAffinity": "None", "ports": [port]},
    });
    if let Some(first) = registry.addresses().ranges().first() {
        service["spec"]["clusterIP"] = first.to_string().into();
        service["spec"]["clusterIPs"] = json!([first.to_string()]);
    }
    create(registry, ("", "v1", "services"), service).await?;
    // Nobody can reach a loopback address from a Pod, and validation says so.
    if address.ip().is_loopback() {
        return Ok(());
    }
    let family = if matches!(address.ip(), IpAddr::V4(_)) { "IPv4" } else { "IPv6" };
    let ports = json!([{"name": "https", "port": address.port(), "protocol": "TCP"}]);
    let mirrored = json!({"endpointslice.kubernetes.io/skip-mirror": "true"});
    let endpoints = json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": mirrored},
        "subsets": [{"addresses": [{"ip": address.ip().to_string()}], "ports": ports}],
    });
    ensure_same(registry, ("", "v1", "endpoints"), endpoints, "subsets").await?;
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": family, "ports": ports,
        "endpoints": [{"addresses": [address.ip().to_string()], "conditions": {"ready": true}}],
    });
    ensure_same(registry, ("discovery.k8s.io", "v1", "endpointslices"), slice, "endpoints").await
}

/// Creates the object, or gives it the wanted field again: the address may have changed.
async fn ensure_same(
    registry: &Registry,
    what: (&str, &str, &str),
    object: Value,
    field: &str,
) -> Result<(), ApiStatus> {
    let kind = registry.kind(what.0, what.1, what.2)?;
    let change = |found: &mut Value| {
        let differs = found[field] != object[field] || found["ports"] != object["ports"];
        for field in [field, "ports"] {
            if !object[field].is_null() {
                found[field] = object[field].clone();
            }
        }
        Ok(differs)
    };
    let found = registry.rewrite(&kind, meta::namespace(&object), meta::name(&object), change).await?;
    if found.is_some() { Ok(()) } else { create(registry, what, object).await }
}
