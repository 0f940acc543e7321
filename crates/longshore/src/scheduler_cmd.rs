//! `longshore kube-scheduler`: from arguments to a running agent.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use api::config::scheduler::{API_VERSION, KIND, Loaded, load};
use api::yaml;
use scheduler::agent::{self, Start};
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
    agent_cmd::begin_log(&loaded.flags.logging, &loaded.warnings, &loaded.not_honoured);
    match act(loaded) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error, "kube-scheduler failed");
            console::err(&format!("Error: {error}\n"));
            ExitCode::FAILURE
        }
    }
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
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .thread_keep_alive(Duration::from_secs(2))
        .build()
        .map_err(|e| format!("start the event loop: {e}"))?;
    runtime.block_on(serve(loaded))
}

/// Runs until SIGTERM or SIGINT.
async fn serve(loaded: Loaded) -> Result<(), String> {
    let token = CancellationToken::new();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let start = Start {
        loaded,
        hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        in_cluster: (
            std::env::var("KUBERNETES_SERVICE_HOST").ok(),
            std::env::var("KUBERNETES_SERVICE_PORT").ok(),
        ),
        version: KUBERNETES.to_owned(),
        seed: now.as_nanos() as u64 ^ u64::from(std::process::id()),
    };
    let signal = |kind| unix::signal(kind).map_err(|e| format!("listen for signals: {e}"));
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut agent = Box::pin(agent::run(start, token.clone()));
    tokio::select! {
        ended = &mut agent => return ended.map_err(|e| e.to_string()),
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    token.cancel();
    agent.await.map_err(|e| e.to_string())
}
