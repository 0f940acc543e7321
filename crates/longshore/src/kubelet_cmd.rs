//! `longshore kubelet`: from arguments to a running agent.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use api::config::kubelet::{Loaded, load};
use base::verbosity::Verbosity;
use kubelet::agent::{self, Places, Proxies, Start, Systemd};
use tokio::signal::unix::{self, SignalKind};
use tokio_util::sync::CancellationToken;

use crate::files::RealFiles;
use crate::{KUBERNETES, agent_cmd, console};

/// For file work to finish when the agent has ended.
const BLOCKED_WORK: Duration = Duration::from_secs(1);

/// Loads the configuration, tells every mistake at once, or runs.
pub(crate) fn main(args: &[OsString]) -> ExitCode {
    agent_cmd::obey(load(args, &RealFiles), run)
}

/// Runs the agent with a valid configuration.
fn run(loaded: Loaded) -> ExitCode {
    sys::memory::keep_one_heap();
    let verbosity = agent_cmd::begin_log(&loaded.config.logging, &loaded.warnings, &loaded.not_honoured);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Blocking work is short file work; hung mounts have threads of their own.
        .max_blocking_threads(8)
        .thread_keep_alive(Duration::from_secs(2))
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("start the event loop: {error}")),
    };
    let ended = runtime.block_on(serve(loaded, verbosity));
    // File work that hangs holds its thread. A process that is to end does not wait for it.
    runtime.shutdown_timeout(BLOCKED_WORK);
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn fail(error: &str) -> ExitCode {
    tracing::error!(error, "kubelet failed");
    console::err(&format!("Error: {error}\n"));
    ExitCode::FAILURE
}

/// The system bus, where the environment says that it is elsewhere than usual.
fn places() -> Places {
    let address = std::env::var("DBUS_SYSTEM_BUS_ADDRESS").unwrap_or_default();
    let socket = address.strip_prefix("unix:path=").and_then(|path| path.split([',', ';']).next());
    match socket {
        Some(socket) => Places { bus: socket.into(), ..Places::default() },
        None => Places::default(),
    }
}

/// Runs until SIGTERM or SIGINT. Containers are left as they are, and what the runtime is doing for us is
/// waited for.
async fn serve(loaded: Loaded, verbosity: Verbosity) -> Result<(), String> {
    let token = CancellationToken::new();
    let start = Start {
        loaded,
        systemd: Systemd {
            socket: std::env::var_os("NOTIFY_SOCKET"),
            watchdog_usec: std::env::var("WATCHDOG_USEC").ok(),
            watchdog_pid: std::env::var("WATCHDOG_PID").ok(),
        },
        home: std::env::var_os("HOME").map(PathBuf::from),
        working_dir: std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/")),
        places: places(),
        proxies: Proxies::named_by(|name| std::env::var(name).ok()),
        version: KUBERNETES.to_owned(),
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
    tracing::info!("stopping; containers keep running");
    token.cancel();
    tokio::select! {
        ended = &mut agent => ended.map_err(|e| e.to_string()),
        // Who asks twice does not want to wait for the runtime.
        _ = term.recv() => Ok(()),
        _ = int.recv() => Ok(()),
    }
}
