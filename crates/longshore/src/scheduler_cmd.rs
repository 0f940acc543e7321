//! `longshore kube-scheduler`: from arguments to a running agent.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use api::config::scheduler::{API_VERSION, FLAGS, KIND, Loaded, load};
use api::yaml;
use base::flags;
use base::time::Clock;
use controllers::agent::SystemClock;
use scheduler::agent::{self, Start};
use scheduler::seen::Seen;
use secure_serving::{Check, Checks};
use supervise::Supervisor;
use tokio_util::sync::CancellationToken;

use crate::files::RealFiles;
use crate::serving::{self, Shown};
use crate::{KUBERNETES, agent_cmd};

const NAME: &str = "kube-scheduler";

/// Loads the configuration, tells every mistake at once, or runs.
pub(crate) fn main(args: &[OsString]) -> ExitCode {
    // What cannot be read is told by `load`.
    let said = flags::parse(FLAGS, args.iter().cloned()).unwrap_or_default().values;
    let flags = serving::flags_in_force(FLAGS, &said);
    agent_cmd::obey(load(args, &RealFiles), |loaded| run(loaded, flags))
}

fn run(loaded: Loaded, flags: BTreeMap<String, String>) -> ExitCode {
    sys::memory::keep_one_heap();
    agent_cmd::begin_log(&loaded.flags.logging, &loaded.warnings, &loaded.not_honoured);
    agent_cmd::exit_code(NAME, act(loaded, flags))
}

fn act(loaded: Loaded, flags: BTreeMap<String, String>) -> Result<(), String> {
    let target = &loaded.flags.write_config_to;
    if !target.is_empty() {
        let mut shown = serde_json::to_value(&loaded.config).map_err(|e| e.to_string())?;
        shown["apiVersion"] = API_VERSION.into();
        shown["kind"] = KIND.into();
        return std::fs::write(target, yaml::from_value_to_yaml(&shown))
            .map_err(|e| format!("write the configuration to {target}: {e}"));
    }
    agent_cmd::event_loop(4)?.block_on(serve(loaded, flags))
}

/// Runs until SIGTERM or SIGINT, or until the Lease is lost.
async fn serve(loaded: Loaded, flags: BTreeMap<String, String>) -> Result<(), String> {
    let (seen, token) = (Seen::default(), CancellationToken::new());
    let tasks = Supervisor::new(token.clone());
    if let Some(serving) = loaded.flags.serving.clone() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let open = serving::open(NAME, &serving, clock).await?;
        let (shown, token) = (shown(&loaded, &seen, flags), token.clone());
        tasks.essential(
            "secure port",
            async move { serving::serve(NAME, &serving, open, shown, token).await },
        );
    }
    let start = Start {
        loaded,
        hostname: agent_cmd::hostname(),
        in_cluster: agent_cmd::in_cluster(),
        version: KUBERNETES.to_owned(),
        seed: agent_cmd::seed(),
        seen,
    };
    agent_cmd::run_until_signal(agent::run(start, token.clone()), token).await?;
    tasks.failure().map_or(Ok(()), |failure| Err(failure.to_string()))
}

/// Health, readiness, metrics and the configuration in force.
fn shown(loaded: &Loaded, seen: &Seen, flags: BTreeMap<String, String>) -> Shown {
    // Whoever loses the Lease ends: there is no time in which it is lost and this still answers.
    let election = || Check::new("leaderElection", || Ok(()));
    let (ready, metrics, configz) = (seen.clone(), seen.clone(), configz(loaded));
    Shown {
        healthz: Checks::new(vec![Check::ping(), election()]),
        readyz: Checks::new(vec![
            Check::ping(),
            election(),
            Check::new("sched-handler-sync", move || ready.is_ready()),
        ]),
        metrics: Arc::new(move || metrics.render()),
        more: Vec::new(),
        flags,
        configz: Arc::new(move || configz.clone()),
    }
}

/// Under the name that upstream gives it. Keys of extenders are left out.
fn configz(loaded: &Loaded) -> String {
    let mut config = loaded.config.clone();
    for tls in config.extenders.iter_mut().filter_map(|extender| extender.tls_config.as_mut()) {
        tls.key_data.clear();
    }
    serde_json::json!({"componentconfig": config}).to_string()
}
