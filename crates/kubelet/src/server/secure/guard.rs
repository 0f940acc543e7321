//! May they? Every request on 10250 is asked who sends it and whether that one may.

use std::fmt::Write;
use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;
use kubelet_core::access::{Question, question};
use secure_serving::{Access, Guard, Peer, Unauthorized, User};

/// The user, or the refusal.
pub(super) async fn admit(guard: &Guard, peer: &Peer, head: &Parts) -> Result<Arc<User>, Response> {
    let user = guard
        .authenticate(peer, &head.headers)
        .await
        .map_err(|Unauthorized| refuse(StatusCode::UNAUTHORIZED, "Unauthorized".to_owned()))?;
    authorize(guard, &user, question(head.method.as_str(), head.uri.path())).await?;
    Ok(user)
}

async fn authorize(guard: &Guard, user: &Arc<User>, asked: Question) -> Result<(), Response> {
    for subresource in asked.subresources {
        match guard.may(user, Access::node(asked.verb, subresource)).await {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(user = user.name, verb = asked.verb, subresource, %error, "authorization error");
                let text = format!(
                    "Authorization error (user={}, verb={}, resource=nodes, subresource={subresource})",
                    user.name, asked.verb
                );
                return Err(refuse(StatusCode::INTERNAL_SERVER_ERROR, text));
            }
        }
    }
    let mut text = format!("Forbidden (user={}, verb={}, resource=nodes, ", user.name, asked.verb);
    let _ = writeln!(text, "subresource(s)=[{}])", asked.subresources.join(" "));
    Err(refuse(StatusCode::FORBIDDEN, text))
}

fn refuse(status: StatusCode, text: String) -> Response {
    let headers = [(CONTENT_TYPE, "text/plain; charset=utf-8"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (status, headers, text).into_response()
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
