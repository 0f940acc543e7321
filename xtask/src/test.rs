//! `cargo xtask test`: every check there is, in one command, with a plain account at the end.

use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use fixture::{Failure, Result};

use crate::deny::{self, Verdict};
use crate::layout::Layout;
use crate::terminal::{say, step};
use crate::{debs, images, python, tidy, vm};

/// Suites on a real containerd that run once more on the runtime in the program: what a container receives, how it lives and ends, and
/// what people reach into it with. The others ask nothing of a runtime that these do not ask.
const ON_OUR_RUNTIME: [&str; 8] = [
    "node_life",
    "node_logs",
    "node_probes",
    "node_receives",
    "node_termination",
    "node_volumes",
    "cluster_resize",
    "cluster_streams",
];

/// Of these suites, tests that choose their runtime themselves, and those that act through `ctr` or expect containerd's names, its
/// pause process or its cgroup of a sandbox.
const OF_CONTAINERD: [&str; 11] = [
    "containerd_1_6",
    "embedded_runtime",
    "one_waits_and_describes",
    "a_lost_sandbox_is_made_again",
    "another_image_restarts_a_container_in_place",
    "logs_have_their_places_and_are_read",
    "what_is_dead_is_collected_but_for_the_last",
    "a_twin_receives_what_the_pod_does",
    "a_pod_is_held_to_its_limits_as_a_whole",
    "namespaces_privileges_and_sysctls",
    "a_container_killed_from_outside_is_an_error_and_begins_again",
];

/// What was asked for on the command line.
#[derive(Debug, Default, PartialEq)]
struct Wish {
    /// How many seeds the simulation tries.
    seeds: Option<u64>,
    /// Only tests whose name contains one of these; the other checks are then left out.
    filters: Vec<String>,
}

/// How one check went.
#[derive(Debug)]
enum Outcome {
    Passed,
    Failed(String),
    /// Passed as far as it went, and what was left out.
    InPart(String),
    /// Not done, and why: missing on this machine, not wrong in the code.
    Skipped(String),
}

struct Account {
    rows: Vec<(&'static str, Outcome, Duration)>,
}

pub(crate) fn test(layout: &Layout, args: &[String]) -> Result<ExitCode> {
    let wish = Wish::parse(args)?;
    let mut account = Account { rows: Vec::new() };
    if wish.filters.is_empty() {
        account.check("format", || cargo(layout, &["fmt", "--all", "--check"], &[]));
        account.check("tidy", || tidy::tidy(layout).into());
        account.check("clippy", || {
            cargo(
                layout,
                &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"],
                &[],
            )
        });
        account.check("advisories, licences, sources", || match deny::prepare(layout) {
            Ok(program) => match deny::check(layout, &program) {
                Ok(Verdict::Clean) => Outcome::Passed,
                Ok(Verdict::WithoutAdvisories(why)) => Outcome::InPart(why),
                Ok(Verdict::Found) => Outcome::Failed("cargo-deny found something".into()),
                Err(why) => Outcome::Failed(why.to_string()),
            },
            Err(why) => Outcome::missing(format!("{why}; tidy checked licences, bans and sources")),
        });
    }
    let mut environment: Vec<(&str, String)> = Vec::new();
    account.check("real containerd", || match prepare_runtime(layout) {
        Ok(()) => {
            environment.push(("LONGSHORE_NODE_CACHE", layout.cache.display().to_string()));
            environment
                .push(("LONGSHORE_BINARY", layout.target.join("debug/longshore").display().to_string()));
            Outcome::Passed
        }
        Err(outcome) => outcome,
    });
    account.check("browser", || match debs::fetch_browser(layout) {
        Ok(_) => Outcome::Passed,
        Err(why) => Outcome::missing(format!("the page of the node is not looked at: {why}")),
    });
    account.check("Python client", || match python::prepare(layout) {
        Ok(path) => {
            environment.push(("LONGSHORE_PYTHON", path.display().to_string()));
            Outcome::Passed
        }
        Err(why) => Outcome::missing(why.to_string()),
    });
    environment.extend(wish.seeds.map(|n| ("LONGSHORE_SEEDS", n.to_string())));
    account.check("tests", || tests(layout, &wish.filters, &environment));
    account.check("suites on our own runtime", || on_our_runtime(layout, &wish.filters, &environment));
    if wish.filters.is_empty() {
        // They are among the tests, and pass without doing anything where there is nobody to take turns with.
        account.check("turns with upstream's kubelet", || match std::env::var_os("LONGSHORE_PEER_KUBELET") {
            Some(_) => Outcome::Passed,
            None => Outcome::Skipped("LONGSHORE_PEER_KUBELET names none".into()),
        });
        account.check("tests in an emulated machine", || match vm::fetch(layout) {
            Ok(machine) => vm::run_default(layout, &machine).into(),
            Err(why) => Outcome::missing(format!("IPVS and NFS need a kernel of their own: {why}")),
        });
        account.check("examples in the documentation", || {
            cargo(layout, &["test", "--quiet", "--workspace", "--locked", "--doc"], &[])
        });
    }
    account.check("nothing left behind", || {
        let swept = fixture::sweep_stale().and_then(|stale| match stale.is_empty() {
            true => Ok(()),
            false => Err(Failure::new(format!("{stale:?} had to be cleared away"))),
        });
        swept.into()
    });
    Ok(account.tell())
}

/// Packages, images and the binary that the suites on a real runtime start.
fn prepare_runtime(layout: &Layout) -> Result<(), Outcome> {
    if !rustix::process::geteuid().is_root() {
        let why = "not root: suites that start containers are left out; run as root to have them";
        return Err(Outcome::Skipped(why.into()));
    }
    let failed = |failure: Failure| Outcome::Failed(failure.to_string());
    fixture::sweep_stale().map_err(failed)?;
    debs::fetch(layout, false).map_err(failed)?;
    images::build(layout).map_err(failed)?;
    step("building the binary and the suites");
    // Everything at once, so that the tests find what they need already built, with the same features.
    match cargo(layout, &["build", "--workspace", "--all-targets", "--locked"], &[]) {
        Outcome::Passed => Ok(()),
        other => Err(other),
    }
}

fn tests(layout: &Layout, filters: &[String], environment: &[(&str, String)]) -> Outcome {
    let filters: Vec<&str> = filters.iter().map(String::as_str).collect();
    if has_cargo("nextest") {
        let run = ["nextest", "run", "--workspace", "--locked", "--no-tests=warn"];
        return cargo(layout, &[&run[..], &filters].concat(), environment);
    }
    if is_ci() {
        return Outcome::Failed("cargo-nextest is not installed".into());
    }
    step("cargo-nextest is not installed: using cargo test, which is slower");
    // Suites on a real runtime want no company: cargo test knows no groups.
    let run = ["test", "--workspace", "--locked", "--tests", "--no-fail-fast", "--"];
    cargo(layout, &[&run[..], &filters, &["--test-threads=2"]].concat(), environment)
}

fn on_our_runtime(layout: &Layout, filters: &[String], environment: &[(&str, String)]) -> Outcome {
    if !environment.iter().any(|(name, _)| *name == "LONGSHORE_NODE_CACHE") {
        return Outcome::Skipped("they start containers, as those on containerd do".into());
    }
    let environment = [environment, &[("LONGSHORE_TEST_RUNTIME", "embedded".to_owned())]].concat();
    let filters: Vec<&str> = filters.iter().map(String::as_str).collect();
    if has_cargo("nextest") {
        // By an expression, not by targets: fewer targets would be built once more, with other features.
        let suites = ON_OUR_RUNTIME.join("|");
        let others = OF_CONTAINERD.join("|");
        let chosen = format!("binary(/^({suites})$/) and not test(/{others}/)");
        let run = ["nextest", "run", "--workspace", "--locked", "--no-tests=warn", "-E", &chosen];
        return cargo(layout, &[&run[..], &filters].concat(), &environment);
    }
    let suites: Vec<&str> = ON_OUR_RUNTIME.iter().flat_map(|suite| ["--test", suite]).collect();
    let run = ["test", "--workspace", "--locked", "--no-fail-fast"];
    let skips: Vec<String> = OF_CONTAINERD.iter().map(|name| format!("--skip={name}")).collect();
    let others: Vec<&str> =
        ["--", "--test-threads=2"].into_iter().chain(skips.iter().map(String::as_str)).collect();
    cargo(layout, &[&run[..], &suites, &others, &filters].concat(), &environment)
}

fn cargo(layout: &Layout, args: &[&str], environment: &[(&str, String)]) -> Outcome {
    let mut command = Command::new("cargo");
    command.args(args).current_dir(&layout.root);
    command.envs(environment.iter().map(|(key, value)| (key, value)));
    match command.stdin(Stdio::null()).status() {
        Ok(status) if status.success() => Outcome::Passed,
        Ok(status) => Outcome::Failed(format!("cargo {} ended with {status}", args[0])),
        Err(e) => Outcome::Failed(format!("running cargo: {e}")),
    }
}

/// Whether everything has to be there: CI systems say so.
fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true" || value == "1")
}

fn has_cargo(command: &str) -> bool {
    let out = Command::new("cargo")
        .args([command, "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    out.is_ok_and(|status| status.success())
}

// === impl Wish ===

impl Wish {
    fn parse(args: &[String]) -> Result<Self> {
        let mut wish = Wish::default();
        let mut words = args.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--" => wish.filters.extend(words.by_ref().cloned()),
                "--seeds" => {
                    let count = words.next().and_then(|n| n.parse().ok());
                    wish.seeds = Some(count.ok_or_else(|| Failure::new("--seeds wants a number"))?);
                }
                filter if !filter.starts_with('-') => wish.filters.push(filter.to_owned()),
                other => {
                    return Err(Failure::new(format!(
                        "test knows no {other}: test [--seeds N] [-- FILTER…]"
                    )));
                }
            }
        }
        Ok(wish)
    }
}

// === impl Outcome ===

impl Outcome {
    /// A tool is not here. On somebody's machine that is no fault; where everything is to be checked it is one.
    fn missing(why: String) -> Outcome {
        if is_ci() { Outcome::Failed(why) } else { Outcome::Skipped(why) }
    }
}

impl<T> From<Result<T>> for Outcome {
    fn from(result: Result<T>) -> Self {
        match result {
            Ok(_) => Outcome::Passed,
            Err(failure) => Outcome::Failed(failure.to_string()),
        }
    }
}

// === impl Account ===

impl Account {
    fn check(&mut self, name: &'static str, work: impl FnOnce() -> Outcome) {
        step(name);
        let start = Instant::now();
        let outcome = work();
        self.rows.push((name, outcome, start.elapsed()));
    }

    fn tell(&self) -> ExitCode {
        say("");
        for (name, outcome, took) in &self.rows {
            let (mark, why) = match outcome {
                Outcome::Passed => ("passed ", ""),
                Outcome::Failed(why) => ("FAILED ", why.as_str()),
                Outcome::InPart(why) => ("in part", why.as_str()),
                Outcome::Skipped(why) => ("skipped", why.as_str()),
            };
            say(format_args!("{mark} {name:<30} {:>6.1} s  {why}", took.as_secs_f64()));
        }
        let total: Duration = self.rows.iter().map(|(_, _, took)| *took).sum();
        say(format_args!("{:<38} {:>6.1} s", "", total.as_secs_f64()));
        let failed = self.rows.iter().any(|(_, outcome, _)| matches!(outcome, Outcome::Failed(_)));
        if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_are_understood_and_mistakes_named() {
        let parse = |line: &str| Wish::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        let wish =
            |seeds, filters: &[&str]| Wish { seeds, filters: filters.iter().map(|f| (*f).into()).collect() };
        assert_eq!(parse("").ok(), Some(wish(None, &[])));
        assert_eq!(parse("--seeds 7 -- probe --x").ok(), Some(wish(Some(7), &["probe", "--x"])));
        assert_eq!(parse("probe").ok(), Some(wish(None, &["probe"])));
        assert_eq!(parse("--seeds many").map_err(|e| e.to_string()), Err("--seeds wants a number".into()));
        assert!(parse("--fast").is_err());
    }
}
