//! A story: a Deployment, a user who changes his mind, a kubelet, and controllers that crash.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use api::config::controllers::Tuning;
use base::rng::Rng;
use base::time::{Clock, Mono, Now, Wall};
use client::Piece;
use controllers::control_loop::{ControlLoop, Shared};
use controllers::metrics::Metrics;
use controllers::recorder::Recorder;
use controllers::resource_informer::ResourceInformer;
use controllers_core::cache::Cache;
use controllers_core::controller::Row;
use controllers_core::resource::{DEPLOYMENTS, PODS, REPLICA_SETS, Resource};
use controllers_core::table::CONTROLLERS;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::server::{Server, Store};

/// What happens.
#[derive(Clone, Debug)]
pub(crate) struct Story {
    replicas: i64,
    surge: i64,
    unavailable: i64,
    trouble: f64,
    /// New templates and crashes, with the pause before each.
    acts: Vec<(Duration, Happening)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happening {
    NewTemplate,
    Crash,
    /// Every watch ends and begins with a list.
    Expired,
}

pub(crate) struct Cluster {
    server: Arc<Server>,
    rng: Rng,
    clock: Arc<SimClock>,
    tasks: JoinSet<()>,
}

struct SimClock(Instant);

/// One instance of the program. What it knows goes with it.
const LOOPS: [&str; 2] = ["deployment", "replicaset"];

// === impl Story ===

impl Story {
    pub(crate) fn of(rng: &mut Rng) -> Story {
        let replicas = 1 + rng.below(8).cast_signed();
        let surge = rng.below(3).cast_signed();
        let unavailable = if surge == 0 { 1 } else { rng.below(2).cast_signed() };
        let count = 1 + rng.below(6);
        let mut acts = Vec::new();
        for _ in 0..count {
            let what = match rng.below(4) {
                0 => Happening::Crash,
                1 => Happening::Expired,
                _ => Happening::NewTemplate,
            };
            acts.push((rng.up_to(Duration::from_secs(8)), what));
        }
        let trouble = [0.0, 0.02, 0.15][rng.below(3) as usize];
        Story { replicas, surge, unavailable, trouble, acts }
    }

    fn deployment(&self, version: usize) -> Value {
        json!({"metadata": {"name": "d"}, "spec": {
            "replicas": self.replicas, "selector": {"matchLabels": {"app": "a"}}, "revisionHistoryLimit": 2,
            "strategy": {"type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": self.surge, "maxUnavailable": self.unavailable}},
            "template": template(version)}})
    }
}

fn template(version: usize) -> Value {
    json!({"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": format!("v{version}")}]}})
}

// === impl Cluster ===

impl Cluster {
    pub(crate) async fn play(seed: u64, story: Story) {
        let mut rng = Rng::new(seed ^ 0x5eed);
        let server = Arc::new(Server::new(rng.child()));
        let clock = Arc::new(SimClock(Instant::now()));
        let mut cluster = Cluster { server, rng, clock, tasks: JoinSet::new() };
        let mut around = JoinSet::new();
        around.spawn(kubelet(cluster.server.clone(), cluster.rng.child()));
        cluster.start();
        cluster.server.store().create(DEPLOYMENTS, story.deployment(0)).unwrap();
        cluster.settle(&story, 0).await;
        {
            let mut store = cluster.server.store();
            store.trouble = story.trouble;
        }
        let mut version = 0;
        for (pause, what) in &story.acts {
            tokio::time::sleep(*pause).await;
            match what {
                Happening::NewTemplate => {
                    version += 1;
                    let mut store = cluster.server.store();
                    let mut object = store.objects[&(DEPLOYMENTS, "d".to_owned())].clone();
                    object["spec"]["template"] = template(version);
                    let generation = object["metadata"]["generation"].as_i64().unwrap();
                    object["metadata"]["generation"] = json!(generation + 1);
                    store.put(DEPLOYMENTS, "d", object);
                }
                Happening::Crash => {
                    cluster.tasks.shutdown().await;
                    cluster.start();
                }
                Happening::Expired => cluster.server.store().log.clear(),
            }
        }
        cluster.server.store().trouble = 0.0;
        cluster.settle(&story, version).await;
    }

    /// Waits for the end that was asked for; nobody may have to wait for ever.
    async fn settle(&self, story: &Story, version: usize) {
        let until = Instant::now() + Duration::from_secs(1800);
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let store = self.server.store();
            assert!(store.broken.is_empty(), "{:?}", store.broken);
            let Err(why) = store.is_as_asked(story, version) else { return };
            assert!(Instant::now() < until, "it never comes to an end: {why}");
        }
    }

    fn start(&mut self) {
        let rows: Vec<&'static Row> = CONTROLLERS.iter().filter(|row| LOOPS.contains(&row.queue)).collect();
        let resources: BTreeSet<Resource> = rows.iter().flat_map(|row| row.resources()).collect();
        let cache = Arc::new(Cache::new(resources.iter().copied()));
        let (recorder, mut teller) = Recorder::new(self.server.clone(), self.clock.clone());
        let shared = Shared {
            cache: cache.clone(),
            clock: self.clock.clone(),
            metrics: Metrics::default(),
            recorder,
            tuning: Arc::new(Tuning::default()),
        };
        let run = |row: &&'static Row| Arc::new(ControlLoop::new(row, shared.clone(), self.server.clone()));
        let loops: Vec<Arc<ControlLoop>> = rows.iter().map(run).collect();
        self.tasks.spawn(async move { teller.run().await });
        for resource in resources {
            let informer = ResourceInformer::new(resource, cache.clone(), &loops);
            self.tasks.spawn(watch(self.server.clone(), resource, informer, self.rng.child()));
        }
        for one in loops {
            for _ in 0..3 {
                let one = one.clone();
                self.tasks.spawn(async move {
                    one.begin().await;
                    one.work().await;
                });
            }
        }
    }
}

impl Clock for SimClock {
    fn now(&self) -> Now {
        let elapsed = self.0.elapsed();
        let wall = Wall::from_secs(1000).0 + i64::try_from(elapsed.as_nanos()).unwrap();
        Now { mono: Mono(elapsed), wall: Wall(wall) }
    }
}

fn raw(value: &Value) -> Box<RawValue> {
    RawValue::from_string(value.to_string()).unwrap()
}

/// Lists, then tells what happened, late. When the log does not go back so far, it lists again.
async fn watch(server: Arc<Server>, resource: Resource, mut informer: ResourceInformer, mut rng: Rng) {
    let mut seen = 0;
    loop {
        tokio::time::sleep(rng.up_to(Duration::from_millis(120))).await;
        let (listed, news, revision) = {
            let store = server.store();
            let is_gone =
                store.log.first().is_none_or(|(first, ..)| *first > seen + 1) && store.revision > seen;
            if seen == 0 || is_gone {
                (
                    Some(store.of(resource).map(|(_, value)| raw(value)).collect::<Vec<_>>()),
                    Vec::new(),
                    store.revision,
                )
            } else {
                let later = store.log.iter().filter(|(at, ..)| *at > seen);
                let mine = later.filter(|(_, known, ..)| *known == resource);
                let news: Vec<_> = mine.map(|(at, _, is_gone, value)| (*at, *is_gone, raw(value))).collect();
                (None, news, store.revision)
            }
        };
        if let Some(items) = listed {
            informer.take(Piece::Begin, 0);
            items.into_iter().for_each(|item| _ = informer.take(Piece::Item(item), 0));
            informer.take(Piece::End, revision);
        }
        for (at, is_gone, value) in news {
            tokio::time::sleep(rng.up_to(Duration::from_millis(20))).await;
            informer.take(if is_gone { Piece::Deleted(value) } else { Piece::Applied(value) }, at);
        }
        informer.take(Piece::Bookmark, revision);
        seen = revision;
    }
}

/// Makes Pods ready after a while, and ends those that are deleted.
async fn kubelet(server: Arc<Server>, mut rng: Rng) {
    loop {
        tokio::time::sleep(rng.up_to(Duration::from_millis(300))).await;
        let mut store = server.store();
        store.now += 1;
        let time = store.time();
        let pods: Vec<(String, Value)> = store
            .of(PODS)
            .map(|(name, value)| (name.clone(), value.clone()))
            .filter(|_| rng.chance(0.5))
            .collect();
        for (name, mut pod) in pods {
            if !pod["metadata"]["deletionTimestamp"].is_null() {
                store.remove(PODS, &name);
            } else if pod["status"]["phase"].is_null() {
                pod["spec"]["nodeName"] = json!("node");
                pod["status"] = json!({"phase": "Running",
                    "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": time}]});
                store.put(PODS, &name, pod);
            }
        }
    }
}

// === impl Store ===

/// What Pods of a set count.
fn is_active(pod: &Value) -> bool {
    pod["metadata"]["deletionTimestamp"].is_null()
}

impl Store {
    /// What may never be seen, at any revision.
    pub(crate) fn check(&mut self) {
        let Some((_, deployment)) = self.of(DEPLOYMENTS).next() else { return };
        let spec = &deployment["spec"];
        let number = |value: &Value| value.as_i64().unwrap_or(0);
        let rolling = &spec["strategy"]["rollingUpdate"];
        let (replicas, surge) = (number(&spec["replicas"]), number(&rolling["maxSurge"]));
        let asked: i64 = self.of(REPLICA_SETS).map(|(_, set)| number(&set["spec"]["replicas"])).sum();
        let mut broken = Vec::new();
        if asked > replicas + surge {
            broken.push(format!("{asked} Pods are asked for, {replicas} and {surge} more are allowed"));
        }
        for (name, set) in self.of(REPLICA_SETS) {
            let own = self
                .of(PODS)
                .filter(|(_, pod)| pod["metadata"]["ownerReferences"][0]["uid"] == set["metadata"]["uid"]);
            let active = own.filter(|(_, pod)| is_active(pod)).count();
            if active as i64 > replicas {
                broken.push(format!("{name} has {active} Pods, and there may be {replicas} in all"));
            }
        }
        let ready =
            self.of(PODS).filter(|(_, pod)| is_active(pod) && pod["status"]["phase"] == "Running").count()
                as i64;
        let least = replicas - number(&rolling["maxUnavailable"]);
        // From the first time that all were there.
        let is_up = deployment["status"]["availableReplicas"].as_i64().is_some_and(|n| n >= least);
        if is_up && ready < least {
            broken.push(format!("{ready} Pods are available, {least} are promised"));
        }
        self.broken.extend(broken);
    }

    /// Exactly what was asked for: in Pods, in ReplicaSets, and in what the Deployment says of itself.
    fn is_as_asked(&self, story: &Story, version: usize) -> Result<(), String> {
        let image = format!("v{version}");
        let pods: Vec<&Value> = self.of(PODS).map(|(_, pod)| pod).collect();
        let right = pods.iter().filter(|pod| pod["spec"]["containers"][0]["image"] == image.as_str()).count();
        if (pods.len() as i64, right as i64) != (story.replicas, story.replicas) {
            return Err(format!("{} Pods, {right} of the last template", pods.len()));
        }
        let is_owned = |pod: &&&Value| {
            let uid = &pod["metadata"]["ownerReferences"][0]["uid"];
            self.of(REPLICA_SETS).any(|(_, set)| set["metadata"]["uid"] == *uid)
        };
        if pods.iter().filter(is_owned).count() != pods.len() {
            return Err("an orphan is left".to_owned());
        }
        let Some((_, deployment)) = self.of(DEPLOYMENTS).next() else { return Err("it is gone".to_owned()) };
        let status = &deployment["status"];
        for what in ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"] {
            if status[what] != story.replicas {
                return Err(format!("{what} is {}", status[what]));
            }
        }
        if status["observedGeneration"] != deployment["metadata"]["generation"] {
            return Err("the generation is not observed".to_owned());
        }
        let sets = self.of(REPLICA_SETS).count();
        if sets > 3 { Err(format!("{sets} ReplicaSets, two old ones may stay")) } else { Ok(()) }
    }
}
