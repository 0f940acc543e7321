//! ClusterTrustBundles: watched from the first Pod on that wants one.

use std::sync::Arc;

use api::json::FromJson;
use base::rng::Rng;
use client::Client;
use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use kubelet_core::supplies::TrustBundle;
use tokio_util::sync::CancellationToken;

use super::listed::Listed;

pub(super) struct Bundles(Listed<Arc<TrustBundle>>);

// === impl Bundles ===

impl Bundles {
    pub(super) fn new(client: Client, rng: Rng, token: CancellationToken) -> Self {
        let path = "/apis/certificates.k8s.io/v1beta1/clustertrustbundles";
        Self(Listed::new(client, path, decode, rng, token))
    }

    pub(super) async fn all(&self) -> Result<Vec<Arc<TrustBundle>>, String> {
        let known = self.0.all().await.ok_or("ClusterTrustBundle informer has not yet synced")?;
        Ok(known.into_values().collect())
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
