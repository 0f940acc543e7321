//! Stories: what happens to a world, drawn from a seed, and the verdict at the end.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base::rng::Rng;
use base::time::Clock;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use tokio::task::JoinHandle;

use super::check::{Flip, check, is_settled, unsettled};
use super::{Agent, World, pass, pods};
use crate::fake_runtime::{Faults, Op, Quirks};

/// How a story ended.
#[derive(Debug)]
pub struct Outcome {
    pub seed: u64,
    /// What was wrong; empty for a good end.
    pub wrong: Vec<String>,
    /// What happened, for the one who has to find out why.
    pub log: Vec<String>,
}

/// Plays one seed from beginning to end. Call it under tokio's paused time.
pub async fn run_seed(seed: u64) -> Outcome {
    let mut story = Story::new(seed);
    for _ in 0..8 + story.rng.below(12) {
        pass(story.rng.clone().up_to(Duration::from_secs(40))).await;
        story.something_happens().await;
    }
    story.calm_down().await;
    story.verdict()
}

struct Story {
    rng: Rng,
    world: World,
    agent: Option<Agent>,
    watcher: Option<JoinHandle<()>>,
    wanted: Vec<Arc<Pod>>,
    /// UIDs that were wanted again before all of their first life had gone. Upstream begins them anew; so do we only if
    /// nothing was left to end, and what becomes of the others is not judged.
    again: BTreeSet<Option<String>>,
    versions: u32,
    flips: Arc<std::sync::Mutex<Vec<Flip>>>,
    /// Boot and first report of each life.
    silences: Vec<Duration>,
    log: Vec<String>,
}

impl Story {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let world = World::new(rng.next_u64());
        if rng.chance(0.3) {
            world.runtime.set_quirks(Quirks::CONTAINERD_1_6);
        }
        if rng.chance(0.7) {
            world.runtime.set_faults(Faults::stormy());
            world.disk.lock().faults = 0.1;
        }
        let (wanted, again, flips, silences, log) = Default::default();
        Self { rng, world, agent: None, watcher: None, wanted, again, versions: 0, flips, silences, log }
    }

    async fn something_happens(&mut self) {
        if self.agent.is_none() {
            self.boot().await;
        }
        match self.rng.below(12) {
            0..=3 => self.add().await,
            4 => self.edit().await,
            5 | 6 => self.remove().await,
            7 | 8 => self.crash(),
            9 => {
                let down = self.rng.up_to(Duration::from_secs(20));
                self.note(format!("runtime restarts, down for {down:?}"));
                self.world.runtime.restart(down);
            }
            10 => {
                let hours = i64::try_from(self.rng.below(9)).unwrap_or(0) - 4;
                self.note(format!("wall clock jumps {hours} h"));
                self.world.clock.jump(hours * 3600);
            }
            _ => self.break_something(),
        }
    }

    async fn boot(&mut self) {
        let agent = self.world.boot();
        let booted = self.now();
        pass(self.rng.up_to(Duration::from_secs(2))).await;
        self.silences.extend([booted, self.now()]);
        agent.want(&self.wanted).await;
        self.watcher =
            Some(tokio::spawn(watch_ready(self.world.clone(), agent.board.clone(), self.flips.clone())));
        self.agent = Some(agent);
        self.note("agent starts".into());
    }

    async fn add(&mut self) {
        if self.wanted.len() >= 6 {
            return;
        }
        self.versions += 1;
        let name = format!("p{}", self.versions);
        let pod = pods::random_pod(&mut self.rng, &self.world.runtime, &name, self.versions);
        self.note(format!("{name} is wanted"));
        self.wanted.push(pod);
        self.tell().await;
    }

    async fn edit(&mut self) {
        let Some(at) = self.pick() else { return };
        self.versions += 1;
        let name = self.wanted[at].metadata.name.clone().unwrap_or_default();
        self.note(format!("{name} is edited"));
        self.wanted[at] = pods::random_pod(&mut self.rng, &self.world.runtime, &name, self.versions);
        self.tell().await;
    }

    async fn remove(&mut self) {
        let Some(at) = self.pick() else { return };
        let gone = self.wanted.remove(at);
        self.note(format!("{} is no longer wanted", gone.metadata.name.as_deref().unwrap_or_default()));
        self.tell().await;
        if self.rng.chance(0.2) {
            pass(self.rng.up_to(Duration::from_secs(3))).await;
            self.note("and is wanted again".into());
            self.again.insert(gone.metadata.uid.clone());
            self.wanted.push(gone);
            self.tell().await;
        }
    }

    fn crash(&mut self) {
        self.note("agent is killed".into());
        self.watcher.take().iter().for_each(JoinHandle::abort);
        self.agent.take().map(Agent::crash).unwrap_or_default();
    }

    fn break_something(&mut self) {
        let Some(at) = self.pick() else { return };
        let name = self.wanted[at].metadata.name.clone().unwrap_or_default();
        if self.rng.chance(0.5) {
            self.note(format!("sandbox of {name} dies"));
            self.world.runtime.crash_sandbox(&name);
        } else {
            self.note(format!("c0 of {name} dies"));
            self.world.runtime.crash(&name, "c0", 139, "Error");
        }
    }

    async fn tell(&self) {
        if let Some(agent) = &self.agent {
            agent.want(&self.wanted).await;
        }
    }

    /// The weather clears, and the node has time to settle.
    async fn calm_down(&mut self) {
        self.world.runtime.set_faults(Faults::default());
        self.world.disk.lock().faults = 0.0;
        if self.agent.is_none() {
            self.boot().await;
        }
        settle(&self.world, self.agent.as_ref(), &self.wanted, Duration::from_secs(700)).await;
    }

    fn verdict(mut self) -> Outcome {
        let flips = self.flips.lock().map(|f| f.clone()).unwrap_or_default();
        let mut wrong = match &self.agent {
            Some(agent) => {
                let mut wrong = check(&self.world, &self.wanted, &flips, &self.silences);
                let is_judged = |pod: &&Arc<Pod>| !self.again.contains(&pod.metadata.uid);
                let judged: Vec<Arc<Pod>> = self.wanted.iter().filter(is_judged).cloned().collect();
                wrong.extend(unsettled(&self.world, agent, &judged));
                wrong
            }
            None => vec!["no agent at the end".into()],
        };
        wrong.dedup();
        if !wrong.is_empty() {
            let journal = self.world.runtime.journal();
            let effects = journal.entries().iter().filter(|e| e.op != Op::Exec);
            self.log.extend(effects.map(|e| {
                let id = &e.id[e.id.len().saturating_sub(4)..];
                format!("{:>9.3} runtime: {:?} {}/{} {id}", e.at.as_secs_f64(), e.op, e.pod_uid, e.container)
            }));
            self.log.extend(
                flips
                    .iter()
                    .map(|f| format!("{:>9.3} board: {} ready={}", f.at.as_secs_f64(), f.uid, f.ready)),
            );
            self.log.sort();
        }
        self.watcher.take().iter().for_each(JoinHandle::abort);
        Outcome { seed: self.world.seed, wrong, log: self.log }
    }

    fn pick(&mut self) -> Option<usize> {
        let n = u64::try_from(self.wanted.len()).unwrap_or(0);
        (n > 0).then(|| usize::try_from(self.rng.below(n)).unwrap_or(0))
    }

    fn now(&self) -> Duration {
        self.world.clock.now().mono.0
    }

    fn note(&mut self, what: String) {
        self.log.push(format!("{:>9.3} {what}", self.now().as_secs_f64()));
    }
}

/// Lets at most this much good time pass. Most Pods are soon where they stay; every eighth story goes on all the same.
pub(super) async fn settle(world: &World, agent: Option<&Agent>, wanted: &[Arc<Pod>], time: Duration) {
    const LOOK: Duration = Duration::from_secs(60);
    let mut left = time;
    loop {
        pass(LOOK.min(left)).await;
        left = left.saturating_sub(LOOK);
        let is_over = time - left >= 2 * LOOK && !world.seed.is_multiple_of(8);
        if left.is_zero() || (is_over && agent.is_some_and(|agent| is_settled(world, agent, wanted))) {
            return;
        }
    }
}

/// Writes down every change of a Ready condition.
pub(super) async fn watch_ready(
    world: World,
    board: Arc<kubelet::pods::status_board::StatusBoard>,
    flips: Arc<std::sync::Mutex<Vec<Flip>>>,
) {
    let mut changed = board.subscribe();
    loop {
        let at = world.clock.now().mono.0;
        for entry in board.all() {
            let ready =
                entry.status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
            let uid = entry.pod.metadata.uid.clone().unwrap_or_default();
            if let Ok(mut all) = flips.lock() {
                let last = all.iter().rev().find(|f| f.uid == uid).map(|f| f.ready);
                if last != Some(ready) {
                    all.push(Flip { at, uid, ready });
                }
            }
        }
        if changed.changed().await.is_err() {
            return;
        }
    }
}

/// One Pod from birth to removal, with the agent killed just before and just after each effect the
/// runtime saw in a run without crashes. Returns what went wrong, by crash point.
pub async fn crash_at_every_effect(seed: u64) -> Vec<String> {
    let effects = {
        let world = World::new(seed);
        let agent = world.boot();
        life(&world, agent, None).await;
        world.runtime.journal().entries().iter().map(|e| e.at).collect::<Vec<_>>()
    };
    let mut wrong = Vec::new();
    let step = Duration::from_micros(10);
    for at in effects.iter().flat_map(|at| [at.saturating_sub(step), *at + step]) {
        let world = World::new(seed);
        let agent = world.boot();
        let result = life(&world, agent, Some(at)).await;
        wrong.extend(result.into_iter().map(|w| format!("killed at {at:?}: {w}")));
    }
    wrong
}

/// Birth, thirty seconds of life, removal; the agent may be killed once on the way.
async fn life(world: &World, agent: Agent, crash_at: Option<Duration>) -> Vec<String> {
    world.runtime.set_faults(Faults { latency: Duration::from_millis(40), ..Faults::default() });
    let spec = PodSpec {
        init_containers: Some(vec![pods::container("init")]),
        containers: vec![pods::container("a"), pods::container("b")],
        termination_grace_period_seconds: Some(5),
        ..Default::default()
    };
    let exits = crate::fake_runtime::Behaviour::exits(0, Duration::from_secs(1));
    world.runtime.script("p", "init", [exits]);
    let pod = pods::pod("p", 1, spec);
    let removal = Duration::from_secs(30);
    let mut agent = agent;
    agent.want(std::slice::from_ref(&pod)).await;
    let mut removed = false;
    for stop in [crash_at, Some(removal)].into_iter().flatten().collect::<std::collections::BTreeSet<_>>() {
        pass(stop.saturating_sub(world.clock.now().mono.0)).await;
        if stop == removal {
            removed = true;
            agent.want(&[]).await;
        } else {
            agent.crash();
            agent = world.boot();
            agent.want(if removed { &[] } else { std::slice::from_ref(&pod) }).await;
        }
    }
    pass(Duration::from_secs(120)).await;
    let mut wrong = check(world, &[], &[], &[]);
    let journal = world.runtime.journal();
    for name in ["a", "b"] {
        if journal.starts("p", name) != 1 {
            wrong.push(format!("{name} was started {} times", journal.starts("p", name)));
        }
    }
    wrong
}
