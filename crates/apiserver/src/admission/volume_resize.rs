//! PersistentVolumeClaimResize: a claim grows only where its class says that it may.

use apiserver_core::admission::{Operation, Review};
use base::quantity::Quantity;
use serde_json::Value;

use super::Chain;
use crate::objects::places;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::doc;

pub(super) async fn validate(chain: &Chain, review: &Review<'_>, claim: &Value) -> Result<(), ApiStatus> {
    let Some(old) = review.old else { return Ok(()) };
    if !review.is_on("", "persistentvolumeclaims") || review.operation != Operation::Update {
        return Ok(());
    }
    let size = |claim: &Value| doc::text(claim, "spec.resources.requests.storage").parse::<Quantity>().ok();
    match (size(claim), size(old)) {
        (Some(new), Some(old)) if new > old => {}
        _ => return Ok(()),
    }
    if doc::text(old, "status.phase") != "Bound" {
        return Err(review.forbid(claim, "Only bound persistent volume claims can be expanded"));
    }
    let class = doc::text(claim, "spec.storageClassName");
    let found = chain.objects.find(places::STORAGE_CLASSES, "", class).await?;
    if found.is_some_and(|class| doc::is_true(&class.object, "allowVolumeExpansion")) {
        return Ok(());
    }
    let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must \
               support resize";
    Err(review.forbid(claim, why))
}
