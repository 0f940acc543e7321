//! Events are news: they go when they are old.

use std::time::Duration;

use crate::registry::Registry;
use crate::registry::selection::{Selection, split_key};

/// How often old Events are looked for.
const PERIOD: Duration = Duration::from_secs(60);

/// Removes Events that did not change for `ttl`.
pub(crate) async fn run(registry: Registry, ttl: Duration) {
    // The store knows no time of change; a mark per period says which revisions are old.
    let mut marks = std::collections::VecDeque::new();
    let periods = usize::try_from(ttl.as_secs().div_ceil(PERIOD.as_secs())).unwrap_or(usize::MAX).max(1);
    loop {
        marks.push_back(registry.store().revision());
        tokio::time::sleep(PERIOD).await;
        if marks.len() <= periods {
            continue;
        }
        let Some(old) = marks.pop_front() else { continue };
        if let Err(refusal) = sweep(&registry, old).await {
            tracing::warn!(error = %refusal.message, "old Events not removed");
        }
    }
}

async fn sweep(registry: &Registry, old: u64) -> Result<(), crate::refusal::Refusal> {
    let kind = registry.kind("", "v1", "events")?;
    let mut lister = registry.list(Selection::all(kind.clone()), &Default::default()).await?;
    while let Some(page) = lister.next_page().await? {
        for document in page.into_iter().filter(|d| d.rev <= old) {
            let (namespace, name) = split_key(&document.key, true);
            registry.remove(&kind, namespace, name, document.rev).await?;
        }
    }
    Ok(())
}
