//! `longshore kubelet`: from arguments to a running agent.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use api::config::kubelet::{Loaded, load};
use base::verbosity::Verbosity;
use kubelet::agent::{self, Places, Proxies, Start, Systemd};
use tokio_util::sync::CancellationToken;

use crate::files::RealFiles;
use crate::{KUBERNETES, agent_cmd};

const NAME: &str = "kubelet";
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
    // Blocking work is short file work; hung mounts have threads of their own.
    let runtime = match agent_cmd::event_loop(8) {
        Ok(runtime) => runtime,
        Err(error) => return agent_cmd::exit_code(NAME, Err(error)),
    };
    let ended = runtime.block_on(serve(loaded, verbosity));
    // File work that hangs holds its thread. A process that is to end does not wait for it.
    runtime.shutdown_timeout(BLOCKED_WORK);
    agent_cmd::exit_code(NAME, ended)
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
        within: None,
        version: KUBERNETES.to_owned(),
        verbosity,
    };
    agent_cmd::run_until_signal(agent::run(start, token.clone()), token).await
}
