//! The real loops on a fake API server that refuses, forgets to answer, ends watches and is slow, with crashes in between.
//!
//! `LONGSHORE_SEEDS=2000` plays more stories, `LONGSHORE_SEED=17` only that one.
#![allow(clippy::unwrap_used)]

mod cluster;
mod server;

use base::rng::Rng;
use cluster::{Cluster, Story};

/// Stories played in the normal run.
const SEEDS: u64 = 300;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn every_story_ends_with_exactly_what_was_asked_for() {
    let seeds = match number("LONGSHORE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("LONGSHORE_SEEDS").unwrap_or(SEEDS),
    };
    for seed in seeds {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let story = Story::of(&mut Rng::new(seed));
        let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            runtime.block_on(Cluster::play(seed, story.clone()));
        }));
        assert!(played.is_ok(), "seed {seed}: {story:?}");
    }
}
