//! What the listener of port 10250 answers with: who may is let through to the router.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use http::Request;
use hyper::body::Incoming;
use secure_serving::listener::Handler;
use secure_serving::{Guard, Peer, User};
use serve::{Connection, Within};
use tower::ServiceExt;

use super::guard;
use super::query::Query;

/// For the body of a request to arrive.
const BODY_TIME: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub(super) struct Guarded {
    pub(super) router: Router,
    pub(super) guard: Arc<Guard>,
}

// === impl Guarded ===

impl Handler for Guarded {
    type Body = Body;

    async fn answer(&self, peer: Arc<Peer>, connection: Connection, request: Request<Incoming>) -> Response {
        let (mut head, body) = request.into_parts();
        match guard::admit(&self.guard, &peer, &head).await {
            Ok(user) => {
                if *user != User::anonymous() {
                    connection.know();
                }
                // What proved who asks goes no further.
                api::bearer::strip(&mut head.headers);
                head.extensions.insert(user);
                let request = Request::from_parts(head, Body::new(Within::new(body, BODY_TIME)));
                self.router.clone().oneshot(request).await.unwrap_or_else(|never| match never {})
            }
            Err(refusal) => refusal,
        }
    }

    fn follows(&self, request: &Request<Incoming>) -> bool {
        let uri = request.uri();
        uri.path().starts_with("/containerLogs/") && Query::parse(uri.query()).flag("follow")
    }
}
