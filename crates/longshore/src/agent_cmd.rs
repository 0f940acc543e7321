//! What the commands of agents have in common: from what the loader says to a run, and the first lines of the log.

use std::fmt::Display;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use api::config::{LoadError, Logging, Outcome};
use base::verbosity::Verbosity;
use jiff::tz::TimeZone;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{self, Signal, SignalKind};
use tokio_util::sync::CancellationToken;

use crate::{KUBERNETES, console, logging};

/// Does what the command line asks for, or tells every mistake at once.
pub(crate) fn obey<L>(asked: Result<Outcome<L>, LoadError>, run: impl FnOnce(L) -> ExitCode) -> ExitCode {
    match asked {
        Ok(Outcome::Help(text)) => {
            console::out(&text);
            ExitCode::SUCCESS
        }
        Ok(Outcome::Version) => {
            console::out(&format!("Kubernetes {KUBERNETES}\n"));
            ExitCode::SUCCESS
        }
        Ok(Outcome::Run(loaded)) => run(*loaded),
        Err(mistakes) => {
            for mistake in &mistakes.0 {
                console::err(&format!("Error: {mistake}\n"));
            }
            ExitCode::FAILURE
        }
    }
}

/// Starts the log with what the configuration leaves to say. Returns its verbosity.
pub(crate) fn begin_log(settings: &Logging, warnings: &[String], not_honoured: &[String]) -> Verbosity {
    // Only a second start in one process could fail, and then somebody logs already.
    let verbosity = logging::start(settings).unwrap_or_default();
    for warning in warnings {
        tracing::warn!(%warning, "configuration");
    }
    for setting in not_honoured {
        tracing::warn!(%setting, "setting is not honoured yet");
    }
    verbosity
}

/// Runs the agent until it ends, or until SIGTERM or SIGINT, which cancels its token. Who asks twice does not want to wait.
pub(crate) async fn run_until_signal<E: Display>(
    agent: impl Future<Output = Result<(), E>>,
    token: CancellationToken,
) -> Result<(), String> {
    let mut signals = Signals::catch()?;
    let mut agent = Box::pin(agent);
    tokio::select! {
        ended = &mut agent => return ended.map_err(|e| e.to_string()),
        () = signals.come() => {}
    }
    tracing::info!("stopping");
    token.cancel();
    tokio::select! {
        ended = &mut agent => ended.map_err(|e| e.to_string()),
        () = signals.come() => Ok(()),
    }
}

/// The zone that schedules go by which name none: `TZ`, else that of the machine.
pub(crate) fn time_zone() -> TimeZone {
    let file = |path: &str| TimeZone::tzif("Local", &std::fs::read(path).ok()?).ok();
    let zone = match std::env::var("TZ") {
        Ok(name) => match name.trim_start_matches(':') {
            path if path.starts_with('/') => file(path),
            name => api::cron::time_zone(name),
        },
        Err(_) => file("/etc/localtime"),
    };
    zone.unwrap_or(TimeZone::UTC)
}

/// SIGTERM and SIGINT: the two ways to ask for an ordered end.
pub(crate) struct Signals {
    term: Signal,
    int: Signal,
}

// === impl Signals ===

impl Signals {
    /// From here on they do not end the process.
    pub(crate) fn catch() -> Result<Signals, String> {
        let signal = |kind| unix::signal(kind).map_err(|e| format!("listen for signals: {e}"));
        Ok(Signals { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next of either.
    pub(crate) async fn come(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}

/// Tells systemd how the process is, where systemd started it.
pub(crate) fn tell_systemd(state: &str) {
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(error) = sys::notify::send(&socket, state)
    {
        tracing::warn!(%error, "systemd not notified");
    }
}

/// The event loop of one agent, with so many threads for short work that blocks.
pub(crate) fn event_loop(blocking_threads: usize) -> Result<Runtime, String> {
    Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(blocking_threads)
        .thread_keep_alive(Duration::from_secs(2))
        .build()
        .map_err(|e| format!("start the event loop: {e}"))
}

/// How the process ends, by what `name` said at its end.
pub(crate) fn exit_code(name: &str, ended: Result<(), String>) -> ExitCode {
    let Err(error) = ended else { return ExitCode::SUCCESS };
    // Once, and for whoever reads: a program, or a person.
    match logging::is_json() {
        true => tracing::error!(error, "{name} failed"),
        false => console::err(&format!("Error: {error}\n")),
    }
    ExitCode::FAILURE
}

/// Host and port of the API server, as the environment of a Pod names them.
pub(crate) fn in_cluster() -> (Option<String>, Option<String>) {
    let variable = |name| std::env::var(name).ok();
    (variable("KUBERNETES_SERVICE_HOST"), variable("KUBERNETES_SERVICE_PORT"))
}

/// The machine's name, as the kernel has it.
pub(crate) fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Where an agent's random numbers begin: another at every start.
pub(crate) fn seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.as_nanos() as u64 ^ u64::from(std::process::id())
}
