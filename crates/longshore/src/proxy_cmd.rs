//! `longshore kube-proxy`: from arguments to a running agent.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use api::config::proxy::{Loaded, load};
use api::yaml;
use base::verbosity::Verbosity;
use proxy::agent::{self, Start};
use proxy::modes;
use tokio::signal::unix::{self, SignalKind};
use tokio_util::sync::CancellationToken;

use crate::files::RealFiles;
use crate::{KUBERNETES, agent_cmd, console};

/// Loads the configuration, tells every mistake at once, or runs.
pub(crate) fn main(args: &[OsString]) -> ExitCode {
    agent_cmd::obey(load(args, &RealFiles), run)
}

fn run(loaded: Loaded) -> ExitCode {
    sys::memory::keep_one_heap();
    let verbosity = agent_cmd::begin_log(&loaded.config.logging, &loaded.warnings, &loaded.not_honoured);
    match act(loaded, verbosity) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error, "kube-proxy failed");
            console::err(&format!("Error: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

/// One of the short errands, or the agent until a signal.
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
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // One per family, and what looks at files.
        .max_blocking_threads(8)
        .thread_keep_alive(Duration::from_secs(2))
        .build()
        .map_err(|e| format!("start the event loop: {e}"))?;
    runtime.block_on(serve(loaded, verbosity))
}

/// Whether the user knows better than the kernel's number what nftables can do here.
fn any_kernel() -> bool {
    std::env::var_os("KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK").is_some_and(|said| !said.is_empty())
}

/// Runs until SIGTERM or SIGINT. The kernel keeps its rules.
async fn serve(loaded: Loaded, verbosity: Verbosity) -> Result<(), String> {
    let token = CancellationToken::new();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let start = Start {
        loaded,
        hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        in_cluster: (
            std::env::var("KUBERNETES_SERVICE_HOST").ok(),
            std::env::var("KUBERNETES_SERVICE_PORT").ok(),
        ),
        any_kernel: any_kernel(),
        version: KUBERNETES.to_owned(),
        seed: now.as_nanos() as u64 ^ u64::from(std::process::id()),
        verbosity,
    };
    let signal = |kind| unix::signal(kind).map_err(|e| format!("listen for signals: {e}"));
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut agent = Box::pin(agent::run(start, token.clone()));
    tokio::select! {
        ended = &mut agent => return ended.map_err(|e| e.to_string()),
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    tracing::info!("stopping; the rules stay");
    token.cancel();
    agent.await.map_err(|e| e.to_string())
}
