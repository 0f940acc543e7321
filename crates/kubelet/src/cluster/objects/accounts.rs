//! Service accounts and their tokens, for credential providers.

use async_trait::async_trait;
use client::Request;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kubelet_core::references::TokenWant;

use super::ApiObjects;
use crate::ports::{Account, Accounts};

/// What the API server gives to one who does not say.
const TOKEN_SECONDS: i64 = 3600;

#[async_trait]
impl Accounts for ApiObjects {
    /// Read each time, as upstream does: images are pulled seldom, and annotations decide about access.
    async fn account(&self, pod: &Pod) -> Result<Account, String> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let name = pod.spec.as_ref().and_then(|s| s.service_account_name.as_deref()).unwrap_or_default();
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}");
        let found: ServiceAccount =
            self.cluster.client.ask(Request::get(path)).await.map_err(|e| e.to_string())?;
        let meta = found.metadata;
        Ok(Account { uid: meta.uid.unwrap_or_default(), annotations: meta.annotations.unwrap_or_default() })
    }

    async fn token(&self, pod: &Pod, account_uid: &str, audience: &str) -> Result<String, String> {
        let want = TokenWant { audience: audience.to_owned(), seconds: TOKEN_SECONDS };
        self.tokens.get_of(pod, account_uid, &want).await
    }
}
