//! An idle agent holds no more memory than idling takes.
//!
//! Starting Pods touches megabytes of code and frees many small pieces of heap; once the node is quiet, both are handed
//! back (docs/decisions/009.md).

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::pods::status_board::StatusBoard;

/// Quiet for this long is idle.
const QUIET: Duration = Duration::from_secs(15);

/// As long as the quiet lasts, what was touched by the way is let go this often.
const AGAIN: Duration = Duration::from_secs(10);

/// Gives memory back when the Pods have come to rest, and while they rest.
pub async fn run(board: Arc<StatusBoard>, token: CancellationToken) {
    let mut changed = board.subscribe();
    let mut wait = QUIET;
    loop {
        let news = tokio::select! {
            () = token.cancelled() => return,
            news = tokio::time::timeout(wait, changed.changed()) => news,
        };
        match news {
            Ok(Ok(())) => wait = QUIET,
            Ok(Err(_)) => return token.cancelled().await,
            Err(_) => {
                give_back().await;
                wait = AGAIN;
            }
        }
    }
}

/// Does so off the loop.
pub async fn give_back() {
    match tokio::task::spawn_blocking(sys::memory::release).await {
        Ok(Ok(bytes)) => tracing::debug!(bytes, "gave memory back"),
        Ok(Err(error)) => tracing::debug!(%error, "memory not given back"),
        Err(error) => tracing::warn!(%error, "giving memory back failed"),
    }
}
