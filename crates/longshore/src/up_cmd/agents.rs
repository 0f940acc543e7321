//! The agents of the node, each as RBAC knows it and with the configuration it has when it runs alone.
//!
//! A new agent is one function here, one line in `parts` and one word in `api::config::up::PARTS`.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::config::controllers::Tuning;
use api::config::up::{Ipv4Network, Up};
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
use serde_json::{Value, json};
use tokio::sync::watch;

use super::containerd;
use super::documents::{self, Documents};
use super::importer::Importer;
use super::layout::Layout;
use super::part::Make;
use crate::files::RealFiles;
use crate::{KUBERNETES, agent_cmd};

/// Where DNS and its metrics are, as everywhere.
const DNS_PORT: u16 = 53;
const DNS_METRICS: u16 = 9153;

/// All but those whose work the API server in this process does itself: they would only hold a second copy of its Secrets,
/// ConfigMaps and kinds.
const CONTROLLERS: [&str; 6] = [
    "*",
    "-garbage-collector-controller",
    "-namespace-controller",
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
    /// The runtime's socket.
    pub(super) socket: PathBuf,
    /// Whether the archives of images that were there at the start were looked at.
    pub(super) has_images: watch::Sender<bool>,
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
        let all: [(&'static str, Maker); 9] = [
            ("kube-controller-manager", Agents::controllers),
            ("kube-scheduler", Agents::scheduler),
            ("kubelet", Agents::kubelet),
            ("kube-proxy", Agents::proxy),
            ("dns", Agents::dns),
            ("service-lb", Agents::service_lb),
            ("local-storage", Agents::local_storage),
            ("deploy", Agents::deploy),
            ("images", Agents::images),
        ];
        // Without a kubelet there is no runtime to give images to.
        let is_off = |name: &str| {
            self.up.disabled.contains(name) || (name == "images" && self.up.disabled.contains("kubelet"))
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
        let driver = containerd::cgroup_driver(&self.up);
        let mut ours = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": documents::KUBELET,
            "staticPodPath": self.layout.manifests(),
            "podLogsDir": self.layout.pod_logs(),
            "containerRuntimeEndpoint": format!("unix://{}", self.socket.display()),
            "cgroupDriver": driver,
            "clusterDomain": self.up.cluster_domain,
            "failSwapOn": false,
            // A share of the disk of a machine that people use for other things too is more than a node may keep for itself.
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "5%", "nodefs.inodesFree": "5%",
                "imagefs.available": "5%", "imagefs.inodesFree": "5%",
            },
            "authentication": {"x509": {"clientCAFile": self.layout.ca()}},
            "tlsCertFile": self.serving.0,
            "tlsPrivateKeyFile": self.serving.1,
        });
        if let Some(ip) = self.dns_ip() {
            ours["clusterDNS"] = json!([ip]);
        }
        // A Pod cannot reach systemd-resolved on the node's loopback address.
        let resolved = Path::new("/run/systemd/resolve/resolv.conf");
        if resolved.exists() {
            ours["resolvConf"] = json!(resolved);
        }
        // One command has to be enough on the machines people have; the kubelet says what is old about them.
        if !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
            ours["failCgroupV1"] = json!(false);
        }
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

    /// Where Pods ask: by custom the tenth address of Services.
    fn dns_ip(&self) -> Option<IpAddr> {
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
                    clients: dns_clients(&all.up.cluster_cidr, all.node_ip),
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

/// The node's address may be one of the Internet, and whoever answers everybody there is used to flood others. Networks for private
/// use are among those who are answered: a runtime of others has a network of its own for Pods.
fn dns_clients(pods: &Ipv4Network, node: IpAddr) -> Vec<IpNet> {
    const PRIVATE: [&str; 8] = [
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "fc00::/7",
        "fe80::/10",
    ];
    let private = PRIVATE.iter().map(|text| (*text).to_owned());
    let all = private.chain([pods.to_string(), "::1/128".to_owned()]).filter_map(|text| text.parse().ok());
    all.chain([IpNet::from(node)]).collect()
}

fn options(agent: &str) -> Options {
    Options {
        user_agent: format!("{agent}/{KUBERNETES} (linux/{}) longshore", std::env::consts::ARCH),
        qps: 0.0,
        burst: 0,
        ..Options::default()
    }
}

fn loaded<L>(outcome: Result<Outcome<L>, LoadError>) -> Result<Box<L>, String> {
    match outcome {
        Ok(Outcome::Run(loaded)) => Ok(loaded),
        Ok(_) => Err("the configuration asks for no run".to_owned()),
        Err(mistakes) => {
            let all: Vec<String> = mistakes.0.iter().map(ToString::to_string).collect();
            Err(all.join("; "))
        }
    }
}
