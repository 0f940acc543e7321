//! `longshore kubelet`: from arguments to a running agent.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use api::config::kubelet::{Loaded, Outcome, load};
use api::config::{DirEntry, MAX_FILE, ReadFiles};

use crate::{KUBERNETES, console, logging};

/// Loads the configuration, tells every mistake at once, or runs.
pub(crate) fn main(args: &[OsString]) -> ExitCode {
    match load(args, &RealFiles) {
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

/// Runs the agent with a valid configuration.
fn run(loaded: Loaded) -> ExitCode {
    // Only a second start in one process could fail, and then somebody logs already.
    let _ = logging::start(&loaded.config.logging);
    for warning in &loaded.warnings {
        tracing::warn!(%warning, "configuration");
    }
    for setting in &loaded.not_honoured {
        tracing::warn!(%setting, "setting is not honoured yet");
    }
    let (config, flags) = (&loaded.config, &loaded.flags);
    tracing::info!(
        root_dir = %flags.root_dir,
        runtime = %config.container_runtime_endpoint,
        static_pod_path = %config.static_pod_path,
        healthz_port = config.healthz_port,
        read_only_port = config.read_only_port,
        max_pods = config.max_pods,
        "effective configuration"
    );
    tracing::error!("the agent loop is not part of this build");
    ExitCode::FAILURE
}

/// The machine's own files.
#[derive(Debug)]
struct RealFiles;

impl ReadFiles for RealFiles {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let mut bytes = Vec::new();
        file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            entries.push(DirEntry {
                name: entry.file_name().to_string_lossy().into_owned(),
                is_dir: entry.file_type()?.is_dir(),
            });
        }
        Ok(entries)
    }

    fn current_dir(&self) -> io::Result<PathBuf> {
        std::env::current_dir()
    }
}
