//! `longshore kube-controller-manager`: from arguments to running controllers.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use api::config::controllers::{Controllers, FLAGS, LeaderElection, TokenSigner};
use api::config::{ConfigError, LoadError, Outcome};
use base::flags;
use base::time::Clock;
use client::leader_election::Terms;
use client::{Client, Config, Meter, Options};
use controllers::agent::{self, Start, SystemClock};
use controllers::certificates::Authorities;
use controllers::metrics::Metrics;
use controllers::seen::Seen;
use secure_serving::{Check, Checks};
use serde_json::Value;
use supervise::Supervisor;
use tokio_util::sync::CancellationToken;

use crate::serving::{self, Shown};
use crate::{KUBERNETES, agent_cmd};

const NAME: &str = "kube-controller-manager";

/// Reads the command line, tells every mistake, or runs.
pub(crate) fn main(args: &[OsString]) -> ExitCode {
    let parsed = match flags::parse(FLAGS, args.iter().cloned()) {
        Ok(parsed) => parsed,
        Err(mistakes) => {
            let mistakes = LoadError(mistakes.into_iter().map(ConfigError::Flag).collect());
            return agent_cmd::obey(Err::<Outcome<Controllers>, _>(mistakes), |_| ExitCode::SUCCESS);
        }
    };
    let said = |name: &str| parsed.values.get(name) == Some(&Value::Bool(true));
    if said("help") {
        return agent_cmd::obey(Ok::<Outcome<Controllers>, _>(Outcome::Help(help())), |_| ExitCode::SUCCESS);
    }
    if said("version") {
        return agent_cmd::obey(Ok::<Outcome<Controllers>, _>(Outcome::Version), |_| ExitCode::SUCCESS);
    }
    match Controllers::read(&parsed.values) {
        Ok(config) => run(config, parsed.values),
        Err(error) => agent_cmd::exit_code(NAME, Err(error)),
    }
}

fn help() -> String {
    let intro = "kube-controller-manager runs the controllers of a cluster: it watches what is asked for and makes it so.\n\n\
                 Usage:\n  kube-controller-manager [flags]\n\nFlags:\n";
    format!("{intro}{}", flags::render_help(FLAGS, 100))
}

fn run(config: Controllers, flags: BTreeMap<&'static str, Value>) -> ExitCode {
    sys::memory::keep_one_heap();
    agent_cmd::begin_log(&config.logging, &[], &config.not_honoured);
    agent_cmd::exit_code(
        NAME,
        agent_cmd::event_loop(4).and_then(|runtime| runtime.block_on(serve(config, flags))),
    )
}

/// Runs until SIGTERM or SIGINT, or until the Lease is lost.
async fn serve(config: Controllers, flags: BTreeMap<&'static str, Value>) -> Result<(), String> {
    for name in agent::unknown(&config.chosen) {
        tracing::warn!(controller = name, "--controllers names one that this build does not have");
    }
    let (metrics, seen, token) = (Metrics::default(), Seen::default(), CancellationToken::new());
    let tasks = Supervisor::new(token.clone());
    if let Some(serving) = config.serving.clone() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let open = serving::open(NAME, &serving, clock).await?;
        let shown = shown(&config.chosen, &seen, &metrics, &flags);
        let token = token.clone();
        tasks.essential(
            "secure port",
            async move { serving::serve(NAME, &serving, open, shown, token).await },
        );
    }
    let client = connect(&config, &metrics).await?;
    let seed = agent_cmd::seed();
    let mut tuning = config.tuning.clone();
    tuning.time_zone = agent_cmd::time_zone();
    tuning.root_ca = match config.root_ca_file.as_deref() {
        Some(path) => Some(read(path)?),
        None => ca_of_kubeconfig(&config),
    };
    let authorities =
        Authorities::open(config.signers.clone(), config.signing_duration).map_err(|e| e.to_string())?;
    tuning.certificate_signer = authorities.signer();
    if tuning.certificate_signer.is_none() {
        tracing::info!(
            "no certificate or key to sign with: certificates are approved, and signed by nobody here"
        );
    }
    tasks.restart("authorities of signers", move || authorities.clone().follow());
    tuning.token_signer = config.service_account_key_file.as_deref().map(signer).transpose()?;
    let start = Start { client, tuning, chosen: config.chosen, seed, metrics, accounts: None, seen };
    let terms = config.leader.map(|leader| terms(leader, seed));
    agent_cmd::run_until_signal(agent::run(start, terms, token.clone()), token).await?;
    tasks.failure().map_or(Ok(()), |failure| Err(failure.to_string()))
}

/// Health of each controller, readiness by caches, metrics and flags.
fn shown(chosen: &[String], seen: &Seen, metrics: &Metrics, flags: &BTreeMap<&'static str, Value>) -> Shown {
    let mut names: Vec<&'static str> = agent::chosen(chosen).iter().map(|row| row.name).collect();
    names.dedup();
    let moving = names.into_iter().map(|name| {
        let seen = seen.clone();
        Check::new(name, move || seen.is_moving(name))
    });
    let (synced, shown, metrics) = (seen.clone(), seen.clone(), metrics.clone());
    let configz = configz(flags);
    Shown {
        healthz: Checks::new(std::iter::once(Check::ping()).chain(moving).collect()),
        readyz: Checks::new(vec![Check::ping(), Check::new("informer-sync", move || synced.are_ready())]),
        metrics: Arc::new(move || shown.metrics(&metrics)),
        more: Vec::new(),
        flags: serving::flags_in_force(FLAGS, flags),
        configz: Arc::new(move || configz.clone()),
    }
}

/// What was said on the command line, under the name of upstream's kind.
fn configz(flags: &BTreeMap<&'static str, Value>) -> String {
    serde_json::json!({"kubecontrollermanager.config.k8s.io": {"flags": flags}}).to_string()
}

async fn connect(config: &Controllers, metrics: &Metrics) -> Result<Client, String> {
    let access = access(config, &agent_cmd::in_cluster()).map_err(|e| e.to_string())?;
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

fn access(
    config: &Controllers,
    in_cluster: &(Option<String>, Option<String>),
) -> Result<Config, client::ConfigError> {
    let kubeconfig = config.kubeconfig.as_deref().unwrap_or(Path::new("")).to_string_lossy();
    Config::of_flags(&kubeconfig, config.server.as_deref().unwrap_or_default(), in_cluster)
}

fn terms(leader: LeaderElection, seed: u64) -> Terms {
    let host = agent_cmd::hostname();
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

/// The authority by which the controllers themselves believe the API server.
fn ca_of_kubeconfig(config: &Controllers) -> Option<String> {
    let ca = access(config, &agent_cmd::in_cluster()).ok()?.ca?;
    String::from_utf8(ca.read().ok()?).ok()
}

/// Signs with the key of `--service-account-private-key-file`.
fn signer(path: &Path) -> Result<TokenSigner, String> {
    let sign =
        apiserver::auth::tokens::signer(&read(path)?).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(TokenSigner(sign))
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("read {}: {e}", path.display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_the_server_is_found_as_kubectl_finds_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kubeconfig");
        let text = "current-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n\
                    clusters: [{name: k, cluster: {server: 'https://named:6443'}}]\nusers: [{name: u, user: {}}]\n";
        std::fs::write(&file, text).unwrap();
        let kubeconfig = format!("--kubeconfig={}", file.display());
        let table: [(&[&str], Option<&str>); 7] = [
            (&["--master=10.0.0.1:6443"], Some("https://10.0.0.1:6443")),
            (&["--master=http://10.0.0.1:8080/"], Some("http://10.0.0.1:8080")),
            (&[&kubeconfig], Some("https://named:6443")),
            (&[&kubeconfig, "--master=other:6443"], Some("https://other:6443")),
            (&["--kubeconfig=/no/such/file"], None),
            (&[], Some("https://10.96.0.1:443")),
            (&["--master="], Some("https://10.96.0.1:443")),
        ];
        let in_cluster = (Some("10.96.0.1".to_owned()), Some("443".to_owned()));
        for (args, want) in table {
            let parsed = flags::parse(FLAGS, args.iter().map(OsString::from)).unwrap();
            let config = Controllers::read(&parsed.values).unwrap();
            let found = access(&config, &in_cluster).ok();
            assert_eq!(found.map(|c| c.server).as_deref(), want, "{args:?}");
        }
        let nowhere = access(&Controllers::read(&Default::default()).unwrap(), &(None, None));
        assert!(nowhere.is_err(), "{nowhere:?}");
    }
}
