//! ClusterTrustBundles: watched from the first Pod on that wants one.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::json::FromJson;
use base::rng::Rng;
use client::{Client, Event, Resource, Watcher};
use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use kubelet_core::supplies::TrustBundle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How long a Pod waits for the first list.
const FIRST_LIST: Duration = Duration::from_secs(5);

type Known = BTreeMap<String, Arc<TrustBundle>>;

pub(super) struct Bundles {
    client: Client,
    seed: u64,
    token: CancellationToken,
    /// None before the first list.
    known: OnceLock<watch::Receiver<Option<Known>>>,
}

// === impl Bundles ===

impl Bundles {
    pub(super) fn new(client: Client, mut rng: Rng, token: CancellationToken) -> Self {
        Self { client, seed: rng.next_u64(), token, known: OnceLock::new() }
    }

    pub(super) async fn all(&self) -> Result<Vec<Arc<TrustBundle>>, String> {
        let mut known = self.known.get_or_init(|| self.watch()).clone();
        let listed = tokio::time::timeout(FIRST_LIST, known.wait_for(Option::is_some)).await;
        match listed {
            Ok(Ok(known)) => Ok(known.iter().flat_map(BTreeMap::values).cloned().collect()),
            _ => Err("ClusterTrustBundle informer has not yet synced".to_owned()),
        }
    }

    fn watch(&self) -> watch::Receiver<Option<Known>> {
        let (writer, reader) = watch::channel(None);
        let resource = Resource::new("/apis/certificates.k8s.io/v1beta1/clustertrustbundles");
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

fn decode(json: &str) -> Option<(String, Arc<TrustBundle>)> {
    let object = ClusterTrustBundle::from_json(json.as_bytes()).ok()?;
    let name = object.metadata.name?;
    let bundle = TrustBundle {
        name: name.clone(),
        signer: object.spec.signer_name.unwrap_or_default(),
        labels: object.metadata.labels.unwrap_or_default(),
        pem: object.spec.trust_bundle,
    };
    Some((name, Arc::new(bundle)))
}
