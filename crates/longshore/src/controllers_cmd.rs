//! `longshore kube-controller-manager`: from arguments to running controllers.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use api::config::controllers::{Controllers, FLAGS, LeaderElection};
use api::config::{ConfigError, LoadError, Outcome};
use base::flags;
use client::leader_election::Terms;
use client::{Client, Config, Meter, Options};
use controllers::agent::{self, Start};
use controllers::metrics::Metrics;
use serde_json::Value;
use tokio::signal::unix::{self, SignalKind};
use tokio_util::sync::CancellationToken;

use crate::{KUBERNETES, agent_cmd, console};

/// Reads the command line, tells every mistake, or runs.
pub(crate) fn main(args: &[OsString]) -> ExitCode {
    let parsed = match flags::parse(FLAGS, args.iter().cloned()) {
        Ok(parsed) => parsed,
        Err(mistakes) => {
            let mistakes = LoadError(mistakes.into_iter().map(ConfigError::Flag).collect());
            return agent_cmd::obey(Err::<Outcome<Controllers>, _>(mistakes), run);
        }
    };
    let said = |name: &str| parsed.values.get(name) == Some(&Value::Bool(true));
    if said("help") {
        return agent_cmd::obey(Ok(Outcome::Help(help())), run);
    }
    if said("version") {
        return agent_cmd::obey(Ok(Outcome::Version), run);
    }
    match Controllers::read(&parsed.values) {
        Ok(config) => run(config),
        Err(error) => fail(&error),
    }
}

fn help() -> String {
    let intro = "kube-controller-manager runs the controllers of a cluster: it watches what is asked for and makes it so.\n\n\
                 Usage:\n  kube-controller-manager [flags]\n\nFlags:\n";
    format!("{intro}{}", flags::render_help(FLAGS, 100))
}

fn run(config: Controllers) -> ExitCode {
    sys::memory::keep_one_heap();
    agent_cmd::begin_log(&config.logging, &[], &config.not_honoured);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .thread_keep_alive(Duration::from_secs(2))
        .build();
    let ended = match runtime {
        Ok(runtime) => runtime.block_on(serve(config)),
        Err(error) => Err(format!("start the event loop: {error}")),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn fail(error: &str) -> ExitCode {
    tracing::error!(error, "kube-controller-manager failed");
    console::err(&format!("Error: {error}\n"));
    ExitCode::FAILURE
}

/// Runs until SIGTERM or SIGINT, or until the Lease is lost.
async fn serve(config: Controllers) -> Result<(), String> {
    for name in agent::unknown(&config.chosen) {
        tracing::warn!(controller = name, "--controllers names one that this build does not have");
    }
    let metrics = Metrics::default();
    let client = connect(&config, &metrics).await?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seed = now.as_nanos() as u64 ^ u64::from(std::process::id());
    let mut tuning = config.tuning.clone();
    tuning.root_ca = config.root_ca_file.as_deref().map(read).transpose()?;
    tuning.service_account_key = config.service_account_key_file.as_deref().map(read).transpose()?;
    let start = Start { client, tuning, chosen: config.chosen, seed, metrics };
    let token = CancellationToken::new();
    let signal = |kind| unix::signal(kind).map_err(|e| format!("listen for signals: {e}"));
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut agent =
        Box::pin(agent::run(start, config.leader.map(|leader| terms(leader, seed)), token.clone()));
    tokio::select! {
        ended = &mut agent => return ended.map_err(|e| e.to_string()),
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    tracing::info!("stopping");
    token.cancel();
    agent.await.map_err(|e| e.to_string())
}

async fn connect(config: &Controllers, metrics: &Metrics) -> Result<Client, String> {
    let mut access = match (&config.kubeconfig, &config.server) {
        (Some(path), _) => Config::load(path).map_err(|e| e.to_string())?,
        (None, Some(server)) => Config::plain(server),
        (None, None) => {
            let (host, port) = (
                std::env::var("KUBERNETES_SERVICE_HOST").ok(),
                std::env::var("KUBERNETES_SERVICE_PORT").ok(),
            );
            Config::in_cluster(host.as_deref(), port.as_deref()).map_err(|e| e.to_string())?
        }
    };
    if let Some(server) = &config.server {
        access.server = server.trim_end_matches('/').to_owned();
    }
    let (qps, burst) = config.rate.unwrap_or_default();
    let meter = metrics.clone();
    let options = Options {
        user_agent: format!(
            "kube-controller-manager/{KUBERNETES} (linux/{}) longshore",
            std::env::consts::ARCH
        ),
        qps,
        burst,
        meter: Some(Meter::new(move |asked| meter.asked(asked))),
        ..Options::default()
    };
    Client::new(access, options).await.map_err(|e| e.to_string())
}

fn terms(leader: LeaderElection, seed: u64) -> Terms {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let LeaderElection { namespace, name, lease_duration, renew_deadline, retry_period } = leader;
    Terms {
        namespace,
        name,
        identity: format!("{host}_{seed:016x}"),
        lease_duration,
        renew_deadline,
        retry_period,
    }
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("read {}: {e}", path.display()))
}
