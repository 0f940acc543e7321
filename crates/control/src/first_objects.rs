//! What every cluster has from its first second.

use serde_json::json;

use crate::refusal::Refusal;
use crate::registry::{Call, Registry};

const NAMESPACES: &[&str] = &["kube-system", "kube-public", "kube-node-lease", "default"];

/// Makes what is missing.
pub async fn ensure(registry: &Registry) -> Result<(), Refusal> {
    let kind = registry.kind("", "v1", "namespaces")?;
    for name in NAMESPACES {
        if registry.find(&kind, "", name).await?.is_some() {
            continue;
        }
        let mut call = Call::internal(kind.clone(), "create", "", name);
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        registry.create(&mut call, namespace).await?;
    }
    Ok(())
}
