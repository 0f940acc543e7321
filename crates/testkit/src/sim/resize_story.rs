//! Stories of Pods that are given other resources while the node is killed, its runtime fails and its disk is full.

use std::collections::BTreeMap;
use std::time::Duration;

use base::rng::Rng;
use k8s_openapi::api::core::v1::{Container, ContainerResizePolicy, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kubelet_core::downward::{limits, requests};
use kubelet_core::resize::checkpoint::ACTUATED;
use serde_json::{Value, json};

use super::story::Outcome;
use super::{Agent, Weather, World, fakes, pass, pods};
use crate::fake_runtime::{Behaviour, Faults, Op};

/// What the simulated node has, in thousandths.
const NODE_CPU: i64 = 4000;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// Plays one seed from beginning to end. Call it under tokio's paused time.
pub async fn run_resize_seed(seed: u64) -> Outcome {
    let mut rng = Rng::new(seed ^ 0x0e51_2e00);
    let world = World::new(rng.next_u64());
    if rng.chance(0.6) {
        world.runtime.set_faults(Faults::stormy());
        world.disk.lock().faults = 0.1;
    }
    if rng.chance(0.5) {
        world.api.set_weather(Weather { lost: 0.0, ..Weather::stormy() });
    }
    for name in NAMES {
        for container in ["c0", "c1"] {
            world.runtime.script(name, container, [Behaviour::forever()]);
        }
        world.api.create(&random_pod(&mut rng, name));
    }
    let mut story = Story { rng, agent: Some(world.boot_in_cluster()), world, log: Vec::new() };
    for _ in 0..12 {
        pass(story.rng.clone().up_to(Duration::from_secs(15))).await;
        story.something_happens();
    }
    story.calm_down().await;
    let wrong = story.agent.as_ref().map_or_else(Vec::new, |agent| astray(&story.world, agent));
    Outcome { seed, wrong, log: story.log }
}

/// The node is killed `step` by `step` later in the first `span` after a resize: how each of its lives ended.
pub async fn killed_at_any_moment_of_a_resize(seed: u64, step: Duration, span: Duration) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut at = Duration::ZERO;
    while at < span {
        let mut rng = Rng::new(seed);
        let world = World::new(seed);
        world.api.create(&random_pod(&mut rng, "a"));
        let agent = world.boot_in_cluster();
        pass(Duration::from_secs(30)).await;
        resize(&world, &mut rng, "a");
        pass(at).await;
        agent.crash();
        pass(Duration::from_millis(100)).await;
        let agent = world.boot_in_cluster();
        pass(Duration::from_secs(60)).await;
        wrong.extend(astray(&world, &agent).into_iter().map(|w| format!("killed after {at:?}: {w}")));
        at += step;
    }
    wrong
}

/// A Pod is resized while the record of what is in force cannot be written: nobody goes back to what was in force before.
pub async fn resized_while_nothing_is_written(seed: u64) -> Vec<String> {
    let mut rng = Rng::new(seed);
    let world = World::new(seed);
    let mut pod = random_pod(&mut rng, "a");
    for c in pod.spec.iter_mut().flat_map(|s| &mut s.containers) {
        // Nobody starts a container with other resources than are written down.
        c.resize_policy = None;
    }
    world.api.create(&pod);
    let agent = world.boot_in_cluster();
    pass(Duration::from_secs(30)).await;
    world.disk.lock().unwritable = Some(ACTUATED);
    resize(&world, &mut rng, "a");
    pass(Duration::from_secs(120)).await;
    let mut wrong = astray(&world, &agent);
    for container in ["c0", "c1"] {
        let journal = world.runtime.journal();
        let times = journal.of("a", container).filter(|e| e.op == Op::Resize).count();
        // Memory, then CPU.
        if times > 2 {
            wrong.push(format!("{container} was resized {times} times"));
        }
    }
    agent.crash();
    world.disk.lock().unwritable = None;
    let agent = world.boot_in_cluster();
    pass(Duration::from_secs(60)).await;
    wrong.extend(astray(&world, &agent).into_iter().map(|w| format!("after a restart: {w}")));
    wrong
}

/// Memory is taken from a Pod that uses it all, and its containers start again meanwhile: the Pod's own cgroup follows once the
/// memory is free, also when only the next life of the agent sees that.
pub async fn shrunk_while_in_use(seed: u64, is_killed: bool) -> Vec<String> {
    let mut rng = Rng::new(seed);
    let world = World::new(seed);
    world.api.create(&random_pod(&mut rng, "a"));
    let mut agent = world.boot_in_cluster();
    pass(Duration::from_secs(30)).await;
    world.disk.lock().memory_used = u64::MAX >> 1;
    resize(&world, &mut rng, "a");
    pass(Duration::from_secs(5)).await;
    for container in ["c0", "c1"] {
        world.runtime.crash("a", container, 137, "OOMKilled");
    }
    pass(Duration::from_secs(60)).await;
    if is_killed {
        agent.crash();
        agent = world.boot_in_cluster();
        pass(Duration::from_secs(30)).await;
    }
    world.disk.lock().memory_used = 0;
    pass(Duration::from_secs(600)).await;
    astray(&world, &agent)
}

struct Story {
    rng: Rng,
    world: World,
    agent: Option<Agent>,
    log: Vec<String>,
}

impl Story {
    fn something_happens(&mut self) {
        if self.agent.is_none() {
            self.agent = Some(self.world.boot_in_cluster());
            self.note("agent starts");
        }
        let name = NAMES[usize::try_from(self.rng.below(4)).unwrap_or(0)];
        match self.rng.below(8) {
            0..=3 => {
                resize(&self.world, &mut self.rng, name);
                let pod =
                    self.world.api.pods().into_iter().find(|p| p.metadata.name.as_deref() == Some(name));
                let resources = pod.map(|p| p.spec.unwrap_or_default().containers).unwrap_or_default();
                let resources: Vec<_> = resources.into_iter().map(|c| c.resources).collect();
                self.note(&format!("{name} is resized: {}", json!(resources)));
            }
            4 | 5 => {
                self.note("agent is killed");
                self.agent.take().map(Agent::crash).unwrap_or_default();
            }
            6 => {
                self.note(&format!("c0 of {name} dies"));
                self.world.runtime.crash(name, "c0", 139, "Error");
            }
            _ => {
                self.note("runtime restarts");
                self.world.runtime.restart(self.rng.up_to(Duration::from_secs(10)));
            }
        }
    }

    /// The weather clears, and the node has time: for the longest back-off of a container, and the retry of what waits.
    async fn calm_down(&mut self) {
        self.world.runtime.set_faults(Faults::default());
        self.world.disk.lock().faults = 0.0;
        self.world.api.set_weather(Weather::default());
        if self.agent.is_none() {
            self.agent = Some(self.world.boot_in_cluster());
        }
        self.note("calm");
        pass(Duration::from_secs(600)).await;
    }

    fn note(&mut self, what: &str) {
        self.log.push(format!("{:>9.3} {what}", self.world.runtime.now().as_secs_f64()));
    }
}

/// Two containers, Guaranteed or Burstable, some of which have to start again for more memory.
fn random_pod(rng: &mut Rng, name: &str) -> Pod {
    let is_guaranteed = rng.chance(0.3);
    let containers = ["c0", "c1"].map(|c| {
        let policy = |resource: &str, policy: &str| ContainerResizePolicy {
            resource_name: resource.to_owned(),
            restart_policy: policy.to_owned(),
        };
        let memory = if rng.chance(0.3) { "RestartContainer" } else { "NotRequired" };
        Container {
            resources: Some(random_resources(rng, is_guaranteed)),
            resize_policy: Some(vec![policy("cpu", "NotRequired"), policy("memory", memory)]),
            ..pods::container(c)
        }
    });
    let spec = PodSpec { containers: containers.into(), ..PodSpec::default() };
    let mut pod = Pod::clone(&pods::pod(name, 1, spec));
    pod.metadata.generation = Some(1);
    pod
}

fn random_resources(rng: &mut Rng, is_guaranteed: bool) -> ResourceRequirements {
    let mut amount = |least: u64, span: u64| i64::try_from(least + rng.below(span)).unwrap_or(0);
    let (cpu, memory) = (amount(100, 900), amount(32, 200));
    let (more_cpu, more_memory) = match is_guaranteed {
        true => (0, 0),
        false => (amount(1, 500), amount(1, 100)),
    };
    let list = |cpu: i64, memory: i64| {
        Some(
            [("cpu", format!("{cpu}m")), ("memory", format!("{memory}Mi"))]
                .map(|(k, v)| (k.to_owned(), Quantity(v)))
                .into(),
        )
    };
    ResourceRequirements {
        requests: list(cpu, memory),
        limits: list(cpu + more_cpu, memory + more_memory),
        ..ResourceRequirements::default()
    }
}

/// A user asks for something else for one container or both.
fn resize(world: &World, rng: &mut Rng, name: &str) {
    let both = rng.chance(0.5);
    world.api.edit(name, |object| {
        let is_guaranteed = object["spec"]["containers"][0]["resources"]["requests"]
            == object["spec"]["containers"][0]["resources"]["limits"];
        for c in
            object["spec"]["containers"].as_array_mut().into_iter().flatten().take(if both { 2 } else { 1 })
        {
            c["resources"] = serde_json::to_value(random_resources(rng, is_guaranteed)).unwrap_or_default();
        }
        let generation = object["metadata"]["generation"].as_i64().unwrap_or(1);
        object["metadata"]["generation"] = (generation + 1).into();
    });
}

/// Everything wrong with what Pods were granted, have and say, once nothing happens any more.
fn astray(world: &World, agent: &Agent) -> Vec<String> {
    let mut wrong = Vec::new();
    let pods = world.api.pods();
    let used: i64 = pods.iter().map(|p| granted(agent, p)).sum();
    if used > NODE_CPU {
        wrong.push(format!("{used} thousandths of {NODE_CPU} were granted"));
    }
    for pod in &pods {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let mut say = |text: String| wrong.push(format!("{name}: {text}"));
        let phase = pod.status.as_ref().and_then(|s| s.phase.clone()).unwrap_or_default();
        if phase == "Failed" {
            // The node was full when it came.
            continue;
        }
        let condition = |kind: &str| {
            let all = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
            all.filter(|c| c.type_ == kind).map(|c| c.reason.clone().unwrap_or_default()).next()
        };
        if let Some(reason) = condition("PodResizeInProgress") {
            say(format!("a resize is in progress still ({reason:?})"));
        }
        let desired: i64 = cpu(&pod.spec.clone().unwrap_or_default());
        let shown = shown_pod(agent, pod);
        match condition("PodResizePending") {
            None if shown.spec != pod.spec => {
                say("was not granted what it asks for, and does not say so".into())
            }
            None => {}
            Some(reason) if reason == "Deferred" && desired + used - granted(agent, pod) > NODE_CPU => {}
            Some(reason) => say(format!("{reason} although {desired} fit beside {used}")),
        }
        wrong.extend(unlike(world, &name, &shown));
    }
    wrong
}

/// The Pod with what its status says it was granted.
fn shown_pod(agent: &Agent, pod: &Pod) -> Pod {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let allocated = agent.node.records.allocated();
    let found = allocated.iter().find(|(of, _)| of.as_str() == uid);
    found.map_or_else(|| pod.clone(), |(_, r)| Pod::clone(&r.applied(&std::sync::Arc::new(pod.clone()))))
}

fn granted(agent: &Agent, pod: &Pod) -> i64 {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    if phase == Some("Failed") { 0 } else { cpu(&shown_pod(agent, pod).spec.unwrap_or_default()) }
}

fn cpu(spec: &PodSpec) -> i64 {
    spec.containers.iter().filter_map(|c| requests(c.resources.as_ref(), "cpu")).sum()
}

/// The runtime and the Pod's cgroup against what was granted; and who was started again without need.
fn unlike(world: &World, name: &str, granted: &Pod) -> Vec<String> {
    let mut wrong = Vec::new();
    let spec = granted.spec.clone().unwrap_or_default();
    let found: BTreeMap<String, Value> = world.runtime.resources(name);
    for c in &spec.containers {
        let Some(has) = found.get(&c.name) else {
            wrong.push(format!("{name}: {} does not run", c.name));
            continue;
        };
        let r = c.resources.as_ref();
        let of = |amount: Option<i64>| amount.unwrap_or(0);
        let want = json!({
            "shares": of(requests(r, "cpu")) * 1024 / 1000,
            "quota": of(limits(r, "cpu")) * 100,
            "memory": of(limits(r, "memory")),
        });
        if *has != want {
            wrong.push(format!("{name}: {} has {has} and should have {want}", c.name));
        }
    }
    let uid = granted.metadata.uid.as_deref().unwrap_or_default();
    let (want, disk) = (fakes::limits(granted), world.disk.lock());
    let has = disk.cgroups.iter().find(|(of, _)| of.as_str() == uid).map(|(_, l)| l.clone());
    let part = |l: &kubelet_core::cgroup::Limits| (l.cpu_shares, l.cpu_quota, l.memory);
    if has.as_ref().map(part) != Some(part(&want)) {
        wrong.push(format!("{name}: its cgroup has {has:?} and should have {want:?}"));
    }
    drop(disk);
    for c in spec.containers.iter().filter(|c| !restarts_for_memory(c)) {
        let journal = world.runtime.journal();
        let count = |op: fn(&Op) -> bool| journal.of(name, &c.name).filter(|e| op(&e.op)).count();
        let starts = count(|op| *op == Op::Start);
        let ends = count(|op| matches!(op, Op::Exit { .. }));
        if starts > ends + 1 {
            wrong.push(format!("{name}: {} was started {starts} times and ended {ends} times", c.name));
        }
    }
    wrong
}

fn restarts_for_memory(c: &Container) -> bool {
    let mut all = c.resize_policy.iter().flatten();
    all.any(|p| p.resource_name == "memory" && p.restart_policy == "RestartContainer")
}
