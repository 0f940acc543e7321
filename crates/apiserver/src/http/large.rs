//! Large requests: those with a large body, and those that change a large object.
//!
//! What a request costs grows with its body and with the object it changes, and some of it faster: a list that is merged,
//! validated and owned item by item. On an event loop it would hold up every other connection there, handshakes and health checks
//! included. So it is done elsewhere, few at a time, and what is kept for it has its part of the room.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::answer::Answer;
use super::asking::Asking;
use super::body::{self, Body};
use super::room::{LARGE, Room, WAIT};
use super::{App, verbs};
use apiserver_core::api_status::ApiStatus;

/// As many at a time, half of them for one user. They share the processors with the loops, and each takes many times the
/// memory of its object; the others wait without holding up anybody.
const AT_ONCE: usize = 4;
/// Bytes of bodies, objects and answers that are large, from when they begin to arrive until the last is sent.
const BYTES: usize = 16 * body::LIMIT;

/// Who sends large requests at the moment, who is worked for, and who has not read his answer.
#[derive(Debug)]
pub struct Large {
    pub(super) room: Room,
    places: Room,
}

impl Default for Large {
    fn default() -> Large {
        Large { room: Room::new(BYTES), places: Room::new(AT_ONCE) }
    }
}

/// Serves a request for a resource that was authorized.
pub(super) async fn serve(app: &Arc<App>, asking: Asking, body: Body) -> Result<Answer, ApiStatus> {
    if asking.leads_on() {
        return verbs::serve(app, asking, body).await;
    }
    if matches!(&*asking.attributes.verb, "get" | "list" | "watch") {
        // Nobody reads it, so it is not waited for.
        return verbs::serve(app, asking, Body::Whole(bytes::Bytes::new())).await;
    }
    // Small bodies need no room, and who does not say how large his is may yet have a small one.
    let body = if body.says_size() { body } else { body.begin(LARGE, app.timeouts.body).await? };
    let arriving = usize::try_from(body.most()).unwrap_or(body::LIMIT).min(body::LIMIT);
    let weight = arriving + changed(app, &asking).await;
    if weight < LARGE {
        return verbs::serve(app, asking, body).await;
    }
    let user = asking.attributes.user.clone();
    let part = app.large.room.take(&user, weight, WAIT).await?;
    // A client that sends slowly has no place yet.
    let whole = Body::Whole(body::read(body, app.timeouts.body).await?);
    let place = app.large.places.take(&user, 1, Duration::MAX).await?;
    let (app, handle) = (app.clone(), Handle::current());
    let working = tokio::task::spawn_blocking(move || {
        // Here to the end, even if the client does not wait for it.
        let _place = place;
        let answer = handle.block_on(verbs::serve(&app, asking, whole))?;
        Ok(part.keep_answer(answer))
    });
    working.await.unwrap_or_else(|_| Err(ApiStatus::internal("the request was given up")))
}

/// Bytes of the object that a request is about to change.
async fn changed(app: &App, asking: &Asking) -> usize {
    let Some(resource) = asking.attributes.resource.as_ref().filter(|r| !r.name.is_empty()) else { return 0 };
    let Ok(kind) = app.registry.kind(&resource.group, &resource.version, &resource.plural) else { return 0 };
    if !kind.is_stored() {
        return 0;
    }
    // What cannot be read now is told by whoever needs it.
    let found = app.registry.find(&kind, &resource.namespace, &resource.name).await.ok().flatten();
    found.map_or(0, |document| document.size())
}
