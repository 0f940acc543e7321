//! What the commands of agents have in common: from what the loader says to a run, and the first lines of the log.

use std::process::ExitCode;

use api::config::{LoadError, Logging, Outcome};
use base::verbosity::Verbosity;

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
