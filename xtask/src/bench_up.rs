//! `cargo xtask bench up`: what `longshore up` costs on this machine: from the start to the API, the node and a page, memory with
//! few and many Pods, processor time and what it writes to the disk while nothing happens.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
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
/// As many as are promised something.
const FEW: usize = 10;
const MANY: usize = 100;
const PODS_WITHIN: Duration = Duration::from_secs(180);
const LOOK: Duration = Duration::from_millis(20);
/// Of a second, in /proc/<pid>/stat.
const TICKS: f64 = 100.0;

/// A figure, and what it is to be at most, if anything was promised.
struct Row {
    what: String,
    value: f64,
    unit: &'static str,
    goal: Option<f64>,
}

/// What our process, and the programs beside its Pods, used so far. Not what runs in containers.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    ticks: u64,
    written: u64,
    pss: u64,
    /// Of the programs beside the Pods.
    pss_beside: u64,
}

/// The same with so many Pods, while nothing happens.
struct Idle {
    pods: usize,
    /// Until they ran, if they were not there.
    took: Duration,
    used: Used,
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
    let Some(cold) = start(layout, &binary, &data, &interrupt)? else { return Ok(ExitCode::FAILURE) };
    let mut warm = Vec::new();
    let (starts, idle) = if is_quick { (QUICK_WARM, QUICK_IDLE) } else { (WARM, IDLE) };
    for number in 0..starts {
        step(format_args!("start {} of {starts} with everything there", number + 1));
        let Some(times) = start(layout, &binary, &data, &interrupt)? else { return Ok(ExitCode::FAILURE) };
        warm.push(times);
    }
    let Some(idles) = with_pods(layout, &binary, &data, &interrupt, idle)? else {
        return Ok(ExitCode::FAILURE);
    };
    let rows = rows(size, cold, &warm, &idles, idle);
    rows.iter().for_each(|row| say(row.text()));
    remove(&data)?;
    Ok(ExitCode::SUCCESS)
}

/// Up, until the page answers, and down. None where somebody did not want to wait.
fn start(layout: &Layout, binary: &Path, data: &Path, interrupt: &Interrupt) -> Result<Option<Times>> {
    let mut running = Running::start(layout, binary, data)?;
    let Some((times, _)) = running.wait(interrupt, |_| ())? else { return Ok(None) };
    running.stop(interrupt)?;
    Ok(Some(times))
}

/// A node without the page, with no Pods, few and many.
fn with_pods(
    layout: &Layout,
    binary: &Path,
    data: &Path,
    interrupt: &Interrupt,
    idle: Duration,
) -> Result<Option<Vec<Idle>>> {
    let mut running = Running::start(layout, binary, data)?;
    if running.wait(interrupt, |_| ())?.is_none() {
        return Ok(None);
    }
    let page = data.join("deploy/hello.yaml");
    fs::remove_file(&page).doing(|| format!("removing {}", page.display()))?;
    let mut idles = Vec::new();
    for pods in [0, FEW, 0, MANY] {
        let began = Instant::now();
        let manifest = data.join("deploy/pods.yaml");
        fs::write(&manifest, deployment(pods)).doing(|| format!("writing {}", manifest.display()))?;
        while running_pods(binary)? != Some(pods) {
            if began.elapsed() > PODS_WITHIN {
                return Err(Failure::new(format!("{pods} Pods do not run within three minutes")));
            }
            if interrupt.within(LOOK) {
                return Ok(None);
            }
        }
        let took = began.elapsed();
        // It was measured before there were any.
        if pods == 0 && !idles.is_empty() {
            continue;
        }
        step(format_args!("{} s with {pods} Pods, in which nothing happens", idle.as_secs()));
        let Some(used) = idle_for(running.pid(), interrupt, idle)? else { return Ok(None) };
        idles.push(Idle { pods, took, used });
    }
    running.stop(interrupt)?;
    Ok(Some(idles))
}

fn idle_for(pid: u32, interrupt: &Interrupt, idle: Duration) -> Result<Option<Used>> {
    if interrupt.within(SETTLE) {
        return Ok(None);
    }
    let (before, began) = (look(pid)?, Instant::now());
    if interrupt.within(idle) {
        return Ok(None);
    }
    let after = look(pid)?;
    // To the length that was asked for, whatever the machine made of it.
    let scale = |n: u64| (n as f64 * idle.as_secs_f64() / began.elapsed().as_secs_f64()) as u64;
    Ok(Some(Used {
        ticks: scale(after.ticks.saturating_sub(before.ticks)),
        written: scale(after.written.saturating_sub(before.written)),
        ..after
    }))
}

fn deployment(replicas: usize) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{ name: many }}\nspec:\n  replicas: {replicas}\n  \
         selector: {{ matchLabels: {{ app: many }} }}\n  template:\n    metadata: {{ labels: {{ app: many }} }}\n    spec:\n      \
         terminationGracePeriodSeconds: 1\n      containers:\n        - {{ name: main, image: 'localhost/demo:v1', args: [pause] }}\n"
    )
}

/// None where there are others that do not run yet, or run still.
fn running_pods(binary: &Path) -> Result<Option<usize>> {
    let out = Command::new(binary).args(["status", "--output=json", "--state-dir", up::STATE]).output();
    let out = out.doing(|| "running longshore status".into())?;
    let status: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
    let Some(phases) = status["Pods"].as_object() else { return Ok(None) };
    let count = |phase: &str| phases.get(phase).and_then(serde_json::Value::as_u64).unwrap_or(0);
    let is_whole = phases.keys().all(|phase| phase == "Running");
    Ok(is_whole.then(|| usize::try_from(count("Running")).unwrap_or(0)))
}

/// The process, and the programs that it started beside its Pods.
fn look(pid: u32) -> Result<Used> {
    let mut used = look_at(pid)?;
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let mut children: Vec<u32> = children.split_whitespace().filter_map(|child| child.parse().ok()).collect();
    children.extend(of_other_threads(pid));
    for child in children {
        let program = fs::read_link(format!("/proc/{child}/exe")).unwrap_or_default();
        if !program.display().to_string().contains("memfd:keeper") {
            continue;
        }
        // It may have ended meanwhile.
        if let Ok(beside) = look_at(child) {
            used.ticks += beside.ticks;
            used.pss_beside += beside.pss;
        }
    }
    Ok(used)
}

/// A child is the one of the thread that started it.
fn of_other_threads(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let others = threads.filter(|thread| thread.file_name().to_str() != Some(&pid.to_string()));
    let lists = others.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|c| c.parse().ok()).collect::<Vec<_>>())
        .collect()
}

fn look_at(pid: u32) -> Result<Used> {
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
    let pss = field(&memory, "Pss:") * 1024;
    Ok(Used { ticks, written: field(&io, "write_bytes:"), pss, pss_beside: 0 })
}

fn rows(size: u64, cold: Times, warm: &[Times], idles: &[Idle], idle: Duration) -> Vec<Row> {
    let median = |of: fn(&Times) -> Duration| {
        let mut all: Vec<f64> = warm.iter().map(|times| of(times).as_secs_f64()).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or(0.0)
    };
    let row = |what: &str, value, unit, goal| Row { what: what.to_owned(), value, unit, goal };
    let (seconds, megabyte) = (idle.as_secs_f64(), 1e6);
    let mut rows = vec![
        row("first start to the API", cold.api.as_secs_f64(), "s", None),
        row("first start to node Ready", cold.node.as_secs_f64(), "s", None),
        row("first start to the page", cold.page.as_secs_f64(), "s", None),
        row("start to the API", median(|times| times.api), "s", Some(0.3)),
        row("start to node Ready", median(|times| times.node), "s", Some(1.0)),
        row("start to the page", median(|times| times.page), "s", Some(2.0)),
    ];
    for Idle { pods, took, used } in idles {
        let goals = match *pods {
            0 => (Some(45.0), Some(60.0)),
            MANY => (Some(70.0), Some(120.0)),
            _ => (None, None),
        };
        if *pods > 0 {
            rows.push(row(
                &format!("{pods} Pods, from their file to running"),
                took.as_secs_f64(),
                "s",
                None,
            ));
        }
        let whole = used.pss + used.pss_beside;
        rows.push(row(&format!("our process, {pods} Pods (PSS)"), used.pss as f64 / megabyte, "MB", goals.0));
        rows.push(row("  and what is beside Pods", whole as f64 / megabyte, "MB", goals.1));
        let processor = used.ticks as f64 / TICKS / seconds * 100.0;
        rows.push(row("  processor while idle", processor, "% of a core", Some(0.5)));
        let written = used.written as f64 / megabyte * 3600.0 / seconds;
        rows.push(row("  written in an idle hour", written, "MB", Some(20.0)));
    }
    rows.push(row("the program", size as f64 / megabyte, "MB", Some(25.0)));
    rows
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
        format!("  {:<36} {:>8.2} {:<12} {goal}", self.what, self.value, self.unit).trim_end().to_owned()
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
        let row = |value| Row { what: "x".to_owned(), value, unit: "s", goal: Some(3.0) }.text();
        assert!(row(3.0).ends_with("goal 3: met") && row(3.1).ends_with("goal 3: MISSED"));
    }
}
