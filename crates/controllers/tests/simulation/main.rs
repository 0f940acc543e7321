//! The real loops on a fake API server that refuses, forgets to answer, ends watches and is slow, with crashes in between.
//!
//! `LONGSHORE_SEEDS=20000` plays more stories, `LONGSHORE_SEED=17` only that one.
#![allow(clippy::unwrap_used)]

mod cluster;
mod server;
mod stories;

use base::rng::Rng;

/// Stories played in the normal run.
const SEEDS: u64 = 2000;
/// They are played in so many tests, so that the cores share the work.
const PARTS: u64 = 8;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn play(seed: u64) -> Result<(), String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let mut rng = Rng::new(seed);
    let (name, story) = stories::of(seed, &mut rng);
    let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        runtime.block_on(cluster::play(story, &mut rng));
    }));
    played.map_err(|_| format!("seed {seed}, {name}"))
}

/// Every eighth story from this one on. All of them end with exactly what was asked for, and then nobody writes any more.
fn stories(first: u64) {
    let seeds = match number("LONGSHORE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("LONGSHORE_SEEDS").unwrap_or(SEEDS),
    };
    let mine = seeds.filter(|seed| seed % PARTS == first);
    let failed: Vec<String> = mine.filter_map(|seed| play(seed).err()).take(3).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn stories_0() {
    stories(0);
}

#[test]
fn stories_1() {
    stories(1);
}

#[test]
fn stories_2() {
    stories(2);
}

#[test]
fn stories_3() {
    stories(3);
}

#[test]
fn stories_4() {
    stories(4);
}

#[test]
fn stories_5() {
    stories(5);
}

#[test]
fn stories_6() {
    stories(6);
}

#[test]
fn stories_7() {
    stories(7);
}
