//! The cluster that this machine belongs to: found out once with a token, and kept.

use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use api::config::join::{Join, Token};
use client::kubeconfig::{Identity, Source};
use client::{ClientError, Config};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::joining::{KUBELET_CONFIG, NETWORK};
use super::super::layout::Layout;
use super::{ask, step};
use crate::discovery::{CLUSTER_INFO, pin_text, pins, read, verified};

/// For a cluster to answer, and to sign what it says with a token that was made a moment ago.
const WITHIN: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_secs(1);

/// What all nodes of the cluster have in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Cluster {
    pub(super) server: String,
    /// A KubeletConfiguration.
    pub(super) kubelet: Value,
    /// Where kube-proxy and the ways between nodes are each machine's own work.
    pub(super) network: Option<Network>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Network {
    pub(super) net_conf: String,
    pub(super) cluster_cidr: String,
}

/// The API server as one who trusts it, and what it said before.
struct Found {
    config: Config,
    ca: String,
}

// === impl Cluster ===

impl Cluster {
    /// The one that this machine has joined, or the one it is to join.
    pub(super) async fn find(join: &Join, layout: &Layout, node: &str) -> Result<Cluster, String> {
        let kept = Cluster::kept(layout)?;
        let url = join.server.as_ref().map(|server| format!("https://{server}"));
        let is_node = is_there(&certificate(layout)).await;
        match (kept, &join.token, url) {
            (Some(kept), _, Some(url)) if kept.server != url => Err(format!(
                "this machine is a node of {}: to join {url}, delete {} first, or choose another --data-dir",
                kept.server,
                layout.data.display()
            )),
            (Some(kept), None, _) => Ok(kept.renewed(layout).await),
            (Some(kept), Some(_), _) if is_node => Ok(kept.renewed(layout).await),
            (_, Some(token), Some(url)) => Cluster::join(join, token, &url, layout, node).await,
            _ => Err("this machine has not joined a cluster: `longshore token create` on the other one prints the line"
                .to_owned()),
        }
    }

    async fn join(
        join: &Join,
        token: &Token,
        url: &str,
        layout: &Layout,
        node: &str,
    ) -> Result<Cluster, String> {
        let found = discover(join, token, url).await?;
        let bootstrap = Config {
            identity: Identity { token: Some(token.to_string()), ..Identity::default() },
            ..found.config.clone()
        };
        refuse_twin(&bootstrap, node).await?;
        let cluster = Cluster::read(&bootstrap).await?;
        write(&layout.ca(), &found.ca)?;
        write(&layout.bootstrap(), &kubeconfig(url, &found.ca, token))?;
        cluster.keep(layout)?;
        Ok(cluster)
    }

    /// What the cluster says to those who belong to it.
    async fn read(config: &Config) -> Result<Cluster, String> {
        let map = ask(config, KUBELET_CONFIG).await;
        let map = map.map_err(|e| format!("read the ConfigMap kube-system/kubelet-config: {e}"))?;
        let kubelet = map["data"]["kubelet"].as_str().unwrap_or_default();
        let kubelet = api::yaml::to_value(kubelet.as_bytes(), api::yaml::DuplicateKeys::Reject);
        let kubelet = kubelet.map_err(|e| format!("the ConfigMap kube-system/kubelet-config: {e}"))?;
        let network = match ask(config, NETWORK).await {
            Ok(map) => {
                let text = |key: &str| map["data"][key].as_str().unwrap_or_default().to_owned();
                Some(Network { net_conf: text("net-conf.json"), cluster_cidr: text("cluster-cidr") })
            }
            // A cluster that is not of ours has none, and says so or says nothing about it.
            Err(error) if is_none_of_ours(&error) => None,
            Err(error) => return Err(format!("read the ConfigMap kube-system/longshore-network: {error}")),
        };
        Ok(Cluster { server: config.server.clone(), kubelet, network })
    }

    /// What the cluster says now; what it said before where it cannot be asked.
    async fn renewed(self, layout: &Layout) -> Cluster {
        let now = match Config::load(&layout.node_kubeconfig()) {
            Ok(config) => Cluster::read(&config).await,
            Err(error) => Err(error.to_string()),
        };
        match now {
            Ok(now) if now != self => {
                if let Err(error) = now.keep(layout) {
                    tracing::warn!(error, "what the cluster says is not kept");
                }
                now
            }
            Ok(_) => self,
            Err(error) => {
                tracing::warn!(error, "the cluster is taken to be as it was");
                self
            }
        }
    }

    fn kept(layout: &Layout) -> Result<Option<Cluster>, String> {
        let path = layout.cluster();
        match fs::read(&path) {
            Ok(bytes) => {
                let cluster = serde_json::from_slice(&bytes);
                cluster.map(Some).map_err(|e| format!("{}: {e}; delete it and join again", path.display()))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("read {}: {error}", path.display())),
        }
    }

    fn keep(&self, layout: &Layout) -> Result<(), String> {
        let text = serde_json::to_string_pretty(self).map_err(|e| e.to_string())?;
        write(&layout.cluster(), &text)
    }

    /// A token that nobody needs is better nowhere.
    pub(super) fn forget_token(&self, layout: &Layout) {
        if certificate(layout).exists() {
            _ = fs::remove_file(layout.bootstrap());
        }
    }
}

// === impl Layout ===

impl Layout {
    /// The kubeconfig that the kubelet writes for itself.
    pub(super) fn node_kubeconfig(&self) -> std::path::PathBuf {
        self.data.join("node.kubeconfig")
    }

    /// The one with the token.
    pub(super) fn bootstrap(&self) -> std::path::PathBuf {
        self.data.join("bootstrap.kubeconfig")
    }

    fn cluster(&self) -> std::path::PathBuf {
        self.data.join("cluster.json")
    }
}

pub(super) async fn is_there(path: &Path) -> bool {
    tokio::fs::try_exists(path).await.unwrap_or(false)
}

/// The node's, once it has one.
pub(super) fn certificate(layout: &Layout) -> std::path::PathBuf {
    layout.data.join("pki/kubelet-client-current.pem")
}

/// Asks a server that nobody knows yet, believes what the token proves, and asks again as one who knows whom to trust.
async fn discover(join: &Join, token: &Token, url: &str) -> Result<Found, String> {
    let until = Instant::now() + WITHIN;
    let stranger = Config { insecure: true, ..Config::plain(url) };
    let mut said = String::new();
    let content = loop {
        let told = match ask(&stranger, CLUSTER_INFO).await {
            Ok(map) => verified(&map, token),
            Err(error) => Err(error.to_string()),
        };
        match told {
            Ok(content) => break content,
            Err(why) if Instant::now() > until => return Err(format!("join {url}: {why}")),
            Err(why) if why == said => {}
            Err(why) => {
                step(&format!("waiting for   {url}: {why}"));
                said = why;
            }
        }
        tokio::time::sleep(AGAIN).await;
    };
    let (_, ca) = read(&content).map_err(|e| format!("cluster-info of {url}: {e}"))?;
    let own = pins(&ca)?;
    if !join.trusts_anybody && !own.iter().any(|pin| join.pins.contains(pin)) {
        let own: Vec<String> = own.iter().map(pin_text).collect();
        return Err(format!(
            "{url} is another cluster: the public key of its authority is {}, which none of --discovery-token-ca-cert-hash is",
            own.join(", ")
        ));
    }
    let config = Config { ca: Some(Source::Inline(ca.clone().into_bytes())), ..Config::plain(url) };
    let again = ask(&config, CLUSTER_INFO).await.map_err(|e| {
        format!("{url} cannot show that it is itself: {e}; the certificate of the API server may lack this name: --tls-san adds it")
    })?;
    match again["data"]["kubeconfig"] == content.as_str() {
        true => Ok(Found { config, ca }),
        false => Err(format!("{url} says something else to who trusts it than to who does not")),
    }
}

/// It is not there, or not ours to know.
fn is_none_of_ours(error: &ClientError) -> bool {
    error.code().is_some_and(|code| [403, 404].contains(&code))
}

/// Two machines of one name would take the Node from each other.
async fn refuse_twin(bootstrap: &Config, node: &str) -> Result<(), String> {
    let found = match ask(bootstrap, &format!("/api/v1/nodes/{node}")).await {
        Ok(found) => found,
        Err(error) if is_none_of_ours(&error) => return Ok(()),
        Err(error) => return Err(format!("look for a Node {node}: {error}")),
    };
    let mut conditions = found["status"]["conditions"].as_array().into_iter().flatten();
    match conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True") {
        true => Err(format!(
            "the cluster has a Node {node} and it is Ready: choose another name with --node-name, or delete that Node first"
        )),
        false => Ok(()),
    }
}

fn kubeconfig(server: &str, ca: &str, token: &Token) -> String {
    use base64::Engine as _;
    let ca = base64::engine::general_purpose::STANDARD.encode(ca);
    let config = json!({
        "apiVersion": "v1", "kind": "Config",
        "clusters": [{"name": "cluster", "cluster": {"server": server, "certificate-authority-data": ca}}],
        "users": [{"name": "bootstrap", "user": {"token": token.to_string()}}],
        "contexts": [{"name": "bootstrap", "context": {"cluster": "cluster", "user": "bootstrap"}}],
        "current-context": "bootstrap",
    });
    api::yaml::from_value_to_yaml(&config)
}

/// Whole or not at all, and for us alone.
fn write(path: &Path, text: &str) -> Result<(), String> {
    let replace = || {
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir)?;
        }
        let aside = path.with_extension("new");
        _ = fs::remove_file(&aside);
        let mut file = fs::OpenOptions::new().create_new(true).write(true).mode(0o600).open(&aside)?;
        io::Write::write_all(&mut file, text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&aside, path)
    };
    replace().map_err(|e: io::Error| format!("write {}: {e}", path.display()))
}
