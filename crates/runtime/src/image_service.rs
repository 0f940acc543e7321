//! ImageService of the CRI over the content store.

use std::sync::Arc;

use cri::v1;
use cri::v1::image_service_server::ImageService;
use images::Store;
use registry::Registries;
use tonic::{Request, Response, Status};

/// What containers take beside their images.
pub(crate) trait UsedImages: Send + Sync + 'static {
    /// Of all writable layers: bytes and inodes.
    fn written(&self) -> (u64, u64);
}

#[derive(Clone)]
pub(crate) struct ImageServer {
    store: Store,
    registries: Registries,
    used: Arc<dyn UsedImages>,
}

impl ImageServer {
    pub(crate) fn new(store: Store, registries: Registries, used: Arc<dyn UsedImages>) -> ImageServer {
        ImageServer { store, registries, used }
    }
}

#[tonic::async_trait]
impl ImageService for ImageServer {
    async fn list_images(
        &self,
        _: Request<v1::ListImagesRequest>,
    ) -> Result<Response<v1::ListImagesResponse>, Status> {
        let _ = (&self.registries, self.used.written(), self.store.list());
        Err(Status::unimplemented("images"))
    }
}
