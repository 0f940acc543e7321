//! TokenReview and SubjectAccessReview, asked of the API server.

use std::collections::BTreeMap;

use async_trait::async_trait;
use base::class::{Class, Classify};
use client::{Client, ClientError, Request};
use serde::Deserialize;
use serde_json::json;

use crate::authn::User;
use crate::guard::{Access, ReviewError, Reviews};

/// Asks an API server.
#[derive(Clone, Debug)]
pub struct ApiReviews {
    pub client: Client,
    /// The object that access to a resource is about; empty where only paths are asked about.
    pub name: String,
}

#[derive(Deserialize)]
struct Reviewed<S> {
    #[serde(default = "Option::default")]
    status: Option<S>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenStatus {
    authenticated: bool,
    user: UserInfo,
    error: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct UserInfo {
    username: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AccessStatus {
    allowed: bool,
    denied: bool,
}

api::from_json!(Reviewed<TokenStatus>, Reviewed<AccessStatus>);

#[async_trait]
impl Reviews for ApiReviews {
    async fn token(&self, token: &str) -> Result<Option<User>, ReviewError> {
        let review = json!({
            "kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "spec": { "token": token },
        });
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        let answer = self.client.ask::<Reviewed<TokenStatus>>(Request::post(path, review.to_string()));
        let status = answer.await.map_err(|e| failed(&e))?.status.unwrap_or_default();
        // With a reason it is no verdict: an authenticator may have been out of reach.
        if !status.authenticated && !status.error.is_empty() {
            return Err(ReviewError { why: status.error, retry: false });
        }
        if !status.authenticated {
            return Ok(None);
        }
        let UserInfo { username: name, uid, groups, extra } = status.user;
        Ok(Some(User { name, uid, groups, extra }))
    }

    async fn access(&self, user: &User, asked: &Access) -> Result<bool, ReviewError> {
        let mut review = json!({
            "kind": "SubjectAccessReview",
            "apiVersion": "authorization.k8s.io/v1",
            "spec": {"user": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra},
        });
        let (attributes, said) = match asked {
            Access::Resource { verb, resource, subresource } => (
                "resourceAttributes",
                json!({"verb": verb, "version": "v1", "resource": resource, "subresource": subresource, "name": self.name}),
            ),
            Access::Path { verb, path } => ("nonResourceAttributes", json!({"verb": verb, "path": path})),
        };
        review["spec"][attributes] = said;
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let answer = self.client.ask::<Reviewed<AccessStatus>>(Request::post(path, review.to_string()));
        let status = answer.await.map_err(|e| failed(&e))?.status.unwrap_or_default();
        Ok(status.allowed && !status.denied)
    }
}

/// A server that still wants to be asked later, after the client has been patient, is not asked again now.
fn failed(error: &ClientError) -> ReviewError {
    let retry = error.class() == Class::Retry && error.retry_after().is_none();
    ReviewError { why: error.to_string(), retry }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use client::{Dial, Options, Wire};
    use http::Response;
    use http_body_util::Full;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;

    use super::*;

    /// An API server with one answer to everything.
    fn reviews(code: u16, retry_after: &'static str, body: serde_json::Value) -> ApiReviews {
        let answer = move || {
            let mut answer = Response::builder().status(code);
            if !retry_after.is_empty() {
                answer = answer.header("retry-after", retry_after);
            }
            answer.body(Full::new(Bytes::from(body.to_string()))).unwrap()
        };
        let dial: Dial = Arc::new(move || {
            let (ours, theirs) = tokio::io::duplex(64 << 10);
            let answer = answer.clone();
            let service = service_fn(move |_| {
                let answer = answer();
                async move { Ok::<_, hyper::Error>(answer) }
            });
            let serving =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(theirs), service);
            tokio::spawn(async move { drop(serving.await) });
            Ok(Box::new(ours) as Box<dyn Wire>)
        });
        ApiReviews { client: Client::over(dial, Options::default()), name: "n".to_owned() }
    }

    #[tokio::test]
    async fn a_verdict_is_told_from_a_review_that_went_wrong() {
        let status = |status: serde_json::Value| reviews(201, "", json!({ "status": status }));
        let known = status(json!({"authenticated": true, "user": {"username": "ann"}}));
        assert_eq!(known.token("t").await.unwrap().unwrap().name, "ann");
        assert!(status(json!({})).token("t").await.unwrap().is_none());
        let broken = status(json!({"error": "authenticator out of reach"})).token("t").await.unwrap_err();
        assert_eq!((broken.why.as_str(), broken.retry), ("authenticator out of reach", false));
    }

    #[tokio::test]
    async fn a_server_that_wants_to_be_asked_later_is_not_asked_at_once() {
        for (code, retry_after, retry) in
            [(500, "", true), (429, "60", false), (503, "60", false), (403, "", false)]
        {
            let why = reviews(code, retry_after, json!({}))
                .access(&User::default(), &Access::node("get", "stats"))
                .await;
            assert_eq!(why.unwrap_err().retry, retry, "{code}");
        }
    }
}
