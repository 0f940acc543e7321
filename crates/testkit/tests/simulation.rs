//! The kubelet against a world where everything goes wrong, over and over.
//!
//! `LONGSHORE_SEEDS=100000` plays more stories; `LONGSHORE_SEED=n` replays one and prints its log.

use std::env;

use testkit::sim::{Outcome, crash_at_every_effect, run_seed};

/// Stories in a normal run.
const SEEDS: u64 = 2000;

fn play<T>(story: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(story)
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

fn report(outcome: &Outcome, seed: u64) -> String {
    let tail = outcome.log.len().saturating_sub(400);
    format!(
        "seed {seed}:\n  {}\nreplay: LONGSHORE_SEED={seed} cargo test -p testkit --test simulation stories_0\n{}",
        outcome.wrong.join("\n  "),
        outcome.log[tail..].join("\n")
    )
}

/// Plays every eighth story from `first` on: one test each, so that the cores share the work.
fn stories(first: u64) {
    if let Some(seed) = number("LONGSHORE_SEED") {
        let outcome = play(run_seed(seed));
        assert!(outcome.wrong.is_empty(), "{}", report(&outcome, seed));
        return;
    }
    let seeds = number("LONGSHORE_SEEDS").unwrap_or(SEEDS);
    for seed in (first..seeds).step_by(8) {
        let outcome = play(run_seed(seed));
        assert!(outcome.wrong.is_empty(), "{}", report(&outcome, seed));
    }
}

macro_rules! shards {
    ($($name:ident $first:literal)*) => {$(
        #[test]
        fn $name() {
            stories($first);
        }
    )*};
}

shards! { stories_0 0 stories_1 1 stories_2 2 stories_3 3 stories_4 4 stories_5 5 stories_6 6 stories_7 7 }

#[test]
fn an_agent_killed_at_any_effect_changes_nothing() {
    for seed in 0..5 {
        let wrong = play(crash_at_every_effect(seed));
        assert!(wrong.is_empty(), "seed {seed}:\n{}", wrong.join("\n"));
    }
}
