//! The flags of `longshore dns`.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};

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
    flag("kubeconfig", FlagType::Text, "", "The kubeconfig file; without it and --master, the credentials of a Pod are used."),
    flag("master", FlagType::Text, "", "The API server's address; wins over the kubeconfig's."),
    flag("bind-address", FlagType::List, "0.0.0.0", "The addresses to answer on. Replies leave from the address that was asked, so name each one."),
    flag("port", FlagType::Uint32, "53", "The port to answer on, UDP and TCP."),
    flag("cluster-domain", FlagType::Text, "cluster.local", "The zone, where there is no Corefile."),
    flag("corefile", FlagType::Text, "", "A Corefile; without it the ConfigMap kube-system/coredns is read."),
    flag("service-ip", FlagType::Ip, "", "Keep the Service kube-system/kube-dns at this address, leading to the first --bind-address."),
    flag("health-bind-address", FlagType::Text, "0.0.0.0:8080", "Where /health is; empty for nowhere."),
    flag("ready-bind-address", FlagType::Text, "0.0.0.0:8181", "Where /ready is; empty for nowhere."),
    flag("metrics-bind-address", FlagType::Text, "0.0.0.0:9153", "Where /metrics is; empty for nowhere."),
    flag("logging-format", FlagType::Text, "text", "text or json."),
    flag("v", FlagType::Uint32, "0", "How much to log; 0 to 10.").short('v'),
];

/// What the command line says, checked.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub kubeconfig: String,
    pub master: String,
    pub listen: Vec<IpAddr>,
    pub port: u16,
    pub cluster_domain: String,
    pub corefile: String,
    pub service_ip: Option<IpAddr>,
    pub health: Option<SocketAddr>,
    pub ready: Option<SocketAddr>,
    pub metrics: Option<SocketAddr>,
    pub logging: Logging,
}

/// Reads the arguments; tells every mistake.
pub fn load(args: &[OsString]) -> Result<Outcome<Loaded>, LoadError> {
    let parsed = flags::parse(FLAGS, args.iter().cloned())
        .map_err(|errors| LoadError(errors.into_iter().map(ConfigError::from).collect()))?;
    let is_set = |name: &str| parsed.values.get(name) == Some(&Value::Bool(true));
    if is_set("help") {
        let text = format!(
            "Answer for the names of Services and Pods, in CoreDNS's place.\n\nUsage:\n  longshore dns [flags]\n\nFlags:\n{}",
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
    let number =
        |name: &str, default: u64| parsed.values.get(name).and_then(Value::as_u64).unwrap_or(default);
    let mut address = |name: &str, default: &str| {
        let said = text(name, default);
        let read = (!said.is_empty()).then(|| said.parse::<SocketAddr>())?;
        read.inspect_err(|_| mistakes.push(mistake(name, format!("{said:?} is not an address with a port"))))
            .ok()
    };
    let health = address("health-bind-address", "0.0.0.0:8080");
    let ready = address("ready-bind-address", "0.0.0.0:8181");
    let metrics = address("metrics-bind-address", "0.0.0.0:9153");
    let said = parsed.values.get("bind-address").and_then(Value::as_array);
    let said: Vec<&str> =
        said.map_or_else(|| vec!["0.0.0.0"], |all| all.iter().filter_map(Value::as_str).collect());
    let mut listen = Vec::new();
    for ip in said {
        match ip.parse() {
            Ok(ip) => listen.push(ip),
            Err(_) => mistakes.push(mistake("bind-address", format!("{ip:?} is not an address"))),
        }
    }
    let port = u16::try_from(number("port", 53)).ok().filter(|port| *port > 0);
    if port.is_none() {
        mistakes.push(mistake("port", "must be between 1 and 65535".into()));
    }
    let service_ip = text("service-ip", "").parse().ok();
    if service_ip.is_some() && listen.first().is_none_or(|ip: &IpAddr| ip.is_unspecified()) {
        mistakes.push(mistake("service-ip", "needs --bind-address with the address that Pods reach".into()));
    }
    let format = text("logging-format", "text");
    if !["text", "json"].contains(&format.as_str()) {
        mistakes.push(mistake("logging-format", format!("{format:?} is neither text nor json")));
    }
    let verbosity = u32::try_from(number("v", 0)).unwrap_or(u32::MAX);
    Loaded {
        kubeconfig: text("kubeconfig", ""),
        master: text("master", ""),
        listen,
        port: port.unwrap_or(53),
        cluster_domain: text("cluster-domain", "cluster.local"),
        corefile: text("corefile", ""),
        service_ip,
        health,
        ready,
        metrics,
        logging: Logging { format, verbosity, ..Logging::default() },
    }
}

fn mistake(name: &str, what: String) -> FieldError {
    FieldError::new(format!("--{name}"), what)
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
    fn flags_are_read_and_every_mistake_is_told() {
        let loaded =
            run("--bind-address=10.0.0.5,::1 --port 1053 --health-bind-address= --service-ip 10.96.0.10")
                .unwrap();
        assert_eq!((loaded.listen.len(), loaded.port, loaded.health), (2, 1053, None));
        assert_eq!(loaded.service_ip, Some("10.96.0.10".parse().unwrap()));
        assert_eq!(loaded.metrics, Some("0.0.0.0:9153".parse().unwrap()));
        assert_eq!(run("").unwrap().listen, ["0.0.0.0".parse::<IpAddr>().unwrap()]);
        let rows = [
            ("--port 0", "--port: must be between 1 and 65535"),
            ("--bind-address x", "--bind-address: \"x\" is not an address"),
            ("--ready-bind-address 8181", "--ready-bind-address: \"8181\" is not an address with a port"),
            ("--service-ip 10.96.0.10", "--service-ip: needs --bind-address"),
            ("--logging-format xml", "--logging-format: \"xml\" is neither text nor json"),
        ];
        for (args, told) in rows {
            let mistakes = run(args).unwrap_err();
            assert!(mistakes.len() == 1 && mistakes[0].contains(told), "{args}: {mistakes:?}");
        }
        assert_eq!(run("--port 0 --bind-address x").unwrap_err().len(), 2);
    }
}
