//! A Python that has the client of the Kubernetes project, for the suite that tries it on our API server.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use fixture::{Doing, Failure, Result};

use crate::layout::Layout;
use crate::terminal::step;

/// The client for the release whose API we serve.
const PACKAGE: &str = "kubernetes==36.0.3";

/// The interpreter of an environment below the cache; made where there is none yet.
pub(crate) fn prepare(layout: &Layout) -> Result<PathBuf> {
    let place = layout.cache.join("python");
    let python = place.join("bin/python");
    let has_client = || run(Command::new(&python).args(["-c", "import kubernetes.informer"])).is_ok();
    if python.exists() && has_client() {
        return Ok(python);
    }
    step("installing the Python client");
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&place))
        .map_err(|e| Failure::new(format!("python3 makes no environment: {e}")))?;
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE];
    run(Command::new(&python).args(install))
        .map_err(|e| Failure::new(format!("pip installs no {PACKAGE}: {e}")))?;
    Ok(python)
}

fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().display().to_string();
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = quiet.status().doing(|| format!("running {program}"))?;
    if status.success() { Ok(()) } else { Err(Failure::new(format!("{program} ended with {status}"))) }
}
