//! ClusterTrustBundles: watched from the first Pod on that wants one.

use std::sync::Arc;

use base::rng::Rng;
use client::Client;
use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use kubelet_core::references::TrustBundle;
use tokio_util::sync::CancellationToken;

use super::listed::Listed;

pub(super) struct Bundles(Listed<ClusterTrustBundle, Arc<TrustBundle>>);

// === impl Bundles ===

impl Bundles {
    pub(super) fn new(client: Client, rng: Rng, token: CancellationToken) -> Self {
        let path = "/apis/certificates.k8s.io/v1beta1/clustertrustbundles";
        Self(Listed::new(client, path, keep, rng, token))
    }

    pub(super) async fn all(&self) -> Result<Vec<Arc<TrustBundle>>, String> {
        let known = self.0.all().await.ok_or("ClusterTrustBundle informer has not yet synced")?;
        Ok(known.into_values().collect())
    }
}

fn keep(object: ClusterTrustBundle) -> Arc<TrustBundle> {
    Arc::new(TrustBundle {
        name: object.metadata.name.unwrap_or_default(),
        signer: object.spec.signer_name.unwrap_or_default(),
        labels: object.metadata.labels.unwrap_or_default(),
        pem: object.spec.trust_bundle,
    })
}
