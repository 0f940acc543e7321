//! The flags of `longshore up`, and what they come to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use base::flags::{Flag, FlagType};
use serde_json::Value;

use super::Logging;
use super::apiserver::DATA_DIR;
use super::page::page_address;

/// Parts that `--disable` may name. The API server is what the others are for.
pub const PARTS: &[&str] = &[
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "overlay",
    "dns",
    "metrics",
    "service-lb",
    "local-storage",
    "deploy",
    "images",
];

/// Every flag. Names are those of the parts where they have the same thing.
pub const FLAGS: &[Flag] = &[
    DATA_DIR,
    Flag::new("state-dir", FlagType::Text, "/run/longshore", "Sockets and what a reboot may take away."),
    Flag::new(
        "config",
        FlagType::Text,
        "",
        "A YAML file of documents: KubeletConfiguration, KubeProxyConfiguration, KubeSchedulerConfiguration.",
    ),
    Flag::new(
        "disable",
        FlagType::List,
        "",
        "Parts not to run: kube-controller-manager, kube-scheduler, kubelet, kube-proxy, overlay, dns, metrics, service-lb, local-storage, deploy, images.",
    ),
    Flag::new("bind-address", FlagType::Ip, "0.0.0.0", "The address that the API server listens on."),
    Flag::new("secure-port", FlagType::Int32, "6443", "The port that the API server listens on."),
    Flag::new("tls-san", FlagType::List, "", "More names and addresses for the API server's certificate."),
    Flag::new("node-name", FlagType::Text, "", "The name of the Node; the host name when not given."),
    Flag::new("node-ip", FlagType::Ip, "", "The address of the Node; found out when not given."),
    Flag::new(
        "cluster-cidr",
        FlagType::Text,
        "10.42.0.0/16",
        "The network that Pods get their addresses from.",
    ),
    Flag::new(
        "service-cluster-ip-range",
        FlagType::Text,
        "10.43.0.0/16",
        "The network that Services get their addresses from.",
    ),
    Flag::new("cluster-domain", FlagType::Text, "cluster.local", "The domain of Services."),
    Flag::new(
        "container-runtime-endpoint",
        FlagType::Text,
        "",
        "The socket of a container runtime that runs already, to be used instead of the one in this program.",
    ),
    Flag::new(
        "containerd",
        FlagType::Text,
        "",
        "The containerd program to run instead of the container runtime in this program.",
    ),
    Flag::new(
        "embedded-runtime",
        FlagType::Bool,
        "false",
        "Use the container runtime in this program on a node that was started on another one; its Pods end there.",
    ),
    Flag::new(
        "cni-bin-dir",
        FlagType::Text,
        "",
        "Where CNI plugins are, unless the container runtime is somebody else's; without it they are ours.",
    ),
    Flag::new(
        "pause-image",
        FlagType::Text,
        "registry.k8s.io/pause:3.10.1",
        "The image of Pod sandboxes, for a containerd of our own.",
    ),
    Flag::new(
        "stop-pods",
        FlagType::Bool,
        "false",
        "At the end, end the Pods too, and take their mounts, network and rules away.",
    ),
    Flag::new(
        "node-page",
        FlagType::Text,
        "",
        "Show the node in a browser here: a port of 127.0.0.1 such as 4194, or an address and a port. Empty for no page.",
    ),
    Flag::new("v", FlagType::Uint32, "0", "Verbosity of the log.").short('v'),
    Flag::new("logging-format", FlagType::Text, "text", "Shape of log lines: text or json."),
    Flag::new("help", FlagType::Bool, "false", "Print this text.").short('h'),
    Flag::new("version", FlagType::Bool, "false", "Print the version."),
];

/// What a command line says of a node in one process. Nothing in it was looked at on the machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Up {
    pub data_dir: PathBuf,
    pub state_dir: PathBuf,
    pub config: Option<PathBuf>,
    pub disabled: BTreeSet<String>,
    /// Where the API server listens.
    pub bind: SocketAddr,
    pub tls_names: Vec<String>,
    pub node_name: Option<String>,
    pub node_ip: Option<IpAddr>,
    pub cluster_cidr: Ipv4Network,
    pub service_cidr: Ipv4Network,
    pub cluster_domain: String,
    pub runtime: RuntimeSaid,
    pub cni_bin_dir: Option<PathBuf>,
    pub pause_image: String,
    pub stop_pods: bool,
    /// Where the page of the node is, if it is to have one.
    pub node_page: Option<SocketAddr>,
    pub logging: Logging,
}

/// Who is to run the containers, as far as the command line says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeSaid {
    /// Nothing: the one that the node was started on.
    Nothing,
    /// The one in this program.
    Embedded,
    /// A containerd that we run.
    Containerd(PathBuf),
    /// One that runs already, by its socket.
    Endpoint(PathBuf),
}

/// `10.42.0.0/16`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Network {
    pub address: Ipv4Addr,
    pub prefix: u8,
}

// === impl Up ===

impl Up {
    /// Reads the values of parsed flags; says what is wrong with the first that is.
    pub fn read(values: &BTreeMap<&'static str, Value>) -> Result<Up, String> {
        let text = |name: &str| values.get(name).and_then(Value::as_str).filter(|t| !t.is_empty());
        let path = |name: &str| text(name).map(PathBuf::from);
        let list = |name: &str| -> Vec<String> {
            let items = values.get(name).and_then(Value::as_array).into_iter().flatten();
            items.filter_map(|n| n.as_str().map(str::to_owned)).collect()
        };
        let ip = |name: &str| {
            let parse = |t: &str| t.parse::<IpAddr>().map_err(|e| format!("--{name}: {t:?}: {e}"));
            text(name).map(parse).transpose()
        };
        let network = |name: &str, default: &str| {
            Ipv4Network::parse(text(name).unwrap_or(default)).map_err(|e| format!("--{name}: {e}"))
        };
        let port = values.get("secure-port").and_then(Value::as_i64).unwrap_or(6443);
        let port = u16::try_from(port).ok().filter(|p| *p > 0);
        let port = port.ok_or_else(|| "--secure-port: not a port between 1 and 65535".to_owned())?;
        let (cluster_cidr, service_cidr) =
            (network("cluster-cidr", "10.42.0.0/16")?, network("service-cluster-ip-range", "10.43.0.0/16")?);
        if cluster_cidr.overlaps(service_cidr) {
            return Err(format!(
                "--cluster-cidr {cluster_cidr} and --service-cluster-ip-range {service_cidr} overlap: change one of them"
            ));
        }
        let verbosity = values.get("v").and_then(Value::as_u64).and_then(|v| u32::try_from(v).ok());
        Ok(Up {
            data_dir: path("data-dir").unwrap_or_else(|| PathBuf::from("/var/lib/longshore")),
            state_dir: path("state-dir").unwrap_or_else(|| PathBuf::from("/run/longshore")),
            config: path("config"),
            disabled: disabled(list("disable"))?,
            bind: SocketAddr::new(ip("bind-address")?.unwrap_or(Ipv4Addr::UNSPECIFIED.into()), port),
            tls_names: list("tls-san"),
            node_name: text("node-name").map(str::to_owned),
            node_ip: ip("node-ip")?,
            cluster_cidr,
            service_cidr,
            cluster_domain: text("cluster-domain").unwrap_or("cluster.local").to_owned(),
            runtime: RuntimeSaid::read(values)?,
            cni_bin_dir: path("cni-bin-dir"),
            pause_image: text("pause-image").unwrap_or("registry.k8s.io/pause:3.10.1").to_owned(),
            stop_pods: values.get("stop-pods") == Some(&Value::Bool(true)),
            node_page: page_address(text("node-page").unwrap_or_default())
                .map_err(|e| format!("--node-page: {e}"))?,
            logging: Logging {
                format: text("logging-format").unwrap_or("text").to_owned(),
                verbosity: verbosity.unwrap_or_default(),
                ..Logging::default()
            },
        })
    }
}

fn disabled(names: Vec<String>) -> Result<BTreeSet<String>, String> {
    match names.iter().find(|name| !PARTS.contains(&name.as_str())) {
        Some(unknown) => {
            Err(format!("--disable: there is no part {unknown:?}; parts are {}", PARTS.join(", ")))
        }
        None => Ok(names.into_iter().collect()),
    }
}

// === impl RuntimeSaid ===

impl RuntimeSaid {
    fn read(values: &BTreeMap<&'static str, Value>) -> Result<RuntimeSaid, String> {
        let text = |name: &str| values.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let (endpoint, containerd) = (text("container-runtime-endpoint"), text("containerd"));
        let is_embedded = values.get("embedded-runtime") == Some(&Value::Bool(true));
        let all = [
            ("embedded-runtime", is_embedded),
            ("containerd", containerd.is_some()),
            ("container-runtime-endpoint", endpoint.is_some()),
        ];
        let mut named = all.iter().filter(|(_, is_said)| *is_said);
        if let (Some((one, _)), Some((other, _))) = (named.next(), named.next()) {
            return Err(format!("--{one} and --{other} name two runtimes: leave one out"));
        }
        match (endpoint, containerd) {
            (Some(endpoint), _) => {
                let socket = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
                match socket.starts_with('/') {
                    true => Ok(RuntimeSaid::Endpoint(socket.into())),
                    false => Err(format!(
                        "--container-runtime-endpoint: {endpoint:?} is no socket: write it as unix:///run/containerd/containerd.sock"
                    )),
                }
            }
            (None, Some(program)) => Ok(RuntimeSaid::Containerd(program.into())),
            (None, None) if is_embedded => Ok(RuntimeSaid::Embedded),
            (None, None) => Ok(RuntimeSaid::Nothing),
        }
    }
}

// === impl Ipv4Network ===

impl Ipv4Network {
    fn parse(text: &str) -> Result<Ipv4Network, String> {
        let Some((address, prefix)) = text.split_once('/') else {
            return Err(format!("{text:?} has no length: write it as {text}/16"));
        };
        let address = address.parse::<Ipv4Addr>().map_err(|_| format!("{text:?} is no IPv4 network"))?;
        let prefix = prefix.parse::<u8>().ok().filter(|p| (1..=30).contains(p));
        let prefix = prefix.ok_or_else(|| format!("{text:?}: the length is not between 1 and 30"))?;
        let network = Ipv4Network { address, prefix };
        Ok(Ipv4Network { address: Ipv4Addr::from(u32::from(address) & network.mask()), prefix })
    }

    fn mask(self) -> u32 {
        u32::MAX << (32 - u32::from(self.prefix))
    }

    #[must_use]
    pub fn contains(self, address: Ipv4Addr) -> bool {
        u32::from(address) & self.mask() == u32::from(self.address)
    }

    #[must_use]
    pub fn overlaps(self, other: Ipv4Network) -> bool {
        self.contains(other.address) || other.contains(self.address)
    }

    /// The address with this number; none in a network that is too small for it, whose last one is not given to anybody.
    #[must_use]
    pub fn host(self, number: u32) -> Option<Ipv4Addr> {
        (number < !self.mask()).then(|| Ipv4Addr::from(u32::from(self.address) + number))
    }

    /// The part of it that the only node has: its first /24.
    #[must_use]
    pub fn of_the_node(self) -> Ipv4Network {
        Ipv4Network { prefix: self.prefix.max(24), ..self }
    }

    /// Its first address.
    #[must_use]
    pub fn first(self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.address) + 1)
    }
}

impl std::fmt::Display for Ipv4Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(args: &[&str]) -> Result<Up, String> {
        let parsed = base::flags::parse(FLAGS, args.iter().map(std::ffi::OsString::from)).unwrap();
        Up::read(&parsed.values)
    }

    #[test]
    fn what_is_wrong_is_told_with_the_flag_to_change() {
        let rows: &[(&[&str], &str)] = &[
            (
                &["--cluster-cidr=10.1.0.0"],
                "--cluster-cidr: \"10.1.0.0\" has no length: write it as 10.1.0.0/16",
            ),
            (&["--cluster-cidr=fd00::/64"], "--cluster-cidr: \"fd00::/64\" is no IPv4 network"),
            (
                &["--cluster-cidr=10.0.0.0/31"],
                "--cluster-cidr: \"10.0.0.0/31\": the length is not between 1 and 30",
            ),
            (
                &["--cluster-cidr=10.43.1.0/24"],
                "--cluster-cidr 10.43.1.0/24 and --service-cluster-ip-range 10.43.0.0/16 overlap: change one of them",
            ),
            (
                &["--node-page=on"],
                "--node-page: \"on\" must be a port such as 4194, or an address with a port such as 192.0.2.1:4194",
            ),
            (&["--secure-port=0"], "--secure-port: not a port between 1 and 65535"),
            (
                &["--embedded-runtime", "--containerd=/x"],
                "--embedded-runtime and --containerd name two runtimes: leave one out",
            ),
            (
                &["--container-runtime-endpoint=/x", "--containerd=/x"],
                "--containerd and --container-runtime-endpoint name two runtimes: leave one out",
            ),
            (
                &["--container-runtime-endpoint=tcp://x"],
                "--container-runtime-endpoint: \"tcp://x\" is no socket: write it as unix:///run/containerd/containerd.sock",
            ),
            (
                &["--disable=traefik"],
                "--disable: there is no part \"traefik\"; parts are kube-controller-manager, kube-scheduler, kubelet, kube-proxy, overlay, dns, metrics, \
                 service-lb, local-storage, deploy, images",
            ),
        ];
        for (args, want) in rows {
            assert_eq!(read(args).unwrap_err(), *want, "{args:?}");
        }
    }

    #[test]
    fn a_bare_command_line_is_a_whole_node() {
        let up = read(&[]).unwrap();
        assert_eq!(up.bind.to_string(), "0.0.0.0:6443");
        assert_eq!(up.cluster_cidr.of_the_node().to_string(), "10.42.0.0/24");
        assert_eq!(up.cluster_cidr.of_the_node().first().to_string(), "10.42.0.1");
        assert!(up.disabled.is_empty() && !up.stop_pods);
        assert_eq!(up.runtime, RuntimeSaid::Nothing);
        let up = read(&["--cluster-cidr=10.7.9.1/26", "--disable=kubelet,kube-proxy"]).unwrap();
        assert_eq!(up.cluster_cidr.of_the_node().to_string(), "10.7.9.0/26");
        assert_eq!(up.disabled.len(), 2);
    }

    #[test]
    fn a_runtime_is_named_in_one_of_three_ways() {
        for (flag, want) in [
            ("--embedded-runtime", RuntimeSaid::Embedded),
            ("--containerd=containerd", RuntimeSaid::Containerd("containerd".into())),
            ("--container-runtime-endpoint=unix:///r.sock", RuntimeSaid::Endpoint("/r.sock".into())),
            ("--container-runtime-endpoint=/r.sock", RuntimeSaid::Endpoint("/r.sock".into())),
        ] {
            assert_eq!(read(&[flag]).unwrap().runtime, want);
        }
    }

    #[test]
    fn the_tenth_address_is_where_dns_is() {
        for (network, tenth) in [
            ("10.43.0.0/16", Some("10.43.0.10")),
            ("10.7.9.70/26", Some("10.7.9.74")),
            ("10.7.9.0/28", Some("10.7.9.10")),
            ("10.7.9.0/29", None),
        ] {
            let found = Ipv4Network::parse(network).unwrap().host(10);
            assert_eq!(found.map(|ip| ip.to_string()).as_deref(), tenth, "{network}");
        }
    }
}
