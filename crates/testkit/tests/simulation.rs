//! The kubelet against a world where everything goes wrong, over and over.
//!
//! `LONGSHORE_SEEDS=100000` plays more stories; `LONGSHORE_SEED=n` replays one and prints its log.

mod stories;

use std::sync::{Mutex, Once, PoisonError};
use std::thread::{self, ThreadId};
use std::{env, panic};

use std::time::Duration;
use testkit::sim::{
    Outcome, crash_at_every_effect, killed_at_any_moment_of_a_resize, resized_while_nothing_is_written,
    run_cluster_seed, run_resize_seed, run_seed, shrunk_while_in_use,
};

use stories::play;

/// Stories in a normal run: of a node alone, and of one in a cluster.
const SEEDS: u64 = 2000;
const CLUSTER_SEEDS: u64 = 500;
const RESIZE_SEEDS: u64 = 80;

fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

fn report(outcome: &Outcome, seed: u64, test: &str) -> String {
    let tail = outcome.log.len().saturating_sub(400);
    format!(
        "seed {seed}:\n  {}\nreplay: LONGSHORE_SEED={seed} cargo test -p testkit --test simulation {test}\n{}",
        outcome.wrong.join("\n  "),
        outcome.log[tail..].join("\n")
    )
}

/// Plays every eighth story from `first` on: one test each, so that the cores share the work.
fn stories(first: u64) {
    play_all(first, SEEDS, "stories_0", |seed| play(run_seed(seed)));
}

fn cluster_stories(first: u64) {
    play_all(first, CLUSTER_SEEDS, "clusters_0", |seed| play(run_cluster_seed(seed)));
}

fn resize_stories(first: u64) {
    play_all(first, RESIZE_SEEDS, "resizes_0", |seed| play(run_resize_seed(seed)));
}

/// Panics that nobody has asked for yet, each with the thread it happened on: a story has one. A task that panics is started
/// again, and the end of its story may look well.
static PANICS: Mutex<Vec<(ThreadId, String)>> = Mutex::new(Vec::new());
static HOOK: Once = Once::new();

fn listen_for_panics() {
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let panic = (thread::current().id(), info.to_string());
            PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(panic);
            usual(info);
        }));
    });
}

fn panics_of_this_story() -> Vec<String> {
    let mut all = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
    let ours = all.extract_if(.., |(thread, _)| *thread == thread::current().id());
    ours.map(|(_, panic)| panic).collect()
}

fn play_all(first: u64, usual: u64, test: &str, story: impl Fn(u64) -> Outcome) {
    listen_for_panics();
    let tell = |seed: u64| {
        let mut outcome = story(seed);
        outcome.wrong.extend(panics_of_this_story());
        assert!(outcome.wrong.is_empty(), "{}", report(&outcome, seed, test));
    };
    match number("LONGSHORE_SEED") {
        Some(seed) => tell(seed),
        None => (first..number("LONGSHORE_SEEDS").unwrap_or(usual)).step_by(8).for_each(tell),
    }
}

macro_rules! shards {
    ($play:ident: $($name:ident $first:literal)*) => {$(
        #[test]
        fn $name() {
            $play($first);
        }
    )*};
}

shards! { stories: stories_0 0 stories_1 1 stories_2 2 stories_3 3 stories_4 4 stories_5 5 stories_6 6 stories_7 7 }
shards! { cluster_stories: clusters_0 0 clusters_1 1 clusters_2 2 clusters_3 3 clusters_4 4 clusters_5 5 clusters_6 6 clusters_7 7 }
shards! { resize_stories: resizes_0 0 resizes_1 1 resizes_2 2 resizes_3 3 resizes_4 4 resizes_5 5 resizes_6 6 resizes_7 7 }

#[test]
fn an_agent_killed_at_any_moment_of_a_resize_finishes_it() {
    for seed in 0..2 {
        let (step, span) = (Duration::from_millis(10), Duration::from_millis(250));
        let wrong = play(killed_at_any_moment_of_a_resize(seed, step, span));
        assert!(wrong.is_empty(), "seed {seed}:\n{}", wrong.join("\n"));
    }
}

#[test]
fn a_resize_that_nobody_can_write_down_is_made_once() {
    for seed in 0..10 {
        let wrong = play(resized_while_nothing_is_written(seed));
        assert!(wrong.is_empty(), "seed {seed}:\n{}", wrong.join("\n"));
    }
}

#[test]
fn a_cgroup_that_could_not_shrink_follows_when_it_can() {
    for (seed, is_killed) in (0..20).flat_map(|seed| [(seed, false), (seed, true)]) {
        let wrong = play(shrunk_while_in_use(seed, is_killed));
        assert!(wrong.is_empty(), "seed {seed}, killed {is_killed}:\n{}", wrong.join("\n"));
    }
}

#[test]
fn an_agent_killed_at_any_effect_changes_nothing() {
    for seed in 0..5 {
        let wrong = play(crash_at_every_effect(seed));
        assert!(wrong.is_empty(), "seed {seed}:\n{}", wrong.join("\n"));
    }
}
