//! What the loops need of an API server.

use bytes::Bytes;
use controllers_core::plan::{Act, WriteError};
use controllers_core::resource::Resource;

/// An API server, for the controllers of this process.
#[async_trait::async_trait]
pub trait Api: Send + Sync + 'static {
    /// Carries out one request. The answer is the object as it is now, where there is one.
    async fn act(&self, act: &Act) -> Result<Bytes, WriteError>;

    /// The revision of a resource at this moment, from the store and not from a cache.
    async fn revision(&self, resource: Resource) -> Result<u64, WriteError>;
}
