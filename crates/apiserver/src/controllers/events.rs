//! Events are news: they go when they are old.

use std::time::Duration;

use base::time::Wall;
use serde_json::Value;
use tokio::time::Instant;

use crate::registry::Registry;
use apiserver_core::doc;
use apiserver_core::selection::{Selection, split_key};

/// How often old Events are looked for, at most and at least.
const PERIODS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// What was there when the server started: it says itself how old it is.
#[derive(Clone, Copy, Debug)]
struct Inherited {
    rev: u64,
    wall: Wall,
    since: Instant,
}

/// Removes Events that did not change for `ttl`.
pub(crate) async fn run(registry: Registry, ttl: Duration) {
    let inherited =
        Inherited { rev: registry.store().revision(), wall: registry.now(), since: Instant::now() };
    let period = (ttl / 10).clamp(PERIODS.0, PERIODS.1);
    // The store knows no time of change; a mark per period says which revisions are old.
    let mut marks = std::collections::VecDeque::new();
    let periods = usize::try_from(ttl.as_millis().div_ceil(period.as_millis())).unwrap_or(usize::MAX).max(1);
    loop {
        marks.push_back(registry.store().revision());
        tokio::time::sleep(period).await;
        let old = if marks.len() > periods { marks.pop_front() } else { None };
        if let Err(api_status) = sweep(&registry, old.unwrap_or_default(), inherited, ttl).await {
            tracing::warn!(error = %api_status.message, "old Events not removed");
        }
    }
}

async fn sweep(
    registry: &Registry,
    old: u64,
    inherited: Inherited,
    ttl: Duration,
) -> Result<(), apiserver_core::api_status::ApiStatus> {
    let kind = registry.kind("", "v1", "events")?;
    let mut lister = registry.list(Selection::all(kind.clone()), &Default::default()).await?;
    while let Some(page) = lister.next_page().await? {
        for document in page {
            let is_old = document.rev <= old
                || (document.rev <= inherited.rev && inherited.is_over(&document.to_value(), ttl));
            if is_old {
                let (namespace, name) = split_key(&document.key, true);
                registry.remove(&kind, namespace, name, document.rev).await?;
            }
        }
    }
    Ok(())
}

/// When an Event was last written, as far as it tells.
fn last_written(event: &Value) -> Option<i64> {
    let writes = doc::list(event, "metadata.managedFields").iter().map(|entry| doc::text(entry, "time"));
    let said = ["metadata.creationTimestamp", "lastTimestamp", "eventTime", "series.lastObservedTime"];
    let times = writes.chain(said.into_iter().map(|path| doc::text(event, path)));
    times.filter_map(|text| text.parse::<jiff::Timestamp>().ok()).map(|t| t.as_second()).max()
}

// === impl Inherited ===

impl Inherited {
    /// The wall clock is read once, at the start: one that is set later ends nothing early.
    fn is_over(self, event: &Value, ttl: Duration) -> bool {
        let now = self.wall.secs() + i64::try_from(self.since.elapsed().as_secs()).unwrap_or(i64::MAX);
        let ttl = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
        last_written(event).is_none_or(|at| now.saturating_sub(at) >= ttl)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[tokio::test(start_paused = true)]
    async fn what_was_there_before_the_start_ages_on() {
        let inherited = Inherited { rev: 9, wall: Wall::from_secs(10_000), since: Instant::now() };
        let event = json!({
            "metadata": {"creationTimestamp": "1970-01-01T02:00:00Z", "managedFields": [{"time": "1970-01-01T02:30:00Z"}]},
            "lastTimestamp": null, "eventTime": "1970-01-01T02:00:00.000001Z",
        });
        assert_eq!(last_written(&event), Some(9_000));
        let hour = Duration::from_secs(3600);
        assert!(!inherited.is_over(&event, hour));
        tokio::time::advance(Duration::from_secs(2_600)).await;
        assert!(inherited.is_over(&event, hour));
        assert!(inherited.is_over(&json!({}), hour), "what tells nothing is not kept for ever");
    }
}
