//! All objects of a kind, by name: watched from the first question on, and known while the API server is away.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use base::rng::Rng;
use client::{Client, Event, Resource, Watcher};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How long whoever asks waits for the first list.
const FIRST_LIST: Duration = Duration::from_secs(5);

type Known<T> = BTreeMap<String, T>;

/// What of an object is kept, with its name.
type Decode<T> = fn(&str) -> Option<(String, T)>;

pub(super) struct Listed<T> {
    client: Client,
    path: &'static str,
    decode: Decode<T>,
    seed: u64,
    token: CancellationToken,
    /// None before the first list.
    known: OnceLock<watch::Receiver<Option<Known<T>>>>,
}

// === impl Listed ===

impl<T: Clone + Send + Sync + 'static> Listed<T> {
    pub(super) fn new(
        client: Client,
        path: &'static str,
        decode: Decode<T>,
        mut rng: Rng,
        token: CancellationToken,
    ) -> Self {
        Self { client, path, decode, seed: rng.next_u64(), token, known: OnceLock::new() }
    }

    /// None where the first list does not come.
    pub(super) async fn all(&self) -> Option<Known<T>> {
        let mut known = self.known.get_or_init(|| self.watch()).clone();
        let listed = tokio::time::timeout(FIRST_LIST, known.wait_for(Option::is_some)).await;
        listed.ok()?.ok()?.clone()
    }

    fn watch(&self) -> watch::Receiver<Option<Known<T>>> {
        let (writer, reader) = watch::channel(None);
        let mut watcher = Watcher::new(self.client.clone(), Resource::new(self.path), Rng::new(self.seed));
        let (decode, token) = (self.decode, self.token.clone());
        tokio::spawn(async move {
            while let Some(event) = token.run_until_cancelled(watcher.next()).await {
                writer.send_modify(|known| take(known, &event, decode));
            }
        });
        reader
    }
}

fn take<T>(known: &mut Option<Known<T>>, event: &Event, decode: Decode<T>) {
    match event {
        Event::Listed(all) => *known = Some(all.iter().filter_map(|raw| decode(raw.get())).collect()),
        Event::Applied(raw) => known.get_or_insert_default().extend(decode(raw.get())),
        Event::Deleted(raw) => {
            if let (Some(known), Some((name, _))) = (known, decode(raw.get())) {
                known.remove(&name);
            }
        }
    }
}
