//! `cargo xtask bench up`: what `longshore up` costs on this machine: from the start to the API, the node and a page, memory,
//! processor time and what it writes to the disk while nothing happens.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use fixture::{Doing, Failure, Result};

use crate::interrupt::Interrupt;
use crate::layout::Layout;
use crate::terminal::{say, step};
use crate::up::{self, Running, Times};

/// For what a start has left to do.
const SETTLE: Duration = Duration::from_secs(10);
const IDLE: Duration = Duration::from_secs(60);
const QUICK_IDLE: Duration = Duration::from_secs(15);
/// Starts after the first, with images and objects there.
const WARM: usize = 3;
const QUICK_WARM: usize = 1;
/// Of a second, in /proc/<pid>/stat.
const TICKS: f64 = 100.0;

/// A figure, and what it is to be at most, if anything was promised.
struct Row {
    what: &'static str,
    value: f64,
    unit: &'static str,
    goal: Option<f64>,
}

/// What a process used so far.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    ticks: u64,
    written: u64,
    pss: u64,
}

pub(crate) fn bench(layout: &Layout, args: &[String]) -> Result<ExitCode> {
    let is_quick = match args {
        [] => false,
        [flag] if flag == "--quick" => true,
        _ => return Err(Failure::new("bench up takes only --quick")),
    };
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("containers need root: run it as root"));
    }
    let _only_one = up::claim(layout)?;
    let binary = up::prepare(layout, up::RELEASE)?;
    let interrupt = Interrupt::catch()?;
    let data = layout.target.join("run/bench-up");
    if data.exists() {
        // Whatever an earlier one left is not ours to clear away blindly: something may be mounted in it.
        return Err(Failure::new(format!("{} is there already: remove it first", data.display())));
    }
    let size = fs::metadata(&binary).doing(|| "looking at the program".into())?.len();
    step("a first start: images are imported, keys are made");
    let Some(cold) = start(layout, &binary, &data, &interrupt, None)? else { return Ok(ExitCode::FAILURE) };
    let mut warm = Vec::new();
    let mut used = None;
    let (starts, idle) = if is_quick { (QUICK_WARM, QUICK_IDLE) } else { (WARM, IDLE) };
    for number in 0..starts {
        step(format_args!("start {} of {starts} with everything there", number + 1));
        let is_last = number + 1 == starts;
        let Some((times, idle)) = start(layout, &binary, &data, &interrupt, is_last.then_some(idle))? else {
            return Ok(ExitCode::FAILURE);
        };
        warm.push(times);
        used = used.or(idle);
    }
    for row in rows(size, cold.0, &warm, used.unwrap_or_default(), idle) {
        say(row.text());
    }
    remove(&data)?;
    Ok(ExitCode::SUCCESS)
}

/// Up, perhaps a look at it while nothing happens, and down. None where somebody did not want to wait.
fn start(
    layout: &Layout,
    binary: &Path,
    data: &Path,
    interrupt: &Interrupt,
    idle: Option<Duration>,
) -> Result<Option<(Times, Option<Used>)>> {
    let mut running = Running::start(layout, binary, data)?;
    let Some((times, _)) = running.wait(interrupt, |_| ())? else { return Ok(None) };
    let mut used = None;
    if let Some(idle) = idle {
        step(format_args!("{} s in which nothing happens", idle.as_secs()));
        if interrupt.within(SETTLE) {
            return Ok(None);
        }
        let (before, began) = (look(running.pid())?, Instant::now());
        if interrupt.within(idle) {
            return Ok(None);
        }
        let after = look(running.pid())?;
        // To the length that was asked for, whatever the machine made of it.
        let scale = |n: u64| (n as f64 * idle.as_secs_f64() / began.elapsed().as_secs_f64()) as u64;
        used = Some(Used {
            ticks: scale(after.ticks - before.ticks),
            written: scale(after.written - before.written),
            pss: after.pss,
        });
    }
    running.stop(interrupt)?;
    Ok(Some((times, used)))
}

fn look(pid: u32) -> Result<Used> {
    let read = |file: &str| {
        let path = format!("/proc/{pid}/{file}");
        fs::read_to_string(&path).doing(|| format!("reading {path}"))
    };
    let (stat, io, memory) = (read("stat")?, read("io")?, read("smaps_rollup")?);
    let mut words =
        stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default().split_whitespace().skip(11);
    let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    let ticks = number() + number();
    let field = |text: &str, name: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(name));
        rest.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    Ok(Used { ticks, written: field(&io, "write_bytes:"), pss: field(&memory, "Pss:") * 1024 })
}

fn rows(size: u64, cold: Times, warm: &[Times], used: Used, idle: Duration) -> Vec<Row> {
    let median = |of: fn(&Times) -> Duration| {
        let mut all: Vec<f64> = warm.iter().map(|times| of(times).as_secs_f64()).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or(0.0)
    };
    let row = |what, value, unit, goal| Row { what, value, unit, goal };
    let (seconds, megabyte) = (idle.as_secs_f64(), 1e6);
    vec![
        row("first start to the API", cold.api.as_secs_f64(), "s", None),
        row("first start to node Ready", cold.node.as_secs_f64(), "s", None),
        row("first start to the page", cold.page.as_secs_f64(), "s", None),
        row("start to the API", median(|times| times.api), "s", Some(0.3)),
        row("start to node Ready", median(|times| times.node), "s", Some(3.0)),
        row("start to the page", median(|times| times.page), "s", Some(5.0)),
        row("our process, 2 Pods (PSS)", used.pss as f64 / megabyte, "MB", Some(47.0)),
        row("processor while idle", used.ticks as f64 / TICKS / seconds * 100.0, "% of a core", Some(0.5)),
        row("written in an idle hour", used.written as f64 / megabyte * 3600.0 / seconds, "MB", Some(20.0)),
        row("the program", size as f64 / megabyte, "MB", Some(25.0)),
    ]
}

/// What was up is down; nothing is mounted, or removing stops there.
fn remove(data: &Path) -> Result<()> {
    let mounts = fs::read_to_string("/proc/self/mounts").doing(|| "reading the mounts".into())?;
    let inside = format!(" {}/", data.display());
    if mounts.contains(&inside) {
        return Err(Failure::new(format!("something is mounted in {}", data.display())));
    }
    fs::remove_dir_all(data).doing(|| format!("removing {}", data.display()))
}

// === impl Row ===

impl Row {
    fn text(&self) -> String {
        let goal = match self.goal {
            Some(goal) if self.value <= goal => format!("goal {goal}: met"),
            Some(goal) => format!("goal {goal}: MISSED"),
            None => String::new(),
        };
        format!("  {:<28} {:>8.2} {:<12} {goal}", self.what, self.value, self.unit).trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_looked_at() -> Result<()> {
        let used = look(std::process::id())?;
        assert!(used.pss > 100_000, "{used:?}");
        Ok(())
    }

    #[test]
    fn a_goal_is_met_or_missed() {
        let row = |value| Row { what: "x", value, unit: "s", goal: Some(3.0) }.text();
        assert!(row(3.0).ends_with("goal 3: met") && row(3.1).ends_with("goal 3: MISSED"));
    }
}
