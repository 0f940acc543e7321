//! ImageService of the CRI over the content store.
//!
//! The store answers from memory, so what was pulled is listed at once, and what was removed at once no more. One pull of a
//! name runs at a time: another that comes meanwhile waits, and then finds the layers there.

mod answers;
mod archives;
mod deadline;
mod metrics;
mod pulls;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use api::image::Reference;
use cri::v1;
use cri::v1::image_service_server::ImageService;
use images::{Image, Store};
use registry::{Pull, Registries};
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

pub(crate) use metrics::Metrics;

/// Images in one message of a streamed list.
const PIECE: usize = 256;

/// What containers take beside their images.
pub(crate) trait UsedImages: Send + Sync + 'static {
    /// Of all writable layers: bytes and inodes.
    fn written(&self) -> (u64, u64);
}

/// Clones are the same.
#[derive(Clone)]
pub(crate) struct ImageServer(Arc<Inner>);

struct Inner {
    store: Store,
    registries: Registries,
    used: Arc<dyn UsedImages>,
    pulls: pulls::Pulls,
    /// One collection at a time.
    collecting: tokio::sync::Mutex<()>,
    /// Somebody asked for one that has not begun.
    is_collection_due: AtomicBool,
    metrics: Metrics,
}

// === impl ImageServer ===

impl ImageServer {
    pub(crate) fn new(store: Store, registries: Registries, used: Arc<dyn UsedImages>) -> ImageServer {
        ImageServer(Arc::new(Inner {
            store,
            registries,
            used,
            pulls: pulls::Pulls::default(),
            collecting: tokio::sync::Mutex::default(),
            is_collection_due: AtomicBool::new(false),
            metrics: Metrics::default(),
        }))
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Deletes the layers that nobody has any more, when there is time. A container that was removed may have been the
    /// last to have them.
    pub(crate) fn collect_soon(&self) {
        if self.0.is_collection_due.swap(true, Ordering::AcqRel) {
            // The one that waits for its turn sees what is there then.
            return;
        }
        let server = self.clone();
        supervise::spawn("image_layers_collector", async move {
            if let Err(error) = server.collect().await {
                tracing::warn!(%error, "layers that nobody has stay on the disk");
            }
        });
    }

    async fn collect(&self) -> Result<(), Status> {
        let _turn = self.0.collecting.lock().await;
        self.0.is_collection_due.store(false, Ordering::Release);
        let store = self.0.store.clone();
        on_disk(move || store.collect()).await
    }

    fn matching(&self, filter: Option<v1::ImageFilter>) -> Vec<v1::Image> {
        let wanted = filter.and_then(|filter| filter.image).map(|spec| spec.image).unwrap_or_default();
        let all = self.0.store.list();
        if wanted.is_empty() {
            return all.iter().map(|image| answers::image(image)).collect();
        }
        let found = self.0.store.find(&wanted).map(|image| image.id.clone());
        let is_wanted =
            |image: &&Arc<Image>| found.as_ref() == Some(&image.id) || answers::is_of(image, &wanted);
        all.iter().filter(is_wanted).map(|image| answers::image(image)).collect()
    }

    async fn pull(&self, spec: &v1::ImageSpec, auth: Option<v1::AuthConfig>) -> Result<Arc<Image>, Status> {
        let name = Reference::parse(&spec.image).map_err(|e| Status::invalid_argument(e.to_string()))?;
        let login = auth.and_then(|auth| answers::login(&auth, &name.domain)).transpose()?;
        let _turn = self.0.pulls.turn(&name.to_string()).await?;
        let pull = Pull { name: spec.image.clone(), login };
        self.0.registries.pull(&self.0.store, &pull).await.map_err(|error| answers::refusal(&error))
    }
}

#[tonic::async_trait]
impl ImageService for ImageServer {
    async fn list_images(
        &self,
        request: Request<v1::ListImagesRequest>,
    ) -> Result<Response<v1::ListImagesResponse>, Status> {
        let images = self.matching(request.into_inner().filter);
        Ok(Response::new(v1::ListImagesResponse { images }))
    }

    async fn stream_images(
        &self,
        request: Request<v1::StreamImagesRequest>,
    ) -> Result<Response<BoxStream<v1::StreamImagesResponse>>, Status> {
        let images = self.matching(request.into_inner().filter);
        let pieces: Vec<_> = images
            .chunks(PIECE)
            .map(|piece| Ok(v1::StreamImagesResponse { images: piece.to_vec() }))
            .collect();
        Ok(Response::new(Box::pin(futures_util::stream::iter(pieces))))
    }

    async fn image_status(
        &self,
        request: Request<v1::ImageStatusRequest>,
    ) -> Result<Response<v1::ImageStatusResponse>, Status> {
        let v1::ImageStatusRequest { image, verbose } = request.into_inner();
        let name = image.map(|spec| spec.image).unwrap_or_default();
        // No image is an answer, not an error.
        let Some(image) = self.0.store.find(&name) else {
            return Ok(Response::new(v1::ImageStatusResponse::default()));
        };
        let info =
            if verbose { answers::info(&image, self.0.store.config(&image.id)) } else { Default::default() };
        Ok(Response::new(v1::ImageStatusResponse { image: Some(answers::image(&image)), info }))
    }

    async fn pull_image(
        &self,
        request: Request<v1::PullImageRequest>,
    ) -> Result<Response<v1::PullImageResponse>, Status> {
        let (metadata, _, v1::PullImageRequest { image, auth, .. }) = request.into_parts();
        let limit = deadline::of(&metadata);
        let spec = image.filter(|spec| !spec.image.is_empty());
        let spec = spec.ok_or_else(|| Status::invalid_argument("image.image must not be empty"))?;
        let (begun, pulling) = (Instant::now(), self.0.metrics.pulling());
        let pulled = deadline::within(limit, self.pull(&spec, auth)).await;
        drop(pulling);
        let took = begun.elapsed();
        self.0.metrics.pulled(pulled.as_ref().map_or_else(Status::code, |_| tonic::Code::Ok), took);
        match pulled {
            Ok(image) => {
                tracing::info!(
                    image = spec.image,
                    id = image.id,
                    ms = took.as_millis(),
                    "an image was pulled"
                );
                Ok(Response::new(v1::PullImageResponse { image_ref: image.id.clone() }))
            }
            Err(status) => {
                tracing::info!(image = spec.image, error = status.message(), "an image was not pulled");
                Err(status)
            }
        }
    }

    async fn remove_image(
        &self,
        request: Request<v1::RemoveImageRequest>,
    ) -> Result<Response<v1::RemoveImageResponse>, Status> {
        let name = request.into_inner().image.map(|spec| spec.image).unwrap_or_default();
        if name.is_empty() {
            return Err(Status::invalid_argument("image.image must not be empty"));
        }
        let store = self.0.store.clone();
        on_disk(move || store.remove(&name)).await?;
        // Its layers are gone when the answer is there, so that who frees space sees what it has won.
        self.collect().await?;
        Ok(Response::new(v1::RemoveImageResponse {}))
    }

    async fn image_fs_info(
        &self,
        _: Request<v1::ImageFsInfoRequest>,
    ) -> Result<Response<v1::ImageFsInfoResponse>, Status> {
        let usage = self.0.store.usage();
        let place = self.0.store.root().to_owned();
        let (bytes, inodes) = self.0.used.written();
        Ok(Response::new(v1::ImageFsInfoResponse {
            image_filesystems: vec![file_system(place.clone(), usage.bytes, usage.inodes)],
            // The same place, so that a kubelet knows it for the same file system.
            container_filesystems: vec![file_system(place, bytes, inodes)],
        }))
    }
}

fn file_system(place: PathBuf, bytes: u64, inodes: u64) -> v1::FilesystemUsage {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    v1::FilesystemUsage {
        timestamp: i64::try_from(now.as_nanos()).unwrap_or(i64::MAX),
        fs_id: Some(v1::FilesystemIdentifier { mountpoint: place.to_string_lossy().into_owned() }),
        used_bytes: Some(v1::UInt64Value { value: bytes }),
        inodes_used: Some(v1::UInt64Value { value: inodes }),
    }
}

/// Work that waits for the disk.
async fn on_disk<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, images::Error> + Send + 'static,
) -> Result<T, Status> {
    match tokio::task::spawn_blocking(act).await {
        Ok(done) => done.map_err(|error| answers::refusal(&error.into())),
        // It panicked, or the process is ending.
        Err(error) => Err(Status::internal(error.to_string())),
    }
}
