//! The flags of `longshore overlay`: flanneld's, as far as they are of its kube subnet manager.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use base::flags::{self, Flag, FlagType, Parsed};
use serde_json::Value;

use super::{ConfigError, FieldError, LoadError, Logging, Outcome};

const fn flag(name: &'static str, kind: FlagType, default: &'static str, help: &'static str) -> Flag {
    Flag::new(name, kind, default, help)
}

#[rustfmt::skip]
pub const FLAGS: &[Flag] = &[
    flag("help", FlagType::Bool, "false", "Print this text and exit.").short('h'),
    flag("version", FlagType::Bool, "false", "Print the version and exit."),
    flag("kubeconfig-file", FlagType::Text, "", "The kubeconfig file; without it and --kube-api-url, the credentials of a Pod are used."),
    flag("kube-api-url", FlagType::Text, "", "The API server's address; wins over the kubeconfig's."),
    flag("kube-subnet-mgr", FlagType::Bool, "true", "Take subnets from the API server. There is no other way."),
    flag("kube-annotation-prefix", FlagType::Text, "flannel.alpha.coreos.com", "How the annotations of Nodes begin."),
    flag("net-config-path", FlagType::Text, "/etc/kube-flannel/net-conf.json", "The network and how Nodes reach each other."),
    flag("node-name", FlagType::Text, "", "The Node of this machine; NODE_NAME, the Node of the Pod named by POD_NAMESPACE and POD_NAME, or the host name when not given."),
    flag("iface", FlagType::List, "", "Names or addresses of devices that other Nodes reach this one by; the first that is there."),
    flag("public-ip", FlagType::Ip, "", "Where other Nodes reach this one, if not at an address of the device."),
    flag("public-ipv6", FlagType::Ip, "", "The same for IPv6."),
    flag("ip-masq", FlagType::Bool, "false", "Pods look like their Node to the rest of the world."),
    flag("subnet-file", FlagType::Text, "/run/flannel/subnet.env", "The file for flannel's CNI plugin; empty for none."),
    flag("cni-conf-file", FlagType::Text, "", "A CNI network of bridge and portmap to write, where flannel's CNI plugin is not used."),
    flag("set-node-network-unavailable", FlagType::Bool, "true", "Clear the Node's condition NetworkUnavailable."),
    flag("logging-format", FlagType::Text, "text", "text or json."),
    flag("v", FlagType::Uint32, "0", "How much to log; 0 to 10.").short('v'),
];

/// What the command line says, checked.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub kubeconfig: String,
    pub master: String,
    pub prefix: String,
    pub net_conf: PathBuf,
    pub node: String,
    pub devices: Vec<String>,
    pub public_v4: Option<IpAddr>,
    pub public_v6: Option<IpAddr>,
    pub masquerades: bool,
    pub subnet_file: Option<PathBuf>,
    pub cni_file: Option<PathBuf>,
    pub tells_network: bool,
    pub logging: Logging,
}

/// Reads the arguments; tells every mistake.
pub fn load(args: &[OsString]) -> Result<Outcome<Loaded>, LoadError> {
    let parsed = flags::parse(FLAGS, args.iter().cloned())
        .map_err(|errors| LoadError(errors.into_iter().map(ConfigError::from).collect()))?;
    let is_set = |name: &str| parsed.values.get(name) == Some(&Value::Bool(true));
    if is_set("help") {
        let text = format!(
            "Make Pods of different Nodes reach each other, in flanneld's place.\n\nUsage:\n  longshore overlay [flags]\n\nFlags:\n{}",
            flags::render_help(FLAGS, 120)
        );
        return Ok(Outcome::Help(text));
    }
    if is_set("version") {
        return Ok(Outcome::Version);
    }
    let mut mistakes = Vec::new();
    let loaded = read(&parsed, &mut mistakes);
    match mistakes.is_empty() {
        true => Ok(Outcome::Run(Box::new(loaded))),
        false => Err(LoadError(mistakes.into_iter().map(ConfigError::Field).collect())),
    }
}

fn read(parsed: &Parsed, mistakes: &mut Vec<FieldError>) -> Loaded {
    let text = |name: &str, default: &str| match parsed.values.get(name) {
        Some(Value::String(text)) => text.clone(),
        _ => default.to_owned(),
    };
    let said = |name: &str, default: bool| match parsed.values.get(name) {
        Some(Value::Bool(said)) => *said,
        _ => default,
    };
    let path =
        |name: &str, default: &str| Some(text(name, default)).filter(|t| !t.is_empty()).map(PathBuf::from);
    if !said("kube-subnet-mgr", true) {
        mistakes.push(mistake("kube-subnet-mgr", "etcd is not a place where subnets come from here"));
    }
    let mut ip = |name: &str, is_wanted: fn(&IpAddr) -> bool| {
        let ip = text(name, "").parse::<IpAddr>().ok()?;
        if !is_wanted(&ip) {
            mistakes.push(mistake(name, &format!("{ip} is of the other family")));
        }
        Some(ip)
    };
    let (public_v4, public_v6) = (ip("public-ip", IpAddr::is_ipv4), ip("public-ipv6", IpAddr::is_ipv6));
    let format = text("logging-format", "text");
    if !["text", "json"].contains(&format.as_str()) {
        mistakes.push(mistake("logging-format", &format!("{format:?} is neither text nor json")));
    }
    let devices = parsed.values.get("iface").and_then(Value::as_array).into_iter().flatten();
    let verbosity = parsed.values.get("v").and_then(Value::as_u64).and_then(|v| u32::try_from(v).ok());
    Loaded {
        kubeconfig: text("kubeconfig-file", ""),
        master: text("kube-api-url", ""),
        prefix: text("kube-annotation-prefix", "flannel.alpha.coreos.com"),
        net_conf: text("net-config-path", "/etc/kube-flannel/net-conf.json").into(),
        node: text("node-name", ""),
        devices: devices
            .filter_map(Value::as_str)
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect(),
        public_v4,
        public_v6,
        masquerades: said("ip-masq", false),
        subnet_file: path("subnet-file", "/run/flannel/subnet.env"),
        cni_file: path("cni-conf-file", ""),
        tells_network: said("set-node-network-unavailable", true),
        logging: Logging { format, verbosity: verbosity.unwrap_or_default(), ..Logging::default() },
    }
}

fn mistake(name: &str, what: &str) -> FieldError {
    FieldError::new(format!("--{name}"), what.to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn run(text: &str) -> Result<Loaded, Vec<String>> {
        let args: Vec<OsString> = text.split_whitespace().map(OsString::from).collect();
        match load(&args) {
            Ok(Outcome::Run(loaded)) => Ok(*loaded),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.0.iter().map(ToString::to_string).collect()),
        }
    }

    #[test]
    fn the_arguments_of_flannel_s_daemon_set_are_enough() {
        let loaded = run("--ip-masq --kube-subnet-mgr --iface=eth0 --iface eth1").unwrap();
        assert!(loaded.masquerades && loaded.tells_network && loaded.cni_file.is_none());
        assert_eq!(loaded.devices, ["eth0", "eth1"]);
        assert_eq!(loaded.subnet_file, Some("/run/flannel/subnet.env".into()));
        assert_eq!(run("--subnet-file=").unwrap().subnet_file, None);
    }

    #[test]
    fn every_mistake_is_told() {
        let told =
            run("--kube-subnet-mgr=false --public-ip=fd00::1 --public-ipv6=192.0.2.1 --logging-format=x");
        let told = told.unwrap_err();
        assert_eq!(told.len(), 4, "{told:?}");
        assert!(told[1].contains("--public-ip: fd00::1 is of the other family"), "{told:?}");
    }
}
