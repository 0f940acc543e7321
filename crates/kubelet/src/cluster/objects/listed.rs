//! All objects of a kind, by name: watched from the first question on, and known while the API server is away.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use api::json::FromJson;
use base::rng::Rng;
use client::{Client, Event, Read, Watcher};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{Metadata, Resource};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How long whoever asks waits for the first list.
const FIRST_LIST: Duration = Duration::from_secs(5);

type Known<T> = BTreeMap<String, T>;

/// What is kept of an object.
type Keep<O, T> = fn(O) -> T;

/// Of each object `O` a `T` is kept.
pub(super) struct Listed<O, T> {
    client: Client,
    path: &'static str,
    keep: Keep<O, T>,
    seed: u64,
    token: CancellationToken,
    /// None before the first list.
    known: OnceLock<watch::Receiver<Option<Known<T>>>>,
}

// === impl Listed ===

impl<O, T> Listed<O, T>
where
    O: FromJson + Resource + Metadata<Ty = ObjectMeta> + 'static,
    T: Clone + Send + Sync + 'static,
{
    pub(super) fn new(
        client: Client,
        path: &'static str,
        keep: Keep<O, T>,
        mut rng: Rng,
        token: CancellationToken,
    ) -> Self {
        Self { client, path, keep, seed: rng.next_u64(), token, known: OnceLock::new() }
    }

    /// None where the first list does not come.
    pub(super) async fn all(&self) -> Option<Known<T>> {
        let mut known = self.known.get_or_init(|| self.watch()).clone();
        let listed = tokio::time::timeout(FIRST_LIST, known.wait_for(Option::is_some)).await;
        listed.ok()?.ok()?.clone()
    }

    fn watch(&self) -> watch::Receiver<Option<Known<T>>> {
        let (writer, reader) = watch::channel(None);
        let client = self.client.clone();
        let mut watcher = Watcher::new(client.clone(), client::Resource::new(self.path), Rng::new(self.seed));
        let (keep, token) = (self.keep, self.token.clone());
        supervise::spawn("watch of a kind", async move {
            while let Some(event) = token.run_until_cancelled(watcher.next()).await {
                let mut is_whole = true;
                writer.send_modify(|known| is_whole = take(known, &event, &client, keep));
                if !is_whole {
                    watcher.list_again();
                }
            }
        });
        reader
    }
}

/// False where nobody knows which object was told of.
fn take<O, T>(known: &mut Option<Known<T>>, event: &Event, client: &Client, keep: Keep<O, T>) -> bool
where
    O: FromJson + Resource + Metadata<Ty = ObjectMeta>,
{
    let name = |object: &O| object.metadata().name.clone().unwrap_or_default();
    let mut has_nameless = false;
    match event {
        Event::Listed(all) => {
            let (mut last, mut now) = (known.take().unwrap_or_default(), Known::new());
            for raw in all {
                match client.read::<O>(raw) {
                    Read::Whole(object) => _ = now.insert(name(&object), keep(object)),
                    // What was known of it, or what there is.
                    Read::Part(object) => {
                        let name = name(&object);
                        now.insert(name.clone(), last.remove(&name).unwrap_or_else(|| keep(object)));
                    }
                    Read::Nothing => has_nameless = true,
                }
            }
            if has_nameless {
                last.extend(now);
                now = last;
            }
            *known = Some(now);
        }
        Event::Applied(raw) => {
            let known = known.get_or_insert_default();
            match client.read::<O>(raw) {
                Read::Whole(object) => _ = known.insert(name(&object), keep(object)),
                Read::Part(object) => _ = known.entry(name(&object)).or_insert_with(|| keep(object)),
                Read::Nothing => has_nameless = true,
            }
        }
        Event::Deleted(raw) => {
            if let (Some(known), Some(object)) = (known, client.read::<O>(raw).any()) {
                known.remove(&name(&object));
            }
        }
    }
    !has_nameless
}
