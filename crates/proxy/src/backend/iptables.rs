//! iptables: scripts for iptables-restore, in either flavour of it.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proxy_core::iptables::{
    CANARY, INVALID_DROPPED, LOCALHOST_ACCEPTED, Options, Renderer, Saved, Script, Table, remove,
};
use proxy_core::objects::Family;
use proxy_core::rules::{Delta, RuleSet};
use sys::nfacct::Accounts;
use tokio::sync::mpsc;

use crate::metrics::Metrics;
use crate::ports::{Dataplane, Error, IptablesError, PROGRAM_TIMEOUT};
use crate::yield_flag::{Outcome, YieldFlag};

/// Seconds to wait for the lock that programs of the old flavour share.
const LOCK_SECONDS: &str = "5";
/// How the programs end when they could not get what they need, such as the lock.
const NO_RESOURCES: i32 = 4;
/// Of what a failing program says, this much is passed on.
const MESSAGE_MAX: usize = 2048;
const SAVE_MAX: u64 = 1 << 30;
/// `--random-fully` is as old as this.
const RANDOM_FULLY: (u32, u32, u32) = (1, 6, 2);

/// Accounts, the metrics they are shown as, and what these mean.
const ACCOUNTS: [(&str, &str, &str); 2] = [
    (
        INVALID_DROPPED,
        "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
        "Packets dropped because connection tracking called them invalid",
    ),
    (
        LOCALHOST_ACCEPTED,
        "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
        "Packets to node ports on loopback addresses",
    ),
];

/// The programs of one family.
#[derive(Clone, Debug)]
pub struct Programs {
    family: Family,
    /// Where they are; empty to look along the path.
    dir: Option<PathBuf>,
    /// What to put into their environment.
    environment: Vec<(OsString, OsString)>,
}

#[derive(Debug)]
pub struct IptablesDataplane {
    programs: Programs,
    renderer: Renderer,
    metrics: Arc<Metrics>,
    canary_period: Duration,
    /// How many rules there are in the chains of all Service ports.
    rules_of_ports: usize,
}

/// Removes everything of ours from both families' tables; what is not there is no failure.
pub fn cleanup(programs: &Programs) -> Result<(), IptablesError> {
    if !programs.is_there() {
        return Ok(());
    }
    let script = remove(&programs.save()?);
    if script.is_empty() { Ok(()) } else { programs.restore(&script) }
}

/// The same, but only if the rules are those of ipvs: what iptables itself left is taken over.
pub fn cleanup_ipvs(programs: &Programs) -> Result<(), IptablesError> {
    if !programs.is_there() || !programs.save()?.is_of_ipvs() {
        return Ok(());
    }
    cleanup(programs)
}

// === impl Programs ===

impl Programs {
    pub fn new(family: Family) -> Self {
        Self { family, dir: None, environment: Vec::new() }
    }

    /// Programs of a certain place, with a certain environment.
    pub fn of(family: Family, dir: PathBuf, environment: Vec<(OsString, OsString)>) -> Self {
        Self { family, dir: Some(dir), environment }
    }

    /// Whether the programs work and the kernel has what they need.
    pub fn is_usable(&self) -> bool {
        self.run("", &["-w", LOCK_SECONDS, "-t", "nat", "-S", "POSTROUTING"], None).is_ok()
    }

    pub fn family(&self) -> Family {
        self.family
    }

    /// Whether `--random-fully` is known.
    pub fn is_random_fully(&self) -> bool {
        self.version().is_some_and(|version| version >= RANDOM_FULLY)
    }

    fn is_there(&self) -> bool {
        self.run("", &["--version"], None).is_ok()
    }

    fn version(&self) -> Option<(u32, u32, u32)> {
        parse_version(&self.run("", &["--version"], None).ok()?)
    }

    pub fn save(&self) -> Result<Saved, IptablesError> {
        Ok(Saved::read(&self.save_text()?))
    }

    pub fn save_text(&self) -> Result<String, IptablesError> {
        self.run("-save", &[], None)
    }

    pub fn restore(&self, script: &Script) -> Result<(), IptablesError> {
        let args = ["-w", LOCK_SECONDS, "--noflush", "--counters"];
        self.run("-restore", &args, Some(&script.to_string())).map(drop)
    }

    /// Whether the canary lives in all tables.
    fn has_canary(&self) -> Result<bool, IptablesError> {
        for table in Table::ALL {
            match self.run("", &["-w", LOCK_SECONDS, "-t", table.name(), "-S", CANARY], None) {
                Ok(_) => {}
                // Somebody else has the lock, which says nothing about the canary.
                Err(error @ IptablesError::Failed { code: Some(NO_RESOURCES), .. }) => return Err(error),
                Err(IptablesError::Failed { .. }) => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    fn run(&self, suffix: &str, args: &[&str], input: Option<&str>) -> Result<String, IptablesError> {
        let name = match self.family {
            Family::V4 => format!("iptables{suffix}"),
            Family::V6 => format!("ip6tables{suffix}"),
        };
        let path = self.dir.as_ref().map_or_else(|| PathBuf::from(&name), |dir| dir.join(&name));
        let failed = |cause| IptablesError::Running { program: name.clone(), cause };
        let mut child = Command::new(path)
            .args(args)
            .envs(self.environment.iter().map(|(key, value)| (key, value)))
            .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (status, out, message) = converse(&mut child, input).map_err(failed)?;
        match status {
            None => Err(IptablesError::Hung { program: name }),
            Some(status) if status.success() => Ok(out),
            Some(status) => {
                let lines = input.map(|text| around(text, &message)).unwrap_or_default();
                let (code, message) = (status.code(), message.trim().to_owned());
                Err(IptablesError::Failed { program: name, code, message, lines })
            }
        }
    }
}

/// Writes, reads both pipes and waits, none of which may hold up another. `None` if the program had to be killed.
fn converse(
    child: &mut Child,
    input: Option<&str>,
) -> io::Result<(Option<std::process::ExitStatus>, String, String)> {
    let (mut stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        let out = scope.spawn(|| {
            let mut text = Vec::new();
            stdout.map(|pipe| pipe.take(SAVE_MAX).read_to_end(&mut text));
            String::from_utf8_lossy(&text).into_owned()
        });
        let message = scope.spawn(|| {
            let mut text = Vec::new();
            stderr.map(|mut pipe| {
                let read = pipe.by_ref().take(MESSAGE_MAX as u64).read_to_end(&mut text);
                // The rest is read away, so that the program can end.
                read.and_then(|_| io::copy(&mut pipe, &mut io::sink()))
            });
            String::from_utf8_lossy(&text).into_owned()
        });
        let writer = scope.spawn(|| {
            if let (Some(pipe), Some(text)) = (&mut stdin, input) {
                // A program that ends early says why in its message.
                let _ = pipe.write_all(text.as_bytes());
            }
            drop(stdin);
        });
        let deadline = Instant::now() + PROGRAM_TIMEOUT;
        let mut pause = Duration::from_micros(500);
        let status = loop {
            match child.try_wait()? {
                Some(status) => break Some(status),
                None if Instant::now() > deadline => {
                    child.kill()?;
                    child.wait()?;
                    break None;
                }
                None => std::thread::sleep(pause),
            }
            pause = (pause * 2).min(Duration::from_millis(20));
        };
        let _ = writer.join();
        Ok((status, out.join().unwrap_or_default(), message.join().unwrap_or_default()))
    })
}

/// The lines around the one a message names.
fn around(text: &str, message: &str) -> String {
    const BEFORE: usize = 3;
    let mut numbers = message.rsplit(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse::<usize>().ok());
    let total = text.lines().count();
    let Some(line) = message.find("line").and_then(|_| numbers.find(|n| (1..=total).contains(n))) else {
        return String::new();
    };
    let lines = text.lines().enumerate().skip(line.saturating_sub(BEFORE + 1)).take(2 * BEFORE + 1);
    lines.map(|(i, line)| format!("{:>7}: {line}", i + 1)).collect::<Vec<_>>().join("\n")
}

/// `iptables v1.8.9 (nf_tables)`
fn parse_version(text: &str) -> Option<(u32, u32, u32)> {
    let word = text.split_whitespace().nth(1)?.strip_prefix('v')?;
    let mut numbers = word.split('.').map(|n| n.parse().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next().flatten().unwrap_or(0)))
}

// === impl IptablesDataplane ===

impl IptablesDataplane {
    /// `be_liberal` and `mark` as the rules need them; `canary_period` is how soon a flush is noticed.
    pub fn open(
        programs: Programs,
        mark: u32,
        be_liberal: bool,
        canary_period: Duration,
        metrics: Arc<Metrics>,
    ) -> Self {
        let random_fully = programs.is_random_fully();
        let has_accounts = has_accounts(&metrics);
        let renderer = Renderer::new(Options { mark, random_fully, be_liberal, has_accounts });
        Self { programs, renderer, metrics, canary_period, rules_of_ports: 0 }
    }

    /// A script leaves out the chains of Service ports that did not change; they are still there.
    fn count(&mut self, script: &Script, before: usize) {
        let family = self.programs.family.name();
        self.rules_of_ports = script.rules_of_ports(before);
        let (filter, nat) = (script.rules(Table::Filter), script.nat_rules(self.rules_of_ports));
        for (table, total) in [(Table::Filter, filter), (Table::Nat, nat)] {
            let last = script.rules(table) as f64;
            self.metrics.iptables_rules_last.set([table.name(), family], last);
            self.metrics.iptables_rules.set([table.name(), family], total as f64);
        }
    }
}

/// Makes the accounts that rules count packets in. A kernel without them is no reason to stop, only metrics are missing.
fn has_accounts(metrics: &Metrics) -> bool {
    let made = Accounts::open().and_then(|mut accounts| {
        ACCOUNTS.iter().try_for_each(|(account, ..)| accounts.ensure(account))?;
        Ok(accounts)
    });
    match made {
        Ok(accounts) => {
            metrics.count_packets(accounts, &ACCOUNTS);
            true
        }
        Err(error) => {
            tracing::info!(%error, "two metrics of packets are not available");
            false
        }
    }
}

impl Dataplane for IptablesDataplane {
    fn verify(&mut self, rules: &RuleSet, flag: &YieldFlag) -> Result<Outcome<Vec<String>>, Error> {
        let saved = self.programs.save()?;
        if flag.is_raised() {
            return Ok(Outcome::Left);
        }
        let script = self.renderer.whole(rules, &saved);
        self.programs.restore(&script)?;
        self.count(&script, 0);
        let lost = Table::ALL.into_iter().filter(|table| !saved.has_chain(*table, CANARY));
        Ok(Outcome::Done(lost.map(|table| format!("table {} had been flushed", table.name())).collect()))
    }

    fn apply(&mut self, rules: &RuleSet, delta: &Delta) -> Result<(), Error> {
        let Some(script) = self.renderer.change(rules, delta) else {
            return self.verify(rules, &YieldFlag::default()).map(drop);
        };
        self.programs.restore(&script)?;
        self.count(&script, self.rules_of_ports);
        Ok(())
    }

    fn listen(&mut self) -> Result<mpsc::Receiver<()>, Error> {
        let (notify, notifications) = mpsc::channel(1);
        let (programs, period) = (self.programs.clone(), self.canary_period);
        supervise::spawn("iptables canary", async move {
            loop {
                tokio::time::sleep(period).await;
                let asked = programs.clone();
                let lives = tokio::task::spawn_blocking(move || asked.has_canary()).await;
                match lives {
                    _ if notify.is_closed() => return,
                    Ok(Ok(true)) => {}
                    Ok(Ok(false)) => drop(notify.try_send(())),
                    Ok(Err(error)) => tracing::warn!(%error, "not looking for the canary"),
                    Err(_) => return,
                }
            }
        });
        Ok(notifications)
    }

    /// The canary is looked for, whenever it was lost. To look at everything is to write everything, which takes seconds
    /// where there are many Services, and no change gets through meanwhile.
    fn hears_the_past(&self) -> bool {
        true
    }

    /// The same, each hour. As upstream, a large cluster is left alone as long as the canary lives.
    fn is_worth_a_look(&self, rules: &RuleSet) -> bool {
        !Renderer::is_large(rules)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Programs that end with a number, and say nothing.
    fn ending_with(dir: &std::path::Path, code: i32) -> Programs {
        use std::os::unix::fs::PermissionsExt;
        let path = dir.join("iptables");
        std::fs::write(&path, format!("#!/bin/sh\nexit {code}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        Programs::of(Family::V4, dir.to_owned(), Vec::new())
    }

    #[test]
    fn a_canary_that_could_not_be_looked_for_is_not_dead() {
        let dir = tempfile::tempdir().unwrap();
        assert!(ending_with(dir.path(), 0).has_canary().unwrap());
        assert!(!ending_with(dir.path(), 1).has_canary().unwrap());
        let error = ending_with(dir.path(), 4).has_canary().unwrap_err();
        assert!(matches!(error, IptablesError::Failed { code: Some(4), .. }), "{error}");
    }

    #[test]
    fn versions_are_read() {
        let rows = [
            ("iptables v1.8.9 (nf_tables)\n", Some((1, 8, 9))),
            ("iptables v1.6.2", Some((1, 6, 2))),
            ("ip6tables v1.8 (legacy)", Some((1, 8, 0))),
            ("nonsense", None),
        ];
        for (text, version) in rows {
            assert_eq!(parse_version(text), version, "{text}");
        }
    }

    #[test]
    fn a_failure_shows_the_lines_around_it() {
        let text = "a\nb\nc\nd\ne\nf\ng\nh\n";
        let shown = around(text, "iptables-restore: line 5 failed");
        assert!(shown.starts_with("      2: b") && shown.ends_with("      8: h"), "{shown}");
        assert_eq!(around(text, "Another app is holding the xtables lock"), "");
    }
}
