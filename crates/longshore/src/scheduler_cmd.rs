//! `longshore kube-scheduler`: from arguments to a running agent.

use std::ffi::OsString;
use std::process::ExitCode;

use api::config::scheduler::{API_VERSION, KIND, Loaded, load};
use api::yaml;
use scheduler::agent::{self, Start};
use tokio_util::sync::CancellationToken;

use crate::files::RealFiles;
use crate::{KUBERNETES, agent_cmd};

/// Loads the configuration, tells every mistake at once, or runs.
pub(crate) fn main(args: &[OsString]) -> ExitCode {
    agent_cmd::obey(load(args, &RealFiles), run)
}

fn run(loaded: Loaded) -> ExitCode {
    sys::memory::keep_one_heap();
    agent_cmd::begin_log(&loaded.flags.logging, &loaded.warnings, &loaded.not_honoured);
    agent_cmd::exit_code("kube-scheduler", act(loaded))
}

fn act(loaded: Loaded) -> Result<(), String> {
    let target = &loaded.flags.write_config_to;
    if !target.is_empty() {
        let mut shown = serde_json::to_value(&loaded.config).map_err(|e| e.to_string())?;
        shown["apiVersion"] = API_VERSION.into();
        shown["kind"] = KIND.into();
        return std::fs::write(target, yaml::from_value_to_yaml(&shown))
            .map_err(|e| format!("write the configuration to {target}: {e}"));
    }
    agent_cmd::event_loop(4)?.block_on(serve(loaded))
}

/// Runs until SIGTERM or SIGINT.
async fn serve(loaded: Loaded) -> Result<(), String> {
    let token = CancellationToken::new();
    let start = Start {
        loaded,
        hostname: agent_cmd::hostname(),
        in_cluster: agent_cmd::in_cluster(),
        version: KUBERNETES.to_owned(),
        seed: agent_cmd::seed(),
    };
    agent_cmd::run_until_signal(agent::run(start, token.clone()), token).await
}
