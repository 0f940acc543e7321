//! Pod cgroups, left to the runtime.

use async_trait::async_trait;
use base::ids::PodUid;
use k8s_openapi::api::core::v1::Pod;

use crate::ports::Cgroups;

/// Every container lands below the runtime's own default parent.
#[derive(Clone, Copy, Debug)]
pub struct RuntimeCgroups;

#[async_trait]
impl Cgroups for RuntimeCgroups {
    async fn ensure(&self, _: &Pod) -> std::io::Result<String> {
        Ok(String::new())
    }

    async fn remove(&self, _: &PodUid) -> std::io::Result<()> {
        Ok(())
    }
}
