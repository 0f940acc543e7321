//! Tasks that panic, return and hang, under a paused clock.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use supervise::{Failure, PANICS, Supervisor};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const MINUTE: Duration = Duration::from_secs(60);

/// A supervisor with its agent's token.
fn supervisor() -> (Supervisor, CancellationToken) {
    let token = CancellationToken::new();
    (Supervisor::new(token.clone()), token)
}

#[tokio::test(start_paused = true)]
async fn a_task_that_panics_is_named_counted_and_started_again_after_longer_and_longer_pauses() {
    let (supervisor, _token) = supervisor();
    let starts = Arc::new(std::sync::Mutex::new(Vec::new()));
    let begun = Instant::now();
    let seen = starts.clone();
    supervisor.restart("flaky", move || {
        let seen = seen.clone();
        async move {
            let mut seen = seen.lock().unwrap();
            seen.push(begun.elapsed().as_secs());
            let count = seen.len();
            drop(seen);
            assert!(count == 5, "on purpose");
        }
    });
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(supervisor.down(), ["flaky"], "the second start failed too, and the pause is longer");
    tokio::time::sleep(MINUTE).await;
    assert_eq!(*starts.lock().unwrap(), [0, 1, 3, 7, 15]);
    assert_eq!((supervisor.down(), PANICS.of("flaky")), (vec![], 4));
    let mut text = String::new();
    supervise::write_metrics(&mut text).unwrap();
    assert!(text.contains("longshore_task_panics_total{task=\"flaky\"} 4"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn after_a_healthy_time_the_pause_is_short_again() {
    let (supervisor, _token) = supervisor();
    let starts = Arc::new(AtomicU32::new(0));
    let counted = starts.clone();
    supervisor.restart("old", move || {
        counted.fetch_add(1, Ordering::Relaxed);
        async {
            tokio::time::sleep(MINUTE).await;
            panic!("on purpose");
        }
    });
    // One minute and one second each, however often it panics.
    tokio::time::sleep(Duration::from_secs(10 * 61 + 1)).await;
    assert_eq!(starts.load(Ordering::Relaxed), 11);
}

#[tokio::test(start_paused = true)]
async fn an_essential_task_that_panics_or_returns_ends_the_agent() {
    for (task, want) in [(true, Failure::Panicked("rights")), (false, Failure::Ended("rights"))] {
        let (supervisor, token) = supervisor();
        supervisor.essential("rights", async move { assert!(!task, "on purpose") });
        token.cancelled().await;
        assert_eq!(supervisor.failure(), Some(want));
    }
}

#[tokio::test(start_paused = true)]
async fn an_essential_task_that_ends_with_the_agent_is_no_failure() {
    let (supervisor, token) = supervisor();
    let waits = token.clone();
    supervisor.essential("rights", async move { waits.cancelled().await });
    supervisor.stop(MINUTE).await;
    assert_eq!(supervisor.failure(), None);
}

#[tokio::test(start_paused = true)]
async fn stopping_waits_for_who_ends_and_aborts_who_does_not() {
    let (supervisor, token) = supervisor();
    let ended = Arc::new(AtomicU32::new(0));
    let counted = ended.clone();
    supervisor.once("tidy", async move {
        token.cancelled().await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        counted.fetch_add(1, Ordering::Relaxed);
    });
    supervisor.once("hung", std::future::pending());
    let begun = Instant::now();
    supervisor.stop(Duration::from_secs(10)).await;
    assert_eq!((ended.load(Ordering::Relaxed), begun.elapsed()), (1, Duration::from_secs(10)));
}

#[tokio::test(start_paused = true)]
async fn a_task_that_waits_to_be_started_again_ends_with_the_agent() {
    let (supervisor, token) = supervisor();
    supervisor.restart("broken", || async { panic!("on purpose") });
    tokio::time::sleep(MINUTE).await;
    token.cancel();
    let begun = Instant::now();
    supervisor.stop(MINUTE).await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn a_task_that_ends_by_itself_tells_who_waits() {
    assert_eq!(supervise::spawn("good", async { 7 }).await.unwrap(), Some(7));
    let panicked = supervise::spawn("bad", async { assert_eq!(1, 2, "on purpose") }).await.unwrap();
    assert_eq!((panicked, PANICS.of("bad")), (None, 1));
}

#[tokio::test(start_paused = true)]
async fn a_lasting_task_is_started_again_after_a_panic_and_ends_the_agent_when_it_returns() {
    let (supervisor, token) = supervisor();
    let starts = Arc::new(AtomicU32::new(0));
    let counted = starts.clone();
    supervisor.lasting("lease", counted, |counted, _| {
        let start = counted.fetch_add(1, Ordering::Relaxed);
        async move { assert!(start == 2, "on purpose") }
    });
    token.cancelled().await;
    assert_eq!(supervisor.failure(), Some(Failure::Ended("lease")));
    assert_eq!(starts.load(Ordering::Relaxed), 3);
}

#[tokio::test(start_paused = true)]
async fn a_lasting_task_that_ends_with_the_agent_is_no_failure() {
    let (supervisor, _token) = supervisor();
    supervisor.lasting("lease", (), |(), token| async move { token.cancelled().await });
    assert_eq!((supervisor.stop(MINUTE).await, supervisor.failure()), (0, None));
}

#[tokio::test(start_paused = true)]
async fn every_start_is_told_of_and_may_be_made_to_panic() {
    let starts = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = starts.clone();
    let token = CancellationToken::new();
    let supervisor = Supervisor::watched(
        token.clone(),
        Arc::new(move |name| {
            let mut seen = seen.lock().unwrap();
            seen.push(name);
            let is_first = seen.iter().filter(|seen| **seen == name).count() == 1;
            drop(seen);
            assert!(!is_first, "on purpose");
        }),
    );
    supervisor.restart("first", || async {});
    tokio::time::sleep(MINUTE).await;
    supervisor.essential("second", async {});
    token.cancelled().await;
    assert_eq!(*starts.lock().unwrap(), ["first", "first", "second"]);
    assert_eq!(supervisor.failure(), Some(Failure::Panicked("second")));
}

#[tokio::test(start_paused = true)]
async fn a_task_without_a_supervisor_is_started_again_until_its_token_is_cancelled() {
    let token = CancellationToken::new();
    let starts = Arc::new(AtomicU32::new(0));
    let counted = starts.clone();
    let task = supervise::spawn_restarting("watch", token.clone(), move || {
        let start = counted.fetch_add(1, Ordering::Relaxed);
        async move {
            assert!(start > 0, "on purpose");
            std::future::pending().await
        }
    });
    tokio::time::sleep(MINUTE).await;
    assert_eq!((starts.load(Ordering::Relaxed), PANICS.of("watch")), (2, 1));
    token.cancel();
    task.await.unwrap();
}
