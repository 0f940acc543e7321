//! kube-apiserver's flags, and what they come to.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use base::duration::GoDuration;
use base::flags::{Flag, FlagType};
use serde_json::Value;

use super::Logging;

/// Where everything of the server lies.
pub const DATA_DIR: Flag = Flag::new(
    "data-dir",
    FlagType::Text,
    "/var/lib/longshore",
    "Where the store, the keys and admin.kubeconfig are kept.",
);

/// Every flag. Names are kube-apiserver's where it has the same thing.
pub const FLAGS: &[Flag] = &[
    Flag::new(
        "advertise-address",
        FlagType::Ip,
        "",
        "The address others reach this server at; found out when not given.",
    ),
    Flag::new("bind-address", FlagType::Ip, "0.0.0.0", "The address to listen on."),
    Flag::new(
        "secure-port",
        FlagType::Int32,
        "6443",
        "The port to serve HTTPS on; 0 takes any that is free.",
    ),
    DATA_DIR,
    Flag::new(
        "client-ca-file",
        FlagType::Text,
        "",
        "Authorities (PEM) whose client certificates are believed besides our own.",
    ),
    Flag::new(
        "kubelet-certificate-authority",
        FlagType::Text,
        "",
        "Authorities (PEM) of the certificates kubelets show; any is believed when not given.",
    ),
    Flag::new("tls-cert-file", FlagType::Text, "", "The certificate (PEM) to show instead of our own."),
    Flag::new("tls-private-key-file", FlagType::Text, "", "The key (PEM) of --tls-cert-file."),
    Flag::new("tls-san", FlagType::List, "", "More names and addresses for our own certificate."),
    Flag::new(
        "anonymous-auth",
        FlagType::Bool,
        "",
        "Let requests without credentials in: everywhere or nowhere; health and version only when not given.",
    ),
    Flag::new(
        "token-auth-file",
        FlagType::Text,
        "",
        "Static tokens: a CSV file of token, user, uid and groups.",
    ),
    Flag::new(
        "service-account-issuer",
        FlagType::Text,
        "https://kubernetes.default.svc.cluster.local",
        "Who our service account tokens say they are from.",
    ),
    Flag::new(
        "api-audiences",
        FlagType::List,
        "",
        "Whom tokens must be for to be taken; the issuer when not given.",
    ),
    Flag::new(
        "service-account-key-file",
        FlagType::List,
        "",
        "Files with more keys (PEM) whose service account tokens are believed.",
    ),
    Flag::new(
        "service-account-signing-key-file",
        FlagType::Text,
        "",
        "The key (PEM) that signs service account tokens; one of our own when not given.",
    ),
    Flag::new(
        "service-account-jwks-uri",
        FlagType::Text,
        "",
        "Where our discovery document says that the keys of tokens are; on this server when not given.",
    ),
    Flag::new(
        "service-account-max-token-expiration",
        FlagType::Duration,
        "",
        "The longest life of a service account token.",
    ),
    Flag::new(
        "service-account-extend-token-expiration",
        FlagType::Bool,
        "true",
        "Let the tokens of Pods live a year, for clients that never read them again.",
    ),
    Flag::new(
        "service-cluster-ip-range",
        FlagType::List,
        "10.96.0.0/12",
        "The network Services get their addresses from; two, one of each family, for dual stack.",
    ),
    Flag::new(
        "service-node-port-range",
        FlagType::Text,
        "30000-32767",
        "The ports of Services that are open on the node.",
    ),
    Flag::new(
        "etcd-compaction-interval",
        FlagType::Duration,
        "5m0s",
        "How long changes are kept for watches and paged lists to go back to.",
    ),
    Flag::new("event-ttl", FlagType::Duration, "1h0m0s", "How long Events are kept."),
    Flag::new(
        "runtime-config",
        FlagType::BoolMap,
        "",
        "Kinds to serve besides the usual, as group/version=true or group/version/resource=true, comma separated.",
    ),
    Flag::new(
        "max-requests-inflight",
        FlagType::Int32,
        "400",
        "How many requests that only read are served at once; 0 for no limit.",
    ),
    Flag::new(
        "max-mutating-requests-inflight",
        FlagType::Int32,
        "200",
        "How many requests that write are served at once; 0 for no limit.",
    ),
    Flag::new("audit-log-path", FlagType::Text, "", "Write an audit log to this file."),
    Flag::new(
        "audit-log-maxsize",
        FlagType::Int32,
        "100",
        "Megabytes at which the audit log is turned over.",
    ),
    Flag::new("audit-log-maxbackup", FlagType::Int32, "10", "How many old audit logs are kept."),
    Flag::new("cluster-domain", FlagType::Text, "cluster.local", "The domain of Services."),
    Flag::new("v", FlagType::Uint32, "0", "Verbosity of the log.").short('v'),
    Flag::new("logging-format", FlagType::Text, "text", "Shape of log lines: text or json."),
    Flag::new("help", FlagType::Bool, "false", "Print this text.").short('h'),
    Flag::new("version", FlagType::Bool, "false", "Print the version."),
];

/// What a command line says of an API server. Nothing in it was looked at on the machine.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiServer {
    pub data_dir: PathBuf,
    pub bind: SocketAddr,
    /// `--advertise-address`
    pub advertise: Option<IpAddr>,
    pub client_ca_file: Option<PathBuf>,
    /// `--kubelet-certificate-authority`
    pub kubelet_ca_file: Option<PathBuf>,
    /// `--tls-cert-file` and `--tls-private-key-file`
    pub tls_files: Option<(PathBuf, PathBuf)>,
    /// `--tls-san`
    pub tls_names: Vec<String>,
    /// None: health and version only.
    pub anonymous: Option<bool>,
    pub token_auth_file: Option<PathBuf>,
    pub service_account_issuer: String,
    pub api_audiences: Vec<String>,
    pub service_account_key_files: Vec<PathBuf>,
    pub service_account_signing_key_file: Option<PathBuf>,
    pub service_account_jwks_uri: Option<String>,
    /// `--service-account-max-token-expiration`
    pub max_token_seconds: Option<i64>,
    /// `--service-account-extend-token-expiration`
    pub extend_tokens: bool,
    /// `--service-cluster-ip-range`
    pub service_networks: Vec<String>,
    /// `--service-node-port-range`, both ends included.
    pub service_node_ports: Option<(u16, u16)>,
    /// `--etcd-compaction-interval`
    pub history: Duration,
    pub event_ttl: Duration,
    pub runtime_config: BTreeMap<String, bool>,
    pub max_reads_inflight: usize,
    pub max_writes_inflight: usize,
    pub audit: Option<AuditLog>,
    pub cluster_domain: String,
    pub logging: Logging,
}

/// `--audit-log-*`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditLog {
    pub path: PathBuf,
    pub max_bytes: u64,
    pub backups: usize,
}

/// The values of a command line, by the names of their flags.
struct Values<'v>(&'v BTreeMap<&'static str, Value>);

// === impl ApiServer ===

impl ApiServer {
    /// Reads the values of parsed flags; says what is wrong with the first that is.
    pub fn read(values: &BTreeMap<&'static str, Value>) -> Result<ApiServer, String> {
        let said = Values(values);
        let port = values.get("secure-port").and_then(Value::as_i64).unwrap_or(6443);
        let port = u16::try_from(port).map_err(|_| format!("--secure-port: {port} is no port"))?;
        let domain = said.text("cluster-domain").unwrap_or("cluster.local");
        Ok(ApiServer {
            tls_files: said.tls_files()?,
            data_dir: said.path("data-dir").unwrap_or_else(|| PathBuf::from("/var/lib/longshore")),
            bind: SocketAddr::new(said.ip("bind-address")?.unwrap_or(IpAddr::from([0, 0, 0, 0])), port),
            advertise: said.ip("advertise-address")?,
            client_ca_file: said.path("client-ca-file"),
            kubelet_ca_file: said.path("kubelet-certificate-authority"),
            tls_names: said.list("tls-san"),
            anonymous: said.switch("anonymous-auth"),
            token_auth_file: said.path("token-auth-file"),
            service_account_issuer: said
                .text("service-account-issuer")
                .map_or_else(|| format!("https://kubernetes.default.svc.{domain}"), str::to_owned),
            api_audiences: said.list("api-audiences"),
            service_account_key_files: said.paths("service-account-key-file"),
            service_account_signing_key_file: said.path("service-account-signing-key-file"),
            service_account_jwks_uri: said.text("service-account-jwks-uri").map(str::to_owned),
            max_token_seconds: said.max_token_seconds()?,
            extend_tokens: said.switch("service-account-extend-token-expiration").unwrap_or(true),
            service_networks: said.list("service-cluster-ip-range"),
            service_node_ports: said.ports("service-node-port-range")?,
            history: said.duration("etcd-compaction-interval", Duration::from_mins(5))?,
            event_ttl: said.duration("event-ttl", Duration::from_hours(1))?,
            runtime_config: said.switches("runtime-config"),
            max_reads_inflight: said.number("max-requests-inflight", 400)?,
            max_writes_inflight: said.number("max-mutating-requests-inflight", 200)?,
            audit: said.audit()?,
            cluster_domain: domain.to_owned(),
            logging: said.logging(),
        })
    }
}

// === impl Values ===

impl Values<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(Value::as_str).filter(|t| !t.is_empty())
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.text(name).map(PathBuf::from)
    }

    fn paths(&self, name: &str) -> Vec<PathBuf> {
        self.list(name).into_iter().map(PathBuf::from).collect()
    }

    fn switch(&self, name: &str) -> Option<bool> {
        self.0.get(name).and_then(Value::as_bool)
    }

    fn switches(&self, name: &str) -> BTreeMap<String, bool> {
        let all = self.0.get(name).and_then(Value::as_object).into_iter().flatten();
        all.filter_map(|(name, on)| Some((name.clone(), on.as_bool()?))).collect()
    }

    fn list(&self, name: &str) -> Vec<String> {
        let items = self.0.get(name).and_then(Value::as_array).into_iter().flatten();
        items.filter_map(|n| n.as_str().map(str::to_owned)).collect()
    }

    fn ip(&self, name: &str) -> Result<Option<IpAddr>, String> {
        let parse = |text: &str| text.parse::<IpAddr>().map_err(|e| format!("--{name}: {e}"));
        self.text(name).map(parse).transpose()
    }

    fn number(&self, name: &str, default: usize) -> Result<usize, String> {
        match self.0.get(name).and_then(Value::as_i64) {
            None => Ok(default),
            Some(n) => usize::try_from(n).map_err(|_| format!("--{name}: {n} is negative")),
        }
    }

    fn duration(&self, name: &str, default: Duration) -> Result<Duration, String> {
        let Some(text) = self.text(name) else { return Ok(default) };
        let parsed = seconds(text).filter(|s| *s > 0).and_then(|s| u64::try_from(s).ok());
        let parsed = parsed.map(Duration::from_secs);
        parsed.ok_or_else(|| format!("--{name}: {text:?} is no time to keep anything"))
    }

    fn ports(&self, name: &str) -> Result<Option<(u16, u16)>, String> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let parsed =
            text.split_once('-').and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)));
        let parsed = parsed.filter(|(low, high)| low <= high);
        parsed.map(Some).ok_or_else(|| format!("--{name}: {text:?}"))
    }

    fn tls_files(&self) -> Result<Option<(PathBuf, PathBuf)>, String> {
        match (self.path("tls-cert-file"), self.path("tls-private-key-file")) {
            (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
            (None, None) => Ok(None),
            _ => Err("--tls-cert-file and --tls-private-key-file go together".to_owned()),
        }
    }

    fn max_token_seconds(&self) -> Result<Option<i64>, String> {
        let name = "service-account-max-token-expiration";
        let parse = |text: &str| seconds(text).ok_or_else(|| format!("--{name}: {text:?}"));
        self.text(name).map(parse).transpose()
    }

    fn audit(&self) -> Result<Option<AuditLog>, String> {
        let Some(path) = self.path("audit-log-path") else { return Ok(None) };
        let max_bytes = self.number("audit-log-maxsize", 100)? as u64 * 1_000_000;
        Ok(Some(AuditLog { path, max_bytes, backups: self.number("audit-log-maxbackup", 10)? }))
    }

    fn logging(&self) -> Logging {
        let verbosity = self.0.get("v").and_then(Value::as_u64).and_then(|v| u32::try_from(v).ok());
        let format = self.0.get("logging-format").and_then(Value::as_str).unwrap_or("text");
        Logging { format: format.into(), verbosity: verbosity.unwrap_or_default(), ..Logging::default() }
    }
}

fn seconds(text: &str) -> Option<i64> {
    let duration = text.parse::<GoDuration>().ok()?;
    Some(duration.as_nanos() / 1_000_000_000)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(args: &[&str]) -> Result<ApiServer, String> {
        let parsed =
            base::flags::parse(FLAGS, args.iter().map(|a| (*a).into())).map_err(|e| format!("{e:?}"))?;
        ApiServer::read(&parsed.values)
    }

    #[test]
    fn what_is_not_said_is_upstreams_default() {
        let config = read(&[]).unwrap();
        assert_eq!(config.bind, "0.0.0.0:6443".parse().unwrap());
        assert_eq!((config.max_reads_inflight, config.max_writes_inflight), (400, 200));
        assert_eq!((config.history, config.event_ttl), (Duration::from_mins(5), Duration::from_hours(1)));
        assert_eq!(config.anonymous, None);
        assert_eq!(config.audit, None);
    }

    #[test]
    fn what_is_said_is_taken_and_nonsense_is_refused() {
        let config = read(&[
            "--secure-port=0",
            "--bind-address=::1",
            "--service-node-port-range=30000-30100",
            "--anonymous-auth=false",
            "--audit-log-path=/a",
            "--audit-log-maxsize=2",
            "--runtime-config=a/v1=true",
        ])
        .unwrap();
        assert_eq!(config.bind, "[::1]:0".parse().unwrap());
        assert_eq!(config.service_node_ports, Some((30000, 30100)));
        assert_eq!(config.anonymous, Some(false));
        assert_eq!(config.audit.map(|a| (a.max_bytes, a.backups)), Some((2_000_000, 10)));
        assert_eq!(config.runtime_config, [("a/v1".to_owned(), true)].into());
        for (args, why) in [
            (&["--secure-port=70000"][..], "--secure-port: 70000 is no port"),
            (&["--tls-cert-file=/a"], "--tls-cert-file and --tls-private-key-file go together"),
            (&["--service-node-port-range=2-1"], "--service-node-port-range: \"2-1\""),
            (&["--event-ttl=0s"], "--event-ttl: \"0s\" is no time to keep anything"),
            (&["--max-requests-inflight=-1"], "--max-requests-inflight: -1 is negative"),
        ] {
            assert_eq!(read(args).unwrap_err(), why);
        }
    }
}
