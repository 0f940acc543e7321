//! Server-side apply.

use serde_json::Value;

use super::{Registry, Written};
use apiserver_core::api_status::ApiStatus;
use apiserver_core::call::Call;
use apiserver_core::managed_fields::{lay, read_config};
use apiserver_core::meta;

impl Registry {
    /// Server-side apply: the body says all that its manager wants of the object.
    pub(super) async fn apply(&self, call: &mut Call, sent: &Value) -> Result<Written, ApiStatus> {
        let config = read_config(call, sent)?;
        call.applied = true;
        let now = meta::timestamp(self.now());
        // Somebody may create or delete the object while we look.
        for _ in 0..4 {
            if self.find(&call.kind, call.namespace(), call.name()).await?.is_some() {
                let modified = self.modify(call, &mut |call, old| lay(call, Some(old), &config, &now)).await;
                match modified {
                    Err(api_status) if api_status.is_not_found() => continue,
                    outcome => return outcome,
                }
            }
            if !call.subresource().is_empty() || !meta::uid(&config).is_empty() {
                return Err(ApiStatus::not_found(&call.kind, call.name()));
            }
            let object = lay(call, None, &config, &now)?;
            match self.create(call, object).await {
                Err(api_status) if api_status.is_already_exists() => {}
                outcome => return outcome,
            }
        }
        Err(ApiStatus::modified(&call.kind, call.name()))
    }
}
