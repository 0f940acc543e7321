//! What the kubelet costs on top of the runtime: latency, memory, processor time. Started by `cargo xtask bench pods`.
//!
//! Both sides give the same containerd the same sandboxes and containers in the same minutes, in turns, so the ratios
//! mean something on a noisy machine; the absolute numbers mean little. Nobody polls while a clock runs: where the
//! runtime works next door, looking often would cost the kubelet's side what the other does not pay.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use cri::{Client, Endpoint};
use futures_util::future::try_join_all;
use serde_json::Value;
use testkit::direct::{Direct, DirectPod, Order};
use testkit::node::{Agent, AgentOptions, Node, Options, Tools};
use testkit::twin::Twins;
use testkit::weight::{cpu_time, memory};

type Outcome<T> = Result<T, Box<dyn Error>>;

const IMAGE: &str = "localhost/demo:v1";
const ARGS: [&str; 2] = ["sleep", "forever"];
const LIMIT: Duration = Duration::from_secs(180);

/// The goals, and how each is said.
const START: f64 = 1.15;
const DELETE: Duration = Duration::from_millis(50);
const MEMORY_MB: f64 = 15.0;
const CPU_PERCENT: f64 = 0.2;

/// How much is measured.
#[derive(Clone, Copy)]
struct Effort {
    rounds: usize,
    crowd: usize,
    crowds: usize,
    /// Before a crowd: the kernel takes network namespaces apart long after the runtime has let go of them.
    rest: Duration,
    idle: Duration,
}

struct Bench {
    node: Node,
    agent: Agent,
    direct: Direct,
    twins: Twins,
    effort: Effort,
    missed: bool,
}

fn main() -> ExitCode {
    let quick = match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => false,
        [flag] if flag == "--quick" => true,
        other => {
            eprintln!("error: only --quick is known, not {other:?}");
            return ExitCode::FAILURE;
        }
    };
    let effort = if quick {
        Effort {
            rounds: 5,
            crowd: 10,
            crowds: 1,
            rest: Duration::from_secs(2),
            idle: Duration::from_secs(10),
        }
    } else {
        Effort {
            rounds: 20,
            crowd: 50,
            crowds: 3,
            rest: Duration::from_secs(8),
            idle: Duration::from_secs(60),
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(run(effort)));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(3),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(effort: Effort) -> Outcome<bool> {
    let tools = Tools::from_env()?;
    let binary = PathBuf::from(std::env::var_os("LONGSHORE_BINARY").ok_or("LONGSHORE_BINARY is not set")?);
    let node = Node::start(&tools, Options::default())?;
    let client = Client::new(Endpoint::parse(&node.endpoint())?, None, Duration::from_secs(120));
    let version = client.version().await?;
    let direct = Direct::new(client, node.dir().join("direct-logs"));
    let twins = Twins::new(&node, &node.dir().join("twins"))?;
    let mut agent = Agent::start(&node, &binary, &AgentOptions::default())?;
    agent.wait_until_up(&node, Duration::from_secs(30))?;
    println!(
        "{} {}, {} rounds, {} at once\n",
        version.runtime_name, version.runtime_version, effort.rounds, effort.crowd
    );
    let mut bench = Bench { node, agent, direct, twins, effort, missed: false };
    bench.one_by_one().await?;
    bench.crowd().await?;
    let Bench { node, mut agent, missed, .. } = bench;
    agent.stop()?;
    node.stop()?;
    Ok(!missed)
}

// === impl Bench ===

impl Bench {
    async fn one_by_one(&mut self) -> Outcome<()> {
        let (mut ours, mut theirs) = (Samples::default(), Samples::default());
        // The first Pod on each side warms what is cold.
        for round in 0..=self.effort.rounds {
            let order = self.twins.order(&manifest(&format!("direct-{round}")))?;
            let begun = Instant::now();
            let pod = self.direct.carry_out(order).await?;
            let started = begun.elapsed();
            let begun = Instant::now();
            self.direct.remove(&pod, 5).await?;
            let removed = begun.elapsed();
            let name = format!("bench-{round}");
            let (ours_started, ours_removed) = (self.apply(&name)?, self.delete(&name)?);
            if round > 0 {
                theirs.add(started, removed);
                ours.add(ours_started, ours_removed);
            }
        }
        let ratio = ours.start().as_secs_f64() / theirs.start().as_secs_f64();
        println!("start, one at a time    runtime {}  kubelet {}", ms(theirs.start()), ms(ours.start()));
        self.verdict(&format!("{ratio:.2} times the runtime's"), ratio <= START, &format!("{START} times"));
        let extra = ours.removal().saturating_sub(theirs.removal());
        println!("delete, one at a time   runtime {}  kubelet {}", ms(theirs.removal()), ms(ours.removal()));
        self.verdict(&format!("{} on top", ms(extra)), extra <= DELETE, &ms(DELETE));
        Ok(())
    }

    /// Both sides in turns, several times: one crowd's luck with the disk is another's misfortune.
    async fn crowd(&mut self) -> Outcome<()> {
        let count = self.effort.crowd;
        let (mut ours, mut theirs) = (Samples::default(), Samples::default());
        for round in 0..self.effort.crowds {
            self.direct_crowd(round, &mut theirs).await?;
            let last = round + 1 == self.effort.crowds;
            self.kubelet_crowd(round, last, &mut ours)?;
        }
        let ratio = ours.start().as_secs_f64() / theirs.start().as_secs_f64();
        println!("start, {count} at once     runtime {}  kubelet {}", ms(theirs.start()), ms(ours.start()));
        println!("  each                  runtime {}  kubelet {}", list(&theirs.starts), list(&ours.starts));
        self.verdict(&format!("{ratio:.2} times the runtime's"), ratio <= START, &format!("{START} times"));
        println!(
            "delete, {count} at once    runtime {}  kubelet {}",
            ms(theirs.removal()),
            ms(ours.removal())
        );
        Ok(())
    }

    async fn direct_crowd(&mut self, round: usize, samples: &mut Samples) -> Outcome<()> {
        let names = (0..self.effort.crowd).map(|n| format!("direct-{round}-{n}"));
        let orders = names.map(|name| self.twins.order(&manifest(&name)));
        let orders: Vec<Order> = orders.collect::<Outcome<_>>()?;
        thread::sleep(self.effort.rest);
        let begun = Instant::now();
        let runs = orders.into_iter().map(|order| self.direct.carry_out(order));
        let pods: Vec<DirectPod> = try_join_all(runs).await?;
        let started = begun.elapsed();
        let begun = Instant::now();
        try_join_all(pods.iter().map(|pod| self.direct.remove(pod, 5))).await?;
        samples.add(started, begun.elapsed());
        Ok(())
    }

    fn kubelet_crowd(&mut self, round: usize, last: bool, samples: &mut Samples) -> Outcome<()> {
        let names: Vec<String> = (0..self.effort.crowd).map(|n| format!("crowd-{round}-{n}")).collect();
        thread::sleep(self.effort.rest);
        let mut changes = self.changes()?;
        let used = cpu_time(self.agent.pid())?;
        let begun = Instant::now();
        for name in &names {
            write_manifest(&self.agent.manifests(), name)?;
        }
        changes.wait(|pods| names.iter().all(|name| is_running(pods, name)))?;
        let started = begun.elapsed();
        let used = cpu_time(self.agent.pid())?.saturating_sub(used);
        if last {
            println!("the kubelet's own processor time for {} starts: {}\n", names.len(), ms(used));
            self.idle(names.len())?;
        }
        let begun = Instant::now();
        for name in &names {
            fs::remove_file(self.agent.manifests().join(format!("{name}.yaml")))?;
        }
        changes.wait(BTreeMap::is_empty)?;
        samples.add(started, begun.elapsed());
        Ok(())
    }

    fn idle(&mut self, count: usize) -> Outcome<()> {
        // What starting them left to do is not idleness.
        thread::sleep(Duration::from_secs(5).min(self.effort.idle));
        let pid = self.agent.pid();
        let (cpu, begun) = (cpu_time(pid)?, Instant::now());
        thread::sleep(self.effort.idle);
        let used = cpu_time(pid)?.saturating_sub(cpu);
        let percent = 100.0 * used.as_secs_f64() / begun.elapsed().as_secs_f64();
        let (pss, rss) = (memory(pid, "Pss:")?, memory(pid, "Rss:")?);
        println!(
            "kubelet with {count} idle Pods, {} s: {pss:.1} MB PSS, {rss:.1} MB RSS",
            self.effort.idle.as_secs()
        );
        self.verdict(&format!("{pss:.1} MB PSS"), pss <= MEMORY_MB, &format!("{MEMORY_MB} MB"));
        self.verdict(
            &format!("{percent:.3} % of a core"),
            percent <= CPU_PERCENT,
            &format!("{CPU_PERCENT} %"),
        );
        Ok(())
    }

    fn verdict(&mut self, what: &str, reached: bool, goal: &str) {
        self.missed |= !reached;
        println!("  {} {what} (goal: at most {goal})\n", if reached { "reached:" } else { "MISSED: " });
    }

    /// From the moment the manifest is there to the moment the Pod's status says Running.
    fn apply(&self, name: &str) -> Outcome<Duration> {
        let mut changes = self.changes()?;
        let begun = Instant::now();
        write_manifest(&self.agent.manifests(), name)?;
        changes.wait(|pods| is_running(pods, name))?;
        Ok(begun.elapsed())
    }

    /// From the moment the manifest is gone to the moment the Pod is.
    fn delete(&self, name: &str) -> Outcome<Duration> {
        let mut changes = self.changes()?;
        let begun = Instant::now();
        fs::remove_file(self.agent.manifests().join(format!("{name}.yaml")))?;
        changes.wait(|pods| !pods.contains_key(&format!("{name}-demo")))?;
        Ok(begun.elapsed())
    }

    fn changes(&self) -> Outcome<Changes> {
        Changes::follow(&self.agent.socket())
    }
}

/// The agent's own stream of changes, one list of Pods per line.
struct Changes(BufReader<UnixStream>);

// === impl Changes ===

impl Changes {
    fn follow(socket: &Path) -> Outcome<Self> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(LIMIT))?;
        // HTTP/1.0: the body is never chunked.
        stream.write_all(b"GET /v1/pods?watch=true HTTP/1.0\r\nhost: localhost\r\n\r\n")?;
        let mut changes = Self(BufReader::new(stream));
        while !changes.line()?.trim().is_empty() {}
        // The list as it is now: from here on, everything is news.
        changes.line()?;
        Ok(changes)
    }

    fn wait(&mut self, mut is_over: impl FnMut(&BTreeMap<String, String>) -> bool) -> Outcome<()> {
        while !is_over(&phases(self.line()?.as_bytes())?) {}
        Ok(())
    }

    fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        let read = self.0.read_line(&mut line).map_err(|e| format!("waiting for the agent: {e}"))?;
        if read == 0 {
            return Err("the agent ended the watch".into());
        }
        Ok(line)
    }
}

/// Latencies of one side.
#[derive(Default)]
struct Samples {
    starts: Vec<Duration>,
    removals: Vec<Duration>,
}

// === impl Samples ===

impl Samples {
    fn add(&mut self, start: Duration, removal: Duration) {
        self.starts.push(start);
        self.removals.push(removal);
    }

    fn start(&self) -> Duration {
        median(&self.starts)
    }

    fn removal(&self) -> Duration {
        median(&self.removals)
    }
}

fn median(samples: &[Duration]) -> Duration {
    let mut sorted = samples.to_vec();
    sorted.sort();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

fn ms(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

fn list(times: &[Duration]) -> String {
    times.iter().map(|time| format!("{:.2} s", time.as_secs_f64())).collect::<Vec<_>>().join(", ")
}

fn manifest(name: &str) -> String {
    let args = ARGS.join(", ");
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{ name: {name} }}\nspec:\n  terminationGracePeriodSeconds: 5\n  \
         dnsPolicy: Default\n  containers:\n  - name: main\n    image: {IMAGE}\n    imagePullPolicy: Never\n    \
         args: [{args}]\n"
    )
}

/// Renamed into place: a manifest is there whole or not at all.
fn write_manifest(dir: &Path, name: &str) -> Outcome<()> {
    let half = dir.join(format!(".{name}"));
    fs::write(&half, manifest(name))?;
    fs::rename(half, dir.join(format!("{name}.yaml")))?;
    Ok(())
}

/// Pod name to phase.
fn phases(body: &[u8]) -> Outcome<BTreeMap<String, String>> {
    let list: Value = serde_json::from_slice(body)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let items = list["items"].as_array().into_iter().flatten();
    Ok(items.map(|pod| (text(&pod["metadata"]["name"]), text(&pod["status"]["phase"]))).collect())
}

/// A static Pod's name ends with the node's.
fn is_running(pods: &BTreeMap<String, String>, name: &str) -> bool {
    pods.get(&format!("{name}-demo")).is_some_and(|phase| phase == "Running")
}
