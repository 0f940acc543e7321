//! What it costs to ask a kubelet for figures: one page after the other with a crowd of Pods at rest. Started by
//! `cargo xtask bench stats`.
//!
//! With upstream's kubelet at hand (`--peer-kubelet PATH`) both serve the same Pods on the same containerd, one after the
//! other. Processor time is the kubelet's own: what the runtime and the kernel's other threads do for it is not in it.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::node::{Agent, AgentOptions, Node, Options, Tools};
use testkit::weight::{cpu_time, memory};

type Outcome<T> = Result<T, Box<dyn Error>>;

const LIMIT: Duration = Duration::from_secs(240);
const PAGES: [&str; 3] = ["/stats/summary", "/metrics/cadvisor", "/metrics/resource"];
/// The goals.
const PART: f64 = 0.1;
const MS_PER_HUNDRED: f64 = 2.0;
const MEMORY_MB: f64 = 20.0;

const CONFIG: &str = "maxPods: 250\nfailCgroupV1: false\nimageGCHighThresholdPercent: 100\n\
    evictionHard: {nodefs.available: 0%, imagefs.available: 0%, nodefs.inodesFree: 0%}\n";

struct Wish {
    quick: bool,
    binary: PathBuf,
    peer: Option<PathBuf>,
}

/// One kubelet's figures.
struct Figures {
    /// Processor time and wall time of one request, and how much was said, by page.
    pages: Vec<(Duration, Duration, usize)>,
    /// With the crowd at rest and nobody asking, in percent of a core.
    idle: f64,
    megabytes: f64,
}

fn main() -> ExitCode {
    match Wish::parse().and_then(|wish| run(&wish)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(3),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(wish: &Wish) -> Outcome<bool> {
    let (crowd, asks, idle) = if wish.quick { (20, 20, 10) } else { (100, 100, 60) };
    let node = Node::start(&Tools::from_env()?, Options::default())?;
    let ours = measure(&node, &wish.binary, crowd, asks, idle)?;
    let theirs = match &wish.peer {
        Some(peer) => Some(measure(&node, peer, crowd, asks, idle)?),
        None => None,
    };
    node.stop()?;
    Ok(compare(&ours, theirs.as_ref(), crowd))
}

fn measure(node: &Node, binary: &Path, crowd: usize, asks: u32, idle: u64) -> Outcome<Figures> {
    let options = AgentOptions { config: CONFIG.into(), ..AgentOptions::default() };
    let mut agent = Agent::start(node, binary, &options)?;
    agent.wait_until_up(node, Duration::from_secs(60))?;
    let measured = with_crowd(node, &agent, crowd, asks, idle);
    let words = if measured.is_err() { agent.last_words() } else { String::new() };
    agent.stop()?;
    measured.map_err(|error| format!("{error}\n{words}").into())
}

fn with_crowd(node: &Node, agent: &Agent, crowd: usize, asks: u32, idle: u64) -> Outcome<Figures> {
    let names: Vec<String> = (0..crowd).map(|n| format!("crowd-{n}")).collect();
    let file = |name: &String| agent.manifests().join(format!("{name}.yaml"));
    for name in &names {
        fs::write(file(name), manifest(name))?;
    }
    wait_for(node, agent, crowd)?;
    thread::sleep(Duration::from_secs(10));
    let pid = agent.pid();
    let (cpu, begun) = (cpu_time(pid)?, Instant::now());
    thread::sleep(Duration::from_secs(idle));
    let idle = 100.0 * cpu_time(pid)?.saturating_sub(cpu).as_secs_f64() / begun.elapsed().as_secs_f64();
    let mut pages = Vec::new();
    for page in PAGES {
        // The first one warms what is cold.
        let mut bytes = agent.get(node, page)?.len();
        let (cpu, begun) = (cpu_time(pid)?, Instant::now());
        for _ in 0..asks {
            bytes = agent.get(node, page)?.len();
        }
        let (used, passed) = (cpu_time(pid)?.saturating_sub(cpu), begun.elapsed());
        pages.push((used / asks, passed / asks, bytes));
    }
    let megabytes = memory(pid, "Pss:")?;
    for name in &names {
        fs::remove_file(file(name))?;
    }
    wait_for(node, agent, 0)?;
    Ok(Figures { pages, idle, megabytes })
}

fn wait_for(node: &Node, agent: &Agent, wanted: usize) -> Outcome<()> {
    let end = Instant::now() + LIMIT;
    loop {
        let list: Value = serde_json::from_slice(&agent.get(node, "/pods")?)?;
        let pods = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        let running = pods.iter().filter(|p| p["status"]["phase"] == "Running").count();
        if running == wanted && (wanted > 0 || pods.is_empty()) {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(format!("{running} of {wanted} Pods run after {} s", LIMIT.as_secs()).into());
        }
        thread::sleep(Duration::from_millis(500));
    }
}

/// Prints both, and whether the goals were met.
fn compare(ours: &Figures, theirs: Option<&Figures>, crowd: usize) -> bool {
    let mut missed = false;
    let mut verdict = |what: String, reached: bool| {
        missed |= !reached;
        println!("  {} {what}", if reached { "reached:" } else { "MISSED: " });
    };
    println!("{crowd} Pods, one request: processor time, wall time, size");
    for (at, page) in PAGES.into_iter().enumerate() {
        let (cpu, wall, bytes) = ours.pages[at];
        println!("{page:<20} longshore {} {} {} KB", ms(cpu), ms(wall), bytes / 1024);
        let per_hundred = cpu.as_secs_f64() * 1e3 * 100.0 / crowd as f64;
        verdict(
            format!("{per_hundred:.2} ms per 100 containers (goal: at most {MS_PER_HUNDRED} ms)"),
            per_hundred <= MS_PER_HUNDRED,
        );
        if let Some((cpu_there, wall_there, bytes)) = theirs.map(|t| t.pages[at]) {
            println!("{page:<20} upstream  {} {} {} KB", ms(cpu_there), ms(wall_there), bytes / 1024);
            let part = cpu.as_secs_f64() / cpu_there.as_secs_f64().max(1e-6);
            verdict(format!("{part:.2} of upstream's (goal: at most {PART})"), part <= PART);
        }
    }
    for (who, figures) in [("longshore", Some(ours)), ("upstream", theirs)] {
        if let Some(f) = figures {
            println!("at rest              {who} {:.3} % of a core, {:.1} MB PSS", f.idle, f.megabytes);
        }
    }
    verdict(
        format!("{:.1} MB PSS after all pages (goal: at most {MEMORY_MB} MB)", ours.megabytes),
        ours.megabytes <= MEMORY_MB,
    );
    !missed
}

fn ms(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

fn manifest(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{ name: {name} }}\nspec:\n  terminationGracePeriodSeconds: 5\n  \
         dnsPolicy: Default\n  containers:\n  - name: main\n    image: localhost/demo:v1\n    imagePullPolicy: Never\n    \
         args: [sleep, forever]\n"
    )
}

// === impl Wish ===

impl Wish {
    fn parse() -> Outcome<Wish> {
        let binary = std::env::var_os("LONGSHORE_BINARY").ok_or("LONGSHORE_BINARY is not set")?;
        let mut wish = Wish { quick: false, binary: binary.into(), peer: None };
        let mut args = std::env::args_os().skip(1);
        while let Some(arg) = args.next() {
            match arg.to_str() {
                Some("--quick") => wish.quick = true,
                Some("--peer-kubelet") => wish.peer = args.next().map(PathBuf::from),
                _ => return Err(format!("unknown argument {}", arg.display()).into()),
            }
        }
        Ok(wish)
    }
}
