//! `longshore apiserver`: from arguments to a running API server.

mod copies;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use api::config::Logging;
use apiserver::auth::authn::Anonymous;
use apiserver::auth::service_account::Lifetimes;
use apiserver::auth::static_tokens::StaticTokens;
use apiserver::http::audit;
use apiserver::http::limits::{Limits, Patience};
use apiserver::registry::addresses::Ranges;
use apiserver::run::{Settings, Up, run};
use apiserver_core::kinds::RuntimeConfig;
use base::flags::{self, Flag, Kind};
use serde_json::Value;
use tokio::signal::unix::{self, SignalKind};
use tokio_util::sync::CancellationToken;

use self::copies::Act;
use crate::{KUBERNETES, console, logging};

const DATA_DIR: Flag = Flag::new(
    "data-dir",
    Kind::Text,
    "/var/lib/longshore",
    "Where the store, the keys and admin.kubeconfig are kept.",
);

/// Every flag. Names are kube-apiserver's where it has the same thing.
pub(crate) const FLAGS: &[Flag] = &[
    Flag::new(
        "advertise-address",
        Kind::Ip,
        "",
        "The address others reach this server at; found out when not given.",
    ),
    Flag::new("bind-address", Kind::Ip, "0.0.0.0", "The address to listen on."),
    Flag::new("secure-port", Kind::Int32, "6443", "The port to serve HTTPS on; 0 takes any that is free."),
    DATA_DIR,
    Flag::new(
        "client-ca-file",
        Kind::Text,
        "",
        "Authorities (PEM) whose client certificates are believed besides our own.",
    ),
    Flag::new(
        "kubelet-certificate-authority",
        Kind::Text,
        "",
        "Authorities (PEM) of the certificates kubelets show; any is believed when not given.",
    ),
    Flag::new("tls-cert-file", Kind::Text, "", "The certificate (PEM) to show instead of our own."),
    Flag::new("tls-private-key-file", Kind::Text, "", "The key (PEM) of --tls-cert-file."),
    Flag::new("tls-san", Kind::List, "", "More names and addresses for our own certificate."),
    Flag::new(
        "anonymous-auth",
        Kind::Bool,
        "",
        "Let requests without credentials in: everywhere or nowhere; health and version only when not given.",
    ),
    Flag::new("token-auth-file", Kind::Text, "", "Static tokens: a CSV file of token, user, uid and groups."),
    Flag::new(
        "service-account-issuer",
        Kind::Text,
        "https://kubernetes.default.svc.cluster.local",
        "Who our service account tokens say they are from.",
    ),
    Flag::new(
        "api-audiences",
        Kind::List,
        "",
        "Whom tokens must be for to be taken; the issuer when not given.",
    ),
    Flag::new(
        "service-account-key-file",
        Kind::List,
        "",
        "Files with more keys (PEM) whose service account tokens are believed.",
    ),
    Flag::new(
        "service-account-signing-key-file",
        Kind::Text,
        "",
        "The key (PEM) that signs service account tokens; one of our own when not given.",
    ),
    Flag::new(
        "service-account-jwks-uri",
        Kind::Text,
        "",
        "Where our discovery document says that the keys of tokens are; on this server when not given.",
    ),
    Flag::new(
        "service-account-max-token-expiration",
        Kind::Duration,
        "",
        "The longest life of a service account token.",
    ),
    Flag::new(
        "service-account-extend-token-expiration",
        Kind::Bool,
        "true",
        "Let the tokens of Pods live a year, for clients that never read them again.",
    ),
    Flag::new(
        "service-cluster-ip-range",
        Kind::List,
        "10.96.0.0/12",
        "The network Services get their addresses from; two, one of each family, for dual stack.",
    ),
    Flag::new(
        "service-node-port-range",
        Kind::Text,
        "30000-32767",
        "The ports of Services that are open on the node.",
    ),
    Flag::new(
        "etcd-compaction-interval",
        Kind::Duration,
        "5m0s",
        "How long changes are kept for watches and paged lists to go back to.",
    ),
    Flag::new("event-ttl", Kind::Duration, "1h0m0s", "How long Events are kept."),
    Flag::new(
        "runtime-config",
        Kind::BoolMap,
        "",
        "Kinds to serve besides the usual, as group/version=true or group/version/resource=true, comma separated.",
    ),
    Flag::new(
        "max-requests-inflight",
        Kind::Int32,
        "400",
        "How many requests that only read are served at once; 0 for no limit.",
    ),
    Flag::new(
        "max-mutating-requests-inflight",
        Kind::Int32,
        "200",
        "How many requests that write are served at once; 0 for no limit.",
    ),
    Flag::new("audit-log-path", Kind::Text, "", "Write an audit log to this file."),
    Flag::new("audit-log-maxsize", Kind::Int32, "100", "Megabytes at which the audit log is turned over."),
    Flag::new("audit-log-maxbackup", Kind::Int32, "10", "How many old audit logs are kept."),
    Flag::new("cluster-domain", Kind::Text, "cluster.local", "The domain of Services."),
    Flag::new("v", Kind::Uint32, "0", "Verbosity of the log.").short('v'),
    Flag::new("logging-format", Kind::Text, "text", "Shape of log lines: text or json."),
    Flag::new("help", Kind::Bool, "false", "Print this text.").short('h'),
    Flag::new("version", Kind::Bool, "false", "Print the version."),
];

pub(crate) fn main(args: &[OsString]) -> ExitCode {
    if let Some((word, rest)) = args.split_first()
        && let Some(act) = Act::of(word)
    {
        return copies::main(act, rest);
    }
    let parsed = match flags::parse(FLAGS, args.iter().cloned()) {
        Ok(parsed) => parsed,
        Err(mistakes) => {
            for mistake in mistakes {
                console::err(&format!("Error: {mistake}\n"));
            }
            return ExitCode::FAILURE;
        }
    };
    let said = |name: &str| parsed.values.get(name) == Some(&Value::Bool(true));
    if said("help") {
        console::out(&format!(
            "Serve the Kubernetes API for this machine.\n\nUsage:\n  longshore apiserver [flags]\n  longshore apiserver backup|restore [flags] FILE\n\nFlags:\n{}",
            flags::render_help(FLAGS, 100)
        ));
        return ExitCode::SUCCESS;
    }
    if said("version") {
        console::out(&format!("Kubernetes {KUBERNETES}\n"));
        return ExitCode::SUCCESS;
    }
    match settings(&parsed.values) {
        Ok(settings) => start(settings, &parsed.values),
        Err(error) => fail(&error),
    }
}

fn runtime_config(value: Option<&Value>) -> Result<RuntimeConfig, String> {
    let wishes = value.and_then(Value::as_object).into_iter().flatten();
    let wishes = wishes.filter_map(|(name, on)| Some((name.clone(), on.as_bool()?))).collect();
    RuntimeConfig::new(wishes).map_err(|e| format!("--runtime-config: {e}"))
}

fn settings(values: &BTreeMap<&'static str, Value>) -> Result<Settings, String> {
    let text = |name: &str| values.get(name).and_then(Value::as_str).filter(|t| !t.is_empty());
    let ip = |name: &str| match text(name) {
        Some(text) => text.parse::<IpAddr>().map(Some).map_err(|e| format!("--{name}: {e}")),
        None => Ok(None),
    };
    let path = |name: &str| text(name).map(PathBuf::from);
    let port = values.get("secure-port").and_then(Value::as_i64).unwrap_or(6443);
    let port = u16::try_from(port).map_err(|_| format!("--secure-port: {port} is no port"))?;
    let tls_files = match (path("tls-cert-file"), path("tls-private-key-file")) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => return Err("--tls-cert-file and --tls-private-key-file go together".to_owned()),
    };
    let list = |name: &str| -> Vec<String> {
        let items = values.get(name).and_then(Value::as_array).into_iter().flatten();
        items.filter_map(|n| n.as_str().map(str::to_owned)).collect()
    };
    let number = |name: &str, default: usize| match values.get(name).and_then(Value::as_i64) {
        None => Ok(default),
        Some(n) => usize::try_from(n).map_err(|_| format!("--{name}: {n} is negative")),
    };
    let duration = |name: &str, default: Duration| match text(name) {
        None => Ok(default),
        Some(text) => {
            let parsed = seconds(text).filter(|s| *s > 0).and_then(|s| u64::try_from(s).ok());
            parsed
                .map(Duration::from_secs)
                .ok_or_else(|| format!("--{name}: {text:?} is no time to keep anything"))
        }
    };
    let switch = |name: &str| values.get(name).and_then(Value::as_bool);
    let domain = text("cluster-domain").unwrap_or("cluster.local");
    let static_tokens = match path("token-auth-file") {
        Some(path) => StaticTokens::read(&path).map_err(|e| e.to_string())?,
        None => StaticTokens::default(),
    };
    let max_token_life = match text("service-account-max-token-expiration") {
        Some(text) => {
            Some(seconds(text).ok_or_else(|| format!("--service-account-max-token-expiration: {text:?}"))?)
        }
        None => None,
    };
    Ok(Settings {
        data_dir: path("data-dir").unwrap_or_else(|| PathBuf::from("/var/lib/longshore")),
        bind: SocketAddr::new(ip("bind-address")?.unwrap_or(IpAddr::from([0, 0, 0, 0])), port),
        advertise: ip("advertise-address")?,
        client_ca_file: path("client-ca-file"),
        kubelet_ca_file: path("kubelet-certificate-authority"),
        tls_files,
        names: list("tls-san"),
        cluster_domain: domain.to_owned(),
        limits: Limits {
            reads: number("max-requests-inflight", 400)?,
            writes: number("max-mutating-requests-inflight", 200)?,
            ..Limits::default()
        },
        patience: Patience::default(),
        kinds: runtime_config(values.get("runtime-config"))?,
        audit: match path("audit-log-path") {
            None => None,
            Some(path) => Some(audit::Settings {
                path,
                max_bytes: number("audit-log-maxsize", 100)? as u64 * 1_000_000,
                backups: number("audit-log-maxbackup", 10)?,
            }),
        },
        ranges: ranges(&list("service-cluster-ip-range"), text("service-node-port-range"))?,
        history: duration("etcd-compaction-interval", Duration::from_mins(5))?,
        event_ttl: duration("event-ttl", Duration::from_hours(1))?,
        service_account_issuer: text("service-account-issuer")
            .map_or_else(|| format!("https://kubernetes.default.svc.{domain}"), str::to_owned),
        api_audiences: list("api-audiences"),
        service_account_key_files: list("service-account-key-file").into_iter().map(PathBuf::from).collect(),
        service_account_signing_key_file: path("service-account-signing-key-file"),
        service_account_jwks_uri: text("service-account-jwks-uri").map(str::to_owned),
        token_lifetimes: Lifetimes {
            max_seconds: max_token_life,
            extend: switch("service-account-extend-token-expiration").unwrap_or(true),
        },
        static_tokens,
        anonymous: match switch("anonymous-auth") {
            None => Anonymous::Probes,
            Some(true) => Anonymous::Everywhere,
            Some(false) => Anonymous::Nowhere,
        },
        version: KUBERNETES.to_owned(),
    })
}

fn ranges(networks: &[String], ports: Option<&str>) -> Result<Ranges, String> {
    let mut ranges = Ranges::default();
    if !networks.is_empty() {
        let parse =
            |text: &String| text.parse().map_err(|e| format!("--service-cluster-ip-range: {text:?}: {e}"));
        ranges.networks = networks.iter().map(parse).collect::<Result<_, _>>()?;
    }
    if ranges.networks.len() > 2 {
        return Err("--service-cluster-ip-range: at most one network of each family".to_owned());
    }
    if let Some(text) = ports {
        let parsed =
            text.split_once('-').and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)));
        ranges.node_ports = parsed
            .filter(|(low, high)| low <= high)
            .ok_or_else(|| format!("--service-node-port-range: {text:?}"))?;
    }
    Ok(ranges)
}

fn seconds(text: &str) -> Option<i64> {
    let duration = text.parse::<base::duration::GoDuration>().ok()?;
    Some(duration.as_nanos() / 1_000_000_000)
}

fn start(settings: Settings, values: &BTreeMap<&'static str, Value>) -> ExitCode {
    let verbosity = values.get("v").and_then(Value::as_u64).and_then(|v| u32::try_from(v).ok());
    let format = values.get("logging-format").and_then(Value::as_str).unwrap_or("text");
    let log =
        Logging { format: format.into(), verbosity: verbosity.unwrap_or_default(), ..Logging::default() };
    // Only a second start in one process could fail, and then somebody logs already.
    let _ = logging::start(&log);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .global_queue_interval(apiserver::run::ANSWERS_FIRST)
        .max_blocking_threads(8)
        .thread_keep_alive(Duration::from_secs(2))
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("start the event loop: {error}")),
    };
    match runtime.block_on(serve(settings)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

/// Runs until SIGTERM or SIGINT.
async fn serve(settings: Settings) -> Result<(), String> {
    let token = CancellationToken::new();
    let signal = |kind| unix::signal(kind).map_err(|e| format!("listen for signals: {e}"));
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let resting = tokio::spawn(rest());
    let mut server = Box::pin(run(settings, tell_systemd, token.clone()));
    tokio::select! {
        ended = &mut server => return ended.map_err(|e| e.to_string()),
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    tracing::info!("stopping");
    resting.abort();
    token.cancel();
    server.await.map_err(|e| e.to_string())
}

/// Hands memory back once the work of the start is done, and again after busy times (docs/decisions/009.md).
async fn rest() {
    /// A quiet server uses less than this in one period: hundredths of a second.
    const QUIET: u64 = 3;
    const PERIOD: Duration = Duration::from_secs(2);
    let used = || std::fs::read_to_string("/proc/self/stat").ok().and_then(|s| cpu_ticks(&s)).unwrap_or(0);
    let (mut last, mut busy) = (used(), true);
    loop {
        tokio::time::sleep(PERIOD).await;
        let quiet = used().saturating_sub(last) < QUIET;
        if quiet && busy {
            kubelet::node::memory_release::give_back().await;
        }
        // What the release itself took is not somebody's work.
        (last, busy) = (used(), !quiet);
    }
}

/// Processor time in `/proc/<pid>/stat`, of the process and of the kernel for it.
fn cpu_ticks(stat: &str) -> Option<u64> {
    // The name may hold spaces and parentheses; what follows the last of them does not.
    let mut words = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(words.next()?.parse::<u64>().ok()? + words.next()?.parse::<u64>().ok()?)
}

fn tell_systemd(_: &Up) {
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(error) = sys::notify::send(&socket, "READY=1")
    {
        tracing::warn!(%error, "systemd not notified");
    }
}

fn fail(error: &str) -> ExitCode {
    tracing::error!(error, "apiserver failed");
    console::err(&format!("Error: {error}\n"));
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_found_behind_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194304 100 0 0 0 31 11 0 0 20 0 4 0 100 1000 10";
        assert_eq!(cpu_ticks(stat), Some(42));
        assert_eq!(cpu_ticks(""), None);
        assert!(std::fs::read_to_string("/proc/self/stat").is_ok_and(|s| cpu_ticks(&s).is_some()));
    }
}
