//! `longshore kube-proxy`: from arguments to a running agent.

use std::ffi::OsString;
use std::process::ExitCode;

use api::config::proxy::{Loaded, load};
use api::yaml;
use base::verbosity::Verbosity;
use proxy::agent::{self, Start};
use proxy::modes;
use tokio_util::sync::CancellationToken;

use crate::files::RealFiles;
use crate::{KUBERNETES, agent_cmd};

/// Loads the configuration, tells every mistake at once, or runs.
pub(crate) fn main(args: &[OsString]) -> ExitCode {
    agent_cmd::obey(load(args, &RealFiles), run)
}

fn run(loaded: Loaded) -> ExitCode {
    sys::memory::keep_one_heap();
    let verbosity = agent_cmd::begin_log(&loaded.config.logging, &loaded.warnings, &loaded.not_honoured);
    agent_cmd::exit_code("kube-proxy", act(loaded, verbosity))
}

/// One of the short tasks, or the agent until a signal.
fn act(loaded: Loaded, verbosity: Verbosity) -> Result<(), String> {
    let flags = &loaded.flags;
    if !flags.write_config_to.is_empty() {
        let config = &loaded.config;
        let shown = config.mode().map_or_else(|| config.clone(), |mode| config.in_force(mode));
        let text = yaml::from_value_to_yaml(&shown.to_v1alpha1());
        return std::fs::write(&flags.write_config_to, text)
            .map_err(|e| format!("write the configuration to {}: {e}", flags.write_config_to));
    }
    if flags.cleanup {
        return agent::clean_up().map_err(|e| e.to_string());
    }
    if flags.init_only {
        let (mode, _) = modes::choose(&loaded.config, any_kernel()).map_err(|e| e.to_string())?;
        return modes::initialise(&loaded.config, mode).map_err(|e| e.to_string());
    }
    // One per family, and what looks at files.
    agent_cmd::event_loop(8)?.block_on(serve(loaded, verbosity))
}

/// Whether the user knows better than the kernel's number what nftables can do here.
fn any_kernel() -> bool {
    std::env::var_os("KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK").is_some_and(|said| !said.is_empty())
}

/// Runs until SIGTERM or SIGINT. The kernel keeps its rules.
async fn serve(loaded: Loaded, verbosity: Verbosity) -> Result<(), String> {
    let token = CancellationToken::new();
    let start = Start {
        loaded,
        hostname: agent_cmd::hostname(),
        in_cluster: agent_cmd::in_cluster(),
        within: None,
        any_kernel: any_kernel(),
        keeps_sources: false,
        version: KUBERNETES.to_owned(),
        seed: agent_cmd::seed(),
        verbosity,
    };
    agent_cmd::run_until_signal(agent::run(start, token.clone()), token).await
}
