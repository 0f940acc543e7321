//! A cluster in which a story happens: an API server, something like a kubelet, and controllers that crash.

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
use controllers_core::resource::Resource;
use controllers_core::table::CONTROLLERS;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::server::{Check, Server, Store};

/// What is asked for, what may never be seen, and how it ends.
pub(crate) trait Story: Send {
    /// The queues of the controllers that take part.
    fn queues(&self) -> &'static [&'static str];
    fn check(&self) -> Check;
    fn begin(&mut self, store: &mut Store);
    /// The user changes his mind.
    fn change(&mut self, store: &mut Store, rng: &mut Rng);
    /// A moment in the life of Pods.
    fn live(&self, store: &mut Store, rng: &mut Rng);
    /// Exactly what was asked for last; or what is not.
    fn is_as_asked(&self, store: &Store) -> Result<(), String>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happening {
    Change,
    Crash,
    /// Every watch ends and begins with a list.
    Expired,
}

struct Cluster {
    server: Arc<Server>,
    rng: Rng,
    clock: Arc<SimClock>,
    queues: &'static [&'static str],
    /// One instance of the program. What it knows goes with it.
    tasks: JoinSet<()>,
}

struct SimClock(Instant);

/// Long enough for whatever is tried again.
const END: Duration = Duration::from_mins(60);
/// Nothing may be written for so long once all is as it should be.
const QUIET: Duration = Duration::from_secs(20);

/// Plays a story to its end, with crashes, refusals, lost answers and watches that end; then looks whether the end is one.
pub(crate) async fn play(mut story: Box<dyn Story>, rng: &mut Rng) {
    let server = Arc::new(Server::new(rng.child()));
    let clock = Arc::new(SimClock(Instant::now()));
    let mut cluster =
        Cluster { server, rng: rng.child(), clock, queues: story.queues(), tasks: JoinSet::new() };
    let count = 1 + rng.below(6);
    let trouble = [0.0, 0.02, 0.15][rng.below(3) as usize];
    {
        let mut store = cluster.server.store();
        store.check = story.check();
        story.begin(&mut store);
    }
    cluster.start();
    if rng.chance(0.5) {
        cluster.settle(&*story).await;
    }
    cluster.server.store().trouble = trouble;
    for _ in 0..count {
        cluster.live_for(rng.up_to(Duration::from_secs(8)), &*story).await;
        let what = match rng.below(4) {
            0 => Happening::Crash,
            1 => Happening::Expired,
            _ => Happening::Change,
        };
        match what {
            Happening::Change => story.change(&mut cluster.server.store(), rng),
            Happening::Crash => cluster.crash().await,
            Happening::Expired => cluster.server.store().log.clear(),
        }
    }
    cluster.server.store().trouble = 0.0;
    cluster.settle(&*story).await;
    cluster.stay(&*story, "it is settled").await;
    cluster.crash().await;
    cluster.stay(&*story, "a new process has come to the same end").await;
}

// === impl Cluster ===

impl Cluster {
    /// Waits for the end that was asked for; nobody may have to wait for ever.
    async fn settle(&mut self, story: &dyn Story) {
        let until = Instant::now() + END;
        loop {
            self.live_for(Duration::from_secs(1), story).await;
            let store = self.server.store();
            let Err(why) = story.is_as_asked(&store) else { return };
            assert!(Instant::now() < until, "it never comes to an end: {why}");
        }
    }

    /// Once all is as it should be, nobody writes.
    async fn stay(&mut self, story: &dyn Story, why: &str) {
        // What was on its way may still come.
        self.live_for(Duration::from_secs(3), story).await;
        let revision = self.server.store().revision;
        self.live_for(QUIET, story).await;
        let store = self.server.store();
        let written: Vec<String> = store
            .log
            .iter()
            .filter(|(at, ..)| *at > revision)
            .map(|(_, resource, is_gone, value)| {
                format!("{resource} {} {is_gone}", value["metadata"]["name"])
            })
            .collect();
        assert!(store.revision == revision, "{why}, and yet: {written:?}");
        if let Err(wrong) = story.is_as_asked(&store) {
            panic!("{why}, and yet: {wrong}");
        }
    }

    async fn live_for(&mut self, time: Duration, story: &dyn Story) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            let pause = self.rng.up_to(Duration::from_millis(300)).min(until - Instant::now());
            tokio::time::sleep(pause).await;
            let mut store = self.server.store();
            store.now = 1000 + self.clock.0.elapsed().as_secs();
            story.live(&mut store, &mut self.rng);
            assert!(store.broken.is_empty(), "{:?}", store.broken);
        }
    }

    async fn crash(&mut self) {
        self.tasks.shutdown().await;
        self.start();
    }

    fn start(&mut self) {
        let rows: Vec<&'static Row> =
            CONTROLLERS.iter().filter(|row| self.queues.contains(&row.queue)).collect();
        assert_eq!(rows.len(), self.queues.len(), "a queue that nobody has");
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
            for _ in 0..(one.row().workers)(&shared.tuning).min(3) {
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
    let changed = server.store().news.clone();
    loop {
        let change = changed.notified();
        if server.store().revision == seen {
            change.await;
        }
        tokio::time::sleep(rng.up_to(Duration::from_millis(120))).await;
        let (listed, news, revision) = {
            let store = server.store();
            let is_gone =
                store.log.first().is_none_or(|(first, ..)| *first > seen + 1) && store.revision > seen;
            if seen == 0 || is_gone {
                let all = store.of(resource).map(|(_, value)| raw(value)).collect::<Vec<_>>();
                (Some(all), Vec::new(), store.revision)
            } else {
                let first = store.log.partition_point(|(at, ..)| *at <= seen);
                let mine = store.log[first..].iter().filter(|(_, known, ..)| *known == resource);
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
