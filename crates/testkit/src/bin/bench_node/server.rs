//! The API server both kubelets talk to, and what it says about the work they make.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use http::Method;
use serde_json::json;
use testkit::api::{Client, Credentials, Outcome, Peer, Server};
use testkit::cluster::node_kubeconfig;
use testkit::node::{ApiServer, Node};

pub(crate) const NAMESPACE: &str = "/api/v1/namespaces/bench";

/// What a Pod's life makes a kubelet ask for. Leases and the Node's status are a matter of time, not of Pods.
const RESOURCES: [&str; 5] = ["pods", "events", "configmaps", "secrets", "serviceaccounts"];

/// A running API server and the way to it.
pub(crate) struct Place {
    pub(crate) client: Client,
    pub(crate) kubeconfig: PathBuf,
    server: Running,
}

/// Kept for its end.
enum Running {
    Ours { _server: ApiServer },
    Upstream { _server: Server },
}

/// How many requests of each kind were answered: verb, resource and subresource.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests(pub(crate) BTreeMap<String, f64>);

// === impl Place ===

impl Place {
    pub(crate) async fn start(node: &Node, binary: &Path, peer: Option<&Peer>) -> Outcome<Place> {
        let place = match peer {
            Some(peer) => {
                let dir = node.dir().join("upstream");
                fs::create_dir_all(&dir)?;
                let server = Server::upstream(peer, &dir).await?;
                let kubeconfig = server.node_kubeconfig(&dir)?;
                Place {
                    client: server.client().await?,
                    kubeconfig,
                    server: Running::Upstream { _server: server },
                }
            }
            None => {
                let server = ApiServer::start_on(node, binary, &[])?;
                let credentials = Credentials::from_kubeconfig(&server.kubeconfig())?;
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()));
                Place {
                    client: Client::connect(address, &credentials).await?,
                    kubeconfig: node_kubeconfig(&server, &node.dir().join("node.kubeconfig"), false),
                    server: Running::Ours { _server: server },
                }
            }
        };
        place.prepare().await?;
        Ok(place)
    }

    pub(crate) fn name(&self) -> &'static str {
        match self.server {
            Running::Ours { .. } => "on longshore apiserver",
            Running::Upstream { .. } => "on kube-apiserver",
        }
    }

    /// What controllers make of a new namespace; upstream's do not run here.
    async fn prepare(&self) -> Outcome<()> {
        let named =
            |kind: &str, name: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}});
        self.client.make("/api/v1/namespaces", &named("Namespace", "bench")).await?;
        let account = named("ServiceAccount", "default");
        self.client.make(&format!("{NAMESPACE}/serviceaccounts"), &account).await?;
        let mut authority = named("ConfigMap", "kube-root-ca.crt");
        authority["data"] = json!({"ca.crt": "nobody reads it"});
        self.client.make(&format!("{NAMESPACE}/configmaps"), &authority).await
    }

    pub(crate) async fn requests(&self) -> Outcome<Requests> {
        let (status, body) = self.client.call(Method::GET, "/metrics", Bytes::new()).await?;
        if !status.is_success() {
            return Err(format!("asking the API server for its metrics: {status}").into());
        }
        Ok(Requests::parse(&String::from_utf8_lossy(&body)))
    }
}

// === impl Requests ===

impl Requests {
    fn parse(metrics: &str) -> Requests {
        let mut requests = Requests::default();
        for line in metrics.lines() {
            let Some((labels, count)) =
                line.strip_prefix("apiserver_request_total{").and_then(|rest| rest.rsplit_once("} "))
            else {
                continue;
            };
            let label = |name: &str| {
                let mut all = labels.split("\",").filter_map(|label| label.split_once("=\""));
                all.find_map(|(key, value)| (key == name).then_some(value.trim_end_matches('"')))
                    .unwrap_or("")
            };
            if !RESOURCES.contains(&label("resource")) {
                continue;
            }
            let (verb, resource, part) = (label("verb"), label("resource"), label("subresource"));
            let slash = if part.is_empty() { "" } else { "/" };
            *requests.0.entry(format!("{verb} {resource}{slash}{part}")).or_default() +=
                count.parse().unwrap_or(0.0);
        }
        requests
    }

    /// What came since, per Pod, without the benchmark's own POST and DELETE.
    pub(crate) fn per_pod(&self, before: &Requests, pods: usize) -> Requests {
        let mut since = BTreeMap::new();
        for (what, count) in &self.0 {
            let own = if what == "POST pods" || what == "DELETE pods" { 1.0 } else { 0.0 };
            let each = (count - before.0.get(what).unwrap_or(&0.0)) / pods as f64 - own;
            if each > 0.0 {
                since.insert(what.clone(), each);
            }
        }
        Requests(since)
    }

    pub(crate) fn total(&self) -> f64 {
        self.0.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_kind_without_the_benchmarks_own() {
        let text = |posts: u32, patches: u32| {
            Requests::parse(&format!(
                "# HELP apiserver_request_total x\n\
                 apiserver_request_total{{verb=\"POST\",resource=\"pods\",subresource=\"\",code=\"201\"}} {posts}\n\
                 apiserver_request_total{{code=\"200\",resource=\"pods\",subresource=\"status\",verb=\"PATCH\"}} {patches}\n\
                 apiserver_request_total{{code=\"409\",resource=\"pods\",subresource=\"status\",verb=\"PATCH\"}} 1\n\
                 apiserver_request_total{{verb=\"PUT\",resource=\"leases\",subresource=\"\",code=\"200\"}} 77\n"
            ))
        };
        let each = text(14, 36).per_pod(&text(4, 6), 10);
        assert_eq!(each.0, BTreeMap::from([("PATCH pods/status".to_owned(), 3.0)]));
    }
}
