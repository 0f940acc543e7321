//! A task that is started again whenever it panicked.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::panics::report;

/// First and longest pause before a task is started again.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// A task that ran this long was healthy: its next panic begins with a short pause again.
const HEALTHY: Duration = Duration::from_secs(60);

/// Runs what `make` makes, and again after each panic, until it returns. The token ends the pause between two starts; what
/// runs ends by itself. `is_down` is told when such a pause begins and ends.
pub(crate) async fn restarting<M, F>(
    name: &'static str,
    mut make: M,
    token: CancellationToken,
    is_down: impl Fn(bool),
) where
    M: FnMut() -> F,
    F: Future<Output = ()>,
{
    let mut pause = PAUSE_MIN;
    loop {
        let started = Instant::now();
        // `make` itself may panic.
        if report(name, async { make().await }).await.is_some() {
            return;
        }
        if started.elapsed() >= HEALTHY {
            pause = PAUSE_MIN;
        }
        is_down(true);
        let waited = token.run_until_cancelled(tokio::time::sleep(pause)).await;
        is_down(false);
        if waited.is_none() {
            return;
        }
        tracing::warn!(task = name, "A task is started again");
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
