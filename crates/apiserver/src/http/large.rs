//! Requests with large bodies are worked on away from the event loops.
//!
//! What a request costs grows with its body, and some of it faster than the body: a list that is merged, validated and owned
//! item by item. On a loop it would hold up every other connection there, handshakes and health checks included.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::answer::Answer;
use super::asking::Asking;
use super::body::{self, Body};
use super::{App, verbs};
use apiserver_core::api_status::ApiStatus;

/// Bodies from this size on. Most objects are smaller.
const LARGE: u64 = 32 * 1024;
/// As many at a time. They share the processors with the loops; the others wait without holding up anybody.
const AT_ONCE: usize = 4;

/// Who works on large requests at the moment.
#[derive(Debug)]
pub struct Large(Arc<Semaphore>);

impl Default for Large {
    fn default() -> Large {
        Large(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

/// Serves a request for a resource that was authorized.
pub(super) async fn serve(app: &Arc<App>, asking: Asking, body: Body) -> Result<Answer, ApiStatus> {
    if body.most() < LARGE || asking.leads_on() {
        return verbs::serve(app, asking, body).await;
    }
    // A client that sends slowly has no place yet.
    let whole = Body::Whole(body::read(body, app.timeouts.body).await?);
    let gone = || ApiStatus::internal("the request was given up");
    let place = app.large.0.clone().acquire_owned().await.map_err(|_| gone())?;
    let (app, handle) = (app.clone(), Handle::current());
    let working = tokio::task::spawn_blocking(move || {
        let _place = place;
        handle.block_on(verbs::serve(&app, asking, whole))
    });
    working.await.unwrap_or_else(|_| Err(gone()))
}
