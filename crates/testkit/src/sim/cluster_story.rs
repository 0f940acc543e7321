//! Stories of a node in a cluster: users make and delete Pods through an API server that is slow, forgetful, or away.

use std::sync::Arc;
use std::time::Duration;

use base::rng::Rng;
use base::time::Clock;
use k8s_openapi::api::core::v1::Pod;
use kubelet_core::pod::{Report, Reported, report};
use tokio::task::JoinHandle;

use super::check::{Flip, check, unsettled, untrue_events};
use super::story::{Outcome, settle, watch_ready};
use super::{Agent, Weather, World, pass, pods};
use crate::fake_runtime::{Faults, Quirks};

/// The Pod that is made when the weather has cleared.
const FAVOURED: &str = "favoured";

/// Pods at once; their names are used again and again.
const NAMES: u64 = 6;

/// Plays one seed from beginning to end. Call it under tokio's paused time.
pub async fn run_cluster_seed(seed: u64) -> Outcome {
    let mut story = Story::new(seed);
    for _ in 0..10 + story.rng.below(14) {
        pass(story.rng.clone().up_to(Duration::from_secs(40))).await;
        story.something_happens();
    }
    story.calm_down().await;
    story.verdict()
}

struct Story {
    rng: Rng,
    world: World,
    agent: Option<Agent>,
    watcher: Option<JoinHandle<()>>,
    versions: u32,
    flips: Arc<std::sync::Mutex<Vec<Flip>>>,
    /// When each life began.
    boots: Vec<Duration>,
    log: Vec<String>,
}

impl Story {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x0c1a_57e4);
        let world = World::new(rng.next_u64());
        if rng.chance(0.3) {
            world.runtime.set_quirks(Quirks::CONTAINERD_1_6);
        }
        if rng.chance(0.5) {
            world.runtime.set_faults(Faults::stormy());
            world.disk.lock().faults = 0.1;
        }
        if rng.chance(0.8) {
            world.api.set_weather(Weather::stormy());
        }
        let (flips, boots, log) = Default::default();
        Self { rng, world, agent: None, watcher: None, versions: 0, flips, boots, log }
    }

    fn something_happens(&mut self) {
        if self.agent.is_none() {
            self.boot();
        }
        let name = format!("p{}", self.rng.below(NAMES));
        match self.rng.below(18) {
            0..=4 => self.create(&name),
            5 | 6 => self.delete(&name, None),
            7 => self.delete(&name, Some(1)),
            8 => self.delete(&name, Some(0)),
            9 => {
                self.note(format!("somebody labels {name} and writes into its status"));
                self.world.api.label(&name, &self.versions.to_string());
                self.world.api.lie(&name);
            }
            10 | 11 => self.crash(),
            12 => {
                let down = self.rng.up_to(Duration::from_secs(20));
                self.note(format!("runtime restarts, down for {down:?}"));
                self.world.runtime.restart(down);
            }
            13 => {
                let hours = i64::try_from(self.rng.below(9)).unwrap_or(0) - 4;
                self.note(format!("wall clock jumps {hours} h"));
                self.world.clock.jump(hours * 3600);
            }
            14 => self.part(),
            15 => {
                self.note("connections break".into());
                self.world.api.cut();
            }
            16 => {
                self.note("the API server forgets its history".into());
                self.world.api.compact();
                self.world.api.cut();
            }
            _ => {
                self.note(format!("c0 of {name} dies"));
                self.world.runtime.crash(&name, "c0", 139, "Error");
            }
        }
    }

    fn boot(&mut self) {
        let agent = self.world.boot_in_cluster();
        self.boots.push(self.now());
        let watching = watch_ready(self.world.clone(), agent.board.clone(), self.flips.clone());
        self.watcher = Some(tokio::spawn(watching));
        self.agent = Some(agent);
        self.note("agent starts".into());
    }

    fn crash(&mut self) {
        self.note("agent is killed".into());
        self.watcher.take().iter().for_each(JoinHandle::abort);
        self.agent.take().map(Agent::crash).unwrap_or_default();
    }

    fn create(&mut self, name: &str) {
        let taken = |p: &Pod| p.metadata.name.as_deref() == Some(name);
        if self.world.api.pods().iter().any(taken) {
            return;
        }
        self.versions += 1;
        let pod = pods::random_pod(&mut self.rng, &self.world.runtime, name, self.versions);
        self.note(format!("{name} is made, version {}", self.versions));
        self.world.api.create(&pod);
    }

    fn delete(&mut self, name: &str, grace: Option<i64>) {
        self.note(format!("{name} is deleted with grace {grace:?}"));
        self.world.api.delete(name, grace);
    }

    /// The network parts, or is whole again.
    fn part(&mut self) {
        let weather = self.world.api.weather();
        self.note(format!("partition: {}", !weather.partition));
        self.world.api.set_weather(Weather { partition: !weather.partition, ..weather });
    }

    /// The weather clears, and the node has time to settle.
    async fn calm_down(&mut self) {
        self.world.runtime.set_faults(Faults::default());
        self.world.disk.lock().faults = 0.0;
        self.world.api.set_weather(Weather::default());
        if self.agent.is_none() {
            self.boot();
        }
        self.note("calm".into());
        // What was held up in the storm comes first.
        pass(Duration::from_secs(120)).await;
        self.create(FAVOURED);
        settle(&self.world, self.agent.as_ref(), &self.wanted(), Duration::from_secs(480)).await;
    }

    fn verdict(mut self) -> Outcome {
        let flips = self.flips.lock().map(|f| f.clone()).unwrap_or_default();
        let mut wrong = match &self.agent {
            Some(agent) => {
                let wanted: Vec<Arc<Pod>> = self.wanted();
                let mut wrong = check(&self.world, &wanted, &flips, &self.silences());
                wrong.extend(unsettled(&self.world, agent, &wanted));
                wrong.extend(out_of_step(&self.world, agent));
                wrong.extend(untrue_events(&self.world, &self.uid(FAVOURED)));
                wrong
            }
            None => vec!["no agent at the end".into()],
        };
        wrong.dedup();
        if !wrong.is_empty() {
            let effects = self.world.runtime.journal();
            self.log.extend(effects.entries().iter().map(|e| {
                format!("{:>9.3} runtime: {:?} {}/{}", e.at.as_secs_f64(), e.op, e.pod_uid, e.container)
            }));
            let asked = self.world.api.record().requests;
            self.log.extend(
                asked.iter().map(|(at, m, path)| format!("{:>9.3} api: {m} {path}", at.as_secs_f64())),
            );
            self.log.sort();
        }
        self.watcher.take().iter().for_each(JoinHandle::abort);
        Outcome { seed: self.world.seed, wrong, log: self.log }
    }

    fn uid(&self, name: &str) -> String {
        let pods = self.world.api.pods().into_iter().map(|p| p.metadata);
        pods.filter(|m| m.name.as_deref() == Some(name)).find_map(|m| m.uid).unwrap_or_default()
    }

    fn wanted(&self) -> Vec<Arc<Pod>> {
        let all = self.world.api.pods().into_iter();
        all.filter(|p| p.metadata.deletion_timestamp.is_none()).map(Arc::new).collect()
    }

    /// Boot and first list of each life, in pairs.
    fn silences(&self) -> Vec<Duration> {
        let lists = self.world.api.record().lists;
        let heard = |boot: Duration| lists.iter().copied().find(|at| *at >= boot).unwrap_or(Duration::MAX);
        let ends = self.boots.iter().skip(1).copied().chain([Duration::MAX]);
        self.boots.iter().zip(ends).flat_map(|(boot, end)| [*boot, heard(*boot).min(end)]).collect()
    }

    fn now(&self) -> Duration {
        self.world.clock.now().mono.0
    }

    fn note(&mut self, what: String) {
        self.log.push(format!("{:>9.3} {what}", self.now().as_secs_f64()));
    }
}

/// What the API server says and the board does not, and deletions that never ended.
fn out_of_step(world: &World, agent: &Agent) -> Vec<String> {
    let mut wrong = Vec::new();
    for pod in world.api.pods() {
        let (name, uid) =
            (pod.metadata.name.clone().unwrap_or_default(), pod.metadata.uid.clone().unwrap_or_default());
        if pod.metadata.deletion_timestamp.is_some() {
            wrong.push(format!("{name} was deleted and is still there"));
            continue;
        }
        let Some(entry) = agent.board.get(&uid) else {
            wrong.push(format!("{name} is not on the board"));
            continue;
        };
        let status = pod.status.clone().unwrap_or_default();
        let known = Reported { uid: &uid, status: &status, is_deleting: false, is_mirror: false };
        if let Report::Patch(patch) = report(&known, &entry.status, entry.finished) {
            wrong.push(format!("the API server was not told of {name}: {patch}"));
        }
    }
    wrong
}
