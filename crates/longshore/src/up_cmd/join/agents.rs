//! The agents of a node whose control plane is elsewhere, each with the configuration it has when it runs alone.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::config::up::Up;
use base::verbosity::Verbosity;
use client::{Client, Config, Options};
use overlay::NetConf;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::super::agents::loaded;
use super::super::choice::Chosen;
use super::super::containerd;
use super::super::documents::{self, Documents, merge};
use super::super::kubelet_config::of_the_machine;
use super::super::layout::Layout;
use super::super::network;
use super::super::part::Make;
use super::cluster::{Cluster, Network, certificate, is_there};
use crate::files::RealFiles;
use crate::{KUBERNETES, agent_cmd};

/// Between two looks for the certificate that the kubelet has asked for.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub(super) struct Agents {
    pub(super) up: Arc<Up>,
    pub(super) layout: Layout,
    pub(super) documents: Documents,
    pub(super) node_name: String,
    pub(super) node_ip: IpAddr,
    pub(super) chosen: Chosen,
    /// The runtime's socket.
    pub(super) socket: PathBuf,
    pub(super) cluster: Cluster,
    /// The bridge of Pods is ours.
    pub(super) is_own_network: bool,
    pub(super) verbosity: Verbosity,
}

// === impl Agents ===

impl Agents {
    /// In the order they are started in.
    pub(super) fn parts(&self) -> Vec<(&'static str, Make)> {
        let mut parts = vec![("kubelet", self.kubelet())];
        let Some(network) = &self.cluster.network else { return parts };
        if !self.up.disabled.contains("kube-proxy") {
            parts.push(("kube-proxy", self.proxy(network)));
        }
        if !self.up.disabled.contains("overlay") && self.is_own_network {
            parts.push(("overlay", self.overlay(network)));
        }
        parts
    }

    /// A client as this Node, once it can show who it is.
    pub(super) async fn client(&self, agent: &str, token: &CancellationToken) -> Result<Client, String> {
        while !is_there(&certificate(&self.layout)).await {
            if token.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_none() {
                return Err("it is to end".to_owned());
            }
        }
        let config = Config::load(&self.layout.node_kubeconfig()).map_err(|e| e.to_string())?;
        let options = Options {
            user_agent: format!("{agent}/{KUBERNETES} (linux/{}) longshore", std::env::consts::ARCH),
            ..Options::default()
        };
        Ok(Client::later(config, options))
    }

    fn kubelet(&self) -> Make {
        let all = self.clone();
        Box::new(move |token| {
            let all = all.clone();
            Box::pin(async move {
                containerd::wait_for(&all.socket, &token).await;
                if token.is_cancelled() {
                    return Ok(());
                }
                let path = all.write("kubelet.yaml", documents::KUBELET, all.kubelet_config())?;
                let flag = |name: &str, value: &Path| OsString::from(format!("--{name}={}", value.display()));
                let mut args = vec![
                    flag("config", &path),
                    flag("root-dir", &all.layout.kubelet_root()),
                    flag("cert-dir", &all.layout.data.join("pki")),
                    flag("kubeconfig", &all.layout.node_kubeconfig()),
                    OsString::from(format!("--hostname-override={}", all.node_name)),
                    OsString::from(format!("--node-ip={}", all.node_ip)),
                ];
                if is_there(&all.layout.bootstrap()).await {
                    args.push(flag("bootstrap-kubeconfig", &all.layout.bootstrap()));
                }
                let loaded = loaded(api::config::kubelet::load(&args, &RealFiles))?;
                let start = kubelet::agent::Start {
                    loaded: *loaded,
                    // The process as a whole is told of elsewhere.
                    systemd: kubelet::agent::Systemd::default(),
                    home: std::env::var_os("HOME").map(PathBuf::from),
                    working_dir: PathBuf::from("/"),
                    places: kubelet::agent::Places::default(),
                    proxies: kubelet::agent::Proxies::named_by(|name| std::env::var(name).ok()),
                    within: None,
                    version: KUBERNETES.to_owned(),
                    verbosity: all.verbosity.clone(),
                };
                kubelet::agent::run(start, token).await.map_err(|e| e.to_string())
            })
        })
    }

    /// What the cluster says, and over it what is this machine's.
    fn kubelet_config(&self) -> Value {
        let mut config = self.cluster.kubelet.clone();
        if !config.is_object() {
            config = json!({});
        }
        merge(&mut config, &of_the_machine(&self.chosen, &self.layout, &self.socket));
        merge(&mut config, &json!({"rotateCertificates": true}));
        config
    }

    fn proxy(&self, network: &Network) -> Make {
        let (all, cluster_cidr) = (self.clone(), network.cluster_cidr.clone());
        Box::new(move |token| {
            let (all, cluster_cidr) = (all.clone(), cluster_cidr.clone());
            Box::pin(async move {
                if all.client("kube-proxy", &token).await.is_err() {
                    return Ok(());
                }
                let ours = json!({
                    "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
                    "kind": documents::PROXY,
                    "mode": "nftables",
                    "clusterCIDR": cluster_cidr,
                    "clientConnection": {"kubeconfig": all.layout.node_kubeconfig()},
                    "hostnameOverride": all.node_name,
                    // The size of the machine's table of connections is its owner's to change.
                    "conntrack": {"maxPerCore": 0},
                });
                let path = all.write("kube-proxy.yaml", documents::PROXY, ours)?;
                let args = [OsString::from(format!("--config={}", path.display()))];
                let loaded = loaded(api::config::proxy::load(&args, &RealFiles))?;
                let start = proxy::agent::Start {
                    loaded: *loaded,
                    hostname: all.node_name.clone(),
                    in_cluster: (None, None),
                    within: None,
                    any_kernel: false,
                    keeps_sources: all.is_own_network,
                    version: KUBERNETES.to_owned(),
                    seed: agent_cmd::seed(),
                    verbosity: all.verbosity.clone(),
                };
                proxy::agent::run(start, token).await.map_err(|e| e.to_string())
            })
        })
    }

    fn overlay(&self, network: &Network) -> Make {
        let (all, conf) = (self.clone(), network.net_conf.clone());
        Box::new(move |token| {
            let (all, conf) = (all.clone(), conf.clone());
            Box::pin(async move {
                let Ok(client) = all.client("longshore-overlay", &token).await else { return Ok(()) };
                let conf = NetConf::parse(&conf).map_err(|e| {
                    format!("net-conf.json of the ConfigMap kube-system/longshore-network: {e}")
                })?;
                let settings = network::overlay_settings(&all.layout, &all.node_name, all.node_ip, conf);
                overlay::run(client, settings, token).await.map_err(|e| e.to_string())
            })
        })
    }

    /// Writes down what a part is started with, so that people can see it.
    fn write(&self, name: &str, kind: &str, ours: Value) -> Result<PathBuf, String> {
        let path = self.layout.data.join(name);
        let text = api::yaml::from_value_to_yaml(&self.documents.over(kind, ours));
        std::fs::write(&path, text).map_err(|e| format!("write {}: {e}", path.display()))?;
        Ok(path)
    }
}
