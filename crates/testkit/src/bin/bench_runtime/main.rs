//! What a container runtime costs: ours beside containerd with runc, through the same calls in the same minutes, and beside runc and
//! crun alone. Started by `cargo xtask bench runtime`.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod bundle;
mod side;
mod table;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use testkit::direct::DirectPod;
use testkit::node::{Containerd, Tools};

use crate::bundle::Bundle;
use crate::side::Side;
use crate::table::{Row, median, p50};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

/// How much is measured.
#[derive(Clone, Copy)]
struct Effort {
    rounds: usize,
    crowd: usize,
    /// Lines of 100 bytes.
    lines: usize,
    imports: usize,
    calls: usize,
}

struct Wish {
    effort: Effort,
    crun: Option<PathBuf>,
}

fn main() -> ExitCode {
    let wish = match wish(std::env::args().skip(1)) {
        Ok(wish) => wish,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(run(&wish)));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(3),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn wish(mut args: impl Iterator<Item = String>) -> Outcome<Wish> {
    let mut wish = Wish {
        effort: Effort { rounds: 60, crowd: 100, lines: 1_000_000, imports: 5, calls: 2000 },
        crun: None,
    };
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--quick" => {
                wish.effort = Effort { rounds: 10, crowd: 20, lines: 200_000, imports: 2, calls: 500 }
            }
            "--peer-crun" => wish.crun = Some(args.next().ok_or("--peer-crun wants a PATH")?.into()),
            other => return Err(format!("bench runtime knows no {other}").into()),
        }
    }
    Ok(wish)
}

async fn run(wish: &Wish) -> Outcome<bool> {
    let tools = Tools::from_env()?;
    let ours = Side::start(&tools, Containerd::Embedded).await?;
    let theirs = Side::start(&tools, Containerd::V2).await?;
    println!("{} beside {}, {} rounds", ours.name, theirs.name, wish.effort.rounds);
    let mut alone = vec![Bundle::new(&tools, "runc", tools.runc())?];
    if let Some(crun) = &wish.crun {
        alone.push(Bundle::new(&tools, "crun", crun.clone())?);
    }
    let mut rows = one_by_one(&ours, &theirs, &alone, wish.effort).await?;
    rows.extend(crowd(&ours, &theirs, wish.effort).await?);
    rows.extend(logs(&ours, &theirs, wish.effort).await?);
    rows.extend(imports(&ours, &theirs, wish.effort)?);
    rows.extend(calls(&ours, &theirs, wish.effort).await?);
    drop(alone);
    ours.stop()?;
    theirs.stop()?;
    println!("{}", table::render(&rows));
    Ok(rows.iter().all(Row::is_met))
}

/// One side's times, of one thing after the other.
struct Work<'a> {
    side: &'a Side,
    pod: DirectPod,
    sandboxes: Vec<Duration>,
    runs: Vec<Duration>,
    execs: Vec<Duration>,
    /// The runtime's processor time for the runs.
    used: Duration,
}

/// The same of a runtime alone.
struct Alone<'a> {
    bundle: &'a Bundle,
    runs: Vec<Duration>,
    execs: Vec<Duration>,
}

/// Sandboxes, containers and commands, one after the other, the sides in turns.
async fn one_by_one(ours: &Side, theirs: &Side, alone: &[Bundle], effort: Effort) -> Outcome<Vec<Row>> {
    let mut works = Vec::new();
    for side in [ours, theirs] {
        let pod = side.pod("work").await?;
        let (sandboxes, runs, execs) = (Vec::new(), Vec::new(), Vec::new());
        works.push(Work { side, pod, sandboxes, runs, execs, used: Duration::ZERO });
    }
    let lone = |bundle| Alone { bundle, runs: Vec::new(), execs: Vec::new() };
    let mut alone: Vec<Alone> = alone.iter().map(lone).collect();
    for round in 0..=effort.rounds {
        for work in &mut works {
            let (pod, took) = work.side.sandbox(&format!("sandbox-{round}")).await?;
            work.side.end_sandbox(&pod).await?;
            work.sandboxes.push(took);
        }
        for work in &mut works {
            let before = work.side.processor_with_children();
            let took = work.side.run_to_the_end(&work.pod, &format!("true-{round}")).await?;
            work.used += work.side.processor_with_children().saturating_sub(before);
            work.runs.push(took);
        }
        for one in &mut alone {
            one.runs.push(one.bundle.run(round)?);
        }
        for work in &mut works {
            work.execs.push(work.side.exec(&work.pod).await?);
        }
        for one in &mut alone {
            one.execs.push(one.bundle.exec()?);
        }
    }
    for work in &works {
        work.side.direct.remove(&work.pod, 0).await?;
    }
    Ok(one_by_one_rows(&works[0], &works[1], &alone))
}

fn one_by_one_rows(ours: &Work, theirs: &Work, alone: &[Alone]) -> Vec<Row> {
    let name = &theirs.side.name;
    // The first one reads programs from the disk.
    let warm = |times: &[Duration]| p50(&times[1..]);
    let pair = |what: &str, of: for<'a> fn(&'a Work<'_>) -> &'a [Duration], goal| {
        Row::less(what, "ms", warm(of(ours)), name, warm(of(theirs)), goal)
    };
    // Of a run and of a command.
    let goals = |name: &str| if name == "crun" { (4.0, 5.0) } else { (6.0, 20.0) };
    let mut rows = vec![
        pair("RunPodSandbox with network, p50", |work| &work.sandboxes, Some(20.0)),
        pair("a container, created, run, removed, p50", |work| &work.runs, None),
    ];
    for one in alone {
        let beside = format!("{} run, alone", one.bundle.name);
        let goal = Some(goals(&one.bundle.name).0);
        rows.push(Row::less("  the same", "ms", warm(&ours.runs), &beside, warm(&one.runs), goal));
    }
    let each = |work: &Work| work.used.as_secs_f64() * 1000.0 / work.runs.len() as f64;
    rows.push(Row::less(
        "  the runtime's processor time for it",
        "ms",
        each(ours),
        name,
        each(theirs),
        Some(3.0),
    ));
    rows.push(pair("ExecSync of `true`, p50", |work| &work.execs, None));
    for one in alone {
        let beside = format!("{} exec, alone", one.bundle.name);
        let goal = Some(goals(&one.bundle.name).1);
        rows.push(Row::less("  the same", "ms", warm(&ours.execs), &beside, warm(&one.execs), goal));
    }
    rows
}

/// Many Pods at once, and what they cost while nothing happens.
async fn crowd(ours: &Side, theirs: &Side, effort: Effort) -> Outcome<Vec<Row>> {
    let (mut times, mut whole, mut each) = (Vec::new(), Vec::new(), Vec::new());
    for side in [ours, theirs] {
        let empty = side.memory();
        let begun = Instant::now();
        let pods = side.crowd(effort.crowd).await?;
        times.push(begun.elapsed().as_secs_f64() * 1000.0);
        tokio::time::sleep(Duration::from_secs(3)).await;
        let full = side.memory();
        whole.push(full);
        each.push((full - empty).max(0.0) / effort.crowd as f64);
        side.remove_crowd(&pods).await?;
    }
    let count = effort.crowd;
    Ok(vec![
        Row::less(
            &format!("{count} Pods at once, all running"),
            "ms",
            times[0],
            &theirs.name,
            times[1],
            Some(6.0),
        ),
        Row::less(
            &format!("memory, runtime with {count} Pods (PSS)"),
            "MB",
            whole[0],
            &theirs.name,
            whole[1],
            None,
        )
        .at_most(40.0),
        Row::less("  for each idle Pod more", "MB", each[0], &theirs.name, each[1], None).at_most(0.1),
    ])
}

async fn logs(ours: &Side, theirs: &Side, effort: Effort) -> Outcome<Vec<Row>> {
    let mut rates = Vec::new();
    for side in [ours, theirs] {
        let used = side.log(effort.lines).await?;
        // The clock of processor time ticks a hundred times a second.
        rates.push(effort.lines as f64 * 100.0 / 1e6 / used.as_secs_f64().max(0.01));
    }
    let what = "log per second of processor, a write per line";
    Ok(vec![Row::more(what, "MB", rates[0], &theirs.name, rates[1], Some(15.0))])
}

fn imports(ours: &Side, theirs: &Side, effort: Effort) -> Outcome<Vec<Row>> {
    let (mut walls, mut used) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for round in 0..=effort.imports {
        let archive = bundle::archive(ours.dir(), round)?;
        for (at, side) in [ours, theirs].into_iter().enumerate() {
            let (wall, processor) = side.import(&archive)?;
            if round > 0 {
                walls[at].push(wall);
                used[at].push(processor.as_secs_f64() * 1000.0);
            }
        }
    }
    Ok(vec![
        Row::less(
            "import of an archive, 60 MB in 6,000 files",
            "ms",
            p50(&walls[0]),
            &theirs.name,
            p50(&walls[1]),
            Some(2.0),
        ),
        Row::less(
            "  processor time for it",
            "ms",
            median(&used[0]),
            &theirs.name,
            median(&used[1]),
            Some(2.0),
        ),
    ])
}

async fn calls(ours: &Side, theirs: &Side, effort: Effort) -> Outcome<Vec<Row>> {
    let mut each = Vec::new();
    for side in [ours, theirs] {
        let mut times = Vec::new();
        for _ in 0..effort.calls {
            let begun = Instant::now();
            side.direct.client().version().await?;
            times.push(begun.elapsed());
        }
        each.push(p50(&times) * 1000.0);
    }
    Ok(vec![Row::less("a call over the socket, p50", "µs", each[0], &theirs.name, each[1], None)])
}
