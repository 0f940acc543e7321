//! RuntimeClasses: watched from the first Pod on that names one, so that its sandbox can be made again while the API
//! server is away.

use base::rng::Rng;
use client::Client;
use k8s_openapi::api::node::v1::RuntimeClass;
use tokio_util::sync::CancellationToken;

use super::listed::Listed;

/// Handlers by the name of their class.
pub(super) struct Classes(Listed<RuntimeClass, String>);

// === impl Classes ===

impl Classes {
    pub(super) fn new(client: Client, rng: Rng, token: CancellationToken) -> Self {
        Self(Listed::new(client, "/apis/node.k8s.io/v1/runtimeclasses", |class| class.handler, rng, token))
    }

    /// The runtime's name for the class, or why there is none, in upstream's words.
    pub(super) async fn handler(&self, class: &str) -> Result<String, String> {
        let known = self.0.all().await.ok_or("RuntimeClasses have not yet been read")?;
        known.get(class).cloned().ok_or_else(|| format!("RuntimeClass {class:?} not found"))
    }
}
