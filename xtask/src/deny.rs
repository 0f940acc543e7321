//! cargo-deny: licences, bans, sources, and advisories where their database can be had.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fixture::{Doing, Failure, Result};

use crate::layout::Layout;
use crate::terminal::step;

const VERSION: &str = "0.20.2";

/// Building it takes some minutes of two processors; a machine that needs more has no time for it.
const BUILD: Duration = Duration::from_secs(15 * 60);
/// A database that is not here by then is not to be had.
const FETCH: Duration = Duration::from_secs(90);

/// What cargo-deny had to say.
pub(crate) enum Verdict {
    Clean,
    /// Clean as far as it could look; the text says what it could not see.
    WithoutAdvisories(String),
    Found,
}

/// Everything that deny.toml forbids.
pub(crate) fn check(layout: &Layout, program: &PathBuf) -> Result<Verdict> {
    let mut fetch = deny(layout, program, &["fetch", "db"]);
    let advisories = run_within(fetch.stdout(Stdio::null()).stderr(Stdio::null()), FETCH);
    let plain = ["bans", "licenses", "sources"];
    let mut args = vec!["check", "--hide-inclusion-graph"];
    if advisories.is_ok() {
        // It was fetched a moment ago.
        args.extend(["--disable-fetch", "advisories"]);
    }
    args.extend(plain);
    let is_clean = run_within(&mut deny(layout, program, &args), BUILD).is_ok();
    Ok(match (is_clean, advisories) {
        (false, _) => Verdict::Found,
        (true, Ok(())) => Verdict::Clean,
        (true, Err(why)) => Verdict::WithoutAdvisories(format!(
            "bans, licences and sources are in order; advisories were not checked, their database cannot be had: {why}"
        )),
    })
}

/// The program: the one on the path, the one in the cache, or else one that is built into the cache now.
pub(crate) fn prepare(layout: &Layout) -> Result<PathBuf> {
    let place = layout.cache.join("tools");
    let cached = place.join("bin/cargo-deny");
    for program in [PathBuf::from("cargo-deny"), cached.clone()] {
        let mut version = Command::new(&program);
        version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        if run_within(&mut version, FETCH).is_ok() {
            return Ok(program);
        }
    }
    step("building cargo-deny, once");
    let mut install = Command::new("cargo");
    install.args(["install", "cargo-deny", "--version", VERSION, "--locked", "--debug", "--quiet", "--root"]);
    // A target of its own: the workspace's profiles and lock are none of its business.
    let target = place.join("target");
    install.arg(&place).arg("--target-dir").arg(&target).current_dir("/");
    let built = run_within(&mut install, BUILD);
    let _ = std::fs::remove_dir_all(&target);
    built.map_err(|e| Failure::new(format!("cargo-deny is missing and cannot be built: {e}")))?;
    Ok(cached)
}

fn deny(layout: &Layout, program: &PathBuf, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(&layout.root).stdin(Stdio::null());
    command
}

/// Runs it to its end, or ends it when its time is over.
fn run_within(command: &mut Command, limit: Duration) -> Result<()> {
    let name = command.get_program().display().to_string();
    let mut child = command.stdin(Stdio::null()).spawn().doing(|| format!("running {name}"))?;
    let end = Instant::now() + limit;
    loop {
        match child.try_wait().doing(|| format!("waiting for {name}"))? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(Failure::new(format!("{name} ended with {status}"))),
            None if Instant::now() >= end => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(Failure::new(format!("{name} did not end within {} s", limit.as_secs())));
            }
            None => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        let limit = Duration::from_millis(300);
        assert!(run_within(&mut Command::new("true"), FETCH).is_ok());
        let failed = run_within(&mut Command::new("false"), FETCH).map_err(|e| e.to_string());
        assert!(failed.is_err_and(|e| e.starts_with("false ended with")));
        let late = run_within(Command::new("sleep").arg("600"), limit).map_err(|e| e.to_string());
        assert!(late.is_err_and(|e| e.contains("did not end within")));
    }
}
