//! RuntimeClasses: watched from the first Pod on that names one, so that its sandbox can be made again while the API
//! server is away.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use api::json::FromJson;
use base::rng::Rng;
use client::{Client, Event, Resource, Watcher};
use k8s_openapi::api::node::v1::RuntimeClass;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How long a sandbox waits for the first list.
const FIRST_LIST: Duration = Duration::from_secs(5);

/// Handlers by the name of their class.
type Known = BTreeMap<String, String>;

pub(super) struct Classes {
    client: Client,
    seed: u64,
    token: CancellationToken,
    /// None before the first list.
    known: OnceLock<watch::Receiver<Option<Known>>>,
}

// === impl Classes ===

impl Classes {
    pub(super) fn new(client: Client, mut rng: Rng, token: CancellationToken) -> Self {
        Self { client, seed: rng.next_u64(), token, known: OnceLock::new() }
    }

    /// The runtime's name for the class, or why there is none, in upstream's words.
    pub(super) async fn handler(&self, class: &str) -> Result<String, String> {
        let mut known = self.known.get_or_init(|| self.watch()).clone();
        let listed = tokio::time::timeout(FIRST_LIST, known.wait_for(Option::is_some)).await;
        let Ok(Ok(known)) = listed else { return Err("RuntimeClasses have not yet been read".to_owned()) };
        let handler = known.as_ref().and_then(|all| all.get(class).cloned());
        handler.ok_or_else(|| format!("RuntimeClass {class:?} not found"))
    }

    fn watch(&self) -> watch::Receiver<Option<Known>> {
        let (writer, reader) = watch::channel(None);
        let resource = Resource::new("/apis/node.k8s.io/v1/runtimeclasses");
        let mut watcher = Watcher::new(self.client.clone(), resource, Rng::new(self.seed));
        let token = self.token.clone();
        tokio::spawn(async move {
            while let Some(event) = token.run_until_cancelled(watcher.next()).await {
                writer.send_modify(|known| take(known, &event));
            }
        });
        reader
    }
}

fn take(known: &mut Option<Known>, event: &Event) {
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

fn decode(json: &str) -> Option<(String, String)> {
    let class = RuntimeClass::from_json(json.as_bytes()).ok()?;
    Some((class.metadata.name?, class.handler))
}
