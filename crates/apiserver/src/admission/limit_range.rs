//! LimitRanger: reads the LimitRanges of the namespace for `apiserver_core::admission::limit_range`.

use std::sync::Arc;

use apiserver_core::admission::Review;
use apiserver_core::admission::limit_range::{self, bounds, completes};
use apiserver_core::api_status::ApiStatus;
use serde_json::Value;

use super::Chain;
use crate::objects::places;

pub(super) async fn mutate(chain: &Chain, review: &Review<'_>, object: &mut Value) -> Result<(), ApiStatus> {
    if completes(review) {
        limit_range::mutate(&ranges(chain, review).await?, object);
    }
    Ok(())
}

pub(super) async fn validate(chain: &Chain, review: &Review<'_>, object: &Value) -> Result<(), ApiStatus> {
    if bounds(review) { limit_range::validate(&ranges(chain, review).await?, review, object) } else { Ok(()) }
}

async fn ranges(chain: &Chain, review: &Review<'_>) -> Result<Vec<Arc<Value>>, ApiStatus> {
    let all = chain.objects.list(places::LIMIT_RANGES, review.namespace()).await?;
    Ok(all.into_iter().map(|s| s.object).collect())
}
