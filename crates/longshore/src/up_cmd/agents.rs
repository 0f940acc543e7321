//! The agents of the node, each as RBAC knows it and with the configuration it has when it runs alone.
//!
//! A new agent is one function here, one line in `parts` and one word in `api::config::up::PARTS`.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::config::controllers::Tuning;
use api::config::up::Up;
use api::config::{LoadError, Outcome};
use api::yaml;
use apiserver::http::InProcess;
use apiserver_core::request::User;
use base::verbosity::Verbosity;
use client::{Client, Options, Within};
use controllers::agent::Accounts;
use controllers::metrics::Metrics;
use controllers::seen::Seen;
use ipnet::IpNet;
use overlay::NetConf;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::choice::Chosen;
use super::containerd;
use super::documents::{self, Documents, merge};
use super::importer::Importer;
use super::kubelet_config::{of_the_cluster, of_the_machine};
use super::layout::Layout;
use super::network;
use super::part::Make;
use crate::files::RealFiles;
use crate::{KUBERNETES, agent_cmd};

/// Where DNS and its metrics are, as everywhere.
const DNS_PORT: u16 = 53;
const DNS_METRICS: u16 = 9153;

/// All but those whose work the API server in this process does itself: they would only hold a second copy of its Secrets,
/// ConfigMaps and kinds.
const CONTROLLERS: [&str; 9] = [
    "*",
    "-certificatesigningrequest-approving-controller",
    "-certificatesigningrequest-signing-controller",
    "-garbage-collector-controller",
    "-namespace-controller",
    "-resourcequota-controller",
    "-root-ca-certificate-publisher-controller",
    "-legacy-serviceaccount-token-cleaner-controller",
    "-serviceaccount-token-controller",
];

/// What the agents are made from.
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
    /// Whether the archives of images that were there at the start were looked at.
    pub(super) has_images: watch::Sender<bool>,
    /// Whose questions DNS answers.
    pub(super) dns_clients: watch::Sender<Vec<IpNet>>,
    /// How the runtime gets archives of images.
    pub(super) importer: Importer,
    /// The bridge of Pods is ours: what they answer comes back through this machine's stack.
    pub(super) is_own_network: bool,
    pub(super) within: InProcess,
    /// The certificate of the authority.
    pub(super) ca: String,
    /// The kubelet's certificate and key.
    pub(super) serving: (PathBuf, PathBuf),
    pub(super) verbosity: Verbosity,
}

/// Makes one of them.
type Maker = fn(&Agents) -> Make;

// === impl Agents ===

impl Agents {
    /// In the order they are started in; those that are switched off are left out.
    pub(super) fn parts(&self) -> Vec<(&'static str, Make)> {
        let all: [(&'static str, Maker); 10] = [
            ("kube-controller-manager", Agents::controllers),
            ("kube-scheduler", Agents::scheduler),
            ("kubelet", Agents::kubelet),
            ("kube-proxy", Agents::proxy),
            ("overlay", Agents::overlay),
            ("dns", Agents::dns),
            ("service-lb", Agents::service_lb),
            ("local-storage", Agents::local_storage),
            ("deploy", Agents::deploy),
            ("images", Agents::images),
        ];
        // Without a kubelet there is no runtime to give images to.
        let is_off = |name: &str| {
            let has_no_kubelet = self.up.disabled.contains("kubelet");
            self.up.disabled.contains(name)
                || (name == "images" && has_no_kubelet)
                || (name == "overlay" && !self.is_own_network)
        };
        let wanted = all.into_iter().filter(|(name, _)| !is_off(name));
        wanted.map(|(name, make)| (name, make(self))).collect()
    }

    /// A client of the API server as this user.
    pub(super) fn client(&self, user: User, agent: &str) -> Client {
        Client::over(self.within.dial(user), options(agent))
    }

    fn controllers(&self) -> Make {
        let all = self.clone();
        Box::new(move |token| {
            let of = all.clone();
            let start = controllers::agent::Start {
                client: all
                    .client(User::new("system:kube-controller-manager", &[]), "kube-controller-manager"),
                tuning: Tuning {
                    // Each Node has a part of the network of Pods; the first one has the first.
                    allocate_node_cidrs: true,
                    node_cidr_mask_size: Some(i32::from(all.up.cluster_cidr.of_the_node().prefix)),
                    cluster_cidr: vec![all.up.cluster_cidr.to_string()],
                    service_cluster_ip_range: vec![all.up.service_cidr.to_string()],
                    time_zone: agent_cmd::time_zone(),
                    root_ca: Some(all.ca.clone()),
                    ..Tuning::default()
                },
                chosen: CONTROLLERS.map(str::to_owned).to_vec(),
                seed: agent_cmd::seed(),
                metrics: Metrics::default(),
                seen: Seen::default(),
                accounts: Some(Accounts(Arc::new(move |name| {
                    of.client(User::service_account("kube-system", name, ""), "kube-controller-manager")
                }))),
            };
            Box::pin(
                async move { controllers::agent::run(start, None, token).await.map_err(|e| e.to_string()) },
            )
        })
    }

    fn scheduler(&self) -> Make {
        let all = self.clone();
        Box::new(move |token| {
            let all = all.clone();
            Box::pin(async move {
                let ours = json!({"apiVersion": api::config::scheduler::API_VERSION,
                                  "kind": documents::SCHEDULER, "leaderElection": {"leaderElect": false}});
                let path = all.write("kube-scheduler.yaml", documents::SCHEDULER, ours)?;
                let args = [OsString::from("--config"), path.into()];
                let loaded = loaded(api::config::scheduler::load(&args, &RealFiles))?;
                let start = scheduler::agent::Start {
                    loaded: *loaded,
                    seen: scheduler::seen::Seen::default(),
                    hostname: all.node_name.clone(),
                    in_cluster: (None, None),
                    version: KUBERNETES.to_owned(),
                    seed: agent_cmd::seed(),
                };
                let client = all.client(User::new("system:kube-scheduler", &[]), "kube-scheduler");
                scheduler::agent::run_with(start, client, token).await.map_err(|e| e.to_string())
            })
        })
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
                let args = [
                    flag("config", &path),
                    flag("root-dir", &all.layout.kubelet_root()),
                    flag("cert-dir", &all.layout.data.join("pki")),
                    OsString::from(format!("--hostname-override={}", all.node_name)),
                    OsString::from(format!("--node-ip={}", all.node_ip)),
                    OsString::from(format!(
                        "--node-page={}",
                        all.up.node_page.map(|a| a.to_string()).unwrap_or_default()
                    )),
                ];
                let loaded = loaded(api::config::kubelet::load(&args, &RealFiles))?;
                let node = format!("system:node:{}", all.node_name);
                let start = kubelet::agent::Start {
                    loaded: *loaded,
                    // The process as a whole is told of elsewhere.
                    systemd: kubelet::agent::Systemd::default(),
                    home: std::env::var_os("HOME").map(PathBuf::from),
                    working_dir: PathBuf::from("/"),
                    places: kubelet::agent::Places::default(),
                    proxies: kubelet::agent::Proxies::default(),
                    within: Some(Within(all.within.dial(User::new(&node, &["system:nodes"])))),
                    version: KUBERNETES.to_owned(),
                    verbosity: all.verbosity.clone(),
                };
                kubelet::agent::run(start, token).await.map_err(|e| e.to_string())
            })
        })
    }

    fn kubelet_config(&self) -> Value {
        let mut ours = of_the_cluster(&self.up.cluster_domain, self.dns_ip());
        merge(&mut ours, &of_the_machine(&self.chosen, &self.layout, &self.socket));
        ours["tlsCertFile"] = json!(self.serving.0);
        ours["tlsPrivateKeyFile"] = json!(self.serving.1);
        ours
    }

    fn proxy(&self) -> Make {
        let all = self.clone();
        Box::new(move |token| {
            let all = all.clone();
            Box::pin(async move {
                let ours = json!({
                    "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
                    "kind": documents::PROXY,
                    "mode": "nftables",
                    "clusterCIDR": all.up.cluster_cidr.to_string(),
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
                    within: Some(Within(all.within.dial(User::new("system:kube-proxy", &[])))),
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

    fn overlay(&self) -> Make {
        let all = self.clone();
        Box::new(move |token| {
            let all = all.clone();
            Box::pin(async move {
                let conf = NetConf::parse(&all.net_conf())?;
                let settings = network::overlay_settings(&all.layout, &all.node_name, all.node_ip, conf);
                // As this Node: what it writes is its own object.
                let user = User::new(&format!("system:node:{}", all.node_name), &["system:nodes"]);
                let client = all.client(user, "longshore-overlay");
                overlay::run(client, settings, token).await.map_err(|e| e.to_string())
            })
        })
    }

    /// How the nodes reach each other's Pods, as flannel has it written.
    pub(super) fn net_conf(&self) -> String {
        json!({"Network": self.up.cluster_cidr.to_string(), "Backend": {"Type": "vxlan"}}).to_string()
    }

    /// Where Pods ask: by custom the tenth address of Services.
    pub(super) fn dns_ip(&self) -> Option<IpAddr> {
        self.up.service_cidr.host(10).map(IpAddr::from).filter(|_| !self.up.disabled.contains("dns"))
    }

    fn dns(&self) -> Make {
        let all = self.clone();
        Box::new(move |token| {
            let all = all.clone();
            Box::pin(async move {
                let metrics = SocketAddr::new(all.node_ip, DNS_METRICS);
                let publish = all.dns_ip().map(|cluster_ip| dns::Published {
                    cluster_ip,
                    endpoint: all.node_ip,
                    port: DNS_PORT,
                    metrics_port: Some(DNS_METRICS),
                });
                let settings = dns::Settings {
                    listen: vec![all.node_ip],
                    clients: all.dns_clients.subscribe(),
                    port: DNS_PORT,
                    cluster_domain: all.up.cluster_domain.clone(),
                    corefile: dns::Source::ConfigMap {
                        namespace: "kube-system".into(),
                        name: "coredns".into(),
                    },
                    // Whoever asks about a part of this process asks the process.
                    health: None,
                    ready: None,
                    metrics: Some(metrics),
                    publish,
                    version: KUBERNETES.to_owned(),
                    seed: agent_cmd::seed(),
                };
                let client = all.client(User::new("longshore:dns", &[]), "longshore-dns");
                let agent = dns::Agent::bind(settings).await.map_err(|e| e.to_string())?;
                agent.run(client, token).await.map_err(|e| e.to_string())
            })
        })
    }

    /// Writes down what a part is started with, so that people can see it.
    fn write(&self, name: &str, kind: &str, ours: Value) -> Result<PathBuf, String> {
        let path = self.layout.data.join(name);
        let text = yaml::from_value_to_yaml(&self.documents.over(kind, ours));
        std::fs::write(&path, text).map_err(|e| format!("write {}: {e}", path.display()))?;
        Ok(path)
    }
}

fn options(agent: &str) -> Options {
    Options {
        user_agent: format!("{agent}/{KUBERNETES} (linux/{}) longshore", std::env::consts::ARCH),
        qps: 0.0,
        burst: 0,
        ..Options::default()
    }
}

pub(super) fn loaded<L>(outcome: Result<Outcome<L>, LoadError>) -> Result<Box<L>, String> {
    match outcome {
        Ok(Outcome::Run(loaded)) => Ok(loaded),
        Ok(_) => Err("the configuration asks for no run".to_owned()),
        Err(mistakes) => {
            let all: Vec<String> = mistakes.0.iter().map(ToString::to_string).collect();
            Err(all.join("; "))
        }
    }
}
