//! `longshore apiserver`: from arguments to a running API server.

mod copies;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use api::config::Logging;
use api::config::apiserver::{ApiServer, FLAGS};
use apiserver::auth::authn::Anonymous;
use apiserver::auth::service_account::Lifetimes;
use apiserver::auth::static_tokens::StaticTokens;
use apiserver::http::audit;
use apiserver::http::limits::{ClientTimeouts, Limits};
use apiserver::registry::addresses::Ranges;
use apiserver::run::{Settings, Up, run};
use apiserver_core::kinds::RuntimeConfig;
use base::flags;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use self::copies::Act;
use crate::{KUBERNETES, agent_cmd, console, logging};

const NAME: &str = "apiserver";

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
    let read = ApiServer::read(&parsed.values).and_then(|config| {
        let log = config.logging.clone();
        Ok((settings(config)?, log))
    });
    match read {
        Ok((settings, log)) => start(settings, &log),
        Err(error) => agent_cmd::exit_code(NAME, Err(error)),
    }
}

/// What the server is told, from what the command line said.
pub(crate) fn settings(config: ApiServer) -> Result<Settings, String> {
    let static_tokens = match &config.token_auth_file {
        Some(path) => StaticTokens::read(path).map_err(|e| e.to_string())?,
        None => StaticTokens::default(),
    };
    Ok(Settings {
        data_dir: config.data_dir,
        bind: config.bind,
        advertise: config.advertise,
        client_ca_file: config.client_ca_file,
        kubelet_ca_file: config.kubelet_ca_file,
        tls_files: config.tls_files,
        names: config.tls_names,
        cluster_domain: config.cluster_domain,
        limits: Limits {
            reads: config.max_reads_inflight,
            writes: config.max_writes_inflight,
            ..Limits::default()
        },
        timeouts: ClientTimeouts::default(),
        kinds: RuntimeConfig::new(config.runtime_config).map_err(|e| format!("--runtime-config: {e}"))?,
        audit: config.audit.map(|log| audit::Settings {
            path: log.path,
            max_bytes: log.max_bytes,
            backups: log.backups,
        }),
        ranges: ranges(&config.service_networks, config.service_node_ports)?,
        history: config.history,
        event_ttl: config.event_ttl,
        service_account_issuer: config.service_account_issuer,
        api_audiences: config.api_audiences,
        service_account_key_files: config.service_account_key_files,
        service_account_signing_key_file: config.service_account_signing_key_file,
        service_account_jwks_uri: config.service_account_jwks_uri,
        token_lifetimes: Lifetimes { max_seconds: config.max_token_seconds, extend: config.extend_tokens },
        static_tokens,
        anonymous: match config.anonymous {
            None => Anonymous::Probes,
            Some(true) => Anonymous::Everywhere,
            Some(false) => Anonymous::Nowhere,
        },
        version: KUBERNETES.to_owned(),
        in_process: None,
    })
}

fn ranges(networks: &[String], node_ports: Option<(u16, u16)>) -> Result<Ranges, String> {
    let mut ranges = Ranges::default();
    if !networks.is_empty() {
        let parse =
            |text: &String| text.parse().map_err(|e| format!("--service-cluster-ip-range: {text:?}: {e}"));
        ranges.networks = networks.iter().map(parse).collect::<Result<_, _>>()?;
    }
    if ranges.networks.len() > 2 {
        return Err("--service-cluster-ip-range: at most one network of each family".to_owned());
    }
    if let Some(ports) = node_ports {
        ranges.node_ports = ports;
    }
    Ok(ranges)
}

fn start(settings: Settings, log: &Logging) -> ExitCode {
    // Only a second start in one process could fail, and then somebody logs already.
    let _ = logging::start(log);
    let runtime = match event_loop() {
        Ok(runtime) => runtime,
        Err(error) => return agent_cmd::exit_code(NAME, Err(error)),
    };
    agent_cmd::exit_code(NAME, runtime.block_on(serve(settings)))
}

/// The event loop of an API server.
pub(crate) fn event_loop() -> Result<Runtime, String> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().global_queue_interval(apiserver::run::ANSWERS_FIRST);
    builder.max_blocking_threads(8).thread_keep_alive(Duration::from_secs(2));
    builder.build().map_err(|e| format!("start the event loop: {e}"))
}

/// Runs until SIGTERM or SIGINT.
async fn serve(settings: Settings) -> Result<(), String> {
    let token = CancellationToken::new();
    let releasing = supervise::spawn("memory release", release_memory());
    let ended = agent_cmd::run_until_signal(
        run(settings, |_: &Up| agent_cmd::tell_systemd("READY=1"), token.clone()),
        token,
    )
    .await;
    releasing.abort();
    ended
}

/// Hands memory back once the work of the start is done, and again after busy times (docs/decisions/009.md).
async fn release_memory() {
    /// A quiet server uses less than this in one period: hundredths of a second.
    const QUIET: u64 = 3;
    const PERIOD: Duration = Duration::from_secs(2);
    let (mut last, mut busy) = (used_ticks(), true);
    loop {
        tokio::time::sleep(PERIOD).await;
        let quiet = used_ticks().saturating_sub(last) < QUIET;
        if quiet && busy {
            kubelet::node::memory_release::give_back().await;
        }
        // What the release itself took is not somebody's work.
        (last, busy) = (used_ticks(), !quiet);
    }
}

/// Processor time of this process so far.
fn used_ticks() -> u64 {
    std::fs::read_to_string("/proc/self/stat").ok().and_then(|s| cpu_ticks(&s)).unwrap_or(0)
}

/// Processor time in `/proc/<pid>/stat`, of the process and of the kernel for it.
fn cpu_ticks(stat: &str) -> Option<u64> {
    // The name may hold spaces and parentheses; what follows the last of them does not.
    let mut words = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(words.next()?.parse::<u64>().ok()? + words.next()?.parse::<u64>().ok()?)
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
