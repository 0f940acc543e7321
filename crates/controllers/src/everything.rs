//! List and watch of the metadata of all objects of all kinds, for the garbage collector.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::rng::Rng;
use client::{Client, Piece, Request, Watcher};
use controllers_core::ownership::{Known, News, Served, collectable, served};
use futures_util::future::{AbortHandle, BoxFuture, abortable};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use serde_json::value::RawValue;
use supervise::Supervisor;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::control_loop::ControlLoop;

/// How often the API server is asked what it serves, as upstream's collector does it.
const PERIOD: Duration = Duration::from_secs(30);
/// What cannot be listed by then is not waited for.
const SYNC_TIMEOUT: Duration = Duration::from_secs(30);
const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The watches that run.
struct Watches {
    client: Client,
    rng: Rng,
    heard_by: Arc<ControlLoop>,
    /// By group and plural: what ends the watch.
    running: BTreeMap<(String, String), AbortHandle>,
    tasks: FuturesUnordered<BoxFuture<'static, ()>>,
}

/// Starts the task that watches. After a panic it begins with lists.
pub(crate) fn watch(
    heard_by: &Arc<ControlLoop>,
    client: &Client,
    rng: Rng,
    supervisor: &Supervisor,
    token: &CancellationToken,
) {
    let (heard_by, client, token) = (heard_by.clone(), client.clone(), token.clone());
    supervisor.restart("watch of all metadata", move || {
        let watches = Watches {
            client: client.clone(),
            rng: rng.clone(),
            heard_by: heard_by.clone(),
            running: BTreeMap::new(),
            tasks: FuturesUnordered::new(),
        };
        let token = token.clone();
        async move { token.run_until_cancelled(watches.run()).await.unwrap_or(()) }
    });
}

// === impl Watches ===

impl Watches {
    async fn run(mut self) {
        let enough_at = Instant::now() + SYNC_TIMEOUT;
        let mut is_enough = false;
        let mut next = ask(self.client.clone(), Duration::ZERO).boxed();
        loop {
            tokio::select! {
                found = &mut next => {
                    match found {
                        Ok(all) => self.follow(all),
                        Err(why) => tracing::warn!(why, "cannot learn what the API server serves"),
                    }
                    next = ask(self.client.clone(), PERIOD).boxed();
                }
                Some(()) = self.tasks.next(), if !self.tasks.is_empty() => {}
                () = tokio::time::sleep_until(enough_at), if !is_enough => {
                    is_enough = true;
                    self.heard_by.hear(News::Enough);
                }
            }
        }
    }

    /// Begins to watch what is new, and ends what is not served any more.
    fn follow(&mut self, all: Vec<Served>) {
        let all: Vec<Arc<Served>> = all.into_iter().map(Arc::new).collect();
        let wanted = collectable(&all);
        self.running.retain(|(group, plural), handle| {
            let is_wanted = wanted.iter().any(|served| served.group == *group && served.plural == *plural);
            if !is_wanted {
                handle.abort();
            }
            is_wanted
        });
        self.heard_by.hear(News::Served(all));
        for served in wanted {
            let id = (served.group.clone(), served.plural.clone());
            if self.running.contains_key(&id) {
                continue;
            }
            let path = client::Resource::new(served.path(""));
            let watcher = Watcher::new(self.client.clone(), path, self.rng.child());
            let watcher = watcher.from_store().metadata_only();
            let (task, handle) = abortable(tell(watcher, served, self.heard_by.clone()));
            self.tasks.push(task.map(drop).boxed());
            self.running.insert(id, handle);
        }
    }
}

/// What is served, both of the core group and of the others. Half an answer is none: what is missing would seem to be gone.
async fn ask(client: Client, after: Duration) -> Result<Vec<Served>, String> {
    tokio::time::sleep(after).await;
    let mut all = Vec::new();
    for path in ["/api", "/apis"] {
        let answer = client.ask_bytes(Request::get(path).accepting(DISCOVERY)).await;
        let answer = answer.map_err(|error| error.to_string())?;
        all.extend(served(&answer).ok_or_else(|| format!("{path}: no aggregated discovery"))?);
    }
    Ok(all)
}

/// Tells what is seen of one resource; never ends.
async fn tell(mut watcher: Watcher, served: Arc<Served>, to: Arc<ControlLoop>) {
    let (mut listing, mut is_whole) = (Vec::new(), true);
    loop {
        let known = |raw: &RawValue| Known::read(raw.get().as_bytes());
        let is_known = match watcher.next_piece().await {
            Piece::Begin => {
                listing.clear();
                is_whole = true;
                true
            }
            Piece::Item(raw) => {
                let known = known(&raw);
                is_whole &= known.is_some();
                let is_known = known.is_some();
                listing.extend(known);
                is_known
            }
            Piece::End => {
                let all = std::mem::take(&mut listing);
                match is_whole {
                    true => to.hear(News::Listed(served.clone(), all)),
                    // Nobody knows what is gone.
                    false => all.into_iter().for_each(|known| to.hear(News::Seen(served.clone(), known))),
                }
                true
            }
            Piece::Applied(raw) => {
                let known = known(&raw);
                let is_known = known.is_some();
                known.into_iter().for_each(|known| to.hear(News::Seen(served.clone(), known)));
                is_known
            }
            Piece::Deleted(raw) => {
                let known = known(&raw);
                let is_known = known.is_some();
                known.into_iter().for_each(|known| to.hear(News::Gone(known.uid.into())));
                is_known
            }
            Piece::Bookmark => true,
        };
        if !is_known {
            watcher.list_again();
        }
    }
}
