//! image: the content of an OCI image, read-only, mounted by the runtime.

use k8s_openapi::api::core::v1::Volume;

use super::{Context, Source};

pub(super) fn read(_: &Context<'_>, volume: &Volume) -> Option<Result<Source, String>> {
    let image = volume.image.as_ref()?;
    Some(match image.reference.as_deref().filter(|r| !r.is_empty()) {
        Some(reference) => Ok(Source::Image { reference: reference.to_owned() }),
        None => Err("an image volume needs a reference".into()),
    })
}
