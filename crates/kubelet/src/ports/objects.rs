//! What Pods refer to beyond their own object.

use std::collections::BTreeMap;

use async_trait::async_trait;
use base::ids::PodUid;
use k8s_openapi::api::core::v1::Pod;
use kubelet_core::references::{ReferencedObjects, References};
use tokio::sync::watch;

/// Objects of the API server, as Pods use them.
#[async_trait]
pub trait Objects: Send + Sync + 'static {
    /// Follows what the Pod refers to from now on; a later version of the Pod replaces the earlier one.
    fn follow(&self, pod: &Pod);
    /// The Pod is over.
    fn forget(&self, uid: &PodUid);
    /// Wakes whenever something the Pod refers to has changed.
    fn wake(&self, uid: &PodUid) -> watch::Receiver<u64>;
    /// What there is now of what is wanted. Waits a little for what has not been heard of yet.
    async fn supply(&self, pod: &Pod, wants: &References) -> ReferencedObjects;
    /// The variables that tell a Pod where Services are, or why they are not known.
    async fn service_env(&self, pod: &Pod) -> Result<BTreeMap<String, String>, String>;
    /// The runtime handler of a RuntimeClass.
    async fn runtime_handler(&self, class: &str) -> Result<String, String>;
}

/// Who Pods are, for credential providers that act for a service account.
#[async_trait]
pub trait Accounts: Send + Sync + 'static {
    /// The Pod's service account as it is now.
    async fn account(&self, pod: &Pod) -> Result<Account, String>;
    /// A token of that account for this audience, bound to the Pod.
    async fn token(&self, pod: &Pod, account_uid: &str, audience: &str) -> Result<String, String>;
}

/// A service account, as far as providers may know it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    pub uid: String,
    pub annotations: BTreeMap<String, String>,
}

/// A node without an API server: nothing exists, and a RuntimeClass is the name of its handler.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObjects;

#[async_trait]
impl Objects for NoObjects {
    fn follow(&self, _: &Pod) {}

    fn forget(&self, _: &PodUid) {}

    fn wake(&self, _: &PodUid) -> watch::Receiver<u64> {
        watch::channel(0).1
    }

    async fn supply(&self, _: &Pod, _: &References) -> ReferencedObjects {
        ReferencedObjects::default()
    }

    async fn service_env(&self, _: &Pod) -> Result<BTreeMap<String, String>, String> {
        Ok(BTreeMap::new())
    }

    async fn runtime_handler(&self, class: &str) -> Result<String, String> {
        Ok(class.to_owned())
    }
}
