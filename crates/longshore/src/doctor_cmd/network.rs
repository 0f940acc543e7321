//! From a Pod to somewhere: who is meant, what kube-proxy makes of it, and the way there.

use std::net::IpAddr;
use std::path::Path;

use api::json::{FromJson, List};
use base::finding::{Finding, Grade, verdict};
use client::{Client, Config, Request};
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;

/// Who is meant.
enum Goal {
    Address(IpAddr),
    Pod(IpAddr, String),
    /// By its address; packets go to its endpoints.
    Service(String, String),
}

pub(super) async fn diagnose(
    kubeconfig: &Path,
    node: &str,
    namespace: &str,
    pod: &str,
    to: &[String],
) -> Result<Vec<Finding>, String> {
    let port = to
        .get(1)
        .map(|port| port.parse::<u16>().map_err(|_| format!("{port:?} is not a port")))
        .transpose()?;
    let to = to.first().ok_or("to whom?")?;
    let config = Config::load(kubeconfig).map_err(|e| e.to_string())?;
    let client = Client::new(config, client::Options::default()).await.map_err(|e| e.to_string())?;
    let title = format!("{namespace}/{pod}");
    let Some(found) = one::<Pod>(&client, namespace, "pods", pod).await? else {
        return Ok(vec![wrong(format!("there is no Pod {title}"), "kubectl get pods --all-namespaces")]);
    };
    if found.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true)) {
        let text = format!("Pod {title} is in the machine's own network: its packets are the machine's");
        return Ok(vec![Finding { grade: Grade::Note, text, advice: String::new() }]);
    }
    let ips = addresses(&found);
    if ips.is_empty() {
        let advice = "longshore doctor pod says what it waits for";
        return Ok(vec![wrong(format!("Pod {title} has no address yet"), advice)]);
    }
    match goal(&client, namespace, to).await? {
        None => Ok(vec![wrong(
            format!("{to} is no address, and there is no Pod and no Service of this name in {namespace}"),
            "name one of another namespace as NAMESPACE/NAME",
        )]),
        Some(Goal::Address(ip)) => walk(&title, &ips, (ip, ip), port).await,
        Some(Goal::Pod(ip, name)) => {
            let mut findings = vec![good(format!("{to} is Pod {name} at {ip}"))];
            findings.extend(walk(&title, &ips, (ip, ip), port).await?);
            Ok(findings)
        }
        Some(Goal::Service(space, name)) => {
            service(&client, kubeconfig, node, (&space, &name), (&title, &ips), port).await
        }
    }
}

/// First what the Service comes to; then the way to the endpoints that its address leads to.
async fn service(
    client: &Client,
    kubeconfig: &Path,
    node: &str,
    (namespace, name): (&str, &str),
    (title, ips): (&str, &[IpAddr]),
    port: Option<u16>,
) -> Result<Vec<Finding>, String> {
    let found = proxy::doctor::diagnose(kubeconfig, node, namespace, name).await;
    let mut findings = found.map_err(|e| e.to_string())?;
    if verdict(&findings).is_some() {
        return Ok(findings);
    }
    let service = one::<Service>(client, namespace, "services", name).await?;
    let spec = service.and_then(|service| service.spec).unwrap_or_default();
    let ip = spec.cluster_ip.as_deref().and_then(|ip| ip.parse::<IpAddr>().ok());
    let Some(ip) = ip else {
        let text = format!("Service {namespace}/{name} has no address of its own: name one of its Pods");
        findings.push(Finding { grade: Grade::Note, text, advice: String::new() });
        return Ok(findings);
    };
    let port = port.or_else(|| u16::try_from(spec.ports?.first()?.port).ok());
    let to = endpoint(client, (namespace, name), ip.is_ipv6()).await?.unwrap_or(ip);
    findings.extend(walk(title, ips, (ip, to), port).await?);
    Ok(findings)
}

/// One of those that are ready.
async fn endpoint(
    client: &Client,
    (namespace, name): (&str, &str),
    is_v6: bool,
) -> Result<Option<IpAddr>, String> {
    let path = format!(
        "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector=kubernetes.io/service-name%3D{name}"
    );
    let slices = client.ask::<List<EndpointSlice>>(Request::get(path)).await.map_err(|e| e.to_string())?;
    let endpoints = slices.items.into_iter().filter_map(|slice| slice.endpoints).flatten();
    let ready = endpoints.filter(|e| e.conditions.as_ref().is_none_or(|c| c.ready != Some(false)));
    let mut ips = ready.flat_map(|e| e.addresses).filter_map(|ip| ip.parse::<IpAddr>().ok());
    Ok(ips.find(|ip| ip.is_ipv6() == is_v6))
}

async fn walk(
    pod: &str,
    ips: &[IpAddr],
    (dials, to): (IpAddr, IpAddr),
    port: Option<u16>,
) -> Result<Vec<Finding>, String> {
    let Some(ip) = ips.iter().copied().find(|ip| ip.is_ipv6() == to.is_ipv6()) else {
        let text = format!("Pod {pod} has no address of the family of {to}");
        return Ok(vec![wrong(text, "the Pod's network has one family only: see ranges of its ipam")]);
    };
    let pod = pod.to_owned();
    let gathered = tokio::task::spawn_blocking(move || cni::doctor::gather(&pod, ip, (dials, to), port));
    let facts = gathered.await.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
    Ok(cni::doctor::examine(&facts))
}

async fn goal(client: &Client, namespace: &str, to: &str) -> Result<Option<Goal>, String> {
    if let Ok(ip) = to.parse() {
        return Ok(Some(Goal::Address(ip)));
    }
    let (namespace, name) = to.split_once('/').unwrap_or((namespace, to));
    if let Some(pod) = one::<Pod>(client, namespace, "pods", name).await? {
        let ip = addresses(&pod).first().copied();
        return Ok(ip.map(|ip| Goal::Pod(ip, format!("{namespace}/{name}"))));
    }
    let service = one::<Service>(client, namespace, "services", name).await?;
    Ok(service.map(|_| Goal::Service(namespace.to_owned(), name.to_owned())))
}

fn addresses(pod: &Pod) -> Vec<IpAddr> {
    let status = pod.status.as_ref();
    let all = status.and_then(|status| status.pod_ips.as_ref()).into_iter().flatten();
    let mut ips: Vec<IpAddr> = all.filter_map(|ip| ip.ip.parse().ok()).collect();
    let first = status.and_then(|status| status.pod_ip.as_ref()?.parse().ok());
    ips.extend(first.filter(|ip| !ips.contains(ip)));
    ips
}

/// None where there is no such object.
async fn one<T: FromJson>(
    client: &Client,
    namespace: &str,
    kind: &str,
    name: &str,
) -> Result<Option<T>, String> {
    match client.ask::<T>(Request::get(format!("/api/v1/namespaces/{namespace}/{kind}/{name}"))).await {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.code() == Some(404) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

fn good(text: String) -> Finding {
    Finding { grade: Grade::Good, text, advice: String::new() }
}

fn wrong(text: String, advice: &str) -> Finding {
    Finding { grade: Grade::Wrong, text, advice: advice.to_owned() }
}
